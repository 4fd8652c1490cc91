/* Checks of the device's attention, block_copy and swap against the reference. */
#include <cuda_runtime.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kern/device_cache.h"

struct attention_case {
	u32 heads, kv_heads, head_dim, block_size;
	const u32 (*rows)[2];  /* context, queries */
	u32 row_count, blocks; /* blocks: of threads that the plan thinks fill the device */
	enum kern_dtype kv;
	u32 window;
	float soft_cap;
	u32 split;
	bool sinks;
	bool varied; /* scales of values down to 2^-10 of what they are elsewhere, and with the keys now low, now high */
	int q_power; /* Q is multiplied by that power of two, the scale divided by it */
};

/* A value in the cache becomes that much larger. */
static void cache_scale(struct device_cache *c, size_t block, u32 head, u32 offset, float by)
{
	*device_cache_scale_at(c, c->v, block, head, offset) *= by;
	for (u32 i = 0; i < c->device.head_dim; i++)
		*device_cache_ref_v(c, block, head, offset, i) *= by;
}

/* Blocks in random order; keys outside of every window are in a block of NaN. */
static u32 *attention_cache(struct device *d, const struct attention_case *m, struct device_cache *c, u32 widest)
{
	u32 blocks = 1, next = 1;
	for (u32 r = 0; r < m->row_count; r++)
		blocks += (m->rows[r][0] + m->block_size - 1) / m->block_size;
	const struct kern_kv kv = {.dtype = m->kv,
				   .block_size = m->block_size,
				   .kv_heads = m->kv_heads,
				   .head_dim = m->head_dim};
	u32 *tables = check_alloc(&d->check, (size_t)m->row_count * widest * sizeof(u32)),
	    *order = check_alloc(&d->check, blocks * sizeof(u32));
	device_cache_init(d, c, &kv, blocks);
	order[0] = 0; /* the block of NaN */
	for (u32 i = 1; i < blocks; i++) {
		const u32 j = 1 + check_random(&d->check, i);
		order[i] = order[j];
		order[j] = i;
	}
	for (u32 r = 0; r < m->row_count; r++) {
		const u32 before = m->rows[r][0] - m->rows[r][1];
		const u32 first = m->window > 0 && before >= m->window ? before - m->window + 1 : 0;
		for (u32 key = 0; key < m->rows[r][0]; key++) {
			u32 *at = &tables[r * widest + key / m->block_size];
			if (key % m->block_size == 0)
				*at = (key / m->block_size + 1) * m->block_size <= first ? 0 : order[next++];
			if (*at == 0)
				continue;
			for (u32 h = 0; h < m->kv_heads; h++) {
				device_cache_fill(d, c, true, *at, h, key % m->block_size, 4);
				device_cache_fill(d, c, false, *at, h, key % m->block_size, 1);
				if (m->varied)
					cache_scale(c, *at, h, key % m->block_size,
						    ldexpf(1, -(int)check_random(&d->check, 3) - (key / 64 % 2 == 0 ? 8 : 0)));
			}
		}
	}
	device_cache_upload(d, c);
	return tables;
}

/* The step as args of both sides. False: no memory for the plan. */
/* Beside scores of a few units: some far above, some far below all of them. */
static float *attention_sinks(struct device *d, u32 heads, const float **device)
{
	float *sinks = check_floats(&d->check, heads, false);
	for (u32 h = 0; h < heads; h++)
		sinks[h] = sinks[h] * 4 + (h % 4 == 1 ? 60 : h % 4 == 3 ? -200 : 0);
	*device = device_upload(d, sinks, heads * sizeof(float));
	return sinks;
}

static void attention_inputs(struct device *d, const struct attention_case *m, struct kern_attention_args *a,
			     struct kern_attention_args *ref)
{
	u32 *start = check_alloc(&d->check, (m->row_count + 1) * sizeof(u32)),
	    *context = check_alloc(&d->check, m->row_count * sizeof(u32)), widest = 1, tokens = 0;
	struct device_cache c;
	u16 *q;
	for (u32 r = 0; r < m->row_count; r++) {
		const u32 needed = (m->rows[r][0] + m->block_size - 1) / m->block_size;
		widest = needed > widest ? needed : widest;
		start[r] = tokens;
		context[r] = m->rows[r][0];
		tokens += m->rows[r][1];
	}
	start[m->row_count] = tokens;
	u32 *tables = attention_cache(d, m, &c, widest);
	*ref = (struct kern_attention_args){.query_start = start,
					    .context = context,
					    .block_tables = tables,
					    .block_stride = widest,
					    .rows = m->row_count,
					    .tokens = tokens,
					    .heads = m->heads,
					    .scale = ldexpf(1.5f / sqrtf((float)m->head_dim), -m->q_power),
					    .soft_cap = m->soft_cap,
					    .window = m->window};
	const float *sinks = NULL;
	ref->sinks = m->sinks ? attention_sinks(d, m->heads, &sinks) : NULL;
	float *queries = device_bf16s(d, (size_t)tokens * m->heads * m->head_dim, false, &q);
	if (m->q_power != 0) {
		u16 *halves = check_alloc(&d->check, (size_t)tokens * m->heads * m->head_dim * sizeof(u16));
		for (size_t i = 0; i < (size_t)tokens * m->heads * m->head_dim; i++)
			queries[i] = ldexpf(queries[i], m->q_power);
		kern_convert(halves, KERN_BF16, queries, KERN_F32, (size_t)tokens * m->heads * m->head_dim);
		q = device_upload(d, halves, (size_t)tokens * m->heads * m->head_dim * sizeof(u16));
	}
	ref->q = queries;
	ref->out = check_alloc(&d->check, (size_t)tokens * m->heads * m->head_dim * sizeof(float));
	ref->kv = c.ref;
	*a = *ref;
	a->dtype = KERN_BF16;
	a->sinks = sinks;
	a->q_bf16 = q;
	a->out_bf16 = device_alloc(d, (size_t)tokens * m->heads * m->head_dim * sizeof(u16));
	a->kv = c.device;
	a->query_start = device_upload(d, start, (m->row_count + 1) * sizeof(u32));
	a->context = device_upload(d, context, m->row_count * sizeof(u32));
	a->block_tables = device_upload(d, tables, (size_t)m->row_count * widest * sizeof(u32));
}

/* Row `row` as the only one of its step, planned for another device: the bits it had in company. NULL: the same. */
static const char *attention_alone(struct device *d, const struct attention_case *m, const struct kern_attention_args *all,
				   u32 row)
{
	const size_t token = (size_t)m->heads * m->head_dim;
	struct kern_attention_args a = *all;
	struct kern_attention_plan plan = *all->plan;
	u32 *start = check_alloc(&d->check, (m->row_count + 1) * sizeof(u32)), before = 0;
	for (u32 r = 0; r <= m->row_count; r++)
		start[r] = r <= row ? 0 : m->rows[row][1];
	for (u32 r = 0; r < row; r++)
		before += m->rows[r][1];
	plan.limits.blocks = 3 * m->blocks + 1;
	plan.memory = device_alloc(d, kern_attention_plan_bytes(&plan.limits));
	a.plan = &plan;
	a.tokens = m->rows[row][1];
	a.query_start = device_upload(d, start, (m->row_count + 1) * sizeof(u32));
	a.q_bf16 += before * token;
	a.out_bf16 = device_alloc(d, a.tokens * token * sizeof(u16));
	const struct kern_attention_plan_args p = {&plan, a.query_start, a.context, a.rows};
	const char *problem = device_problem(d, d->device_ops.attention_plan(&d->ctx, &p));
	if (!problem)
		problem = device_problem(d, d->ops.attention(&d->ctx, &a));
	if (!problem && memcmp(device_download(d, a.out_bf16, a.tokens * token * sizeof(u16)),
			       device_download(d, all->out_bf16 + before * token, a.tokens * token * sizeof(u16)),
			       a.tokens * token * sizeof(u16)) != 0)
		problem = "other bits than in company";
	return problem;
}

/* Prefill with heads of 256 has 198 KiB of buffers, which not every device lets a block have, and with larger ones 102 at
 * least. `refused`: none of them fits, or there is no kernel for the type of the cache. */
static bool has_room(const struct attention_case *m, bool *refused)
{
	enum { LARGE_HEADS = 256, BUFFERS = 198 << 10, LEAST = 99 << 10 };
	int bytes = 0;
	(void)cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
	*refused = m->head_dim >= LARGE_HEADS && (bytes <= LEAST || (m->head_dim > LARGE_HEADS && m->kv != KERN_BF16));
	return m->head_dim < LARGE_HEADS || bytes >= BUFFERS;
}

static void attention_case(struct device *d, const struct attention_case *m)
{
	struct kern_attention_args a, ref;
	bool refused;
	if (!has_room(m, &refused) && !refused)
		return;
	attention_inputs(d, m, &a, &ref);
	struct kern_attention_plan plan = {.window = m->window,
					   .limits = {.tokens = a.tokens,
						      .rows = a.rows,
						      .queries = 1,
						      .heads = m->heads,
						      .kv_heads = m->kv_heads,
						      .head_dim = m->head_dim,
						      .blocks = m->blocks,
						      .split = m->split}};
	for (u32 r = 0; r < m->row_count; r++)
		plan.limits.context =
			m->rows[r][0] > plan.limits.context ? m->rows[r][0] : plan.limits.context;
	for (u32 r = 0; r < m->row_count; r++)
		plan.limits.queries =
			m->rows[r][1] > plan.limits.queries ? m->rows[r][1] : plan.limits.queries;
	const struct kern_attention_plan_args p = {&plan, a.query_start, a.context, a.rows};
	const size_t count = (size_t)a.tokens * m->heads * m->head_dim;
	plan.memory = device_alloc(d, kern_attention_plan_bytes(&plan.limits));
	a.plan = &plan;
	const char *problem = device_problem(d, d->device_ops.attention_plan(&d->ctx, &p));
	if (refused) {
		problem = d->ops.attention(&d->ctx, &a) == ERR_UNSUPPORTED ? problem : "is not refused";
		device_case_end(d, problem, "attention refused %s head_dim=%u", kern_dtype_name(m->kv), m->head_dim);
		return;
	}
	if (!problem)
		problem = device_problem(d, d->ops.attention(&d->ctx, &a));
	(void)d->ref.attention(&d->ref_ctx, &ref);
	/* the probabilities are rounded to bf16 before they meet the values, which are at most 1 */
	if (!problem)
		problem = device_close(device_download_bf16(d, a.out_bf16, count), ref.out, count, 0x1p-8,
				       0x1p-8);
	for (u32 r = 0; r < m->row_count && m->split > 0 && !problem; r += 1 + m->row_count / 8)
		if (m->rows[r][1] > 0)
			problem = attention_alone(d, m, &a, r);
	device_case_end(
		d, problem,
		"attention+attention_plan %s heads=%u/%u head_dim=%u block=%u rows=%u context=%u queries=%u window=%u "
		"cap=%g blocks=%u split=%u sinks=%d varied=%d q_power=%d",
		kern_dtype_name(m->kv), m->heads, m->kv_heads, m->head_dim, m->block_size, m->row_count,
		m->rows[0][0], m->rows[0][1], m->window, (double)m->soft_cap, m->blocks, m->split, m->sinks, m->varied,
		m->q_power);
}

/* How decode's keys are shared out. */
static void attention_share_cases(struct device *d)
{
	/* shares of blocks end with tiles, or go through several of them */
	static const u32 even[][2] = {{256, 1}, {256, 1}, {256, 1}, {256, 1}};
	/* more rows than the plan has threads */
	static u32 many[700][2];
	for (u32 r = 0; r < COUNT_OF(many); r++) {
		many[r][0] = r % 11 == 3 ? 0 : 1 + r * 37 % 150;
		many[r][1] = many[r][0] > 0;
	}
	static const struct attention_case cases[] = {
		{2, 1, 16, 16, many, COUNT_OF(many), 7, KERN_BF16, 0, 0},
		{2, 2, 16, 16, many, COUNT_OF(many), 24, KERN_BF16, 70, 0, 64},
		{4, 2, 32, 16, even, COUNT_OF(even), 2, KERN_BF16, 0, 0},
		{4, 2, 32, 16, even, COUNT_OF(even), 3, KERN_I8, 0, 0},
		{4, 2, 32, 16, even, COUNT_OF(even), 16, KERN_BF16, 0, 0},
		{4, 2, 32, 16, even, COUNT_OF(even), 9, KERN_F8E4M3, 0, 0},
	};
	for (u32 i = 0; i < COUNT_OF(cases); i++)
		attention_case(d, &cases[i]);
}

static void attention_cases(struct device *d)
{
	static const u32 decode[][2] = {{1, 1}, {64, 1}, {65, 1}, {130, 1}, {0, 0}};
	static const u32 chunk[][2] = {{90, 37}};
	static const u32 mixture[][2] = {{0, 0}, {40, 1}, {70, 21}, {5, 0}, {17, 17}, {1, 1}};
	static const u32 lengthy[][2] = {{700, 1}, {20, 1}};
	static const u32 lengthy_chunk[][2] = {{600, 9}};
	/* several tiles of rows and of keys; behind and beside others */
	static const u32 prompt[][2] = {{400, 400}};
	static const u32 prompts[][2] = {{900, 70}, {3, 0}, {333, 201}, {50, 1}, {128, 128}};
	static const u32 thousands[][2] = {{2100, 1}, {3, 3}, {1500, 130}};
	/* More rows than a warp has lanes, and an even share of keys that is longer than any row: the plan's
	 * warps have to agree on it. */
	static const u32 crowd[][2] = {
		{41, 1},  {239, 1}, {711, 1}, {627, 1},	 {817, 1}, {451, 1}, {359, 1}, {541, 1},
		{167, 1}, {67, 1},  {241, 1}, {689, 1},	 {581, 1}, {747, 1}, {357, 1}, {241, 1},
		{399, 1}, {1, 1},   {707, 1}, {27, 1},	 {451, 1}, {319, 1}, {461, 1}, {47, 1},
		{737, 1}, {41, 1},  {449, 1}, {301, 1},	 {427, 1}, {827, 1}, {671, 1}, {789, 1},
		{351, 1}, {187, 1}, {297, 1}, {300, 20}, {509, 1}, {611, 1}, {157, 1}, {807, 1},
	};
	static const struct attention_case cases[] = {
		{2, 1, 32, 32, crowd, COUNT_OF(crowd), 4, KERN_BF16, 0, 0},
		{4, 2, 64, 16, decode, 5, 16, KERN_BF16, 0, 0},
		{4, 1, 64, 16, chunk, 1, 16, KERN_BF16, 0, 0},
		{3, 1, 80, 16, mixture, 6, 16, KERN_BF16, 0, 0},
		{5, 5, 32, 32, mixture, 6, 4, KERN_BF16, 9, 0},
		{7, 1, 96, 8, decode, 5, 16, KERN_BF16, 0, 30},
		{8, 1, 128, 16, decode, 5, 16, KERN_BF16, 20, 0},
		{6, 1, 128, 16, chunk, 1, 4, KERN_BF16, 20, 0},
		{2, 1, 256, 16, mixture, 6, 16, KERN_BF16, 0, 0},
		{4, 2, 64, 16, lengthy, 2, 8, KERN_BF16, 0, 0},
		{2, 1, 64, 64, lengthy, 2, 64, KERN_BF16, 300, 0},
		{4, 1, 64, 16, lengthy_chunk, 1, 8, KERN_BF16, 0, 0},
		{4, 1, 64, 16, lengthy_chunk, 1, 8, KERN_BF16, 290, 0},
		{5, 1, 32, 32, thousands, 3, 6, KERN_BF16, 0, 0},
		{18, 1, 32, 16, decode, 5, 8, KERN_BF16, 0, 0},
		{4, 2, 64, 16, mixture, 6, 16, KERN_I8, 0, 0},
		{4, 1, 128, 16, decode, 5, 16, KERN_I8, 33, 0},
		{2, 1, 80, 16, chunk, 1, 16, KERN_I8, 0, 20},
		{1, 1, 256, 16, decode, 5, 16, KERN_I8, 0, 0},
		{2, 1, 96, 32, mixture, 6, 16, KERN_F8E4M3, 0, 0},
		{4, 2, 64, 16, lengthy, 2, 8, KERN_F8E4M3, 0, 0},
		{4, 1, 32, 16, chunk, 1, 16, KERN_F8E4M3, 11, 0},
		{4, 2, 128, 16, lengthy, 2, 8, KERN_I8, 0, 0, .varied = true},
		{16, 2, 128, 8, decode, 5, 16, KERN_F8E4M3, 0, 0, .varied = true, .q_power = 30},
		{4, 2, 96, 4, lengthy, 2, 8, KERN_I8, 0, 0, .varied = true, .q_power = -60},
		{12, 4, 64, 64, lengthy, 2, 8, KERN_F8E4M3, 100, 30, .sinks = true},
		{4, 2, 16, 16, mixture, 6, 16, KERN_BF16, 0, 0},
		{2, 1, 16, 8, lengthy, 2, 8, KERN_I8, 0, 0},
		{2, 1, 48, 16, mixture, 6, 16, KERN_BF16, 0, 0},
		{4, 2, 48, 16, lengthy, 2, 8, KERN_F8E4M3, 0, 0},
		{2, 1, 32, 32, crowd, COUNT_OF(crowd), 4, KERN_BF16, 0, 0, 128},
		{4, 2, 64, 16, lengthy, 2, 8, KERN_BF16, 300, 0, 64},
		{5, 1, 32, 32, thousands, 3, 6, KERN_I8, 0, 0, 512},
		{4, 2, 64, 16, decode, 5, 16, KERN_BF16, 0, 0, .sinks = true},
		{8, 2, 64, 16, mixture, 6, 16, KERN_BF16, 9, 0, .sinks = true},
		{4, 2, 64, 16, lengthy, 2, 8, KERN_BF16, 300, 0, 64, .sinks = true},
		{6, 2, 64, 16, lengthy_chunk, 1, 8, KERN_BF16, 0, 30, .sinks = true},
		{4, 4, 128, 16, lengthy, 2, 8, KERN_I8, 0, 0, .sinks = true},
		{8, 1, 64, 32, mixture, 6, 16, KERN_F8E4M3, 0, 0, .sinks = true},
		{4, 2, 128, 16, prompt, 1, 8, KERN_BF16, 0, 0},
		{8, 2, 128, 16, prompts, 5, 6, KERN_BF16, 0, 0},
		{5, 1, 128, 4, prompts, 5, 31, KERN_BF16, 150, 0},
		{3, 3, 128, 32, prompts, 5, 16, KERN_BF16, 0, 0, 64, .sinks = true},
		{8, 1, 64, 16, prompts, 5, 9, KERN_BF16, 0, 0, .sinks = true},
		{2, 2, 64, 64, prompt, 1, 3, KERN_BF16, 100, 0},
		{4, 1, 128, 16, prompts, 5, 6, KERN_BF16, 0, 20},
		{4, 1, 128, 16, prompts, 5, 6, KERN_I8, 0, 0},
		{2, 1, 256, 16, prompts, 5, 6, KERN_F8E4M3, 77, 0},
	};
	for (u32 i = 0; i < COUNT_OF(cases); i++)
		attention_case(d, &cases[i]);
}

/* Heads of more than 256 values: with as many rows as a tile of decode has, few, and more, which are tiles of 64 rows in two
 * groups; pieces of decode and of prefill that are joined. */
static void attention_wide_cases(struct device *d)
{
	static const u32 decode[][2] = {{1, 1}, {64, 1}, {65, 1}, {0, 0}, {31, 1}};
	static const u32 lengthy[][2] = {{290, 1}, {20, 1}};
	static const u32 two[][2] = {{40, 1}, {17, 1}};
	static const u32 mixture[][2] = {{0, 0}, {40, 1}, {70, 21}, {5, 0}, {17, 17}};
	static const u32 chunk[][2] = {{300, 9}};
	static const struct attention_case cases[] = {
		{16, 1, 576, 16, decode, COUNT_OF(decode), 4, KERN_BF16, 0, 0},
		{2, 1, 512, 16, lengthy, COUNT_OF(lengthy), 8, KERN_BF16, 0, 0, .sinks = true},
		{4, 2, 512, 8, lengthy, COUNT_OF(lengthy), 5, KERN_BF16, 100, 30},
		{1, 1, 576, 64, lengthy, COUNT_OF(lengthy), 3, KERN_BF16, 0, 0, 128},
		{20, 1, 576, 16, lengthy, COUNT_OF(lengthy), 6, KERN_BF16, 0, 0},
		{128, 1, 512, 16, two, COUNT_OF(two), 8, KERN_BF16, 0, 0},
		{3, 1, 320, 4, mixture, COUNT_OF(mixture), 6, KERN_BF16, 9, 0, .sinks = true},
		{2, 1, 512, 16, two, COUNT_OF(two), 8, KERN_I8, 0, 0},
		{8, 1, 576, 16, chunk, COUNT_OF(chunk), 8, KERN_BF16, 0, 20, .sinks = true},
	};
	for (u32 i = 0; i < COUNT_OF(cases); i++)
		attention_case(d, &cases[i]);
}

/* ---------------------------------------------------------------- block_copy */

static void block_copy_case(struct device *d, enum kern_dtype type, u32 block_size)
{
	enum { BLOCKS = 12, LAYERS = 2, PAIRS = 4 };
	static const u32 src[PAIRS] = {3, 9, 3, 0}, dst[PAIRS] = {5, 11, 1, 2};
	const struct kern_kv kv = {.dtype = type, .block_size = block_size, .kv_heads = 3, .head_dim = 6};
	struct device_cache c[LAYERS];
	struct kern_kv layers[LAYERS];
	const char *problem = NULL;
	for (u32 l = 0; l < LAYERS; l++) {
		device_cache_init(d, &c[l], &kv, BLOCKS);
		for (size_t i = 0; i < device_cache_bytes(&c[l]); i++) {
			c[l].k[i] = (u8)check_random(&d->check, 256);
			c[l].v[i] = (u8)check_random(&d->check, 256);
		}
		device_cache_upload(d, &c[l]);
		layers[l] = c[l].device;
	}
	struct kern_block_copy_args a = {.layer_count = LAYERS, .count = PAIRS};
	a.layers = device_upload(d, layers, sizeof(layers));
	a.src = device_upload(d, src, sizeof(src));
	a.dst = device_upload(d, dst, sizeof(dst));
	problem = device_problem(d, d->ops.block_copy(&d->ctx, &a));
	for (u32 l = 0; l < LAYERS; l++) {
		const size_t block = kv.kv_heads * c[l].head_bytes;
		for (u32 i = 0; i < PAIRS; i++) {
			memcpy(c[l].k + dst[i] * block, c[l].k + src[i] * block, block);
			memcpy(c[l].v + dst[i] * block, c[l].v + src[i] * block, block);
		}
		if (!problem && (memcmp(device_download(d, c[l].device.k, device_cache_bytes(&c[l])), c[l].k,
					device_cache_bytes(&c[l])) ||
				 memcmp(device_download(d, c[l].device.v, device_cache_bytes(&c[l])), c[l].v,
					device_cache_bytes(&c[l]))))
			problem = "other bytes than those of the source block";
	}
	device_case_end(d, problem, "block_copy %s block=%u", kern_dtype_name(type), block_size);
}

/* Out to pinned host memory and, elsewhere, in again; more pairs than are worked on at once. */
static void swap_case(struct device *d, enum kern_dtype type)
{
	enum { BLOCKS = 80, HOST_BLOCKS = 70, PAIRS = 67 };
	u32 out_src[PAIRS], out_dst[PAIRS], in_dst[PAIRS];
	const struct kern_kv kv = {.dtype = type, .block_size = 8, .kv_heads = 2, .head_dim = 12};
	struct device_cache c;
	for (u32 i = 0; i < PAIRS; i++) {
		out_src[i] = i * 3 % BLOCKS;
		out_dst[i] = (i * 9 + 1) % HOST_BLOCKS;
		in_dst[i] = (i * 11 + 2) % BLOCKS;
	}
	device_cache_init(d, &c, &kv, BLOCKS);
	for (size_t i = 0; i < device_cache_bytes(&c); i++) {
		c.k[i] = (u8)check_random(&d->check, 256);
		c.v[i] = (u8)check_random(&d->check, 256);
	}
	device_cache_upload(d, &c);
	const size_t block = kv.kv_heads * c.head_bytes;
	struct kern_kv host = c.device;
	const char *problem = NULL;
	if (cudaMallocHost(&host.k, HOST_BLOCKS * block) != cudaSuccess ||
	    cudaMallocHost(&host.v, HOST_BLOCKS * block) != cudaSuccess) {
		device_case_end(d, "no pinned memory", "swap");
		return;
	}
	struct kern_swap_args a = {.layer_count = 1, .count = PAIRS};
	const struct kern_kv *device_kv = device_upload(d, &c.device, sizeof(kv)),
			     *host_kv = device_upload(d, &host, sizeof(kv));
	a.from = device_kv;
	a.to = host_kv;
	a.src = device_upload(d, out_src, sizeof(out_src));
	a.dst = device_upload(d, out_dst, sizeof(out_dst));
	problem = device_problem(d, d->device_ops.swap(&d->ctx, &a));
	a.from = host_kv;
	a.to = device_kv;
	a.src = a.dst;
	a.dst = device_upload(d, in_dst, sizeof(in_dst));
	if (!problem)
		problem = device_problem(d, d->device_ops.swap(&d->ctx, &a));
	for (u32 i = 0; i < PAIRS && !problem; i++)
		if (memcmp((u8 *)host.k + out_dst[i] * block, c.k + out_src[i] * block, block) != 0 ||
		    memcmp((u8 *)host.v + out_dst[i] * block, c.v + out_src[i] * block, block) != 0)
			problem = "other bytes on the host";
	for (u32 i = 0; i < PAIRS; i++) {
		memcpy(c.k + in_dst[i] * block, (u8 *)host.k + out_dst[i] * block, block);
		memcpy(c.v + in_dst[i] * block, (u8 *)host.v + out_dst[i] * block, block);
	}
	if (!problem && (memcmp(device_download(d, c.device.k, device_cache_bytes(&c)), c.k, device_cache_bytes(&c)) != 0 ||
			 memcmp(device_download(d, c.device.v, device_cache_bytes(&c)), c.v, device_cache_bytes(&c)) != 0))
		problem = "other bytes came back";
	(void)cudaFreeHost(host.k);
	(void)cudaFreeHost(host.v);
	device_case_end(d, problem, "swap %s", kern_dtype_name(type));
}

void device_attention(struct device *d)
{
	device_rope(d);
	attention_cases(d);
	attention_share_cases(d);
	attention_wide_cases(d);
	block_copy_case(d, KERN_BF16, 16);
	block_copy_case(d, KERN_I8, 4);
	block_copy_case(d, KERN_BF16, 5);
	swap_case(d, KERN_BF16);
	swap_case(d, KERN_I8);
}
