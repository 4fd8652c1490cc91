/* Several residual streams, sparse gates, shared keys and values: their answers do not depend on how they are computed, caches and weights of fewer
 * bits work, and blocks of the cache have what every layer needs and no more. What they compute is compared with transformers in test_families.c. */
#include <criterion/criterion.h>

#include "proc_worker/model/decoder.h"
#include "proc_worker/runner.h"
#include "tests/unit/proc_worker/random_model.h"
#include "tests/unit/proc_worker/random_runs.h"

#define SIZED(laurel, input, more)                                                                                                   \
	"{\"architectures\": [\"Gemma3nForCausalLM\"], \"vocab_size\": 96, \"hidden_size\": 48, \"intermediate_size\": 80, "    \
	"\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 12, \"laurel_rank\": " laurel ", \"tie_word_embeddings\": false, " \
	"\"max_position_embeddings\": 256, \"sliding_window\": 8, \"num_hidden_layers\": 6, \"vocab_size_per_layer_input\": 90, "  \
	"\"hidden_size_per_layer_input\": " input ", \"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"full_attention\", " \
	"\"sliding_attention\", \"full_attention\", \"sliding_attention\"], " more "}"
#define MODEL_OF(more) SIZED("6", "10", more)
#define USUAL "\"num_kv_shared_layers\": 3, \"activation_sparsity_pattern\": [0.95, 0.8, 0.5, 0, 0.3, 0]"
#define OTHER                                                                                                             \
	"\"num_kv_shared_layers\": 0, \"activation_sparsity_pattern\": [0, 0, 0, 0, 0, 0.9], \"altup_num_inputs\": 3, \"altup_active_idx\": 2, " \
	"\"altup_correct_scale\": false"

static struct random_model model;
static const char *const texts[] = {MODEL_OF(USUAL), MODEL_OF(OTHER)};

Test(gemma3n, tokens_do_not_depend_on_company_chunks_or_preemption, .timeout = 120)
{
	for (u32 m = 0; m < COUNT_OF(texts); m++)
		random_runs_check_ways(texts[m]);
}

/* What a product packs of its inputs needs room, of whatever they are. */
Test(gemma3n, what_stands_beside_attention_and_mlp_may_be_wider_than_they, .timeout = 120)
{
	random_runs_check_wide(SIZED("8192", "10", USUAL));
	random_runs_check_wide(SIZED("6", "2048", USUAL));
}

Test(gemma3n, caches_of_fewer_bits_lose_little, .timeout = 60)
{
	static const double allowed[] = {0, 0.1, 0.01, 0.2, 0.6}; /* of logits that are 3 apart */

	for (u32 m = 0; m < COUNT_OF(texts); m++)
		random_runs_check_caches(texts[m], allowed);
}

Test(gemma3n, blocks_have_nothing_of_layers_that_read_those_of_others, .timeout = 60)
{
	static const u64 layers[] = {3, 6};

	for (u32 m = 0; m < COUNT_OF(texts); m++) {
		struct err_msg em;
		struct runner *r;
		random_model_write(&model, texts[m], 5);
		const struct runner_config c = random_runs_config(&model, OPTION_DTYPE_BFLOAT16, OPTION_QUANTIZATION_AUTO);
		cr_assert_eq(runner_create(&r, &c, &em), ERR_OK, "%s", em.text);
		cr_expect_eq(r->kv_block_bytes, 2 * 2 * 16 * layers[m] * 2 * 12, "model %u: %llu", m, (unsigned long long)r->kv_block_bytes);
		runner_destroy(&r);
		random_model_remove(&model);
	}
}

Test(gemma3n, routers_of_streams_keep_their_digits_where_other_weights_do_not, .timeout = 60)
{
	static const enum option_quantization kinds[] = {OPTION_QUANTIZATION_INT8, OPTION_QUANTIZATION_INT4};

	for (u32 k = 0; k < COUNT_OF(kinds); k++) {
		struct err_msg em;
		struct runner *r;
		random_model_write(&model, texts[0], 5);
		const struct runner_config c = random_runs_config(&model, OPTION_DTYPE_BFLOAT16, kinds[k]);
		cr_assert_eq(runner_create(&r, &c, &em), ERR_OK, "%s", em.text);
		cr_expect_eq(r->weights.layers[0].altup_router.dtype, KERN_BF16);
		cr_expect_neq(r->weights.layers[0].laurel_left.dtype, KERN_BF16);
		cr_expect_neq(r->weights.altup_in.dtype, KERN_BF16);
		cr_expect(r->weights.altup_in.n == 3 * 48 && r->weights.altup_out[2].n == 48 && !r->weights.altup_out[3].n);
		runner_destroy(&r);
		random_model_remove(&model);
	}
}

/* Two numbers a token, of streams that may be narrower. */
Test(gemma3n, ranks_have_room_for_what_they_tell_each_other_of_gates)
{
	const struct model_config narrow = {.hidden = 1, .vocab_size = 8};

	cr_expect_eq(decoder_exchange_bytes(&narrow, 2, 64), 64 * 2 * sizeof(float));
}

Test(gemma3n, adapters_are_refused_by_name)
{
	random_runs_check_no_adapters(texts[0], "adapters of a Gemma3nForCausalLM are not supported");
}
