/* Bias, head norms, rotation and the write into the KV cache for AVX2 and AVX-512. Heads pass through as few buffers as their model
 * lets them: what is only rotated goes from the projection to where it belongs. */
#include <math.h>

#include "kernels/cpu/lace_keys_priv.h"
#include "kernels/cpu/shares_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"
#include "kernels/kv_priv.h"

enum {
	KEYS_OF_A_LINE = 16, /* keys whose words share a line of the cache */
	TASKS_A_THREAD = 2,
	LINE_WORDS = 16,
	TOKENS_AHEAD = 4,
	RUN_WORDS = 4096, /* of keys that wait to be stored together; the largest key has fewer */
	VECTOR_WORDS = 4, /* of bytes for VEC_LANES values */
};

/* A slot of the cache. */
struct place {
	size_t block;
	u32 offset;
};

static void add_bias(float *out, const float *x, const float *bias, u32 dim)
{
	u32 i = 0;
	for (; i + VEC_LANES <= dim; i += VEC_LANES)
		vec_store(out + i, vec_add(vec_load(x + i), vec_load(bias + i)));
	if (i < dim)
		vec_store_n(out + i, vec_add(vec_load_n(x + i, dim - i), vec_load_n(bias + i, dim - i)), dim - i);
}

/* A NaN stays one. */
static void clip_head(float *out, const float *x, float clip, u32 dim)
{
	for (u32 i = 0; i < dim; i += VEC_LANES) {
		u32 n = kern_min(dim - i, VEC_LANES);
		vec_store_n(out + i, vec_max(vec_set1(-clip), vec_min(vec_set1(clip), vec_load_n(x + i, n))), n);
	}
}

/* `weight` NULL: of ones. */
static void norm_head(float *out, const float *x, const float *weight, u32 dim, float eps)
{
	vec sum = vec_zero();
	for (u32 i = 0; i < dim; i += VEC_LANES) {
		vec v = vec_load_n(x + i, kern_min(dim - i, VEC_LANES));
		sum = vec_fma(v, v, sum);
	}
	vec scale = vec_set1(1 / sqrtf(vec_sum(sum) / (float)dim + eps));
	for (u32 i = 0; i < dim; i += VEC_LANES) {
		u32 n = kern_min(dim - i, VEC_LANES);
		vec v = vec_mul(vec_load_n(x + i, n), scale);
		vec_store_n(out + i, weight ? vec_mul(v, vec_load_n(weight + i, n)) : v, n);
	}
}

/* LayerNorm without a bias; may be in place. Lanes behind the end are 0 in both sums. */
static void layer_norm_head(float *out, const float *x, const float *weight, u32 dim, float eps)
{
	vec sum = vec_zero(), squares = vec_zero();
	for (u32 i = 0; i < dim; i += VEC_LANES)
		sum = vec_add(sum, vec_load_n(x + i, kern_min(dim - i, VEC_LANES)));
	const vec mean = vec_set1(vec_sum(sum) / (float)dim);
	for (u32 i = 0; i < dim; i += VEC_LANES) {
		u32 n = kern_min(dim - i, VEC_LANES);
		vec v = vec_select_n(vec_sub(vec_load_n(x + i, n), mean), vec_zero(), n);
		squares = vec_fma(v, v, squares);
	}
	const vec scale = vec_set1(1 / sqrtf(vec_sum(squares) / (float)dim + eps));
	for (u32 i = 0; i < dim; i += VEC_LANES) {
		u32 n = kern_min(dim - i, VEC_LANES);
		vec v = vec_mul(vec_sub(vec_load_n(x + i, n), mean), scale);
		vec_store_n(out + i, vec_mul(v, vec_load_n(weight + i, n)), n);
	}
}

/* Pairs (2 i, 2 i + 1) of the first 2 half values become halves; may be in place. */
static void unlace(float *out, const float *x, u32 half, u32 dim)
{
	float pairs[KERN_HEAD_DIM_MAX];
	u32 i = 0;
	memcpy(pairs, x, dim * sizeof(float));
	for (; i + VEC_LANES <= half; i += VEC_LANES) {
		vec a = vec_load(pairs + 2 * i), b = vec_load(pairs + 2 * i + VEC_LANES);
		vec_store(out + i, vec_even(a, b));
		vec_store(out + half + i, vec_odd(a, b));
	}
	for (; i < half; i++) {
		out[i] = pairs[2 * i];
		out[half + i] = pairs[2 * i + 1];
	}
	memcpy(out + 2 * half, pairs + 2 * half, (dim - 2 * half) * sizeof(float));
}

/* What rotates the heads of a token. */
struct angles {
	const float *cosine, *sine;
	u32 half, apart; /* pairs, and from the first value of one to its second */
};

static struct angles angles_of(const struct kern_rope_kv_args *a, u32 t)
{
	u32 half = a->rope_dim / 2;
	size_t at = (size_t)a->positions[t] * half;
	return (struct angles){a->cos + at, a->sin + at, half, kern_rope_apart(a)};
}

static ALWAYS_INLINE vec turned_low(vec low, vec high, vec c, vec s)
{
	return vec_sub(vec_mul(low, c), vec_mul(high, s));
}

static ALWAYS_INLINE vec turned_high(vec low, vec high, vec c, vec s)
{
	return vec_fma(high, c, vec_mul(low, s));
}

/* `vecs` vectors, 4 at most, of both halves of all heads from value i on. The angles stay in registers: to load them for every head
 * costs more than all else. */
static ALWAYS_INLINE void turn_heads(float *out, const float *in, u32 heads, const struct angles *by, u32 dim, u32 i, u32 vecs)
{
	vec c[4], s[4];
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++) {
		c[v] = vec_load(by->cosine + i + v * VEC_LANES);
		s[v] = vec_load(by->sine + i + v * VEC_LANES);
	}
	for (u32 h = 0; h < heads; h++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			size_t at = (size_t)h * dim + i + v * VEC_LANES;
			vec low = vec_load(in + at), high = vec_load(in + at + by->apart);
			vec_store(out + at, turned_low(low, high, c[v], s[v]));
			vec_store(out + at + by->apart, turned_high(low, high, c[v], s[v]));
		}
}

/* The last `n` values of both halves. The upper half follows the lower, so stores are cut to size. */
static void turn_ends(float *out, const float *in, u32 heads, const struct angles *by, u32 dim, u32 n)
{
	u32 apart = by->apart, i = by->half - n;
	vec c = vec_load_n(by->cosine + i, n), s = vec_load_n(by->sine + i, n);
	for (u32 h = 0; h < heads; h++) {
		size_t at = (size_t)h * dim + i;
		vec low = vec_load_n(in + at, n), high = vec_load_n(in + at + apart, n);
		vec_store_n(out + at, turned_low(low, high, c, s), n);
		vec_store_n(out + at + apart, turned_high(low, high, c, s), n);
	}
}

/* Neighbouring heads of a token; may be in place. */
static void rotate_heads(float *out, const float *in, u32 heads, const struct angles *by, u32 dim)
{
	u32 i = 0, half = by->half;
	for (; i + 4 * VEC_LANES <= half; i += 4 * VEC_LANES)
		turn_heads(out, in, heads, by, dim, i, 4);
	for (; i + 2 * VEC_LANES <= half; i += 2 * VEC_LANES)
		turn_heads(out, in, heads, by, dim, i, 2);
	for (; i + VEC_LANES <= half; i += VEC_LANES)
		turn_heads(out, in, heads, by, dim, i, 1);
	if (i < half)
		turn_ends(out, in, heads, by, dim, half - i);
	for (u32 h = 0; h < heads && 2 * half < dim && out != in; h++) {
		size_t at = (size_t)h * dim + half, behind = at + by->apart;
		memcpy(out + at, in + at, (by->apart - half) * sizeof(float));
		memcpy(out + behind, in + behind, (dim - by->apart - half) * sizeof(float));
	}
}

static void scale(float *x, float factor, size_t count)
{
	for (size_t i = 0; i < count; i += VEC_LANES) {
		u32 n = count - i < VEC_LANES ? (u32)(count - i) : VEC_LANES;
		vec_store_n(x + i, vec_mul(vec_load_n(x + i, n), vec_set1(factor)), n);
	}
}

static ALWAYS_INLINE void to_bf16(u16 *out, const float *x, u32 dim)
{
	u32 i = 0;
	for (; i + 2 * VEC_LANES <= dim; i += 2 * VEC_LANES)
		vec_store_bf16_pair(out + i, vec_load(x + i), vec_load(x + i + VEC_LANES));
	for (; i < dim; i++)
		out[i] = kern_float_to_bf16(x[i]);
}

/* Heads rotated into bf16, `apart` from each other, of halves that whole pairs of vectors have. */
static void rotate_to_bf16(u16 *out, size_t apart, const float *in, u32 heads, const struct angles *by, u32 dim)
{
	u32 half = by->half, across = by->apart;
	for (u32 i = 0; i < half; i += 2 * VEC_LANES) {
		vec c[2] = {vec_load(by->cosine + i), vec_load(by->cosine + i + VEC_LANES)};
		vec s[2] = {vec_load(by->sine + i), vec_load(by->sine + i + VEC_LANES)};
		for (u32 h = 0; h < heads; h++) {
			const float *x = in + (size_t)h * dim + i;
			u16 *to = out + h * apart + i;
			vec low[2] = {vec_load(x), vec_load(x + VEC_LANES)};
			vec high[2] = {vec_load(x + across), vec_load(x + across + VEC_LANES)};
			vec_store_bf16_pair(to, turned_low(low[0], high[0], c[0], s[0]), turned_low(low[1], high[1], c[1], s[1]));
			vec_store_bf16_pair(to + across, turned_high(low[0], high[0], c[0], s[0]),
					    turned_high(low[1], high[1], c[1], s[1]));
		}
	}
	for (u32 h = 0; h < heads && 2 * half < dim; h++) {
		const float *x = in + (size_t)h * dim;
		to_bf16(out + h * apart + half, x + half, across - half);
		to_bf16(out + h * apart + across + half, x + across + half, dim - across - half);
	}
}

static vec head_load(const float *x, u32 i, u32 dim)
{
	return vec_load_n(x + i, kern_min(dim - i, VEC_LANES));
}

/* x, zeros behind it up to a whole vector, in 8 bits; returns the scale. */
static float to_bytes(const struct kern_kv *kv, u8 *out, const float *x)
{
	u32 dim = kv->head_dim;
	float most = kern_kv_code_max(kv), largest;
	vec sizes = vec_zero();
	for (u32 i = 0; i < dim; i += VEC_LANES)
		sizes = vec_max(vec_abs(head_load(x, i, dim)), sizes);
	largest = vec_highest(sizes);
	largest = largest < KERN_KV_LEAST ? 0 : largest;
	vec factor = vec_set1(largest > 0 ? most / largest : 0), limit = vec_set1(most);
	for (u32 i = 0; i < dim; i += VEC_LANES) {
		vec scaled = vec_mul(head_load(x, i, dim), factor);
		if (kv->dtype == KERN_I8)
			vec_store_i8(out + i, scaled, KERN_KV_OFFSET);
		else
			vec_store_f8(out + i, vec_max(vec_min(scaled, limit), vec_sub(vec_zero(), limit)));
	}
	return largest / most;
}

/* x in 16 bits; returns the scale. The largest is found among bits, where a NaN is above all numbers. */
static float to_wholes(const struct kern_kv *kv, int16_t *out, const float *x)
{
	const u32 dim = kv->head_dim;
	const float most = KERN_KV_I16_MAX;
	float largest = vec_largest_bits(x, dim);
	if (!(largest < INFINITY)) {
		memset(out, 0, kern_kv_words(kv) * sizeof(u32));
		return NAN;
	}
	largest = largest < KERN_KV_LEAST ? 0 : largest;
	const vec factor = vec_set1(largest > 0 ? most / largest : 0);
	u32 i = 0;
	for (; i + 2 * VEC_LANES <= dim; i += 2 * VEC_LANES)
		vec_store_wholes(out + i, vec_mul(vec_load(x + i), factor), vec_mul(vec_load(x + i + VEC_LANES), factor));
	for (; i < dim; i++)
		out[i] = kern_float_to_i16(x[i] * vec_first(factor));
	return largest / most;
}

/* A head as it is stored. */
static void to_words(const struct kern_kv *kv, u32 *words, const float *x, float *scale)
{
	if (kv->dtype == KERN_F32)
		memcpy(words, x, kv->head_dim * sizeof(float));
	else if (kv->dtype == KERN_BF16)
		to_bf16((u16 *)(void *)words, x, kv->head_dim);
	else if (kv->dtype == KERN_I16)
		*scale = to_wholes(kv, (int16_t *)(void *)words, x);
	else
		*scale = to_bytes(kv, (u8 *)words, x);
}

/* ---------------------------------------------------------------- tokens */

static bool is_rotated(const struct kern_rope_kv_args *a, u32 h)
{
	return h < a->heads + a->kv.kv_heads;
}

/* Whether head h comes as it is to be rotated or, of values, stored. */
static bool is_ready(const struct kern_rope_kv_args *a, u32 h, const float *norm)
{
	return !a->bias && a->clip <= 0 && (!norm || a->norm_behind) && (!a->interleaved || !is_rotated(a, h));
}

/* Makes it so. */
static void prepare_head(const struct kern_rope_kv_args *a, float *out, const float *x, u32 h, const float *norm)
{
	u32 dim = a->kv.head_dim;
	if (a->bias) {
		add_bias(out, x, a->bias + h * dim, dim);
		x = out;
	}
	if (a->clip > 0) {
		clip_head(out, x, a->clip, dim);
		x = out;
	}
	if (norm && a->layer_norms) {
		const u32 first = h < a->heads ? 0 : a->heads;
		layer_norm_head(out, x, norm + (size_t)(h - first) * dim, dim, a->norm_eps);
		x = out;
	} else if (norm && !a->norm_behind) {
		norm_head(out, x, norm, dim, a->norm_eps);
		x = out;
	}
	if (a->interleaved && is_rotated(a, h))
		unlace(out, x, a->rope_dim / 2, dim);
}

/* `count` heads of one kind of token t from the h-th on, ready: where they come, or in x. */
static ALWAYS_INLINE const float *heads_in(const struct kern_rope_kv_args *a, u32 t, u32 h, u32 count, const float *norm, float *x)
{
	u32 dim = a->kv.head_dim;
	const float *in = a->qkv + t * kern_rope_qkv_stride(a) + (size_t)h * dim;
	if (is_ready(a, h, norm))
		return in;
	for (u32 i = 0; i < count; i++)
		prepare_head(a, x + (size_t)i * dim, in + (size_t)i * dim, h + i, norm);
	return x;
}

/* Asks for what a later token is read from and where its queries go, into the L2 cache. */
static void token_ahead(const struct kern_rope_kv_args *a, u32 t)
{
	const u32 out_count = a->heads * a->kv.head_dim, in_count = (u32)kern_rope_qkv_stride(a);
	if (t >= a->tokens)
		return;
	for (u32 i = 0; i < out_count && a->q != a->qkv; i += LINE_WORDS)
		__builtin_prefetch(a->q + t * kern_rope_q_stride(a) + i, 0, 2);
	for (u32 i = 0; i < in_count; i += LINE_WORDS)
		__builtin_prefetch(a->qkv + (size_t)t * in_count + i, 0, 2);
}

static void queries(const struct kern_rope_kv_args *a, u32 t)
{
	token_ahead(a, t + TOKENS_AHEAD);
	const struct angles by = angles_of(a, t);
	u32 dim = a->kv.head_dim;
	float *out = a->q + t * kern_rope_q_stride(a);
	rotate_heads(out, heads_in(a, t, 0, a->heads, a->q_norm, out), a->heads, &by, dim);
	for (u32 h = 0; h < a->heads && a->q_norm && a->norm_behind; h++)
		norm_head(out + (size_t)h * dim, out + (size_t)h * dim, a->q_norm, dim, a->norm_eps);
	if (a->q_scales)
		scale(out, a->q_scales[a->positions[t]], (size_t)a->heads * dim);
}

/* Keys [h, h + count) of token t as they are stored, to `words`, `apart` from each other. `at`: its slot. */
static void keys(const struct kern_rope_kv_args *a, u32 t, u32 h, u32 count, struct place at, u32 *words, size_t apart)
{
	float x[KERN_HEAD_DIM_MAX + VEC_LANES];
	const struct kern_kv *kv = &a->kv;
	const struct angles by = angles_of(a, t);
	const bool fused = kv->dtype == KERN_BF16 && !(a->k_norm && a->norm_behind) && by.half % (2 * VEC_LANES) == 0;
	u32 dim = kv->head_dim, step = fused && is_ready(a, a->heads, a->k_norm) ? count : 1;
	for (u32 i = 0; i < count; i += step) {
		const float *in = heads_in(a, t, a->heads + h + i, step, a->k_norm, x);
		if (fused) {
			rotate_to_bf16((u16 *)(void *)(words + i * apart), 2 * apart, in, step, &by, dim);
			continue;
		}
		rotate_heads(x, in, 1, &by, dim);
		if (a->k_norm && a->norm_behind)
			norm_head(x, x, a->k_norm, dim, a->norm_eps);
		to_words(kv, words + i * apart, x, kern_kv_scale(kv, kv->k, at.block, h + i, at.offset));
	}
}

/* The values of token t, of which nothing but the type changes. */
static void values_ready(const struct kern_rope_kv_args *a, u32 t, struct place at)
{
	const struct kern_kv *kv = &a->kv;
	const float *in = heads_in(a, t, kern_rope_first_value(a), kv->kv_heads, NULL, NULL);
	char *to = (char *)kern_kv_value(kv, at.block, 0, at.offset);
	size_t slab = kern_kv_slab(kv);
	for (u32 h = 0, heads = kv->kv_heads, dim = kv->head_dim; h < heads; h++, in += dim, to += slab)
		to_bf16((u16 *)(void *)to, in, dim);
}

/* Head h of v as it is stored but for its type: where it comes, or in x. */
static const float *value_in(const struct kern_rope_kv_args *a, u32 t, u32 h, float *x)
{
	const float *in = heads_in(a, t, h, 1, NULL, x);
	if (!a->norm_v)
		return in;
	norm_head(x, in, NULL, a->kv.head_dim, a->norm_eps);
	return x;
}

static void values(const struct kern_rope_kv_args *a, u32 t, struct place at)
{
	float x[KERN_HEAD_DIM_MAX + VEC_LANES];
	u32 buffer[KERN_HEAD_DIM_MAX];
	const struct kern_kv *kv = &a->kv;
	const u32 first = kern_rope_first_value(a);
	/* Bytes are written in whole vectors. */
	const bool direct = !kern_kv_is_quantized(kv) || kv->dtype == KERN_I16 || kv->head_dim % VEC_LANES == 0;
	if (kv->dtype == KERN_BF16 && !a->norm_v && is_ready(a, first, NULL)) {
		values_ready(a, t, at);
		return;
	}
	for (u32 h = 0; h < kv->kv_heads; h++) {
		u32 *to = kern_kv_value(kv, at.block, h, at.offset);
		to_words(kv, direct ? to : buffer, value_in(a, t, first + h, x),
			 kern_kv_scale(kv, kv->v, at.block, h, at.offset));
		if (!direct)
			memcpy(to, buffer, kern_kv_words(kv) * sizeof(u32));
	}
}

/* ---------------------------------------------------------------- runs of tokens */

/* Tokens whose slots follow each other in a line. */
struct run {
	u32 first, count;
	struct place at; /* the first one's slot */
};

/* From one key that waits to the next: those of bytes are written in whole vectors. */
static u32 waiting_stride(const struct kern_kv *kv)
{
	return kern_ceil(kern_kv_words(kv), VECTOR_WORDS) * VECTOR_WORDS;
}

/* Tokens from t on, before `end`; the first one has a slot. */
static struct run run_of(const struct kern_rope_kv_args *a, u32 t, u32 end)
{
	const struct kern_kv *kv = &a->kv;
	size_t slot = (size_t)a->slots[t], block = slot / kv->block_size;
	struct run r = {t, 1, {block, (u32)(slot - block * kv->block_size)}};
	u32 most = kern_min(end - t, RUN_WORDS / waiting_stride(kv));
	most = kern_min(most, kern_min(kv->block_size - r.at.offset, KEYS_OF_A_LINE - r.at.offset % KEYS_OF_A_LINE));
	while (r.count < most && a->slots[t + r.count] == a->slots[t] + r.count)
		r.count++;
	return r;
}

/* Asks for some of the lines that the run's keys, values and scales will be stored to: all, when every token of another run as long has asked. Into
 * the L2 cache: the L1 cache waits for few lines at a time, and writing need not be said to it yet. */
static void run_ahead(const struct kern_rope_kv_args *a, const struct run *r, u32 token)
{
	const struct kern_kv *kv = &a->kv;
	const u32 words = kern_kv_words(kv);
	const size_t slab = kern_kv_slab(kv);
	for (u32 h = 0; h < kv->kv_heads; h++) {
		const u32 *to = kern_kv_key(kv, r->at.block, h, r->at.offset);
		for (u32 d = token; d < words; d += r->count)
			__builtin_prefetch(to + (size_t)d * kv->block_size, 0, 2);
	}
	const char *value = (const char *)kern_kv_value(kv, r->at.block, 0, r->at.offset + token);
	for (u32 h = 0; h < kv->kv_heads; h++, value += slab)
		for (u32 d = 0; d < words; d += LINE_WORDS)
			__builtin_prefetch(value + d * sizeof(u32), 0, 2);
	for (u32 h = token; h < kv->kv_heads && kern_kv_is_quantized(kv); h += r->count) {
		__builtin_prefetch(kern_kv_scale(kv, kv->k, r->at.block, h, r->at.offset), 0, 2);
		__builtin_prefetch(kern_kv_scale(kv, kv->v, r->at.block, h, r->at.offset), 0, 2);
	}
}

/* All of a token at once, as it lies in memory, but for keys of more heads than there is room for. `next`: what is asked for. */
static void run_tokens(const struct kern_rope_kv_args *a, const struct run *r, const struct run *next)
{
	u32 buffer[RUN_WORDS]; /* keys [head][token][stride] */
	const struct kern_kv *kv = &a->kv;
	u32 stride = waiting_stride(kv), apart = r->count * stride, room = RUN_WORDS / apart, heads;
	for (u32 h = 0; h < kv->kv_heads; h += heads) {
		heads = kern_min(kv->kv_heads - h, room);
		for (u32 i = 0; i < r->count; i++) {
			u32 t = r->first + i;
			struct place at = {r->at.block, r->at.offset + i};
			if (h == 0) {
				for (u32 token = i; token < next->count; token += r->count)
					run_ahead(a, next, token);
				queries(a, t);
				values(a, t, at);
			}
			keys(a, t, h, heads, at, buffer + i * stride, apart);
		}
		for (u32 k = 0; k < heads; k++) {
			struct lace_keys lace = {(const float *)(const void *)(buffer + k * apart),
						 (float *)(void *)kern_kv_key(kv, r->at.block, h + k, r->at.offset), stride,
						 kv->block_size};
			lace_keys(&lace, r->count, kern_kv_words(kv));
		}
	}
}

/* Keys lie apart, a word in a line each, and their lines are in memory: a thread that stores one after the other waits
 * for them, so a value counts as several. Neighbouring tokens of a prompt have their keys' words in the same lines,
 * which threads that took a token each would take from one another: where there are enough tokens, a task has those of
 * a line, or an even part of them. */
static u32 tokens_a_task(const struct kern_rope_kv_args *a, u32 threads)
{
	u32 least = kern_rows_a_task((u32)kern_rope_qkv_stride(a) * 4), neighbours = KEYS_OF_A_LINE;
	while (neighbours > least && neighbours * TASKS_A_THREAD * threads > a->tokens)
		neighbours /= 2;
	return neighbours > least ? neighbours : least;
}

struct job {
	const struct kern_rope_kv_args *a;
	u32 tokens_a_task;
};

static void tokens(void *arg, u32 task, u32 thread)
{
	const struct job *j = arg;
	const struct kern_rope_kv_args *a = j->a;
	u32 t = task * j->tokens_a_task, end = kern_min(t + j->tokens_a_task, a->tokens);
	(void)thread;
	while (t < end) {
		if (a->kv.kv_heads == 0 || a->slots[t] < 0) {
			queries(a, t++);
			continue;
		}
		struct run r = run_of(a, t, end), next = {.count = 0};
		t += r.count;
		if (t < a->tokens && a->slots[t] >= 0)
			next = run_of(a, t, a->tokens);
		run_tokens(a, &r, &next);
	}
}

enum err VARIANT(rope_kv)(struct kern_ctx *ctx, const struct kern_rope_kv_args *a)
{
	struct job j = {a, tokens_a_task(a, kern_thread_count(ctx))};
	ASSERT(kern_rope_is_sound(a));
	parallel_near(ctx, a->tokens, kern_ceil(a->tokens, j.tokens_a_task), tokens, &j);
	return ERR_OK;
}
