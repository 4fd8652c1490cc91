/* Heads that share one latent (DeepSeek-AI 2024) as config.json describes them. Runs in the worker at start. */
#include <string.h>

#include "proc_worker/model/config_priv.h"

static const char *const FIELDS[] = {"kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim"};

bool config_is_latent_field(const char *name)
{
	for (size_t i = 0; i < COUNT_OF(FIELDS); i++)
		if (!strcmp(FIELDS[i], name))
			return true;
	return false;
}

void config_bound_context(struct model_config *c, u32 most, const char *field)
{
	if (c->context_max <= most)
		return;
	c->context_max = most;
	c->context_bound = field;
}

/* null: queries are made of the stream at once. A file that says nothing may mean either. */
static enum err read_q_rank(struct model_config *c, json_val v, struct err_msg *em)
{
	bool bias;

	if (json_type(json_get(v, "q_lora_rank")) == JSON_MISSING && !c->arch->state_wide)
		return err_set(em, ERR_FORMAT, "config.json: \"q_lora_rank\" is missing; it must be an integer from 1 to %d, or null", CONFIG_DIM_MAX);
	enum err e = config_may_u32(v, "q_lora_rank", CONFIG_DIM_MAX, 0, &c->latent.q_rank, em);
	if (!e)
		e = config_may_bool(v, "attention_bias", false, &bias, em);
	if (!e && bias && c->latent.q_rank == 0)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"attention_bias\" is true and \"q_lora_rank\" null, which is not supported together");
	return e;
}

/* Some files say twice what others leave to be computed. */
static enum err check_twice(json_val v, const char *name, u32 value, const char *what, struct err_msg *em)
{
	u32 given;

	enum err e = config_may_u32(v, name, CONFIG_DIM_MAX, value, &given, em);
	if (!e && given != value)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" is %u; it must be %s, which is %u", name, given, what, value);
	return e;
}

/* Of a head's dimensions what rotates, or in some families all. */
static enum err check_head_dim(const struct model_config *c, json_val v, struct err_msg *em)
{
	const struct latent_config *l = &c->latent;
	u64 given;

	if (c->arch->unrotated && json_uint(json_get(v, "head_dim"), &given) && (given == c->hidden / c->heads || given == l->key + l->rope))
		return ERR_OK; /* how others write it down, of whom nobody reads it */
	if (c->arch->state_wide) /* that of the other layers, or what rotates here: config_kda.c */
		return ERR_OK;
	if (json_uint(json_get(v, "head_dim"), &given) && given == l->rank + l->rope)
		return ERR_OK; /* what the cache has of a token */
	if (arch_has_own(c->arch, "head_dim"))
		return check_twice(v, "head_dim", l->key + l->rope, "\"qk_nope_head_dim\" and \"qk_rope_head_dim\" together", em);
	return check_twice(v, "head_dim", l->rope, "\"qk_rope_head_dim\"", em);
}

static enum err read_value(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 usual = c->hidden / c->heads;

	if (!arch_has_own(c->arch, "v_head_dim") || usual == 0)
		return config_need_u32(v, "v_head_dim", CONFIG_HEAD_DIM_MAX, &c->latent.value, em);
	return config_may_u32(v, "v_head_dim", CONFIG_HEAD_DIM_MAX, usual, &c->latent.value, em);
}

enum err config_read_latent(struct model_config *c, json_val v, struct err_msg *em)
{
	struct latent_config *l = &c->latent;

	enum err e = config_need_u32(v, "kv_lora_rank", CONFIG_HEAD_DIM_MAX, &l->rank, em);
	if (!e)
		e = config_need_u32(v, "qk_nope_head_dim", CONFIG_HEAD_DIM_MAX, &l->key, em);
	if (!e)
		e = config_need_u32(v, "qk_rope_head_dim", CONFIG_HEAD_DIM_MAX, &l->rope, em);
	if (!e)
		e = read_value(c, v, em);
	if (!e)
		e = read_q_rank(c, v, em);
	if (!e)
		e = check_head_dim(c, v, em);
	if (!e)
		e = check_twice(v, "qk_head_dim", l->key + l->rope, "\"qk_nope_head_dim\" and \"qk_rope_head_dim\" together", em);
	if (!e)
		e = check_twice(v, "num_key_value_heads", c->heads, "\"num_attention_heads\"", em);
	l->gated = c->arch->gated_norms;
	if (!e && c->arch->gated_norms)
		e = config_may_u32(v, "gated_norm_rank", CONFIG_DIM_MAX, 16, &c->norm_gate_rank, em);
	c->head_dim = l->rank + l->rope;
	if (!e && (l->rope % 2 || c->head_dim % 2 || c->head_dim > CONFIG_HEAD_DIM_MAX))
		e = err_set(em, ERR_UNSUPPORTED,
			    "config.json: \"kv_lora_rank\" %u and \"qk_rope_head_dim\" %u; both must be even, and together at most %d", l->rank,
			    l->rope, CONFIG_HEAD_DIM_MAX);
	c->kv_heads = 1;
	return e;
}
