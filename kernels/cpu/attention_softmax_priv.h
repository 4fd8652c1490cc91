/* The softmax step of attention: scores of a part become weights. Included by attention.c alone.
 *
 * The rows' largest scores come first, then what is done once for all rows, then their weights. A row's numbers do not depend
 * on its place among the others, nor on how many there are. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_SOFTMAX_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_SOFTMAX_PRIV_H

#include "kernels/cpu/attention_softmax_bf16_priv.h"
#include "kernels/cpu/attention_tile_priv.h"

#ifdef VEC_LANES

enum { SOFTMAX_SUMS = VEC_LANES == 16 ? 4 : 2 }; /* of a row, side by side: as many as there are registers for */

/* The factor that brings a largest magnitude to `most`, and what a unit then stands for. */
static float unit_factor(float largest, float most, float *unit)
{
	largest = largest < KERN_KV_LEAST ? 0 : largest;
	*unit = largest / most;
	return largest > 0 ? most / largest : 0;
}

/* Vectors of a row's scores in use: whole fours. What is too many is masked. */
static ALWAYS_INLINE u32 softmax_vecs(const struct tile *t)
{
	return kern_ceil(t->count, 4 * VEC_LANES) * 4;
}

/* Caps the scores of row r and masks those of keys that it does not see; returns the largest. */
static float row_mask(const struct tile *t, u32 r, u32 begin)
{
	float *s = t->scores + r * ATTENTION_PART;
	u32 vecs = softmax_vecs(t), end = begin + t->count;
	u32 from = t->of->first[r] <= begin ? 0 : kern_min(t->of->first[r], end) - begin;
	u32 to = t->of->last[r] < begin ? 0 : kern_min(t->of->last[r] + 1, end) - begin;
	vec best[4];
	for (u32 v = 0; v < vecs && t->a->soft_cap > 0; v++)
		vec_store(s + v * VEC_LANES, vec_soft_cap(vec_load(s + v * VEC_LANES), t->a->soft_cap));
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
	return vec_highest(vec_max(vec_max(best[0], best[1]), vec_max(best[2], best[3])));
}

/* Weights that were multiplied by their values' scales become whole numbers of 16 bits. 256 products of these
 * with an unsigned byte stay below 2^31. */
static void row_wholes(struct tile *t, u32 r, u32 vecs, float largest)
{
	const float *p = t->scores + r * ATTENTION_PART;
	int16_t *to = t->weights + r * ATTENTION_PART;
	vec factor = vec_set1(unit_factor(largest, I16_MAX, &t->part->weight_unit[r]));
	ivec sum = IVEC_BITS(setzero)();
	for (u32 v = 0; v < vecs; v++) {
		ivec whole = IVEC(cvtps_epi32)(vec_mul(vec_load(p + v * VEC_LANES), factor));
		sum = IVEC(add_epi32)(sum, whole);
		ivec_store_i16(to + v * VEC_LANES, whole);
	}
	t->part->weight_excess[r] = KERN_KV_OFFSET * ivec_sum(sum);
}

/* Weights of four vectors of values of 8 bits, from vector v on, by their scales. */
static ALWAYS_INLINE void weights_scale(const struct tile *t, u32 v, vec p[4])
{
	for (u32 i = 0; i < 4; i++, v++) {
		const float *scale = t->value_scales[v / GROUP_VECS] + v % GROUP_VECS * VEC_LANES;
		u32 at = v * VEC_LANES, left = t->count > at ? t->count - at : 0;
		p[i] = vec_mul(p[i], vec_load_n(scale, kern_min(left, VEC_LANES)));
	}
}

/* Scores of row r become weights e^(score - base), zero where the row sees no key, in the form that the type of the values
 * wants; returns their sum. */
static ALWAYS_INLINE float row_softmax(struct tile *t, u32 r, enum kern_dtype dtype)
{
	float *s = t->scores + r * ATTENTION_PART;
	const u32 vecs = softmax_vecs(t);
	const vec base = vec_set1(t->part->exp_base[r]);
	vec sum[4] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()}, largest = vec_zero(), p[4];
	for (u32 v = 0; v < vecs; v += 4) {
#pragma GCC unroll 4
		for (u32 i = 0; i < 4; i++)
			p[i] = vec_sub(vec_load(s + (v + i) * VEC_LANES), base);
		vec_exp_negatives(p);
#pragma GCC unroll 4
		for (u32 i = 0; i < 4; i++)
			sum[i % SOFTMAX_SUMS] = vec_add(sum[i % SOFTMAX_SUMS], p[i]);
		if (dtype == KERN_I8 || dtype == KERN_F8E4M3)
			weights_scale(t, v, p);
#pragma GCC unroll 4
		for (u32 i = 0; i < 4; i++) {
			if (dtype == KERN_I8)
				largest = vec_max(p[i], largest);
			if (dtype == KERN_F8E4M3)
				p[i] = vec_mul(p[i], vec_set1(F8_HALF_BIAS));
			vec_store(s + (v + i) * VEC_LANES, p[i]);
		}
	}
	if (dtype == KERN_I8)
		row_wholes(t, r, vecs, vec_highest(largest));
	return vec_sum(vec_add(vec_add(sum[0], sum[1]), vec_add(sum[2], sum[3])));
}

/* The rows' maxima, and what their earlier sums are to be multiplied by; then their weights and sums. */
static ALWAYS_INLINE void rows_softmax(struct tile *t, u32 begin, enum kern_dtype dtype)
{
	struct attention_rows *of = t->of;
	for (u32 r = 0; r < of->count; r++) {
		float highest = row_mask(t, r, begin), best = highest > of->best[r] ? highest : of->best[r];
		/* While a row has seen no key its maximum is -inf; any finite number in its place leaves zeros. */
		t->part->exp_base[r] = best > -INFINITY ? best : 0;
		t->part->rescale[r] = of->best[r] - t->part->exp_base[r];
		of->best[r] = best;
	}
	for (u32 r = of->count; r < ATTENTION_ROWS; r++)
		t->part->rescale[r] = 0;
	vec_store_n(t->part->rescale, vec_exp(vec_load_n(t->part->rescale, ATTENTION_ROWS)), ATTENTION_ROWS);
	for (u32 r = 0; r < of->count; r++)
		of->sum[r] = of->sum[r] * t->part->rescale[r] + row_softmax(t, r, dtype);
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
	if (dtype == KERN_F32)
		rows_softmax(t, begin, KERN_F32);
	else if (dtype == KERN_BF16)
		rows_softmax(t, begin, KERN_BF16);
	else if (dtype == KERN_I8)
		rows_softmax(t, begin, KERN_I8);
	else
		rows_softmax(t, begin, KERN_F8E4M3);
}

#endif

#endif
