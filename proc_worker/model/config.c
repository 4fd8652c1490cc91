/* Reads what describes a model. Runs in the worker at start. Never guesses: a field that changes what the
 * model computes and that is not understood is an error. */
#include "proc_worker/model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/json.h"

enum {
	DIM_MAX = 1 << 20,
	LAYERS_MAX = 4096,
	VOCAB_MAX = 1 << 24,
	CONTEXT_MAX = 1 << 24,
};

/* ---------------------------------------------------------------- fields */

static enum err need_u32(json_val v, const char *name, u32 max, u32 *out, struct err_msg *em)
{
	json_val field = json_get(v, name);
	u64 n;

	if (!json_present(field))
		return err_set(em, ERR_FORMAT,
			       "config.json: \"%s\" is missing; it must be an integer from 1 to %u", name,
			       max);
	if (!json_uint(field, &n))
		return err_set(em, ERR_FORMAT,
			       "config.json: \"%s\" must be an integer from 1 to %u, found %s", name, max,
			       json_type_name(field));
	if (n < 1 || n > max)
		return err_set(em, ERR_INVALID, "config.json: \"%s\" is %llu; it must be 1 to %u", name,
			       (unsigned long long)n, max);
	*out = (u32)n;
	return ERR_OK;
}

static enum err may_u32(json_val v, const char *name, u32 max, u32 fallback, u32 *out, struct err_msg *em)
{
	*out = fallback;
	return json_present(json_get(v, name)) ? need_u32(v, name, max, out, em) : ERR_OK;
}

/* Finite and above 0. */
static enum err need_positive(json_val v, const char *name, double *out, struct err_msg *em)
{
	json_val field = json_get(v, name);

	if (!json_present(field))
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" is missing; it must be a number above 0",
			       name);
	if (!json_double(field, out) || !(*out > 0) || !isfinite(*out))
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be a number above 0, found %s", name,
			       json_double(field, out) ? "another one" : json_type_name(field));
	return ERR_OK;
}

static enum err may_positive(json_val v, const char *name, double fallback, double *out, struct err_msg *em)
{
	*out = fallback;
	return json_present(json_get(v, name)) ? need_positive(v, name, out, em) : ERR_OK;
}

static enum err may_bool(json_val v, const char *name, bool fallback, bool *out, struct err_msg *em)
{
	json_val field = json_get(v, name);

	*out = fallback;
	if (json_present(field) && !json_bool(field, out))
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be true or false, found %s", name,
			       json_type_name(field));
	return ERR_OK;
}

/* Fields that would change the computation and that the decoder does not have. */
static enum err refuse_unsupported(json_val v, struct err_msg *em)
{
	static const char *const flags[] = {"attention_bias", "mlp_bias"};
	double share;
	bool set = false;

	for (size_t i = 0; i < COUNT_OF(flags); i++) {
		enum err e = may_bool(v, flags[i], false, &set, em);
		if (e)
			return e;
		if (set)
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\": true is not supported",
				       flags[i]);
	}
	if (json_present(json_get(v, "quantization_config"))) {
		const char *method =
			json_cstr(json_get(json_get(v, "quantization_config"), "quant_method"), "?");
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: \"quantization_config\" (%.64s): quantized checkpoints are "
			       "not supported; use one in bfloat16, float16 or float32",
			       method);
	}
	enum err e = may_positive(v, "partial_rotary_factor", 1, &share, em);
	if (!e && share != 1)
		e = err_set(em, ERR_UNSUPPORTED,
			    "config.json: \"partial_rotary_factor\": %g is not supported; only 1", share);
	return e;
}

/* ---------------------------------------------------------------- parts */

static enum err read_arch(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val names = json_get(v, "architectures");
	char known[512];

	arch_names(known, sizeof(known));
	if (json_type(names) != JSON_ARRAY || json_count(names) == 0)
		return err_set(em, ERR_FORMAT, "config.json: \"architectures\" is missing; supported: %s",
			       known);
	const char *name = json_cstr(json_at(names, 0), "");
	c->arch = arch_find(name);
	if (!c->arch)
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: unknown architecture '%.128s'; supported: %s", name, known);
	return ERR_OK;
}

static enum err read_sizes(struct model_config *c, json_val v, struct err_msg *em)
{
	enum err e = need_u32(v, "vocab_size", VOCAB_MAX, &c->vocab_size, em);

	if (!e)
		e = need_u32(v, "hidden_size", DIM_MAX, &c->hidden, em);
	if (!e)
		e = need_u32(v, "intermediate_size", DIM_MAX, &c->intermediate, em);
	if (!e)
		e = need_u32(v, "num_hidden_layers", LAYERS_MAX, &c->layers, em);
	if (!e)
		e = need_u32(v, "num_attention_heads", 65536, &c->heads, em);
	if (!e)
		e = may_u32(v, "num_key_value_heads", 65536, c->heads, &c->kv_heads, em);
	if (!e)
		e = need_u32(v, "max_position_embeddings", CONTEXT_MAX, &c->context_max, em);
	if (e)
		return e;
	if (!json_present(json_get(v, "head_dim")) && c->hidden % c->heads)
		return err_set(em, ERR_INVALID,
			       "config.json: hidden_size %u is not a multiple of num_attention_heads %u, "
			       "and there is no \"head_dim\"",
			       c->hidden, c->heads);
	e = may_u32(v, "head_dim", 1024, c->hidden / c->heads, &c->head_dim, em);
	if (e)
		return e;
	if (c->head_dim % 2 || c->head_dim == 0 || c->head_dim > 1024)
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: heads of %u dimensions; they must be even, 2 to 1024",
			       c->head_dim);
	if (c->heads % c->kv_heads)
		return err_set(
			em, ERR_INVALID,
			"config.json: num_attention_heads %u is not a multiple of num_key_value_heads %u",
			c->heads, c->kv_heads);
	return ERR_OK;
}

static enum err read_scaling(struct model_config *c, json_val v, struct err_msg *em)
{
	struct rope_config *r = &c->rope;
	json_val type = json_get(v, "rope_type");

	if (!json_present(type))
		type = json_get(v, "type"); /* as older files say */
	if (!json_present(type) || json_string_equals(type, "default"))
		return ERR_OK;
	bool linear = json_string_equals(type, "linear");
	if (!linear && !json_string_equals(type, "llama3"))
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: rope_scaling of type '%.64s' is not supported; supported: "
			       "default, linear, llama3",
			       json_cstr(type, "?"));
	r->kind = linear ? ROPE_LINEAR : ROPE_LLAMA3;
	enum err e = need_positive(v, "factor", &r->factor, em);
	if (!e && !linear)
		e = need_positive(v, "low_freq_factor", &r->low_freq_factor, em);
	if (!e && !linear)
		e = need_positive(v, "high_freq_factor", &r->high_freq_factor, em);
	if (!e && !linear)
		e = need_u32(v, "original_max_position_embeddings", CONTEXT_MAX, &r->original_context, em);
	if (!e && !linear && r->high_freq_factor <= r->low_freq_factor)
		e = err_set(em, ERR_INVALID,
			    "config.json: \"high_freq_factor\" %g must be above \"low_freq_factor\" %g",
			    r->high_freq_factor, r->low_freq_factor);
	if (!e && r->factor < 1)
		e = err_set(em, ERR_INVALID,
			    "config.json: \"factor\" of rope_scaling is %g; it must be at least 1",
			    r->factor);
	/* Linear scaling stretches the context; llama3 states the stretched one itself. */
	if (!e && linear && c->context_max * r->factor <= CONTEXT_MAX)
		c->context_max = (u32)(c->context_max * r->factor);
	return e;
}

/* "rope_theta" and "rope_scaling", or both inside "rope_parameters" as newer files have it. */
static enum err read_rope(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val parameters = json_get(v, "rope_parameters");
	json_val scaling = json_present(parameters) ? parameters : json_get(v, "rope_scaling");
	bool inside = json_present(json_get(parameters, "rope_theta"));

	c->rope = (struct rope_config){.kind = ROPE_PLAIN, .dim = c->head_dim, .factor = 1};
	if (json_present(scaling) && json_type(scaling) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be an object or null, found %s",
			       json_present(parameters) ? "rope_parameters" : "rope_scaling",
			       json_type_name(scaling));
	enum err e = may_positive(inside ? parameters : v, "rope_theta", 10000, &c->rope.theta, em);
	if (!e && json_present(scaling))
		e = read_scaling(c, scaling, em);
	return e;
}

static enum err read_dtype(struct model_config *c, json_val v, struct err_msg *em)
{
	static const struct {
		const char *name;
		enum kern_dtype dtype;
	} names[] = {{"float32", KERN_F32}, {"bfloat16", KERN_BF16}, {"float16", KERN_F16}};
	json_val field = json_get(v, "torch_dtype");

	if (!json_present(field))
		field = json_get(v, "dtype");
	if (!json_present(field))
		return ERR_OK;
	for (size_t i = 0; i < COUNT_OF(names); i++)
		if (json_string_equals(field, names[i].name)) {
			c->has_dtype = true;
			c->dtype = names[i].dtype;
			return ERR_OK;
		}
	return err_set(em, ERR_UNSUPPORTED,
		       "config.json: \"torch_dtype\" is '%.64s'; supported: bfloat16, float16, float32",
		       json_cstr(field, json_type_name(field)));
}

static enum err add_eos(struct model_config *c, const char *file, json_val v, struct err_msg *em)
{
	u64 id;
	i64 none;

	if (json_int(v, &none) && none == -1) /* how some files say that there is none */
		return ERR_OK;
	if (!json_uint(v, &id))
		return err_set(em, ERR_FORMAT,
			       "%s: \"eos_token_id\" must be an integer or an array of them, found %s", file,
			       json_type_name(v));
	if (id >= c->vocab_size)
		return err_set(em, ERR_INVALID, "%s: \"eos_token_id\" %llu is not below vocab_size %u", file,
			       (unsigned long long)id, c->vocab_size);
	for (u32 i = 0; i < c->eos_count; i++)
		if (c->eos_ids[i] == id)
			return ERR_OK;
	if (c->eos_count == EOS_IDS_MAX)
		return err_set(em, ERR_TOO_LONG, "%s: more than %d end-of-sequence ids", file, EOS_IDS_MAX);
	c->eos_ids[c->eos_count++] = (u32)id;
	return ERR_OK;
}

static enum err read_eos(struct model_config *c, const char *file, json_val v, struct err_msg *em)
{
	json_val field = json_get(v, "eos_token_id");
	enum err e = ERR_OK;

	if (!json_present(field))
		return ERR_OK;
	if (json_type(field) != JSON_ARRAY)
		return add_eos(c, file, field, em);
	for (struct json_iter it = json_iterate(field); !e && json_next(&it);)
		e = add_eos(c, file, it.value, em);
	return e;
}

static enum err read_config(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val act = json_get(v, "hidden_act");
	double eps = 0;

	if (json_type(v) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "config.json: must be an object, found %s", json_type_name(v));
	enum err e = read_arch(c, v, em);
	if (!e)
		e = refuse_unsupported(v, em);
	if (!e)
		e = read_sizes(c, v, em);
	if (!e)
		e = need_positive(v, "rms_norm_eps", &eps, em);
	if (!e)
		e = read_rope(c, v, em);
	if (!e)
		e = read_dtype(c, v, em);
	if (!e)
		e = may_bool(v, "tie_word_embeddings", false, &c->tied_embeddings, em);
	if (!e)
		e = read_eos(c, "config.json", v, em);
	if (!e && json_present(act) && !json_string_equals(act, "silu"))
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"hidden_act\" is '%.64s'; supported: silu",
			    json_cstr(act, json_type_name(act)));
	c->norm_eps = (f32)eps;
	c->activation = KERN_SILU;
	return e;
}

enum err model_config_parse(struct model_config *c, const char *text, size_t bytes, struct err_msg *em)
{
	struct json_doc *doc = NULL;

	*c = (struct model_config){0};
	enum err e = json_parse(&doc, text, bytes, em);
	if (!e)
		e = read_config(c, json_root(doc), em);
	json_free(&doc);
	return e;
}

/* ---------------------------------------------------------------- the files */

static enum err path_in(char *out, size_t bytes, const char *dir, const char *file, struct err_msg *em)
{
	if ((size_t)snprintf(out, bytes, "%s/%s", dir, file) >= bytes)
		return err_set(em, ERR_TOO_LONG, "the model's path is longer than %zu bytes", bytes - 1);
	return ERR_OK;
}

enum err model_config_read(struct model_config *c, const char *dir, struct err_msg *em)
{
	char path[4096];
	struct json_doc *doc = NULL;

	*c = (struct model_config){0};
	enum err e = path_in(path, sizeof(path), dir, "config.json", em);
	if (!e)
		e = json_parse_file(&doc, path, em);
	if (!e)
		e = read_config(c, json_root(doc), em);
	json_free(&doc);
	if (!e)
		e = path_in(path, sizeof(path), dir, "generation_config.json", em);
	if (e || access(path, F_OK) < 0)
		return e;
	e = json_parse_file(&doc, path, em);
	if (!e)
		e = read_eos(c, "generation_config.json", json_root(doc), em);
	json_free(&doc);
	return e;
}

/* ---------------------------------------------------------------- shares of ranks */

enum err model_shard_init(struct model_shard *s, const struct model_config *c, u32 rank, u32 ranks,
			  struct err_msg *em)
{
	if (c->heads % ranks)
		return err_set(
			em, ERR_INVALID,
			"--tensor-parallel-size %u: the model's %u attention heads cannot be divided by it",
			ranks, c->heads);
	if (c->intermediate % ranks)
		return err_set(
			em, ERR_INVALID,
			"--tensor-parallel-size %u: the model's intermediate_size %u cannot be divided by it",
			ranks, c->intermediate);
	if (c->kv_heads % ranks && ranks % c->kv_heads)
		return err_set(em, ERR_INVALID,
			       "--tensor-parallel-size %u: neither a divisor nor a multiple of the model's "
			       "%u KV heads",
			       ranks, c->kv_heads);
	if (ranks > c->vocab_size)
		return err_set(em, ERR_INVALID,
			       "--tensor-parallel-size %u: the vocabulary has only %u tokens", ranks,
			       c->vocab_size);
	*s = (struct model_shard){.rank = rank, .ranks = ranks};
	s->heads = c->heads / ranks;
	s->kv_heads = c->kv_heads >= ranks ? c->kv_heads / ranks : 1;
	s->kv_first = (u32)((u64)rank * c->kv_heads / ranks);
	s->intermediate = c->intermediate / ranks;
	s->vocab_first = (u32)((u64)rank * c->vocab_size / ranks);
	s->vocab_rows = (u32)((rank + 1ull) * c->vocab_size / ranks) - s->vocab_first;
	return ERR_OK;
}
