/* What the kernel checks share: seeded random input, guarded memory, targets (reference and variants),
 * counting. */
#ifndef TERCET_TESTS_KERN_CHECK_H
#define TERCET_TESTS_KERN_CHECK_H

#include "common/err.h"
#include "kernels/kernels.h"

enum { CHECK_TARGETS_MAX = 10, CHECK_POOLS = 2, CHECK_BUFFERS_MAX = 600, CHECK_COUNTS_MAX = 128 };
/* Of a case: with each pool, and with the first one again, which has to give the same bits. What is read and written is the same
 * then, so not where sanitizers look for that. */
#ifdef CHECK_SANITIZED
enum { CHECK_RUNS = CHECK_POOLS };
enum { CHECK_STRIDE = 7 }; /* of cases that differ in values, one in so many: addresses are what sanitizers see */
#else
enum { CHECK_RUNS = CHECK_POOLS + 1 };
enum { CHECK_STRIDE = 1 };
#endif

/* How many cases one variant of an op has had. */
struct check_count {
	char op[20], variant[16];
	u32 cases;
};

/* The op table as a processor with these instruction sets would fill it. Target 0 is the reference. */
struct check_target {
	u32 caps;
	struct kern_ops ops;
};

struct check_buffer {
	unsigned char *base; /* of the guard bytes in front */
	size_t bytes;
	void *map;
	size_t map_bytes;
};

struct check {
	u64 seed, rng;
	struct check_target targets[CHECK_TARGETS_MAX];
	u32 target_count;
	struct kern_threads *pools[CHECK_POOLS]; /* of one and of two threads */
	void *scratch;
	size_t scratch_bytes;
	struct check_buffer buffers[CHECK_BUFFERS_MAX]; /* of the running case */
	u32 buffer_count;
	u32 passed, failed;
	const char *variant; /* of cases whose text names none */
	struct check_count counts[CHECK_COUNTS_MAX];
	u32 count_count;
};

void check_init(struct check *c, u64 seed);
/* One more, with what `caps` allow. */
struct check_target *check_add_target(struct check *c, u32 caps);
/* One more whose tiles (AMX) are emulated, where the processor can do the rest. */
void check_add_emulated(struct check *c);
void check_fini(struct check *c);

/* Memory of the running case: 64-byte aligned, filled with a poison that is a NaN as float and as bf16, with
 * guard bytes on both sides; reading or writing 64 bytes or more behind it is a segmentation fault. Freed by check_case_end. */
void *check_alloc(struct check *c, size_t bytes);
void check_poison(void *data, size_t bytes);

/* Scratch for a step of these sizes in `ctx`, poisoned; pool 0 has one thread, pool 1 two. */
void check_ctx(struct check *c, struct kern_ctx *ctx, const struct kern_limits *limits, u32 pool);

/* Frees all buffers of the case but the first `kept`; NULL, or that a guard was overwritten. */
const char *check_release(struct check *c, u32 kept);

/* Ends a case: it fails if `problem` is set, or if a guard was overwritten. The text begins with the op, or several
 * with + between, and its variant: "matmul=avx2 ...". */
void check_case_end(struct check *c, const char *problem, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Adds the cases and counts of `from`. */
void check_add(struct check *c, const struct check *from);
/* A table of ops and variants with the number of cases of each. */
void check_print_counts(const struct check *c);

u32 check_random(struct check *c, u32 below);
float check_uniform(struct check *c); /* in [-1, 1) */
/* `outliers`: one value in 64 is a hundred times as large. */
float *check_floats(struct check *c, size_t count, bool outliers);
u16 *check_bf16s(struct check *c, size_t count, bool outliers);

/* NULL, or what is wrong with got[i]: allowed is error * (scale[i] or, without scales, 1). */
const char *check_close(const float *got, const double *want, const double *scale, size_t count,
			double error);

/* Parameters of sampling number `kind`, from greedy to hot, with and without limits. */
void check_sample_params(struct check *c, struct kern_sample_row *row, u32 vocab, u32 kind);
/* `shape` 0: wide; 1: narrow; 2: many equal; 3: with -inf, NaN and, half of the times, `huge`; 4: all -inf;
 * 5: flat */
void check_sample_logits(struct check *c, float *logits, u32 vocab, u32 shape, float huge);

/* The targets whose `slot` differs from those of earlier targets. */
#define CHECK_DISTINCT(c, i, slot) check_distinct_((c), (i), offsetof(struct kern_ops, slot))
bool check_distinct_(const struct check *c, u32 target, size_t slot);

void check_linear(struct check *c);
void check_streams(struct check *c);
void check_matmul(struct check *c);
void check_fused(struct check *c);
void check_stages(struct check *c);
void check_rope(struct check *c);
void check_attention(struct check *c);
void check_moe(struct check *c);
void check_heads(struct check *c);
void check_index(struct check *c);
void check_lora(struct check *c);
void check_recurrent(struct check *c);
void check_sampling(struct check *c);
/* `only`: an op's name, or NULL for all. */
void bench_all(struct check *c, const char *only);

#endif
