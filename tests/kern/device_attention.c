/* Checks of the device's rope_kv, attention and block_copy against the reference. The layout of the device's
 * cache is written out here once more, from kernels.h. */
#include <cuda_runtime.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kern/device.h"

enum { POSITIONS = 50 };

/* A cache on the device and what it stands for as floats in the reference's cache. */
struct cache {
	struct kern_kv device, ref;
	size_t head_bytes; /* of one KV head of a block, on the device */
	u32 blocks;
	u8 *k, *v; /* host copies of the device's */
};

static bool is_bytes(enum kern_dtype type)
{
	return type == KERN_I8 || type == KERN_F8E4M3;
}

static size_t cache_bytes(const struct cache *c)
{
	return c->blocks * c->device.kv_heads * c->head_bytes;
}

static void cache_init(struct device *d, struct cache *c, const struct kern_kv *kv, u32 blocks)
{
	const size_t values = (size_t)blocks * kv->kv_heads * kv->block_size * kv->head_dim;
	c->device = c->ref = *kv;
	c->ref.dtype = KERN_F32;
	c->blocks = blocks;
	c->head_bytes = (size_t)kv->block_size *
			(is_bytes(kv->dtype) ? kv->head_dim + sizeof(float) : kv->head_dim * sizeof(u16));
	c->k = check_alloc(&d->check, cache_bytes(c));
	c->v = check_alloc(&d->check, cache_bytes(c));
	c->ref.k = check_alloc(&d->check, values * sizeof(float));
	c->ref.v = check_alloc(&d->check, values * sizeof(float));
}

static void cache_upload(struct device *d, struct cache *c)
{
	c->device.k = device_upload(d, c->k, cache_bytes(c));
	c->device.v = device_upload(d, c->v, cache_bytes(c));
}

static float *ref_k(const struct cache *c, size_t block, u32 head, u32 offset, u32 dim)
{
	const struct kern_kv *kv = &c->ref;
	return (float *)kv->k + ((block * kv->kv_heads + head) * kv->head_dim + dim) * kv->block_size +
	       offset;
}

static float *ref_v(const struct cache *c, size_t block, u32 head, u32 offset, u32 dim)
{
	const struct kern_kv *kv = &c->ref;
	return (float *)kv->v + ((block * kv->kv_heads + head) * kv->block_size + offset) * kv->head_dim +
	       dim;
}

static float *scale_at(const struct cache *c, u8 *side, size_t block, u32 head, u32 offset)
{
	u8 *part = side + (block * c->device.kv_heads + head) * c->head_bytes;
	return (float *)(void *)(part + (size_t)c->device.block_size * c->device.head_dim) + offset;
}

/* What the device's cache holds there. */
static double cache_value(const struct cache *c, u8 *side, size_t block, u32 head, u32 offset, u32 dim)
{
	const u8 *part = side + (block * c->device.kv_heads + head) * c->head_bytes;
	const size_t at = (size_t)offset * c->device.head_dim + dim;
	float x;
	if (c->device.dtype == KERN_BF16) {
		kern_convert(&x, KERN_F32, (const u16 *)(const void *)part + at, KERN_BF16, 1);
		return x;
	}
	return (c->device.dtype == KERN_I8 ? (double)(int8_t)part[at] : device_e4m3(part[at])) *
	       *scale_at(c, side, block, head, offset);
}

/* Random values of one token of one head on both sides. */
static void cache_fill(struct device *d, struct cache *c, bool is_k, size_t block, u32 head, u32 offset,
		       float size)
{
	u8 *side = is_k ? c->k : c->v, *part = side + (block * c->device.kv_heads + head) * c->head_bytes;
	for (u32 i = 0; i < c->device.head_dim; i++) {
		const size_t at = (size_t)offset * c->device.head_dim + i;
		const float x = check_uniform(&d->check) * (check_random(&d->check, 64) == 0 ? size : 1);
		if (c->device.dtype == KERN_BF16)
			kern_convert((u16 *)(void *)part + at, KERN_BF16, &x, KERN_F32, 1);
		else if (c->device.dtype == KERN_I8)
			part[at] = (u8)(int8_t)(x / size * 127);
		else
			part[at] = (u8)check_random(&d->check, 0x78) | (x < 0 ? 0x80 : 0);
		if (is_bytes(c->device.dtype))
			*scale_at(c, side, block, head, offset) = size /
								  (c->device.dtype == KERN_I8 ? 127 : 240) *
								  (0.5f + 0.01f * (float)offset);
	}
	for (u32 i = 0; i < c->device.head_dim; i++)
		*(is_k ? ref_k : ref_v)(c, block, head, offset, i) =
			(float)cache_value(c, side, block, head, offset, i);
}

/* ---------------------------------------------------------------- rope_kv */

struct rope_case {
	u32 heads, kv_heads, head_dim, rope_dim, block_size, tokens;
	enum kern_dtype kv;
	bool bias, norm, interleaved, behind, scaled;
	float clip;
	u32 beside; /* floats behind a token's heads */
};

static void rope_inputs(struct device *d, const struct rope_case *r, struct kern_rope_kv_args *a,
			struct kern_rope_kv_args *ref)
{
	const u32 all = r->heads + 2 * r->kv_heads, half = r->rope_dim / 2;
	u32 *positions = check_alloc(&d->check, r->tokens * sizeof(u32));
	i64 *slots = check_alloc(&d->check, r->tokens * sizeof(i64));
	float *bias = NULL, *q_norm = NULL, *k_norm = NULL, *cosine, *sine;
	float *qkv;
	*a = (struct kern_rope_kv_args){.tokens = r->tokens,
					.heads = r->heads,
					.rope_dim = r->rope_dim,
					.norm_eps = 1e-6f,
					.interleaved = r->interleaved,
					.norm_behind = r->behind,
					.clip = r->clip,
					.dtype = KERN_BF16};
	float *scales = NULL;
	*ref = *a;
	ref->dtype = KERN_F32;
	for (u32 t = 0; t < r->tokens; t++) {
		positions[t] = check_random(&d->check, POSITIONS);
		/* 7 and the number of slots share no divisor here: distinct slots in a scattered order */
		slots[t] = t % 5 == 3 ? -1 : (i64)(t * 7 % (16 * r->block_size - 1));
	}
	a->qkv_stride = ref->qkv_stride = r->beside > 0 ? all * r->head_dim + r->beside : 0;
	ref->qkv = device_floats(d, (size_t)r->tokens * (all * r->head_dim + r->beside), false, &qkv);
	ref->bias = r->bias ? device_floats(d, (size_t)all * r->head_dim, false, &bias) : NULL;
	ref->q_norm = r->norm ? device_floats(d, r->head_dim, false, &q_norm) : NULL;
	ref->k_norm = r->norm ? device_floats(d, r->head_dim, false, &k_norm) : NULL;
	ref->cos = device_floats(d, (size_t)POSITIONS * half, false, &cosine);
	ref->sin = device_floats(d, (size_t)POSITIONS * half, false, &sine);
	ref->q_scales = r->scaled ? device_floats(d, POSITIONS, false, &scales) : NULL;
	ref->positions = positions;
	ref->slots = slots;
	a->q_scales = scales;
	a->qkv = qkv;
	a->bias = bias;
	a->q_norm = q_norm;
	a->k_norm = k_norm;
	a->cos = cosine;
	a->sin = sine;
	a->positions = device_upload(d, positions, r->tokens * sizeof(u32));
	a->slots = device_upload(d, slots, r->tokens * sizeof(i64));
}

/* Keys and values of the step, and that nothing else was written: the rest of the cache is still poison. */
static const char *rope_cache_right(const struct cache *c, const struct kern_rope_kv_args *ref)
{
	const struct kern_kv *kv = &c->device;
	const double error = kv->dtype == KERN_BF16 ? 0x1.04p-8
			     : kv->dtype == KERN_I8 ? 0.51 / 127
						    : 0x1.04p-4;
	size_t written = 0, poison = 0;
	for (u32 t = 0; t < ref->tokens; t++) {
		const u64 block = (u64)ref->slots[t] / kv->block_size;
		const u32 offset = (u32)((u64)ref->slots[t] % kv->block_size);
		if (ref->slots[t] < 0)
			continue;
		written += kv->kv_heads * kv->head_dim * (is_bytes(kv->dtype) ? 1 : 2) +
			   (is_bytes(kv->dtype) ? kv->kv_heads * sizeof(float) : 0);
		for (u32 side = 0; side < 2; side++)
			for (u32 h = 0; h < kv->kv_heads; h++) {
				double largest = 0;
				for (u32 i = 0; i < kv->head_dim; i++)
					largest = fmax(largest, fabs((double)*(side ? ref_v : ref_k)(
									c, block, h, offset, i)));
				for (u32 i = 0; i < kv->head_dim; i++) {
					const double want = *(side ? ref_v : ref_k)(c, block, h, offset, i);
					const double got =
						cache_value(c, side ? c->v : c->k, block, h, offset, i);
					const double unit = kv->dtype == KERN_I8 ? largest : fabs(want);
					if (!(fabs(got - want) <= unit * error + largest * 4e-5))
						return side ? "a value in the cache is wrong"
							    : "a key in the cache is wrong";
				}
			}
	}
	for (size_t i = 0; i < cache_bytes(c); i++)
		poison += c->k[i] == 0xff;
	/* -1 as int8 and a byte of a float look like poison, so this bound is not exact for them */
	if (poison + written < cache_bytes(c))
		return "wrote keys to other slots than those given";
	return NULL;
}

static void rope_case(struct device *d, const struct rope_case *r)
{
	enum { BLOCKS = 16 };
	struct kern_rope_kv_args a, ref;
	struct cache c;
	const struct kern_kv kv = {.dtype = r->kv,
				   .block_size = r->block_size,
				   .kv_heads = r->kv_heads,
				   .head_dim = r->head_dim};
	const size_t q_count = (size_t)r->tokens * r->heads * r->head_dim;
	rope_inputs(d, r, &a, &ref);
	cache_init(d, &c, &kv, BLOCKS);
	cache_upload(d, &c);
	a.kv = c.device;
	ref.kv = c.ref;
	a.q_bf16 = device_alloc(d, q_count * sizeof(u16));
	ref.q = check_alloc(&d->check, q_count * sizeof(float));
	const char *problem = device_problem(d, d->ops.rope_kv(&d->ctx, &a));
	(void)d->ref.rope_kv(&d->ref_ctx, &ref);
	c.k = device_download(d, a.kv.k, cache_bytes(&c));
	c.v = device_download(d, a.kv.v, cache_bytes(&c));
	/* the rotation cancels: 2e-6 of the head's values, which are below 3 here but for norms */
	if (!problem)
		problem = device_close(device_download_bf16(d, a.q_bf16, q_count), ref.q, q_count, 0x1.04p-8,
				       4e-5);
	if (!problem)
		problem = rope_cache_right(&c, &ref);
	device_case_end(d, problem,
			"rope_kv %s tokens=%u heads=%u/%u head_dim=%u rope_dim=%u block=%u bias=%d norm=%d interleaved=%d behind=%d "
			"scaled=%d clip=%g beside=%u",
			kern_dtype_name(r->kv), r->tokens, r->heads, r->kv_heads, r->head_dim, r->rope_dim, r->block_size, r->bias,
			r->norm, r->interleaved, r->behind, r->scaled, (double)r->clip, r->beside);
}

/* ---------------------------------------------------------------- attention */

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
static void cache_scale(struct cache *c, size_t block, u32 head, u32 offset, float by)
{
	*scale_at(c, c->v, block, head, offset) *= by;
	for (u32 i = 0; i < c->device.head_dim; i++)
		*ref_v(c, block, head, offset, i) *= by;
}

/* Blocks in random order; keys outside of every window are in a block of NaN. */
static u32 *attention_cache(struct device *d, const struct attention_case *m, struct cache *c, u32 widest)
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
	cache_init(d, c, &kv, blocks);
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
				cache_fill(d, c, true, *at, h, key % m->block_size, 4);
				cache_fill(d, c, false, *at, h, key % m->block_size, 1);
				if (m->varied)
					cache_scale(c, *at, h, key % m->block_size,
						    ldexpf(1, -(int)check_random(&d->check, 3) - (key / 64 % 2 == 0 ? 8 : 0)));
			}
		}
	}
	cache_upload(d, c);
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
	struct cache c;
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

/* Prefill with heads of 256 has 198 KiB of buffers, which not every device lets a block have. */
static bool has_room(const struct attention_case *m)
{
	enum { LARGEST_HEADS = 256, BUFFERS = 198 << 10 };
	int bytes = 0;
	(void)cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
	return m->head_dim < LARGEST_HEADS || bytes >= BUFFERS;
}

static void attention_case(struct device *d, const struct attention_case *m)
{
	struct kern_attention_args a, ref;
	if (!has_room(m))
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

/* ---------------------------------------------------------------- block_copy */

static void block_copy_case(struct device *d, enum kern_dtype type, u32 block_size)
{
	enum { BLOCKS = 12, LAYERS = 2, PAIRS = 4 };
	static const u32 src[PAIRS] = {3, 9, 3, 0}, dst[PAIRS] = {5, 11, 1, 2};
	const struct kern_kv kv = {.dtype = type, .block_size = block_size, .kv_heads = 3, .head_dim = 6};
	struct cache c[LAYERS];
	struct kern_kv layers[LAYERS];
	const char *problem = NULL;
	for (u32 l = 0; l < LAYERS; l++) {
		cache_init(d, &c[l], &kv, BLOCKS);
		for (size_t i = 0; i < cache_bytes(&c[l]); i++) {
			c[l].k[i] = (u8)check_random(&d->check, 256);
			c[l].v[i] = (u8)check_random(&d->check, 256);
		}
		cache_upload(d, &c[l]);
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
		if (!problem && (memcmp(device_download(d, c[l].device.k, cache_bytes(&c[l])), c[l].k,
					cache_bytes(&c[l])) ||
				 memcmp(device_download(d, c[l].device.v, cache_bytes(&c[l])), c[l].v,
					cache_bytes(&c[l]))))
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
	struct cache c;
	for (u32 i = 0; i < PAIRS; i++) {
		out_src[i] = i * 3 % BLOCKS;
		out_dst[i] = (i * 9 + 1) % HOST_BLOCKS;
		in_dst[i] = (i * 11 + 2) % BLOCKS;
	}
	cache_init(d, &c, &kv, BLOCKS);
	for (size_t i = 0; i < cache_bytes(&c); i++) {
		c.k[i] = (u8)check_random(&d->check, 256);
		c.v[i] = (u8)check_random(&d->check, 256);
	}
	cache_upload(d, &c);
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
	if (!problem && (memcmp(device_download(d, c.device.k, cache_bytes(&c)), c.k, cache_bytes(&c)) != 0 ||
			 memcmp(device_download(d, c.device.v, cache_bytes(&c)), c.v, cache_bytes(&c)) != 0))
		problem = "other bytes came back";
	(void)cudaFreeHost(host.k);
	(void)cudaFreeHost(host.v);
	device_case_end(d, problem, "swap %s", kern_dtype_name(type));
}

void device_attention(struct device *d)
{
	static const struct rope_case ropes[] = {
		{4, 2, 64, 64, 16, 9, KERN_BF16, false, false},
		{4, 2, 64, 64, 16, 9, KERN_BF16, true, true},
		{3, 1, 80, 32, 16, 7, KERN_BF16, false, true},
		{8, 8, 32, 32, 32, 21, KERN_BF16, false, false},
		{5, 1, 96, 96, 8, 12, KERN_I8, true, true},
		{2, 2, 128, 64, 16, 11, KERN_F8E4M3, true, false},
		{2, 1, 256, 256, 8, 6, KERN_BF16, false, true},
		{2, 1, 256, 0, 8, 6, KERN_I8, true, false},
		{3, 3, 20, 12, 16, 13, KERN_F8E4M3, true, true},
		{2, 1, 32, 32, 16, 0, KERN_BF16, false, false},
		{4, 2, 64, 64, 16, 9, KERN_BF16, false, false, true},
		{3, 1, 80, 32, 16, 7, KERN_BF16, true, true, true},
		{2, 2, 128, 64, 16, 11, KERN_F8E4M3, true, false, true},
		{2, 1, 256, 256, 8, 6, KERN_I8, false, true, true},
		{3, 3, 20, 12, 16, 13, KERN_BF16, true, false, true},
		{2, 1, 64, 0, 8, 6, KERN_BF16, false, false, true},
		{4, 2, 64, 64, 16, 9, KERN_BF16, false, true, .behind = true},
		{3, 1, 80, 32, 16, 7, KERN_I8, true, true, .behind = true, .scaled = true},
		{2, 1, 256, 256, 8, 6, KERN_BF16, false, true, .behind = true, .clip = 0.7f},
		{8, 8, 32, 32, 32, 21, KERN_BF16, false, false, .scaled = true},
		{2, 2, 128, 64, 16, 11, KERN_F8E4M3, true, false, true, .scaled = true, .clip = 0.5f},
		{4, 2, 64, 64, 16, 9, KERN_BF16, true, false, .clip = 0.3f},
		{5, 1, 96, 96, 8, 12, KERN_I8, true, true, .clip = 0.9f},
		{4, 2, 64, 64, 16, 9, KERN_BF16, true, true, .beside = 256},
		{3, 1, 80, 32, 16, 7, KERN_I8, false, true, true, .beside = 2},
	};
	for (u32 i = 0; i < COUNT_OF(ropes); i++)
		rope_case(d, &ropes[i]);
	attention_cases(d);
	attention_share_cases(d);
	block_copy_case(d, KERN_BF16, 16);
	block_copy_case(d, KERN_I8, 4);
	block_copy_case(d, KERN_BF16, 5);
	swap_case(d, KERN_BF16);
	swap_case(d, KERN_I8);
}
