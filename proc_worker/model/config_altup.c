/* Several residual streams (AltUp), and what else Gemma 3n has that no other family does, as config.json describes it. Runs in the worker at start. */
#include <math.h>

#include "proc_worker/model/config_priv.h"

enum {
	/* Where nothing says it. */
	STREAMS = 4,
	LAUREL_RANK = 64,
	INPUT_WIDTH = 256,
	INPUT_VOCAB = 262144,
	SHARED_LAYERS = 15,
	SPARSE_LAYERS = 10, /* the first ones of more than so many */
	VOCAB_MAX = 1 << 24,
	HALVINGS = 200, /* more than a double has digits */
};
#define SPARSITY 0.95
#define COEF_CLIP 120.0
#define QUANTILE_MOST 40.0 /* as far below the mean less than the least double is left */

/* Below it are a `share` of normally distributed numbers, in standard deviations above their mean. */
static double normal_quantile(double share)
{
	double low = -QUANTILE_MOST, high = QUANTILE_MOST;

	for (u32 i = 0; i < HALVINGS; i++) {
		const double middle = (low + high) / 2;
		if (erfc(-middle / sqrt(2)) / 2 < share)
			low = middle;
		else
			high = middle;
	}
	return (low + high) / 2;
}

static void mark_sparse(struct model_config *c, u32 layer, double share)
{
	if (share <= 0)
		return;
	c->layer_flags[layer] |= LAYER_SPARSE;
	c->gate_deviations[layer] = (f32)normal_quantile((double)(f32)share);
}

static enum err read_sparsity(struct model_config *c, json_val list, struct err_msg *em)
{
	double share;
	u32 i = 0;

	for (; !json_present(list) && c->layers > SPARSE_LAYERS && i < SPARSE_LAYERS; i++)
		mark_sparse(c, i, SPARSITY);
	if (!json_present(list))
		return ERR_OK;
	if (json_type(list) != JSON_ARRAY || json_count(list) != c->layers)
		return err_set(em, ERR_FORMAT,
			       "config.json: \"activation_sparsity_pattern\" must be an array of %u numbers (num_hidden_layers), found %s of %zu", c->layers,
			       json_type_name(list), json_type(list) == JSON_ARRAY ? json_count(list) : 0);
	for (struct json_iter it = json_iterate(list); json_next(&it); i++) {
		if (!json_double(it.value, &share) || !(share >= 0) || !((f32)share < 1))
			return err_set(em, ERR_INVALID,
				       "config.json: \"activation_sparsity_pattern\"[%u] must be a number from 0 to less than 1, the share of a layer's gates that "
				       "count as nothing",
				       i);
		mark_sparse(c, i, share);
	}
	return ERR_OK;
}

static enum err read_streams(struct model_config *c, json_val v, struct err_msg *em)
{
	double clip;

	enum err e = config_may_u32(v, "altup_num_inputs", KERN_STREAMS_MAX, STREAMS, &c->altup.streams, em);
	if (!e && c->altup.streams < 2)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"altup_num_inputs\" is %u; supported: 2 to %d", c->altup.streams, KERN_STREAMS_MAX);
	if (!e)
		e = config_may_count(v, "altup_active_idx", UINT32_MAX, 0, &c->altup.active, em);
	if (!e && c->altup.active >= c->altup.streams)
		e = err_set(em, ERR_INVALID, "config.json: \"altup_active_idx\" is %u; it must be below altup_num_inputs, which is %u", c->altup.active,
			    c->altup.streams);
	if (!e)
		e = config_may_bool(v, "altup_correct_scale", true, &c->altup.scaled, em);
	if (!e) /* training keeps coefficients within it; a checkpoint's are used as they are */
		e = config_may_positive(v, "altup_coef_clip", COEF_CLIP, &clip, em);
	return e ? e : config_may_u32(v, "laurel_rank", CONFIG_DIM_MAX, LAUREL_RANK, &c->altup.laurel_rank, em);
}

/* What layers add of a token by itself. Tokens that the table does not have are those of images and sound: they have what its first one has. */
static enum err read_inputs(struct model_config *c, json_val v, struct err_msg *em)
{
	enum err e = config_may_u32(v, "hidden_size_per_layer_input", CONFIG_DIM_MAX, INPUT_WIDTH, &c->input_width, em);

	if (!e)
		e = config_may_u32(v, "vocab_size_per_layer_input", VOCAB_MAX, INPUT_VOCAB, &c->input_vocab, em);
	if (!e && (u64)c->layers * c->input_width > CONFIG_DIM_MAX)
		e = err_set(em, ERR_INVALID, "config.json: \"hidden_size_per_layer_input\" is %u; of %u layers together it may be %d at most",
			    c->input_width, c->layers, CONFIG_DIM_MAX);
	return e;
}

enum err config_read_altup(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 shared;

	enum err e = config_may_count(v, "num_kv_shared_layers", MODEL_LAYERS_MAX, SHARED_LAYERS, &shared, em);
	if (!e && shared >= c->layers)
		e = err_set(em, ERR_INVALID, "config.json: \"num_kv_shared_layers\" is %u; it must be below num_hidden_layers, which is %u", shared,
			    c->layers);
	if (!e)
		c->own_kv_layers = c->layers - shared;
	if (!e)
		e = read_inputs(c, v, em);
	if (!e)
		e = read_streams(c, v, em);
	return e ? e : read_sparsity(c, json_get(v, "activation_sparsity_pattern"), em);
}

/* How many of an array there are is said by what comes later. */
enum err config_read_altup_width(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val list = json_get(v, "intermediate_size");
	u64 layers = 0, width, first = 0;
	u32 i = 0;

	if (json_type(list) != JSON_ARRAY)
		return config_need_u32(v, "intermediate_size", CONFIG_DIM_MAX, &c->intermediate, em);
	if (json_count(list) == 0 || (json_uint(json_get(v, "num_hidden_layers"), &layers) && layers != json_count(list)))
		return err_set(em, ERR_FORMAT,
			       "config.json: \"intermediate_size\" must be a number, or an array of one for each of the %llu layers (num_hidden_layers), found "
			       "an array of %zu",
			       (unsigned long long)layers, json_count(list));
	for (struct json_iter it = json_iterate(list); json_next(&it); i++) {
		if (!json_uint(it.value, &width) || width == 0 || width > CONFIG_DIM_MAX)
			return err_set(em, ERR_FORMAT, "config.json: \"intermediate_size\"[%u] must be an integer from 1 to %d", i, CONFIG_DIM_MAX);
		if (i > 0 && width != first)
			return err_set(em, ERR_UNSUPPORTED,
				       "config.json: \"intermediate_size\"[%u] is %llu, and that of the first layer %llu; only layers of one size are supported", i,
				       (unsigned long long)width, (unsigned long long)first);
		first = width;
	}
	c->intermediate = (u32)first;
	return ERR_OK;
}
