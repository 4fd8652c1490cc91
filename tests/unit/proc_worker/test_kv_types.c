/* KV caches of every type: a request's tokens do not depend on how it was computed, and whole numbers and 8 bits lose little. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/json.h"
#include "tests/unit/proc_worker/driver.h"

enum { PROMPTS = 12, TOKENS_MAX = 512, TEXT_TOKENS = 480 };

static struct driver driver;
static struct driver_request requests[PROMPTS];
static u32 tokens[PROMPTS][TOKENS_MAX]; /* prompt, then the greedy outputs of float32 */
static u32 prompt_count[PROMPTS], output_count[PROMPTS];

static u32 read_ids(json_val list, u32 *out, u32 n)
{
	u64 id;

	for (struct json_iter it = json_iterate(list); json_next(&it);) {
		cr_assert(n < TOKENS_MAX && json_uint(it.value, &id));
		out[n++] = (u32)id;
	}
	return n;
}

static u32 read_prompts(void)
{
	struct json_doc *doc;
	struct err_msg em;
	u32 count = 0;

	if (access(SOURCE_ROOT "/demo/reference.json", R_OK) < 0)
		cr_skip_test("no bundled model");
	cr_assert_eq(json_parse_file(&doc, SOURCE_ROOT "/demo/reference.json", &em), ERR_OK, "%s", em.text);
	json_val prompts = json_get(json_root(doc), "prompts");
	for (struct json_iter it = json_iterate(prompts); count < PROMPTS && json_next(&it); count++) {
		prompt_count[count] = read_ids(json_get(it.value, "ids"), tokens[count], 0);
		output_count[count] =
			read_ids(json_get(it.value, "output_ids"), tokens[count], prompt_count[count]) -
			prompt_count[count];
	}
	json_free(&doc);
#ifdef __SANITIZE_ADDRESS__
	count = count < 4 ? count : 4;
#endif
	cr_assert_gt(count, 1);
	return count;
}

static struct driver_config config_for(enum option_kv_dtype type)
{
	return (struct driver_config){.model_dir = SOURCE_ROOT "/demo",
				      .dtype = OPTION_DTYPE_FLOAT32,
				      .kv_dtype = type,
				      .ranks = 1,
				      .threads = 1,
				      .caps = kern_caps_detect(),
				      .rows_max = 1,
				      .tokens_max = 528,
				      .block_size = 16,
				      .chunk = 512,
				      .seed = 23};
}

static void run_greedy(const struct driver_config *config, u32 count)
{
	memset(requests, 0, sizeof(requests));
	for (u32 i = 0; i < count; i++) {
		requests[i].prompt = tokens[i];
		requests[i].prompt_count = prompt_count[i];
		requests[i].output_count = output_count[i];
	}
	driver_open(&driver, config);
	driver_run(&driver, requests, count);
	driver_close(&driver);
}

static void check_invariance(enum option_kv_dtype type, u32 caps)
{
	static u32 alone[PROMPTS][MIRROR_TOKENS];
	u32 count = read_prompts();
	struct driver_config config = config_for(type);
	const struct {
		const char *what;
		u32 rows, chunk, preempt, block;
	} ways[] = {{"together", PROMPTS, 512, 0, 16},
		    {"in chunks of 16", 4, 16, 0, 16},
		    {"in chunks of 7 with preemption and blocks of 5", 6, 7, 15, 5}};

	config.caps = caps;
	run_greedy(&config, count);
	for (u32 i = 0; i < count; i++)
		memcpy(alone[i], requests[i].output, sizeof(alone[i]));
	for (u32 w = 0; w < COUNT_OF(ways); w++) {
		config.rows_max = ways[w].rows;
		config.chunk = ways[w].chunk;
		config.preempt_every = ways[w].preempt;
		config.block_size = ways[w].block;
		run_greedy(&config, count);
		for (u32 i = 0; i < count; i++)
			cr_assert_eq(memcmp(alone[i], requests[i].output, output_count[i] * sizeof(u32)), 0,
				     "prompt %u gets other tokens %s than alone", i, ways[w].what);
	}
}

Test(kv_types, int8_tokens_do_not_depend_on_company_chunks_or_preemption, .timeout = 120)
{
	check_invariance(OPTION_KV_DTYPE_INT8, kern_caps_detect());
}

Test(kv_types, fp8_tokens_do_not_depend_on_company_chunks_or_preemption, .timeout = 120)
{
	check_invariance(OPTION_KV_DTYPE_FP8, kern_caps_detect());
}

Test(kv_types, bfloat16_tokens_do_not_depend_on_company_chunks_or_preemption, .timeout = 120)
{
	check_invariance(OPTION_KV_DTYPE_BFLOAT16, kern_caps_detect());
}

Test(kv_types, int8_tokens_of_avx2_do_not_depend_on_company_chunks_or_preemption, .timeout = 120)
{
	check_invariance(OPTION_KV_DTYPE_INT8, kern_caps_detect() & KERN_CAP_AVX2);
}

Test(kv_types, int16_tokens_do_not_depend_on_company_chunks_or_preemption, .timeout = 120)
{
	check_invariance(OPTION_KV_DTYPE_INT16, kern_caps_detect());
}

Test(kv_types, int16_tokens_of_avx2_do_not_depend_on_company_chunks_or_preemption, .timeout = 120)
{
	check_invariance(OPTION_KV_DTYPE_INT16, kern_caps_detect() & KERN_CAP_AVX2);
}

static u32 best_of(const float *logits, u32 vocab)
{
	u32 best = 0;

	for (u32 i = 1; i < vocab; i++)
		if (logits[i] > logits[best])
			best = i;
	return best;
}

/* Text i: prompt i, its outputs, and those of the next ones, as many as fit: hundreds of positions would be too few to tell 99 of 100
 * from 98. */
static u32 join_texts(u32 texts[PROMPTS][TEXT_TOKENS], u32 count[PROMPTS])
{
	const u32 prompts = read_prompts();

	for (u32 i = 0; i < prompts; i++) {
		count[i] = 0;
		for (u32 p = 0; p < prompts; p++) {
			const u32 from = (i + p) % prompts, all = prompt_count[from] + output_count[from];
			for (u32 j = 0; j < all && count[i] < TEXT_TOKENS; j++)
				texts[i][count[i]++] = tokens[from][j];
		}
	}
	return prompts;
}

/* The most probable next token behind every token of a text but the last. */
static void find_best(enum option_kv_dtype type, u32 ranks, u32 texts[PROMPTS][TEXT_TOKENS], const u32 *counts, u32 count,
		      u32 best[PROMPTS][TEXT_TOKENS])
{
	struct driver_config config = config_for(type);

	config.ranks = ranks;
	config.rows_max = 8;
	memset(requests, 0, sizeof(requests));
	driver_open(&driver, &config);
	u32 vocab = driver.runners[0]->model.vocab_size;
	for (u32 i = 0; i < count; i++) {
		requests[i].prompt = texts[i];
		requests[i].prompt_count = counts[i];
		requests[i].output_count = 1;
		requests[i].prompt_logits = malloc((size_t)counts[i] * vocab * sizeof(float));
	}
	driver_run(&driver, requests, count);
	driver_close(&driver);
	for (u32 i = 0; i < count; i++) {
		for (u32 j = 0; j + 1 < counts[i]; j++)
			best[i][j] = best_of(requests[i].prompt_logits + (size_t)j * vocab, vocab);
		free(requests[i].prompt_logits);
	}
}

struct agreement {
	u32 all, same;
};

/* Of all positions, how many have the token of a float32 cache, which has the reference's behind prompts. */
static void add_agreement(enum option_kv_dtype type, u32 ranks, struct agreement *sum)
{
	static u32 texts[PROMPTS][TEXT_TOKENS], exact[PROMPTS][TEXT_TOKENS], held[PROMPTS][TEXT_TOKENS], counts[PROMPTS];
	u32 count = join_texts(texts, counts), all = 0, same = 0;

	find_best(OPTION_KV_DTYPE_FLOAT32, ranks, texts, counts, count, exact);
	find_best(type, ranks, texts, counts, count, held);
	for (u32 i = 0; i < count; i++)
		for (u32 j = 0; j + 1 < counts[i]; j++, all++) {
			same += held[i][j] == exact[i][j];
			if (j + 1 >= prompt_count[i] && j + 1 < prompt_count[i] + output_count[i])
				cr_assert_eq(exact[i][j], tokens[i][j + 1], "request %u, position %u", i, j);
		}
	cr_log_info("%u of %u tokens agree", same, all);
	sum->all += all;
	sum->same += same;
}

/* With one rank and with two, whose sums end in other digits: each flips some tokens that are as probable as others. */
static double agreement(enum option_kv_dtype type, enum option_kv_dtype type_of_two)
{
	struct agreement sum = {0};

	add_agreement(type, 1, &sum);
	add_agreement(type_of_two, 2, &sum);
	return (double)sum.same / sum.all;
}

Test(kv_types, int8_agrees_with_float32_in_99_of_100_tokens, .timeout = 120)
{
	cr_assert_geq(agreement(OPTION_KV_DTYPE_INT8, OPTION_KV_DTYPE_INT8), 0.99);
}

Test(kv_types, fp8_agrees_with_float32_in_95_of_100_tokens, .timeout = 120)
{
	cr_assert_geq(agreement(OPTION_KV_DTYPE_FP8, OPTION_KV_DTYPE_FP8_E4M3), 0.95);
}

Test(kv_types, int16_agrees_with_float32_in_999_of_1000_tokens, .timeout = 120)
{
	cr_assert_geq(agreement(OPTION_KV_DTYPE_INT16, OPTION_KV_DTYPE_INT16), 0.999);
}

Test(kv_types, auto_has_as_many_bits_as_the_weights_in_the_type_whose_products_are_fast)
{
	const u32 wide = KERN_CAP_AVX2 | KERN_CAP_AVX512, vnni = wide | KERN_CAP_AVX512_VNNI;

	cr_assert_eq(kern_dtype_kv(vnni, 64), KERN_I16);
	cr_assert_eq(kern_dtype_kv(vnni | KERN_CAP_AVX512_BF16, 64), KERN_BF16);
	cr_assert_eq(kern_dtype_kv(vnni | KERN_CAP_AMX, 64), KERN_BF16);
	cr_assert_eq(kern_dtype_kv(vnni | KERN_CAP_AMX, 80), KERN_I16);
	cr_assert_eq(kern_dtype_kv(KERN_CAP_AVX2, 64), KERN_I16);
	cr_assert_eq(kern_dtype_kv(KERN_CAP_PORTABLE, 64), KERN_BF16);
	cr_assert_eq(kern_dtype_kv(0, 64), KERN_BF16);
}

Test(kv_types, auto_takes_bfloat16_where_memory_is_for_one_sequence_of_it, .timeout = 120)
{
	enum { LENGTH = 256 };
	struct runner_config config = {.model_dir = SOURCE_ROOT "/demo",
				       .ranks = 1,
				       .threads = 1,
				       .caps = kern_caps_detect() & KERN_CAP_AVX2,
				       .dtype = OPTION_DTYPE_BFLOAT16,
				       .limits = {.rows_max = 8, .tokens_max = 64, .block_size = 16, .max_model_len = LENGTH},
				       .memory_utilization = 0.5};
	const enum option_kv_dtype asked[] = {OPTION_KV_DTYPE_BFLOAT16, OPTION_KV_DTYPE_INT16};
	u64 bytes[2];

	read_prompts();
	if (!(config.caps & KERN_CAP_AVX2))
		cr_skip_test("no AVX2");
	for (u32 i = 0; i < 4; i++) {
		struct err_msg em;
		struct runner *r;
		config.kv_dtype = i < 2 ? asked[i] : OPTION_KV_DTYPE_AUTO;
		config.kv_cache_memory = i < 2 ? 64 << 20 : LENGTH / 16 * bytes[i - 2];
		cr_assert_eq(runner_create(&r, &config, &em), ERR_OK, "%s", em.text);
		if (i < 2)
			bytes[i] = kv_block_bytes(&r->kv_shape);
		cr_expect_eq(r->kv_shape.dtype, i % 2 ? KERN_I16 : KERN_BF16, "%u", i);
		runner_destroy(&r);
	}
}

Test(kv_types, fewer_bytes_are_more_blocks, .timeout = 120)
{
	enum { TYPES = 6 };
	u64 bytes[TYPES];
	const enum option_kv_dtype types[TYPES] = {OPTION_KV_DTYPE_AUTO,     OPTION_KV_DTYPE_FLOAT32, OPTION_KV_DTYPE_BFLOAT16,
						   OPTION_KV_DTYPE_INT8, OPTION_KV_DTYPE_FP8,     OPTION_KV_DTYPE_INT16};
	u32 blocks[TYPES];

	read_prompts();
	for (u32 i = 0; i < TYPES; i++) {
		struct err_msg em;
		struct runner *r;
		const struct runner_config config = {
			.model_dir = SOURCE_ROOT "/demo",
			.ranks = 1,
			.threads = 1,
			.caps = kern_caps_detect(),
			.dtype = OPTION_DTYPE_FLOAT32,
			.kv_dtype = types[i],
			.limits = {.rows_max = 8, .tokens_max = 64, .block_size = 16},
			.kv_cache_memory = 8 << 20,
			.memory_utilization = 0.5,
		};
		cr_assert_eq(runner_create(&r, &config, &em), ERR_OK, "%s", em.text);
		bytes[i] = kv_block_bytes(&r->kv_shape);
		blocks[i] = r->block_count;
		cr_assert_eq(blocks[i], (8 << 20) / bytes[i]);
		runner_destroy(&r);
	}
	cr_assert_eq(bytes[0], bytes[1]); /* auto: as the weights */
	cr_assert_eq(bytes[1], 2 * bytes[2]);
	/* heads of 32: 32 bytes and a scale of 4 instead of 128 bytes */
	cr_assert_eq(bytes[3] * 128, bytes[1] * 36);
	cr_assert_eq(bytes[4], bytes[3]);
	cr_assert_eq(bytes[5] * 128, bytes[1] * 68);
	cr_assert_gt(blocks[3], 3 * blocks[1]);
}
