/* Few rows times weights in steps (KERN_I4_STEPS), for AVX-512 with VNNI: what packing adds to a group of inputs, and the whole numbers of a group of a
 * tile. Included by cpu/matmul_quantized.c alone.
 *
 * A product of weights' bytes by m takes the multipliers as long as VPDPBUSD does: all of them cost what one row more costs. */
#ifndef TERCET_KERNELS_CPU_MATMUL_STEPS_AVX512_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_STEPS_AVX512_PRIV_H

#include "kernels/cpu/matmul_dots_avx512_priv.h"

#ifdef __AVX512VNNI__

/* Of the sums of the parts of a group words `stride` apart: the first and the third in 16 bits, the second and the fourth, then each times -8. */
static ALWAYS_INLINE void store_part_sums(char *to, size_t stride, const signed char *q)
{
	enum { ALL_OF_128 = 128 * KERN_STEPS_PART };
	const __m512i top = _mm512_set1_epi8((char)128), none = _mm512_setzero_si512();
	__m512i a = _mm512_sad_epu8(_mm512_xor_si512(_mm512_loadu_si512(q), top), none);
	__m512i b = _mm512_sad_epu8(_mm512_xor_si512(_mm512_loadu_si512(q + 64), top), none);
	__m512i both = _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
	__m256i halves[2] = {_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64(both, 1)};
#pragma GCC unroll 2
	for (u32 i = 0; i < 2; i++, to += stride) {
		__m128i two = _mm_add_epi64(_mm256_castsi256_si128(halves[i]), _mm256_extracti128_si256(halves[i], 1));
		u32 first = (u32)_mm_cvtsi128_si32(two) - ALL_OF_128, third = (u32)_mm_extract_epi32(two, 2) - ALL_OF_128;
		u32 pair = (first & 0xffff) | third << 16;
		first *= (u32)-8;
		third *= (u32)-8;
		memcpy(to, &pair, 4);
		memcpy(to + 2 * stride, &first, 4);
		memcpy(to + 4 * stride, &third, 4);
	}
}

/* So few rows add up q - 8 and multiply a part's sums by m, which 16 bits hold: 32 * 8 * 127 at most. With more the bytes are multiplied, for all
 * rows at once. */
enum { SUMS_BY_M_ROWS = 4 };

/* Of a group's columns m of every part, as bytes of a lane: those of the first and the third part, of the second and the fourth. */
struct steps {
	ivec even[VECS_OF_ONE], odd[VECS_OF_ONE];
};

/* Sums that begin with what c, or where bytes of m * q are added to it c - 8 * m, makes. */
static ALWAYS_INLINE void begin_steps(const struct matmul_tile *t, u32 rows, u32 vecs, const char *group, const char *sums,
				      struct steps *steps, ivec sum[][VECS_OF_ONE])
{
	const ivec nibbles = ivec_set1_8(15);
	/* A lane's first two bytes in the lower bytes of the lane's words. */
	const ivec two = _mm512_set4_epi32((i32)0x800d800c, (i32)0x80098008, (i32)0x80058004, (i32)0x80018000);
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++) {
		ivec head = ivec_load(unit_of(t, group, v)), c = ivec_load(unit_of(t, group + KERN_PANEL * 4, v));
		ivec even = _mm512_srai_epi16(_mm512_slli_epi16(c, 8), 8), odd = _mm512_srai_epi16(c, 8);
		steps->even[v] = ivec_and(head, nibbles);
		steps->odd[v] = ivec_high4(head);
		if (rows > SUMS_BY_M_ROWS) {
			even = _mm512_sub_epi16(even, _mm512_slli_epi16(_mm512_shuffle_epi8(steps->even[v], two), 3));
			odd = _mm512_sub_epi16(odd, _mm512_slli_epi16(_mm512_shuffle_epi8(steps->odd[v], two), 3));
		}
#pragma GCC unroll 12
		for (u32 r = 0; r < rows; r++)
			sum[r][v] = _mm512_dpwssd_epi32(_mm512_madd_epi16(even, four_inputs(sums + r * 4)), odd,
							four_inputs(sums + (rows + r) * 4));
	}
}

/* A unit: times bytes of q or, where there is m, of m * q: two of them are a number of 16 bits, of which m times as much needs no more, and those
 * in the upper halves are brought down by the same product. */
static ALWAYS_INLINE void add_unit(const struct matmul_tile *t, u32 rows, u32 vecs, const char *unit, const char *x, const ivec *m,
				   ivec sum[][VECS_OF_ONE], enum tile_asks asks, struct tile_fetch *fetch)
{
	const ivec lower = ivec_set1_8(15), upper = ivec_set1_8((char)0xf0);
	ivec low[VECS_OF_ONE], high[VECS_OF_ONE];
	if (asks == TILE_ASKS_IN_ORDER)
		tile_prefetch_in_order(fetch, rows > 1, rows > 1);
	else if (asks == TILE_ASKS_PAIR)
		tile_ask_pair(fetch, rows <= TILE_PAIR_TWICE_ROWS);
	else if (asks == TILE_ASKS)
		tile_prefetch(t, fetch);
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++) {
		ivec both = ivec_load(unit_of(t, unit, v));
		low[v] = ivec_and(both, lower);
		low[v] = m ? _mm512_mullo_epi16(low[v], m[v]) : low[v];
		high[v] = m ? _mm512_mulhi_epu16(ivec_and(both, upper), _mm512_slli_epi16(m[v], 12)) : ivec_high4(both);
	}
	add_eight(rows, rows, vecs, low, high, x, sum);
}

enum { PART_UNITS = KERN_STEPS_PART / 8 };

/* Units of a part, written out where it is whole and bytes are multiplied: others gain nothing by it. */
static ALWAYS_INLINE void add_part(const struct matmul_tile *t, u32 rows, u32 vecs, const char *units, const char *x, u32 count,
				   const ivec *m, ivec sum[][VECS_OF_ONE], enum tile_asks asks, struct tile_fetch *fetch)
{
	if (m && count == PART_UNITS) {
#pragma GCC unroll 4
		for (u32 u = 0; u < PART_UNITS; u++)
			add_unit(t, rows, vecs, units + u * KERN_GROUP_UNIT, x + u * (size_t)rows * 8, m, sum, asks, fetch);
		return;
	}
#pragma GCC unroll 1
	for (u32 u = 0; u < count; u++, units += KERN_GROUP_UNIT, x += rows * 8)
		add_unit(t, rows, vecs, units, x, m, sum, asks, fetch);
}

/* Two parts at a time, of `before` units the first, of `behind` the second, of few rows. `eights`: -8 times the inputs' sums of both. */
static ALWAYS_INLINE void add_sums_by_m(const struct matmul_tile *t, u32 rows, u32 vecs, const char *units, const char *x, u32 before, u32 behind,
					const char *eights, const ivec m[], ivec sum[][VECS_OF_ONE], enum tile_asks asks, struct tile_fetch *fetch)
{
	ivec first[SUMS_BY_M_ROWS][VECS_OF_ONE], second[SUMS_BY_M_ROWS][VECS_OF_ONE];
#pragma GCC unroll 16
	for (u32 i = 0; i < rows * vecs; i++)
		first[i / vecs][i % vecs] = four_inputs(eights + i / vecs * 4);
	add_part(t, rows, vecs, units, x, before, NULL, first, asks, fetch);
#pragma GCC unroll 16
	for (u32 i = 0; i < rows * vecs; i++)
		second[i / vecs][i % vecs] = four_inputs(eights + (rows + i / vecs) * 4);
	add_part(t, rows, vecs, units + before * KERN_GROUP_UNIT, x + before * (size_t)rows * 8, behind, NULL, second, asks, fetch);
#pragma GCC unroll 4
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			ivec pair = _mm512_mask_blend_epi16(0x55555555, _mm512_slli_epi32(second[r][v], 16), first[r][v]);
			sum[r][v] = _mm512_dpwssd_epi32(sum[r][v], pair, m[v]);
		}
}

/* Unit `u` of a pair, of one row: upper halves stay where they are. */
static ALWAYS_INLINE void add_unit_of_one(const struct matmul_tile *t, const char *units, const char *x, u32 u, ivec low[], ivec high[],
					  enum tile_asks asks, bool far, const struct tile_fetch *fetch)
{
	const ivec lower = ivec_set1_8(15), upper = ivec_set1_8((char)0xf0);
	const ivec first = four_inputs(x + u * 8), second = four_inputs(x + u * 8 + 4);
#pragma GCC unroll 4
	for (u32 v = 0; v < VECS_OF_ONE; v++) {
		const u32 at = u * KERN_GROUP_UNIT + v * (u32)sizeof(ivec);
		ivec both = ivec_load(unit_of(t, units + u * KERN_GROUP_UNIT, v));
		low[v] = dot_int4(low[v], ivec_and(both, lower), first);
		high[v] = dot_int4(high[v], ivec_and(both, upper), second);
		if (asks == TILE_ASKS_IN_ORDER && v == 0)
			tile_ask_in_order(fetch, fetch->at + u * KERN_GROUP_UNIT, false);
		if (asks == TILE_ASKS_PAIR) {
			tile_ask(fetch->at + v * fetch->apart + u * TILE_LINE, true);
			tile_ask(fetch->near + v * fetch->near_apart + u * TILE_LINE, false);
		}
		if (asks == TILE_ASKS)
			tile_ask(fetch->at + at, far);
		if (asks == TILE_ASKS && far)
			tile_ask(fetch->near + at, false);
	}
}

/* Part `p` of a pair, whose upper halves' sums are divided at the end. */
static ALWAYS_INLINE void add_part_of_one(const struct matmul_tile *t, const char *units, const char *x, u32 p, ivec eight, ivec part[],
					  enum tile_asks asks, bool far, const struct tile_fetch *fetch)
{
	const u32 begin = p * PART_UNITS, end = begin + PART_UNITS;
	ivec low[VECS_OF_ONE], high[VECS_OF_ONE];
#pragma GCC unroll 4
	for (u32 v = 0; v < VECS_OF_ONE; v++) {
		low[v] = eight;
		high[v] = ivec_set1_32(0);
	}
	if (far)
#pragma GCC unroll 4
		for (u32 u = begin; u < end; u++)
			add_unit_of_one(t, units, x, u, low, high, asks, far, fetch);
	else
#pragma GCC unroll 1
		for (u32 u = begin; u < end; u++)
			add_unit_of_one(t, units, x, u, low, high, asks, far, fetch);
#pragma GCC unroll 4
	for (u32 v = 0; v < VECS_OF_ONE; v++)
		part[v] = _mm512_add_epi32(low[v], _mm512_srai_epi32(high[v], 4));
}

/* Two whole parts of one row with as little as there can be between the products. Written out where lines are asked for `far`; elsewhere the
 * processor asks, which for Zen 4 goes by where a load is in the code: two loads that step through all units are followed, sixteen are not. */
static ALWAYS_INLINE void add_pair_of_one(const struct matmul_tile *t, const char *units, const char *x, const char *eights, const ivec m[],
					  ivec sum[VECS_OF_ONE], enum tile_asks asks, bool far, struct tile_fetch *fetch)
{
	ivec part[2][VECS_OF_ONE];
	if (far)
#pragma GCC unroll 2
		for (u32 p = 0; p < 2; p++)
			add_part_of_one(t, units, x, p, four_inputs(eights + p * 4), part[p], asks, far, fetch);
	else
#pragma GCC unroll 1
		for (u32 p = 0; p < 2; p++)
			add_part_of_one(t, units, x, p, four_inputs(eights + p * 4), part[p], asks, far, fetch);
	const u32 line = asks == TILE_ASKS_PAIR ? TILE_LINE : KERN_GROUP_UNIT;
	fetch->at += 2 * PART_UNITS * line;
	fetch->near += 2 * PART_UNITS * line;
#pragma GCC unroll 4
	for (u32 v = 0; v < VECS_OF_ONE; v++) {
		ivec pair = _mm512_mask_blend_epi16(0x55555555, _mm512_slli_epi32(part[1][v], 16), part[0][v]);
		sum[v] = _mm512_dpwssd_epi32(sum[v], pair, m[v]);
	}
}

static ALWAYS_INLINE void add_steps(const struct matmul_tile *t, u32 rows, u32 vecs, const char *units, const char *x, u32 count, const char *eights,
				    const struct steps *steps, ivec sum[][VECS_OF_ONE], enum tile_asks asks, struct tile_fetch *fetch)
{
	/* A lane's first byte, and then its second, in the lower bytes of the lane's words. */
	ivec which = _mm512_set4_epi32((i32)0x800c800c, (i32)0x80088008, (i32)0x80048004, (i32)0x80008000);
#pragma GCC unroll 1
	for (u32 part = 0; part * PART_UNITS < count; part += 2) {
		const u32 left = count - part * PART_UNITS, first = kern_min(left, PART_UNITS), second = kern_min(left - first, PART_UNITS);
		ivec even[VECS_OF_ONE], odd[VECS_OF_ONE], both[VECS_OF_ONE];
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			even[v] = _mm512_shuffle_epi8(steps->even[v], which);
			odd[v] = _mm512_shuffle_epi8(steps->odd[v], which);
			both[v] = _mm512_mask_blend_epi16(0xaaaaaaaa, even[v], odd[v]);
		}
		if (rows == 1 && second == PART_UNITS && t->prefetch_far == MATMUL_FAR) {
			add_pair_of_one(t, units, x, eights, both, sum[0], asks, true, fetch);
		} else if (rows == 1 && second == PART_UNITS) {
			add_pair_of_one(t, units, x, eights, both, sum[0], asks, false, fetch);
		} else if (rows <= SUMS_BY_M_ROWS) {
			add_sums_by_m(t, rows, vecs, units, x, first, second, eights, both, sum, asks, fetch);
		} else {
			add_part(t, rows, vecs, units, x, first, even, sum, asks, fetch);
			add_part(t, rows, vecs, units + first * KERN_GROUP_UNIT, x + first * (size_t)rows * 8, second, odd, sum, asks, fetch);
		}
		units += 2 * PART_UNITS * KERN_GROUP_UNIT;
		x += 2 * PART_UNITS * (size_t)rows * 8;
		eights += 2 * (size_t)rows * 4;
		which = _mm512_add_epi8(which, _mm512_set1_epi16(1));
	}
}

#endif
#endif
