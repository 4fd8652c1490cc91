/* Reads matrices of quantized checkpoints. Runs in the worker while a model loads; owns nothing. Never trusts
 * a shape: quant_tensor_find (quant_find.c) has checked every part before a value is read.
 *
 * Packing, as published with the formats: AWQ packs eight outputs of one input into 32 bits, in the order 0,
 * 2, 4, 6, 1, 3, 5, 7 (AutoAWQ, awq/utils/packing_utils.py); GPTQ inputs of one output, in order, and outputs of its zeros, in
 * order (AutoGPTQ, qlinear); compressed-tensors neighbours of a row, in order, with half of the range added, and zero points along the
 * outputs (compressors/pack_quantized); in both, bits of a number may go on in the next word. MXFP4 and NVFP4 pack neighbours of a row, the first in the
 * low half of a byte, with a byte of E8M0 for every 32 of them (OCP Microscaling 1.0; transformers, integrations/mxfp4.py) or one of E4M3
 * for every 16 (compressors/nvfp4; Model Optimizer, qtensor/nvfp4_tensor.py); bitsandbytes the first in the high half, rows one behind
 * the other, whose scales may be places in a table of 256 values, times a scale, plus an offset (bitsandbytes/functional.py). */
#include "proc_worker/model/quant_tensor_priv.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "common/gguf.h"
#include "proc_worker/model/quant_gguf.h"
#include "proc_worker/model/quant_ternary.h"

/* Where in a word of AWQ the eight outputs are. */
static const u8 awq_places[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/* ---------------------------------------------------------------- elements */

static float float_at(const struct st_tensor *t, size_t i)
{
	char element[4];
	size_t bytes = kern_dtype_bytes(t->dtype);
	float x;
	memcpy(element, (const char *)t->data + i * bytes, bytes);
	kern_convert(&x, KERN_F32, element, t->dtype, 1);
	return x;
}

/* The number at a place of a row of numbers of `bits` bits, whose words are `stride` apart from `first` on. */
static u32 bits_at(const struct st_tensor *t, size_t first, size_t stride, u32 place, u32 bits)
{
	size_t bit = (size_t)place * bits, at = first + bit / 32 * stride;
	u32 shift = bit % 32, code = word_at(t, at) >> shift;

	if (shift + bits > 32)
		code |= word_at(t, at + stride) << (32 - shift);
	return code & ((1u << bits) - 1);
}

/* Rows of a tensor of four rows a byte, the first of which are in the lowest bits (transformers, integrations/bitnet.py). */
static const u8 *ternary_row(const struct quant_tensor *t, u32 row)
{
	return (const u8 *)t->values->data + (size_t)(row % (t->rows / 4)) * t->columns;
}

static u32 ternary_shift(const struct quant_tensor *t, u32 row)
{
	return 2 * (row / (t->rows / 4));
}

/* Of bytes: a value; of GPTQ and AWQ: 0 .. 2^bits - 1; of compressed-tensors: with half of the range added. */
static u32 code_at(const struct quant_tensor *t, u32 row, u32 column)
{
	switch (t->format) {
	case QUANT_AWQ:
		return (word_at(t->values, (size_t)column * (t->rows / 8) + row / 8) >>
			       4 * awq_places[row % 8] &
		       15) ^ t->flipped;
	case QUANT_GPTQ:
		return bits_at(t->values, row, t->rows, column, t->bits);
	case QUANT_TERNARY:
		return ternary_row(t, row)[column] >> ternary_shift(t, row) & 3;
	case QUANT_PACKED:
		return bits_at(t->values, (size_t)row * ceil_div(t->columns * t->bits, 32), 1, column, t->bits);
	default:
		return ((const u8 *)t->values->data)[(size_t)row * t->columns + column];
	}
}

/* A power of two, 2^-127 to 2^127, or no number. */
static float e8m0_at(const struct st_tensor *t, size_t i)
{
	u32 code = ((const u8 *)t->data)[i], bits = code == 255 ? 0x7fc00000u : code == 0 ? 1u << 22 : code << 23;
	float x;
	memcpy(&x, &bits, sizeof(x));
	return x;
}

/* FP8 E4M3 (OCP): bias 7, no infinities. Without branches, for many at once: below 2^-6, where there is no leading 1, one is put in front and
 * taken off again. */
static inline float f8_value(u32 code)
{
	u32 size = code & 127, below = size < 8 ? 1 : 0;
	union {
		u32 bits;
		float value;
	} x = {.bits = (size << 20) + ((120 + below) << 23)};

	x.value -= below ? 0x1p-6f : 0;
	x.bits |= (size == 127 ? 0x7fc00000u : 0) | (code & 128) << 24;
	return x.value;
}

static const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

static u32 group_of(const struct quant_tensor *t, u32 column)
{
	return t->groups ? word_at(t->groups, column) : column / t->group_columns;
}

/* A scale as it is stored. */
static float stored_scale(const struct quant_tensor *t, size_t i)
{
	const struct quant_nested *n = &t->nested;

	if (n->scales)
		return float_at(n->table, ((const u8 *)t->scales->data)[i]) * float_at(n->scales, i / n->block) + n->offset;
	switch (t->scale_kind) {
	case SCALE_E8M0:
		return e8m0_at(t->scales, i);
	case SCALE_E4M3:
		return f8_value(((const u8 *)t->scales->data)[i]);
	case SCALE_DIVIDES:
		return 1 / float_at(t->scales, i);
	default:
		return float_at(t->scales, i);
	}
}

static float scale_at(const struct quant_tensor *t, u32 row, u32 group)
{
	bool by_groups = t->format == QUANT_AWQ || t->format == QUANT_GPTQ;
	if (t->at_load)
		return t->scale_times;
	size_t i = by_groups ? (size_t)group * t->rows + row : (size_t)(row / t->group_rows) * group_count(t) + group;

	return stored_scale(t, i) * t->scale_times / t->scale_over;
}

/* Of a GGUF file only of types where it says whether values are numbers. */
static float gguf_scale(const struct quant_tensor *t, u32 row, u32 column)
{
	float scale = 1, zero;
	u32 at;

	(void)tiles_run(&t->tiles, column, 1, &at);
	if (quant_gguf_is_linear(t->block_type))
		quant_gguf_codes(t->block_type, gguf_row(t, row), at / QUANT_GGUF_GROUP * QUANT_GGUF_GROUP, QUANT_GGUF_GROUP, NULL, &scale, &zero);
	return scale;
}

float quant_tensor_scale(const struct quant_tensor *t, u32 row, u32 column)
{
	if (t->format == QUANT_GGUF)
		return gguf_scale(t, row, column);
	return scale_at(t, row, group_of(t, column));
}

/* In units of codes. */
static float zero_at(const struct quant_tensor *t, u32 row, u32 group)
{
	u32 code;

	switch (t->format) {
	case QUANT_AWQ:
		return (float)((word_at(t->zeros, (size_t)group * (t->rows / 8) + row / 8) >> 4 * awq_places[row % 8] & 15) ^ t->flipped);
	case QUANT_GPTQ: /* the largest may stand for 0 less 1 */
		code = bits_at(t->zeros, (size_t)group * (t->rows * t->bits / 32), 1, row, t->bits);
		return (float)((code + t->zero_offset) & ((1u << t->bits) - 1));
	case QUANT_TERNARY:
		return 1;
	case QUANT_PACKED:
		if (!t->zeros)
			return (float)(1u << (t->bits - 1));
		return (float)bits_at(t->zeros, group, group_count(t), row, t->bits);
	case QUANT_INT8:
		return t->zeros ? (float)((const int8_t *)t->zeros
						  ->data)[(size_t)(row / t->group_rows) * group_count(t) +
							  group]
				: 0;
	default:
		return 0;
	}
}

/* ---------------------------------------------------------------- values */

static bool is_half_bytes(enum quant_format format)
{
	return format == QUANT_MXFP4 || format == QUANT_NVFP4 || format == QUANT_BNB4;
}

/* Two numbers a byte, which mean `table`, times `scale`. */
static void pairs_of(const u8 *bytes, u32 count, bool high_first, const float table[16], float scale, float *out)
{
	const u32 first = high_first ? 4 : 0;

	for (u32 i = 0; i < count; i++) {
		out[2 * i] = table[bytes[i] >> first & 15] * scale;
		out[2 * i + 1] = table[bytes[i] >> (4 - first) & 15] * scale;
	}
}

/* A block after the other. */
static void half_byte_values(const struct quant_tensor *t, u32 row, u32 first, u32 count, float *out)
{
	const u8 *bytes = (const u8 *)t->values->data + (size_t)row * t->columns / 2;
	const bool high_first = t->format == QUANT_BNB4;
	const float *table = high_first ? t->table : e2m1;

	for (u32 at = first, end = first + count, next; at < end; at = next) {
		u32 group = at / t->group_columns;
		float scale = scale_at(t, row, group), pair[2];
		next = (group + 1) * t->group_columns < end ? (group + 1) * t->group_columns : end;
		if (at % 2) { /* a rank's share may begin inside a byte */
			pairs_of(bytes + at / 2, 1, high_first, table, scale, pair);
			*out++ = pair[1];
			at++;
		}
		pairs_of(bytes + at / 2, (next - at) / 2, high_first, table, scale, out);
		out += (next - at) / 2 * 2;
		if ((next - at) % 2) {
			pairs_of(bytes + next / 2, 1, high_first, table, scale, pair);
			*out++ = pair[0];
		}
	}
}

/* Values of codes that share a scale and a zero. */
static void scaled_values(enum quant_format format, const u8 *codes, u32 count, float scale, float zero, float *out)
{
	if (format == QUANT_FP8)
		for (u32 i = 0; i < count; i++)
			out[i] = f8_value(codes[i]) * scale;
	else if (format == QUANT_INT8)
		for (u32 i = 0; i < count; i++)
			out[i] = ((float)(int8_t)codes[i] - zero) * scale;
	else
		for (u32 i = 0; i < count; i++)
			out[i] = ((float)codes[i] - zero) * scale;
}

/* The words of a row in rising order of inputs, without looking up the format for every one: a word of AWQ
 * has one input, the others have several, and no bits of any in the next. */
static void codes_in_order(const struct quant_tensor *t, u32 row, u32 first, u32 count, u8 *codes)
{
	u32 in_word = 32 / t->bits, mask = (1u << t->bits) - 1, i = 0;
	size_t stride = t->format == QUANT_GPTQ ? t->rows : 1;
	size_t at = t->format == QUANT_GPTQ ? row + first / in_word * stride
					    : (size_t)row * ceil_div(t->columns, in_word) + first / in_word;

	for (; i < count && (first + i) % in_word != 0; i++) /* a rank's share may begin inside a word */
		codes[i] = (u8)code_at(t, row, first + i);
	at += i > 0 ? stride : 0;
	for (; i < count; at += stride) {
		u32 word = word_at(t->values, at);
		for (u32 k = 0; k < in_word && i < count; k++, i++, word >>= t->bits)
			codes[i] = (u8)(word & mask);
	}
}

/* The codes of a row in rising order of inputs. */
static void row_codes(const struct quant_tensor *t, u32 row, u32 first, u32 count, u8 *codes)
{
	bool bytes = t->format == QUANT_FP8 || t->format == QUANT_INT8;
	bool ternary = t->format == QUANT_TERNARY;
	bool words = (t->format == QUANT_GPTQ || t->format == QUANT_PACKED) && 32 % t->bits == 0;

	if (t->at_load) {
		quant_ternary_codes(t, row, first, count, codes);
		return;
	}
	if (bytes)
		memcpy(codes, (const u8 *)t->values->data + (size_t)row * t->columns + first, count);
	else if (words)
		codes_in_order(t, row, first, count, codes);
	for (u32 i = 0, shift = ternary ? ternary_shift(t, row) : 0; i < count && ternary; i++)
		codes[i] = ternary_row(t, row)[first + i] >> shift & 3;
	for (u32 i = 0; i < count && !bytes && !words && !ternary; i++)
		codes[i] = (u8)code_at(t, row, first + i);
}

void quant_tensor_values(const struct quant_tensor *t, u32 row, u32 first, u32 count, float *out)
{
	enum { AT_ONCE = 256 };
	u8 codes[AT_ONCE];

	if (t->format == QUANT_GGUF) {
		for (u32 done = 0, n, at; done < count; done += n) {
			n = tiles_run(&t->tiles, first + done, count - done, &at);
			quant_gguf_values(t->block_type, gguf_row(t, row), at, n, out + done);
		}
		for (u32 i = 0; i < count && t->scale_times != 1; i++)
			out[i] *= t->scale_times;
		return;
	}
	if (t->at_load) {
		quant_ternary_values(t, row, first, count, out);
		return;
	}
	if (is_half_bytes(t->format)) {
		half_byte_values(t, row, first, count, out);
		return;
	}
	for (u32 at = first, end = first + count, n; at < end; at += n, out += n) {
		n = end - at < AT_ONCE ? end - at : AT_ONCE;
		row_codes(t, row, at, n, codes);
		for (u32 i = 0, run; i < n; i += run) {
			u32 group = group_of(t, at + i), left = t->groups ? 1 : (group + 1) * t->group_columns - at - i;
			run = left < n - i ? left : n - i;
			scaled_values(t->format, codes + i, run, scale_at(t, row, group), zero_at(t, row, group), out + i);
		}
	}
}

/* ---------------------------------------------------------------- as weights of ours */

/* Inputs are out of order only if some group is not where its number says. */
bool quant_tensor_is_ordered(const struct quant_tensor *t)
{
	return t->groups != NULL;
}

void quant_tensor_order(const struct quant_tensor *t, u32 *order)
{
	u32 n = 0;

	for (u32 group = 0; group < group_count(t); group++)
		for (u32 i = 0; i < t->columns; i++)
			if (group_of(t, i) == group)
				order[n++] = i;
	ASSERT(n == t->columns);
}

/* Every group has as many inputs as it has room. */
static bool groups_are_full(const struct quant_tensor *t)
{
	for (u32 group = 0; group < group_count(t); group++) {
		u32 n = 0;
		for (u32 i = 0; i < t->columns; i++)
			n += group_of(t, i) == group;
		if (n != t->group_columns)
			return false;
	}
	return true;
}

static bool scales_are_halves(const struct quant_tensor *t)
{
	size_t count = t->scales->bytes / kern_dtype_bytes(t->scales->dtype);

	if (t->format == QUANT_TERNARY) /* rounded to one, by less than to bfloat16 where no digits are lost */
		return quant_ternary_is_half(scale_at(t, 0, 0));
	if (t->scales->dtype == KERN_F16)
		return true;
	for (size_t i = 0; i < count; i++) {
		float x = float_at(t->scales, i), size = x < 0 ? -x : x,
		      unit = size < 0x1p-14f ? 0x1p-24f : 0;
		u32 bits;
		memcpy(&bits, &x, sizeof(bits));
		if (size >= 65520 ||
		    (unit > 0 ? (float)(u32)(size / unit) * unit != size : (bits & 0x1fff) != 0))
			return false;
	}
	return true;
}

/* Of GPTQ in 8 bits: all zero points are 128, as those of symmetric ones are. */
static bool zeros_are_middle(const struct quant_tensor *t)
{
	for (u32 group = 0; t->format == QUANT_GPTQ && group < group_count(t); group++)
		for (u32 row = 0; row < t->rows; row++)
			if (zero_at(t, row, group) != 128)
				return false;
	return t->format == QUANT_GPTQ || !t->zeros;
}

enum kern_dtype quant_tensor_type(const struct quant_tensor *t, u32 first, u32 count)
{
	static const enum kern_dtype fours[] = {KERN_I4_128, KERN_I4_64, KERN_I4_32};
	bool all = first == 0 && count == t->columns, whole = t->group_columns == t->columns && !t->groups;

	if (t->format == QUANT_NONE || t->at_load || t->format == QUANT_FP8 || is_half_bytes(t->format))
		return KERN_F32;
	if (t->format == QUANT_GGUF) {
		const bool groups = first % QUANT_GGUF_GROUP == 0 && count % QUANT_GGUF_GROUP == 0 && t->tiles.width % QUANT_GGUF_GROUP == 0;
		return groups && quant_gguf_is_linear(t->block_type) ? KERN_I4_32 : KERN_F32;
	}
	if (t->bits > 4) {
		u32 group = kern_dtype_group(KERN_I8);
		bool fits = whole || (t->group_columns % group == 0 && first % group == 0);
		return fits && !t->groups && zeros_are_middle(t) ? KERN_I8 : KERN_F32;
	}
	if (t->groups && (!all || !groups_are_full(t)))
		return KERN_F32;
	for (u32 i = 0; i < COUNT_OF(fours); i++) {
		u32 group = kern_dtype_group(fours[i]);
		if (whole || (t->group_columns % group == 0 && first % group == 0))
			return scales_are_halves(t) ? fours[i] : KERN_F32;
	}
	return KERN_F32;
}

enum kern_dtype quant_tensor_kept(const struct quant_tensor *t, u32 first, u32 count)
{
	enum kern_dtype type = quant_tensor_type(t, first, count);

	return type == KERN_F32 && t->format == QUANT_GGUF ? KERN_I8 : type;
}

enum { F8_GROUP = 128 }; /* of weights on devices */

bool quant_tensor_is_f8(const struct quant_tensor *t, u32 first, u32 count)
{
	bool whole = t->group_columns == t->columns;

	return t->format == QUANT_FP8 && first + count <= t->columns &&
	       (whole || (t->group_columns % F8_GROUP == 0 && first % F8_GROUP == 0));
}

const u8 *quant_tensor_f8_row(const struct quant_tensor *t, u32 row, u32 first, u32 count, float *scales)
{
	for (u32 i = 0; i < ceil_div(count, F8_GROUP); i++)
		scales[i] = scale_at(t, row, group_of(t, first + i * F8_GROUP));
	return (const u8 *)t->values->data + (size_t)row * t->columns + first;
}

/* A group of inputs in 8 bits by the least power of two that holds them all: exact unless its blocks' powers are more than
 * three apart, as multiples of amax / 127 would hardly ever be. Returns that power; 0: all are 0, NAN: some are none. */
static float mxfp4_codes(const float *values, u32 count, u8 *codes)
{
	enum { MOST = 127, SLACK = 256 };
	float most = 0;
	int exponent;

	for (u32 i = 0; i < count; i++)
		most = fabsf(values[i]) > most || isnan(values[i]) ? fabsf(values[i]) : most;
	if (!(most < INFINITY) || most < FLT_MIN * SLACK) { /* what is so small would need a unit that is no normal number */
		memset(codes, 0, count);
		return most < INFINITY ? 0 : NAN;
	}
	float share = frexpf(most / MOST, &exponent), unit = ldexpf(1, share > 0.5f ? exponent : exponent - 1);
	for (u32 i = 0; i < count; i++)
		codes[i] = (u8)(int8_t)lrintf(values[i] / unit);
	return unit;
}

bool quant_tensor_holds(const struct quant_tensor *t, enum kern_dtype type)
{
	if (t->at_load)
		return type == KERN_I4_128;
	return (t->format == QUANT_MXFP4 || (t->format == QUANT_GGUF && t->block_type == GGUF_MXFP4)) && type == KERN_I8;
}

/* Of quant_tensor_codes for such a tensor. */
static void held_codes(const struct quant_tensor *t, u32 row, u32 first, u32 count, u8 *codes, float *scales, float *zeros)
{
	enum { WIDTH = 128 }; /* kern_dtype_group(KERN_I8) */
	float values[WIDTH];

	for (u32 i = 0; i < count; i += WIDTH) {
		u32 n = count - i < WIDTH ? count - i : WIDTH;
		quant_tensor_values(t, row, first + i, n, values);
		scales[i / WIDTH] = mxfp4_codes(values, n, codes + i);
		zeros[i / WIDTH] = 0;
	}
}

void quant_tensor_codes(const struct quant_tensor *t, enum kern_dtype type, u32 row, u32 first, u32 count,
			const u32 *order, u8 *codes, float *scales, float *zeros)
{
	u32 width = kern_dtype_group(type);

	if (quant_tensor_holds(t, type) && !t->at_load) {
		held_codes(t, row, first, count, codes, scales, zeros);
		return;
	}
	if (t->format == QUANT_GGUF) {
		for (u32 done = 0, n, at; done < count; done += n) {
			n = tiles_run(&t->tiles, first + done, count - done, &at);
			quant_gguf_codes(t->block_type, gguf_row(t, row), at, n, codes ? codes + done : NULL, scales + done / QUANT_GGUF_GROUP,
					 zeros + done / QUANT_GGUF_GROUP);
		}
		return;
	}
	bool packed = t->format == QUANT_GPTQ || t->format == QUANT_PACKED;
	for (u32 i = 0; i < count && codes && order; i++)
		codes[i] = (u8)code_at(t, row, order[i]);
	if (codes && !order)
		row_codes(t, row, first, count, codes);
	/* packed codes have half of the range added, which an i8 has not */
	for (u32 i = 0; i < count && codes && type == KERN_I8 && packed; i++)
		codes[i] = (u8)(codes[i] - (1u << (t->bits - 1)));
	for (u32 i = 0; i < count; i += width) {
		u32 group = group_of(t, order ? order[i] : first + i);
		scales[i / width] = scale_at(t, row, group);
		zeros[i / width] = zero_at(t, row, group);
	}
}

bool quant_tensor_eight_codes(const struct quant_tensor *t, u32 row, u32 first, u32 count, u8 *codes)
{
	if (t->format != QUANT_AWQ || row % 8 != 0)
		return false;
	for (u32 i = 0; i < count; i++) {
		u32 word = word_at(t->values, (size_t)(first + i) * (t->rows / 8) + row / 8);
		for (u32 k = 0; k < 8; k++)
			codes[(size_t)k * count + i] = (u8)((word >> 4 * awq_places[k] & 15) ^ t->flipped);
	}
	return true;
}
