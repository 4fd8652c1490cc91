/* The fields of params.json: which there may be, what they are called in config.json, and which say what can only be one thing here. Runs in the worker at
 * start. Constant data, and its readers. */
#include <stdio.h>
#include <string.h>

#include "common/mistral_folder.h"
#include "common/types.h"
#include "proc_worker/model/mistral_params.h"
#include "proc_worker/model/mistral_params_priv.h"

const struct mistral_member MISTRAL_TOP[] = {
	{"dim", .here = "hidden_size"},
	{"n_layers", .here = "num_hidden_layers"},
	{"hidden_dim", .here = "intermediate_size"},
	{"n_heads", .here = "num_attention_heads"},
	{"norm_eps", .here = "rms_norm_eps"},
	{"vocab_size", .here = "vocab_size"},
	{"tied_embeddings", .here = "tie_word_embeddings"},
	{"activation", .here = "hidden_act"},
	{"dtype", .here = "torch_dtype"},
	{"q_lora_rank", .here = "q_lora_rank"},
	{"kv_lora_rank", .here = "kv_lora_rank"},
	{"qk_nope_head_dim", .here = "qk_nope_head_dim"},
	{"qk_rope_head_dim", .here = "qk_rope_head_dim"},
	{"v_head_dim", .here = "v_head_dim"},
	{"head_dim"},
	{"n_kv_heads"},
	{"rope_theta"},
	{"max_position_embeddings"},
	{"max_seq_len"},
	{"model_max_length"},
	{"sliding_window"},
	{"_sliding_window"},
	{"rope_scaling"},
	{"yarn"},
	{"llama_4_scaling"},
	{"moe"},
	{"quantization"},
	{"quantization_config"},
	{"multimodal"},
	{"max_batch_size", .rule = MISTRAL_PASSED},
	{"model_parallel", .rule = MISTRAL_PASSED}, /* how it was trained */
	{"vision_encoder", .rule = MISTRAL_PASSED}, /* text is served */
	{"use_biases", .rule = MISTRAL_ONLY_FALSE},
	{"causal", .rule = MISTRAL_ONLY_TRUE},
	{"model_type", "transformer", MISTRAL_ONLY_WORD},
	{NULL},
};

const struct mistral_member MISTRAL_YARN[] = {{"factor", .here = "factor"},
				     {"original_max_position_embeddings", .here = "original_max_position_embeddings"},
				     {"beta", .here = "beta_fast"},
				     {"alpha", .here = "beta_slow"},
				     {"apply_scale"},
					    {NULL}};

const struct mistral_member MISTRAL_QUERIES[] = {{"original_max_position_embeddings"}, {"beta", .here = "llama_4_scaling_beta"}, {NULL}};

/* Of models whose heads share a latent; the names of others' follow. */
const struct mistral_member MISTRAL_EXPERTS[] = {
	{"num_experts", .here = "n_routed_experts"},
	{"num_experts_per_tok", .here = "num_experts_per_tok"},
	{"expert_hidden_dim", .here = "moe_intermediate_size"},
	{"first_k_dense_replace", .here = "first_k_dense_replace"},
	{"num_shared_experts", .here = "n_shared_experts"},
	{"routed_scale", .here = "routed_scaling_factor"},
	{"num_expert_groups", .here = "n_group"},
	{"num_expert_groups_per_tok", .here = "topk_group"},
	{"route_every_n"},
	{"renorm_strategy", "WEIGHTS", MISTRAL_ONLY_WORD},
	{"use_load_balancing_bias", .rule = MISTRAL_ONLY_FALSE},
	{"expert_parallel", .rule = MISTRAL_PASSED}, /* how it was trained */
	{"expert_model_parallel", .rule = MISTRAL_PASSED},
	{NULL},
};

const struct mistral_member MISTRAL_ROUNDED[] = {{"qformat_weight", "fp8_e4m3", MISTRAL_ONLY_WORD}, {"qscheme_act"}, {NULL}};

const struct mistral_member MISTRAL_PARTS[] = {{"vision_encoder_args", .rule = MISTRAL_PASSED}, {"whisper_model_args"}, {NULL}};

/* " of \"moe\"" behind the name of a member. */
const char *mistral_where(char *out, size_t bytes, const char *where)
{
	out[0] = 0;
	if (*where)
		snprintf(out, bytes, " of \"%s\"", where);
	return out;
}

bool mistral_is_off(json_val v)
{
	bool flag;

	if (json_bool(v, &flag))
		return !flag;
	return !json_present(v) || ((json_type(v) == JSON_ARRAY || json_type(v) == JSON_OBJECT) && json_count(v) == 0);
}

static enum err check_member(const struct mistral_member *m, json_val v, const char *where, struct err_msg *em)
{
	char in[64];
	bool flag;

	if (!json_present(v) || m->rule == MISTRAL_READ || m->rule == MISTRAL_PASSED)
		return ERR_OK;
	if (m->rule == MISTRAL_ONLY_WORD && json_string_equals(v, m->word))
		return ERR_OK;
	if (m->rule == MISTRAL_ONLY_WORD)
		return err_set(em, ERR_UNSUPPORTED, "params.json: \"%s\"%s is '%.64s'; supported: %s", m->name, mistral_where(in, sizeof(in), where),
			       json_cstr(v, json_type_name(v)), m->word);
	if (json_bool(v, &flag) && flag == (m->rule == MISTRAL_ONLY_TRUE))
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED, "params.json: \"%s\"%s must be %s", m->name, mistral_where(in, sizeof(in), where), m->rule == MISTRAL_ONLY_TRUE ? "true" : "false");
}

enum err mistral_check_members(json_val v, const struct mistral_member *members, const char *where, struct err_msg *em)
{
	char in[64];
	enum err e = ERR_OK;

	if (json_present(v) && json_type(v) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "params.json: %s%s%s must be an object, found %s", *where ? "\"" : "", *where ? where : "the file", *where ? "\"" : "",
			       json_type_name(v));
	for (struct json_iter it = json_iterate(v); !e && json_next(&it);) {
		const struct mistral_member *m = members;
		while (m->name && !json_is_member(&it, m->name))
			m++;
		if (m->name)
			e = check_member(m, it.value, where, em);
		else if (!mistral_is_off(it.value) && it.key[0] != '_')
			e = err_set(em, ERR_UNSUPPORTED,
				    "params.json: unknown field \"%.64s\"%s: it may change what the model computes; if it does not, take it out of the file", it.key,
				    mistral_where(in, sizeof(in), where));
	}
	return e;
}

/* ---------------------------------------------------------------- names in errors */

static bool is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* What params.json calls the field; NULL: the same, or it is none. */
static const char *name_in_file(const char *word, size_t bytes)
{
	static const struct mistral_member further[] = {{"n_kv_heads", .here = "num_key_value_heads"}, {"num_experts", .here = "num_local_experts"}, {"yarn", .here = "rope_parameters"}, {NULL}};
	const struct mistral_member *const tables[] = {MISTRAL_TOP, MISTRAL_YARN, MISTRAL_QUERIES, MISTRAL_EXPERTS, further};

	for (size_t i = 0; i < COUNT_OF(tables); i++)
		for (const struct mistral_member *m = tables[i]; m->name; m++)
			if (m->here && strlen(m->here) == bytes && memcmp(m->here, word, bytes) == 0)
				return m->name;
	return NULL;
}

void mistral_params_in_file(char *text, size_t bytes)
{
	static const char file[] = "config.json";
	struct buf said = {0};

	for (const char *at = text; *at;) {
		size_t word = 0;
		const bool begins = at == text || (!is_letter(at[-1]) && at[-1] != '/' && at[-1] != '.');
		while (begins && is_letter(at[word]))
			word++;
		const char *name = word ? name_in_file(at, word) : NULL;
		if (begins && strncmp(at, file, sizeof(file) - 1) == 0) {
			word = sizeof(file) - 1;
			name = MISTRAL_PARAMS;
		}
		word = word ? word : 1;
		buf_append(&said, name ? name : at, name ? strlen(name) : word);
		at += word;
	}
	if (buf_ok(&said) && said.data)
		snprintf(text, bytes, "%.*s", (int)said.bytes, said.data);
	buf_fini(&said);
}
