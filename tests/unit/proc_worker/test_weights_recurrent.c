/* Weights of layers that keep a state, and of queries with gates: what a rank has of them, in which order, and that what the file does not fit is
 * refused. What is computed of them is compared with transformers in test_families.c. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proc_worker/model/weights_priv.h"
#include "tests/unit/proc_worker/random_model.h"
#include "tests/unit/proc_worker/random_runs.h"

#define SIZES                                                                                                                        \
	"\"vocab_size\": 96, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, " \
	"\"num_key_value_heads\": 2, \"head_dim\": 8, \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-6"
#define STATE                                                                                                                          \
	", \"full_attention_interval\": 2, \"linear_conv_kernel_dim\": 3, \"linear_key_head_dim\": 6, \"linear_value_head_dim\": 10, " \
	"\"linear_num_key_heads\": 4, \"linear_num_value_heads\": 8"
#define MIXTURE ", \"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 20, \"shared_expert_intermediate_size\": 20"
#define QWEN(more) "{\"architectures\": [\"Qwen3_5ForCausalLM\"], " SIZES STATE more "}"
#define NEXT(more) "{\"architectures\": [\"Qwen3NextForCausalLM\"], " SIZES STATE MIXTURE more "}"
#define LFM2                                                                                                                              \
	"{\"architectures\": [\"Lfm2ForCausalLM\"], " SIZES ", \"layer_types\": [\"conv\", \"full_attention\"], \"conv_L_cache\": 4, " \
	"\"conv_bias\": true, \"block_multiple_of\": 4}"
#define GRANITE_OF(more)                                                                                                                         \
	"{\"architectures\": [\"GraniteMoeHybridForCausalLM\"], " SIZES ", \"layer_types\": [\"mamba\", \"attention\"], \"num_local_experts\": 0, " \
	"\"shared_intermediate_size\": 80, \"mamba_d_state\": 10, \"mamba_n_groups\": 2, \"mamba_n_heads\": 8, \"mamba_proj_bias\": true" more "}"
#define GRANITE GRANITE_OF("")
#define JAMBA                                                                                                                                   \
	"{\"architectures\": [\"JambaForCausalLM\"], " SIZES ", \"attn_layer_period\": 2, \"attn_layer_offset\": 1, \"num_experts\": 4, "       \
	"\"mamba_d_state\": 5, \"mamba_dt_rank\": 7, \"mamba_proj_bias\": true}"
#define FALCON_MAMBA_OF(more)                                                                                                   \
	"{\"architectures\": [\"FalconMambaForCausalLM\"], \"vocab_size\": 96, \"hidden_size\": 48, \"num_hidden_layers\": 2, " \
	"\"state_size\": 5, " more "}"
#define FALCON_MAMBA FALCON_MAMBA_OF("\"time_step_rank\": 7")
#define MAMBA2_OF(more)                                                                                                                         \
	"{\"architectures\": [\"Mamba2ForCausalLM\"], \"vocab_size\": 96, \"hidden_size\": 48, \"num_hidden_layers\": 2, \"num_heads\": 8, " \
	"\"n_groups\": 2, \"use_bias\": true, " more "}"
#define MAMBA2 MAMBA2_OF("\"state_size\": 10, \"head_dim\": 12")
#define FP8                                                                                                     \
	", \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": \"dynamic\", " \
	"\"weight_block_size\": [16, 8]}"

enum { RANK = 1, RANKS = 2, HIDDEN = 48 };

struct loaded {
	struct random_model model;
	struct model_config config;
	struct model_shard shard;
	struct safetensors *st;
	struct weights_plan plan;
	struct model_weights weights;
};
static struct loaded l;
static struct err_msg em;

static enum err load(const char *text, enum kern_dtype matrices)
{
	random_model_write(&l.model, text, 7);
	cr_assert_eq(model_config_parse(&l.config, text, strlen(text), &em), ERR_OK, "%s", em.text);
	cr_assert_eq(model_shard_init(&l.shard, &l.config, RANK, RANKS, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(safetensors_open(&l.st, l.model.dir, &em), ERR_OK, "%s", em.text);
	l.plan = (struct weights_plan){.config = &l.config, .shard = &l.shard, .checkpoint = l.st, .dtype = KERN_F32, .matrix_dtype = matrices,
				       .memory_available = 1 << 28};
	return model_weights_load(&l.weights, &l.plan, &em);
}

static void unload(void)
{
	model_weights_fini(&l.weights);
	safetensors_close(&l.st);
	random_model_remove(&l.model);
}

/* Of a tensor in bfloat16, seen as rows of `columns`. */
static float in_file(const char *name, u32 row, u32 columns, u32 column)
{
	char full[128];
	float value;

	snprintf(full, sizeof(full), "model.layers.%s", name);
	const struct st_tensor *t = safetensors_find(l.st, full);
	cr_assert(t, "%s", full);
	kern_convert(&value, KERN_F32, (const u16 *)t->data + (size_t)row * columns + column, KERN_BF16, 1);
	return value;
}

/* Rows of a weight from `*at` on are those of a tensor from `first` on, which may be quantized. */
static void expect_rows(const struct kern_weight *w, u32 *at, const char *name, u32 first, u32 count)
{
	struct quant_tensor q;
	char full[128];
	float row[HIDDEN];

	snprintf(full, sizeof(full), "model.layers.%s", name);
	const struct st_tensor *t = safetensors_find(l.st, full);
	cr_assert(t && w->k == HIDDEN && *at + count <= w->n, "%s", full);
	cr_assert_eq(quant_tensor_find(&q, l.st, &l.config.quant, full, (u32)t->shape[0], HIDDEN, &em), ERR_OK, "%s", em.text);
	for (u32 i = 0; i < count; i++, ++*at) {
		if (q.format == QUANT_NONE)
			kern_convert(row, KERN_F32, (const u16 *)t->data + (size_t)(first + i) * HIDDEN, KERN_BF16, HIDDEN);
		else
			quant_tensor_values(&q, first + i, 0, HIDDEN, row);
		cr_assert_arr_eq((const float *)w->data + (size_t)*at * HIDDEN, row, sizeof(row), "%s: row %u", name, first + i);
	}
}

/* Channels of a convolution likewise, of so many. */
static void expect_channels(const float *conv, u32 channels, u32 taps, u32 *at, const char *name, u32 first, u32 count)
{
	for (u32 i = 0; i < count; i++, ++*at)
		for (u32 j = 0; j < taps; j++)
			cr_assert_eq(conv[j * channels + *at], in_file(name, first + i, taps, j), "%s: channel %u", name, first + i);
}

static void expect_values(const float *vector, u32 *at, const char *name, u32 first, u32 count)
{
	for (u32 i = 0; i < count; i++, ++*at)
		cr_assert_eq(vector[*at], in_file(name, first + i, 1, 0), "%s: value %u", name, first + i);
}

/* A rank of two has 2 key heads of 6 values and 4 heads of 10, and of attention 2 heads of 8. */
static void check_state(const struct layer_weights *w)
{
	u32 at = 0;

	expect_channels(w->conv, 64, 3, &at, "0.linear_attn.conv1d.weight", 12, 12);
	expect_channels(w->conv, 64, 3, &at, "0.linear_attn.conv1d.weight", 24 + 12, 12);
	expect_channels(w->conv, 64, 3, &at, "0.linear_attn.conv1d.weight", 48 + 40, 40);
	expect_values(w->rate_log, &(u32){0}, "0.linear_attn.A_log", 4, 4);
	expect_values(w->decay_bias, &(u32){0}, "0.linear_attn.dt_bias", 4, 4);
	expect_values(w->gate_norm, &(u32){0}, "0.linear_attn.norm.weight", 0, 10);
	cr_assert(!w->skip && !w->conv_bias && !w->qkv_bias && w->attn_out.n == HIDDEN && w->attn_out.k == 40 && !w->q_norm);
	for (u32 j = 0; j < 40; j++)
		cr_assert_eq(((const float *)w->attn_out.data)[5 * 40 + j], in_file("0.linear_attn.out_proj.weight", 5, 80, 40 + j));
}

static void check_gates(const struct layer_weights *w)
{
	u32 at = 0;

	for (u32 head = 2; head < 4; head++)
		expect_rows(&w->qkv, &at, "1.self_attn.q_proj.weight", 16 * head, 8);
	expect_rows(&w->qkv, &at, "1.self_attn.k_proj.weight", 8, 8);
	expect_rows(&w->qkv, &at, "1.self_attn.v_proj.weight", 8, 8);
	for (u32 head = 2; head < 4; head++)
		expect_rows(&w->qkv, &at, "1.self_attn.q_proj.weight", 16 * head + 8, 8);
	cr_assert(at == w->qkv.n && !w->conv && !w->rate_log && !w->gate_norm);
	cr_assert_eq(w->q_norm[3], 1 + in_file("1.self_attn.q_norm.weight", 3, 1, 0));
}

Test(weights_recurrent, a_rank_has_its_share_of_every_part)
{
	u32 at = 0;

	cr_assert_eq(load(QWEN(", \"attention_bias\": true"), KERN_F32), ERR_OK, "%s", em.text);
	const struct layer_weights *w = l.weights.layers;
	expect_rows(&w[0].qkv, &at, "0.linear_attn.in_proj_qkv.weight", 12, 12);
	expect_rows(&w[0].qkv, &at, "0.linear_attn.in_proj_qkv.weight", 24 + 12, 12);
	expect_rows(&w[0].qkv, &at, "0.linear_attn.in_proj_qkv.weight", 48 + 40, 40);
	expect_rows(&w[0].qkv, &at, "0.linear_attn.in_proj_z.weight", 40, 40);
	expect_rows(&w[0].qkv, &at, "0.linear_attn.in_proj_b.weight", 4, 4);
	expect_rows(&w[0].qkv, &at, "0.linear_attn.in_proj_a.weight", 4, 4);
	cr_assert_eq(at, w[0].qkv.n);
	check_state(&w[0]);
	check_gates(&w[1]);
	at = 0;
	expect_values(w[1].qkv_bias, &at, "1.self_attn.q_proj.bias", 32, 8);
	expect_values(w[1].qkv_bias, &at, "1.self_attn.q_proj.bias", 48, 8);
	expect_values(w[1].qkv_bias, &at, "1.self_attn.k_proj.bias", 8, 8);
	expect_values(w[1].qkv_bias, &at, "1.self_attn.v_proj.bias", 8, 8);
	expect_values(w[1].qkv_bias, &at, "1.self_attn.q_proj.bias", 40, 8);
	cr_assert(w[1].attn_out_bias && !w[0].attn_out_bias);
	unload();
}

static void check_key_heads(const struct layer_weights *w)
{
	static const u32 group = 2 * 6 + 2 * 20; /* q, k, and v and gate of two heads */
	static const struct {
		u32 before, count;
	} parts[] = {{0, 6}, {6, 6}, {12, 20}, {32, 20}};
	u32 at = 0;

	for (u32 i = 0; i < COUNT_OF(parts); i++)
		for (u32 head = 2; head < 4; head++)
			expect_rows(&w->qkv, &at, "0.linear_attn.in_proj_qkvz.weight", head * group + parts[i].before, parts[i].count);
	for (u32 part = 0; part < 2; part++)
		for (u32 head = 2; head < 4; head++)
			expect_rows(&w->qkv, &at, "0.linear_attn.in_proj_ba.weight", head * 4 + part * 2, 2);
	cr_assert_eq(at, w->qkv.n);
}

Test(weights_recurrent, products_of_key_heads_are_taken_apart)
{
	cr_assert_eq(load(NEXT(FP8), KERN_F32), ERR_OK, "%s", em.text);
	check_key_heads(&l.weights.layers[0]);
	check_gates(&l.weights.layers[1]);
	unload();
	cr_assert_eq(load(NEXT(""), KERN_F32), ERR_OK, "%s", em.text);
	const struct layer_weights *w = l.weights.layers;
	check_key_heads(&w[0]);
	check_state(&w[0]);
	check_gates(&w[1]);
	cr_assert(w[0].router.data && w[0].shared_gate.data);
	unload();
}

Test(weights_recurrent, short_convolutions_have_channels_of_the_stream)
{
	u32 at = 0, bias = 0;

	cr_assert_eq(load(LFM2, KERN_F32), ERR_OK, "%s", em.text);
	const struct layer_weights *w = l.weights.layers;
	for (u32 part = 0; part < 3; part++) {
		expect_rows(&w[0].qkv, &at, "0.conv.in_proj.weight", part * 48 + 24, 24);
		expect_values(w[0].qkv_bias, &bias, "0.conv.in_proj.bias", part * 48 + 24, 24);
	}
	expect_channels(w[0].conv, 24, 4, &(u32){0}, "0.conv.conv.weight", 24, 24);
	expect_values(w[0].conv_bias, &(u32){0}, "0.conv.conv.bias", 24, 24);
	expect_values(w[0].attn_out_bias, &(u32){0}, "0.conv.out_proj.bias", 0, 48);
	cr_assert(w[0].attn_out.k == 24 && w[1].qkv.n == 32 && w[1].q_norm && !w[0].q_norm && !w[1].conv && !w[1].qkv_bias);
	unload();
}

/* A rank of two has one group of 10 values, and of 8 heads of 12 values 4. */
/* A rank of two has one key head of two, 4 heads of 12 values of 8, and of whatever the layer is called. */
static void check_scan(const struct layer_weights *w, const char *at_name)
{
	static const struct {
		u32 first, count;
	} parts[] = {{96 + 48, 48}, {2 * 96 + 10, 10}, {2 * 96 + 20 + 10, 10}, {48, 48}, {2 * 96 + 40 + 4, 4}};
	char name[64];
	u32 at = 0, bias = 0, channel = 0, of_channel = 0;

#define NAMED(tensor) (snprintf(name, sizeof(name), "0.%s." tensor, at_name), name)
	for (u32 i = 0; i < COUNT_OF(parts); i++) {
		expect_rows(&w->qkv, &at, NAMED("in_proj.weight"), parts[i].first, parts[i].count);
		expect_values(w->qkv_bias, &bias, NAMED("in_proj.bias"), parts[i].first, parts[i].count);
	}
	cr_assert_eq(at, w->qkv.n);
	for (u32 i = 0; i < 3; i++) { /* behind the gate */
		expect_channels(w->conv, 68, 4, &channel, NAMED("conv1d.weight"), parts[i].first - 96, parts[i].count);
		expect_values(w->conv_bias, &of_channel, NAMED("conv1d.bias"), parts[i].first - 96, parts[i].count);
	}
	expect_values(w->skip, &(u32){0}, NAMED("D"), 4, 4);
	expect_values(w->rate_log, &(u32){0}, NAMED("A_log"), 4, 4);
	expect_values(w->gate_norm, &(u32){0}, NAMED("norm.weight"), 48, 48);
	expect_values(w->attn_out_bias, &(u32){0}, NAMED("out_proj.bias"), 0, 48);
#undef NAMED
}

/* What e to the power of it is no float any more is refused; what nearly is none is at the largest rate that kernels take. */
Test(weights_recurrent, rates_that_no_float_holds_are_refused_by_name)
{
	static float learned[8] = {0, 1, 2, 3, 87, 88, 88.5f, 88.7f};
	static const char *const texts[] = {QWEN(""), GRANITE, MAMBA2}, *const names[] = {"linear_attn", "mamba", "mixer"};
	char name[64];

	for (size_t m = 0; m < COUNT_OF(texts); m++) {
		cr_assert_eq(load(texts[m], KERN_F32), ERR_OK, "%s", em.text);
		snprintf(name, sizeof(name), "model.layers.0.%s.A_log", names[m]);
		struct st_tensor *t = (struct st_tensor *)(uintptr_t)safetensors_find(l.st, name);
		model_weights_fini(&l.weights);
		t->data = learned;
		t->dtype = KERN_F32;
		t->bytes = sizeof(learned);
		cr_assert_eq(model_weights_load(&l.weights, &l.plan, &em), ERR_OK, "%s", em.text);
		for (u32 i = 0; i < 4; i++) /* this rank's heads */
			cr_expect_eq(l.weights.layers[0].rate_log[i], i == 0 ? 87 : KERN_RATE_LOG_MAX, "%s: %u", name, i);
		model_weights_fini(&l.weights);
		learned[6] = 89;
		cr_assert_eq(model_weights_load(&l.weights, &l.plan, &em), ERR_FORMAT);
		cr_expect(strstr(em.text, "A_log has 89 at [2]") && strstr(em.text, "it must be 88.7228 at most"), "%s", em.text);
		learned[6] = 88.5f;
		unload();
	}
}

Test(weights_recurrent, parts_of_mamba_2_are_in_our_order)
{
	cr_assert_eq(load(GRANITE, KERN_F32), ERR_OK, "%s", em.text);
	check_scan(l.weights.layers, "mamba");
	unload();
	cr_assert_eq(load(MAMBA2, KERN_F32), ERR_OK, "%s", em.text);
	check_scan(l.weights.layers, "mixer");
	cr_assert(!l.weights.layers->mlp_norm && !l.weights.layers->gate_up.n && l.weights.layers[1].conv);
	unload();
}

/* A rank of two has 48 channels of 96, and whole what steps, keys and queries are made of. */
static void check_selective(const struct layer_weights *w, const char *at)
{
	char name[64];
	u32 row = 0;

#define NAMED(tensor) (snprintf(name, sizeof(name), "0.%s." tensor, at), name)
	expect_rows(&w->qkv, &row, NAMED("in_proj.weight"), 48, 48);
	expect_rows(&w->qkv, &row, NAMED("in_proj.weight"), 96 + 48, 48);
	cr_assert(row == w->qkv.n && w->x_proj.n == 7 + 2 * 5 && w->x_proj.k == 48 && w->dt_proj.n == 48 && w->dt_proj.k == 7 && w->attn_out.k == 48);
	expect_channels(w->conv, 48, 4, &(u32){0}, NAMED("conv1d.weight"), 48, 48);
	expect_values(w->conv_bias, &(u32){0}, NAMED("conv1d.bias"), 48, 48);
	expect_values(w->decay_bias, &(u32){0}, NAMED("dt_proj.bias"), 48, 48);
	expect_values(w->skip, &(u32){0}, NAMED("D"), 48, 48);
	for (u32 c = 0; c < 48; c++)
		for (u32 i = 0; i < 5; i++)
			cr_assert_eq(w->rates[i * 48 + c], expf(in_file(NAMED("A_log"), 48 + c, 5, i)), "rate %u of channel %u", i, c);
	for (u32 r = 0; r < w->x_proj.n; r++)
		cr_assert_eq(((const float *)w->x_proj.data)[r * 48 + 3], in_file(NAMED("x_proj.weight"), r, 96, 48 + 3), "x_proj: row %u", r);
	for (u32 c = 0; c < 48; c++)
		cr_assert_eq(((const float *)w->dt_proj.data)[c * 7 + 6], in_file(NAMED("dt_proj.weight"), 48 + c, 7, 6), "dt_proj: row %u", c);
#undef NAMED
}

Test(weights_recurrent, ranks_of_mamba_have_some_channels_and_all_of_what_is_selected)
{
	u32 bias = 0;

	cr_assert_eq(load(JAMBA, KERN_F32), ERR_OK, "%s", em.text);
	const struct layer_weights *w = l.weights.layers;
	check_selective(w, "mamba");
	expect_values(w->qkv_bias, &bias, "0.mamba.in_proj.bias", 48, 48);
	expect_values(w->qkv_bias, &bias, "0.mamba.in_proj.bias", 96 + 48, 48);
	expect_values(w->dt_norm, &(u32){0}, "0.mamba.dt_layernorm.weight", 0, 7);
	expect_values(w->b_norm, &(u32){0}, "0.mamba.b_layernorm.weight", 0, 5);
	expect_values(w->c_norm, &(u32){0}, "0.mamba.c_layernorm.weight", 0, 5);
	cr_assert(!w[1].rates && !w[1].x_proj.n && w[1].qkv.n == 32 && w[1].experts_norm == NULL && w[1].expert_gate_up && !w[0].expert_gate_up);
	unload();
	cr_assert_eq(load(FALCON_MAMBA, KERN_F32), ERR_OK, "%s", em.text);
	w = l.weights.layers;
	check_selective(w, "mixer");
	for (u32 i = 0; i < 7; i++)
		cr_assert(w->dt_norm[i] == 1 && w->b_norm[i % 5] == 1 && w->c_norm[i % 5] == 1);
	cr_assert(!w->qkv_bias && !w->mlp_norm && !w->gate_up.n);
	unload();
}

Test(weights_recurrent, what_steps_are_made_by_is_never_quantized)
{
	cr_assert_eq(load(JAMBA, KERN_I8), ERR_OK, "%s", em.text);
	const struct layer_weights *w = l.weights.layers;
	cr_assert(w->qkv.dtype == KERN_I8 && w->attn_out.dtype == KERN_I8 && w->x_proj.dtype == KERN_F32 && w->dt_proj.dtype == KERN_F32);
	unload();
}

Test(weights_recurrent, matrices_are_quantized_and_vectors_are_not)
{
	static const enum kern_dtype types[] = {KERN_I8, KERN_I4_32};
	static const char *const models[] = {QWEN(""), NEXT(""), LFM2, GRANITE};

	for (u32 i = 0; i < COUNT_OF(models); i++)
		for (u32 t = 0; t < COUNT_OF(types); t++) {
			cr_assert_eq(load(models[i], types[t]), ERR_OK, "%s", em.text);
			const struct layer_weights *w = l.weights.layers;
			cr_assert(w[0].qkv.dtype == types[t] && w[0].attn_out.dtype == types[t] && w[1].qkv.dtype == types[t] && w[0].conv);
			unload();
		}
	cr_assert_eq(load(QWEN(FP8), KERN_F32), ERR_OK, "%s", em.text);
	cr_assert(l.weights.layers[0].qkv.dtype == KERN_F32 && l.weights.layers[0].conv);
	unload();
}

static void expect_refused(const char *text, const char *from, const char *to, enum err expected, const char *words)
{
	static struct model_config other;
	char changed[2048];
	const char *at = strstr(text, from);

	cr_assert(at);
	snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
	cr_assert_eq(load(text, KERN_F32), ERR_OK, "%s", em.text);
	cr_assert_eq(model_config_parse(&other, changed, strlen(changed), &em), ERR_OK, "%s", em.text);
	l.plan.config = &other;
	cr_assert_eq(model_weights_check(&l.plan, &em), expected, "%s", em.text);
	cr_assert(strstr(em.text, words), "'%s' is not in '%s'", words, em.text);
	l.plan.config = &l.config;
	unload();
}

Test(weights_recurrent, shapes_are_held_against_the_file)
{
	expect_refused(QWEN(""), "kernel_dim\": 3", "kernel_dim\": 4", ERR_FORMAT,
		       "0.linear_attn.conv1d.weight has the shape [128, 1, 3]; by config.json it must be [128, 1, 4]");
	expect_refused(QWEN(""), "value_head_dim\": 10", "value_head_dim\": 12", ERR_FORMAT, "0.linear_attn.");
	expect_refused(QWEN(""), "interval\": 2", "interval\": 1", ERR_NOT_FOUND, "no tensor model.layers.0.self_attn.q_proj.weight ([64, 48] expected)");
	expect_refused(NEXT(""), "num_value_heads\": 8", "num_value_heads\": 4", ERR_FORMAT, "0.linear_attn.");
	expect_refused(LFM2, "[\"conv\", ", "[\"full_attention\", ", ERR_NOT_FOUND, "no tensor model.layers.0.self_attn.q_proj.weight");
	expect_refused(JAMBA, "dt_rank\": 7", "dt_rank\": 8", ERR_FORMAT, "0.mamba.x_proj.weight has the shape [17, 96]; by config.json it must be [18, 96]");
	expect_refused(JAMBA, "d_state\": 5, \"mamba_dt_rank\": 7", "d_state\": 4, \"mamba_dt_rank\": 9", ERR_FORMAT,
		       "0.mamba.dt_proj.weight has the shape [96, 7]; by config.json it must be [96, 9]");
	expect_refused(MAMBA2, "state_size\": 10", "state_size\": 12", ERR_FORMAT, "0.mixer.in_proj.weight has the shape [240, 48]; by config.json it must be [248, 48]");
	expect_refused(MAMBA2, "layers\": 2", "layers\": 3", ERR_NOT_FOUND, "layers.2.norm.weight ([48] expected)");
	expect_refused(GRANITE, "d_state\": 10", "d_state\": 12", ERR_FORMAT, "0.mamba.in_proj.weight has the shape [240, 48]; by config.json it must be [248, 48]");
}

/* Biases that config.json says nothing of are named, though the first layer has none. */
Test(weights_recurrent, biases_that_are_not_read_are_found_in_any_layer)
{
	static struct model_config other;
	const char *text = QWEN("");
	u32 from = 0;

	cr_assert_eq(load(QWEN(", \"attention_bias\": true"), KERN_F32), ERR_OK, "%s", em.text);
	cr_assert_eq(model_config_parse(&other, text, strlen(text), &em), ERR_OK, "%s", em.text);
	cr_assert_null(model_weights_unread(&l.plan, &(u32){0}));
	l.plan.config = &other;
	const struct st_tensor *t = model_weights_unread(&l.plan, &from);
	cr_assert(t && strcmp(t->name, "model.layers.1.self_attn.q_proj.bias") == 0);
	l.plan.config = &l.config;
	unload();
}

/* What a product packs of its inputs needs room, of whatever they are. */
Test(weights_recurrent, states_and_steps_may_be_wider_than_the_stream, .timeout = 120)
{
	random_runs_check_wide(FALCON_MAMBA_OF("\"intermediate_size\": 8192, \"time_step_rank\": 7"));
	random_runs_check_wide(FALCON_MAMBA_OF("\"time_step_rank\": 8192"));
	random_runs_check_wide(MAMBA2_OF("\"expand\": 160, \"head_dim\": 960"));
	random_runs_check_wide(GRANITE_OF(", \"mamba_expand\": 160"));
}

Test(weights_recurrent, adapters_are_refused_by_name)
{
	random_runs_check_no_adapters(QWEN(""), "adapters of a Qwen3_5ForCausalLM are not supported: some of its layers keep a state");
	random_runs_check_no_adapters(LFM2, "adapters of a Lfm2ForCausalLM are not supported: some of its layers keep a state");
}
