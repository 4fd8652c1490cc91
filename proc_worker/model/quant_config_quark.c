/* Reads configurations that AMD's Quark writes. Which modules have which of several schemes (patterns of their names, "exclude") is not read: a
 * matrix's parts say how it is stored; nor is how inputs, outputs and the cache are rounded, which are not here. Runs in the worker at start. */
#include "proc_worker/model/quant_config_priv.h"

#include <string.h>

static const char MODULES[] = "quantization_config.*_quant_config", WEIGHT[] = "quantization_config.*_quant_config.weight",
		  ALGORITHM[] = "quantization_config.algo_config.*", EXPORT[] = "quantization_config.export";

/* Of a type and what shares a scale. */
static const struct form {
	const char *dtype, *qscheme;
	struct quant_scheme scheme;
} FORMS[] = {
	{"fp8_e4m3", "per_tensor", {.format = QUANT_FP8, .bits = 8}},
	{"fp8_e4m3", "per_channel", {.format = QUANT_FP8, .bits = 8}},
	{"fp4", "per_group", {.format = QUANT_MXFP4, .bits = 4}},
	{"int8", "per_tensor", {.format = QUANT_INT8, .bits = 8}},
	{"int8", "per_channel", {.format = QUANT_INT8, .bits = 8}},
	{"int4", "per_group", {.format = QUANT_AWQ, .bits = 4, .twos_complement = true}},
	{"uint4", "per_group", {.format = QUANT_AWQ, .bits = 4}},
};

static enum err find_form(const struct form **form, json_val w, struct err_msg *em)
{
	const char *dtype = json_cstr(json_get(w, "dtype"), "missing"), *qscheme = json_cstr(json_get(w, "qscheme"), "missing");

	for (*form = FORMS; *form < FORMS + COUNT_OF(FORMS); (*form)++)
		if (strcmp((*form)->dtype, dtype) == 0 && strcmp((*form)->qscheme, qscheme) == 0)
			return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED,
		       "config.json: \"%s\": \"dtype\" and \"qscheme\" are '%.32s' and '%.32s'; supported: fp8_e4m3 and int8, per_tensor or per_channel; "
		       "fp4, int4 and uint4, per_group", WEIGHT, dtype, qscheme);
}

/* Blocks of E2M1 have one size, and a power of two each. */
static enum err check_blocks(const struct quant_scheme *s, json_val w, struct err_msg *em)
{
	static const char *const formats[] = {"e8m0"};
	enum { MX_BLOCK = 32 };
	u32 ignored;

	if (s->group != MX_BLOCK)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": \"group_size\" of fp4 is %u; supported: %d", WEIGHT, s->group, MX_BLOCK);
	return quant_need_text(w, WEIGHT, "scale_format", "missing", formats, COUNT_OF(formats), &ignored, em);
}

static enum err read_weight(struct quant_config *q, json_val w, struct err_msg *em)
{
	static const struct field fields[] = {
		{"dtype", FIELD_READ},	      {"qscheme", FIELD_READ},	    {"group_size", FIELD_READ},		    {"ch_axis", FIELD_READ},
		{"symmetric", FIELD_READ},    {"scale_format", FIELD_READ}, {"scale_calculation_mode", FIELD_READ}, {"scale_type", FIELD_READ},
		{"round_method", FIELD_READ}, {"observer_cls", FIELD_READ}, {"zero_point_type", FIELD_READ},	    {"is_dynamic", FIELD_FALSE},
		{"is_scale_quant", FIELD_FALSE}, {"mx_element_dtype", FIELD_FALSE}, {"max_input_numel", FIELD_READ}, {"enable_buffer_reuse", FIELD_READ},
	};
	const struct form *form;
	bool symmetric = true;
	i64 axis = 0;

	if (json_type(w) == JSON_ARRAY)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" is a list: weights that are rounded in several steps are not supported", WEIGHT);
	enum err e = quant_check_fields(w, WEIGHT, fields, COUNT_OF(fields), em);
	if (!e)
		e = find_form(&form, w, em);
	if (e)
		return e;
	struct quant_scheme s = form->scheme;
	const bool grouped = strcmp(form->qscheme, "per_group") == 0;
	s.names = NAMES_QUARK;
	if (grouped)
		e = quant_read_group(&s, w, WEIGHT, "group_size", em);
	if (!e && json_present(json_get(w, "ch_axis"))) /* of a tensor it says nothing */
		e = quant_need_int(w, WEIGHT, "ch_axis", grouped ? -1 : 0, grouped ? 1 : 0, &axis, em);
	if (!e && grouped && axis == 0)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": \"ch_axis\" must be 1 or -1: groups of inputs", WEIGHT);
	if (!e && s.format == QUANT_MXFP4)
		e = check_blocks(&s, w, em);
	if (!e)
		e = quant_need_flag(w, WEIGHT, "symmetric", true, &symmetric, em);
	s.zeros = s.format == QUANT_INT8 && !symmetric;
	return e ? e : quant_add_scheme(q, &s, em);
}

/* Of all modules, or of those with a name or a type; null: of none. */
static enum err read_modules(struct quant_config *q, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"weight", FIELD_READ}, {"input_tensors", FIELD_READ}, {"output_tensors", FIELD_READ}, {"bias", FIELD_FALSE}, {"target_device", FIELD_READ},
	};

	enum err e = quant_check_fields(v, MODULES, fields, COUNT_OF(fields), em);
	if (!e && json_present(json_get(v, "weight")))
		e = read_weight(q, json_get(v, "weight"), em);
	return e;
}

/* By patterns of names, or types. */
static enum err read_list(struct quant_config *q, json_val v, const char *name, struct err_msg *em)
{
	enum err e = ERR_OK;

	if (!quant_field_is_off(v) && json_type(v) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\": \"%s\" must be an object, found %s", QUANT_WHERE, name, json_type_name(v));
	for (struct json_iter it = json_iterate(v); !e && json_next(&it);)
		e = read_modules(q, it.value, em);
	return e;
}

/* What was done with the weights before they were rounded changes nothing here, unless inputs are to be changed to match. */
static enum err check_algorithm(json_val v, struct err_msg *em)
{
	static const char *const names[] = {"smooth", "autosmoothquant", "awq", "gptq", "gptaq", "qronos", "autoround", "rotation", "quarot"};
	static const char *const online[] = {"r4", "online_r1_rotation"};
	enum { ROTATION = 7, QUAROT = 8 };
	bool on = false;
	u32 name = 0;

	enum err e = quant_need_text(v, ALGORITHM, "name", NULL, names, COUNT_OF(names), &name, em);
	for (size_t i = 0; !e && !on && name >= ROTATION && i < COUNT_OF(online); i++) {
		e = quant_need_flag(v, ALGORITHM, online[i], name == QUAROT && i == 0, &on, em);
		if (!e && on)
			e = err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": \"%s\" of %s is true: inputs that are rotated while computing are not supported",
				    ALGORITHM, online[i], names[name]);
	}
	return e;
}

static enum err check_algorithms(json_val v, struct err_msg *em)
{
	enum err e = ERR_OK;

	if (json_type(v) == JSON_OBJECT)
		return check_algorithm(v, em);
	if (json_present(v) && json_type(v) != JSON_ARRAY)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\": \"algo_config\" must be an array of objects, found %s", QUANT_WHERE, json_type_name(v));
	for (struct json_iter it = json_iterate(v); !e && json_next(&it);)
		e = check_algorithm(it.value, em);
	return e;
}

/* Of words of 32 bits only the configuration says whether they are of signed numbers: not which matrix has which. */
static enum err check_signs(const struct quant_config *q, struct err_msg *em)
{
	for (u32 i = 0; i < q->count; i++)
		for (u32 k = i + 1; k < q->count; k++)
			if (q->schemes[i].format == QUANT_AWQ && q->schemes[k].format == QUANT_AWQ && q->schemes[i].twos_complement != q->schemes[k].twos_complement)
				return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": int4 and uint4 in one checkpoint are not supported", QUANT_WHERE);
	return ERR_OK;
}

/* Outputs of a word of 32 bits in another order. */
static enum err check_export(const struct quant_config *q, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"kv_cache_group", FIELD_READ}, {"min_kv_scale", FIELD_READ}, {"pack_method", FIELD_READ},
		{"weight_format", FIELD_READ}, {"weight_merge_groups", FIELD_READ},
	};
	static const char *const methods[] = {"reorder", "order"}, *const formats[] = {"real_quantized", "fake_quantized"};
	u32 method = 0, format = 0;

	enum err e = quant_check_fields(v, EXPORT, fields, COUNT_OF(fields), em);
	if (!e)
		e = quant_need_text(v, EXPORT, "pack_method", "reorder", methods, COUNT_OF(methods), &method, em);
	if (!e)
		e = quant_need_text(v, EXPORT, "weight_format", "real_quantized", formats, COUNT_OF(formats), &format, em);
	if (!e && method > 0 && quant_config_has(q, QUANT_AWQ))
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": \"pack_method\" of weights in 4 bits is 'order'; supported: reorder", EXPORT);
	return e;
}

enum err quant_read_quark(struct quant_config *q, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"quant_method", FIELD_READ},	    {"quant_mode", FIELD_READ},		{"version", FIELD_READ},
		{"global_quant_config", FIELD_READ}, {"layer_quant_config", FIELD_READ}, {"layer_type_quant_config", FIELD_READ},
		{"kv_cache_quant_config", FIELD_READ}, {"kv_cache_post_rope", FIELD_READ}, {"softmax_quant_spec", FIELD_READ},
		{"exclude", FIELD_READ},	    {"algo_config", FIELD_READ},	{"export", FIELD_READ},
		{"min_kv_scale", FIELD_READ},	    {"log_severity_level", FIELD_READ},
	};
	static const char *const lists[] = {"layer_quant_config", "layer_type_quant_config", "kv_cache_quant_config"};

	enum err e = quant_check_fields(v, QUANT_WHERE, fields, COUNT_OF(fields), em);
	if (!e)
		e = read_modules(q, json_get(v, "global_quant_config"), em);
	for (size_t i = 0; !e && i < COUNT_OF(lists); i++)
		e = read_list(q, json_get(v, lists[i]), lists[i], em);
	if (!e)
		e = check_signs(q, em);
	if (!e)
		e = check_algorithms(json_get(v, "algo_config"), em);
	if (!e)
		e = check_export(q, json_get(v, "export"), em);
	if (!e && q->count == 0)
		e = err_set(em, ERR_FORMAT, "config.json: \"%s\" has no \"weight\" that is quantized; \"global_quant_config\" must be an object with one", QUANT_WHERE);
	return e;
}
