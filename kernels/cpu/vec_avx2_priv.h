/* Vectors of 8 floats, by AVX2 and FMA: a part of vec_priv.h, which is what to include. What has no comment here is said in
 * vec_avx512_priv.h. Empty where they are not enabled. */
#ifndef TERCET_KERNELS_CPU_VEC_AVX2_PRIV_H
#define TERCET_KERNELS_CPU_VEC_AVX2_PRIV_H

#include "kernels/kern_priv.h"

#if defined(__AVX2__) && defined(__FMA__)

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

#endif
