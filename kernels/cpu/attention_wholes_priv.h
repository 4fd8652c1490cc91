/* Queries as whole numbers, and attention over keys and values in 16 bits with a scale each (KERN_I16): queries become whole numbers of a unit of their own, softmax weights
 * times the values' scales of a unit of their row and part, so that all products are of pairs of 16-bit numbers and sums exact. Included by
 * attention.c alone.
 *
 * Sums stay below 2^31: what is stored is KERN_KV_I16_MAX at most, and the magnitudes of what multiplies it add up to WHOLES_MOST at most,
 * whatever they are rounded to. That leaves a weight that is one of 256 alike 9 bits, a query's number of 64 alike 11. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_WHOLES_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_WHOLES_PRIV_H

#include "kernels/cpu/attention_scores_priv.h"
#include "kernels/cpu/attention_softmax_priv.h"
#include "kernels/cpu/attention_values_priv.h"
#include "kernels/cpu/lace_units_priv.h"

#ifdef VEC_LANES

/* VEC_LANES dimensions of a query, scaled, from d on; zeros behind its end. `whole`: there are whole pairs of vectors. */
static ALWAYS_INLINE vec query_vec(const float *q, u32 d, u32 dim, vec scale, bool whole)
{
	if (whole)
		return vec_mul(vec_load(q + d), scale);
	return d < dim ? vec_mul(vec_load_n(q + d, kern_min(dim - d, VEC_LANES)), scale) : vec_zero();
}

/* Two vectors of each of four rows, pairs of neighbouring dimensions as keys have them, the rows' side by side. */
static ALWAYS_INLINE void lace_wholes(const ivec row[4], float *to)
{
#if VEC_LANES == 16
	lace_store(row, (char *)to, ATTENTION_ROWS, LACE_UNITS);
#else
	_Alignas(32) float units[4][VEC_LANES];
	for (u32 i = 0; i < 4; i++)
		vec_store(units[i], IVEC_FLOAT(row[i]));
	lace_four(units[0], VEC_LANES, ATTENTION_ROWS, to);
	lace_four(units[0] + 4, VEC_LANES, ATTENTION_ROWS, to + 4 * ATTENTION_ROWS);
#endif
}

/* `whole` as above; `i8`: for keys in 8 bits, whose pairs are dimensions 0 and 2, then 1 and 3 of four. */
static ALWAYS_INLINE void queries_wholes(struct tile *t, bool whole, bool i8)
{
	const u32 dim = t->a->kv.head_dim, count = t->of->count;
	const vec scale = vec_set1(t->a->scale);
	const float *q[ATTENTION_ROWS]; /* what is no row of theirs repeats the last one and is never read */
	float most[ATTENTION_ROWS], all[ATTENTION_ROWS], factor[ATTENTION_ROWS];
	vec largest[ATTENTION_ROWS], sum[ATTENTION_ROWS];
	ivec wholes[ATTENTION_ROWS];
	for (u32 r = 0; r < ATTENTION_ROWS; r++) {
		vec own[2] = {vec_zero(), vec_zero()};
		q[r] = t->a->q + t->of->at[kern_min(r, count - 1)];
		for (u32 d = 0; d < dim && r < count; d += VEC_LANES) {
			vec size = vec_abs(query_vec(q[r], d, dim, scale, whole));
			own[0] = vec_max(size, own[0]);
			own[1] = vec_add(own[1], size);
		}
		largest[r] = own[0];
		sum[r] = own[1];
		wholes[r] = IVEC_BITS(setzero)();
	}
	rows_highest(largest, most);
	rows_sum(sum, all);
	/* Sums of products with bytes of at most 127 stay below 2^31. */
	wholes_factors(most, all, !i8, dim <= 512 ? I16_MAX : I16_MAX / 2, t->of->q_unit, factor);
	for (u32 r = 0; r < count; r += 4)
		for (u32 d = 0; d < dim; d += 2 * VEC_LANES) {
			ivec row[4];
#pragma GCC unroll 4
			for (u32 i = 0; i < 4; i++) {
				const vec by = vec_set1(factor[r + i]);
				row[i] = vec_wholes(vec_mul(query_vec(q[r + i], d, dim, scale, whole), by),
						    vec_mul(query_vec(q[r + i], d + VEC_LANES, dim, scale, whole), by));
				if (i8) {
					ivec_add_dot16(&wholes[r + i], row[i], IVEC(set1_epi16)(1));
					row[i] = IVEC(shufflehi_epi16)(IVEC(shufflelo_epi16)(row[i], 0xd8), 0xd8);
				}
			}
			lace_wholes(row, t->of->q + (size_t)d / 2 * ATTENTION_ROWS + r);
		}
	for (u32 r = 0; r < count && i8; r++)
		t->of->q_excess[r] = KERN_KV_OFFSET * ivec_sum(wholes[r]);
}

static void queries_i16(struct tile *t)
{
	if (t->a->kv.head_dim % (2 * VEC_LANES) == 0)
		queries_wholes(t, true, false);
	else
		queries_wholes(t, false, false);
}

static void queries_i8(struct tile *t)
{
	if (t->a->kv.head_dim % (2 * VEC_LANES) == 0)
		queries_wholes(t, true, true);
	else
		queries_wholes(t, false, true);
}

/* Scores of `rows` rows and `vecs` vectors of keys, from vector `v0` on. */
static ALWAYS_INLINE void scores_i16(const struct tile *t, u32 v0, u32 rows, u32 vecs)
{
	ivec sum[ATTENTION_ROWS][4];
	const struct score_cursor c = scores_begin(t, v0, vecs);
	const int *q = (const int *)(const void *)t->of->q;
	const size_t stride = t->key_stride;
	const u32 words = t->words;
	const bool asks = t->of->asks; /* the other rows of the KV head find them in the caches */
	size_t at = 0;
	FOR_SUMS(rows, vecs)
	sum[r][v] = IVEC_BITS(setzero)();
	for (u32 d = 0; d < words; d++, at += stride, q += ATTENTION_ROWS) {
		ivec key[4];
		if (asks)
			scores_ahead(&c, vecs, d);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			key[v] = IVEC_LOAD(c.key[v] + at);
#pragma GCC unroll 8
		for (u32 r = 0; r < rows; r++) {
			const ivec pair = IVEC(set1_epi32)(q[r]);
#pragma GCC unroll 4
			for (u32 v = 0; v < vecs; v++)
				ivec_add_dot16(&sum[r][v], key[v], pair);
		}
	}
	scores_of_wholes(t, v0, rows, vecs, sum);
}

static inline void part_scores_i16(const struct tile *t)
{
	u32 vecs = kern_ceil(t->count, GROUP) * GROUP_VECS;
#define SCORES_I16(n) SCORES(scores_i16, TILED(n), SCORE_VECS(n))
	FOR_ROWS(SCORES_I16)
}

/* Products of a pair of keys' values with the rows' pairs of weights, at `weights` that of the first. `blocks` times two vectors of
 * dimensions, of which the last has `bytes` of each value. */
static ALWAYS_INLINE void wholes_add(ivec sum[ATTENTION_ROWS][4], const char *one, const char *two, const char *weights, u32 rows, u32 blocks,
				     u32 bytes)
{
	ivec pair[4];
#pragma GCC unroll 2
	for (u32 b = 0; b < blocks; b++) {
		ivec x = bytes < sizeof(ivec) ? ivec_load_bytes(one, bytes) : IVEC_LOAD(one + b * sizeof(ivec));
		ivec y = bytes < sizeof(ivec) ? ivec_load_bytes(two, bytes) : IVEC_LOAD(two + b * sizeof(ivec));
		pair[2 * b] = IVEC(unpacklo_epi16)(x, y);
		pair[2 * b + 1] = IVEC(unpackhi_epi16)(x, y);
	}
#pragma GCC unroll 8
	for (u32 r = 0; r < rows; r++) {
		i32 both;
		memcpy(&both, weights + r * ATTENTION_PART * sizeof(int16_t), sizeof(both));
		const ivec weight = IVEC(set1_epi32)(both);
#pragma GCC unroll 4
		for (u32 v = 0; v < 2 * blocks; v++)
			ivec_add_dot16(&sum[r][v], pair[v], weight);
	}
}

/* All keys of the part times all rows, `blocks` times two vectors of dimensions from d0 on, of which the last has `bytes` of each value; then the
 * rows' earlier sums are brought to their present maxima, and these added. */
static ALWAYS_INLINE void wholes_part(const struct tile *t, u32 d0, u32 rows, u32 blocks, u32 bytes)
{
	ivec sum[ATTENTION_ROWS][4];
	const size_t stride = t->value_bytes;
	const u32 width = t->lane.width, count = t->count;
	const bool asks = d0 == 0 && t->of->asks; /* the other rows of the KV head find them in the caches */
	const char *weights = (const char *)t->weights, *one = NULL;
	float *acc = t->of->acc + d0;
	FOR_SUMS_OF(rows, 2 * blocks)
	sum[r][v] = IVEC_BITS(setzero)();
	for (u32 i = 0; i < count; i += 2, one += 2 * stride, weights += 2 * sizeof(int16_t)) {
		if (i % GROUP == 0)
			one = t->values[i / GROUP] + t->head_at + d0 * sizeof(int16_t);
		if (asks && i % 4 == 0)
			values_ahead(t, i);
		wholes_add(sum, one, value_next(t, i, one), weights, rows, blocks, bytes);
	}
#pragma GCC unroll 8
	for (u32 r = 0; r < rows; r++) {
		const vec unit = vec_set1(t->part->weight_unit[r]), rescale = vec_set1(t->part->rescale[r]);
#pragma GCC unroll 4
		for (u32 v = 0; v < 2 * blocks; v++) {
			float *to = acc + (size_t)r * width + v * VEC_LANES;
			vec before = t->of->fresh ? vec_zero() : vec_mul(vec_load(to), rescale);
			vec_store(to, vec_fma(IVEC(cvtepi32_ps)(sum[r][v]), unit, before));
		}
	}
}

static ALWAYS_INLINE void wholes_dims(const struct tile *t, u32 rows)
{
	enum { DIMS = 2 * VEC_LANES };
	const u32 dim = t->a->kv.head_dim, width = t->lane.width, side = VEC_LANES == 16 ? 4 : 3;
	u32 d = 0;
	for (; rows <= side && d + 2 * DIMS <= dim; d += 2 * DIMS)
		wholes_part(t, d, rows, 2, sizeof(ivec));
	for (; d + DIMS <= dim; d += DIMS)
		wholes_part(t, d, rows, 1, sizeof(ivec));
	if (d < dim) {
		wholes_part(t, d, rows, 1, (dim - d) * (u32)sizeof(int16_t));
		d += DIMS;
	}
	for (u32 r = 0; r < rows && t->of->fresh && d < width; r++)
		memset(t->of->acc + (size_t)r * width + d, 0, (width - d) * sizeof(float));
}

static inline void part_values_i16(const struct tile *t)
{
#define WHOLES_DIMS(n) wholes_dims(t, TILED(n));
	FOR_ROWS(WHOLES_DIMS)
}

#endif

#endif
