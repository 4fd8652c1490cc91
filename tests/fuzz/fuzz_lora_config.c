/* adapter_config.json, by itself and held against models of several forms. What is accepted has a rank and a finite scale for
 * any module, or an error in a pattern; what is accepted for a model names layers that it has. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "proc_worker/model/lora_priv.h"

/* A tensor for each projection; fused and transposed ones; experts in one layer of two. */
static const char *const MODELS[] = {
	"{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 64, \"hidden_size\": 8, \"intermediate_size\": 12, "
	"\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 64}",
	"{\"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 64, \"n_embd\": 8, \"n_layer\": 2, \"n_head\": 2, \"n_positions\": 64}",
	"{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": 64, \"hidden_size\": 8, \"intermediate_size\": 12, "
	"\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"head_dim\": 4, \"rms_norm_eps\": 1e-5, "
	"\"max_position_embeddings\": 64, \"num_experts\": 2, \"num_experts_per_tok\": 1, \"moe_intermediate_size\": 4, "
	"\"mlp_only_layers\": [0]}",
};

static void check_layer(json_val v, u32 layers)
{
	u64 layer;

	if (json_uint(v, &layer) && layer >= layers)
		abort();
}

static void check_against_model(const struct lora_config *c, const char *text)
{
	struct model_config model;
	struct err_msg em = {0};
	struct weights_plan plan = {.config = &model};

	if (model_config_parse(&model, text, strlen(text), &em) != ERR_OK)
		abort();
	em.text[0] = '\0';
	enum err e = lora_check_config(c, &plan, &em);
	if (e && ((e != ERR_INVALID && e != ERR_FORMAT) || !em.text[0] || !memchr(em.text, '\0', sizeof(em.text))))
		abort();
	if (e)
		return;
	check_layer(c->layers, model.layers);
	for (struct json_iter it = json_iterate(c->layers); json_next(&it);)
		check_layer(it.value, model.layers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static const char *const modules[] = {"model.layers.0.self_attn.q_proj", "model.layers.31.mlp.down_proj", ""};
	struct lora_config c;
	struct err_msg em;
	double scale;
	u32 rank;

	if (lora_config_parse(&c, (const char *)data, bytes, &em) != ERR_OK)
		return 0;
	for (u32 i = 0; i < COUNT_OF(modules); i++) {
		const char *by;
		enum lora_use use;
		if (lora_config_use(&c, modules[i], 31 * i, &use, &by, &em) == ERR_OK && (use == LORA_USE_NO) != (by != NULL))
			abort();
		if (lora_config_module(&c, modules[i], &rank, &scale, &em) == ERR_OK &&
		    (rank == 0 || !(scale > 0) || !isfinite(scale)))
			abort();
	}
	for (u32 i = 0; i < COUNT_OF(MODELS); i++)
		check_against_model(&c, MODELS[i]);
	lora_config_fini(&c);
	return 0;
}
