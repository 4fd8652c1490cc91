/* What rows of the table of architectures share: traits of several families, and rows of families under several names. For arch_table.c alone, behind the
 * lists of tensors. */
#ifndef TERCET_PROC_WORKER_MODEL_ARCH_SHARED_PRIV_H
#define TERCET_PROC_WORKER_MODEL_ARCH_SHARED_PRIV_H

#include "proc_worker/model/arch_table.h"

/* clang-format off */
enum {
	QWEN3_TRAITS = ARCH_ATTENTION_BIAS | ARCH_HEAD_NORMS,
	QWEN3_5_TRAITS = QWEN3_TRAITS | ARCH_PARTIAL_ROTARY | ARCH_NORM_OFFSET,
	GEMMA4_TRAITS = ARCH_TIED | ARCH_EMBED_SCALE | ARCH_GELU | ARCH_HEAD_NORMS | ARCH_WINDOW_PATTERN | ARCH_LOCAL_ROPE,
	GEMMA_TRAITS = ARCH_ATTENTION_BIAS | ARCH_TIED | ARCH_EMBED_SCALE | ARCH_NORM_OFFSET | ARCH_GELU,
};

/* What the families that have them share. */
#define QWEN3_5_LAYERS \
	.recurrent = RECURRENT_DELTA, .recurrent_layer = "linear_attention", .output_gate = true, \
	.head_dim = 256, .rope_theta = 10000, .norm_eps = 1e-6f, .rotary_share = 0.25f

/* Fields of two, one of which has no inputs of layers and no experts. */
#define GEMMA4_OWN \
	"global_head_dim", "num_global_key_value_heads", "per_layer_config", "attention_k_eq_v", "final_logit_softcapping", "use_bidirectional_attention"

/* Its files and transformers write the name differently. */
#define PHIMOE_ARCH(name) \
	{name, PHIMOE, COUNT_OF(PHIMOE), ARCH_ATTENTION_BIAS | ARCH_WINDOW_ALL | ARCH_EXPERTS_ALL, \
	 .own = {"lm_head_bias", "short_mscale"}, .layer_norm = "rms_norm_eps", .mixer = true, \
	 .kv_heads = 8, .rope_theta = 1000000, .norm_eps = 1e-5f}

/* Of text alone, and of a model that sees images. */
#define GLM4_MOE_MEMBERS \
	.fields = {{"n_routed_experts", "num_experts"}}, \
	.own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor", \
		"use_qk_norm", "num_nextn_predict_layers"}, \
	.kv_heads = 8, .rope_theta = 10000, .norm_eps = 1e-5f, .rotary_share = 0.5f, \
	.router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 1, .shared_experts = 1

/* Of two, whose layers attend to chosen tokens. */
#define INDEXED_MEMBERS \
	.fields = {{"n_routed_experts", "num_experts"}, {"num_local_experts", "num_experts"}}, \
	.own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor", \
		"num_nextn_predict_layers", "topk_method", "scoring_func", "rope_interleave", "mlp_layer_types", "index_topk"}, \
	.latent = true, .interleaved = true, .rope_theta = 10000, \
	.router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 3, .routed_scale = 2.5f, .shared_experts = 1

/* Of two, which differ in how pairs lie. */
#define HY4_ARCH(name, ...) \
	{name, HY_V4, COUNT_OF(HY_V4), ARCH_EXPERTS_OWN, \
	 .fields = {{"n_routed_experts", "num_experts"}, {"num_local_experts", "num_experts"}}, \
	 .own = {"n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor", "mlp_layer_types", "index_topk", "hc_mult", "hc_magnitude", \
		 "hc_eps", "swiglu_limit"}, \
	 .latent = true, .hyper = true, .index_bounded = true, .output_gate = true, .rope_theta = 10000, .norm_eps = 1e-5f, \
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 1, .routed_scale = 2.827f, .shared_experts = 1, __VA_ARGS__}

/* Of two kinds of norms. */
#define COHERE2_MOE_ARCH(name, ...) \
	{name, COHERE2_MOE, COUNT_OF(COHERE2_MOE), \
	 ARCH_ATTENTION_BIAS | ARCH_TIED | ARCH_LOGIT_SCALE | ARCH_WINDOW_PATTERN | ARCH_WINDOW_ROPE | ARCH_EXPERTS_ALL, \
	 .fields = {{"num_shared_experts", "n_shared_experts"}}, \
	 .own = {"prefix_dense_intermediate_size", "prefix_dense_sliding_window_pattern", "expert_selection_fn", "shared_expert_combination_strategy", \
		 "n_shared_experts", "norm_topk_prob", "first_k_dense_replace", "mlp_layer_types", "layer_norm_eps"}, \
	 .parallel = true, .interleaved = true, .window_needed = true, .head_dim = 128, .window = 4096, .window_pattern = 4, .rope_theta = 10000, \
	 .norm_eps = 1e-5f, .logit_scale = 0.0625f, __VA_ARGS__}

/* Of two, whose files have names of their own, and of what transformers makes of them. */
#define MINIMAX_ARCH(name, ...) \
	{name, MINIMAX, COUNT_OF(MINIMAX), ARCH_EXPERTS_ALL | ARCH_PARTIAL_ROTARY, __VA_ARGS__ \
	 .recurrent = RECURRENT_LIGHTNING, .recurrent_layer = "linear_attention", .normed_residual = true, .gate_eps = 1e-6f, .kv_heads = 8, \
	 .norm_eps = 1e-5f}
#define MINIMAX_OWN \
	"full_attn_alpha_factor", "full_attn_beta_factor", "linear_attn_alpha_factor", "linear_attn_beta_factor", "mlp_alpha_factor", "mlp_beta_factor", \
	"rotary_dim"
#define MINIMAX_OLDER \
	.fields = {{"layernorm_full_attention_alpha", "full_attn_alpha_factor"}, {"layernorm_full_attention_beta", "full_attn_beta_factor"}, \
		   {"layernorm_linear_attention_alpha", "linear_attn_alpha_factor"}, {"layernorm_linear_attention_beta", "linear_attn_beta_factor"}, \
		   {"layernorm_mlp_alpha", "mlp_alpha_factor"}, {"layernorm_mlp_beta", "mlp_beta_factor"}}, \
	.own = {MINIMAX_OWN, "attn_type_list", "postnorm", "shared_moe_mode"}, .rope_theta = 1000000,

/* Of two, which differ in what norms step, key and query have. */
#define MAMBA_ARCH(name, ...) \
	{name, MAMBA, COUNT_OF(MAMBA), ARCH_TIED, \
	 .fields = {{"d_model", "hidden_size"}, {"n_layer", "num_hidden_layers"}, {"d_inner", "intermediate_size"}, {"layer_norm_epsilon", "rms_norm_eps"}, \
		    {"state_size", "mamba_d_state"}, {"conv_kernel", "mamba_d_conv"}, {"expand", "mamba_expand"}, {"time_step_rank", "mamba_dt_rank"}, \
		    {"use_bias", "mamba_proj_bias"}, {"use_conv_bias", "mamba_conv_bias"}}, \
	 .recurrent = RECURRENT_SELECTIVE, .recurrent_layer = "mamba", .attention_free = true, .unrotated = true, .context = 1 << 20, \
	 .norm_eps = 1e-5f, __VA_ARGS__}

#define GPT2_FIELDS \
	{{"n_embd", "hidden_size"}, {"n_layer", "num_hidden_layers"}, {"n_head", "num_attention_heads"}, \
	 {"n_positions", "max_position_embeddings"}, {"n_inner", "intermediate_size"}, {"activation_function", "hidden_act"}}

/* Of two, which differ in how q, k and v lie in the file. */
#define GPTJ_ARCH(name, tensors, ...) \
	{name, tensors, COUNT_OF(tensors), 0, .fields = GPT2_FIELDS, .own = {"rotary_dim", "rotary"}, .layer_norm = "layer_norm_epsilon", \
	 .parallel = true, .interleaved = true, .ungated = true, .activation = KERN_GELU_TANH, .inner = 4, .norm_eps = 1e-5f, .rope_theta = 10000, \
	 .rotary_dim = 64, __VA_ARGS__}

#define ROPE_LLAMA3_STATED(factor) \
	"{\"rope_type\": \"llama3\", \"factor\": " factor ", \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, " \
	"\"original_max_position_embeddings\": 8192}"

/* Likewise. */
#define EXAONE_MOE_ARCH(name) \
	{name, EXAONE_MOE, COUNT_OF(EXAONE_MOE), ARCH_HEAD_NORMS | ARCH_WINDOW_PATTERN | ARCH_WINDOW_ROPE | ARCH_EXPERTS_OWN, \
	 .fields = {{"num_shared_experts", "n_shared_experts"}}, \
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor", \
		 "num_nextn_predict_layers", "topk_method", "scoring_func", "mlp_layer_types", "is_moe_layer"}, \
	 .kv_heads = 32, .window = 4096, .window_pattern = 4, .rope_theta = 10000, .norm_eps = 1e-5f, \
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 1, .routed_scale = 2.5f, .shared_experts = 1}
/* clang-format on */

#endif
