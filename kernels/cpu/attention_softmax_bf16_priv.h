/* The softmax step of attention where weights are multiplied in bfloat16: all rows at work together, so that what is done
 * once for a row (its largest score, its sum, the factor of its earlier sums) is done once for all. Included by
 * attention.c alone.
 *
 * A row's numbers do not depend on its place among the others, nor on how many there are. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_SOFTMAX_BF16_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_SOFTMAX_BF16_PRIV_H

#include "kernels/cpu/attention_tile_priv.h"

#if defined(VEC_LANES) && ATTENTION_DOTS_BF16

/* The lanes of each of 8 vectors put together: added, or the largest. */
#define REDUCE_EIGHT(name, op)                                                                                        \
	static ALWAYS_INLINE __m256 name(const vec rows[ATTENTION_ROWS])                                               \
	{                                                                                                              \
		const __m512i order = _mm512_castsi256_si512(_mm256_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13));               \
		vec pair[4], four[2], all;                                                                             \
		_Pragma("GCC unroll 4") for (u32 i = 0; i < 4; i++)                                                    \
			pair[i] = op(_mm512_shuffle_f32x4(rows[2 * i], rows[2 * i + 1], 0x44),                         \
				     _mm512_shuffle_f32x4(rows[2 * i], rows[2 * i + 1], 0xee));                        \
		_Pragma("GCC unroll 2") for (u32 i = 0; i < 2; i++) /* a lane of 128 bits is a row */                  \
			four[i] = op(_mm512_shuffle_f32x4(pair[2 * i], pair[2 * i + 1], 0x88),                         \
				     _mm512_shuffle_f32x4(pair[2 * i], pair[2 * i + 1], 0xdd));                        \
		all = op(_mm512_unpacklo_ps(four[0], four[1]), _mm512_unpackhi_ps(four[0], four[1]));                  \
		all = op(all, _mm512_permute_ps(all, 0x4e));                                                           \
		return _mm512_castps512_ps256(_mm512_permutexvar_ps(order, all));                                      \
	}
REDUCE_EIGHT(highest_of_eight, vec_max)
REDUCE_EIGHT(sum_of_eight, vec_add)

/* 2^x for x <= 0, to 1e-4, a fortieth of what rounding to bfloat16 may cost; exactly 1 for 0 and zero for x <= -127. Nothing but
 * the polynomial takes slots of the multipliers, which comparisons would, too, and on Zen 5 VSCALEFPS. */
static ALWAYS_INLINE vec exp2_negative(vec x)
{
	const vec magic = vec_set1(0x1.8p23f); /* added, it leaves the nearest whole number in the lowest bits */
	/* The larger of two negative numbers is the smaller of their bits; unlike VMAXPS every port computes that. */
	x = (vec)_mm512_min_epu32((__m512i)x, (__m512i)vec_set1(-127));
	vec whole = vec_add(x, magic), f = vec_sub(x, vec_sub(whole, magic));
	vec p = vec_fma(vec_set1(0.05500893294811249f), f, vec_set1(0.2422109693288803f));
	p = vec_fma(p, f, vec_set1(0.6932829022407532f));
	p = vec_fma(p, f, vec_set1(1));
	return (vec)_mm512_add_epi32((__m512i)p, _mm512_slli_epi32((__m512i)whole, 23));
}

/* Row r's scores of 32 keys become weights e^(score - base) in bfloat16. */
static ALWAYS_INLINE void row_weights(const struct tile *t, u32 r, u32 key)
{
	const vec log2e = vec_set1(1.44269504088896341f), base = vec_set1(t->part->exp_base[r]);
	const float *s = t->scores + r * ATTENTION_PART + key;
	/* Not one product with a sum: the base's would be rounded, and the weights of each part be off by a factor of its own. */
	vec low = exp2_negative(vec_mul(vec_sub(vec_load(s), base), log2e));
	vec high = exp2_negative(vec_mul(vec_sub(vec_load(s + VEC_LANES), base), log2e));
	_mm512_storeu_si512(t->weights + r * ATTENTION_PART + key, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* The rows' maxima, and what their earlier sums are to be multiplied by. Scores become weights, zero where a row sees no key,
 * unless that is done beside the products of the values. */
static ALWAYS_INLINE void rows_softmax_bf16(struct tile *t)
{
	struct attention_rows *of = t->of;
	const u32 count = of->count;
	const __mmask8 own = (__mmask8)((1u << count) - 1);
	vec lanes[ATTENTION_ROWS];
	for (u32 r = 0; r < ATTENTION_ROWS; r++)
		lanes[r] = r < count ? vec_load(t->part->highest[r]) : vec_zero();
	const __m256 before = _mm256_maskz_loadu_ps(own, of->best), none = _mm256_set1_ps(-INFINITY);
	__m256 best = _mm256_max_ps(highest_of_eight(lanes), before);
	/* While a row has seen no key its maximum is -inf; any finite number in its place leaves zeros. */
	__m256 base = _mm256_maskz_mov_ps(_mm256_cmp_ps_mask(best, none, _CMP_NEQ_OQ), best);
	__m256 rescale = _mm512_castps512_ps256(vec_exp(_mm512_castps256_ps512(_mm256_sub_ps(before, base))));
	_mm256_storeu_ps(t->part->exp_base, base);
	_mm256_storeu_ps(of->best, best);
	_mm256_storeu_ps(t->part->rescale, rescale);
	for (u32 r = 0; r < count; r++) {
		if (t->begin + t->count == of->end)
			row_ahead(t, r);
		for (u32 key = 0; key < t->count && !weighs_beside(t); key += 2 * VEC_LANES)
			row_weights(t, r, key);
	}
}

/* Adds the rows' weights, as they were rounded, to their sums; where these are the last, finds what outputs are multiplied by. */
static ALWAYS_INLINE void rows_sum_bf16(struct tile *t)
{
	struct attention_rows *of = t->of;
	const u32 count = of->count;
	const __mmask8 own = (__mmask8)((1u << count) - 1);
	const __m512bh one = (__m512bh)_mm512_set1_epi32(0x3f803f80);
	vec lanes[ATTENTION_ROWS];
	for (u32 r = 0; r < ATTENTION_ROWS; r++)
		lanes[r] = vec_zero();
	for (u32 r = 0; r < count; r++)
		for (u32 key = 0; key < t->count; key += 2 * VEC_LANES)
			lanes[r] = _mm512_dpbf16_ps(
				lanes[r], (__m512bh)_mm512_loadu_si512(t->weights + r * ATTENTION_PART + key), one);
	__m256 sum = _mm256_maskz_loadu_ps(own, of->sum), rescale = _mm256_maskz_loadu_ps(own, t->part->rescale);
	sum = _mm256_fmadd_ps(sum, rescale, sum_of_eight(lanes));
	_mm256_storeu_ps(of->sum, sum);
	_mm256_storeu_ps(t->part->factor, _mm256_div_ps(_mm256_set1_ps(1), sum));
}

#endif

#endif
