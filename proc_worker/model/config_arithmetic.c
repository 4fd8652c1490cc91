/* What a model computes beside its sizes: activations, biases, caps, multipliers and epsilons of norms, by config.json. Runs in the worker at
 * start. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "proc_worker/model/config_priv.h"

static bool has(const struct model_config *c, u32 traits)
{
	return c->arch->traits & traits;
}

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

/* Of heads, and bounds of those of MLPs. */
static enum err read_gates(struct model_config *c, json_val v, struct err_msg *em)
{
	enum err e = ERR_OK;

	c->output_gate = c->arch->output_gate;
	c->gate_by_head = c->arch->gate_each_head;
	if (arch_has_own(c->arch, "gating"))
		e = config_read_gating(c, json_get(v, "gating"), em);
	if (!e && arch_has_own(c->arch, "swiglu_limits"))
		e = config_read_limits(c, v, em);
	if (!e && c->arch->hyper)
		e = config_read_hyper(c, v, em);
	return !e && arch_has_own(c->arch, "use_attention_gate") ? config_may_bool(v, "use_attention_gate", true, &c->output_gate, em) : e;
}

enum err config_read_arithmetic(struct model_config *c, json_val v, struct err_msg *em)
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
		e = config_may_bool(v, "qk_layernorm", c->arch->head_norm_biases, &c->head_norms, em);
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
	if (!e && (has(c, ARCH_SOFT_CAPS) || arch_has_own(c->arch, "query_pre_attn_scalar")))
		e = config_may_float(v, "query_pre_attn_scalar", has(c, ARCH_SOFT_CAPS) ? 256 : (double)scalar, &scalar, em);
	if (!e && has(c, ARCH_ATTENTION_CAP))
		e = read_cap(v, "attn_logit_softcapping", c->arch->attention_soft_cap, &c->attention_soft_cap, em);
	if (!e && (has(c, ARCH_SOFT_CAPS) || arch_has_own(c->arch, "final_logit_softcapping")))
		e = read_cap(v, "final_logit_softcapping", c->arch->logits_soft_cap, &c->logits_soft_cap, em);
	if (!e)
		e = read_activation(c, v, em);
	if (!e && c->arch->clamped)
		e = read_clamped(c, v, em);
	if (!e && c->arch->head_experts) /* transformers has no other for its layers' norms */
		c->final_norm_eps = (f32)eps;
	c->norm_eps = c->recurrent.gate_eps = c->arch->head_experts ? c->arch->norm_eps : (f32)eps;
	/* GGUF files have it in the weights. */
	c->norm_offset = has(c, ARCH_NORM_OFFSET) && !quant_config_has(&c->quant, QUANT_GGUF) ? 1 : 0;
	bool scaled = has(c, ARCH_EMBED_SCALE);
	if (!e && arch_has_own(c->arch, "mup_enabled"))
		e = config_may_bool(v, "mup_enabled", false, &scaled, em);
	if (!e && arch_has_own(c->arch, "scale_embedding"))
		e = config_may_bool(v, "scale_embedding", true, &scaled, em);
	c->embed_scale = scaled ? (f32)sqrt(c->hidden) : 1;
	if (!e)
		e = read_gates(c, v, em);
	if (!e && arch_has_own(c->arch, "use_post_norm") && !has(c, ARCH_MULTIPLIERS))
		e = config_may_bool(v, "use_post_norm", true, &c->post_norms, em);
	c->attention_scale = c->arch->global_heads || c->arch->altup || c->arch->unscaled ? 1 : (f32)(1 / sqrt((double)scalar));
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
