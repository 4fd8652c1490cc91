/* Layers without a window that have heads of their own sizes (Gemma 4), as config.json describes them. Runs in the worker at start. */
#include <stdlib.h>
#include <string.h>

#include "proc_worker/model/config_priv.h"

enum {
	/* Where nothing says it. */
	GLOBAL_HEAD_DIM = 512,
	INPUT_WIDTH = 256,
	INPUT_VOCAB = 262144,
	VOCAB_MAX = 1 << 24,
	LAYER_NAME_BYTES = 16,
};

/* By layers, as transformers writes it: only those whose heads differ are there, with what differs. Read is the first;
 * that the others are like it is checked when it is known which layers these are. */
static enum err read_first(struct model_config *c, json_val layers, struct err_msg *em)
{
	struct json_iter it = json_iterate(layers);

	if (json_type(layers) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "config.json: \"per_layer_config\" must be an object with numbers of layers, found %s",
			       json_type_name(layers));
	c->global_head_dim = c->head_dim;
	if (!json_next(&it))
		return ERR_OK;
	enum err e = config_may_u32(it.value, "head_dim", CONFIG_HEAD_DIM_MAX, c->head_dim, &c->global_head_dim, em);
	if (!e)
		e = config_may_u32(it.value, "num_key_value_heads", c->heads, c->kv_heads, &c->global_kv_heads, em);
	if (e)
		err_prefix(em, "layer %.16s of \"per_layer_config\"", it.key);
	return e;
}

static enum err read_heads(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val layers = json_get(v, "per_layer_config");

	c->global_kv_heads = c->kv_heads;
	if (json_present(layers))
		return read_first(c, layers, em);
	enum err e = config_may_u32(v, "global_head_dim", CONFIG_HEAD_DIM_MAX, GLOBAL_HEAD_DIM, &c->global_head_dim, em);
	if (!e && c->value_is_key) /* of others it says nothing */
		e = config_may_u32(v, "num_global_key_value_heads", c->heads, c->kv_heads, &c->global_kv_heads, em);
	return e;
}

/* Text attends to what comes before it whether images do or not. */
static enum err check_direction(json_val v, struct err_msg *em)
{
	json_val word = json_get(v, "use_bidirectional_attention");

	if (!json_present(word) || json_string_equals(word, "vision"))
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED, "config.json: \"use_bidirectional_attention\" is '%.64s'; supported: vision or null",
		       json_cstr(word, json_type_name(word)));
}

/* What layers add of a token by itself, which they do where the file says nothing, too, in families that have the field. */
static enum err read_inputs(struct model_config *c, json_val v, struct err_msg *em)
{
	static const char name[] = "hidden_size_per_layer_input";
	enum err e = config_may_count(v, name, CONFIG_DIM_MAX, arch_has_own(c->arch, name) ? INPUT_WIDTH : 0, &c->input_width, em);

	if (!e)
		e = config_may_u32(v, "vocab_size_per_layer_input", VOCAB_MAX, INPUT_VOCAB, &c->input_vocab, em);
	if (!e && c->input_width && c->input_vocab < c->vocab_size)
		e = err_set(em, ERR_INVALID, "config.json: \"vocab_size_per_layer_input\" is %u; it must be vocab_size, which is %u, at least",
			    c->input_vocab, c->vocab_size);
	if (!e && (u64)c->layers * c->input_width > CONFIG_DIM_MAX)
		e = err_set(em, ERR_INVALID, "config.json: \"hidden_size_per_layer_input\" is %u; of %u layers together it may be %d at most",
			    c->input_width, c->layers, CONFIG_DIM_MAX);
	return e;
}

/* The last layers attend to what earlier ones have written. */
static enum err read_shared_kv(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 shared = 0;
	bool wide = false;

	enum err e = config_may_count(v, "num_kv_shared_layers", MODEL_LAYERS_MAX, 0, &shared, em);
	if (!e)
		e = config_may_bool(v, "use_double_wide_mlp", false, &wide, em);
	if (!e && shared >= c->layers)
		e = err_set(em, ERR_INVALID, "config.json: \"num_kv_shared_layers\" is %u; it must be below num_hidden_layers, which is %u", shared,
			    c->layers);
	if (!e)
		c->own_kv_layers = c->layers - shared;
	c->wide_intermediate = wide && shared ? 2 * c->intermediate : 0;
	return e;
}

enum err config_read_global(struct model_config *c, json_val v, struct err_msg *em)
{
	enum err e = check_direction(v, em);

	if (!e)
		e = read_inputs(c, v, em);
	if (!e)
		e = read_shared_kv(c, v, em);
	if (!e)
		e = config_read_beside(c, v, em);

	if (!e)
		e = config_may_bool(v, "attention_k_eq_v", false, &c->value_is_key, em);
	if (!e)
		e = read_heads(c, v, em);
	if (!e && c->global_head_dim % 2)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: heads of %u dimensions (\"global_head_dim\"); they must be even",
			    c->global_head_dim);
	if (!e && c->heads % c->global_kv_heads)
		e = err_set(em, ERR_INVALID, "config.json: num_attention_heads %u is not a multiple of num_global_key_value_heads %u", c->heads,
			    c->global_kv_heads);
	return e;
}

/* One layer of "per_layer_config" must say what the layers without a window have, and nothing else. */
static enum err check_layer(const struct model_config *c, json_val layer, u32 index, struct err_msg *em)
{
	const bool global = c->layer_flags[index] & LAYER_GLOBAL;
	u32 head_dim, kv_heads;

	if (json_present(layer) && json_type(layer) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "config.json: layer %u of \"per_layer_config\" must be an object, found %s", index, json_type_name(layer));
	for (struct json_iter it = json_iterate(layer); json_next(&it);)
		if (strcmp(it.key, "head_dim") != 0 && strcmp(it.key, "num_key_value_heads") != 0)
			return err_set(em, ERR_UNSUPPORTED,
				       "config.json: \"%.64s\" of layer %u in \"per_layer_config\" is not supported; head_dim and "
				       "num_key_value_heads are",
				       it.key, index);
	enum err e = config_may_u32(layer, "head_dim", CONFIG_HEAD_DIM_MAX, c->head_dim, &head_dim, em);
	if (!e)
		e = config_may_u32(layer, "num_key_value_heads", c->heads, c->kv_heads, &kv_heads, em);
	if (e || (head_dim == (global ? c->global_head_dim : c->head_dim) && kv_heads == (global ? c->global_kv_heads : c->kv_heads)))
		return e;
	return err_set(em, ERR_UNSUPPORTED,
		       "config.json: by \"per_layer_config\" layer %u has %u KV heads of %u values; only sizes that all layers without a window "
		       "share, and all layers with one, are supported",
		       index, kv_heads, head_dim);
}

/* What is said of a layer: transformers writes all numbers with as many digits as the last one has. */
static json_val layer_said(json_val layers, u32 index)
{
	char *end;

	for (struct json_iter it = json_iterate(layers); json_next(&it);)
		if (it.key[0] >= '0' && it.key[0] <= '9' && strtoull(it.key, &end, 10) == index && *end == '\0')
			return it.value;
	return (json_val){0};
}

static enum err check_layers(const struct model_config *c, json_val layers, struct err_msg *em)
{
	enum err e = ERR_OK;
	u32 met = 0;

	for (u32 i = 0; !e && i < c->layers; i++) {
		json_val layer = layer_said(layers, i);
		met += json_type(layer) != JSON_MISSING;
		e = check_layer(c, layer, i, em);
	}
	if (!e && met != json_count(layers))
		e = err_set(em, ERR_INVALID, "config.json: \"per_layer_config\" names layers that there are none of; the model has %u", c->layers);
	return e;
}

/* Those without keys and values need a layer of their kind before them that has some. */
enum err config_mark_shared(struct model_config *c, struct err_msg *em)
{
	u32 kinds = 0; /* bits: with a window, without */

	for (u32 i = 0; i < c->layers; i++) {
		const bool window = c->layer_flags[i] & LAYER_WINDOW, shared = i >= c->own_kv_layers;
		if (shared && !(kinds & 1u << window))
			return err_set(em, ERR_INVALID,
				       "config.json: by \"num_kv_shared_layers\" layer %u attends to keys of an earlier layer of the same \"layer_types\", and "
				       "none of the first %u is one",
				       i, c->own_kv_layers);
		kinds |= 1u << window;
		if (shared)
			c->layer_flags[i] |= (u16)(LAYER_SHARED_KV | (c->wide_intermediate ? LAYER_WIDE : 0));
	}
	return ERR_OK;
}

/* The last layer never has a window, whatever the file says of it. */
enum err config_mark_global(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val layers = json_get(v, "per_layer_config");

	if (c->window == 0)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"sliding_window\" is null, which is not supported for %s", c->arch->name);
	c->layer_flags[c->layers - 1] &= (u16) ~(LAYER_WINDOW | LAYER_LOCAL_ROPE);
	for (u32 i = 0; i < c->layers; i++)
		if (!(c->layer_flags[i] & LAYER_WINDOW))
			c->layer_flags[i] |= LAYER_GLOBAL;
	enum err e = config_mark_shared(c, em);
	return !e && json_present(layers) ? check_layers(c, layers, em) : e;
}
