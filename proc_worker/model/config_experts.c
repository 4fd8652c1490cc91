/* Mixtures of experts as config.json describes them: how many, how wide, in which layers, how chosen. Runs in the worker at
 * start. */
#include <string.h>

#include "proc_worker/model/config_priv.h"

enum { EXPERTS_MAX = 4096 };

static bool has(const struct model_config *c, u32 traits)
{
	return c->arch->traits & traits;
}

static void mark_all(struct model_config *c)
{
	for (u32 i = 0; i < c->layers; i++)
		c->layer_flags[i] |= LAYER_EXPERTS;
}

static enum err read_dense_layers(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val list = json_get(v, "mlp_only_layers");
	u32 step;
	u64 layer;

	enum err e = config_may_u32(v, "decoder_sparse_step", MODEL_LAYERS_MAX, 1, &step, em);
	for (u32 i = 0; !e && i < c->layers; i++)
		if ((i + 1) % step == 0)
			c->layer_flags[i] |= LAYER_EXPERTS;
	if (e || !json_present(list))
		return e;
	if (json_type(list) != JSON_ARRAY)
		return err_set(em, ERR_FORMAT, "config.json: \"mlp_only_layers\" must be an array, found %s",
			       json_type_name(list));
	for (struct json_iter it = json_iterate(list); json_next(&it);) {
		if (!json_uint(it.value, &layer))
			return err_set(
				em, ERR_FORMAT,
				"config.json: \"mlp_only_layers\" must hold numbers of layers, found %s",
				json_type_name(it.value));
		if (layer < c->layers)
			c->layer_flags[layer] &= (u16)~LAYER_EXPERTS;
	}
	return ERR_OK;
}

/* ---------------------------------------------------------------- fields of a few families */

/* One that the file gives a width of its own. Programs disagree about what more than one would mean. */
static enum err read_shared_width(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 count = 1;

	enum err e = config_need_u32(v, "shared_expert_intermediate_size", CONFIG_DIM_MAX, &c->shared_intermediate, em);
	if (!e)
		e = config_may_count(v, "n_shared_experts", EXPERTS_MAX, 1, &count, em);
	if (!e && count != 1)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"n_shared_experts\" is %u; of a %s it must be 1", count, c->arch->name);
	return e;
}

/* Programs disagree about whether it is the width of one or of all of them: it may only be what these have anyway. */
static enum err check_shared_width(const struct model_config *c, json_val v, struct err_msg *em)
{
	u32 width = 0;

	if (!arch_has_own(c->arch, "moe_shared_expert_intermediate_size"))
		return ERR_OK;
	enum err e = config_may_count(v, "moe_shared_expert_intermediate_size", CONFIG_DIM_MAX, c->shared_intermediate, &width, em);
	if (!e && width != c->shared_intermediate)
		e = err_set(em, ERR_UNSUPPORTED,
			    "config.json: \"moe_shared_expert_intermediate_size\" is %u; of a %s it must be \"n_shared_experts\" times "
			    "\"moe_intermediate_size\", which is %u",
			    width, c->arch->name, c->shared_intermediate);
	return e;
}

/* One MLP as wide as all of them. */
static enum err read_shared(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 count = 0;

	enum err e = config_may_count(v, "n_shared_experts", EXPERTS_MAX, c->arch->shared_experts, &count, em);
	if (!e && (u64)count * c->expert_intermediate > CONFIG_DIM_MAX)
		return err_set(em, ERR_INVALID,
			       "config.json: \"n_shared_experts\" is %u; together, of \"moe_intermediate_size\" %u each, they are wider "
			       "than %d",
			       count, c->expert_intermediate, CONFIG_DIM_MAX);
	if (!e && count == 0 && arch_has_own(c->arch, "moe_router_use_sigmoid")) /* of Hy3 transformers then has one as wide as a layer without experts */
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" is 0, which is not supported for %s", arch_field_in_file(c->arch, "n_shared_experts"), c->arch->name);
	c->shared_intermediate = count * c->expert_intermediate;
	return e ? e : check_shared_width(c, v, em);
}

static enum err read_groups(struct model_config *c, json_val v, struct err_msg *em)
{
	struct router_config *r = &c->router;

	const u32 groups = c->arch->groups > 0 ? c->arch->groups : 1, top = c->arch->groups_top > 0 ? c->arch->groups_top : 1;
	enum err e = config_may_u32(v, "n_group", KERN_EXPERT_GROUPS_MAX, groups, &r->groups, em);
	if (!e)
		e = config_may_u32(v, "topk_group", KERN_EXPERT_GROUPS_MAX, top, &r->groups_top, em);
	if (e)
		return e;
	if (r->groups > 1 && (c->experts % r->groups || c->experts / r->groups < 2))
		return err_set(em, ERR_INVALID,
			       "config.json: \"n_group\" is %u; it must divide the %u experts into groups of at least two", r->groups,
			       c->experts);
	if (r->groups_top > r->groups)
		return err_set(em, ERR_INVALID, "config.json: \"topk_group\" is %u, but there are only %u groups (\"n_group\")",
			       r->groups_top, r->groups);
	if (c->experts_per_token > c->experts / r->groups * r->groups_top)
		return err_set(em, ERR_INVALID,
			       "config.json: \"num_experts_per_tok\" is %u, but a token's groups (\"topk_group\" of \"n_group\") have only "
			       "%u experts",
			       c->experts_per_token, c->experts / r->groups * r->groups_top);
	return ERR_OK;
}

/* A field that says in words what a family has anyway. */
static enum err check_word(const struct arch *a, json_val v, const char *name, const char *word, struct err_msg *em)
{
	json_val field = json_get(v, name);

	if (!arch_has_own(a, name) || !json_present(field) || json_string_equals(field, word))
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" is '%.64s'; of a %s it must be '%s'", name,
		       json_cstr(field, json_type_name(field)), a->name, word);
}

/* DeepSeek V2's: programs disagree about what normalizing would do to "routed_scaling_factor". */
static enum err read_greedy(struct model_config *c, json_val v, struct err_msg *em)
{
	struct router_config *r = &c->router;

	enum err e = config_may_bool(v, "norm_topk_prob", false, &c->normalize_experts, em);
	if (!e && c->normalize_experts)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"norm_topk_prob\" must be false for %s", c->arch->name);
	r->groups_best = json_string_equals(json_get(v, "topk_method"), "group_limited_greedy");
	if (!e)
		e = r->groups_best ? read_groups(c, v, em) : check_word(c->arch, v, "topk_method", "greedy", em);
	return e;
}

static enum err read_router(struct model_config *c, json_val v, struct err_msg *em)
{
	const struct arch *a = c->arch;
	struct router_config *r = &c->router;
	enum err e = ERR_OK;

	*r = (struct router_config){.sigmoid = a->router_sigmoid, .sum_plus = a->router_sum_plus};
	if (a->router_greedy)
		e = read_greedy(c, v, em);
	else if (arch_has_own(a, "norm_topk_prob"))
		e = config_may_bool(v, "norm_topk_prob", !a->scores_alone, &c->normalize_experts, em);
	if (!e && a->experts_sum_one && !c->normalize_experts)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"norm_topk_prob\" must be true for %s", a->name);
	if (!e && !a->router_greedy)
		e = check_word(a, v, "topk_method", "noaux_tc", em);
	if (!e)
		e = check_word(a, v, "scoring_func", a->router_sigmoid ? "sigmoid" : "softmax", em);
	if (!e && !a->router_greedy && arch_has_own(a, "n_group"))
		e = read_groups(c, v, em);
	if (!e && arch_has_own(a, "routed_scaling_factor"))
		e = config_may_float(v, "routed_scaling_factor", a->routed_scale > 0 ? (double)a->routed_scale : 1, &r->scale, em);
	if (!e && arch_has_own(a, "use_expert_bias"))
		e = config_may_bool(v, "use_expert_bias", true, &c->choice_bias, em);
	if (!e && arch_has_own(a, "moe_norm_min"))
		e = config_may_float(v, "moe_norm_min", 1e-12, &r->sum_least, em);
	return e;
}

/* A word a layer. */
static enum err read_listed(struct model_config *c, json_val list, struct err_msg *em)
{
	u32 i = 0;

	if (json_type(list) != JSON_ARRAY || json_count(list) != c->layers)
		return err_set(em, ERR_FORMAT,
			       "config.json: \"mlp_layer_types\" must be an array of a word for each of the %u layers, found %s of %zu", c->layers,
			       json_type_name(list), json_count(list));
	for (struct json_iter it = json_iterate(list); json_next(&it); i++) {
		if (json_string_equals(it.value, "sparse"))
			c->layer_flags[i] |= LAYER_EXPERTS;
		else if (!json_string_equals(it.value, "dense"))
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"mlp_layer_types\"[%u] is '%.64s'; supported: dense, sparse", i,
				       json_cstr(it.value, json_type_name(it.value)));
	}
	return ERR_OK;
}

/* Some files say it twice, here as true or false. */
static enum err check_flags(const struct model_config *c, json_val list, struct err_msg *em)
{
	u32 i = 0;
	bool experts;

	if (json_type(list) != JSON_ARRAY || json_count(list) != c->layers)
		return err_set(em, ERR_FORMAT, "config.json: \"is_moe_layer\" must be an array of true or false for each of the %u layers, found %s of %zu",
			       c->layers, json_type_name(list), json_count(list));
	for (struct json_iter it = json_iterate(list); json_next(&it); i++)
		if (!json_bool(it.value, &experts))
			return err_set(em, ERR_FORMAT, "config.json: \"is_moe_layer\"[%u] must be true or false, found %s", i, json_type_name(it.value));
		else if (experts != !!(c->layer_flags[i] & LAYER_EXPERTS))
			return err_set(em, ERR_INVALID,
				       "config.json: \"is_moe_layer\"[%u] is %s, but by \"mlp_layer_types\" or \"first_k_dense_replace\" the layer has %s", i,
				       experts ? "true" : "false", experts ? "no experts" : "experts");
	return ERR_OK;
}

/* Of a family with no other rule: all layers, but where they are listed. */
static enum err read_listed_alone(struct model_config *c, json_val v, struct err_msg *em)
{
	static const char *const rules[] = {"decoder_sparse_step", "mlp_only_layers"};
	json_val list = json_get(v, "mlp_layer_types");

	for (size_t i = 0; i < COUNT_OF(rules); i++)
		if (json_present(json_get(v, rules[i])))
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" is set, which is not supported for %s", rules[i], c->arch->name);
	if (json_present(list))
		return read_listed(c, list, em);
	mark_all(c);
	return ERR_OK;
}

/* All layers from the first ones on, or every so many of them. */
static enum err read_first_dense(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 dense = 0, every = 1;

	if (arch_has_own(c->arch, "mlp_layer_types") && json_present(json_get(v, "mlp_layer_types")))
		return read_listed(c, json_get(v, "mlp_layer_types"), em);
	enum err e = config_may_count(v, "first_k_dense_replace", MODEL_LAYERS_MAX, c->arch->dense_layers, &dense, em);
	if (!e && arch_has_own(c->arch, "moe_layer_freq"))
		e = config_may_u32(v, "moe_layer_freq", MODEL_LAYERS_MAX, 1, &every, em);
	for (u32 i = dense; !e && i < c->layers; i++)
		if (i % every == 0)
			c->layer_flags[i] |= LAYER_EXPERTS;
	return e;
}

/* What a family of EXPERTS_SOME whose layers all have experts may say, and no more. */
static enum err check_all(const struct model_config *c, struct err_msg *em)
{
	for (u32 i = 0; i < c->layers; i++)
		if (!(c->layer_flags[i] & LAYER_EXPERTS))
			return err_set(em, ERR_UNSUPPORTED,
				       "config.json: by \"decoder_sparse_step\" or \"mlp_only_layers\" layer %u has no experts; of a %s all layers have some", i,
				       c->arch->name);
	if (!c->normalize_experts)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"norm_topk_prob\" must be true for %s", c->arch->name);
	return ERR_OK;
}

/* Every so many layers, from one to another, which is -1 for the last. */
static enum err read_interval(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val end = json_get(v, "moe_layer_end_index");
	u32 first = 0, last = c->layers - 1, interval = 1;
	i64 none;

	enum err e = config_may_count(v, "moe_layer_start_index", MODEL_LAYERS_MAX, 1, &first, em);
	if (!e && !(json_int(end, &none) && none == -1))
		e = config_may_count(v, "moe_layer_end_index", MODEL_LAYERS_MAX, last, &last, em);
	if (!e)
		e = config_may_u32(v, "moe_layer_interval", MODEL_LAYERS_MAX, 1, &interval, em);
	for (u32 i = first; !e && i < c->layers && i <= last; i++)
		if ((i + 1) % interval == 0)
			c->layer_flags[i] |= LAYER_EXPERTS;
	return e;
}

static enum err read_own(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 drafting; /* layers behind the model's that guess further tokens: not loaded */

	enum err e = arch_has_own(c->arch, "shared_expert_intermediate_size") ? read_shared_width(c, v, em) : read_shared(c, v, em);
	if (!e && arch_has_own(c->arch, "moe_latent_size"))
		e = config_may_count(v, "moe_latent_size", CONFIG_DIM_MAX, 0, &c->experts_narrow, em);
	if (!e)
		e = read_router(c, v, em);
	if (!e && arch_has_own(c->arch, "num_nextn_predict_layers"))
		e = config_may_count(v, "num_nextn_predict_layers", MODEL_LAYERS_MAX, 0, &drafting, em);
	if (!e && !c->arch->single_blocks) /* config_blocks.c */
		e = arch_has_own(c->arch, "first_k_dense_replace") || arch_has_own(c->arch, "mlp_layer_types") ? read_first_dense(c, v, em) : read_interval(c, v, em);
	if (!e && arch_has_own(c->arch, "is_moe_layer") && json_present(json_get(v, "is_moe_layer")))
		e = check_flags(c, json_get(v, "is_moe_layer"), em);
	return e;
}

/* A number, or an array of the same number for each layer. It may be missing. */
static enum err may_each(const struct model_config *c, json_val v, const char *name, u32 fallback, u32 *out, struct err_msg *em)
{
	json_val field = json_get(v, name);
	u64 first = 0, n;
	u32 i = 0;

	if (json_type(field) != JSON_ARRAY)
		return config_may_u32(v, name, CONFIG_DIM_MAX, fallback, out, em);
	if (json_count(field) != c->layers || !json_uint(json_at(field, 0), &first) || first < 1 || first > CONFIG_DIM_MAX)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be an integer from 1 to %d, or an array of one for each of the %u layers", name,
			       CONFIG_DIM_MAX, c->layers);
	for (struct json_iter it = json_iterate(field); json_next(&it); i++)
		if (!json_uint(it.value, &n) || n != first)
			return err_set(em, ERR_UNSUPPORTED,
				       "config.json: \"%s\"[%u] is another number than \"%s\"[0]; layers whose experts differ are not supported", name, i, name);
	*out = (u32)first;
	return ERR_OK;
}

/* Programs disagree about what other widths and counts would mean. */
static enum err read_alike(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 width = 0, shared = 0;

	enum err e = may_each(c, v, "moe_intermediate_size", c->intermediate, &width, em);
	if (!e)
		e = may_each(c, v, "num_shared_expert", 1, &shared, em);
	if (!e && width != c->intermediate)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"moe_intermediate_size\" is %u; of a %s it must be \"intermediate_size\", which is %u", width,
			    c->arch->name, c->intermediate);
	if (!e)
		e = config_may_bool(v, "norm_topk_prob", true, &c->normalize_experts, em);
	if (!e && !c->normalize_experts)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"norm_topk_prob\" must be true for %s", c->arch->name);
	if (!e && shared != 1)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"num_shared_expert\" is %u; of a %s it must be 1", shared, c->arch->name);
	c->shared_intermediate = c->intermediate;
	return e;
}

/* Every so many layers, or those that are listed. What "intermediate_size" says is the experts' width, and that of the one of all tokens. */
static enum err read_interleaved(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val list = json_get(v, "moe_layers");
	u32 step = 1;
	u64 layer;

	c->shared_intermediate = c->expert_intermediate;
	c->normalize_experts = false;
	enum err e = config_need_u32(v, "intermediate_size_mlp", CONFIG_DIM_MAX, &c->intermediate, em);
	if (!e)
		e = config_may_u32(v, "interleave_moe_layer_step", MODEL_LAYERS_MAX, 1, &step, em);
	for (u32 i = step - 1; !e && !json_present(list) && i < c->layers; i += step)
		c->layer_flags[i] |= LAYER_EXPERTS;
	if (!e && json_present(list) && json_type(list) != JSON_ARRAY)
		e = err_set(em, ERR_FORMAT, "config.json: \"moe_layers\" must be an array, found %s", json_type_name(list));
	for (struct json_iter it = json_iterate(list); !e && json_present(list) && json_next(&it);) {
		if (!json_uint(it.value, &layer) || layer >= c->layers)
			return err_set(em, ERR_FORMAT, "config.json: \"moe_layers\" must hold numbers of layers, below %u (num_hidden_layers), found %s", c->layers,
				       json_uint(it.value, &layer) ? "a greater one" : json_type_name(it.value));
		c->layer_flags[layer] |= LAYER_EXPERTS;
	}
	return e;
}

/* One of two words, the first of which is `usual` where none is there. */
static enum err read_choice(json_val v, const char *name, const char *usual, const char *other, bool *is_other, struct err_msg *em)
{
	json_val field = json_get(v, name);

	*is_other = json_string_equals(field, other);
	if (!json_present(field) || *is_other || json_string_equals(field, usual))
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" is '%.64s'; supported: %s, %s", name, json_cstr(field, json_type_name(field)), usual, other);
}

/* Cohere 2's: experts as wide as "intermediate_size" behind layers with an MLP of a width of its own. The mean of what the chosen ones say and
 * what one of all tokens does is half of either. */
static enum err read_prefixed(struct model_config *c, json_val v, struct err_msg *em)
{
	bool normalized = true, sum = false;

	enum err e = config_may_u32(v, "prefix_dense_intermediate_size", CONFIG_DIM_MAX, c->expert_intermediate, &c->intermediate, em);
	if (!e)
		e = read_shared(c, v, em);
	if (!e)
		e = read_choice(v, "expert_selection_fn", "softmax", "sigmoid", &c->router.sigmoid, em);
	if (!e)
		e = config_may_bool(v, "norm_topk_prob", true, &normalized, em);
	c->normalize_experts = normalized || !c->router.sigmoid; /* softmax is of the chosen ones */
	if (!e)
		e = read_choice(v, "shared_expert_combination_strategy", "average", "sum", &sum, em);
	c->router.scale = c->shared_intermediate > 0 && !sum ? 0.5f : 1;
	return e ? e : read_first_dense(c, v, em);
}

static enum err read_mixer(struct model_config *c, json_val v, struct err_msg *em)
{
	f32 noise;

	if (c->experts_per_token != 2)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"num_experts_per_tok\" is %u; a %s has 2", c->experts_per_token,
			       c->arch->name);
	enum err e = config_may_float(v, "router_jitter_noise", 0.01, &noise, em);
	if (!e && noise > 1)
		e = err_set(em, ERR_INVALID, "config.json: \"router_jitter_noise\" is %g; it must be above 0 and at most 1", (double)noise);
	c->router.mixer = 2 * noise;
	return e;
}

/* Of experts for text, which stands before that of experts for images. */
static enum err read_first_width(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val list = json_get(v, "moe_intermediate_size");
	u64 width[2] = {1536, 512};

	for (u32 i = 0; i < COUNT_OF(width) && json_present(list); i++)
		if (json_type(list) != JSON_ARRAY || json_count(list) != COUNT_OF(width) || !json_uint(json_at(list, i), &width[i]) || width[i] < 1 ||
		    width[i] > CONFIG_DIM_MAX)
			return err_set(em, ERR_FORMAT,
				       "config.json: \"moe_intermediate_size\" of a %s must be an array of two integers from 1 to %d: the widths of experts for text and for images",
				       c->arch->name, CONFIG_DIM_MAX);
	c->expert_intermediate = (u32)width[0];
	return ERR_OK;
}

/* ---------------------------------------------------------------- all */

static enum err read_count(struct model_config *c, json_val v, const char *name, u32 *out, struct err_msg *em)
{
	const bool lists = c->arch->experts_alike && json_type(json_get(v, name)) == JSON_ARRAY;

	*out = 0;
	enum err e = lists ? may_each(c, v, name, 0, out, em) : ERR_OK;
	if (!e && *out > EXPERTS_MAX)
		e = err_set(em, ERR_INVALID, "config.json: \"%s\" is %u; it must be 1 to %d", name, *out, EXPERTS_MAX);
	return e || lists ? e : config_need_u32(v, name, EXPERTS_MAX, out, em);
}

enum err config_read_beside(struct model_config *c, json_val v, struct err_msg *em)
{
	bool there;

	enum err e = config_may_bool(v, "enable_moe_block", false, &there, em);
	if (e || !there)
		return e;
	e = config_need_u32(v, "num_experts", EXPERTS_MAX, &c->experts, em);
	if (!e)
		e = config_need_u32(v, "top_k_experts", EXPERTS_MAX, &c->experts_per_token, em);
	if (!e && c->experts_per_token > c->experts)
		e = err_set(em, ERR_INVALID, "config.json: \"top_k_experts\" is %u, but there are only %u experts (\"num_experts\")",
			    c->experts_per_token, c->experts);
	if (!e)
		e = config_need_u32(v, "moe_intermediate_size", CONFIG_DIM_MAX, &c->expert_intermediate, em);
	c->normalize_experts = true;
	mark_all(c);
	return e;
}

/* `*none`: the model has no experts, and its MLP is what else would be for all tokens. */
static enum err read_optional(struct model_config *c, json_val v, bool *none, struct err_msg *em)
{
	u64 count;

	*none = json_uint(json_get(v, "num_local_experts"), &count) && count == 0;
	if (*none)
		return config_need_u32(v, "shared_intermediate_size", CONFIG_DIM_MAX, &c->intermediate, em);
	return config_need_u32(v, "intermediate_size", CONFIG_DIM_MAX, &c->intermediate, em);
}

/* Whether some layer has experts. */
static bool is_marked(const struct model_config *c)
{
	for (u32 i = 0; i < c->layers; i++)
		if (c->layer_flags[i] & LAYER_EXPERTS)
			return true;
	return false;
}

enum err config_read_experts(struct model_config *c, json_val v, struct err_msg *em)
{
	bool all = has(c, ARCH_EXPERTS_ALL), own = has(c, ARCH_EXPERTS_OWN);
	const char *count =
		own || json_present(json_get(v, "num_experts")) ? "num_experts" : "num_local_experts";
	enum err e = ERR_OK;

	bool none = false;

	if (c->arch->shortcut)
		return config_read_shortcut(c, v, em);
	if (arch_has_own(c->arch, "expert_layer_period"))
		return config_read_periodic(c, v, em);
	if (!has(c, ARCH_EXPERTS_ALL | ARCH_EXPERTS_SOME | ARCH_EXPERTS_OWN) || (c->arch->single_blocks && !is_marked(c)))
		return ERR_OK;
	if (c->arch->experts_optional)
		e = read_optional(c, v, &none, em);
	if (e || none)
		return e;
	e = config_check_pair(v, "num_experts", "num_local_experts", em);
	if (!e)
		e = read_count(c, v, count, &c->experts, em);
	if (!e)
		e = read_count(c, v, "num_experts_per_tok", &c->experts_per_token, em);
	if (!e && c->experts_per_token > c->experts)
		e = err_set(
			em, ERR_INVALID,
			"config.json: \"num_experts_per_tok\" is %u, but there are only %u experts (\"%s\")",
			c->experts_per_token, c->experts, count);
	c->normalize_experts = true;
	c->expert_intermediate = c->intermediate;
	c->router.sigmoid = c->arch->router_sigmoid;
	if (!e && all && arch_has_own(c->arch, "moe_layers"))
		e = read_interleaved(c, v, em);
	else if (!e && all && arch_has_own(c->arch, "prefix_dense_intermediate_size"))
		e = read_prefixed(c, v, em);
	else if (!e && all)
		mark_all(c);
	if (!e && all)
		e = check_word(c->arch, v, "scoring_func", "sigmoid", em);
	if (!e && has(c, ARCH_EXPERTS_NORM))
		e = config_may_bool(v, "norm_topk_prob", false, &c->normalize_experts, em);
	if (!e && arch_has_own(c->arch, "shared_intermediate_size"))
		e = config_may_count(v, "shared_intermediate_size", CONFIG_DIM_MAX, 0, &c->shared_intermediate, em);
	if (!e && c->arch->experts_alike)
		e = read_alike(c, v, em);
	if (!e && c->arch->mixer)
		e = read_mixer(c, v, em);
	if (e || all)
		return e;
	e = c->arch->image_experts ? read_first_width(c, v, em) : config_need_u32(v, "moe_intermediate_size", CONFIG_DIM_MAX, &c->expert_intermediate, em);
	if (own)
		return e ? e : read_own(c, v, em);
	if (!e)
		e = config_may_bool(v, "norm_topk_prob", c->arch->experts_norm, &c->normalize_experts, em);
	if (!e && has(c, ARCH_SHARED_EXPERT))
		e = config_need_u32(v, "shared_expert_intermediate_size", CONFIG_DIM_MAX, &c->shared_intermediate, em);
	if (!e && arch_has_own(c->arch, "mlp_layer_types"))
		return read_listed_alone(c, v, em);
	if (!e)
		e = read_dense_layers(c, v, em);
	return !e && c->arch->experts_only ? check_all(c, em) : e;
}

enum err config_read_head_experts(struct model_config *c, json_val v, struct err_msg *em)
{
	enum { TOP = 2, HEADS_MAX = 1 << 16 };
	u32 kv_heads, top, given;

	enum err e = config_may_u32(v, "num_key_value_heads", HEADS_MAX, c->arch->kv_heads, &kv_heads, em);
	if (!e)
		e = config_may_u32(v, "num_experts_per_tok", HEADS_MAX, TOP, &top, em);
	if (e)
		return e;
	const u64 heads = (u64)kv_heads * top;
	if (heads > HEADS_MAX)
		return err_set(em, ERR_INVALID, "config.json: \"num_key_value_heads\" %u times \"num_experts_per_tok\" %u is more than %d heads", kv_heads, top, HEADS_MAX);
	c->heads = (u32)heads;
	e = config_may_u32(v, "num_attention_heads", HEADS_MAX, c->heads, &given, em);
	if (!e && given != c->heads)
		e = err_set(em, ERR_INVALID, "config.json: \"num_attention_heads\" is %u; by \"num_key_value_heads\" and \"num_experts_per_tok\" it must be %u", given,
			    c->heads);
	return e;
}
