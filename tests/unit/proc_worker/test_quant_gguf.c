#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "common/gguf.h"
#include "proc_worker/model/quant_gguf.h"

enum { SUPER = QUANT_GGUF_BLOCK };

/* Q4_1: a scale, what is added, and codes 0 to 15, twice. */
static void make_q4_1(u8 block[20], u32 scale, u32 least)
{
	const u8 head[4] = {(u8)scale, (u8)(scale >> 8), (u8)least, (u8)(least >> 8)};

	memcpy(block, head, sizeof(head));
	for (u32 i = 0; i < 16; i++)
		block[4 + i] = (u8)(i | i << 4);
}

enum { ONE = 0x3c00, LARGEST = 0x7bff, LEAST = 0x0001, NO_NUMBER = 0x7e00, INFINITE = 0x7c00, THIRD = 0x3555 };

/* How far scale * (code - zero) is off at most, relative to the largest value. */
static float held_off(u32 type, const u8 *block)
{
	float values[32], scale, zero, most = 0, off = 0;
	u8 codes[32];

	quant_gguf_values(type, block, 0, 32, values);
	quant_gguf_codes(type, block, 0, 32, codes, &scale, &zero);
	cr_assert(isfinite(scale) && isfinite(zero) && fabsf(scale) < 65520 && fabsf(zero) < 65520, "%g %g", (double)scale, (double)zero);
	for (u32 i = 0; i < 32; i++) {
		most = fmaxf(most, fabsf(values[i]));
		const float by = fabsf(scale * ((float)codes[i] - zero) - values[i]);
		off = by > off ? by : off;
	}
	return most > 0 ? off / most : off;
}

Test(quant_gguf, linear_types_are_scales_and_zeros)
{
	u8 block[20];

	make_q4_1(block, THIRD, ONE | 0x8000);
	cr_assert_lt(held_off(GGUF_Q4_1, block), 1e-6f);
	make_q4_1(block, THIRD, 0);
	cr_assert_eq(held_off(GGUF_Q4_1, block), 0);
	cr_assert_eq(held_off(GGUF_Q4_0, block), 0);
	cr_assert(quant_gguf_is_linear(GGUF_Q4_K));
	cr_assert_not(quant_gguf_is_linear(GGUF_IQ4_NL));
}

Test(quant_gguf, values_that_hardly_differ_are_held_all_the_same)
{
	u8 block[20];

	make_q4_1(block, 0, ONE); /* no difference, and no zero that a code could be off by */
	cr_assert_eq(held_off(GGUF_Q4_1, block), 0);
	make_q4_1(block, LEAST, ONE);
	cr_assert_lt(held_off(GGUF_Q4_1, block), 1e-5f);
	make_q4_1(block, LEAST, LEAST);
	cr_assert_lt(held_off(GGUF_Q4_1, block), 1e-5f);
	make_q4_1(block, 0, 0);
	cr_assert_eq(held_off(GGUF_Q4_1, block), 0);
}

Test(quant_gguf, what_no_half_holds_is_no_number)
{
	static const u32 pairs[][2] = {{NO_NUMBER, 0}, {ONE, NO_NUMBER}, {INFINITE, ONE}, {ONE, INFINITE}, {LARGEST, 0}, {ONE, LARGEST}};
	float scale, zero;
	u8 block[20];

	for (size_t i = 0; i < COUNT_OF(pairs); i++) {
		make_q4_1(block, pairs[i][0], pairs[i][1]);
		quant_gguf_codes(GGUF_Q4_1, block, 0, 32, NULL, &scale, &zero);
		cr_assert(isnan(scale), "%zu", i);
	}
}

Test(quant_gguf, halves_are_read_as_they_are)
{
	static const u32 halves[] = {0, 0x8000, LEAST, 0x83ff, 0x0400, ONE, LARGEST, 0xfbff};
	static const float wanted[] = {0, -0.0f, 0x1p-24f, -1023 * 0x1p-24f, 0x1p-14f, 1, 65504, -65504};
	float values[32];
	u8 block[20];

	for (size_t i = 0; i < COUNT_OF(halves); i++) {
		make_q4_1(block, halves[i], 0);
		quant_gguf_values(GGUF_Q4_1, block, 0, 32, values);
		cr_assert_eq(values[1], wanted[i], "%zu", i);
	}
	make_q4_1(block, INFINITE, 0);
	quant_gguf_values(GGUF_Q4_1, block, 0, 32, values);
	cr_assert(isinf(values[1]));
}

enum { NONE = -1, BLOCKS = 1024, MOST_BYTES = 256, Q8_K = 15 };

/* Every type; which bytes of random blocks lose a bit, so that halves are numbers; and what the package gguf makes of so many blocks
 * (printed by gguf_blocks.py): FNV-1a of all values' bytes. */
/* clang-format off */
static const struct {
	u32 type;
	int halves[2];
	u64 hash;
} ALL[] = {
	{GGUF_Q4_0, {1, NONE}, 0x395098c503367b54},
	{GGUF_Q4_1, {1, 3}, 0x98389239b2991ed5},
	{GGUF_Q5_0, {1, NONE}, 0x923205e77019ed33},
	{GGUF_Q5_1, {1, 3}, 0xe41c943e58137beb},
	{GGUF_Q8_0, {1, NONE}, 0xe178f3c575c6654c},
	{GGUF_Q2_K, {81, 83}, 0xe57e459c0f993e74},
	{GGUF_Q3_K, {109, NONE}, 0x96dde742eaa72997},
	{GGUF_Q4_K, {1, 3}, 0x29cbd475a89ad59b},
	{GGUF_Q5_K, {1, 3}, 0x10c9d61975360590},
	{GGUF_Q6_K, {209, NONE}, 0xedb3af30624302b0},
	{GGUF_IQ1_S, {1, NONE}, 0xbd311ca892ac8e1b},
	{GGUF_IQ1_M, {55, NONE}, 0x3bdcc23a7864b52e},
	{GGUF_IQ2_XXS, {1, NONE}, 0x1e451c80046d44bb},
	{GGUF_IQ2_XS, {1, NONE}, 0xfbd088df77c0e68b},
	{GGUF_IQ2_S, {1, NONE}, 0x539dd4deb4b8d635},
	{GGUF_IQ3_XXS, {1, NONE}, 0xeb5f36258ed5db53},
	{GGUF_IQ3_S, {1, NONE}, 0xf5870b63d18e176b},
	{GGUF_IQ4_NL, {1, NONE}, 0x309d9e78e4dab716},
	{GGUF_IQ4_XS, {1, NONE}, 0xa878dc407e29abdf},
	{GGUF_TQ1_0, {53, NONE}, 0x154862ad640fe806},
	{GGUF_TQ2_0, {65, NONE}, 0xe52a4e2cbba0ada8},
	{GGUF_MXFP4, {0, NONE}, 0x9f28a52ac7fe53f3},
	{GGUF_NVFP4, {NONE, NONE}, 0x75f7e539fbe14e9a},
	{GGUF_Q1_0, {1, NONE}, 0xbd7eb641ecd83f25},
};
/* clang-format on */

static void fill(u8 *bytes, size_t count, u32 *state)
{
	for (size_t i = 0; i < count; i++) {
		*state = *state * 1664525 + 1013904223;
		bytes[i] = (u8)(*state >> 24);
	}
}

static void fill_block(u8 *block, u32 bytes, size_t t, u32 *state)
{
	fill(block, bytes, state);
	for (size_t i = 0; i < 2; i++)
		if (ALL[t].halves[i] != NONE)
			block[ALL[t].halves[i]] &= 0xbf;
}

Test(quant_gguf, values_are_those_of_the_package_gguf_to_the_bit)
{
	float values[SUPER];
	u32 elements, bytes;
	u8 block[MOST_BYTES];

	for (size_t t = 0; t < COUNT_OF(ALL); t++) {
		u64 hash = 0xcbf29ce484222325;
		u32 state = 1;
		cr_assert(quant_gguf_block(ALL[t].type, &elements, &bytes));
		for (u32 n = 0; n < BLOCKS; n++) {
			fill_block(block, bytes, t, &state);
			quant_gguf_values(ALL[t].type, block, 0, elements, values);
			for (size_t i = 0; i < elements * sizeof(float); i++)
				hash = (hash ^ ((const u8 *)values)[i]) * 0x100000001b3;
		}
		cr_expect_eq(hash, ALL[t].hash, "%s", gguf_type_name(ALL[t].type));
	}
}

Test(quant_gguf, types_without_an_offset_are_scales_and_zeros_exactly)
{
	static const u32 types[] = {GGUF_Q4_0, GGUF_IQ1_S, GGUF_IQ3_S, GGUF_TQ1_0, GGUF_TQ2_0, GGUF_Q1_0};
	float values[SUPER], scales[SUPER / 32], zeros[SUPER / 32];
	u8 block[MOST_BYTES], codes[SUPER];
	u32 elements, bytes, state = 7;

	for (size_t t = 0; t < COUNT_OF(ALL); t++) {
		bool exact = false;
		for (size_t i = 0; i < COUNT_OF(types); i++)
			exact = exact || types[i] == ALL[t].type;
		for (u32 n = 0; exact && n < BLOCKS; n++) {
			cr_assert(quant_gguf_is_linear(ALL[t].type) && quant_gguf_block(ALL[t].type, &elements, &bytes));
			fill_block(block, bytes, t, &state);
			quant_gguf_values(ALL[t].type, block, 0, elements, values);
			quant_gguf_codes(ALL[t].type, block, 0, elements, codes, scales, zeros);
			for (u32 i = 0; i < elements; i++) {
				cr_assert(codes[i] < 16 && isfinite(scales[i / 32]));
				cr_assert_eq(scales[i / 32] * ((float)codes[i] - zeros[i / 32]), values[i], "%s, %u", gguf_type_name(ALL[t].type), i);
			}
		}
	}
}

Test(quant_gguf, parts_of_rows_are_those_of_the_whole)
{
	static const u32 parts[][2] = {{0, 1}, {31, 2}, {100, 300}, {255, 2}, {256, 256}, {511, 1}};
	float whole[2 * SUPER], part[2 * SUPER];
	u32 elements, bytes;
	u8 row[4096];

	for (size_t i = 0; i < sizeof(row); i++)
		row[i] = (u8)(i * 37 % 113); /* no half of these is infinite */
	for (size_t t = 0; t < COUNT_OF(ALL); t++) {
		cr_assert(quant_gguf_block(ALL[t].type, &elements, &bytes));
		quant_gguf_values(ALL[t].type, row, 0, 2 * SUPER, whole);
		for (size_t i = 0; i < COUNT_OF(parts); i++) {
			quant_gguf_values(ALL[t].type, row, parts[i][0], parts[i][1], part);
			cr_assert_eq(memcmp(part, whole + parts[i][0], parts[i][1] * sizeof(float)), 0, "%u", ALL[t].type);
		}
	}
	cr_assert_not(quant_gguf_block(GGUF_F16, &elements, &bytes));
	cr_assert_not(quant_gguf_block(Q8_K, &elements, &bytes));
}
