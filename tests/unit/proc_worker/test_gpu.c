/* A device's engine on the emulated device, compared with the CPU: every family, every way through a step. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proc_worker/gpu/gpu_priv.h"
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
		struct device_run_config c = config();
		c.model_dir = dir;
		u32 count = make_requests(2, 512, 5);
		run_model(&c, count);
		if (getenv("TEST_GPU_PRINT"))
			fprintf(stderr, "%s: ", names[i]);
		expect_near(&c, count, 0.5);
	}
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

/* Under orders of streams that begin nothing before somebody waits for it a missing event is a wrong answer.
 */
static void check_swaps(const char *schedule, enum kern_dtype type, u32 host_blocks)
{
	setenv("CUDA_EMU_SCHEDULE", schedule, 1);
	random_model_write(&model, LLAMA, 13);
	struct device_run_config c = config();
	u32 count = make_requests(6, 101, 20);
	c.kv_dtype = type;
	c.blocks = 18; /* few, so that those which are being read are handed out again */
	c.rows_max = 2;
	c.preempt_every = 10;
	c.host_blocks = host_blocks;
	run_model(&c, count);
	cr_assert_gt(run.swapped_in, 8);
	cr_assert_eq(run.swapped_in, run.swapped_out);
	cr_assert_eq(run.free_host_count, host_blocks);
	expect_near(&c, count, 0.3);
	random_model_remove(&model);
}

Test(gpu, swapped_rows_go_on_where_they_were, .timeout = 120)
{
	check_swaps("reverse", KERN_BF16, 12);
}

Test(gpu, swapped_rows_go_on_where_they_were_in_any_order_of_streams, .timeout = 120)
{
	check_swaps("random:7", KERN_I8, 30);
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

/* On the CPU FP8 becomes bfloat16, on a device it stays what it is. */
Test(gpu, fp8_checkpoints_stay_fp8_and_answer_as_on_the_cpu, .timeout = 60)
{
	static const char F8[] =
		", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [32, 128]}";
	static const char WIDE[] =
		"{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 101, \"hidden_size\": 256, "
		"\"intermediate_size\": 160, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
		"\"num_key_value_heads\": 2, \"head_dim\": 32, \"max_position_embeddings\": 128, "
		"\"rms_norm_eps\": 1e-5, "
		"\"torch_dtype\": \"bfloat16\"%s}";
	struct device_run_config c = config();
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

static void set_params(struct sampling_params *p)
{
	sampling_params_default(p);
	p->seed = 4711;
	p->max_tokens = 64;
}

/* Every row another way of sampling, with and without log-probabilities, so that groups of all kinds form. */
Test(gpu, sampling_follows_its_parameters_as_on_the_cpu, .timeout = 120)
{
	static struct sampling_params params[REQUESTS];

	random_model_write(&model, LLAMA, 16);
	struct device_run_config c = config();
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

/* ---------------------------------------------------------------- diffs */

static struct err_msg em;
#define OK(call) cr_assert_eq(call, ERR_OK, "%s", em.text)

/* One step, collected at once; the tokens of the rows that sample. */
static struct gpu_result do_step(const struct ipc_step *s)
{
	struct gpu_result r;

	OK(batch_state_apply(run.batch, s, &em));
	OK(gpu_forward(run.gpu, run.batch, s, &em));
	OK(gpu_sample(run.gpu, run.batch, &em));
	OK(gpu_wait(run.gpu, s->step, &em));
	OK(gpu_result(run.gpu, s->step, &r, &em));
	batch_state_commit(run.batch, r.tokens);
	(void)mirror_commit(&run.mirror, r.tokens);
	return r;
}

static void add_row(u32 row, const u32 *tokens, u32 count, u32 computed, const u32 *blocks, u32 block_count)
{
	struct mirror_add a = {.row = row,
			       .seq = 100 + row,
			       .tokens = tokens,
			       .token_count = count,
			       .prompt_count = count,
			       .computed = computed,
			       .blocks = blocks,
			       .block_count = block_count};

	mirror_add(&run.mirror, &a);
}

Test(gpu, copied_blocks_hold_what_their_sources_did, .timeout = 60)
{
	static const u32 blocks[] = {30, 3, 11}, copies[] = {7, 22, 1};
	struct device_run_config c = config();
	u32 tokens[17];

	random_model_write(&model, LLAMA, 17);
	for (u32 i = 0; i < 17; i++)
		tokens[i] = (i * 37 + 5) % 101;
	device_run_open(&run, &c);
	mirror_begin(&run.mirror);
	add_row(0, tokens, 17, 0, blocks, 3);
	mirror_run(&run.mirror, 0, 17);
	struct gpu_result r = do_step(mirror_end(&run.mirror));
	cr_assert_eq(r.count, 1);
	u32 first = r.tokens[0];
	mirror_begin(&run.mirror);
	mirror_drop(&run.mirror, 0);
	mirror_copy(&run.mirror, blocks[0], copies[0]);
	mirror_copy(&run.mirror, blocks[1], copies[1]);
	add_row(2, tokens, 17, 16, copies, 3);
	r = do_step(mirror_end(&run.mirror));
	cr_assert_eq(r.count, 1);
	cr_assert_eq(r.tokens[0], first);
	device_run_close(&run);
	random_model_remove(&model);
}

/* As if sequences were longer than what goes up at once. */
Test(gpu, a_diff_larger_than_a_piece_arrives_whole, .timeout = 60)
{
	static struct driver_request whole[REQUESTS];
	static struct sampling_params params;

	random_model_write(&model, LLAMA, 18);
	set_params(&params);
	for (u32 pieces = 0; pieces < 2; pieces++) {
		struct device_run_config c = config();
		u32 count = make_requests(REQUESTS, 101, 6);
		for (u32 i = 0; i < count; i++)
			requests[i].params = &params;
		device_run_open(&run, &c);
		if (pieces)
			run.gpu->stage_bytes = 110 * sizeof(u32); /* a prompt of 48 tokens, not two */
		device_run_requests(&run, requests, count);
		device_run_close(&run);
		if (!pieces)
			memcpy(whole, requests, sizeof(whole));
		else
			expect_same(whole, requests, count, "in pieces");
	}
	random_model_remove(&model);
}

/* An empty diff is nothing at all on the way up, but that the rule holds again after exceptions. */
Test(gpu, a_step_in_which_nothing_changes_uploads_nothing, .timeout = 60)
{
	static const u32 blocks[] = {0, 1, 2};
	static const u32 tokens[] = {5, 6, 7, 8};
	struct device_run_config c = config();

	random_model_write(&model, LLAMA, 19);
	device_run_open(&run, &c);
	mirror_begin(&run.mirror);
	add_row(0, tokens, 4, 0, blocks, 3);
	mirror_run(&run.mirror, 0, 4);
	(void)do_step(mirror_end(&run.mirror));
	u32 used = run.gpu->next_stage;
	for (u32 i = 0; i < 6; i++) {
		mirror_begin(&run.mirror);
		struct gpu_result r = do_step(mirror_end(&run.mirror));
		cr_assert_eq(r.count, 1);
	}
	cr_assert_eq(run.gpu->next_stage, used);
	device_run_close(&run);
	random_model_remove(&model);
}

Test(gpu, begin_empties_the_batch, .timeout = 60)
{
	static const u32 blocks[] = {4, 9};
	static const u32 tokens[] = {5, 6, 7, 8, 9};
	struct device_run_config c = config();
	u32 first[2];

	random_model_write(&model, LLAMA, 20);
	device_run_open(&run, &c);
	for (u32 epoch = 0; epoch < 2; epoch++) {
		OK(gpu_begin(run.gpu, &em));
		OK(batch_state_reset(run.batch, c.blocks, c.max_model_len, &em));
		mirror_init(&run.mirror, c.block_size);
		mirror_begin(&run.mirror);
		add_row(epoch, tokens, 5, 0, blocks, 2);
		mirror_run(&run.mirror, epoch, 5);
		struct gpu_result r = do_step(mirror_end(&run.mirror));
		cr_assert_eq(r.count, 1); /* and not the row of the epoch before */
		first[epoch] = r.tokens[0];
		cr_assert_eq(gpu_result(run.gpu, 2, &r, &em), ERR_NOT_FOUND);
		cr_assert_eq(gpu_wait(run.gpu, 2, &em), ERR_NOT_FOUND);
	}
	cr_assert_eq(first[0], first[1]);
	device_run_close(&run);
	random_model_remove(&model);
}

/* With a place to remember them products are measured once: the second start finds what the first one wrote.
 */
Test(gpu, measured_products_are_kept_in_the_weights_cache, .timeout = 60)
{
	struct device_run_config c = config();
	struct stat first, second;
	char dir[96], path[128];
	struct gpu *gpu;

	random_model_write(&model, LLAMA, 26);
	device_run_read(&run, &c);
	snprintf(dir, sizeof(dir), "%s/cache", model.dir);
	snprintf(path, sizeof(path), "%s/products.cublaslt", dir);
	run.plan.cache_dir = dir;
	struct gpu_config gc = device_run_config(&run);
	OK(gpu_create(&gpu, &gc, &em));
	gpu_destroy(&gpu);
	cr_assert_eq(stat(path, &first), 0);
	cr_assert_gt(first.st_size, 8 * 16); /* four matrices for two sizes of steps */
	OK(gpu_create(&gpu, &gc, &em));
	gpu_destroy(&gpu);
	cr_assert_eq(stat(path, &second), 0);
	cr_assert_eq(first.st_ino, second.st_ino, "measured again");
	run.plan.cache_dir = "/proc/nowhere"; /* a warning, not an error */
	OK(gpu_create(&gpu, &gc, &em));
	gpu_destroy(&gpu);
	random_model_remove(&model);
}

/* ---------------------------------------------------------------- refusals */

static void expect_refusal(const struct gpu_config *c, enum err expected, const char *words)
{
	struct gpu *gpu;

	cr_assert_eq(gpu_create(&gpu, c, &em), expected, "%s", em.text);
	cr_assert_null(gpu);
	cr_assert_neq(strstr(em.text, words), NULL, "%s", em.text);
}

Test(gpu, what_the_kernels_cannot_is_refused_by_name, .timeout = 60)
{
	struct device_run_config c = config();

	random_model_write(&model, LLAMA, 21);
	device_run_open(&run, &c);
	struct gpu_config good = device_run_config(&run), bad = good;
	struct model_config m = run.model;
	bad.model = &m;
	run.plan.dtype = KERN_F32;
	expect_refusal(&bad, ERR_UNSUPPORTED, "--dtype bfloat16, or --device cpu");
	run.plan.dtype = KERN_BF16;
	bad.kv_dtype = KERN_F32;
	expect_refusal(&bad, ERR_UNSUPPORTED, "--kv-cache-dtype");
	bad.kv_dtype = KERN_BF16;
	bad.limits.block_size = 12;
	expect_refusal(&bad, ERR_UNSUPPORTED, "--block-size 12");
	bad.limits.block_size = 8;
	m.head_dim = 36;
	expect_refusal(&bad, ERR_UNSUPPORTED, "36 values");
	m.head_dim = 32;
	m.hidden = 40;
	expect_refusal(&bad, ERR_UNSUPPORTED, "hidden_size is 40");
	device_run_close(&run);
	random_model_remove(&model);
}

Test(gpu, too_little_memory_is_explained_with_what_would_fit, .timeout = 60)
{
	struct device_run_config c = config();

	random_model_write(&model, LLAMA, 22);
	device_run_open(&run, &c);
	struct gpu_config bad = device_run_config(&run);
	bad.kv_cache_memory = 6 * gpu_kv_block_bytes(run.gpu); /* of 8 tokens each */
	expect_refusal(&bad, ERR_NO_SPACE, "--max-model-len 48");
	bad.kv_cache_memory = 1ull << 40;
	expect_refusal(&bad, ERR_NO_SPACE, "at most");
	bad.kv_cache_memory = 0;
	bad.memory_utilization = 0.001;
	expect_refusal(&bad, ERR_NO_SPACE, "a higher --gpu-memory-utilization would do");
	device_run_close(&run);
	random_model_remove(&model);
}

Test(gpu, weights_that_do_not_fit_are_refused_with_the_number, .timeout = 60)
{
	struct device_run_config c = config();

	random_model_write(&model, LLAMA, 23);
	setenv("CUDA_EMU_MEMORY", "33554432", 1);
	device_run_read(&run, &c);
	struct gpu_config bad = device_run_config(&run);
	struct kern_device_info now;
	void *rest;
	OK(run.device.api->memory(&now, &em));
	OK(run.device.api->alloc(&rest, now.memory_free - 100000, &em));
	expect_refusal(&bad, ERR_NO_SPACE, "--quantization int8");
	run.device.api->release(rest);
	expect_refusal(&bad, ERR_NO_SPACE, "--max-num-batched-tokens");
	device_run_close(&run);
	random_model_remove(&model);
}

/* ---------------------------------------------------------------- what goes wrong on the way */

Test(gpu, a_fault_of_the_device_ends_the_step_in_its_words, .timeout = 60)
{
	static const u32 blocks[] = {0}, tokens[] = {5, 6, 7};
	struct device_run_config c = config();

	random_model_write(&model, LLAMA, 24);
	/* cudaErrorLaunchFailure; the calls before are those that load the 21 parts of the weights, but for
	 * two */
	setenv("CUDA_EMU_INJECT", "cudaEventSynchronize:20:719", 1);
	device_run_open(&run, &c);
	mirror_begin(&run.mirror);
	add_row(0, tokens, 3, 0, blocks, 1);
	mirror_run(&run.mirror, 0, 3);
	const struct ipc_step *s = mirror_end(&run.mirror);
	OK(batch_state_apply(run.batch, s, &em));
	OK(gpu_forward(run.gpu, run.batch, s, &em));
	OK(gpu_sample(run.gpu, run.batch, &em));
	cr_assert_eq(gpu_wait(run.gpu, 1, &em), ERR_DEVICE);
	cr_assert_neq(strstr(em.text, "cudaErrorLaunchFailure"), NULL, "%s", em.text);
	random_model_remove(&model);
}

static const struct kern_device_api *counted;
static u32 released;

static void count_released(void *p)
{
	released += p != NULL;
	counted->host_release(p);
}

Test(gpu, swap_space_that_fails_on_the_way_keeps_no_pinned_memory, .timeout = 60)
{
	struct device_run_config c = config();

	random_model_write(&model, LLAMA, 24);
	setenv("CUDA_EMU_INJECT", "cudaStreamCreateWithFlags:3:2", 1); /* the swap's; cudaErrorMemoryAllocation */
	device_run_read(&run, &c);
	counted = run.device.api;
	struct kern_device_api api = *counted;
	api.host_release = count_released;
	run.device.api = &api;
	struct gpu_config gc = device_run_config(&run);
	OK(gpu_create(&run.gpu, &gc, &em));
	OK(gpu_take_blocks(run.gpu, c.blocks, &em));
	released = 0;
	cr_assert_eq(gpu_take_host_blocks(run.gpu, 4, &em), ERR_NO_MEMORY);
	cr_assert_eq(released, 1);
	device_run_close(&run);
	random_model_remove(&model);
}
