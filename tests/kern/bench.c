/* Times of the ops beside the limits of the machine, one JSON line each; best of several runs, for other work
 * on the machine only ever makes a run slower. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "tests/kern/bench.h"
#include "tests/kern/check_lora.h"
#include "tests/kern/limits.h"

enum { BENCH_NS = 60 * 1000 * 1000, RUNS_MIN = 3, RUNS_MAX = 2000 };

double bench_best_ns(bench_fn fn, void *arg, struct kern_ctx *ctx, const struct kern_ops *ops)
{
	u64 start = clock_now_ns(), best = UINT64_MAX;
	for (u32 i = 0; i < RUNS_MAX && (i < RUNS_MIN || clock_now_ns() - start < BENCH_NS); i++) {
		u64 begin = clock_now_ns();
		fn(arg, ctx, ops);
		u64 took = clock_now_ns() - begin;
		best = took < best ? took : best;
	}
	return (double)best;
}

/* ---------------------------------------------------------------- limits */

static void bench_limits(struct check *c, u32 pool, struct bench_limits *limits)
{
	double *gops[LIMIT_KINDS] = {[LIMIT_AVX2] = &limits->gflops_avx2,
				     [LIMIT_AVX512] = &limits->gflops_avx512,
				     [LIMIT_BF16] = &limits->gflops_dots,
				     [LIMIT_WIDE] = &limits->gops_wide,
				     [LIMIT_AVX_VNNI] = &limits->gops_avx_vnni,
				     [LIMIT_VNNI] = &limits->gops_vnni};
	struct limits_memory memory;
	*limits = (struct bench_limits){0};
	if (limits_memory_init(&memory)) {
		limits->gbytes_s = limits_read(&memory, c->pools[pool], 300);
		printf("{\"bench\":\"limit\",\"what\":\"memory read\",\"threads\":%u,\"gbytes_s\":%.1f}\n",
		       pool + 1, limits->gbytes_s);
		limits_memory_fini(&memory);
	}
	for (u32 k = 0; k < LIMIT_KINDS; k++) {
		if (!limits_has((enum limit_kind)k, kern_caps_detect()))
			continue;
		double measured = limits_gops((enum limit_kind)k, c->pools[pool], 100);
		printf("{\"bench\":\"limit\",\"what\":\"%s\",\"threads\":%u,\"gflops\":%.0f}\n",
		       limits_name((enum limit_kind)k), pool + 1, measured);
		if (gops[k])
			*gops[k] = measured;
	}
}

/* ---------------------------------------------------------------- ops */

void bench_report(const char *op, const char *variant, u32 pool, const char *shape, double ns, double flops,
		  double bytes)
{
	printf("{\"bench\":\"kernels\",\"op\":\"%s\",\"variant\":\"%s\",\"threads\":%u,\"shape\":\"%s\","
	       "\"us\":%.2f",
	       op, variant, pool + 1, shape, ns / 1000);
	if (flops > 0)
		printf(",\"gflops\":%.1f", flops / ns);
	if (bytes > 0)
		printf(",\"gbytes_s\":%.1f", bytes / ns);
	printf("}\n");
	fflush(stdout);
}

BENCH_RUNNER(embedding)
BENCH_RUNNER(rmsnorm)
BENCH_RUNNER(matmul)
BENCH_RUNNER(act_mul)
BENCH_RUNNER(sample)
BENCH_RUNNER(logprobs)

/* Near normal, as activations are: how products with weights in 4 bits sum up depends on their inputs. */
static float *activations(struct check *c, size_t count)
{
	enum { TERMS = 4 };
	float *x = check_floats(c, count * TERMS, false);
	for (size_t i = 0; i < count; i++) {
		float sum = 0;
		for (u32 t = 0; t < TERMS; t++)
			sum += x[i * TERMS + t];
		x[i] = sum;
	}
	return x;
}

static void bench_matmul(struct check *c, u32 target, u32 pool, u32 n, u32 k, u32 tokens,
			 enum kern_dtype dtype)
{
	struct kern_limits limits = {.tokens = tokens, .hidden = k};
	struct kern_weight w;
	struct err_msg em;
	char shape[100];
	u32 caps = c->targets[target].caps;
	void *memory = check_alloc(c, kern_weight_bytes(n, k, dtype, caps));
	float *plain = check_floats(c, (size_t)n * k, false);
	if (kern_weight_pack(&w, plain, KERN_F32, k, n, k, dtype, memory, c->pools[1], caps, &em) != ERR_OK)
		return;
	struct kern_matmul_args a = {.w = &w, .tokens = tokens, .x_stride = k, .out_stride = n};
	a.x = activations(c, (size_t)tokens * k);
	a.out = check_floats(c, (size_t)tokens * n, false);
	snprintf(shape, sizeof(shape), "%s n=%u k=%u tokens=%u", kern_dtype_name(dtype), n, k, tokens);
	BENCH(matmul, c, target, pool, &a, &limits, shape, 2.0 * n * k * tokens,
	      (double)kern_weight_bytes(n, k, dtype, caps));
	check_case_end(c, NULL, "matmul");
}

/* A token's way through the small ops of a model of this size. */
static void bench_small(struct check *c, u32 target, u32 pool, u32 tokens, u32 hidden, u32 intermediate,
			u32 vocab)
{
	struct kern_limits limits = {
		.tokens = tokens, .hidden = hidden, .intermediate = intermediate, .vocab = vocab};
	size_t wide = (size_t)tokens * hidden;
	char shape[100];
	u32 *ids = check_alloc(c, tokens * 4);
	for (u32 t = 0; t < tokens; t++)
		ids[t] = check_random(c, vocab);
	struct kern_rmsnorm_args norm = {.out = check_floats(c, wide, false),
					 .x = check_floats(c, wide, false),
					 .weight = check_floats(c, hidden, false),
					 .eps = 1e-5f,
					 .tokens = tokens,
					 .hidden = hidden};
	float *add = check_alloc(c, wide * 4);
	memset(add, 0, wide * 4); /* x must not grow from run to run */
	norm.add = add;
	snprintf(shape, sizeof(shape), "hidden=%u tokens=%u", hidden, tokens);
	if (CHECK_DISTINCT(c, target, rmsnorm))
		BENCH(rmsnorm, c, target, pool, &norm, &limits, shape, 0, (double)wide * 16);
	struct kern_act_mul_args act = {.out = check_floats(c, (size_t)tokens * intermediate, false),
					.gate_up = check_floats(c, (size_t)tokens * intermediate * 2, false),
					.tokens = tokens,
					.size = intermediate};
	snprintf(shape, sizeof(shape), "size=%u tokens=%u", intermediate, tokens);
	if (CHECK_DISTINCT(c, target, act_mul))
		BENCH(act_mul, c, target, pool, &act, &limits, shape, 0, (double)tokens * intermediate * 12);
	struct kern_embedding_args embed = {.out = norm.out,
					    .ids = ids,
					    .table = check_bf16s(c, (size_t)vocab * hidden, false),
					    .table_dtype = KERN_BF16,
					    .tokens = tokens,
					    .hidden = hidden,
					    .rows = vocab};
	snprintf(shape, sizeof(shape), "bf16 hidden=%u tokens=%u", hidden, tokens);
	if (CHECK_DISTINCT(c, target, embedding))
		BENCH(embedding, c, target, pool, &embed, &limits, shape, 0, (double)wide * 6);
	check_case_end(c, NULL, "small");
}

static void bench_sampling(struct check *c, u32 target, u32 pool, u32 vocab)
{
	static const struct kern_sample_row kinds[] = {
		{.temperature = 0, .top_p = 1},
		{.temperature = 1, .top_p = 1},
		{.temperature = 1, .top_p = 0.9f},
		{.temperature = 1, .top_p = 1, .top_k = 40},
		{.temperature = 1, .top_p = 0.95f, .top_k = 50, .min_p = 0.05f}};
	struct kern_limits limits = {.vocab = vocab, .rows = 1};
	float *logits = check_floats(c, vocab, false), value[21];
	u32 token, ids[21], rank;
	char shape[100];
	for (u32 i = 0; i < vocab; i++) /* a rough bell 20 wide, as a language model's */
		logits[i] = 4 * (check_uniform(c) + check_uniform(c) + check_uniform(c) + logits[i]);
	for (u32 i = 0; i < COUNT_OF(kinds); i++) {
		struct kern_sample_row row = kinds[i];
		struct kern_sample_args a = {.rows = &row, .tokens = &token, .row_count = 1, .vocab = vocab};
		row.logits = logits;
		snprintf(shape, sizeof(shape), "vocab=%u temperature=%g top_k=%u top_p=%g min_p=%g", vocab,
			 (double)row.temperature, row.top_k, (double)row.top_p, (double)row.min_p);
		BENCH(sample, c, target, pool, &a, &limits, shape, 0, vocab * 4.0);
	}
	struct kern_logprobs_row row = {logits, 1, 20, ids, value, &rank};
	struct kern_logprobs_args a = {&row, 1, vocab};
	snprintf(shape, sizeof(shape), "vocab=%u top=20", vocab);
	BENCH(logprobs, c, target, pool, &a, &limits, shape, 0, vocab * 4.0);
	check_case_end(c, NULL, "sampling");
}

void bench_all(struct check *c, const char *only)
{
#define WANTED(op) (CHECK_DISTINCT(c, i, op) && (!only || strcmp(only, #op) == 0))
	struct bench_limits limits;
	static const u32 matrices[][2] = {{512, 256}, {256, 256},  {1408, 256},
					  {256, 704}, {4096, 256}, {4096, 4096}};
	static const u32 layers[][2] = {{3072, 2048}, {16384, 2048}, {2048, 8192}, {32768, 2048}};
	static const u32 tokens[] = {1, 4, 16, 64, 512}, steps[] = {1, 2, 4, 8, 16, 32, 512};
	static const enum kern_dtype types[] = {KERN_F32, KERN_BF16, KERN_I8, KERN_I4_64, KERN_I4_128, KERN_I4_STEPS};
	for (u32 pool = 0; pool < CHECK_POOLS; pool++) {
		bench_limits(c, pool, &limits);
		for (u32 i = 0; i < c->target_count; i++) {
			for (u32 m = 0; m < COUNT_OF(matrices) && WANTED(matmul); m++)
				for (u32 t = 0; t < COUNT_OF(tokens) && (i > 0 || tokens[t] * m < 20); t++)
					for (u32 d = 0; d < COUNT_OF(types); d++)
						bench_matmul(c, i, pool, matrices[m][0], matrices[m][1],
							     tokens[t], types[d]);
			/* Matrices of a model of 1.2e9 weights, by the best variant. */
			for (u32 m = 0; m < COUNT_OF(layers) && WANTED(matmul) && i + 1 == c->target_count;
			     m++)
				for (u32 d = 1; d < COUNT_OF(types); d++)
					for (u32 t = 0; t < COUNT_OF(steps); t++)
						bench_matmul(c, i, pool, layers[m][0], layers[m][1], steps[t],
							     types[d]);
			if (WANTED(attention))
				bench_attention(c, i, pool, &limits);
			if (WANTED(rope_kv))
				bench_rope_kv(c, i, pool);
			bench_moe(c, i, pool, only);
			bench_recurrent(c, i, pool, only);
			bench_index(c, i, pool, only);
			if (WANTED(lora))
				bench_lora(c, i, pool);
			for (u32 t = 1; t <= 512 && (WANTED(rmsnorm) || WANTED(act_mul) || WANTED(embedding));
			     t *= 8)
				bench_small(c, i, pool, t, 256, 704, 4096);
			for (u32 v = 4096; v <= 131072 && (WANTED(sample) || WANTED(logprobs)); v *= 32)
				bench_sampling(c, i, pool, v);
		}
	}
#undef WANTED
}
