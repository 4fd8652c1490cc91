/* Model folders: good ones in every form, and bad ones, each with its clear error. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "kernels/kern_priv.h"
#include "proc_worker/model/arch_table.h"
#include "proc_worker/model/rope.h"
#include "proc_worker/model/safetensors.h"
#include "proc_worker/runner.h"
#include "tests/unit/proc_worker/tiny_model.h"

static enum err load(const char *dir, struct runner **r, enum option_dtype dtype, u64 kv, u32 max_len,
		     struct err_msg *em)
{
	struct runner_config config = {
		.model_dir = dir,
		.ranks = 1,
		.threads = 1,
		.dtype = dtype,
		.limits = {.rows_max = 4, .tokens_max = 16, .max_model_len = max_len, .block_size = 4},
		.kv_cache_memory = kv,
		.memory_utilization = 0.5};

	return runner_create(r, &config, em);
}

static void refused(struct tiny_model *m, enum err expected, const char *text)
{
	struct runner *r;
	struct err_msg em = {""};

	tiny_model_write(m);
	enum err e = load(m->dir, &r, OPTION_DTYPE_AUTO, 0, 0, &em);
	tiny_model_remove(m);
	cr_assert_eq(e, expected, "%s: %s", err_name(e), em.text);
	cr_assert(strstr(em.text, text), "'%s' is not in '%s'", text, em.text);
	cr_assert_null(r);
}

#define REFUSED(e, text, ...) refused(&(struct tiny_model){__VA_ARGS__}, e, text)

/* The first logits of one token, so that two ways to store a model can be compared. */
static void first_logits(struct tiny_model *m, float *out)
{
	struct runner *r;
	struct err_msg em = {""};
	u32 index = 0;
	float *logits;

	tiny_model_write(m);
	cr_assert_eq(load(m->dir, &r, OPTION_DTYPE_AUTO, 0, 0, &em), ERR_OK, "%s", em.text);
	tiny_model_remove(m); /* the mapping stays */
	r->inputs.tokens = r->inputs.rows = 1;
	r->inputs.ids[0] = 7;
	r->inputs.positions[0] = 0;
	r->inputs.slots[0] = 0;
	r->inputs.query_start[0] = 0;
	r->inputs.query_start[1] = 1;
	r->inputs.context[0] = 1;
	r->inputs.block_tables[0] = 0;
	cr_assert_eq(decoder_forward(&r->decoder, &r->inputs, r->kv.layers, &em), ERR_OK);
	cr_assert_eq(decoder_logits(&r->decoder, &index, 1, &logits, &em), ERR_OK);
	memcpy(out, logits, 20 * sizeof(float));
	runner_destroy(&r);
}

/* The last tokens' logits of two rows of 3 and 4 tokens. */
static void two_rows_logits(bool last_only, float out[2][20])
{
	struct tiny_model m = {0};
	struct runner *r = NULL;
	struct err_msg em = {""};
	const u32 index[2] = {2, 6};
	float *logits;

	tiny_model_write(&m);
	cr_assert_eq(load(m.dir, &r, OPTION_DTYPE_AUTO, 0, 0, &em), ERR_OK, "%s", em.text);
	tiny_model_remove(&m);
	r->inputs.rows = 2;
	r->inputs.tokens = 7;
	r->inputs.last_only = last_only;
	for (u32 i = 0; i < 7; i++) {
		u32 row = i < 3 ? 0 : 1;
		r->inputs.ids[i] = 3 + i;
		r->inputs.positions[i] = row == 0 ? i : i - 3;
		r->inputs.slots[i] = row * r->config.limits.block_size + r->inputs.positions[i];
	}
	for (u32 row = 0; row < 2; row++) {
		r->inputs.query_start[row + 1] = row == 0 ? 3 : 7;
		r->inputs.context[row] = row == 0 ? 3 : 4;
		r->inputs.block_tables[row * r->inputs.block_stride] = row;
	}
	r->inputs.query_start[0] = 0;
	cr_assert_eq(decoder_forward(&r->decoder, &r->inputs, r->kv.layers, &em), ERR_OK);
	cr_assert_eq(r->decoder.narrowed, last_only);
	cr_assert_eq(decoder_logits(&r->decoder, index, 2, &logits, &em), ERR_OK);
	for (u32 row = 0; row < 2; row++)
		memcpy(out[row], logits + (size_t)row * r->model.vocab_size, 20 * sizeof(float));
	runner_destroy(&r);
}

Test(model, rows_whose_last_token_alone_goes_through_the_last_layer_have_the_same_logits)
{
	float all[2][20], last[2][20];

	two_rows_logits(false, all);
	two_rows_logits(true, last);
	cr_assert_arr_eq(all, last, sizeof(all));
	cr_assert_neq(all[0][0], all[1][0]);
}

Test(model, shards_and_odd_addresses_give_the_same_logits)
{
	float whole[20], sharded[20], odd[20];

	first_logits(&(struct tiny_model){0}, whole);
	first_logits(&(struct tiny_model){.sharded = true}, sharded);
	first_logits(&(struct tiny_model){.odd = true}, odd);
	cr_assert_arr_eq(whole, sharded, sizeof(whole));
	cr_assert_arr_eq(whole, odd, sizeof(whole));
	cr_assert(isfinite(whole[0]) && whole[0] != whole[1]);
}

/* Its rows are looked up where they are, with all bits of a half; only what products read is rounded to bfloat16. */
Test(model, the_embedding_of_a_checkpoint_in_float16_stays_in_the_file)
{
	struct tiny_model m = {.half = true};
	struct runner *r;
	struct err_msg em = {""};

	tiny_model_write(&m);
	cr_assert_eq(load(m.dir, &r, OPTION_DTYPE_BFLOAT16, 0, 0, &em), ERR_OK, "%s", em.text);
	tiny_model_remove(&m);
	const struct model_weights *w = &r->weights;
	const u16 *row = (const u16 *)w->embed + (size_t)7 * r->model.hidden;
	cr_assert_eq(w->embed_dtype, KERN_F16);
	cr_assert((const char *)w->embed < (const char *)w->memory ||
		  (const char *)w->embed >= (const char *)w->memory + w->memory_bytes);
	for (u32 i = 0; i < r->model.hidden; i++)
		cr_assert_eq(row[i], kern_float_to_f16((float)((int)((7 * r->model.hidden + i) * 71 % 41) - 20) / 40));
	runner_destroy(&r);
}

Test(model, tied_embeddings_need_no_lm_head)
{
	float logits[20];

	first_logits(&(struct tiny_model){.skip = "lm_head.weight",
					  .config_from = "\"eos_token_id\": 3",
					  .config_to = "\"eos_token_id\": 3, \"tie_word_embeddings\": true"},
		     logits);
	cr_assert(isfinite(logits[19]));
}

Test(model, a_checkpoint_that_is_not_there_is_refused)
{
	struct tiny_model m = {0};
	struct safetensors *st;
	struct err_msg em;
	char path[128];

	tiny_model_write(&m);
	snprintf(path, sizeof(path), "%s/model.safetensors", m.dir);
	cr_assert_eq(truncate(path, 4), 0);
	cr_assert_eq(safetensors_open(&st, m.dir, &em), ERR_FORMAT);
	cr_assert(strstr(em.text, "truncated: 4 bytes"), "%s", em.text);
	cr_assert_eq(unlink(path), 0);
	cr_assert_eq(safetensors_open(&st, m.dir, &em), ERR_NOT_FOUND);
	cr_assert(strstr(em.text, "holds neither model.safetensors nor"), "%s", em.text);
	cr_assert_eq(mkfifo(path, 0600), 0);
	cr_assert_eq(safetensors_open(&st, m.dir, &em), ERR_IO, "a pipe is not waited for");
	cr_assert(strstr(em.text, "not a regular file"), "%s", em.text);
	tiny_model_remove(&m);
}

/* Errors send people there. */
Test(model, every_architecture_is_documented)
{
	struct buf text = {0};
	FILE *file = fopen(SOURCE_ROOT "/docs/ADDING_A_MODEL.md", "r");
	cr_assert_not_null(file);
	char line[4096];
	const char *name;
	size_t count = 0;

	while (fgets(line, sizeof(line), file))
		buf_append_str(&text, line);
	fclose(file);
	for (size_t i = 0; (name = arch_name_at(i)); i++, count++)
		cr_expect(arch_find(name)->part || strstr(buf_cstr(&text), name), "%s is not in docs/ADDING_A_MODEL.md", name);
	for (size_t i = 0; (name = arch_part_name_at(i)); i++, count++)
		cr_expect_not_null(strstr(buf_cstr(&text), name), "%s is not in docs/ADDING_A_MODEL.md", name);
	cr_expect_geq(count, 180);
	buf_fini(&text);
}

Test(model, an_unknown_architecture_is_told_those_of_names_like_it)
{
	static const struct {
		const char *like, *said;
	} cases[] = {
		{"Qwen4ForCausalLM", "supported; of names like it: Qwen2ForCausalLM, Qwen3ForCausalLM, "},
		{"MistralForCasualLM", "supported; of names like it: MistralForCausalLM, "},
		{"graniteForCausalLM", "supported; of names like it: GraniteForCausalLM, "},
		{"LlavaNextVideoForConditionalGeneration", ": LlavaNextForConditionalGeneration"},
		{"RwkvForCausalLM", "that are supported"},
		{"", "that are supported"},
	};
	char said[512], small[40], name[300];

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		arch_names(said, sizeof(said), cases[i].like);
		cr_expect(!strncmp(said, "docs/ADDING_A_MODEL.md lists the 1", 34) && strstr(said, cases[i].said), "%s: %s", cases[i].like, said);
	}
	arch_names(said, sizeof(said), "RwkvForCausalLM");
	cr_expect_null(strchr(said, ';'), "nothing is like it: %s", said);
	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = 0;
	arch_names(small, sizeof(small), name);
	cr_expect_eq(strlen(small), sizeof(small) - 1, "it is cut to the room there is");
}

Test(model, headers_of_checkpoints_are_not_trusted)
{
	REFUSED(ERR_FORMAT, "truncated", .cut = 100);
	REFUSED(ERR_FORMAT, "truncated: its header has", .cut = 6500);
	REFUSED(ERR_FORMAT, "bytes behind the last tensor", .cut = -3);
	REFUSED(ERR_FORMAT, "truncated: its header has 99999999 bytes", .header_length = 99999999);
	REFUSED(ERR_FORMAT, "this is no safetensors file", .header_length = 1ull << 60);
	REFUSED(ERR_FORMAT, "header", .header = "{\"a\": ");
	REFUSED(ERR_FORMAT, "must be an object, found array", .header = "[]");
	REFUSED(ERR_FORMAT, "does not fit", .header_from = "[20, 8]", .header_to = "[20, 9]");
	REFUSED(ERR_FORMAT, "does not fit", .header_from = "[20, 8]",
		.header_to = "[2147483648, 4294967296]");
	REFUSED(ERR_FORMAT, "more elements than can be counted", .header_from = "[20, 8]",
		.header_to = "[9223372036854775807, 4]");
	REFUSED(ERR_FORMAT, "\"data_offsets\" must be", .header_from = "[0, 640]", .header_to = "[640, 0]");
	REFUSED(ERR_FORMAT, "\"data_offsets\" must be", .header_from = "[0, 640]", .header_to = "[-1, 639]");
	REFUSED(ERR_FORMAT, "inside the one that ends", .header_from = "[640, 672]",
		.header_to = "[608, 640]");
	REFUSED(ERR_FORMAT, "behind a gap", .header_from = "[0, 640]", .header_to = "[2, 642]");
	REFUSED(ERR_FORMAT, "its data ends at byte", .header_from = "[0, 640]",
		.header_to = "[1000000, 1000640]");
	REFUSED(ERR_FORMAT, "unknown \"dtype\" 'F33'", .dtype_of = "model.norm.weight", .dtype = "F33");
	REFUSED(ERR_FORMAT, "is there twice", .header_from = "lm_head.weight",
		.header_to = "model.embed_tokens.weight");
	REFUSED(ERR_FORMAT, "there is a NUL in \"lm_head.weight\\u0000...\"", .header_from = "lm_head.weight",
		.header_to = "lm_head.weight\\u0000s");
	REFUSED(ERR_FORMAT, "unknown \"dtype\" 'BF16'", .dtype_of = "model.norm.weight", .dtype = "BF16\\u0000");
}

Test(model, tensors_must_be_those_of_config_json)
{
	REFUSED(ERR_NOT_FOUND, "has no tensor model.layers.1.mlp.up_proj.weight ([12, 8] expected)",
		.skip = "model.layers.1.mlp.up_proj.weight");
	REFUSED(ERR_NOT_FOUND, "has no tensor lm_head.weight", .skip = "lm_head.weight");
	REFUSED(ERR_FORMAT,
		"tensor model.layers.0.mlp.down_proj.weight has the shape [12, 8]; by config.json it must "
		"be [8, 12]",
		.reshape = "model.layers.0.mlp.down_proj.weight");
	REFUSED(ERR_UNSUPPORTED, "is of type I32; supported: BF16, F16, F32", .dtype_of = "model.norm.weight",
		.dtype = "I32");
}

Test(model, a_checkpoint_must_not_have_more_layers_than_config_json)
{
	REFUSED(ERR_FORMAT,
		"config.json says that the model has 1 layers (num_hidden_layers), and the checkpoint has 2 (model.safetensors: tensor "
		"model.layers.1.",
		.config_from = "\"num_hidden_layers\": 2", .config_to = "\"num_hidden_layers\": 1");
}

/* As layers that predict the token after the next are stored. */
Test(model, a_layer_with_something_of_its_own_behind_the_others_is_left_alone)
{
	float first[20];

	first_logits(&(struct tiny_model){.config_from = "\"num_hidden_layers\": 2",
					  .config_to = "\"num_hidden_layers\": 1",
					  .header_from = "model.layers.1.input_layernorm",
					  .header_to = "model.layers.1.enorm"},
		     first);
	cr_assert(isfinite(first[0]) && first[0] != first[1]);
}

Test(model, biases_that_config_json_denies_are_told)
{
	struct tiny_model m = {.config_from = "\"eos_token_id\": 3",
			       .config_to = "\"eos_token_id\": 3, \"tie_word_embeddings\": true",
			       .header_from = "lm_head.weight", /* which is tied */
			       .header_to = "model.layers.0.mlp.up_proj.bias"};
	struct runner *r;
	struct err_msg em = {""};
	u32 from = 0;

	tiny_model_write(&m);
	cr_assert_eq(load(m.dir, &r, OPTION_DTYPE_AUTO, 0, 0, &em), ERR_OK, "%s", em.text);
	const struct st_tensor *t = model_weights_unread(&r->plan, &from);
	cr_assert(t && strcmp(t->name, "model.layers.0.mlp.up_proj.bias") == 0);
	cr_assert_null(model_weights_unread(&r->plan, &from));
	runner_destroy(&r);
	tiny_model_remove(&m);
}

Test(model, an_index_must_tell_the_truth)
{
	REFUSED(ERR_NOT_FOUND, "names shard c.safetensors (for tensor lm_head.weight), which is not in",
		.sharded = true, .index_from = "\"lm_head.weight\": \"a.",
		.index_to = "\"lm_head.weight\": \"c.");
	REFUSED(ERR_FORMAT, "says that tensor lm_head.weight is in b.safetensors, but it is elsewhere",
		.sharded = true, .index_from = "\"lm_head.weight\": \"a.",
		.index_to = "\"lm_head.weight\": \"b.");
	REFUSED(ERR_FORMAT, "says that tensor ghost is in a.safetensors, but it is in no shard",
		.sharded = true, .index_from = "lm_head.weight", .index_to = "ghost");
	REFUSED(ERR_FORMAT, "must be a file name", .sharded = true, .index_from = "\"a.safetensors",
		.index_to = "\"../a.safetensors");
	REFUSED(ERR_FORMAT, "model.safetensors.index.json: there is a NUL in \"a.safetensors\\u0000...\"", .sharded = true,
		.index_from = "a.safetensors", .index_to = "a.safetensors\\u0000s");
	REFUSED(ERR_FORMAT, "\"weight_map\" must be an object", .sharded = true, .index_from = "weight_map",
		.index_to = "weights");
}

Test(model, config_json_names_what_is_missing_or_wrong)
{
	REFUSED(ERR_IO, "config.json", .config = "");
	REFUSED(ERR_FORMAT, "\"architectures\" is missing; docs/ADDING_A_MODEL.md lists the ", .config = "{}");
	REFUSED(ERR_UNSUPPORTED, "unknown architecture 'RwkvForCausalLM'; docs/ADDING_A_MODEL.md lists the ",
		.config_from = "LlamaForCausalLM", .config_to = "RwkvForCausalLM");
	REFUSED(ERR_UNSUPPORTED, "unknown architecture 'XForConditionalGeneration'; docs/ADDING_A_MODEL.md lists the ",
		.config_from = "LlamaForCausalLM", .config_to = "XForConditionalGeneration");
	REFUSED(ERR_FORMAT, "\"hidden_size\" is missing", .config_from = "\"hidden_size\"",
		.config_to = "\"size\"");
	REFUSED(ERR_FORMAT, "\"vocab_size\" is missing", .config_from = "\"vocab_size\": 20",
		.config_to = "\"x\": 1");
	REFUSED(ERR_FORMAT, "\"rms_norm_eps\" is missing", .config_from = "rms_norm_eps", .config_to = "eps");
	REFUSED(ERR_FORMAT, "\"num_hidden_layers\" must be an integer from 1 to 4096, found string",
		.config_from = "\"num_hidden_layers\": 2", .config_to = "\"num_hidden_layers\": \"2\"");
	REFUSED(ERR_INVALID, "\"num_hidden_layers\" is 0", .config_from = "\"num_hidden_layers\": 2",
		.config_to = "\"num_hidden_layers\": 0");
	REFUSED(ERR_INVALID, "num_attention_heads 4 is not a multiple of num_key_value_heads 3",
		.config_from = "\"num_key_value_heads\": 2", .config_to = "\"num_key_value_heads\": 3");
	REFUSED(ERR_INVALID, "hidden_size 8 is not a multiple of num_attention_heads 3",
		.config_from = "\"num_attention_heads\": 4", .config_to = "\"num_attention_heads\": 3");
	REFUSED(ERR_UNSUPPORTED, "heads of 3 dimensions", .config_from = "\"eos_token_id\"",
		.config_to = "\"head_dim\": 3, \"eos_token_id\"");
	REFUSED(ERR_UNSUPPORTED, "\"hidden_act\" is 'mish'; supported: silu",
		.config_from = "\"eos_token_id\"", .config_to = "\"hidden_act\": \"mish\", \"eos_token_id\"");
	REFUSED(ERR_NOT_FOUND, "has no tensor model.layers.0.self_attn.q_proj.bias ([8] expected)",
		.config_from = "\"eos_token_id\"", .config_to = "\"attention_bias\": true, \"eos_token_id\"");
	REFUSED(ERR_UNSUPPORTED, "\"quantization_config\": \"bits\" must be a number from 4 to 4", .config_from = "\"eos_token_id\"",
		.config_to = "\"quantization_config\": {\"quant_method\": \"awq\"}, \"eos_token_id\"");
	REFUSED(ERR_UNSUPPORTED, "\"bits\" must be a number from 4 to 4, found 3", .config_from = "\"eos_token_id\"",
		.config_to = "\"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 3}, \"eos_token_id\"");
	REFUSED(ERR_FORMAT, "\"rms_norm_eps\" must be a number above 0, found -1", .config_from = "1e-5", .config_to = "-1");
	REFUSED(ERR_FORMAT, "\"eos_token_id\" is -5; it must be a token id", .config_from = "\"eos_token_id\": 3",
		.config_to = "\"eos_token_id\": -5");
	REFUSED(ERR_INVALID, "a context of 1 (max_position_embeddings) leaves no room", .config_from = "_embeddings\": 64",
		.config_to = "_embeddings\": 1");
	REFUSED(ERR_UNSUPPORTED, "\"torch_dtype\" is 'float64'", .config_from = "float32",
		.config_to = "float64");
	REFUSED(ERR_INVALID, "\"eos_token_id\" 20 is not below vocab_size 20",
		.config_from = "\"eos_token_id\": 3", .config_to = "\"eos_token_id\": [3, 20]");
	REFUSED(ERR_FORMAT, "generation_config.json: \"eos_token_id\" must be",
		.generation = "{\"eos_token_id\": \"x\"}");
}

Test(model, rope_scaling_must_be_known_and_whole)
{
#define SCALING(json) \
	.config_from = "\"eos_token_id\"", .config_to = "\"rope_scaling\": " json ", \"eos_token_id\""
	REFUSED(ERR_UNSUPPORTED,
		"rope_scaling of type 'ntk' is not supported; supported: default, linear, dynamic, llama3, yarn, "
		"longrope",
		SCALING("{\"rope_type\": \"ntk\", \"factor\": 2}"));
	REFUSED(ERR_FORMAT, "\"factor\" is missing", SCALING("{\"type\": \"linear\"}"));
	REFUSED(ERR_INVALID, "it must be at least 1", SCALING("{\"type\": \"linear\", \"factor\": 0.01}"));
	REFUSED(ERR_FORMAT, "\"low_freq_factor\" is missing",
		SCALING("{\"rope_type\": \"llama3\", \"factor\": 8}"));
	REFUSED(ERR_INVALID, "must not be below \"low_freq_factor\"",
		SCALING("{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
			"\"high_freq_factor\": 3, \"original_max_position_embeddings\": 32}"));
	REFUSED(ERR_FORMAT, "\"rope_scaling\" must be an object or null", SCALING("3"));
}

Test(model, rope_parameters_of_newer_files_are_the_same_as_the_older_fields)
{
	struct tiny_model old = {SCALING("{\"type\": \"linear\", \"factor\": 2.5}, \"rope_theta\": 500")};
	struct tiny_model new = {.config_from = "\"eos_token_id\"",
				 .config_to = "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": "
					      "2.5, \"rope_theta\": 500}, \"eos_token_id\""};
	struct model_config a, b;
	struct err_msg em;

	tiny_model_write(&old);
	tiny_model_write(&new);
	cr_assert_eq(model_config_read(&a, old.dir, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(model_config_read(&b, new.dir, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(a.rope.kind, ROPE_LINEAR);
	cr_assert_eq(b.rope.kind, ROPE_LINEAR);
	cr_assert_eq(a.rope.theta, 500);
	cr_assert_eq(b.rope.theta, 500);
	cr_assert_eq(b.context_max, 160);
	cr_assert_eq(rope_frequency(&a.rope, 0, 1), 0.4);
	tiny_model_remove(&old);
	tiny_model_remove(&new);
}

Test(model, end_ids_come_from_both_files_once)
{
	struct tiny_model m = {.generation = "{\"eos_token_id\": [3, 5, 5]}"};
	struct model_config c;
	struct err_msg em;

	tiny_model_write(&m);
	cr_assert_eq(model_config_read(&c, m.dir, &em), ERR_OK);
	cr_assert_eq(c.eos_count, 2);
	cr_assert_eq(c.eos_ids[0], 3);
	cr_assert_eq(c.eos_ids[1], 5);
	tiny_model_remove(&m);
}

Test(model, memory_that_does_not_suffice_is_refused_with_what_would_do)
{
	struct tiny_model m = {0};
	struct runner *r;
	struct err_msg em;

	tiny_model_write(&m);
	/* A block of 4 tokens: 2 layers * 2 * 2 heads * 2 dimensions * 4 bytes * 4 = 256 bytes. */
	cr_assert_eq(load(m.dir, &r, OPTION_DTYPE_FLOAT32, 1024, 0, &em), ERR_NO_SPACE);
	cr_assert(strstr(em.text, "one sequence of 64 tokens needs 1 MiB"), "%s", em.text);
	cr_assert(strstr(em.text, "--max-model-len 16"), "%s", em.text);
	cr_assert_eq(load(m.dir, &r, OPTION_DTYPE_FLOAT32, 1024, 16, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(r->block_count, 4);
	runner_destroy(&r);
	cr_assert_eq(load(m.dir, &r, OPTION_DTYPE_FLOAT32, 1ull << 50, 0, &em), ERR_NO_SPACE);
	cr_assert(strstr(em.text, "--kv-cache-memory asks for 1073741824 MiB"), "%s", em.text);
	cr_assert_eq(load(m.dir, &r, OPTION_DTYPE_FLOAT32, 0, 65, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "--max-model-len 65 is more than the model's 64"), "%s", em.text);
	cr_assert_eq(load(m.dir, &r, OPTION_DTYPE_FLOAT32, 0, 1, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "from 2 to 64"), "%s", em.text);
	cr_assert_eq(load(m.dir, &r, OPTION_DTYPE_FLOAT32, 16, 0, &em), ERR_NO_SPACE);
	cr_assert(strstr(em.text, "one block of"), "%s", em.text);
	tiny_model_remove(&m);
}

Test(model, weights_beyond_the_memory_are_refused)
{
	struct tiny_model m = {0};
	struct model_config config;
	struct model_shard shard;
	struct safetensors *st;
	struct model_weights w;
	struct err_msg em;

	tiny_model_write(&m);
	cr_assert_eq(model_config_read(&config, m.dir, &em), ERR_OK);
	cr_assert_eq(model_shard_init(&shard, &config, 0, 1, &em), ERR_OK);
	cr_assert_eq(safetensors_open(&st, m.dir, &em), ERR_OK);
	struct weights_plan plan = {.config = &config,
				    .shard = &shard,
				    .checkpoint = st,
				    .dtype = KERN_F32,
				    .memory_available = 1000};
	cr_assert_eq(model_weights_load(&w, &plan, &em), ERR_NO_SPACE);
	cr_assert(strstr(em.text, "the weights need 1 MiB in float32, 0 MiB are available"), "%s", em.text);
	cr_assert(strstr(em.text, "--dtype bfloat16 needs half"), "%s", em.text);
	safetensors_close(&st);
	tiny_model_remove(&m);
}

Test(model, a_group_size_that_does_not_divide_is_refused)
{
	struct model_config c = {
		.arch = arch_find("LlamaForCausalLM"), .heads = 12, .kv_heads = 4, .intermediate = 60, .vocab_size = 7, .hidden = 8};
	struct model_shard s;
	struct err_msg em;

	cr_assert_eq(model_shard_init(&s, &c, 0, 5, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "12 attention heads"));
	cr_assert_eq(model_shard_init(&s, &c, 0, 3, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "4 KV heads"));
	c.intermediate = 61;
	cr_assert_eq(model_shard_init(&s, &c, 0, 2, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "intermediate_size 61"));
}

Test(model, ranks_cover_the_vocabulary_and_share_kv_heads)
{
	struct model_config c = {
		.arch = arch_find("LlamaForCausalLM"), .heads = 8, .kv_heads = 2, .intermediate = 16, .vocab_size = 10, .hidden = 8};
	struct model_shard s;
	u32 next = 0;

	for (u32 r = 0; r < 4; r++) {
		cr_assert_eq(model_shard_init(&s, &c, r, 4, NULL), ERR_OK);
		cr_assert_eq(s.vocab_first, next);
		next += s.vocab_rows;
		cr_assert_eq(s.heads, 2);
		cr_assert_eq(s.kv_heads, 1);
		cr_assert_eq(model_shard_kv_first(&s, &c, 0), r / 2);
	}
	cr_assert_eq(next, 10);
}
