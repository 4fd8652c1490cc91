/* Layers in pairs, with a mixture of experts that skips the second of each (LongCat Flash), as config.json describes them. Runs in the worker at
 * start. */
#include "proc_worker/model/config_priv.h"

enum {
	EXPERTS_MAX = 4096,
	ZERO_EXPERTS = 256, /* where nothing says it */
};

/* The file counts pairs; what others call its layers may be said as well, counted either way. */
enum err config_read_pairs(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 pairs = 0, layers;

	enum err e = config_need_u32(v, "num_layers", MODEL_LAYERS_MAX / 2, &pairs, em);
	if (!e)
		e = config_may_u32(v, "num_hidden_layers", MODEL_LAYERS_MAX, 2 * pairs, &layers, em);
	if (!e && layers != pairs && layers != 2 * pairs)
		e = err_set(em, ERR_INVALID, "config.json: \"num_hidden_layers\" is %u; with \"num_layers\" %u it must be that, or twice that, or missing", layers, pairs);
	c->layers = 2 * pairs;
	for (u32 i = 0; !e && i < c->layers; i += 2)
		c->layer_flags[i] |= LAYER_SHORTCUT;
	return e;
}

enum err config_read_shortcut(struct model_config *c, json_val v, struct err_msg *em)
{
	const bool stated = json_type(json_get(v, "zero_expert_num")) != JSON_MISSING;

	enum err e = config_need_u32(v, "num_experts", EXPERTS_MAX, &c->experts, em);
	if (!e)
		e = config_may_count(v, "zero_expert_num", EXPERTS_MAX, stated ? 0 : ZERO_EXPERTS, &c->zero_experts, em);
	if (!e)
		e = config_need_u32(v, "num_experts_per_tok", 2 * EXPERTS_MAX, &c->experts_per_token, em);
	if (!e && c->experts_per_token > c->experts + c->zero_experts)
		e = err_set(em, ERR_INVALID, "config.json: \"num_experts_per_tok\" is %u, but there are only %u experts (\"num_experts\" and \"zero_expert_num\")",
			    c->experts_per_token, c->experts + c->zero_experts);
	if (!e)
		e = config_need_u32(v, "moe_intermediate_size", CONFIG_DIM_MAX, &c->expert_intermediate, em);
	if (!e)
		e = config_may_float(v, "routed_scaling_factor", (double)c->arch->routed_scale, &c->router.scale, em);
	if (!e && c->latent.q_rank == 0)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"q_lora_rank\" is null; of a %s it must be a number", c->arch->name);
	return e;
}
