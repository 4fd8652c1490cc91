/* Scores of attention by products of bfloat16, capped and masked, and the largest of every row: found while they are still in
 * registers, for nothing else multiplies while scores are read once more. Included by attention.c alone. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_SCORES_BF16_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_SCORES_BF16_PRIV_H

#include "kernels/cpu/attention_alibi_priv.h"
#include "kernels/cpu/attention_scores_priv.h"

#if defined(VEC_LANES) && ATTENTION_DOTS_BF16

/* `scores` of row r and vector v of the part: -inf where the row does not see the key. */
static ALWAYS_INLINE vec score_mask(const struct tile *t, u32 r, u32 v, vec scores)
{
	const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	const __m512i key = _mm512_add_epi32(lanes, _mm512_set1_epi32((int)(t->begin + v * VEC_LANES)));
	__mmask16 seen = _mm512_cmple_epu32_mask(key, _mm512_set1_epi32((int)t->of->last[r]));
	seen = _mm512_mask_cmpge_epu32_mask(seen, key, _mm512_set1_epi32((int)t->of->first[r]));
	return _mm512_mask_mov_ps(vec_set1(-INFINITY), seen, scores);
}

/* Whether all rows see all keys of `vecs` vectors from vector v on. First and last keys rise from row to row. */
static ALWAYS_INLINE bool scores_seen(const struct tile *t, u32 v, u32 rows, u32 vecs)
{
	const u32 key = t->begin + v * VEC_LANES;
	return key >= t->of->first[rows - 1] && key + vecs * VEC_LANES <= t->of->last[0] + 1;
}

/* Scores of `rows` rows and `vecs` vectors of keys, from vector `v0` on. */
static ALWAYS_INLINE void scores_block(const struct tile *t, u32 v0, u32 rows, u32 vecs, vec highest[ATTENTION_ROWS])
{
	vec sum[ATTENTION_ROWS][4];
	const struct score_cursor c = scores_begin(t, v0, vecs);
	const float *q = t->of->q; /* pairs of bf16 */
	FOR_SUMS(rows, vecs)
	sum[r][v] = vec_zero();
	for (u32 d = 0; d < t->words; d++, q += ATTENTION_ROWS) {
		scores_ahead(&c, vecs, d);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			__m512bh key = (__m512bh)_mm512_loadu_si512(c.key[v] + d * t->key_stride);
#pragma GCC unroll 8
			for (u32 r = 0; r < rows; r++)
				sum[r][v] = _mm512_dpbf16_ps(sum[r][v], key, (__m512bh)vec_set1(q[r]));
		}
	}
	if (!scores_seen(t, v0, rows, vecs) && t->a->soft_cap == 0) {
		FOR_SUMS(rows, vecs)
		sum[r][v] = score_mask(t, r, v0 + v, sum[r][v]);
	}
	FOR_SUMS(rows, vecs)
	{
		highest[r] = vec_max(highest[r], sum[r][v]);
		vec_store(scores_at(t, r, v0 + v), sum[r][v]);
	}
}

/* Caps the scores before they are masked: then the largest are to be found anew. */
static void scores_cap(struct tile *t, u32 vecs)
{
	for (u32 r = 0; r < t->of->count; r++) {
		vec highest = vec_set1(-INFINITY);
		for (u32 v = 0; v < vecs; v++) {
			vec capped = vec_soft_cap(vec_load(scores_at(t, r, v)), t->a->soft_cap);
			vec x = score_mask(t, r, v, vec_mul(capped, vec_set1(1 / score_unit(t->a))));
			highest = vec_max(highest, x);
			vec_store(scores_at(t, r, v), x);
		}
		vec_store(t->part->highest[r], highest);
	}
}

/* Lets scores that are masked fall with the distance of keys, which finds the largest anew, too. */
static void scores_fall(struct tile *t, u32 vecs)
{
	const float units = 1 / score_unit(t->a);
	for (u32 r = 0; r < t->of->count; r++) {
		vec highest = vec_set1(-INFINITY);
		alibi_add(t->a, t->of->at[r], t->of->last[r], t->begin, vecs * VEC_LANES, units, scores_at(t, r, 0));
		for (u32 v = 0; v < vecs; v++)
			highest = vec_max(highest, vec_load(scores_at(t, r, v)));
		vec_store(t->part->highest[r], highest);
	}
}

/* Scores of vectors [v, vecs) of the part, two at a time or four; fewer where these do: of a short prompt, rounding up is much. */
static ALWAYS_INLINE void scores_rows(struct tile *t, u32 rows, u32 v, u32 vecs, u32 side)
{
	vec highest[ATTENTION_ROWS];
	for (u32 r = 0; r < rows; r++)
		highest[r] = v == 0 ? vec_set1(-INFINITY) : vec_load(t->part->highest[r]);
	for (; vecs - v > side / 2; v += kern_min(side, vecs - v))
		scores_block(t, v, rows, side, highest);
	if (vecs - v == 1)
		scores_block(t, v, rows, 1, highest);
	else if (v < vecs)
		scores_block(t, v, rows, side / 2, highest);
	/* Weights are computed for two vectors at a time. */
	for (u32 r = 0; r < rows && vecs % 2 == 1; r++)
		vec_store(scores_at(t, r, vecs), vec_set1(-INFINITY));
	for (u32 r = 0; r < rows; r++)
		vec_store(t->part->highest[r], highest[r]);
}

#if !ATTENTION_TILES
static void part_scores_bf16(struct tile *t, u32 v, u32 vecs)
{
#define SCORES_ROWS(n) scores_rows(t, n, v, vecs, SCORE_VECS(n));
	FOR_ROWS(SCORES_ROWS)
	if (t->a->soft_cap > 0 && vecs * VEC_LANES >= t->count)
		scores_cap(t, vecs);
	if (t->a->slopes && vecs * VEC_LANES >= t->count)
		scores_fall(t, vecs);
}
#endif

#endif

#endif
