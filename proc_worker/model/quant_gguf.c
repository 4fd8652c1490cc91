/* Reads blocks of quantized tensors in GGUF files. Runs in the worker while a model loads; owns nothing.
 *
 * What a block is, as published with the format (ggml, ggml-common.h): of 32 elements those of the older types, with the first 16 of
 * them in the low halves of bytes and the others in the high ones; of 256 the others, whose scales of parts are whole numbers themselves
 * and a half multiplies them. All halves and words are little-endian, and begin at any byte. */
#include "proc_worker/model/quant_gguf.h"

#include <math.h>
#include <string.h>

#include "common/assert.h"
#include "common/gguf.h"
#include "proc_worker/model/quant_gguf_priv.h"

const char QUANT_GGUF_NAMES[] = "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, "
				"IQ3_S, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4, NVFP4, Q1_0";

/* ---------------------------------------------------------------- numbers */

/* Half of the power of two that a byte of E8M0 stands for, so that the table may have whole numbers. */
static float half_power(u32 code)
{
	union {
		u32 bits;
		float value;
	} x = {.bits = code < 2 ? 0x00200000u << code : (code - 1) << 23};

	return x.value;
}

/* The sixteen values that codes of 4 bits mean. */
static const int8_t TABLE_IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t TABLE_E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* ---------------------------------------------------------------- blocks of 32 */

static void halves_of(const u8 *restrict bytes, u8 *restrict codes)
{
	for (u32 i = 0; i < 16; i++)
		codes[i] = bytes[i] & 15;
	for (u32 i = 0; i < 16; i++)
		codes[16 + i] = bytes[i] >> 4;
}

static void fives_of(const u8 *high, const u8 *bytes, u8 *codes)
{
	u32 bits = quant_gguf_word(high);

	halves_of(bytes, codes);
	for (u32 i = 0; i < 32; i++)
		codes[i] |= (u8)((bits >> i & 1) << 4);
}

static void q4_0(const u8 *restrict b, float *restrict out)
{
	float scale = quant_gguf_half(b);
	u8 codes[32];

	halves_of(b + 2, codes);
	for (u32 i = 0; i < 32; i++)
		out[i] = (float)(codes[i] - 8) * scale;
}

static void q4_1(const u8 *restrict b, float *restrict out)
{
	float scale = quant_gguf_half(b), least = quant_gguf_half(b + 2);
	u8 codes[32];

	halves_of(b + 4, codes);
	for (u32 i = 0; i < 32; i++)
		out[i] = (float)codes[i] * scale + least;
}

static void q5_0(const u8 *restrict b, float *restrict out)
{
	float scale = quant_gguf_half(b);
	u8 codes[32];

	fives_of(b + 2, b + 6, codes);
	for (u32 i = 0; i < 32; i++)
		out[i] = (float)(codes[i] - 16) * scale;
}

static void q5_1(const u8 *restrict b, float *restrict out)
{
	float scale = quant_gguf_half(b), least = quant_gguf_half(b + 2);
	u8 codes[32];

	fives_of(b + 4, b + 8, codes);
	for (u32 i = 0; i < 32; i++)
		out[i] = (float)codes[i] * scale + least;
}

static void q8_0(const u8 *restrict b, float *restrict out)
{
	float scale = quant_gguf_half(b);

	for (u32 i = 0; i < 32; i++)
		out[i] = (float)(int8_t)b[2 + i] * scale;
}

static void by_table(const u8 *bytes, const int8_t table[16], float scale, float *out)
{
	u8 codes[32];

	halves_of(bytes, codes);
	for (u32 i = 0; i < 32; i++)
		out[i] = (float)table[codes[i]] * scale;
}

static void iq4_nl(const u8 *restrict b, float *restrict out)
{
	by_table(b + 2, TABLE_IQ4, quant_gguf_half(b), out);
}

static void mxfp4(const u8 *restrict b, float *restrict out)
{
	by_table(b + 1, TABLE_E2M1, half_power(b[0]), out);
}

/* Half of a number of E4M3 without a sign; what E4M3 has no number for is 0. */
static float half_e4m3(u32 code)
{
	u32 size = code & 127;
	union {
		u32 bits;
		float value;
	} x = {.bits = (size << 20) + (119u << 23)};

	if (code == 127)
		return 0;
	return size < 8 ? (float)size * 0x1p-10f : x.value;
}

/* 64 elements: four scales, and 16 codes of each in 8 bytes. */
static void nvfp4(const u8 *restrict b, float *restrict out)
{
	for (u32 part = 0; part < 4; part++, out += 16) {
		const u8 *from = b + 4 + 8 * part;
		float scale = half_e4m3(b[part]);
		for (u32 i = 0; i < 8; i++) {
			out[i] = (float)TABLE_E2M1[from[i] & 15] * scale;
			out[8 + i] = (float)TABLE_E2M1[from[i] >> 4] * scale;
		}
	}
}

/* ---------------------------------------------------------------- blocks of 256 */

/* Where of a block's two sides of 128, each of four runs of 32, a part of 16 is. */
struct part {
	u32 side, run, at;
};

static struct part part_at(u32 number)
{
	return (struct part){number / 8, number % 8 / 2, number % 2 * 16};
}

/* 16 parts: four bits of a scale, four of what is taken off; codes of 2 bits, those of a side's four runs in one run of bytes. */
static void q2_k(const u8 *restrict b, float *restrict out)
{
	const u8 *scales = b, *codes = b + 16;
	float all = quant_gguf_half(b + 80), all_least = quant_gguf_half(b + 82);

	for (u32 n = 0; n < 16; n++, out += 16) {
		struct part p = part_at(n);
		const u8 *from = codes + p.side * 32 + p.at;
		float scale = all * (float)(scales[n] & 15), least = all_least * (float)(scales[n] >> 4);
		for (u32 i = 0; i < 16; i++)
			out[i] = scale * (float)(from[i] >> (2 * p.run) & 3) - least;
	}
}

/* The scales of 16 parts have 6 bits: four of each in 8 bytes, and two of each in 4 more. */
static int q3_scale(const u8 *packed, u32 part)
{
	u32 low = packed[part % 8] >> (part / 8 * 4) & 15, high = packed[8 + part % 4] >> (part / 4 * 2) & 3;

	return (int)(low | high << 4) - 32;
}

/* A third bit of each code is apart; where it is 0 the code is 4 less. */
static void q3_k(const u8 *restrict b, float *restrict out)
{
	const u8 *high = b, *codes = b + 32;
	float all = quant_gguf_half(b + 108);

	for (u32 n = 0; n < 16; n++, out += 16) {
		struct part p = part_at(n);
		const u8 *from = codes + p.side * 32 + p.at, *third = high + p.at;
		float scale = all * (float)q3_scale(b + 96, n);
		for (u32 i = 0; i < 16; i++) {
			int code = (from[i] >> (2 * p.run) & 3) + (third[i] >> (p.side * 4 + p.run) & 1) * 4;
			out[i] = scale * (float)(code - 4);
		}
	}
}

/* Of a run of 32, its scale and what is taken off: 6 bits each, those of the last four runs in pieces. */
static void k_scales(const u8 *packed, u32 run, u32 *scale, u32 *least)
{
	if (run < 4) {
		*scale = packed[run] & 63;
		*least = packed[run + 4] & 63;
		return;
	}
	*scale = (packed[run + 4] & 15) | (u32)(packed[run - 4] >> 6) << 4;
	*least = (packed[run + 4] >> 4) | (u32)(packed[run] >> 6) << 4;
}

/* Of two neighbouring runs the first is in the low halves of 32 bytes. */
static void q4_k_codes(const u8 *restrict bytes, u32 run, u8 *restrict codes)
{
	const u32 shift = run % 2 * 4;

	for (u32 i = 0; i < 32; i++)
		codes[i] = bytes[run / 2 * 32 + i] >> shift & 15;
}

static void q4_k(const u8 *restrict b, float *restrict out)
{
	float all = quant_gguf_half(b), all_least = quant_gguf_half(b + 2);
	u8 codes[32];

	for (u32 run = 0; run < 8; run++, out += 32) {
		u32 part, part_least;
		k_scales(b + 4, run, &part, &part_least);
		float scale = all * (float)part, least = all_least * (float)part_least;
		q4_k_codes(b + 16, run, codes);
		for (u32 i = 0; i < 32; i++)
			out[i] = scale * (float)codes[i] - least;
	}
}

/* As q4_k; a fifth bit of each code is apart, run by run in the bits of 32 bytes. */
static void q5_k(const u8 *restrict b, float *restrict out)
{
	float all = quant_gguf_half(b), all_least = quant_gguf_half(b + 2);
	u8 codes[32];

	for (u32 run = 0; run < 8; run++, out += 32) {
		u32 part, part_least;
		k_scales(b + 4, run, &part, &part_least);
		float scale = all * (float)part, least = all_least * (float)part_least;
		q4_k_codes(b + 48, run, codes);
		for (u32 i = 0; i < 32; i++)
			out[i] = scale * (float)(codes[i] | (b[16 + i] >> run & 1) << 4) - least;
	}
}

/* Of a side four bits in 64 bytes for two pairs of runs, two more in 32 bytes for all four of them. 16 scales. */
static void q6_k(const u8 *restrict b, float *restrict out)
{
	const u8 *low = b, *high = b + 128, *scales = b + 192;
	float all = quant_gguf_half(b + 208);

	for (u32 n = 0; n < 16; n++, out += 16) {
		struct part p = part_at(n);
		const u8 *four = low + p.side * 64 + p.run % 2 * 32 + p.at, *two = high + p.side * 32 + p.at;
		float scale = all * (float)(int8_t)scales[n];
		for (u32 i = 0; i < 16; i++) {
			int code = (four[i] >> (p.run / 2 * 4) & 15) + (two[i] >> (2 * p.run) & 3) * 16;
			out[i] = scale * (float)(code - 32);
		}
	}
}

static void iq4_xs(const u8 *restrict b, float *restrict out)
{
	float all = quant_gguf_half(b);
	u32 high = b[2] | (u32)b[3] << 8;

	for (u32 run = 0; run < 8; run++) {
		u32 scale = (b[4 + run / 2] >> (run % 2 * 4) & 15) | (high >> (run * 2) & 3) << 4;
		by_table(b + 8 + run * 16, TABLE_IQ4, all * (float)((int)scale - 32), out + run * 32);
	}
}

/* ---------------------------------------------------------------- rows */

static const struct {
	u32 type;
	void (*values)(const u8 *block, float *out);
} TYPES[] = {
	{GGUF_Q4_0, q4_0}, {GGUF_Q4_1, q4_1}, {GGUF_Q5_0, q5_0}, {GGUF_Q5_1, q5_1},	{GGUF_Q8_0, q8_0},     {GGUF_Q2_K, q2_k},   {GGUF_Q3_K, q3_k},
	{GGUF_Q4_K, q4_k}, {GGUF_Q5_K, q5_k}, {GGUF_Q6_K, q6_k}, {GGUF_IQ4_NL, iq4_nl}, {GGUF_IQ4_XS, iq4_xs}, {GGUF_MXFP4, mxfp4},
	{GGUF_NVFP4, nvfp4}, {GGUF_IQ1_S, quant_gguf_iq1_s}, {GGUF_IQ1_M, quant_gguf_iq1_m}, {GGUF_IQ2_XXS, quant_gguf_iq2_xxs},
	{GGUF_IQ2_XS, quant_gguf_iq2_xs}, {GGUF_IQ2_S, quant_gguf_iq2_s}, {GGUF_IQ3_XXS, quant_gguf_iq3_xxs}, {GGUF_IQ3_S, quant_gguf_iq3_s},
	{GGUF_TQ1_0, quant_gguf_tq1_0}, {GGUF_TQ2_0, quant_gguf_tq2_0}, {GGUF_Q1_0, quant_gguf_q1_0},
};

static size_t index_of(u32 type)
{
	size_t i = 0;

	while (i < COUNT_OF(TYPES) && TYPES[i].type != type)
		i++;
	return i;
}

bool quant_gguf_block(u32 type, u32 *elements, u32 *bytes)
{
	return index_of(type) < COUNT_OF(TYPES) && gguf_type_block(type, elements, bytes);
}

void quant_gguf_values(u32 type, const u8 *row, u32 first, u32 count, float *out)
{
	u32 elements, bytes;
	float block[QUANT_GGUF_BLOCK];
	size_t at = index_of(type);

	ASSERT(quant_gguf_block(type, &elements, &bytes));
	for (u32 i = first, end = first + count, n; i < end; i += n, out += n) {
		u32 within = i % elements, left = elements - within;
		const u8 *from = row + (size_t)(i / elements) * bytes;
		n = end - i < left ? end - i : left;
		if (n == elements) {
			TYPES[at].values(from, out);
			continue;
		}
		TYPES[at].values(from, block); /* a rank's share may begin inside of it */
		memcpy(out, block + within, n * sizeof(*out));
	}
}

/* ---------------------------------------------------------------- whole numbers with a scale and a zero */

static void q4_0_run(const u8 *block, u32 run, u8 *codes, float *scale, float *zero)
{
	(void)run;
	if (codes)
		halves_of(block + 2, codes);
	*scale = quant_gguf_half(block);
	*zero = 8;
}

/* Types whose runs are that as they are: with a scale, and a zero that does not depend on it. */
static const struct {
	u32 type, runs, bytes; /* of a block */
	void (*run)(const u8 *block, u32 run, u8 *codes, float *scale, float *zero);
} RUNS[] = {
	{GGUF_Q4_0, 1, 18, q4_0_run},		  {GGUF_IQ1_S, 8, 50, quant_gguf_iq1_s_run}, {GGUF_IQ3_S, 8, 110, quant_gguf_iq3_s_run},
	{GGUF_TQ1_0, 8, 54, quant_gguf_tq1_0_run}, {GGUF_TQ2_0, 8, 66, quant_gguf_tq2_0_run}, {GGUF_Q1_0, 4, 18, quant_gguf_q1_0_run},
};

static size_t runs_of(u32 type)
{
	size_t i = 0;

	while (i < COUNT_OF(RUNS) && RUNS[i].type != type)
		i++;
	return i;
}

bool quant_gguf_is_linear(u32 type)
{
	return type == GGUF_Q4_1 || type == GGUF_Q4_K || runs_of(type) < COUNT_OF(RUNS);
}

/* What a half makes of a float below 65520. */
static float as_half(float x)
{
	int exponent;

	frexpf(x, &exponent);
	float unit = ldexpf(1, (exponent > -13 ? exponent : -13) - 11);
	return nearbyintf(x / unit) * unit;
}

/* Values step * code + least. A zero above all codes in size is better when it fits the rounded scale, for least is most of
 * the values then; where it would be no half at all the values hardly differ, and are held as one. */
static void put_scale(float step, float least, u8 *codes, float *scale, float *zero)
{
	enum { CODES = 16, HALF_MOST = 60000 };

	*scale = step;
	*zero = 0;
	if (!isfinite(step) || !isfinite(least) || fabsf(step) >= HALF_MOST || fabsf(least) >= HALF_MOST) {
		*scale = NAN;
		return;
	}
	if (least == 0)
		return;
	if (fabsf(least) > CODES * fabsf(step))
		step = as_half(step);
	if (fabsf(least) < HALF_MOST * fabsf(step)) {
		*scale = step;
		*zero = -least / step;
		return;
	}
	*scale = least;
	if (codes)
		memset(codes, 1, QUANT_GGUF_GROUP);
}

static void q4_1_codes(const u8 *b, u8 *codes, float *scale, float *zero)
{
	if (codes)
		halves_of(b + 4, codes);
	put_scale(quant_gguf_half(b), quant_gguf_half(b + 2), codes, scale, zero);
}

static void q4_k_group(const u8 *b, u32 run, u8 *codes, float *scale, float *zero)
{
	u32 part, part_least;

	if (codes)
		q4_k_codes(b + 16, run, codes);
	k_scales(b + 4, run, &part, &part_least);
	put_scale(quant_gguf_half(b) * (float)part, -(quant_gguf_half(b + 2) * (float)part_least), codes, scale, zero);
}

static void group_codes(u32 type, const u8 *row, u32 group, u8 *codes, float *scale, float *zero)
{
	const size_t i = runs_of(type);
	float middle, none;

	if (i < COUNT_OF(RUNS)) {
		RUNS[i].run(row + (size_t)(group / RUNS[i].runs) * RUNS[i].bytes, group % RUNS[i].runs, codes, scale, &middle);
		put_scale(*scale, 0, codes, scale, &none);
		*zero = middle;
	} else if (type == GGUF_Q4_1) {
		q4_1_codes(row + (size_t)group * 20, codes, scale, zero);
	} else {
		q4_k_group(row + (size_t)(group / 8) * 144, group % 8, codes, scale, zero);
	}
}

void quant_gguf_codes(u32 type, const u8 *row, u32 first, u32 count, u8 *codes, float *scales, float *zeros)
{
	ASSERT(quant_gguf_is_linear(type) && first % QUANT_GGUF_GROUP == 0 && count % QUANT_GGUF_GROUP == 0);
	for (u32 i = 0; i < count / QUANT_GGUF_GROUP; i++)
		group_codes(type, row, first / QUANT_GGUF_GROUP + i, codes ? codes + (size_t)i * QUANT_GGUF_GROUP : NULL, &scales[i], &zeros[i]);
}
