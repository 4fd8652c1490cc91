/* Reads how a quantized checkpoint is stored. Runs in the worker at start. Never guesses: a setting that
 * changes the weights and that is not understood is an error. */
#include "proc_worker/model/quant_config.h"

#include <stdio.h>
#include <string.h>

/* Fields of a method, and for each what it may be. */
enum field_kind {
	FIELD_READ,  /* read elsewhere, or says nothing about the weights */
	FIELD_FALSE, /* must be false, null, empty or 0 */
};

struct field {
	const char *name;
	enum field_kind kind;
};

static bool is_off(json_val v)
{
	bool flag;
	double number;

	if (json_bool(v, &flag))
		return !flag;
	if (json_double(v, &number))
		return number == 0;
	return !json_present(v) || (json_type(v) != JSON_STRING && json_count(v) == 0);
}

static enum err check_fields(json_val v, const char *where, const struct field *fields, size_t count,
			     struct err_msg *em)
{
	for (struct json_iter it = json_iterate(v); json_next(&it);) {
		size_t i = 0;
		while (i < count && strcmp(fields[i].name, it.key) != 0)
			i++;
		if (i < count && (fields[i].kind == FIELD_READ || is_off(it.value)))
			continue;
		if (i == count && is_off(it.value))
			continue;
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": field \"%.64s\" is %s", where,
			       it.key,
			       i < count ? "set, which is not supported"
					 : "unknown: it may change what the weights are");
	}
	return ERR_OK;
}

/* A number among those that are supported. */
static enum err need_int(json_val v, const char *where, const char *name, i64 least, i64 most, i64 *out,
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

static enum err need_flag(json_val v, const char *where, const char *name, bool fallback, bool *out,
			  struct err_msg *em)
{
	json_val field = json_get(v, name);

	*out = fallback;
	if (json_present(field) && !json_bool(field, out))
		return err_set(em, ERR_FORMAT, "config.json: \"%s\": \"%s\" must be true or false, found %s",
			       where, name, json_type_name(field));
	return ERR_OK;
}

static enum err need_text(json_val v, const char *where, const char *name, const char *fallback,
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

static enum err read_group(struct quant_config *q, json_val v, const char *where, const char *name,
			   struct err_msg *em)
{
	i64 group;
	enum err e = need_int(v, where, name, -1, 1 << 20, &group, em);

	if (e)
		return e;
	if (group == 0)
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: \"%s\": \"%s\" is 0; it must be -1 or above 0", where, name);
	q->group = group < 0 ? 0 : (u32)group;
	return ERR_OK;
}

/* ---------------------------------------------------------------- methods */

static const char WHERE[] = "quantization_config";

static enum err read_awq(struct quant_config *q, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"quant_method", FIELD_READ},	  {"bits", FIELD_READ},
		{"group_size", FIELD_READ},	  {"zero_point", FIELD_READ},
		{"version", FIELD_READ},	  {"modules_to_not_convert", FIELD_READ},
		{"backend", FIELD_READ},	  {"do_fuse", FIELD_READ},
		{"fuse_max_seq_len", FIELD_READ}, {"modules_to_fuse", FIELD_READ},
		{"exllama_config", FIELD_READ},
	};
	static const char *const versions[] = {"gemm", "GEMM"};
	u32 version;
	i64 bits;

	enum err e = check_fields(v, WHERE, fields, COUNT_OF(fields), em);
	if (!e)
		e = need_int(v, WHERE, "bits", 4, 4, &bits, em);
	if (!e)
		e = read_group(q, v, WHERE, "group_size", em);
	if (!e)
		e = need_flag(v, WHERE, "zero_point", true, &q->zeros, em);
	if (!e && !q->zeros)
		e = err_set(em, ERR_UNSUPPORTED,
			    "config.json: \"%s\": \"zero_point\" is false; AWQ checkpoints with zero points "
			    "are supported",
			    WHERE);
	if (!e)
		e = need_text(v, WHERE, "version", "gemm", versions, COUNT_OF(versions), &version, em);
	q->format = QUANT_AWQ;
	q->bits = 4;
	return e;
}

static enum err read_gptq(struct quant_config *q, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"quant_method", FIELD_READ},
		{"bits", FIELD_READ},
		{"group_size", FIELD_READ},
		{"desc_act", FIELD_READ},
		{"sym", FIELD_READ},
		{"checkpoint_format", FIELD_READ},
		{"lm_head", FIELD_READ},
		{"damp_percent", FIELD_READ},
		{"damp_auto_increment", FIELD_READ},
		{"static_groups", FIELD_READ},
		{"true_sequential", FIELD_READ},
		{"model_name_or_path", FIELD_READ},
		{"model_file_base_name", FIELD_READ},
		{"dataset", FIELD_READ},
		{"tokenizer", FIELD_READ},
		{"batch_size", FIELD_READ},
		{"block_name_to_quantize", FIELD_READ},
		{"cache_block_outputs", FIELD_READ},
		{"disable_exllama", FIELD_READ},
		{"use_exllama", FIELD_READ},
		{"exllama_config", FIELD_READ},
		{"max_input_length", FIELD_READ},
		{"model_seqlen", FIELD_READ},
		{"module_name_preceding_first_block", FIELD_READ},
		{"modules_in_block_to_quantize", FIELD_READ},
		{"pad_token_id", FIELD_READ},
		{"use_cuda_fp16", FIELD_READ},
		{"meta", FIELD_READ},
		{"quantizer", FIELD_READ},
		{"backend", FIELD_READ},
		{"pack_dtype", FIELD_READ},
		{"is_marlin_format", FIELD_FALSE},
		{"dynamic", FIELD_FALSE},
	};
	static const char *const versions[] = {"gptq", "gptq_v2"}, *const packs[] = {"int32"};
	u32 version = 0, pack;
	bool ordered, symmetric;
	i64 bits;

	enum err e = check_fields(v, WHERE, fields, COUNT_OF(fields), em);
	if (!e)
		e = need_int(v, WHERE, "bits", 4, 4, &bits, em);
	if (!e)
		e = read_group(q, v, WHERE, "group_size", em);
	if (!e)
		e = need_flag(v, WHERE, "desc_act", false, &ordered, em); /* what counts is g_idx */
	if (!e)
		e = need_flag(v, WHERE, "sym", true, &symmetric, em); /* zeros are stored all the same */
	if (!e)
		e = need_text(v, WHERE, "checkpoint_format", "gptq", versions, COUNT_OF(versions), &version,
			      em);
	if (!e)
		e = need_text(v, WHERE, "pack_dtype", "int32", packs, COUNT_OF(packs), &pack, em);
	q->format = QUANT_GPTQ;
	q->bits = 4;
	q->zeros = true;
	q->zero_offset = version == 0 ? 1 : 0;
	return e;
}

static enum err read_fp8(struct quant_config *q, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"quant_method", FIELD_READ},		{"activation_scheme", FIELD_READ},
		{"weight_block_size", FIELD_READ},	{"fmt", FIELD_READ},
		{"modules_to_not_convert", FIELD_READ}, {"ignored_layers", FIELD_READ},
		{"kv_cache_scheme", FIELD_READ},	{"scale_fmt", FIELD_READ},
	};
	static const char *const formats[] = {"e4m3"}, *const schemes[] = {"dynamic", "static"};
	static const char *const scales[] = {"float", "ue8m0"}; /* powers of two, as floats; of another type tensors are refused */
	json_val block = json_get(v, "weight_block_size");
	i64 size[2] = {0, 0};
	u32 ignored;

	enum err e = check_fields(v, WHERE, fields, COUNT_OF(fields), em);
	if (!e)
		e = need_text(v, WHERE, "fmt", "e4m3", formats, COUNT_OF(formats), &ignored, em);
	if (!e)
		e = need_text(v, WHERE, "scale_fmt", "float", scales, COUNT_OF(scales), &ignored, em);
	if (!e)
		e = need_text(v, WHERE, "activation_scheme", "dynamic", schemes, COUNT_OF(schemes), &ignored,
			      em);
	q->format = QUANT_FP8;
	q->bits = 8;
	if (e || !json_present(block))
		return e;
	for (size_t i = 0; i < 2; i++)
		if (json_count(block) != 2 || !json_int(json_at(block, i), &size[i]) || size[i] < 1 ||
		    size[i] > 1 << 20)
			return err_set(
				em, ERR_FORMAT,
				"config.json: \"%s\": \"weight_block_size\" must be two numbers above 0",
				WHERE);
	q->block_rows = (u32)size[0];
	q->block_columns = (u32)size[1];
	q->scale_inverse = true;
	return ERR_OK;
}

/* Which modules are left out tensors say themselves. */
static enum err read_mxfp4(struct quant_config *q, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"quant_method", FIELD_READ},
		{"modules_to_not_convert", FIELD_READ},
		{"dequantize", FIELD_READ}, /* what others do with it as they load */
	};

	q->format = QUANT_MXFP4;
	q->bits = 4;
	q->group = 32;
	return check_fields(v, WHERE, fields, COUNT_OF(fields), em);
}

/* ---------------------------------------------------------------- compressed-tensors */

static const char SCHEME[] = "quantization_config.config_groups.*.weights";

static enum err read_strategy(struct quant_config *q, json_val w, struct err_msg *em)
{
	static const char *const strategies[] = {"group", "channel", "tensor", "block"};
	json_val block = json_get(w, "block_structure");
	bool grouped = json_present(json_get(w, "group_size"));
	u32 strategy = 0;

	enum err e = need_text(w, SCHEME, "strategy", grouped ? "group" : "tensor", strategies,
			       COUNT_OF(strategies), &strategy, em);
	if (e)
		return e;
	if (strategy == 0)
		return read_group(q, w, SCHEME, "group_size", em);
	if (strategy != 3)
		return ERR_OK;
	i64 rows, columns;
	if (q->format != QUANT_FP8 || json_count(block) != 2 || !json_int(json_at(block, 0), &rows) ||
	    !json_int(json_at(block, 1), &columns) || rows < 1 || columns < 1 || rows > 1 << 20 ||
	    columns > 1 << 20)
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: \"%s\": strategy 'block' needs float weights and a "
			       "\"block_structure\" of two "
			       "numbers above 0",
			       SCHEME);
	q->block_rows = (u32)rows;
	q->block_columns = (u32)columns;
	return ERR_OK;
}

static enum err read_scheme(struct quant_config *q, json_val w, struct err_msg *em)
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
	u32 type, wanted = q->format == QUANT_FP8 ? 1 : 0;
	bool symmetric = true;
	i64 bits = 0;

	enum err e = check_fields(w, SCHEME, fields, COUNT_OF(fields), em);
	if (!e)
		e = need_text(w, SCHEME, "type", "int", &types[wanted], 1, &type, em);
	if (!e)
		e = need_int(w, SCHEME, "num_bits", q->format == QUANT_PACKED ? 4 : 8, 8, &bits, em);
	if (!e && bits != 4 && bits != 8)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": \"num_bits\" is %lld; supported: 4, 8",
			    SCHEME, (long long)bits);
	if (!e)
		e = need_flag(w, SCHEME, "symmetric", true, &symmetric, em);
	q->bits = (u32)bits;
	q->zeros = !symmetric;
	return e ? e : read_strategy(q, w, em);
}

static enum err read_compressed(struct quant_config *q, json_val v, struct err_msg *em)
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
	static const struct field group_fields[] = {
		{"weights", FIELD_READ},
		{"targets", FIELD_READ},
		{"input_activations", FIELD_READ},
		{"output_activations", FIELD_FALSE},
		{"format", FIELD_READ},
	};
	static const char *const formats[] = {"pack-quantized", "int-quantized", "float-quantized"};
	static const char *const dense[] = {"dense"};
	static const enum quant_format kinds[] = {QUANT_PACKED, QUANT_INT8, QUANT_FP8};
	json_val groups = json_get(v, "config_groups"), sparsity = json_get(v, "sparsity_config");
	struct json_iter it = json_iterate(groups);
	u32 format = 0, ignored;

	enum err e = check_fields(v, WHERE, fields, COUNT_OF(fields), em);
	if (!e && !is_off(sparsity)) /* what it says of the zeros is no news, unless they are left out */
		e = need_text(sparsity, "quantization_config.sparsity_config", "format", "dense", dense, 1, &ignored, em);
	if (!e)
		e = need_text(v, WHERE, "format", NULL, formats, COUNT_OF(formats), &format, em);
	if (e)
		return e;
	q->format = kinds[format];
	if (json_type(groups) != JSON_OBJECT || json_count(groups) != 1 || !json_next(&it))
		return err_set(
			em, ERR_UNSUPPORTED,
			"config.json: \"%s\": \"config_groups\" has %zu schemes; exactly one is supported",
			WHERE, json_type(groups) == JSON_OBJECT ? json_count(groups) : 0);
	e = check_fields(it.value, "quantization_config.config_groups.*", group_fields,
			 COUNT_OF(group_fields), em);
	return e ? e : read_scheme(q, json_get(it.value, "weights"), em);
}

enum err quant_config_read(struct quant_config *q, json_val config, struct err_msg *em)
{
	static const char *const methods[] = {"awq", "gptq", "compressed-tensors", "fp8", "mxfp4"};
	json_val v = json_get(config, "quantization_config");
	u32 method = 0;

	*q = (struct quant_config){0};
	if (!json_present(v))
		v = json_get(config, "compression_config"); /* its name in the first files of compressed-tensors */
	if (!json_present(v))
		return ERR_OK;
	enum err e = need_text(v, WHERE, "quant_method", NULL, methods, COUNT_OF(methods), &method, em);
	if (e)
		return e;
	switch (method) {
	case 0:
		return read_awq(q, v, em);
	case 1:
		return read_gptq(q, v, em);
	case 2:
		return read_compressed(q, v, em);
	case 3:
		return read_fp8(q, v, em);
	default:
		return read_mxfp4(q, v, em);
	}
}
