/* The demo models' greedy references: exact in float32 alone and together, on one and two ranks; in bfloat16,
 * teacher-forced, wherever the reference is sure. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/json.h"
#include "tests/unit/proc_worker/driver.h"

enum { PROMPTS_MAX = 32, TOKENS_MAX = 512, OUTPUTS_MAX = 64 };
static const double SURE = 0.15;

struct demo {
	u32 count;
	u32 prompt_count[PROMPTS_MAX], output_count[PROMPTS_MAX];
	u32 tokens[PROMPTS_MAX][TOKENS_MAX]; /* the prompt, then the greedy outputs */
	double margins[PROMPTS_MAX][OUTPUTS_MAX];
};

static struct demo demo;
static struct driver driver;
static struct driver_request requests[PROMPTS_MAX];

static void read_prompt(json_val p, u32 i)
{
	u32 n = 0;
	u64 id;

	for (struct json_iter it = json_iterate(json_get(p, "ids")); json_next(&it);) {
		cr_assert(n < TOKENS_MAX && json_uint(it.value, &id));
		demo.tokens[i][n++] = (u32)id;
	}
	demo.prompt_count[i] = n;
	for (struct json_iter it = json_iterate(json_get(p, "output_ids")); json_next(&it);) {
		cr_assert(n < TOKENS_MAX && json_uint(it.value, &id));
		demo.tokens[i][n++] = (u32)id;
	}
	demo.output_count[i] = n - demo.prompt_count[i];
	n = 0;
	for (struct json_iter it = json_iterate(json_get(p, "margins")); json_next(&it);)
		cr_assert(n < OUTPUTS_MAX && json_double(it.value, &demo.margins[i][n++]));
	cr_assert_eq(n, demo.output_count[i]);
}

static bool read_demo(const char *path)
{
	struct json_doc *doc;
	struct err_msg em;

	if (access(path, R_OK) < 0)
		return false;
	cr_assert_eq(json_parse_file(&doc, path, &em), ERR_OK, "%s", em.text);
	json_val prompts = json_get(json_root(doc), "prompts");
	demo.count = 0;
	for (struct json_iter it = json_iterate(prompts); json_next(&it);) {
		cr_assert_lt(demo.count, PROMPTS_MAX);
		read_prompt(it.value, demo.count++);
	}
	json_free(&doc);
#ifdef __SANITIZE_ADDRESS__
	demo.count = 4; /* slow kernels there: enough to see every access */
#endif
	cr_assert_gt(demo.count, 0);
	return true;
}

static struct driver_config config_for(const char *dir, enum option_dtype dtype, u32 ranks, u32 chunk,
				       u32 rows)
{
	return (struct driver_config){.model_dir = dir,
				      .dtype = dtype,
				      .ranks = ranks,
				      .threads = 1,
				      .caps = kern_caps_detect(),
				      .rows_max = rows,
				      .tokens_max = 528,
				      .block_size = 16,
				      .chunk = chunk,
				      .seed = 11};
}

static void check_greedy(const char *dir, u32 ranks, u32 chunk, u32 rows, u32 count)
{
	struct driver_config config = config_for(dir, OPTION_DTYPE_FLOAT32, ranks, chunk, rows);

	memset(requests, 0, sizeof(requests));
	for (u32 i = 0; i < count; i++) {
		requests[i].prompt = demo.tokens[i];
		requests[i].prompt_count = demo.prompt_count[i];
		requests[i].output_count = demo.output_count[i];
	}
	driver_open(&driver, &config);
	driver_run(&driver, requests, count);
	driver_close(&driver);
	for (u32 i = 0; i < count; i++)
		for (u32 j = 0; j < demo.output_count[i]; j++)
			cr_assert_eq(requests[i].output[j], demo.tokens[i][demo.prompt_count[i] + j],
				     "prompt %u, token %u, %u ranks, chunks of %u, %u rows", i, j, ranks,
				     chunk, rows);
}

static u32 best_of(const float *logits, u32 vocab)
{
	u32 best = 0;

	for (u32 i = 1; i < vocab; i++)
		if (logits[i] > logits[best])
			best = i;
	return best;
}

static void check_bfloat16(const char *dir)
{
	struct driver_config config = config_for(dir, OPTION_DTYPE_BFLOAT16, 1, 512, 8);
	u32 sure = 0;

	memset(requests, 0, sizeof(requests));
	driver_open(&driver, &config);
	u32 vocab = driver.runners[0]->model.vocab_size;
	for (u32 i = 0; i < demo.count; i++) {
		requests[i].prompt = demo.tokens[i];
		requests[i].prompt_count = demo.prompt_count[i] + demo.output_count[i] - 1;
		requests[i].output_count = 1;
		requests[i].prompt_logits = malloc((size_t)requests[i].prompt_count * vocab * sizeof(float));
	}
	driver_run(&driver, requests, demo.count);
	driver_close(&driver);
	for (u32 i = 0; i < demo.count; i++) {
		for (u32 j = 0; j < demo.output_count[i]; j++) {
			size_t at = demo.prompt_count[i] + j;
			if (demo.margins[i][j] <= SURE)
				continue;
			sure++;
			cr_assert_eq(best_of(requests[i].prompt_logits + (at - 1) * vocab, vocab),
				     demo.tokens[i][at], "prompt %u, token %u, margin %g", i, j,
				     demo.margins[i][j]);
		}
		free(requests[i].prompt_logits);
	}
	cr_assert_gt(sure, 10 * demo.count);
}

static void check_all(const char *dir)
{
	check_greedy(dir, 1, 512, 1, demo.count < 5 ? demo.count : 5); /* alone */
	check_greedy(dir, 1, 16, 16, demo.count);
	check_greedy(dir, 2, 512, 16, demo.count);
	check_bfloat16(dir);
}

Test(demo, the_bundled_model_writes_its_reference, .timeout = 120)
{
	if (!read_demo(SOURCE_ROOT "/demo/reference.json"))
		cr_skip_test("no bundled model");
	check_all(SOURCE_ROOT "/demo");
}

Test(demo, the_first_demo_model_writes_its_reference, .timeout = 120)
{
	if (!read_demo(SOURCE_ROOT "/../shared/data/demo_reference.json"))
		cr_skip_test("no reference data here");
	check_all(SOURCE_ROOT "/../shared/data/demo");
}
