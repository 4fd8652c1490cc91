/* How inputs of products with weights in 8 and 4 bits are rounded, per token and group: one rule for all that multiply by
 * such weights, so that their sums are the same to the bit. For the files that compute them, one object per instruction
 * set. */
#ifndef TERCET_KERNELS_CPU_ROUNDING_PRIV_H
#define TERCET_KERNELS_CPU_ROUNDING_PRIV_H

#include <math.h>
#include <string.h>

#include "kernels/cpu/vec_priv.h"
#include "kernels/kern_priv.h"

#ifdef VEC_LANES

static ALWAYS_INLINE CHECKED_BY_CALLER i32 load_i32(const char *p)
{
	i32 x;
	memcpy(&x, p, 4);
	return x;
}

static ALWAYS_INLINE CHECKED_BY_CALLER float load_float(const char *p)
{
	float x;
	memcpy(&x, p, 4);
	return x;
}

/* The largest magnitude as bits of a float, in which what is no finite number is larger than all that are. */
static ALWAYS_INLINE u32 largest_bits(const float *x, u32 width)
{
#if VEC_LANES == 16
	__m512i sign = _mm512_set1_epi32(0x7fffffff), most = _mm512_setzero_si512();
#pragma GCC unroll 8
	for (u32 i = 0; i < width; i += 16)
		most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_castps_si512(vec_load(x + i)), sign));
	return _mm512_reduce_max_epu32(most);
#else
	__m256i sign = _mm256_set1_epi32(0x7fffffff), most = _mm256_setzero_si256();
#pragma GCC unroll 16
	for (u32 i = 0; i < width; i += 8)
		most = _mm256_max_epu32(most, _mm256_and_si256(_mm256_castps_si256(vec_load(x + i)), sign));
	__m128i four = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
	four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
	return (u32)_mm_cvtsi128_si32(_mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1)));
#endif
}

struct rounding {
	float inverse, scale;
};

/* Inputs' scales as the exponent's field of a float has them: the least one, to which what is smaller counts, and the largest one with which
 * sums may begin as floats, that weights' scales of 16 bits can be multiplied by in that field alone, and with an eighth. */
enum { POWER_LEAST = 127 - 96, POWER_MOST = 127 + 96, POWER_SHIFT = 23 };

/* Where weights have 4 bits: the least power of two by which the largest magnitude becomes no more than 127. Beside what
 * their own rounding costs, up to one bit of the inputs' eight is nothing; sums of groups then take no product more than the
 * one with the weights' scales. `bits`: of largest_bits, and finite. */
static ALWAYS_INLINE u32 power_of(u32 bits)
{
	u32 power = (bits + 0x10000) >> POWER_SHIFT; /* from 127.5 / 64 on what is rounded would be 128 */
	return power < POWER_LEAST + 6 ? POWER_LEAST : power - 6;
}

static ALWAYS_INLINE struct rounding rounding_by_power(const float *x, u32 width)
{
	u32 bits = largest_bits(x, width), power = power_of(bits), scale = power << POWER_SHIFT,
	    inverse = (254 - power) << POWER_SHIFT;
	struct rounding r = {0, NAN};
	if (bits >= 0x7f800000u)
		return r;
	memcpy(&r.inverse, &inverse, 4);
	memcpy(&r.scale, &scale, 4);
	return r;
}

/* Where weights have 8 bits: the least scale of 4 significant bits, 8 to 15 eighths of a power of two, by which the largest magnitude
 * becomes no more than 127. Products of weights' scales by the eighths can then serve many tokens. */
#define EIGHTHS_MOST 127.45f /* of what is rounded, with room for what the inverse is rounded to */
enum { EIGHTHS_SHIFT = POWER_SHIFT - 3 };

static ALWAYS_INLINE struct rounding rounding_by_eighths(const float *x, u32 width)
{
	const u32 rest = (1u << EIGHTHS_SHIFT) - 1, least = (u32)POWER_LEAST << POWER_SHIFT;
	u32 bits = largest_bits(x, width), scale;
	float share;
	struct rounding r = {0, NAN};
	if (bits >= 0x7f800000u)
		return r;
	memcpy(&share, &bits, 4);
	share *= 1 / EIGHTHS_MOST;
	memcpy(&scale, &share, 4);
	scale = (scale + rest) & ~rest;
	scale = scale < least ? least : scale;
	memcpy(&r.scale, &scale, 4);
	r.inverse = 1 / r.scale;
	return r;
}

#if VEC_LANES == 16
/* The intrinsic for it adds signed numbers. */
static ALWAYS_INLINE u32 sum_lanes(__m512i v)
{
	__m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
	__m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
	four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
	return (u32)_mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
#endif

/* Rounds to nearest even; returns the sum, which 16 bits hold. What is no finite number counts as -2^31 and may be any byte: such a group's
 * scale is NaN, so any sum will do that can be multiplied. */
static ALWAYS_INLINE i32 round_values(const float *x, float inverse, u32 width, signed char *q)
{
	u32 sum = 0;
#if VEC_LANES == 16
	__m512i sums = _mm512_setzero_si512();
#pragma GCC unroll 8
	for (u32 i = 0; i < width; i += 16) {
		__m512i whole = _mm512_cvtps_epi32(vec_mul(vec_load(x + i), vec_set1(inverse)));
		sums = _mm512_add_epi32(sums, whole);
		_mm_storeu_si128((__m128i *)(void *)(q + i), _mm512_cvtepi32_epi8(whole));
	}
	sum = sum_lanes(sums);
#else
	const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
	__m256i sums = _mm256_setzero_si256();
#pragma GCC unroll 4
	for (u32 i = 0; i < width; i += 32) {
		__m256i whole[4];
#pragma GCC unroll 4
		for (u32 v = 0; v < 4; v++) {
			whole[v] = _mm256_cvtps_epi32(vec_mul(vec_load(x + i + v * 8), vec_set1(inverse)));
			sums = _mm256_add_epi32(sums, whole[v]);
		}
		__m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
		_mm256_storeu_si256((__m256i *)(void *)(q + i), _mm256_permutevar8x32_epi32(bytes, order));
	}
	__m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
	four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
	sum = (u32)_mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
#endif
	return (int16_t)sum;
}

/* Values [k, k + width) of a row in the order of the weights, zeros behind the last; in `held` where they do not lie so. */
static inline const float *group_values(const struct kern_weight *w, const float *x, u32 k, u32 width, float *held)
{
	u32 count = kern_min(width, w->k - k);
	if (count == width && !w->order)
		return x + k;
	for (u32 i = 0; i < count && w->order; i++)
		held[i] = x[w->order[k + i]];
	if (!w->order)
		memcpy(held, x + k, count * sizeof(*x));
	memset(held + count, 0, (width - count) * sizeof(*x));
	return held;
}

#endif
#endif
