/* What matrix products of many rows share: how rows, columns and k are cut into blocks that stay in the caches,
 * and how the inputs lie. A variant brings what packs inputs and what computes a tile. */
#ifndef TERCET_KERNELS_CPU_MATMUL_BLOCKED_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_BLOCKED_PRIV_H

#include <stdatomic.h>

#include "kernels/cpu/checked_priv.h"
#include "kernels/cpu/shares_priv.h"
#include "kernels/kern_priv.h"

enum {
	BLOCKED_THEN_TOKENS = 512, /* of two products at once, at most: there is scratch for so many rows of both */
	BLOCKED_ROWS = 256,   /* of a block of rows, at most: what its inputs take for one block of k stays in the L2 cache */
	BLOCKED_PANELS = 4,   /* of a task, at most: they share those inputs */
	BLOCKED_FAR_PANELS = 16, /* where all inputs of a block of rows do not stay in the L2 cache: each task brings them there again */
	BLOCKED_HANDED_PANELS = 2 * KERN_GROUP_MAX / KERN_PANEL, /* but those of gate and up that make a group of the next product's inputs */
	BLOCKED_TILE_MAX = 32 /* rows of a tile, at most */
};

/* How the whole sum of a group joins the others. */
enum blocked_scales {
	BLOCKED_ANY,	/* times both scales */
	BLOCKED_EIGHTHS, /* begun as a float that is the inputs' power of two times whole, it takes a subtraction to be times that power, and is then
			    multiplied by the weights' scale times the inputs' eighths, which `tables` holds */
	BLOCKED_POWERS, /* begun as a float that is a power of two times whole, it only takes a subtraction to be times the inputs' scale; then
			   BLOCKED_ZEROS' zeros, where weights still have them */
	BLOCKED_ZEROS,	/* less zeros times the sum of the inputs, then times both scales */
};

/* Rows of a gate and an up, whose sums are complete, that a tile of other panels makes an activation of beside its products. */
struct blocked_acts {
	const float *gate, *up; /* [rows][KERN_PANEL] */
	u32 rows;		/* 0: there is nothing to do */
	enum kern_activation act;
	char *to; /* rows `stride` bytes apart */
	size_t stride;
	bool packs; /* as inputs of the product that follows; or as floats */
};

/* Up to BLOCKED_TILE_MAX rows times the columns of one panel, over one block of k.
 *
 * Inputs of a tile of R rows are units of 4 bytes (1 float, 2 bf16 or 4 int8) as [unit][R]. With `width` every group of them
 * begins with the rows' scales, R floats, and -128 times the sums of the rounded inputs, R i32. With VNNI to these sums the bits of
 * BLOCKED_WHOLE times the scale's power of two are added, and that float follows, R times; then, beside weights in 8 bits, where in a
 * group's table the scale's eighths are found, R u32. With AVX2 inputs of weights in 8 and 4 bits lie by rows within a group, as cpu/matmul_int8_avx2_many.c and
 * cpu/matmul_int4_avx2_many.c say. */
struct blocked_tile {
	const char *weights; /* the panel's block, as stored or as `unpack` left it */
	const char *packed;  /* what `unpack` read, */
	char *unpacked;      /* and wrote */
	const char *tables;  /* BLOCKED_EIGHTHS: the groups' tables, as `tabulate` left them */
	const char *x;
	float *sums; /* [R][KERN_PANEL] of this panel between blocks of k; may hold anything before the first */
	u32 most_rows; /* of the tiles that share these weights, the largest one's; the others have one less */
	u32 k_count;
	u32 width;    /* of a group; 0: inputs have no scales */
	enum blocked_scales scales;
	bool first;   /* block of k: sums begin with what is in `out`, if `accumulate`, and the bias */
	bool last;    /* block of k: sums go to `out` */
	u32 columns;  /* that exist */
	float *out;   /* of the first row and column */
	size_t out_stride;
	const float *bias; /* of the first column, or NULL */
	bool accumulate;
	const char *prefetch; /* weights that come after these; each unit asks for the next `prefetch_step` bytes; `tiles` has steps of its own */
	u32 prefetch_step, prefetch_bytes; /* bytes: of the whole next block, */
	const char *prefetch_block; /* which begins here */
	/* Tiles that share these weights come one after the other. What one leaves undone is in `held`, BLOCKED_HELD bytes, for the
	 * next one: the first finds nothing there of use, the last leaves nothing undone. */
	char *held;
	bool opens, closes;
	struct blocked_acts acts; /* blocked_kernel.acts_beside */
};

/* RMSNorm of a row, in the bits of the op: its factor, and then as many values at a time as one likes. */
struct blocked_norm {
	float (*factor)(const float *x, u32 count, float eps);
	void (*scale)(float *out, const float *x, const float *weight, float factor, u32 count);
};
extern const struct blocked_norm blocked_norm_avx2; /* cpu/rmsnorm.c */

struct blocked_job;
struct blocked_kernel {
	u32 tile_rows;
	u32 k_block;	/* values, at most: a multiple of KERN_GROUP_MAX */
	u32 k_whole;	/* so many are one block, too: sums between two cost more than what they spare; 0: as many as k_block */
	u32 few_k_block; /* the same of few rows, for which what is made of the weights should not leave the L1 cache; 0: no other */
	u32 value_bytes; /* of an input: 1, 2 or 4 */
	u32 whole_values; /* where inputs have no groups: a row's are filled up to a multiple; 0: to pairs */
	u32 head_bytes; /* of a group of a row's inputs */
	u32 laid_rows; /* 0, or: a tile's inputs lie as if it had a multiple of so many rows, its own in front; blocks of rows are whole tiles then */
	bool acts_beside; /* `tile` does a tile's `acts` */
	u32 own_rows; /* so many a thread are worth reading all weights for, see plan_rows; 0: as many as for others */
	/* Values [k, k + count) of `rows` rows, the job's x_stride apart, into a tile's inputs. Answers whether one of their scales, or of
	 * their sums, is none that BLOCKED_EIGHTHS or BLOCKED_POWERS could do with. */
	bool (*pack)(const struct blocked_job *j, const float *x, u32 rows, u32 k, u32 count, char *to);
	/* NULL, or: brings a panel's block of k into the form that `tile` reads; at most BLOCKED_UNPACKED bytes. The
	 * answer is the tiles' `scales`. `any_scales`: what `pack` answered for the job. */
	enum blocked_scales (*unpack)(const struct kern_weight *w, const char *from, u32 k_count, bool any_scales, char *to);
	/* NULL, or: a panel's groups' scales times 8 to 15 eighths, [group][8][KERN_PANEL] floats. The answer is as of `unpack`. */
	enum blocked_scales (*tabulate)(const struct kern_weight *w, const char *from, u32 k_count, bool any_scales, char *to);
	void (*tile)(const struct blocked_tile *t, u32 rows);
	/* NULL, or: computes `count` tiles of `tile_rows` rows each that follow each other, the first of which is `t`. False, and nothing is
	 * computed: they are none that it could compute. It is called for every block, with no tiles, too, and finishes what `unpack` left to
	 * do. */
	bool (*tiles)(const struct blocked_tile *t, u32 count);
	/* out[r][i] = act(gate[r][i]) * up[r][i], i < KERN_PANEL; gate and up [rows][KERN_PANEL]. */
	void (*act_mul)(const float *gate, const float *up, u32 rows, enum kern_activation act, float *out, size_t out_stride);
	const struct blocked_norm *norm;
};

/* Floats as large as this, give or take 2^22, differ by 1 as their bits do. */
#define BLOCKED_WHOLE 0x1.8p23f

/* Room for a panel's block of 1,024 values in 8 bits, with a scale of every 128 and 384 bytes for the steps of every 32, or with a scale and a zero, or
 * offset, of every 32, or of 640 in 16 bits or in float32; or for the tables of as many. */
enum { BLOCKED_K_MAX = 1024, BLOCKED_UNPACKED = 80 << 10, BLOCKED_HELD = 3 << 10 };

struct blocked_job {
	const struct kern_matmul_args *a;
	const struct blocked_kernel *kernel;
	u32 width;  /* of the weights' groups, or 0 */
	u32 x_stride; /* of what is packed */
	atomic_bool any_scales; /* pack answered so */
	char *x;    /* packed: by parts, in these by blocks of rows, in these by blocks of k, in these by tiles */
	size_t row_bytes;
	u32 part_blocks;   /* blocks of rows of a part: all, or, where every thread has rows of its own, one thread's */
	size_t part_bytes; /* from one part to the next */
	char *lanes; /* of the threads: sums, what an activation made, unpacked weights; while inputs are packed, normed ones */
	size_t lane_bytes, lane_apart; /* apart: from one to the next */
	u32 row_blocks, k_blocks, tiles; /* tiles: in all blocks of rows */
	u32 k_block; /* values */
	u32 panels, step_panels, steps, steps_at_once; /* steps: of all columns; that are taken at a time */
	size_t panel_bytes, block_bytes; /* of the weights: a panel's, and those of a whole block of k in it */
	const struct kern_matmul_fusion *fusion; /* act_mul: panels of gate and up take turns; or NULL */
	const struct kern_matmul_fusion *normed; /* the norm that inputs go through first; or NULL */
	/* NULL, or: the product that follows, whose inputs are packed as soon as there are `handed` columns, whole groups, of a row. */
	struct blocked_job *then;
	u32 handed;
};

/* Whether a product's fusion is one that matmul_blocked does: gate and up are whole panels, what follows can be done by the same
 * kernel, and inputs of a norm are in their own order. */
bool matmul_blocked_fuses(const struct kern_matmul_args *a);

/* Packs the inputs into the scratch and computes; and what the fusion has. */
void matmul_blocked(struct kern_ctx *ctx, const struct kern_matmul_args *a, const struct blocked_kernel *kernel);

/* What matmul_blocked_tasks.c does of a job that is planned and has its memory; never blocks. */

/* The inputs of one tile, counted through all blocks of rows, and of one block of k unless there is a norm. A kern_task_fn of the job. */
void matmul_blocked_pack_task(void *job, u32 task, u32 thread);
/* The inputs of a part of the rows, by one thread. */
void matmul_blocked_pack(struct blocked_job *j, u32 part, u32 thread);
/* Steps [first, end), counted through the blocks of rows, whose inputs are packed. */
void matmul_blocked_steps(const struct blocked_job *j, u32 first, u32 end, u32 thread);

/* Products that follow each other, cpu/matmul_stages.c: each reads what the one before has made of the same rows, so a thread goes on with rows of its
 * own without waiting for others, of whose rows it takes steps where it has none. */
enum { BLOCKED_STAGES = 3 };
struct blocked_stages {
	u32 count, parts; /* parts of the rows: as many as threads */
	struct blocked_job *jobs[BLOCKED_STAGES];
	struct shares steps[BLOCKED_STAGES]; /* a share a part */
	struct {
		_Alignas(64) _Atomic u32 left[BLOCKED_STAGES]; /* steps that are not finished; a stage begins when the one before has none */
		_Atomic u32 packed[BLOCKED_STAGES];	       /* 0, 1: a thread packs them, 2: they are */
	} of[SHARES_MAX];
};

void matmul_stages_init(struct blocked_stages *s, u32 parts);
/* Borrows `j` until they have run. `keep`: steps of a part that are its thread's alone; `handed`: the stage before packs the inputs. */
void matmul_stages_add(struct blocked_stages *s, struct blocked_job *j, u32 keep, bool handed);
void matmul_stages_run(struct kern_ctx *ctx, struct blocked_stages *s);

/* Scratch of the threads. */
size_t matmul_blocked_lane_bytes(u32 tokens);

#endif
