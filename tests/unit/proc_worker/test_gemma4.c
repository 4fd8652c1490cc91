/* Layers whose heads differ in size, that read the keys and values of others, that add something of a token by themselves: their answers do not
 * depend on how they are computed, caches of fewer bits lose little, and blocks of the cache have what every layer needs and no more. What they
 * compute is compared with transformers in test_families.c. */
#include <criterion/criterion.h>

#include "proc_worker/runner.h"
#include "tests/unit/proc_worker/random_model.h"
#include "tests/unit/proc_worker/random_runs.h"

#define MODEL_OF(more)                                                                                                      \
	"{\"architectures\": [\"Gemma4ForCausalLM\"], \"vocab_size\": 96, \"hidden_size\": 48, \"intermediate_size\": 80, "     \
	"\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 12, \"global_head_dim\": 24, "                   \
	"\"tie_word_embeddings\": false, \"max_position_embeddings\": 256, \"sliding_window\": 8, \"num_hidden_layers\": 7, \"vocab_size_per_layer_input\": 96, " \
	"\"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"full_attention\", \"sliding_attention\", "           \
	"\"full_attention\", \"sliding_attention\", \"full_attention\"], " more "}"
#define DENSE "\"hidden_size_per_layer_input\": 0, \"attention_k_eq_v\": true, \"num_global_key_value_heads\": 1"
#define SMALL "\"hidden_size_per_layer_input\": 10, \"num_kv_shared_layers\": 3, \"use_double_wide_mlp\": true"
#define MIXTURE                                                                                                 \
	DENSE ", \"enable_moe_block\": true, \"num_experts\": 8, \"top_k_experts\": 3, \"moe_intermediate_size\": 20"

static struct random_model model;
static const char *const texts[] = {MODEL_OF(DENSE), MODEL_OF(SMALL), MODEL_OF(MIXTURE)};

Test(gemma4, tokens_do_not_depend_on_company_chunks_or_preemption, .timeout = 120)
{
	for (u32 m = 0; m < COUNT_OF(texts); m++)
		random_runs_check_ways(texts[m]);
}

Test(gemma4, caches_of_fewer_bits_lose_little, .timeout = 60)
{
	static const double allowed[] = {0, 0.1, 0.01, 0.2, 0.6}; /* of logits that are 3 apart */

	for (u32 m = 0; m < COUNT_OF(texts); m++)
		random_runs_check_caches(texts[m], allowed);
}

Test(gemma4, blocks_have_what_every_layer_needs_and_no_more, .timeout = 60)
{
	/* Of a block in bfloat16 K and V: 4 layers of 2 heads of 12, 3 of 1 or 2 heads of 24; of those that share none. */
	static const u64 wanted[] = {4 * 2 * 12 + 3 * 1 * 24, 3 * 2 * 12 + 1 * 2 * 24, 4 * 2 * 12 + 3 * 1 * 24};

	for (u32 m = 0; m < COUNT_OF(texts); m++) {
		struct err_msg em;
		struct runner *r;
		random_model_write(&model, texts[m], 5);
		const struct runner_config c = random_runs_config(&model, OPTION_DTYPE_BFLOAT16, OPTION_QUANTIZATION_AUTO);
		cr_assert_eq(runner_create(&r, &c, &em), ERR_OK, "%s", em.text);
		cr_expect_eq(r->kv_block_bytes, 2 * 2 * 16 * wanted[m], "model %u: %llu", m, (unsigned long long)r->kv_block_bytes);
		cr_expect_eq(r->block_count, (1 << 20) / r->kv_block_bytes);
		runner_destroy(&r);
		random_model_remove(&model);
	}
}

Test(gemma4, weights_of_fewer_bits_load, .timeout = 60)
{
	static const enum option_quantization kinds[] = {OPTION_QUANTIZATION_INT8, OPTION_QUANTIZATION_INT4};

	for (u32 m = 0; m < COUNT_OF(texts); m++) {
		random_model_write(&model, texts[m], 5);
		for (u32 k = 0; k < COUNT_OF(kinds); k++) {
			struct err_msg em;
			struct runner *r;
			const struct runner_config c = random_runs_config(&model, OPTION_DTYPE_BFLOAT16, kinds[k]);
			cr_assert_eq(runner_create(&r, &c, &em), ERR_OK, "%s", em.text);
			runner_destroy(&r);
		}
		random_model_remove(&model);
	}
}

Test(gemma4, adapters_are_refused_by_name)
{
	random_runs_check_no_adapters(texts[0], "adapters of a Gemma4ForCausalLM are not supported");
}
