/* Numbers that a family multiplies by what other families only add up (Falcon H1, whose sizes share what they have learned; Yang et al. 2022),
 * as config.json has them. Where they may go with a number that is there anyway they do, the others go into weights. Runs in the worker at start. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proc_worker/model/config_priv.h"

enum { STATE_PARTS = 5, MLP_PARTS = 2 };

static const char *const FIELDS[] = {
	"embedding_multiplier", "lm_head_multiplier", "key_multiplier",	     "attention_in_multiplier", "attention_out_multiplier",
	"ssm_in_multiplier",	"ssm_multipliers",    "ssm_out_multiplier", "mlp_multipliers",
};

bool config_is_scale_field(const struct arch *arch, const char *name)
{
	for (size_t i = 0; i < COUNT_OF(FIELDS) && arch->state_beside; i++)
		if (!strcmp(FIELDS[i], name))
			return true;
	return false;
}

/* An array of `count` numbers; missing or null: ones. */
static enum err read_list(json_val v, const char *name, u32 count, double *out, struct err_msg *em)
{
	json_val list = json_get(v, name);

	for (u32 i = 0; i < count; i++)
		out[i] = 1;
	if (!json_present(list))
		return ERR_OK;
	if (json_type(list) != JSON_ARRAY || json_count(list) != count)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be an array of %u numbers above 0, found %s of %zu", name, count,
			       json_type_name(list), json_type(list) == JSON_ARRAY ? json_count(list) : 0);
	for (u32 i = 0; i < count; i++)
		if (!json_double(json_at(list, i), &out[i]) || !(out[i] > 0) || !isfinite(out[i]))
			return err_set(em, ERR_FORMAT, "config.json: \"%s\"[%u] must be a number above 0, found %s", name, i,
				       json_type_name(json_at(list, i)));
	return ERR_OK;
}

/* What `value`, a product of several of them, becomes as a float. */
static enum err set(f32 *out, const char *name, double value, struct err_msg *em)
{
	enum err e = config_check_float(name, value, em);

	*out = (f32)value;
	return e;
}

/* Of layers that keep a state: the parts of their first product in the file's order, and what comes out. */
static enum err read_state(struct model_config *c, json_val v, struct err_msg *em)
{
	static const enum arch_scale parts[STATE_PARTS] = {SCALE_STATE_GATE, SCALE_STATE_V, SCALE_STATE_K, SCALE_STATE_Q, SCALE_STATE_DECAY};
	double each[STATE_PARTS], in;

	enum err e = read_list(v, "ssm_multipliers", STATE_PARTS, each, em);
	if (!e)
		e = config_may_positive(v, "ssm_in_multiplier", 1, &in, em);
	for (u32 i = 0; !e && i < STATE_PARTS; i++)
		e = set(&c->scales[parts[i]], "ssm_multipliers", in * each[i], em);
	return e ? e : config_may_float(v, "ssm_out_multiplier", 1, &c->scales[SCALE_STATE_OUT], em);
}

/* What queries and keys are multiplied by their scores are, and what values are their sum is. */
static enum err read_attention(struct model_config *c, json_val v, struct err_msg *em)
{
	double key, in, out;

	enum err e = config_may_positive(v, "key_multiplier", 1, &key, em);
	if (!e)
		e = config_may_positive(v, "attention_in_multiplier", 1, &in, em);
	if (!e)
		e = config_may_positive(v, "attention_out_multiplier", 1, &out, em);
	if (!e)
		e = set(&c->attention_scale, "attention_in_multiplier", (double)c->attention_scale * in * in * key, em);
	return e ? e : set(&c->scales[SCALE_ATTN_OUT], "attention_out_multiplier", in * out, em);
}

enum err config_read_scales(struct model_config *c, json_val v, struct err_msg *em)
{
	double mlp[MLP_PARTS];

	enum err e = read_list(v, "mlp_multipliers", MLP_PARTS, mlp, em);
	if (!e)
		e = set(&c->scales[SCALE_GATE], "mlp_multipliers", mlp[0], em);
	if (!e)
		e = set(&c->scales[SCALE_DOWN], "mlp_multipliers", mlp[1], em);
	if (!e)
		e = read_state(c, v, em);
	if (!e)
		e = read_attention(c, v, em);
	if (!e)
		e = config_may_float(v, "embedding_multiplier", 1, &c->embed_scale, em);
	return e ? e : config_may_float(v, "lm_head_multiplier", 1, &c->logits_scale, em);
}

/* Programs disagree about what a file means that says nothing. */
enum err config_read_post_norms(struct model_config *c, json_val v, f32 embedding, f32 residual, struct err_msg *em)
{
	if (!json_present(json_get(v, "use_post_norm")))
		return err_set(em, ERR_FORMAT, "config.json: \"use_post_norm\" is missing; of a %s it must be true or false", c->arch->name);
	enum err e = config_may_bool(v, "use_post_norm", false, &c->post_norms, em);
	if (e || !c->post_norms)
		return e;
	c->embed_scale = embedding;
	c->scales[SCALE_POST_NORM] = residual;
	return ERR_OK;
}
