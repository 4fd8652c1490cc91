/* Reads what describes a model. Runs in the worker at start. Never guesses: a field that changes what the
 * model computes and that is not understood is an error. */
#include "proc_worker/model/config.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/json.h"
#include "proc_worker/model/config_priv.h"

enum {
	HEADS_MAX = 1 << 16,
	VOCAB_MAX = 1 << 24,
};

/* `*text`: the whole file, or what it becomes. */
static enum err read_arch(struct model_config *c, json_val *text, struct err_msg *em)
{
	json_val names = json_get(*text, "architectures");
	char known[1024];

	const char *name = json_cstr(json_at(names, 0), "");
	arch_names(known, sizeof(known), name);
	if (json_type(names) != JSON_ARRAY || json_count(names) == 0)
		return err_set(em, ERR_FORMAT, "config.json: \"architectures\" is missing; supported: %s",
			       known);
	c->arch = arch_find(name);
	if (c->arch && c->arch->with_rms_norm && json_present(json_get(*text, "rms_norm_eps")))
		c->arch = arch_find(c->arch->with_rms_norm);
	return c->arch ? ERR_OK : config_read_text_part(c, text, name, known, em);
}

static enum err read_heads(struct model_config *c, json_val v, struct err_msg *em)
{
	const bool own = c->arch->head_dim > 0 && json_type(json_get(v, "head_dim")) == JSON_MISSING; /* null is not that */
	const u32 usual = own ? c->arch->head_dim : c->hidden / c->heads;

	if (c->arch->latent)
		return config_read_latent(c, v, em);
	if (!json_present(json_get(v, "head_dim")) && !own && c->hidden % c->heads)
		return err_set(em, ERR_INVALID,
			       "config.json: hidden_size %u is not a multiple of num_attention_heads %u, "
			       "and there is no \"head_dim\"",
			       c->hidden, c->heads);
	enum err e = config_may_u32(v, "head_dim", CONFIG_HEAD_DIM_MAX, usual, &c->head_dim, em);
	if (e)
		return e;
	if (c->head_dim % 2 || c->head_dim == 0 || c->head_dim > CONFIG_HEAD_DIM_MAX)
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: heads of %u dimensions; they must be even, 2 to %d", c->head_dim,
			       CONFIG_HEAD_DIM_MAX);
	if (c->heads % c->kv_heads)
		return err_set(
			em, ERR_INVALID,
			"config.json: num_attention_heads %u is not a multiple of num_key_value_heads %u",
			c->heads, c->kv_heads);
	if (c->arch->quarters && (e = config_check_quarters(c, v, em)))
		return e;
	if (c->arch->altup)
		return config_read_altup(c, v, em);
	return c->arch->global_heads ? config_read_global(c, v, em) : ERR_OK;
}

/* What the file says, or what the family has, if it has anything. */
static enum err size_or(json_val v, const char *name, u32 max, u32 usual, u32 *out, struct err_msg *em)
{
	return usual ? config_may_u32(v, name, max, usual, out, em) : config_need_u32(v, name, max, out, em);
}

/* Whether all layers of a family have experts unless its files say how many first ones have none, and this file says none. */
static bool has_no_dense_layers(const struct arch *a, json_val v)
{
	json_val first = json_get(v, "first_k_dense_replace");
	i64 count = 0;

	return a->dense_layers == 0 && arch_has_own(a, "first_k_dense_replace") && !arch_has_own(a, "mlp_layer_types") && !arch_has_own(a, "moe_layer_freq") &&
	       (json_type(first) == JSON_MISSING || (json_int(first, &count) && count == 0));
}

/* What a family makes of the hidden size has the same limit as what a file says. */
static enum err read_intermediate(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 inner = c->arch->inner; /* small, and hidden sizes are at most CONFIG_DIM_MAX: the product fits */

	if (c->arch->experts_only || c->arch->attention_free || c->arch->by_layer) /* config_by_layer.c */
		return ERR_OK;
	if (c->arch->altup)
		return config_read_altup_width(c, v, em);
	if (c->arch->experts_optional) /* config_experts.c */
		return config_may_u32(v, "intermediate_size", CONFIG_DIM_MAX, 0, &c->intermediate, em);
	if (has_no_dense_layers(c->arch, v) && json_type(json_get(v, "intermediate_size")) == JSON_MISSING)
		return ERR_OK;
	enum err e = size_or(v, "intermediate_size", CONFIG_DIM_MAX, inner * c->hidden, &c->intermediate, em);
	if (!e && c->intermediate > CONFIG_DIM_MAX)
		e = err_set(em, ERR_INVALID,
			    "config.json: \"intermediate_size\" is missing, and %u times hidden_size, which is %u, is more than %d", inner,
			    c->hidden, CONFIG_DIM_MAX);
	if (!e && c->arch->halved && (c->intermediate /= 2) == 0)
		e = err_set(em, ERR_INVALID, "config.json: \"intermediate_size\" is 1; of a %s the MLP is half as wide", c->arch->name);
	return e;
}

/* Of some families the files have embeddings of more tokens than there are logits. */
static enum err read_vocab(struct model_config *c, json_val v, struct err_msg *em)
{
	enum err e = size_or(v, "vocab_size", VOCAB_MAX, c->arch->vocab_size, &c->embed_vocab, em);

	c->vocab_size = c->embed_vocab;
	if (e || !arch_has_own(c->arch, "output_vocab_size"))
		return e;
	e = config_may_u32(v, "output_vocab_size", VOCAB_MAX, c->embed_vocab, &c->vocab_size, em);
	if (!e && c->vocab_size > c->embed_vocab)
		e = err_set(em, ERR_INVALID, "config.json: \"output_vocab_size\" is %u; it must be vocab_size, which is %u, at most", c->vocab_size, c->embed_vocab);
	return e;
}

static enum err read_sizes(struct model_config *c, json_val v, struct err_msg *em)
{
	enum err e = read_vocab(c, v, em);

	if (!e)
		e = config_need_u32(v, "hidden_size", CONFIG_DIM_MAX, &c->hidden, em);
	if (!e && c->arch->rotary_alone)
		e = config_check_baichuan(c, v, em);
	if (!e)
		e = read_intermediate(c, v, em);
	if (!e)
		e = c->arch->single_blocks ? config_read_blocks(c, v, em) : c->arch->shortcut ? config_read_pairs(c, v, em) : config_need_u32(v, "num_hidden_layers", MODEL_LAYERS_MAX, &c->layers, em);
	if (!e && arch_has_own(c->arch, "cross_attention_layers"))
		e = config_leave_out(c, v, em);
	if (!c->arch->single_blocks)
		c->own_kv_layers = c->layers;
	if (e || c->arch->attention_free)
		return e ? e : config_read_attention_free(c, v, em);
	if (!e)
		e = size_or(v, "num_attention_heads", HEADS_MAX, c->arch->heads, &c->heads, em);
	if (!e && c->arch->by_layer)
		e = config_read_by_layer(c, v, em);
	else if (!e)
		e = config_may_u32(v, "num_key_value_heads", HEADS_MAX,
				   c->arch->kv_heads && json_type(json_get(v, "num_key_value_heads")) ==
								JSON_MISSING
					   ? c->arch->kv_heads
					   : c->heads,
				   &c->kv_heads, em);
	if (!e && arch_has_own(c->arch, "num_attention_heads_per_layer"))
		e = config_read_heads(c, v, em);
	if (!e && arch_has_own(c->arch, "multi_query"))
		e = config_read_multi_query(c, v, em);
	if (!e)
		e = size_or(v, "max_position_embeddings", CONFIG_CONTEXT_MAX, c->arch->context, &c->context_max, em);
	if (!e && arch_has_own(c->arch, "seq_length"))
		e = config_read_seq_length(c, v, em);
	u32 embedded = c->hidden;
	if (!e)
		e = config_may_u32(v, "word_embed_proj_dim", CONFIG_DIM_MAX, c->hidden, &embedded, em);
	if (!e && embedded != c->hidden)
		e = err_set(em, ERR_UNSUPPORTED,
			    "config.json: \"word_embed_proj_dim\" is %u; only embeddings of hidden_size, which is %u, are supported",
			    embedded, c->hidden);
	return e ? e : read_heads(c, v, em);
}

static bool has(const struct model_config *c, u32 traits)
{
	return c->arch->traits & traits;
}

/* ---------------------------------------------------------------- arithmetic */

/* Gemma's first files say "gelu" in "hidden_act" and mean the approximation. */
static enum err read_activation(struct model_config *c, json_val v, struct err_msg *em)
{
	static const struct {
		const char *name;
		enum kern_activation act;
	} known[] = {{"silu", KERN_SILU},
		     {"swish", KERN_SILU},
		     {"gelu_pytorch_tanh", KERN_GELU_TANH},
		     {"gelu_new", KERN_GELU_TANH},
		     {"gelu_fast", KERN_GELU_TANH},
		     {"gelu", KERN_GELU},
		     {"relu", KERN_RELU},
		     {"relu2", KERN_RELU_SQUARED}};
	bool named = has(c, ARCH_GELU) && json_present(json_get(v, "hidden_activation"));
	const char *field = named ? "hidden_activation" : "hidden_act";
	json_val act = json_get(v, field);

	c->activation = has(c, ARCH_GELU) ? KERN_GELU_TANH : c->arch->activation;
	if (c->arch->xielu && json_present(act) && !json_string_equals(act, "xielu"))
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"hidden_act\" is '%.64s'; of a %s it must be xielu",
			       json_cstr(act, json_type_name(act)), c->arch->name);
	if (c->arch->xielu)
		return ERR_OK;
	if (!json_present(act) || (has(c, ARCH_GELU) && !named && json_string_equals(act, "gelu")))
		return ERR_OK;
	for (size_t i = 0; i < COUNT_OF(known); i++)
		if (json_string_equals(act, known[i].name)) {
			c->activation = known[i].act;
			return ERR_OK;
		}
	return err_set(em, ERR_UNSUPPORTED,
		       "config.json: \"%s\" is '%.64s'; supported: silu, swish, gelu, gelu_pytorch_tanh, gelu_new, "
		       "gelu_fast, relu, relu2",
		       field, json_cstr(act, json_type_name(act)));
}

/* SiLU with a factor of its own and bounds: what "hidden_act" says is only its name. */
static enum err read_clamped(struct model_config *c, json_val v, struct err_msg *em)
{
	if (c->activation != KERN_SILU)
		return err_set(em, ERR_UNSUPPORTED, "config.json: \"hidden_act\" is '%.64s'; of a %s it must be silu",
			       json_cstr(json_get(v, "hidden_act"), ""), c->arch->name);
	enum err e = config_may_float(v, "swiglu_alpha", 1.702, &c->swiglu_alpha, em);
	return e ? e : config_may_float(v, "swiglu_limit", 7, &c->swiglu_limit, em);
}

/* null: none; 0, too. Missing: what the family has. One that is above all that floats tell from it changes no score. */
static enum err read_cap(json_val v, const char *name, double usual, f32 *out, struct err_msg *em)
{
	const f32 none = 1e20f;
	json_val field = json_get(v, name);
	double given;

	*out = 0;
	if ((json_type(field) == JSON_MISSING && usual == 0) || (json_type(field) != JSON_MISSING && !json_present(field)) ||
	    (json_double(field, &given) && given == 0))
		return ERR_OK;
	enum err e = config_may_float(v, name, usual, out, em);
	*out = *out < none ? *out : 0;
	return e;
}

static bool is_float(double x)
{
	return x >= (double)FLT_MIN && x <= (double)FLT_MAX;
}

/* What a block adds to the residual stream is multiplied in these families. Here the stream is divided instead, from the
 * embedding on, which norms do not see but for their epsilon: x / r + block is (x + r block) / r. The
 * field says `given`. */
static enum err divide_stream(struct model_config *c, const char *field, double given, double embedding, double residual, double eps,
			      struct err_msg *em)
{
	double stream = embedding / residual, norm = eps / (residual * residual);

	if (!is_float(stream) || !is_float(norm))
		return err_set(em, ERR_INVALID,
			       "config.json: \"%s\" is %g: what embeddings are multiplied by, divided by what blocks are (%g), and the norms' "
			       "epsilon by its square (%g) must be numbers from %g to %g",
			       field, given, stream, norm, (double)FLT_MIN, (double)FLT_MAX);
	c->embed_scale = (f32)stream;
	c->norm_eps = (f32)norm;
	return ERR_OK;
}

static enum err read_multipliers(struct model_config *c, json_val v, double eps, struct err_msg *em)
{
	f32 embedding, residual, attention, logits;
	const bool chosen = arch_has_own(c->arch, "use_post_norm"); /* there what is missing is as in others, and logits are multiplied */

	enum err e = config_may_float(v, "embedding_multiplier", 1, &embedding, em);
	if (!e)
		e = config_may_float(v, "residual_multiplier", 1, &residual, em);
	if (!e)
		e = config_may_float(v, "attention_multiplier", chosen ? (double)c->attention_scale : 1, &attention, em);
	if (!e)
		e = config_may_float(v, "logits_scaling", 1, &logits, em);
	if (!e && chosen)
		e = config_read_post_norms(c, v, embedding, residual, em);
	if (!e && !c->post_norms)
		e = divide_stream(c, "residual_multiplier", (double)residual, (double)embedding, (double)residual, eps, em);
	if (e)
		return e;
	c->attention_scale = attention;
	c->logits_scale = chosen ? logits : 1 / logits;
	return ERR_OK;
}

/* MiniCPM 3's: blocks count less the more layers there are, logits the wider the stream is. */
static enum err read_depth_scales(struct model_config *c, json_val v, double eps, struct err_msg *em)
{
	f32 embedding, depth;
	u32 base = 0;

	const bool third = c->arch->latent; /* of which generation: the first leaves out what is 1 */
	enum err e = config_may_float(v, "scale_emb", third ? 12 : 1, &embedding, em);
	if (!e)
		e = config_may_float(v, "scale_depth", third ? 1.4 : 1, &depth, em);
	if (!e)
		e = config_may_u32(v, "dim_model_base", CONFIG_DIM_MAX, third ? 256 : 1, &base, em);
	if (!e)
		e = divide_stream(c, "scale_depth", (double)depth, (double)embedding, (double)depth / sqrt(c->layers), eps, em);
	if (!e)
		c->logits_scale = (f32)((double)base / c->hidden);
	return e;
}

/* Muse Glimmer's: queries count for more, logits for less, and norms behind blocks have an epsilon of their own. */
static enum err read_query_scale(struct model_config *c, json_val v, struct err_msg *em)
{
	f32 queries;
	double eps = 0;

	enum err e = config_may_float(v, "qk_scale_factor", 3.87, &queries, em);
	if (!e)
		e = config_check_float("qk_scale_factor", (double)(c->attention_scale *= queries), em);
	if (!e)
		e = config_may_float(v, "output_multiplier", 0.19611613513818404, &c->logits_scale, em);
	if (!e)
		e = config_may_positive(v, "post_norm_eps", 1e-8, &eps, em);
	if (!e && (eps < (double)FLT_MIN || eps > 1))
		e = err_set(em, ERR_INVALID, "config.json: \"post_norm_eps\" must be a number from %g to 1, found %g", (double)FLT_MIN, eps);
	c->post_norm_eps = (f32)eps;
	return e;
}

static enum err read_eps(const struct model_config *c, json_val v, double *out, struct err_msg *em)
{
	const char *name = c->arch->layer_norm ? c->arch->layer_norm : "rms_norm_eps";

	enum err e = c->arch->norm_eps > 0 ? config_may_positive(v, name, (double)c->arch->norm_eps, out, em)
					   : config_need_positive(v, name, out, em);
	/* Of the type that it is held in 0 would be made of less, which makes no number of a row of zeros, and infinity of more. */
	if (!e && (*out < (double)FLT_MIN || *out > 1))
		e = err_set(em, ERR_INVALID, "config.json: \"%s\" must be a number from %g to 1, found %g", name, (double)FLT_MIN, *out);
	if (!e && c->arch->plain_norms && c->arch->layer_norm && (f32)*out != c->arch->norm_eps)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" is %g; of a %s it must be %g", name, *out, c->arch->name,
			    (double)c->arch->norm_eps);
	return e;
}

static enum err read_clip(struct model_config *c, json_val v, struct err_msg *em)
{
	double clip = 0;

	enum err e = config_may_positive(v, "clip_qkv", 0, &clip, em);
	c->clip = (f32)clip;
	if (!e && clip > 0 && !(c->clip > 0 && isfinite(c->clip)))
		e = err_set(em, ERR_INVALID, "config.json: \"clip_qkv\" must be a number of a float, found %g", clip);
	return e;
}

static enum err read_arithmetic(struct model_config *c, json_val v, struct err_msg *em)
{
	double eps = 0;
	f32 scalar = (f32)(c->arch->latent ? c->latent.key + c->latent.rope : c->head_dim);

	enum err e = read_eps(c, v, &eps, em);
	if (!e && has(c, ARCH_ATTENTION_BIAS))
		e = config_may_bool(v, "attention_bias", c->arch->attention_bias, &c->attention_bias, em);
	if (!e && has(c, ARCH_QKV_BIAS))
		e = config_may_bool(v, "qkv_bias", true, &c->attention_bias, em);
	if (!e && has(c, ARCH_MLP_BIAS))
		e = config_may_bool(v, "mlp_bias", c->arch->mlp_bias, &c->mlp_bias, em);
	if (!e && arch_has_own(c->arch, "use_qkv_bias"))
		e = config_may_bool(v, "use_qkv_bias", false, &c->attention_bias, em);
	if (!e && arch_has_own(c->arch, "clip_qkv"))
		e = read_clip(c, v, em);
	c->head_norms = c->arch->plain_head_norms;
	if (!e && arch_has_own(c->arch, "use_qk_norm"))
		e = config_may_bool(v, "use_qk_norm", c->arch->plain_head_norms, &c->head_norms, em);
	if (!e && arch_has_own(c->arch, "qk_layernorm"))
		e = config_may_bool(v, "qk_layernorm", false, &c->head_norms, em);
	if (!e && arch_has_own(c->arch, "lm_head_bias"))
		e = config_may_bool(v, "lm_head_bias", false, &c->lm_head_bias, em);
	if (!e && has(c, ARCH_USE_BIAS)) {
		e = config_may_bool(v, "use_bias", c->arch->attention_bias, &c->attention_bias, em);
		c->mlp_bias = c->attention_bias;
	}
	c->parallel = c->arch->parallel;
	c->interleaved = c->arch->interleaved;
	if (!e && arch_has_own(c->arch, "rope_interleave"))
		e = config_may_bool(v, "rope_interleave", c->arch->interleaved, &c->interleaved, em);
	if (!e && has(c, ARCH_PARALLEL_CHOICE))
		e = config_may_bool(v, "use_parallel_residual", c->arch->parallel, &c->parallel, em);
	if (!e && has(c, ARCH_SOFT_CAPS))
		e = config_may_float(v, "query_pre_attn_scalar", 256, &scalar, em);
	if (!e && has(c, ARCH_ATTENTION_CAP))
		e = read_cap(v, "attn_logit_softcapping", c->arch->attention_soft_cap, &c->attention_soft_cap, em);
	if (!e && (has(c, ARCH_SOFT_CAPS) || arch_has_own(c->arch, "final_logit_softcapping")))
		e = read_cap(v, "final_logit_softcapping", c->arch->logits_soft_cap, &c->logits_soft_cap, em);
	if (!e)
		e = read_activation(c, v, em);
	if (!e && c->arch->clamped)
		e = read_clamped(c, v, em);
	c->norm_eps = c->recurrent.gate_eps = (f32)eps;
	/* GGUF files have it in the weights. */
	c->norm_offset = has(c, ARCH_NORM_OFFSET) && !quant_config_has(&c->quant, QUANT_GGUF) ? 1 : 0;
	bool scaled = has(c, ARCH_EMBED_SCALE);
	if (!e && arch_has_own(c->arch, "mup_enabled"))
		e = config_may_bool(v, "mup_enabled", false, &scaled, em);
	c->embed_scale = scaled ? (f32)sqrt(c->hidden) : 1;
	c->output_gate = c->arch->output_gate;
	if (!e && arch_has_own(c->arch, "gating"))
		e = config_read_gating(c, json_get(v, "gating"), em);
	if (!e && arch_has_own(c->arch, "use_attention_gate"))
		e = config_may_bool(v, "use_attention_gate", true, &c->output_gate, em);
	if (!e && arch_has_own(c->arch, "use_post_norm") && !has(c, ARCH_MULTIPLIERS))
		e = config_may_bool(v, "use_post_norm", true, &c->post_norms, em);
	c->attention_scale = c->arch->global_heads || c->arch->altup ? 1 : (f32)(1 / sqrt((double)scalar));
	c->logits_scale = 1;
	for (u32 i = 0; i < SCALE_COUNT; i++)
		c->scales[i] = 1;
	if (!e && c->arch->state_beside)
		e = config_read_scales(c, v, em);
	if (!e && has(c, ARCH_LOGIT_SCALE))
		e = config_may_float(v, "logit_scale", (double)c->arch->logit_scale, &c->logits_scale, em);
	if (!e && has(c, ARCH_MULTIPLIERS))
		e = read_multipliers(c, v, eps, em);
	if (!e && arch_has_own(c->arch, "qk_scale_factor"))
		e = read_query_scale(c, v, em);
	return !e && arch_has_own(c->arch, "scale_depth") ? read_depth_scales(c, v, eps, em) : e;
}

static enum err read_dtype(struct model_config *c, json_val v, struct err_msg *em)
{
	static const struct {
		const char *name;
		enum kern_dtype dtype;
	} names[] = {{"float32", KERN_F32}, {"bfloat16", KERN_BF16}, {"float16", KERN_F16}};
	json_val field = json_get(v, "torch_dtype");

	enum err e = config_check_pair(v, "torch_dtype", "dtype", em);
	if (!json_present(field))
		field = json_get(v, "dtype");
	if (e || !json_present(field))
		return e;
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
	if (json_int(v, &none) && none < 0)
		return err_set(em, ERR_FORMAT, "%s: \"eos_token_id\" is %lld; it must be a token id, or an array of them", file,
			       (long long)none);
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

/* Which matrices of other families would be rounded as they load, and which not, is not known. */
static enum err check_ternary(const struct model_config *c, struct err_msg *em)
{
	if (c->arch->sub_norms || c->quant.count == 0 || !c->quant.schemes[0].at_load)
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED, "config.json: \"quantization_config\": \"quantization_mode\" is 'online', which is read of a BitNetForCausalLM only, not of a %s",
		       c->arch->name);
}

/* `v`: of `whole` what describes the language. */
static enum err read_fields(struct model_config *c, json_val whole, json_val v, struct err_msg *em)
{
	enum err e = quant_config_read(&c->quant, config_whose(whole, v, "quantization_config"), em);
	if (!e)
		e = check_ternary(c, em);
	if (!e)
		e = read_sizes(c, v, em);
	if (!e)
		e = config_read_experts(c, v, em);
	if (!e)
		e = read_arithmetic(c, v, em);
	if (!e && c->post_norm_eps == 0)
		c->post_norm_eps = c->norm_eps;
	if (!e && arch_has_own(c->arch, "new_decoder_architecture"))
		e = config_read_falcon(c, v, em);
	if (!e)
		e = config_read_rope(c, v, em);
	if (!e)
		e = config_read_index(c, v, em);
	if (!e && c->arch->recurrent)
		e = config_read_recurrent(c, v, em);
	if (!e)
		e = config_read_windows(c, v, em);
	if (!e && c->arch->global_heads)
		e = config_mark_global(c, v, em);
	if (!e && c->arch->altup)
		e = config_mark_shared(c, em);
	if (!e)
		e = config_read_tied(c, whole, v, em);
	if (!e)
		e = read_dtype(c, whole, em);
	if (!e && !c->has_dtype)
		e = read_dtype(c, v, em);
	if (!e)
		e = read_eos(c, "config.json", whole, em);
	if (!e && config_thinker(whole).node != whole.node)
		e = read_eos(c, "config.json", config_thinker(whole), em);
	if (!e)
		e = read_eos(c, "config.json", v, em);
	return e ? e
		 : config_check_fields(c->arch, v, em); /* a wrong field is worth more than an unknown one */
}

static enum err read_config(struct model_config *c, json_val whole, struct err_msg *em)
{
	struct json_doc *renamed = NULL, *filled = NULL;
	json_val v = whole;

	if (json_type(v) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "config.json: must be an object, found %s", json_type_name(v));
	const char *nul = json_text_with_nul(v); /* what it begins with may be the name of something */
	if (nul)
		return err_set(em, ERR_FORMAT, "config.json: there is a NUL in \"%.64s\\u0000...\"; no name or text may have one", nul);
	enum err e = read_arch(c, &v, em);
	const json_val file = v;
	const bool part = v.node != whole.node;
	if (!e)
		e = config_rename(&renamed, c->arch, v, em);
	if (renamed)
		v = json_root(renamed);
	if (!e && part)
		e = config_fill_part(&filled, v, em);
	if (filled)
		v = json_root(filled);
	if (!e)
		e = read_fields(c, part ? whole : v, v, em);
	if (e && renamed)
		config_name_in_file(c->arch, file, em);
	json_free(&filled);
	json_free(&renamed);
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

/* Where older files of Model Optimizer say how matrices are stored. */
static enum err read_quant_file(struct quant_config *q, const char *dir, struct err_msg *em)
{
	static const char FILE_NAME[] = "hf_quant_config.json";
	char path[4096];
	struct json_doc *doc = NULL;

	enum err e = path_in(path, sizeof(path), dir, FILE_NAME, em);
	if (e || access(path, F_OK) < 0)
		return e;
	e = json_parse_file(&doc, path, em);
	if (!e && (e = quant_config_read_file(q, json_root(doc), em)))
		err_prefix(em, "%s, read as config.json's \"quantization_config\"", FILE_NAME);
	json_free(&doc);
	return e;
}

enum err model_config_read(struct model_config *c, const char *dir, struct err_msg *em)
{
	char path[4096];
	struct json_doc *doc = NULL;

	*c = (struct model_config){0};
	enum err e = path_in(path, sizeof(path), dir, "config.json", em);
	if (!e)
		e = json_parse_python_file(&doc, path, em);
	if (!e)
		e = read_config(c, json_root(doc), em);
	json_free(&doc);
	if (!e && c->quant.count == 0)
		e = read_quant_file(&c->quant, dir, em);
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

u32 model_head_dim(const struct model_config *c, u32 layer)
{
	return c->layer_flags[layer] & LAYER_GLOBAL ? c->global_head_dim : c->head_dim;
}

u32 model_heads(const struct model_config *c, u32 layer)
{
	return c->heads_differ ? c->heads_by_layer[layer] : c->heads;
}

u32 model_kv_heads(const struct model_config *c, u32 layer)
{
	return c->arch->by_layer ? c->kv_heads_by_layer[layer] : c->kv_heads;
}

u32 model_intermediate(const struct model_config *c, u32 layer)
{
	return c->arch->by_layer ? c->intermediate_by_layer[layer] : c->intermediate;
}

bool model_attends(const struct model_config *c, u32 layer)
{
	const u32 flags = c->layer_flags[layer];

	return flags & LAYER_BESIDE || !(flags & (LAYER_RECURRENT | LAYER_NO_MIXER));
}

u32 model_kv_layer(const struct model_config *c, u32 layer)
{
	u32 from = layer;

	while (c->layer_flags[from] & LAYER_SHARED_KV || (c->layer_flags[from] ^ c->layer_flags[layer]) & LAYER_WINDOW)
		from--; /* there is one: config_global.c */
	return from;
}

const struct rope_config *model_local_rope(const struct model_config *c)
{
	return c->arch->traits & ARCH_LOCAL_ROPE ? &c->local_rope : NULL;
}
