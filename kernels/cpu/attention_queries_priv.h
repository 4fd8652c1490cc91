/* Queries of attention: scaled, in the form that scores take them in. Included by attention.c alone. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_QUERIES_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_QUERIES_PRIV_H

#include "kernels/cpu/attention_softmax_priv.h"
#include "kernels/cpu/attention_tile_priv.h"
#include "kernels/cpu/attention_wholes_priv.h"
#include "kernels/cpu/lace_bf16_priv.h"

#ifdef VEC_LANES

#if ATTENTION_TILES
/* The queries of all rows at work, scaled and rounded, one after the other. Matrix tiles have rows that there may be none of: what those
 * multiply is never read. */
static void queries_bf16(struct tile *t)
{
	const u32 dim = t->a->kv.head_dim;
	const vec factor = vec_set1(t->a->scale / (t->a->soft_cap > 0 ? 1 : score_unit(t->a)));
	u16 *to = (u16 *)(void *)t->of->q;
	for (u32 r = 0; r < t->of->count; r++)
		for (u32 d = 0; d < dim; d += TILE_DIMS)
			_mm512_storeu_si512(to + r * dim + d, lace_round(t->a->q + t->of->at[r] + d, TILE_DIMS, factor));
}
#elif ATTENTION_DOTS_BF16
/* Dimensions [d, d + count) of four rows' queries. */
static ALWAYS_INLINE void lace_queries(const struct tile *t, const float *const q[LACE_ROWS], u32 r, u32 d, u32 count)
{
	const float unit = t->a->soft_cap > 0 ? 1 : score_unit(t->a);
	__m512i row[LACE_ROWS];
#pragma GCC unroll 4
	for (u32 i = 0; i < LACE_ROWS; i++)
		row[i] = lace_round(q[i] + d, count, vec_set1(t->a->scale / unit));
	lace_store(row, (char *)(t->of->q + (size_t)d / 2 * ATTENTION_ROWS + r), ATTENTION_ROWS, count / 2);
}

/* The queries of all rows at work, scaled: pairs of bf16, the rows' side by side. */
static void queries_bf16(struct tile *t)
{
	u32 d, dim = t->a->kv.head_dim, count = t->of->count;
	for (u32 r = 0; r < count; r += LACE_ROWS) {
		const float *q[LACE_ROWS]; /* what is no row of theirs repeats the last one and is never read */
		for (u32 i = 0; i < LACE_ROWS; i++)
			q[i] = t->a->q + t->of->at[kern_min(r + i, count - 1)];
		for (d = 0; d + 2 * LACE_UNITS <= dim; d += 2 * LACE_UNITS)
			lace_queries(t, q, r, d, 2 * LACE_UNITS);
		if (d < dim)
			lace_queries(t, q, r, d, dim - d);
	}
}
#else
static void queries_bf16(struct tile *t)
{
	(void)t;
}
#endif

#if VEC_LANES == 16
/* The queries of all rows at work, scaled, for sums of floats, those of a dimension side by side. */
static void queries_turned(struct tile *t)
{
	const u32 dim = t->a->kv.head_dim, count = t->of->count;
	const vec scale = vec_set1(t->a->scale);
	for (u32 r = 0; r < count; r += LACE_ROWS) {
		const float *q[LACE_ROWS]; /* what is no row of theirs repeats the last one and is never read */
		for (u32 i = 0; i < LACE_ROWS; i++)
			q[i] = t->a->q + t->of->at[kern_min(r + i, count - 1)];
		for (u32 d = 0; d < dim; d += LACE_UNITS) {
			const u32 units = kern_min(dim - d, LACE_UNITS);
			__m512i row[LACE_ROWS];
#pragma GCC unroll 4
			for (u32 i = 0; i < LACE_ROWS; i++)
				row[i] = _mm512_castps_si512(vec_mul(vec_load_n(q[i] + d, units), scale));
			lace_store(row, (char *)(t->of->q + (size_t)d * ATTENTION_ROWS + r), ATTENTION_ROWS, units);
		}
	}
}
#else
/* Dimensions [d, d + 8) of eight rows' queries, scaled, those of a dimension side by side. */
static ALWAYS_INLINE void queries_turn(const struct tile *t, const float *const q[8], u32 d)
{
	const vec scale = vec_set1(t->a->scale);
	vec row[8], pair[8];
#pragma GCC unroll 4
	for (u32 i = 0; i < 4; i++) { /* four of row i, and of row i + 4 */
		row[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(q[i] + d)), _mm_loadu_ps(q[i + 4] + d), 1);
		row[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(q[i] + d + 4)), _mm_loadu_ps(q[i + 4] + d + 4), 1);
	}
#pragma GCC unroll 4
	for (u32 i = 0; i < 8; i += 2) {
		pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
		pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
	}
#pragma GCC unroll 2
	for (u32 i = 0; i < 8; i += 4) { /* the first four dimensions, or the others */
		float *to = t->of->q + (size_t)(d + i) * ATTENTION_ROWS;
		for (u32 k = 0; k < 2; k++) {
			vec_store(to + 2 * k * ATTENTION_ROWS, vec_mul(_mm256_shuffle_ps(pair[i + k], pair[i + 2 + k], 0x44), scale));
			vec_store(to + (2 * k + 1) * ATTENTION_ROWS, vec_mul(_mm256_shuffle_ps(pair[i + k], pair[i + 2 + k], 0xee), scale));
		}
	}
}

/* The queries of all rows at work, scaled, for sums of floats. */
static void queries_turned(struct tile *t)
{
	u32 count = t->of->count;
	const float *q[8]; /* what is no row of theirs repeats the last one and is never read */
	for (u32 i = 0; i < 8; i++)
		q[i] = t->a->q + t->of->at[kern_min(i, count - 1)];
	for (u32 d = 0; d < t->a->kv.head_dim; d += 8)
		queries_turn(t, q, d);
}
#endif

/* Row r's query, scaled, in the form that its scores want it in, the rows' words side by side. */
static void query_begin(struct tile *t, u32 r, const float *q)
{
	const struct kern_attention_args *a = t->a;
	u32 dim = a->kv.head_dim, end = kern_ceil(dim, VEC_LANES) * VEC_LANES;
	float x[KERN_HEAD_DIM_MAX + VEC_LANES], *to = t->of->q + r;
	vec scale = vec_set1(a->kv.dtype == KERN_F8E4M3 ? a->scale * F8_HALF_BIAS : a->scale);
	for (u32 d = 0; d < end; d += VEC_LANES)
		vec_store(x + d, vec_mul(vec_load_n(q + d, kern_min(dim - d, VEC_LANES)), scale));
	for (u32 d = 0; d < t->words * kern_kv_group(&a->kv); d++)
		to[d * ATTENTION_ROWS] = x[d];
}

/* The queries of all rows at work. */
static void queries_begin(struct tile *t)
{
	if (t->a->kv.dtype == KERN_BF16 && ATTENTION_DOTS_BF16)
		queries_bf16(t);
	else if (t->a->kv.dtype == KERN_I16)
		queries_i16(t);
	else if (t->a->kv.dtype == KERN_I8)
		queries_i8(t);
	else if (!kern_kv_is_quantized(&t->a->kv) && (VEC_LANES == 16 || t->a->kv.head_dim % 8 == 0))
		queries_turned(t);
	else
		for (u32 r = 0; r < t->of->count; r++)
			query_begin(t, r, t->a->q + t->of->at[r]);
}

#endif

#endif
