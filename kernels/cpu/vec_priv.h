/* Vectors of floats for the variants: one source an op is compiled once for AVX2 (8 lanes) and once for
 * AVX-512 (16 lanes). Empty where neither is enabled. */
#ifndef TERCET_KERNELS_CPU_VEC_PRIV_H
#define TERCET_KERNELS_CPU_VEC_PRIV_H

#include "kernels/cpu/checked_priv.h"
#include "kernels/cpu/exp_terms_priv.h"
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

#elif defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

#define VEC_LANES 8
typedef __m256 vec;

static ALWAYS_INLINE vec vec_zero(void)
{
	return _mm256_setzero_ps();
}

static ALWAYS_INLINE vec vec_set1(float x)
{
	return _mm256_set1_ps(x);
}

static ALWAYS_INLINE vec vec_load(const float *p)
{
	return _mm256_loadu_ps(p);
}

static ALWAYS_INLINE void vec_store(float *p, vec v)
{
	_mm256_storeu_ps(p, v);
}

static ALWAYS_INLINE __m256i vec_mask(u32 n)
{
	return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* Masked moves are slow on some processors, and mostly all lanes are wanted. */
static ALWAYS_INLINE vec vec_load_n(const float *p, u32 n)
{
	return n == VEC_LANES ? vec_load(p) : _mm256_maskload_ps(p, vec_mask(n));
}

static ALWAYS_INLINE void vec_store_n(float *p, vec v, u32 n)
{
	if (n == VEC_LANES)
		vec_store(p, v);
	else
		_mm256_maskstore_ps(p, vec_mask(n), v);
}

static ALWAYS_INLINE vec vec_fma(vec a, vec b, vec c)
{
	return _mm256_fmadd_ps(a, b, c);
}

/* The compiler's own form of many side by side keeps some of the sums in memory. */
static ALWAYS_INLINE void vec_add_product(vec *sum, vec a, vec b)
{
	__asm__("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(a), "x"(b));
}

static ALWAYS_INLINE vec vec_add(vec a, vec b)
{
	return _mm256_add_ps(a, b);
}

static ALWAYS_INLINE vec vec_sub(vec a, vec b)
{
	return _mm256_sub_ps(a, b);
}

static ALWAYS_INLINE vec vec_mul(vec a, vec b)
{
	return _mm256_mul_ps(a, b);
}

static ALWAYS_INLINE vec vec_div(vec a, vec b)
{
	return _mm256_div_ps(a, b);
}

static ALWAYS_INLINE vec vec_max(vec a, vec b)
{
	return _mm256_max_ps(a, b);
}

static ALWAYS_INLINE vec vec_min(vec a, vec b)
{
	return _mm256_min_ps(a, b);
}

static ALWAYS_INLINE vec vec_abs(vec v)
{
	return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
}

static ALWAYS_INLINE vec vec_joined(__m256 lows_and_highs)
{
	return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(lows_and_highs), 0xd8));
}

/* Of the floats of a and then b every other one, from the first on, or from the second on. */
static ALWAYS_INLINE vec vec_even(vec a, vec b)
{
	return vec_joined(_mm256_shuffle_ps(a, b, 0x88));
}

static ALWAYS_INLINE vec vec_odd(vec a, vec b)
{
	return vec_joined(_mm256_shuffle_ps(a, b, 0xdd));
}

static ALWAYS_INLINE float vec_first(vec v)
{
	return _mm256_cvtss_f32(v);
}

static ALWAYS_INLINE float vec_sum(vec v)
{
	__m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
	s = _mm_add_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static ALWAYS_INLINE float vec_highest(vec v)
{
	__m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
	s = _mm_max_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static ALWAYS_INLINE vec vec_select_n(vec v, vec other, u32 n)
{
	return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(vec_mask(n)));
}

static ALWAYS_INLINE vec vec_round(vec v)
{
	return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static ALWAYS_INLINE vec vec_times_exp2(vec x, vec n)
{
	return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}

static ALWAYS_INLINE vec vec_pair_first(const void *pairs)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(pairs), 16));
}

static ALWAYS_INLINE vec vec_pair_second(const void *pairs)
{
	return _mm256_castsi256_ps(
		_mm256_and_si256(_mm256_loadu_si256(pairs), _mm256_set1_epi32((int)0xffff0000u)));
}

static ALWAYS_INLINE vec vec_load_bf16(const u16 *p)
{
	return _mm256_castsi256_ps(
		_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}

static ALWAYS_INLINE vec vec_load_bf16_n(const u16 *p, u32 n)
{
	u16 half[VEC_LANES] = {0};
	memcpy(half, p, n * sizeof(u16));
	return vec_load_bf16(half);
}

static ALWAYS_INLINE __m256i vec_bf16_below(vec v)
{
	__m256i bits = _mm256_castps_si256(v);
	__m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
	__m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
	__m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
	__m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
	return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}

static ALWAYS_INLINE void vec_store_bf16(u16 *p, vec v)
{
	__m256i all = vec_bf16_below(v);
	__m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(all, all), 0x88);
	_mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(packed));
}

static ALWAYS_INLINE void vec_store_bf16_pair(u16 *p, vec a, vec b)
{
	__m256i both = _mm256_packus_epi32(vec_bf16_below(a), vec_bf16_below(b));
	_mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(both, 0xd8));
}

static ALWAYS_INLINE void vec_store_bytes(u8 *p, __m256i words)
{
	__m128i half = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
	_mm_storel_epi64((__m128i *)(void *)p, _mm_packus_epi16(half, half));
}

static ALWAYS_INLINE void vec_store_f8(u8 *p, vec v)
{
	__m256i bits = _mm256_castps_si256(v);
	__m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(128));
	bits = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
	vec size = _mm256_castsi256_ps(bits);
	__m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
	__m256i whole = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7ffff)), odd);
	__m256i code = _mm256_sub_epi32(_mm256_srli_epi32(whole, 20), _mm256_set1_epi32(120 << 3));
	__m256i small = _mm256_and_si256(_mm256_castps_si256(_mm256_add_ps(size, _mm256_set1_ps(0x1p14f))),
					 _mm256_set1_epi32(15));
	__m256i is_small = _mm256_castps_si256(_mm256_cmp_ps(size, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ));
	vec_store_bytes(p, _mm256_or_si256(_mm256_blendv_epi8(code, small, is_small), sign));
}

static ALWAYS_INLINE void vec_store_i8(u8 *p, vec v, int offset)
{
	vec limited = _mm256_min_ps(_mm256_max_ps(v, _mm256_set1_ps(-127)), _mm256_set1_ps(127));
	vec_store_bytes(p, _mm256_add_epi32(_mm256_cvtps_epi32(limited), _mm256_set1_epi32(offset)));
}

static ALWAYS_INLINE __m256i vec_wholes(vec a, vec b)
{
	return _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b)), 0xd8);
}

static ALWAYS_INLINE void vec_store_wholes(int16_t *p, vec a, vec b)
{
	_mm256_storeu_si256((__m256i *)(void *)p, vec_wholes(a, b));
}

static ALWAYS_INLINE float vec_largest_bits(const float *x, u32 count)
{
	__m256i most = _mm256_setzero_si256();
	for (u32 i = 0; i < count; i += VEC_LANES)
		most = _mm256_max_epi32(most, _mm256_castps_si256(vec_abs(vec_load_n(x + i, count - i < VEC_LANES ? count - i : VEC_LANES))));
	__m128i s = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
	s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
	return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1))));
}

#endif

#ifdef VEC_LANES
/* sum[v] += *x times `vecs` vectors, 4 at most. Written out where there are 16 registers, all of which a tile takes: the compiler
 * would load one row's x before the last one's is used, and keep sums in memory for it. */
static ALWAYS_INLINE void vec_add_products(const float *x, const vec *of, u32 vecs, vec *sum)
{
#if VEC_LANES == 8
	vec all;
	if (vecs == 3) {
		__asm__("vbroadcastss %4, %3\n\tvfmadd231ps %5, %3, %0\n\tvfmadd231ps %6, %3, %1\n\tvfmadd231ps %7, %3, %2"
			: "+&x"(sum[0]), "+&x"(sum[1]), "+&x"(sum[2]), "=&x"(all)
			: "m"(*x), "x"(of[0]), "x"(of[1]), "x"(of[2]));
		return;
	}
	if (vecs == 2) {
		__asm__("vbroadcastss %3, %2\n\tvfmadd231ps %4, %2, %0\n\tvfmadd231ps %5, %2, %1"
			: "+&x"(sum[0]), "+&x"(sum[1]), "=&x"(all)
			: "m"(*x), "x"(of[0]), "x"(of[1]));
		return;
	}
#endif
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++)
		vec_add_product(&sum[v], vec_set1(*x), of[v]);
}

/* Cephes' expf: ln 2 in two parts, and the polynomial. */
static const float LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
static const float EXP_TERMS[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
				  4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};

/* e^x / 2^n for n = round(x / ln 2). */
static ALWAYS_INLINE vec vec_exp_fraction(vec x, vec n)
{
	vec r = vec_fma(n, vec_set1(-LN2_HIGH), x);
	r = vec_fma(n, vec_set1(-LN2_LOW), r);
	vec p = vec_set1(EXP_TERMS[0]);
#pragma GCC unroll 5
	for (u32 t = 1; t < COUNT_OF(EXP_TERMS); t++)
		p = vec_fma(p, r, vec_set1(EXP_TERMS[t]));
	return vec_add(vec_fma(vec_mul(p, r), r, r), vec_set1(1.0f));
}

/* e^x, relative error below 2e-7 for x in [-87, 88]; below that 0. Same operations in both widths. */
static ALWAYS_INLINE vec vec_exp(vec x)
{
	vec low = vec_set1(-87.0f), clamped = vec_min(vec_max(x, low), vec_set1(88.0f));
	vec n = vec_round(vec_mul(clamped, vec_set1(LOG2_E)));
	vec result = vec_times_exp2(vec_exp_fraction(clamped, n), n);
#if VEC_LANES == 16
	return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, low, _CMP_GE_OQ), result);
#else
	return _mm256_and_ps(_mm256_cmp_ps(x, low, _CMP_GE_OQ), result);
#endif
}

#if VEC_LANES == 8
#define VEC_ALL(x) {x, x, x, x, x, x, x, x}
#endif

/* x times 2 to the power of the whole number in the lowest bits of n, where that leaves a normal number. */
static ALWAYS_INLINE vec vec_times_low_bits(vec x, vec n)
{
#if VEC_LANES == 16
	return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(n), 23)));
#else
	return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(n), 23)));
#endif
}

/* x times 2 to the power of the whole number in the lowest bits of n, zero where n is no more than `least`. */
static ALWAYS_INLINE vec vec_times_low_bits_above(vec x, vec n, vec least)
{
#if VEC_LANES == 16
	__m512i power = _mm512_slli_epi32(_mm512_castps_si512(n), 23);
	return _mm512_castsi512_ps(
		_mm512_maskz_add_epi32(_mm512_cmp_ps_mask(n, least, _CMP_GT_OQ), _mm512_castps_si512(x), power));
#else
	return _mm256_and_ps(_mm256_cmp_ps(n, least, _CMP_GT_OQ), vec_times_low_bits(x, n));
#endif
}

/* x[i] becomes e^x[i] for x[i] <= 0: exactly 1 for 0, and 0 for what is below some -61, or no number. So small a weight is nothing beside
 * the 1 that there is, but with denormal ones a processor would take a hundred cycles each. The relative error is below 2e-7 + 1.4e-8 |x|.
 * Nothing is said of larger numbers. Step by step for all: what waits for a sum of one vector leaves no room in the processor's queues for
 * what does not. */
static ALWAYS_INLINE void vec_exp_negatives(vec x[4])
{
	vec whole[4], p[4];
#if VEC_LANES == 16
	const vec log2e = vec_set1(LOG2_E), least = vec_set1(EXP_LEAST), magic = vec_set1(0x1.8p23f), none = vec_set1(0x1.8p23f + EXP_LEAST_POWER);
#define EXP_TERM(c) vec_set1(EXP2_TERMS[c])
#else
	static const struct exp_constants {
		vec log2e, least, magic, none, coefficients[7];
	} constants = {
		VEC_ALL(LOG2_E),
		VEC_ALL(EXP_LEAST),
		VEC_ALL(0x1.8p23f), /* added, it leaves the nearest whole number in the lowest bits */
		VEC_ALL(0x1.8p23f + EXP_LEAST_POWER),
		{EXP2_LIST(VEC_ALL)},
	};
	const void *at = &constants;
	__asm__("" : "+r"(at)); /* or the compiler keeps them in registers, and vectors at work in memory */
	const struct exp_constants *k = at;
	const vec log2e = k->log2e, least = k->least, magic = k->magic, none = k->none;
#define EXP_TERM(c) k->coefficients[c]
#endif
#pragma GCC unroll 4
	for (u32 i = 0; i < 4; i++)
		x[i] = vec_max(x[i], least);
#pragma GCC unroll 4
	for (u32 i = 0; i < 4; i++)
		whole[i] = vec_fma(x[i], log2e, magic);
#pragma GCC unroll 4
	for (u32 i = 0; i < 4; i++) {
		x[i] = vec_fma(x[i], log2e, vec_sub(magic, whole[i]));
		p[i] = EXP_TERM(0);
	}
#pragma GCC unroll 8
	for (u32 c = 1; c < 7; c++)
#pragma GCC unroll 4
		for (u32 i = 0; i < 4; i++)
			p[i] = vec_fma(p[i], x[i], EXP_TERM(c));
#pragma GCC unroll 4
	for (u32 i = 0; i < 4; i++)
		x[i] = vec_times_low_bits_above(p[i], whole[i], none);
#undef EXP_TERM
}

/* 2^x for |x| <= 1/2, to 1.6e-7 of itself: exactly 1 for 0. */
static const float EXP2_FEW_TERMS[] = {1.3276472455e-3f, 9.6755409613e-3f, 5.5507130921e-2f, 2.4022120237e-1f, 6.9314694405e-1f, 1};

/* x[i] becomes 2^x[i], of `count` vectors side by side: one after the other they would wait for their own steps, for a core does not look
 * far enough ahead to find the next one's. Nor may the compiler put them so. What is below -126, or no number, counts as -126, what is above 126 as
 * that. The relative error is below 3e-7: with fewer steps than vec_exp's, for where 2^x is added to 1. */
enum { VECS_BESIDE = 8 };
#define EACH_BESIDE(i, count) _Pragma("GCC unroll 8") for (u32 i = 0; i < (count); i++)
#define STEP_ENDS(v, count)   EACH_BESIDE(i, count) __asm__("" : "+v"((v)[i]))
static ALWAYS_INLINE void vec_exp2_beside(vec *x, const u32 count)
{
	const vec magic = vec_set1(0x1.8p23f); /* added, it leaves the nearest whole number in the lowest bits */
	vec n[VECS_BESIDE], p[VECS_BESIDE];
	EACH_BESIDE(i, count) x[i] = vec_min(vec_max(x[i], vec_set1(-126)), vec_set1(126));
	STEP_ENDS(x, count);
	EACH_BESIDE(i, count) n[i] = vec_add(x[i], magic);
	STEP_ENDS(n, count);
	EACH_BESIDE(i, count) x[i] = vec_sub(x[i], vec_sub(n[i], magic));
	STEP_ENDS(x, count);
	EACH_BESIDE(i, count) p[i] = vec_set1(EXP2_FEW_TERMS[0]);
#pragma GCC unroll 5
	for (u32 t = 1; t < COUNT_OF(EXP2_FEW_TERMS); t++) {
		EACH_BESIDE(i, count) p[i] = vec_fma(p[i], x[i], vec_set1(EXP2_FEW_TERMS[t]));
		STEP_ENDS(p, count);
	}
	EACH_BESIDE(i, count) x[i] = vec_times_low_bits(p[i], n[i]);
	STEP_ENDS(x, count);
}

/* Where |x| < bound a, else b. */
static ALWAYS_INLINE vec vec_select_small(vec x, float bound, vec a, vec b)
{
#if VEC_LANES == 16
	return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(_mm512_abs_ps(x), vec_set1(bound), _CMP_LT_OQ), a);
#else
	const vec size = _mm256_andnot_ps(vec_set1(-0.0f), x);
	return _mm256_blendv_ps(b, a, _mm256_cmp_ps(size, vec_set1(bound), _CMP_LT_OQ));
#endif
}

/* cap * tanh(x / cap), to some 1e-6 of it: tanh(y) = 1 - 2 / (e^2y + 1), or where that takes 1 from about 1, far below the cap, the first terms of
 * its series. */
static ALWAYS_INLINE vec vec_soft_cap(vec x, float cap)
{
	const vec twice = vec_mul(x, vec_set1(2 / cap)), e = vec_exp(vec_min(twice, vec_set1(40))), square = vec_mul(twice, twice);
	const vec large = vec_mul(vec_sub(vec_set1(1), vec_div(vec_set1(2), vec_add(e, vec_set1(1)))), vec_set1(cap));
	vec p = vec_fma(vec_set1(62 / 2835.0f / 256), square, vec_set1(-17 / 315.0f / 64));
	p = vec_fma(p, square, vec_set1(2 / 15.0f / 16));
	p = vec_fma(p, square, vec_set1(-1 / 3.0f / 4));
	return vec_select_small(twice, 0.5f, vec_fma(vec_mul(p, square), x, x), large);
}
#endif

#endif
