/* Kimi Linear: what its config.json says of layers with Kimi delta attention and of the others, what a rank has of their weights, and that answers do
 * not depend on how they are computed. What they are is compared with transformers in test_families.c. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "proc_worker/model/weights_priv.h"
#include "tests/unit/proc_worker/config_said.h"
#include "tests/unit/proc_worker/random_model.h"
#include "tests/unit/proc_worker/random_runs.h"

#define KIMI "KimiLinearForCausalLM"
#define SIZES                                                                                             \
	"\"vocab_size\": 96, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 4, " \
	"\"num_attention_heads\": 4, \"model_max_length\": 256"
#define HEADS "\"kv_lora_rank\": 24, \"q_lora_rank\": null, \"qk_nope_head_dim\": 10, \"qk_rope_head_dim\": 6, \"v_head_dim\": 12"
#define EXPERTS "\"num_experts\": 8, \"num_experts_per_token\": 3, \"moe_intermediate_size\": 20"
#define REST HEADS ", " EXPERTS
#define LINEAR(more) "\"linear_attn_config\": {" more "}"
#define LISTS "\"full_attn_layers\": [2, 4], \"kda_layers\": [1, 3]"
#define STATE LINEAR(LISTS ", \"head_dim\": 6, \"num_heads\": 8, \"short_conv_kernel_size\": 3")
#define ALL REST ", " STATE
#define TYPES(a, b, c, d) "\"layer_types\": [\"" a "_attention\", \"" b "_attention\", \"" c "_attention\", \"" d "_attention\"]"
#define MODEL "{\"architectures\": [\"" KIMI "\"], " SIZES ", " ALL "}"

static struct model_config c;
static struct err_msg em;

#define good(more)		   said_good(&c, KIMI, SIZES, more)
#define refused(more, error, text) said_refused(KIMI, SIZES, more, error, text)

static u32 layers_with(u32 flag)
{
	u32 bits = 0;

	for (u32 i = 0; i < c.layers; i++)
		bits |= (u32)(c.layer_flags[i] & flag ? 1 : 0) << i;
	return bits;
}

/* ---------------------------------------------------------------- config.json */

Test(kimi, layers_keep_states_or_attend_to_latents_that_do_not_rotate)
{
	const struct recurrent_config *r = &c.recurrent;

	good(ALL ", \"head_dim\": 12, \"mla_use_nope\": true, \"rope_theta\": 10000.0, \"rope_scaling\": null, \"use_grouped_topk\": true, "
		 "\"num_key_value_heads\": 4, \"num_nextn_predict_layers\": 0, \"moe_layer_freq\": 1, \"moe_router_activation_func\": \"sigmoid\"");
	cr_assert(r->kind == RECURRENT_KDA && r->taps == 3 && r->heads == 8 && r->key_heads == 8 && r->key_dim == 6 && r->value_dim == 6 && r->normed);
	cr_assert(layers_with(LAYER_RECURRENT) == 5 && layers_with(LAYER_NO_ROPE) == 15 && !model_attends(&c, 0) && model_attends(&c, 1));
	cr_assert(c.head_dim == 30 && c.kv_heads == 1 && c.latent.rank == 24 && c.latent.q_rank == 0 && c.attention_scale == 0.25f);
	cr_assert_eq(c.rope.dim, 2);
	cr_assert(c.context_max == 256 && c.norm_eps == 1e-5f && r->gate_eps == 1e-5f && !c.tied_embeddings && !c.output_gate && !c.attention_bias);
}

Test(kimi, sizes_may_stand_beside_the_lists)
{
	const struct recurrent_config *r = &c.recurrent;

	good(REST ", " TYPES("full", "linear", "linear", "full") ", \"linear_head_dim\": 5, \"linear_num_heads\": 7, \"linear_conv_kernel_dim\": 2");
	cr_assert(layers_with(LAYER_RECURRENT) == 6 && r->key_dim == 5 && r->heads == 7 && r->taps == 2);
	good(ALL ", " TYPES("linear", "full", "linear", "full") ", \"linear_head_dim\": 6, \"linear_num_heads\": 8, \"linear_conv_kernel_dim\": 3");
	cr_assert(layers_with(LAYER_RECURRENT) == 5 && r->key_dim == 6 && r->heads == 8 && r->taps == 3);
	good(REST ", " LINEAR(LISTS));
	cr_assert(r->key_dim == 128 && r->heads == 32 && r->taps == 4);
	good(REST ", " TYPES("full", "full", "full", "full"));
	cr_assert(r->kind == RECURRENT_NONE && layers_with(LAYER_NO_ROPE) == 15);
}

Test(kimi, experts_are_routed_as_in_deepseek_v3)
{
	good(ALL);
	cr_assert(layers_with(LAYER_EXPERTS) == 14 && c.experts == 8 && c.experts_per_token == 3 && c.shared_intermediate == 20 && c.normalize_experts);
	cr_assert(c.router.sigmoid && c.router.groups == 1 && c.router.scale == 2.446f && c.router.sum_plus == 1e-20f);
	good(ALL ", \"first_k_dense_replace\": 2, \"moe_renormalize\": false, \"routed_scaling_factor\": 1.5, \"num_expert_group\": 4, \"topk_group\": 2, "
		 "\"num_shared_experts\": 3");
	cr_assert(layers_with(LAYER_EXPERTS) == 12 && !c.normalize_experts && c.router.scale == 1.5f && c.router.groups == 4 && c.router.groups_top == 2);
	cr_assert_eq(c.shared_intermediate, 60);
	good(ALL ", \"mlp_layer_types\": [\"sparse\", \"dense\", \"dense\", \"sparse\"]");
	cr_assert_eq(layers_with(LAYER_EXPERTS), 9);
	refused(ALL ", \"moe_router_activation_func\": \"softmax\"", ERR_UNSUPPORTED, "(the field \"moe_router_activation_func\" of a " KIMI ")");
	refused(ALL ", \"num_local_experts\": 16", ERR_INVALID, "\"num_local_experts\" and \"num_experts\" are the same field of a " KIMI);
	refused(ALL ", \"use_grouped_topk\": false", ERR_UNSUPPORTED, "\"use_grouped_topk\" must be true for " KIMI);
	refused(ALL ", \"num_expert_group\": 3", ERR_INVALID, "(the field \"num_expert_group\" of a " KIMI ")");
}

Test(kimi, every_layer_is_in_one_list)
{
	refused(REST, ERR_FORMAT,
		"\"linear_attn_config\" is missing; of a " KIMI " it must be an object with \"full_attn_layers\" and \"kda_layers\", arrays of numbers of layers, from 1 to 4; "
		"or \"layer_types\" must be there, an array of 4 strings (num_hidden_layers), each linear_attention or full_attention");
	refused(REST ", \"linear_attn_config\": null", ERR_FORMAT, "\"linear_attn_config\" is missing; of a " KIMI);
	refused(REST ", " LINEAR("\"head_dim\": 6"), ERR_FORMAT,
		"\"full_attn_layers\" and \"kda_layers\" are missing in \"linear_attn_config\"; of a " KIMI " they must be arrays of numbers of layers, from 1 to 4; or");
	refused(REST ", \"linear_attn_config\": [1]", ERR_FORMAT, "\"linear_attn_config\" must be an object, found array");
	refused(REST ", " LINEAR("\"full_attn_layers\": 2"), ERR_FORMAT, "\"full_attn_layers\" in \"linear_attn_config\" must be an array of numbers of layers, found");
	refused(REST ", " LINEAR("\"full_attn_layers\": [0], \"kda_layers\": [1, 2, 3]"), ERR_FORMAT,
		"\"full_attn_layers\" in \"linear_attn_config\" must hold numbers of layers, from 1 to num_hidden_layers, which is 4");
	refused(REST ", " LINEAR("\"full_attn_layers\": [1], \"kda_layers\": [2, 3, 5]"), ERR_FORMAT, "\"kda_layers\" in \"linear_attn_config\" must hold numbers");
	refused(REST ", " LINEAR("\"full_attn_layers\": [\"1\"]"), ERR_FORMAT, "must hold numbers of layers");
	refused(REST ", " LINEAR("\"full_attn_layers\": [1, 4], \"kda_layers\": [2, 3, 4]"), ERR_INVALID,
		"\"kda_layers\" in \"linear_attn_config\" has layer 4, which was listed before");
	refused(REST ", " LINEAR("\"kda_layers\": [1, 2, 4]"), ERR_INVALID, "layer 3 is neither in \"full_attn_layers\" nor in \"kda_layers\"");
	refused(REST ", " LINEAR("\"full_attn_layers\": [], \"kda_layers\": [1, 2, 3, 4]"), ERR_UNSUPPORTED,
		"none of the layers is one of attention (\"linear_attn_config\", \"layer_types\")");
	refused(ALL ", " TYPES("linear", "linear", "linear", "full"), ERR_INVALID,
		"\"layer_types\"[1] is 'linear_attention', but by \"linear_attn_config\" the layer is full_attention");
	refused(REST ", " TYPES("linear", "sliding", "linear", "full"), ERR_UNSUPPORTED, "\"layer_types\"[1] is 'sliding_attention'; supported: linear_attention");
}

Test(kimi, what_files_say_of_states_is_checked)
{
	refused(REST ", " LINEAR(LISTS ", \"gate_lower_bound\": -5.0"), ERR_UNSUPPORTED, "\"gate_lower_bound\" in \"linear_attn_config\" is not known");
	refused(REST ", " LINEAR(LISTS ", \"head_dim\": 513"), ERR_INVALID, "\"linear_attn_config\": config.json: \"head_dim\" is 513; it must be 1 to 512");
	refused(REST ", " LINEAR(LISTS ", \"head_dim\": 0"), ERR_INVALID, "\"head_dim\" is 0");
	refused(REST ", " LINEAR(LISTS ", \"num_heads\": \"4\""), ERR_FORMAT, "\"num_heads\" must be an integer");
	refused(REST ", " LINEAR(LISTS ", \"num_heads\": 65536, \"head_dim\": 512"), ERR_INVALID, "65536 heads of 512 values");
	refused(REST ", " LINEAR(LISTS ", \"short_conv_kernel_size\": 1"), ERR_UNSUPPORTED, "convolutions over 2 to 8 tokens are supported");
	refused(REST ", " LINEAR(LISTS ", \"short_conv_kernel_size\": 9"), ERR_INVALID, "\"short_conv_kernel_size\" is 9; it must be 1 to 8");
	refused(ALL ", \"linear_num_heads\": 4", ERR_INVALID, "\"linear_num_heads\" is 4, but \"num_heads\" in \"linear_attn_config\" is 8");
	refused(ALL ", \"linear_key_head_dim\": 6", ERR_UNSUPPORTED, "unknown field \"linear_key_head_dim\"");
	refused(ALL ", \"hidden_act\": \"gelu\"", ERR_UNSUPPORTED, "\"hidden_act\" is 'gelu'; of a " KIMI " it must be silu");
	said_refused("LlamaForCausalLM", "\"vocab_size\": 96, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 4, \"num_attention_heads\": 4, "
					 "\"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-5", STATE, ERR_UNSUPPORTED, "\"linear_attn_config\" is set");
}

Test(kimi, nothing_may_say_that_something_rotates)
{
	refused(ALL ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}", ERR_UNSUPPORTED, "\"rope_scaling\" is set, which is not supported for " KIMI ": nothing rotates there");
	refused(ALL ", \"rope_parameters\": {\"rope_theta\": 5000}", ERR_UNSUPPORTED, "\"rope_parameters\" is set, which is not supported for " KIMI ": nothing rotates there");
	refused(ALL ", \"rope_theta\": -1", ERR_FORMAT, "\"rope_theta\" must be a number above 0");
	refused(ALL ", \"mla_use_nope\": false", ERR_UNSUPPORTED, "\"mla_use_nope\" must be true for " KIMI);
	refused(ALL ", \"head_dim\": 13", ERR_UNSUPPORTED, "\"head_dim\" is 13; it must be \"qk_rope_head_dim\", which is 6");
	refused(ALL ", \"tie_word_embeddings\": true", ERR_UNSUPPORTED, "\"tie_word_embeddings\" must be false for " KIMI);
	refused(ALL ", \"attention_bias\": true", ERR_UNSUPPORTED, "\"attention_bias\" is true and \"q_lora_rank\" null");
}

/* ---------------------------------------------------------------- weights */

struct loaded {
	struct random_model model;
	struct model_config config;
	struct model_shard shard;
	struct safetensors *st;
	struct weights_plan plan;
	struct model_weights weights;
};
static struct loaded l;

static void load(const char *text, enum kern_dtype matrices)
{
	random_model_write(&l.model, text, 7);
	cr_assert_eq(model_config_parse(&l.config, text, strlen(text), &em), ERR_OK, "%s", em.text);
	cr_assert_eq(model_shard_init(&l.shard, &l.config, 1, 2, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(safetensors_open(&l.st, l.model.dir, &em), ERR_OK, "%s", em.text);
	l.plan = (struct weights_plan){.config = &l.config, .shard = &l.shard, .checkpoint = l.st, .dtype = KERN_F32, .matrix_dtype = matrices,
				       .memory_available = 1 << 28};
	cr_assert_eq(model_weights_load(&l.weights, &l.plan, &em), ERR_OK, "%s", em.text);
}

static void unload(void)
{
	model_weights_fini(&l.weights);
	safetensors_close(&l.st);
	random_model_remove(&l.model);
}

static float in_file(const char *name, u32 row, u32 columns, u32 column)
{
	char full[128];
	float value;

	snprintf(full, sizeof(full), "model.layers.0.self_attn.%s", name);
	const struct st_tensor *t = safetensors_find(l.st, full);
	cr_assert(t, "%s", full);
	kern_convert(&value, KERN_F32, (const u16 *)t->data + (size_t)row * columns + column, KERN_BF16, 1);
	return value;
}

/* Rows of a weight from `*at` on are those of a tensor from `first` on. */
static void expect_rows(const struct kern_weight *w, u32 *at, const char *name, u32 first, u32 count)
{
	cr_assert(*at + count <= w->n, "%s", name);
	for (u32 i = 0; i < count; i++, ++*at)
		for (u32 j = 0; j < w->k; j++)
			cr_assert_eq(((const float *)w->data)[(size_t)*at * w->k + j], in_file(name, first + i, w->k, j), "%s: row %u", name, first + i);
}

static void expect_values(const float *vector, const char *name, u32 first, u32 count)
{
	for (u32 i = 0; i < count; i++)
		cr_assert_eq(vector[i], in_file(name, first + i, 1, 0), "%s: value %u", name, first + i);
}

/* A rank of two has 4 heads of 6 values, and all of what their decays and gates are made of. */
Test(kimi, a_rank_has_its_heads_and_all_that_is_low)
{
	static const char *const convs[] = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"};
	u32 at = 0;

	load(MODEL, KERN_F32);
	const struct layer_weights *w = l.weights.layers;
	expect_rows(&w->qkv, &at, "q_proj.weight", 24, 24);
	expect_rows(&w->qkv, &at, "k_proj.weight", 24, 24);
	expect_rows(&w->qkv, &at, "v_proj.weight", 24, 24);
	expect_rows(&w->qkv, &at, "b_proj.weight", 4, 4);
	expect_rows(&w->qkv, &at, "f_a_proj.weight", 0, 6);
	expect_rows(&w->qkv, &at, "g_a_proj.weight", 0, 6);
	cr_assert_eq(at, w->qkv.n);
	cr_assert(w->decay_b.n == 24 && w->decay_b.k == 6 && w->gate_b.n == 24 && w->gate_b.k == 6 && w->attn_out.k == 24 && !w->head_k);
	expect_rows(&w->decay_b, &(u32){0}, "f_b_proj.weight", 24, 24);
	expect_rows(&w->gate_b, &(u32){0}, "g_b_proj.weight", 24, 24);
	expect_values(w->decay_bias, "dt_bias", 24, 24);
	expect_values(w->rate_log, "A_log", 4, 4);
	expect_values(w->gate_norm, "o_norm.weight", 0, 6);
	for (u32 i = 0; i < 72; i++)
		for (u32 tap = 0; tap < 3; tap++)
			cr_assert_eq(w->conv[tap * 72 + i], in_file(convs[i / 24], 24 + i % 24, 3, tap));
	cr_assert(w[1].head_k && w[1].qkv.n == 2 * 16 + 30 && w[1].attn_out.k == 24 && !w[1].decay_b.n && !w[1].conv && !w[1].rate_log);
	cr_assert(w[0].gate_up.n == 80 && w[1].expert_gate_up && w[1].choice_bias);
	unload();
}

Test(kimi, matrices_are_quantized_and_vectors_are_not)
{
	load(MODEL, KERN_I8);
	const struct layer_weights *w = l.weights.layers;
	cr_assert(w[0].qkv.dtype == KERN_I8 && w[0].decay_b.dtype == KERN_I8 && w[0].gate_b.dtype == KERN_I8 && w[1].attn_out.dtype == KERN_I8);
	cr_assert(w[1].head_k[0].dtype == KERN_F32 && w[1].router.dtype == KERN_F32 && w[0].conv);
	unload();
}

/* A rate for every head in other shapes, and in wrong ones. */
Test(kimi, rates_of_heads_may_have_dimensions_of_one_value)
{
	static const struct {
		u32 dims;
		u64 shape[4];
		enum err wanted;
	} shapes[] = {{4, {1, 1, 8, 1}, ERR_OK}, {2, {8, 1}, ERR_OK}, {4, {1, 2, 4, 1}, ERR_FORMAT}, {2, {1, 1}, ERR_FORMAT}, {2, {8, 8}, ERR_FORMAT},
		      {2, {0, 8}, ERR_FORMAT}, {1, {4}, ERR_FORMAT}};

	load(MODEL, KERN_F32);
	struct st_tensor *t = (struct st_tensor *)(uintptr_t)safetensors_find(l.st, "model.layers.0.self_attn.A_log");
	for (size_t i = 0; i < COUNT_OF(shapes); i++) {
		t->dims = shapes[i].dims;
		memcpy(t->shape, shapes[i].shape, sizeof(shapes[i].shape));
		cr_expect_eq(model_weights_check(&l.plan, &em), shapes[i].wanted, "%zu: %s", i, em.text);
		cr_expect(shapes[i].wanted == ERR_OK || strstr(em.text, "A_log has the shape"), "%s", em.text);
	}
	unload();
}

Test(kimi, shared_experts_that_are_not_read_are_found)
{
	static struct model_config other;
	static const char text[] = "{\"architectures\": [\"" KIMI "\"], " SIZES ", " ALL ", \"num_shared_experts\": 0}";

	load(MODEL, KERN_F32);
	cr_assert_null(model_weights_unread(&l.plan, &(u32){0}));
	cr_assert_eq(model_config_parse(&other, text, strlen(text), &em), ERR_OK, "%s", em.text);
	l.plan.config = &other;
	const struct st_tensor *t = model_weights_unread(&l.plan, &(u32){0});
	cr_assert(t && strcmp(t->name, "model.layers.1.block_sparse_moe.shared_experts.gate_proj.weight") == 0);
	l.plan.config = &l.config;
	unload();
}

Test(kimi, ranks_share_the_heads_of_both_kinds_of_layers)
{
	struct model_shard s;

	good(ALL);
	cr_assert_eq(model_shard_init(&s, &c, 1, 4, &em), ERR_OK, "%s", em.text);
	cr_assert(s.heads == 1 && s.recurrent_heads == 2 && s.recurrent_key_heads == 2);
	good(REST ", " LINEAR(LISTS ", \"num_heads\": 6"));
	cr_assert_eq(model_shard_init(&s, &c, 0, 4, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "the model's 6 key heads of layers that keep a state cannot be divided by it; these counts would do: 1, 2"), "%s", em.text);
}

/* ---------------------------------------------------------------- answers */

Test(kimi, tokens_do_not_depend_on_company_chunks_or_preemption, .timeout = 120)
{
	random_runs_check_ways(MODEL);
}

Test(kimi, adapters_are_refused_by_name)
{
	random_runs_check_no_adapters(MODEL, "adapters of a " KIMI " are not supported: its attention is latent");
}
