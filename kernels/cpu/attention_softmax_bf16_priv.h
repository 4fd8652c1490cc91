/* The softmax step of attention where weights are multiplied in bfloat16: all rows at work together, so that what is done
 * once for a row (its largest score, its sum, the factor of its earlier sums) is done once for all. Included by
 * attention.c alone.
 *
 * A row's numbers do not depend on its place among the others, nor on how many there are. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_SOFTMAX_BF16_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_SOFTMAX_BF16_PRIV_H

#include "kernels/cpu/attention_asks_priv.h"
#include "kernels/cpu/attention_tile_priv.h"

#if defined(VEC_LANES) && ATTENTION_DOTS_BF16

/* Weights are made of whole numbers, 32 at once: what a score is below its row's largest, y, counts SCORE_STEPS to an octave, and as many
 * steps has a binade of a bfloat16 with two bits more than it has. So 2^(-y / SCORE_STEPS) is 1 less y steps, if its mantissa were a
 * straight line, and less how far the line is above the power, which a table of 64 places of an octave knows. Beside rounding, whose error
 * has a root mean square of 1.66e-3, this costs as much as to make it 1.78e-3. No instruction takes a slot of the multipliers, where a
 * polynomial has three a vector of scores, and there are half as many in all. */
static const u16 line_above[2 * 32] = {
	2,  5,	8,  10, 13, 16, 18, 20, 22, 25, 26, 28, 30, 32, 33, 34, 36, 37, 38, 40, 40, 41, 42, 42, 43, 44, 44, 44, 44, 45, 45, 44,
	44, 44, 44, 43, 43, 42, 42, 41, 40, 39, 38, 37, 36, 35, 34, 32, 31, 30, 28, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9,  7,	 4,  2,
};

/* How far scores are below `base`, in steps, in the lower halves; 65,535 where it is more, and for what is not a number. */
static ALWAYS_INLINE __m512i steps_below(vec base, const float *scores)
{
	const vec magic = vec_set1(0x1p23f); /* added, it leaves the nearest whole number in the lowest bits */
	__m512i steps = (__m512i)vec_add(vec_sub(base, vec_load(scores)), magic);
	return _mm512_min_epu32(steps, _mm512_set1_epi32(0x4b000000 + 65535));
}

/* Row r's scores of 32 keys become weights in bfloat16: 1 for the largest, 0 for what is less than the least normal number. */
static ALWAYS_INLINE void row_weights(const struct tile *t, u32 r, u32 key)
{
	const vec base = vec_set1(t->part->exp_base[r]);
	const float *s = t->scores + r * ATTENTION_PART + key;
	__m512i even = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12,
					10, 8, 6, 4, 2, 0);
	__m512i y = _mm512_permutex2var_epi16(steps_below(base, s), even, steps_below(base, s + VEC_LANES));
	__m512i above = _mm512_permutex2var_epi16(IVEC_LOAD(line_above), _mm512_srli_epi16(y, 3), IVEC_LOAD(line_above + 32));
	__m512i bits = _mm512_subs_epu16(_mm512_set1_epi16((int16_t)(4 * 0x3f80 + 2)), y); /* 1, and a half of what is cut off */
	_mm512_storeu_si512(t->weights + r * ATTENTION_PART + key, _mm512_srli_epi16(_mm512_subs_epu16(bits, above), 2));
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
	vec less = vec_mul(_mm512_castps256_ps512(_mm256_sub_ps(before, base)), vec_set1(score_unit(t->a)));
	__m256 rescale = _mm512_castps512_ps256(vec_exp(less));
	_mm256_storeu_ps(t->part->exp_base, base);
	_mm256_storeu_ps(of->best, best);
	_mm256_storeu_ps(t->part->rescale, rescale);
	for (u32 r = 0; r < count; r++) {
		if (t->begin + t->count >= of->end)
			row_ahead(t, r);
		for (u32 key = 0; key < t->count && !weighs_beside(t); key += 2 * VEC_LANES) {
#if ATTENTION_TILES
			asks_go_on(t->asks);
#endif
			row_weights(t, r, key);
		}
	}
}

/* Adds the rows' weights, as they were rounded, to their sums; where these are the last, finds what outputs are multiplied by. */
static ALWAYS_INLINE void rows_sum_bf16(struct tile *t, u32 rows)
{
	struct attention_rows *of = t->of;
	const __mmask8 own = (__mmask8)((1u << rows) - 1);
	const __m512bh one = (__m512bh)_mm512_set1_epi32(0x3f803f80);
	vec lanes[ATTENTION_ROWS];
	for (u32 r = 0; r < ATTENTION_ROWS; r++)
		lanes[r] = vec_zero();
	for (u32 key = 0; key < t->count; key += 2 * VEC_LANES)
#pragma GCC unroll 8
		for (u32 r = 0; r < rows; r++)
			lanes[r] = _mm512_dpbf16_ps(
				lanes[r], (__m512bh)_mm512_loadu_si512(t->weights + r * ATTENTION_PART + key), one);
	__m256 sum = _mm256_maskz_loadu_ps(own, of->sum), rescale = _mm256_maskz_loadu_ps(own, t->part->rescale);
	sum = _mm256_fmadd_ps(sum, rescale, sum_of_eight(lanes));
	_mm256_storeu_ps(of->sum, sum);
	_mm256_storeu_ps(t->part->factor, _mm256_div_ps(_mm256_set1_ps(1), sum));
}

#endif

#endif
