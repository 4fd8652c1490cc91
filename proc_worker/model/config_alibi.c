/* Whether scores fall with the distance of keys (ALiBi: Press et al. 2022), and what else config.json says of families in which nothing rotates: MPT's
 * "attn_config", GPT Neo's "attention_types". Runs in the worker at start. */
#include <math.h>
#include <string.h>

#include "proc_worker/model/config_priv.h"

enum { SLOPE_BITS = 8 }; /* of families that do not say it */

/* ---------------------------------------------------------------- MPT */

/* Fields of "attn_config" that are read. Of others those say nothing that all files may have, and those that belong to rotation, if there is none. */
static bool is_attention_field(const char *name)
{
	static const char *const fields[] = {"attn_type", "kv_n_heads", "clip_qkv", "softmax_scale", "alibi", "alibi_bias_max", "attn_impl", "rope_theta",
					     "rope_impl", "rope_dail_config", "rope_hf_config", "attn_uses_sequence_id", "torch_dtype", "dtype"};

	for (size_t i = 0; i < COUNT_OF(fields); i++)
		if (!strcmp(fields[i], name))
			return true;
	return config_is_inert(name);
}

/* The others must be off. -1 is how some say that a window is. */
static enum err check_attention_fields(const struct model_config *c, json_val v, const char *object, bool (*known)(const char *), struct err_msg *em)
{
	bool on;
	i64 number;

	for (struct json_iter it = json_iterate(v); json_next(&it);) {
		const bool off = (json_bool(it.value, &on) && !on) || !json_present(it.value) || (json_int(it.value, &number) && number == -1);
		if (!off && !known(it.key))
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": \"%.64s\" is set, which is not supported for %s", object, it.key, c->arch->name);
	}
	return ERR_OK;
}

/* How many KV heads there are. */
static enum err read_attention_type(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val type = json_get(v, "attn_type");
	u32 kv_heads = c->heads;
	enum err e = ERR_OK;

	if (json_string_equals(type, "multiquery_attention"))
		kv_heads = 1;
	else if (json_string_equals(type, "grouped_query_attention"))
		e = config_need_u32(v, "kv_n_heads", c->heads, &kv_heads, em);
	else if (json_present(type) && !json_string_equals(type, "multihead_attention"))
		e = err_set(em, ERR_UNSUPPORTED,
			    "config.json: \"attn_type\" is '%.64s'; supported: multihead_attention, multiquery_attention, grouped_query_attention",
			    json_cstr(type, json_type_name(type)));
	c->kv_heads = kv_heads;
	if (e || c->heads % kv_heads == 0)
		return e;
	return err_set(em, ERR_INVALID, "config.json: \"kv_n_heads\" is %u, which does not divide the %u heads", kv_heads, c->heads);
}

/* Slopes, or learned positions. */
static enum err read_positions(struct model_config *c, json_val v, json_val attention, struct err_msg *em)
{
	bool alibi, learned;
	u32 most = 0;

	enum err e = config_may_bool(attention, "alibi", true, &alibi, em);
	if (!e)
		e = config_may_u32(attention, "alibi_bias_max", 64, SLOPE_BITS, &most, em);
	if (!e)
		e = config_may_bool(v, "learned_pos_emb", true, &learned, em);
	if (e)
		return e;
	if (!alibi && !learned)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"learned_pos_emb\" is false, and so is \"alibi\" of \"attn_config\"; of a %s one of them must be true",
			       c->arch->name);
	c->learned_positions = !alibi;
	if (alibi)
		c->alibi = (struct alibi_config){ALIBI_ABOVE, (f32)most};
	return ERR_OK;
}

/* The kind of its norms and of its MLP. */
static bool is_mlp_field(const char *name)
{
	return !strcmp(name, "ffn_type") || !strcmp(name, "fc_type");
}

static enum err check_kinds(const struct model_config *c, json_val v, struct err_msg *em)
{
	json_val norm = json_get(v, "layer_norm_type"), mlp = json_get(v, "ffn_config"), kind = json_get(mlp, "ffn_type");

	if (json_present(norm) && !json_string_equals(norm, "low_precision_layernorm") && !json_string_equals(norm, "layernorm"))
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"layer_norm_type\" is '%.64s'; supported: low_precision_layernorm, layernorm",
			       json_cstr(norm, json_type_name(norm)));
	if (json_present(kind) && !json_string_equals(kind, "mptmlp"))
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"ffn_type\" of \"ffn_config\" is '%.64s'; supported: mptmlp", json_cstr(kind, json_type_name(kind)));
	return check_attention_fields(c, mlp, "ffn_config", is_mlp_field, em);
}

static enum err read_mpt(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val attention = json_get(v, "attn_config");
	double clip = 0;
	u32 twice = 0;
	bool plain;

	if (json_present(attention) && json_type(attention) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "config.json: \"attn_config\" must be an object, found %s", json_type_name(attention));
	enum err e = read_attention_type(c, attention, em);
	if (!e)
		e = config_may_u32(v, "num_key_value_heads", c->heads, c->kv_heads, &twice, em);
	if (!e && twice != c->kv_heads)
		e = err_set(em, ERR_INVALID, "config.json: \"num_key_value_heads\" is %u, but by \"attn_config\" there are %u", twice, c->kv_heads);
	if (!e)
		e = config_may_positive(attention, "clip_qkv", 0, &clip, em);
	if (!e && clip > 0)
		e = config_check_float("clip_qkv", clip, em);
	c->clip = (f32)clip;
	if (!e)
		e = config_may_float(attention, "softmax_scale", (double)c->attention_scale, &c->attention_scale, em);
	if (!e)
		e = config_may_bool(v, "without_bias", true, &plain, em);
	c->attention_bias = !e && !plain;
	if (!e)
		e = read_positions(c, v, attention, em);
	if (!e)
		e = check_kinds(c, v, em);
	return e ? e : check_attention_fields(c, attention, "attn_config", is_attention_field, em);
}

enum err config_read_mpt_width(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 ratio = 0;

	enum err e = config_may_u32(v, "expansion_ratio", 64, c->arch->inner, &ratio, em);
	if (!e)
		e = config_may_u32(v, "intermediate_size", CONFIG_DIM_MAX, ratio * c->hidden, &c->intermediate, em);
	if (!e && c->intermediate != ratio * c->hidden)
		e = err_set(em, ERR_INVALID, "config.json: \"intermediate_size\" is %u, but \"expansion_ratio\" times hidden_size, which is %u, are %u", c->intermediate,
			    c->hidden, ratio * c->hidden);
	if (!e && c->intermediate > CONFIG_DIM_MAX)
		e = err_set(em, ERR_INVALID, "config.json: \"expansion_ratio\" times hidden_size, which is %u, is more than %d", c->hidden, CONFIG_DIM_MAX);
	return e;
}

/* ---------------------------------------------------------------- GPT Neo */

/* Of one layer. */
static enum err mark_attention(struct model_config *c, const char *field, u32 layer, json_val type, struct err_msg *em)
{
	const bool local = json_string_equals(type, "local");

	if (layer >= c->layers)
		return err_set(em, ERR_INVALID, "config.json: \"%s\" says it of more than %u layers (num_hidden_layers)", field, c->layers);
	if (!local && !json_string_equals(type, "global"))
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" has '%.64s'; supported: global, local", field, json_cstr(type, json_type_name(type)));
	c->layer_flags[layer] = (u16)((c->layer_flags[layer] & ~LAYER_WINDOW) | (local ? LAYER_WINDOW : 0));
	return ERR_OK;
}

/* Pairs: some layers' types, and how often these follow each other. */
static enum err read_pair(struct model_config *c, json_val pair, u32 *layer, struct err_msg *em)
{
	json_val types = json_at(pair, 0);
	enum err e = ERR_OK;
	u64 times = 0;

	if (json_type(pair) != JSON_ARRAY || json_count(pair) != 2 || json_type(types) != JSON_ARRAY || json_count(types) == 0 || !json_uint(json_at(pair, 1), &times))
		return err_set(em, ERR_FORMAT, "config.json: \"attention_types\" must be an array of pairs, as in [[[\"global\", \"local\"], 12]]");
	for (u64 i = 0; !e && i < times; i++)
		for (struct json_iter it = json_iterate(types); !e && json_next(&it);)
			e = mark_attention(c, "attention_types", (*layer)++, it.value, em);
	return e;
}

static enum err check_count(const struct model_config *c, const char *field, u32 layers, struct err_msg *em)
{
	if (layers == c->layers)
		return ERR_OK;
	return err_set(em, ERR_INVALID, "config.json: \"%s\" says it of %u layers; it must be %u (num_hidden_layers)", field, layers, c->layers);
}

enum err config_read_attention_types(struct model_config *c, json_val v, struct err_msg *em)
{
	enum { USUAL = 24, WINDOW = 256 };
	json_val types = json_get(v, "attention_types"), list = json_get(v, "attention_layers");
	u32 layers = 0;
	enum err e = config_may_u32(v, "sliding_window", UINT32_MAX, WINDOW, &c->window, em);

	if (!e && !json_present(types) && !json_present(list)) { /* every other one, beginning with the second */
		for (u32 i = 1; i < c->layers; i += 2)
			c->layer_flags[i] |= LAYER_WINDOW;
		return check_count(c, "attention_types\" is missing, which \"attention_types", USUAL, em);
	}
	if (!e && json_present(types) && json_type(types) != JSON_ARRAY)
		e = err_set(em, ERR_FORMAT, "config.json: \"attention_types\" must be an array, found %s", json_type_name(types));
	for (struct json_iter it = json_iterate(types); !e && json_present(types) && json_next(&it);)
		e = read_pair(c, it.value, &layers, em);
	if (!e && json_present(types))
		e = check_count(c, "attention_types", layers, em);
	if (e || !json_present(list))
		return e;
	if (json_type(list) != JSON_ARRAY)
		return err_set(em, ERR_FORMAT, "config.json: \"attention_layers\" must be an array, found %s", json_type_name(list));
	layers = 0;
	for (struct json_iter it = json_iterate(list); !e && json_next(&it); layers++) {
		const u32 ruled = layers < c->layers ? c->layer_flags[layers] & LAYER_WINDOW : 0;
		e = mark_attention(c, "attention_layers", layers, it.value, em);
		if (!e && json_present(types) && (c->layer_flags[layers] & LAYER_WINDOW) != ruled)
			e = err_set(em, ERR_INVALID, "config.json: \"attention_layers\"[%u] is another kind than \"attention_types\" says; take one of them out", layers);
	}
	return e ? e : check_count(c, "attention_layers", layers, em);
}

/* ---------------------------------------------------------------- all */

enum err config_read_alibi(struct model_config *c, json_val v, struct err_msg *em)
{
	if (arch_has_own(c->arch, "attn_config"))
		return read_mpt(c, v, em);
	if (c->arch->unrotated)
		c->alibi = (struct alibi_config){ALIBI_BELOW, SLOPE_BITS};
	return c->arch->sinusoids ? config_may_count(v, "pad_token_id", CONFIG_CONTEXT_MAX, 0, &c->sinusoid_padding, em) : ERR_OK;
}

enum err config_end_alibi(struct model_config *c, struct err_msg *em)
{
	enum { SINUSOIDS_LEAST = 4 };

	if (c->arch->sinusoids && c->hidden < SINUSOIDS_LEAST)
		return err_set(em, ERR_INVALID, "config.json: \"hidden_size\" is %u; of a %s it must be %d at least", c->hidden, c->arch->name, SINUSOIDS_LEAST);
	if (c->alibi.kind == ALIBI_NONE || c->arch->unrotated)
		return ERR_OK;
	if (c->rope.kind != ROPE_PLAIN)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"rope_scaling\" is set, but the heads of this %s have ALiBi, and nothing rotates", c->arch->name);
	c->rope = (struct rope_config){.kind = ROPE_PLAIN, .dim = 2, .theta = 10000, .factor = 1, .attention_factor = 1}; /* of a table that nobody reads */
	for (u32 i = 0; i < c->layers; i++)
		c->layer_flags[i] |= LAYER_NO_ROPE;
	return ERR_OK;
}
