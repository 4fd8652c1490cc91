/* Reads blocks of the GGUF types with one to three bits a value: those that choose 8 or 4 values at once from the points of a lattice
 * (quant_gguf_grids.c), and those of three values or two. Runs in the worker while a model loads; owns nothing.
 *
 * Eight values are worked on as the bytes of one word: a point is spread, its numbers become sizes, and signs turn bytes into their
 * negatives. Everything is a whole number until it is multiplied by its scale, so a value is rounded once, as ggml does it. */
#include "proc_worker/model/quant_gguf_priv.h"

#include <string.h>

enum {
	BLOCK = 256,
	RUN = 32, /* values that have a scale; in some types each half of them */
	RUNS = BLOCK / RUN,
	PART = RUN / 2,
	PARTS = BLOCK / PART,
	EIGHTS = BLOCK / 8,
	EIGHTS_OF_RUN = RUN / 8,
	MIDDLE = 8, /* the code of 0 where values are codes of 4 bits */
};

static const u64 ONES = 0x0101010101010101u;

/* ---------------------------------------------------------------- eight bytes at once */

/* 8 numbers of two bits: a byte for each. */
static u64 spread_pairs(u32 point)
{
	u64 x = point;

	x = (x | x << 24) & 0x000000ff000000ffu;
	x = (x | x << 12) & 0x000f000f000f000fu;
	return (x | x << 6) & 0x0303030303030303u;
}

/* 8 numbers of four bits, of which two points are made. */
static u64 spread_fours(u32 first, u32 second)
{
	u64 x = first | (u64)second << 32;

	x = (x | x << 8) & 0x00ff00ff00ff00ffu;
	return (x | x << 4) & 0x0f0f0f0f0f0f0f0fu;
}

/* 8 bits: bytes of 0 or 1. No byte of the sum is above 255. */
static u64 spread_bits(u32 bits)
{
	u64 x = bits * ONES & 0x8040201008040201u;

	return ((x + 0x7f * ONES) >> 7) & ONES;
}

/* Bytes above 0 become their negatives where there is a bit. Adding 1 carries into no other byte, for none is 255 then. */
static u64 negated(u64 bytes, u32 bits)
{
	u64 minus = spread_bits(bits);

	return (bytes ^ minus * 0xff) + minus;
}

/* 0, 1 and 2 mean 8, 25 and 43. */
static u64 iq2_sizes(u32 point)
{
	u64 x = spread_pairs(point);

	return 8 * ONES + 17 * x + (x >> 1 & ONES);
}

/* 0 to 6 mean 4, 12, ..., 52, and 7 means 62. */
static u64 iq3_xxs_sizes(const u8 *places)
{
	u64 x = spread_fours(QUANT_GGUF_IQ3_XXS[places[0]], QUANT_GGUF_IQ3_XXS[places[1]]);

	return 4 * ONES + 8 * x + 2 * ((x + ONES) >> 3 & ONES);
}

/* Of 8 signs seven are stored; there is an even number of minuses. */
static u32 all_signs(u32 seven)
{
	u32 halves = (seven ^ seven >> 4) & 15, odd = 0x6996u >> halves & 1; /* bit i of that number: whether i has an odd number of ones */

	return seven | odd << 7;
}

/* All bytes of a block are made before any is read: reading words that were just written in halves would wait for the writing. */
static void scaled(const u64 *values, u32 width, const float *scales, float *restrict out)
{
	int8_t bytes[BLOCK];

	memcpy(bytes, values, sizeof(bytes));
	for (u32 part = 0; part < BLOCK / width; part++)
		for (u32 i = part * width; i < (part + 1) * width; i++)
			out[i] = (float)bytes[i] * scales[part];
}

static u32 short_at(const u8 *at)
{
	return at[0] | (u32)at[1] << 8;
}

/* Number `n` of those that have four bits. */
static u32 four_bits(const u8 *bytes, u32 n)
{
	return bytes[n / 2] >> (n % 2 * 4) & 15;
}

/* ---------------------------------------------------------------- two bits */

/* A run: four places in bytes, then 28 bits of signs and 4 of the scale. */
void quant_gguf_iq2_xxs(const u8 *restrict b, float *restrict out)
{
	const float all = quant_gguf_half(b);
	float scales[RUNS];
	u64 values[EIGHTS];

	for (u32 run = 0; run < RUNS; run++) {
		const u8 *places = b + 2 + 8 * run;
		u32 rest = quant_gguf_word(places + 4);
		for (u32 i = 0; i < EIGHTS_OF_RUN; i++)
			values[EIGHTS_OF_RUN * run + i] = negated(iq2_sizes(QUANT_GGUF_IQ2_XXS[places[i]]), all_signs(rest >> (7 * i) & 127));
		scales[run] = all * (0.5f + (float)(rest >> 28)) * 0.25f;
	}
	scaled(values, RUN, scales, out);
}

/* 9 bits of a place and 7 of signs; a scale of 4 bits for every 16 values. */
void quant_gguf_iq2_xs(const u8 *restrict b, float *restrict out)
{
	const float all = quant_gguf_half(b);
	float scales[PARTS];
	u64 values[EIGHTS];

	for (u32 n = 0; n < EIGHTS; n++) {
		u32 word = short_at(b + 2 + 2 * n);
		values[n] = negated(iq2_sizes(QUANT_GGUF_IQ2_XS[word & 511]), all_signs(word >> 9));
	}
	for (u32 part = 0; part < PARTS; part++)
		scales[part] = all * (0.5f + (float)four_bits(b + 66, part)) * 0.25f;
	scaled(values, PART, scales, out);
}

/* Places in 8 bits and, apart, two more; all signs; scales as above. */
void quant_gguf_iq2_s(const u8 *restrict b, float *restrict out)
{
	const u8 *low = b + 2, *signs = b + 34, *high = b + 66;
	const float all = quant_gguf_half(b);
	float scales[PARTS];
	u64 values[EIGHTS];

	for (u32 n = 0; n < EIGHTS; n++) {
		u32 place = low[n] | (high[n / 4] >> (n % 4 * 2) & 3u) << 8;
		values[n] = negated(iq2_sizes(QUANT_GGUF_IQ2_S[place]), signs[n]);
	}
	for (u32 part = 0; part < PARTS; part++)
		scales[part] = all * (0.5f + (float)four_bits(b + 74, part)) * 0.25f;
	scaled(values, PART, scales, out);
}

/* ---------------------------------------------------------------- three bits */

/* Places of four values in bytes; then for each run 28 bits of signs and 4 of the scale. */
void quant_gguf_iq3_xxs(const u8 *restrict b, float *restrict out)
{
	const float all = quant_gguf_half(b);
	float scales[RUNS];
	u64 values[EIGHTS];

	for (u32 run = 0; run < RUNS; run++) {
		const u8 *places = b + 2 + 8 * run;
		u32 rest = quant_gguf_word(b + 66 + 4 * run);
		for (u32 i = 0; i < EIGHTS_OF_RUN; i++)
			values[EIGHTS_OF_RUN * run + i] = negated(iq3_xxs_sizes(places + 2 * i), all_signs(rest >> (7 * i) & 127));
		scales[run] = all * (0.5f + (float)(rest >> 28)) * 0.5f;
	}
	scaled(values, RUN, scales, out);
}

/* Of a run 32 numbers from 0 to 7, which mean 1, 3, ..., 15: the ninth bits of its places are a byte. */
static void iq3_s_numbers(const u8 *block, u32 run, u64 *numbers)
{
	const u8 *low = block + 2 + 8 * run;
	u32 high = block[66 + run];

	for (u32 i = 0; i < EIGHTS_OF_RUN; i++) {
		u32 first = low[2 * i] | (high >> (2 * i) & 1) << 8, second = low[2 * i + 1] | (high >> (2 * i + 1) & 1) << 8;
		numbers[i] = spread_fours(QUANT_GGUF_IQ3_S[first], QUANT_GGUF_IQ3_S[second]);
	}
}

static float iq3_s_scale(const u8 *block, u32 run)
{
	return quant_gguf_half(block) * (float)(1 + 2 * four_bits(block + 106, run));
}

void quant_gguf_iq3_s(const u8 *restrict b, float *restrict out)
{
	float scales[RUNS];
	u64 values[EIGHTS];

	for (u32 run = 0; run < RUNS; run++) {
		iq3_s_numbers(b, run, values + EIGHTS_OF_RUN * run);
		scales[run] = iq3_s_scale(b, run);
	}
	for (u32 n = 0; n < EIGHTS; n++)
		values[n] = negated(ONES + 2 * values[n], b[74 + n]);
	scaled(values, RUN, scales, out);
}

/* Odd numbers from -15 to 15 are as far apart as any neighbours: twice a code, less 15. */
void quant_gguf_iq3_s_run(const u8 *block, u32 run, u8 *codes, float *scale, float *zero)
{
	u64 numbers[EIGHTS_OF_RUN];

	*scale = 2 * iq3_s_scale(block, run);
	*zero = 7.5f;
	if (!codes)
		return;
	iq3_s_numbers(block, run, numbers);
	for (u32 i = 0; i < EIGHTS_OF_RUN; i++) /* 8 + n, or of a negative one what that is less than 15 */
		numbers[i] = (numbers[i] + MIDDLE * ONES) ^ spread_bits(block[74 + EIGHTS_OF_RUN * run + i]) * 15;
	memcpy(codes, numbers, RUN);
}

/* ---------------------------------------------------------------- one bit and a half */

/* Numbers from 0 to 2 mean -1 to 1, all of them an eighth more, or with a bit an eighth less: in eighths. */
static u64 iq1_eighths(u32 place, u32 less)
{
	/* 128 too many, which keep bytes from borrowing: flipping the highest bit takes them off */
	u64 biased = 8 * spread_pairs(QUANT_GGUF_IQ1[place]) + (less ? 119 : 121) * ONES;

	return biased ^ 0x80 * ONES;
}

/* Of a run's word three more bits for each of four places, three of the scale, and the one of the eighth. */
static u32 iq1_s_place(const u8 *block, u32 run, u32 n)
{
	return block[2 + EIGHTS_OF_RUN * run + n] | (short_at(block + 34 + 2 * run) >> (3 * n) & 7) << 8;
}

static float iq1_s_scale(const u8 *block, u32 word)
{
	return quant_gguf_half(block) * (float)(2 * (word >> 12 & 7) + 1);
}

void quant_gguf_iq1_s(const u8 *restrict b, float *restrict out)
{
	float scales[RUNS];
	u64 values[EIGHTS];

	for (u32 run = 0; run < RUNS; run++) {
		u32 word = short_at(b + 34 + 2 * run);
		for (u32 i = 0; i < EIGHTS_OF_RUN; i++)
			values[EIGHTS_OF_RUN * run + i] = iq1_eighths(iq1_s_place(b, run, i), word >> 15);
		scales[run] = iq1_s_scale(b, word) * 0.125f;
	}
	scaled(values, RUN, scales, out);
}

void quant_gguf_iq1_s_run(const u8 *block, u32 run, u8 *codes, float *scale, float *zero)
{
	u32 word = short_at(block + 34 + 2 * run);

	*scale = iq1_s_scale(block, word);
	*zero = word >> 15 ? MIDDLE + 0.125f : MIDDLE - 0.125f;
	for (u32 i = 0; codes && i < EIGHTS_OF_RUN; i++) {
		u64 eight = spread_pairs(QUANT_GGUF_IQ1[iq1_s_place(block, run, i)]) + (MIDDLE - 1) * ONES;
		memcpy(codes + 8 * i, &eight, sizeof(eight));
	}
}

/* Of each point three more bits of its place and the one of the eighth in half a byte; scales of 16 values in three bits, four in a word,
 * whose other four are one quarter of the half that multiplies all. */
void quant_gguf_iq1_m(const u8 *restrict b, float *restrict out)
{
	const u8 *low = b, *high = b + 32, *scales = b + 48;
	float parts[PARTS];
	u64 values[EIGHTS];
	u32 half = 0;

	for (u32 i = 0; i < 4; i++)
		half |= short_at(scales + 2 * i) >> 12 << (4 * i);
	const u8 bytes[2] = {(u8)half, (u8)(half >> 8)};
	const float all = quant_gguf_half(bytes);
	for (u32 part = 0; part < PARTS; part++) {
		u32 scale = short_at(scales + part / 4 * 2) >> (3 * (part % 4)) & 7;
		parts[part] = all * (float)(2 * scale + 1) * 0.125f;
	}
	for (u32 n = 0; n < EIGHTS; n++) {
		u32 more = four_bits(high, n);
		values[n] = iq1_eighths(low[n] | (more & 7) << 8, more >> 3);
	}
	scaled(values, PART, parts, out);
}

/* ---------------------------------------------------------------- values that differ by signs, and 0 */

/* A code of each of 32 values, from a block's half at `half`. */
static void by_codes(const u8 *codes, float scale, float *restrict out)
{
	for (u32 i = 0; i < RUN; i++)
		out[i] = (float)(codes[i] - MIDDLE) * scale;
}

/* Digits to the base of three: a byte is the fraction that they are behind the point, in 256ths. What 3 times it exceeds a byte by is the first
 * digit; the powers bring another one there, and what the byte cannot hold of them are the digits before it. */
static void digits(const u8 *restrict bytes, u32 count, u32 digit, u8 *restrict codes)
{
	static const u8 powers[5] = {1, 3, 9, 27, 81};

	for (u32 i = 0; i < count; i++)
		codes[i] = (u8)(((u8)(bytes[i] * powers[digit]) * 3u >> 8) + MIDDLE - 1);
}

/* Five digits of each of 32 bytes, five of 16, and four of the last four bytes. */
void quant_gguf_tq1_0_run(const u8 *block, u32 run, u8 *codes, float *scale, float *zero)
{
	enum { LONG = 32, SHORT = 16, DIGITS = 5 };

	*scale = quant_gguf_half(block + 52);
	*zero = MIDDLE;
	if (!codes)
		return;
	if (run < DIGITS) {
		digits(block, LONG, run, codes);
		return;
	}
	u32 digit = (run - DIGITS) * 2;
	digits(block + LONG, SHORT, digit, codes);
	if (digit + 1 < DIGITS)
		digits(block + LONG, SHORT, digit + 1, codes + SHORT);
	for (u32 i = 0; i < 4 && digit + 1 == DIGITS; i++)
		digits(block + LONG + SHORT, 4, i, codes + SHORT + 4 * i);
}

/* Two bits; four runs in one run of bytes. */
void quant_gguf_tq2_0_run(const u8 *block, u32 run, u8 *codes, float *scale, float *zero)
{
	const u8 *from = block + run / 4 * RUN;
	const u32 shift = run % 4 * 2;

	*scale = quant_gguf_half(block + 64);
	*zero = MIDDLE;
	for (u32 i = 0; codes && i < RUN; i++)
		codes[i] = (u8)((from[i] >> shift & 3) + MIDDLE - 1);
}

/* A bit is a sign: 1 is plus. */
void quant_gguf_q1_0_run(const u8 *block, u32 run, u8 *codes, float *scale, float *zero)
{
	*scale = quant_gguf_half(block);
	*zero = MIDDLE;
	for (u32 i = 0; codes && i < EIGHTS_OF_RUN; i++) {
		u64 eight = 2 * spread_bits(block[2 + EIGHTS_OF_RUN * run + i]) + (MIDDLE - 1) * ONES;
		memcpy(codes + 8 * i, &eight, sizeof(eight));
	}
}

void quant_gguf_tq1_0(const u8 *restrict b, float *restrict out)
{
	float scale, zero;
	u8 codes[RUN];

	for (u32 run = 0; run < RUNS; run++) {
		quant_gguf_tq1_0_run(b, run, codes, &scale, &zero);
		by_codes(codes, scale, out + run * RUN);
	}
}

void quant_gguf_tq2_0(const u8 *restrict b, float *restrict out)
{
	float scale, zero;
	u8 codes[RUN];

	for (u32 run = 0; run < RUNS; run++) {
		quant_gguf_tq2_0_run(b, run, codes, &scale, &zero);
		by_codes(codes, scale, out + run * RUN);
	}
}

void quant_gguf_q1_0(const u8 *restrict b, float *restrict out)
{
	float scale, zero;
	u8 codes[RUN];

	for (u32 run = 0; run < 4; run++) {
		quant_gguf_q1_0_run(b, run, codes, &scale, &zero);
		by_codes(codes, scale, out + run * RUN);
	}
}
