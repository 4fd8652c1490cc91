/* Reads configurations that describe schemes in groups of modules: compressed-tensors, and what NVIDIA's Model Optimizer writes. Which
 * modules a group has ("targets", "ignore") is not read: a matrix's parts say how it is stored. Runs in the worker at start. */
#include "proc_worker/model/quant_config_priv.h"

#include <string.h>

static const char GROUPS[] = "quantization_config.config_groups.*";
static const char SCHEME[] = "quantization_config.config_groups.*.weights";

/* ---------------------------------------------------------------- compressed-tensors */

enum { /* of FORMATS */
	FORMAT_PACKED,
	FORMAT_INT,
	FORMAT_FLOAT,
	FORMAT_NAIVE,
	FORMAT_NVFP4,
	FORMAT_MXFP4,
	FORMAT_MXFP8,
	FORMAT_OF_GROUPS,
};

static const char *const FORMATS[] = {
	[FORMAT_PACKED] = "pack-quantized",	  [FORMAT_INT] = "int-quantized",
	[FORMAT_FLOAT] = "float-quantized",	  [FORMAT_NAIVE] = "naive-quantized",
	[FORMAT_NVFP4] = "nvfp4-pack-quantized",  [FORMAT_MXFP4] = "mxfp4-pack-quantized",
	[FORMAT_MXFP8] = "mxfp8-quantized",	  [FORMAT_OF_GROUPS] = "mixed-precision",
};

/* What a format's numbers are, and how many bits they may have. */
static const struct form {
	enum quant_format format;
	bool is_float;
	u8 least, most;
	u8 group; /* the only one, or 0 */
} FORMS[] = {
	[FORMAT_PACKED] = {QUANT_PACKED, false, 2, 8, 0}, [FORMAT_INT] = {QUANT_INT8, false, 2, 8, 0},
	[FORMAT_FLOAT] = {QUANT_FP8, true, 8, 8, 0},	  [FORMAT_NVFP4] = {QUANT_NVFP4, true, 4, 4, 16},
	[FORMAT_MXFP4] = {QUANT_MXFP4, true, 4, 4, 32},	  [FORMAT_MXFP8] = {QUANT_FP8, true, 8, 8, 32},
};

static enum err read_strategy(struct quant_scheme *q, json_val w, u32 only, struct err_msg *em)
{
	static const char *const strategies[] = {"group", "tensor_group", "channel", "tensor", "block"};
	enum { GROUP, TENSOR_GROUP, BLOCK = 4 };
	bool grouped = json_present(json_get(w, "group_size"));
	u32 strategy = 0;

	enum err e = quant_need_text(w, SCHEME, "strategy", grouped ? "group" : "tensor", strategies,
				     COUNT_OF(strategies), &strategy, em);
	if (e)
		return e;
	if (strategy == BLOCK && q->format != QUANT_FP8)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": strategy 'block' needs float weights of 8 bits", SCHEME);
	if (strategy == BLOCK)
		return quant_read_block(q, w, SCHEME, "block_structure", em);
	if (strategy == GROUP || strategy == TENSOR_GROUP || only)
		e = quant_read_group(q, w, SCHEME, "group_size", em);
	if (!e && only && q->group != only)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": \"group_size\" is %u; in this format it is %u", SCHEME, q->group, only);
	return e;
}

static enum err read_weights(struct quant_scheme *q, json_val w, u32 format, struct err_msg *em)
{
	static const struct field fields[] = {
		{"num_bits", FIELD_READ},   {"type", FIELD_READ},
		{"symmetric", FIELD_READ},  {"strategy", FIELD_READ},
		{"group_size", FIELD_READ}, {"block_structure", FIELD_READ},
		{"observer", FIELD_READ},   {"observer_kwargs", FIELD_READ},
		{"actorder", FIELD_READ},   {"dynamic", FIELD_FALSE},
		{"scale_dtype", FIELD_READ}, {"zp_dtype", FIELD_READ}, /* tensors say it themselves */
	};
	static const char *const types[] = {"int", "float"};
	bool symmetric = true;
	i64 bits = 0;
	u32 type = 0;

	enum err e = quant_check_fields(w, SCHEME, fields, COUNT_OF(fields), em);
	if (!e)
		e = quant_need_text(w, SCHEME, "type", "int", types, COUNT_OF(types), &type, em);
	if (e)
		return e;
	if (format == FORMAT_NAIVE)
		format = type == 1 ? FORMAT_FLOAT : FORMAT_INT;
	const struct form *f = &FORMS[format];
	if (f->is_float != (type == 1))
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": \"type\" is '%s'; supported in the format %s: %s", SCHEME, types[type],
			       FORMATS[format], types[f->is_float]);
	q->format = f->format;
	q->names = NAMES_COMPRESSED;
	q->scale_powers = format == FORMAT_MXFP8;
	e = quant_need_int(w, SCHEME, "num_bits", f->least, f->most, &bits, em);
	if (!e)
		e = quant_need_flag(w, SCHEME, "symmetric", true, &symmetric, em);
	if (!e && !symmetric && f->is_float)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": \"symmetric\" is false, which is supported of whole numbers only", SCHEME);
	q->bits = format == FORMAT_INT ? 8 : (u32)bits; /* bytes hold fewer bits, too */
	q->zeros = !symmetric;
	return e ? e : read_strategy(q, w, f->group, em);
}

/* `format`: of all groups that name none. */
static enum err read_group(struct quant_config *q, json_val group, u32 format, struct err_msg *em)
{
	static const struct field fields[] = {
		{"weights", FIELD_READ},
		{"targets", FIELD_READ},
		{"input_activations", FIELD_READ},
		{"output_activations", FIELD_FALSE},
		{"format", FIELD_READ},
	};
	json_val weights = json_get(group, "weights");
	struct quant_scheme s = {0};

	enum err e = quant_check_fields(group, GROUPS, fields, COUNT_OF(fields), em);
	if (!e && !json_present(weights)) /* only what is computed with is rounded */
		return ERR_OK;
	if (!e && (format == FORMAT_OF_GROUPS || json_present(json_get(group, "format"))))
		e = quant_need_text(group, GROUPS, "format", NULL, FORMATS, FORMAT_OF_GROUPS, &format, em);
	if (!e)
		e = read_weights(&s, weights, format, em);
	return e ? e : quant_add_scheme(q, &s, em);
}

enum err quant_read_compressed(struct quant_config *q, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"quant_method", FIELD_READ},
		{"format", FIELD_READ},
		{"config_groups", FIELD_READ},
		{"ignore", FIELD_READ},
		{"quantization_status", FIELD_READ},
		{"global_compression_ratio", FIELD_READ},
		{"version", FIELD_READ},
		{"kv_cache_scheme", FIELD_READ}, /* scales for a cache in 8 bits; ours has its own */
		{"sparsity_config", FIELD_READ},
		{"transform_config", FIELD_FALSE},
	};
	static const char *const dense[] = {"dense"};
	json_val groups = json_get(v, "config_groups"), sparsity = json_get(v, "sparsity_config");
	u32 format = 0, ignored;

	enum err e = quant_check_fields(v, QUANT_WHERE, fields, COUNT_OF(fields), em);
	if (!e && !quant_field_is_off(sparsity)) /* what it says of the zeros is no news, unless they are left out */
		e = quant_need_text(sparsity, "quantization_config.sparsity_config", "format", "dense", dense, 1, &ignored, em);
	if (!e)
		e = quant_need_text(v, QUANT_WHERE, "format", NULL, FORMATS, COUNT_OF(FORMATS), &format, em);
	if (!e && (json_type(groups) != JSON_OBJECT || json_count(groups) == 0))
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": \"config_groups\" must be an object of one or more schemes", QUANT_WHERE);
	if (e)
		return e;
	for (struct json_iter it = json_iterate(groups); !e && json_next(&it);)
		e = read_group(q, it.value, format, em);
	return e;
}

/* ---------------------------------------------------------------- Model Optimizer */

/* One for the whole model, or each layer's. */
static enum err read_algorithm(struct quant_config *q, json_val v, const char *where, struct err_msg *em)
{
	static const char *const names[] = {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4", "MXFP8"};
	static const struct quant_scheme schemes[] = {
		{.format = QUANT_FP8, .bits = 8},
		{.format = QUANT_FP8, .bits = 8},
		{.format = QUANT_NVFP4, .bits = 4, .group = 16},
		{.format = QUANT_NVFP4, .bits = 4, .group = 16},
		{.format = QUANT_FP8, .bits = 8, .group = 32, .scale_powers = true},
	};
	u32 i = 0;
	i64 group = 0;

	enum err e = quant_need_text(v, where, "quant_algo", NULL, names, COUNT_OF(names), &i, em);
	if (e)
		return e;
	struct quant_scheme s = schemes[i];
	s.names = NAMES_MODELOPT;
	if (s.group > 0 && json_present(json_get(v, "group_size")))
		e = quant_need_int(v, where, "group_size", s.group, s.group, &group, em);
	return e ? e : quant_add_scheme(q, &s, em);
}

enum err quant_read_modelopt(struct quant_config *q, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"quant_method", FIELD_READ},
		{"quant_algo", FIELD_READ},
		{"quantization", FIELD_READ},
		{"quantized_layers", FIELD_READ},
		{"config_groups", FIELD_READ}, /* says the same in other words */
		{"group_size", FIELD_READ},
		{"ignore", FIELD_READ},
		{"exclude_modules", FIELD_READ},
		{"kv_cache_scheme", FIELD_READ},
		{"kv_cache_quant_algo", FIELD_READ},
		{"producer", FIELD_READ},
		{"version", FIELD_READ},
		{"has_zero_point", FIELD_FALSE},
		{"pre_quant_scale", FIELD_FALSE},
	};
	static const char LAYERS[] = "quantization_config.quantized_layers.*";
	json_val inner = json_get(v, "quantization");

	enum err e = quant_check_fields(v, QUANT_WHERE, fields, COUNT_OF(fields), em);
	if (!e && json_present(inner)) {
		v = inner;
		e = quant_check_fields(v, QUANT_WHERE, fields, COUNT_OF(fields), em);
	}
	json_val layers = json_get(v, "quantized_layers");
	const char *algorithm = json_cstr(json_get(v, "quant_algo"), "");
	if (e || strcmp(algorithm, "MIXED_PRECISION") != 0)
		return e ? e : read_algorithm(q, v, QUANT_WHERE, em);
	if (json_type(layers) != JSON_OBJECT || json_count(layers) == 0)
		return err_set(em, ERR_FORMAT,
			       "config.json: \"%s\": with \"quant_algo\" MIXED_PRECISION \"quantized_layers\" must be an object of layers", QUANT_WHERE);
	for (struct json_iter it = json_iterate(layers); !e && json_next(&it);)
		e = read_algorithm(q, it.value, LAYERS, em);
	return e;
}
