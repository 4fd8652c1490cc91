/* A device's engine on the emulated device, of models whose heads are of another kind than Llama's: those that share a latent, and
 * those whose sizes differ by layer. Every family against the CPU, every way through a step, and what is refused. */
#include <criterion/criterion.h>
#include <string.h>

#include "proc_worker/gpu/gpu_priv.h"
#include "tests/unit/proc_worker/gpu_fixture.h"

#define SIZES(layers, heads)                                                                                                  \
	"\"vocab_size\": 101, \"hidden_size\": 64, \"intermediate_size\": 96, \"num_attention_heads\": " #heads ", \"num_hidden_layers\": " #layers \
	", \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 128, \"torch_dtype\": \"bfloat16\", \"eos_token_id\": 3"
#define LATENT(name, layers, heads, q_rank, rank, key, rope, value, more)                                                             \
	"{\"architectures\": [\"" name "\"], " SIZES(layers, heads) ", \"q_lora_rank\": " #q_rank ", \"kv_lora_rank\": " #rank       \
	", \"qk_nope_head_dim\": " #key ", \"qk_rope_head_dim\": " #rope ", \"v_head_dim\": " #value more "}"
#define ROUTED                                                                                                                 \
	", \"n_routed_experts\": 8, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 32, \"n_group\": 4, \"topk_group\": 2, " \
	"\"first_k_dense_replace\": 1, \"n_shared_experts\": 1"
/* Gemma 4: heads of 16 values with a window, and of 32 without. */
#define GEMMA(more)                                                                                                                 \
	"{\"architectures\": [\"Gemma4ForCausalLM\"], \"vocab_size\": 101, \"hidden_size\": 64, \"intermediate_size\": 96, "            \
	"\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, \"global_head_dim\": 32, \"rms_norm_eps\": 1e-6, "    \
	"\"tie_word_embeddings\": false, \"max_position_embeddings\": 128, \"sliding_window\": 9, \"torch_dtype\": \"bfloat16\", "       \
	"\"eos_token_id\": 3, \"vocab_size_per_layer_input\": 101" more "}"
#define LAYERS(count, kinds) ", \"num_hidden_layers\": " #count ", \"layer_types\": [" kinds "]"
#define NEAR "\"sliding_attention\""
#define FAR "\"full_attention\""
#define NO_INPUTS ", \"hidden_size_per_layer_input\": 0"
#define KEYS_ARE_VALUES GEMMA(LAYERS(3, NEAR ", " FAR ", " FAR) NO_INPUTS ", \"attention_k_eq_v\": true, \"num_global_key_value_heads\": 1")
#define PER_LAYER                                                                                                                    \
	GEMMA(LAYERS(5, NEAR ", " FAR ", " NEAR ", " NEAR ", " FAR) ", \"hidden_size_per_layer_input\": 32, \"num_kv_shared_layers\": 2, " \
	      "\"use_double_wide_mlp\": true")
#define YOUTU LATENT("YoutuForCausalLM", 2, 4, 32, 32, 32, 16, 16, "")

/* ---------------------------------------------------------------- families */

Test(gpu_heads, latent_attention_answers_as_on_the_cpu, .timeout = 120)
{
	static const struct {
		const char *what, *text;
	} families[] = {
		{"queries of a rank of their own", YOUTU},
		{"queries of the stream", LATENT("YoutuForCausalLM", 2, 4, null, 32, 32, 16, 16, "")},
		{"biases, halves rotate", LATENT("YoutuForCausalLM", 2, 4, 64, 32, 32, 32, 48, ", \"attention_bias\": true, \"rope_interleave\": false")},
		{"multipliers, two tables of positions",
		 LATENT("MiniCPM3ForCausalLM", 2, 4, 32, 64, 32, 16, 16,
			", \"scale_emb\": 12, \"scale_depth\": 1.4, \"dim_model_base\": 16, \"rope_scaling\": {\"type\": \"longrope\", "
			"\"original_max_position_embeddings\": 24, \"short_factor\": [1,1,1,1,1,1,1,1], \"long_factor\": [1,1,2,2,3,3,4,4]}")},
		{"heads of DeepSeek's size", LATENT("YoutuForCausalLM", 1, 2, 32, 512, 32, 64, 16, "")},
		{"heads of Mistral Small 4's size", LATENT("YoutuForCausalLM", 1, 2, 32, 256, 64, 64, 32, "")},
	};

	for (size_t i = 0; i < COUNT_OF(families); i++)
		check_family(families[i].what, families[i].text, 0.3);
}

Test(gpu_heads, heads_whose_sizes_differ_answer_as_on_the_cpu, .timeout = 120)
{
	static const struct {
		const char *what, *text;
	} families[] = {
		{"values that are keys", KEYS_ARE_VALUES},
		{"inputs of every layer, keys and values of earlier layers, wide MLPs", PER_LAYER},
		{"windows that no sequence is longer than",
		 GEMMA(LAYERS(2, NEAR ", " FAR) NO_INPUTS ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"proportional\", "
						       "\"partial_rotary_factor\": 0.5, \"rope_theta\": 1000000}, \"sliding_attention\": {\"rope_theta\": 10000}}")},
		{"heads of Gemma's sizes",
		 "{\"architectures\": [\"Gemma4ForCausalLM\"], \"vocab_size\": 101, \"hidden_size\": 64, \"intermediate_size\": 96, "
		 "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 256, \"global_head_dim\": 512, \"rms_norm_eps\": 1e-6, "
		 "\"max_position_embeddings\": 128, \"sliding_window\": 9, \"torch_dtype\": \"bfloat16\", \"eos_token_id\": 3" LAYERS(2, NEAR ", " FAR) NO_INPUTS "}"},
	};

	for (size_t i = 0; i < COUNT_OF(families); i++)
		check_family(families[i].what, families[i].text, 0.4);
}

Test(gpu_heads, mixtures_with_latent_attention_answer_as_on_the_cpu, .timeout = 120)
{
	check_experts("DeepSeek V3", LATENT("DeepseekV3ForCausalLM", 2, 4, 32, 32, 32, 16, 16, ROUTED), 0.15);
	check_experts("DeepSeek V2 Lite", LATENT("DeepseekV2ForCausalLM", 2, 4, null, 32, 32, 16, 16, ROUTED ", \"topk_method\": \"greedy\", \"norm_topk_prob\": false"), 0.15);
	check_experts("DeepSeek V2", LATENT("DeepseekV2ForCausalLM", 2, 4, 32, 32, 32, 16, 16, ROUTED ", \"topk_method\": \"group_limited_greedy\", \"norm_topk_prob\": false"),
		      0.15);
	check_experts("A.X K1, norms behind experts alone", LATENT("AXK1ForCausalLM", 2, 4, 32, 32, 32, 16, 16, ROUTED), 0.15);
	check_experts("GLM 5", LATENT("GlmMoeDsaForCausalLM", 2, 4, 32, 32, 32, 16, 16, ROUTED ", \"index_topk\": 128"), 0.15);
	check_experts("GLM 4.7 Flash", LATENT("Glm4MoeLiteForCausalLM", 2, 4, 32, 32, 32, 16, 32, ROUTED), 0.15);
}

/* The CPU rounds inputs to 8 bits, too. */
Test(gpu_heads, quantized_weights_and_caches_answer_as_on_the_cpu, .timeout = 120)
{
	random_model_write(&model, YOUTU, 15);
	struct device_run_config c = gpu_test_config();
	u32 count = make_requests(3, 101, 5);
	c.matrix_dtype = KERN_I8;
	c.kv_dtype = KERN_I8;
	run_model(&c, count);
	expect_near(&c, count, 0.8);
	random_model_remove(&model);
}

/* ---------------------------------------------------------------- ways through a step */

Test(gpu_heads, answers_do_not_depend_on_graphs_or_steps_in_flight, .timeout = 120)
{
	static const struct step_way ways[] = {{"as it comes", false, 0, 0}, {"graphs, two steps ahead", true, 2, 0}};

	check_ways(YOUTU, ways, COUNT_OF(ways));
	check_ways(PER_LAYER, ways, COUNT_OF(ways));
}

Test(gpu_heads, swapped_rows_go_on_where_they_were, .timeout = 120)
{
	check_swaps(YOUTU, "reverse", KERN_BF16, 12);
}

Test(gpu_heads, swapped_rows_of_blocks_that_differ_by_layer_go_on_where_they_were, .timeout = 120)
{
	check_swaps(PER_LAYER, "reverse", KERN_BF16, 12);
}

Test(gpu_heads, blocks_have_what_every_layer_needs_and_no_more, .timeout = 60)
{
	/* K and V of 8 tokens in bfloat16: layers with 2 heads of 16, and with 1 head of 32, or 2; of those that share them none. */
	static const u64 wanted[] = {2 * 8 * 2 * (2 * 16 + 2 * 32), 2 * 8 * 2 * (2 * 2 * 16 + 2 * 32)};
	static const char *const texts[] = {KEYS_ARE_VALUES, PER_LAYER};

	for (size_t i = 0; i < COUNT_OF(texts); i++) {
		open_model(texts[i], 13);
		cr_expect_eq(gpu_kv_block_bytes(run.gpu), wanted[i], "%zu: %llu", i, (unsigned long long)gpu_kv_block_bytes(run.gpu));
		close_model();
	}
}

/* ---------------------------------------------------------------- refusals */

static void expect_model_refused(const char *text, enum kern_dtype kv, u32 capability, const char *words)
{
	struct device_run_config c = gpu_test_config();

	random_model_write(&model, text, 17);
	device_run_read(&run, &c);
	struct gpu_config bad = device_run_config(&run);
	bad.kv_dtype = kv;
	run.device.info.capability = capability ? capability : run.device.info.capability;
	expect_refusal(&bad, ERR_UNSUPPORTED, words);
	close_model();
}

/* What would help of too little memory is nothing that is refused then. */
static void expect_remedy(const char *text, bool narrower)
{
	struct device_run_config c = gpu_test_config();
	struct gpu *gpu;

	random_model_write(&model, text, 17);
	device_run_read(&run, &c);
	struct gpu_config small = device_run_config(&run);
	small.kv_cache_memory = 1;
	cr_expect_eq(gpu_create(&gpu, &small, &em), ERR_NO_SPACE, "%s", em.text);
	cr_expect_eq(strstr(em.text, "; --kv-cache-dtype int8 needs half") != NULL, narrower, "%s", em.text);
	close_model();
}

Test(gpu_heads, smaller_values_are_no_remedy_for_wide_heads, .timeout = 60)
{
	expect_remedy(LATENT("YoutuForCausalLM", 1, 2, 32, 512, 32, 64, 16, ""), false);
	expect_remedy(LATENT("YoutuForCausalLM", 1, 2, 32, 32, 32, 16, 16, ""), true);
}

Test(gpu_heads, what_the_kernels_cannot_is_refused_by_name, .timeout = 60)
{
	expect_model_refused(LATENT("YoutuForCausalLM", 1, 2, 32, 512, 32, 64, 16, ""), KERN_I8, 0, "bfloat16, not in int8: use --kv-cache-dtype bfloat16");
	expect_model_refused(LATENT("YoutuForCausalLM", 1, 2, 32, 512, 32, 64, 16, ""), KERN_BF16, 89, "576 values; the device's attention has room for them on");
	expect_model_refused(LATENT("YoutuForCausalLM", 1, 2, 32, 256, 32, 32, 16, ""), KERN_BF16, 0, "heads share keys (kv_lora_rank and qk_rope_head_dim) of 288");
	expect_model_refused(LATENT("YoutuForCausalLM", 1, 2, 32, 32, 24, 16, 16, ""), KERN_BF16, 0, "qk_nope_head_dim is 24");
	expect_model_refused(GEMMA(LAYERS(2, NEAR ", " FAR) NO_INPUTS ", \"enable_moe_block\": true, \"num_experts\": 8, \"top_k_experts\": 3, "
								 "\"moe_intermediate_size\": 32"),
		       KERN_BF16, 0, "stand beside an MLP");
	expect_model_refused("{\"architectures\": [\"CohereForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 32, \"vocab_size\": 64, \"num_hidden_layers\": 1, "
		       "\"num_attention_heads\": 2, \"max_position_embeddings\": 128, \"layer_norm_eps\": 1e-5, \"use_qk_norm\": true}",
		       KERN_BF16, 0, "have norms with weights of their own (use_qk_norm, qk_layernorm)");
	expect_model_refused("{\"architectures\": [\"Cohere2MoeForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 32, \"vocab_size\": 64, \"num_hidden_layers\": 1, "
		       "\"num_attention_heads\": 2, \"head_dim\": 32, \"max_position_embeddings\": 128, \"num_experts\": 4, \"num_experts_per_tok\": 1}",
		       KERN_BF16, 0, "whose experts stand beside attention");
	expect_model_refused("{\"architectures\": [\"Gemma3nForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 32, \"vocab_size\": 64, \"num_hidden_layers\": 2, "
		       "\"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"head_dim\": 32, \"max_position_embeddings\": 128, \"num_kv_shared_layers\": 0, "
		       "\"hidden_size_per_layer_input\": 32, \"vocab_size_per_layer_input\": 64}",
		       KERN_BF16, 0, "devices do not compute a Gemma3nForCausalLM, whose residual stream is several (altup_num_inputs)");
	expect_model_refused("{\"architectures\": [\"Llama4ForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 32, \"intermediate_size_mlp\": 64, \"vocab_size\": 64, "
		       "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"head_dim\": 32, \"max_position_embeddings\": 128, "
		       "\"num_local_experts\": 4, \"num_experts_per_tok\": 1}",
		       KERN_BF16, 0, "devices do not compute a Llama4ForCausalLM, whose layers attend to chunks (attention_chunk_size)");
	expect_model_refused("{\"architectures\": [\"BitNetForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 32, \"vocab_size\": 64, \"num_hidden_layers\": 1, "
		       "\"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"max_position_embeddings\": 128}",
		       KERN_BF16, 0, "devices do not compute a BitNetForCausalLM, whose last products read norms (attn_sub_norm, ffn_sub_norm)");
	expect_model_refused("{\"architectures\": [\"KimiLinearForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 32, \"vocab_size\": 64, "
		       "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"kv_lora_rank\": 48, \"q_lora_rank\": null, \"qk_nope_head_dim\": 32, "
		       "\"qk_rope_head_dim\": 16, \"v_head_dim\": 16, \"model_max_length\": 128, \"num_experts\": 4, \"num_experts_per_token\": 1, "
		       "\"moe_intermediate_size\": 32, \"linear_attn_config\": {\"full_attn_layers\": [2], \"kda_layers\": [1], \"head_dim\": 16, "
		       "\"num_heads\": 2}}",
		       KERN_BF16, 0, "devices do not compute a KimiLinearForCausalLM, every value of whose keys fades by itself: use --device cpu");
	expect_model_refused(GEMMA(LAYERS(2, NEAR ", " FAR) ", \"hidden_size_per_layer_input\": 24"), KERN_BF16, 0, "hidden_size_per_layer_input is 24");
}

#define STEP(more)                                                                                                                                \
	"{\"architectures\": [\"Step3p5ForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 32, \"vocab_size\": 64, \"num_hidden_layers\": 1, " \
	"\"num_attention_heads\": 2, \"num_attention_groups\": 1, \"head_dim\": 32, \"max_position_embeddings\": 128, \"moe_num_experts\": 4, "      \
	"\"moe_top_k\": 1, \"moe_intermediate_size\": 32, \"share_expert_dim\": 32" more "}"
#define OVER_LATENTS(family, more)                                                                                                            \
	"{\"architectures\": [\"" family "\"], \"hidden_size\": 64, \"intermediate_size\": 32, \"vocab_size\": 64, \"num_hidden_layers\": 2, "       \
	"\"num_attention_heads\": 2, \"kv_lora_rank\": 48, \"q_lora_rank\": 32, \"qk_nope_head_dim\": 32, \"qk_rope_head_dim\": 16, "               \
	"\"v_head_dim\": 16, \"max_position_embeddings\": 128, \"num_experts\": 16, \"num_experts_per_tok\": 1, \"moe_intermediate_size\": 32" more "}"

Test(gpu_heads, gates_and_streams_of_the_newest_families_are_refused_by_name, .timeout = 60)
{
	expect_model_refused(STEP(""), KERN_BF16, 0, "the heads of this Step3p5ForCausalLM have a gate each");
	expect_model_refused(STEP(", \"swiglu_limits_shared\": [7]"), KERN_BF16, 0, "the gates of this Step3p5ForCausalLM have bounds; devices have no kernel for that");
	expect_model_refused(OVER_LATENTS("BailingHybridForCausalLM", ", \"layer_group_size\": 2"), KERN_BF16, 0,
		       "the heads of this BailingHybridForCausalLM attend to latents and have gates; devices have no kernel for that");
	expect_model_refused(OVER_LATENTS("HYV4ForCausalLM", ""), KERN_BF16, 0, "devices do not compute a HYV4ForCausalLM, whose residual stream is several (hc_mult)");
}
