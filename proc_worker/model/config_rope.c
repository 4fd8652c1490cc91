/* Rotary embeddings as config.json describes them. Runs in the worker at start. */
#include <math.h>
#include <string.h>

#include "proc_worker/model/config_priv.h"

enum { FACTOR_MAX = 1 << 16, PHI3_CONTEXT = 4096 };

/* How files of some families with arch.latent call theirs. */
#define LATENT_YARN "deepseek_yarn"

static const struct {
	const char *name;
	enum rope_kind kind;
} KINDS[] = {
	{"default", ROPE_PLAIN},     {"linear", ROPE_LINEAR}, {"dynamic", ROPE_DYNAMIC},
	{"llama3", ROPE_LLAMA3},     {"yarn", ROPE_YARN},     {"su", ROPE_LONGROPE},
	{"longrope", ROPE_LONGROPE}, {"mrope", ROPE_PLAIN},   {"proportional", ROPE_PROPORTIONAL},
	{LATENT_YARN, ROPE_YARN},
};

#define KIND(k) (1u << (k))
enum {
	ANY = 0xff,
	LLAMA3 = KIND(ROPE_LLAMA3),
	YARN = KIND(ROPE_YARN),
	LONGROPE = KIND(ROPE_LONGROPE),
};

/* What may stand in the object, for which kinds. */
static const struct {
	const char *name;
	u32 kinds;
} KEYS[] = {
	{"rope_type", ANY},
	{"type", ANY},
	{"rope_theta", ANY},
	{"partial_rotary_factor", ANY},
	{"factor", ANY},
	{"original_max_position_embeddings", ANY},
	{"low_freq_factor", LLAMA3},
	{"high_freq_factor", LLAMA3},
	{"attention_factor", YARN | LONGROPE},
	{"attn_factor", YARN},
	{"beta_fast", YARN},
	{"beta_slow", YARN},
	{"mscale", YARN},
	{"mscale_all_dim", YARN},
	{"truncate", YARN},
	{"llama_4_scaling_beta", ANY},
	{"max_position_embeddings", ANY},
	{"finetuned", YARN}, /* how the model was made */
	{"alpha", KIND(ROPE_DYNAMIC)},
	/* Pairs that turn by the place in an image or film: that of text is one number, by which all turn. */
	{"mrope_section", KIND(ROPE_PLAIN)},
	{"mrope_interleaved", KIND(ROPE_PLAIN)},
	{"interleaved", KIND(ROPE_PLAIN)}, /* how files of one family call that as well */
	{"short_factor", LONGROPE},
	{"long_factor", LONGROPE},
	{"short_mscale", LONGROPE},
	{"long_mscale", LONGROPE},
};

/* That of a family may have more. */
static bool key_may_be(const struct arch *arch, const char *key, enum rope_kind kind)
{
	bool queries = !strcmp(key, "llama_4_scaling_beta") || !strcmp(key, "max_position_embeddings");

	if (queries && !arch_has_own(arch, "llama_4_scaling_beta"))
		return false;
	if ((!strcmp(key, "alpha") || !strcmp(key, "interleaved")) && !arch_has_own(arch, key))
		return false;
	if ((!strcmp(key, "short_mscale") || !strcmp(key, "long_mscale")) && !arch_has_own(arch, "short_mscale"))
		return false;
	if (kind == ROPE_DYNAMIC && arch_has_own(arch, "alpha")) /* what its files say, and its theta alone does not need */
		kind = strncmp(key, "beta_", 5) && strncmp(key, "mscale", 6) ? kind : ROPE_YARN;
	for (size_t i = 0; i < COUNT_OF(KEYS); i++)
		if (!strcmp(KEYS[i].name, key) && (KEYS[i].kinds & KIND(kind)))
			return true;
	return false;
}

static enum err check_keys(const struct arch *arch, json_val v, enum rope_kind kind, const char *type, struct err_msg *em)
{
	for (struct json_iter it = json_iterate(v); json_next(&it);)
		if (!key_may_be(arch, it.key, kind) && json_present(it.value))
			return err_set(em, ERR_UNSUPPORTED,
				       "config.json: \"%.64s\" in rope_scaling of type '%s' is not supported",
				       it.key, type);
	return ERR_OK;
}

static json_val type_of(json_val scaling)
{
	json_val type = json_get(scaling, "rope_type");

	return json_present(type) ? type : json_get(scaling, "type"); /* as older files say */
}

/* Which kinds are known of a family, by the name that a file has for it. */
static bool kind_may_be(const struct arch *arch, const char *name, enum rope_kind kind)
{
	if (!strcmp(name, LATENT_YARN))
		return arch->latent;
	if (arch->global_heads)
		return kind == ROPE_PLAIN || kind == ROPE_LINEAR || kind == ROPE_PROPORTIONAL;
	return kind != ROPE_PROPORTIONAL || arch->proportional;
}

static enum err read_kind(struct model_config *c, json_val v, const char **name, struct err_msg *em)
{
	json_val type = type_of(v);

	*name = json_cstr(type, json_present(type) ? "?" : "default");
	for (size_t i = 0; i < COUNT_OF(KINDS); i++)
		if (!strcmp(KINDS[i].name, *name) && kind_may_be(c->arch, *name, KINDS[i].kind)) {
			c->rope.kind = KINDS[i].kind;
			if (c->rope.kind == ROPE_YARN && (c->arch->traits & ARCH_LONGROPE_YARN))
				c->rope.kind = ROPE_LONGROPE;
			return ERR_OK;
		}
	return err_set(
		em, ERR_UNSUPPORTED,
		"config.json: rope_scaling of type '%.64s' is not supported; supported: default, linear, %s", *name,
		c->arch->global_heads ? "proportional" : c->arch->proportional ? "dynamic, llama3, yarn, longrope, proportional" : "dynamic, llama3, yarn, longrope");
}

static enum err need_factor(struct rope_config *r, json_val v, struct err_msg *em)
{
	enum err e = config_need_positive(v, "factor", &r->factor, em);

	if (!e && (r->factor < 1 || r->factor > FACTOR_MAX))
		e = err_set(
			em, ERR_INVALID,
			"config.json: \"factor\" of rope_scaling is %g; it must be at least 1 and at most %d",
			r->factor, FACTOR_MAX);
	return e;
}

/* Families whose windowed layers rotate otherwise state the stretched context themselves. */
static void stretch(struct model_config *c, double context)
{
	if (!(c->arch->traits & ARCH_LOCAL_ROPE) && context > c->context_max && context <= CONFIG_CONTEXT_MAX)
		c->context_max = (u32)context;
}

static enum err read_llama3(struct rope_config *r, json_val v, struct err_msg *em)
{
	enum err e = need_factor(r, v, em);

	if (!e)
		e = config_need_positive(v, "low_freq_factor", &r->low_freq_factor, em);
	if (!e)
		e = config_need_positive(v, "high_freq_factor", &r->high_freq_factor, em);
	if (!e)
		e = config_need_u32(v, "original_max_position_embeddings", CONFIG_CONTEXT_MAX,
				    &r->original_context, em);
	if (!e && r->high_freq_factor < r->low_freq_factor) /* of Llama 4 they are the same: there is no ramp */
		e = err_set(em, ERR_INVALID,
			    "config.json: \"high_freq_factor\" %g must not be below \"low_freq_factor\" %g",
			    r->high_freq_factor, r->low_freq_factor);
	return e;
}

/* The context that the model was trained with before it was stretched: beside the sizes (Phi 3), in the
 * object, or what the family takes for it. */
static enum err read_original(struct model_config *c, json_val v, json_val scaling, struct err_msg *em)
{
	const char *name = "original_max_position_embeddings";
	u32 usual = c->arch->traits & ARCH_LONGROPE_YARN ? PHI3_CONTEXT : c->context_max;

	return config_may_u32(json_present(json_get(v, name)) ? v : scaling, name, CONFIG_CONTEXT_MAX, usual,
			      &c->rope.original_context, em);
}

/* How much further than the original context; files that say nothing mean what the contexts say. */
static enum err read_ratio(struct model_config *c, json_val scaling, struct err_msg *em)
{
	if (json_present(json_get(scaling, "factor")))
		return need_factor(&c->rope, scaling, em);
	c->rope.factor = (double)c->context_max / c->rope.original_context;
	return ERR_OK;
}

/* 0.1 m ln(s) + 1: YaRN's temperature (Peng et al. 2023, 3.4). */
static double yarn_scale(double factor, double m)
{
	return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

/* A number, or what counts as none: missing, null, 0. */
static enum err may_number(json_val v, const char *name, double fallback, double *out, struct err_msg *em)
{
	double given;

	*out = fallback;
	if (json_double(json_get(v, name), &given) && given == 0)
		return ERR_OK;
	return config_may_positive(v, name, fallback, out, em);
}

static enum err read_yarn(struct model_config *c, json_val v, json_val scaling, struct err_msg *em)
{
	struct rope_config *r = &c->rope;
	double m = 0, m_all = 0, more = 1, scale;

	enum err e = read_original(c, v, scaling, em);
	if (!e)
		e = read_ratio(c, scaling, em);
	if (!e)
		e = may_number(scaling, "beta_fast", 32, &r->beta_fast, em);
	if (!e)
		e = may_number(scaling, "beta_slow", 1, &r->beta_slow, em);
	if (!e)
		e = may_number(scaling, "mscale", 0, &m, em);
	if (!e)
		e = may_number(scaling, "mscale_all_dim", 0, &m_all, em);
	if (!e)
		e = config_may_bool(scaling, "truncate", true, &r->truncate, em);
	if (e)
		return e;
	if (r->theta == 1)
		return err_set(em, ERR_INVALID,
			       "config.json: \"rope_theta\" 1 with rope_scaling of type 'yarn'");
	scale = m > 0 && m_all > 0 ? yarn_scale(r->factor, m) / yarn_scale(r->factor, m_all)
				   : yarn_scale(r->factor, 1);
	stretch(c, r->original_context * r->factor);
	if (c->arch->latent && m_all > 0) { /* of scores as a whole: most of a head's dimensions do not rotate */
		const double scores = (double)c->attention_scale * yarn_scale(r->factor, m_all) * yarn_scale(r->factor, m_all);
		if ((e = config_check_float("mscale_all_dim", scores, em)))
			return e;
		c->attention_scale = (f32)scores;
	}
	/* In Peng et al.'s own program it multiplies what the factor gives; DeepSeek's files cancel that with it. */
	e = config_may_positive(scaling, "attn_factor", 1, &more, em);
	return e ? e : config_may_positive(scaling, "attention_factor", scale * more, &r->attention_factor, em);
}

static enum err read_factors(const struct rope_config *r, json_val scaling, const char *name, double *out,
			     struct err_msg *em)
{
	json_val list = json_get(scaling, name);
	size_t n = 0;

	if (json_type(list) != JSON_ARRAY || json_count(list) != r->dim / 2)
		return err_set(
			em, ERR_FORMAT,
			"config.json: \"%s\" of rope_scaling must be an array of %u numbers (half of the "
			"rotated dimensions of a head), found %s of %zu",
			name, r->dim / 2, json_type_name(list), json_count(list));
	for (struct json_iter it = json_iterate(list); json_next(&it); n++)
		if (!json_double(it.value, &out[n]) || !(out[n] > 0) || !isfinite(out[n]))
			return err_set(em, ERR_FORMAT,
				       "config.json: \"%s\"[%zu] of rope_scaling must be a number above 0",
				       name, n);
		else {
			enum err e = config_check_float(name, out[n], em);
			if (e)
				return e;
		}
	return ERR_OK;
}

/* Ding et al. 2024. */
static enum err read_longrope(struct model_config *c, json_val v, json_val scaling, struct err_msg *em)
{
	struct rope_config *r = &c->rope;
	double scale = 1;

	enum err e = read_original(c, v, scaling, em);
	if (!e)
		e = read_ratio(c, scaling, em);
	if (!e)
		e = read_factors(r, scaling, "short_factor", r->short_factor, em);
	if (!e)
		e = read_factors(r, scaling, "long_factor", r->long_factor, em);
	if (!e && r->factor > 1 && r->original_context > 1)
		scale = sqrt(1 + log(r->factor) / log(r->original_context));
	if (!e)
		e = config_may_positive(scaling, "attention_factor", scale, &r->attention_factor, em);
	r->far_factor = r->attention_factor;
	if (e || !arch_has_own(c->arch, "short_mscale"))
		return e;
	e = config_need_positive(scaling, "short_mscale", &r->attention_factor, em);
	if (!e)
		e = config_need_positive(scaling, "long_mscale", &r->far_factor, em);
	return e ? e : config_check_float("long_mscale", r->far_factor, em);
}

/* Queries far behind the original context count more. */
static enum err read_queries(struct model_config *c, json_val v, json_val scaling, struct err_msg *em)
{
	const char *original = "original_max_position_embeddings";
	u32 again, context, before = c->rope.original_context;
	bool own = arch_has_own(c->arch, "llama_4_scaling_beta");

	if (own && !json_present(scaling)) /* what the family takes for it is no default of others */
		return err_set(em, ERR_FORMAT, "config.json: \"rope_parameters\" is missing, which a %s must have", c->arch->name);
	if (!own || json_type(scaling) != JSON_OBJECT)
		return ERR_OK;
	enum err e = may_number(scaling, "llama_4_scaling_beta", 0, &c->rope.query_beta, em);
	if (!e && c->rope.query_beta > FACTOR_MAX) /* the scores of far tokens would be infinite */
		e = err_set(em, ERR_INVALID, "config.json: \"llama_4_scaling_beta\" is %g; it must be at most %d", c->rope.query_beta,
			    FACTOR_MAX);
	if (!e)
		e = config_need_u32(v, "max_position_embeddings", CONFIG_CONTEXT_MAX, &context, em);
	if (!e)
		e = config_may_u32(scaling, "max_position_embeddings", CONFIG_CONTEXT_MAX, context, &again, em);
	if (!e && again != context)
		e = err_set(em, ERR_INVALID,
			    "config.json: \"max_position_embeddings\" is %u in rope_parameters, but %u beside the sizes", again,
			    context);
	if (!e && c->rope.query_beta > 0)
		e = config_need_u32(scaling, original, CONFIG_CONTEXT_MAX, &c->rope.original_context, em);
	if (!e && before && before != c->rope.original_context)
		e = err_set(em, ERR_INVALID, "config.json: \"%s\" is %u in rope_parameters, but elsewhere %u", original,
			    c->rope.original_context, before);
	c->rope.query_floor = c->rope.original_context;
	return e;
}

/* Likewise, of the layers that do not rotate (Nakanishi 2025); the field is true where it is missing, and in older files a number. */
static enum err read_temperature(struct model_config *c, json_val v, struct err_msg *em)
{
	struct rope_config *r = &c->rope;
	u64 number = 1;
	bool tuned = true;

	enum err e = json_uint(json_get(v, "attn_temperature_tuning"), &number) ? ERR_OK : config_may_bool(v, "attn_temperature_tuning", true, &tuned, em);
	if (!e)
		e = config_may_positive(v, "attn_scale", 0.1, &r->query_beta, em);
	if (!e)
		e = config_check_float("attn_scale", r->query_beta, em);
	if (!e && r->query_beta > FACTOR_MAX)
		e = err_set(em, ERR_INVALID, "config.json: \"attn_scale\" is %g; it must be at most %d", r->query_beta, FACTOR_MAX);
	if (!e)
		e = config_may_u32(v, "floor_scale", CONFIG_CONTEXT_MAX, 8192, &r->query_floor, em);
	if (!tuned || number == 0)
		r->query_beta = 0;
	r->query_ahead = 1;
	r->query_unrotated = true;
	return e;
}

/* Dynamic scaling that does not go by the length: theta is another one, whatever else the object says. `*fixed`: it is that. */
static enum err read_alpha(struct model_config *c, json_val scaling, bool *fixed, struct err_msg *em)
{
	struct rope_config *r = &c->rope;
	double alpha = 0;

	*fixed = r->kind == ROPE_DYNAMIC && arch_has_own(c->arch, "alpha") && json_present(json_get(scaling, "alpha"));
	if (!*fixed)
		return ERR_OK;
	enum err e = config_need_positive(scaling, "alpha", &alpha, em);
	if (!e && (r->dim < 4 || alpha > FACTOR_MAX))
		e = err_set(em, ERR_INVALID,
			    "config.json: \"alpha\" of rope_scaling is %g; it must be at most %d, and heads must have 4 dimensions", alpha,
			    FACTOR_MAX);
	if (e)
		return e;
	r->kind = ROPE_PLAIN;
	r->theta *= pow(alpha, r->dim / (r->dim - 2.0));
	return ERR_OK;
}

static enum err read_scaling(struct model_config *c, json_val v, json_val scaling, struct err_msg *em)
{
	struct rope_config *r = &c->rope;
	const char *type;
	bool fixed = false;

	enum err e = read_kind(c, scaling, &type, em);
	if (!e)
		e = check_keys(c->arch, scaling, r->kind, type, em);
	if (!e)
		e = read_alpha(c, scaling, &fixed, em);
	if (e || fixed)
		return e;
	switch (r->kind) {
	case ROPE_PLAIN:
		break;
	case ROPE_PROPORTIONAL:
		return json_present(json_get(scaling, "factor")) ? need_factor(r, scaling, em) : ERR_OK;
	case ROPE_LLAMA3: /* states the stretched context itself */
		return read_llama3(r, scaling, em);
	case ROPE_YARN:
		return read_yarn(c, v, scaling, em);
	case ROPE_LONGROPE:
		return read_longrope(c, v, scaling, em);
	case ROPE_DYNAMIC:
	case ROPE_LINEAR:
		e = need_factor(r, scaling, em);
		r->original_context = c->context_max;
		if (!e && r->kind == ROPE_DYNAMIC && r->dim < 4)
			e = err_set(
				em, ERR_UNSUPPORTED,
				"config.json: rope_scaling of type 'dynamic' needs heads of 4 dimensions");
		if (!e)
			stretch(c, c->context_max * r->factor);
		break;
	}
	return e;
}

/* A number of dimensions in the place of a share of them. */
static enum err read_rotary_dim(struct model_config *c, json_val v, struct err_msg *em)
{
	const u32 usual = c->arch->rotary_dim;

	if (usual > c->head_dim && json_type(json_get(v, "rotary_dim")) == JSON_MISSING)
		return err_set(em, ERR_INVALID, "config.json: \"rotary_dim\" is missing; it must be an even number from 2 to %u, what a head has, for %u, which it "
						"is in a %s that does not say it, is more",
			       c->head_dim, usual, c->arch->name);
	c->rope.dim = usual;
	enum err e = usual && json_type(json_get(v, "rotary_dim")) == JSON_MISSING ? ERR_OK : config_need_u32(v, "rotary_dim", c->head_dim, &c->rope.dim, em);
	if (!e && c->rope.dim % 2)
		e = err_set(em, ERR_INVALID, "config.json: \"rotary_dim\" is %u; it must be even", c->rope.dim);
	return e;
}

/* A share of a head's pairs, which are its halves, whatever the share. */
static enum err read_proportion(struct rope_config *r, json_val scaling, u32 head, struct err_msg *em)
{
	double share;

	enum err e = config_may_positive(scaling, "partial_rotary_factor", 1, &share, em);
	if (!e && (share > 1 || share * head < 2))
		e = err_set(em, ERR_INVALID, "config.json: \"partial_rotary_factor\" %g of a head's %u dimensions; it must rotate 2 of them to all",
			    share, head);
	r->head = head;
	r->dim = e ? 0 : (u32)(share * head / 2) * 2;
	return e;
}

/* `head`: dimensions of one. */
static enum err read_dim(struct model_config *c, json_val v, json_val scaling, u32 head, struct err_msg *em)
{
	if ((c->arch->global_heads || c->arch->proportional) && json_string_equals(type_of(scaling), "proportional"))
		return read_proportion(&c->rope, scaling, head, em);
	json_val place = json_present(json_get(scaling, "partial_rotary_factor")) ? scaling : v;
	double share;

	double usual = c->arch->rotary_share > 0 ? (double)c->arch->rotary_share : 1;
	enum err e = config_may_positive(place, "partial_rotary_factor", usual, &share, em);
	if (e)
		return e;
	const u32 dim = c->arch->latent ? c->latent.rope : head;
	if (arch_has_own(c->arch, "head_dim") && fabs(share * (c->latent.key + c->latent.rope) - dim) < 1e-3) /* of a whole head what rotates */
		share = 1;
	if (arch_has_own(c->arch, "rotary_dim") && (c->arch->rotary_dim || json_present(json_get(v, "rotary_dim"))))
		return read_rotary_dim(c, v, em);
	c->rope.dim = (u32)(dim * (share < 1 ? share : 1));
	if (share > 1 || c->rope.dim < 2 || c->rope.dim % 2)
		return err_set(
			em, ERR_INVALID,
			"config.json: \"partial_rotary_factor\" %g rotates %g of a head's %u dimensions; it "
			"must be an even number of them, from 2 to %u",
			share, dim * share, dim, dim);
	if (share != 1 && !(c->arch->traits & ARCH_PARTIAL_ROTARY))
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: \"partial_rotary_factor\" is set, which is not supported for %s",
			       c->arch->name);
	return ERR_OK;
}

/* Of all layers, or of those of one kind: `scaling` is the object that describes it, called `name`; where it does not say
 * theta, that is the field `theta` beside the sizes, or `usual`. `head`: dimensions of theirs. */
static enum err read_rope(struct model_config *c, json_val v, json_val scaling, u32 head, const char *name, const char *theta,
			  double usual, struct err_msg *em)
{
	bool inside = json_present(json_get(scaling, "rope_theta"));

	c->rope = (struct rope_config){.kind = ROPE_PLAIN, .factor = 1, .attention_factor = 1, .backwards = c->arch->backwards};
	if (json_present(scaling) && json_type(scaling) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "config.json: \"%s\" must be an object or null, found %s", name,
			       json_type_name(scaling));
	enum err e = config_may_positive(inside ? scaling : v, inside ? "rope_theta" : theta, usual, &c->rope.theta, em);
	if (!e)
		e = config_check_float(inside ? "rope_theta" : theta, c->rope.theta, em);
	if (!e)
		e = read_dim(c, v, scaling, head, em);
	if (!e && json_present(scaling))
		e = read_scaling(c, v, scaling, em);
	if (!e)
		e = config_check_float("attention_factor", c->rope.attention_factor, em);
	return e ? e : read_queries(c, v, scaling, em);
}

/* Of the layers with windows, where these have one of their own. */
static enum err read_local_rope(struct model_config *c, json_val v, json_val parameters, struct err_msg *em)
{
	u32 context = c->context_max; /* windows need no stretching */
	u32 own = c->arch->local_theta;

	enum err e = read_rope(c, v, json_get(parameters, "sliding_attention"), c->head_dim, "sliding_attention",
			       own ? "rope_local_base_freq" : "rope_theta", own ? own : c->arch->rope_theta, em);
	if (!e && (c->rope.kind == ROPE_DYNAMIC || c->rope.kind == ROPE_LONGROPE))
		e = err_set(em, ERR_UNSUPPORTED,
			    "config.json: \"sliding_attention\" of rope_parameters goes by the sequence's length "
			    "(dynamic, longrope); supported: default, linear, llama3, yarn");
	c->context_max = context;
	c->local_rope = c->rope;
	return e;
}

/* Layers without a window rotate by what "rope_parameters" alone says of them, or as the family's do. */
static enum err read_global_rope(struct model_config *c, json_val v, json_val parameters, struct err_msg *em)
{
	static const char *const others[] = {"rope_theta", "rope_scaling", "rope_local_base_freq"};
	const double usual = c->arch->rope_theta;
	json_val own = json_get(parameters, "full_attention");

	for (size_t i = 0; i < COUNT_OF(others); i++)
		if (json_present(json_get(v, others[i])))
			return err_set(em, ERR_UNSUPPORTED,
				       "config.json: \"%s\" is set, which is not supported for %s: \"rope_parameters\" says how it rotates", others[i],
				       c->arch->name);
	if (json_present(own))
		return read_rope(c, v, own, c->global_head_dim, "full_attention", "rope_theta", usual, em);
	c->rope = (struct rope_config){.kind = ROPE_PROPORTIONAL, .theta = usual, .factor = 1, .attention_factor = 1,
				       .head = c->global_head_dim, .dim = c->global_head_dim / 8 * 2};
	return c->rope.dim ? ERR_OK
			   : err_set(em, ERR_UNSUPPORTED, "config.json: \"global_head_dim\" is %u, of which a quarter rotates; it must be 8 at least",
				     c->global_head_dim);
}

/* Positions are learned, or none are told: nothing rotates, and no field may say that something does, but for a base that files of such a family state
 * all the same. */
static enum err read_no_rotation(struct model_config *c, json_val v, struct err_msg *em)
{
	static const char *const fields[] = {"rope_scaling", "rope_parameters", "partial_rotary_factor", "rope_theta"};
	const bool stated = c->arch->unrotated && c->arch->rope_theta > 0;
	const u32 dim = c->learned_positions ? 4 : c->arch->unrotated ? 2 : c->head_dim; /* of a table that nobody reads, for every position; devices want fours */
	double theta;

	for (size_t i = 0; i < COUNT_OF(fields) - stated; i++)
		if (json_present(json_get(v, fields[i])))
			return err_set(em, ERR_UNSUPPORTED, "config.json: \"%s\" is set, which is not supported for %s: nothing rotates there", fields[i],
				       c->arch->name);
	c->rope = (struct rope_config){.kind = ROPE_PLAIN, .dim = dim, .theta = 10000, .factor = 1, .attention_factor = 1};
	for (u32 i = 0; i < c->layers; i++)
		c->layer_flags[i] |= LAYER_NO_ROPE;
	return stated ? config_may_positive(v, "rope_theta", c->arch->rope_theta, &theta, em) : ERR_OK;
}

/* Some files say twice which context was stretched. */
static enum err check_initial_context(const struct model_config *c, json_val v, struct err_msg *em)
{
	u32 context = c->rope.kind == ROPE_PLAIN ? c->context_max : c->rope.original_context, twice;

	enum err e = config_may_u32(v, "initial_context_length", CONFIG_CONTEXT_MAX, context, &twice, em);
	if (!e && twice != context)
		e = err_set(em, ERR_INVALID,
			    "config.json: \"initial_context_length\" is %u, but by \"rope_scaling\" a context of %u was stretched", twice,
			    context);
	return e;
}

/* "rope_theta" and "rope_scaling", or both inside "rope_parameters" as newer files have it; there an object for each kind
 * of layers where they differ. */
enum err config_read_rope(struct model_config *c, json_val v, struct err_msg *em)
{
	json_val parameters = json_get(v, "rope_parameters");

	if (c->arch->positions || c->arch->unrotated)
		return read_no_rotation(c, v, em);
	bool newer = json_present(parameters), local = c->arch->traits & ARCH_LOCAL_ROPE;
	enum err e = config_check_pair(v, "rope_parameters", "rope_scaling", em);

	if (e)
		return e;
	if (local && newer && json_type(json_get(parameters, "full_attention")) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT,
			       "config.json: \"rope_parameters\" of a %s must hold the objects \"full_attention\" and "
			       "\"sliding_attention\"",
			       c->arch->name);
	if (local)
		e = read_local_rope(c, v, parameters, em);
	if (e)
		return e;
	if (c->arch->global_heads)
		return read_global_rope(c, v, parameters, em);
	json_val scaling = newer ? parameters : json_get(v, "rope_scaling");
	if (c->arch->rope_stated && !json_present(scaling))
		return err_set(em, ERR_FORMAT,
			       "config.json: \"rope_scaling\" (or \"rope_parameters\") is missing; of a %s it must be an object, as in %s", c->arch->name,
			       c->arch->rope_stated);
	e = read_rope(c, v, local && newer ? json_get(parameters, "full_attention") : scaling, c->head_dim,
		      newer ? "rope_parameters" : "rope_scaling", "rope_theta", c->arch->rope_theta, em);
	if (!e && c->arch->chunked)
		e = read_temperature(c, v, em);
	return e || !arch_has_own(c->arch, "initial_context_length") ? e : check_initial_context(c, v, em);
}
