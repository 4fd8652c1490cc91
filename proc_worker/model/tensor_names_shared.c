/* Finds the adapters of blocks that layers share (Zamba 2): the file has those of all layers under the name of the first that has the block, in lists; and which layers have blocks of
 * their own all the same. Runs in the worker while it loads. Copies nothing: what it adds are names for places in the mapped files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proc_worker/model/tensor_names.h"

enum { NAME_BYTES = 256 };

static const struct {
	const char *list, *here; /* modules of the block */
	bool of_attention;
} ADAPTERS[] = {
	{"self_attn.linear_q_adapter_list", "self_attn.linear_q_adapter", true},
	{"self_attn.linear_k_adapter_list", "self_attn.linear_k_adapter", true},
	{"self_attn.linear_v_adapter_list", "self_attn.linear_v_adapter", true},
	{"feed_forward.gate_up_proj_adapter_list", "feed_forward.gate_up_proj_adapter", false},
};
enum { ADDED_MAX = 2 * COUNT_OF(ADAPTERS) };

/* Both matrices of one adapter of the layer that uses blocks as the `use`th one: under its own name where it has a block in the file, or that of the first with that block. */
static enum err name_adapter(const struct safetensors *st, const struct model_config *c, u32 use, size_t adapter, struct st_tensor out[2],
			     char names[2][NAME_BYTES], struct err_msg *em)
{
	const u32 layer = c->blocks.layers[use], first = c->blocks.first[layer];
	const u32 at[] = {layer, first};
	char name[NAME_BYTES];

	for (u32 i = 0; i < 2; i++) {
		const struct st_tensor *t = NULL;
		for (size_t k = 0; !t && k < COUNT_OF(at); k++) {
			snprintf(name, sizeof(name), "model.layers.%u.shared_transformer.%s.%u.%u.weight", at[k] / 2, ADAPTERS[adapter].list, use, i);
			t = safetensors_find(st, name);
		}
		if (!t)
			return err_set(em, ERR_NOT_FOUND, "the checkpoint has no tensor %s, which is an adapter of layer %u", name, layer / 2);
		out[i] = *t;
		snprintf(names[i], NAME_BYTES, "model.layers.%u.shared_transformer.%s.%u.weight", layer / 2, ADAPTERS[adapter].here, i);
		out[i].name = names[i];
	}
	return ERR_OK;
}

/* One that config.json says there is none of: without it the model would answer nonsense. */
static enum err refuse_adapter(const struct safetensors *st, const struct model_config *c, u32 use, size_t adapter, struct err_msg *em)
{
	char name[NAME_BYTES];

	snprintf(name, sizeof(name), "model.layers.%u.shared_transformer.%s.%u.0.weight", c->blocks.first[c->blocks.layers[use]] / 2, ADAPTERS[adapter].list, use);
	return safetensors_find(st, name) ? err_set(em, ERR_INVALID, "the checkpoint has a tensor %s, but by config.json there are no adapters of attention; "
								     "\"use_shared_attention_adapter\" must be true", name)
					  : ERR_OK;
}

enum err tensor_names_add_shared(struct safetensors *st, const struct model_config *c, struct err_msg *em)
{
	struct st_tensor *added = calloc((size_t)c->blocks.uses * ADDED_MAX + 1, sizeof(*added));
	char(*names)[NAME_BYTES] = calloc((size_t)c->blocks.uses * ADDED_MAX + 1, sizeof(*names));
	enum err e = added && names ? ERR_OK : err_set(em, ERR_NO_MEMORY, "out of memory");
	u32 count = 0;

	for (u32 use = 0; !e && use < c->blocks.uses; use++)
		for (size_t i = 0; !e && i < COUNT_OF(ADAPTERS); i++) {
			if (ADAPTERS[i].of_attention && !c->blocks.adapts_attention) {
				e = refuse_adapter(st, c, use, i, em);
				continue;
			}
			e = name_adapter(st, c, use, i, added + count, names + count, em);
			count += 2;
		}
	if (!e && count)
		e = safetensors_add(st, added, count, em);
	free(names);
	free(added);
	return e;
}

void tensor_names_find_blocks(const struct safetensors *st, struct model_config *c)
{
	char name[NAME_BYTES];

	for (u32 use = 0; use < c->blocks.uses; use++) {
		const u32 layer = c->blocks.layers[use];
		const int bytes = snprintf(name, sizeof(name), "model.layers.%u.shared_transformer.self_attn.q_proj.", layer / 2);
		for (u32 i = 0; i < safetensors_count(st); i++)
			if (!strncmp(safetensors_at(st, i)->name, name, (size_t)bytes))
				c->blocks.first[layer] = layer;
	}
}
