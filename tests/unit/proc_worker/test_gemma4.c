/* Layers whose heads differ in size, that read the keys and values of others, that add something of a token by themselves: their answers do not
 * depend on how they are computed, caches of fewer bits lose little, and blocks of the cache have what every layer needs and no more. What they
 * compute is compared with transformers in test_families.c. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/proc_worker/driver.h"
#include "tests/unit/proc_worker/random_model.h"

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

enum { PROMPTS = 5, PROMPT_MAX = 60, OUTPUTS = 20, VOCAB = 96 };

static struct random_model model;
static struct driver driver;
static struct driver_request requests[PROMPTS];
static u32 prompts[PROMPTS][PROMPT_MAX];
static const char *const texts[] = {MODEL_OF(DENSE), MODEL_OF(SMALL), MODEL_OF(MIXTURE)};
static const enum option_kv_dtype types[] = {OPTION_KV_DTYPE_FLOAT32, OPTION_KV_DTYPE_BFLOAT16, OPTION_KV_DTYPE_INT16, OPTION_KV_DTYPE_INT8,
					     OPTION_KV_DTYPE_FP8};

static struct driver_config config_for(enum option_kv_dtype type)
{
	return (struct driver_config){.model_dir = model.dir,
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

static void run_greedy(const struct driver_config *config)
{
	memset(requests, 0, sizeof(requests));
	for (u32 i = 0; i < PROMPTS; i++) {
		requests[i].prompt = prompts[i];
		requests[i].prompt_count = PROMPT_MAX - 13 * i;
		requests[i].output_count = OUTPUTS;
		for (u32 k = 0; k < PROMPT_MAX; k++)
			prompts[i][k] = (i * 29 + k * k * 5 + k) % VOCAB;
	}
	driver_open(&driver, config);
	driver_run(&driver, requests, PROMPTS);
	driver_close(&driver);
}

static void check_ways(const char *text, enum option_kv_dtype type)
{
	static u32 alone[PROMPTS][MIRROR_TOKENS];
	const struct {
		const char *what;
		u32 rows, chunk, preempt, block, threads;
	} ways[] = {{"together", PROMPTS, 64, 0, 16, 2},
		    {"in chunks of 7", 3, 7, 0, 16, 1},
		    {"in chunks of 5 with preemption and blocks of 5", 4, 5, 9, 5, 2}};

	random_model_write(&model, text, 3);
	struct driver_config config = config_for(type);
	run_greedy(&config);
	for (u32 i = 0; i < PROMPTS; i++)
		memcpy(alone[i], requests[i].output, sizeof(alone[i]));
	for (u32 w = 0; w < COUNT_OF(ways); w++) {
		config.rows_max = ways[w].rows;
		config.chunk = ways[w].chunk;
		config.preempt_every = ways[w].preempt;
		config.block_size = ways[w].block;
		config.threads = ways[w].threads;
		run_greedy(&config);
		for (u32 i = 0; i < PROMPTS; i++)
			cr_expect_eq(memcmp(alone[i], requests[i].output, OUTPUTS * sizeof(u32)), 0,
				     "cache %u: prompt %u gets other tokens %s than alone", type, i, ways[w].what);
	}
	random_model_remove(&model);
}

Test(gemma4, tokens_do_not_depend_on_company_chunks_or_preemption, .timeout = 120)
{
	for (u32 m = 0; m < COUNT_OF(texts); m++)
		for (u32 t = 0; t < COUNT_OF(types); t++)
			check_ways(texts[m], types[t]);
}

/* Of one prompt [PROMPT_MAX][VOCAB]. */
static void logits_of(const struct driver_config *config, float *logits)
{
	memset(requests, 0, sizeof(requests));
	requests[0].prompt = prompts[0];
	requests[0].prompt_count = PROMPT_MAX;
	requests[0].output_count = 1;
	requests[0].prompt_logits = logits;
	for (u32 k = 0; k < PROMPT_MAX; k++)
		prompts[0][k] = (k * k * 5 + k) % VOCAB;
	driver_open(&driver, config);
	driver_run(&driver, requests, 1);
	driver_close(&driver);
}

static double mean_difference(const float *a, const float *b)
{
	double sum = 0;

	for (u32 i = 0; i < PROMPT_MAX * VOCAB; i++)
		sum += fabs((double)a[i] - (double)b[i]);
	return sum / (PROMPT_MAX * VOCAB);
}

Test(gemma4, caches_of_fewer_bits_lose_little, .timeout = 60)
{
	static float whole[PROMPT_MAX * VOCAB], fewer[PROMPT_MAX * VOCAB];
	static const double allowed[] = {0, 0.1, 0.01, 0.2, 0.6}; /* of logits that are 3 apart */

	for (u32 m = 0; m < COUNT_OF(texts); m++) {
		random_model_write(&model, texts[m], 4);
		for (u32 t = 0; t < COUNT_OF(types); t++) {
			const struct driver_config config = config_for(types[t]);
			logits_of(&config, t == 0 ? whole : fewer);
			double off = t == 0 ? 0 : mean_difference(whole, fewer);
			cr_expect(off <= allowed[t] && (t == 0 || off > 0), "model %u, cache %u: logits are off by %g in the mean", m, t, off);
		}
		random_model_remove(&model);
	}
}

static struct runner_config runner_config_for(enum option_dtype dtype, enum option_quantization quantization)
{
	return (struct runner_config){.model_dir = model.dir,
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

Test(gemma4, blocks_have_what_every_layer_needs_and_no_more, .timeout = 60)
{
	/* Of a block in bfloat16 K and V: 4 layers of 2 heads of 12, 3 of 1 or 2 heads of 24; of those that share none. */
	static const u64 wanted[] = {4 * 2 * 12 + 3 * 1 * 24, 3 * 2 * 12 + 1 * 2 * 24, 4 * 2 * 12 + 3 * 1 * 24};

	for (u32 m = 0; m < COUNT_OF(texts); m++) {
		struct err_msg em;
		struct runner *r;
		random_model_write(&model, texts[m], 5);
		const struct runner_config c = runner_config_for(OPTION_DTYPE_BFLOAT16, OPTION_QUANTIZATION_AUTO);
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
			const struct runner_config c = runner_config_for(OPTION_DTYPE_BFLOAT16, kinds[k]);
			cr_assert_eq(runner_create(&r, &c, &em), ERR_OK, "%s", em.text);
			runner_destroy(&r);
		}
		random_model_remove(&model);
	}
}

Test(gemma4, adapters_are_refused_by_name)
{
	static char name[] = "some";
	char dir[] = "/tmp/tercet-test-XXXXXX", path[64];
	struct lora_module item = {name, dir};
	struct lora_modules loras = {&item, 1, 16};
	struct err_msg em = {""};
	struct runner *r;

	random_model_write(&model, texts[0], 6);
	cr_assert(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/adapter_config.json", dir);
	FILE *f = fopen(path, "wb");
	cr_assert(f && fputs("{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": 2, \"target_modules\": [\"o_proj\"]}", f) > 0);
	fclose(f);
	struct runner_config c = runner_config_for(OPTION_DTYPE_FLOAT32, OPTION_QUANTIZATION_AUTO);
	c.loras = &loras;
	cr_assert_eq(runner_create(&r, &c, &em), ERR_UNSUPPORTED, "%s", em.text);
	cr_assert(strstr(em.text, "adapters of a Gemma4ForCausalLM are not supported"), "%s", em.text);
	remove(path);
	remove(dir);
	random_model_remove(&model);
}
