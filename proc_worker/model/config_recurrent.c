/* Layers that keep a state of each sequence instead of keys and values, as config.json describes them: which, and what the state is of.
 * Runs in the worker at start. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/recurrent.h"
#include "proc_worker/model/config_priv.h"

enum { STATE_HEADS_MAX = 1 << 16, COUNTS_BYTES = 96 };

/* Where nothing says it. */
enum {
	DELTA_TAPS = 4,
	DELTA_KEY_HEADS = 16,
	DELTA_HEADS = 32,
	DELTA_HEAD_DIM = 128,
	DELTA_INTERVAL = 4,
	CONV_TAPS = 3,
	CONV_MULTIPLE = 256,
	SCAN_TAPS = 4,
	SCAN_HEADS = 128,
	SCAN_KEY_HEADS = 1,
	SCAN_KEY_DIM = 256,
	SCAN_EXPAND = 2,
	SCAN_WIDTH = 1024,
};

static const struct {
	const char *name;
	enum recurrent_kind kind;
} FIELDS[] = {
	{"conv_L_cache", RECURRENT_CONV},
	{"conv_bias", RECURRENT_CONV},
	{"linear_conv_kernel_dim", RECURRENT_DELTA},
	{"linear_key_head_dim", RECURRENT_DELTA},
	{"linear_value_head_dim", RECURRENT_DELTA},
	{"linear_num_key_heads", RECURRENT_DELTA},
	{"linear_num_value_heads", RECURRENT_DELTA},
	{"linear_attn_config", RECURRENT_KDA},
	{"linear_head_dim", RECURRENT_KDA},
	{"linear_num_heads", RECURRENT_KDA},
	{"linear_conv_kernel_dim", RECURRENT_KDA},
	{"mamba_n_heads", RECURRENT_SCAN},
	{"mamba_n_groups", RECURRENT_SCAN},
	{"mamba_d_state", RECURRENT_SCAN},
	{"mamba_d_head", RECURRENT_SCAN},
	{"mamba_d_conv", RECURRENT_SCAN},
	{"mamba_expand", RECURRENT_SCAN},
	{"mamba_chunk_size", RECURRENT_SCAN}, /* of tokens that others compute at once */
	{"mamba_conv_bias", RECURRENT_SCAN},
	{"mamba_proj_bias", RECURRENT_SCAN},
	{"time_step_limit", RECURRENT_SCAN},
	{"mamba_d_state", RECURRENT_SELECTIVE},
	{"mamba_d_conv", RECURRENT_SELECTIVE},
	{"mamba_expand", RECURRENT_SELECTIVE},
	{"mamba_dt_rank", RECURRENT_SELECTIVE},
	{"mamba_conv_bias", RECURRENT_SELECTIVE},
	{"mamba_proj_bias", RECURRENT_SELECTIVE},
	{"block_types", RECURRENT_LRU},
	{"block_size", RECURRENT_LIGHTNING}, /* of tokens that others compute at once */
	{"conv1d_width", RECURRENT_LRU},
	{"lru_width", RECURRENT_LRU},
};

bool config_is_recurrent_field(const struct arch *arch, const char *name)
{
	for (size_t i = 0; i < COUNT_OF(FIELDS) && arch->recurrent; i++)
		if (FIELDS[i].kind == arch->recurrent && !strcmp(FIELDS[i].name, name))
			return !arch->state_wide || strcmp(name, "linear_attn_config") != 0;
	return false;
}

/* ---------------------------------------------------------------- which layers */

static void mark_one(struct model_config *c, u32 layer, bool recurrent)
{
	c->layer_flags[layer] = (u16)((c->layer_flags[layer] & ~LAYER_RECURRENT) | (recurrent ? LAYER_RECURRENT : 0));
}

/* Numbers of the layers of attention, in the field `name`. */
static enum err mark_indexed(struct model_config *c, json_val list, const char *name, struct err_msg *em)
{
	u64 layer;

	if (json_type(list) != JSON_ARRAY)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be an array of numbers of layers, found %s", name, json_type_name(list));
	for (u32 i = 0; i < c->layers; i++)
		mark_one(c, i, true);
	for (struct json_iter it = json_iterate(list); json_next(&it);) {
		if (!json_uint(it.value, &layer) || layer >= c->layers)
			return err_set(em, ERR_FORMAT, "config.json: \"%s\" must hold numbers of layers, below num_hidden_layers, which is %u", name,
				       c->layers);
		mark_one(c, (u32)layer, false);
	}
	return ERR_OK;
}

/* Every so many layers one is of attention. */
static enum err mark_interval(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 interval;

	enum err e = config_may_u32(v, "full_attention_interval", MODEL_LAYERS_MAX, DELTA_INTERVAL, &interval, em);
	for (u32 i = 0; !e && i < c->layers; i++)
		mark_one(c, i, (i + 1) % interval != 0);
	if (!e && c->arch->state_as_attention && c->layers < interval) /* there one at least is of attention */
		mark_one(c, c->layers - 1, false);
	return e;
}

/* Whether "layer_types" says of a layer that it keeps a state, `*known`: or that it does not. Those of Mamba have other words in older files
 * than in newer ones. */
static bool is_recurrent(const struct arch *a, json_val word, bool *known)
{
	const bool scan = a->recurrent == RECURRENT_SCAN || a->recurrent == RECURRENT_SELECTIVE;
	const bool recurrent = json_string_equals(word, a->recurrent_layer) || (scan && json_string_equals(word, "linear_attention"));

	*known = recurrent || json_string_equals(word, "full_attention") || (scan && json_string_equals(word, "attention"));
	return recurrent;
}

/* A word a layer; `rule`, if it is there, has marked the layers before, and says the same. */
static enum err mark_listed(struct model_config *c, json_val list, const char *rule, struct err_msg *em)
{
	const struct arch *a = c->arch;
	u32 i = 0;

	if (json_type(list) != JSON_ARRAY || json_count(list) != c->layers)
		return err_set(em, ERR_FORMAT, "config.json: \"layer_types\" must be an array of %u strings (num_hidden_layers), found %s of %zu",
			       c->layers, json_type_name(list), json_count(list));
	for (struct json_iter it = json_iterate(list); json_next(&it); i++) {
		bool known;
		const bool recurrent = is_recurrent(a, it.value, &known), window = a->window && json_string_equals(it.value, "sliding_attention");
		if (!known && !window)
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"layer_types\"[%u] is '%.64s'; supported: %s, full_attention%s", i,
				       json_cstr(it.value, json_type_name(it.value)), a->recurrent_layer, a->window ? ", sliding_attention" : "");
		c->layer_flags[i] |= window ? LAYER_WINDOW : 0;
		if (rule && recurrent != !!(c->layer_flags[i] & LAYER_RECURRENT))
			return err_set(em, ERR_INVALID, "config.json: \"layer_types\"[%u] is '%s', but by \"%s\" the layer is %s", i,
				       json_cstr(it.value, ""), rule, recurrent ? "full_attention" : a->recurrent_layer);
		mark_one(c, i, recurrent);
	}
	return ERR_OK;
}

static enum err mark_layers(struct model_config *c, json_val v, struct err_msg *em)
{
	static const char *const rules[] = {"full_attn_idxs", "attn_layer_indices"};
	const bool by_interval = c->arch->recurrent == RECURRENT_DELTA, kda = c->arch->recurrent == RECURRENT_KDA;
	const bool by_period = arch_has_own(c->arch, "attn_layer_period");
	const char *rule = by_interval ? "full_attention_interval" : by_period ? "attn_layer_period" : kda && !c->arch->state_wide ? "linear_attn_config" : NULL;
	json_val types = json_get(v, "layer_types");
	enum err e = ERR_OK;

	for (size_t i = 0; i < COUNT_OF(rules); i++)
		rule = arch_has_own(c->arch, rules[i]) ? rules[i] : rule;
	const bool listed = json_present(types);
	bool ruled = by_period || (rule && json_present(json_get(v, rule)));
	if (kda && ruled)
		e = config_mark_kda(c, json_get(v, rule), &ruled, em);
	if (e)
		return e;
	if (c->arch->state_wide && !listed)
		return config_mark_groups(c, v, em);
	if (kda && !ruled && !listed)
		return config_kda_unmarked(c, json_get(v, rule), em);
	if (!by_interval && !ruled && !listed)
		return err_set(em, ERR_FORMAT, "config.json: \"layer_types\" is missing; of a %s it must be an array of %u strings (num_hidden_layers), each %s%s or full_attention",
			       c->arch->name, c->layers, c->arch->recurrent_layer, c->arch->traits & ARCH_WINDOW_ALL ? ", sliding_attention" : "");
	if (by_interval)
		e = mark_interval(c, v, em);
	else if (by_period)
		e = config_mark_period(c, v, em);
	else if (ruled && !kda)
		e = mark_indexed(c, json_get(v, rule), rule, em);
	if (!e && listed)
		e = mark_listed(c, types, ruled ? rule : NULL, em);
	return e;
}

/* By numbers or words, or every other one. */
static enum err mark_lightning(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val types = json_get(v, "layer_types");
	bool ruled;

	enum err e = config_mark_lightning(c, v, &ruled, em);
	return e || !json_present(types) ? e : mark_listed(c, types, ruled ? "attn_type_list" : NULL, em);
}

/* Every layer does both. */
static enum err mark_beside(struct model_config *c)
{
	for (u32 i = 0; i < c->layers; i++)
		c->layer_flags[i] |= LAYER_RECURRENT | LAYER_BESIDE;
	return ERR_OK;
}

/* In whatever way the family has; config_blocks.c and config_selective.c have marked those that are known with the number of layers. */
static enum err mark(struct model_config *c, json_val v, struct err_msg *em)
{
	if (c->arch->single_blocks || c->arch->shared_blocks) /* config_shared_block.c */
		return ERR_OK;
	if (c->arch->recurrent == RECURRENT_LIGHTNING)
		return mark_lightning(c, v, em);
	if (c->arch->recurrent == RECURRENT_LRU)
		return config_mark_lru(c, v, em);
	if (c->arch->attention_free)
		return json_present(json_get(v, "layer_types")) ? mark_listed(c, json_get(v, "layer_types"), NULL, em) : ERR_OK;
	return c->arch->state_beside ? mark_beside(c) : mark_layers(c, v, em);
}

/* Returns how many layers keep a state, `*attend`: how many are of attention. */
static u32 count_layers(const struct model_config *c, u32 *attend)
{
	u32 n = 0;

	*attend = 0;
	for (u32 i = 0; i < c->layers; i++) {
		n += !!(c->layer_flags[i] & LAYER_RECURRENT);
		*attend += model_attends(c, i);
	}
	return n;
}

/* What a file of the family says of which layers are of attention. */
static const char *attention_fields(const struct arch *a)
{
	if (arch_has_own(a, "attn_layer_period"))
		return "\"attn_layer_period\", \"attn_layer_offset\"";
	if (a->recurrent == RECURRENT_LRU)
		return "\"block_types\"";
	if (arch_has_own(a, "attn_type_list"))
		return "\"attn_type_list\"";
	if (a->shared_blocks)
		return "\"layer_types\": hybrid";
	return a->recurrent == RECURRENT_KDA ? "\"linear_attn_config\", \"layer_types\"" : "\"layer_types\"";
}

/* ---------------------------------------------------------------- their numbers */

enum err config_read_taps(struct model_config *c, json_val v, const char *name, u32 usual, struct err_msg *em)
{
	json_val field = json_get(v, name);
	u64 taps = usual;

	if (json_present(field) && !json_uint(field, &taps))
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be an integer from 2 to %d, found %s", name, KERN_CONV_TAPS_MAX, json_type_name(field));
	if (taps < 2 || taps > KERN_CONV_TAPS_MAX)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" is %llu; convolutions over 2 to %d tokens are supported", name,
			       (unsigned long long)taps, KERN_CONV_TAPS_MAX);
	c->recurrent.taps = (u32)taps;
	return ERR_OK;
}

/* Some files say twice what others leave to be known. */
static enum err check_twice(json_val v, const char *name, u32 value, const char *what, struct err_msg *em)
{
	u32 given;

	enum err e = config_may_u32(v, name, CONFIG_DIM_MAX, value, &given, em);
	if (!e && given != value)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" is %u; it must be \"%s\", which is %u", name, given, what, value);
	return e;
}

/* What the file calls the MLP's width is that of one without a gate: with one as large it is two thirds, rounded up. */
static enum err adjust_intermediate(struct model_config *c, json_val v, struct err_msg *em)
{
	const bool rounds = json_type(json_get(v, "block_ffn_dim_multiplier")) == JSON_MISSING || json_present(json_get(v, "block_ffn_dim_multiplier"));
	double factor = 1, width = trunc(2.0 * c->intermediate / 3);
	u32 multiple = 1;
	bool adjust;

	enum err e = config_may_bool(v, "block_auto_adjust_ff_dim", true, &adjust, em);
	if (!e)
		e = config_may_positive(v, "block_ffn_dim_multiplier", 1, &factor, em);
	if (!e)
		e = config_may_u32(v, "block_multiple_of", CONFIG_DIM_MAX, CONV_MULTIPLE, &multiple, em);
	if (e || !adjust)
		return e;
	if (rounds)
		width = ceil(trunc(factor * width) / multiple) * multiple;
	if (!(width >= 1 && width <= CONFIG_DIM_MAX))
		return err_set(em, ERR_INVALID,
			       "config.json: \"intermediate_size\" is %u, of which by \"block_auto_adjust_ff_dim\", \"block_ffn_dim_multiplier\" and "
			       "\"block_multiple_of\" %g are left; it must be 1 to %d",
			       c->intermediate, width, CONFIG_DIM_MAX);
	c->intermediate = (u32)width;
	return ERR_OK;
}

static enum err read_conv(struct model_config *c, json_val v, struct err_msg *em)
{
	enum err e = config_read_taps(c, v, "conv_L_cache", c->arch->taps ? c->arch->taps : CONV_TAPS, em);

	if (!e)
		e = config_may_bool(v, "conv_bias", false, &c->recurrent.conv_bias, em);
	c->recurrent.bias = c->recurrent.conv_bias;
	return e;
}

/* What older files say of all layers. */
static enum err check_blocks(struct model_config *c, json_val v, struct err_msg *em)
{
	static const char *const widths[] = {"conv_dim", "conv_dim_out", "block_dim"};
	enum err e = config_check_pair(v, "block_norm_eps", "rms_norm_eps", em);

	for (size_t i = 0; !e && i < COUNT_OF(widths); i++)
		e = check_twice(v, widths[i], c->hidden, "hidden_size", em);
	if (!e)
		e = check_twice(v, "num_heads", c->heads, "num_attention_heads", em);
	return e ? e : adjust_intermediate(c, v, em);
}

static enum err check_heads(const struct model_config *c, const char *heads, const char *key_heads, struct err_msg *em)
{
	const struct recurrent_config *r = &c->recurrent;

	if (r->heads % r->key_heads)
		return err_set(em, ERR_INVALID, "config.json: \"%s\" %u is not a multiple of \"%s\" %u", heads, r->heads, key_heads, r->key_heads);
	if ((u64)r->heads * r->value_dim > CONFIG_DIM_MAX || (u64)r->key_heads * r->key_dim > CONFIG_DIM_MAX)
		return err_set(em, ERR_INVALID, "config.json: %u heads of %u values and %u of keys of %u; all of a kind together may have %d (\"%s\", \"%s\")",
			       r->heads, r->value_dim, r->key_heads, r->key_dim, CONFIG_DIM_MAX, heads, key_heads);
	return ERR_OK;
}

/* A state may be turned round, not only forgotten. */
static enum err read_beta(struct model_config *c, json_val v, struct err_msg *em)
{
	bool turns;

	enum err e = config_may_bool(v, "linear_allow_neg_eigval", true, &turns, em);
	c->recurrent.beta_scale = turns ? 2 : 1;
	return e;
}

static enum err read_delta(struct model_config *c, json_val v, struct err_msg *em)
{
	struct recurrent_config *r = &c->recurrent;
	const bool as_attention = c->arch->state_as_attention;
	json_val gate = json_get(v, "output_gate_type");

	if (json_present(gate) && !json_string_equals(gate, "swish") && !json_string_equals(gate, "silu"))
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"output_gate_type\" is '%.64s'; supported: swish, silu",
			       json_cstr(gate, json_type_name(gate)));
	enum err e = config_read_taps(c, v, "linear_conv_kernel_dim", DELTA_TAPS, em);
	if (!e)
		e = config_may_u32(v, "linear_num_key_heads", STATE_HEADS_MAX, as_attention ? c->heads : DELTA_KEY_HEADS, &r->key_heads, em);
	if (!e)
		e = config_may_u32(v, "linear_num_value_heads", STATE_HEADS_MAX, as_attention ? c->heads : DELTA_HEADS, &r->heads, em);
	const u32 key_dim = e || !as_attention ? DELTA_HEAD_DIM : (u32)(0.75 * c->hidden / r->key_heads);
	if (!e)
		e = config_may_u32(v, "linear_key_head_dim", KERN_RECURRENT_DIM_MAX, key_dim, &r->key_dim, em);
	if (!e)
		e = config_may_u32(v, "linear_value_head_dim", CONFIG_HEAD_DIM_MAX, as_attention ? 2 * r->key_dim : DELTA_HEAD_DIM, &r->value_dim, em);
	if (!e && (r->key_dim < 1 || r->key_dim > KERN_RECURRENT_DIM_MAX || r->value_dim > CONFIG_HEAD_DIM_MAX))
		e = err_set(em, ERR_INVALID,
			    "config.json: keys of %u values and values of %u (\"linear_key_head_dim\", \"linear_value_head_dim\"); they must be 1 to %d and 1 to %d",
			    r->key_dim, r->value_dim, KERN_RECURRENT_DIM_MAX, CONFIG_HEAD_DIM_MAX);
	r->tiled = c->arch->state_tiled && quant_config_has(&c->quant, QUANT_GGUF);
	if (!e && arch_has_own(c->arch, "linear_allow_neg_eigval"))
		e = read_beta(c, v, em);
	return e ? e : check_heads(c, "linear_num_value_heads", "linear_num_key_heads", em);
}

/* "auto", or what else a file may leave to be known: all heads together are as wide as the stream is, or a multiple of it. */
static enum err read_head_dim(struct model_config *c, json_val v, struct err_msg *em)
{
	struct recurrent_config *r = &c->recurrent;
	json_val field = json_get(v, "mamba_d_head");
	u32 expand = SCAN_EXPAND;

	json_val inner = json_get(v, "mamba_d_ssm");

	if (c->arch->state_head_dim)
		return config_may_u32(v, "mamba_d_head", CONFIG_HEAD_DIM_MAX, c->arch->state_head_dim, &r->value_dim, em);
	enum err e = config_may_u32(v, "mamba_expand", CONFIG_HEAD_DIM_MAX, SCAN_EXPAND, &expand, em);
	u32 stated = 0;
	if (!e && c->arch->state_beside && (json_present(inner) || json_type(inner) == JSON_MISSING))
		e = config_may_u32(v, "mamba_d_ssm", CONFIG_DIM_MAX, SCAN_WIDTH, &stated, em);
	if (e)
		return e;
	const u64 width = stated ? stated : (u64)expand * c->hidden;
	if (width % r->heads || width / r->heads > CONFIG_HEAD_DIM_MAX)
		return err_set(em, ERR_INVALID,
			       "config.json: %s, %llu, must be a multiple of \"mamba_n_heads\", which is %u, and at most %d times that",
			       stated ? "\"mamba_d_ssm\"" : "\"mamba_expand\" times \"hidden_size\"", (unsigned long long)width, r->heads, CONFIG_HEAD_DIM_MAX);
	r->value_dim = (u32)(width / r->heads);
	if (!json_present(field) || json_string_equals(field, "auto"))
		return ERR_OK;
	e = config_need_u32(v, "mamba_d_head", CONFIG_HEAD_DIM_MAX, &r->value_dim, em);
	if (!e && (u64)r->value_dim * r->heads != width)
		e = err_set(em, ERR_INVALID, "config.json: \"mamba_d_head\" is %u; by %s and \"mamba_n_heads\" it must be %u", r->value_dim,
			    stated ? "\"mamba_d_ssm\"" : "\"mamba_expand\", \"hidden_size\"", (u32)(width / r->heads));
	return e;
}

/* Of families that say how wide all heads together are and how wide each is. */
static enum err check_width(const struct model_config *c, json_val v, struct err_msg *em)
{
	const u32 width = c->recurrent.heads * c->recurrent.value_dim;
	u32 expand;

	enum err e = config_may_u32(v, "mamba_expand", CONFIG_DIM_MAX, SCAN_EXPAND, &expand, em);
	if (!e && (u64)expand * c->hidden != width)
		return err_set(em, ERR_INVALID,
			       "config.json: %u heads of %u values (\"mamba_n_heads\", \"mamba_d_head\") are %u; they must be \"mamba_expand\" times hidden_size, "
			       "%u times %u",
			       c->recurrent.heads, c->recurrent.value_dim, width, expand, c->hidden);
	return e ? e : check_twice(v, "intermediate_size", width, "mamba_n_heads\" times \"mamba_d_head", em);
}

/* A number, or infinity as others write it down. */
static bool read_limit(json_val v, double *out)
{
	if (json_string_equals(json_get(v, "__float__"), "Infinity"))
		*out = (double)FLT_MAX;
	else if (!json_double(v, out))
		return false;
	return *out >= 0 && *out <= (double)FLT_MAX;
}

static enum err read_steps(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val list = json_get(v, "time_step_limit");
	double least, most;

	if (!json_present(list))
		return ERR_OK;
	if (json_type(list) != JSON_ARRAY || json_count(list) != 2 || !read_limit(json_at(list, 0), &least) || !read_limit(json_at(list, 1), &most) ||
	    !(least < most) || (f32)most == 0)
		return err_set(em, ERR_FORMAT,
			       "config.json: \"time_step_limit\" must be an array of two numbers, the first 0 at least and below the second, which may be "
			       "{\"__float__\": \"Infinity\"}");
	if (least == 0 && most >= (double)FLT_MAX) /* no step is beyond these */
		return ERR_OK;
	c->recurrent.step_min = (f32)least;
	c->recurrent.step_max = (f32)most;
	return ERR_OK;
}

/* Of families in which what a state makes need not have a norm. */
static enum err read_norm(struct model_config *c, json_val v, struct err_msg *em)
{
	if (c->recurrent.bias)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"mamba_proj_bias\" is set, which is not supported for %s", c->arch->name);
	enum err e = config_may_bool(v, "mamba_rms_norm", false, &c->recurrent.normed, em);
	return e ? e : config_may_bool(v, "mamba_norm_before_gate", true, &c->recurrent.norm_first, em);
}

static enum err read_scan(struct model_config *c, json_val v, struct err_msg *em)
{
	struct recurrent_config *r = &c->recurrent;

	enum err e = config_read_taps(c, v, "mamba_d_conv", SCAN_TAPS, em);
	if (!e)
		e = config_may_u32(v, "mamba_n_heads", STATE_HEADS_MAX, SCAN_HEADS, &r->heads, em);
	if (!e)
		e = config_may_u32(v, "mamba_n_groups", STATE_HEADS_MAX, c->arch->state_groups ? c->arch->state_groups : SCAN_KEY_HEADS, &r->key_heads, em);
	if (!e)
		e = config_may_u32(v, "mamba_d_state", KERN_RECURRENT_DIM_MAX, c->arch->state_key_dim ? c->arch->state_key_dim : SCAN_KEY_DIM, &r->key_dim,
				   em);
	if (!e)
		e = read_head_dim(c, v, em);
	if (!e)
		e = config_may_bool(v, "mamba_conv_bias", true, &r->conv_bias, em);
	if (!e)
		e = config_may_bool(v, "mamba_proj_bias", false, &r->bias, em);
	if (!e)
		e = read_steps(c, v, em);
	if (!e && c->arch->state_beside)
		e = read_norm(c, v, em);
	if (!e)
		e = check_heads(c, "mamba_n_heads", "mamba_n_groups", em);
	return !e && c->arch->attention_free ? check_width(c, v, em) : e;
}

/* Convolutions and gates have SiLU in all such families, whatever else a program may take the field for. */
static enum err check_activation(const struct model_config *c, json_val v, struct err_msg *em)
{
	const char *own = arch_has_own(c->arch, "mamba_hidden_act") ? "mamba_hidden_act" : NULL; /* then the other is that of MLPs */
	json_val field = json_get(v, own ? own : "hidden_act");

	if (own ? !json_present(field) || json_string_equals(field, "silu") || json_string_equals(field, "swish") : c->activation == KERN_SILU)
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" is '%.64s'; of a %s it must be silu", own ? own : "hidden_act",
		       json_cstr(field, json_type_name(field)), c->arch->name);
}

/* Programs disagree about what a file means that says nothing. */
static enum err read_null_rope(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val inside = json_get(json_get(v, "rope_parameters"), "rope_theta"), beside = json_get(v, "rope_theta");

	if (json_type(inside) == JSON_MISSING && json_type(beside) == JSON_MISSING)
		return err_set(em, ERR_FORMAT, "config.json: \"rope_theta\" is missing; of a %s it must be a number above 0, or null if nothing rotates", c->arch->name);
	for (u32 i = 0; i < c->layers && !json_present(inside) && !json_present(beside); i++)
		c->layer_flags[i] |= LAYER_NO_ROPE;
	return ERR_OK;
}

enum err config_read_recurrent(struct model_config *c, json_val v, struct err_msg *em)
{
	enum err e = mark(c, v, em);
	u32 attend;

	if (!e && arch_has_own(c->arch, "block_auto_adjust_ff_dim"))
		e = check_blocks(c, v, em);
	if (!e && c->arch->rope_nullable)
		e = read_null_rope(c, v, em);
	const u32 count = count_layers(c, &attend);
	if (!e && c->arch->attention_free && attend > 0)
		return err_set(em, ERR_UNSUPPORTED, "config.json: %u of the layers are of attention (\"layer_types\"); of a %s none is", attend, c->arch->name);
	if (!e && count == 0 && c->arch->single_blocks)
		return err_set(em, ERR_UNSUPPORTED, "config.json: none of the layers is %s (\"hybrid_override_pattern\", \"layer_types\"); a %s must have one at least",
			       c->arch->recurrent_layer, c->arch->name);
	if (e || count == 0) {
		c->recurrent = (struct recurrent_config){0};
		return e;
	}
	if (attend == 0 && !c->arch->attention_free)
		return err_set(em, ERR_UNSUPPORTED, "config.json: none of the layers is one of attention (%s); a %s must have one at least",
			       attention_fields(c->arch), c->arch->name);
	e = c->arch->recurrent == RECURRENT_LRU ? ERR_OK : check_activation(c, v, em);
	if (e)
		return e;
	c->recurrent.kind = c->arch->recurrent;
	c->recurrent.normed = c->recurrent.kind != RECURRENT_CONV;
	c->recurrent.gate_eps = c->arch->gate_eps > 0 ? c->arch->gate_eps : c->recurrent.gate_eps;
	switch (c->recurrent.kind) {
	case RECURRENT_CONV:
		return read_conv(c, v, em);
	case RECURRENT_DELTA:
		return read_delta(c, v, em);
	case RECURRENT_SCAN:
		return read_scan(c, v, em);
	case RECURRENT_SELECTIVE:
		e = config_read_taps(c, v, "mamba_d_conv", SCAN_TAPS, em);
		return e ? e : config_read_selective(c, v, em);
	case RECURRENT_KDA:
		return config_read_kda(c, v, em);
	case RECURRENT_LRU:
		return config_read_lru(c, v, em);
	case RECURRENT_LIGHTNING:
		return config_read_lightning(c, em);
	case RECURRENT_NONE:
		break;
	}
	return ERR_OK;
}

/* ---------------------------------------------------------------- shares of ranks */

/* The counts, the first of them, that divide both numbers. */
static void list_counts(char out[COUNTS_BYTES], u32 n, u32 m)
{
	size_t used = 0;

	for (u32 i = 1; i <= n && used + 16 < COUNTS_BYTES; i++)
		if (n % i == 0 && m % i == 0)
			used += (size_t)snprintf(out + used, COUNTS_BYTES - used, "%s%u", used ? ", " : "", i);
}

enum err config_share_recurrent(struct model_shard *s, const struct model_config *c, struct err_msg *em)
{
	const struct recurrent_config *r = &c->recurrent;
	const bool conv = r->kind == RECURRENT_CONV, selective = r->kind == RECURRENT_SELECTIVE;
	const u32 divided = conv ? c->hidden : selective ? r->heads : r->key_heads;
	char counts[COUNTS_BYTES];

	if (divided % s->ranks) {
		list_counts(counts, divided, c->arch->attention_free ? divided : c->heads);
		return err_set(em, ERR_INVALID, "--tensor-parallel-size %u: the model's %u %s cannot be divided by it; these counts would do: %s", s->ranks,
			       divided, conv ? "channels of convolutions (hidden_size)" : selective ? "channels of layers that keep a state" : "key heads of layers that keep a state", counts);
	}
	s->recurrent_channels = conv ? c->hidden / s->ranks : 0;
	s->recurrent_key_heads = selective ? r->key_heads : r->key_heads / s->ranks; /* which all channels share */
	s->recurrent_heads = r->heads / s->ranks;
	return ERR_OK;
}
