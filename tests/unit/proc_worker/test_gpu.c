/* A device's engine on the emulated device, compared with the CPU: every family, every way through a step, every way of
 * sampling. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proc_worker/gpu/gpu_priv.h"
#include "tests/unit/proc_worker/gpu_fixture.h"

Test(gpu, llama_answers_as_on_the_cpu, .timeout = 120)
{
	check_family("Llama", LLAMA, 0.2);
}

#define FAMILY(name, more) "{\"architectures\": [\"" name "\"], " SMALL more "}"
/* Its field has another name, and heads are a share of the hidden values. */
#define LAYER_NORM(name, eps, more)                                                                          \
	"{\"architectures\": [\"" name "\"], \"vocab_size\": 101, \"hidden_size\": 128, "                     \
	"\"intermediate_size\": 72, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "                    \
	"\"num_key_value_heads\": 2, \"" eps "\": 1e-5, \"max_position_embeddings\": 128, "                    \
	"\"torch_dtype\": \"bfloat16\", \"eos_token_id\": 3" more "}"
#define FALCON_SMALL                                                                                              \
	"\"vocab_size\": 101, \"hidden_size\": 128, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "       \
	"\"max_position_embeddings\": 128, \"torch_dtype\": \"bfloat16\", \"eos_token_id\": 3"
#define EXPERTS                                                                             \
	", \"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48, " \
	"\"norm_topk_prob\": true, "                                                        \
	"\"decoder_sparse_step\": 2"
#define SCALED(what)                                  \
	", \"rope_scaling\": {\"rope_type\": \"" what \
	"\", \"factor\": 2.0, \"original_max_position_embeddings\": 24"

Test(gpu, every_family_answers_as_on_the_cpu, .timeout = 400)
{
	static const struct {
		const char *what, *text;
	} families[] = {
		{"tied embeddings", FAMILY("LlamaForCausalLM", ", \"tie_word_embeddings\": true")},
		{"biases", FAMILY("LlamaForCausalLM", ", \"attention_bias\": true, \"mlp_bias\": true")},
		{"biases of q, k, v", FAMILY("Qwen2ForCausalLM", "")},
		{"norms of q and k", FAMILY("Qwen3ForCausalLM", "")},
		{"fused tensors, a window",
		 FAMILY("Phi3ForCausalLM", ", \"pad_token_id\": 0, \"sliding_window\": 9")},
		{"GELU, scaled embeddings, norms with an offset", FAMILY("GemmaForCausalLM", "")},
		{"soft caps, norms behind, a window in every other layer",
		 FAMILY("Gemma2ForCausalLM",
			", \"sliding_window\": 9, \"query_pre_attn_scalar\": 32, "
			"\"attn_logit_softcapping\": 20.0, \"final_logit_softcapping\": 8.0")},
		{"two bases of positions, windows in all but every third layer",
		 FAMILY("Gemma3ForCausalLM",
			", \"sliding_window\": 9, \"query_pre_attn_scalar\": 32, \"sliding_window_pattern\": 2")},
		{"multipliers",
		 FAMILY("GraniteForCausalLM",
			", \"embedding_multiplier\": 3.0, \"residual_multiplier\": 0.4, "
			"\"attention_multiplier\": 0.1, \"logits_scaling\": 2.0")},
		{"norms behind blocks that take their multiplier",
		 FAMILY("HyperCLOVAXForCausalLM",
			", \"embedding_multiplier\": 3.0, \"residual_multiplier\": 0.4, "
			"\"attention_multiplier\": 0.1, \"logits_scaling\": 0.5, \"use_post_norm\": true")},
		{"layers without positions", FAMILY("SmolLM3ForCausalLM", ", \"no_rope_layer_interval\": 2")},
		{"LayerNorm, biases of q, k, v, a part of heads rotates",
		 LAYER_NORM("StableLmForCausalLM", "layer_norm_eps",
			    ", \"use_qkv_bias\": true, \"partial_rotary_factor\": 0.5")},
		{"no gate, squared ReLU, norms with an offset",
		 LAYER_NORM("NemotronForCausalLM", "norm_eps", ", \"hidden_act\": \"relu2\"")},
		{"no gate, biases everywhere, a window",
		 LAYER_NORM("Starcoder2ForCausalLM", "norm_epsilon",
			    ", \"use_bias\": true, \"sliding_window\": 9, \"hidden_act\": \"gelu_pytorch_tanh\"")},
		{"no gate, RMSNorm", FAMILY("ArceeForCausalLM", ", \"hidden_act\": \"relu2\", \"mlp_bias\": true")},
		{"blocks side by side, biases of logits, too",
		 LAYER_NORM("PhiForCausalLM", "layer_norm_eps", ", \"hidden_act\": \"gelu_new\"")},
		{"learned positions, one key of all heads",
		 "{\"architectures\": [\"GPTBigCodeForCausalLM\"], \"vocab_size\": 101, \"n_embd\": 128, \"n_layer\": 2, \"n_head\": 4, "
		 "\"n_positions\": 128, \"n_inner\": 96, \"torch_dtype\": \"bfloat16\", \"eos_token_id\": 3}"},
		{"blocks side by side, neighbours of a part of heads rotate",
		 "{\"architectures\": [\"GPTJForCausalLM\"], \"vocab_size\": 101, \"n_embd\": 128, \"n_layer\": 2, \"n_head\": 4, \"rotary_dim\": 8, "
		 "\"n_positions\": 128, \"n_inner\": 96, \"torch_dtype\": \"bfloat16\", \"eos_token_id\": 3}"},
		{"blocks side by side, one key of all heads", "{\"architectures\": [\"FalconForCausalLM\"], " FALCON_SMALL "}"},
		{"blocks side by side with a norm each, biases", "{\"architectures\": [\"FalconForCausalLM\"], " FALCON_SMALL
		 ", \"new_decoder_architecture\": true, \"num_kv_heads\": 2, \"bias\": true}"},
		{"blocks side by side, neighbours rotate",
		 LAYER_NORM("CohereForCausalLM", "layer_norm_eps", ", \"logit_scale\": 0.5")},
		{"the same with windows, and layers without positions",
		 LAYER_NORM("Cohere2ForCausalLM", "layer_norm_eps",
			    ", \"sliding_window\": 9, \"sliding_window_pattern\": 2, \"logit_scale\": 0.5")},
		{"neighbours rotate, norms behind", FAMILY("Glm4ForCausalLM", ", \"partial_rotary_factor\": 0.5")},
		{"neighbours rotate", FAMILY("Ernie4_5ForCausalLM", ", \"use_bias\": true")},
		{"norms behind blocks only and over all heads, two bases of positions",
		 FAMILY("Olmo3ForCausalLM", ", \"sliding_window\": 9")},
		{"norms behind blocks only, and of heads", FAMILY("Exaone4ForCausalLM", ", \"sliding_window\": null")},
		{"exact GELU", FAMILY("LlamaForCausalLM", ", \"hidden_act\": \"gelu\"")},
		{"positions scaled by length", FAMILY("Qwen2ForCausalLM", SCALED("dynamic") "}")},
		{"two tables of positions",
		 FAMILY("Qwen2ForCausalLM",
			SCALED("longrope") ", \"short_factor\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1], "
					   "\"long_factor\": [1,1,1,1,2,2,2,2,3,3,3,3,4,4,4,4]}")},
	};

	for (size_t i = 0; i < COUNT_OF(families); i++)
		check_family(families[i].what, families[i].text, 0.3);
}

Test(gpu, mixtures_of_experts_answer_as_on_the_cpu, .timeout = 120)
{
	check_experts("Mixtral", FAMILY("MixtralForCausalLM", ", \"num_local_experts\": 4, \"num_experts_per_tok\": 2"), 0.15);
}

Test(gpu, experts_behind_norms_over_all_heads_answer_as_on_the_cpu, .timeout = 120)
{
	check_experts("OLMoE", FAMILY("OlmoeForCausalLM", ", \"num_experts\": 8, \"num_experts_per_tok\": 2"), 0.15);
}

Test(gpu, experts_in_some_layers_of_an_odd_size_answer_as_on_the_cpu, .timeout = 120)
{
	check_experts("Qwen 3", FAMILY("Qwen3MoeForCausalLM", EXPERTS), 0.15);
}

Test(gpu, an_expert_of_all_tokens_answers_as_on_the_cpu, .timeout = 120)
{
	check_experts("Sarvam", FAMILY("SarvamMoEForCausalLM", ", \"num_experts\": 8, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 32, "
								  "\"num_shared_experts\": 1, \"use_qkv_bias\": true"),
		      0.15);
	check_experts("Hy3", FAMILY("HYV3ForCausalLM", ", \"num_experts\": 8, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 32, "
						       "\"num_shared_experts\": 1, \"attention_bias\": true, \"router_scaling_factor\": 1.2"),
		      0.15);
	check_experts("Qwen 2", FAMILY("Qwen2MoeForCausalLM", EXPERTS ", \"shared_expert_intermediate_size\": 80"), 0.15);
}

/* Checkpoints of other makers' tools, in all shapes that their formats allow. */
Test(gpu, reference_models_answer_as_on_the_cpu, .timeout = 120)
{
	static const char *const names[] = {"gemma",
					    "llama-linear-rope",
					    "llama-mha-mixed-dtypes",
					    "llama-mha",
					    "llama3-gqa-ropescale",
					    "mistral-swa",
					    "phi3-swa",
					    "phi3",
					    "qwen2",
					    "qwen2-yarn"};
	char name[64];

	for (size_t i = 0; i < COUNT_OF(names); i++) {
		snprintf(name, sizeof(name), "refmodels/%s", names[i]);
		const char *dir = reference_dir(name);
		if (!dir)
			cr_skip_test("no reference models");
		struct device_run_config c = gpu_test_config();
		c.model_dir = dir;
		u32 count = make_requests(2, 512, 5);
		run_model(&c, count);
		if (getenv("TEST_GPU_PRINT"))
			fprintf(stderr, "%s: ", names[i]);
		expect_near(&c, count, 0.5);
	}
}

/* ---------------------------------------------------------------- ways through a step */

Test(gpu, answers_do_not_depend_on_graphs_or_steps_in_flight, .timeout = 120)
{
	static const struct step_way ways[] = {{"as it comes", false, 0, 0},
					       {"graphs", true, 0, 0},
					       {"one step ahead", false, 1, 0},
					       {"graphs, two steps ahead", true, 2, 0},
					       {"six steps ahead", true, 6, 0}};

	check_ways(LLAMA, ways, COUNT_OF(ways));
}

Test(gpu, preempted_rows_go_on_where_they_were, .timeout = 120)
{
	random_model_write(&model, LLAMA, 13);
	struct device_run_config c = gpu_test_config();
	u32 count = make_requests(REQUESTS, 101, 12);
	c.preempt_every = 12;
	run_model(&c, count);
	cr_assert_gt(run.rows.next_seq, count, "nothing was preempted");
	expect_near(&c, count, 0.3);
	random_model_remove(&model);
}

Test(gpu, swapped_rows_go_on_where_they_were, .timeout = 120)
{
	check_swaps(LLAMA, "reverse", KERN_BF16, 12);
}

Test(gpu, swapped_rows_go_on_where_they_were_in_any_order_of_streams, .timeout = 120)
{
	check_swaps(LLAMA, "random:7", KERN_I8, 30);
}

Test(gpu, caches_of_8_bits_answer_as_on_the_cpu, .timeout = 120)
{
	static const enum kern_dtype types[] = {KERN_I8, KERN_F8E4M3};

	random_model_write(&model, LLAMA, 14);
	for (size_t i = 0; i < COUNT_OF(types); i++) {
		struct device_run_config c = gpu_test_config();
		u32 count = make_requests(3, 101, 5);
		c.kv_dtype = types[i];
		run_model(&c, count);
		expect_near(&c, count, types[i] == KERN_I8 ? 0.3 : 0.8);
	}
	random_model_remove(&model);
}

/* The CPU rounds inputs to 8 bits, too, a device does not: they agree less than with plain weights. */
Test(gpu, quantized_weights_answer_as_on_the_cpu, .timeout = 120)
{
	static const enum kern_dtype types[] = {KERN_I8, KERN_I4_64};

	random_model_write(&model, LLAMA, 15);
	for (size_t i = 0; i < COUNT_OF(types); i++) {
		struct device_run_config c = gpu_test_config();
		u32 count = make_requests(3, 101, 5);
		c.matrix_dtype = types[i];
		run_model(&c, count);
		if (types[i] == KERN_I8)
			expect_near(&c, count, 0.4);
		struct device_difference d = device_compare(&c, requests, count);
		cr_expect_lt(d.mean_logprob, 0.6, "%f", d.mean_logprob);
	}
	random_model_remove(&model);
}

/* On the CPU FP8 becomes bfloat16, on a device it stays what it is. */
Test(gpu, fp8_checkpoints_stay_fp8_and_answer_as_on_the_cpu, .timeout = 120)
{
	static const char F8[] =
		", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [32, 128]}";
	static const char WIDE[] =
		"{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 101, \"hidden_size\": 256, "
		"\"intermediate_size\": 160, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
		"\"num_key_value_heads\": 2, \"head_dim\": 32, \"max_position_embeddings\": 128, "
		"\"rms_norm_eps\": 1e-5, "
		"\"torch_dtype\": \"bfloat16\"%s}";
	struct device_run_config c = gpu_test_config();
	u32 count = make_requests(3, 101, 5);
	char text[1024];

	snprintf(text, sizeof(text), WIDE, F8);
	random_model_write(&model, text, 25);
	device_run_open(&run, &c);
	const struct layer_weights *w = &run.gpu->weights.layers[1];
	cr_expect(w->qkv.dtype == KERN_F8E4M3 && w->attn_out.dtype == KERN_F8E4M3 &&
		  w->gate_up.dtype == KERN_F8E4M3 && w->down.dtype == KERN_F8E4M3);
	cr_expect_eq(run.gpu->weights.lm_head.dtype, KERN_BF16);
	device_run_requests(&run, requests, count);
	device_run_close(&run);
	expect_near(&c, count, 0.5);
	random_model_remove(&model);
}

/* ---------------------------------------------------------------- sampling */

static const u32 STOPS[] = {17, 40}, BIASED[] = {5, 60, 99};
static const f32 BIASES[] = {2.5f, -4, 1.5f};

/* Every row another way of sampling, with and without log-probabilities, so that groups of all kinds form. */
Test(gpu, sampling_follows_its_parameters_as_on_the_cpu, .timeout = 120)
{
	static struct sampling_params params[REQUESTS];

	random_model_write(&model, LLAMA, 16);
	struct device_run_config c = gpu_test_config();
	u32 count = make_requests(REQUESTS, 101, 24);
	for (u32 i = 0; i < count; i++) {
		set_params(&params[i]);
		requests[i].params = &params[i];
		params[i].logprobs = i % 2 ? 3 : -1;
	}
	params[0].temperature = 0;
	params[0].repetition_penalty = 1.6f;
	params[1].temperature = 0;
	params[1].frequency_penalty = 0.8f;
	params[1].presence_penalty = 0.5f;
	params[2].temperature = 0;
	params[2].min_tokens = 20;
	params[3].top_k = 8;
	params[3].repetition_penalty = 1.2f;
	params[4].temperature = 0;
	params[5].top_p = 0.7f;
	params[5].min_tokens = 3;
	requests[2].stop_ids = STOPS;
	requests[2].stop_count = COUNT_OF(STOPS);
	requests[4].bias_ids = BIASED;
	requests[4].bias_values = BIASES;
	requests[4].bias_count = COUNT_OF(BIASED);
	c.preempt_every = 30;
	run_model(&c, count);
	struct device_difference d = device_compare(&c, requests, count);
	if (getenv("TEST_GPU_PRINT"))
		fprintf(stderr, "%u of %u tokens are the CPU's, choices %.4f, log-probabilities %.4f\n",
			d.same, d.outputs, d.worst_choice, d.worst_logprob);
	cr_assert_eq(d.outputs, 24 * count);
	cr_expect_geq(d.same, d.outputs * 9 / 10, "%u of %u tokens", d.same, d.outputs);
	cr_expect_lt(d.worst_choice, 0.3, "another token was better by %f", d.worst_choice);
	cr_expect_lt(d.worst_logprob, 0.3, "log-probabilities differ by %f", d.worst_logprob);
	for (u32 i = 0; i < 20; i++)
		cr_expect(requests[2].output[i] != 3 && requests[2].output[i] != STOPS[0] &&
			  requests[2].output[i] != STOPS[1]);
	random_model_remove(&model);
}
