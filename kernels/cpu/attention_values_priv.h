/* Values of attention: sums of values by their weights, over the keys in order. Included by attention.c
 * alone.
 *
 * Where products come in pairs, neighbouring keys are laced into each other as they are read, which leaves
 * the dimensions of a sum in another order: a block of SUMS_VECS vectors holds, vector by vector, the first, second
 * ... four dimensions of every 128-bit part of what was loaded. Where bfloat16 is widened to 16 lanes, a block of two holds the even ones
 * and the odd ones, for each takes one instruction that way and two in order. write_two, write_even_odd and write_sums put them back. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_VALUES_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_VALUES_PRIV_H

#include "kernels/cpu/attention_softmax_bf16_priv.h"
#include "kernels/cpu/attention_tile_priv.h"

#ifdef VEC_LANES

#if VEC_LANES == 16
enum { I8_ROWS = 4, I8_VECS = 4, VALUE_ROWS = 8 };
#else
enum { I8_ROWS = 2, I8_VECS = 4, VALUE_ROWS = 6 };
#endif

#define FOR_SUMS_OF(rows, vecs)                                  \
	_Pragma("GCC unroll 8") for (u32 r = 0; r < (rows); r++) \
		_Pragma("GCC unroll 4") for (u32 v = 0; v < (vecs); v++)

/* Asks for a quarter of what is AHEAD of key i's group; i is a multiple of 4. */
static ALWAYS_INLINE void values_ahead(const struct tile *t, u32 i)
{
	const char *at = t->ahead[t->groups + i / GROUP + AHEAD] + t->head_at;
	u32 quarter = i % GROUP / 4;
	for (u32 line = t->words * quarter / 4; line < t->words * (quarter + 1) / 4; line++)
		__builtin_prefetch(at + (size_t)line * LINE, 0, 2);
}

static ALWAYS_INLINE const char *value_at(const struct tile *t, u32 i)
{
	return t->values[i / GROUP] + i % GROUP * t->value_bytes;
}

/* The key after key i, or, where there is none, key i again: its weight is zero. */
static ALWAYS_INLINE const char *value_next(const struct tile *t, u32 i, const char *value)
{
	return i + 1 < t->count ? value + t->value_bytes : value;
}

enum value_kind { VALUES_F32, VALUES_BF16, VALUES_F8 };
enum { EVEN_ODD = 0, EVEN_ODD_DIMS = 2 * VEC_LANES }; /* see block_vecs */

/* Vectors computed side by side for a number of rows. With 16 registers three rows take four and four rows three, for 12 sums
 * hide that one takes 4 or 5 cycles and 8 do not; but unpacking 8 bits takes registers of its own. */
static ALWAYS_INLINE u32 value_vecs(u32 rows, enum value_kind kind)
{
	if (VEC_LANES == 16)
		return rows <= 4 ? 4 : 2;
	if (kind == VALUES_F8)
		return rows <= 2 ? 4 : 2;
	return rows <= 3 ? 4 : rows == 4 ? 3 : 2;
}

/* `tail` < VEC_LANES values in order, zeros behind. */
static ALWAYS_INLINE vec value_tail(const char *p, enum value_kind kind, u32 tail)
{
	char bytes[VEC_LANES] = {0};
	if (kind == VALUES_F32)
		return vec_load_n((const float *)(const void *)p, tail);
	if (kind == VALUES_BF16)
		return vec_load_bf16_n((const u16 *)(const void *)p, tail);
	memcpy(bytes, p, tail);
	return vec_from_f8(IVEC(slli_epi32)(IVEC_BYTES_TO_I32(bytes), 20));
}

/* VEC_LANES values from dimension `d` on. */
static ALWAYS_INLINE vec value_vec(const char *p, enum value_kind kind, u32 d)
{
	if (kind == VALUES_F32)
		return vec_load((const float *)(const void *)p + d);
	if (kind == VALUES_BF16)
		return vec_load_bf16((const u16 *)(const void *)p + d);
	return vec_from_f8(IVEC(slli_epi32)(IVEC_BYTES_TO_I32(p + d), 20));
}

static ALWAYS_INLINE u32 value_bytes(enum value_kind kind)
{
	return kind == VALUES_F32 ? 4 : kind == VALUES_BF16 ? 2 : 1;
}

/* `split`: two vectors are the even and the odd ones of as many dimensions. */
static ALWAYS_INLINE vec value_of(const char *at, enum value_kind kind, u32 v, u32 tail, bool split)
{
	if (split)
		return v % 2 ? vec_pair_second(at + v / 2 * sizeof(vec)) : vec_pair_first(at + v / 2 * sizeof(vec));
	return tail < VEC_LANES ? value_tail(at, kind, tail) : value_vec(at, kind, v * VEC_LANES);
}

/* sums += the weights of a key, of the first row at `p`, times its values. What there are fewer of, rows or vectors, stays in
 * registers. */
static ALWAYS_INLINE void value_add(const char *at, enum value_kind kind, const float *p, u32 rows, u32 vecs, u32 tail, vec sum[][4])
{
	const bool split = VEC_LANES == 16 && kind == VALUES_BF16 && vecs > 1;
	vec few[4];
	if (rows < vecs) {
#pragma GCC unroll 4
		for (u32 r = 0; r < rows; r++)
			few[r] = vec_set1(p[r * ATTENTION_PART]);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			vec value = value_of(at, kind, v, tail, split);
#pragma GCC unroll 4
			for (u32 r = 0; r < rows; r++)
				vec_add_product(&sum[r][v], few[r], value);
		}
		return;
	}
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++)
		few[v] = value_of(at, kind, v, tail, split);
#pragma GCC unroll 8
	for (u32 r = 0; r < rows; r++)
		vec_add_products(p + r * ATTENTION_PART, few, vecs, sum[r]);
}

/* Keys [begin, end), all of one group, times some rows: `vecs` vectors of dimensions from byte `first` of a value on, of which
 * the last has `tail`. `p`: weights of the first row. */
static ALWAYS_INLINE void values_group(const struct tile *t, enum value_kind kind, u32 begin, u32 end, u32 first, const float *p,
				       u32 rows, u32 vecs, u32 tail, vec sum[][4])
{
	const char *at = value_at(t, begin) + first;
	for (u32 i = begin; i < end; i++, at += t->value_bytes)
		value_add(at, kind, p + i, rows, vecs, tail, sum);
}

/* Adds keys [begin, end) to dimensions [d0, d0 + vecs * VEC_LANES) of rows [r0, r0 + rows); the last vector has `tail` of them. */
static ALWAYS_INLINE void values_tile(const struct tile *t, enum value_kind kind, u32 begin, u32 end, u32 d0, u32 r0,
				      u32 rows, u32 vecs, u32 tail)
{
	vec sum[ATTENTION_ROWS][4];
	const float *p = t->scores + r0 * ATTENTION_PART;
	u32 width = t->lane.width, first = d0 * value_bytes(kind);
	float *acc = t->of->acc + (size_t)r0 * width + d0;
	FOR_SUMS_OF(rows, vecs)
	sum[r][v] = vec_load(acc + (size_t)r * width + v * VEC_LANES);
	const bool asks = d0 == 0 && r0 == 0 && t->of->asks; /* the other rows of the KV head find them in the caches */
	for (u32 i = begin; i < end; i = i / GROUP * GROUP + GROUP) {
		u32 stop = kern_min(i / GROUP * GROUP + GROUP, end);
		for (u32 quarter = i; asks && quarter < stop; quarter += 4)
			values_ahead(t, quarter);
		values_group(t, kind, i, stop, first, p, rows, vecs, tail, sum);
	}
	FOR_SUMS_OF(rows, vecs)
	vec_store(acc + (size_t)r * width + v * VEC_LANES, sum[r][v]);
}

/* All dimensions: as many vectors at once as fit (two and two instead of three and one), then less, then what is less than one. */
static ALWAYS_INLINE void values_rows(const struct tile *t, enum value_kind kind, u32 begin, u32 end, u32 r0,
				      u32 rows, u32 vecs)
{
	u32 d = 0, dim = t->a->kv.head_dim;
	for (; d + vecs * VEC_LANES <= dim && !(vecs == 3 && dim - d == 4 * VEC_LANES); d += vecs * VEC_LANES)
		values_tile(t, kind, begin, end, d, r0, rows, vecs, VEC_LANES);
	for (; (vecs == 3 || (VEC_LANES == 16 && kind == VALUES_BF16)) && d + 2 * VEC_LANES <= dim; d += 2 * VEC_LANES)
		values_tile(t, kind, begin, end, d, r0, rows, 2, VEC_LANES);
	for (; d + VEC_LANES <= dim; d += VEC_LANES)
		values_tile(t, kind, begin, end, d, r0, rows, 1, VEC_LANES);
	if (d < dim)
		values_tile(t, kind, begin, end, d, r0, rows, 1, dim - d);
}

/* As many rows at once as there are registers for. */
static ALWAYS_INLINE void values_chunk(const struct tile *t, enum value_kind kind, u32 begin, u32 end, u32 rows)
{
	if (rows <= VALUE_ROWS) {
		values_rows(t, kind, begin, end, 0, rows, value_vecs(rows, kind));
		return;
	}
	values_rows(t, kind, begin, end, 0, 4, value_vecs(4, kind));
	values_rows(t, kind, begin, end, 4, rows - 4, value_vecs(rows - 4, kind));
}

#if VEC_LANES == 16
/* Sums of 32 dimensions, as pairs leave them, times `factor` to `out`, in order. */
static ALWAYS_INLINE void write_two(float *out, vec one, vec two, vec factor)
{
	const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
	__m512i x = (__m512i)vec_mul(vec_add(one, vec_zero()), factor), y = (__m512i)vec_mul(vec_add(two, vec_zero()), factor);
	vec_store(out, (vec)_mm512_permutex2var_epi64(x, low, y));
	vec_store(out + VEC_LANES, (vec)_mm512_permutex2var_epi64(x, high, y));
}
#endif

#if VEC_LANES == 16
/* The even and the odd ones of 32 dimensions, times `factor`, to `out`, in order. */
static ALWAYS_INLINE void write_even_odd(float *out, vec even, vec odd, vec factor)
{
	const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
	const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
	vec x = vec_mul(vec_add(even, vec_zero()), factor), y = vec_mul(vec_add(odd, vec_zero()), factor);
	vec_store(out, _mm512_permutex2var_ps(x, low, y));
	vec_store(out + VEC_LANES, _mm512_permutex2var_ps(x, high, y));
}
#endif

/* `out` [dim] = acc * factor, in the order of dimensions; no sum is taken as a negative zero, however the context was cut. */
static void write_sums(float *out, const float *acc, u32 dim, u32 vecs, float factor)
{
	enum { QUADS = VEC_LANES / 4 }; /* four dimensions stay together */
#if VEC_LANES == 16
	for (; vecs == EVEN_ODD && dim >= EVEN_ODD_DIMS; dim -= EVEN_ODD_DIMS, acc += EVEN_ODD_DIMS, out += EVEN_ODD_DIMS)
		write_even_odd(out, vec_load(acc), vec_load(acc + VEC_LANES), vec_set1(factor));
	vecs = vecs == EVEN_ODD ? 1 : vecs;
	for (; vecs == 2 && dim >= 2 * VEC_LANES; dim -= 2 * VEC_LANES, acc += 2 * VEC_LANES, out += 2 * VEC_LANES)
		write_two(out, vec_load(acc), vec_load(acc + VEC_LANES), vec_set1(factor));
#endif
	for (; vecs == 1 && dim >= VEC_LANES; dim -= VEC_LANES, acc += VEC_LANES, out += VEC_LANES)
		vec_store(out, vec_mul(vec_add(vec_load(acc), vec_zero()), vec_set1(factor)));
	const __m128 f = _mm_set1_ps(factor);
	u32 block = 0, part = 0, v = 0; /* the first quad of the block, the 128-bit part, the vector */
	for (u32 d = 0; d < dim; d += 4) {
		__m128 x = _mm_loadu_ps(acc + 4 * (block + v * QUADS + part));
		x = _mm_mul_ps(_mm_add_ps(x, _mm_setzero_ps()), f);
		if (++v == vecs) {
			v = 0;
			part = (part + 1) % QUADS;
			block += part == 0 ? QUADS * vecs : 0;
		}
		if (d + 4 <= dim)
			_mm_storeu_ps(out + d, x);
		else
			_mm_storel_pi((__m64 *)(void *)(out + d), x); /* dim is even */
	}
}

#if ATTENTION_DOTS_BF16
/* A pair of keys: `one` and `two` are their values, `weights` those of the first row. `blocks` times 32 dimensions, of which
 * the last block has `tail`. */
static ALWAYS_INLINE void pair_add(vec sum[ATTENTION_ROWS][4], const char *one, const char *two, const char *weights, u32 rows,
				   u32 blocks, u32 tail)
{
#pragma GCC unroll 2
	for (u32 b = 0; b < blocks; b++) {
		u32 bytes = tail < 32 ? tail * (u32)sizeof(u16) : 64;
		ivec x = bytes < 64 ? ivec_load_bytes(one, bytes) : IVEC_LOAD(one + b * sizeof(ivec));
		ivec y = bytes < 64 ? ivec_load_bytes(two, bytes) : IVEC_LOAD(two + b * sizeof(ivec));
		__m512bh low = (__m512bh)_mm512_unpacklo_epi16(x, y), high = (__m512bh)_mm512_unpackhi_epi16(x, y);
#pragma GCC unroll 8
		for (u32 r = 0; r < rows; r++) {
			u32 pair;
			memcpy(&pair, weights + r * ATTENTION_PART * sizeof(int16_t), sizeof(pair));
			__m512bh weight = (__m512bh)_mm512_set1_epi32((int)pair);
			sum[r][2 * b] = _mm512_dpbf16_ps(sum[r][2 * b], low, weight);
			sum[r][2 * b + 1] = _mm512_dpbf16_ps(sum[r][2 * b + 1], high, weight);
		}
	}
}

enum { UNIT = 32 }; /* keys whose weights are computed at once */

/* The part's whole units of keys, the first 32 dimensions: beside the products of one, which leave the adders idle, the next
 * one's weights. Returns where the keys end. */
static ALWAYS_INLINE u32 pairs_weigh(const struct tile *t, vec sum[ATTENTION_ROWS][4], u32 rows, bool asks)
{
	const size_t stride = t->value_bytes;
	u32 key = 0;
	for (u32 r = 0; r < rows; r++)
		row_weights(t, r, 0);
	for (; key + UNIT <= t->count; key += UNIT) {
		const char *weights = (const char *)(t->weights + key);
		const bool more = key + UNIT < t->count;
#pragma GCC unroll 8
		for (u32 i = 0; i < 8; i++) { /* four keys each */
			const char *one = t->values[key / GROUP + i / 4] + i % 4 * 4 * stride;
			if (asks)
				values_ahead(t, key + 4 * i);
			if (i < rows && more)
				row_weights(t, i, key + UNIT);
			pair_add(sum, one, one + stride, weights + 8 * i, rows, 1, 32);
			pair_add(sum, one + 2 * stride, one + 3 * stride, weights + 8 * i + 4, rows, 1, 32);
		}
	}
	return key;
}

/* Pairs of keys [begin, end): weights and values in bf16, sums in float. `blocks` times 32 dimensions from d0 on, of which
 * the last block has `tail`. */
static ALWAYS_INLINE void pairs_tile(struct tile *t, u32 begin, u32 end, u32 d0, u32 rows, u32 blocks, u32 tail)
{
	vec sum[ATTENTION_ROWS][4];
	float *acc = t->of->acc + d0;
	u32 width = t->lane.width;
	if (begin > 0) {
		FOR_SUMS_OF(rows, 2 * blocks)
		sum[r][v] = vec_load(acc + (size_t)r * width + v * VEC_LANES);
	} else if (t->of->fresh) {
		FOR_SUMS_OF(rows, 2 * blocks)
		sum[r][v] = vec_zero();
	} else {
		FOR_SUMS_OF(rows, 2 * blocks)
		sum[r][v] = vec_mul(vec_load(acc + (size_t)r * width + v * VEC_LANES), vec_set1(t->part->rescale[r]));
	}
	const bool asks = d0 == 0 && t->of->asks; /* the other rows of the KV head find them in the caches */
	if (rows > 4 && d0 == 0 && tail == 32) {
		begin = pairs_weigh(t, sum, rows, asks);
		rows_sum_bf16(t, rows);
	}
	const char *weights = (const char *)(t->weights + begin), *one = NULL;
	const size_t stride = t->value_bytes;
	for (u32 i = begin; i < end; i += 2, one += 2 * stride, weights += 2 * sizeof(int16_t)) {
		if (i % GROUP == 0)
			one = t->values[i / GROUP] + t->head_at + d0 * sizeof(u16);
		if (asks && i % 4 == 0)
			values_ahead(t, i);
		pair_add(sum, one, value_next(t, i, one), weights, rows, blocks, tail);
	}
	if (rows > 4 && tail == 32 && t->writes) {
		for (u32 r = 0; r < rows; r++)
			write_two(t->a->out + t->of->at[r] + d0, sum[r][0], sum[r][1], vec_set1(t->part->factor[r]));
		return;
	}
	FOR_SUMS_OF(rows, 2 * blocks)
	vec_store(acc + (size_t)r * width + v * VEC_LANES, sum[r][v]);
}

/* Keys [begin, end) of the part, whose first ones bring the sums to the part's maxima, too: they are read and written once. */
static ALWAYS_INLINE void pairs_part(struct tile *t, u32 begin, u32 end, u32 rows)
{
	u32 d = 0, dim = t->a->kv.head_dim, width = t->lane.width;
	for (; rows <= 4 && d + 64 <= dim; d += 64)
		pairs_tile(t, begin, end, d, rows, 2, 32);
	for (; d + 32 <= dim; d += 32)
		pairs_tile(t, begin, end, d, rows, 1, 32);
	if (d < dim)
		pairs_tile(t, begin, end, d, rows, 1, dim - d);
	for (u32 r = 0; r < rows && rows > 4 && t->writes && d < dim; r++)
		write_sums(t->a->out + t->of->at[r] + d, t->of->acc + (size_t)r * width + d, dim - d, 2, t->part->factor[r]);
	for (u32 r = 0; r < rows && begin == 0 && t->of->fresh && width >= dim + 32; r++)
		memset(t->of->acc + (size_t)r * width + width - 32, 0, 32 * sizeof(float));
}

#if !ATTENTION_TILES
/* Values in bfloat16 of keys [from, to), `from` the first of a group; of more than 4 rows all of the part, for their weights are computed
 * beside. 32 dimensions are a line, which no other dimensions are in: nothing is gained by coming back soon. */
static void part_values_bf16(struct tile *t, u32 from, u32 to)
{
#define PART_BF16(n)                                   \
	pairs_part(t, from, to, n);                     \
	if (!weighs_beside(t) && to == t->count) \
		rows_sum_bf16(t, n);
	FOR_ROWS(PART_BF16)
}
#endif
#endif

/* Whole numbers: `rows` rows from r0 on, one block of dimensions, of which `tail` bytes are there. */
static ALWAYS_INLINE void wholes_tile(const struct tile *t, u32 begin, u32 end, u32 d0, u32 r0, u32 rows,
				      u32 tail)
{
	ivec sum[I8_ROWS][I8_VECS];
	const ivec zero = IVEC_BITS(setzero)();
	u32 width = t->lane.width;
	i32 *sums = t->sums + (size_t)r0 * width + d0;
	FOR_SUMS_OF(rows, I8_VECS)
	sum[r][v] = IVEC_LOAD(sums + (size_t)r * width + v * VEC_LANES);
	for (u32 i = begin; i < end; i += 2) {
		const char *one = value_at(t, i) + d0, *two = value_next(t, i, one);
		if (d0 == 0 && r0 == 0 && i % 4 == 0)
			values_ahead(t, i);
		ivec x = tail < sizeof(ivec) ? ivec_load_bytes(one, tail) : IVEC_LOAD(one);
		ivec y = tail < sizeof(ivec) ? ivec_load_bytes(two, tail) : IVEC_LOAD(two);
		ivec low = IVEC(unpacklo_epi8)(x, y), high = IVEC(unpackhi_epi8)(x, y);
		ivec pairs[I8_VECS] = {IVEC(unpacklo_epi8)(low, zero), IVEC(unpackhi_epi8)(low, zero),
				       IVEC(unpacklo_epi8)(high, zero), IVEC(unpackhi_epi8)(high, zero)};
#pragma GCC unroll 4
		for (u32 r = 0; r < rows; r++) {
			i32 pair;
			memcpy(&pair, t->weights + (r0 + r) * ATTENTION_PART + i, sizeof(pair));
#pragma GCC unroll 4
			for (u32 v = 0; v < I8_VECS; v++)
				ivec_add_dot16(&sum[r][v], pairs[v], IVEC(set1_epi32)(pair));
		}
	}
	FOR_SUMS_OF(rows, I8_VECS)
	IVEC_STORE(sums + (size_t)r * width + v * VEC_LANES, sum[r][v]);
}

static ALWAYS_INLINE void wholes_rows(const struct tile *t, u32 begin, u32 end, u32 r0, u32 rows)
{
	u32 d = 0, bytes = t->words * (u32)sizeof(u32);
	for (; d + sizeof(ivec) <= bytes; d += sizeof(ivec))
		wholes_tile(t, begin, end, d, r0, rows, sizeof(ivec));
	if (d < bytes)
		wholes_tile(t, begin, end, d, r0, rows, bytes - d);
}

static void wholes_chunk(const struct tile *t, u32 begin, u32 end)
{
	u32 r = 0;
	for (; r + I8_ROWS <= t->of->count; r += I8_ROWS)
		wholes_rows(t, begin, end, r, I8_ROWS);
	for (; r + 2 <= t->of->count; r += 2)
		wholes_rows(t, begin, end, r, 2);
	if (r < t->of->count)
		wholes_rows(t, begin, end, r, 1);
}

/* acc = acc * rescale, and for whole numbers + what the part's sums stand for. */
static void rescale_rows(const struct tile *t)
{
	if (t->of->fresh)
		memset(t->of->acc, 0, (size_t)t->of->count * t->lane.width * sizeof(float));
	for (u32 r = 0; r < t->of->count && !t->of->fresh; r++)
		for (u32 d = 0; d < t->lane.width; d += VEC_LANES) {
			float *acc = t->of->acc + (size_t)r * t->lane.width + d;
			vec_store(acc, vec_mul(vec_load(acc), vec_set1(t->part->rescale[r])));
		}
}

static void add_wholes(const struct tile *t)
{
	for (u32 r = 0; r < t->of->count; r++)
		for (u32 d = 0; d < t->lane.width; d += VEC_LANES) {
			size_t at = (size_t)r * t->lane.width + d;
			ivec whole = IVEC(sub_epi32)(IVEC_LOAD(t->sums + at),
						     IVEC(set1_epi32)((int)t->part->weight_excess[r]));
			vec_store(t->of->acc + at,
				  vec_fma(IVEC(cvtepi32_ps)(whole), vec_set1(t->part->weight_unit[r]),
					  vec_load(t->of->acc + at)));
		}
}

/* The part's values into `acc`. */
static inline void part_values(struct tile *t)
{
	enum kern_dtype dtype = t->a->kv.dtype;
#if ATTENTION_DOTS_BF16 && !ATTENTION_TILES
	if (dtype == KERN_BF16) {
		part_values_bf16(t, 0, t->count);
		return;
	}
#endif
	rescale_rows(t);
	if (dtype == KERN_I8)
		memset(t->sums, 0, (size_t)t->of->count * t->lane.width * sizeof(i32));
	for (u32 begin = 0; begin < t->count; begin += CHUNK) {
		u32 end = kern_min(begin + CHUNK, t->count);
#define CHUNK_F32(n) values_chunk(t, VALUES_F32, begin, end, TILED(n));
#define CHUNK_F8(n)  values_chunk(t, VALUES_F8, begin, end, n);
#define CHUNK_BF16(n) values_chunk(t, VALUES_BF16, begin, end, TILED(n));
		if (ATTENTION_IS(dtype, KERN_I8))
			wholes_chunk(t, begin, end);
		else if (ATTENTION_IS(dtype, KERN_F32))
			FOR_ROWS(CHUNK_F32)
		else if (ATTENTION_IS(dtype, KERN_BF16))
			FOR_ROWS(CHUNK_BF16)
		else if (ATTENTION_IS(dtype, KERN_F8E4M3))
			FOR_ROWS(CHUNK_F8)
	}
	if (dtype == KERN_I8)
		add_wholes(t);
}

/* Vectors of a block in which the dimensions of `acc` are out of order; 1: they are not; EVEN_ODD: in blocks of EVEN_ODD_DIMS, as far as there
 * are whole ones. */
static u32 block_vecs(enum kern_dtype dtype)
{
	if (dtype == KERN_I8)
		return I8_VECS;
	if (dtype == KERN_I16)
		return 2;
	if (dtype != KERN_BF16)
		return 1;
	return ATTENTION_DOTS_BF16 ? 2 : VEC_LANES == 16 ? EVEN_ODD : 1;
}

#endif

#endif
