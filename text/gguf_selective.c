/* Owns what config.json says of models with layers of Mamba's first generation, as a file in GGUF has it: which layers these are, which have experts, and
 * of what sizes. Runs once while a model is imported. */
#include <stdio.h>

#include "text/gguf_config_priv.h"

typedef bool (*layer_is_fn)(struct gguf_config *c, u32 layer);

static bool attends(struct gguf_config *c, u32 layer)
{
	u32 heads = 0;

	(void)gguf_config_layer_int(c, "attention.head_count_kv", layer, &heads);
	return heads > 0;
}

static bool has_experts(struct gguf_config *c, u32 layer)
{
	char name[64];

	snprintf(name, sizeof(name), "blk.%u.ffn_gate_inp.weight", layer);
	return gguf_config_has_tensor(c, name);
}

/* Such layers are one in so many in checkpoints, which say how many that are and where in them the layer is. */
static void write_period(struct gguf_config *c, const char *what, layer_is_fn is, const char *period_field, const char *offset_field)
{
	u32 first = 0, second = 0, period;

	while (first < c->layers && !is(c, first))
		first++;
	for (second = first + 1; second < c->layers && !is(c, second);)
		second++;
	if (first >= c->layers) {
		gguf_config_fail(c, ERR_UNSUPPORTED, "none of the %u layers has %s; a %s must have one at least", c->layers, what, c->family->name);
		return;
	}
	period = second < c->layers ? second - first : c->layers;
	for (u32 i = 0; i < c->layers; i++)
		if (is(c, i) != (i % period == first % period)) {
			gguf_config_fail(c, ERR_UNSUPPORTED, "layers %u and %u have %s, and layer %u %s; of a %s one layer in so many has", first, second, what, i,
					 is(c, i) ? "has, too" : "has not", c->family->name);
			return;
		}
	gguf_config_write_uint(c, period_field, period);
	gguf_config_write_uint(c, offset_field, first);
}

/* Beside layers of attention. */
static void write_hybrid(struct gguf_config *c, u32 channels)
{
	u32 experts = 0;

	if (c->e == ERR_OK && channels % c->hidden)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s.ssm.inner_size is %u; it must be a multiple of %s.embedding_length, which is %u", c->arch, channels, c->arch,
				 c->hidden);
	gguf_config_write_uint(c, "mamba_expand", c->e == ERR_OK ? channels / c->hidden : 1);
	write_period(c, "heads of keys and values (attention.head_count_kv)", attends, "attn_layer_period", "attn_layer_offset");
	gguf_config_know(c, "expert_used_count");
	if (!gguf_config_int(c, "expert_count", &experts) || experts <= 1) {
		gguf_config_write_uint(c, "num_experts", 1);
		return;
	}
	gguf_config_write_uint(c, "num_experts", experts);
	gguf_config_write_uint(c, "num_experts_per_tok", gguf_config_need_int(c, "expert_used_count"));
	write_period(c, "experts (ffn_gate_inp)", has_experts, "expert_layer_period", "expert_layer_offset");
}

void gguf_config_write_selective(struct gguf_config *c)
{
	const u32 channels = gguf_config_need_int(c, "ssm.inner_size");

	c->rotates = false;
	gguf_config_write_uint(c, "mamba_d_conv", gguf_config_need_int(c, "ssm.conv_kernel"));
	gguf_config_write_uint(c, "mamba_d_state", gguf_config_need_int(c, "ssm.state_size"));
	gguf_config_write_uint(c, "mamba_dt_rank", gguf_config_need_int(c, "ssm.time_step_rank"));
	gguf_config_write_bool(c, "mamba_conv_bias", gguf_config_layers_have(c, "ssm_conv1d.bias"));
	gguf_config_write_bool(c, "mamba_proj_bias", gguf_config_layers_have(c, "ssm_in.bias"));
	if (!c->family->attention_free) {
		write_hybrid(c, channels);
		return;
	}
	gguf_config_write_uint(c, "intermediate_size", channels); /* no value says what epsilon Falcon's inner norms have: it is what checkpoints leave to be known */
}
