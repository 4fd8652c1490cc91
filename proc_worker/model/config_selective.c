/* Layers of Mamba's first generation, as config.json describes them: which layers of a model these are, of what sizes they are, and which of Jamba's
 * layers have experts. Runs in the worker at start. */
#include <string.h>

#include "kernels/recurrent.h"
#include "proc_worker/model/config_priv.h"

/* Where nothing says it. */
enum {
	ATTENTION_PERIOD = 8,
	ATTENTION_OFFSET = 4,
	EXPERT_PERIOD = 2,
	EXPERT_OFFSET = 1,
	EXPERTS = 16,
	EXPERTS_A_TOKEN = 2,
	EXPERTS_MOST = 4096,
	STATE_DIM = 16,
	EXPAND = 2,
	HIDDEN_A_RANK = 16,
	NOMINAL_HEAD_DIM = 2,
};

/* ---------------------------------------------------------------- which layers */

/* One layer in so many, counted from 0: that with the number `offset` among them. */
static enum err read_period(json_val v, const char *period_name, u32 usual_period, const char *offset_name, u32 usual_offset, u32 *period, u32 *offset,
			    struct err_msg *em)
{
	enum err e = config_may_u32(v, period_name, MODEL_LAYERS_MAX, usual_period, period, em);

	if (!e)
		e = config_may_count(v, offset_name, MODEL_LAYERS_MAX, usual_offset, offset, em);
	if (!e && *offset >= *period)
		e = err_set(em, ERR_INVALID, "config.json: \"%s\" is %u; it must be below \"%s\", which is %u", offset_name, *offset, period_name, *period);
	return e;
}

enum err config_mark_period(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 period, offset;

	enum err e = read_period(v, "attn_layer_period", ATTENTION_PERIOD, "attn_layer_offset", ATTENTION_OFFSET, &period, &offset, em);
	for (u32 i = 0; !e && i < c->layers; i++)
		if (i % period != offset)
			c->layer_flags[i] |= LAYER_RECURRENT;
	return e;
}

enum err config_read_periodic(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 period, offset;

	enum err e = config_check_pair(v, "num_experts", "num_local_experts", em);
	if (!e)
		e = config_may_u32(v, json_present(json_get(v, "num_experts")) ? "num_experts" : "num_local_experts", EXPERTS_MOST, EXPERTS, &c->experts, em);
	if (!e)
		e = config_may_u32(v, "num_experts_per_tok", EXPERTS_MOST, EXPERTS_A_TOKEN, &c->experts_per_token, em);
	if (!e)
		e = read_period(v, "expert_layer_period", EXPERT_PERIOD, "expert_layer_offset", EXPERT_OFFSET, &period, &offset, em);
	if (e)
		return e;
	if (c->experts == 1) { /* is what every layer has */
		c->experts = c->experts_per_token = 0;
		return ERR_OK;
	}
	if (c->experts_per_token > c->experts)
		return err_set(em, ERR_INVALID, "config.json: \"num_experts_per_tok\" is %u, but there are only %u experts (\"num_experts\")",
			       c->experts_per_token, c->experts);
	c->expert_intermediate = c->intermediate;
	for (u32 i = offset; i < c->layers; i += period)
		c->layer_flags[i] |= LAYER_EXPERTS;
	return ERR_OK;
}

enum err config_read_attention_free(struct model_config *c, json_val v, struct err_msg *em)
{
	static const char *const fields[] = {"num_attention_heads", "num_key_value_heads", "head_dim"};

	for (size_t i = 0; i < COUNT_OF(fields); i++)
		if (json_present(json_get(v, fields[i])))
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" is set; no layer of a %s is of attention", fields[i], c->arch->name);
	c->heads = c->kv_heads = 1; /* which no layer has */
	c->head_dim = NOMINAL_HEAD_DIM;
	for (u32 i = 0; i < c->layers; i++)
		c->layer_flags[i] |= LAYER_RECURRENT | LAYER_NO_MLP;
	return config_may_u32(v, "max_position_embeddings", CONFIG_CONTEXT_MAX, c->arch->context, &c->context_max, em);
}

/* ---------------------------------------------------------------- their numbers */

/* How many values steps are made of. */
static enum err read_rank(struct model_config *c, json_val v, struct err_msg *em)
{
	const u32 usual = (c->hidden + HIDDEN_A_RANK - 1) / HIDDEN_A_RANK;
	json_val field = json_get(v, "mamba_dt_rank");
	const char *word;
	size_t bytes;

	c->recurrent.step_rank = usual;
	if (json_string_equals(field, "auto"))
		return ERR_OK;
	if (json_string(field, &word, &bytes))
		return err_set(em, ERR_FORMAT, "config.json: \"mamba_dt_rank\" is '%.64s'; it must be an integer from 1 to %d, or \"auto\", which is %u here", word,
			       CONFIG_DIM_MAX, usual);
	return config_may_u32(v, "mamba_dt_rank", CONFIG_DIM_MAX, usual, &c->recurrent.step_rank, em);
}

/* How many channels there are, each of which is a head of one value. */
static enum err read_channels(struct model_config *c, json_val v, struct err_msg *em)
{
	const bool stated = c->arch->attention_free && json_present(json_get(v, "intermediate_size"));
	u32 expand;

	enum err e = config_may_u32(v, "mamba_expand", CONFIG_DIM_MAX, EXPAND, &expand, em);
	if (!e && stated)
		return config_need_u32(v, "intermediate_size", CONFIG_DIM_MAX, &c->recurrent.heads, em);
	if (!e && (u64)expand * c->hidden > CONFIG_DIM_MAX)
		e = err_set(em, ERR_INVALID, "config.json: \"mamba_expand\" is %u: times hidden_size, which is %u, that is more than %d", expand, c->hidden,
			    CONFIG_DIM_MAX);
	c->recurrent.heads = expand * c->hidden;
	return e;
}

enum err config_read_selective(struct model_config *c, json_val v, struct err_msg *em)
{
	struct recurrent_config *r = &c->recurrent;

	r->key_heads = r->value_dim = 1;
	r->normed = c->arch->select_norms;
	enum err e = config_may_u32(v, "mamba_d_state", KERN_SELECTIVE_DIM_MAX, STATE_DIM, &r->key_dim, em);
	if (!e)
		e = read_rank(c, v, em);
	if (!e)
		e = read_channels(c, v, em);
	if (!e)
		e = config_may_bool(v, "mamba_conv_bias", true, &r->conv_bias, em);
	if (!e)
		e = config_may_bool(v, "mamba_proj_bias", false, &r->bias, em);
	if (!e && arch_has_own(c->arch, "mixer_rms_eps"))
		e = config_may_float(v, "mixer_rms_eps", 1e-6, &r->gate_eps, em);
	if (!e && r->gate_eps > 1) /* as of other norms */
		e = err_set(em, ERR_INVALID, "config.json: \"mixer_rms_eps\" is %g; it must be at most 1", (double)r->gate_eps);
	return e;
}
