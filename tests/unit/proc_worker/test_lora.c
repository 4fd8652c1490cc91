/* Adapters beside a model: they do what the same adapter merged into the weights does, whatever shares the batch; and folders
 * that cannot be used, each with its clear error. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proc_worker/model/lora_priv.h"
#include "tests/unit/proc_worker/batch_fixture.h"
#include "tests/unit/proc_worker/driver.h"
#include "tests/unit/proc_worker/lora_fixture.h"
#include "tests/unit/proc_worker/tiny_model.h"

enum { VOCAB = 20, PROMPT = 17, ADAPTERS = 2, REQUESTS = 6, OUTPUTS = 9 };

static const u32 PROMPT_IDS[PROMPT] = {4, 9, 1, 17, 8, 8, 2, 12, 0, 5, 19, 6, 7, 13, 11, 2, 10};

static const char PHI3[] =
	"{\"architectures\": [\"Phi3ForCausalLM\"], \"vocab_size\": 20, \"hidden_size\": 8, \"intermediate_size\": 12, "
	"\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 64, "
	"\"rms_norm_eps\": 1e-5, \"torch_dtype\": \"float32\", \"eos_token_id\": 3, \"pad_token_id\": 3}";

struct answer {
	float logits[PROMPT * VOCAB];
	u32 output[OUTPUTS];
};

/* Requests number i of adapter numbers[i], all in one batch. */
static void run(const char *dir, const struct lora_modules *loras, u32 ranks, u32 chunk, const u32 *numbers, u32 count,
		struct answer *out)
{
	static struct driver_request requests[REQUESTS];
	static struct driver d;
	struct driver_config c = {.model_dir = dir, .dtype = OPTION_DTYPE_FLOAT32, .loras = loras, .ranks = ranks, .threads = 2,
				  .caps = kern_caps_detect(), .rows_max = 4, .tokens_max = 40, .block_size = 4, .chunk = chunk,
				  .preempt_every = 7, .seed = 3};

	memset(requests, 0, sizeof(requests));
	for (u32 i = 0; i < count; i++)
		requests[i] = (struct driver_request){.prompt = PROMPT_IDS, .prompt_count = PROMPT, .output_count = OUTPUTS,
						      .lora = numbers[i], .prompt_logits = out[i].logits};
	driver_open(&d, &c);
	driver_run(&d, requests, count);
	driver_close(&d);
	for (u32 i = 0; i < count; i++)
		memcpy(out[i].output, requests[i].output, sizeof(out[i].output));
}

static void expect_same(const struct answer *got, const struct answer *want, const char *what)
{
	for (u32 i = 0; i < PROMPT * VOCAB; i++)
		cr_assert_lt(fabsf(got->logits[i] - want->logits[i]), 1e-4f, "%s: logit %u is %g, merged %g", what, i,
			     (double)got->logits[i], (double)want->logits[i]);
	cr_assert(memcmp(got->output, want->output, sizeof(got->output)) == 0, "%s: other tokens", what);
}

static bool differ(const struct answer *a, const struct answer *b)
{
	float most = 0;

	for (u32 i = 0; i < PROMPT * VOCAB; i++)
		most = fmaxf(most, fabsf(a->logits[i] - b->logits[i]));
	return most > 1e-2f;
}

static struct lora_modules modules_of(struct lora_module *items, struct lora_fixture *f, u32 count)
{
	static char name[] = "some";

	for (u32 i = 0; i < count; i++) {
		lora_fixture_write(&f[i]);
		items[i] = (struct lora_module){name, f[i].dir};
	}
	return (struct lora_modules){items, count, 16};
}

/* What the model alone, and merged with each adapter, says. */
static void merged(struct tiny_model base, struct lora_fixture *f, struct answer *out)
{
	static const u32 none[1] = {0};

	for (u32 i = 0; i <= ADAPTERS; i++) {
		base.more = i ? lora_fixture_more : NULL;
		base.more_ctx = i ? &f[i - 1] : NULL;
		tiny_model_write(&base);
		run(base.dir, NULL, 1, PROMPT, none, 1, &out[i]);
		tiny_model_remove(&base);
	}
}

static void compare(struct tiny_model base, struct lora_fixture *f, u32 ranks, u32 chunk)
{
	static struct answer want[ADAPTERS + 1], got[REQUESTS];
	static const u32 numbers[REQUESTS] = {1, 0, 2, 2, 1, 0};
	struct lora_module items[ADAPTERS];
	struct lora_modules loras = modules_of(items, f, ADAPTERS);

	merged(base, f, want);
	cr_assert(differ(&want[0], &want[1]) && differ(&want[0], &want[2]), "the adapters change something");
	tiny_model_write(&base);
	run(base.dir, &loras, ranks, chunk, numbers, REQUESTS, got);
	for (u32 i = 0; i < REQUESTS; i++)
		expect_same(&got[i], &want[numbers[i]], numbers[i] ? "an adapter" : "no adapter");
	tiny_model_remove(&base);
	for (u32 i = 0; i < ADAPTERS; i++)
		lora_fixture_remove(&f[i]);
}

Test(lora, rows_of_several_adapters_and_of_none_are_as_if_merged)
{
	struct lora_fixture f[ADAPTERS] = {{.seed = 1, .rank = 4}, {.seed = 2, .rank = 7}};

	compare((struct tiny_model){0}, f, 1, 5);
}

Test(lora, ranks_add_their_slices_up)
{
	struct lora_fixture f[ADAPTERS] = {{.seed = 1, .rank = 3}, {.seed = 2, .only = "self_attn"}};

	compare((struct tiny_model){0}, f, 2, 5);
}

Test(lora, some_modules_in_any_type)
{
	struct lora_fixture f[ADAPTERS] = {{.seed = 3, .dtype = "BF16", .only = "down_proj"}, {.seed = 4, .dtype = "F16", .only = "k_proj"}};

	compare((struct tiny_model){0}, f, 1, PROMPT);
}

Test(lora, matrices_that_are_fused_in_the_file_share_what_they_read)
{
	struct lora_fixture f[ADAPTERS] = {{.seed = 5, .fused = true}, {.seed = 6, .fused = true, .rank = 1}};

	compare((struct tiny_model){.config = PHI3, .fused = true}, f, 1, 5);
	compare((struct tiny_model){.config = PHI3, .fused = true}, f, 2, 5);
}

Test(lora, scales_follow_the_configuration)
{
	struct lora_fixture f[ADAPTERS] = {
		{.seed = 7, .rank = 4, .more_config = ", \"use_rslora\": true", .scale = 4},
		{.seed = 8, .rank = 4, .only = "o_proj", .more_config = ", \"alpha_pattern\": {\"o_proj\": 2}", .scale = 0.5}};

	compare((struct tiny_model){0}, f, 1, 5);
}

Test(lora, a_module_may_have_a_rank_of_its_own)
{
	struct lora_fixture f[ADAPTERS] = {
		{.seed = 9, .rank = 4, .double_rank_layer = 2, .only = "q_proj", .scale = 2,
		 .more_config = ", \"rank_pattern\": {\"layers.1.self_attn.q_proj\": 8}, \"alpha_pattern\": {\".*layers\\\\.1\\\\..*\": 16}"},
		{.seed = 10}};

	compare((struct tiny_model){0}, f, 1, 5);
}

/* As PEFT calls the modules of a model of several parts, whose language part alone is computed. */
Test(lora, modules_may_have_the_names_of_a_whole)
{
	struct lora_fixture f[ADAPTERS] = {
		{.seed = 11, .whole = "model.language_model.", .only = "self_attn",
		 .config = "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"target_modules\": \".*language_model.*self_attn\\\\.(q|k|v|o)_proj\"}"},
		{.seed = 12, .whole = "thinker.model."}};

	compare((struct tiny_model){0}, f, 1, 5);
}

/* ---------------------------------------------------------------- refusals */

static void folder_refused(struct lora_fixture *f, enum err expected, const char *text)
{
	struct tiny_model model = {0};
	struct lora_module item;
	struct lora_modules loras = modules_of(&item, f, 1);
	struct err_msg em = {""};
	struct runner *r;

	tiny_model_write(&model);
	struct runner_config c = {.model_dir = model.dir, .loras = &loras, .ranks = 1, .threads = 1,
				  .limits = {.rows_max = 4, .tokens_max = 16, .block_size = 4}, .memory_utilization = 0.5};
	enum err e = runner_create(&r, &c, &em);
	tiny_model_remove(&model);
	lora_fixture_remove(f);
	cr_assert_eq(e, expected, "%s: %s", err_name(e), em.text);
	cr_assert(strstr(em.text, text), "'%s' is not in '%s'", text, em.text);
	cr_assert(strstr(em.text, "adapter \"some\""), "'%s' does not say whose fault it is", em.text);
}

#define FOLDER_REFUSED(e, text, ...) folder_refused(&(struct lora_fixture){.seed = 1, __VA_ARGS__}, e, text)

Test(lora, folders_that_are_not_whole_are_refused)
{
	FOLDER_REFUSED(ERR_NOT_FOUND, "adapter_config.json", .config = "");
	FOLDER_REFUSED(ERR_NOT_FOUND, "adapter_model.safetensors", .no_tensors = true);
	FOLDER_REFUSED(ERR_FORMAT, "lora_B of model.layers.1.mlp.up_proj is missing", .skip = "layers.1.mlp.up_proj.lora_B");
	FOLDER_REFUSED(ERR_FORMAT, "lora_A of model.layers.0.self_attn.q_proj is missing", .skip = "0.self_attn.q_proj.lora_A");
	FOLDER_REFUSED(ERR_FORMAT, "no matrices of model.layers.1.self_attn.v_proj", .skip = "layers.1.self_attn.v_proj",
		.config = "{\"r\": 4, \"lora_alpha\": 8, \"target_modules\": [\"self_attn.q_proj\", \"k_proj\", \"v_proj\", \"o_proj\", "
			  "\"gate_proj\", \"up_proj\", \"down_proj\"]}");
	FOLDER_REFUSED(ERR_FORMAT, "is empty", .only = "nothing at all");
}

Test(lora, shapes_and_ranks_that_do_not_fit_are_refused)
{
	FOLDER_REFUSED(ERR_FORMAT, "q_proj.lora_B.weight has the shape [9, 4]; by the model (outputs)", .longer = "0.self_attn.q_proj.lora_B");
	FOLDER_REFUSED(ERR_FORMAT, "down_proj.lora_A.weight has the shape [5, 12]", .longer = "0.mlp.down_proj.lora_A");
	FOLDER_REFUSED(ERR_INVALID, "rank 17; --max-lora-rank is 16", .rank = 17);
	FOLDER_REFUSED(ERR_FORMAT, "must be [3, 8]", .config = "{\"r\": 3, \"lora_alpha\": 8, \"target_modules\": \"all-linear\"}");
}

Test(lora, tensors_that_nothing_can_be_done_with_are_refused_by_name)
{
	FOLDER_REFUSED(ERR_UNSUPPORTED, "base_model.model.lm_head.lora_A.weight", .extra = "base_model.model.lm_head.lora_A.weight");
	FOLDER_REFUSED(ERR_UNSUPPORTED, "lora_embedding_A", .extra = "base_model.model.model.embed_tokens.lora_embedding_A");
	FOLDER_REFUSED(ERR_UNSUPPORTED, "model's 2 layers", .extra = "base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight");
	FOLDER_REFUSED(ERR_UNSUPPORTED, "lora_magnitude_vector",
		.extra = "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector");
}

static void config_refused(const char *members, enum err expected, const char *text)
{
	struct lora_config c;
	struct err_msg em = {""};
	char json[500];

	int bytes = snprintf(json, sizeof(json), "{\"r\": 4, \"lora_alpha\": 8, \"target_modules\": [\"q_proj\"]%s}", members);
	enum err e = lora_config_parse(&c, json, (size_t)bytes, &em);
	cr_assert_eq(e, expected, "%s: %s: %s", members, err_name(e), em.text);
	cr_assert(strstr(em.text, text), "'%s' is not in '%s'", text, em.text);
	lora_config_fini(&c);
}

Test(lora, what_is_not_computed_is_refused_by_the_name_of_its_field)
{
	static const char *const off[] = {"use_dora", "use_qalora", "use_bdlora", "lora_bias", "something_new"};
	static const char *const lists[] = {"modules_to_save", "layer_replication", "trainable_token_indices",
					    "alora_invocation_tokens", "target_parameters"};
	char members[100];

	for (u32 i = 0; i < COUNT_OF(off); i++) {
		snprintf(members, sizeof(members), ", \"%s\": false", off[i]);
		config_refused(members, ERR_OK, "");
		snprintf(members, sizeof(members), ", \"%s\": true", off[i]);
		config_refused(members, ERR_UNSUPPORTED, off[i]);
	}
	config_refused(", \"fan_in_fan_out\": true", ERR_OK, ""); /* as all adapters of GPT-2 have it */
	for (u32 i = 0; i < COUNT_OF(lists); i++) {
		snprintf(members, sizeof(members), ", \"%s\": []", lists[i]);
		config_refused(members, ERR_OK, "");
		snprintf(members, sizeof(members), ", \"%s\": [1]", lists[i]);
		config_refused(members, ERR_UNSUPPORTED, lists[i]);
	}
	config_refused(", \"megatron_config\": {\"x\": 1}", ERR_UNSUPPORTED, "megatron_config");
	config_refused(", \"bias\": \"lora_only\"", ERR_UNSUPPORTED, "\"bias\" is \"lora_only\"; supported is \"none\"");
	config_refused(", \"peft_type\": \"LOHA\"", ERR_UNSUPPORTED, "\"peft_type\" is \"LOHA\"");
	config_refused(", \"init_lora_weights\": \"pissa_niter_4\"", ERR_UNSUPPORTED, "pissa_niter_4");
	config_refused(", \"init_lora_weights\": false, \"exclude_modules\": [\"x\"], \"revision\": null", ERR_OK, "");
}

Test(lora, numbers_and_lists_are_checked)
{
	config_refused(", \"r\": 0", ERR_INVALID, "\"r\" must be a whole number");
	config_refused(", \"r\": 2.5", ERR_INVALID, "\"r\" must be a whole number");
	config_refused(", \"lora_alpha\": \"x\"", ERR_INVALID, "\"lora_alpha\"");
	config_refused(", \"rank_pattern\": [1]", ERR_FORMAT, "\"rank_pattern\" must be an object");
	config_refused(", \"rank_pattern\": {\"q_proj\": 1.5}", ERR_INVALID, "\"q_proj\"");
	config_refused(", \"alpha_pattern\": {\"q_proj\": -1}", ERR_INVALID, "\"q_proj\"");
	config_refused(", \"target_modules\": []", ERR_FORMAT, "target_modules");
	config_refused(", \"target_modules\": [3]", ERR_FORMAT, "target_modules");
	config_refused(", \"target_modules\": [\"q_proj\", \"\"]", ERR_FORMAT, "target_modules");
	config_refused(", \"layers_to_transform\": \"all\"", ERR_FORMAT, "layers_to_transform");
	config_refused(", \"layers_to_transform\": [0, -1]", ERR_FORMAT, "layers_to_transform");
	config_refused(", \"layers_pattern\": [1]", ERR_FORMAT, "\"layers_pattern\" must be a text or a list of texts");
	config_refused(", \"exclude_modules\": 3", ERR_FORMAT, "\"exclude_modules\" must be a text or a list of texts");
	FOLDER_REFUSED(ERR_FORMAT, "no regular expression", .more_config = ", \"rank_pattern\": {\"(\": 3}");
	config_refused(", \"use_rslora\\u0000\": true", ERR_FORMAT, "there is a NUL in \"use_rslora\\u0000...\"");
	config_refused(", \"rank_pattern\": {\"q_proj\\u0000x\": 3}", ERR_FORMAT, "there is a NUL in \"q_proj\\u0000...\"");
	config_refused(", \"exclude_modules\": [\"k_proj\", \"v_proj\\u0000\"]", ERR_FORMAT, "there is a NUL in \"v_proj\\u0000...\"");
}

/* What the configuration with these members says of a module. */
static void expect_use(const char *members, const char *module, u32 layer, enum lora_use use, const char *by)
{
	struct lora_config c;
	struct err_msg em = {""};
	char json[500];
	enum lora_use found;
	const char *field;

	int bytes = snprintf(json, sizeof(json), "{\"r\": 4, \"lora_alpha\": 8, %s}", members);
	cr_assert_eq(lora_config_parse(&c, json, (size_t)bytes, &em), ERR_OK, "%s: %s", members, em.text);
	cr_assert_eq(lora_config_use(&c, module, layer, &found, &field, &em), ERR_OK, "%s: %s", members, em.text);
	cr_assert_eq(found, use, "%s: %s: %d", members, module, found);
	cr_assert_str_eq(field ? field : "", by, "%s: %s", members, module);
	lora_config_fini(&c);
}

Test(lora, targets_are_demanded_in_the_layers_that_are_listed)
{
	static const char list[] = "\"target_modules\": [\"q_proj\", \"mlp.up_proj\", \"model.layers.0.mlp.up_proj\"], "
				   "\"layers_to_transform\": [1, 3]";

	expect_use(list, "model.layers.1.self_attn.q_proj", 1, LORA_USE_YES, "");
	expect_use(list, "model.layers.3.mlp.up_proj", 3, LORA_USE_YES, "");
	expect_use(list, "model.layers.0.self_attn.q_proj", 0, LORA_USE_NO, "layers_to_transform");
	expect_use(list, "model.layers.0.mlp.up_proj", 0, LORA_USE_YES, ""); /* by its whole name */
	expect_use(list, "model.layers.1.self_attn.xq_proj", 1, LORA_USE_NO, "target_modules");
	expect_use(list, "model.layers.1.mlp.down_proj", 1, LORA_USE_NO, "target_modules");
	expect_use("\"target_modules\": [\"q_proj\"], \"layers_to_transform\": []", "model.layers.0.self_attn.q_proj", 0, LORA_USE_YES, "");
	expect_use("\"target_modules\": [\"q_proj\"], \"layers_to_transform\": 1", "model.layers.0.self_attn.q_proj", 0, LORA_USE_NO,
		"layers_to_transform");
}

Test(lora, layers_are_those_behind_the_pattern)
{
	static const char by_list[] = "\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [1], \"layers_pattern\": [\"h\", \"layers\"]";
	static const char by_other[] = "\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [1], \"layers_pattern\": \"blocks\"";
	static const char alone[] = "\"target_modules\": [\"q_proj\"], \"layers_pattern\": \"blocks\"";

	expect_use(by_list, "model.layers.1.self_attn.q_proj", 1, LORA_USE_YES, "");
	expect_use(by_list, "model.layers.0.self_attn.q_proj", 0, LORA_USE_NO, "layers_to_transform");
	expect_use(by_other, "model.layers.1.self_attn.q_proj", 1, LORA_USE_NO, "layers_pattern");
	expect_use(alone, "model.layers.1.self_attn.q_proj", 1, LORA_USE_YES, "");
}

Test(lora, what_is_excluded_is_no_target)
{
	static const char names[] = "\"target_modules\": [\"q_proj\", \"v_proj\"], \"exclude_modules\": [\"layers.1.self_attn.q_proj\"]";
	static const char fits[] = "\"target_modules\": \"all-linear\", \"exclude_modules\": \".*\\\\.mlp\\\\..*\"";

	expect_use(names, "model.layers.0.self_attn.q_proj", 0, LORA_USE_YES, "");
	expect_use(names, "model.layers.1.self_attn.q_proj", 1, LORA_USE_NO, "exclude_modules");
	expect_use(names, "model.layers.1.self_attn.v_proj", 1, LORA_USE_YES, "");
	expect_use(fits, "model.layers.1.self_attn.v_proj", 1, LORA_USE_OPEN, "");
	expect_use(fits, "model.layers.1.mlp.up_proj", 1, LORA_USE_NO, "exclude_modules");
	/* An expression is for the whole name. */
	expect_use("\"target_modules\": \"q_proj\"", "model.layers.1.self_attn.q_proj", 1, LORA_USE_NO, "target_modules");
	expect_use("\"target_modules\": \".*q_proj\"", "model.layers.1.self_attn.q_proj", 1, LORA_USE_OPEN, "");
}

#define CONFIG(members) "{\"r\": 4, \"lora_alpha\": 8, " members "}"

Test(lora, names_of_a_whole_are_of_its_language_part_only)
{
	FOLDER_REFUSED(ERR_INVALID, "is named by \".*language_model.*\"", .config = "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, "
											  "\"target_modules\": \".*language_model.*\"}");
	FOLDER_REFUSED(ERR_UNSUPPORTED, "base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight", .whole = "model.language_model.",
		.extra = "base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight");
}

Test(lora, targets_that_name_nothing_of_the_model_are_refused)
{
	FOLDER_REFUSED(ERR_INVALID, "\"target_modules\": no module of the model is named by c_attn, xq_proj; adapters can change q_proj, k_proj, "
				    "v_proj, o_proj, gate_proj, up_proj, down_proj",
		.config = CONFIG("\"target_modules\": [\"q_proj\", \"c_attn\", \"xq_proj\", \"c_attn\"]"));
	FOLDER_REFUSED(ERR_INVALID, "is named by \"model.h.*\"", .config = CONFIG("\"target_modules\": \"model.h.*\""));
	char config[1000]; /* a name too long to be repeated is refused all the same */
	snprintf(config, sizeof(config), CONFIG("\"target_modules\": [\"q_proj\", \"%0700d\", \"c_attn\"]"), 0);
	FOLDER_REFUSED(ERR_INVALID, "0, c_attn; adapters can change", .config = config);
	FOLDER_REFUSED(ERR_FORMAT, "\"(\" is no regular expression", .config = CONFIG("\"target_modules\": \"(\""));
	FOLDER_REFUSED(ERR_INVALID, "names layer 2; the model has layers 0 to 1",
		.config = CONFIG("\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [0, 2]"));
	FOLDER_REFUSED(ERR_INVALID, "names layer 4294967296;",
		.config = CONFIG("\"target_modules\": [\"q_proj\"], \"layers_to_transform\": 4294967296"));
	FOLDER_REFUSED(ERR_INVALID, "\"layers_to_transform\" goes with a list",
		.config = CONFIG("\"target_modules\": \".*q_proj\", \"layers_to_transform\": [0]"));
}

Test(lora, tensors_that_the_configuration_leaves_out_are_refused)
{
	FOLDER_REFUSED(ERR_FORMAT, "tensor base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight, but by \"target_modules\"",
		.config = CONFIG("\"target_modules\": [\"q_proj\"]"));
	FOLDER_REFUSED(ERR_FORMAT, "tensor base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight, but by \"layers_to_transform\"",
		.only = "q_proj", .config = CONFIG("\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [1]"));
	FOLDER_REFUSED(ERR_FORMAT, "but by \"layers_pattern\"", .only = "layers.1.self_attn.q_proj",
		.config = CONFIG("\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [1], \"layers_pattern\": \"h\""));
	FOLDER_REFUSED(ERR_FORMAT, "layers.1.mlp.up_proj.lora_A.weight, but by \"exclude_modules\"",
		.config = CONFIG("\"target_modules\": \"all-linear\", \"exclude_modules\": [\"1.mlp.up_proj\"]"));
	/* Excluded, so not missing; and what is not excluded is. */
	FOLDER_REFUSED(ERR_FORMAT, "no matrices of model.layers.1.self_attn.q_proj", .only = "layers.7",
		.config = CONFIG("\"target_modules\": [\"q_proj\"], \"exclude_modules\": [\"0.self_attn.q_proj\"]"));
}

Test(lora, values_that_are_not_finite_are_refused_by_the_name_of_their_tensor)
{
	static const char *const types[] = {NULL, "F16", "BF16"};

	for (u32 i = 0; i < COUNT_OF(types); i++) {
		FOLDER_REFUSED(ERR_FORMAT, "tensor base_model.model.model.layers.1.mlp.up_proj.lora_B.weight has the value NaN at [",
			.dtype = types[i], .strange = "layers.1.mlp.up_proj.lora_B", .strange_value = NAN);
		FOLDER_REFUSED(ERR_FORMAT, "layers.0.self_attn.q_proj.lora_A.weight has the value -infinity at [", .dtype = types[i],
			.strange = "layers.0.self_attn.q_proj.lora_A", .strange_value = -INFINITY);
	}
}

/* ---------------------------------------------------------------- rows */

Test(lora, an_adapter_stays_with_its_row_and_with_its_forks)
{
	struct batch_state *b = create();
	struct mirror *m = mirror();
	struct mirror_add plain = prompt(0, 1, 3, 1), adapted = prompt(1, 2, 4, 1);
	struct err_msg em;

	b->limits.lora_count = 2;
	adapted.lora = 2;
	mirror_begin(m);
	mirror_add(m, &plain);
	mirror_add(m, &adapted);
	mirror_run(m, 0, 3);
	mirror_run(m, 1, 4);
	step(m, b, TOKENS);
	cr_assert_eq(b->rows[0].lora, 0);
	cr_assert_eq(b->rows[1].lora, 2);
	mirror_begin(m);
	mirror_fork(m, 3, 1, 4, UINT32_MAX);
	mirror_grow(m, 1, 30);
	mirror_grow(m, 3, 31);
	step(m, b, TOKENS);
	cr_assert_eq(b->rows[3].lora, 2);
	/* A row that follows in its place has none. */
	mirror_begin(m);
	mirror_drop(m, 1);
	mirror_grow(m, 0, 32);
	plain.row = 1;
	plain.seq = 9;
	mirror_add(m, &plain);
	mirror_run(m, 1, 3);
	step(m, b, TOKENS);
	cr_assert_eq(b->rows[1].lora, 0);
	mirror_begin(m);
	adapted = prompt(2, 10, 3, 1);
	adapted.lora = 3;
	mirror_add(m, &adapted);
	cr_assert_eq(batch_state_apply(b, mirror_end(m), &em), ERR_INVALID);
	cr_assert(strstr(em.text, "add_lora[0] is 3; this worker has 2 adapters"), "%s", em.text);
	batch_state_destroy(&b);
}
