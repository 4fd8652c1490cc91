/* What differs between the layers of a model, as config.json says it: windows, rotation. Runs in the worker at start. */
#include <string.h>

#include "proc_worker/model/config_priv.h"

enum {
	/* Layers may differ. */
	LISTED = ARCH_WINDOW_UPPER | ARCH_WINDOW_EVEN | ARCH_WINDOW_PATTERN | ARCH_NO_ROPE | ARCH_WINDOW_LISTED,
};

static bool has(const struct model_config *c, u32 traits)
{
	return c->arch->traits & traits;
}

/* Numbers of the families' rules. */
struct window_rule {
	u32 upper_first; /* the first layer with a window */
	u32 pattern;	 /* every so many layers one without */
	u32 prefix, prefix_pattern; /* the same of the first layers, and how many these are */
};

/* The layers that the family's rule gives a window. */
static bool rule_says_window(const struct model_config *c, u32 layer, const struct window_rule *r)
{
	if (!c->window || has(c, ARCH_WINDOW_LISTED) || c->arch->recurrent) /* of these families they are listed: config_recurrent.c */
		return false;
	if (has(c, ARCH_WINDOW_EVEN))
		return layer % 2 == 0;
	if (has(c, ARCH_WINDOW_PATTERN))
		return layer < r->prefix ? (layer + 1) % r->prefix_pattern != 0 : (layer - r->prefix + 1) % r->pattern != 0;
	if (has(c, ARCH_NO_ROPE))
		return c->layer_flags[layer] & LAYER_NO_ROPE;
	if (c->arch->chunked)
		return !(c->layer_flags[layer] & LAYER_NO_ROPE);
	if (c->arch->from_last)
		return (c->layers - 1 - layer) % c->arch->window_pattern != 0;
	if (has(c, ARCH_WINDOW_ALL))
		return c->arch->window_pattern == 0 || layer % c->arch->window_pattern != 0;
	return layer >= r->upper_first;
}

static enum err read_layer_types(struct model_config *c, json_val list, struct err_msg *em)
{
	const char *windowed = c->arch->chunked ? "chunked_attention" : "sliding_attention";
	u32 i = 0;

	if (json_type(list) != JSON_ARRAY || json_count(list) != c->layers)
		return err_set(
			em, ERR_FORMAT,
			"config.json: \"layer_types\" must be an array of %u strings (num_hidden_layers), "
			"found %s of %zu",
			c->layers, json_type_name(list), json_count(list));
	for (struct json_iter it = json_iterate(list); json_next(&it); i++) {
		bool ruled = c->layer_flags[i] & LAYER_WINDOW;
		bool window = json_string_equals(it.value, windowed);
		if (!window && !json_string_equals(it.value, "full_attention"))
			return err_set(
				em, ERR_UNSUPPORTED,
				"config.json: \"layer_types\"[%u] is '%.64s'; supported: full_attention, %s", i,
				json_cstr(it.value, json_type_name(it.value)), windowed);
		if (window && !c->window)
			return err_set(em, ERR_INVALID,
				       "config.json: \"layer_types\"[%u] is '%s', but no \"%s\" is in force", i, windowed,
				       c->arch->chunked ? "attention_chunk_size" : "sliding_window");
		if (window != ruled && !has(c, LISTED) && !arch_has_own(c->arch, "layer_types"))
			return err_set(
				em, ERR_UNSUPPORTED,
				"config.json: \"layer_types\"[%u] is '%s': in a %s all layers are alike", i,
				json_cstr(it.value, ""), c->arch->name);
		c->layer_flags[i] = (u16)((c->layer_flags[i] & ~LAYER_WINDOW) | (window ? LAYER_WINDOW : 0));
	}
	return ERR_OK;
}

/* Layers that do not rotate: by a list of which do, or every so many. */
static enum err read_no_rope(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val list = json_get(v, "no_rope_layers");
	u32 interval, i = 0;
	u64 rotates;

	enum err e = config_may_u32(v, "no_rope_layer_interval", MODEL_LAYERS_MAX, 4, &interval, em);
	const bool none = !json_present(list) || (c->arch->chunked && json_type(list) == JSON_ARRAY && json_count(list) == 0);
	for (; !e && i < c->layers && none; i++)
		if ((i + 1) % interval == 0)
			c->layer_flags[i] |= LAYER_NO_ROPE;
	if (e || none)
		return e;
	if (json_type(list) != JSON_ARRAY || json_count(list) < c->layers)
		return err_set(em, ERR_FORMAT,
			       "config.json: \"no_rope_layers\" must be an array of %u numbers (num_hidden_layers), 1 for a "
			       "layer with rotary embeddings and 0 for one without, found %s of %zu",
			       c->layers, json_type_name(list), json_count(list));
	for (struct json_iter it = json_iterate(list); json_next(&it) && i < c->layers; i++) {
		if (!json_uint(it.value, &rotates) || rotates > 1)
			return err_set(em, ERR_FORMAT, "config.json: \"no_rope_layers\"[%u] must be 0 or 1, found %s", i,
				       json_type_name(it.value));
		if (!rotates)
			c->layer_flags[i] |= LAYER_NO_ROPE;
	}
	return ERR_OK;
}

/* Some files say it twice. */
static enum err check_window_size(const struct model_config *c, json_val v, struct err_msg *em)
{
	u32 twice;

	enum err e = config_may_u32(v, "sliding_window_size", UINT32_MAX, c->window, &twice, em);
	if (!e && twice != c->window)
		e = err_set(em, ERR_INVALID,
			    "config.json: \"sliding_window_size\" is %u, but \"sliding_window\" is %u", twice,
			    c->window);
	return e;
}

static enum err read_window_size(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val window = json_get(v, "sliding_window");
	bool on = true;
	enum err e = ERR_OK;

	if (c->arch->chunked) {
		c->window = json_type(json_get(v, "attention_chunk_size")) == JSON_MISSING ? c->arch->window : 0;
		return config_may_u32(v, "attention_chunk_size", CONFIG_CONTEXT_MAX, c->window, &c->window, em);
	}
	if (has(c, ARCH_WINDOW_UPPER | ARCH_NO_ROPE | ARCH_WINDOW_LISTED))
		e = config_may_bool(v, "use_sliding_window", c->arch->windows_from > 0, &on, em);
	if (!e && on && has(c, ARCH_WINDOW_LISTED) && !json_present(json_get(v, "layer_types")))
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: \"use_sliding_window\" of a %s needs \"layer_types\": which layers have windows "
			       "otherwise depends on who reads the file",
			       c->arch->name);
	if (e || !on)
		return e;
	if (json_type(window) == JSON_MISSING)
		c->window = c->arch->window;
	else if (has(c, ARCH_WINDOW_ALL | LISTED))
		e = config_may_u32(v, "sliding_window", UINT32_MAX, 0, &c->window, em);
	return !e && has(c, ARCH_WINDOW_EVEN) ? check_window_size(c, v, em) : e;
}

/* A number, or in some files the pattern itself, "LLLG". */
static enum err read_pattern(const struct model_config *c, json_val v, u32 *out, struct err_msg *em)
{
	const char *text = json_cstr(json_get(v, "sliding_window_pattern"), NULL);
	size_t windowed = text ? strspn(text, "L") : 0;

	if (!text && c->window == 0) /* some write 0 then */
		return ERR_OK;
	if (!text)
		return config_may_u32(v, "sliding_window_pattern", MODEL_LAYERS_MAX, c->arch->window_pattern, out, em);
	if (windowed >= MODEL_LAYERS_MAX || strcmp(text + windowed, "G") != 0)
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: \"sliding_window_pattern\" is '%.64s'; supported: an integer, or as many L as there are "
			       "layers with a window and then one G, as in LLLG",
			       text);
	*out = (u32)windowed + 1;
	return ERR_OK;
}

/* Of a family that takes no notice of the field: what it says otherwise than the family is, and "layer_types" do not. */
static enum err check_pattern(const struct model_config *c, json_val v, u32 pattern, struct err_msg *em)
{
	if (!c->arch->pattern_fixed || pattern == c->arch->window_pattern || json_present(json_get(v, "layer_types")))
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED,
		       "config.json: \"sliding_window_pattern\" is %u; of a %s it must be %u, unless \"layer_types\" say which layers have a window", pattern,
		       c->arch->name, c->arch->window_pattern);
}

/* A number a layer, 1 where it attends to all tokens. */
static enum err check_attention_types(const struct model_config *c, json_val list, struct err_msg *em)
{
	u32 i = 0;
	u64 type;

	if (json_present(list) && (json_type(list) != JSON_ARRAY || json_count(list) != c->layers))
		return err_set(em, ERR_FORMAT, "config.json: \"attn_type_list\" must be an array of %u numbers (num_hidden_layers), found %s of %zu",
			       c->layers, json_type_name(list), json_count(list));
	for (struct json_iter it = json_iterate(list); json_present(list) && json_next(&it); i++)
		if (!json_uint(it.value, &type) || type != 1)
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"attn_type_list\"[%u] is not 1, attention to all tokens, which is the only kind supported", i);
	return ERR_OK;
}

/* Attention may know no positions. */
static enum err read_positions(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val type = json_get(v, "position_embedding_type");
	const bool rotates = json_string_equals(type, "rope");

	if (json_present(type) && !rotates && !json_string_equals(type, "nope"))
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"position_embedding_type\" is '%.64s'; supported: rope, nope or null",
			       json_cstr(type, json_type_name(type)));
	for (u32 i = 0; i < c->layers && !rotates; i++)
		c->layer_flags[i] |= LAYER_NO_ROPE;
	return ERR_OK;
}

/* The last layer and every so many before it. */
static void mark_unrotated(struct model_config *c)
{
	for (u32 i = 0; i < c->layers; i++)
		if ((c->layers - 1 - i) % c->arch->window_pattern == 0)
			c->layer_flags[i] |= LAYER_NO_ROPE;
}

/* A base for each layer, 0 where nothing rotates; those that do have one. */
static enum err read_rope_thetas(struct model_config *c, json_val list, struct err_msg *em)
{
	double theta = 0, first = 0;
	u32 i = 0;

	if (json_type(list) != JSON_ARRAY || json_count(list) != c->layers)
		return err_set(em, ERR_FORMAT, "config.json: \"layer_rope_theta\" must be an array of %u numbers (num_hidden_layers), found %s of %zu", c->layers,
			       json_type_name(list), json_count(list));
	for (struct json_iter it = json_iterate(list); json_next(&it); i++) {
		if (!json_double(it.value, &theta) || theta < 0)
			return err_set(em, ERR_FORMAT, "config.json: \"layer_rope_theta\"[%u] must be a number above 0, or 0 for a layer that does not rotate", i);
		if (theta == 0) {
			c->layer_flags[i] |= LAYER_NO_ROPE;
			continue;
		}
		enum err e = config_check_float("layer_rope_theta", theta, em);
		if (e)
			return e;
		if (theta == 1 && c->rope.kind == ROPE_YARN)
			return err_set(em, ERR_INVALID, "config.json: \"layer_rope_theta\"[%u] is 1 with rope_scaling of type 'yarn'", i);
		if (c->arch->from_last && theta != c->rope.theta)
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"layer_rope_theta\"[%u] is %g; of a %s it must be 0 or \"rope_theta\", which is %g", i, theta,
				       c->arch->name, c->rope.theta);
		if (first > 0 && theta != first)
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"layer_rope_theta\"[%u] is %g; layers that rotate by several bases, here %g, are not supported", i,
				       theta, first);
		c->rope.theta = first = theta;
	}
	return ERR_OK;
}

/* Of layers in front whose MLP is no mixture. */
static enum err read_prefix(struct model_config *c, json_val v, struct window_rule *r, struct err_msg *em)
{
	enum err e = config_may_count(v, "first_k_dense_replace", MODEL_LAYERS_MAX, 0, &r->prefix, em);

	c->scales[SCALE_SHARED] = c->router.scale;
	return e ? e : config_may_u32(v, "prefix_dense_sliding_window_pattern", MODEL_LAYERS_MAX, 1, &r->prefix_pattern, em);
}

/* Whether a layer without a window rotates all the same. */
static bool rotates_anyhow(const struct model_config *c, const struct window_rule *r, u32 layer)
{
	return !has(c, ARCH_WINDOW_ROPE) || !c->window || (r->prefix_pattern == 1 && !(c->layer_flags[layer] & LAYER_EXPERTS));
}

enum err config_read_windows(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val types = json_get(v, "layer_types");
	/* Older Qwen3 MoE files bound the windows to layers, newer ones have them everywhere. */
	struct window_rule rule = {.upper_first = c->arch->windows_from > 0 ? c->arch->windows_from : has(c, ARCH_EXPERTS_SOME) ? 0 : 28};
	u32 upper = rule.upper_first;

	enum err e = has(c, ARCH_NO_ROPE) || c->arch->chunked ? read_no_rope(c, v, em) : ERR_OK;
	if (!e && arch_has_own(c->arch, "position_embedding_type"))
		e = read_positions(c, v, em);
	if (!e && arch_has_own(c->arch, "attn_type_list") && !c->arch->recurrent) /* config_lightning.c */
		e = check_attention_types(c, json_get(v, "attn_type_list"), em);
	if (!e && arch_has_own(c->arch, "layer_rope_theta") && json_present(json_get(v, "layer_rope_theta")))
		e = read_rope_thetas(c, json_get(v, "layer_rope_theta"), em);
	else if (!e && c->arch->from_last)
		mark_unrotated(c);
	if (!e)
		e = read_window_size(c, v, em);
	if (!e && has(c, ARCH_WINDOW_UPPER)) /* of others it says nothing */
		e = config_may_count(v, "max_window_layers", UINT32_MAX, upper, &rule.upper_first, em);
	if (!e && c->arch->window_needed && !c->window)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"sliding_window\" is null; of a %s it must be a number", c->arch->name);
	if (!e && has(c, ARCH_WINDOW_PATTERN))
		e = read_pattern(c, v, &rule.pattern, em);
	if (!e)
		e = check_pattern(c, v, rule.pattern, em);
	if (!e && arch_has_own(c->arch, "prefix_dense_sliding_window_pattern"))
		e = read_prefix(c, v, &rule, em);
	for (u32 i = 0; !e && i < c->layers; i++)
		if (rule_says_window(c, i, &rule))
			c->layer_flags[i] |= LAYER_WINDOW;
	if (!e && json_present(types) && !c->arch->recurrent && !arch_has_own(c->arch, "index_topk")) /* config_recurrent.c, config_latent.c */
		e = read_layer_types(c, types, em);
	for (u32 i = 0; !e && i < c->layers && c->arch->recurrent && !c->window; i++)
		if (c->layer_flags[i] & LAYER_WINDOW)
			e = err_set(em, ERR_INVALID, "config.json: \"layer_types\" has sliding_attention, but \"sliding_window\" is null");
	for (u32 i = 0; !e && i < c->layers; i++)
		if (c->layer_flags[i] & LAYER_WINDOW)
			c->layer_flags[i] |= has(c, ARCH_LOCAL_ROPE) ? LAYER_LOCAL_ROPE : 0;
		else if (!rotates_anyhow(c, &rule, i))
			c->layer_flags[i] |= LAYER_NO_ROPE;
	return e;
}

enum err config_leave_out(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val list = json_get(v, "cross_attention_layers");
	u64 layer;

	if (json_type(list) != JSON_ARRAY)
		return err_set(em, ERR_FORMAT, "config.json: \"cross_attention_layers\" must be an array of layers' numbers, found %s",
			       json_type_name(list));
	for (struct json_iter it = json_iterate(list); json_next(&it);) {
		if (!json_uint(it.value, &layer) || layer >= c->layers || c->left_out[layer])
			return err_set(em, ERR_INVALID,
				       "config.json: \"cross_attention_layers\"[%u] must be a number of a layer, 0 to %u, that stands there once",
				       c->left_out_count, c->layers - 1);
		c->left_out[layer] = true;
		c->left_out_count++;
	}
	if (c->left_out_count == c->layers)
		return err_set(em, ERR_INVALID, "config.json: \"cross_attention_layers\" has all %u layers; some must attend to text", c->layers);
	c->layers -= c->left_out_count;
	return ERR_OK;
}
