/* Reads configurations of checkpoints in the layouts of GPTQ and AWQ: words of 32 bits with some weights each, scales and zero points.
 * AutoGPTQ, AutoAWQ, GPTQModel and AutoRound write them. Some modules may have more or fewer bits, or other groups, than the rest; which these
 * are is not read: a matrix's parts say it. Runs in the worker at start. */
#include "proc_worker/model/quant_config_priv.h"

static const char *const AWQ_VERSIONS[] = {"gemm", "GEMM"};
static const char *const GPTQ_VERSIONS[] = {"gptq", "gptq_v2"};
enum { V2 = 1 };

/* Bits and group of `v`, an object called `where`, where it has them. */
static enum err read_bits(struct quant_scheme *s, json_val v, const char *where, struct err_msg *em)
{
	bool four = s->format == QUANT_AWQ;
	i64 bits = s->bits;
	enum err e = ERR_OK;

	if (s->bits == 0 || json_present(json_get(v, "bits")))
		e = quant_need_int(v, where, "bits", four ? 4 : 2, four ? 4 : 8, &bits, em);
	if (!e && bits > 4 && bits < 8)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": \"bits\" is %lld; supported: 2, 3, 4, 8", where, (long long)bits);
	if (!e && (s->bits == 0 || json_present(json_get(v, "group_size"))))
		e = quant_read_group(s, v, where, "group_size", em);
	s->bits = (u32)bits;
	return e;
}

/* Fields of modules that differ from the rest in `base`: {"+:pattern": {"bits": 8}, "-:pattern": {}} or {"name": {"bits": 16}}. Those that are
 * not quantized are plain tensors. */
static enum err read_exceptions(struct quant_config *q, json_val v, const char *where, const struct quant_scheme *base, struct err_msg *em)
{
	static const struct field fields[] = {
		{"bits", FIELD_READ},	      {"group_size", FIELD_READ},	  {"sym", FIELD_READ},
		{"desc_act", FIELD_READ},     {"act_group_aware", FIELD_READ},	  {"mse", FIELD_READ},
		{"damp_percent", FIELD_READ}, {"damp_auto_increment", FIELD_READ}, {"static_groups", FIELD_READ},
		{"data_type", FIELD_READ},    {"act_bits", FIELD_READ},		  {"act_group_size", FIELD_READ},
		{"act_sym", FIELD_READ},      {"act_dynamic", FIELD_READ},	  {"act_data_type", FIELD_READ},
		{"super_bits", FIELD_FALSE},  {"super_group_size", FIELD_FALSE},
	};
	enum err e = ERR_OK;

	if (json_type(v) == JSON_ARRAY && json_count(v) > 0)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\": exceptions must be an object with names of modules, found %s", where, json_type_name(v));
	for (struct json_iter it = json_iterate(v); !e && json_next(&it);) {
		struct quant_scheme s = *base;
		i64 bits = 0;
		bool plain = it.key[0] == '-' || (json_int(json_get(it.value, "bits"), &bits) && bits >= 16);
		e = plain ? ERR_OK : quant_check_fields(it.value, where, fields, COUNT_OF(fields), em);
		if (!e && !plain)
			e = read_bits(&s, it.value, where, em);
		if (!e && !plain)
			e = quant_add_scheme(q, &s, em);
	}
	return e;
}

enum err quant_read_awq(struct quant_config *q, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"quant_method", FIELD_READ},
		{"bits", FIELD_READ},
		{"group_size", FIELD_READ},
		{"zero_point", FIELD_READ},
		{"version", FIELD_READ},
		{"modules_to_not_convert", FIELD_READ},
		{"backend", FIELD_READ},
		{"do_fuse", FIELD_READ},
		{"fuse_max_seq_len", FIELD_READ},
		{"modules_to_fuse", FIELD_READ},
		{"exllama_config", FIELD_READ},
		/* GPTQModel */
		{"method", FIELD_READ},
		{"format", FIELD_READ},
		{"checkpoint_format", FIELD_READ},
		{"pack_dtype", FIELD_READ},
		{"sym", FIELD_READ},
		{"lm_head", FIELD_READ},
		{"meta", FIELD_READ},
		{"dynamic", FIELD_READ},
		{"desc_act", FIELD_FALSE},
		{"activation", FIELD_FALSE},
		{"rotation", FIELD_FALSE},
	};
	static const char *const packs[] = {"int32"};
	static const char *const versions[] = {"version", "format", "checkpoint_format"};
	struct quant_scheme s = {.format = QUANT_AWQ};
	u32 ignored;

	enum err e = quant_check_fields(v, QUANT_WHERE, fields, COUNT_OF(fields), em);
	if (!e)
		e = read_bits(&s, v, QUANT_WHERE, em);
	if (!e)
		e = quant_need_flag(v, QUANT_WHERE, "zero_point", true, &s.zeros, em);
	if (!e && !s.zeros)
		e = err_set(em, ERR_UNSUPPORTED,
			    "config.json: \"%s\": \"zero_point\" is false; AWQ checkpoints with zero points "
			    "are supported",
			    QUANT_WHERE);
	for (u32 i = 0; !e && i < COUNT_OF(versions); i++)
		e = quant_need_text(v, QUANT_WHERE, versions[i], "gemm", AWQ_VERSIONS, COUNT_OF(AWQ_VERSIONS), &ignored, em);
	if (!e)
		e = quant_need_text(v, QUANT_WHERE, "pack_dtype", "int32", packs, COUNT_OF(packs), &ignored, em);
	if (!e)
		e = quant_add_scheme(q, &s, em);
	return e ? e : read_exceptions(q, json_get(v, "dynamic"), "quantization_config.dynamic.*", &s, em);
}

enum err quant_read_gptq(struct quant_config *q, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"quant_method", FIELD_READ},
		{"bits", FIELD_READ},
		{"group_size", FIELD_READ},
		{"desc_act", FIELD_READ}, /* what counts is g_idx */
		{"sym", FIELD_READ}, /* zeros are stored all the same */
		{"method", FIELD_READ},
		{"format", FIELD_READ},
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
		{"dynamic", FIELD_READ},
		{"is_marlin_format", FIELD_FALSE},
		{"activation", FIELD_FALSE},
		{"rotation", FIELD_FALSE},
	};
	static const char *const packs[] = {"int32"};
	struct quant_scheme s = {.format = QUANT_GPTQ, .zeros = true};
	u32 version = 0, format = 0, pack;
	bool flag;

	enum err e = quant_check_fields(v, QUANT_WHERE, fields, COUNT_OF(fields), em);
	if (!e)
		e = read_bits(&s, v, QUANT_WHERE, em);
	if (!e)
		e = quant_need_flag(v, QUANT_WHERE, "desc_act", false, &flag, em);
	if (!e)
		e = quant_need_flag(v, QUANT_WHERE, "sym", true, &flag, em);
	if (!e)
		e = quant_need_text(v, QUANT_WHERE, "format", "gptq", GPTQ_VERSIONS, COUNT_OF(GPTQ_VERSIONS), &format, em);
	if (!e)
		e = quant_need_text(v, QUANT_WHERE, "checkpoint_format", GPTQ_VERSIONS[format], GPTQ_VERSIONS, COUNT_OF(GPTQ_VERSIONS), &version, em);
	if (!e && json_present(json_get(v, "format")) && format != version)
		e = err_set(em, ERR_FORMAT, "config.json: \"%s\": \"format\" and \"checkpoint_format\" are the same field, and differ", QUANT_WHERE);
	if (!e)
		e = quant_need_text(v, QUANT_WHERE, "pack_dtype", "int32", packs, COUNT_OF(packs), &pack, em);
	s.zero_offset = version == V2 ? 0 : 1;
	if (!e)
		e = quant_add_scheme(q, &s, em);
	return e ? e : read_exceptions(q, json_get(v, "dynamic"), "quantization_config.dynamic.*", &s, em);
}

enum err quant_read_auto_round(struct quant_config *q, json_val v, struct err_msg *em)
{
	static const struct field fields[] = {
		{"quant_method", FIELD_READ},
		{"bits", FIELD_READ},
		{"group_size", FIELD_READ},
		{"sym", FIELD_READ},
		{"data_type", FIELD_READ},
		{"packing_format", FIELD_READ},
		{"extra_config", FIELD_READ},
		{"block_name_to_quantize", FIELD_READ},
		{"to_quant_block_names", FIELD_READ},
		{"quant_block_list", FIELD_READ},
		{"quant_lm_head", FIELD_READ},
		{"scale_dtype", FIELD_READ}, /* tensors say it */
		/* How inputs may be rounded, and how the tool went about it. */
		{"act_bits", FIELD_READ},
		{"act_data_type", FIELD_READ},
		{"act_dynamic", FIELD_READ},
		{"act_group_size", FIELD_READ},
		{"act_sym", FIELD_READ},
		{"amp", FIELD_READ},
		{"autoround_version", FIELD_READ},
		{"batch_size", FIELD_READ},
		{"dataset", FIELD_READ},
		{"enable_minmax_tuning", FIELD_READ},
		{"enable_quanted_input", FIELD_READ},
		{"enable_norm_bias_tuning", FIELD_READ},
		{"gradient_accumulate_steps", FIELD_READ},
		{"iters", FIELD_READ},
		{"low_gpu_mem_usage", FIELD_READ},
		{"lr", FIELD_READ},
		{"minmax_lr", FIELD_READ},
		{"nsamples", FIELD_READ},
		{"seqlen", FIELD_READ},
		{"supported_types", FIELD_READ},
		{"train_bs", FIELD_READ},
		{"super_bits", FIELD_FALSE},
		{"super_group_size", FIELD_FALSE},
		{"rotation_configs", FIELD_FALSE},
		{"static_kv_dtype", FIELD_FALSE},
		{"static_attention_dtype", FIELD_FALSE},
	};
	static const char *const formats[] = {"auto_round:auto_gptq", "auto_round:gptqmodel", "auto_round", "auto_round:auto_awq"};
	enum { LESS_ONE, AS_IS, AS_IS_TOO, AWQ };
	static const char *const types[] = {"int"};
	struct quant_scheme s = {.format = QUANT_GPTQ, .zeros = true};
	u32 format = 0, type;

	enum err e = quant_check_fields(v, QUANT_WHERE, fields, COUNT_OF(fields), em);
	if (!e)
		e = quant_need_text(v, QUANT_WHERE, "packing_format", NULL, formats, COUNT_OF(formats), &format, em);
	if (!e)
		e = quant_need_text(v, QUANT_WHERE, "data_type", "int", types, COUNT_OF(types), &type, em);
	s.format = format == AWQ ? QUANT_AWQ : QUANT_GPTQ;
	s.zero_offset = format == LESS_ONE ? 1 : 0;
	if (!e)
		e = read_bits(&s, v, QUANT_WHERE, em);
	if (!e)
		e = quant_add_scheme(q, &s, em);
	return e ? e : read_exceptions(q, json_get(v, "extra_config"), "quantization_config.extra_config.*", &s, em);
}
