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

Test(quant_gguf, parts_of_rows_are_those_of_the_whole)
{
	static const u32 types[] = {GGUF_Q4_0, GGUF_Q4_1, GGUF_Q5_0, GGUF_Q5_1, GGUF_Q8_0, GGUF_Q2_K, GGUF_Q3_K,
				    GGUF_Q4_K, GGUF_Q5_K, GGUF_Q6_K, GGUF_IQ4_NL, GGUF_IQ4_XS, GGUF_MXFP4};
	static const u32 parts[][2] = {{0, 1}, {31, 2}, {100, 300}, {255, 2}, {256, 256}, {511, 1}};
	float whole[2 * SUPER], part[2 * SUPER];
	u32 elements, bytes;
	u8 row[4096];

	for (size_t i = 0; i < sizeof(row); i++)
		row[i] = (u8)(i * 37 % 113); /* no half of these is infinite */
	for (size_t t = 0; t < COUNT_OF(types); t++) {
		cr_assert(quant_gguf_block(types[t], &elements, &bytes));
		quant_gguf_values(types[t], row, 0, 2 * SUPER, whole);
		for (size_t i = 0; i < COUNT_OF(parts); i++) {
			quant_gguf_values(types[t], row, parts[i][0], parts[i][1], part);
			cr_assert_eq(memcmp(part, whole + parts[i][0], parts[i][1] * sizeof(float)), 0, "%u", types[t]);
		}
	}
	cr_assert_not(quant_gguf_block(GGUF_F16, &elements, &bytes));
	cr_assert_not(quant_gguf_block(16, &elements, &bytes));
}
