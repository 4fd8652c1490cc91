/* Models of every family against transformers: what families_differential.py kept of some of its cases, config.json, tensors
 * by name and shape, logits and greedy tokens in float32. Weights are a function of a tensor's name and place, so that no
 * checkpoint has to be kept. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/json.h"
#include "kernels/kernels.h"
#include "proc_worker/model/tensor_names.h"
#include "tests/unit/proc_worker/driver.h"

enum { IDS_MAX = 64, OUTPUTS_MAX = 32 };

/* ---------------------------------------------------------------- the checkpoint */

/* In [-1, 1): a stream of SplitMix64 (Steele et al. 2014) that begins at the FNV-1a hash of the tensor's name. */
static float noise(u64 start, u64 i)
{
	u64 z = (start + i) * 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	z ^= z >> 31;
	return (float)(z >> 40) * 0x1p-23f - 1;
}

static u64 fnv(const char *name)
{
	u64 h = 0xcbf29ce484222325;

	for (; *name; name++)
		h = (h ^ (u8)*name) * 0x100000001b3;
	return h;
}

/* An adapter of rank 1 of one module in every layer. */
enum { ADAPTER_SCALE = 2 };

static float adapter_a(u64 column)
{
	return noise(1, column) / 2;
}

static float adapter_b(u64 row)
{
	return noise(2, row) / 2;
}

/* [shape, amplitude, middle], and, if the values are not those of the tensor's own name from the first on, [.., name, first
 * of its values]. The adapter is added to matrices whose names have `merged` in them (NULL: to none). */
static void append_values(struct buf *data, const char *name, json_val t, enum kern_dtype dtype, u64 count, const char *merged)
{
	bool more = merged && json_count(json_at(t, 0)) == 2 && strstr(name, merged);
	bool conv = strstr(name, ".c_") != NULL; /* GPT-2's are transposed */
	u64 columns = 1;
	bool other = json_count(t) > 3;
	u64 start = fnv(other ? json_cstr(json_at(t, 3), "") : name), first = 0;
	double amplitude = 0, middle = 0;

	cr_assert(json_double(json_at(t, 1), &amplitude) && json_double(json_at(t, 2), &middle));
	cr_assert(!other || json_uint(json_at(t, 4), &first));
	cr_assert(!more || json_uint(json_at(json_at(t, 0), 1), &columns));
	for (u64 i = 0; i < count; i++) {
		float x = noise(start, first + i) * (float)amplitude;
		float value[1];
		x += (float)middle;
		u64 row = conv ? i % columns : i / columns, column = conv ? i / columns : i % columns;
		x += more ? ADAPTER_SCALE * adapter_b(row) * adapter_a(column) : 0;
		kern_convert(value, dtype, &x, KERN_F32, 1);
		buf_append(data, value, kern_dtype_bytes(dtype));
	}
}

static void write_file(const char *dir, const char *name, const void *data, size_t bytes)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	FILE *f = fopen(path, "wb");
	cr_assert(f && fwrite(data, 1, bytes, f) == bytes);
	fclose(f);
}

/* Frees both. */
static void write_safetensors(const char *dir, const char *name, struct buf *header, struct buf *data)
{
	struct buf file = {0};

	while (header->bytes % 8)
		buf_append_char(header, ' ');
	u64 length = header->bytes;
	buf_append(&file, &length, sizeof(length));
	buf_append(&file, header->data, header->bytes);
	buf_append(&file, data->data, data->bytes);
	write_file(dir, name, file.data, file.bytes);
	buf_fini(&file);
	buf_fini(header);
	buf_fini(data);
}

static void write_tensors(const char *dir, json_val tensors, const char *type, const char *merged)
{
	enum kern_dtype dtype = !strcmp(type, "BF16") ? KERN_BF16 : KERN_F32;
	struct buf header = {0}, data = {0};

	buf_append_str(&header, "{");
	for (struct json_iter it = json_iterate(tensors); json_next(&it);) {
		size_t begin = data.bytes;
		u64 count = 1, n = 0;
		buf_printf(&header, "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [", begin ? ", " : "", it.key, type);
		for (struct json_iter s = json_iterate(json_at(it.value, 0)); json_next(&s); count *= n) {
			cr_assert(json_uint(s.value, &n));
			buf_printf(&header, "%s%llu", header.data[header.bytes - 1] == '[' ? "" : ", ",
				   (unsigned long long)n);
		}
		append_values(&data, it.key, it.value, dtype, count, merged);
		buf_printf(&header, "], \"data_offsets\": [%zu, %zu]}", begin, data.bytes);
	}
	buf_append_str(&header, "}");
	write_safetensors(dir, "model.safetensors", &header, &data);
}

static json_val kept_case(struct json_doc **doc, const char *name)
{
	struct err_msg em;

	cr_assert_eq(json_parse_file(doc, SOURCE_ROOT "/tests/unit/proc_worker/families.json", &em), ERR_OK, "%s", em.text);
	json_val c = json_get(json_root(*doc), name);
	cr_assert_eq(json_type(c), JSON_OBJECT, "%s is not kept", name);
	return c;
}

static void remove_file(const char *dir, const char *name)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	unlink(path);
}

/* ---------------------------------------------------------------- the comparison */

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

static void compare(json_val c, const struct driver_request *q, const char *label)
{
	json_val logits = json_get(c, "last_logits");
	u32 greedy[OUTPUTS_MAX], vocab = (u32)json_count(logits), i = 0;
	double wanted, worst = 0;

	for (struct json_iter it = json_iterate(logits); json_next(&it); i++) {
		cr_assert(json_double(it.value, &wanted));
		double off = fabs(wanted - (double)q->prompt_logits[(size_t)(q->prompt_count - 1) * vocab + i]);
		worst = off > worst || isnan(off) ? off : worst;
	}
	cr_expect(worst <= 1e-3, "%s: logits differ by %g", label, worst);
	u32 count = read_ids(json_get(c, "greedy"), greedy, OUTPUTS_MAX);
	cr_assert_eq(q->outputs, count);
	for (i = 0; i < count && q->output[i] == greedy[i]; i++)
		;
	cr_expect(i == count, "%s: greedy token %u is %u, not %u", label, i, q->output[i % count], greedy[i % count]);
}

/* The caller frees q->prompt_logits. */
static void answer(json_val c, const char *dir, u32 ranks, u32 chunk, const struct lora_modules *loras, struct driver_request *q)
{
	static struct driver d;
	static u32 prompt[IDS_MAX];
	u32 count = read_ids(json_get(c, "ids"), prompt, IDS_MAX);
	size_t vocab = json_count(json_get(c, "last_logits"));
	struct driver_config config = {.model_dir = dir,
				       .dtype = OPTION_DTYPE_FLOAT32,
				       .ranks = ranks,
				       .threads = 1,
				       .caps = kern_caps_detect(),
				       .rows_max = 2,
				       .tokens_max = 64,
				       .block_size = 16,
				       .chunk = chunk,
				       .seed = 5,
				       .loras = loras};

	memset(q, 0, sizeof(*q));
	q->prompt = prompt;
	q->prompt_count = count;
	q->output_count = (u32)json_count(json_get(c, "greedy"));
	q->prompt_logits = calloc(count * vocab, sizeof(float));
	q->lora = loras ? 1 : 0;
	driver_open(&d, &config);
	driver_run(&d, q, 1);
	driver_close(&d);
}

static void run(json_val c, const char *dir, u32 ranks, u32 chunk, const char *label)
{
	static struct driver_request q;

	answer(c, dir, ranks, chunk, NULL, &q);
	compare(c, &q, label);
	free(q.prompt_logits);
}

static void check_case(const char *name, json_val c)
{
	char dir[] = "/tmp/tercet-test-XXXXXX", label[128];
	const char *config = json_cstr(json_get(c, "config"), "");
	u64 ranks = 0;

	cr_assert(mkdtemp(dir) && json_uint(json_get(c, "ranks"), &ranks));
	write_file(dir, "config.json", config, strlen(config));
	write_tensors(dir, json_get(c, "tensors"), json_cstr(json_get(c, "dtype"), ""), NULL);
	snprintf(label, sizeof(label), "%s, one rank", name);
	run(c, dir, 1, 64, label);
	snprintf(label, sizeof(label), "%s, %u ranks, chunks of 7", name, (u32)ranks);
	run(c, dir, (u32)ranks, 7, label);
	remove_file(dir, "config.json");
	remove_file(dir, "model.safetensors");
	rmdir(dir);
}

enum { PARTS = 4 }; /* of the cases, beside each other */

static void check_part(u32 part)
{
	struct json_doc *doc;
	struct err_msg em;
	u32 count = 0;

	cr_assert_eq(json_parse_file(&doc, SOURCE_ROOT "/tests/unit/proc_worker/families.json", &em), ERR_OK, "%s", em.text);
	for (struct json_iter it = json_iterate(json_root(doc)); json_next(&it); count++)
		if (count % PARTS == part)
			check_case(it.key, it.value);
	cr_assert_gt(count, 200);
	json_free(&doc);
}

#define TEST_PART(part)                                                            \
	Test(families, models_answer_as_in_transformers_##part, .timeout = 200)    \
	{                                                                           \
		check_part(part);                                                   \
	}
TEST_PART(0)
TEST_PART(1)
TEST_PART(2)
TEST_PART(3)

/* Opens the checkpoint of a kept case with `from` in config.json replaced by `to`. */
static enum err open_changed(const char *name, const char *from, const char *to, struct safetensors **st,
			     struct err_msg *em)
{
	static struct model_config model;
	char dir[] = "/tmp/tercet-test-XXXXXX", text[4096];
	struct json_doc *doc;
	json_val c = kept_case(&doc, name);
	const char *config = json_cstr(json_get(c, "config"), ""), *at = strstr(config, from);

	cr_assert(mkdtemp(dir) && at);
	int bytes = snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - config), config, to, at + strlen(from));
	write_tensors(dir, json_get(c, "tensors"), json_cstr(json_get(c, "dtype"), ""), NULL);
	cr_assert_eq(model_config_parse(&model, text, (size_t)bytes, em), ERR_OK, "%s", em->text);
	cr_assert_eq(safetensors_open(st, dir, em), ERR_OK, "%s", em->text);
	enum err e = tensor_names_add(*st, &model, em);
	remove_file(dir, "model.safetensors");
	rmdir(dir);
	json_free(&doc);
	return e;
}

Test(families, experts_in_one_tensor_have_the_shape_that_the_file_says)
{
	struct safetensors *st;
	struct err_msg em;

	cr_assert_eq(open_changed("qwen3_moe/save-raw", "\"num_experts\": 8", "\"num_experts\": 7", &st, &em), ERR_FORMAT);
	cr_assert(strstr(em.text, "model.layers.0.mlp.experts.gate_up_proj has the shape [8, 40, 40]; by config.json it must be "
				  "[7, 40, 40]"),
		  "%s", em.text);
	safetensors_close(&st);
	cr_assert_eq(open_changed("qwen3_moe/save-raw", "\"num_experts\": 8", "\"num_experts\": 8", &st, &em), ERR_OK, "%s",
		     em.text);
	const struct st_tensor *whole = safetensors_find(st, "model.layers.1.mlp.experts.gate_up_proj"),
			       *up = safetensors_find(st, "model.layers.1.mlp.experts.3.up_proj.weight");
	cr_assert(whole && up && up->dims == 2 && up->shape[0] == 20 && up->shape[1] == 40);
	cr_assert_eq((const char *)up->data - (const char *)whole->data, (3 * 2 + 1) * 20 * 40 * 4);
	safetensors_close(&st);
}

Test(families, names_without_a_prefix_are_found_with_it)
{
	struct safetensors *st;
	struct err_msg em;

	cr_assert_eq(open_changed("llama/save-base", "\"llama\"", "\"llama\"", &st, &em), ERR_OK, "%s", em.text);
	const struct st_tensor *plain = safetensors_find(st, "layers.2.mlp.up_proj.weight"),
			       *full = safetensors_find(st, "model.layers.2.mlp.up_proj.weight");
	cr_assert(plain && full && plain->data == full->data);
	cr_assert(safetensors_find(st, "lm_head.weight") && !safetensors_find(st, "model.lm_head.weight"));
	safetensors_close(&st);
}

/* What tensor_names_in_file makes of `said`, of the checkpoint of a case. */
static const char *in_file(const char *name, const char *said)
{
	static char text[512];
	static struct model_config model;
	struct safetensors *st;
	struct err_msg em;
	struct json_doc *doc;
	const char *config = json_cstr(json_get(kept_case(&doc, name), "config"), "");

	cr_assert_eq(model_config_parse(&model, config, strlen(config), &em), ERR_OK, "%s", em.text);
	cr_assert_eq(open_changed(name, "{", "{", &st, &em), ERR_OK, "%s", em.text);
	snprintf(text, sizeof(text), "%s", said);
	tensor_names_in_file(text, sizeof(text), st, &model);
	safetensors_close(&st);
	json_free(&doc);
	return text;
}

Test(families, errors_have_the_names_of_files_that_begin_otherwise)
{
	static const char *const plain = "model.safetensors: tensor model.layers.1.norm.weight (\"model.norm_f.weight\") of base_model.model.layers.1, model.gguf";
	static const char *const named =
		"model.safetensors: tensor backbone.layers.1.norm.weight (\"backbone.norm_f.weight\") of base_model.model.layers.1, model.gguf";

	cr_assert_str_eq(in_file("mamba2/none", plain), named);
	cr_assert_str_eq(in_file("falcon_mamba/odd", plain), named);
	cr_assert_str_eq(in_file("mamba/none", "model.norm_f.weight"), "backbone.norm_f.weight");
	cr_assert_str_eq(in_file("mamba/none", ""), "");
	cr_assert_str_eq(in_file("jamba/none", plain), plain);
	cr_assert_str_eq(in_file("llama/save-base", plain), plain);
}

/* ---------------------------------------------------------------- adapters */

/* `prefix` and `suffix` are those of the module's name around the layer. */
static void write_adapter(const char *dir, const char *prefix, const char *suffix, u32 layers, u32 rows, u32 columns)
{
	struct buf header = {0}, data = {0};
	char config[256];

	snprintf(config, sizeof(config), "{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": %d, \"target_modules\": [\"%s\"]}",
		 ADAPTER_SCALE, strrchr(suffix, '.') + 1);
	write_file(dir, "adapter_config.json", config, strlen(config));
	buf_append_str(&header, "{");
	for (u32 i = 0; i < layers; i++) {
		size_t begin = data.bytes, middle = begin + columns * sizeof(float), end = middle + rows * sizeof(float);
		buf_printf(&header,
			   "%s\"base_model.model.%s%u%s.lora_A.weight\": {\"dtype\": \"F32\", \"shape\": [1, %u], "
			   "\"data_offsets\": [%zu, %zu]}",
			   i ? ", " : "", prefix, i, suffix, columns, begin, middle);
		buf_printf(&header,
			   ", \"base_model.model.%s%u%s.lora_B.weight\": {\"dtype\": \"F32\", \"shape\": [%u, 1], "
			   "\"data_offsets\": [%zu, %zu]}",
			   prefix, i, suffix, rows, middle, end);
		for (u32 k = 0; k < rows + columns; k++) {
			float x = k < columns ? adapter_a(k) : adapter_b(k - columns);
			buf_append(&data, &x, sizeof(x));
		}
	}
	buf_append_str(&header, "}");
	write_safetensors(dir, "adapter_model.safetensors", &header, &data);
}

static void expect_same_answers(json_val c, const struct driver_request *got, const struct driver_request *want, const char *what)
{
	size_t values = (size_t)got->prompt_count * json_count(json_get(c, "last_logits"));
	float worst = 0;

	for (size_t i = 0; i < values; i++)
		worst = fmaxf(worst, fabsf(got->prompt_logits[i] - want->prompt_logits[i]));
	cr_expect_lt(worst, 1e-3f, "%s: logits differ by %g", what, (double)worst);
	cr_expect_eq(memcmp(got->output, want->output, got->outputs * sizeof(u32)), 0, "%s: other tokens", what);
}

/* The case with an adapter of the module beside it answers as with the adapter in its weights. */
static void check_adapter(const char *name, const char *prefix, const char *suffix, u32 rows)
{
	char dir[] = "/tmp/tercet-test-XXXXXX", beside[] = "/tmp/tercet-test-XXXXXX";
	struct lora_module item = {(char[]){"some"}, beside};
	const struct lora_modules loras = {&item, 1, 8};
	struct driver_request want, got;
	struct json_doc *doc;
	json_val c = kept_case(&doc, name);
	const char *config = json_cstr(json_get(c, "config"), "");

	cr_assert(mkdtemp(dir) && mkdtemp(beside));
	write_file(dir, "config.json", config, strlen(config));
	write_tensors(dir, json_get(c, "tensors"), "F32", strrchr(suffix, '.'));
	answer(c, dir, 1, 64, NULL, &want);
	write_tensors(dir, json_get(c, "tensors"), "F32", NULL);
	write_adapter(beside, prefix, suffix, 3, rows, 40);
	for (u32 ranks = 1; ranks <= 2; ranks++) {
		answer(c, dir, ranks, ranks == 1 ? 64 : 7, &loras, &got);
		expect_same_answers(c, &got, &want, ranks == 1 ? "one rank" : "two ranks");
		free(got.prompt_logits);
	}
	free(want.prompt_logits);
	remove_file(dir, "config.json");
	remove_file(dir, "model.safetensors");
	remove_file(beside, "adapter_config.json");
	remove_file(beside, "adapter_model.safetensors");
	rmdir(dir);
	rmdir(beside);
	json_free(&doc);
}

Test(families, adapters_of_matrices_in_groups_have_their_rows_in_groups)
{
	check_adapter("internlm2/none", "model.layers.", ".attention.wqkv", 80);
	check_adapter("gpt_neox/none", "gpt_neox.layers.", ".attention.query_key_value", 120);
	check_adapter("falcon/newer", "transformer.h.", ".self_attention.query_key_value", 80);
	check_adapter("codegen/none", "transformer.h.", ".attn.qkv_proj", 120);
}

Test(families, adapters_are_not_transposed_where_matrices_are)
{
	check_adapter("gpt2/none", "transformer.h.", ".attn.c_attn", 120);
	check_adapter("gpt2/none", "transformer.h.", ".mlp.c_fc", 52);
}

Test(families, transposed_matrices_are_not_read_quantized)
{
	static struct model_config model;
	struct model_shard shard;
	char dir[] = "/tmp/tercet-test-XXXXXX";
	struct safetensors *st;
	struct json_doc *doc;
	struct err_msg em;
	json_val c = kept_case(&doc, "gpt2/none");
	const char *config = json_cstr(json_get(c, "config"), "");

	cr_assert(mkdtemp(dir));
	write_tensors(dir, json_get(c, "tensors"), "F32", NULL);
	cr_assert_eq(model_config_parse(&model, config, strlen(config), &em), ERR_OK, "%s", em.text);
	cr_assert_eq(model_shard_init(&shard, &model, 0, 1, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(safetensors_open(&st, dir, &em), ERR_OK, "%s", em.text);
	struct weights_plan plan = {.config = &model, .shard = &shard, .checkpoint = st, .dtype = KERN_F32, .matrix_dtype = KERN_F32};
	cr_assert_eq(model_weights_check(&plan, &em), ERR_OK, "%s", em.text);
	model.quant = (struct quant_config){.count = 1, .schemes[0].format = QUANT_GPTQ};
	cr_assert_eq(model_weights_check(&plan, &em), ERR_UNSUPPORTED);
	cr_assert(strstr(em.text, "attn.c_attn.weight: quantized checkpoints of a GPT2LMHeadModel are not read"), "%s", em.text);
	safetensors_close(&st);
	remove_file(dir, "model.safetensors");
	rmdir(dir);
	json_free(&doc);
}
