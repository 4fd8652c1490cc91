/* Models of several parts, of which the one that describes the language is read: where it is, and which fields are its own and which the whole
 * model's. Runs in the worker at start. */
#include "proc_worker/model/config_priv.h"

#include <string.h>

/* What language parts leave out: the values that the configuration class of their "model_type" has in transformers, under the names that families
 * share. Others that such a class has for itself are in its family's row (arch_table.c). tests/unit/proc_worker/part_defaults.py compares them. */
/* clang-format off */
static const struct {
	const char *model_type, *fields;
} PART_DEFAULTS[] = {
	{"cohere2", "{\"vocab_size\": 256000, \"hidden_size\": 8192, \"intermediate_size\": 22528, \"num_hidden_layers\": 40, "
		    "\"num_attention_heads\": 64, \"max_position_embeddings\": 8192, \"layer_norm_eps\": 1e-05}"},
	{"glm4v_text", "{\"vocab_size\": 151552, \"hidden_size\": 4096, \"intermediate_size\": 13696, \"num_hidden_layers\": 40, "
		       "\"num_attention_heads\": 32, \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-05}"},
	{"glm4v_moe_text", "{\"vocab_size\": 151424, \"hidden_size\": 4096, \"intermediate_size\": 10944, \"num_hidden_layers\": 46, "
			   "\"num_attention_heads\": 96, \"max_position_embeddings\": 65536, \"rms_norm_eps\": 1e-05, "
			   "\"num_experts\": 128, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 1408}"},
	{"granite_docling_text", "{\"vocab_size\": 133800, \"hidden_size\": 1024, \"intermediate_size\": 2048, \"num_hidden_layers\": 28, "
				 "\"num_attention_heads\": 16, \"num_key_value_heads\": 4, \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-05, "
				 "\"embedding_multiplier\": 12.0, \"residual_multiplier\": 0.263, \"attention_multiplier\": 0.015625, \"logits_scaling\": 4.0}"},
	{"hy_v4_vl_text", "{\"vocab_size\": 120832, \"hidden_size\": 6144, \"intermediate_size\": 18432, \"num_hidden_layers\": 78, "
			  "\"num_attention_heads\": 64, \"max_position_embeddings\": 262144, \"rms_norm_eps\": 1e-05, \"num_experts\": 256, "
			  "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 2048, \"q_lora_rank\": 2048, \"kv_lora_rank\": 512, "
			  "\"qk_nope_head_dim\": 192, \"qk_rope_head_dim\": 64, \"v_head_dim\": 256}"},
	{"lfm2", "{\"vocab_size\": 65536, \"hidden_size\": 2560, \"intermediate_size\": 12288, \"num_hidden_layers\": 32, "
		 "\"num_attention_heads\": 32, \"max_position_embeddings\": 128000, \"rms_norm_eps\": 1e-05}"},
	{"llama", "{\"vocab_size\": 32000, \"hidden_size\": 4096, \"intermediate_size\": 11008, \"num_hidden_layers\": 32, "
		  "\"num_attention_heads\": 32, \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-06}"},
	{"mistral", "{\"vocab_size\": 32000, \"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 32, "
		    "\"num_attention_heads\": 32, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-06}"},
	{"qwen2", "{\"vocab_size\": 151936, \"hidden_size\": 4096, \"intermediate_size\": 22016, \"num_hidden_layers\": 32, "
		  "\"num_attention_heads\": 32, \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-06}"},
	{"qwen2_5_omni_text", "{\"vocab_size\": 152064, \"hidden_size\": 3584, \"intermediate_size\": 18944, \"num_hidden_layers\": 28, "
			      "\"num_attention_heads\": 28, \"num_key_value_heads\": 4, \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-06, "
			      "\"rope_theta\": 1000000.0}"},
	{"qwen3", "{\"vocab_size\": 151936, \"hidden_size\": 4096, \"intermediate_size\": 22016, \"num_hidden_layers\": 32, "
		  "\"num_attention_heads\": 32, \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-06}"},
	{"step3p5", "{\"vocab_size\": 128815, \"hidden_size\": 4096, \"intermediate_size\": 11264, \"num_hidden_layers\": 45, "
		    "\"num_attention_heads\": 64, \"max_position_embeddings\": 128000, \"rms_norm_eps\": 1e-05, \"num_experts\": 288, "
		    "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 1280, \"shared_expert_intermediate_size\": 1280}"},
};
/* clang-format on */

json_val config_thinker(json_val whole)
{
	return arch_thinks(json_cstr(json_at(json_get(whole, "architectures"), 0), "")) ? json_get(whole, "thinker_config") : whole;
}

enum err config_read_text_part(struct model_config *c, json_val *text, const char *name, const char *known,
			       struct err_msg *em)
{
	char types[128];
	json_val part = json_get(config_thinker(*text), "text_config");

	if (!json_present(part) && json_present(json_get(*text, "hidden_size")))
		c->arch = arch_find_text_part(name, NULL, types, sizeof(types));
	else
		c->arch = arch_find_text_part(name, json_cstr(json_get(part, "model_type"), ""), types, sizeof(types));
	if (c->arch && json_type(part) == JSON_OBJECT)
		*text = part;
	if (c->arch)
		return ERR_OK;
	if (!types[0])
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: unknown architecture '%.128s'; %s", name, known);
	return err_set(em, ERR_UNSUPPORTED,
		       "config.json: \"text_config\" of a %s must be an object with \"model_type\" %s, found '%.64s'", name,
		       types, json_cstr(json_get(part, "model_type"), json_type_name(part)));
}

/* The members of `v` and those of `usual` that it has not. */
static enum err join(struct json_doc **out, json_val v, json_val usual, struct err_msg *em)
{
	struct buf text = {0};
	struct json_writer w;

	json_begin(&w, &text);
	json_object_begin(&w);
	for (struct json_iter it = json_iterate(v); json_next(&it);) {
		json_key(&w, it.key);
		json_write_value(&w, it.value);
	}
	for (struct json_iter it = json_iterate(usual); json_next(&it);) {
		if (json_type(json_get(v, it.key)) != JSON_MISSING)
			continue;
		json_key(&w, it.key);
		json_write_value(&w, it.value);
	}
	json_object_end(&w);
	enum err e = buf_ok(&text) ? ERR_OK : err_set(em, ERR_NO_MEMORY, "out of memory");
	if (!e)
		e = json_parse(out, text.data, text.bytes, em);
	buf_fini(&text);
	return e;
}

enum err config_fill_part(struct json_doc **out, json_val part, struct err_msg *em)
{
	const char *type = json_cstr(json_get(part, "model_type"), "");
	struct json_doc *usual = NULL;

	*out = NULL;
	for (size_t i = 0; i < COUNT_OF(PART_DEFAULTS); i++) {
		if (strcmp(PART_DEFAULTS[i].model_type, type) != 0)
			continue;
		enum err e = json_parse(&usual, PART_DEFAULTS[i].fields, strlen(PART_DEFAULTS[i].fields), em);
		if (!e)
			e = join(out, part, json_root(usual), em);
		json_free(&usual);
		return e;
	}
	return ERR_OK;
}

json_val config_whose(json_val whole, json_val text, const char *name)
{
	const json_val thinker = config_thinker(whole);

	return json_present(json_get(text, name)) ? text : json_present(json_get(thinker, name)) ? thinker : whole;
}

enum err config_read_tied(struct model_config *c, json_val whole, json_val text, struct err_msg *em)
{
	static const char name[] = "tie_word_embeddings";
	const char *model = json_cstr(json_at(json_get(whole, "architectures"), 0), "");
	const bool in_text = json_present(json_get(text, name)), in_whole = json_present(json_get(config_thinker(whole), name));
	const bool usual = c->arch->traits & ARCH_TIED;
	bool of_text = usual;

	whole = config_thinker(whole);
	enum err e = config_may_bool(text, name, usual, &of_text, em);
	if (!e)
		e = config_may_bool(whole, name, of_text, &c->tied_embeddings, em);
	const bool text_ties = !e && of_text && (in_text || arch_ties_either(model));
	if (text_ties && arch_ties_either(model))
		c->tied_embeddings = true;
	else /* transformers heeds what the whole says, or is: a head in the files counts, whatever the part says */
		c->tied_headless = !e && !in_whole && (text_ties || arch_ties_headless(model));
	if (!e && !c->tied_embeddings && !arch_find(model) && arch_find_backbone(model)) /* embeddings stand for what is not there */
		c->tied_headless = c->headless = true;
	c->tied_embeddings |= c->tied_headless;
	if (!e && c->tied_embeddings && !c->tied_headless && (c->arch->embed_norm || c->embed_vocab != c->vocab_size))
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"tie_word_embeddings\" must be false for %s%s", c->arch->name,
			    c->arch->embed_norm ? ", whose embeddings are normed" : " where \"output_vocab_size\" is less than vocab_size");
	return e;
}
