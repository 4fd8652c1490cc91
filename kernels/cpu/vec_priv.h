/* Vectors of floats for the variants: one source an op is compiled once for AVX2 (8 lanes, vec_avx2_priv.h) and once for
 * AVX-512 (16 lanes, vec_avx512_priv.h). Here is what both compute alike by these. Empty where neither is enabled. */
#ifndef TERCET_KERNELS_CPU_VEC_PRIV_H
#define TERCET_KERNELS_CPU_VEC_PRIV_H

#include "kernels/cpu/checked_priv.h"
#include "kernels/cpu/exp_terms_priv.h"
#include "kernels/cpu/vec_avx512_priv.h"
#include "kernels/kern_priv.h"

#ifndef VEC_LANES
#include "kernels/cpu/vec_avx2_priv.h"
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
