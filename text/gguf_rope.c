/* Owns the rotary part of config.json as a file in GGUF has it: bases, scalings and tensors of factors. Runs once while a model is
 * imported. */
#include <math.h>
#include <string.h>

#include "text/gguf_config_priv.h"

/* One number for each pair of dimensions that turns. */
static void write_factors(struct gguf_config *c, const char *field, const struct gguf_tensor *t)
{
	float value;

	if (t->type != GGUF_F32 || t->dims != 1 || t->data == NULL || t->shape[0] == 0 || t->shape[0] > 4096) {
		gguf_config_fail(c, ERR_UNSUPPORTED, "the tensor %s is %s of %u dimensions; it must be F32 of one", t->name, gguf_type_name(t->type),
				 t->dims);
		return;
	}
	json_key(&c->w, field);
	json_array_begin(&c->w);
	for (u64 i = 0; i < t->shape[0]; i++) {
		memcpy(&value, (const char *)t->data + i * sizeof(value), sizeof(value)); /* a file may begin its tensors at any byte */
		if (!(value > 0) || !isfinite(value))
			gguf_config_fail(c, ERR_FORMAT, "the tensor %s has %g at [%llu]; factors must be numbers above 0", t->name, (double)value,
					 (unsigned long long)i);
		json_write_float(&c->w, value);
	}
	json_array_end(&c->w);
}

static void begin(struct gguf_config *c, const char *type)
{
	json_key(&c->w, "rope_scaling");
	json_object_begin(&c->w);
	json_key(&c->w, "rope_type");
	json_write_cstr(&c->w, type);
}

/* Llama 3's scaling is in the file as what it makes of each frequency, for every length the same: two equal tables of
 * the kind that has one for short texts and one for long ones, and attention as it is. */
static void write_same_for_all(struct gguf_config *c, const struct gguf_tensor *factors)
{
	begin(c, "longrope");
	write_factors(c, "short_factor", factors);
	write_factors(c, "long_factor", factors);
	gguf_config_write_uint(c, "original_max_position_embeddings", c->context);
	gguf_config_write_float(c, "attention_factor", 1);
	json_object_end(&c->w);
}

static u32 original_context(struct gguf_config *c)
{
	u32 original = 0;
	(void)gguf_config_int(c, "rope.scaling.original_context_length", &original);
	return original;
}

static void write_by_length(struct gguf_config *c, const struct gguf_tensor *near, const struct gguf_tensor *far)
{
	u32 original = original_context(c);
	double attention = 0;

	if (original == 0 && c->family->values_known)
		original = c->context;

	if (!near || !far || !original) {
		gguf_config_fail(c, ERR_FORMAT,
				 "rotary factors by length need the tensors rope_factors_short.weight and rope_factors_long.weight and the value "
				 "%s.rope.scaling.original_context_length; not all of them are there",
				 c->arch);
		return;
	}
	begin(c, "longrope");
	write_factors(c, "short_factor", near);
	write_factors(c, "long_factor", far);
	gguf_config_write_uint(c, "original_max_position_embeddings", original);
	if (!gguf_config_float(c, "rope.scaling.attn_factor", &attention) || !(attention > 0))
		attention = c->family->scales ? 1 : 0;
	if (attention > 0)
		gguf_config_write_float(c, c->family->scales ? "short_mscale" : "attention_factor", attention);
	if (c->family->scales)
		gguf_config_write_float(c, "long_mscale", attention);
	json_object_end(&c->w);
}

/* Whether scores of far tokens count more, and by how much. */
static bool has_temperature(struct gguf_config *c, double *beta)
{
	return gguf_config_has(c, QUERY_SCALE) && gguf_config_float(c, "attention.temperature_scale", beta) && *beta > 0;
}

/* Those are far that the original context is behind. */
static void write_temperature(struct gguf_config *c, double beta, u32 original)
{
	u32 length = original;

	gguf_config_write_float(c, "llama_4_scaling_beta", beta);
	if (gguf_config_int(c, "attention.temperature_length", &length) && length != original)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u; it must be %s.rope.scaling.original_context_length, which is %u", c->key, length, c->arch, original);
}

static void write_yarn(struct gguf_config *c, double factor)
{
	const char *const numbers[][2] = {{"rope.scaling.attn_factor", "attn_factor"},
					  {"rope.scaling.yarn_attn_factor", c->family->whole_factor ? "attention_factor" : "attn_factor"},
					  {"rope.scaling.yarn_beta_fast", "beta_fast"},
					  {"rope.scaling.yarn_beta_slow", "beta_slow"}};
	u32 original = original_context(c);
	double value;

	begin(c, "yarn");
	gguf_config_write_float(c, "factor", factor);
	if (original)
		gguf_config_write_uint(c, "original_max_position_embeddings", original);
	if (gguf_config_has(c, OSS))
		gguf_config_write_bool(c, "truncate", false);
	for (size_t i = 0; i < COUNT_OF(numbers); i++)
		if (gguf_config_float(c, numbers[i][0], &value) && value > 0)
			gguf_config_write_float(c, numbers[i][1], value);
	if (gguf_config_has(c, QUERY_SCALE | LATENT) && gguf_config_float(c, "rope.scaling.yarn_log_multiplier", &value) && value > 0) {
		/* DeepSeek's files have a tenth of it. What is not in a file is 1 or, of DeepSeek's, the same. */
		bool latent = gguf_config_has(c, LATENT);
		gguf_config_write_float(c, "mscale", latent ? value * 10 : 1);
		gguf_config_write_float(c, "mscale_all_dim", latent ? value * 10 : value);
	}
	if (has_temperature(c, &value))
		write_temperature(c, value, original);
	json_object_end(&c->w);
	if (gguf_config_float(c, "rope.scaling.yarn_ext_factor", &value) && value >= 0 && (value < 1 || value > 1))
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %g; only 1 is supported", c->key, value);
}

static void write_scaling(struct gguf_config *c)
{
	const struct gguf_tensor *all = gguf_tensor_find(c->g, "rope_freqs.weight");
	const struct gguf_tensor *near = gguf_tensor_find(c->g, "rope_factors_short.weight");
	const struct gguf_tensor *far = gguf_tensor_find(c->g, "rope_factors_long.weight");
	struct gguf_text type = gguf_config_text(c, "rope.scaling.type");
	double factor = 0, beta = 0;

	if (!gguf_config_float(c, "rope.scaling.factor", &factor)) /* older files say it otherwise */
		(void)gguf_config_float(c, "rope.scale_linear", &factor);
	bool none = !type.bytes || gguf_text_is(type, "none"), linear = gguf_text_is(type, "linear") || (!type.bytes && factor > 0);
	if (has_temperature(c, &beta) && !gguf_text_is(type, "yarn"))
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s.attention.temperature_scale without %s.rope.scaling.type 'yarn'", c->arch, c->arch);
	else if (all && (near || far || !none))
		gguf_config_fail(c, ERR_UNSUPPORTED, "the tensor rope_freqs.weight and another scaling of rotations (%s.rope.scaling) in one file", c->arch);
	else if (all)
		write_same_for_all(c, all);
	else if (near || far || gguf_text_is(type, "longrope"))
		write_by_length(c, near, far);
	else if (gguf_text_is(type, "yarn"))
		write_yarn(c, factor);
	else if (linear && (factor < 1 || factor > 1)) {
		begin(c, "linear");
		gguf_config_write_float(c, "factor", factor);
		json_object_end(&c->w);
	} else if (gguf_config_has(c, QUERY_SCALE) && (none || linear)) { /* it must be there */
		begin(c, "default");
		json_object_end(&c->w);
	} else if (!none && !linear)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s.rope.scaling.type is '%.*s', which is not supported; supported: none, linear, yarn, longrope",
				 c->arch, (int)(type.bytes < 32 ? type.bytes : 32), type.text);
	(void)original_context(c); /* says nothing where nothing is scaled */
}

void gguf_config_write_rope(struct gguf_config *c)
{
	static const char *const idle[] = {"rope.freq_base", "rope.dimension_count", "rope.scaling.finetuned", "rope.scaling.original_context_length"};
	double theta = 10000, share;
	u32 dim = c->head_dim;

	if (!c->rotates) {
		for (size_t i = 0; i < COUNT_OF(idle); i++)
			gguf_config_know(c, idle[i]);
		return;
	}
	(void)gguf_config_float(c, "rope.freq_base", &theta);
	gguf_config_write_float(c, "rope_theta", theta);
	(void)gguf_config_int(c, "rope.dimension_count", &dim);
	if (dim > c->head_dim)
		gguf_config_fail(c, ERR_FORMAT, "%s.rope.dimension_count is %u; a head has only %u dimensions", c->arch, dim, c->head_dim);
	if (c->e == ERR_OK && (gguf_config_has(c, PARTIAL) || dim != c->head_dim)) {
		share = (double)dim / c->head_dim;
		if ((u32)(c->head_dim * share) != dim) /* what is read back must not be one less */
			share = nextafter(share, 2);
		json_key(&c->w, "partial_rotary_factor");
		json_write_double(&c->w, share);
	}
	gguf_config_know(c, "rope.scaling.finetuned");
	write_scaling(c);
}
