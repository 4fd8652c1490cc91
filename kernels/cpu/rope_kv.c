/* Bias, head norms, rotation and the write into the KV cache for AVX2. A token is one
 * task's; each head passes through a small buffer. */
#include <math.h>

#include "kernels/cpu/shares_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"
#include "kernels/kv_priv.h"

enum {
	KEYS_OF_A_LINE = 16, /* keys whose words share a line of the cache */
	TASKS_A_THREAD = 2,
};

/* The head as it comes, or in `x` with the bias added. */
static const float *read_head(float *x, const float *in, const float *bias, u32 dim)
{
	u32 i = 0;
	if (!bias)
		return in;
	for (; i + VEC_LANES <= dim; i += VEC_LANES)
		vec_store(x + i, vec_add(vec_load(in + i), vec_load(bias + i)));
	if (i < dim)
		vec_store_n(x + i, vec_add(vec_load_n(in + i, dim - i), vec_load_n(bias + i, dim - i)),
			    dim - i);
	return x;
}

/* A NaN stays one. */
static void clip_head(float *out, const float *x, float clip, u32 dim)
{
	for (u32 i = 0; i < dim; i += VEC_LANES) {
		u32 n = kern_min(dim - i, VEC_LANES);
		vec_store_n(out + i, vec_max(vec_set1(-clip), vec_min(vec_set1(clip), vec_load_n(x + i, n))), n);
	}
}

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
		vec_store_n(out + i, vec_mul(vec_mul(vec_load_n(x + i, n), scale), vec_load_n(weight + i, n)),
			    n);
	}
}

/* Pairs (2 i, 2 i + 1) of the first 2 half values become halves. */
static void unlace(float *out, const float *x, u32 half, u32 dim)
{
	float pairs[KERN_HEAD_DIM_MAX];
	memcpy(pairs, x, dim * sizeof(float));
	for (u32 i = 0; i < half; i++) {
		out[i] = pairs[2 * i];
		out[half + i] = pairs[2 * i + 1];
	}
	memcpy(out + 2 * half, pairs + 2 * half, (dim - 2 * half) * sizeof(float));
}

/* The last vector of each half may be short, and the upper half follows the lower: stores are cut to size. What is behind both stays as
 * it is. */
static void rotate_head(float *out, const float *x, const float *cosine, const float *sine, u32 half, u32 dim)
{
	for (u32 i = 0; i < half; i += VEC_LANES) {
		u32 n = kern_min(half - i, VEC_LANES);
		vec low = vec_load_n(x + i, n), high = vec_load_n(x + half + i, n);
		vec c = vec_load_n(cosine + i, n), s = vec_load_n(sine + i, n);
		vec_store_n(out + i, vec_sub(vec_mul(low, c), vec_mul(high, s)), n);
		vec_store_n(out + half + i, vec_fma(high, c, vec_mul(low, s)), n);
	}
	if (2 * half < dim && out != x)
		memcpy(out + 2 * half, x + 2 * half, (dim - 2 * half) * sizeof(float));
}

static void scale_head(float *x, float scale, u32 dim)
{
	for (u32 i = 0; i < dim; i += VEC_LANES) {
		u32 n = kern_min(dim - i, VEC_LANES);
		vec_store_n(x + i, vec_mul(vec_load_n(x + i, n), vec_set1(scale)), n);
	}
}

static void to_bf16(u16 *out, const float *x, u32 dim)
{
	u32 i = 0;
	for (; i + VEC_LANES <= dim; i += VEC_LANES)
		vec_store_bf16(out + i, vec_load(x + i));
	for (; i < dim; i++)
		out[i] = kern_float_to_bf16(x[i]);
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

/* The words of a head as they are stored, in `buffer` or in x itself. */
static const u32 *words_of(const struct kern_kv *kv, u32 *buffer, const float *x, float *scale)
{
	if (kv->dtype == KERN_F32)
		return (const u32 *)(const void *)x;
	if (kv->dtype == KERN_BF16)
		to_bf16((u16 *)buffer, x, kv->head_dim);
	else
		*scale = to_bytes(kv, (u8 *)buffer, x);
	return buffer;
}

static void write_key(const struct kern_kv *kv, size_t block, u32 head, u32 offset, const float *x)
{
	u32 buffer[KERN_HEAD_DIM_MAX], count = kern_kv_words(kv), *to = kern_kv_key(kv, block, head, offset);
	const u32 *from = words_of(kv, buffer, x, kern_kv_scale(kv, kv->k, block, head, offset));
	for (u32 d = 0; d < count; d++)
		memcpy(&to[(size_t)d * kv->block_size], &from[d], sizeof(u32));
}

static void write_value(const struct kern_kv *kv, size_t block, u32 head, u32 offset, const float *x)
{
	u32 buffer[KERN_HEAD_DIM_MAX];
	const u32 *from = words_of(kv, buffer, x, kern_kv_scale(kv, kv->v, block, head, offset));
	memcpy(kern_kv_value(kv, block, head, offset), from, kern_kv_words(kv) * sizeof(u32));
}

/* One head of token t on its way to `q`, or to where x is then and the answer points to. */
static const float *rotated_head(const struct kern_rope_kv_args *a, u32 t, const float *head, const float *norm, float *x, float *q)
{
	u32 dim = a->kv.head_dim, half = a->rope_dim / 2;
	size_t angles = (size_t)a->positions[t] * half;
	float *out = q ? q : x;
	if (norm && !a->norm_behind) {
		norm_head(x, head, norm, dim, a->norm_eps);
		head = x;
	}
	if (a->interleaved) {
		unlace(x, head, half, dim);
		head = x;
	}
	rotate_head(out, head, a->cos + angles, a->sin + angles, half, dim);
	if (norm && a->norm_behind)
		norm_head(out, out, norm, dim, a->norm_eps);
	if (q && a->q_scales)
		scale_head(out, a->q_scales[a->positions[t]], dim);
	return out;
}

static void one_token(const struct kern_rope_kv_args *a, u32 t)
{
	const struct kern_kv *kv = &a->kv;
	u32 dim = kv->head_dim, heads = a->heads + 2 * kv->kv_heads;
	const float *in = a->qkv + (size_t)t * heads * dim;
	float x[KERN_HEAD_DIM_MAX + VEC_LANES];
	i64 slot = a->slots[t];
	u32 used = slot < 0 ? a->heads : heads;
	size_t block = slot < 0 ? 0 : (size_t)slot / kv->block_size;
	u32 offset = slot < 0 ? 0 : (u32)((size_t)slot % kv->block_size);
	for (u32 h = 0; h < used; h++) {
		const float *head = read_head(x, in + h * dim, a->bias ? a->bias + h * dim : NULL, dim);
		if (a->clip > 0) {
			clip_head(x, head, a->clip, dim);
			head = x;
		}
		if (h < a->heads)
			rotated_head(a, t, head, a->q_norm, x, a->q + ((size_t)t * a->heads + h) * dim);
		else if (h < a->heads + kv->kv_heads)
			write_key(kv, block, h - a->heads, offset, rotated_head(a, t, head, a->k_norm, x, NULL));
		else
			write_value(kv, block, h - a->heads - kv->kv_heads, offset, head);
	}
}

/* Keys lie apart, a word in a line each, and their lines are in memory: a thread that stores one after the other waits
 * for them, so a value counts as several. Neighbouring tokens of a prompt have their keys' words in the same lines,
 * which threads that took a token each would take from one another: where there are enough tokens, a task has those of
 * a line, or an even part of them. */
static u32 tokens_a_task(const struct kern_rope_kv_args *a, u32 threads)
{
	u32 least = kern_rows_a_task((a->heads + 2 * a->kv.kv_heads) * a->kv.head_dim * 4), neighbours = KEYS_OF_A_LINE;
	while (neighbours > least && neighbours * TASKS_A_THREAD * threads > a->tokens)
		neighbours /= 2;
	return neighbours > least ? neighbours : least;
}

/* Asks for the lines that the token's keys will be stored to. */
static void keys_ahead(const struct kern_rope_kv_args *a, u32 t)
{
	const struct kern_kv *kv = &a->kv;
	u32 count = kern_kv_words(kv);
	i64 slot = a->slots[t];
	if (slot < 0)
		return;
	for (u32 h = 0; h < kv->kv_heads; h++) {
		const u32 *to = kern_kv_key(kv, (size_t)slot / kv->block_size, h, (u32)((size_t)slot % kv->block_size));
		for (u32 d = 0; d < count; d++)
			__builtin_prefetch(to + (size_t)d * kv->block_size, 1, 3);
	}
}

struct job {
	const struct kern_rope_kv_args *a;
	u32 tokens_a_task;
};

static void tokens(void *arg, u32 task, u32 thread)
{
	const struct job *j = arg;
	const struct kern_rope_kv_args *a = j->a;
	u32 count = j->tokens_a_task, end = kern_min((task + 1) * count, a->tokens);
	(void)thread;
	for (u32 t = task * count; t < end; t++) {
		keys_ahead(a, t);
		one_token(a, t);
	}
}

enum err VARIANT(rope_kv)(struct kern_ctx *ctx, const struct kern_rope_kv_args *a)
{
	struct job j = {a, tokens_a_task(a, kern_thread_count(ctx))};
	ASSERT(a->kv.head_dim <= KERN_HEAD_DIM_MAX && a->rope_dim <= a->kv.head_dim && a->rope_dim % 2 == 0 &&
	       a->kv.head_dim % 2 == 0);
	ASSERT(!a->norm_behind || !a->interleaved);
	parallel_near(ctx, kern_ceil(a->tokens, j.tokens_a_task), tokens, &j);
	return ERR_OK;
}
