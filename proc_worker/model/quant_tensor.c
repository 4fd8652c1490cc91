/* Reads matrices of quantized checkpoints. Runs in the worker while a model loads; owns nothing. Never trusts
 * a shape: quant_tensor_find has checked every part before a value is read.
 *
 * Packing, as published with the formats: AWQ packs eight outputs of one input into 32 bits, in the order 0,
 * 2, 4, 6, 1, 3, 5, 7 (AutoAWQ, awq/utils/packing_utils.py); GPTQ eight inputs of one output, in order, and
 * eight outputs of its zeros, in order (AutoGPTQ, qlinear); compressed-tensors neighbours of a row, in order,
 * with half of the range added, and zero points along the outputs
 * (compressors/quantized_compressors/pack_quantized.py); MXFP4 neighbours of a row, the first in the low half of a byte,
 * and a byte of E8M0 for every 32 of them (OCP Microscaling 1.0; transformers, integrations/mxfp4.py). */
#include "proc_worker/model/quant_tensor.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/assert.h"

enum { NAME_BYTES = 256 };

/* Where in a word of AWQ the eight outputs are. */
static const u8 awq_places[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static u32 ceil_div(u32 a, u32 b)
{
	return (a + b - 1) / b;
}

/* ---------------------------------------------------------------- elements */

static u32 word_at(const struct st_tensor *t, size_t i)
{
	u32 word;
	memcpy(&word, (const char *)t->data + i * sizeof(word), sizeof(word));
	return word;
}

static float float_at(const struct st_tensor *t, size_t i)
{
	char element[4];
	size_t bytes = kern_dtype_bytes(t->dtype);
	float x;
	memcpy(element, (const char *)t->data + i * bytes, bytes);
	kern_convert(&x, KERN_F32, element, t->dtype, 1);
	return x;
}

/* Of bytes: a value; of GPTQ and AWQ: 0 .. 15; of compressed-tensors: with half of the range added. */
static u32 code_at(const struct quant_tensor *t, u32 row, u32 column)
{
	u32 in_word = 32 / t->bits;

	switch (t->format) {
	case QUANT_AWQ:
		return word_at(t->values, (size_t)column * (t->rows / 8) + row / 8) >>
			       4 * awq_places[row % 8] &
		       15;
	case QUANT_GPTQ:
		return word_at(t->values, (size_t)(column / 8) * t->rows + row) >> 4 * (column % 8) & 15;
	case QUANT_PACKED:
		return word_at(t->values, (size_t)row * ceil_div(t->columns, in_word) + column / in_word) >>
			       t->bits * (column % in_word) &
		       ((1u << t->bits) - 1);
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

/* Twice the values of E2M1, which are whole numbers. */
static const int8_t e2m1_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static u32 group_of(const struct quant_tensor *t, u32 column)
{
	return t->groups ? word_at(t->groups, column) : column / t->group_columns;
}

static u32 group_count(const struct quant_tensor *t)
{
	return ceil_div(t->columns, t->group_columns);
}

static float scale_at(const struct quant_tensor *t, u32 row, u32 group)
{
	if (t->format == QUANT_MXFP4)
		return e8m0_at(t->scales, (size_t)row * group_count(t) + group);
	if (t->format == QUANT_AWQ || t->format == QUANT_GPTQ)
		return float_at(t->scales, (size_t)group * t->rows + row);
	return float_at(t->scales, (size_t)(row / t->group_rows) * group_count(t) + group);
}

float quant_tensor_scale(const struct quant_tensor *t, u32 row, u32 column)
{
	return scale_at(t, row, group_of(t, column));
}

/* In units of codes. */
static float zero_at(const struct quant_tensor *t, u32 row, u32 group)
{
	u32 in_word = 32 / t->bits, code;

	switch (t->format) {
	case QUANT_AWQ:
		return (float)(word_at(t->zeros, (size_t)group * (t->rows / 8) + row / 8) >>
				       4 * awq_places[row % 8] &
			       15);
	case QUANT_GPTQ: /* 15 may stand for 0 less 1 */
		code = word_at(t->zeros, (size_t)group * (t->rows / 8) + row / 8) >> 4 * (row % 8);
		return (float)((code + t->zero_offset) & 15);
	case QUANT_PACKED:
		if (!t->zeros)
			return (float)(1u << (t->bits - 1));
		return (float)(word_at(t->zeros, (size_t)(row / in_word) * group_count(t) + group) >>
				       t->bits * (row % in_word) &
			       ((1u << t->bits) - 1));
	case QUANT_INT8:
		return t->zeros ? (float)((const int8_t *)t->zeros
						  ->data)[(size_t)(row / t->group_rows) * group_count(t) +
							  group]
				: 0;
	default:
		return 0;
	}
}

/* FP8 E4M3 (OCP): bias 7, no infinities. */
static float f8_value(u32 code)
{
	u32 exponent = code >> 3 & 15, mantissa = code & 7, bits;
	float x = (float)mantissa * 0x1p-9f;
	if (exponent > 0) {
		bits = (code & 127) == 127 ? 0x7fc00000u : (exponent + 120) << 23 | mantissa << 20;
		memcpy(&x, &bits, sizeof(x));
	}
	return code & 128 ? -x : x;
}

/* A block after the other. */
static void mxfp4_values(const struct quant_tensor *t, u32 row, u32 first, u32 count, float *out)
{
	const u8 *codes = (const u8 *)t->values->data + (size_t)row * t->columns / 2;

	for (u32 at = first, end = first + count; at < end;) {
		u32 group = at / t->group_columns, last = (group + 1) * t->group_columns;
		float half = scale_at(t, row, group) / 2;
		for (last = last < end ? last : end; at < last; at++)
			*out++ = (float)e2m1_twice[codes[at / 2] >> 4 * (at % 2) & 15] * half;
	}
}

void quant_tensor_values(const struct quant_tensor *t, u32 row, u32 first, u32 count, float *out)
{
	u32 last = UINT32_MAX;
	float scale = 0, zero = 0;

	if (t->format == QUANT_MXFP4) {
		mxfp4_values(t, row, first, count, out);
		return;
	}
	for (u32 i = 0; i < count; i++) {
		u32 code = code_at(t, row, first + i), group = group_of(t, first + i);
		if (group != last) {
			scale = scale_at(t, row, group);
			zero = zero_at(t, row, group);
			last = group;
		}
		float stored = t->format == QUANT_FP8	 ? f8_value(code)
			       : t->format == QUANT_INT8 ? (float)(int8_t)code
							 : (float)code;
		out[i] = (stored - zero) * scale;
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

enum kern_dtype quant_tensor_type(const struct quant_tensor *t, u32 first, u32 count)
{
	static const enum kern_dtype fours[] = {KERN_I4_128, KERN_I4_64, KERN_I4_32};
	bool all = first == 0 && count == t->columns, whole = t->group_columns == t->columns && !t->groups;

	if (t->format == QUANT_NONE || t->format == QUANT_FP8 || t->format == QUANT_MXFP4)
		return KERN_F32;
	if (t->bits == 8) {
		u32 group = kern_dtype_group(KERN_I8);
		bool fits = whole || (t->group_columns % group == 0 && first % group == 0);
		return fits && !t->zeros && !t->groups ? KERN_I8 : KERN_F32;
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

/* The words of a row in rising order of inputs, without looking up the format for every one: a word of AWQ
 * has one input, the others have several. */
static void codes_in_order(const struct quant_tensor *t, u32 row, u32 first, u32 count, u8 *codes)
{
	u32 in_word = 32 / t->bits, mask = (1u << t->bits) - 1, i = 0;
	size_t stride = t->format == QUANT_GPTQ ? t->rows : 1;
	size_t at = t->format == QUANT_GPTQ ? row + first / 8 * stride
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
	return t->format == QUANT_MXFP4 && type == KERN_I8;
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

	if (quant_tensor_holds(t, type)) {
		held_codes(t, row, first, count, codes, scales, zeros);
		return;
	}
	bool words = !order && (t->format == QUANT_GPTQ || t->format == QUANT_PACKED);
	for (u32 i = 0; i < count && codes && !words; i++)
		codes[i] = (u8)code_at(t, row, order ? order[i] : first + i);
	if (words && codes)
		codes_in_order(t, row, first, count, codes);
	/* packed bytes have 128 added, which an i8 has not */
	for (u32 i = 0; i < count && codes && type == KERN_I8 && t->format == QUANT_PACKED; i++)
		codes[i] ^= 128;
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
			codes[(size_t)k * count + i] = (u8)(word >> 4 * awq_places[k] & 15);
	}
	return true;
}

/* ---------------------------------------------------------------- finding and checking */

static const struct st_tensor *part_named(const struct safetensors *st, const char *name, const char *suffix,
					  char *full)
{
	size_t stem = strlen(name) - strlen("weight");

	snprintf(full, NAME_BYTES, "%.*s%s", (int)stem, name, suffix);
	return safetensors_find(st, full);
}

/* A part of a type and shape; dims 0: one number, in whatever shape. */
static enum err need_part(const struct st_tensor **out, const struct safetensors *st, const char *name,
			  const char *suffix, const char *type, const u64 *shape, u32 dims,
			  struct err_msg *em)
{
	char full[NAME_BYTES], wanted[64], found[64];
	const struct st_tensor *t = part_named(st, name, suffix, full);

	safetensors_print_shape(wanted, sizeof(wanted), shape, dims);
	if (!t)
		return err_set(em, ERR_NOT_FOUND, "the checkpoint has no tensor %s (%s of %s expected)", full,
			       type, wanted);
	bool right = type[0] == 'f' ? t->usable : strcmp(t->dtype_name, type) == 0;
	if (!right)
		return err_set(em, ERR_FORMAT, "%s: tensor %s is of type %s, expected %s", t->file, full,
			       t->dtype_name, type);
	if (t->dims != dims || memcmp(t->shape, shape, dims * sizeof(u64)) != 0) {
		safetensors_print_shape(found, sizeof(found), t->shape, t->dims);
		return err_set(em, ERR_FORMAT, "%s: tensor %s has the shape %s, expected %s", t->file, full,
			       found, wanted);
	}
	*out = t;
	return ERR_OK;
}

static const char FLOATS[] = "float (F16, BF16, F32)";

/* g_idx: a group for every input; NULL where it says what is so anyway. */
static enum err find_groups(struct quant_tensor *t, const struct safetensors *st, const char *name,
			    const char *suffix, struct err_msg *em)
{
	char full[NAME_BYTES];
	const u64 shape[1] = {t->columns};
	const struct st_tensor *groups;
	bool in_order = true;

	if (!part_named(st, name, suffix, full))
		return ERR_OK;
	enum err e = need_part(&groups, st, name, suffix, "I32", shape, 1, em);
	for (u32 i = 0; !e && i < t->columns; i++) {
		u32 group = word_at(groups, i);
		in_order = in_order && group == i / t->group_columns;
		if (group >= group_count(t))
			e = err_set(em, ERR_FORMAT, "%s: tensor %s: input %u is in group %d of %u",
				    groups->file, full, i, (int)group, group_count(t));
	}
	t->groups = in_order ? NULL : groups;
	return e;
}

static enum err find_awq_gptq(struct quant_tensor *t, const struct safetensors *st, const char *name,
			      struct err_msg *em)
{
	bool awq = t->format == QUANT_AWQ;
	u32 groups = group_count(t);
	u64 values[2] = {awq ? t->columns : t->columns / 8, awq ? t->rows / 8 : t->rows};
	u64 scales[2] = {groups, t->rows}, zeros[2] = {groups, t->rows / 8};

	if (t->rows % 8 || t->columns % 8 || t->columns % t->group_columns)
		return err_set(em, ERR_UNSUPPORTED,
			       "%s: a matrix [%u, %u] in groups of %u cannot be stored in this format", name,
			       t->rows, t->columns, t->group_columns);
	enum err e = need_part(&t->values, st, name, "qweight", "I32", values, 2, em);
	if (!e)
		e = need_part(&t->scales, st, name, "scales", FLOATS, scales, 2, em);
	if (!e)
		e = need_part(&t->zeros, st, name, "qzeros", "I32", zeros, 2, em);
	return e || awq ? e : find_groups(t, st, name, "g_idx", em);
}

/* One scale for all, or for every row, or for every group or block. */
static enum err find_scales(struct quant_tensor *t, const struct safetensors *st, const char *name,
			    const char *suffix, struct err_msg *em)
{
	char full[NAME_BYTES];
	const struct st_tensor *s = part_named(st, name, suffix, full);
	u64 shape[2] = {ceil_div(t->rows, t->group_rows), group_count(t)};
	bool whole = t->group_columns == t->columns && t->group_rows == 1;

	if (s && whole && s->usable && s->bytes == kern_dtype_bytes(s->dtype)) { /* of the tensor */
		t->group_rows = t->rows;
		t->scales = s;
		return ERR_OK;
	}
	if (s && whole && s->dims == 1) /* of every row, written as a vector */
		return need_part(&t->scales, st, name, suffix, FLOATS, shape, 1, em);
	return need_part(&t->scales, st, name, suffix, FLOATS, shape, 2, em);
}

static enum err find_packed(struct quant_tensor *t, const struct safetensors *st,
			    const struct quant_config *c, const char *name, struct err_msg *em)
{
	u32 in_word = 32 / t->bits;
	u64 values[2] = {t->rows, ceil_div(t->columns, in_word)};
	u64 zeros[2] = {ceil_div(t->rows, in_word), group_count(t)};

	enum err e = need_part(&t->values, st, name, "weight_packed", "I32", values, 2, em);
	if (!e)
		e = find_scales(t, st, name, "weight_scale", em);
	if (!e && c->zeros)
		e = need_part(&t->zeros, st, name, "weight_zero_point", "I32", zeros, 2, em);
	return e ? e : find_groups(t, st, name, "weight_g_idx", em);
}

static enum err find_bytes(struct quant_tensor *t, const struct safetensors *st, const struct quant_config *c,
			   const char *name, struct err_msg *em)
{
	u64 values[2] = {t->rows, t->columns};
	bool fp8 = t->format == QUANT_FP8;

	enum err e = need_part(&t->values, st, name, "weight", fp8 ? "F8_E4M3" : "I8", values, 2, em);
	if (!e)
		e = find_scales(t, st, name, c->scale_inverse ? "weight_scale_inv" : "weight_scale", em);
	u64 zeros[2] = {ceil_div(t->rows, t->group_rows), group_count(t)};
	if (!e && c->zeros && !fp8)
		e = need_part(&t->zeros, st, name, "weight_zero_point", "I8", zeros, 2, em);
	return e;
}

static enum err find_mxfp4(struct quant_tensor *t, const struct safetensors *st, const char *name, struct err_msg *em)
{
	const u64 values[3] = {t->rows, t->columns / 32, 16}, scales[2] = {t->rows, t->columns / 32};

	if (t->columns % 32)
		return err_set(em, ERR_UNSUPPORTED, "%s: a matrix [%u, %u] cannot be stored in MXFP4: its blocks have 32 inputs", name,
			       t->rows, t->columns);
	enum err e = need_part(&t->values, st, name, "weight_blocks", "U8", values, 3, em);
	return e ? e : need_part(&t->scales, st, name, "weight_scales", "U8", scales, 2, em);
}

enum err quant_tensor_find(struct quant_tensor *t, const struct safetensors *st, const struct quant_config *c,
			   const char *name, u32 rows, u32 columns, struct err_msg *em)
{
	const struct st_tensor *plain = safetensors_find(st, name);
	size_t length = strlen(name);

	*t = (struct quant_tensor){.values = plain, .rows = rows, .columns = columns};
	if (c->format == QUANT_NONE || (plain && plain->usable) || length < 8 || length + 16 > NAME_BYTES ||
	    strcmp(name + length - 7, ".weight") != 0)
		return ERR_OK;
	t->format = c->format;
	t->bits = c->bits;
	t->zero_offset = c->zero_offset;
	t->group_columns = c->block_columns ? c->block_columns : c->group ? c->group : columns;
	t->group_columns = t->group_columns < columns ? t->group_columns : columns;
	t->group_rows = c->block_rows ? c->block_rows : 1;
	switch (c->format) {
	case QUANT_AWQ:
	case QUANT_GPTQ:
		return find_awq_gptq(t, st, name, em);
	case QUANT_PACKED:
		return find_packed(t, st, c, name, em);
	case QUANT_MXFP4:
		return find_mxfp4(t, st, name, em);
	default:
		return find_bytes(t, st, c, name, em);
	}
}
