/* Heads that share a latent: their answers do not depend on how they are computed, caches of fewer bits lose little, each head has its
 * own rows of a matrix that all share, and adapters are refused. What they compute is compared with transformers in test_families.c. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proc_worker/model/weights_priv.h"
#include "tests/unit/proc_worker/driver.h"
#include "tests/unit/proc_worker/random_model.h"

#define MODEL_OF(more)                                                                                            \
	"{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"vocab_size\": 96, \"hidden_size\": 48, \"intermediate_size\": 80, " \
	"\"num_hidden_layers\": 3, \"num_attention_heads\": 6, \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-6, "      \
	"\"kv_lora_rank\": 40, \"q_lora_rank\": 24, \"qk_nope_head_dim\": 12, \"qk_rope_head_dim\": 8, \"v_head_dim\": 16, "    \
	"\"n_routed_experts\": 8, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 20, \"n_group\": 4, \"topk_group\": 2, " \
	"\"first_k_dense_replace\": 1" more "}"
#define FP8                                                                                                     \
	", \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": \"dynamic\", " \
	"\"weight_block_size\": [16, 8]}"

enum { PROMPTS = 5, PROMPT_MAX = 60, OUTPUTS = 20, VOCAB = 96 };

static struct random_model model;
static struct driver driver;
static struct driver_request requests[PROMPTS];
static u32 prompts[PROMPTS][PROMPT_MAX];

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

static const enum option_kv_dtype types[] = {OPTION_KV_DTYPE_AUTO, OPTION_KV_DTYPE_BFLOAT16, OPTION_KV_DTYPE_INT16, OPTION_KV_DTYPE_INT8,
					     OPTION_KV_DTYPE_FP8};

Test(latent, tokens_do_not_depend_on_company_chunks_or_preemption, .timeout = 120)
{
	static u32 alone[PROMPTS][MIRROR_TOKENS];
	const struct {
		const char *what;
		u32 rows, chunk, preempt, block, threads;
	} ways[] = {{"together", PROMPTS, 64, 0, 16, 2},
		    {"in chunks of 7", 3, 7, 0, 16, 1},
		    {"in chunks of 5 with preemption and blocks of 5", 4, 5, 9, 5, 2}};

	random_model_write(&model, MODEL_OF(""), 3);
	for (u32 t = 0; t < COUNT_OF(types); t++) {
		struct driver_config config = config_for(types[t]);
		run_greedy(&config);
		for (u32 i = 0; i < PROMPTS; i++)
			memcpy(alone[i], requests[i].output, sizeof(alone[i]));
		for (u32 w = 0; w < COUNT_OF(ways); w++) {
			config = config_for(types[t]);
			config.rows_max = ways[w].rows;
			config.chunk = ways[w].chunk;
			config.preempt_every = ways[w].preempt;
			config.block_size = ways[w].block;
			config.threads = ways[w].threads;
			run_greedy(&config);
			for (u32 i = 0; i < PROMPTS; i++)
				cr_expect_eq(memcmp(alone[i], requests[i].output, OUTPUTS * sizeof(u32)), 0,
					     "cache %u: prompt %u gets other tokens %s than alone", t, i, ways[w].what);
		}
	}
	random_model_remove(&model);
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

Test(latent, caches_of_fewer_bits_lose_little, .timeout = 60)
{
	static float whole[PROMPT_MAX * VOCAB], fewer[PROMPT_MAX * VOCAB];
	static const double allowed[] = {0, 0.1, 0.01, 0.1, 0.4}; /* of logits that are 3 apart, with experts that a little may change */
	struct driver_config config;

	random_model_write(&model, MODEL_OF(""), 4);
	for (u32 t = 0; t < COUNT_OF(types); t++) {
		config = config_for(types[t]);
		logits_of(&config, t == 0 ? whole : fewer);
		double off = t == 0 ? 0 : mean_difference(whole, fewer);
		cr_expect(off <= allowed[t] && (t == 0 || off > 0), "cache %u: logits are off by %g in the mean", t, off);
	}
	random_model_remove(&model);
}

/* Value (row, column) of what weights_read_head made. */
static float value_of(const struct kern_weight *w, u32 row, u32 column)
{
	return ((const float *)w->data)[(size_t)row * w->k + column];
}

static void check_heads(const char *text, bool quantized)
{
	static struct model_config c;
	struct model_shard shard;
	struct safetensors *st;
	struct model_weights w;
	struct quant_tensor q;
	struct err_msg em;
	float row[40];

	random_model_write(&model, text, 5);
	cr_assert_eq(model_config_parse(&c, text, strlen(text), &em), ERR_OK, "%s", em.text);
	cr_assert_eq(model_shard_init(&shard, &c, 1, 2, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(safetensors_open(&st, model.dir, &em), ERR_OK, "%s", em.text);
	struct weights_plan plan = {.config = &c, .shard = &shard, .checkpoint = st, .dtype = KERN_F32, .matrix_dtype = KERN_I8,
				    .memory_available = 1 << 28};
	cr_assert_eq(model_weights_load(&w, &plan, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(quant_tensor_find(&q, st, &c.quant, "model.layers.2.self_attn.kv_b_proj.weight", 6 * 28, 40, &em), ERR_OK);
	cr_assert_eq(q.format != QUANT_NONE, quantized);
	const struct layer_weights *l = &w.layers[2];
	for (u32 h = 0; h < 3; h++) {
		cr_assert(l->head_k[h].n == 40 && l->head_k[h].k == 12 && l->head_v[h].n == 16 && l->head_v[h].k == 40);
		for (u32 i = 0; i < 28; i++) {
			u32 at = (3 + h) * 28 + i; /* the second rank's heads */
			if (quantized)
				quant_tensor_values(&q, at, 0, 40, row);
			else
				kern_convert(row, KERN_F32, (const u16 *)q.values->data + at * 40, KERN_BF16, 40);
			for (u32 k = 0; k < 40; k++)
				cr_assert_eq(row[k], i < 12 ? value_of(&l->head_k[h], k, i) : value_of(&l->head_v[h], i - 12, k));
		}
	}
	cr_assert_eq(l->q_b.dtype, KERN_I8); /* which heads are not */
	model_weights_fini(&w);
	safetensors_close(&st);
	random_model_remove(&model);
}

Test(latent, heads_have_their_own_rows_of_a_matrix_that_stays_unquantized)
{
	check_heads(MODEL_OF(""), false);
	check_heads(MODEL_OF(FP8), true);
}

Test(latent, adapters_are_refused_by_name)
{
	static char name[] = "some";
	char dir[] = "/tmp/tercet-test-XXXXXX", path[64];
	struct lora_module item = {name, dir};
	struct lora_modules loras = {&item, 1, 16};
	struct err_msg em = {""};
	struct runner *r;

	random_model_write(&model, MODEL_OF(""), 6);
	cr_assert(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/adapter_config.json", dir);
	FILE *f = fopen(path, "wb");
	cr_assert(f && fputs("{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": 2, \"target_modules\": [\"o_proj\"]}", f) > 0);
	fclose(f);
	struct runner_config c = {.model_dir = model.dir, .loras = &loras, .ranks = 1, .threads = 1,
				  .limits = {.rows_max = 4, .tokens_max = 16, .block_size = 4}, .memory_utilization = 0.5};
	cr_assert_eq(runner_create(&r, &c, &em), ERR_UNSUPPORTED, "%s", em.text);
	cr_assert(strstr(em.text, "adapters of a DeepseekV3ForCausalLM are not supported"), "%s", em.text);
	remove(path);
	remove(dir);
	random_model_remove(&model);
}
