/* Scores of attention: queries times keys, one vector of keys at a time, sums over the dimensions in rising
 * order. Included by attention.c alone. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_SCORES_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_SCORES_PRIV_H

#include "kernels/cpu/attention_tile_priv.h"

#ifdef VEC_LANES

/* Vectors computed side by side for a number of rows: as many as fit into the registers. */
#if VEC_LANES == 16
#define SCORE_VECS(rows) ((rows) <= 4 ? 4 : 2)
#else
#define SCORE_VECS(rows) ((rows) <= 2 ? 4 : (rows) <= 5 ? 2 : 1)
#endif

#define FOR_SUMS(rows, vecs)                                     \
	_Pragma("GCC unroll 8") for (u32 r = 0; r < (rows); r++) \
		_Pragma("GCC unroll 4") for (u32 v = 0; v < (vecs); v++)

static ALWAYS_INLINE const char *key_vec(const struct tile *t, u32 v)
{
	return t->keys[v / GROUP_VECS] + v % GROUP_VECS * sizeof(vec);
}

/* Asks for word `d` of the groups AHEAD of those that the vectors [v0, v0 + vecs) belong to. */
static ALWAYS_INLINE void scores_ahead(const struct tile *t, u32 v0, u32 vecs, u32 d)
{
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v += GROUP_VECS)
		prefetch(&t->streams[(v0 + v) / GROUP_VECS + AHEAD], d);
}

static ALWAYS_INLINE float *scores_at(const struct tile *t, u32 r, u32 v)
{
	return t->lane.scores + r * ATTENTION_PART + v * VEC_LANES;
}

/* `rows` scores of `vecs` vectors of keys, from vector `v0` on. */
static ALWAYS_INLINE void scores_f32(const struct tile *t, u32 v0, u32 rows, u32 vecs)
{
	vec sum[ATTENTION_ROWS][4];
	const float *q = t->lane.q;
	u32 width = t->lane.width;
	FOR_SUMS(rows, vecs)
	sum[r][v] = vec_zero();
	for (u32 d = 0; d < t->words; d++) {
		scores_ahead(t, v0, vecs, d);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			vec key = vec_load(
				(const float *)(const void *)(key_vec(t, v0 + v) + d * t->key_stride));
#pragma GCC unroll 8
			for (u32 r = 0; r < rows; r++)
				sum[r][v] = vec_fma(vec_set1(q[(size_t)r * width + d]), key, sum[r][v]);
		}
	}
	FOR_SUMS(rows, vecs)
	vec_store(scores_at(t, r, v0 + v), sum[r][v]);
}

static ALWAYS_INLINE void scores_bf16(const struct tile *t, u32 v0, u32 rows, u32 vecs)
{
	vec sum[ATTENTION_ROWS][4];
	const float *q = t->lane.q;
	u32 width = t->lane.width;
	FOR_SUMS(rows, vecs)
	sum[r][v] = vec_zero();
	for (u32 d = 0; d < t->words; d++) {
		scores_ahead(t, v0, vecs, d);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			const char *pairs = key_vec(t, v0 + v) + d * t->key_stride;
#if ATTENTION_DOTS_BF16
			__m512bh key = (__m512bh)_mm512_loadu_si512(pairs);
#pragma GCC unroll 8
			for (u32 r = 0; r < rows; r++)
				sum[r][v] = _mm512_dpbf16_ps(sum[r][v], key,
							     (__m512bh)vec_set1(q[(size_t)r * width + d]));
#else
			vec key = vec_pair_first(pairs);
#pragma GCC unroll 8
			for (u32 r = 0; r < rows; r++)
				sum[r][v] = vec_fma(vec_set1(q[(size_t)r * width + 2 * d]), key, sum[r][v]);
			key = vec_pair_second(pairs);
#pragma GCC unroll 8
			for (u32 r = 0; r < rows; r++)
				sum[r][v] =
					vec_fma(vec_set1(q[(size_t)r * width + 2 * d + 1]), key, sum[r][v]);
#endif
		}
	}
	FOR_SUMS(rows, vecs)
	vec_store(scores_at(t, r, v0 + v), sum[r][v]);
}

/* Whole numbers of 16 bits times bytes: exact, so that every instruction set gives the same. */
static ALWAYS_INLINE void scores_i8(const struct tile *t, u32 v0, u32 rows, u32 vecs)
{
	ivec sum[ATTENTION_ROWS][4];
	const u32 *q = (const u32 *)(const void *)t->lane.q;
	u32 width = t->lane.width;
	FOR_SUMS(rows, vecs)
	sum[r][v] = IVEC(set1_epi32)((int)(0u - t->q_excess[r]));
	for (u32 d = 0; d < t->words; d++) {
		scores_ahead(t, v0, vecs, d);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			ivec fours = IVEC_LOAD(key_vec(t, v0 + v) + d * t->key_stride);
			ivec even = IVEC_BITS(and)(fours, IVEC(set1_epi32)(0x00ff00ff));
			ivec odd = IVEC(srli_epi16)(fours, 8);
#pragma GCC unroll 8
			for (u32 r = 0; r < rows; r++) {
				const u32 *pairs = q + (size_t)r * width + 2 * d;
				sum[r][v] = ivec_dot16(sum[r][v], even, IVEC(set1_epi32)((int)pairs[0]));
				sum[r][v] = ivec_dot16(sum[r][v], odd, IVEC(set1_epi32)((int)pairs[1]));
			}
		}
	}
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++) {
		vec scale = vec_load(t->lane.key_scales + (v0 + v) * VEC_LANES);
#pragma GCC unroll 8
		for (u32 r = 0; r < rows; r++)
			vec_store(scores_at(t, r, v0 + v),
				  vec_mul(vec_mul(IVEC(cvtepi32_ps)(sum[r][v]), vec_set1(t->q_unit[r])),
					  scale));
	}
}

static ALWAYS_INLINE void scores_f8(const struct tile *t, u32 v0, u32 rows, u32 vecs)
{
	vec sum[ATTENTION_ROWS][4];
	const float *q = t->lane.q;
	u32 width = t->lane.width;
	FOR_SUMS(rows, vecs)
	sum[r][v] = vec_zero();
	for (u32 d = 0; d < t->words; d++) {
		scores_ahead(t, v0, vecs, d);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			ivec fours = IVEC_LOAD(key_vec(t, v0 + v) + d * t->key_stride);
#pragma GCC unroll 4
			for (int i = 0; i < 4; i++) {
				ivec top = IVEC(slli_epi32)(fours, 24 - 8 * i);
				vec key = vec_from_f8(IVEC(srai_epi32)(top, 4));
#pragma GCC unroll 8
				for (u32 r = 0; r < rows; r++)
					sum[r][v] = vec_fma(vec_set1(q[(size_t)r * width + 4 * d + (u32)i]),
							    key, sum[r][v]);
			}
		}
	}
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++) {
		vec scale =
			vec_mul(vec_load(t->lane.key_scales + (v0 + v) * VEC_LANES), vec_set1(F8_HALF_BIAS));
#pragma GCC unroll 8
		for (u32 r = 0; r < rows; r++)
			vec_store(scores_at(t, r, v0 + v), vec_mul(sum[r][v], scale));
	}
}

static void part_scores(const struct tile *t)
{
	u32 vecs = kern_ceil(t->count, GROUP) * GROUP_VECS;
#define SCORES(kind, n)                               \
	for (u32 v = 0; v < vecs; v += SCORE_VECS(n)) \
		kind(t, v, n, SCORE_VECS(n));
#define SCORES_F32(n)  SCORES(scores_f32, n)
#define SCORES_BF16(n) SCORES(scores_bf16, n)
#define SCORES_I8(n)   SCORES(scores_i8, n)
#define SCORES_F8(n)   SCORES(scores_f8, n)
	if (t->a->kv.dtype == KERN_F32)
		FOR_ROWS(SCORES_F32)
	else if (t->a->kv.dtype == KERN_BF16)
		FOR_ROWS(SCORES_BF16)
	else if (t->a->kv.dtype == KERN_I8)
		FOR_ROWS(SCORES_I8)
	else
		FOR_ROWS(SCORES_F8)
}

#endif

#endif
