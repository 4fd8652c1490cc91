/* What the matrix products with packed inputs share: how the inputs lie, how the work is cut into tiles and
 * tasks, and when the weights are fetched. A variant brings what packs a row of inputs and what computes a
 * tile. */
#ifndef TERCET_KERNELS_CPU_MATMUL_DRIVER_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_DRIVER_PRIV_H

#include "kernels/kern_priv.h"

enum {
	/* Multiply-adds of a task: some microseconds, more than waking a thread costs. */
	MATMUL_TASK_WORK = 128 * 1024,
	MATMUL_TASKS_A_THREAD = 8,
	/* Few enough that beside a small L1 cache the processor is left to follow the weights alone: they compute too little between two lines
	 * for it to lose a stream. */
	MATMUL_ALONE_ROWS = 4,
	MATMUL_PACK_VALUES = 512, /* whole groups of every type; packed for a tile's rows they stay in the L1 cache */
};

/* The tokens are divided evenly into tiles of rows. Inputs of a tile of R rows lie together: units of 4 bytes
 * (1 float, 2 bf16 or 4 int8) as [unit][R], then for quantized weights a scale, [group][R], and one sum or more of every input
 * group, [group][sum_words][R]. So a tile reads one stream with constant distances between its rows. */
struct matmul_inputs {
	char *data;
	size_t row_bytes;
	u32 unit_values;	/* inputs in 4 bytes */
	u32 whole_units;	/* a row is filled up to a multiple of them, which have to be of MATMUL_PACK_VALUES; 0: it is not */
	u32 width, groups;	/* of the groups of quantized weights; 0: inputs have no scales */
	u32 sum_words;		/* of a group */
	u32 scales_at, sums_at; /* bytes, times R from the beginning of the tile */
};

/* Which weights are asked into the L2 cache only: none, those that are used as they are, or those of 4 bits as well. */
enum matmul_far { MATMUL_NEAR, MATMUL_FAR_BYTES, MATMUL_FAR };

/* R rows times some columns of one panel, or times some panels; k from a given one on. */
struct matmul_tile {
	const char *weights; /* the panel at its first unit or group */
	u32 column; /* of the panel, the tile's first */
	u32 columns;
	u32 k_count;
	u32 width;			   /* of a group */
	const char *units, *scales, *sums; /* the inputs' */
	float *out;
	size_t out_stride;
	const float *bias;    /* of the first column, or NULL */
	bool resume;	      /* sums so far are in `out` */
	const char *prefetch; /* weights that come after these; every unit fetches the next `prefetch_step`
				 bytes */
	u32 prefetch_step;    /* 0: nothing to fetch, but for what tiles that are left alone, and pairs, ask for by themselves */
	enum matmul_far prefetch_far; /* see matmul_job */
	bool asks_twice; /* what is asked into the L2 cache, once more into the L1 cache; of MATMUL_FAR alone */
	const char *prefetch_end, *prefetch_then; /* what is fetched ends at the first, give or take a group, and goes on
						     at the second; NULL: straight on */
	/* From the first up to the second, whole blocks behind it, lines are asked for by pages in turns, and behind prefetch_then too; NULL: as
	 * they lie. */
	const char *prefetch_base, *prefetch_ordered;
	/* Of several panels, each some others behind the one before; `columns` are all of the matrix from the first one's on. */
	u32 panels, panel_columns;
	size_t panel_bytes;	 /* from one to the next */
	const char *next;	 /* weights that are read after these and lie elsewhere, or NULL; */
	size_t next_panel_bytes; /* of up to so many panels, so far apart */
	bool late;	/* each stream is better some lines behind the one before: see matmul_skinny.c */
	u32 near_bytes; /* so far ahead each stream is asked for; 0: not at all, the processor does better alone */
};

/* Memory brings a core of Emerald Rapids 13 to 20 % more if it is asked for lines of four pages in turns, though they are used as they lie. Eight pages
 * are as good; two, and pages of 2 KB, bring half as much. */
enum { TILE_LINE = 64, TILE_PAGE = 4096, TILE_PAGES = 4, TILE_ORDERED = TILE_PAGES * TILE_PAGE };

/* Before lines that were asked into the L2 cache are needed they are asked for once more, into the L1 cache: a core of Emerald Rapids, whose places
 * for lines that wait for the L2 cache are few, read 10 % more beside products of 4 bits, all that it reads without any. 4 to 12 KB are alike, in an
 * order of their own 1 to 4 KB. */
enum { MATMUL_TWICE_BYTES = 4 * 1024 };

/* A tile of two panels asks for lines of both in turn, so far ahead of its first one's, whose part it reads before it reads the other's. One and two
 * rows, which compute little between two lines, ask the L2 cache first, and by so much nearer for the same lines the L1 cache. */
enum { TILE_PAIR_AHEAD = 4096, TILE_PAIR_NEARER = 2048, TILE_PAIR_TWICE_ROWS = 2 };

struct matmul_job;
struct matmul_kernel {
	u32 tile_rows;	  /* at most */
	u32 tile_columns; /* at most a panel */
	u32 few_rows, few_columns; /* the columns of a tile of at most so few rows: at most a panel, or where tiles know `panels`
				      some whole ones */
	u32 k_block;	  /* a panel's part of so many k stays in the L2 cache for all tiles */
	u32 alone_rows;	  /* 0, or: up to so many rows instead of MATMUL_ALONE_ROWS */
	bool asks_always; /* for weights ahead, however small the L1 cache: computing in narrow vectors leaves the time to wait */
	bool asks_in_order; /* all that its tiles ask for goes through tile_fetch, which may have an order of its own */
	u32 paired_rows; /* 0, or: tiles of up to so many rows may be of two panels (matmul_job.paired), */
	u32 paired_bytes; /* each of no more than so much; 0: however large */
	/* Rounds values [first, end) of the row `x`, the r-th of the `rows` rows of a tile, into the tile's inputs at
	 * `to`. Both are multiples of MATMUL_PACK_VALUES, or `end` is the row's. */
	void (*pack)(const struct matmul_job *j, const float *x, u32 r, u32 rows, char *to, u32 first, u32 end);
	/* NULL, or instead of `pack`: the same of all rows of a tile; there is one. */
	void (*pack_rows)(const struct matmul_job *j, const float *x, u32 rows, char *to, u32 first, u32 end);
	void (*tile)(const struct matmul_tile *t, u32 rows);
};

struct matmul_job {
	const struct kern_matmul_args *a;
	const struct matmul_kernel *kernel;
	struct matmul_inputs in;
	u32 tiles; /* of rows */
	u32 pairs, pairs_a_task, column_tasks, tiles_a_task, tasks;
	u32 pack_values, pack_cuts; /* of a row that a task packs; tasks for a tile */
	/* A small L1 cache has few places for lines that memory has not brought yet, and with all of them taken it waits for lines
	 * of the L2 cache as well. */
	enum matmul_far prefetch_far;
	/* They are not asked for at all, or by what the variant finds better: the processor follows the stream by itself, and further ahead than
	 * those places would let it. */
	bool prefetch_off;
	/* Lines of few rows' weights are asked for as they lie, and not far ahead, for memory brings more so than by pages in turns; most of two
	 * places that are far from each other, and so a tile is two panels. */
	bool straight, paired;
	u32 near_bytes; /* of a tile of several panels */
};

/* Packs the inputs into the scratch and computes. `in`: all but data and row_bytes. */
void matmul_run(struct kern_ctx *ctx, const struct kern_matmul_args *a, const struct matmul_kernel *kernel,
		const struct matmul_inputs *in);

/* The same for a job of at most tile_rows tokens, all but its plan filled in: one tile of rows (matmul_skinny.c). */
void matmul_skinny_run(struct kern_ctx *ctx, const struct matmul_job *j);

/* Where the k-th value of column n's panel begins. */
static inline const char *matmul_weights_at(const struct kern_weight *w, u32 n, u32 k)
{
	if (w->packed == KERN_LAYOUT_GROUPS)
		return (const char *)w->data + kern_group_offset(w, n, k);
	return (const char *)w->data +
	       kern_panel_index(w->k, w->dtype, n / KERN_PANEL * KERN_PANEL, k) * kern_dtype_bytes(w->dtype);
}

/* Of a tile of all rows. */
static inline u32 matmul_columns(const struct matmul_job *j)
{
	if (j->paired)
		return 2 * KERN_PANEL;
	return j->a->tokens <= j->kernel->few_rows ? j->kernel->few_columns : j->kernel->tile_columns;
}

/* For tests: whatever the processor, tiles are of two panels where they may be, or never; or as is best, which is how it begins. */
enum matmul_pairs { MATMUL_PAIRS_BEST, MATMUL_PAIRS_ALWAYS, MATMUL_PAIRS_NEVER };
void matmul_pair(enum matmul_pairs how);

/* How many tasks a product is worth. */
u64 matmul_tasks(const struct kern_matmul_args *a, u32 threads);

#endif
