/* Owns what config.json says of models some of whose layers keep a state instead of keys and values, as a file in GGUF has it: which
 * layers these are, and of what sizes. Runs once while a model is imported. */
#include <stdio.h>

#include "text/gguf_config_priv.h"

enum { DELTA_INTERVAL = 4 };

static u32 of_layer(struct gguf_config *c, const char *name, u32 layer)
{
	u32 value = 0;

	(void)gguf_config_layer_int(c, name, layer, &value);
	return value;
}

/* ---- which layers ---- */

static void begin_types(struct gguf_config *c)
{
	json_key(&c->w, "layer_types");
	json_array_begin(&c->w);
}

/* What has no heads of keys and values keeps a state. */
static void write_types_by_heads(struct gguf_config *c, const char *recurrent, const char *attention)
{
	begin_types(c);
	for (u32 i = 0; i < c->layers; i++)
		json_write_cstr(&c->w, of_layer(c, "attention.head_count_kv", i) ? attention : recurrent);
	json_array_end(&c->w);
}

/* Newer files may list the layers, others have one of attention in so many. */
static void write_delta_types(struct gguf_config *c)
{
	u32 interval = DELTA_INTERVAL;

	gguf_config_know(c, "attention.recurrent_layers");
	const bool listed = gguf_has(c->g, c->key);
	(void)gguf_config_int(c, "full_attention_interval", &interval);
	if (interval == 0)
		gguf_config_fail(c, ERR_FORMAT, "%s is 0; it must be an integer above 0", c->key);
	begin_types(c);
	for (u32 i = 0; i < c->layers && interval > 0; i++) {
		const bool recurrent = listed ? of_layer(c, "attention.recurrent_layers", i) > 0 : (i + 1) % interval != 0;
		json_write_cstr(&c->w, recurrent ? "linear_attention" : "full_attention");
	}
	json_array_end(&c->w);
}

/* A letter a layer: one without heads of keys and values and without an MLP keeps a state. */
static void write_pattern(struct gguf_config *c)
{
	char name[64];

	json_key(&c->w, "hybrid_override_pattern");
	struct buf text = {0};
	for (u32 i = 0; i < c->layers; i++) {
		const bool mlp = of_layer(c, "feed_forward_length", i) > 0, attention = of_layer(c, "attention.head_count_kv", i) > 0;
		snprintf(name, sizeof(name), "blk.%u.ffn_gate_inp.weight", i);
		if (mlp && attention)
			gguf_config_fail(c, ERR_UNSUPPORTED, "layer %u has attention and an MLP (%s.feed_forward_length, %s.attention.head_count_kv); a %s "
					 "has one of both", i, c->arch, c->arch, c->family->name);
		buf_printf(&text, "%s", attention ? "*" : !mlp ? "M" : gguf_config_has_tensor(c, name) ? "E" : "-");
	}
	if (c->e == ERR_OK && !buf_ok(&text))
		gguf_config_fail(c, ERR_NO_MEMORY, "out of memory for config.json");
	json_write_string(&c->w, text.data ? text.data : "", text.bytes);
	buf_fini(&text);
}

/* ---- their sizes ---- */

static void write_conv(struct gguf_config *c)
{
	write_types_by_heads(c, "conv", "full_attention");
	gguf_config_write_uint(c, "conv_L_cache", gguf_config_need_int(c, "shortconv.l_cache"));
	gguf_config_write_bool(c, "conv_bias", gguf_config_layers_have(c, "shortconv.conv.bias"));
	if (!gguf_config_has(c, SIGMOID)) /* the file says what is left */
		gguf_config_write_bool(c, "block_auto_adjust_ff_dim", false);
}

/* Values of all heads together, divided. */
static u32 head_width(struct gguf_config *c, u32 heads)
{
	const u32 all = gguf_config_need_int(c, "ssm.inner_size");

	if (c->e == ERR_OK && all % heads)
		gguf_config_fail(c, ERR_FORMAT, "%s is %u; it must be a multiple of %s.ssm.time_step_rank, which is %u", c->key, all, c->arch, heads);
	return c->e == ERR_OK ? all / heads : 1;
}

static void write_delta(struct gguf_config *c)
{
	const u32 heads = gguf_config_need_int(c, "ssm.time_step_rank");

	write_delta_types(c);
	gguf_config_write_uint(c, "linear_conv_kernel_dim", gguf_config_need_int(c, "ssm.conv_kernel"));
	gguf_config_write_uint(c, "linear_num_key_heads", gguf_config_need_int(c, "ssm.group_count"));
	gguf_config_write_uint(c, "linear_num_value_heads", heads);
	gguf_config_write_uint(c, "linear_key_head_dim", gguf_config_need_int(c, "ssm.state_size"));
	gguf_config_write_uint(c, "linear_value_head_dim", head_width(c, heads));
}

/* What families of Mamba 2 have, by the names of each. */
struct scan_names {
	const char *heads, *groups, *state, *taps, *conv_bias, *bias;
};

static u32 write_scan_sizes(struct gguf_config *c, const struct scan_names *n)
{
	const u32 heads = gguf_config_need_int(c, "ssm.time_step_rank");

	gguf_config_write_uint(c, n->heads, heads);
	gguf_config_write_uint(c, n->groups, gguf_config_need_int(c, "ssm.group_count"));
	gguf_config_write_uint(c, n->state, gguf_config_need_int(c, "ssm.state_size"));
	gguf_config_write_uint(c, n->taps, gguf_config_need_int(c, "ssm.conv_kernel"));
	gguf_config_write_bool(c, n->conv_bias, gguf_config_layers_have(c, "ssm_conv1d.bias"));
	gguf_config_write_bool(c, n->bias, gguf_config_layers_have(c, "ssm_in.bias"));
	return heads;
}

/* What some files of the architecture have: experts, or one MLP that is as those of all tokens are in others. */
static void write_shared_mlp(struct gguf_config *c)
{
	u32 experts = 0, rows = 0;

	(void)gguf_config_int(c, "expert_count", &experts);
	(void)gguf_config_int(c, "expert_shared_feed_forward_length", &rows);
	if (rows == 0 && experts == 0)
		(void)gguf_config_int(c, "feed_forward_length", &rows);
	gguf_config_write_uint(c, "shared_intermediate_size", rows);
	gguf_config_write_uint(c, "num_local_experts", experts);
	gguf_config_know(c, "expert_used_count");
	gguf_config_write_uint(c, "num_experts_per_tok", experts ? gguf_config_need_int(c, "expert_used_count") : 0);
}

/* So many times the stream's width as all heads together have values. */
static u32 expansion(struct gguf_config *c, u32 heads)
{
	const u32 all = gguf_config_need_int(c, "ssm.inner_size");

	if (c->e == ERR_OK && (all % heads || all % c->hidden))
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u; it must be a multiple of %s.ssm.time_step_rank, which is %u, and of "
				 "%s.embedding_length, which is %u", c->key, all, c->arch, heads, c->arch, c->hidden);
	return c->e == ERR_OK ? all / c->hidden : 1;
}

static void write_scan(struct gguf_config *c)
{
	static const struct scan_names names = {"mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_conv_bias", "mamba_proj_bias"};
	const u32 heads = write_scan_sizes(c, &names);

	write_types_by_heads(c, "mamba", "attention");
	gguf_config_write_uint(c, "mamba_expand", expansion(c, heads));
	write_shared_mlp(c);
	/* Whether anything rotates is what becomes of a value that says how a model was trained. */
	c->rotates = gguf_config_bool(c, "rope.scaling.finetuned", true);
	json_key(&c->w, "position_embedding_type");
	json_write_cstr(&c->w, c->rotates ? "rope" : "nope");
	if (c->rotates)
		gguf_config_write_bool(c, "rope_interleave", true);
}

static void write_blocks(struct gguf_config *c)
{
	static const struct scan_names names = {"mamba_num_heads", "n_groups", "ssm_state_size", "conv_kernel", "use_conv_bias", "use_bias"};
	const u32 heads = write_scan_sizes(c, &names);

	write_pattern(c);
	gguf_config_write_uint(c, "mamba_head_dim", head_width(c, heads));
	gguf_config_write_bool(c, "mlp_bias", gguf_config_layers_have(c, "ffn_up.bias") || gguf_config_layers_have(c, "ffn_up_shexp.bias"));
	c->rotates = false;
}

/* All layers are of Mamba 2. */
static void write_alone(struct gguf_config *c)
{
	static const struct scan_names names = {"num_heads", "n_groups", "state_size", "conv_kernel", "use_conv_bias", "use_bias"};
	const u32 heads = write_scan_sizes(c, &names);

	gguf_config_write_uint(c, "expand", expansion(c, heads));
	gguf_config_write_uint(c, "head_dim", head_width(c, heads));
	c->rotates = false;
}

/* Multipliers are in the weights there, and missing they are 1. Programs that read such files gate before they norm. */
void gguf_config_write_beside(struct gguf_config *c)
{
	static const struct scan_names names = {"mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_conv_bias", "mamba_proj_bias"};
	const u32 heads = write_scan_sizes(c, &names), width = head_width(c, heads);

	if (!gguf_config_has_tensor(c, "output.weight"))
		gguf_config_fail(c, ERR_UNSUPPORTED, "the tensor output.weight is missing: token_embd.weight has the multiplier of embeddings in it, and cannot "
				 "be lm_head, too");
	gguf_config_write_uint(c, "mamba_d_head", width);
	gguf_config_write_uint(c, "mamba_d_ssm", c->e == ERR_OK ? heads * width : 0);
	gguf_config_write_bool(c, "mamba_rms_norm", gguf_config_layers_have(c, "ssm_norm.weight"));
	gguf_config_write_bool(c, "mamba_norm_before_gate", false);
}

/* Kimi delta attention, with as many heads as the other layers have. */
static void write_delta_latent(struct gguf_config *c)
{
	write_types_by_heads(c, "linear_attention", "full_attention");
	gguf_config_write_bool(c, "mla_use_nope", true);
	gguf_config_write_uint(c, "linear_num_heads", c->heads);
	gguf_config_write_uint(c, "linear_head_dim", gguf_config_need_int(c, "kda.head_dim"));
	gguf_config_write_uint(c, "linear_conv_kernel_dim", gguf_config_need_int(c, "ssm.conv_kernel"));
}

void gguf_config_write_recurrent(struct gguf_config *c)
{
	if (c->family->delta_latent)
		write_delta_latent(c);
	if (gguf_config_has(c, CONV))
		write_conv(c);
	if (gguf_config_has(c, DELTA))
		write_delta(c);
	if (gguf_config_has(c, SCAN))
		write_scan(c);
	if (gguf_config_has(c, BLOCKS))
		c->family->attention_free ? write_alone(c) : write_blocks(c);
}
