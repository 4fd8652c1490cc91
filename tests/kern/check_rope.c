/* Checks of rope_kv against formulas in double, for every type of KV cache and ways that slots lie in it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/kern/check_kv.h"

enum { BLOCKS = 64 };

/* How the slots of a step lie: those of a prompt are neighbours. */
enum slots {
	SLOTS_SCATTERED, /* some tokens have none */
	SLOTS_NEIGHBOURS,
	SLOTS_HOLES, /* neighbours, some of which have none */
	SLOTS_RUNS, /* some neighbours, then others, the earlier ones last */
	SLOTS_BACKWARDS,
};

struct rope_case {
	u32 heads, kv_heads, head_dim, rope_dim, block_size, tokens;
	enum kern_dtype type;
	bool bias, norm, interleaved, scaled, norm_behind;
	float clip;
	enum slots slots;
	u32 apart; /* of a pair's values; 0: half of what rotates */
	bool norm_v, v_is_k, layer_norms;
};

/* Heads of a token as they come. */
static u32 rope_heads(const struct kern_rope_kv_args *a)
{
	return a->heads + (a->v_is_k ? 1 : 2) * a->kv.kv_heads;
}

static void rope_layer_norm(double *x, const float *weight, u32 dim, double eps)
{
	double mean = 0, squares = 0;
	for (u32 i = 0; i < dim; i++)
		mean += x[i] / dim;
	for (u32 i = 0; i < dim; i++)
		squares += (x[i] - mean) * (x[i] - mean);
	for (u32 i = 0; i < dim; i++)
		x[i] = (x[i] - mean) / sqrt(squares / dim + eps) * (double)weight[i];
}

/* Head `head` of token `t` as it has to come out. */
static void rope_want(const struct kern_rope_kv_args *a, u32 t, u32 head, double *x)
{
	u32 dim = a->kv.head_dim, all = rope_heads(a), half = a->rope_dim / 2, apart = a->rope_apart ? a->rope_apart : half;
	const bool value = head >= a->heads + a->kv.kv_heads;
	const u32 from = value && a->v_is_k ? head - a->kv.kv_heads : head;
	const float *norm = head < a->heads ? a->q_norm : a->k_norm;
	double sum = 0, pairs[1024];
	for (u32 i = 0; i < dim; i++) {
		x[i] = a->qkv[((size_t)t * all + from) * dim + i];
		if (a->bias)
			x[i] = (float)x[i] + a->bias[from * dim + i];
		if (a->clip > 0)
			x[i] = fmin(fmax(x[i], -(double)a->clip), (double)a->clip);
		sum += x[i] * x[i];
	}
	for (u32 i = 0; i < dim && value && a->norm_v; i++)
		x[i] /= sqrt(sum / dim + (double)a->norm_eps);
	if (value)
		return;
	if (norm && a->layer_norms)
		rope_layer_norm(x, norm + (size_t)(head < a->heads ? head : head - a->heads) * dim, dim, (double)a->norm_eps);
	for (u32 i = 0; i < dim && norm && !a->norm_behind && !a->layer_norms; i++)
		x[i] = x[i] / sqrt(sum / dim + (double)a->norm_eps) * norm[i];
	for (u32 i = 0; i < 2 * half; i++)
		pairs[i] = x[a->interleaved ? i % half * 2 + i / half : i % half + i / half * apart];
	for (u32 i = 0; i < half; i++) {
		double low = pairs[i], high = pairs[i + half];
		double cosine = a->cos[a->positions[t] * half + i], sine = a->sin[a->positions[t] * half + i];
		x[i] = low * cosine - high * sine;
		x[i + apart] = high * cosine + low * sine;
	}
	sum = 0;
	for (u32 i = 0; i < dim; i++)
		sum += x[i] * x[i];
	for (u32 i = 0; i < dim && norm && a->norm_behind; i++)
		x[i] = x[i] / sqrt(sum / dim + (double)a->norm_eps) * norm[i];
	for (u32 i = 0; i < dim && a->q_scales && head < a->heads; i++)
		x[i] *= (double)a->q_scales[a->positions[t]];
}

/* What is stored of a head, and its scale. */
static const char *rope_stored_right(const struct kern_rope_kv_args *a, u32 t, u32 h, const double *want,
				     double size)
{
	static _Thread_local char text[200];
	const struct kern_kv *kv = &a->kv;
	size_t slot = (size_t)a->slots[t];
	struct check_kv_place p = {.value = h >= a->heads + kv->kv_heads,
				   .block = slot / kv->block_size,
				   .head = (h - a->heads) % kv->kv_heads,
				   .offset = (u32)(slot % kv->block_size)};
	double most = check_kv_most(kv->dtype);
	for (p.dim = 0; p.dim < kv->head_dim; p.dim++) {
		double got = check_kv_load(kv, &p);
		if (fabs(got - want[p.dim]) <= check_kv_error(kv, want[p.dim], size))
			continue;
		snprintf(text, sizeof(text), "token %u head %u dim %u is stored as %.9g, should be %.9g", t,
			 h, p.dim, got, want[p.dim]);
		return text;
	}
	if (!check_kv_has_scales(kv->dtype))
		return NULL;
	if (fabs(check_kv_scale(kv, &p) - size / most) <= size / most * 4e-6)
		return NULL;
	snprintf(text, sizeof(text), "token %u head %u has scale %.9g, should be %.9g", t, h,
		 (double)check_kv_scale(kv, &p), size / most);
	return text;
}

static const char *rope_token_right(const struct kern_rope_kv_args *a, u32 t)
{
	static _Thread_local char text[200];
	double want[1024];
	u32 dim = a->kv.head_dim;
	for (u32 h = 0; h < a->heads + 2 * a->kv.kv_heads; h++) {
		rope_want(a, t, h, want);
		double size = 0;
		for (u32 i = 0; i < dim; i++)
			size = fmax(size, fabs(want[i]));
		if (h >= a->heads && a->slots[t] < 0)
			return NULL;
		const char *problem = h < a->heads ? NULL : rope_stored_right(a, t, h, want, size);
		if (problem)
			return problem;
		for (u32 i = 0; i < dim && h < a->heads; i++) {
			double got = a->q[((size_t)t * a->heads + h) * dim + i];
			if (fabs(got - want[i]) <= size * 2e-6)
				continue;
			snprintf(text, sizeof(text), "token %u head %u dim %u is %.9g, should be %.9g", t, h,
				 i, got, want[i]);
			return text;
		}
	}
	return NULL;
}

static i64 rope_slot(const struct rope_case *r, u32 t, u32 start)
{
	u32 run = r->block_size / 2 + 3, runs = r->tokens / run;
	switch (r->slots) {
	case SLOTS_NEIGHBOURS:
		return start + t;
	case SLOTS_HOLES:
		return t % 11 == 6 || t % 23 == 0 ? -1 : (i64)(start + t);
	case SLOTS_RUNS:
		return start + (t < runs * run ? (runs - 1 - t / run) * run + t % run : t);
	case SLOTS_BACKWARDS:
		return start + r->tokens - 1 - t;
	default:
		/* 7 and the number of slots share no divisor here: distinct slots in a scattered order */
		return t % 5 == 3 ? -1 : (i64)(t * 7 % (BLOCKS * r->block_size - 1));
	}
}

static void rope_inputs(struct check *c, const struct rope_case *r, struct kern_rope_kv_args *a)
{
	enum { POSITIONS = 50 };
	u32 all = r->heads + (r->v_is_k ? 1 : 2) * r->kv_heads, half = r->rope_dim / 2, start = check_random(c, 2 * r->block_size);
	float *cosine = check_alloc(c, (size_t)POSITIONS * half * 4),
	      *sine = check_alloc(c, (size_t)POSITIONS * half * 4);
	u32 *positions = check_alloc(c, r->tokens * 4);
	i64 *slots = check_alloc(c, r->tokens * 8);
	for (u32 p = 0; p < POSITIONS; p++)
		for (u32 i = 0; i < half; i++) {
			double angle = p * pow(10000, -2.0 * i / r->rope_dim);
			cosine[p * half + i] = (float)cos(angle);
			sine[p * half + i] = (float)sin(angle);
		}
	for (u32 t = 0; t < r->tokens; t++) {
		positions[t] = check_random(c, POSITIONS);
		slots[t] = rope_slot(r, t, start);
	}
	*a = (struct kern_rope_kv_args){.cos = cosine,
					.sin = sine,
					.positions = positions,
					.slots = slots,
					.tokens = r->tokens,
					.heads = r->heads,
					.rope_dim = r->rope_dim,
					.rope_apart = r->apart,
					.norm_v = r->norm_v,
					.v_is_k = r->v_is_k,
					.interleaved = r->interleaved,
					.norm_behind = r->norm_behind,
					.layer_norms = r->layer_norms,
					.clip = r->clip};
	float *qkv = check_floats(c, (size_t)r->tokens * all * r->head_dim, false);
	if (r->tokens > 4 && !r->bias) /* a token of zeros and one of very small numbers */
		for (u32 i = 0; i < all * r->head_dim; i++) {
			qkv[i] = 0;
			qkv[(size_t)all * r->head_dim + i] *= 1e-20f;
		}
	a->qkv = qkv;
	a->bias = r->bias ? check_floats(c, all * r->head_dim, false) : NULL;
	a->q_norm = r->norm ? check_floats(c, (r->layer_norms ? r->heads : 1) * r->head_dim, false) : NULL;
	a->k_norm = r->norm ? check_floats(c, (r->layer_norms ? r->kv_heads : 1) * r->head_dim, false) : NULL;
	a->norm_eps = 1e-6f;
	a->q_scales = r->scaled ? check_floats(c, POSITIONS, false) : NULL;
	a->kv = (struct kern_kv){.dtype = r->type,
				 .block_size = r->block_size,
				 .kv_heads = r->kv_heads,
				 .head_dim = r->head_dim};
	check_kv_apart(c, &a->kv);
}

/* What no token of the step may touch is still poison. */
static const char *rope_rest_untouched(struct check *c, const struct kern_rope_kv_args *a)
{
	const struct kern_kv *kv = &a->kv;
	size_t bytes = check_kv_bytes(kv, BLOCKS), element = kern_dtype_bytes(kv->dtype);
	for (u32 value = 0; value < 2; value++) {
		const unsigned char *array = value ? kv->v : kv->k;
		unsigned char *written = check_alloc(c, bytes);
		memset(written, 0, bytes);
		for (u32 t = 0; t < a->tokens; t++)
			for (u32 h = 0; h < kv->kv_heads && a->slots[t] >= 0; h++) {
				size_t slot = (size_t)a->slots[t], rounded = element > 1 ? 1 : 4;
				struct check_kv_place p = {value, slot / kv->block_size, h,
							   (u32)(slot % kv->block_size), 0};
				for (; p.dim < (kv->head_dim + rounded - 1) / rounded * rounded; p.dim++)
					memset(written + check_kv_at(kv, &p), 1, element);
				if (check_kv_has_scales(kv->dtype))
					memset(written + check_kv_scale_at(kv, &p), 1, sizeof(float));
			}
		for (size_t i = 0; i < bytes; i++)
			if (!written[i] && array[i] != 0xff)
				return value ? "wrote values to other slots than those given"
					     : "wrote keys to other slots than those given";
	}
	return NULL;
}

/* A number that is none takes its head's others with it in whole numbers of 16 bits, keys and values, and no other head. */
static void rope_lost(struct check *c, u32 target, u32 head_dim, float none)
{
	enum { TOKENS = 5, HEADS = 2, KV_HEADS = 2 };
	const struct rope_case r = {HEADS, KV_HEADS, head_dim, head_dim, 16, TOKENS, KERN_I16, .slots = SLOTS_NEIGHBOURS};
	const struct kern_limits limits = {.tokens = TOKENS, .rows = 1, .heads = HEADS, .kv_heads = KV_HEADS, .head_dim = head_dim};
	const u32 lost[2] = {3, HEADS + 1}; /* token 3, the second key and the second value */
	struct kern_rope_kv_args a;
	struct kern_ctx ctx;
	const char *problem = NULL;
	rope_inputs(c, &r, &a);
	float *qkv = check_floats(c, (size_t)TOKENS * (HEADS + 2 * KV_HEADS) * head_dim, false);
	for (u32 value = 0; value < 2; value++)
		qkv[((size_t)lost[0] * (HEADS + 2 * KV_HEADS) + lost[1] + value * KV_HEADS) * head_dim + head_dim - 1] = none;
	a.qkv = qkv;
	check_kv_alloc(c, &a.kv, BLOCKS);
	a.q = check_alloc(c, (size_t)TOKENS * HEADS * head_dim * sizeof(float));
	check_ctx(c, &ctx, &limits, 0);
	if (c->targets[target].ops.rope_kv(&ctx, &a) != ERR_OK)
		problem = "an error";
	for (u32 at = 0; at < 2 * TOKENS * KV_HEADS && !problem; at++) {
		const u32 t = at / 2 / KV_HEADS, h = at / 2 % KV_HEADS;
		struct check_kv_place p = {at % 2, (size_t)a.slots[t] / 16, h, (u32)(a.slots[t] % 16), 0};
		for (; p.dim < head_dim && !problem; p.dim++)
			if (isnan(check_kv_load(&a.kv, &p)) != (t == lost[0] && h + HEADS == lost[1]))
				problem = "a head is lost, or is not, without a reason";
	}
	check_case_end(c, problem, "rope_kv=%s i16 head_dim=%u with %g", c->targets[target].ops.rope_kv_variant, head_dim, (double)none);
}

/* Every token as a step of its own has the bits that it has among others. */
static const char *rope_one_by_one(struct check *c, u32 target, const struct kern_ctx *ctx, const struct kern_rope_kv_args *all)
{
	struct kern_rope_kv_args a = *all;
	struct kern_ctx own = *ctx;
	size_t width = (size_t)a.heads * a.kv.head_dim, bytes = check_kv_bytes(&a.kv, BLOCKS);
	float *q = check_alloc(c, a.tokens * width * sizeof(float));
	check_kv_alloc(c, &a.kv, BLOCKS);
	a.tokens = 1;
	for (u32 t = 0; t < all->tokens; t++) {
		a.q = q + t * width;
		a.qkv = all->qkv + (size_t)t * rope_heads(&a) * a.kv.head_dim;
		a.positions = all->positions + t;
		a.slots = all->slots + t;
		if (c->targets[target].ops.rope_kv(&own, &a) != ERR_OK)
			return "an error";
	}
	if (memcmp(q, all->q, all->tokens * width * sizeof(float)) != 0)
		return "q has other bits among other tokens";
	if (memcmp(a.kv.k, all->kv.k, bytes) != 0 || memcmp(a.kv.v, all->kv.v, bytes) != 0)
		return "the cache has other bits among other tokens";
	return NULL;
}

/* Queries that stay among the keys and values that they come with, and what a token has beside those, have the bits of others, and leave all of
 * that as it is. */
static const char *rope_in_place(struct check *c, u32 target, const struct kern_ctx *ctx, const struct kern_rope_kv_args *apart)
{
	struct kern_rope_kv_args a = *apart;
	struct kern_ctx own = *ctx;
	const size_t q_width = (size_t)a.heads * a.kv.head_dim, width = (size_t)rope_heads(&a) * a.kv.head_dim;
	const size_t beside = a.tokens % 3 * 5, stride = width + beside;
	float *qkv = check_alloc(c, a.tokens * stride * sizeof(float)); /* poisoned */
	float *was = check_alloc(c, a.tokens * stride * sizeof(float));
	for (u32 t = 0; t < a.tokens; t++)
		memcpy(qkv + t * stride, apart->qkv + t * width, width * sizeof(float));
	memcpy(was, qkv, a.tokens * stride * sizeof(float));
	check_kv_alloc(c, &a.kv, BLOCKS);
	a.qkv = a.q = qkv;
	a.q_stride = (u32)stride;
	a.qkv_stride = beside ? (u32)stride : 0;
	if (c->targets[target].ops.rope_kv(&own, &a) != ERR_OK)
		return "an error in place";
	for (u32 t = 0; t < a.tokens; t++) {
		const float *token = qkv + t * stride;
		if (memcmp(token, apart->q + t * q_width, q_width * sizeof(float)) != 0)
			return "q has other bits in place";
		if (memcmp(token + q_width, was + t * stride + q_width, (stride - q_width) * sizeof(float)) != 0)
			return "keys and values beside q, or what is behind them, are no longer what they were";
	}
	const size_t bytes = check_kv_bytes(&a.kv, BLOCKS);
	if (memcmp(a.kv.k, apart->kv.k, bytes) != 0 || memcmp(a.kv.v, apart->kv.v, bytes) != 0)
		return "the cache has other bits in place";
	return NULL;
}

static void rope_case(struct check *c, u32 target, const struct rope_case *r)
{
	struct kern_limits limits = {
		.tokens = r->tokens, .rows = 1, .heads = r->heads, .kv_heads = r->kv_heads};
	struct kern_rope_kv_args a;
	const char *problem = NULL;
	size_t q_bytes = (size_t)r->tokens * r->heads * r->head_dim * 4;
	float *q[CHECK_RUNS];
	void *k0 = NULL, *v0 = NULL;
	limits.head_dim = r->head_dim;
	struct kern_ctx ctx;
	rope_inputs(c, r, &a);
	for (u32 run = 0; run < CHECK_RUNS && !problem; run++) {
		check_ctx(c, &ctx, &limits, run % CHECK_POOLS);
		check_kv_alloc(c, &a.kv, BLOCKS);
		a.q = q[run] = check_alloc(c, q_bytes);
		if (c->targets[target].ops.rope_kv(&ctx, &a) != ERR_OK)
			problem = "an error";
		if (run == 0) {
			k0 = a.kv.k;
			v0 = a.kv.v;
		} else if (memcmp(q[0], q[run], q_bytes) != 0 ||
			   memcmp(k0, a.kv.k, check_kv_bytes(&a.kv, BLOCKS)) != 0 ||
			   memcmp(v0, a.kv.v, check_kv_bytes(&a.kv, BLOCKS)) != 0) {
			problem = "another run gives other bits";
		}
	}
	if (!problem)
		problem = rope_one_by_one(c, target, &ctx, &a);
	if (!problem)
		problem = rope_in_place(c, target, &ctx, &a);
	for (u32 t = 0; t < r->tokens && !problem; t++)
		problem = rope_token_right(&a, t);
	if (!problem)
		problem = rope_rest_untouched(c, &a);
	check_case_end(c, problem,
		       "rope_kv=%s %s tokens=%u heads=%u/%u head_dim=%u rope_dim=%u block=%u bias=%d norm=%d "
		       "interleaved=%d scaled=%d norm_behind=%d clip=%g slots=%u apart=%u norm_v=%d v_is_k=%d layer_norms=%d",
		       c->targets[target].ops.rope_kv_variant, check_kv_name(r->type), r->tokens, r->heads,
		       r->kv_heads, r->head_dim, r->rope_dim, r->block_size, r->bias, r->norm,
		       r->interleaved, r->scaled, r->norm_behind, (double)r->clip, r->slots, r->apart, r->norm_v,
		       r->v_is_k, r->layer_norms);
}

/* Numbers of all kinds, NaNs too, that are not rotated: a cache of bf16 has the bits of a conversion. */
static void rope_bits(struct check *c, u32 target, u32 head_dim, u32 tokens, enum slots slots)
{
	static const u32 special[] = {0x7f800000, 0xff800000, 0x7f800001, 0xffffffff, 0x7fffffff, 0x7f7fffff, 0x80000000, 0x00000001,
				      0x007fffff, 0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0x7fbf8000};
	const struct rope_case r = {.heads = 2, .kv_heads = 2, .head_dim = head_dim, .block_size = 16, .tokens = tokens,
				    .type = KERN_BF16, .slots = slots};
	struct kern_limits limits = {.tokens = tokens, .rows = 1, .heads = 2, .kv_heads = 2, .head_dim = head_dim};
	struct kern_rope_kv_args a;
	struct kern_ctx ctx;
	const char *problem = NULL;
	size_t count = (size_t)tokens * 6 * head_dim;
	u32 *bits = check_alloc(c, count * sizeof(u32));
	rope_inputs(c, &r, &a);
	for (size_t i = 0; i < count; i++)
		bits[i] = check_random(c, 3) ? check_random(c, 65536) << 16 | check_random(c, 65536)
					     : special[check_random(c, COUNT_OF(special))];
	a.qkv = (const float *)(const void *)bits;
	a.q = check_alloc(c, (size_t)tokens * 2 * head_dim * sizeof(float));
	check_kv_alloc(c, &a.kv, BLOCKS);
	check_ctx(c, &ctx, &limits, 1);
	if (c->targets[target].ops.rope_kv(&ctx, &a) != ERR_OK)
		problem = "an error";
	for (u32 t = 0; t < tokens; t++)
		for (u32 h = 0; h < 4 && a.slots[t] >= 0 && !problem; h++) {
			struct check_kv_place p = {h >= 2, (size_t)a.slots[t] / 16, h % 2, (u32)(a.slots[t] % 16), 0};
			for (; p.dim < head_dim; p.dim++) {
				const char *at = (const char *)(p.value ? a.kv.v : a.kv.k) + check_kv_at(&a.kv, &p);
				u16 want;
				kern_convert(&want, KERN_BF16, a.qkv + ((size_t)t * 6 + 2 + h) * head_dim + p.dim, KERN_F32, 1);
				if (memcmp(at, &want, sizeof(want)) != 0)
					problem = "other bits than a conversion's";
			}
		}
	check_case_end(c, problem, "rope_kv=%s bits of bf16 tokens=%u head_dim=%u slots=%u", c->targets[target].ops.rope_kv_variant, tokens,
		       head_dim, slots);
}

static const struct rope_case CASES[] = {
	{4, 2, 64, 64, 16, 9, KERN_F32, false, false},
	{4, 2, 64, 64, 16, 9, KERN_BF16, true, true},
	{1, 1, 2, 2, 1, 3, KERN_F32, true, false},
	{3, 1, 80, 32, 16, 7, KERN_BF16, false, true},
	{8, 8, 32, 32, 32, 40, KERN_BF16, false, false},
	{5, 1, 96, 96, 5, 20, KERN_F32, true, true},
	{2, 2, 128, 64, 16, 11, KERN_BF16, true, false},
	{2, 1, 256, 256, 8, 6, KERN_F32, false, true},
	{3, 3, 20, 10, 16, 33, KERN_BF16, true, true},
	{6, 2, 40, 36, 48, 17, KERN_F32, false, false},
	{2, 1, 32, 32, 16, 0, KERN_BF16, false, false},
	{4, 2, 64, 64, 16, 9, KERN_F32, false, true, true},
	{3, 1, 80, 34, 16, 21, KERN_BF16, true, false, true},
	{3, 1, 80, 34, 16, 21, KERN_F32, true, true, true, true},
	{4, 2, 64, 32, 16, 9, KERN_BF16, false, false, true},
	{4, 2, 20, 20, 8, 9, KERN_BF16, false, false, false, true},
	{4, 2, 64, 64, 16, 9, KERN_F32, true, true, false, false, true},
	{3, 1, 80, 34, 16, 21, KERN_BF16, false, true, false, true, true},
	{3, 1, 22, 22, 16, 21, KERN_F32, true, false, false, false, false, 0.7f},
	{2, 2, 96, 64, 16, 9, KERN_BF16, false, true, true, false, false, 0.3f},
	{5, 1, 36, 36, 4, 11, KERN_F32, true, true, false, true, true, 0.5f},
	/* Keys of neighbours are stored together: of whole lines and parts of them, in blocks of one line, of several, and of none. */
	{9, 3, 64, 64, 16, 50, KERN_BF16, .slots = SLOTS_NEIGHBOURS},
	{9, 3, 64, 64, 16, 77, KERN_F32, .slots = SLOTS_HOLES},
	{4, 2, 64, 64, 16, 60, KERN_BF16, .slots = SLOTS_RUNS},
	{4, 2, 64, 64, 16, 40, KERN_BF16, .slots = SLOTS_BACKWARDS},
	{6, 3, 128, 128, 48, 100, KERN_BF16, .slots = SLOTS_NEIGHBOURS},
	{2, 1, 256, 256, 32, 40, KERN_F32, .slots = SLOTS_NEIGHBOURS},
	{3, 1, 80, 80, 5, 31, KERN_BF16, true, .slots = SLOTS_NEIGHBOURS},
	{3, 2, 80, 32, 24, 37, KERN_BF16, .slots = SLOTS_RUNS},
	{6, 3, 20, 20, 16, 50, KERN_BF16, .slots = SLOTS_NEIGHBOURS},
	{4, 2, 42, 42, 16, 40, KERN_F32, .slots = SLOTS_NEIGHBOURS},
	{2, 1, 128, 64, 1, 20, KERN_BF16, .slots = SLOTS_NEIGHBOURS},
	{3, 1, 22, 22, 16, 40, KERN_BF16, true, true, .slots = SLOTS_NEIGHBOURS},
	{20, 20, 128, 128, 16, 33, KERN_BF16, .slots = SLOTS_NEIGHBOURS}, /* more heads than wait together */
	{2, 2, 1024, 1024, 16, 20, KERN_F32, .slots = SLOTS_NEIGHBOURS},
	{6, 2, 64, 64, 16, 40, KERN_BF16, .norm = true, .scaled = true, .norm_behind = true, .slots = SLOTS_NEIGHBOURS},
	{4, 2, 64, 64, 16, 9, KERN_F32, .norm = true, .interleaved = true, .norm_behind = true},
	{3, 1, 80, 34, 16, 21, KERN_BF16, .bias = true, .norm = true, .interleaved = true, .norm_behind = true, .slots = SLOTS_NEIGHBOURS},
	{4, 2, 96, 64, 16, 40, KERN_BF16, .interleaved = true, .clip = 0.6f, .slots = SLOTS_HOLES},
	/* Pairs further apart than the rotated part is wide, norms of values, values that are keys. */
	{4, 2, 64, 16, 16, 9, KERN_F32, .norm = true, .apart = 32, .norm_v = true},
	{4, 2, 128, 64, 16, 40, KERN_BF16, .apart = 64, .slots = SLOTS_NEIGHBOURS},
	{8, 1, 512, 128, 16, 40, KERN_BF16, .norm = true, .apart = 256, .norm_v = true, .v_is_k = true, .slots = SLOTS_NEIGHBOURS},
	{3, 3, 22, 6, 16, 21, KERN_BF16, .bias = true, .apart = 11, .v_is_k = true},
	{6, 2, 40, 36, 48, 17, KERN_F32, .bias = true, .norm = true, .apart = 20, .norm_v = true, .v_is_k = true, .slots = SLOTS_HOLES},
	{4, 2, 64, 64, 16, 40, KERN_BF16, .norm_v = true, .clip = 0.4f, .slots = SLOTS_RUNS},
	/* LayerNorm, with weights of each head. */
	{4, 2, 64, 64, 16, 9, KERN_F32, .norm = true, .layer_norms = true},
	{5, 5, 20, 6, 16, 21, KERN_BF16, .bias = true, .norm = true, .layer_norms = true, .slots = SLOTS_NEIGHBOURS},
	{6, 3, 128, 128, 16, 40, KERN_BF16, .norm = true, .interleaved = true, .layer_norms = true, .slots = SLOTS_NEIGHBOURS},
	{8, 1, 22, 22, 16, 33, KERN_F32, .norm = true, .clip = 0.6f, .layer_norms = true, .slots = SLOTS_HOLES},
	/* No keys and values at all. */
	{4, 0, 64, 16, 16, 40, KERN_F32, .norm = true, .apart = 32, .norm_v = true, .slots = SLOTS_NEIGHBOURS},
	{3, 0, 22, 22, 16, 9, KERN_BF16, .bias = true},
};

void check_rope(struct check *c)
{
	for (u32 i = 0; i < c->target_count; i++) {
		if (!CHECK_DISTINCT(c, i, rope_kv))
			continue;
		for (u32 r = 0; r < COUNT_OF(CASES) * 4; r++) {
			struct rope_case rope = CASES[r / 4];
			rope.type = r % 4 == 0 ? rope.type : r % 4 == 1 ? KERN_I8 : r % 4 == 2 ? KERN_F8E4M3 : KERN_I16;
			rope_case(c, i, &rope);
		}
		for (u32 dim = 6; dim <= 96; dim += 18)
			for (u32 none = 0; none < 3; none++)
				rope_lost(c, i, dim, none == 0 ? NAN : none == 1 ? INFINITY : -INFINITY);
		for (u32 dim = 16; dim <= 128 && i > 0; dim += 8) { /* the reference adds 0 for a bias: no -0 is left */
			rope_bits(c, i, dim, 37, SLOTS_NEIGHBOURS);
			rope_bits(c, i, dim, 37, SLOTS_SCATTERED);
		}
	}
}
