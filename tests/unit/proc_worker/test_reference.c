/* Reference models: logits within 1e-3 and greedy tokens exactly, whatever the chunks, batches and ranks. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "tests/unit/proc_worker/driver.h"

enum { PROMPTS = 4, OUTPUTS = 32, VOCAB = 512, LONG_PROMPT = 200, PROMPT_MAX = 64 };

struct reference {
	u32 prompt[PROMPTS][PROMPT_MAX];
	u32 count[PROMPTS];
	u32 greedy[PROMPTS][OUTPUTS];
	float *logits[PROMPTS];
};

static u32 read_ids(json_val v, u32 *out, u32 max)
{
	u32 n = 0;
	u64 id;

	for (struct json_iter it = json_iterate(v); json_next(&it);) {
		cr_assert(n < max && json_uint(it.value, &id));
		out[n++] = (u32)id;
	}
	return n;
}

/* float32, C order, version 1 header. */
static float *read_npy(const char *dir, const char *file, u32 count)
{
	char path[700];
	unsigned char head[10];
	float *data = malloc(count * sizeof(float));

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	FILE *f = fopen(path, "rb");
	cr_assert(f && fread(head, 1, sizeof(head), f) == sizeof(head));
	cr_assert_eq(fseek(f, head[8] | head[9] << 8, SEEK_CUR), 0);
	cr_assert_eq(fread(data, sizeof(float), count, f), count);
	fclose(f);
	return data;
}

static void read_reference(struct reference *ref, const char *dir)
{
	char path[700];
	struct json_doc *doc;
	struct err_msg em;

	snprintf(path, sizeof(path), "%s/reference.json", dir);
	cr_assert_eq(json_parse_file(&doc, path, &em), ERR_OK, "%s", em.text);
	json_val prompts = json_get(json_root(doc), "prompts");
	cr_assert_eq(json_count(prompts), PROMPTS);
	for (u32 i = 0; i < PROMPTS; i++) {
		json_val p = json_at(prompts, i);
		ref->count[i] = read_ids(json_get(p, "ids"), ref->prompt[i], PROMPT_MAX);
		cr_assert_eq(read_ids(json_get(p, "greedy"), ref->greedy[i], OUTPUTS), OUTPUTS);
		ref->logits[i] =
			read_npy(dir, json_cstr(json_get(p, "logits_file"), ""), ref->count[i] * VOCAB);
	}
	json_free(&doc);
}

static void compare(const struct reference *ref, struct driver_request *q, const char *label)
{
	for (u32 i = 0; i < PROMPTS; i++) {
		double worst = 0;
		for (u32 j = 0; j < ref->count[i] * VOCAB; j++) {
			double diff = fabs((double)q[i].prompt_logits[j] - ref->logits[i][j]);
			worst = diff > worst || isnan(diff) ? diff : worst;
		}
		cr_assert(worst <= 1e-3, "%s, prompt %u: logits differ by %g", label, i, worst);
		for (u32 j = 0; j < OUTPUTS; j++)
			cr_assert_eq(q[i].output[j], ref->greedy[i][j], "%s, prompt %u, token %u: %u, not %u",
				     label, i, j, q[i].output[j], ref->greedy[i][j]);
		free(q[i].prompt_logits);
	}
}

static void run(const struct reference *ref, const struct driver_config *config, const char *label)
{
	static struct driver d;
	static struct driver_request q[PROMPTS];

	memset(q, 0, sizeof(q));
	for (u32 i = 0; i < PROMPTS; i++) {
		q[i].prompt = ref->prompt[i];
		q[i].prompt_count = ref->count[i];
		q[i].output_count = OUTPUTS;
		q[i].prompt_logits = calloc(ref->count[i] * VOCAB, sizeof(float));
	}
	driver_open(&d, config);
	driver_run(&d, q, PROMPTS);
	driver_close(&d);
	compare(ref, q, label);
}

static void check_model(const char *name)
{
	static const u32 chunks[] = {1, 16, 512};
	const char *dir = reference_dir(name);
	struct reference ref;
	char label[128];

	if (!dir)
		cr_skip_test("no reference models here");
	read_reference(&ref, dir);
	for (u32 ranks = 1; ranks <= 2; ranks++)
		for (size_t i = 0; i < COUNT_OF(chunks); i++) {
			struct driver_config config = {.model_dir = dir,
						       .dtype = OPTION_DTYPE_FLOAT32,
						       .ranks = ranks,
						       .threads = 1,
						       .caps = kern_caps_detect(),
						       .rows_max = chunks[i] == 16 ? 8 : 3,
						       .tokens_max = chunks[i] == 512 ? 512 : 40,
						       .block_size = chunks[i] == 1 ? 4 : 16,
						       .chunk = chunks[i],
						       .preempt_every = chunks[i] == 16 ? 20 : 0,
						       .seed = 7 + i};
			snprintf(label, sizeof(label), "%s, %u ranks, chunks of %u", name, ranks, chunks[i]);
			run(&ref, &config, label);
		}
	for (u32 i = 0; i < PROMPTS; i++)
		free(ref.logits[i]);
}

Test(reference, llama_with_defaults)
{
	check_model("refmodels/llama-mha");
}

Test(reference, llama3_with_gqa_rope_scaling_and_tied_embeddings)
{
	check_model("refmodels/llama3-gqa-ropescale");
}

Test(reference, llama_with_one_kv_head_and_linear_rope_scaling)
{
	check_model("refmodels/llama-linear-rope");
}

Test(reference, llama_with_tensors_of_three_types)
{
	check_model("refmodels/llama-mha-mixed-dtypes");
}

Test(reference, mistral_with_a_sliding_window)
{
	check_model("refmodels/mistral-swa");
}

Test(reference, qwen2_with_qkv_biases)
{
	check_model("refmodels/qwen2");
}

Test(reference, qwen2_with_yarn)
{
	check_model("refmodels/qwen2-yarn");
}

Test(reference, qwen3_with_head_norms_and_heads_of_another_size)
{
	check_model("refmodels/qwen3");
}

Test(reference, phi3_with_fused_tensors)
{
	check_model("refmodels/phi3");
}

Test(reference, phi3_with_a_sliding_window)
{
	check_model("refmodels/phi3-swa");
}

Test(reference, gemma_with_scaled_embeddings_and_offset_norms)
{
	check_model("refmodels/gemma");
}

Test(reference, gemma2_with_soft_caps_and_alternating_windows)
{
	check_model("refmodels/gemma2");
}

Test(reference, mixtral_in_shards)
{
	check_model("refmodels/mixtral-sharded");
}

Test(reference, qwen3_moe)
{
	check_model("refmodels/qwen3-moe");
}

Test(reference, qwen3_moe_with_a_dense_layer)
{
	check_model("refmodels/qwen3-moe-dense-layer");
}

Test(reference, plain_kernels_and_four_ranks)
{
	const char *dir = reference_dir("refmodels/llama3-gqa-ropescale");
	struct reference ref;
	struct driver_config config = {.model_dir = dir,
				       .dtype = OPTION_DTYPE_FLOAT32,
				       .ranks = 4,
				       .threads = 1,
				       .caps = 0,
				       .rows_max = 4,
				       .tokens_max = 32,
				       .block_size = 8,
				       .chunk = 9,
				       .seed = 3};

	if (!dir)
		cr_skip_test("no reference models here");
	read_reference(&ref, dir);
	run(&ref, &config, "four ranks");
	for (u32 i = 0; i < PROMPTS; i++)
		free(ref.logits[i]);
}

static double log_softmax(const float *logits, u32 id)
{
	double sum = 0;

	for (u32 i = 0; i < VOCAB; i++)
		sum += exp((double)logits[i]);
	return logits[id] - log(sum);
}

static u32 rank_of(const float *logits, u32 id)
{
	u32 rank = 1;

	for (u32 i = 0; i < VOCAB; i++)
		rank += logits[i] > logits[id] || (logits[i] == logits[id] && i < id);
	return rank;
}

/* Positions of one prompt against the reference's logits. */
static void check_prompt_logprobs(const struct driver_request *q, const float *logits, u32 top)
{
	for (u32 j = 1; j < q->prompt_count; j++) {
		const float *row = logits + (j - 1) * VOCAB;
		cr_assert_eq(q->plp_count[j], top + 1, "position %u", j);
		cr_assert_eq(q->plp_ids[j][0], q->prompt[j]);
		cr_assert_eq(q->plp_rank[j], rank_of(row, q->prompt[j]));
		for (u32 k = 0; k <= top; k++) {
			cr_assert_float_eq(q->plp_values[j][k], log_softmax(row, q->plp_ids[j][k]), 1e-3);
			if (k)
				cr_assert_eq(rank_of(row, q->plp_ids[j][k]), k);
		}
	}
	cr_assert_eq(q->plp_count[0], 0);
}

/* Two rows of logits at a time, so that a chunk needs several portions. */
Test(reference, prompt_logprobs_are_those_of_the_reference)
{
	static struct driver d;
	static struct driver_request q[PROMPTS];
	const char *dir = reference_dir("refmodels/llama-mha");
	struct reference ref;
	struct sampling_params p;

	if (!dir)
		cr_skip_test("no reference models here");
	read_reference(&ref, dir);
	sampling_params_default(&p);
	p.temperature = 0;
	p.prompt_logprobs = 5;
	p.logprobs = 3;
	for (u32 ranks = 1; ranks <= 2; ranks++) {
		struct driver_config config = {.model_dir = dir,
					       .dtype = OPTION_DTYPE_FLOAT32,
					       .ranks = ranks,
					       .threads = 1,
					       .caps = kern_caps_detect(),
					       .rows_max = 2,
					       .tokens_max = 40,
					       .block_size = 16,
					       .chunk = 13,
					       .seed = 5};
		memset(q, 0, sizeof(q));
		for (u32 i = 0; i < PROMPTS; i++) {
			q[i].prompt = ref.prompt[i];
			q[i].prompt_count = ref.count[i];
			q[i].output_count = 3;
			q[i].params = &p;
		}
		driver_open(&d, &config);
		driver_run(&d, q, PROMPTS);
		driver_close(&d);
		for (u32 i = 0; i < PROMPTS; i++) {
			const float *last = ref.logits[i] + (ref.count[i] - 1) * VOCAB;
			check_prompt_logprobs(&q[i], ref.logits[i], 5);
			cr_assert_eq(q[i].lp_count[0], 4);
			cr_assert_eq(q[i].lp_rank[0], 1);
			cr_assert_eq(q[i].lp_ids[0][0], ref.greedy[i][0]);
			cr_assert_float_eq(q[i].lp_values[0][1], log_softmax(last, ref.greedy[i][0]), 1e-3);
		}
	}
	for (u32 i = 0; i < PROMPTS; i++)
		free(ref.logits[i]);
}

/* Sampling at temperature 1 with everything switched on depends on the request alone. */
Test(reference, sampled_tokens_do_not_depend_on_ranks_chunks_or_company)
{
	static struct driver d;
	static struct driver_request q[PROMPTS];
	const char *dir = reference_dir("refmodels/llama-mha");
	struct reference ref;
	struct sampling_params p[PROMPTS];
	u32 first[PROMPTS][OUTPUTS];

	if (!dir)
		cr_skip_test("no reference models here");
	read_reference(&ref, dir);
	for (u32 round = 0; round < 3; round++) {
		struct driver_config config = {.model_dir = dir,
					       .dtype = OPTION_DTYPE_FLOAT32,
					       .ranks = round == 2 ? 2 : 1,
					       .threads = 1,
					       .caps = kern_caps_detect(),
					       .rows_max = round ? 4 : 1,
					       .tokens_max = 80,
					       .block_size = 16,
					       .chunk = round ? 7 : 64,
					       .preempt_every = round ? 25 : 0,
					       .seed = round};
		memset(q, 0, sizeof(q));
		for (u32 i = 0; i < PROMPTS; i++) {
			sampling_params_default(&p[i]);
			p[i].seed = 1000 + i;
			p[i].top_p = 0.95f;
			p[i].top_k = 40;
			p[i].repetition_penalty = 1.3f;
			p[i].frequency_penalty = 0.2f;
			q[i] = (struct driver_request){.prompt = ref.prompt[i],
						       .prompt_count = ref.count[i],
						       .output_count = OUTPUTS,
						       .params = &p[i]};
		}
		driver_open(&d, &config);
		driver_run(&d, q, PROMPTS);
		driver_close(&d);
		for (u32 i = 0; i < PROMPTS; i++) {
			if (round == 0)
				memcpy(first[i], q[i].output, sizeof(first[i]));
			cr_assert_arr_eq(q[i].output, first[i], sizeof(first[i]), "round %u, prompt %u",
					 round, i);
		}
	}
	for (u32 i = 0; i < PROMPTS; i++)
		free(ref.logits[i]);
}

static float *company_logits(const struct reference *ref, const char *dir, enum option_dtype dtype, u32 ranks,
			     u32 round)
{
	static struct driver d;
	static struct driver_request q[PROMPTS];
	struct driver_config config = {.model_dir = dir,
				       .dtype = dtype,
				       .ranks = ranks,
				       .threads = 1,
				       .caps = kern_caps_detect(),
				       .rows_max = round ? 4 : 1,
				       .tokens_max = round == 2 ? 20 : 80,
				       .block_size = 16,
				       .chunk = round ? 7 : 64,
				       .preempt_every = round ? 25 : 0,
				       .seed = round};
	size_t at = 0, total = 0;

	for (u32 i = 0; i < PROMPTS; i++)
		total += (size_t)ref->count[i] * VOCAB;
	float *all = malloc(total * sizeof(float));
	memset(q, 0, sizeof(q));
	for (u32 i = 0; i < PROMPTS; i++) {
		q[i] = (struct driver_request){.prompt = ref->prompt[i],
					       .prompt_count = ref->count[i],
					       .output_count = OUTPUTS,
					       .prompt_logits = all + at};
		at += (size_t)ref->count[i] * VOCAB;
	}
	driver_open(&d, &config);
	driver_run(&d, q, PROMPTS);
	driver_close(&d);
	return all;
}

/* A prompt in one chunk with nobody else, and in chunks beside others, to the bit. */
static void check_company(const char *name)
{
	const char *dir = reference_dir(name);
	struct reference ref;
	size_t total = 0;

	if (!dir)
		cr_skip_test("no reference models here");
	read_reference(&ref, dir);
	for (u32 i = 0; i < PROMPTS; i++)
		total += (size_t)ref.count[i] * VOCAB;
	for (u32 way = 0; way < 4; way++) {
		enum option_dtype dtype = way % 2 ? OPTION_DTYPE_BFLOAT16 : OPTION_DTYPE_FLOAT32;
		float *alone = company_logits(&ref, dir, dtype, 1 + way / 2, 0);
		for (u32 round = 1; round < 3; round++) {
			float *beside = company_logits(&ref, dir, dtype, 1 + way / 2, round);
			cr_assert_eq(memcmp(alone, beside, total * sizeof(float)), 0, "%s, way %u, round %u",
				     name, way, round);
			free(beside);
		}
		free(alone);
	}
	for (u32 i = 0; i < PROMPTS; i++)
		free(ref.logits[i]);
}

Test(reference, experts_give_the_same_bits_in_any_company)
{
	check_company("refmodels/qwen3-moe-dense-layer");
	check_company("refmodels/mixtral-sharded");
}

Test(reference, windows_and_soft_caps_give_the_same_bits_in_any_company)
{
	check_company("refmodels/gemma2");
	check_company("refmodels/phi3-swa");
}

/* Logits of all tokens of a prompt that gives every thread rows of its own; `chunk`: so many tokens a step. */
static void long_prompt_logits(const char *dir, enum option_dtype dtype, u32 threads, u32 chunk, float *logits)
{
	static struct driver d;
	u32 prompt[LONG_PROMPT];
	struct driver_request q = {.prompt = prompt, .prompt_count = LONG_PROMPT, .output_count = 1, .prompt_logits = logits};
	struct driver_config config = {.model_dir = dir,
				       .dtype = dtype,
				       .ranks = 1,
				       .threads = threads,
				       .caps = kern_caps_detect(),
				       .rows_max = 1,
				       .tokens_max = LONG_PROMPT,
				       .block_size = 16,
				       .chunk = chunk,
				       .seed = 3};

	for (u32 i = 0; i < LONG_PROMPT; i++)
		prompt[i] = 3 + i * 37 % 250;
	driver_open(&d, &config);
	driver_run(&d, &q, 1);
	driver_close(&d);
}

/* With one thread, with two and three that go through a layer's products without waiting for each other, and in chunks of so few tokens that no
 * product has anything around it. */
Test(reference, a_long_prompt_gives_the_same_bits_whatever_the_threads)
{
	static const char *const names[] = {"refmodels/llama-mha-mixed-dtypes", "refmodels/llama3-gqa-ropescale", "refmodels/qwen3", "refmodels/gemma2"};
	static float alone[LONG_PROMPT * VOCAB], threaded[LONG_PROMPT * VOCAB];

	for (u32 i = 0; i < 2 * COUNT_OF(names); i++) {
		const char *dir = reference_dir(names[i / 2]);
		const enum option_dtype dtype = i % 2 ? OPTION_DTYPE_BFLOAT16 : OPTION_DTYPE_FLOAT32;
		if (!dir)
			cr_skip_test("no reference models here");
		long_prompt_logits(dir, dtype, 1, 16, alone);
		for (u32 threads = 1; threads <= 3; threads++) {
			memset(threaded, 0, sizeof(threaded));
			long_prompt_logits(dir, dtype, threads, LONG_PROMPT, threaded);
			cr_assert_eq(memcmp(alone, threaded, sizeof(alone)), 0, "%s, type %u, %u threads", names[i / 2], i % 2, threads);
		}
	}
}
