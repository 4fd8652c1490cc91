/* Reads how a quantized checkpoint is stored. Runs in the worker at start. Never guesses: a setting that
 * changes the weights and that is not understood is an error. */
#include "proc_worker/model/quant_config_priv.h"

#include <stdio.h>
#include <string.h>

#include "proc_worker/model/quant_gguf.h"

const char QUANT_WHERE[] = "quantization_config";

bool quant_field_is_off(json_val v)
{
	bool flag;
	double number;

	if (json_bool(v, &flag))
		return !flag;
	if (json_double(v, &number))
		return number == 0;
	return !json_present(v) || (json_type(v) != JSON_STRING && json_count(v) == 0);
}

enum err quant_check_fields(json_val v, const char *where, const struct field *fields, size_t count,
			     struct err_msg *em)
{
	if (json_present(v) && json_type(v) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be an object, found %s", where, json_type_name(v));
	for (struct json_iter it = json_iterate(v); json_next(&it);) {
		size_t i = 0;
		while (i < count && strcmp(fields[i].name, it.key) != 0)
			i++;
		if (i < count && (fields[i].kind == FIELD_READ || quant_field_is_off(it.value)))
			continue;
		if (i == count && quant_field_is_off(it.value))
			continue;
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": field \"%.64s\" is %s", where,
			       it.key,
			       i < count ? "set, which is not supported"
					 : "unknown: it may change what the weights are");
	}
	return ERR_OK;
}

/* A number among those that are supported. */
enum err quant_need_int(json_val v, const char *where, const char *name, i64 least, i64 most, i64 *out,
			 struct err_msg *em)
{
	json_val field = json_get(v, name);

	char found[32] = "";

	if (json_int(field, out))
		snprintf(found, sizeof(found), "%lld", (long long)*out);
	if (!*found || *out < least || *out > most)
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: \"%s\": \"%s\" must be a number from %lld to %lld, found %s",
			       where, name, (long long)least, (long long)most, *found ? found : json_type_name(field));
	return ERR_OK;
}

enum err quant_need_flag(json_val v, const char *where, const char *name, bool fallback, bool *out,
			  struct err_msg *em)
{
	json_val field = json_get(v, name);

	*out = fallback;
	if (json_present(field) && !json_bool(field, out))
		return err_set(em, ERR_FORMAT, "config.json: \"%s\": \"%s\" must be true or false, found %s",
			       where, name, json_type_name(field));
	return ERR_OK;
}

enum err quant_need_text(json_val v, const char *where, const char *name, const char *fallback,
			  const char *const *choices, size_t count, u32 *out, struct err_msg *em)
{
	char known[160] = "";
	json_val field = json_get(v, name);
	const char *text = json_present(field) ? json_cstr(field, json_type_name(field)) : fallback;

	for (size_t i = 0; i < count; i++)
		if (text && strcmp(text, choices[i]) == 0) {
			*out = (u32)i;
			return ERR_OK;
		}
	for (size_t i = 0, n = 0; i < count && n < sizeof(known); i++)
		n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s", i ? ", " : "", choices[i]);
	return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": \"%s\" is '%.64s'; supported: %s", where,
		       name, text ? text : "missing", known);
}

enum err quant_read_group(struct quant_scheme *q, json_val v, const char *where, const char *name,
			   struct err_msg *em)
{
	i64 group;
	enum err e = quant_need_int(v, where, name, -1, 1 << 20, &group, em);

	if (e)
		return e;
	if (group == 0)
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: \"%s\": \"%s\" is 0; it must be -1 or above 0", where, name);
	q->group = group < 0 ? 0 : (u32)group;
	return ERR_OK;
}

/* ---------------------------------------------------------------- methods */

static bool same_scheme(const struct quant_scheme *a, const struct quant_scheme *b)
{
	return a->format == b->format && a->names == b->names && a->bits == b->bits && a->group == b->group && a->zeros == b->zeros &&
	       a->zero_offset == b->zero_offset && a->block_rows == b->block_rows && a->block_columns == b->block_columns &&
	       a->scale_inverse == b->scale_inverse && a->scale_powers == b->scale_powers && a->scale_divides == b->scale_divides &&
	       a->at_load == b->at_load && a->twos_complement == b->twos_complement;
}

enum err quant_add_scheme(struct quant_config *q, const struct quant_scheme *s, struct err_msg *em)
{
	for (u32 i = 0; i < q->count; i++)
		if (same_scheme(&q->schemes[i], s))
			return ERR_OK;
	if (q->count == QUANT_SCHEMES_MAX)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" has more than %d different schemes", QUANT_WHERE, QUANT_SCHEMES_MAX);
	q->schemes[q->count++] = *s;
	return ERR_OK;
}

enum err quant_read_block(struct quant_scheme *q, json_val v, const char *where, const char *name, struct err_msg *em)
{
	json_val block = json_get(v, name);
	i64 size[2] = {0, 0};

	for (size_t i = 0; i < 2; i++)
		if (json_count(block) != 2 || !json_int(json_at(block, i), &size[i]) || size[i] < 1 ||
		    size[i] > 1 << 20)
			return err_set(em, ERR_FORMAT, "config.json: \"%s\": \"%s\" must be two numbers above 0", where, name);
	q->block_rows = (u32)size[0];
	q->block_columns = (u32)size[1];
	return ERR_OK;
}

static enum err read_fp8(struct quant_config *c, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"quant_method", FIELD_READ},		{"activation_scheme", FIELD_READ},
		{"weight_block_size", FIELD_READ},	{"fmt", FIELD_READ},
		{"modules_to_not_convert", FIELD_READ}, {"ignored_layers", FIELD_READ},
		{"kv_cache_scheme", FIELD_READ},	{"scale_fmt", FIELD_READ},
	};
	static const char *const formats[] = {"e4m3", "float8_e4m3fn"}, *const schemes[] = {"dynamic", "static"};
	static const char *const scales[] = {"float", "ue8m0"}; /* both are what the tensors say */
	struct quant_scheme s = {.format = QUANT_FP8, .bits = 8};
	u32 ignored;

	enum err e = quant_check_fields(v, QUANT_WHERE, fields, COUNT_OF(fields), em);
	if (!e)
		e = quant_need_text(v, QUANT_WHERE, "fmt", "e4m3", formats, COUNT_OF(formats), &ignored, em);
	if (!e)
		e = quant_need_text(v, QUANT_WHERE, "activation_scheme", "dynamic", schemes, COUNT_OF(schemes), &ignored,
				    em);
	if (!e)
		e = quant_need_text(v, QUANT_WHERE, "scale_fmt", "float", scales, COUNT_OF(scales), &ignored, em);
	if (!e && json_present(json_get(v, "weight_block_size"))) {
		s.scale_inverse = true;
		e = quant_read_block(&s, v, QUANT_WHERE, "weight_block_size", em);
	}
	return e ? e : quant_add_scheme(c, &s, em);
}

/* A scale a row. */
static enum err read_fbgemm(struct quant_config *c, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"quant_method", FIELD_READ},
		{"activation_scale_ub", FIELD_READ}, /* of inputs, which are not rounded so here */
		{"modules_to_not_convert", FIELD_READ},
	};

	const struct quant_scheme s = {.format = QUANT_FP8, .bits = 8};

	enum err e = quant_check_fields(v, QUANT_WHERE, fields, COUNT_OF(fields), em);
	return e ? e : quant_add_scheme(c, &s, em);
}

/* The table of values, sizes of blocks and whether scales are quantized, too, are in the file, matrix by matrix. */
static enum err read_bitsandbytes(struct quant_config *c, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"quant_method", FIELD_READ},
		{"load_in_4bit", FIELD_READ},
		{"load_in_8bit", FIELD_READ},
		{"_load_in_4bit", FIELD_READ},
		{"_load_in_8bit", FIELD_READ},
		{"bnb_4bit_compute_dtype", FIELD_READ},
		{"bnb_4bit_quant_storage", FIELD_READ},
		{"bnb_4bit_quant_type", FIELD_READ},
		{"bnb_4bit_use_double_quant", FIELD_READ},
		{"llm_int8_enable_fp32_cpu_offload", FIELD_READ},
		{"llm_int8_skip_modules", FIELD_READ},
		{"llm_int8_threshold", FIELD_READ}, /* of inputs */
		{"llm_int8_has_fp16_weight", FIELD_FALSE},
	};
	static const char *const types[] = {"nf4", "fp4"}, *const storages[] = {"uint8"};
	bool four = false, eight = false;
	u32 ignored;

	enum err e = quant_check_fields(v, QUANT_WHERE, fields, COUNT_OF(fields), em);
	if (!e)
		e = quant_need_flag(v, QUANT_WHERE, "_load_in_4bit", false, &four, em);
	if (!e)
		e = quant_need_flag(v, QUANT_WHERE, "load_in_4bit", four, &four, em);
	if (!e)
		e = quant_need_flag(v, QUANT_WHERE, "_load_in_8bit", false, &eight, em);
	if (!e)
		e = quant_need_flag(v, QUANT_WHERE, "load_in_8bit", eight, &eight, em);
	if (!e && four == eight)
		e = err_set(em, ERR_FORMAT, "config.json: \"%s\": one of \"load_in_4bit\" and \"load_in_8bit\" must be true", QUANT_WHERE);
	if (!e && four)
		e = quant_need_text(v, QUANT_WHERE, "bnb_4bit_quant_type", "fp4", types, COUNT_OF(types), &ignored, em);
	if (!e && four)
		e = quant_need_text(v, QUANT_WHERE, "bnb_4bit_quant_storage", "uint8", storages, COUNT_OF(storages), &ignored, em);
	const struct quant_scheme s = {.format = four ? QUANT_BNB4 : QUANT_INT8, .names = NAMES_BITSANDBYTES, .bits = four ? 4 : 8};
	return e ? e : quant_add_scheme(c, &s, em);
}

/* Which modules are left out tensors say themselves. */
static enum err read_mxfp4(struct quant_config *c, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"quant_method", FIELD_READ},
		{"modules_to_not_convert", FIELD_READ},
		{"dequantize", FIELD_READ}, /* what others do with it as they load */
	};

	const struct quant_scheme s = {.format = QUANT_MXFP4, .bits = 4, .group = 32};

	enum err e = quant_check_fields(v, QUANT_WHERE, fields, COUNT_OF(fields), em);
	return e ? e : quant_add_scheme(c, &s, em);
}

/* Inputs, which others round, too, are taken as they are. Modules that are left out packed checkpoints have as plain tensors; which of plain ones are
 * to be rounded only the list says, and all but lm_head are where it is missing. */
static enum err read_bitnet(struct quant_config *c, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"quant_method", FIELD_READ},  {"linear_class", FIELD_READ}, {"quantization_mode", FIELD_READ}, {"modules_to_not_convert", FIELD_READ},
		{"use_rms_norm", FIELD_FALSE}, {"rms_norm_eps", FIELD_READ}, /* of the norm that there is none of */
	};
	static const char *const classes[] = {"bitlinear", "autobitlinear"}, *const modes[] = {"offline", "online"};
	json_val left = json_get(v, "modules_to_not_convert");
	u32 linear = 0, mode = 0;

	enum err e = quant_check_fields(v, QUANT_WHERE, fields, COUNT_OF(fields), em);
	if (!e)
		e = quant_need_text(v, QUANT_WHERE, "linear_class", "bitlinear", classes, COUNT_OF(classes), &linear, em);
	if (!e)
		e = quant_need_text(v, QUANT_WHERE, "quantization_mode", "offline", modes, COUNT_OF(modes), &mode, em);
	const struct quant_scheme s = {.format = QUANT_TERNARY, .bits = 2, .scale_divides = linear == 0, .at_load = linear == 1 && mode == 1};
	if (!e && s.at_load && json_present(left) && !(json_count(left) == 1 && json_string_equals(json_at(left, 0), "lm_head")))
		e = err_set(em, ERR_UNSUPPORTED,
			    "config.json: \"%s\": \"modules_to_not_convert\" must be null or [\"lm_head\"] where \"quantization_mode\" is 'online'", QUANT_WHERE);
	return e ? e : quant_add_scheme(c, &s, em);
}

/* Which type a tensor has the file says. */
static enum err read_gguf(struct quant_config *c, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {{"quant_method", FIELD_READ}};
	const struct quant_scheme s = {.format = QUANT_GGUF, .group = QUANT_GGUF_GROUP};

	enum err e = quant_check_fields(v, QUANT_WHERE, fields, COUNT_OF(fields), em);
	return e ? e : quant_add_scheme(c, &s, em);
}

bool quant_config_has(const struct quant_config *q, enum quant_format format)
{
	for (u32 i = 0; i < q->count; i++)
		if (q->schemes[i].format == format)
			return true;
	return false;
}

enum err quant_config_read(struct quant_config *q, json_val config, struct err_msg *em)
{
	static const char *const methods[] = {"awq", "gptq", "compressed-tensors", "fp8", "mxfp4", "bitsandbytes", "fbgemm_fp8", "modelopt", "auto-round", "bitnet", "gguf", "quark"};
	static enum err (*const readers[])(struct quant_config *, json_val, struct err_msg *) = {
		quant_read_awq, quant_read_gptq, quant_read_compressed, read_fp8, read_mxfp4, read_bitsandbytes, read_fbgemm,
		quant_read_modelopt, quant_read_auto_round, read_bitnet, read_gguf, quant_read_quark};
	json_val v = json_get(config, "quantization_config");
	u32 method = 0;

	*q = (struct quant_config){0};
	if (!json_present(v))
		v = json_get(config, "compression_config"); /* its name in the first files of compressed-tensors */
	if (!json_present(v))
		return ERR_OK;
	enum err e = quant_need_text(v, QUANT_WHERE, "quant_method", NULL, methods, COUNT_OF(methods), &method, em);
	return e ? e : readers[method](q, v, em);
}

enum err quant_config_read_file(struct quant_config *q, json_val root, struct err_msg *em)
{
	*q = (struct quant_config){0};
	return quant_read_modelopt(q, root, em);
}
