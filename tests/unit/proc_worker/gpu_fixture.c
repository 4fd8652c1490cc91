#include "tests/unit/proc_worker/gpu_fixture.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device_run run;
struct driver_request requests[REQUESTS];
struct random_model model;
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

void set_params(struct sampling_params *p)
{
	sampling_params_default(p);
	p->seed = 4711;
	p->max_tokens = 64;
}
