/* Kimi delta attention as config.json describes it: an object with lists of layers, whose numbers begin with 1, and sizes of heads; newer files have
 * the sizes beside it. Runs in the worker at start. */
#include <stdio.h>
#include <string.h>

#include "kernels/recurrent.h"
#include "proc_worker/model/config_priv.h"

enum { KDA_HEADS_MAX = 1 << 16 };

/* Where nothing says it. */
enum { KDA_TAPS = 4, KDA_HEADS = 32, KDA_HEAD_DIM = 128, KDA_GROUP = 6, KDA_BOUND = -5 };

static const char OWN[] = "linear_attn_config";
static const char *const LISTS[] = {"full_attn_layers", "kda_layers"}; /* the second are those that keep a state */
static const char *const SIZES[][2] = { /* inside, and beside */
	{"short_conv_kernel_size", "linear_conv_kernel_dim"}, {"num_heads", "linear_num_heads"}, {"head_dim", "linear_head_dim"}};
enum { TAPS, HEADS, HEAD_DIM };

static bool is_known(const char *name)
{
	for (size_t i = 0; i < COUNT_OF(LISTS); i++)
		if (!strcmp(LISTS[i], name))
			return true;
	for (size_t i = 0; i < COUNT_OF(SIZES); i++)
		if (!strcmp(SIZES[i][0], name))
			return true;
	return false;
}

static enum err check_own(json_val own, struct err_msg *em)
{
	if (json_type(own) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be an object, found %s", OWN, json_type_name(own));
	for (struct json_iter it = json_iterate(own); json_next(&it);)
		if (!is_known(it.key) && json_present(it.value))
			return err_set(em, ERR_UNSUPPORTED,
				       "config.json: \"%.64s\" in \"%s\" is not known; it may change what the model computes; if it does not, take it out of the file",
				       it.key, OWN);
	return ERR_OK;
}

/* `listed` [layers]: in which lists a layer was, a bit each. */
static enum err mark_list(struct model_config *c, json_val list, u32 index, u8 *listed, struct err_msg *em)
{
	u64 layer;

	if (json_type(list) != JSON_ARRAY)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" in \"%s\" must be an array of numbers of layers, found %s", LISTS[index], OWN,
			       json_type_name(list));
	for (struct json_iter it = json_iterate(list); json_next(&it);) {
		if (!json_uint(it.value, &layer) || layer < 1 || layer > c->layers)
			return err_set(em, ERR_FORMAT,
				       "config.json: \"%s\" in \"%s\" must hold numbers of layers, from 1 to num_hidden_layers, which is %u", LISTS[index], OWN,
				       c->layers);
		if (listed[layer - 1])
			return err_set(em, ERR_INVALID, "config.json: \"%s\" in \"%s\" has layer %u, which was listed before", LISTS[index], OWN, (u32)layer);
		listed[layer - 1] = 1;
		if (index > 0)
			c->layer_flags[layer - 1] |= LAYER_RECURRENT;
	}
	return ERR_OK;
}

enum err config_mark_kda(struct model_config *c, json_val own, bool *ruled, struct err_msg *em)
{
	u8 listed[MODEL_LAYERS_MAX] = {0};
	u32 lists = 0;

	enum err e = check_own(own, em);
	for (u32 i = 0; !e && i < COUNT_OF(LISTS); i++)
		if (json_present(json_get(own, LISTS[i]))) {
			e = mark_list(c, json_get(own, LISTS[i]), i, listed, em);
			lists++;
		}
	*ruled = lists > 0;
	for (u32 i = 0; !e && i < c->layers && lists > 0; i++)
		if (!listed[i])
			return err_set(em, ERR_INVALID, "config.json: layer %u is neither in \"%s\" nor in \"%s\" of \"%s\"; every layer must be in one of them", i + 1,
				       LISTS[0], LISTS[1], OWN);
	return e;
}

enum err config_kda_unmarked(const struct model_config *c, json_val own, struct err_msg *em)
{
	char what[160];

	if (json_present(own))
		snprintf(what, sizeof(what), "\"%s\" and \"%s\" are missing in \"%s\"; of a %s they must be", LISTS[0], LISTS[1], OWN, c->arch->name);
	else
		snprintf(what, sizeof(what), "\"%s\" is missing; of a %s it must be an object with \"%s\" and \"%s\",", OWN, c->arch->name, LISTS[0], LISTS[1]);
	return err_set(em, ERR_FORMAT,
		       "config.json: %s arrays of numbers of layers, from 1 to %u; or \"layer_types\" must be there, an array of %u strings (num_hidden_layers), each "
		       "%s or full_attention",
		       what, c->layers, c->layers, c->arch->recurrent_layer);
}

/* A number that may be said in two places. */
static enum err read_size(json_val v, u32 which, u32 max, u32 usual, u32 *out, struct err_msg *em)
{
	json_val own = json_get(v, OWN);
	const char *inside = SIZES[which][0], *beside = SIZES[which][1];
	u32 twice;

	enum err e = config_may_u32(own, inside, max, usual, out, em);
	if (e) {
		err_prefix(em, "\"%s\"", OWN);
		return e;
	}
	e = config_may_u32(v, beside, max, *out, &twice, em);
	if (!e && json_present(json_get(own, inside)) && twice != *out)
		e = err_set(em, ERR_INVALID, "config.json: \"%s\" is %u, but \"%s\" in \"%s\" is %u; take one of them out", beside, twice, inside, OWN, *out);
	*out = twice;
	return e;
}

enum err config_mark_groups(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 group;

	enum err e = config_may_u32(v, "layer_group_size", MODEL_LAYERS_MAX, KDA_GROUP, &group, em);
	for (u32 i = 0; !e && i < c->layers; i++)
		if ((i + 1) % group != 0)
			c->layer_flags[i] |= LAYER_RECURRENT;
	return e;
}

/* Decays end at a bound, unless the file says that they have none. */
static enum err read_bound(struct model_config *c, json_val v, struct err_msg *em)
{
	static const char name[] = "kda_lower_bound";
	json_val field = json_get(v, name);
	double bound = KDA_BOUND;
	bool safe;

	enum err e = config_may_bool(v, "kda_safe_gate", true, &safe, em);
	if (e || !safe)
		return e;
	if (json_type(field) != JSON_MISSING && (!json_double(field, &bound) || !(bound < 0)))
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be a number below 0", name);
	e = config_check_float(name, -bound, em);
	c->recurrent.decay_bound = (f32)-bound;
	return e;
}

/* Sizes that older names say, or other fields. */
static enum err read_wide(struct model_config *c, json_val v, struct err_msg *em)
{
	struct recurrent_config *r = &c->recurrent;
	u32 taps = KDA_TAPS, head_dim = KDA_HEAD_DIM;

	enum err e = config_may_u32(v, "short_conv_kernel_size", KERN_CONV_TAPS_MAX, KDA_TAPS, &taps, em);
	if (!e)
		e = config_may_u32(v, "linear_conv_kernel_dim", KERN_CONV_TAPS_MAX, taps, &r->taps, em);
	if (!e && r->taps < 2)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"short_conv_kernel_size\" is %u; convolutions over 2 to %d tokens are supported", r->taps, KERN_CONV_TAPS_MAX);
	if (!e)
		e = config_may_u32(v, "linear_num_heads", KDA_HEADS_MAX, c->heads, &r->heads, em);
	if (!e)
		e = config_may_u32(v, "head_dim", KERN_RECURRENT_DIM_MAX, KDA_HEAD_DIM, &head_dim, em);
	if (!e)
		e = config_may_u32(v, "linear_head_dim", KERN_RECURRENT_DIM_MAX, head_dim, &r->key_dim, em);
	if (!e && (u64)r->heads * r->key_dim > CONFIG_DIM_MAX)
		e = err_set(em, ERR_INVALID, "config.json: %u heads of %u values (\"head_dim\"); all together may have %d", r->heads, r->key_dim, CONFIG_DIM_MAX);
	r->key_heads = r->heads;
	r->value_dim = r->key_dim;
	return e ? e : read_bound(c, v, em);
}

enum err config_read_kda(struct model_config *c, json_val v, struct err_msg *em)
{
	struct recurrent_config *r = &c->recurrent;

	if (c->arch->state_wide)
		return read_wide(c, v, em);
	enum err e = read_size(v, TAPS, KERN_CONV_TAPS_MAX, KDA_TAPS, &r->taps, em);
	if (!e && r->taps < 2)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" (\"%s\") is %u; convolutions over 2 to %d tokens are supported", SIZES[TAPS][0], SIZES[TAPS][1],
			    r->taps, KERN_CONV_TAPS_MAX);
	if (!e)
		e = read_size(v, HEADS, KDA_HEADS_MAX, KDA_HEADS, &r->heads, em);
	if (!e)
		e = read_size(v, HEAD_DIM, KERN_RECURRENT_DIM_MAX, KDA_HEAD_DIM, &r->key_dim, em);
	if (!e && (u64)r->heads * r->key_dim > CONFIG_DIM_MAX)
		e = err_set(em, ERR_INVALID, "config.json: %u heads of %u values (\"num_heads\" and \"head_dim\" in \"%s\"); all together may have %d", r->heads,
			    r->key_dim, OWN, CONFIG_DIM_MAX);
	r->key_heads = r->heads;
	r->value_dim = r->key_dim;
	return e;
}
