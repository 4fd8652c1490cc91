/* Vectors of 16 floats, by AVX-512: a part of vec_priv.h, which is what to include. Empty where that is not enabled. */
#ifndef TERCET_KERNELS_CPU_VEC_AVX512_PRIV_H
#define TERCET_KERNELS_CPU_VEC_AVX512_PRIV_H

#include "kernels/kern_priv.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include <immintrin.h>

#define VEC_LANES 16
typedef __m512 vec;

static ALWAYS_INLINE vec vec_zero(void)
{
	return _mm512_setzero_ps();
}

static ALWAYS_INLINE vec vec_set1(float x)
{
	return _mm512_set1_ps(x);
}

static ALWAYS_INLINE vec vec_load(const float *p)
{
	return _mm512_loadu_ps(p);
}

static ALWAYS_INLINE void vec_store(float *p, vec v)
{
	_mm512_storeu_ps(p, v);
}

static ALWAYS_INLINE __mmask16 vec_mask(u32 n)
{
	return (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1);
}

/* The first n lanes (n <= VEC_LANES), zeros behind; touches no memory behind them. */
static ALWAYS_INLINE vec vec_load_n(const float *p, u32 n)
{
	return _mm512_maskz_loadu_ps(vec_mask(n), p);
}

static ALWAYS_INLINE void vec_store_n(float *p, vec v, u32 n)
{
	_mm512_mask_storeu_ps(p, vec_mask(n), v);
}

/* a * b + c, rounded once */
static ALWAYS_INLINE vec vec_fma(vec a, vec b, vec c)
{
	return _mm512_fmadd_ps(a, b, c);
}

/* sum += a * b */
static ALWAYS_INLINE void vec_add_product(vec *sum, vec a, vec b)
{
	*sum = _mm512_fmadd_ps(a, b, *sum);
}

static ALWAYS_INLINE vec vec_add(vec a, vec b)
{
	return _mm512_add_ps(a, b);
}

static ALWAYS_INLINE vec vec_sub(vec a, vec b)
{
	return _mm512_sub_ps(a, b);
}

static ALWAYS_INLINE vec vec_mul(vec a, vec b)
{
	return _mm512_mul_ps(a, b);
}

static ALWAYS_INLINE vec vec_div(vec a, vec b)
{
	return _mm512_div_ps(a, b);
}

static ALWAYS_INLINE vec vec_max(vec a, vec b)
{
	return _mm512_max_ps(a, b);
}

static ALWAYS_INLINE vec vec_min(vec a, vec b)
{
	return _mm512_min_ps(a, b);
}

static ALWAYS_INLINE vec vec_abs(vec v)
{
	return _mm512_abs_ps(v);
}

/* Of the floats of a and then b every other one, from the first on, or from the second on. */
static ALWAYS_INLINE vec vec_even(vec a, vec b)
{
	return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
}

static ALWAYS_INLINE vec vec_odd(vec a, vec b)
{
	return _mm512_permutex2var_ps(a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
}

static ALWAYS_INLINE float vec_first(vec v)
{
	return _mm512_cvtss_f32(v);
}

static ALWAYS_INLINE float vec_sum(vec v)
{
	return _mm512_reduce_add_ps(v);
}

static ALWAYS_INLINE float vec_highest(vec v)
{
	return _mm512_reduce_max_ps(v);
}

/* Lanes below n keep `v`, the others become `other`. */
static ALWAYS_INLINE vec vec_select_n(vec v, vec other, u32 n)
{
	return _mm512_mask_blend_ps(vec_mask(n), other, v);
}

static ALWAYS_INLINE vec vec_round(vec v)
{
	return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* x * 2^n for whole n in [-126, 127]; x and the product are normal numbers */
static ALWAYS_INLINE vec vec_times_exp2(vec x, vec n)
{
	return _mm512_mul_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23)));
}

/* VEC_LANES pairs of bf16: the first and the second of each, widened. */
static ALWAYS_INLINE vec vec_pair_first(const void *pairs)
{
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(pairs), 16));
}

static ALWAYS_INLINE vec vec_pair_second(const void *pairs)
{
	return _mm512_castsi512_ps(
		_mm512_and_si512(_mm512_loadu_si512(pairs), _mm512_set1_epi32((int)0xffff0000u)));
}

/* VEC_LANES bf16 in order, widened. */
static ALWAYS_INLINE vec vec_load_bf16(const u16 *p)
{
	return _mm512_castsi512_ps(
		_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16));
}

/* The first n of them, zeros behind. */
static ALWAYS_INLINE vec vec_load_bf16_n(const u16 *p, u32 n)
{
	__m256i half = _mm256_maskz_loadu_epi16(vec_mask(n), p);
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Rounded to nearest even in the upper halves, as kern_float_to_bf16; the lower ones are of no use. */
static ALWAYS_INLINE __m512i vec_bf16_above(vec v)
{
	__m512i bits = _mm512_castps_si512(v), half = _mm512_set1_epi32(0x7fff);
	__mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000)), nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
	__m512i rounded = _mm512_mask_add_epi32(_mm512_add_epi32(bits, half), odd, bits, _mm512_set1_epi32(0x8000));
	return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
}

static ALWAYS_INLINE void vec_store_bf16(u16 *p, vec v)
{
	_mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(vec_bf16_above(v), 16)));
}

/* Of a, and then of b. */
static ALWAYS_INLINE void vec_store_bf16_pair(u16 *p, vec a, vec b)
{
	const __m512i upper = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23, 21,
					       19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
	_mm512_storeu_si512(p, _mm512_permutex2var_epi16(vec_bf16_above(a), upper, vec_bf16_above(b)));
}

/* Codes of FP8 E4M3 as kern_float_to_f8, but for what is above 448 or NaN. */
static ALWAYS_INLINE void vec_store_f8(u8 *p, vec v)
{
	__m512i bits = _mm512_castps_si512(v);
	__m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(128));
	bits = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
	vec size = _mm512_castsi512_ps(bits);
	__m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
	__m512i whole = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7ffff)), odd);
	__m512i code = _mm512_sub_epi32(_mm512_srli_epi32(whole, 20), _mm512_set1_epi32(120 << 3));
	__m512i small = _mm512_and_si512(_mm512_castps_si512(_mm512_add_ps(size, _mm512_set1_ps(0x1p14f))),
					 _mm512_set1_epi32(15));
	code = _mm512_mask_mov_epi32(code, _mm512_cmp_ps_mask(size, _mm512_set1_ps(0x1p-6f), _CMP_LT_OQ),
				     small);
	_mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(_mm512_or_si512(code, sign)));
}

/* Whole numbers in [-127, 127], to nearest even, plus `offset`, as bytes. */
static ALWAYS_INLINE void vec_store_i8(u8 *p, vec v, int offset)
{
	vec limited = _mm512_min_ps(_mm512_max_ps(v, _mm512_set1_ps(-127)), _mm512_set1_ps(127));
	__m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(limited), _mm512_set1_epi32(offset));
	_mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(whole));
}

/* The floats of a and then b, rounded to nearest, as numbers of 16 bits, saturated. */
static ALWAYS_INLINE __m512i vec_wholes(vec a, vec b)
{
	const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
	return _mm512_permutexvar_epi64(order, _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b)));
}

static ALWAYS_INLINE void vec_store_wholes(int16_t *p, vec a, vec b)
{
	_mm512_storeu_si512(p, vec_wholes(a, b));
}

/* The largest of the bits of |x|, as the float that they are. */
static ALWAYS_INLINE float vec_largest_bits(const float *x, u32 count)
{
	__m512i most = _mm512_setzero_si512();
	for (u32 i = 0; i < count; i += VEC_LANES)
		most = _mm512_max_epu32(most, (__m512i)vec_abs(vec_load_n(x + i, count - i < VEC_LANES ? count - i : VEC_LANES)));
	u32 bits = _mm512_reduce_max_epu32(most);
	float largest;
	memcpy(&largest, &bits, sizeof(largest));
	return largest;
}

#endif

#endif
