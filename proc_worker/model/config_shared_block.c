/* Blocks that layers share, as config.json describes them (Zamba 2). Runs in the worker at start. */
#include <math.h>

#include "proc_worker/model/config_priv.h"

enum { ADAPTER_RANK = 128 /* where nothing says it */ };

/* The layers of the file, each of which is two here: the block, or nothing, and what keeps a state. */
static enum err mark(struct model_config *c, json_val types, struct err_msg *em)
{
	u32 i = 0;

	for (struct json_iter it = json_iterate(types); json_next(&it); i += 2) {
		const bool hybrid = json_string_equals(it.value, "hybrid");
		if (!hybrid && !json_string_equals(it.value, "mamba") && !json_string_equals(it.value, "linear_attention"))
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"layer_types\"[%u] is '%.64s'; supported: mamba (or linear_attention), hybrid", i / 2,
				       json_cstr(it.value, json_type_name(it.value)));
		c->layer_flags[i] = hybrid ? LAYER_SHARED_BLOCK : LAYER_NO_MIXER | LAYER_NO_MLP;
		c->layer_flags[i + 1] = LAYER_RECURRENT | LAYER_NO_MLP;
		if (!hybrid)
			continue;
		struct shared_blocks *b = &c->blocks;
		b->layers[b->uses] = i;
		b->first[i] = b->uses < b->count ? i : b->layers[b->uses % b->count];
		b->uses++;
	}
	return ERR_OK;
}

enum err config_read_shared_layers(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val types = json_get(v, "layer_types");
	const size_t count = json_count(types);
	u32 layers = 0;

	enum err e = config_need_u32(v, "num_hidden_layers", MODEL_LAYERS_MAX / 2, &layers, em);
	if (!e)
		e = config_may_u32(v, "num_mem_blocks", MODEL_LAYERS_MAX / 2, 1, &c->blocks.count, em);
	if (!e)
		e = config_may_u32(v, "adapter_rank", CONFIG_DIM_MAX, ADAPTER_RANK, &c->blocks.rank, em);
	if (!e)
		e = config_may_bool(v, "use_shared_attention_adapter", false, &c->blocks.adapts_attention, em);
	if (!e && (json_type(types) != JSON_ARRAY || count != layers))
		e = err_set(em, ERR_FORMAT, "config.json: \"layer_types\" must be an array of %u strings (num_hidden_layers), each mamba or hybrid, found %s of %zu", layers,
			    json_type_name(types), count);
	c->layers = 2 * layers;
	return e ? e : mark(c, types, em);
}

/* What files say again of what follows from other fields. */
static enum err check_widths(const struct model_config *c, json_val v, struct err_msg *em)
{
	const struct {
		const char *name;
		u32 value;
	} same[] = {{"attention_hidden_size", 2 * c->hidden}, {"head_dim", c->head_dim}, {"ffn_hidden_size", c->intermediate},
		    {"kv_channels", c->hidden / c->heads}, {"num_query_groups", c->heads}};
	enum err e = ERR_OK;
	u32 said;

	for (size_t i = 0; !e && i < COUNT_OF(same); i++) {
		e = config_may_u32(v, same[i].name, CONFIG_DIM_MAX, same[i].value, &said, em);
		if (!e && said != same[i].value)
			e = err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" is %u; of a %s with hidden_size %u, intermediate_size %u and num_attention_heads %u it must be %u",
				    same[i].name, said, c->arch->name, c->hidden, c->intermediate, c->heads, same[i].value);
	}
	return e;
}

/* The numbers of the layers that have a block. */
static enum err check_list(const struct model_config *c, json_val list, struct err_msg *em)
{
	u32 i = 0;
	u64 layer;

	for (struct json_iter it = json_iterate(list); json_present(list) && json_next(&it); i++)
		if (!json_uint(it.value, &layer) || i >= c->blocks.uses || layer != c->blocks.layers[i] / 2)
			return err_set(em, ERR_INVALID, "config.json: \"hybrid_layer_ids\"[%u] is not the number of the next layer that \"layer_types\" calls hybrid", i);
	if (json_present(list) && i != c->blocks.uses)
		return err_set(em, ERR_INVALID, "config.json: \"hybrid_layer_ids\" has %u layers, but \"layer_types\" calls %u hybrid", i, c->blocks.uses);
	return ERR_OK;
}

enum err config_read_shared_heads(struct model_config *c, json_val v, struct err_msg *em)
{
	if (2 * c->hidden % c->heads)
		return err_set(em, ERR_INVALID, "config.json: \"hidden_size\" is %u; of a %s twice that must be a multiple of \"num_attention_heads\", which is %u", c->hidden,
			       c->arch->name, c->heads);
	c->head_dim = 2 * c->hidden / c->heads;
	enum err e = check_widths(c, v, em);
	return e ? e : check_list(c, json_get(v, "hybrid_layer_ids"), em);
}

enum err config_end_shared(struct model_config *c, json_val v, struct err_msg *em)
{
	bool rotates;

	enum err e = config_may_bool(v, "use_mem_rope", false, &rotates, em);
	for (u32 i = 0; !e && i < c->layers && !rotates; i++)
		if (c->layer_flags[i] & LAYER_SHARED_BLOCK)
			c->layer_flags[i] |= LAYER_NO_ROPE;
	c->attention_scale = (f32)(1 / sqrt(c->head_dim / 2.0));
	c->mlp_bias = c->recurrent.bias; /* one field says both */
	c->recurrent.gate_eps = 1e-5f;
	return e;
}
