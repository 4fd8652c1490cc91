/* Owns what config.json says of experts and of latent attention, as a file in GGUF has it. Runs once while a model is imported. */
#include <stdio.h>

#include "text/gguf_config_priv.h"

/* What all models of Llama 4 have; norms of queries and keys all but the one with so many experts. */
enum { LLAMA4_CHUNK = 8192, LLAMA4_INTERVAL = 4, MAVERICK_EXPERTS = 128 };

/* The width of an expert, where older files do not say it. */
static u32 expert_rows(struct gguf_config *c)
{
	const struct gguf_tensor *gate = gguf_tensor_find(c->g, "blk.0.ffn_gate_exps.weight");
	u32 rows = 0;

	if (gguf_config_int(c, "expert_feed_forward_length", &rows) && rows > 0)
		return rows;
	if (gate && gate->dims == 3 && gate->shape[1] <= GGUF_COUNT_MAX)
		return (u32)gate->shape[1];
	gguf_config_fail(c, ERR_FORMAT, "%s is missing; it must be an integer above 0", c->key);
	return 0;
}

static void write_shared_expert(struct gguf_config *c)
{
	const struct gguf_tensor *gate = gguf_tensor_find(c->g, "blk.0.ffn_gate_shexp.weight");
	u32 rows = 0;

	if ((!gguf_config_int(c, "expert_shared_feed_forward_length", &rows) || rows == 0) && gate && gate->dims == 2 && gate->shape[0] <= GGUF_COUNT_MAX)
		rows = (u32)gate->shape[0];
	if (rows == 0)
		gguf_config_fail(c, ERR_FORMAT, "%s.expert_shared_feed_forward_length is missing; it must be an integer above 0", c->arch);
	gguf_config_write_uint(c, "shared_expert_intermediate_size", rows);
	if (!gguf_config_has(c, ATTENTION_BIAS))
		gguf_config_write_bool(c, "qkv_bias", gguf_config_has_tensor(c, "blk.0.attn_q.bias"));
}

/* Layers without experts have no tensor that chooses among them. */
static void write_dense_layers(struct gguf_config *c)
{
	char name[64];

	json_key(&c->w, "mlp_only_layers");
	json_array_begin(&c->w);
	for (u32 i = 0; i < c->layers; i++) {
		snprintf(name, sizeof(name), "blk.%u.ffn_gate_inp.weight", i);
		if (!gguf_config_has_tensor(c, name))
			json_write_uint(&c->w, i);
	}
	json_array_end(&c->w);
}

/* The same as a word a layer. */
static void write_kinds(struct gguf_config *c)
{
	char name[64];

	json_key(&c->w, "mlp_layer_types");
	json_array_begin(&c->w);
	for (u32 i = 0; i < c->layers; i++) {
		snprintf(name, sizeof(name), "blk.%u.ffn_gate_inp.weight", i);
		json_write_cstr(&c->w, gguf_config_has_tensor(c, name) ? "sparse" : "dense");
	}
	json_array_end(&c->w);
}

static void check_function(struct gguf_config *c, u32 wanted)
{
	u32 gating = 0;

	if (gguf_config_int(c, "expert_gating_func", &gating) && gating != 0 && gating != wanted)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u; of a %s it must be %u", c->key, gating, c->family->name, wanted);
}

/* HunYuan's, as wide as its experts and the one of all tokens. */
static void write_alike(struct gguf_config *c)
{
	const u32 width = gguf_config_need_int(c, "feed_forward_length");
	static const char *const same[] = {"expert_feed_forward_length", "expert_shared_feed_forward_length"};
	u32 rows, shared = 1;

	for (size_t i = 0; i < COUNT_OF(same); i++)
		if (gguf_config_int(c, same[i], &rows) && rows != width)
			gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u; it must be %s.feed_forward_length, which is %u", c->key, rows, c->arch, width);
	if (gguf_config_int(c, "expert_shared_count", &shared) && shared != 1)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u; only 1 is supported", c->key, shared);
	gguf_config_write_uint(c, "num_experts", gguf_config_need_int(c, "expert_count"));
	gguf_config_write_uint(c, "moe_topk", gguf_config_need_int(c, "expert_used_count"));
	gguf_config_write_uint(c, "num_shared_expert", 1);
	gguf_config_write_bool(c, "norm_topk_prob", true);
}

static void write_usual(struct gguf_config *c)
{
	gguf_config_write_uint(c, gguf_config_has(c, EXPERTS) ? "num_experts" : "num_local_experts", gguf_config_need_int(c, "expert_count"));
	gguf_config_write_uint(c, "num_experts_per_tok", gguf_config_need_int(c, "expert_used_count"));
	if (gguf_config_has(c, EXPERTS_ALL)) { /* these are "intermediate_size" wide */
		gguf_config_know(c, "expert_feed_forward_length");
		check_function(c, c->family->gating ? c->family->gating : GGUF_GATING_SOFTMAX);
	}
	if (gguf_config_has(c, EXPERTS)) {
		gguf_config_write_uint(c, "moe_intermediate_size", expert_rows(c));
		if (c->family->windows_listed)
			write_kinds(c);
		else
			write_dense_layers(c);
	}
	if (gguf_config_has(c, NORM_TOPK | KEEP_TOPK))
		gguf_config_write_bool(c, "norm_topk_prob", gguf_config_has(c, NORM_TOPK));
	if (gguf_config_has(c, SHARED))
		write_shared_expert(c);
}

/* ---- DeepSeek's, and others with scores of their own ---- */

static u32 int_or(struct gguf_config *c, const char *name, u32 fallback)
{
	(void)gguf_config_int(c, name, &fallback);
	return fallback;
}

/* What scores become, in the order of llama.cpp: 1 a softmax, 2 sigmoids. */
static void check_gating(struct gguf_config *c)
{
	const u32 gating = int_or(c, "expert_gating_func", 0);

	if (c->family->gating)
		check_function(c, c->family->gating);
	else if (gating > 0 && gating != (gguf_config_has(c, GREEDY) ? GGUF_GATING_SOFTMAX : GGUF_GATING_SIGMOID))
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u, which is not supported for %s", c->key, gating, c->family->name);
}

/* Experts of all tokens, as wide as so many of the others. */
static u32 shared_count(struct gguf_config *c, u32 usual)
{
	const u32 count = int_or(c, "expert_shared_count", usual);

	if (count == 0 && gguf_config_layers_have(c, "ffn_up_shexp.weight"))
		gguf_config_fail(c, ERR_FORMAT, "%s is missing or 0, and the file has experts of all tokens (ffn_up_shexp.weight); it must say how many", c->key);
	return count;
}

static void write_groups(struct gguf_config *c)
{
	u32 groups = int_or(c, "expert_group_count", 1), top = int_or(c, "expert_group_used_count", 1);

	if (gguf_config_has(c, GREEDY)) {
		json_key(&c->w, "topk_method");
		json_write_cstr(&c->w, groups > 1 ? "group_limited_greedy" : "greedy");
		if (groups <= 1)
			return;
	}
	gguf_config_write_uint(c, "n_group", groups > 1 ? groups : 1);
	gguf_config_write_uint(c, "topk_group", groups > 1 && top > 0 ? top : 1);
}

/* Nemotron H's: which layers have experts, and that these have no gate, is known. */
static void write_routed_blocks(struct gguf_config *c)
{
	gguf_config_write_uint(c, "moe_shared_expert_intermediate_size", gguf_config_need_int(c, "expert_shared_feed_forward_length"));
	gguf_config_know(c, "leading_dense_block_count");
	if (int_or(c, "moe_latent_size", 0) > 0)
		gguf_config_write_uint(c, "moe_latent_size", gguf_config_need_int(c, "moe_latent_size"));
}

static void write_routed(struct gguf_config *c)
{
	double scale = 1;
	u32 shared_rows;

	check_gating(c);
	gguf_config_write_uint(c, c->family->own_experts ? "num_experts" : "n_routed_experts", gguf_config_need_int(c, "expert_count"));
	if (c->family->own_experts == EXAONE_EXPERTS) /* as wide as so many of the others */
		gguf_config_know(c, "expert_shared_feed_forward_length");
	if (c->family->own_experts == LING_EXPERTS && gguf_config_int(c, "expert_shared_feed_forward_length", &shared_rows) && shared_rows > 0)
		gguf_config_write_uint(c, "moe_shared_expert_intermediate_size", shared_rows);
	gguf_config_write_uint(c, "num_experts_per_tok", gguf_config_need_int(c, "expert_used_count"));
	gguf_config_write_uint(c, "moe_intermediate_size", expert_rows(c));
	gguf_config_write_uint(c, "n_shared_experts", shared_count(c, gguf_config_has(c, BLOCKS) ? 1 : 0));
	if (gguf_config_has(c, BLOCKS))
		write_routed_blocks(c);
	else
		gguf_config_write_uint(c, "first_k_dense_replace", int_or(c, "leading_dense_block_count", 0));
	if (!gguf_config_float(c, "expert_weights_scale", &scale) || !(scale > 0))
		scale = 1;
	gguf_config_write_float(c, "routed_scaling_factor", scale);
	gguf_config_write_bool(c, c->family->own_experts == AFMOE_EXPERTS ? "route_norm" : "norm_topk_prob",
			       gguf_config_bool(c, "expert_weights_norm", c->family->own_experts == KIMI_EXPERTS)); /* whose files do not say it */
	if (c->family->own_experts == AFMOE_EXPERTS) /* embeddings are multiplied in all files */
		gguf_config_write_bool(c, "mup_enabled", true);
	write_groups(c);
}

/* LFM2's, whose weights add up to 1. */
static void write_sigmoid(struct gguf_config *c)
{
	double scale = 1;

	check_gating(c);
	gguf_config_write_uint(c, "num_experts", gguf_config_need_int(c, "expert_count"));
	gguf_config_write_uint(c, "num_experts_per_tok", gguf_config_need_int(c, "expert_used_count"));
	gguf_config_write_uint(c, "moe_intermediate_size", expert_rows(c));
	gguf_config_write_uint(c, "num_dense_layers", int_or(c, "leading_dense_block_count", 0));
	gguf_config_write_bool(c, "norm_topk_prob", gguf_config_bool(c, "expert_weights_norm", true));
	if (!gguf_config_float(c, "expert_weights_scale", &scale) || !(scale > 0))
		scale = 1;
	gguf_config_write_float(c, "routed_scaling_factor", scale);
	gguf_config_write_bool(c, "use_expert_bias", gguf_config_layers_have(c, "exp_probs_b.bias") || gguf_config_layers_have(c, "exp_probs_b"));
}

/* Llama 4's, and what else readers of its files take for granted. Its config.json calls the width of other layers' MLPs otherwise. */
static void write_llama4(struct gguf_config *c)
{
	const u32 experts = gguf_config_need_int(c, "expert_count");
	u32 window = LLAMA4_CHUNK;

	gguf_config_write_uint(c, "num_local_experts", experts);
	gguf_config_write_uint(c, "num_experts_per_tok", gguf_config_need_int(c, "expert_used_count"));
	gguf_config_write_uint(c, "intermediate_size", gguf_config_need_int(c, "expert_feed_forward_length"));
	gguf_config_write_uint(c, "intermediate_size_mlp", gguf_config_need_int(c, "feed_forward_length"));
	gguf_config_write_uint(c, "interleave_moe_layer_step", gguf_config_need_int(c, "interleave_moe_layer_step"));
	if (gguf_config_int(c, "attention.sliding_window", &window) && window != LLAMA4_CHUNK)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u; only %d, or none, is supported", c->key, window, LLAMA4_CHUNK);
	gguf_config_write_uint(c, "attention_chunk_size", LLAMA4_CHUNK);
	gguf_config_write_uint(c, "no_rope_layer_interval", LLAMA4_INTERVAL);
	gguf_config_write_bool(c, "use_qk_norm", experts != MAVERICK_EXPERTS);
}

/* Those of layers that are not among the first ones, or every so many of them. */
static void write_ernie(struct gguf_config *c)
{
	gguf_config_write_uint(c, "moe_num_experts", gguf_config_need_int(c, "expert_count"));
	gguf_config_write_uint(c, "moe_k", gguf_config_need_int(c, "expert_used_count"));
	gguf_config_write_uint(c, "moe_intermediate_size", expert_rows(c));
	gguf_config_write_uint(c, "moe_num_shared_experts", shared_count(c, 0));
	gguf_config_write_uint(c, "moe_layer_start_index", int_or(c, "leading_dense_block_count", 0));
	gguf_config_write_uint(c, "moe_layer_interval", int_or(c, "interleave_moe_layer_step", 1));
	gguf_config_know(c, "expert_shared_feed_forward_length"); /* of no expert that there is */
}

/* Cohere's: "intermediate_size" is their width. What they say and what those of all tokens do is halved in every reader of such files. */
static void write_cohere(struct gguf_config *c)
{
	const u32 width = gguf_config_need_int(c, "expert_feed_forward_length"), shared = shared_count(c, 0);
	u32 rows = 0;
	double scale = 1;

	check_function(c, GGUF_GATING_SIGMOID);
	gguf_config_write_uint(c, "num_experts", gguf_config_need_int(c, "expert_count"));
	gguf_config_write_uint(c, "num_experts_per_tok", gguf_config_need_int(c, "expert_used_count"));
	gguf_config_write_uint(c, "intermediate_size", width);
	gguf_config_write_uint(c, "prefix_dense_intermediate_size", gguf_config_need_int(c, "feed_forward_length"));
	gguf_config_write_uint(c, "prefix_dense_sliding_window_pattern", 1);
	gguf_config_write_uint(c, "first_k_dense_replace", int_or(c, "leading_dense_block_count", 0));
	gguf_config_write_uint(c, "num_shared_experts", shared);
	gguf_config_write_bool(c, "norm_topk_prob", gguf_config_bool(c, "expert_weights_norm", false));
	json_key(&c->w, "expert_selection_fn");
	json_write_cstr(&c->w, "sigmoid");
	json_key(&c->w, "shared_expert_combination_strategy");
	json_write_cstr(&c->w, "average");
	if (gguf_config_int(c, "expert_shared_feed_forward_length", &rows) && rows > 0 && rows != (u64)width * shared)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u; it must be %s.expert_feed_forward_length times expert_shared_count, which are %u and %u", c->key, rows,
				 c->arch, width, shared);
	if (gguf_config_float(c, "expert_weights_scale", &scale) && scale > 0 && (scale < 1 || scale > 1))
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %g; only 1 is supported", c->key, scale);
}

void gguf_config_write_experts(struct gguf_config *c)
{
	if (c->family->own_experts == HUNYUAN_EXPERTS)
		write_alike(c);
	else if (c->family->own_experts == ERNIE_EXPERTS)
		write_ernie(c);
	else if (c->family->own_experts == COHERE_EXPERTS)
		write_cohere(c);
	else if (c->family->own_experts == LLAMA4_EXPERTS)
		write_llama4(c);
	else if (gguf_config_has(c, ROUTED))
		write_routed(c);
	else if (gguf_config_has(c, SIGMOID))
		write_sigmoid(c);
	else
		write_usual(c);
}

/* Newer files call a head what is held of one, which is the latent; what it stands for has names of its own. */
void gguf_config_write_latent(struct gguf_config *c)
{
	u32 rank = gguf_config_need_int(c, "attention.kv_lora_rank"), turns = gguf_config_need_int(c, "rope.dimension_count"), q_rank = 0;
	u32 key = int_or(c, "attention.key_length_mla", 0), value = int_or(c, "attention.value_length_mla", 0);

	c->heads = gguf_config_need_int(c, "attention.head_count");
	if (key == 0)
		key = gguf_config_need_int(c, "attention.key_length");
	if (value == 0)
		value = c->family->values_known && c->heads ? int_or(c, "attention.value_length", c->hidden / c->heads)
							    : gguf_config_need_int(c, "attention.value_length");
	gguf_config_know(c, "attention.key_length");
	gguf_config_know(c, "attention.value_length");
	if (c->family->dense) {
		gguf_config_know(c, "expert_feed_forward_length");
		gguf_config_know(c, "leading_dense_block_count");
	}
	gguf_config_know(c, "attention.head_count_kv");
	if (key <= turns)
		gguf_config_fail(c, ERR_FORMAT, "heads of keys have %u dimensions, of which %u turn (%s.rope.dimension_count)", key, turns, c->arch);
	c->head_dim = turns;
	gguf_config_write_uint(c, "num_attention_heads", c->heads);
	gguf_config_write_uint(c, "num_key_value_heads", c->heads);
	gguf_config_write_uint(c, "kv_lora_rank", rank);
	if (gguf_config_int(c, "attention.q_lora_rank", &q_rank) && q_rank > 0) {
		gguf_config_write_uint(c, "q_lora_rank", q_rank);
	} else {
		json_key(&c->w, "q_lora_rank");
		json_write_null(&c->w);
	}
	gguf_config_write_bool(c, "attention_bias", gguf_config_layers_have(c, "attn_kv_a_mqa.bias"));
	gguf_config_write_uint(c, "qk_nope_head_dim", key - turns);
	gguf_config_write_uint(c, "qk_rope_head_dim", turns);
	gguf_config_write_uint(c, "v_head_dim", value);
}
