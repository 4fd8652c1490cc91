/* What the benchmarks of the ops share. */
#ifndef TERCET_TESTS_KERN_BENCH_H
#define TERCET_TESTS_KERN_BENCH_H

#include "tests/kern/check.h"

/* Measured in the same run; 0: the processor does not have it. */
struct bench_limits {
	double gbytes_s;
	double gflops_avx2, gflops_avx512; /* float32 */
	double gflops_dots;		   /* bfloat16 in pairs */
	double gops_wide, gops_avx_vnni, gops_vnni; /* whole numbers: of 16 bits, and bytes by the two VNNI, which do half as many of 16 bits */
};

typedef void (*bench_fn)(void *arg, struct kern_ctx *ctx, const struct kern_ops *ops);
/* The shortest of many runs: other work on the machine only ever makes a run longer. */
double bench_best_ns(bench_fn fn, void *arg, struct kern_ctx *ctx, const struct kern_ops *ops);

void bench_attention(struct check *c, u32 target, u32 pool, const struct bench_limits *limits);
void bench_rope_kv(struct check *c, u32 target, u32 pool);
/* `only`: an op's name, or NULL for all. */
void bench_moe(struct check *c, u32 target, u32 pool, const char *only);
void bench_index(struct check *c, u32 target, u32 pool, const char *only);
void bench_recurrent(struct check *c, u32 target, u32 pool, const char *only);

/* A JSON line; flops and bytes of the op itself, 0 where they say nothing. */
void bench_report(const char *op, const char *variant, u32 pool, const char *shape, double ns, double flops,
		  double bytes);

/* run_OP, for BENCH. */
#define BENCH_RUNNER(op)                                                                  \
	static void run_##op(void *arg, struct kern_ctx *ctx, const struct kern_ops *ops) \
	{                                                                                 \
		ops->op(ctx, arg);                                                        \
	}

#define BENCH(op, c, target, pool, args, limits, shape, flops, bytes)                   \
	do {                                                                            \
		struct kern_ctx ctx_;                                                   \
		const struct kern_ops *ops_ = &(c)->targets[target].ops;                \
		check_ctx(c, &ctx_, limits, pool);                                      \
		bench_report(#op, ops_->op##_variant, pool, shape,                      \
			     bench_best_ns(run_##op, args, &ctx_, ops_), flops, bytes); \
	} while (0)

#endif
