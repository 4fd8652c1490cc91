/* Heads that share a latent: their answers do not depend on how they are computed, caches of fewer bits lose little, each head has its
 * own rows of a matrix that all share, and adapters are refused. What they compute is compared with transformers in test_families.c. */
#include <criterion/criterion.h>
#include <string.h>

#include "proc_worker/model/weights_priv.h"
#include "tests/unit/proc_worker/random_model.h"
#include "tests/unit/proc_worker/random_runs.h"

#define MODEL_OF(more)                                                                                            \
	"{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"vocab_size\": 96, \"hidden_size\": 48, \"intermediate_size\": 80, " \
	"\"num_hidden_layers\": 3, \"num_attention_heads\": 6, \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-6, "      \
	"\"kv_lora_rank\": 40, \"q_lora_rank\": 24, \"qk_nope_head_dim\": 12, \"qk_rope_head_dim\": 8, \"v_head_dim\": 16, "    \
	"\"n_routed_experts\": 8, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 20, \"n_group\": 4, \"topk_group\": 2, " \
	"\"first_k_dense_replace\": 1" more "}"
#define FP8                                                                                                     \
	", \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": \"dynamic\", " \
	"\"weight_block_size\": [16, 8]}"

static struct random_model model;

Test(latent, tokens_do_not_depend_on_company_chunks_or_preemption, .timeout = 120)
{
	random_runs_check_ways(MODEL_OF(""));
}

/* Prompts are longer than what is chosen, some layers take over what others have chosen, and heads of the indexer are no whole number of any vector's. */
Test(latent, what_is_chosen_does_not_depend_on_company_chunks_or_preemption, .timeout = 120)
{
	random_runs_check_ways("{\"architectures\": [\"GlmMoeDsaForCausalLM\"], \"vocab_size\": 96, \"hidden_size\": 48, \"intermediate_size\": 80, "
			       "\"num_hidden_layers\": 4, \"num_attention_heads\": 6, \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-6, "
			       "\"kv_lora_rank\": 40, \"q_lora_rank\": 24, \"qk_nope_head_dim\": 12, \"qk_rope_head_dim\": 8, \"v_head_dim\": 16, "
			       "\"n_routed_experts\": 8, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 20, \"index_topk\": 7, "
			       "\"index_n_heads\": 13, \"index_head_dim\": 18, \"index_topk_pattern\": \"FSFS\", \"first_k_dense_replace\": 1}");
}

/* What a product packs of its inputs needs room, of whatever they are. */
Test(latent, what_queries_are_made_of_may_be_wider_than_the_stream, .timeout = 60)
{
	random_runs_check_wide("{\"architectures\": [\"YoutuForCausalLM\"], \"vocab_size\": 96, \"hidden_size\": 48, \"intermediate_size\": 80, "
			       "\"num_hidden_layers\": 2, \"num_attention_heads\": 6, \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-6, "
			       "\"kv_lora_rank\": 40, \"q_lora_rank\": 8192, \"qk_nope_head_dim\": 12, \"qk_rope_head_dim\": 8, \"v_head_dim\": 16}");
}

Test(latent, caches_of_fewer_bits_lose_little, .timeout = 60)
{
	static const double allowed[] = {0, 0.1, 0.01, 0.1, 0.4}; /* of logits that are 3 apart, with experts that a little may change */

	random_runs_check_caches(MODEL_OF(""), allowed);
}

/* Value (row, column) of what weights_read_head made. */
static float value_of(const struct kern_weight *w, u32 row, u32 column)
{
	return ((const float *)w->data)[(size_t)row * w->k + column];
}

static void check_heads(const char *text, bool quantized)
{
	static struct model_config c;
	struct model_shard shard;
	struct safetensors *st;
	struct model_weights w;
	struct quant_tensor q;
	struct err_msg em;
	float row[40];

	random_model_write(&model, text, 5);
	cr_assert_eq(model_config_parse(&c, text, strlen(text), &em), ERR_OK, "%s", em.text);
	cr_assert_eq(model_shard_init(&shard, &c, 1, 2, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(safetensors_open(&st, model.dir, &em), ERR_OK, "%s", em.text);
	struct weights_plan plan = {.config = &c, .shard = &shard, .checkpoint = st, .dtype = KERN_F32, .matrix_dtype = KERN_I8,
				    .memory_available = 1 << 28};
	cr_assert_eq(model_weights_load(&w, &plan, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(quant_tensor_find(&q, st, &c.quant, "model.layers.2.self_attn.kv_b_proj.weight", 6 * 28, 40, &em), ERR_OK);
	cr_assert_eq(q.format != QUANT_NONE, quantized);
	const struct layer_weights *l = &w.layers[2];
	for (u32 h = 0; h < 3; h++) {
		cr_assert(l->head_k[h].n == 40 && l->head_k[h].k == 12 && l->head_v[h].n == 16 && l->head_v[h].k == 40);
		for (u32 i = 0; i < 28; i++) {
			u32 at = (3 + h) * 28 + i; /* the second rank's heads */
			if (quantized)
				quant_tensor_values(&q, at, 0, 40, row);
			else
				kern_convert(row, KERN_F32, (const u16 *)q.values->data + at * 40, KERN_BF16, 40);
			for (u32 k = 0; k < 40; k++)
				cr_assert_eq(row[k], i < 12 ? value_of(&l->head_k[h], k, i) : value_of(&l->head_v[h], i - 12, k));
		}
	}
	cr_assert_eq(l->q_b.dtype, KERN_I8); /* which heads are not */
	model_weights_fini(&w);
	safetensors_close(&st);
	random_model_remove(&model);
}

Test(latent, heads_have_their_own_rows_of_a_matrix_that_stays_unquantized)
{
	check_heads(MODEL_OF(""), false);
	check_heads(MODEL_OF(FP8), true);
}

Test(latent, adapters_are_refused_by_name)
{
	random_runs_check_no_adapters(MODEL_OF(""), "adapters of a DeepseekV3ForCausalLM are not supported");
}

Test(latent, a_context_of_which_all_tokens_are_chosen_has_no_indexer, .timeout = 60)
{
	struct err_msg em;
	struct runner *r;

	random_model_write(&model,
			   "{\"architectures\": [\"GlmMoeDsaForCausalLM\"], \"vocab_size\": 96, \"hidden_size\": 48, \"intermediate_size\": 80, "
			   "\"num_hidden_layers\": 3, \"num_attention_heads\": 6, \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-6, "
			   "\"kv_lora_rank\": 40, \"q_lora_rank\": 24, \"qk_nope_head_dim\": 12, \"qk_rope_head_dim\": 8, \"v_head_dim\": 16, "
			   "\"n_routed_experts\": 8, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 20, \"index_topk\": 64, "
			   "\"index_head_dim\": 20, \"index_topk_pattern\": \"FSF\", \"first_k_dense_replace\": 1}",
			   5);
	struct runner_config config = random_runs_config(&model, OPTION_DTYPE_FLOAT32, OPTION_QUANTIZATION_AUTO);
	cr_assert_eq(runner_create(&r, &config, &em), ERR_OK, "%s", em.text);
	const u64 all = kv_block_bytes(&r->kv_shape), keys = 2ull * r->kv_shape.block_size * 20 * sizeof(u16);
	cr_assert(r->max_model_len == 256 && r->model.index.top == 64 && r->weights.layers[0].index_k.n == 20 && r->weights.layers[1].index_k.n == 0);
	runner_destroy(&r);
	config.limits.max_model_len = 65;
	cr_assert_eq(runner_create(&r, &config, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(kv_block_bytes(&r->kv_shape), all);
	runner_destroy(&r);
	config.limits.max_model_len = 64;
	cr_assert_eq(runner_create(&r, &config, &em), ERR_OK, "%s", em.text);
	cr_assert(r->max_model_len == 64 && r->model.index.top == 0 && r->weights.layers[0].index_k.n == 0);
	cr_assert_eq(kv_block_bytes(&r->kv_shape), all - keys, "the keys of two layers, without values");
	runner_destroy(&r);
	random_model_remove(&model);
}
