/* Owns what config.json says of models whose layers without a window have heads of their own sizes (Gemma 4), as a file in GGUF has it. Runs
 * once while a model is imported. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/gguf_config_priv.h"

/* Which layers have a window: a truth value for each of them. */
static bool has_window(struct gguf_config *c, u32 layer)
{
	i64 window = 0;

	gguf_config_know(c, "attention.sliding_window_pattern");
	return gguf_array_int(c->g, c->key, layer, &window) && window;
}

static void write_types(struct gguf_config *c)
{
	gguf_config_write_uint(c, "sliding_window", gguf_config_need_int(c, "attention.sliding_window"));
	if (!gguf_config_write_layer_types(c))
		gguf_config_fail(c, ERR_FORMAT, "%s is missing, or no list; it must have true or false for each of the %u layers", c->key, c->layers);
}

/* Of all layers of a kind the one number of a value that may be a list; 0: there is no such layer. */
static u32 of_kind(struct gguf_config *c, const char *name, bool window)
{
	u32 found = 0, value = 0;

	for (u32 i = 0; c->e == ERR_OK && i < c->layers; i++) {
		if (has_window(c, i) != window)
			continue;
		if (!gguf_config_layer_int(c, name, i, &value) || value == 0)
			gguf_config_fail(c, ERR_FORMAT, "%s.%s must be a number above 0 for layer %u", c->arch, name, i);
		else if (found && value != found)
			gguf_config_fail(c, ERR_UNSUPPORTED, "%s.%s is %u for layer %u and %u for one before; all layers of a kind must have the same",
					 c->arch, name, value, i, found);
		found = value;
	}
	return found;
}

/* Whether the layers without a window that have keys have no values of their own: the tensors say it, the same of all of them. */
static bool values_are_keys(struct gguf_config *c)
{
	char key[64], value[64];
	u32 first = c->layers;
	bool keys = false;

	for (u32 i = 0; i < c->layers; i++) {
		snprintf(key, sizeof(key), "blk.%u.attn_k.weight", i);
		snprintf(value, sizeof(value), "blk.%u.attn_v.weight", i);
		if (has_window(c, i) || !gguf_config_has_tensor(c, key))
			continue;
		const bool none = !gguf_config_has_tensor(c, value);
		if (first == c->layers) {
			first = i;
			keys = none;
		} else if (none != keys) {
			gguf_config_fail(c, ERR_UNSUPPORTED, "layers %u and %u, both without a window: only one has a tensor attn_v.weight; in all such layers "
					 "values must be keys, or in none", first, i);
		}
	}
	return keys;
}

static void write_heads(struct gguf_config *c)
{
	static const char *const lengths[][2] = {{"attention.key_length_swa", "attention.value_length_swa"},
						 {"attention.key_length", "attention.value_length"}};
	const u32 local = of_kind(c, "attention.head_count_kv", true), global = of_kind(c, "attention.head_count_kv", false);
	const bool keys = values_are_keys(c);
	u32 dims[2] = {0}, value;

	for (size_t i = 0; i < COUNT_OF(lengths); i++) {
		value = dims[i] = gguf_config_need_int(c, lengths[i][0]);
		if (gguf_config_int(c, lengths[i][1], &value) && value != dims[i])
			gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u, but keys have %u dimensions; only heads with as many are supported", c->key, value,
					 dims[i]);
	}
	if (!keys && local && global && local != global)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s.attention.head_count_kv is %u for layers with a window and %u for those without; where values are no "
				 "keys they must be as many", c->arch, local, global);
	c->heads = gguf_config_need_int(c, "attention.head_count");
	c->head_dim = dims[0];
	gguf_config_write_uint(c, "num_attention_heads", c->heads);
	gguf_config_write_uint(c, "num_key_value_heads", local ? local : global);
	gguf_config_write_uint(c, "head_dim", dims[0]);
	gguf_config_write_uint(c, "global_head_dim", dims[1]);
	gguf_config_write_bool(c, "attention_k_eq_v", keys);
	if (keys)
		gguf_config_write_uint(c, "num_global_key_value_heads", global);
}

/* The last layers may have no keys of their own, and then MLPs of twice the width. */
static void write_shared(struct gguf_config *c)
{
	u32 shared = 0, first = 0, last = 0;

	(void)gguf_config_int(c, "attention.shared_kv_layers", &shared);
	if (!gguf_config_layer_int(c, "feed_forward_length", 0, &first) || !gguf_config_layer_int(c, "feed_forward_length", c->layers - 1, &last) ||
	    first == 0)
		gguf_config_fail(c, ERR_FORMAT, "%s.feed_forward_length is missing; it must be an integer above 0, or one for each layer", c->arch);
	for (u32 i = 0, width = 0; c->e == ERR_OK && i < c->layers; i++)
		if (!gguf_config_layer_int(c, "feed_forward_length", i, &width) || width != (i + shared < c->layers ? first : last))
			gguf_config_fail(c, ERR_UNSUPPORTED, "%s.feed_forward_length is %u for layer %u; all layers with keys of their own must have the same, and "
					 "so must the others", c->arch, width, i);
	if (last != first && last != 2 * first)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s.feed_forward_length is %u for the last layer; it must be %u, as for the first, or twice that", c->arch,
				 last, first);
	gguf_config_write_uint(c, "intermediate_size", first);
	gguf_config_write_uint(c, "num_kv_shared_layers", shared);
	gguf_config_write_bool(c, "use_double_wide_mlp", last != first);
}

/* What layers add of a token by itself. */
static void write_inputs(struct gguf_config *c)
{
	const struct gguf_tensor *embed = gguf_tensor_find(c->g, "per_layer_token_embd.weight");
	u32 width = 0;

	(void)gguf_config_int(c, "embedding_length_per_layer_input", &width);
	gguf_config_write_uint(c, "hidden_size_per_layer_input", width);
	if (width == 0)
		return;
	if (!embed || embed->dims != 2 || embed->shape[0] > GGUF_COUNT_MAX)
		gguf_config_fail(c, ERR_FORMAT, "the tensor per_layer_token_embd.weight is missing, or has not two dimensions; by %s it must be there", c->key);
	else
		gguf_config_write_uint(c, "vocab_size_per_layer_input", (u32)embed->shape[0]);
}

static void write_mixture(struct gguf_config *c)
{
	u32 count = 0;
	const bool some = gguf_config_int(c, "expert_count", &count) && count > 0;

	gguf_config_write_bool(c, "enable_moe_block", some);
	if (!some) {
		gguf_config_know(c, "expert_used_count");
		gguf_config_know(c, "expert_feed_forward_length");
		return;
	}
	gguf_config_write_uint(c, "num_experts", count);
	gguf_config_write_uint(c, "top_k_experts", gguf_config_need_int(c, "expert_used_count"));
	gguf_config_write_uint(c, "moe_intermediate_size", gguf_config_need_int(c, "expert_feed_forward_length"));
}

void gguf_config_write_global(struct gguf_config *c)
{
	double cap;

	write_types(c);
	if (c->e != ERR_OK)
		return;
	write_heads(c);
	write_shared(c);
	write_inputs(c);
	write_mixture(c);
	if (gguf_config_float(c, "final_logit_softcapping", &cap))
		gguf_config_write_float(c, "final_logit_softcapping", cap);
}

/* ---- rotations ---- */

/* The tensor of factors has 1 for pairs that turn, which come first, and for the others a number so large that they do not. -1: it has
 * others. */
static i64 turning_pairs(const struct gguf_tensor *t)
{
	const float none = 1e30f;
	u64 pairs = 0;
	float value;

	for (u64 i = 0; i < t->shape[0]; i++) {
		memcpy(&value, (const char *)t->data + i * sizeof(value), sizeof(value));
		if (value >= 1 && value <= 1 && pairs == i)
			pairs++;
		else if (!(value >= none * 0.99f))
			return -1;
	}
	return (i64)pairs;
}

static void write_share(struct gguf_config *c)
{
	const struct gguf_tensor *t = gguf_tensor_find(c->g, "rope_freqs.weight");
	u32 head = 0, turned = 0;

	(void)gguf_config_int(c, "attention.key_length", &head);
	turned = head;
	if (gguf_config_int(c, "rope.dimension_count", &turned) && turned != head)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u; it must be %u, as %s.attention.key_length: the tensor rope_freqs.weight says what turns", c->key,
				 turned, head, c->arch);
	if (!t || c->e != ERR_OK)
		return;
	if (t->type != GGUF_F32 || t->dims != 1 || t->shape[0] != head / 2) {
		gguf_config_fail(c, ERR_FORMAT, "the tensor rope_freqs.weight must be %u numbers of F32, one for each pair of a head", head / 2);
		return;
	}
	const i64 pairs = turning_pairs(t);
	if (pairs < 1)
		gguf_config_fail(c, ERR_UNSUPPORTED, "the tensor rope_freqs.weight must be 1 for pairs that turn and then 1e30 for those that do not");
	double share = 2.0 * (double)pairs / head;
	if ((i64)(share * head / 2) != pairs) /* what is read back must not be one less */
		share = nextafter(share, 2);
	json_key(&c->w, "partial_rotary_factor");
	json_write_double(&c->w, share);
}

void gguf_config_write_global_rope(struct gguf_config *c)
{
	double theta = 1000000, local = 10000;
	u32 turned = c->head_dim;

	(void)gguf_config_float(c, "rope.freq_base", &theta);
	(void)gguf_config_float(c, "rope.freq_base_swa", &local);
	if (gguf_config_int(c, "rope.dimension_count_swa", &turned) && turned != c->head_dim)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u; only %u, all of a head, is supported", c->key, turned, c->head_dim);
	json_key(&c->w, "rope_parameters");
	json_object_begin(&c->w);
	json_key(&c->w, "full_attention");
	json_object_begin(&c->w);
	json_key(&c->w, "rope_type");
	json_write_cstr(&c->w, "proportional");
	write_share(c);
	gguf_config_write_float(c, "rope_theta", theta);
	json_object_end(&c->w);
	json_key(&c->w, "sliding_attention");
	json_object_begin(&c->w);
	json_key(&c->w, "rope_type");
	json_write_cstr(&c->w, "default");
	gguf_config_write_float(c, "rope_theta", local);
	json_object_end(&c->w);
	json_object_end(&c->w);
}
