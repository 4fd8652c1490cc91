/* What products with weights in 8 and 4 bits of few and of many rows share with AVX2, which has no products of bytes summed
 * up in 32 bits.
 *
 * Bytes times bytes summed up by twos exceed 16 bits, so weights and inputs in 8 bits become 16 bits wide. Products with weights
 * in 4 bits stay below 2^12 where they are summed up by twos: 8 such sums fit into 16 bits, and only these take the way to 32. */
#ifndef TERCET_KERNELS_CPU_MATMUL_QUANTIZED_AVX2_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_QUANTIZED_AVX2_PRIV_H

#include "kernels/cpu/rounding_priv.h"

#if defined(VEC_LANES) && VEC_LANES == 8

enum {
	NARROW_UNITS = 8,	  /* of 4 values in 4 bits whose sums 16 bits hold: 8 x 2 x 15 x 127 < 2^15 */
	QUANTIZED_ONE_PANELS = 4, /* of a tile of one row */
};

static ALWAYS_INLINE __m256i load(const char *p)
{
	return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static ALWAYS_INLINE void store(char *p, __m256i v)
{
	_mm256_storeu_si256((__m256i *)(void *)p, v);
}

static ALWAYS_INLINE vec load_f16(const char *halves)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)halves));
}

/* The 4 values of each unit as two pairs of 16 bits, (0, 2) and (1, 3), so that the even and the odd bytes of the weights are their partners. */
static ALWAYS_INLINE void widen(const signed char *q, u32 width, float *pairs)
{
#pragma GCC unroll 4
	for (u32 i = 0; i < width; i += 32, pairs += 16) {
		__m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)(q + i));
		__m256i even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), odd = _mm256_srai_epi16(bytes, 8);
		__m256i low = _mm256_unpacklo_epi32(even, odd), high = _mm256_unpackhi_epi32(even, odd);
		_mm256_storeu_si256((__m256i *)(void *)pairs, _mm256_permute2x128_si256(low, high, 0x20));
		_mm256_storeu_si256((__m256i *)(void *)(pairs + 8), _mm256_permute2x128_si256(low, high, 0x31));
	}
}

/* sum += 2 products in every lane of 32 bits. The compiler's own form of these keeps some sums in memory. */
static ALWAYS_INLINE void add_wide(__m256i *sum, __m256i weights, __m256i x)
{
	__m256i product;
	__asm__("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(*sum), "=&x"(product) : "x"(weights), "x"(x));
}

/* sum += 2 products of an unsigned and a signed byte in every lane of 16 bits. */
static ALWAYS_INLINE void add_narrow(__m256i *sum, __m256i weights, __m256i x)
{
	__m256i product;
	__asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(*sum), "=&x"(product) : "x"(weights), "x"(x));
}

/* One group of a row: its values rounded, as units of 4 bytes: pairs in 16 bits (8-bit weights) or 4 bytes. Returns their sum. */
static ALWAYS_INLINE i32 round_group(const float *from, struct rounding rounding, u32 width, bool int8, float *units)
{
	signed char q[KERN_GROUP_MAX];
	i32 sum = round_values(from, rounding.inverse, width, int8 ? q : (signed char *)units);
	if (int8)
		widen(q, width, units);
	return sum;
}

/* What the tiles take of that sum: for int8 the whole number that takes back the 128 added to the weights, for int4 the sum
 * itself, which zeros are multiplied by. */
static ALWAYS_INLINE void store_sum(char *to, bool int8, i32 sum)
{
	float value = (float)sum;
	sum *= -128;
	memcpy(to, int8 ? (void *)&sum : (void *)&value, 4);
}

/* Of a group of 8 columns; zeros times -1. */
struct group_scales {
	vec scale, zero;
};

static ALWAYS_INLINE struct group_scales load_scales(const char *group, u32 column, bool int4)
{
	if (!int4)
		return (struct group_scales){vec_load((const float *)(const void *)group + column), vec_zero()};
	return (struct group_scales){load_f16(group + column * 2),
				     vec_sub(vec_zero(), load_f16(group + (KERN_PANEL + column) * 2))};
}

/* total + scale * inputs' scale * (products of the group - zero * sum of the inputs). Of int8 the sum is among the products. */
static ALWAYS_INLINE vec add_scaled(vec total, __m256i products, const struct group_scales *of, const char *scale, const char *sum,
				    bool int4)
{
	vec value = _mm256_cvtepi32_ps(products);
	if (int4)
		value = vec_fma(of->zero, vec_set1(load_float(sum)), value);
	return vec_fma(value, vec_mul(of->scale, vec_set1(load_float(scale))), total);
}

#endif
#endif
