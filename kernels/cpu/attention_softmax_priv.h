/* The softmax step of attention: scores of a part become weights. Included by attention.c alone.
 *
 * The rows' largest scores come first, then what is done once for all rows, then their weights. A row's numbers do not depend
 * on its place among the others, nor on how many there are. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_SOFTMAX_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_SOFTMAX_PRIV_H

#include "kernels/cpu/attention_alibi_priv.h"
#include "kernels/cpu/attention_softmax_bf16_priv.h"
#include "kernels/cpu/attention_tile_priv.h"

#ifdef VEC_LANES

enum { SOFTMAX_SUMS = VEC_LANES == 16 ? 4 : 2 }; /* of a row, side by side: as many as there are registers for */

enum {
	WHOLES_SUM = ((1u << 31) - 1) / KERN_KV_I16_MAX,
	WHOLES_MOST = WHOLES_SUM - KERN_HEAD_DIM_MAX / 2 - 64, /* rounding adds a half to each of 1,024 numbers; and the sum is one of floats */
};

/* Of all rows: what brings numbers whose largest magnitude, and the sum of all, are these to whole ones of 16 bits, and what such a one then counts.
 * With `sums` the sum is bounded, too, for it multiplies numbers of KERN_I16; else the largest, by `most`. */
static ALWAYS_INLINE void wholes_factors(const float largest[ATTENTION_ROWS], const float sum[ATTENTION_ROWS], bool sums, float most,
					 float unit[ATTENTION_ROWS], float factor[ATTENTION_ROWS])
{
	const float all = sums ? WHOLES_MOST : most, shares = sums ? all / I16_MAX : 1;
	for (u32 r = 0; r < ATTENTION_ROWS; r++) {
		const float bound = largest[r] * shares;
		float own = sums && !(sum[r] <= bound) ? sum[r] : bound; /* NaN, too, which `unit` then is */
		own = own < KERN_KV_LEAST ? 0 : own;
		unit[r] = own / all;
		factor[r] = own > 0 ? all / own : 0;
	}
}

/* Vectors of a row's scores in use: whole fours. What is too many is masked. */
static ALWAYS_INLINE u32 softmax_vecs(const struct tile *t)
{
	return kern_ceil(t->count, 4 * VEC_LANES) * 4;
}

/* Caps the scores of row r and masks those of keys that it does not see; returns the largest, lane by lane. */
static vec row_mask(const struct tile *t, u32 r, u32 begin)
{
	float *s = t->scores + r * ATTENTION_PART;
	u32 vecs = softmax_vecs(t), end = begin + t->count;
	u32 from = t->of->first[r] <= begin ? 0 : kern_min(t->of->first[r], end) - begin;
	u32 to = t->of->last[r] < begin ? 0 : kern_min(t->of->last[r] + 1, end) - begin;
	vec best[4];
	for (u32 v = 0; v < vecs && t->a->soft_cap > 0; v++)
		vec_store(s + v * VEC_LANES, vec_soft_cap(vec_load(s + v * VEC_LANES), t->a->soft_cap));
	if (t->a->slopes)
		alibi_add(t->a, t->of->at[r], t->of->last[r], begin, vecs * VEC_LANES, 1, s);
	for (u32 i = 0; i < from; i++)
		s[i] = -INFINITY;
	for (u32 v = to / VEC_LANES; v < vecs; v++) {
		u32 seen = to > v * VEC_LANES ? to - v * VEC_LANES : 0;
		float *at = s + v * VEC_LANES;
		vec_store(at, vec_select_n(vec_load(at), vec_set1(-INFINITY), seen));
	}
	for (u32 i = 0; i < 4; i++)
		best[i] = vec_load(s + i * VEC_LANES);
	for (u32 v = 4; v < vecs; v += 4)
		for (u32 i = 0; i < 4; i++)
			best[i] = vec_max(best[i], vec_load(s + (v + i) * VEC_LANES));
	return vec_max(vec_max(best[0], best[1]), vec_max(best[2], best[3]));
}

/* x * scale, 0 for 0 even if the scale is no number. */
static ALWAYS_INLINE vec vec_times_scale(vec x, vec scale)
{
#if VEC_LANES == 16
	return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(x, vec_zero(), _CMP_NEQ_UQ), x, scale);
#else
	return _mm256_and_ps(_mm256_cmp_ps(x, vec_zero(), _CMP_NEQ_UQ), vec_mul(x, scale));
#endif
}

/* Weights of four vectors of values, from vector v on, by their scales. */
static ALWAYS_INLINE void weights_scale(const struct tile *t, u32 v, vec p[4])
{
	if (!t->finite) /* a key that is not seen may not be felt: its weight is 0, whatever the scale */
		for (u32 i = 0; i < 4; i++)
			p[i] = vec_times_scale(p[i], vec_load(t->scales[1] + (v + i) * VEC_LANES));
	else
#pragma GCC unroll 4
		for (u32 i = 0; i < 4; i++)
			p[i] = vec_mul(p[i], vec_load(t->scales[1] + (v + i) * VEC_LANES));
}

/* e^(score - base) of four vectors. */
static ALWAYS_INLINE void scores_exp(const float *s, vec base, vec p[4])
{
#pragma GCC unroll 4
	for (u32 i = 0; i < 4; i++)
		p[i] = vec_sub(vec_load(s + i * VEC_LANES), base);
	vec_exp_negatives(p);
}

/* Scores of row r become weights e^(score - base), zero where the row sees no key, in the form that the type of the values
 * wants; returns their sum. */
static ALWAYS_INLINE float row_softmax(struct tile *t, u32 r, enum kern_dtype dtype)
{
	float *s = t->scores + r * ATTENTION_PART;
	const u32 vecs = softmax_vecs(t);
	const vec base = vec_set1(t->part->exp_base[r]);
	vec sum[4] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()}, p[4];
	for (u32 v = 0; v < vecs; v += 4) {
		scores_exp(s + v * VEC_LANES, base, p);
#pragma GCC unroll 4
		for (u32 i = 0; i < 4; i++)
			sum[i % SOFTMAX_SUMS] = vec_add(sum[i % SOFTMAX_SUMS], p[i]);
		if (dtype == KERN_F8E4M3)
			weights_scale(t, v, p);
#pragma GCC unroll 4
		for (u32 i = 0; i < 4; i++) {
			if (dtype == KERN_F8E4M3)
				p[i] = vec_mul(p[i], vec_set1(F8_HALF_BIAS));
			vec_store(s + (v + i) * VEC_LANES, p[i]);
		}
	}
	return vec_sum(vec_add(vec_add(sum[0], sum[1]), vec_add(sum[2], sum[3])));
}

/* The rows' maxima, and what their earlier sums are to be multiplied by. */
static void rows_bases(struct tile *t, u32 begin)
{
	struct attention_rows *of = t->of;
	vec lanes[ATTENTION_ROWS];
	float highest[ATTENTION_ROWS];
	for (u32 r = 0; r < ATTENTION_ROWS; r++)
		lanes[r] = r < of->count ? row_mask(t, r, begin) : vec_zero();
	rows_highest(lanes, highest);
	for (u32 r = 0; r < of->count; r++) {
		float best = highest[r] > of->best[r] ? highest[r] : of->best[r];
		/* While a row has seen no key its maximum is -inf; any finite number in its place leaves zeros. */
		t->part->exp_base[r] = best > -INFINITY ? best : 0;
		t->part->rescale[r] = of->best[r] - t->part->exp_base[r];
		of->best[r] = best;
	}
	for (u32 r = of->count; r < ATTENTION_ROWS; r++)
		t->part->rescale[r] = 0;
	vec_store_n(t->part->rescale, vec_exp(vec_load_n(t->part->rescale, ATTENTION_ROWS)), ATTENTION_ROWS);
}

static ALWAYS_INLINE void rows_softmax(struct tile *t, u32 begin, enum kern_dtype dtype)
{
	struct attention_rows *of = t->of;
	rows_bases(t, begin);
	for (u32 r = 0; r < of->count; r++)
		of->sum[r] = of->sum[r] * t->part->rescale[r] + row_softmax(t, r, dtype);
}

/* Scores of row r become weights times the values' scales. Lane by lane: the weights' sum, and the sum and the largest of these. */
static ALWAYS_INLINE void row_weigh_scaled(const struct tile *t, u32 r, vec *sum_of, vec *scaled_of, vec *largest_of)
{
	float *s = t->scores + r * ATTENTION_PART;
	const u32 vecs = softmax_vecs(t);
	const vec base = vec_set1(t->part->exp_base[r]);
	vec sum[2] = {vec_zero(), vec_zero()}, scaled[2] = {vec_zero(), vec_zero()}, largest[2] = {vec_zero(), vec_zero()}, p[4];
	for (u32 v = 0; v < vecs; v += 4) {
		scores_exp(s + v * VEC_LANES, base, p);
#pragma GCC unroll 4
		for (u32 i = 0; i < 4; i++)
			sum[i % 2] = vec_add(sum[i % 2], p[i]);
		weights_scale(t, v, p);
#pragma GCC unroll 4
		for (u32 i = 0; i < 4; i++) {
			scaled[i % 2] = vec_add(scaled[i % 2], p[i]);
			largest[i % 2] = vec_max(p[i], largest[i % 2]);
			vec_store(s + (v + i) * VEC_LANES, p[i]);
		}
	}
	*sum_of = vec_add(sum[0], sum[1]);
	*scaled_of = vec_add(scaled[0], scaled[1]);
	*largest_of = vec_max(largest[0], largest[1]);
}

/* Row r's weights, times scales, become whole numbers; returns their sum, lane by lane, of 8-bit values. */
static ALWAYS_INLINE ivec row_wholes(const struct tile *t, u32 r, vec factor, bool sums)
{
	const float *p = t->scores + r * ATTENTION_PART;
	int16_t *to = t->weights + r * ATTENTION_PART;
	const u32 vecs = softmax_vecs(t);
	ivec sum = IVEC_BITS(setzero)();
	for (u32 v = 0; v < vecs; v += 2) {
		ivec wholes = vec_wholes(vec_mul(vec_load(p + v * VEC_LANES), factor), vec_mul(vec_load(p + (v + 1) * VEC_LANES), factor));
		IVEC_STORE(to + v * VEC_LANES, wholes);
		if (sums)
			ivec_add_dot16(&sum, wholes, IVEC(set1_epi16)(1));
	}
	return sum;
}

/* Beside values of whole numbers. What waits for a chain of steps is done for all rows at once. 256 products of 16 bits with an unsigned byte
 * stay below 2^31. */
static ALWAYS_INLINE void rows_softmax_wholes(struct tile *t, u32 begin, bool i8)
{
	struct attention_rows *of = t->of;
	const u32 count = of->count;
	vec sum[ATTENTION_ROWS], scaled[ATTENTION_ROWS], largest[ATTENTION_ROWS];
	float all[ATTENTION_ROWS], all_scaled[ATTENTION_ROWS], most[ATTENTION_ROWS], factor[ATTENTION_ROWS];
	rows_bases(t, begin);
	for (u32 r = 0; r < count; r++)
		row_weigh_scaled(t, r, &sum[r], &scaled[r], &largest[r]);
	for (u32 r = count; r < ATTENTION_ROWS; r++)
		sum[r] = scaled[r] = largest[r] = vec_zero();
	rows_sum(sum, all);
	rows_sum(scaled, all_scaled);
	rows_highest(largest, most);
	wholes_factors(most, all_scaled, !i8, I16_MAX, t->part->weight_unit, factor);
	for (u32 r = 0; r < count; r++) {
		of->sum[r] = of->sum[r] * t->part->rescale[r] + all[r];
		ivec wholes = row_wholes(t, r, vec_set1(factor[r]), i8);
		if (i8)
			t->part->weight_excess[r] = KERN_KV_OFFSET * ivec_sum(wholes);
	}
}

/* Asks for the values of row r's share of the part's groups: memory must not idle meanwhile. Once for all rows of
 * a KV head. */
static void softmax_ahead(const struct tile *t, u32 r)
{
	u32 groups = t->of->asks ? kern_ceil(t->count, GROUP) : 0;
	for (u32 g = groups * r / t->of->count; g < groups * (r + 1) / t->of->count && g >= AHEAD; g++)
		for (u32 line = 0; line < t->words; line++)
			__builtin_prefetch(t->values[g] + t->head_at + (size_t)line * LINE, 0, 2);
}

static void part_softmax(struct tile *t, u32 begin)
{
	enum kern_dtype dtype = t->a->kv.dtype;
	for (u32 r = 0; r < t->of->count; r++)
		softmax_ahead(t, r);
#if ATTENTION_DOTS_BF16
	if (dtype == KERN_BF16) {
		rows_softmax_bf16(t);
		return;
	}
#endif
	for (u32 r = 0; r < t->of->count && begin + t->count == t->of->end; r++)
		row_ahead(t, r);
	if (ATTENTION_IS(dtype, KERN_F32))
		rows_softmax(t, begin, KERN_F32);
	else if (ATTENTION_IS(dtype, KERN_BF16))
		rows_softmax(t, begin, KERN_BF16);
	else if (ATTENTION_IS(dtype, KERN_I8))
		rows_softmax_wholes(t, begin, true);
	else if (ATTENTION_IS(dtype, KERN_I16))
		rows_softmax_wholes(t, begin, false);
	else if (ATTENTION_IS(dtype, KERN_F8E4M3))
		rows_softmax(t, begin, KERN_F8E4M3);
}

#endif

#endif
