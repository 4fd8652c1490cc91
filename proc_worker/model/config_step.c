/* Step 3.5 and 3.7, whose files describe layers in ways of their own: by lists that go on behind the model's layers, with what guesses further tokens.
 * Said again as other families say it, and bounds of gates. Runs in the worker at start. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "proc_worker/model/config_priv.h"

enum { DENSE_FIRST = 3 /* layers, where nothing says which have experts */, SOLVE_STEPS = 100 };

/* Numbers of the file by which its lists are read. */
struct step {
	json_val v;
	u64 layers, listed; /* the model's, and with those that guess */
	bool window[MODEL_LAYERS_MAX], sparse[MODEL_LAYERS_MAX];
	u64 heads[MODEL_LAYERS_MAX];
};

static const char *const SAID_AGAIN[] = {"layer_types", "mlp_layer_types", "moe_layers_enum", "per_layer_config", "attention_other_setting",
					 "num_sliding_attention_heads", "rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factors",
					 "yarn_only_types", "swiglu_limits", "swiglu_limits_shared"};

static bool is_list(const struct step *s, json_val list)
{
	return json_type(list) == JSON_ARRAY && (json_count(list) == s->layers || json_count(list) == s->listed);
}

static enum err refuse_list(const struct step *s, const char *name, json_val list, struct err_msg *em)
{
	return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be an array of one for each of the %llu layers (num_hidden_layers), or of %llu with those that guess "
				       "(num_nextn_predict_layers), found %s of %zu",
		       name, (unsigned long long)s->layers, (unsigned long long)s->listed, json_type_name(list), json_count(list));
}

/* A word a layer, of two. */
static enum err read_words(const struct step *s, const char *name, const char *no, const char *yes, bool *out, struct err_msg *em)
{
	json_val list = json_get(s->v, name);
	u64 i = 0;

	if (!is_list(s, list))
		return refuse_list(s, name, list, em);
	for (struct json_iter it = json_iterate(list); json_next(&it) && i < s->layers; i++) {
		out[i] = json_string_equals(it.value, yes);
		if (!out[i] && !json_string_equals(it.value, no))
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\"[%llu] is '%.64s'; supported: %s, %s", name, (unsigned long long)i,
				       json_cstr(it.value, json_type_name(it.value)), no, yes);
	}
	return ERR_OK;
}

/* "3,4,5", or an array of numbers. */
static enum err read_sparse(struct step *s, struct err_msg *em)
{
	static const char name[] = "moe_layers_enum";
	json_val list = json_get(s->v, name);
	const char *text = json_cstr(list, NULL);
	u64 layer;

	if (json_present(json_get(s->v, "mlp_layer_types")))
		return read_words(s, "mlp_layer_types", "dense", "sparse", s->sparse, em);
	for (u64 i = 0; i < s->layers; i++)
		s->sparse[i] = !json_present(list) && i >= DENSE_FIRST;
	if (!json_present(list))
		return ERR_OK;
	if (!text && json_type(list) != JSON_ARRAY)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be numbers of layers, an array or a text with commas, found %s", name, json_type_name(list));
	for (struct json_iter it = json_iterate(list); !text && json_next(&it);)
		if (!json_uint(it.value, &layer) || layer >= MODEL_LAYERS_MAX)
			return err_set(em, ERR_FORMAT, "config.json: \"%s\" must hold numbers of layers, found %s", name, json_type_name(it.value));
		else
			s->sparse[layer] = true;
	while (text && *(text += strspn(text, ", "))) {
		char *end;
		layer = strtoull(text, &end, 10);
		if (end == text || layer >= MODEL_LAYERS_MAX)
			return err_set(em, ERR_FORMAT, "config.json: \"%s\" must hold numbers of layers, found '%.64s'", name, text);
		s->sparse[layer] = true;
		text = end;
	}
	return ERR_OK;
}

/* What the older files say of layers with windows: their heads, and for the rest what others have. */
static enum err read_other(const struct step *s, u64 *heads, struct err_msg *em)
{
	static const char name[] = "attention_other_setting";
	static const struct {
		const char *inside, *beside;
	} same[] = {{"num_attention_groups", "num_key_value_heads"}, {"head_dim", "head_dim"}, {"true_head_dim", "head_dim"}};
	json_val other = json_get(s->v, name);

	if (!json_present(other))
		return ERR_OK;
	if (json_type(other) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be an object, found %s", name, json_type_name(other));
	for (struct json_iter it = json_iterate(other); json_next(&it);) {
		bool known = json_is_member(&it, "num_attention_heads") || (json_is_member(&it, "attention_type") && json_string_equals(it.value, "sliding_attention"));
		for (size_t i = 0; i < COUNT_OF(same); i++)
			known |= json_is_member(&it, same[i].inside) && config_same_value(it.value, json_get(s->v, same[i].beside));
		if (!known)
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"%.64s\" of \"%s\" is not what all layers have, which is not supported", it.key, name);
	}
	if (json_present(json_get(other, "num_attention_heads")) && !json_uint(json_get(other, "num_attention_heads"), heads))
		return err_set(em, ERR_FORMAT, "config.json: \"num_attention_heads\" of \"%s\" must be a number", name);
	return ERR_OK;
}

/* What files have that transformers has written. */
static enum err read_per_layer(struct step *s, json_val own, struct err_msg *em)
{
	static const char name[] = "per_layer_config";

	if (json_type(own) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be an object, found %s", name, json_type_name(own));
	for (struct json_iter it = json_iterate(own); json_next(&it);) {
		char *end;
		const u64 layer = strtoull(it.key, &end, 10);
		const bool alone = json_type(it.value) == JSON_OBJECT && json_count(it.value) == 1;
		if (end == it.key || *end || layer >= s->layers || !alone || !json_uint(json_get(it.value, "num_attention_heads"), &s->heads[layer]))
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"%.32s\" of \"%s\" must be a layer's number with \"num_attention_heads\" alone", it.key, name);
	}
	return ERR_OK;
}

static enum err read_heads(struct step *s, struct err_msg *em)
{
	json_val own = json_get(s->v, "per_layer_config"), sliding = json_get(s->v, "num_sliding_attention_heads");
	u64 heads = 0, windowed;

	if (!json_uint(json_get(s->v, "num_attention_heads"), &heads))
		return err_set(em, ERR_FORMAT, "config.json: \"num_attention_heads\" is missing; it must be a number");
	windowed = heads;
	enum err e = json_present(sliding) ? ERR_OK : read_other(s, &windowed, em);
	if (!e && json_present(sliding) && !json_uint(sliding, &windowed))
		e = err_set(em, ERR_FORMAT, "config.json: \"num_sliding_attention_heads\" must be a number, found %s", json_type_name(sliding));
	for (u64 i = 0; i < s->layers; i++)
		s->heads[i] = s->window[i] && !json_present(own) ? windowed : heads;
	return e || !json_present(own) ? e : read_per_layer(s, own, em);
}

/* What a list has for all layers of a kind, or a number for all; `*out`: `usual` where there is neither, or no such layer. */
static enum err read_kind(const struct step *s, const char *name, bool window, double usual, double *out, struct err_msg *em)
{
	json_val list = json_get(s->v, name);
	double x = usual;
	bool found = false;
	u64 i = 0;

	*out = usual;
	if (!json_present(list) || json_double(list, out))
		return ERR_OK;
	if (!is_list(s, list))
		return refuse_list(s, name, list, em);
	for (struct json_iter it = json_iterate(list); json_next(&it) && i < s->layers; i++) {
		if (s->window[i] != window)
			continue;
		if (!json_double(it.value, &x) || (found && x != *out))
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\"[%llu] must be the number that other layers of its kind (layer_types) have", name, (unsigned long long)i);
		*out = x;
		found = true;
	}
	return ERR_OK;
}

/* How layers of a kind rotate, as "rope_parameters" of other families says it. */
static enum err write_kind(const struct step *s, struct json_writer *w, bool window, struct err_msg *em)
{
	const char *kind = window ? "sliding_attention" : "full_attention";
	json_val own = json_get(json_get(s->v, "rope_parameters"), kind), scaling = json_get(s->v, "rope_scaling");
	double theta, share;

	enum err e = read_kind(s, "rope_theta", window, 10000, &theta, em);
	if (!e)
		e = read_kind(s, "partial_rotary_factors", window, 1, &share, em);
	if (e)
		return e;
	json_key(w, kind);
	if (json_present(own)) {
		json_write_value(w, own);
		return ERR_OK;
	}
	json_object_begin(w);
	json_key(w, "rope_theta");
	json_write_double(w, theta);
	json_key(w, "partial_rotary_factor");
	json_write_double(w, share);
	for (struct json_iter it = json_iterate(scaling); !window && json_present(scaling) && json_next(&it);) {
		json_key_of(w, &it);
		json_write_value(w, it.value);
	}
	json_object_end(w);
	return ERR_OK;
}

static enum err write_ropes(const struct step *s, struct json_writer *w, struct err_msg *em)
{
	json_val parameters = json_get(s->v, "rope_parameters"), only = json_get(s->v, "yarn_only_types");
	bool windows = false, others = false;

	for (u64 i = 0; i < s->layers; i++) {
		windows |= s->window[i];
		others |= !s->window[i];
	}
	if (json_present(only) && (json_count(only) != 1 || !json_string_equals(json_at(only, 0), "full_attention")))
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"yarn_only_types\" must be full_attention alone");
	if (json_present(parameters) && ((windows && json_type(json_get(parameters, "sliding_attention")) != JSON_OBJECT) ||
					 (others && json_type(json_get(parameters, "full_attention")) != JSON_OBJECT)))
		return err_set(em, ERR_FORMAT, "config.json: \"rope_parameters\" must hold an object for each of the kinds that \"layer_types\" has, full_attention and "
					       "sliding_attention");
	json_key(w, "rope_parameters");
	json_object_begin(w);
	enum err e = write_kind(s, w, false, em);
	if (!e)
		e = write_kind(s, w, true, em);
	json_object_end(w);
	return e;
}

/* Bounds of gates, without those of what guesses. */
static enum err write_limits(const struct step *s, struct json_writer *w, const char *name, struct err_msg *em)
{
	json_val list = json_get(s->v, name);
	u64 i = 0;

	if (!json_present(list))
		return ERR_OK;
	if (!is_list(s, list))
		return refuse_list(s, name, list, em);
	json_key(w, name);
	json_array_begin(w);
	for (struct json_iter it = json_iterate(list); json_next(&it) && i < s->layers; i++)
		json_write_value(w, it.value);
	json_array_end(w);
	return ERR_OK;
}

static void write_layers(const struct step *s, struct json_writer *w)
{
	json_key(w, "layer_types");
	json_array_begin(w);
	for (u64 i = 0; i < s->layers; i++)
		json_write_cstr(w, s->window[i] ? "sliding_attention" : "full_attention");
	json_array_end(w);
	json_key(w, "mlp_layer_types");
	json_array_begin(w);
	for (u64 i = 0; i < s->layers; i++)
		json_write_cstr(w, s->sparse[i] ? "sparse" : "dense");
	json_array_end(w);
	json_key(w, "num_attention_heads_per_layer");
	json_array_begin(w);
	for (u64 i = 0; i < s->layers; i++)
		json_write_uint(w, s->heads[i]);
	json_array_end(w);
}

static enum err write_all(const struct step *s, struct json_writer *w, struct err_msg *em)
{
	json_object_begin(w);
	for (struct json_iter it = json_iterate(s->v); json_next(&it);) {
		bool again = false;
		for (size_t i = 0; i < COUNT_OF(SAID_AGAIN); i++)
			again |= json_is_member(&it, SAID_AGAIN[i]);
		if (again || (json_is_member(&it, "hidden_act") && json_string_equals(it.value, "swigluoai"))) /* SiLU under another's name */
			continue;
		json_key_of(w, &it);
		json_write_value(w, it.value);
	}
	write_layers(s, w);
	enum err e = write_ropes(s, w, em);
	if (!e)
		e = write_limits(s, w, "swiglu_limits", em);
	if (!e)
		e = write_limits(s, w, "swiglu_limits_shared", em);
	json_object_end(w);
	return e;
}

enum err config_say_step(struct json_doc **out, json_val v, struct err_msg *em)
{
	struct step *s = calloc(1, sizeof(*s));
	struct buf text = {0};
	struct json_writer w;
	u32 layers = 0, guessing = 0;

	if (!s)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	enum err e = config_need_u32(v, "num_hidden_layers", MODEL_LAYERS_MAX, &layers, em);
	if (!e)
		e = config_may_count(v, "num_nextn_predict_layers", MODEL_LAYERS_MAX, 0, &guessing, em);
	s->v = v;
	s->layers = layers;
	s->listed = layers + guessing;
	if (!e && json_present(json_get(v, "layer_types")))
		e = read_words(s, "layer_types", "full_attention", "sliding_attention", s->window, em);
	if (!e)
		e = read_sparse(s, em);
	if (!e)
		e = read_heads(s, em);
	json_begin(&w, &text);
	if (!e)
		e = write_all(s, &w, em);
	if (!e && !buf_ok(&text))
		e = err_set(em, ERR_NO_MEMORY, "out of memory");
	if (!e)
		e = json_parse(out, text.data, text.bytes, em);
	buf_fini(&text);
	free(s);
	return e;
}

/* The gate whose activation, SiLU, is `most`: above it both only grow. */
static double gate_of(double most)
{
	double low = 0, high = most + 1;

	for (u32 i = 0; i < SOLVE_STEPS; i++) {
		const double x = (low + high) / 2;
		if (x / (1 + exp(-x)) < most)
			low = x;
		else
			high = x;
	}
	return high;
}

static enum err read_limits(const struct model_config *c, json_val v, const char *name, struct gate_limit *out, struct err_msg *em)
{
	json_val list = json_get(v, name);
	double limit;
	u32 i = 0;

	if (!json_present(list))
		return ERR_OK;
	for (struct json_iter it = json_iterate(list); json_next(&it); i++) {
		if (!json_present(it.value) || (json_double(it.value, &limit) && limit == 0))
			continue;
		if (!json_double(it.value, &limit) || !(limit > 0))
			return err_set(em, ERR_FORMAT, "config.json: \"%s\"[%u] must be a number above 0, or 0 or null for none", name, i);
		enum err e = config_check_float(name, limit, em);
		if (e)
			return e;
		out[i] = (struct gate_limit){.gate = (f32)gate_of(limit), .up = (f32)limit};
	}
	ASSERT(i == c->layers);
	return ERR_OK;
}

/* Bounds of what the activation makes are bounds of what it reads. */
enum err config_read_limits(struct model_config *c, json_val v, struct err_msg *em)
{
	if (c->activation != KERN_SILU)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"hidden_act\" is '%.64s'; of a %s it must be silu", json_cstr(json_get(v, "hidden_act"), ""), c->arch->name);
	enum err e = read_limits(c, v, "swiglu_limits", c->expert_limits, em);
	if (!e)
		e = read_limits(c, v, "swiglu_limits_shared", c->mlp_limits, em);
	for (u32 i = 0; i < c->layers; i++)
		c->limited |= c->expert_limits[i].up > 0 || c->mlp_limits[i].up > 0;
	return e;
}
