/* Layers that differ in their KV heads and in the width of their MLPs, or that lack one of both (DeciLM, Nemotron NAS), as config.json describes them.
 * Runs in the worker at start. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proc_worker/model/config_priv.h"

enum {
	WIDTH_MULTIPLE = 256, /* of MLPs whose width "ffn_mult" says */
	NAME_BYTES = 64,
	HEADS_MAX = 1 << 16,
};

/* Of the whole model. */
struct whole_fields {
	json_val act;
	bool attention_bias, mlp_bias;
};

/* Fields of a block that are read here. */
static const char *const READ[] = {"n_heads_in_group", "no_op", "replace_with_linear", "ffn_mult", "intermediate_size", "hidden_act"};

/* The others switch off what no layer has here, or say what every layer has. */
static enum err check_others(json_val block, const char *where, json_val act, struct err_msg *em)
{
	bool on;

	for (struct json_iter it = json_iterate(block); json_next(&it);) {
		size_t i = 0;
		while (i < COUNT_OF(READ) && strcmp(READ[i], it.key) != 0)
			i++;
		const bool gate = !strcmp(it.key, "gated");
		if (i < COUNT_OF(READ) || !json_present(it.value) || (json_bool(it.value, &on) && on == gate))
			continue;
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"%.64s\" of %s is set, which is not supported; it must be %s", it.key, where, gate ? "true" : "null");
	}
	json_val own = json_get(block, "hidden_act");
	if (json_present(own) && !(json_present(act) ? config_same_value(own, act) : json_string_equals(own, "silu")))
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"hidden_act\" of %s is '%.64s'; it must be what the whole model's says", where,
			       json_cstr(own, json_type_name(own)));
	return ERR_OK;
}

/* Whether the layer has that block at all, or a matrix in place of it, whose bias nothing adds. */
static enum err read_block(json_val block, const char *where, json_val act, bool biased, bool *there, bool *linear, struct err_msg *em)
{
	bool none = false;

	if (json_type(block) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "config.json: %s must be an object, found %s", where, json_type_name(block));
	enum err e = check_others(block, where, act, em);
	if (e)
		return e;
	e = config_may_bool(block, "no_op", false, &none, em);
	if (!e)
		e = config_may_bool(block, "replace_with_linear", false, linear, em);
	if (e)
		err_prefix(em, "%s", where);
	*linear = *linear && !none;
	if (!e && *linear && biased)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"replace_with_linear\" of %s is true, and the matrix has a bias, which is not supported", where);
	*there = !none && !*linear;
	return e;
}

static enum err read_group(struct model_config *c, json_val attention, u32 layer, struct err_msg *em)
{
	u32 group = 1;

	enum err e = config_need_u32(attention, "n_heads_in_group", c->heads, &group, em);
	if (!e && c->heads % group)
		e = err_set(em, ERR_INVALID, "config.json: \"n_heads_in_group\" is %u; it must divide num_attention_heads, which is %u", group, c->heads);
	if (!e)
		c->kv_heads_by_layer[layer] = c->heads / group;
	return e;
}

/* As the authors' program rounds it. */
static enum err read_width(struct model_config *c, json_val ffn, u32 layer, struct err_msg *em)
{
	double mult, width;

	if (json_present(json_get(ffn, "intermediate_size")) && !json_present(json_get(ffn, "ffn_mult")))
		return config_need_u32(ffn, "intermediate_size", CONFIG_DIM_MAX, &c->intermediate_by_layer[layer], em);
	enum err e = config_need_positive(ffn, "ffn_mult", &mult, em);
	if (e)
		return e;
	width = ceil(trunc(2 * mult * c->hidden / 3) / WIDTH_MULTIPLE) * WIDTH_MULTIPLE;
	if (!(width >= 1 && width <= CONFIG_DIM_MAX))
		return err_set(em, ERR_INVALID, "config.json: \"ffn_mult\" is %g, which makes an MLP %g wide; it must be 1 to %d", mult, width, CONFIG_DIM_MAX);
	c->intermediate_by_layer[layer] = (u32)width;
	u32 twice = 0;
	e = config_may_u32(ffn, "intermediate_size", CONFIG_DIM_MAX, c->intermediate_by_layer[layer], &twice, em);
	if (!e && twice != c->intermediate_by_layer[layer])
		e = err_set(em, ERR_INVALID, "config.json: \"intermediate_size\" is %u, but \"ffn_mult\" makes %u", twice, c->intermediate_by_layer[layer]);
	return e;
}

static enum err read_layer(struct model_config *c, json_val config, const struct whole_fields *whole, u32 layer, struct err_msg *em)
{
	char attention[NAME_BYTES], ffn[NAME_BYTES];
	bool attends = true, computes = true, mixes = false, maps = false;

	snprintf(attention, sizeof(attention), "\"attention\" of \"block_configs\"[%u]", layer);
	snprintf(ffn, sizeof(ffn), "\"ffn\" of \"block_configs\"[%u]", layer);
	for (struct json_iter it = json_iterate(config); json_next(&it);)
		if (json_present(it.value) && strcmp(it.key, "attention") != 0 && strcmp(it.key, "ffn") != 0)
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"%.64s\" of \"block_configs\"[%u] is not supported; attention and ffn are", it.key, layer);
	enum err e = read_block(json_get(config, "attention"), attention, whole->act, whole->attention_bias, &attends, &mixes, em);
	if (!e && attends && (e = read_group(c, json_get(config, "attention"), layer, em)))
		err_prefix(em, "%s", attention);
	if (!e)
		e = read_block(json_get(config, "ffn"), ffn, whole->act, whole->mlp_bias, &computes, &maps, em);
	if (!e && computes && (e = read_width(c, json_get(config, "ffn"), layer, em)))
		err_prefix(em, "%s", ffn);
	c->layer_flags[layer] = (u16)((attends ? 0 : LAYER_NO_MIXER) | (computes ? 0 : LAYER_NO_MLP) | (mixes ? LAYER_LINEAR_MIXER : 0) | (maps ? LAYER_LINEAR_MLP : 0));
	return e;
}

static enum err read_blocks(struct model_config *c, json_val v, json_val list, struct err_msg *em)
{
	struct whole_fields whole = {.act = json_get(v, "hidden_act")};
	u32 i = 0;

	if (json_type(list) != JSON_ARRAY || json_count(list) != c->layers)
		return err_set(em, ERR_FORMAT, "config.json: \"block_configs\" must be an array of an object for each of the %u layers (num_hidden_layers), found %s of %zu",
			       c->layers, json_type_name(list), json_count(list));
	enum err e = config_may_bool(v, "attention_bias", false, &whole.attention_bias, em);
	if (!e)
		e = config_may_bool(v, "mlp_bias", false, &whole.mlp_bias, em);
	for (struct json_iter it = json_iterate(list); !e && json_next(&it); i++)
		e = read_layer(c, it.value, &whole, i, em);
	return e;
}

/* DeciLM 7B's: all layers have both blocks, and MLPs of one width. */
static enum err read_kv_heads(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val list = json_get(v, "num_key_value_heads_per_layer");
	u32 width = 0, i = 0;
	u64 heads;

	if (json_type(list) != JSON_ARRAY || json_count(list) != c->layers)
		return err_set(em, ERR_FORMAT,
			       "config.json: \"num_key_value_heads_per_layer\" must be an array of a number for each of the %u layers (num_hidden_layers), or "
			       "\"block_configs\" one of an object for each, found %s of %zu",
			       c->layers, json_type_name(list), json_count(list));
	enum err e = config_need_u32(v, "intermediate_size", CONFIG_DIM_MAX, &width, em);
	for (struct json_iter it = json_iterate(list); !e && json_next(&it); i++) {
		if (!json_uint(it.value, &heads) || heads == 0 || heads > c->heads || c->heads % heads)
			return err_set(em, ERR_INVALID,
				       "config.json: \"num_key_value_heads_per_layer\"[%u] must be a number that divides num_attention_heads, which is %u", i, c->heads);
		c->kv_heads_by_layer[i] = (u32)heads;
		c->intermediate_by_layer[i] = width;
	}
	return e;
}

/* What the whole model's fields say where they say it is what layers have. */
static enum err check_whole(const struct model_config *c, json_val v, struct err_msg *em)
{
	u32 kv_heads, width;

	enum err e = config_may_u32(v, "num_key_value_heads", UINT32_MAX, c->kv_heads, &kv_heads, em);
	if (!e)
		e = config_may_u32(v, "intermediate_size", UINT32_MAX, c->intermediate, &width, em);
	for (u32 i = 0; !e && i < c->layers; i++) {
		if (json_present(json_get(v, "num_key_value_heads")) && model_attends(c, i) && c->kv_heads_by_layer[i] != kv_heads)
			e = err_set(em, ERR_INVALID, "config.json: \"num_key_value_heads\" is %u, but layer %u has %u; it must be null where layers differ", kv_heads, i,
				    c->kv_heads_by_layer[i]);
		else if (json_present(json_get(v, "intermediate_size")) && !(c->layer_flags[i] & LAYER_NO_MLP) && c->intermediate_by_layer[i] != width)
			e = err_set(em, ERR_INVALID, "config.json: \"intermediate_size\" is %u, but that of layer %u is %u; it must be null where layers differ", width, i,
				    c->intermediate_by_layer[i]);
	}
	return e;
}

enum err config_read_by_layer(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val blocks = json_get(v, "block_configs");

	if (json_present(blocks) && json_present(json_get(v, "num_key_value_heads_per_layer")))
		return err_set(em, ERR_INVALID, "config.json: \"block_configs\" and \"num_key_value_heads_per_layer\" both say how many KV heads layers have; take one of them out");
	enum err e = json_present(blocks) ? read_blocks(c, v, blocks, em) : read_kv_heads(c, v, em);
	c->own_kv_layers = 0;
	for (u32 i = 0; !e && i < c->layers; i++) {
		if (c->kv_heads_by_layer[i] > c->kv_heads)
			c->kv_heads = c->kv_heads_by_layer[i];
		if (c->intermediate_by_layer[i] > c->intermediate)
			c->intermediate = c->intermediate_by_layer[i];
		if (model_attends(c, i))
			c->own_kv_layers = i + 1;
	}
	if (!e && c->own_kv_layers == 0)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: by \"block_configs\" no layer attends; one at least must");
	return e ? e : check_whole(c, v, em);
}

enum err config_read_heads(struct model_config *c, json_val v, struct err_msg *em)
{
	static const char name[] = "num_attention_heads_per_layer";
	json_val list = json_get(v, name);
	u64 heads;
	u32 i = 0;

	if (!json_present(list))
		return ERR_OK;
	if (json_type(list) != JSON_ARRAY || json_count(list) != c->layers)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be an array of %u numbers (num_hidden_layers), found %s of %zu", name, c->layers,
			       json_type_name(list), json_type(list) == JSON_ARRAY ? json_count(list) : 0);
	c->heads = 0;
	c->heads_differ = true;
	for (struct json_iter it = json_iterate(list); json_next(&it); i++) {
		if (!json_uint(it.value, &heads) || heads < 1 || heads > HEADS_MAX || heads % c->kv_heads)
			return err_set(em, ERR_INVALID, "config.json: \"%s\"[%u] must be a multiple of num_key_value_heads, which is %u, up to %d", name, i, c->kv_heads,
				       HEADS_MAX);
		c->heads_by_layer[i] = (u32)heads;
		c->heads = heads > c->heads ? (u32)heads : c->heads;
	}
	return ERR_OK;
}

enum err config_read_gating(struct model_config *c, json_val field, struct err_msg *em)
{
	bool on = true;

	c->gate_by_head = !json_present(field) || (json_bool(field, &on) && on) || json_string_equals(field, "per-head");
	if (c->gate_by_head || json_string_equals(field, "per-element"))
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED, "config.json: \"gating\" is '%.64s'; supported: true, per-head, per-element",
		       json_cstr(field, json_type(field) == JSON_BOOL ? "false" : json_type_name(field)));
}
