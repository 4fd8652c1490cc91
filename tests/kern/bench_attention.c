/* Times of attention and rope_kv for every type of KV cache: decoding beside the bandwidth of memory, prefill
 * beside the peak of the arithmetic in use. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/kv_priv.h"
#include "tests/kern/bench.h"
#include "tests/kern/check_kv.h"

enum { BLOCK = 16, PATTERN = 8192, CACHE_BYTES = 192 << 20 };

struct shape {
	u32 heads, kv_heads, head_dim;
	u32 rows, context, queries; /* rows 0: as many as fill CACHE_BYTES */
};

static void run_attention(void *arg, struct kern_ctx *ctx, const struct kern_ops *ops)
{
	ops->attention(ctx, arg);
}

static void run_rope_kv(void *arg, struct kern_ctx *ctx, const struct kern_ops *ops)
{
	ops->rope_kv(ctx, arg);
}

/* In large pages, as the worker's. */
static void *cache_memory(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		fprintf(stderr, "checkkern: no memory for %zu bytes\n", bytes);
		exit(1);
	}
	madvise(memory, bytes, MADV_HUGEPAGE);
	return memory;
}

/* Random numbers over and over: making as many as a cache holds would take longer than the runs. */
static void fill_array(struct check *c, const struct kern_kv *kv, bool value, u32 blocks)
{
	char *array = value ? kv->v : kv->k;
	size_t bytes = check_kv_bytes(kv, blocks);
	float floats[PATTERN / 4];
	char pattern[PATTERN];
	for (u32 i = 0; i < PATTERN / 4; i++)
		floats[i] = check_uniform(c);
	int16_t wholes[PATTERN / 2];
	for (u32 i = 0; i < PATTERN / 2; i++)
		wholes[i] = (int16_t)(floats[i % (PATTERN / 4)] * 16383);
	for (u32 i = 0; i < PATTERN; i++)
		pattern[i] = (char)check_random(c, 256);
	/* Not random codes: of these every sixteenth is below the smallest normal number, which takes a processor a hundred cycles, and of
	 * rounded values next to none is. */
	for (u32 i = 0; i < PATTERN && kv->dtype == KERN_F8E4M3; i++)
		pattern[i] = (char)kern_float_to_f8(floats[i % (PATTERN / 4)] * KERN_KV_F8_MAX);
	if (kv->dtype == KERN_F32 || kv->dtype == KERN_BF16)
		kern_convert(pattern, kv->dtype, floats, KERN_F32, PATTERN / kern_dtype_bytes(kv->dtype));
	if (kv->dtype == KERN_I16)
		memcpy(pattern, wholes, PATTERN);
	for (size_t i = 0; i < bytes; i += PATTERN)
		memcpy(array + i, pattern, bytes - i < PATTERN ? bytes - i : PATTERN);
	if (kv->dtype == KERN_F32 || kv->dtype == KERN_BF16)
		return;
	struct check_kv_place p = {.value = value};
	const float scale = 1 / (float)check_kv_most(kv->dtype);
	for (p.block = 0; p.block < blocks; p.block++)
		for (p.head = 0; p.head < kv->kv_heads; p.head++)
			for (p.offset = 0; p.offset < kv->block_size; p.offset++)
				memcpy(array + check_kv_scale_at(kv, &p), &scale, sizeof(scale));
}

/* Of the arithmetic that a variant uses for a type of cache. */
static double peak_of(const char *variant, enum kern_dtype type, const struct bench_limits *limits)
{
	const bool wholes = type == KERN_I8 || type == KERN_I16;
	if (strcmp(variant, "avx512_bf16") == 0 && type == KERN_BF16)
		return limits->gflops_dots;
	if (strcmp(variant, "avx512_bf16") == 0 || strcmp(variant, "avx512_vnni") == 0)
		return wholes ? limits->gops_vnni / 2 : limits->gflops_avx512;
	if (strcmp(variant, "avx512") == 0)
		return limits->gflops_avx512; /* two instructions for twice as many numbers of 16 bits */
	if (strcmp(variant, "avx_vnni") == 0 && wholes)
		return limits->gops_avx_vnni / 2;
	return wholes ? limits->gops_wide : limits->gflops_avx2;
}

static void one_shape(struct check *c, u32 target, u32 pool, const struct shape *s, enum kern_dtype type,
		      const struct bench_limits *limits)
{
	const struct kern_ops *ops = &c->targets[target].ops;
	struct kern_attention_args a = {
		.kv = {.dtype = type, .block_size = BLOCK, .kv_heads = s->kv_heads, .head_dim = s->head_dim}};
	u32 a_row = (s->context + BLOCK - 1) / BLOCK;
	size_t row_bytes = 2 * check_kv_bytes(&a.kv, a_row);
	u32 rows = s->rows ? s->rows : (u32)(CACHE_BYTES / row_bytes), blocks = rows * a_row,
	    tokens = rows * s->queries;
	struct kern_limits sizes = {.tokens = tokens,
				    .rows = rows,
				    .heads = s->heads,
				    .kv_heads = s->kv_heads,
				    .head_dim = s->head_dim,
				    .context = s->context};
	u32 *start = check_alloc(c, (rows + 1) * 4), *contexts = check_alloc(c, rows * 4),
	    *tables = check_alloc(c, (size_t)blocks * 4);
	for (u32 r = 0; r <= rows; r++)
		start[r] = r * s->queries;
	for (u32 r = 0; r < rows; r++)
		contexts[r] = s->context;
	for (u32 i = 0; i < blocks; i++)
		tables[i] = (u32)((u64)i * 7919 % blocks);
	a.query_start = start;
	a.context = contexts;
	a.block_tables = tables;
	a.block_stride = a_row;
	a.rows = rows;
	a.tokens = tokens;
	a.heads = s->heads;
	a.scale = 1 / sqrtf((float)s->head_dim);
	a.kv.k = cache_memory(check_kv_bytes(&a.kv, blocks));
	a.kv.v = cache_memory(check_kv_bytes(&a.kv, blocks));
	fill_array(c, &a.kv, false, blocks);
	fill_array(c, &a.kv, true, blocks);
	a.q = check_floats(c, (size_t)tokens * s->heads * s->head_dim, false);
	a.out = check_floats(c, (size_t)tokens * s->heads * s->head_dim, false);
	struct kern_ctx ctx;
	check_ctx(c, &ctx, &sizes, pool);
	double ns = bench_best_ns(run_attention, &a, &ctx, ops), bytes = (double)rows * (double)row_bytes;
	double flops = 4.0 * tokens * (s->context - (s->queries - 1) / 2.0) * s->heads * s->head_dim;
	double peak = peak_of(ops->attention_variant, type, limits);
	printf("{\"bench\":\"kernels\",\"op\":\"attention\",\"variant\":\"%s\",\"threads\":%u,\"kv\":\"%s\","
	       "\"shape\":\"heads=%u/%u head_dim=%u rows=%u context=%u queries=%u\",\"us\":%.2f,"
	       "\"gflops\":%.1f,\"gbytes_s\":%.1f",
	       ops->attention_variant, pool + 1, check_kv_name(type), s->heads, s->kv_heads, s->head_dim,
	       rows, s->context, s->queries, ns / 1000, flops / ns, bytes / ns);
	if (s->rows == 0)
		printf(",\"share_of_bandwidth\":%.2f", bytes / ns / limits->gbytes_s);
	if (s->queries > 1 && peak > 0)
		printf(",\"share_of_peak\":%.2f", flops / ns / peak);
	printf("}\n");
	fflush(stdout);
	munmap(a.kv.k, check_kv_bytes(&a.kv, blocks));
	munmap(a.kv.v, check_kv_bytes(&a.kv, blocks));
	check_case_end(c, NULL, "attention");
}

void bench_attention(struct check *c, u32 target, u32 pool, const struct bench_limits *limits)
{
	static const struct shape shapes[] = {
		{8, 4, 32, 32, 256, 1},	   {8, 4, 32, 1, 256, 256},    {32, 8, 64, 1, 1024, 1},
		{32, 8, 128, 0, 2048, 1},  {32, 8, 64, 0, 2048, 1},    {9, 3, 64, 0, 1024, 1},
		{16, 16, 128, 0, 2048, 1}, {32, 8, 128, 1, 1024, 512}, {32, 8, 64, 1, 512, 512},
		{9, 3, 64, 1, 128, 128},   {9, 3, 64, 1, 512, 512},    {16, 1, 576, 1, 1000, 1},
		{128, 1, 576, 1, 1000, 1},
	};
	for (u32 t = 0; t < CHECK_KV_TYPES; t++)
		for (u32 i = 0; i < COUNT_OF(shapes); i++)
			if (target > 0 ||
			    (shapes[i].rows > 0 && shapes[i].queries == 1)) /* the reference is slow */
				one_shape(c, target, pool, &shapes[i], check_kv_types[t], limits);
}

static void one_rope(struct check *c, u32 target, u32 pool, u32 heads, u32 kv_heads, u32 dim, u32 tokens,
		     enum kern_dtype type)
{
	const struct kern_ops *ops = &c->targets[target].ops;
	u32 all = heads + 2 * kv_heads, blocks = (tokens + BLOCK - 1) / BLOCK;
	struct kern_limits limits = {.tokens = tokens};
	struct kern_ctx ctx;
	u32 *positions = check_alloc(c, tokens * 4);
	i64 *slots = check_alloc(c, tokens * 8);
	for (u32 t = 0; t < tokens; t++) {
		positions[t] = t;
		slots[t] = t;
	}
	struct kern_rope_kv_args a = {
		.positions = positions, .slots = slots, .tokens = tokens, .heads = heads, .rope_dim = dim};
	a.q = check_floats(c, (size_t)tokens * heads * dim, false);
	a.qkv = check_floats(c, (size_t)tokens * all * dim, false);
	a.cos = check_floats(c, (size_t)tokens * dim / 2, false);
	a.sin = check_floats(c, (size_t)tokens * dim / 2, false);
	a.kv = (struct kern_kv){.dtype = type, .block_size = BLOCK, .kv_heads = kv_heads, .head_dim = dim};
	check_kv_alloc(c, &a.kv, blocks);
	check_ctx(c, &ctx, &limits, pool);
	printf("{\"bench\":\"kernels\",\"op\":\"rope_kv\",\"variant\":\"%s\",\"threads\":%u,\"kv\":\"%s\","
	       "\"shape\":\"heads=%u/%u head_dim=%u tokens=%u\",\"us\":%.2f}\n",
	       ops->rope_kv_variant, pool + 1, check_kv_name(type), heads, kv_heads, dim, tokens,
	       bench_best_ns(run_rope_kv, &a, &ctx, ops) / 1000);
	check_case_end(c, NULL, "rope_kv");
}

void bench_rope_kv(struct check *c, u32 target, u32 pool)
{
	for (u32 t = 0; t < CHECK_KV_TYPES; t++) {
		one_rope(c, target, pool, 8, 4, 32, 1, check_kv_types[t]);
		one_rope(c, target, pool, 8, 4, 32, 512, check_kv_types[t]);
		one_rope(c, target, pool, 32, 8, 128, 512, check_kv_types[t]);
	}
}
