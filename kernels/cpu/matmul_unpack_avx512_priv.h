/* What products of many rows with AVX-512 make of a panel's block before its tiles: bytes of weights in 4 bits, tables of the scales of weights
 * in 8 bits. */
#ifndef TERCET_KERNELS_CPU_MATMUL_UNPACK_AVX512_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_UNPACK_AVX512_PRIV_H

#include "kernels/cpu/matmul_blocked_tile_priv.h"
#include "kernels/cpu/rounding_priv.h"

#if defined(VEC_LANES) && VEC_LANES == 16

#ifndef UNPACKED_OFFSET
#define UNPACKED_OFFSET 128 /* what is added to bytes, so that they have no sign; tiles take them with one, and define it as 0 */
#endif

enum {
	EIGHTHS = 8, /* of a table */
	TABLE_ROW = KERN_PANEL * 4,
	TABLE = EIGHTHS * TABLE_ROW,
};

/* ---------------------------------------------------------------- weights in 4 bits */

/* Unpacked as KERN_I8, but for bytes' offset: groups of scales [32] in float and bytes [k / 4][32][4]. Zeros that are no eighths lie behind
 * all groups, [group][32] floats, for they are multiplied by -128 times the inputs' sum as 1 / 128 of what they are;
 * bytes are then q. */

static vec load_f16(const char *halves)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)halves));
}

/* One vector of a group's columns. `shift` 3: bytes become 8 * q + offset; 0: they stay q. */
static ALWAYS_INLINE void unpack_units(const char *from, u32 units, u32 shift, __m512i offset, char *to)
{
	const __m512i mask = _mm512_set1_epi8((char)(15 << shift));
	for (u32 u = 0; u < units; u++, from += KERN_GROUP_UNIT, to += 2 * (size_t)KERN_GROUP_UNIT) {
		__m512i both = _mm512_loadu_si512(from);
		__m512i low = _mm512_and_si512(_mm512_slli_epi16(both, shift), mask);
		__m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4 - shift), mask);
		_mm512_storeu_si512(to, _mm512_add_epi8(low, offset));
		_mm512_storeu_si512(to + KERN_GROUP_UNIT, _mm512_add_epi8(high, offset));
	}
}

/* Of a block of groups whose bytes become 8 * (q - zero): their scales, and behind all groups the bytes' offsets as struct rows_spread has
 * them. False where a zero is no such eighth; then `to` holds nothing of use. */
static bool eighths_heads(const char *from, u32 width, u32 k_count, char *to)
{
	const __m512i bytes_of_lanes = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
	const size_t bytes = KERN_GROUP_HEAD + (size_t)width * KERN_PANEL;
	char *offsets = to + kern_ceil(k_count, width) * bytes;
	__mmask16 exact = 0xffff;
	for (u32 k = 0; k < k_count; k += width) {
		for (u32 v = 0; v < VECS; v++) {
			vec zero = load_f16(from + KERN_PANEL * 2 + v * 32);
			__m512i eighths = _mm512_cvtps_epi32(vec_mul(zero, vec_set1(8)));
			vec back = vec_mul(_mm512_cvtepi32_ps(eighths), vec_set1(0.125f));
			__m512i offset = _mm512_sub_epi32(_mm512_set1_epi32(UNPACKED_OFFSET), eighths); /* of -7 .. 128 eighths 0 .. 135, less 128 with a sign */
			exact &= _mm512_cmp_ps_mask(zero, back, _CMP_EQ_OQ);
			exact &= _mm512_cmple_epu32_mask(_mm512_sub_epi32(_mm512_set1_epi32(128), eighths), _mm512_set1_epi32(135));
			vec_store((float *)(void *)to + v * VEC_LANES, vec_mul(load_f16(from + v * 32), vec_set1(0.125f)));
			_mm512_storeu_si512(offsets + v * 64, _mm512_shuffle_epi8(offset, bytes_of_lanes));
		}
		from += KERN_GROUP_HEAD + width / 8 * KERN_GROUP_UNIT;
		to += bytes;
		offsets += KERN_PANEL * 4;
	}
	return exact == 0xffff;
}

/* The bytes that belong to such heads. */
static void eighths_bytes(const char *from, u32 width, u32 k_count, char *to)
{
	const size_t bytes = KERN_GROUP_HEAD + (size_t)width * KERN_PANEL;
	const char *offsets = to + kern_ceil(k_count, width) * bytes;
	for (u32 k = 0; k < k_count; k += width) {
		u32 count = kern_ceil(kern_min(width, k_count - k), 8);
		for (u32 v = 0; v < VECS; v++, offsets += 64)
			unpack_units(from + KERN_GROUP_HEAD + v * 64, count, 3, _mm512_loadu_si512(offsets), to + KERN_GROUP_HEAD + v * 64);
		from += KERN_GROUP_HEAD + width / 8 * KERN_GROUP_UNIT;
		to += bytes;
	}
}

/* Heads and bytes of any zeros: bytes stay q, and zeros lie behind all groups. */
static void unpack_zeros(const char *from, u32 width, u32 k_count, char *to)
{
	const size_t bytes = KERN_GROUP_HEAD + (size_t)width * KERN_PANEL;
	float *zeros = (float *)(void *)(to + kern_ceil(k_count, width) * bytes);
	for (u32 k = 0; k < k_count; k += width) {
		u32 count = kern_ceil(kern_min(width, k_count - k), 8);
		for (u32 v = 0; v < VECS; v++) {
			vec zero = load_f16(from + KERN_PANEL * 2 + v * 32);
			vec_store((float *)(void *)to + v * VEC_LANES, load_f16(from + v * 32));
			vec_store(zeros + v * VEC_LANES, vec_mul(zero, vec_set1(0x1p-7f)));
			unpack_units(from + KERN_GROUP_HEAD + v * 64, count, 0, _mm512_setzero_si512(),
				     to + KERN_GROUP_HEAD + v * 64);
		}
		from += KERN_GROUP_HEAD + width / 8 * KERN_GROUP_UNIT;
		to += bytes;
		zeros += KERN_PANEL;
	}
}

/* blocked_kernel.unpack for `tiles`, which does the rest of BLOCKED_POWERS. */
static enum blocked_scales unpack_heads(const struct kern_weight *w, const char *from, u32 k_count, bool any_scales, char *to)
{
	const u32 width = kern_dtype_group(w->dtype);
	if (!any_scales && eighths_heads(from, width, k_count, to))
		return BLOCKED_POWERS;
	unpack_zeros(from, width, k_count, to);
	return BLOCKED_ZEROS;
}

static inline enum blocked_scales unpack_int4(const struct kern_weight *w, const char *from, u32 k_count, bool any_scales, char *to)
{
	enum blocked_scales scales = unpack_heads(w, from, k_count, any_scales, to);
	if (scales == BLOCKED_POWERS)
		eighths_bytes(from, kern_dtype_group(w->dtype), k_count, to);
	return scales;
}

/* ---------------------------------------------------------------- weights in 4 bits in steps */

/* Of a part of a group: what its columns are multiplied by and what is added, [2 vectors] each. A word is m times two values in
 * the lower halves of bytes; the upper half of m times 2^12 times two in the upper halves. */
struct step_part {
	__m512i lower[VECS], upper[VECS], offsets[VECS];
};

/* Of a block of groups whose bytes become m * (q - 8) + c + UNPACKED_OFFSET: their scales, and behind all groups the parts. Its groups' scales may be multiplied by
 * all powers that BLOCKED_POWERS has, for they are no less than 2^-24 and, unless loading refuses the values, less than 2^16, as halves are. */
static void steps_heads(const char *from, u32 k_count, char *to)
{
	const size_t bytes = KERN_GROUP_HEAD + (size_t)KERN_GROUP_MAX * KERN_PANEL;
	const __m512i nibbles = _mm512_set1_epi8(15), of_lane = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
	const __m512i of_word = _mm512_or_si512(_mm512_and_si512(of_lane, _mm512_set1_epi16(255)), _mm512_set1_epi16((short)0x8000));
	struct step_part *parts = (struct step_part *)(void *)(to + kern_ceil(k_count, KERN_GROUP_MAX) * bytes);
	for (u32 k = 0; k < k_count; k += KERN_GROUP_MAX, to += bytes, parts += KERN_STEPS_PARTS) {
		for (u32 v = 0; v < VECS; v++) {
			__m512i head = _mm512_loadu_si512(from + v * 64), centres = _mm512_loadu_si512(from + (VECS + v) * 64);
			__m512i even = _mm512_and_si512(head, nibbles), odd = _mm512_and_si512(_mm512_srli_epi16(head, 4), nibbles);
			/* Of a lane its bytes 0, 0, 1 and 1, of which each vector has those that are its own. */
			__m512i own = _mm512_add_epi8(of_lane, _mm512_set1_epi32(0x01010000));
			__m512i all = _mm512_or_si512(_mm512_maskz_shuffle_epi8(0x5555555555555555, even, own),
						      _mm512_maskz_shuffle_epi8(0xaaaaaaaaaaaaaaaa, odd, own));
			__m512i offsets = _mm512_sub_epi8(_mm512_add_epi8(centres, _mm512_set1_epi8((char)UNPACKED_OFFSET)), _mm512_slli_epi16(all, 3));
			_mm512_storeu_si512(to + v * 64, _mm512_and_si512(head, _mm512_set1_epi32((i32)0xffff0000)));
#pragma GCC unroll 4
			for (u32 p = 0; p < KERN_STEPS_PARTS; p++) {
				__m512i m = _mm512_shuffle_epi8(p % 2 ? odd : even, _mm512_add_epi8(of_word, _mm512_set1_epi16((short)(p / 2))));
				__m512i offset = _mm512_shuffle_epi8(offsets, _mm512_add_epi8(of_lane, _mm512_set1_epi8((char)p)));
				_mm512_storeu_si512(&parts[p].lower[v], m);
				_mm512_storeu_si512(&parts[p].upper[v], _mm512_slli_epi16(m, 12));
				_mm512_storeu_si512(&parts[p].offsets[v], offset);
			}
		}
		from += KERN_STEPS_HEAD + KERN_GROUP_MAX / 8 * KERN_GROUP_UNIT;
	}
}

enum { UNITS_OF_PART = KERN_STEPS_PART / 8 };

/* Of up to UNITS_OF_PART units. A part's numbers go into registers once: a copy of them that the compiler makes in memory costs more than the units. */
static ALWAYS_INLINE void part_bytes(const char *units, const struct step_part *part, u32 count, char *to)
{
	const __m512i lower = _mm512_set1_epi8(15), upper = _mm512_set1_epi8((char)0xf0);
	__m512i m[VECS], high_m[VECS], offsets[VECS];
#pragma GCC unroll 2
	for (u32 v = 0; v < VECS; v++) {
		m[v] = _mm512_loadu_si512(&part->lower[v]);
		high_m[v] = _mm512_loadu_si512(&part->upper[v]);
		offsets[v] = _mm512_loadu_si512(&part->offsets[v]);
	}
#pragma GCC unroll 4
	for (u32 u = 0; u < count; u++, units += KERN_GROUP_UNIT, to += 2 * (size_t)KERN_GROUP_UNIT)
#pragma GCC unroll 2
		for (u32 v = 0; v < VECS; v++) {
			__m512i both = _mm512_loadu_si512(units + v * 64);
			__m512i low = _mm512_mullo_epi16(_mm512_and_si512(both, lower), m[v]);
			__m512i high = _mm512_mulhi_epu16(_mm512_and_si512(both, upper), high_m[v]);
			_mm512_storeu_si512(to + v * 64, _mm512_add_epi8(low, offsets[v]));
			_mm512_storeu_si512(to + KERN_GROUP_UNIT + v * 64, _mm512_add_epi8(high, offsets[v]));
		}
}

/* The bytes that belong to such heads. */
static void steps_bytes(const char *from, u32 k_count, char *to)
{
	const size_t bytes = KERN_GROUP_HEAD + (size_t)KERN_GROUP_MAX * KERN_PANEL;
	const char *parts = to + kern_ceil(k_count, KERN_GROUP_MAX) * bytes;
	for (u32 k = 0; k < k_count; k += KERN_GROUP_MAX, to += bytes, parts += KERN_STEPS_PARTS * sizeof(struct step_part)) {
		const u32 count = kern_ceil(kern_min(KERN_GROUP_MAX, k_count - k), 8);
		const char *units = from + KERN_STEPS_HEAD;
		char *spread = to + KERN_GROUP_HEAD;
		for (u32 u = 0; u < count; u += UNITS_OF_PART) {
			const struct step_part *part = (const struct step_part *)(const void *)(parts + u / UNITS_OF_PART * sizeof(*part));
			if (count - u >= UNITS_OF_PART)
				part_bytes(units, part, UNITS_OF_PART, spread);
			else
				part_bytes(units, part, count - u, spread);
			units += UNITS_OF_PART * KERN_GROUP_UNIT;
			spread += 2 * UNITS_OF_PART * KERN_GROUP_UNIT;
		}
		from += KERN_STEPS_HEAD + KERN_GROUP_MAX / 8 * KERN_GROUP_UNIT;
	}
}

/* blocked_kernel.unpack; where inputs' scales leave powers' range, sums take back the 128 as zeros of one for all. */
static inline enum blocked_scales unpack_steps(const struct kern_weight *w, const char *from, u32 k_count, bool any_scales, char *to)
{
	const u32 groups = kern_ceil(k_count, KERN_GROUP_MAX);
	float *zeros = (float *)(void *)(to + groups * (KERN_GROUP_HEAD + (size_t)KERN_GROUP_MAX * KERN_PANEL));
	(void)w;
	steps_heads(from, k_count, to);
	steps_bytes(from, k_count, to);
	if (!any_scales)
		return BLOCKED_POWERS;
	for (u32 n = 0; n < groups * KERN_PANEL; n++)
		zeros[n] = 1;
	return BLOCKED_ZEROS;
}

/* The same for `tiles_steps`, which does the rest of BLOCKED_POWERS. */
static inline enum blocked_scales unpack_steps_heads(const struct kern_weight *w, const char *from, u32 k_count, bool any_scales, char *to)
{
	if (any_scales)
		return unpack_steps(w, from, k_count, any_scales, to);
	steps_heads(from, k_count, to);
	return BLOCKED_POWERS;
}

/* ---------------------------------------------------------------- tables of weights in 8 bits */

/* blocked_kernel.tabulate. Whoever multiplies both scales first gets the same bits as long as nothing leaves a normal float's range: neither
 * products with the least of the inputs' powers nor with the greatest. */
static inline enum blocked_scales tabulate(const struct kern_weight *w, const char *from, u32 k_count, bool any_scales, char *to)
{
	const __m512i sign = _mm512_set1_epi32(0x7fffffff);
	const u32 least = (127 - 126 + 127 - POWER_LEAST) << POWER_SHIFT, most = (127 + 127 - 2 - (POWER_MOST - 127)) << POWER_SHIFT;
	__mmask16 some = 0;
	(void)w;
	if (any_scales)
		return BLOCKED_ANY;
	for (u32 k = 0; k < k_count; k += KERN_GROUP_MAX, from += KERN_GROUP_HEAD + KERN_GROUP_MAX * KERN_PANEL, to += TABLE) {
		for (u32 v = 0; v < KERN_PANEL; v += VEC_LANES) {
			vec scale = vec_load((const float *)(const void *)from + v);
			__m512i bits = _mm512_and_si512(_mm512_castps_si512(scale), sign);
			some |= _mm512_mask_cmpge_epu32_mask(_mm512_cmpneq_epi32_mask(bits, _mm512_setzero_si512()),
							     _mm512_sub_epi32(bits, _mm512_set1_epi32((i32)least)),
							     _mm512_set1_epi32((i32)(most - least)));
#pragma GCC unroll 8
			for (u32 i = 0; i < EIGHTHS; i++)
				vec_store((float *)(void *)(to + i * TABLE_ROW) + v, vec_mul(scale, vec_set1(1 + (float)i / EIGHTHS)));
		}
	}
	return some ? BLOCKED_ANY : BLOCKED_EIGHTHS;
}

#endif
#endif
