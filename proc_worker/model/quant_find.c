/* Finds the parts of a quantized checkpoint's matrices, and checks their shapes and types before anything reads them. Runs in the worker
 * while a model loads; owns nothing. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "proc_worker/model/quant_gguf.h"
#include "proc_worker/model/quant_tensor_priv.h"

enum { NAME_BYTES = 256 };

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

static enum err find_awq_gptq(struct quant_tensor *t, const struct safetensors *st, const struct quant_scheme *c, const char *name, struct err_msg *em)
{
	const bool awq = t->format == QUANT_AWQ, quark = c->names == NAMES_QUARK;
	u32 groups = group_count(t);
	u64 values[2] = {awq ? t->columns : t->columns * t->bits / 32, awq ? t->rows * t->bits / 32 : t->rows};
	u64 scales[2] = {groups, t->rows}, zeros[2] = {groups, t->rows * t->bits / 32};

	if (t->rows * t->bits % 32 || t->columns * t->bits % 32 || t->columns % t->group_columns)
		return err_set(em, ERR_UNSUPPORTED,
			       "%s: a matrix [%u, %u] in groups of %u cannot be stored in this format", name,
			       t->rows, t->columns, t->group_columns);
	enum err e = need_part(&t->values, st, name, quark ? "weight" : "qweight", "I32", values, 2, em);
	if (!e)
		e = need_part(&t->scales, st, name, quark ? "weight_scale" : "scales", FLOATS, scales, 2, em);
	if (!e)
		e = need_part(&t->zeros, st, name, quark ? "weight_zero_point" : "qzeros", "I32", zeros, 2, em);
	return e || awq ? e : find_groups(t, st, name, "g_idx", em);
}

/* One scale for all, or for every row, or for every group or block. */
static enum err find_scales(struct quant_tensor *t, const struct safetensors *st, const struct quant_scheme *c,
			    const char *name, const char *suffix, struct err_msg *em)
{
	static const char POWERS[] = "F8_E8M0";
	char full[NAME_BYTES];
	const struct st_tensor *s = part_named(st, name, suffix, full);
	u64 shape[2] = {ceil_div(t->rows, t->group_rows), group_count(t)};
	bool whole = t->group_columns == t->columns && t->group_rows == 1;
	bool powers = s && strcmp(s->dtype_name, POWERS) == 0;
	const char *type = powers ? POWERS : c->scale_powers ? "U8" : FLOATS;

	t->scale_kind = powers || c->scale_powers ? SCALE_E8M0 : SCALE_FLOAT;
	if (s && whole && s->usable && s->bytes == kern_dtype_bytes(s->dtype)) { /* of the tensor */
		t->group_rows = t->rows;
		t->scales = s;
		return ERR_OK;
	}
	if (s && whole && s->dims == 1) /* of every row, written as a vector */
		return need_part(&t->scales, st, name, suffix, type, shape, 1, em);
	return need_part(&t->scales, st, name, suffix, type, shape, 2, em);
}

/* A single number that is no zero. */
static enum err need_number(float *out, const struct safetensors *st, const char *name, const char *suffix, struct err_msg *em)
{
	char full[NAME_BYTES], element[4];
	const struct st_tensor *t = part_named(st, name, suffix, full);

	if (!t)
		return err_set(em, ERR_NOT_FOUND, "the checkpoint has no tensor %s (one float expected)", full);
	if (!t->usable || t->bytes != kern_dtype_bytes(t->dtype))
		return err_set(em, ERR_FORMAT, "%s: tensor %s must be one float (F16, BF16, F32)", t->file, full);
	memcpy(element, t->data, (size_t)t->bytes);
	kern_convert(out, KERN_F32, element, t->dtype, 1);
	if (!isfinite(*out) || *out == 0)
		return err_set(em, ERR_FORMAT, "%s: tensor %s is %g; it must be a finite number other than 0", t->file, full, (double)*out);
	return ERR_OK;
}

static enum err find_packed(struct quant_tensor *t, const struct safetensors *st,
			    const struct quant_scheme *c, const char *name, struct err_msg *em)
{
	u64 values[2] = {t->rows, ceil_div(t->columns * t->bits, 32)};
	u64 zeros[2] = {ceil_div(t->rows * t->bits, 32), group_count(t)};

	enum err e = need_part(&t->values, st, name, "weight_packed", "I32", values, 2, em);
	if (!e)
		e = find_scales(t, st, c, name, "weight_scale", em);
	if (!e && c->zeros)
		e = need_part(&t->zeros, st, name, "weight_zero_point", "I32", zeros, 2, em);
	return e ? e : find_groups(t, st, name, "weight_g_idx", em);
}

/* Of Quark, in the shape of the scales: of symmetric schemes, too, which are all 0. */
static enum err find_quark_zeros(struct quant_tensor *t, const struct safetensors *st, const struct quant_scheme *c, const char *name, struct err_msg *em)
{
	const struct st_tensor *zeros;

	enum err e = need_part(&zeros, st, name, "weight_zero_point", "I8", t->scales->shape, t->scales->dims, em);
	for (size_t i = 0; !e && !c->zeros && i < zeros->bytes; i++)
		if (((const int8_t *)zeros->data)[i] != 0)
			e = err_set(em, ERR_FORMAT, "%s: tensor %s has the zero point %d, and its scheme is symmetric", zeros->file, zeros->name,
				    ((const int8_t *)zeros->data)[i]);
	t->zeros = c->zeros ? zeros : NULL;
	return e;
}

static enum err find_bytes(struct quant_tensor *t, const struct safetensors *st, const struct quant_scheme *c,
			   const char *name, struct err_msg *em)
{
	u64 values[2] = {t->rows, t->columns};
	bool fp8 = t->format == QUANT_FP8;

	enum err e = need_part(&t->values, st, name, "weight", fp8 ? "F8_E4M3" : "I8", values, 2, em);
	if (!e)
		e = find_scales(t, st, c, name, c->scale_inverse ? "weight_scale_inv" : "weight_scale", em);
	u64 zeros[2] = {ceil_div(t->rows, t->group_rows), group_count(t)};
	if (!e && !fp8 && c->names == NAMES_QUARK)
		return find_quark_zeros(t, st, c, name, em);
	if (!e && c->zeros && !fp8)
		e = need_part(&t->zeros, st, name, "weight_zero_point", "I8", zeros, 2, em);
	return e;
}

/* E2M1 by blocks of t->group_columns. */
static enum err find_fp4(struct quant_tensor *t, const struct safetensors *st, const struct quant_scheme *c, const char *name,
			 struct err_msg *em)
{
	const u32 block = c->group, blocks = t->columns / block;
	const u64 values[3] = {t->rows, c->names == NAMES_OWN ? blocks : t->columns / 2, 16}, scales[2] = {t->rows, blocks};
	const bool mx = t->format == QUANT_MXFP4;
	static const char *const of_values[] = {[NAMES_OWN] = "weight_blocks", [NAMES_COMPRESSED] = "weight_packed", [NAMES_MODELOPT] = "weight", [NAMES_QUARK] = "weight"};
	const char *of_scales = c->names == NAMES_OWN ? "weight_scales" : "weight_scale";

	if (t->columns % block)
		return err_set(em, ERR_UNSUPPORTED, "%s: a matrix [%u, %u] cannot be stored in %s: its blocks have %u inputs", name,
			       t->rows, t->columns, mx ? "MXFP4" : "NVFP4", block);
	t->scale_kind = mx ? SCALE_E8M0 : SCALE_E4M3;
	enum err e = need_part(&t->values, st, name, of_values[c->names], "U8", values, c->names == NAMES_OWN ? 3 : 2, em);
	if (!e)
		e = need_part(&t->scales, st, name, of_scales, mx ? "U8" : "F8_E4M3", scales, 2, em);
	if (!e && !mx && c->names == NAMES_COMPRESSED)
		e = need_number(&t->scale_over, st, name, "weight_global_scale", em);
	if (!e && !mx && c->names == NAMES_MODELOPT)
		e = need_number(&t->scale_times, st, name, "weight_scale_2", em);
	return e;
}

/* ---------------------------------------------------------------- bitsandbytes */

static enum err find_bnb8(struct quant_tensor *t, const struct safetensors *st, const char *name, struct err_msg *em)
{
	const u64 values[2] = {t->rows, t->columns}, scales[1] = {t->rows};
	char full[NAME_BYTES];
	const struct st_tensor *format = part_named(st, name, "weight_format", full);

	if (format && (format->bytes != 1 || *(const u8 *)format->data != 0))
		return err_set(em, ERR_UNSUPPORTED, "%s: tensor %s says that rows are not one behind the other; 0 is supported", format->file,
			       full);
	t->scale_over = 127; /* what is stored are largest magnitudes */
	enum err e = need_part(&t->values, st, name, "weight", "I8", values, 2, em);
	return e ? e : need_part(&t->scales, st, name, "SCB", "F32", scales, 1, em);
}

/* What the JSON text beside a matrix says. */
struct bnb_state {
	i64 block, nested_block;
	double offset;
	bool nested;
};

static enum err read_state(struct bnb_state *s, const struct quant_tensor *t, const struct st_tensor *text, struct err_msg *em)
{
	struct json_doc *doc = NULL;
	i64 rows = 0, columns = 0;

	enum err e = json_parse(&doc, text->data, (size_t)text->bytes, em);
	if (e) {
		err_prefix(em, "%s: tensor %s", text->file, text->name);
		return e;
	}
	json_val v = json_root(doc), shape = json_get(v, "shape");
	bool right = json_int(json_get(v, "blocksize"), &s->block) && s->block >= 2 && s->block <= 1 << 20 && s->block % 2 == 0; /* whole bytes */
	s->nested = json_present(json_get(v, "nested_blocksize"));
	if (s->nested)
		right = right && json_int(json_get(v, "nested_blocksize"), &s->nested_block) && s->nested_block >= 1 &&
			s->nested_block <= 1 << 20 && json_double(json_get(v, "nested_offset"), &s->offset) && isfinite(s->offset);
	bool same = json_count(shape) == 2 && json_int(json_at(shape, 0), &rows) && json_int(json_at(shape, 1), &columns) && rows == t->rows &&
		    columns == t->columns;
	json_free(&doc);
	if (!right)
		return err_set(em, ERR_FORMAT, "%s: tensor %s must have an even \"blocksize\", and with \"nested_blocksize\" a \"nested_offset\"",
			       text->file, text->name);
	if (!same)
		return err_set(em, ERR_FORMAT, "%s: tensor %s describes a matrix [%lld, %lld]; by config.json it must be [%u, %u]", text->file,
			       text->name, (long long)rows, (long long)columns, t->rows, t->columns);
	return ERR_OK;
}

static enum err find_state(struct bnb_state *s, const struct quant_tensor *t, const struct safetensors *st, const char *name,
			   struct err_msg *em)
{
	static const char *const suffixes[] = {"weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"};
	char full[NAME_BYTES];

	for (u32 i = 0; i < COUNT_OF(suffixes); i++) {
		const struct st_tensor *text = part_named(st, name, suffixes[i], full);
		if (text && strcmp(text->dtype_name, "U8") == 0)
			return read_state(s, t, text, em);
	}
	return err_set(em, ERR_NOT_FOUND, "the checkpoint has no tensor %s, nor one that ends in nf4 (bytes of JSON expected)", full);
}

static enum err find_bnb4(struct quant_tensor *t, const struct safetensors *st, const char *name, struct err_msg *em)
{
	static const u64 few[1] = {16}, many[1] = {256};
	const struct st_tensor *table;
	struct bnb_state s = {0};

	enum err e = find_state(&s, t, st, name, em);
	if (e)
		return e;
	if (t->columns % (u64)s.block)
		return err_set(em, ERR_UNSUPPORTED, "%s: rows of %u inputs are no whole blocks of %lld", name, t->columns, (long long)s.block);
	t->group_columns = (u32)s.block;
	const u64 values[2] = {(u64)t->rows * t->columns / 2, 1}, scales[1] = {(u64)t->rows * group_count(t)};
	e = need_part(&t->values, st, name, "weight", "U8", values, 2, em);
	if (!e)
		e = need_part(&t->scales, st, name, "weight.absmax", s.nested ? "U8" : "F32", scales, 1, em);
	if (!e)
		e = need_part(&table, st, name, "weight.quant_map", "F32", few, 1, em);
	if (!e)
		memcpy(t->table, table->data, sizeof(t->table));
	if (e || !s.nested)
		return e;
	const u64 nested[1] = {(scales[0] + (u64)s.nested_block - 1) / (u64)s.nested_block};
	t->nested.block = (u32)s.nested_block;
	t->nested.offset = (float)s.offset;
	e = need_part(&t->nested.table, st, name, "weight.nested_quant_map", "F32", many, 1, em);
	return e ? e : need_part(&t->nested.scales, st, name, "weight.nested_absmax", "F32", nested, 1, em);
}

/* ---------------------------------------------------------------- BitNet */

/* Rows a quarter of all apart share bytes. */
static enum err find_ternary(struct quant_tensor *t, const struct safetensors *st, const struct quant_scheme *c, const char *name, struct err_msg *em)
{
	const u64 values[2] = {t->rows / 4, t->columns}, one[1] = {1};

	if (t->rows % 4)
		return err_set(em, ERR_UNSUPPORTED, "%s: a matrix [%u, %u] cannot be stored in this format: its outputs are no multiple of 4", name, t->rows, t->columns);
	t->group_rows = t->rows;
	t->scale_kind = c->scale_divides ? SCALE_DIVIDES : SCALE_FLOAT;
	float scale;
	enum err e = need_part(&t->values, st, name, "weight", "U8", values, 2, em);
	if (!e)
		e = need_part(&t->scales, st, name, "weight_scale", FLOATS, one, 1, em);
	if (!e)
		e = need_number(&scale, st, name, "weight_scale", em);
	if (!e && c->scale_divides && !isfinite(1 / scale))
		e = err_set(em, ERR_FORMAT, "%s: tensor %s is divided by %g, which leaves no finite numbers", t->scales->file, t->scales->name, (double)scale);
	return e;
}

/* Of a tensor that is plain: where all but lm_head are rounded as they are read, it is one of a scheme, whose rounding knows it by `at_load`. ERR_FORMAT: it
 * has another shape, or a scale beside it, so that its values would count otherwise. */
static enum err find_plain(struct quant_tensor *t, const struct safetensors *st, const struct quant_config *c, const char *name, struct err_msg *em)
{
	const struct quant_scheme *s = &c->schemes[0];
	char full[NAME_BYTES];

	if (c->count != 1 || s->format != QUANT_TERNARY)
		return ERR_OK;
	const struct st_tensor *scale = part_named(st, name, "weight_scale", full);
	if (scale)
		return err_set(em, ERR_FORMAT, "%s: tensor %s is of type %s, but has a scale (%s); matrices with a scale must be packed (U8)", t->values->file, name,
			       t->values->dtype_name, full);
	if (!s->at_load || strcmp(name, "lm_head.weight") == 0)
		return ERR_OK;
	const u64 shape[2] = {t->rows, t->columns};
	enum err e = need_part(&t->values, st, name, "weight", FLOATS, shape, 2, em);
	t->format = QUANT_TERNARY;
	t->at_load = true;
	t->bits = s->bits;
	t->group_rows = t->rows;
	t->group_columns = t->columns;
	t->scale_times = t->scale_over = 1;
	return e;
}

/* ---------------------------------------------------------------- GGUF files */

/* Scales are where the values are. */
static enum err find_gguf(struct quant_tensor *t, const struct safetensors *st, const char *name, struct err_msg *em)
{
	const u64 shape[2] = {t->rows, t->columns};
	const struct st_tensor *values = safetensors_find(st, name);
	char wanted[64], found[64];
	u32 elements, bytes;

	safetensors_print_shape(wanted, sizeof(wanted), shape, 2);
	if (!values)
		return err_set(em, ERR_NOT_FOUND, "model.gguf has no tensor that is %s (%s expected)", name, wanted);
	if (!quant_gguf_block(values->block_type, &elements, &bytes) || !values->data)
		return err_set(em, ERR_UNSUPPORTED, "%s: tensor %s is of type %s; supported: F32, F16, BF16, %s", values->file, name, values->dtype_name,
			       QUANT_GGUF_NAMES);
	if (values->dims != 2 || memcmp(values->shape, shape, sizeof(shape)) != 0) {
		safetensors_print_shape(found, sizeof(found), values->shape, values->dims);
		return err_set(em, ERR_FORMAT, "%s: tensor %s has the shape %s, expected %s", values->file, name, found, wanted);
	}
	t->values = t->scales = values;
	t->block_type = values->block_type;
	if (values->times)
		memcpy(&t->scale_times, values->times, sizeof(t->scale_times));
	return ERR_OK;
}

/* ---------------------------------------------------------------- one of the schemes */

static enum err find_by(struct quant_tensor *t, const struct safetensors *st, const struct quant_scheme *c,
			const char *name, u32 rows, u32 columns, struct err_msg *em)
{
	*t = (struct quant_tensor){.format = c->format,
				   .rows = rows,
				   .columns = columns,
				   .bits = c->bits,
				   .zero_offset = c->zero_offset,
				   .flipped = c->twos_complement ? 8 : 0,
				   .scale_times = 1,
				   .scale_over = 1};
	t->group_columns = c->block_columns ? c->block_columns : c->group ? c->group : columns;
	t->group_columns = t->group_columns < columns ? t->group_columns : columns;
	t->group_rows = c->block_rows ? c->block_rows : 1;
	switch (c->format) {
	case QUANT_AWQ:
	case QUANT_GPTQ:
		return find_awq_gptq(t, st, c, name, em);
	case QUANT_PACKED:
		return find_packed(t, st, c, name, em);
	case QUANT_MXFP4:
	case QUANT_NVFP4:
		return find_fp4(t, st, c, name, em);
	case QUANT_BNB4:
		return find_bnb4(t, st, name, em);
	case QUANT_TERNARY:
		return find_ternary(t, st, c, name, em);
	case QUANT_GGUF:
		return find_gguf(t, st, name, em);
	default:
		return c->names == NAMES_BITSANDBYTES ? find_bnb8(t, st, name, em) : find_bytes(t, st, c, name, em);
	}
}

/* Zero points of a scheme that has none are another scheme's. */
static enum err check_zeros(const struct safetensors *st, const struct quant_scheme *c, const char *name, struct err_msg *em)
{
	char full[NAME_BYTES];
	const struct st_tensor *zeros = part_named(st, name, "weight_zero_point", full);

	if (c->zeros || !zeros || c->names == NAMES_QUARK || (c->format != QUANT_PACKED && c->format != QUANT_INT8))
		return ERR_OK;
	return err_set(em, ERR_FORMAT, "%s: tensor %s has zero points, which a symmetric scheme has none of", zeros->file, full);
}

/* The scheme that all parts fit. Where none does, what is wrong of the one that comes nearest: one whose parts are there, but not as they
 * should be. */
static enum err find_among(struct quant_tensor *t, const struct safetensors *st, const struct quant_config *c, const char *name,
			   u32 rows, u32 columns, struct err_msg *em)
{
	enum err worst = ERR_OK;
	struct err_msg own;

	for (u32 i = 0; i < c->count; i++) {
		enum err e = find_by(t, st, &c->schemes[i], name, rows, columns, &own);
		if (!e)
			e = check_zeros(st, &c->schemes[i], name, &own);
		if (!e)
			return ERR_OK;
		if (worst == ERR_OK || (worst == ERR_NOT_FOUND && e != ERR_NOT_FOUND)) {
			worst = e;
			*em = own;
		}
	}
	err_prefix(em, "none of the schemes of \"quantization_config\" fits");
	return worst;
}

enum err quant_tensor_find(struct quant_tensor *t, const struct safetensors *st, const struct quant_config *c,
			   const char *name, u32 rows, u32 columns, struct err_msg *em)
{
	enum { LONGEST_SUFFIX = 40 };
	const struct st_tensor *plain = safetensors_find(st, name);
	size_t length = strlen(name);
	char scale[NAME_BYTES];

	*t = (struct quant_tensor){.values = plain, .rows = rows, .columns = columns};
	if (c->count == 0 || length < 8 || length + LONGEST_SUFFIX > NAME_BYTES || strcmp(name + length - 7, ".weight") != 0)
		return ERR_OK;
	if ((plain && plain->usable) || (c->schemes[0].at_load && !part_named(st, name, "weight_scale", scale)))
		return find_plain(t, st, c, name, em);
	return c->count == 1 ? find_by(t, st, &c->schemes[0], name, rows, columns, em)
			     : find_among(t, st, c, name, rows, columns, em);
}
