/* Attention with matrix tiles (AMX), over caches of bfloat16: products of queries and keys, and of weights and values, of all rows at work at
 * once. Included by attention.c alone.
 *
 * A key's pairs of dimensions lie as the registers of weights want them: 16 keys side by side, a pair a row. Queries are rows of bfloat16, as
 * softmax weights are. Neighbouring keys' values are laced into each other once for all rows of a task. A product's rows are rows of their own,
 * and what a row does not see has a weight of zero, so that a row's sums depend on its own query and keys alone, as long as values that rows
 * beside it see are finite. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_TILES_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_TILES_PRIV_H

#include "kernels/cpu/attention_asks_priv.h"
#include "kernels/cpu/attention_scores_bf16_priv.h"
#include "kernels/cpu/attention_softmax_bf16_priv.h"
#include "kernels/cpu/attention_values_priv.h"

#if defined(VEC_LANES) && ATTENTION_TILES

#include "kernels/cpu/amx_priv.h"

enum {
	TILE_KEYS = 32, /* whose pairs of values fill a register */
	TILE_BYTES = AMX_UNITS * AMX_ROW_BYTES,
	LACED_AHEAD = 3 * TILE_KEYS, /* beside a product's keys, these included: one that follows what it reads waits until that is in the cache */
};

/* ---------------------------------------------------------------- scores */

/* Multiplies dimensions [32 * k, 32 * (k + 1)) of group g's keys into the sums of register `sums`. */
#define SCORES_ADD(sums, weights, g)                                                                                   \
	do {                                                                                                           \
		asks_go_on(t->asks);                                                                                   \
		amx_load_once(weights, t->keys[g] + t->head_at + at, t->key_stride);                                   \
		amx_add_bf16(sums, 4, weights);                                                                        \
	} while (0)
#define SCORES_STORE(sums, g) amx_store(sums, t->scores + (size_t)(g) * GROUP, ATTENTION_PART * sizeof(float))

/* Asks for `vecs` groups' lines of 16 words, from word d on. */
static ALWAYS_INLINE void tiles_ahead(const struct tile *t, const struct score_cursor *c, u32 vecs, u32 d)
{
	for (u32 i = 0; i < AMX_UNITS && t->of->asks && !t->asked; i++)
		scores_ahead(c, vecs, d + i);
}

/* What goes before a register's first product: the scores that are still there of the four groups before g are stored beside the products, for
 * a product that follows a store waits for it. */
#define SCORES_TURN(sums, g) \
	do { \
		if (before) \
			SCORES_STORE(sums, (g) - 4); \
		amx_zero(sums); \
	} while (0)

/* Scores of groups [g, g + 4), or of two of them, which stay in the registers if others follow. `before`: those of four groups are there. */
static ALWAYS_INLINE void scores_groups(const struct tile *t, u32 g, bool four, bool before, bool follow)
{
	const struct score_cursor c = scores_begin(t, g, four ? 4 : 2);
	const char *q = (const char *)t->of->q;
	const size_t row = t->a->kv.head_dim * sizeof(u16), piece = AMX_UNITS * t->key_stride;
	size_t at = 0;
	if (before && !four) {
		SCORES_STORE(2, g - 2);
		SCORES_STORE(3, g - 1);
	}
	for (u32 d = 0; d < t->words; d += AMX_UNITS, at += piece, q += AMX_ROW_BYTES) {
		amx_load(4, q, row);
		if (d == 0)
			SCORES_TURN(0, g);
		SCORES_ADD(0, 6, g);
		if (d == 0)
			SCORES_TURN(1, g + 1);
		SCORES_ADD(1, 7, g + 1);
		tiles_ahead(t, &c, four ? 4 : 2, d);
		if (!four)
			continue;
		if (d == 0)
			SCORES_TURN(2, g + 2);
		SCORES_ADD(2, 6, g + 2);
		if (d == 0)
			SCORES_TURN(3, g + 3);
		SCORES_ADD(3, 7, g + 3);
	}
	if (follow)
		return;
	SCORES_STORE(0, g);
	SCORES_STORE(1, g + 1);
	if (four) {
		SCORES_STORE(2, g + 2);
		SCORES_STORE(3, g + 3);
	}
}

/* Masks the scores, and finds the largest of row r. */
static ALWAYS_INLINE void scores_highest(struct tile *t, u32 r, u32 vecs)
{
	const bool sees_all = t->begin >= t->of->first[r] && t->begin + vecs * VEC_LANES <= t->of->last[r] + 1;
	vec highest = vec_set1(-INFINITY), other = highest;
	u32 v = 0;
	for (; sees_all && v + 2 <= vecs; v += 2) {
		asks_go_on(t->asks);
		highest = vec_max(highest, vec_load(scores_at(t, r, v)));
		other = vec_max(other, vec_load(scores_at(t, r, v + 1)));
	}
	for (; v < vecs; v++) {
		const u32 key = t->begin + v * VEC_LANES;
		vec scores = vec_load(scores_at(t, r, v));
		if (key < t->of->first[r] || key + VEC_LANES > t->of->last[r] + 1) {
			scores = score_mask(t, r, v, scores);
			vec_store(scores_at(t, r, v), scores);
		}
		highest = vec_max(highest, scores);
	}
	vec_store(t->part->highest[r], vec_max(highest, other));
}

/* Of all rows that the registers have. */
static void scores_tiles(struct tile *t)
{
	const u32 groups = kern_ceil(t->count, GROUP);
	u32 g = 0;
	for (; g + 2 < groups; g += 4)
		scores_groups(t, g, true, g > 0, g + 4 < groups);
	if (g < groups)
		scores_groups(t, g, false, g > 0, false);
}

/* What is done with them row by row. */
static void scores_end_tiles(struct tile *t)
{
	const u32 groups = kern_ceil(t->count, GROUP);
	/* Weights are computed for two vectors at a time. */
	for (u32 r = 0; r < t->of->count && groups % 2 == 1; r++)
		vec_store(scores_at(t, r, groups), vec_set1(-INFINITY));
	if (t->a->soft_cap > 0)
		scores_cap(t, groups);
	for (u32 r = 0; r < t->of->count && !(t->a->soft_cap > 0); r++)
		scores_highest(t, r, groups);
	if (t->a->slopes)
		scores_fall(t, groups);
}

/* ---------------------------------------------------------------- values */

static ALWAYS_INLINE char *laced_at(const struct tile *t, u32 key, u32 d)
{
	return t->laced + ((size_t)key / TILE_KEYS * t->words + d / 2) * TILE_KEYS * sizeof(u32);
}

/* One key's 32 dimensions and the next one's. Of these one register has the first four of every eight, the next one the others, as write_two takes
 * them. */
static ALWAYS_INLINE void lace(ivec x, ivec y, char *to)
{
	IVEC_STORE(to, IVEC(unpacklo_epi16)(x, y));
	IVEC_STORE(to + TILE_BYTES, IVEC(unpackhi_epi16)(x, y));
}

/* A whole group, from key `key` on. */
static ALWAYS_INLINE void values_lace_group(struct tile *t, u32 key)
{
	const char *at = value_at(t, key) + t->head_at;
	char *to = laced_at(t, key, 0) + key % TILE_KEYS / 2 * AMX_ROW_BYTES;
	for (u32 i = 0; i < GROUP && !t->asked; i += 4)
		values_ahead(t, key + i);
	for (u32 d = 0; d < t->words; d += TILE_DIMS / 2, at += AMX_ROW_BYTES, to += 2 * TILE_BYTES) {
		const char *pair = at;
#pragma GCC unroll 8
		for (u32 i = 0; i < GROUP / 2; i++, pair += 2 * t->value_bytes) {
			if (i % 2 == 0)
				asks_go_on(t->asks);
			lace(IVEC_LOAD(pair), IVEC_LOAD(pair + t->value_bytes), to + i * AMX_ROW_BYTES);
		}
	}
}

/* Laces values of the part as far as `keys` keys, a multiple of TILE_KEYS; what lies behind the part's end becomes zeros. */
static void values_lace(struct tile *t, u32 keys)
{
	u32 key = t->laced_keys;
	for (; key < keys && key + GROUP <= t->part_keys; key += GROUP)
		values_lace_group(t, key);
	for (; key < keys; key += 2) {
		const bool one = key < t->part_keys, two = key + 1 < t->part_keys;
		const char *at = one ? value_at(t, key) + t->head_at : NULL;
		char *to = laced_at(t, key, 0) + key % TILE_KEYS / 2 * AMX_ROW_BYTES;
		if (one && key % 4 == 0 && !t->asked)
			values_ahead(t, key);
		for (u32 d = 0; d < t->words; d += TILE_DIMS / 2, to += 2 * TILE_BYTES)
			lace(one ? IVEC_LOAD(at + d * sizeof(u32)) : IVEC_BITS(setzero)(),
			     two ? IVEC_LOAD(at + t->value_bytes + d * sizeof(u32)) : IVEC_BITS(setzero)(), to);
	}
	t->laced_keys = keys > t->laced_keys ? keys : t->laced_keys;
}

/* Sums of 16 dimensions, whose values lie in the i-th tile of a piece. */
#define VALUES_ADD(sums, values_of, i) \
	do { \
		asks_go_on(t->asks); \
		amx_load_once(values_of, values + (i) * TILE_BYTES, AMX_ROW_BYTES); \
		amx_add_bf16(sums, 4, values_of); \
	} while (0)

/* Sums of dimensions [d, d + 64), or of 32, by the weights of keys [from, to), into `sums`; behind those of keys before `from`. */
static ALWAYS_INLINE void values_dims(struct tile *t, u32 from, u32 to, u32 d, bool both)
{
	const char *weights = (const char *)(t->weights + from), *values = laced_at(t, from, d);
	const size_t piece = (size_t)TILE_KEYS * t->value_bytes, row = t->lane.width * sizeof(i32);
	if (from == 0) {
		amx_zero_sums();
	} else {
		amx_load(0, t->sums + d, row);
		amx_load(1, t->sums + d + VEC_LANES, row);
	}
	if (from > 0 && both) {
		amx_load(2, t->sums + d + 2 * VEC_LANES, row);
		amx_load(3, t->sums + d + 3 * VEC_LANES, row);
	}
	for (u32 key = from; key < to; key += TILE_KEYS, weights += AMX_ROW_BYTES, values += piece) {
		amx_load(4, weights, ATTENTION_PART * sizeof(int16_t));
		VALUES_ADD(0, 6, 0);
		VALUES_ADD(1, 7, 1);
		if (both) {
			VALUES_ADD(2, 6, 2);
			VALUES_ADD(3, 7, 3);
		}
		values_lace(t, kern_min(key + LACED_AHEAD, to));
	}
	amx_store(0, t->sums + d, row);
	amx_store(1, t->sums + d + VEC_LANES, row);
	if (both) {
		amx_store(2, t->sums + d + 2 * VEC_LANES, row);
		amx_store(3, t->sums + d + 3 * VEC_LANES, row);
	}
}

/* What the part has added up joins row r's earlier sums, or becomes its output. */
static ALWAYS_INLINE void values_join(const struct tile *t, u32 r)
{
	const u32 dim = t->a->kv.head_dim, width = t->lane.width;
	const float *sums = (const float *)(const void *)t->sums + (size_t)r * width;
	const vec rescale = vec_set1(t->part->rescale[r]), factor = vec_set1(t->part->factor[r]);
	float *acc = t->of->acc + (size_t)r * width, *out = t->a->out + t->of->at[r];
	for (u32 d = 0; d < dim; d += 2 * VEC_LANES) {
		vec one = vec_load(sums + d), two = vec_load(sums + d + VEC_LANES);
		if (!t->of->fresh) {
			one = vec_fma(vec_load(acc + d), rescale, one);
			two = vec_fma(vec_load(acc + d + VEC_LANES), rescale, two);
		}
		if (t->writes) {
			write_two(out + d, one, two, factor);
			continue;
		}
		vec_store(acc + d, one);
		vec_store(acc + d + VEC_LANES, two);
	}
	if (t->of->fresh && !t->writes)
		memset(acc + dim, 0, (width - dim) * sizeof(float));
}

/* Of all rows that the registers have, keys [from, to) of the part; `from` is a multiple of TILE_KEYS. */
static void values_tiles(struct tile *t, u32 from, u32 to)
{
	const u32 end = kern_ceil(to, TILE_KEYS) * TILE_KEYS, dim = t->a->kv.head_dim;
	u32 d = 0;
	values_lace(t, kern_min(from + 2 * TILE_KEYS, end));
	for (; d + 2 * TILE_DIMS <= dim; d += 2 * TILE_DIMS)
		values_dims(t, from, end, d, true);
	if (d < dim)
		values_dims(t, from, end, d, false);
}

static void values_end_tiles(struct tile *t)
{
#define SUM_ROWS(n) rows_sum_bf16(t, n);
	FOR_ROWS(SUM_ROWS)
#undef SUM_ROWS
	for (u32 r = 0; r < t->of->count; r++)
		values_join(t, r);
}

#endif

#endif
