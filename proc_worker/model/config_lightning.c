/* Lightning attention, as config.json describes it: which layers of a model are of it, and how much the blocks of every kind of layer count. Runs in the
 * worker at start. */
#include <string.h>

#include "kernels/recurrent.h"
#include "proc_worker/model/config_priv.h"

/* A number a layer, 0 of lightning attention and 1 of attention to all tokens. */
static enum err mark_numbered(struct model_config *c, json_val list, struct err_msg *em)
{
	u32 i = 0;
	u64 type;

	if (json_type(list) != JSON_ARRAY || json_count(list) != c->layers)
		return err_set(em, ERR_FORMAT, "config.json: \"attn_type_list\" must be an array of %u numbers (num_hidden_layers), found %s of %zu", c->layers,
			       json_type_name(list), json_count(list));
	for (struct json_iter it = json_iterate(list); json_next(&it); i++) {
		if (!json_uint(it.value, &type) || type > 1)
			return err_set(em, ERR_FORMAT, "config.json: \"attn_type_list\"[%u] must be 0, lightning attention, or 1, attention to all tokens", i);
		c->layer_flags[i] |= type == 0 ? LAYER_RECURRENT : 0;
	}
	return ERR_OK;
}

enum err config_mark_lightning(struct model_config *c, json_val v, bool *ruled, struct err_msg *em)
{
	json_val list = json_get(v, "attn_type_list");
	const bool has_list = arch_has_own(c->arch, "attn_type_list");

	*ruled = json_present(list);
	if (*ruled)
		return mark_numbered(c, list, em);
	if (has_list && !json_present(json_get(v, "layer_types")))
		return err_set(em, ERR_FORMAT, "config.json: \"attn_type_list\" is missing; of a %s it must be an array of %u numbers (num_hidden_layers), 0 for a layer "
					       "of lightning attention and 1 for one of attention to all tokens", c->arch->name, c->layers);
	for (u32 i = 1; i < c->layers && !has_list; i += 2)
		c->layer_flags[i] |= LAYER_RECURRENT;
	return ERR_OK;
}

/* How much of what a block reads goes on, and how much of what it says. */
static enum err read_shares(json_val v, const char *kept, const char *said, struct residual_share *out, struct err_msg *em)
{
	f32 alpha;

	enum err e = config_may_float(v, kept, 1, &alpha, em);
	if (!e)
		e = config_may_float(v, said, 1, &out->said, em);
	const double ratio = e ? 1 : (double)alpha / (double)out->said;
	if (!e)
		e = config_check_float(kept, ratio, em);
	out->kept = (f32)ratio;
	return e;
}

enum err config_read_residuals(struct model_config *c, json_val v, struct err_msg *em)
{
	bool behind = true;

	enum err e = read_shares(v, "full_attn_alpha_factor", "full_attn_beta_factor", &c->residuals[RESIDUAL_ATTENTION], em);
	if (!e)
		e = read_shares(v, "linear_attn_alpha_factor", "linear_attn_beta_factor", &c->residuals[RESIDUAL_STATE], em);
	if (!e)
		e = read_shares(v, "mlp_alpha_factor", "mlp_beta_factor", &c->residuals[RESIDUAL_MLP], em);
	if (!e && arch_has_own(c->arch, "postnorm"))
		e = config_may_bool(v, "postnorm", false, &behind, em);
	if (!e && !behind)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"postnorm\" must be true for %s", c->arch->name);
	return e;
}

enum err config_read_lightning(struct model_config *c, struct err_msg *em)
{
	struct recurrent_config *r = &c->recurrent;

	if (c->head_dim > KERN_RECURRENT_DIM_MAX)
		return err_set(em, ERR_UNSUPPORTED, "config.json: heads of %u values; those of lightning attention may have %d", c->head_dim, KERN_RECURRENT_DIM_MAX);
	r->heads = r->key_heads = c->heads;
	r->key_dim = r->value_dim = c->head_dim;
	r->taps = 1;
	r->step_min = r->step_max = 1;
	return ERR_OK;
}
