/* The indexer of families whose layers attend to chosen tokens (DeepSeek-AI 2025) as config.json describes it. Runs in the worker at start. */
#include <string.h>

#include "proc_worker/model/config_priv.h"

static const char *const FIELDS[] = {"index_topk", "index_n_heads", "index_head_dim", "indexer_types", "index_topk_freq", "index_topk_pattern",
				     "index_skip_topk_offset", "indexer_rope_interleave"};

bool config_is_index_field(const struct arch *arch, const char *name)
{
	for (size_t i = 0; i < COUNT_OF(FIELDS) && arch_has_own(arch, "index_topk"); i++)
		if (!strcmp(FIELDS[i], name))
			return true;
	return false;
}

/* A layer's word in "indexer_types", or its letter in a pattern. */
static enum err read_type(struct model_config *c, u32 layer, const char *field, json_val value, bool full, bool shared, struct err_msg *em)
{
	if (!full && !shared)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\"[%u] is '%.64s'; supported: full, shared", field, layer,
			       json_cstr(value, json_type_name(value)));
	c->index.full[layer] = full;
	return ERR_OK;
}

/* Of each layer a word; what is behind the last layer are those that guess further tokens. */
static enum err read_types(struct model_config *c, const char *field, json_val list, struct err_msg *em)
{
	u32 i = 0;
	enum err e = ERR_OK;

	if (json_type(list) != JSON_ARRAY || json_count(list) < c->layers)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be an array of a word for each of the %u layers, found %s of %zu", field, c->layers,
			       json_type_name(list), json_count(list));
	for (struct json_iter it = json_iterate(list); !e && i < c->layers && json_next(&it); i++)
		e = read_type(c, i, field, it.value, json_string_equals(it.value, "full"), json_string_equals(it.value, "shared"), em);
	return e;
}

/* A letter for each layer, F or S, or the words. */
static enum err read_pattern(struct model_config *c, json_val pattern, struct err_msg *em)
{
	static const char field[] = "index_topk_pattern";
	const char *letters = json_cstr(pattern, NULL);
	enum err e = ERR_OK;

	if (json_type(pattern) != JSON_STRING || !letters)
		return read_types(c, field, pattern, em);
	if (strlen(letters) < c->layers)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must have a letter for each of the %u layers, found %zu", field, c->layers, strlen(letters));
	for (u32 i = 0; !e && i < c->layers; i++)
		e = read_type(c, i, field, pattern, letters[i] == 'F', letters[i] == 'S', em);
	return e;
}

/* One layer in so many, from some layer on; those in front of it all choose. */
static enum err read_frequency(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 every = 1, offset = 2;

	enum err e = config_may_count(v, "index_topk_freq", MODEL_LAYERS_MAX, 1, &every, em);
	if (!e)
		e = config_may_count(v, "index_skip_topk_offset", MODEL_LAYERS_MAX, 2, &offset, em);
	every = every > 0 ? every : 1;
	for (u32 i = 0; !e && i < c->layers; i++)
		c->index.full[i] = (i + 1 > offset ? i + 1 - offset : 0) % every == 0;
	return e;
}

static enum err read_layers(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val types = json_get(v, "indexer_types"), pattern = json_get(v, "index_topk_pattern");
	enum err e = json_present(types)     ? read_types(c, "indexer_types", types, em)
		     : json_present(pattern) ? read_pattern(c, pattern, em)
					     : read_frequency(c, v, em);

	if (!e && !c->index.full[0])
		e = err_set(em, ERR_INVALID, "config.json: by \"indexer_types\", or \"index_topk_pattern\", layer 0 takes over what a layer before it has chosen");
	for (u32 i = 0; !e && i < c->layers && !c->arch->index_shared; i++)
		if (!c->index.full[i])
			e = err_set(em, ERR_UNSUPPORTED,
				    "config.json: by \"indexer_types\", \"index_topk_pattern\" or \"index_topk_freq\" layer %u takes over what another has chosen; of a "
				    "%s all layers choose by themselves",
				    i, c->arch->name);
	return e;
}

static enum err check_layer_types(const struct model_config *c, json_val types, struct err_msg *em)
{
	for (struct json_iter it = json_iterate(types); json_present(types) && json_next(&it);)
		if (!json_string_equals(it.value, "indexed_attention"))
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"layer_types\" has '%.64s'; of a %s it must be 'indexed_attention'",
				       json_cstr(it.value, json_type_name(it.value)), c->arch->name);
	return ERR_OK;
}

/* The first dimensions of its heads rotate as those of attention do. */
static enum err read_sizes(struct model_config *c, json_val v, struct err_msg *em)
{
	const u32 width = 128;
	struct index_config *x = &c->index;

	enum err e = config_may_u32(v, "index_n_heads", CONFIG_DIM_MAX, c->arch->index_heads, &x->heads, em);
	if (!e)
		e = config_may_u32(v, "index_head_dim", CONFIG_HEAD_DIM_MAX, width, &x->width, em);
	if (!e)
		e = config_may_bool(v, "indexer_rope_interleave", c->arch->index_interleaved, &x->interleaved, em);
	if (!e && (x->width % 2 || x->width < c->latent.rope))
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"index_head_dim\" is %u; it must be even, and no less than \"qk_rope_head_dim\", which is %u",
			    x->width, c->latent.rope);
	return e;
}

enum err config_read_index(struct model_config *c, json_val v, struct err_msg *em)
{
	const u32 usual = 2048;
	const bool bounded = c->arch->index_bounded;

	if (!arch_has_own(c->arch, "index_topk"))
		return ERR_OK;
	enum err e = config_may_u32(v, "index_topk", CONFIG_CONTEXT_MAX, usual, &c->index.top, em);
	if (!e && !bounded)
		e = read_sizes(c, v, em);
	if (!e && !bounded)
		e = read_layers(c, v, em);
	if (!e && c->arch->interleaved && !c->interleaved)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"rope_interleave\" must be true for %s", c->arch->name);
	if (!e && c->latent.q_rank == 0)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"q_lora_rank\" is null; of a %s it must be a number", c->arch->name);
	if (!e)
		e = check_layer_types(c, json_get(v, "layer_types"), em);
	if (!e && bounded) /* its indexer is not computed */
		config_bound_context(c, c->index.top, "index_topk");
	if (!e && (c->context_max <= c->index.top || bounded))
		model_drop_index(c);
	return e;
}
