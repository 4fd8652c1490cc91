/* A device's engine on the emulated device, compared with the CPU: every family, every way through a step. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/proc_worker/device_run.h"
#include "tests/unit/proc_worker/random_model.h"

enum { REQUESTS = 6, PROMPT_MAX = 48 };

static struct device_run run;
static struct driver_request requests[REQUESTS];
static u32 prompts[REQUESTS][PROMPT_MAX];
static struct random_model model;

#define SMALL                                                                                                \
	"\"vocab_size\": 101, \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "    \
	"\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, \"rms_norm_eps\": 1e-5, " \
	"\"max_position_embeddings\": 128, \"torch_dtype\": \"bfloat16\", \"eos_token_id\": 3"
static const char LLAMA[] = "{\"architectures\": [\"LlamaForCausalLM\"], " SMALL "}";

static struct device_run_config config(void)
{
	return (struct device_run_config){.model_dir = model.dir,
					  .rows_max = 4,
					  .tokens_max = 64,
					  .block_size = 8,
					  .max_model_len = 96,
					  .blocks = 40,
					  .chunk = 20,
					  .depth = 2,
					  .graphs = true,
					  .seed = 5};
}

/* Greedy ones with log-probabilities of prompt and outputs. */
static u32 make_requests(u32 count, u32 vocab, u32 outputs)
{
	static struct sampling_params params;

	sampling_params_default(&params);
	params.temperature = 0;
	params.logprobs = 4;
	params.prompt_logprobs = 2;
	memset(requests, 0, sizeof(requests));
	for (u32 i = 0; i < count; i++) {
		u32 n = 1 + (i * 23 + 7) % (PROMPT_MAX - 1);
		for (u32 k = 0; k < n; k++)
			prompts[i][k] = (i * 31 + k * k * 7 + k) % vocab;
		requests[i].prompt = prompts[i];
		requests[i].prompt_count = n;
		requests[i].output_count = outputs;
		requests[i].params = &params;
	}
	return count;
}

/* bfloat16 activations against float ones: `worst` for the worst of hundreds, a tenth of it on average. */
static void expect_near(const struct device_run_config *c, u32 count, double worst)
{
	struct device_difference d = device_compare(c, requests, count);

	if (getenv("TEST_GPU_PRINT"))
		fprintf(stderr, "%u compared: log-probabilities %.4f, %.4f on average, choices %.4f\n",
			d.compared, d.worst_logprob, d.mean_logprob, d.worst_choice);
	cr_assert_gt(d.compared, count);
	cr_expect_lt(d.worst_logprob, worst, "log-probabilities differ by %f", d.worst_logprob);
	cr_expect_lt(d.mean_logprob, worst / 10, "log-probabilities differ by %f on average", d.mean_logprob);
	cr_expect_lt(d.worst_choice, worst, "another token was better by %f", d.worst_choice);
}

static void run_model(const struct device_run_config *c, u32 count)
{
	device_run_open(&run, c);
	device_run_requests(&run, requests, count);
	device_run_close(&run);
}

static void check_family(const char *text, double worst)
{
	random_model_write(&model, text, 11);
	struct device_run_config c = config();
	u32 count = make_requests(3, 101, 5);
	run_model(&c, count);
	expect_near(&c, count, worst);
	random_model_remove(&model);
}

Test(gpu, llama_answers_as_on_the_cpu, .timeout = 120)
{
	check_family(LLAMA, 0.2);
}

#define FAMILY(name, more) "{\"architectures\": [\"" name "\"], " SMALL more "}"
#define EXPERTS                                                                             \
	", \"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48, " \
	"\"norm_topk_prob\": true, "                                                        \
	"\"decoder_sparse_step\": 2"
#define SCALED(what)                                  \
	", \"rope_scaling\": {\"rope_type\": \"" what \
	"\", \"factor\": 2.0, \"original_max_position_embeddings\": 24"

Test(gpu, every_family_answers_as_on_the_cpu, .timeout = 120)
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
		{"positions scaled by length", FAMILY("Qwen2ForCausalLM", SCALED("dynamic") "}")},
		{"two tables of positions",
		 FAMILY("Qwen2ForCausalLM",
			SCALED("longrope") ", \"short_factor\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1], "
					   "\"long_factor\": [1,1,1,1,2,2,2,2,3,3,3,3,4,4,4,4]}")},
	};

	for (size_t i = 0; i < COUNT_OF(families); i++) {
		if (getenv("TEST_GPU_PRINT"))
			fprintf(stderr, "%s: ", families[i].what);
		check_family(families[i].text, 0.3);
	}
}

/* Where two experts are nearly as good, the other one may be chosen: few values are far off then, others not.
 */
static void check_experts(const char *text)
{
	random_model_write(&model, text, 11);
	struct device_run_config c = config();
	u32 count = make_requests(3, 101, 5);
	run_model(&c, count);
	struct device_difference d = device_compare(&c, requests, count);
	cr_expect_lt(d.far, d.compared / 6, "%u of %u are far off", d.far, d.compared);
	cr_expect_lt(d.mean_logprob, 0.15, "log-probabilities differ by %f on average", d.mean_logprob);
	random_model_remove(&model);
}

Test(gpu, mixtures_of_experts_answer_as_on_the_cpu, .timeout = 60)
{
	check_experts(FAMILY("MixtralForCausalLM", ", \"num_local_experts\": 4, \"num_experts_per_tok\": 2"));
}

Test(gpu, experts_in_some_layers_of_an_odd_size_answer_as_on_the_cpu, .timeout = 60)
{
	check_experts(FAMILY("Qwen3MoeForCausalLM", EXPERTS));
}

/* ---------------------------------------------------------------- ways through a step */

static void expect_same(const struct driver_request *a, const struct driver_request *b, u32 count,
			const char *what)
{
	for (u32 i = 0; i < count; i++) {
		cr_assert_eq(a[i].outputs, b[i].outputs);
		for (u32 k = 0; k < a[i].outputs; k++) {
			cr_assert_eq(a[i].output[k], b[i].output[k], "%s: request %u, output %u: %u, not %u",
				     what, i, k, b[i].output[k], a[i].output[k]);
			cr_assert_eq(a[i].lp_count[k], b[i].lp_count[k]);
			cr_assert_eq(
				memcmp(a[i].lp_values[k], b[i].lp_values[k], a[i].lp_count[k] * sizeof(f32)),
				0, "%s: request %u, output %u: other log-probabilities", what, i, k);
		}
	}
}

Test(gpu, answers_do_not_depend_on_graphs_or_steps_in_flight, .timeout = 120)
{
	static struct driver_request first[REQUESTS];
	static const struct {
		const char *what;
		bool graphs;
		u32 depth;
	} ways[] = {{"as it comes", false, 0},
		    {"graphs", true, 0},
		    {"one step ahead", false, 1},
		    {"graphs, two steps ahead", true, 2},
		    {"six steps ahead", true, 6}};
	static struct sampling_params plain;

	random_model_write(&model, LLAMA, 12);
	sampling_params_default(&plain);
	for (size_t i = 0; i < COUNT_OF(ways); i++) {
		struct device_run_config c = config();
		u32 count = make_requests(REQUESTS, 101, 9);
		plain.seed = 77;
		for (u32 k = 0; k < count; k += 2)
			requests[k].params = &plain; /* sampled in the graph */
		c.graphs = ways[i].graphs;
		c.depth = ways[i].depth;
		run_model(&c, count);
		if (i == 0)
			memcpy(first, requests, sizeof(first));
		else
			expect_same(first, requests, count, ways[i].what);
	}
	random_model_remove(&model);
}

Test(gpu, preempted_rows_go_on_where_they_were, .timeout = 120)
{
	random_model_write(&model, LLAMA, 13);
	struct device_run_config c = config();
	u32 count = make_requests(REQUESTS, 101, 12);
	c.preempt_every = 12;
	run_model(&c, count);
	cr_assert_gt(run.next_seq, count, "nothing was preempted");
	expect_near(&c, count, 0.3);
	random_model_remove(&model);
}

Test(gpu, caches_of_8_bits_answer_as_on_the_cpu, .timeout = 120)
{
	static const enum kern_dtype types[] = {KERN_I8, KERN_F8E4M3};

	random_model_write(&model, LLAMA, 14);
	for (size_t i = 0; i < COUNT_OF(types); i++) {
		struct device_run_config c = config();
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
		struct device_run_config c = config();
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
