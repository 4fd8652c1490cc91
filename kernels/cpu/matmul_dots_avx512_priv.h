/* Products of bytes and what they are made of, for few rows with weights in 8 and 4 bits: cpu/matmul_quantized.c, with VNNI and without. */
#ifndef TERCET_KERNELS_CPU_MATMUL_DOTS_AVX512_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_DOTS_AVX512_PRIV_H

#include "kernels/cpu/matmul_tile_priv.h"

#if defined(VEC_LANES) && VEC_LANES == 16

enum { VECS_OF_ONE = KERN_PANEL / VEC_LANES /* one row takes a panel: one stream of memory */ };

typedef __m512i ivec;
#define ivec_load(p)	 _mm512_loadu_si512(p)
#define ivec_set1_8(x)	 _mm512_set1_epi8(x)
#define ivec_set1_32(x)	 _mm512_set1_epi32(x)
#define ivec_and(a, b)	 _mm512_and_si512(a, b)
#define ivec_high4(a)	 _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15))
#define ivec_to_float(a) _mm512_cvtepi32_ps(a)
#define vec_load_f16(p)	 _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))

/* sum += 4 products of an unsigned and a signed byte in every lane. */
static ALWAYS_INLINE ivec dot_int4(ivec sum, ivec weights, ivec x)
{
#if defined(__AVX512VNNI__)
	return _mm512_dpbusd_epi32(sum, weights, x);
#else
	return _mm512_add_epi32(sum,
				_mm512_madd_epi16(_mm512_maddubs_epi16(weights, x), _mm512_set1_epi16(1)));
#endif
}

/* The same for weights above 127, whose products in pairs exceed 16 bits: they are taken as the even and the
 * odd bytes. */
static ALWAYS_INLINE ivec dot_int8(ivec sum, ivec weights, ivec x)
{
#if defined(__AVX512VNNI__)
	return _mm512_dpbusd_epi32(sum, weights, x);
#else
	ivec low = _mm512_set1_epi16(255);
	ivec even = _mm512_madd_epi16(_mm512_and_si512(weights, low),
				      _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8));
	ivec odd = _mm512_madd_epi16(_mm512_srli_epi16(weights, 8), _mm512_srai_epi16(x, 8));
	return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
#endif
}

static ALWAYS_INLINE ivec four_inputs(const char *x)
{
	i32 four;
	memcpy(&four, x, 4);
	return ivec_set1_32(four);
}

/* A unit of 8 values of every column, as bytes of the first 4 and of the others, times rows whose units of 4 inputs are `stride` words apart. */
static ALWAYS_INLINE void add_eight(u32 rows, u32 stride, u32 vecs, const ivec low[], const ivec high[], const char *x, ivec sum[][VECS_OF_ONE])
{
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++) {
		ivec first = four_inputs(x + r * 4);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			sum[r][v] = dot_int4(sum[r][v], low[v], first);
	}
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++) {
		ivec second = four_inputs(x + (stride + r) * 4);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			sum[r][v] = dot_int4(sum[r][v], high[v], second);
	}
}

static ALWAYS_INLINE const char *unit_of(const struct matmul_tile *t, const char *units, u32 v)
{
	return units + t->column * 4 + v * sizeof(ivec);
}

#endif
#endif
