/* Scores of attention: queries times keys, one vector of keys at a time, sums over the dimensions in rising
 * order. Included by attention.c alone. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_SCORES_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_SCORES_PRIV_H

#include "kernels/cpu/attention_tile_priv.h"

#ifdef VEC_LANES

/* Vectors computed side by side for a number of rows: as many as fit into the registers. */
#if VEC_LANES == 16
#define SCORE_VECS(rows)       ((rows) <= 4 ? 4 : 2)
#define SCORE_VECS_WHOLE(rows) 2
#define SCORE_VECS_F8(rows)    SCORE_VECS(rows)
#else
#define SCORE_VECS(rows)       ((rows) <= 3 ? 4 : (rows) == 4 ? 3 : 2)
#define SCORE_VECS_WHOLE(rows) ((rows) <= 3 ? 2 : 1)
#define SCORE_VECS_F8(rows)    ((rows) <= 2 ? 4 : (rows) <= 5 ? 2 : 1) /* unpacked once for all rows */
#endif

#define FOR_SUMS(rows, vecs)                                     \
	_Pragma("GCC unroll 8") for (u32 r = 0; r < (rows); r++) \
		_Pragma("GCC unroll 4") for (u32 v = 0; v < (vecs); v++)

/* Pointers of `vecs` vectors of keys from vector v0 on, and of the groups AHEAD of theirs. */
struct score_cursor {
	const char *key[4];
	const char *ahead[4];
};

static ALWAYS_INLINE struct score_cursor scores_begin(const struct tile *t, u32 v0, u32 vecs)
{
	struct score_cursor c;
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++) {
		c.key[v] = t->keys[(v0 + v) / GROUP_VECS] + t->head_at + (v0 + v) % GROUP_VECS * sizeof(vec);
		c.ahead[v] = t->ahead[(v0 + v) / GROUP_VECS + AHEAD] + t->head_at;
	}
	return c;
}

/* Asks for line `d`. */
static ALWAYS_INLINE void scores_ahead(const struct score_cursor *c, u32 vecs, u32 d)
{
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v += GROUP_VECS)
		__builtin_prefetch(c->ahead[v] + (size_t)d * LINE, 0, 2);
}

static ALWAYS_INLINE float *scores_at(const struct tile *t, u32 r, u32 v)
{
	return t->scores + r * ATTENTION_PART + v * VEC_LANES;
}

enum key_kind { KEYS_F32, KEYS_FIRST, KEYS_SECOND }; /* of pairs of bf16 */

static ALWAYS_INLINE vec score_key(const char *at, enum key_kind kind)
{
	if (kind == KEYS_F32)
		return vec_load((const float *)(const void *)at);
	return kind == KEYS_FIRST ? vec_pair_first(at) : vec_pair_second(at);
}

#if VEC_LANES == 8
/* sums += three rows' numbers times a vector of keys, the first or the second of its pairs. Written out: four times this take all
 * registers, and the compiler would load one vector of keys before the last one is used, and keep sums in memory for it. */
static ALWAYS_INLINE void score_add_three(const char *pairs, enum key_kind kind, const vec few[3], vec *one, vec *two, vec *three)
{
	static const u32 second[VEC_LANES] = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
					      0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
	const __m256i_u *at = (const void *)pairs;
	vec key;
	if (kind == KEYS_FIRST)
		__asm__("vmovdqu %4, %3\n\tvpslld $16, %3, %3\n\tvfmadd231ps %5, %3, %0\n\tvfmadd231ps %6, %3, %1\n\t"
			"vfmadd231ps %7, %3, %2"
			: "+&x"(*one), "+&x"(*two), "+&x"(*three), "=&x"(key)
			: "m"(*at), "x"(few[0]), "x"(few[1]), "x"(few[2]));
	else
		__asm__("vmovdqu %4, %3\n\tvpand %8, %3, %3\n\tvfmadd231ps %5, %3, %0\n\tvfmadd231ps %6, %3, %1\n\t"
			"vfmadd231ps %7, %3, %2"
			: "+&x"(*one), "+&x"(*two), "+&x"(*three), "=&x"(key)
			: "m"(*at), "x"(few[0]), "x"(few[1]), "x"(few[2]), "m"(second));
}
#endif

/* sums += one dimension of the queries, at `q`, times that of the keys, `at` bytes behind where they begin. What there are fewer
 * of, rows or vectors, stays in registers. */
static ALWAYS_INLINE void score_add(const struct score_cursor *c, size_t at, enum key_kind kind, const float *q, u32 rows, u32 vecs,
				    vec sum[][4])
{
	vec few[4];
	if (rows < vecs) {
#pragma GCC unroll 4
		for (u32 r = 0; r < rows; r++)
			few[r] = vec_set1(q[r]);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
#if VEC_LANES == 8
			if (rows == 3 && kind != KEYS_F32) {
				score_add_three(c->key[v] + at, kind, few, &sum[0][v], &sum[1][v], &sum[2][v]);
				continue;
			}
#endif
			vec key = score_key(c->key[v] + at, kind);
#pragma GCC unroll 4
			for (u32 r = 0; r < rows; r++)
				vec_add_product(&sum[r][v], few[r], key);
		}
		return;
	}
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++)
		few[v] = score_key(c->key[v] + at, kind);
#pragma GCC unroll 8
	for (u32 r = 0; r < rows; r++)
		vec_add_products(q + r, few, vecs, sum[r]);
}

/* Scores of `rows` rows and `vecs` vectors of keys, from vector `v0` on. */
static ALWAYS_INLINE void scores_f32(const struct tile *t, u32 v0, u32 rows, u32 vecs)
{
	vec sum[ATTENTION_ROWS][4];
	const struct score_cursor c = scores_begin(t, v0, vecs);
	const float *q = t->of->q;
	FOR_SUMS(rows, vecs)
	sum[r][v] = vec_zero();
	for (u32 d = 0; d < t->words; d++, q += ATTENTION_ROWS) {
		scores_ahead(&c, vecs, d);
		score_add(&c, d * t->key_stride, KEYS_F32, q, rows, vecs, sum);
	}
	FOR_SUMS(rows, vecs)
	vec_store(scores_at(t, r, v0 + v), sum[r][v]);
}

#if !ATTENTION_DOTS_BF16
static ALWAYS_INLINE void scores_bf16(const struct tile *t, u32 v0, u32 rows, u32 vecs)
{
	vec sum[ATTENTION_ROWS][4];
	const struct score_cursor c = scores_begin(t, v0, vecs);
	const float *q = t->of->q;
	FOR_SUMS(rows, vecs)
	sum[r][v] = vec_zero();
	const size_t stride = t->key_stride;
	const u32 words = t->words;
	size_t at = 0;
	const bool asks = t->of->asks; /* the other rows of the KV head find them in the caches */
	for (u32 d = 0; d < words; d++, at += stride, q += 2 * ATTENTION_ROWS) {
		if (asks)
			scores_ahead(&c, vecs, d);
		score_add(&c, at, KEYS_FIRST, q, rows, vecs, sum);
		__asm__("" : : : "memory"); /* or the pairs, read once, take registers of sums */
		score_add(&c, at, KEYS_SECOND, q + ATTENTION_ROWS, rows, vecs, sum);
	}
	FOR_SUMS(rows, vecs)
	vec_store(scores_at(t, r, v0 + v), sum[r][v]);
}
#endif

static ALWAYS_INLINE vec key_scale(const struct tile *t, u32 v)
{
	return vec_load(t->scales[0] + v * VEC_LANES);
}

/* Sums of whole numbers become scores. */
static ALWAYS_INLINE void scores_of_wholes(const struct tile *t, u32 v0, u32 rows, u32 vecs, ivec sum[][4])
{
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++) {
		vec scale = key_scale(t, v0 + v);
#pragma GCC unroll 8
		for (u32 r = 0; r < rows; r++)
			vec_store(scores_at(t, r, v0 + v),
				  vec_mul(vec_mul(IVEC(cvtepi32_ps)(sum[r][v]), vec_set1(t->of->q_unit[r])), scale));
	}
}

/* Whole numbers of 16 bits times bytes: exact, so that every instruction set gives the same. */
static ALWAYS_INLINE void scores_i8(const struct tile *t, u32 v0, u32 rows, u32 vecs)
{
	ivec sum[ATTENTION_ROWS][4];
	const struct score_cursor c = scores_begin(t, v0, vecs);
	const int *q = (const int *)(const void *)t->of->q; /* pairs of dimensions 0 and 2, then 1 and 3 */
	FOR_SUMS(rows, vecs)
	sum[r][v] = IVEC(set1_epi32)((int)(0u - t->of->q_excess[r]));
	for (u32 d = 0; d < t->words; d++, q += 2 * ATTENTION_ROWS) {
		scores_ahead(&c, vecs, d);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			ivec fours = IVEC_LOAD(c.key[v] + d * t->key_stride);
			ivec even = IVEC_BITS(and)(fours, IVEC(set1_epi32)(0x00ff00ff));
			ivec odd = IVEC(srli_epi16)(fours, 8);
#pragma GCC unroll 8
			for (u32 r = 0; r < rows; r++)
				ivec_add_dot16(&sum[r][v], even, IVEC(set1_epi32)(q[r]));
#pragma GCC unroll 8
			for (u32 r = 0; r < rows; r++)
				ivec_add_dot16(&sum[r][v], odd, IVEC(set1_epi32)(q[ATTENTION_ROWS + r]));
		}
	}
	scores_of_wholes(t, v0, rows, vecs, sum);
}

static ALWAYS_INLINE void scores_f8(const struct tile *t, u32 v0, u32 rows, u32 vecs)
{
	vec sum[ATTENTION_ROWS][4];
	const struct score_cursor c = scores_begin(t, v0, vecs);
	const float *q = t->of->q;
	FOR_SUMS(rows, vecs)
	sum[r][v] = vec_zero();
	for (u32 d = 0; d < t->words; d++, q += 4 * ATTENTION_ROWS) {
		scores_ahead(&c, vecs, d);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			ivec fours = IVEC_LOAD(c.key[v] + d * t->key_stride);
#pragma GCC unroll 4
			for (int i = 0; i < 4; i++) {
				ivec top = IVEC(slli_epi32)(fours, 24 - 8 * i);
				vec key = vec_from_f8(IVEC(srai_epi32)(top, 4));
#pragma GCC unroll 8
				for (u32 r = 0; r < rows; r++)
					sum[r][v] = vec_fma(vec_set1(q[(u32)i * ATTENTION_ROWS + r]), key, sum[r][v]);
			}
		}
	}
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++) {
		vec scale = vec_mul(key_scale(t, v0 + v), vec_set1(F8_HALF_BIAS));
#pragma GCC unroll 8
		for (u32 r = 0; r < rows; r++)
			vec_store(scores_at(t, r, v0 + v), vec_mul(sum[r][v], scale));
	}
}

static inline void part_scores(const struct tile *t)
{
	u32 vecs = kern_ceil(t->count, GROUP) * GROUP_VECS;
/* Fewer vectors where these do: of a short prompt, rounding up to whole ones is much. */
#define SCORES(kind, n, side)                                            \
	for (u32 v = 0; v < vecs; v += side) {                           \
		if ((side) == 3 && vecs - v == 2)                        \
			kind(t, v, n, 2);                                \
		else if ((side) > 1 && vecs - v <= (side) / 2)           \
			kind(t, v, n, (side) / 2);                       \
		else                                                     \
			kind(t, v, n, side);                             \
	}
#define SCORES_F32(n)  SCORES(scores_f32, TILED(n), SCORE_VECS(n))
#if ATTENTION_DOTS_BF16
#define SCORES_BF16(n) ; /* attention_scores_bf16_priv.h */
#else
#define SCORES_BF16(n) SCORES(scores_bf16, TILED(n), SCORE_VECS(n))
#endif
#define SCORES_I8(n)   SCORES(scores_i8, n, SCORE_VECS_WHOLE(n))
#define SCORES_F8(n)   SCORES(scores_f8, n, SCORE_VECS_F8(n))
	const enum kern_dtype dtype = t->a->kv.dtype;
	if (ATTENTION_IS(dtype, KERN_F32))
		FOR_ROWS(SCORES_F32)
	else if (ATTENTION_IS(dtype, KERN_BF16))
		FOR_ROWS(SCORES_BF16)
	else if (ATTENTION_IS(dtype, KERN_I8))
		FOR_ROWS(SCORES_I8)
	else if (ATTENTION_IS(dtype, KERN_F8E4M3))
		FOR_ROWS(SCORES_F8)
}

#endif

#endif
