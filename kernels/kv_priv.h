/* The KV cache as the CPU lays it out (kernels.h says it in words), and its types with scales. */
#ifndef TERCET_KERNELS_KV_PRIV_H
#define TERCET_KERNELS_KV_PRIV_H

#include <math.h>

#include "kernels/kern_priv.h"

enum {
	KERN_KV_OFFSET = 128, /* added to what KERN_I8 stores: products of unsigned bytes are cheap */
	KERN_KV_I8_MAX = 127,
	KERN_KV_F8_MAX = 448,
	KERN_KV_I16_MAX = 16383, /* a sum of 32 bits of products then has room for what adds up to 131,080 */
};

/* A head whose largest magnitude is below this is stored as zeros: the reciprocal must not overflow. */
#define KERN_KV_LEAST 1e-30f

static inline bool kern_kv_is_quantized(const struct kern_kv *kv)
{
	return kv->dtype == KERN_I8 || kv->dtype == KERN_F8E4M3 || kv->dtype == KERN_I16;
}

/* Dimensions of a key that share 32 bits. */
static inline u32 kern_kv_group(const struct kern_kv *kv)
{
	return kv->dtype == KERN_F32 ? 1 : kv->dtype == KERN_BF16 || kv->dtype == KERN_I16 ? 2 : 4;
}

/* 32-bit words of a key or value; a last one that is not full is filled up by zeros. */
static inline u32 kern_kv_words(const struct kern_kv *kv)
{
	return kern_ceil(kv->head_dim, kern_kv_group(kv));
}

/* Floats from a token's queries to the next one's. */
static inline size_t kern_rope_q_stride(const struct kern_rope_kv_args *a)
{
	return a->q_stride > 0 ? a->q_stride : (size_t)a->heads * a->kv.head_dim;
}

/* The head of qkv that v begins with, and floats from a token of it to the next one's. */
static inline u32 kern_rope_first_value(const struct kern_rope_kv_args *a)
{
	return a->heads + (a->v_is_k ? 0 : a->kv.kv_heads);
}

static inline size_t kern_rope_qkv_stride(const struct kern_rope_kv_args *a)
{
	return a->qkv_stride > 0 ? a->qkv_stride : (size_t)(kern_rope_first_value(a) + a->kv.kv_heads) * a->kv.head_dim;
}

/* From the first value of a rotated pair to its second. */
static inline u32 kern_rope_apart(const struct kern_rope_kv_args *a)
{
	return a->rope_apart > 0 ? a->rope_apart : a->rope_dim / 2;
}

/* What goes with what. */
static inline bool kern_rope_is_sound(const struct kern_rope_kv_args *a)
{
	const u32 dim = a->kv.head_dim;
	return dim <= KERN_HEAD_DIM_MAX && a->rope_dim <= dim && a->rope_dim % 2 == 0 && dim % 2 == 0 &&
	       kern_rope_apart(a) >= a->rope_dim / 2 && kern_rope_apart(a) + a->rope_dim / 2 <= dim &&
	       !(a->interleaved && (a->rope_apart > 0 || a->v_is_k)) && !(a->norm_behind && (a->norm_v || a->layer_norms));
}

/* The same of attention's queries and outputs. */
static inline size_t kern_attention_stride(const struct kern_attention_args *a)
{
	return a->stride > 0 ? a->stride : (size_t)a->heads * a->kv.head_dim;
}

/* The first key that the query whose own is `last` sees. */
static inline u32 kern_attention_first(const struct kern_attention_args *a, u32 last)
{
	if (a->window == 0)
		return 0;
	return a->chunked ? last - last % a->window : last >= a->window ? last - a->window + 1 : 0;
}

/* Bytes of one KV head's keys (or values) of one block: words, then scales. */
static inline size_t kern_kv_slab(const struct kern_kv *kv)
{
	return (size_t)kv->block_size * (kern_kv_words(kv) + kern_kv_is_quantized(kv)) * sizeof(u32);
}

/* Where a block begins in its array. */
static inline size_t kern_kv_block_at(const struct kern_kv *kv, size_t block)
{
	return block * kv->kv_heads * kern_kv_slab(kv) + (block >> kv->run) * kv->gap;
}

/* `array` is the k or the v of `kv`. */
static inline char *kern_kv_head(const struct kern_kv *kv, const void *array, size_t block, u32 head)
{
	return (char *)(size_t)array + kern_kv_block_at(kv, block) + head * kern_kv_slab(kv);
}

/* The scale of a key or value; NULL for types without. */
static inline float *kern_kv_scale(const struct kern_kv *kv, const void *array, size_t block, u32 head,
				   u32 offset)
{
	if (!kern_kv_is_quantized(kv))
		return NULL;
	size_t words = (size_t)kv->block_size * kern_kv_words(kv) + offset;
	return (float *)(void *)(kern_kv_head(kv, array, block, head) + words * sizeof(u32));
}

/* The first word of a key; the following ones are block_size words apart. */
static inline u32 *kern_kv_key(const struct kern_kv *kv, size_t block, u32 head, u32 offset)
{
	return (u32 *)(void *)kern_kv_head(kv, kv->k, block, head) + offset;
}

static inline u32 *kern_kv_value(const struct kern_kv *kv, size_t block, u32 head, u32 offset)
{
	return (u32 *)(void *)kern_kv_head(kv, kv->v, block, head) + (size_t)offset * kern_kv_words(kv);
}

/* ---------------------------------------------------------------- values with scales */

/* FP8 E4M3 (OCP 8-bit floating point, revision 1.0: bias 7, no infinities, largest 448). */
static inline float kern_f8_to_float(u8 code)
{
	u32 exponent = code >> 3 & 15, mantissa = code & 7, bits;
	float f;
	if (exponent == 0)
		f = (float)mantissa * 0x1p-9f;
	else {
		bits = (code & 127) == 127 ? 0x7fc00000u : (exponent + 120) << 23 | mantissa << 20;
		memcpy(&f, &bits, 4);
	}
	return code & 128 ? -f : f;
}

/* To nearest, ties to even; what is larger than 448 becomes 448, a NaN stays one. */
static inline u8 kern_float_to_f8(float f)
{
	const float subnormals = 0x1p14f; /* a float this large counts in steps of 2^-9 */
	u32 bits, sign, code;
	memcpy(&bits, &f, 4);
	sign = bits >> 24 & 128;
	bits &= 0x7fffffffu;
	memcpy(&f, &bits, 4);
	if (bits > 0x7f800000u)
		return 127;
	if (f < 0x1p-6f) {
		f += subnormals;
		memcpy(&code, &f, 4);
		return (u8)(sign | (code & 15));
	}
	if (f > KERN_KV_F8_MAX)
		return (u8)(sign | 126);
	code = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3);
	return (u8)(sign | code);
}

static inline u8 kern_float_to_i8(float f)
{
	float limited = f > -KERN_KV_I8_MAX ? f : -KERN_KV_I8_MAX; /* NaN, too */
	limited = limited < KERN_KV_I8_MAX ? limited : KERN_KV_I8_MAX;
	/* Rounds to nearest even: floats near 1.5 * 2^23 are whole. */
	return (u8)((int)(limited + 0x1.8p23f - 0x1.8p23f) + KERN_KV_OFFSET);
}

/* Of a number that is no larger than KERN_KV_I16_MAX. */
static inline int16_t kern_float_to_i16(float f)
{
	return (int16_t)(f + 0x1.8p23f - 0x1.8p23f);
}

/* What the largest magnitude of a token's head is stored as. */
static inline float kern_kv_code_max(const struct kern_kv *kv)
{
	return kv->dtype == KERN_I8 ? KERN_KV_I8_MAX : kv->dtype == KERN_I16 ? KERN_KV_I16_MAX : KERN_KV_F8_MAX;
}

/* Value i of a token's head as stored. `stride`: words from one word to the next. */
static inline float kern_kv_stored(enum kern_dtype type, const u32 *words, size_t stride, u32 i)
{
	const u32 group = type == KERN_F32 ? 1 : type == KERN_BF16 || type == KERN_I16 ? 2 : 4;
	const void *word = words + (size_t)(i / group) * stride;
	if (type == KERN_I16) {
		int16_t whole;
		memcpy(&whole, (const int16_t *)word + i % group, sizeof(whole));
		return whole;
	}
	if (type == KERN_I8)
		return (float)(((const u8 *)word)[i % group] - KERN_KV_OFFSET);
	return type == KERN_F8E4M3 ? kern_f8_to_float(((const u8 *)word)[i % group]) : kern_load(word, type, i % group);
}

/* A token's head as stored values, times what it is to be multiplied by: the scale of types that have one, else 1.
 * `scale`: its place, or NULL. */
static inline void kern_kv_load(const struct kern_kv *kv, float *x, const u32 *words, size_t stride,
				const float *scale)
{
	const u32 dim = kv->head_dim;
	u32 i = 0;
	switch (kv->dtype) { /* the loop once a type, of which then nothing is asked within it */
	case KERN_F32:
		for (; i < dim; i++)
			x[i] = kern_kv_stored(KERN_F32, words, stride, i);
		break;
	case KERN_BF16:
		for (; i < dim; i++)
			x[i] = kern_kv_stored(KERN_BF16, words, stride, i);
		break;
	case KERN_I16:
		for (; i < dim; i++)
			x[i] = kern_kv_stored(KERN_I16, words, stride, i) * *scale;
		break;
	case KERN_I8:
		for (; i < dim; i++)
			x[i] = kern_kv_stored(KERN_I8, words, stride, i) * *scale;
		break;
	default:
		for (; i < dim; i++)
			x[i] = kern_kv_stored(KERN_F8E4M3, words, stride, i) * *scale;
	}
}

/* The largest magnitude in x; a NaN counts as nothing. */
static inline float kern_kv_largest(const float *x, u32 count)
{
	float largest = 0;
	for (u32 i = 0; i < count; i++) {
		float size = x[i] < 0 ? -x[i] : x[i];
		largest = size > largest ? size : largest;
	}
	return largest;
}

/* Whether all of x are numbers, and finite. */
static inline bool kern_kv_finite(const float *x, u32 count)
{
	float none = 0;
	for (u32 i = 0; i < count; i++)
		none += x[i] - x[i]; /* NaN for what is not */
	return none == 0;
}

/* Stores a token's head: its words, `stride` apart, and its scale. */
static inline void kern_kv_store(const struct kern_kv *kv, u32 *words, size_t stride, float *scale,
				 const float *x)
{
	float largest = 0, factor = 0;
	const bool lost = kv->dtype == KERN_I16 && !kern_kv_finite(x, kv->head_dim);
	if (kern_kv_is_quantized(kv)) {
		largest = kern_kv_largest(x, kv->head_dim);
		if (largest < KERN_KV_LEAST)
			largest = 0;
		factor = largest > 0 ? kern_kv_code_max(kv) / largest : 0;
		*scale = lost ? NAN : largest / kern_kv_code_max(kv);
	}
	for (u32 i = 0; i < kern_kv_words(kv) * kern_kv_group(kv); i++) {
		u32 *word = words + (size_t)(i / kern_kv_group(kv)) * stride, at = i % kern_kv_group(kv);
		float value = i < kv->head_dim ? x[i] : 0;
		if (kv->dtype == KERN_I8)
			((u8 *)word)[at] = kern_float_to_i8(value * factor);
		else if (kv->dtype == KERN_F8E4M3)
			((u8 *)word)[at] = kern_float_to_f8(value * factor);
		else if (kv->dtype == KERN_I16)
			((int16_t *)(void *)word)[at] = lost ? 0 : kern_float_to_i16(value * factor);
		else
			kern_store(word, kv->dtype, at, value);
	}
}

#endif
