#include "tests/unit/proc_worker/gpu_fixture.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device_run run;
struct driver_request requests[REQUESTS];
struct random_model model;
struct err_msg em;
static u32 prompts[REQUESTS][PROMPT_MAX];

struct device_run_config gpu_test_config(void)
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

u32 make_requests(u32 count, u32 vocab, u32 outputs)
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

void expect_near(const struct device_run_config *c, u32 count, double worst)
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

void run_model(const struct device_run_config *c, u32 count)
{
	device_run_open(&run, c);
	device_run_requests(&run, requests, count);
	device_run_close(&run);
}

void expect_same(const struct driver_request *a, const struct driver_request *b, u32 count,
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

void expect_refusal(const struct gpu_config *c, enum err expected, const char *words)
{
	struct gpu *gpu;

	cr_assert_eq(gpu_create(&gpu, c, &em), expected, "%s", em.text);
	cr_assert_null(gpu);
	cr_assert_neq(strstr(em.text, words), NULL, "%s", em.text);
}

void set_params(struct sampling_params *p)
{
	sampling_params_default(p);
	p->seed = 4711;
	p->max_tokens = 64;
}

/* ---------------------------------------------------------------- a model as a whole */

/* Three requests; gives how many. */
static u32 run_family(const struct device_run_config *c, const char *text)
{
	random_model_write(&model, text, 11);
	u32 count = make_requests(3, 101, 5);
	run_model(c, count);
	return count;
}

void check_family(const char *what, const char *text, double worst)
{
	struct device_run_config c = gpu_test_config();

	if (getenv("TEST_GPU_PRINT"))
		fprintf(stderr, "%s: ", what);
	u32 count = run_family(&c, text);
	expect_near(&c, count, worst);
	random_model_remove(&model);
}

void check_experts(const char *what, const char *text, double mean)
{
	struct device_run_config c = gpu_test_config();
	u32 count = run_family(&c, text);
	struct device_difference d = device_compare(&c, requests, count);

	if (getenv("TEST_GPU_PRINT"))
		fprintf(stderr, "%s: %u of %u far off, %.4f on average\n", what, d.far, d.compared, d.mean_logprob);
	cr_expect_lt(d.far, d.compared / 6, "%s: %u of %u are far off", what, d.far, d.compared);
	cr_expect_lt(d.mean_logprob, mean, "%s: log-probabilities differ by %f on average", what, d.mean_logprob);
	random_model_remove(&model);
}

void check_ways(const char *text, const struct step_way *ways, u32 count)
{
	static struct driver_request first[REQUESTS];
	static struct sampling_params plain;

	random_model_write(&model, text, 12);
	set_params(&plain);
	for (u32 i = 0; i < count; i++) {
		struct device_run_config c = gpu_test_config();
		u32 asked = make_requests(REQUESTS, 101, 9);
		for (u32 k = 0; k < asked; k += 2)
			requests[k].params = &plain; /* sampled in the graph */
		c.graphs = ways[i].graphs;
		c.depth = ways[i].depth;
		c.save_every = ways[i].save_every;
		run_model(&c, asked);
		cr_assert(c.save_every == 0 || run.saves > 10, "%u saves", run.saves);
		if (i == 0)
			memcpy(first, requests, sizeof(first));
		else
			expect_same(first, requests, asked, ways[i].what);
	}
	random_model_remove(&model);
}

void check_swaps(const char *text, const char *schedule, enum kern_dtype kv, u32 host_blocks)
{
	setenv("CUDA_EMU_SCHEDULE", schedule, 1);
	random_model_write(&model, text, 13);
	struct device_run_config c = gpu_test_config();
	u32 count = make_requests(6, 101, 20);
	c.kv_dtype = kv;
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

/* ---------------------------------------------------------------- step by step */

void open_model(const char *text, u64 seed)
{
	struct device_run_config c = gpu_test_config();

	random_model_write(&model, text, seed);
	device_run_open(&run, &c);
}

void close_model(void)
{
	device_run_close(&run);
	random_model_remove(&model);
}

void make_tokens(u32 *tokens, u32 count)
{
	for (u32 i = 0; i < count; i++)
		tokens[i] = (i * 37 + 5) % 101;
}

void add_row(u32 row, const u32 *tokens, u32 count, u32 computed, const u32 *blocks, u32 block_count)
{
	struct mirror_add a = {.row = row,
			       .seq = 100 + run.mirror.step + row,
			       .tokens = tokens,
			       .token_count = count,
			       .prompt_count = count,
			       .computed = computed,
			       .blocks = blocks,
			       .block_count = block_count};

	mirror_add(&run.mirror, &a);
}

struct gpu_result do_step(const struct ipc_step *s)
{
	struct gpu_result r;

	OK(batch_state_apply(run.batch, s, &em));
	OK(gpu_forward(run.gpu, run.batch, s, &em));
	OK(gpu_sample(run.gpu, run.batch, NULL, &em));
	OK(gpu_wait(run.gpu, s->step, &em));
	OK(gpu_result(run.gpu, s->step, &r, &em));
	batch_state_commit(run.batch, r.tokens);
	(void)mirror_commit(&run.mirror, r.tokens);
	return r;
}
