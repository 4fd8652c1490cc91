#include "tests/unit/proc_worker/random_runs.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/proc_worker/driver.h"

enum { PROMPTS = 5, PROMPT_MAX = 60, OUTPUTS = 20 };

const enum option_kv_dtype random_runs_types[RANDOM_RUNS_TYPES] = {OPTION_KV_DTYPE_FLOAT32, OPTION_KV_DTYPE_BFLOAT16, OPTION_KV_DTYPE_INT16,
								   OPTION_KV_DTYPE_INT8, OPTION_KV_DTYPE_FP8};

struct runs {
	struct random_model model;
	struct driver driver;
	struct driver_request requests[PROMPTS];
	u32 prompts[PROMPTS][PROMPT_MAX];
};

static struct driver_config config_for(const struct runs *r, enum option_kv_dtype type)
{
	return (struct driver_config){.model_dir = r->model.dir,
				      .dtype = OPTION_DTYPE_FLOAT32,
				      .kv_dtype = type,
				      .ranks = 1,
				      .threads = 1,
				      .caps = kern_caps_detect(),
				      .rows_max = 1,
				      .tokens_max = 64,
				      .block_size = 16,
				      .chunk = 64,
				      .seed = 7};
}

static void run_greedy(struct runs *r, const struct driver_config *config)
{
	memset(r->requests, 0, sizeof(r->requests));
	for (u32 i = 0; i < PROMPTS; i++) {
		r->requests[i].prompt = r->prompts[i];
		r->requests[i].prompt_count = PROMPT_MAX - 13 * i;
		r->requests[i].output_count = OUTPUTS;
		for (u32 k = 0; k < PROMPT_MAX; k++)
			r->prompts[i][k] = (i * 29 + k * k * 5 + k) % RANDOM_RUNS_VOCAB;
	}
	driver_open(&r->driver, config);
	driver_run(&r->driver, r->requests, PROMPTS);
	driver_close(&r->driver);
}

static void check_ways(struct runs *r, enum option_kv_dtype type)
{
	static u32 alone[PROMPTS][MIRROR_TOKENS];
	const struct {
		const char *what;
		u32 rows, chunk, preempt, block, threads;
	} ways[] = {{"together", PROMPTS, 64, 0, 16, 2},
		    {"in chunks of 7", 3, 7, 0, 16, 1},
		    {"in chunks of 5 with preemption and blocks of 5", 4, 5, 9, 5, 2}};

	struct driver_config config = config_for(r, type);
	run_greedy(r, &config);
	for (u32 i = 0; i < PROMPTS; i++)
		memcpy(alone[i], r->requests[i].output, sizeof(alone[i]));
	for (u32 w = 0; w < COUNT_OF(ways); w++) {
		config.rows_max = ways[w].rows;
		config.chunk = ways[w].chunk;
		config.preempt_every = ways[w].preempt;
		config.block_size = ways[w].block;
		config.threads = ways[w].threads;
		run_greedy(r, &config);
		for (u32 i = 0; i < PROMPTS; i++)
			cr_expect_eq(memcmp(alone[i], r->requests[i].output, OUTPUTS * sizeof(u32)), 0,
				     "cache %u: prompt %u gets other tokens %s than alone", type, i, ways[w].what);
	}
}

void random_runs_check_ways(const char *text)
{
	static struct runs r;

	random_model_write(&r.model, text, 3);
	for (u32 t = 0; t < RANDOM_RUNS_TYPES; t++)
		check_ways(&r, random_runs_types[t]);
	random_model_remove(&r.model);
}

void random_runs_check_wide(const char *text)
{
	static struct runs r;

	random_model_write(&r.model, text, 3);
	check_ways(&r, OPTION_KV_DTYPE_FLOAT32);
	random_model_remove(&r.model);
}

/* Of one prompt [PROMPT_MAX][RANDOM_RUNS_VOCAB]. */
static void logits_of(struct runs *r, const struct driver_config *config, float *logits)
{
	memset(r->requests, 0, sizeof(r->requests));
	r->requests[0].prompt = r->prompts[0];
	r->requests[0].prompt_count = PROMPT_MAX;
	r->requests[0].output_count = 1;
	r->requests[0].prompt_logits = logits;
	for (u32 k = 0; k < PROMPT_MAX; k++)
		r->prompts[0][k] = (k * k * 5 + k) % RANDOM_RUNS_VOCAB;
	driver_open(&r->driver, config);
	driver_run(&r->driver, r->requests, 1);
	driver_close(&r->driver);
}

static double mean_difference(const float *a, const float *b, u32 count)
{
	double sum = 0;

	for (u32 i = 0; i < count; i++)
		sum += fabs((double)a[i] - (double)b[i]);
	return sum / count;
}

void random_runs_check_caches(const char *text, const double allowed[RANDOM_RUNS_TYPES])
{
	static float whole[PROMPT_MAX * RANDOM_RUNS_VOCAB], fewer[PROMPT_MAX * RANDOM_RUNS_VOCAB];
	static struct runs r;

	random_model_write(&r.model, text, 4);
	for (u32 t = 0; t < RANDOM_RUNS_TYPES; t++) {
		const struct driver_config config = config_for(&r, random_runs_types[t]);
		logits_of(&r, &config, t == 0 ? whole : fewer);
		double off = t == 0 ? 0 : mean_difference(whole, fewer, COUNT_OF(whole));
		cr_expect(off <= allowed[t] && (t == 0 || off > 0), "cache %u: logits are off by %g in the mean", t, off);
	}
	random_model_remove(&r.model);
}

struct runner_config random_runs_config(const struct random_model *model, enum option_dtype dtype, enum option_quantization quantization)
{
	return (struct runner_config){.model_dir = model->dir,
				      .ranks = 1,
				      .threads = 1,
				      .caps = kern_caps_detect(),
				      .dtype = dtype,
				      .quantization = quantization,
				      .kv_dtype = OPTION_KV_DTYPE_BFLOAT16,
				      .limits = {.rows_max = 4, .tokens_max = 16, .block_size = 16},
				      .kv_cache_memory = 1 << 20,
				      .memory_utilization = 0.5};
}

void random_runs_check_no_adapters(const char *text, const char *words)
{
	static char name[] = "some";
	char dir[] = "/tmp/tercet-test-XXXXXX", path[64];
	struct lora_module item = {name, dir};
	struct lora_modules loras = {&item, 1, 16};
	struct err_msg em = {""};
	struct random_model model;
	struct runner *r;

	random_model_write(&model, text, 6);
	cr_assert(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/adapter_config.json", dir);
	FILE *f = fopen(path, "wb");
	cr_assert(f && fputs("{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": 2, \"target_modules\": [\"o_proj\"]}", f) > 0);
	fclose(f);
	const struct runner_config c = {.model_dir = model.dir, .loras = &loras, .ranks = 1, .threads = 1,
					.limits = {.rows_max = 4, .tokens_max = 16, .block_size = 4}, .memory_utilization = 0.5};
	cr_assert_eq(runner_create(&r, &c, &em), ERR_UNSUPPORTED, "%s", em.text);
	cr_assert(strstr(em.text, words), "%s", em.text);
	remove(path);
	remove(dir);
	random_model_remove(&model);
}
