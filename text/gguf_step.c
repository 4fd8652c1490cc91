/* Owns what config.json says of Step 3.5, whose layers differ in their heads, rotations and bounds of gates, as a file in GGUF has it. Runs once while a model is imported. */
#include <stdio.h>
#include <string.h>

#include "text/gguf_config_priv.h"

enum { GGUF_PAIRS_MAX = 4096 };

static u32 number(struct gguf_config *c, const char *name, u32 layer)
{
	u32 value = 0;

	if ((!gguf_config_layer_int(c, name, layer, &value) || value == 0) && c->e == ERR_OK)
		gguf_config_fail(c, ERR_FORMAT, "%s is missing, or 0 for layer %u; it must be an integer above 0 for each layer", c->key, layer);
	return value;
}

/* Those of layer 0, and of layers that have others. */
static void write_heads(struct gguf_config *c)
{
	const u32 kv = number(c, "attention.head_count_kv", 0);
	char layer[16];

	c->heads = number(c, "attention.head_count", 0);
	c->head_dim = gguf_config_need_int(c, "attention.key_length");
	gguf_config_write_uint(c, "num_attention_heads", c->heads);
	gguf_config_write_uint(c, "num_attention_groups", kv);
	gguf_config_write_uint(c, "head_dim", c->head_dim);
	if (gguf_config_need_int(c, "attention.value_length") != c->head_dim)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s must be what %s.attention.key_length is, %u", c->key, c->arch, c->head_dim);
	json_key(&c->w, "per_layer_config");
	json_object_begin(&c->w);
	for (u32 i = 0; c->e == ERR_OK && i < c->layers; i++) {
		const u32 heads = number(c, "attention.head_count", i);
		if (number(c, "attention.head_count_kv", i) != kv)
			gguf_config_fail(c, ERR_UNSUPPORTED, "%s differs between layers 0 and %u; all must have the same", c->key, i);
		if (heads == c->heads)
			continue;
		snprintf(layer, sizeof(layer), "%u", i);
		json_key(&c->w, layer);
		json_object_begin(&c->w);
		gguf_config_write_uint(c, "num_attention_heads", heads);
		json_object_end(&c->w);
	}
	json_object_end(&c->w);
}

/* Which layers have a window, and which experts. */
static void write_kinds(struct gguf_config *c)
{
	char name[64];
	u32 window = 0;

	gguf_config_write_uint(c, "sliding_window", gguf_config_need_int(c, "attention.sliding_window"));
	json_key(&c->w, "layer_types");
	json_array_begin(&c->w);
	for (u32 i = 0; c->e == ERR_OK && i < c->layers; i++) {
		if (!gguf_config_layer_int(c, "attention.sliding_window_pattern", i, &window))
			gguf_config_fail(c, ERR_FORMAT, "%s is missing; it must be a list of true or false for each layer", c->key);
		json_write_cstr(&c->w, window ? "sliding_attention" : "full_attention");
	}
	json_array_end(&c->w);
	json_key(&c->w, "mlp_layer_types");
	json_array_begin(&c->w);
	for (u32 i = 0; i < c->layers; i++) {
		snprintf(name, sizeof(name), "blk.%u.ffn_gate_inp.weight", i);
		json_write_cstr(&c->w, gguf_config_has_tensor(c, name) ? "sparse" : "dense");
	}
	json_array_end(&c->w);
}

static void write_experts(struct gguf_config *c)
{
	static const char *const idle[] = {"leading_dense_block_count", "moe_every_n_layers"}; /* which the tensors say */
	u32 gating = 0;
	double scale = 1;

	for (size_t i = 0; i < COUNT_OF(idle); i++)
		gguf_config_know(c, idle[i]);
	gguf_config_write_uint(c, "moe_num_experts", gguf_config_need_int(c, "expert_count"));
	gguf_config_write_uint(c, "moe_top_k", gguf_config_need_int(c, "expert_used_count"));
	gguf_config_write_uint(c, "moe_intermediate_size", gguf_config_need_int(c, "expert_feed_forward_length"));
	gguf_config_write_uint(c, "share_expert_dim", gguf_config_need_int(c, "expert_shared_feed_forward_length"));
	if (!gguf_config_float(c, "expert_weights_scale", &scale) || !(scale > 0))
		scale = 1;
	gguf_config_write_float(c, "moe_router_scaling_factor", scale);
	if (gguf_config_int(c, "expert_gating_func", &gating) && gating != 0 && gating != GGUF_GATING_SIGMOID)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u; of a %s it must be %d", c->key, gating, c->family->name, GGUF_GATING_SIGMOID);
	if (!gguf_config_bool(c, "expert_weights_norm", false))
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is missing or false; of a %s it must be true", c->key, c->family->name);
}

/* Of experts, and of what all tokens have; 0: none. */
static void write_limits(struct gguf_config *c, const char *name, const char *field)
{
	double limit = 0;
	u64 count = 0;

	gguf_config_know(c, name);
	if (c->e != ERR_OK || !gguf_has(c->g, c->key))
		return;
	if (!gguf_array(c->g, c->key, &count) || count != c->blocks) {
		gguf_config_fail(c, ERR_FORMAT, "%s must have a number for each of the %u layers", c->key, c->blocks);
		return;
	}
	json_key(&c->w, field);
	json_array_begin(&c->w);
	for (u32 i = 0; c->e == ERR_OK && i < c->layers; i++) {
		if (!gguf_array_float(c->g, c->key, i, &limit) || !(limit >= 0))
			gguf_config_fail(c, ERR_FORMAT, "%s must be numbers, 0 for layers without a bound; that of layer %u is none", c->key, i);
		json_write_float(&c->w, (float)limit);
	}
	json_array_end(&c->w);
}

/* What rope_freqs.weight has of the pairs that turn in layers without a window, those in front. */
static void write_factors(struct gguf_config *c, const char *field, const struct gguf_tensor *t, u32 pairs)
{
	float value = 1;

	json_key(&c->w, field);
	json_array_begin(&c->w);
	for (u32 i = 0; i < pairs; i++) {
		memcpy(&value, (const char *)t->data + i * sizeof(value), sizeof(value)); /* a file may begin its tensors at any byte */
		if (!(value > 0) || value > 1e30f)
			gguf_config_fail(c, ERR_FORMAT, "the tensor %s has %g at [%u]; factors must be numbers above 0", t->name, (double)value, i);
		json_write_float(&c->w, value);
	}
	json_array_end(&c->w);
}

static void write_kind(struct gguf_config *c, const char *kind, double theta, double share, const struct gguf_tensor *factors)
{
	const u32 pairs = c->head_dim / 4;

	json_key(&c->w, kind);
	json_object_begin(&c->w);
	gguf_config_write_float(c, "rope_theta", theta);
	gguf_config_write_float(c, "partial_rotary_factor", share);
	json_key(&c->w, "rope_type");
	json_write_cstr(&c->w, factors ? "longrope" : "default");
	if (factors) { /* as of other families: the same for short texts and long ones */
		write_factors(c, "short_factor", factors, pairs);
		write_factors(c, "long_factor", factors, pairs);
		gguf_config_write_uint(c, "original_max_position_embeddings", c->context);
		gguf_config_write_float(c, "attention_factor", 1);
	}
	json_object_end(&c->w);
}

/* A half of the heads turns where there is no window. */
static void write_rope(struct gguf_config *c)
{
	const struct gguf_tensor *factors = gguf_tensor_find(c->g, "rope_freqs.weight");
	const struct gguf_text type = gguf_config_text(c, "rope.scaling.type");
	double theta = 10000, windows;
	u32 dim = c->head_dim;

	(void)gguf_config_float(c, "rope.freq_base", &theta);
	windows = theta;
	(void)gguf_config_float(c, "rope.freq_base_swa", &windows);
	gguf_config_know(c, "rope.scaling.finetuned");
	if (type.bytes && !gguf_text_is(type, "none"))
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s.rope.scaling.type is '%.*s'; only none is supported", c->arch, (int)(type.bytes < 32 ? type.bytes : 32), type.text);
	if (gguf_config_int(c, "rope.dimension_count", &dim) && dim != c->head_dim)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u; it must be what heads have, %u", c->key, dim, c->head_dim);
	if (factors && (factors->type != GGUF_F32 || factors->dims != 1 || !factors->data || factors->shape[0] < c->head_dim / 4 || factors->shape[0] > GGUF_PAIRS_MAX)) {
		gguf_config_fail(c, ERR_UNSUPPORTED, "the tensor %s is %s of %u dimensions; it must be F32 of one, with %u values at least", factors->name,
				 gguf_type_name(factors->type), factors->dims, c->head_dim / 4);
		return;
	}
	json_key(&c->w, "rope_parameters");
	json_object_begin(&c->w);
	write_kind(c, "full_attention", theta, 0.5, factors);
	write_kind(c, "sliding_attention", windows, 1, NULL);
	json_object_end(&c->w);
}

void gguf_config_write_step(struct gguf_config *c)
{
	write_heads(c);
	write_kinds(c);
	write_experts(c);
	write_limits(c, "swiglu_clamp_exp", "swiglu_limits");
	write_limits(c, "swiglu_clamp_shexp", "swiglu_limits_shared");
	if (c->e == ERR_OK)
		write_rope(c);
}
