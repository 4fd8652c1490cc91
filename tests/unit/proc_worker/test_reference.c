/* Reference models: logits within 1e-3 and greedy tokens exactly, whatever the chunks, batches and ranks. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "tests/unit/proc_worker/driver.h"

enum { PROMPTS = 4, OUTPUTS = 32, VOCAB = 512, PROMPT_MAX = 64 };

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
		ref->logits[i] = read_npy(dir, json_cstr(json_get(p, "logits_file"), ""), ref->count[i] * VOCAB);
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
			cr_assert_eq(q[i].output[j], ref->greedy[i][j], "%s, prompt %u, token %u: %u, not %u", label, i,
				     j, q[i].output[j], ref->greedy[i][j]);
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
