/* The architectures that the generic decoder can run. Constant data; runs in the worker while it loads. */
#include "proc_worker/model/arch_table.h"

#include <stdio.h>
#include <string.h>

#include "proc_worker/model/arch_tensors_apart_priv.h"
#include "proc_worker/model/arch_tensors_gemma_priv.h"
#include "proc_worker/model/arch_tensors_gpt_priv.h"
#include "proc_worker/model/arch_tensors_newer_priv.h"
#include "proc_worker/model/arch_tensors_priv.h"
#include "proc_worker/model/arch_tensors_recurrent_priv.h"
#include "proc_worker/model/arch_tensors_unrotated_priv.h"

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

static const struct arch ARCHS[] = {
	{"LlamaForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS,
	 .own = {"rope_interleave"}, .rope_theta = 10000},
	{"MistralForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_WINDOW_ALL,
	 .own = {"rope_interleave"}, .kv_heads = 8, .window = 4096, .rope_theta = 10000},
	{"MinistralForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_WINDOW_ALL,
	 .own = {"rope_interleave", "layer_types"}, .kv_heads = 8, .window = 4096, .rope_theta = 10000},
	{"IQuestCoderForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS,
	 .head_dim = 128, .kv_heads = 8, .rope_theta = 10000, .norm_eps = 1e-5f},
	{"CwmForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_MLP_BIAS | ARCH_WINDOW_ALL,
	 .own = {"layer_types"}, .rope_stated = ROPE_LLAMA3_STATED("16.0"),
	 .head_dim = 128, .kv_heads = 8, .window = 8192, .window_pattern = 4, .rope_theta = 1000000, .norm_eps = 1e-5f},
	{"Ministral3ForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_WINDOW_ALL,
	 .own = {"rope_interleave", "llama_4_scaling_beta"}, .head_dim = 128, .kv_heads = 8, .rope_theta = 1000000},
	{"Qwen2ForCausalLM", QWEN2, COUNT_OF(QWEN2), ARCH_WINDOW_UPPER,
	 .kv_heads = 32, .window = 4096, .rope_theta = 10000},
	{"MiMoForCausalLM", SEED_OSS, COUNT_OF(SEED_OSS), ARCH_ATTENTION_BIAS | ARCH_WINDOW_UPPER,
	 .own = {"num_nextn_predict_layers"}, .kv_heads = 32, .window = 4096, .rope_theta = 10000, .attention_bias = true},
	{"Qwen3ForCausalLM", QWEN3, COUNT_OF(QWEN3), QWEN3_TRAITS | ARCH_WINDOW_UPPER,
	 .head_dim = 128, .kv_heads = 32, .window = 4096, .rope_theta = 10000},
	{"PhiForCausalLM", PHI, COUNT_OF(PHI), ARCH_PARTIAL_ROTARY,
	 .layer_norm = "layer_norm_eps", .parallel = true, .ungated = true, .activation = KERN_GELU_TANH,
	 .rope_theta = 10000, .rotary_share = 0.5f},
	{"Phi3ForCausalLM", PHI3, COUNT_OF(PHI3), ARCH_PARTIAL_ROTARY | ARCH_WINDOW_ALL | ARCH_LONGROPE_YARN,
	 .rope_theta = 10000},
	{"Phi4MMForCausalLM", PHI3, COUNT_OF(PHI3), ARCH_PARTIAL_ROTARY | ARCH_WINDOW_ALL | ARCH_LONGROPE_YARN,
	 .own = {"vision_lora", "speech_lora"}, .rope_theta = 10000},
	{"Phi4MultimodalForCausalLM", PHI3, COUNT_OF(PHI3), ARCH_PARTIAL_ROTARY | ARCH_WINDOW_ALL | ARCH_LONGROPE_YARN, .rope_theta = 10000},
	{"GemmaForCausalLM", LLAMA, COUNT_OF(LLAMA), GEMMA_TRAITS,
	 .head_dim = 256, .kv_heads = 16, .rope_theta = 10000},
	{"Gemma2ForCausalLM", GEMMA2, COUNT_OF(GEMMA2),
	 GEMMA_TRAITS | ARCH_WINDOW_EVEN | ARCH_SOFT_CAPS | ARCH_ATTENTION_CAP,
	 .head_dim = 256, .kv_heads = 4, .window = 4096, .rope_theta = 10000,
	 .attention_soft_cap = 50, .logits_soft_cap = 30},
	{"VaultGemmaForCausalLM", VAULT_GEMMA, COUNT_OF(VAULT_GEMMA), GEMMA_TRAITS | ARCH_WINDOW_EVEN | ARCH_SOFT_CAPS | ARCH_ATTENTION_CAP,
	 .head_dim = 256, .kv_heads = 4, .window = 4096, .rope_theta = 10000, .attention_soft_cap = 50, .logits_soft_cap = 30},
	{"Gemma3ForCausalLM", GEMMA3, COUNT_OF(GEMMA3),
	 GEMMA_TRAITS | ARCH_HEAD_NORMS | ARCH_WINDOW_PATTERN | ARCH_LOCAL_ROPE | ARCH_SOFT_CAPS,
	 .head_dim = 256, .kv_heads = 4, .window = 4096, .window_pattern = 6, .rope_theta = 1000000, .local_theta = 10000,
	 .vocab_size = 262208, .heads = 8, .context = 131072, .norm_eps = 1e-6f},
	{"Gemma4UnifiedForCausalLM", GEMMA4, COUNT_OF(GEMMA4), GEMMA4_TRAITS,
	 .own = {GEMMA4_OWN, "num_kv_shared_layers", "use_double_wide_mlp"},
	 .global_heads = true, .head_dim = 256, .kv_heads = 4, .window = 1024, .window_pattern = 6, .rope_theta = 1000000, .local_theta = 10000,
	 .norm_eps = 1e-6f},
	{"Gemma4ForCausalLM", GEMMA4, COUNT_OF(GEMMA4), GEMMA4_TRAITS,
	 .own = {GEMMA4_OWN, "hidden_size_per_layer_input", "vocab_size_per_layer_input", "num_kv_shared_layers",
		 "use_double_wide_mlp", "enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size"},
	 .global_heads = true, .head_dim = 256, .kv_heads = 4, .window = 512, .window_pattern = 6, .rope_theta = 1000000, .local_theta = 10000,
	 .norm_eps = 1e-6f},
	{"Gemma3nForCausalLM", GEMMA3N, COUNT_OF(GEMMA3N),
	 ARCH_TIED | ARCH_EMBED_SCALE | ARCH_GELU | ARCH_HEAD_NORMS | ARCH_WINDOW_PATTERN | ARCH_LOCAL_ROPE | ARCH_SOFT_CAPS,
	 .own = {"altup_num_inputs", "altup_active_idx", "altup_coef_clip", "altup_correct_scale", "laurel_rank", "activation_sparsity_pattern",
		 "hidden_size_per_layer_input", "vocab_size_per_layer_input", "num_kv_shared_layers"},
	 .altup = true, .window_needed = true, .head_dim = 256, .kv_heads = 2, .window = 512, .window_pattern = 5, .rope_theta = 1000000, .local_theta = 10000,
	 .vocab_size = 262400, .heads = 8, .context = 32768, .norm_eps = 1e-6f, .logits_soft_cap = 30},
	{"GraniteForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS | ARCH_MULTIPLIERS,
	 .own = {"rope_interleave"}, .rope_theta = 10000},
	{"GraniteMoeForCausalLM", GRANITE_MOE, COUNT_OF(GRANITE_MOE), ARCH_ATTENTION_BIAS | ARCH_MULTIPLIERS | ARCH_EXPERTS_ALL,
	 .own = {"rope_interleave"}, .rope_theta = 10000},
	{"GraniteMoeSharedForCausalLM", GRANITE_MOE_SHARED, COUNT_OF(GRANITE_MOE_SHARED),
	 ARCH_ATTENTION_BIAS | ARCH_MULTIPLIERS | ARCH_EXPERTS_ALL,
	 .own = {"rope_interleave", "shared_intermediate_size"}, .rope_theta = 10000, .norm_eps = 1e-6f},
	{"GraniteSWAForCausalLM", GRANITE_SWA, COUNT_OF(GRANITE_SWA),
	 ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS | ARCH_MULTIPLIERS | ARCH_WINDOW_ALL | ARCH_TIED,
	 .own = {"layer_types", "layer_rope_theta"}, .kv_heads = 4, .window = 128, .window_pattern = 4, .rope_theta = 10000, .norm_eps = 1e-5f},
	{"GraniteMoeSWAForCausalLM", GRANITE_MOE_SWA, COUNT_OF(GRANITE_MOE_SWA),
	 ARCH_ATTENTION_BIAS | ARCH_MULTIPLIERS | ARCH_EXPERTS_ALL | ARCH_WINDOW_ALL,
	 .own = {"shared_intermediate_size", "layer_types", "layer_rope_theta"}, .window = 128, .window_pattern = 4,
	 .rope_theta = 10000, .norm_eps = 1e-6f},
	{"GraniteMoeHybridForCausalLM", GRANITE_HYBRID, COUNT_OF(GRANITE_HYBRID), ARCH_ATTENTION_BIAS | ARCH_MULTIPLIERS | ARCH_EXPERTS_ALL,
	 .fields = {{"layers_block_type", "layer_types"}},
	 .own = {"rope_interleave", "position_embedding_type", "normalization_function", "shared_intermediate_size"},
	 .recurrent = RECURRENT_SCAN, .recurrent_layer = "mamba", .experts_optional = true, .rope_theta = 10000, .norm_eps = 1e-6f},
	{"BambaForCausalLM", BAMBA, COUNT_OF(BAMBA), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS | ARCH_PARTIAL_ROTARY,
	 .fields = {{"attn_rotary_emb", "rotary_dim"}, {"layers_block_type", "layer_types"}},
	 .own = {"attn_layer_indices", "rotary_dim"},
	 .recurrent = RECURRENT_SCAN, .recurrent_layer = "mamba", .kv_heads = 8, .rope_theta = 10000, .norm_eps = 1e-5f, .rotary_share = 0.5f},
	BIOGPT_ARCH,
	{"BitNetForCausalLM", BITNET, COUNT_OF(BITNET), ARCH_ATTENTION_BIAS,
	 .sub_norms = true, .activation = KERN_RELU_SQUARED, .kv_heads = 5, .rope_theta = 500000, .norm_eps = 1e-5f},
	{"FalconH1ForCausalLM", FALCON_H1, COUNT_OF(FALCON_H1), 0,
	 .own = {"mamba_d_ssm", "mamba_rms_norm", "mamba_norm_before_gate", "mamba_use_mlp", "mlp_expansion_factor"},
	 .recurrent = RECURRENT_SCAN, .state_beside = true, .kv_heads = 8, .rope_theta = 10000, .norm_eps = 1e-5f},
	{"JetMoeForCausalLM", JETMOE, COUNT_OF(JETMOE), ARCH_EXPERTS_ALL | ARCH_TIED,
	 .fields = {{"kv_channels", "head_dim"}, {"activation_function", "hidden_act"}},
	 .head_experts = true, .head_dim = 128, .kv_heads = 16, .rope_theta = 10000, .norm_eps = 1e-6f},
	{"JambaForCausalLM", JAMBA, COUNT_OF(JAMBA), ARCH_EXPERTS_ALL,
	 .fields = {{"layers_block_type", "layer_types"}},
	 .own = {"attn_layer_period", "attn_layer_offset", "expert_layer_period", "expert_layer_offset", "mamba_inner_layernorms"},
	 .recurrent = RECURRENT_SELECTIVE, .recurrent_layer = "mamba", .unrotated = true, .select_norms = true, .kv_heads = 8, .norm_eps = 1e-6f},
	MAMBA_ARCH("FalconMambaForCausalLM", .own = {"mixer_rms_eps", "rms_norm"}, .select_norms = true, .plain_select_norms = true),
	MAMBA_ARCH("MambaForCausalLM", .own = {"rms_norm"}),
	{"Mamba2ForCausalLM", MAMBA2, COUNT_OF(MAMBA2), 0,
	 .fields = {{"layer_norm_epsilon", "rms_norm_eps"}, {"num_heads", "mamba_n_heads"}, {"head_dim", "mamba_d_head"}, {"n_groups", "mamba_n_groups"},
		    {"state_size", "mamba_d_state"}, {"conv_kernel", "mamba_d_conv"}, {"expand", "mamba_expand"}, {"chunk_size", "mamba_chunk_size"},
		    {"use_bias", "mamba_proj_bias"}, {"use_conv_bias", "mamba_conv_bias"}},
	 .own = {"norm_before_gate", "rms_norm"},
	 .recurrent = RECURRENT_SCAN, .recurrent_layer = "mamba", .attention_free = true, .unrotated = true, .context = 1 << 20,
	 .state_head_dim = 64, .state_groups = 8, .state_key_dim = 128, .norm_eps = 1e-5f},
	{"NemotronHForCausalLM", NEMOTRON_H, COUNT_OF(NEMOTRON_H), ARCH_MLP_BIAS | ARCH_EXPERTS_OWN,
	 .fields = {{"layers_block_type", "layer_types"}, {"layer_norm_epsilon", "rms_norm_eps"}, {"mlp_hidden_act", "hidden_act"},
		    {"attention_head_dim", "head_dim"}, {"n_routed_experts", "num_experts"},
		    {"moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"}, {"mamba_num_heads", "mamba_n_heads"},
		    {"mamba_head_dim", "mamba_d_head"}, {"ssm_state_size", "mamba_d_state"}, {"n_groups", "mamba_n_groups"},
		    {"conv_kernel", "mamba_d_conv"}, {"chunk_size", "mamba_chunk_size"}, {"use_conv_bias", "mamba_conv_bias"},
		    {"use_bias", "mamba_proj_bias"}},
	 .own = {"hybrid_override_pattern", "expand", "norm_eps", "tie_word_embeddings", "mamba_hidden_act", "shared_expert_intermediate_size", "n_shared_experts",
		 "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor", "num_nextn_predict_layers", "moe_latent_size"},
	 .recurrent = RECURRENT_SCAN, .recurrent_layer = "linear_attention", .single_blocks = true, .ungated = true,
	 .activation = KERN_RELU_SQUARED, .state_head_dim = 64, .state_groups = 8, .state_key_dim = 128, .head_dim = 128, .kv_heads = 8,
	 .rope_theta = 10000, .norm_eps = 1e-5f, .router_sigmoid = true, .router_sum_plus = 1e-20f},
	{"HyperCLOVAXForCausalLM", HYPERCLOVAX, COUNT_OF(HYPERCLOVAX), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS | ARCH_MULTIPLIERS,
	 .own = {"use_post_norm"}, .rope_theta = 10000, .norm_eps = 1e-6f},
	{"SmolLM3ForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS | ARCH_TIED | ARCH_NO_ROPE,
	 .own = {"rope_interleave"}, .kv_heads = 4, .rope_theta = 2000000},
	{"OlmoForCausalLM", OLMO, COUNT_OF(OLMO), ARCH_ATTENTION_BIAS,
	 .own = {"rope_interleave", "clip_qkv"}, .layer_norm = "layer_norm_eps", .plain_norms = true, .norm_eps = 1e-5f, .rope_theta = 10000},
	{"Olmo2ForCausalLM", OLMO2, COUNT_OF(OLMO2), ARCH_QK_NORMS, .rope_theta = 10000},
	{"Olmo3ForCausalLM", OLMO2, COUNT_OF(OLMO2), ARCH_QK_NORMS | ARCH_WINDOW_PATTERN | ARCH_LOCAL_ROPE,
	 .window = 4096, .window_pattern = 4, .rope_theta = 500000},
	{"OlmoeForCausalLM", OLMOE, COUNT_OF(OLMOE), ARCH_QK_NORMS | ARCH_EXPERTS_ALL | ARCH_EXPERTS_NORM,
	 .own = {"clip_qkv"}, .rope_theta = 10000},
	{"FlexOlmoForCausalLM", FLEX_OLMO, COUNT_OF(FLEX_OLMO), ARCH_QK_NORMS | ARCH_EXPERTS_ALL | ARCH_EXPERTS_NORM, .rope_theta = 500000},
	{"ExaoneForCausalLM", EXAONE, COUNT_OF(EXAONE), ARCH_TIED,
	 .fields = {{"num_layers", "num_hidden_layers"}, {"activation_function", "hidden_act"}, {"layer_norm_epsilon", "rms_norm_eps"}},
	 .rope_theta = 10000, .norm_eps = 1e-5f},
	{"Exaone4ForCausalLM", EXAONE4, COUNT_OF(EXAONE4), ARCH_HEAD_NORMS | ARCH_WINDOW_PATTERN | ARCH_WINDOW_ROPE,
	 .kv_heads = 32, .window = 4096, .window_pattern = 4, .rope_theta = 10000},
	EXAONE_MOE_ARCH("ExaoneMoeForCausalLM"),
	EXAONE_MOE_ARCH("ExaoneMoEForCausalLM"),
	{"Kolibri1ForCausalLM", KOLIBRI1, COUNT_OF(KOLIBRI1), ARCH_HEAD_NORMS | ARCH_WINDOW_PATTERN | ARCH_WINDOW_ROPE | ARCH_EXPERTS_OWN,
	 .fields = {{"num_local_experts", "num_experts"}},
	 .own = {"shared_expert_intermediate_size", "norm_topk_prob", "first_k_dense_replace"}, .head_dim = 128, .kv_heads = 4, .window = 513, .window_pattern = 5,
	 .window_needed = true, .pattern_fixed = true, .rope_theta = 10000, .norm_eps = 1e-6f, .router_sigmoid = true, .router_by_logits = true, .scores_alone = true},
	{"SeedOssForCausalLM", SEED_OSS, COUNT_OF(SEED_OSS), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS,
	 .head_dim = 128, .kv_heads = 8, .rope_theta = 10000, .attention_bias = true},
	{"HeliumForCausalLM", SEED_OSS, COUNT_OF(SEED_OSS), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS,
	 .interleaved = true, .kv_heads = 20, .rope_theta = 10000, .norm_eps = 1e-8f},
	{"Starcoder2ForCausalLM", STARCODER2, COUNT_OF(STARCODER2), ARCH_USE_BIAS | ARCH_WINDOW_ALL | ARCH_TIED,
	 .layer_norm = "norm_epsilon", .ungated = true, .activation = KERN_GELU_TANH,
	 .kv_heads = 2, .rope_theta = 10000, .attention_bias = true},
	{"StableLmForCausalLM", STABLELM, COUNT_OF(STABLELM), ARCH_PARTIAL_ROTARY | ARCH_PARALLEL_CHOICE,
	 .own = {"use_qkv_bias", "qk_layernorm"}, .head_layer_norms = true, .layer_norm = "layer_norm_eps", .kv_heads = 32, .rope_theta = 10000, .rotary_share = 0.25f},
	{"NemotronForCausalLM", NEMOTRON, COUNT_OF(NEMOTRON),
	 ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS | ARCH_PARTIAL_ROTARY | ARCH_NORM_OFFSET,
	 .layer_norm = "norm_eps", .ungated = true, .activation = KERN_RELU_SQUARED,
	 .rope_theta = 10000, .rotary_share = 0.5f},
	{"NanoChatForCausalLM", NANOCHAT, COUNT_OF(NANOCHAT), ARCH_ATTENTION_BIAS,
	 .own = {"final_logit_softcapping"}, .plain_norms = true, .norm_behind = true, .plain_head_norms = true, .embed_norm = true, .backwards = true,
	 .ungated = true, .activation = KERN_RELU_SQUARED, .rope_theta = 10000, .logits_soft_cap = 15, .norm_eps = 1e-6f},
	{"Jais2ForCausalLM", NEMOTRON, COUNT_OF(NEMOTRON), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS,
	 .layer_norm = "layer_norm_eps", .ungated = true, .activation = KERN_RELU_SQUARED, .norm_eps = 1e-5f,
	 .rope_theta = 10000, .attention_bias = true, .mlp_bias = true},
	{"DiffLlamaForCausalLM", DIFFLLAMA, COUNT_OF(DIFFLLAMA), ARCH_ATTENTION_BIAS, .differential = true, .rope_theta = 10000, .norm_eps = 1e-5f},
	{"ArceeForCausalLM", ARCEE, COUNT_OF(ARCEE), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS,
	 .own = {"rope_interleave"}, .ungated = true, .activation = KERN_RELU_SQUARED, .rope_theta = 10000},
	{"ApertusForCausalLM", APERTUS, COUNT_OF(APERTUS), ARCH_ATTENTION_BIAS | ARCH_HEAD_NORMS,
	 .own = {"qk_norm"}, .rope_stated = ROPE_LLAMA3_STATED("8.0"), .ungated = true, .xielu = true,
	 .rope_theta = 12000000, .norm_eps = 1e-5f},
	{"Apertus1p5TextForCausalLM", APERTUS1P5, COUNT_OF(APERTUS1P5), ARCH_ATTENTION_BIAS | ARCH_HEAD_NORMS,
	 .own = {"qk_norm", "output_vocab_size"}, .rope_stated = ROPE_LLAMA3_STATED("8.0"), .ungated = true, .xielu = true,
	 .rope_theta = 12000000, .norm_eps = 1e-5f},
	{"CohereForCausalLM", COHERE, COUNT_OF(COHERE), ARCH_ATTENTION_BIAS | ARCH_TIED | ARCH_LOGIT_SCALE,
	 .own = {"use_qk_norm"}, .head_layer_norms = true, .layer_norm = "layer_norm_eps", .parallel = true, .interleaved = true,
	 .rope_theta = 10000, .logit_scale = 0.0625f},
	{"Cohere2ForCausalLM", COHERE, COUNT_OF(COHERE),
	 ARCH_ATTENTION_BIAS | ARCH_TIED | ARCH_LOGIT_SCALE | ARCH_WINDOW_PATTERN | ARCH_WINDOW_ROPE,
	 .layer_norm = "layer_norm_eps", .parallel = true, .interleaved = true,
	 .window = 4096, .window_pattern = 4, .rope_theta = 10000, .logit_scale = 0.0625f},
	COHERE2_MOE_ARCH("Cohere2MoeForCausalLM", .layer_norm = "layer_norm_eps", .with_rms_norm = "Cohere2MoeRmsTextModel"),
	COHERE2_MOE_ARCH("Cohere2MoeRmsTextModel", .part = true),
	{"GlmForCausalLM", GLM, COUNT_OF(GLM), ARCH_ATTENTION_BIAS | ARCH_PARTIAL_ROTARY,
	 .interleaved = true, .head_dim = 128, .kv_heads = 2, .rope_theta = 10000, .attention_bias = true, .rotary_share = 0.5f},
	{"Glm4ForCausalLM", GLM4, COUNT_OF(GLM4), ARCH_ATTENTION_BIAS | ARCH_PARTIAL_ROTARY,
	 .own = {"rope_interleave"}, .interleaved = true, .head_dim = 128, .kv_heads = 2, .rope_theta = 10000, .attention_bias = true, .rotary_share = 0.5f},
	{"HunYuanDenseV1ForCausalLM", HUNYUAN, COUNT_OF(HUNYUAN), ARCH_ATTENTION_BIAS | ARCH_HEAD_NORMS,
	 .fields = {{"attention_head_dim", "head_dim"}},
	 .own = {"alpha", "norm_type"}, .norm_behind = true, .rope_theta = 10000, .norm_eps = 1e-5f},
	{"HYV3ForCausalLM", HY_V3, COUNT_OF(HY_V3), ARCH_ATTENTION_BIAS | ARCH_HEAD_NORMS | ARCH_EXPERTS_OWN,
	 .fields = {{"num_local_experts", "num_experts"}, {"num_shared_experts", "n_shared_experts"}, {"router_scaling_factor", "routed_scaling_factor"},
		    {"expert_hidden_dim", "moe_intermediate_size"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "routed_scaling_factor", "num_nextn_predict_layers", "mlp_layer_types", "route_norm", "qk_norm",
		 "moe_router_enable_expert_bias", "moe_router_use_sigmoid"},
	 .head_dim = 128, .kv_heads = 8, .rope_theta = 11158840, .norm_eps = 1e-5f,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 1, .routed_scale = 2.826f, .shared_experts = 1},
	HY4_ARCH("HYV4ForCausalLM", .interleaved = false),
	{"HunYuanMoEV1ForCausalLM", HUNYUAN_MOE, COUNT_OF(HUNYUAN_MOE), ARCH_ATTENTION_BIAS | ARCH_HEAD_NORMS | ARCH_EXPERTS_ALL,
	 .fields = {{"attention_head_dim", "head_dim"}, {"moe_topk", "num_experts_per_tok"}},
	 .own = {"alpha", "norm_type", "norm_topk_prob", "use_mixed_mlp_moe", "capacity_factor"},
	 .norm_behind = true, .experts_alike = true, .rope_theta = 10000, .norm_eps = 1e-5f},
	{"Glm4MoeForCausalLM", GLM4_MOE, COUNT_OF(GLM4_MOE), ARCH_ATTENTION_BIAS | ARCH_PARTIAL_ROTARY | ARCH_EXPERTS_OWN,
	 GLM4_MOE_MEMBERS},
	{"AfmoeForCausalLM", AFMOE, COUNT_OF(AFMOE), ARCH_HEAD_NORMS | ARCH_WINDOW_PATTERN | ARCH_WINDOW_ROPE | ARCH_EXPERTS_OWN,
	 .fields = {{"global_attn_every_n_layers", "sliding_window_pattern"}, {"num_dense_layers", "first_k_dense_replace"},
		    {"num_shared_experts", "n_shared_experts"}, {"route_scale", "routed_scaling_factor"}, {"score_func", "scoring_func"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "routed_scaling_factor", "scoring_func", "mup_enabled", "route_norm"},
	 .output_gate = true, .window_needed = true, .head_dim = 128, .window = 1024, .window_pattern = 4, .rope_theta = 10000, .norm_eps = 1e-5f,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 1, .shared_experts = 2},
	{"SolarOpenForCausalLM", GLM4_MOE, COUNT_OF(GLM4_MOE), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "num_nextn_predict_layers"},
	 .kv_heads = 8, .rope_theta = 1000000, .norm_eps = 1e-5f, .head_dim = 128,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .shared_experts = 1},
	{"SarvamMoEForCausalLM", SARVAM_MOE, COUNT_OF(SARVAM_MOE), ARCH_ATTENTION_BIAS | ARCH_HEAD_NORMS | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}, {"num_local_experts", "num_experts"}, {"num_shared_experts", "n_shared_experts"},
		    {"use_qkv_bias", "attention_bias"}, {"num_mtp_layers", "num_nextn_predict_layers"}, {"score_function", "scoring_func"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "num_nextn_predict_layers", "scoring_func", "moe_router_enable_expert_bias", "moe_router_enable_routed_scaling", "moe_router_enable_shared_expert",
		 "moe_shared_expert_intermediate_size"},
	 .head_dim = 64, .kv_heads = 4, .rope_theta = 8000000, .norm_eps = 1e-6f,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 1, .routed_scale = 2.5f, .shared_experts = 1},
	{"BailingMoeV2ForCausalLM", SARVAM_MOE, COUNT_OF(SARVAM_MOE), ARCH_ATTENTION_BIAS | ARCH_HEAD_NORMS | ARCH_PARTIAL_ROTARY | ARCH_EXPERTS_OWN,
	 .fields = {{"num_shared_experts", "n_shared_experts"}, {"use_qkv_bias", "attention_bias"}, {"score_function", "scoring_func"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "num_nextn_predict_layers", "scoring_func", "moe_router_enable_expert_bias", "moe_shared_expert_intermediate_size", "use_rmsnorm",
		 "norm_head", "rotary_dim"},
	 .kv_heads = 4, .rope_theta = 10000, .norm_eps = 1e-6f, .rotary_share = 1,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .routed_scale = 2.5f},
	{"BailingHybridForCausalLM", BAILING_HYBRID, COUNT_OF(BAILING_HYBRID), ARCH_EXPERTS_OWN,
	 .fields = {{"num_local_experts", "num_experts"}, {"num_experts_per_token", "num_experts_per_tok"}, {"num_shared_experts", "n_shared_experts"},
		    {"num_expert_group", "n_group"}, {"moe_renormalize", "norm_topk_prob"}, {"score_function", "scoring_func"},
		    {"model_max_length", "max_position_embeddings"}, {"num_mtp_layers", "num_nextn_predict_layers"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "num_nextn_predict_layers", "scoring_func", "mlp_layer_types", "tie_word_embeddings", "layer_group_size", "short_conv_kernel_size", "kda_safe_gate",
		 "kda_lower_bound", "moe_router_enable_expert_bias", "use_rmsnorm"},
	 .latent = true, .interleaved = true, .recurrent = RECURRENT_KDA, .recurrent_layer = "linear_attention", .state_wide = true, .output_gate = true,
	 .gate_each_head = true, .rope_theta = 6000000, .norm_eps = 1e-6f,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 2, .groups = 8, .groups_top = 4, .routed_scale = 2.5f, .shared_experts = 1},
	{"Dots1ForCausalLM", DOTS1, COUNT_OF(DOTS1), ARCH_ATTENTION_BIAS | ARCH_HEAD_NORMS | ARCH_EXPERTS_OWN | ARCH_WINDOW_UPPER,
	 .fields = {{"n_routed_experts", "num_experts"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "num_nextn_predict_layers", "moe_layer_freq", "topk_method", "scoring_func"},
	 .window = 4096, .windows_from = 62, .rope_theta = 10000, .norm_eps = 1e-6f, .router_sigmoid = true, .router_sum_plus = 1e-20f},
	{"Glm4MoeLiteForCausalLM", DEEPSEEK_V3, COUNT_OF(DEEPSEEK_V3), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "num_nextn_predict_layers", "topk_method", "rope_interleave", "mlp_layer_types"},
	 .latent = true, .interleaved = true, .rope_theta = 10000, .norm_eps = 1e-5f,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 1, .routed_scale = 1.8f, .shared_experts = 1},
	BLOOM_ARCH,
	MPT_ARCH("MptForCausalLM"),
	MPT_ARCH("MPTForCausalLM"),
	XGLM_ARCH,
	{"BaiChuanForCausalLM", BAICHUAN, COUNT_OF(BAICHUAN), 0, .own = {"model_max_length"}, .alibi = true, .rope_theta = 10000, .norm_eps = 1e-6f},
	{"BaichuanForCausalLM", BAICHUAN, COUNT_OF(BAICHUAN), 0,
	 .own = {"tie_word_embeddings", "rope_interleave", "model_max_length"}, .alibi = true, .unit_head = true, .rope_theta = 10000, .norm_eps = 1e-6f},
	{"OrionForCausalLM", ORION, COUNT_OF(ORION), ARCH_ATTENTION_BIAS, .layer_norm = "rms_norm_eps", .rope_theta = 10000, .norm_eps = 1e-5f},
	{"DeciLMForCausalLM", DECILM, COUNT_OF(DECILM), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS,
	 .own = {"block_configs", "num_key_value_heads_per_layer", "rope_interleave"}, .by_layer = true, .rope_theta = 10000, .norm_eps = 1e-6f},
	{"DeepseekV2ForCausalLM", DEEPSEEK_V2, COUNT_OF(DEEPSEEK_V2), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "moe_layer_freq", "topk_method", "scoring_func", "rope_interleave"},
	 .latent = true, .interleaved = true, .rope_theta = 10000, .norm_eps = 1e-6f,
	 .router_greedy = true, .shared_experts = 2},
	{"DeepseekV3ForCausalLM", DEEPSEEK_V3, COUNT_OF(DEEPSEEK_V3), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}, {"num_mtp_layers", "num_nextn_predict_layers"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "num_nextn_predict_layers", "moe_layer_freq", "topk_method", "scoring_func", "rope_interleave"},
	 .latent = true, .interleaved = true, .rope_theta = 10000, .norm_eps = 1e-6f,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 3, .groups = 8, .groups_top = 4, .routed_scale = 2.5f,
	 .shared_experts = 1},
	{"DeepseekV32ForCausalLM", DEEPSEEK_V32, COUNT_OF(DEEPSEEK_V32), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN, INDEXED_MEMBERS,
	 .index_heads = 64, .norm_eps = 1e-6f, .groups = 8, .groups_top = 4},
	{"GlmMoeDsaForCausalLM", DEEPSEEK_V32, COUNT_OF(DEEPSEEK_V32), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN, INDEXED_MEMBERS,
	 .index_heads = 32, .index_interleaved = true, .index_shared = true, .norm_eps = 1e-5f},
	{"AXK2ForCausalLM", AXK2, COUNT_OF(AXK2), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}, {"num_local_experts", "num_experts"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "num_nextn_predict_layers", "moe_layer_freq", "topk_method", "scoring_func", "rope_interleave", "mlp_layer_types", "index_topk", "gated_norm_rank"},
	 .gated_norms = true, .latent = true, .interleaved = true, .index_heads = 16, .rope_theta = 10000, .norm_eps = 1e-6f,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 1, .routed_scale = 2.5f, .shared_experts = 1},
	{"AXK1ForCausalLM", AXK1, COUNT_OF(AXK1), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}, {"num_local_experts", "num_experts"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "num_nextn_predict_layers", "moe_layer_freq", "topk_method", "scoring_func", "rope_interleave", "mlp_layer_types"},
	 .latent = true, .interleaved = true, .rope_theta = 10000, .norm_eps = 1e-6f,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 1, .groups = 8, .groups_top = 4, .routed_scale = 2.5f, .shared_experts = 1},
	{"SarvamMLAForCausalLM", DEEPSEEK_V3, COUNT_OF(DEEPSEEK_V3), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}, {"num_local_experts", "num_experts"}, {"num_shared_experts", "n_shared_experts"},
		    {"num_mtp_layers", "num_nextn_predict_layers"}, {"q_head_dim", "qk_head_dim"}, {"score_function", "scoring_func"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "num_nextn_predict_layers", "moe_layer_freq", "topk_method", "scoring_func", "rope_interleave", "moe_router_enable_expert_bias"},
	 .latent = true, .interleaved = true, .rope_theta = 10000, .norm_eps = 1e-6f,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 1, .routed_scale = 2.5f, .shared_experts = 1},
	{"KimiLinearForCausalLM", KIMI_LINEAR, COUNT_OF(KIMI_LINEAR), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN,
	 .fields = {{"num_local_experts", "num_experts"}, {"num_experts_per_token", "num_experts_per_tok"}, {"num_shared_experts", "n_shared_experts"},
		    {"num_expert_group", "n_group"}, {"moe_renormalize", "norm_topk_prob"}, {"moe_router_activation_func", "scoring_func"},
		    {"model_max_length", "max_position_embeddings"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "num_nextn_predict_layers", "moe_layer_freq", "scoring_func", "mlp_layer_types", "mla_use_nope", "use_grouped_topk", "tie_word_embeddings"},
	 .latent = true, .recurrent = RECURRENT_KDA, .recurrent_layer = "linear_attention", .unrotated = true, .rope_theta = 10000, .norm_eps = 1e-5f,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 1, .routed_scale = 2.446f, .shared_experts = 1},
	{"Mistral4ForCausalLM", DEEPSEEK_V2, COUNT_OF(DEEPSEEK_V2), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "rope_interleave", "llama_4_scaling_beta", "head_dim"},
	 .latent = true, .interleaved = true, .rope_theta = 10000, .norm_eps = 1e-6f,
	 .router_sum_plus = 1e-20f, .shared_experts = 1},
	{"YoutuForCausalLM", MINICPM3, COUNT_OF(MINICPM3), ARCH_ATTENTION_BIAS | ARCH_TIED,
	 .own = {"rope_interleave"}, .latent = true, .interleaved = true, .rope_theta = 10000, .norm_eps = 1e-6f},
	{"MiniCPMForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_ATTENTION_BIAS,
	 .own = {"scale_emb", "scale_depth", "dim_model_base"}, .rope_theta = 10000, .norm_eps = 1e-6f},
	{"MiniCPM3ForCausalLM", MINICPM3, COUNT_OF(MINICPM3), ARCH_ATTENTION_BIAS | ARCH_TIED,
	 .own = {"v_head_dim", "scale_emb", "scale_depth", "dim_model_base", "rope_interleave"},
	 .latent = true, .rope_theta = 10000, .norm_eps = 1e-5f},
	{"InternLM2ForCausalLM", INTERNLM2, COUNT_OF(INTERNLM2), ARCH_ATTENTION_BIAS,
	 .fields = {{"bias", "attention_bias"}}, .rope_theta = 10000, .attention_bias = true},
	{"InternLM3ForCausalLM", INTERNLM3, COUNT_OF(INTERNLM3), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS,
	 .fields = {{"qkv_bias", "attention_bias"}, {"bias", "mlp_bias"}}, .rope_theta = 10000},
	{"GPTNeoXForCausalLM", GPT_NEOX, COUNT_OF(GPT_NEOX), ARCH_ATTENTION_BIAS | ARCH_PARTIAL_ROTARY | ARCH_PARALLEL_CHOICE,
	 .fields = {{"rotary_pct", "partial_rotary_factor"}, {"rotary_emb_base", "rope_theta"}},
	 .layer_norm = "layer_norm_eps", .parallel = true, .ungated = true, .activation = KERN_GELU, .norm_eps = 1e-5f,
	 .rope_theta = 10000, .attention_bias = true, .rotary_share = 0.25f},
	GPT_NEO_ARCH,
	{"GPT2LMHeadModel", GPT2_TENSORS, COUNT_OF(GPT2_TENSORS), ARCH_TIED,
	 .fields = GPT2_FIELDS, .layer_norm = "layer_norm_epsilon", .ungated = true, .positions = true, .activation = KERN_GELU_TANH,
	 .inner = 4, .norm_eps = 1e-5f},
	{"QWenLMHeadModel", QWEN, COUNT_OF(QWEN), 0,
	 .fields = {{"kv_channels", "head_dim"}, {"layer_norm_epsilon", "rms_norm_eps"}, {"rotary_emb_base", "rope_theta"}},
	 .own = {"no_bias", "seq_length", "use_dynamic_ntk", "use_logn_attn"}, .halved = true, .head_dim = 128, .rope_theta = 10000, .norm_eps = 1e-6f},
	{"FalconForCausalLM", FALCON, COUNT_OF(FALCON), ARCH_USE_BIAS | ARCH_PARALLEL_CHOICE | ARCH_TIED,
	 .fields = {{"n_embed", "hidden_size"}, {"num_kv_heads", "num_key_value_heads"}, {"ffn_hidden_size", "intermediate_size"}, {"activation", "hidden_act"},
		    {"bias", "use_bias"}, {"parallel_attn", "use_parallel_residual"}},
	 .own = {"alibi", "multi_query", "new_decoder_architecture", "num_ln_in_parallel_attn", "ff_factor", "apply_residual_connection_post_layernorm"},
	 .layer_norm = "layer_norm_epsilon", .parallel = true, .ungated = true, .alibi = true, .activation = KERN_GELU, .context = 2048, .inner = 4,
	 .norm_eps = 1e-5f, .rope_theta = 10000},
	{"GPTBigCodeForCausalLM", GPT_BIGCODE, COUNT_OF(GPT_BIGCODE), ARCH_TIED,
	 .fields = GPT2_FIELDS, .own = {"multi_query"}, .layer_norm = "layer_norm_epsilon", .ungated = true, .positions = true,
	 .activation = KERN_GELU_TANH, .inner = 4, .norm_eps = 1e-5f},
	GPTJ_ARCH("GPTJForCausalLM", GPTJ, .quarters = false),
	GPTJ_ARCH("CodeGenForCausalLM", CODEGEN, .quarters = true),
	{"OPTForCausalLM", OPT_TENSORS, COUNT_OF(OPT_TENSORS), ARCH_USE_BIAS | ARCH_TIED,
	 .fields = {{"ffn_dim", "intermediate_size"}, {"activation_function", "hidden_act"}, {"enable_bias", "use_bias"}},
	 .layer_norm = "layer_norm_eps", .ungated = true, .positions = true, .activation = KERN_RELU, .norm_eps = 1e-5f,
	 .attention_bias = true},
	{"Ernie4_5ForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_USE_BIAS | ARCH_TIED,
	 .interleaved = true, .head_dim = 128, .kv_heads = 2, .rope_theta = 500000},
	{"Ernie4_5_MoeForCausalLM", ERNIE4_5_MOE, COUNT_OF(ERNIE4_5_MOE), ARCH_TIED | ARCH_EXPERTS_OWN,
	 .fields = {{"moe_num_experts", "num_experts"}, {"moe_k", "num_experts_per_tok"}, {"moe_num_shared_experts", "n_shared_experts"}},
	 .own = {"moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval", "n_shared_experts", "moe_norm_min",
		 "num_nextn_predict_layers"},
	 .interleaved = true, .kv_heads = 4, .rope_theta = 500000, .norm_eps = 1e-5f, .shared_experts = 2},
	{"GptOssForCausalLM", GPT_OSS, COUNT_OF(GPT_OSS), ARCH_ATTENTION_BIAS | ARCH_WINDOW_EVEN | ARCH_EXPERTS_ALL,
	 .fields = {{"experts_per_token", "num_experts_per_tok"}},
	 .own = {"initial_context_length"},
	 .rope_stated = "{\"rope_type\": \"yarn\", \"factor\": 32.0, \"original_max_position_embeddings\": 4096, \"truncate\": false}",
	 .clamped = true, .whole_experts = true, .head_dim = 64, .kv_heads = 8, .window = 128, .rope_theta = 150000, .norm_eps = 1e-5f,
	 .attention_bias = true},
	PHIMOE_ARCH("PhimoeForCausalLM"),
	PHIMOE_ARCH("PhiMoEForCausalLM"),
	{"MellumForCausalLM", QWEN3, COUNT_OF(QWEN3), QWEN3_TRAITS | ARCH_EXPERTS_SOME | ARCH_WINDOW_ALL | ARCH_LOCAL_ROPE,
	 .fields = {{"num_mtp_layers", "num_nextn_predict_layers"}},
	 .own = {"layer_types", "mlp_layer_types", "num_nextn_predict_layers"}, .experts_norm = true,
	 .head_dim = 128, .kv_heads = 4, .window = 1024, .window_pattern = 1, .rope_theta = 500000, .local_theta = 10000, .norm_eps = 1e-6f},
	{"Llama4ForCausalLM", LLAMA4, COUNT_OF(LLAMA4), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_ALL,
	 .own = {"use_qk_norm", "layer_types", "no_rope_layers", "no_rope_layer_interval", "attention_chunk_size", "attn_temperature_tuning",
		 "attn_scale", "floor_scale", "moe_layers", "interleave_moe_layer_step", "intermediate_size_mlp"},
	 .plain_head_norms = true, .norm_behind = true, .chunked = true, .router_reads = true, .interleaved = true, .whole_experts = true,
	 .router_sigmoid = true, .head_dim = 128, .kv_heads = 8, .window = 8192, .rope_theta = 500000, .norm_eps = 1e-5f},
	{"LagunaForCausalLM", LAGUNA, COUNT_OF(LAGUNA), ARCH_HEAD_NORMS | ARCH_WINDOW_ALL | ARCH_LOCAL_ROPE | ARCH_PARTIAL_ROTARY | ARCH_EXPERTS_OWN,
	 .fields = {{"moe_routed_scaling_factor", "routed_scaling_factor"}},
	 .own = {"layer_types", "mlp_layer_types", "first_k_dense_replace", "shared_expert_intermediate_size", "routed_scaling_factor", "num_attention_heads_per_layer",
		 "gating", "norm_topk_prob"},
	 .names_alone = true, .experts_sum_one = true,
	 .rope_stated = "{\"full_attention\": {\"rope_type\": \"default\", \"rope_theta\": 500000.0, \"partial_rotary_factor\": 0.5}, "
			"\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}}",
	 .output_gate = true, .gate_softplus = true, .head_dim = 128, .kv_heads = 8, .window = 512, .window_pattern = 1, .rope_theta = 500000, .local_theta = 10000,
	 .norm_eps = 1e-6f, .router_sigmoid = true, .dense_layers = 1},
	{"Step3p5ForCausalLM", STEP3P5, COUNT_OF(STEP3P5),
	 ARCH_HEAD_NORMS | ARCH_NORM_OFFSET | ARCH_WINDOW_ALL | ARCH_LOCAL_ROPE | ARCH_PARTIAL_ROTARY | ARCH_EXPERTS_OWN,
	 .fields = {{"num_attention_groups", "num_key_value_heads"}, {"moe_num_experts", "num_experts"}, {"n_routed_experts", "num_experts"},
		    {"num_local_experts", "num_experts"}, {"moe_top_k", "num_experts_per_tok"}, {"share_expert_dim", "shared_expert_intermediate_size"},
		    {"share_expert_dims", "shared_expert_intermediate_size"}, {"moe_router_scaling_factor", "routed_scaling_factor"},
		    {"moe_router_activation", "scoring_func"}, {"num_mtp_layers", "num_nextn_predict_layers"}},
	 .own = {"layer_types", "mlp_layer_types", "moe_layers_enum", "shared_expert_intermediate_size", "routed_scaling_factor", "num_attention_heads_per_layer",
		 "swiglu_limits", "swiglu_limits_shared", "query_pre_attn_scalar", "num_nextn_predict_layers", "scoring_func", "use_moe", "norm_expert_weight",
		 "use_head_wise_attn_gate", "use_moe_router_bias", "zero_centered", "att_impl_type"},
	 .output_gate = true, .gate_each_head = true, .head_dim = 128, .kv_heads = 8, .window_pattern = 1, .rope_theta = 10000, .local_theta = 10000, .norm_eps = 1e-5f,
	 .router_sigmoid = true},
	{"LongcatFlashForCausalLM", LONGCAT, COUNT_OF(LONGCAT), ARCH_ATTENTION_BIAS,
	 .fields = {{"ffn_hidden_size", "intermediate_size"}, {"expert_ffn_hidden_size", "moe_intermediate_size"}, {"moe_topk", "num_experts_per_tok"},
		    {"n_routed_experts", "num_experts"}},
	 .own = {"num_layers", "zero_expert_num", "zero_expert_type", "moe_intermediate_size", "num_experts_per_tok", "num_experts", "routed_scaling_factor",
		 "mla_scale_q_lora", "mla_scale_kv_lora", "router_bias", "attention_method"},
	 .latent = true, .interleaved = true, .shortcut = true, .rope_theta = 10000000, .norm_eps = 1e-5f, .routed_scale = 6},
	{"MixtralForCausalLM", MIXTRAL, COUNT_OF(MIXTRAL), ARCH_WINDOW_ALL | ARCH_EXPERTS_ALL,
	 .own = {"rope_interleave"}, .kv_heads = 8, .rope_theta = 1000000},
	MINIMAX_ARCH("MiniMaxForCausalLM", .own = {MINIMAX_OWN}, .rope_theta = 1000000,),
	MINIMAX_ARCH("MiniMaxText01ForCausalLM", MINIMAX_OLDER),
	MINIMAX_ARCH("MiniMaxM1ForCausalLM", MINIMAX_OLDER),
	{"MiniMaxM2ForCausalLM", MINIMAX_M2, COUNT_OF(MINIMAX_M2), ARCH_QK_NORMS | ARCH_EXPERTS_ALL | ARCH_PARTIAL_ROTARY,
	 .own = {"rotary_dim", "attn_type_list", "scoring_func", "use_routing_bias", "qk_norm_type"},
	 .router_sigmoid = true, .head_dim = 128, .kv_heads = 8, .rope_theta = 5000000, .norm_eps = 1e-6f},
	{"Qwen2MoeForCausalLM", QWEN2_MOE, COUNT_OF(QWEN2_MOE),
	 ARCH_QKV_BIAS | ARCH_WINDOW_LISTED | ARCH_EXPERTS_SOME | ARCH_SHARED_EXPERT,
	 .kv_heads = 16, .window = 4096, .rope_theta = 10000},
	{"Qwen3MoeForCausalLM", QWEN3, COUNT_OF(QWEN3), QWEN3_TRAITS | ARCH_WINDOW_UPPER | ARCH_EXPERTS_SOME,
	 .kv_heads = 4, .window = 4096, .rope_theta = 10000},
	{"Qwen3_5ForCausalLM", QWEN3_5, COUNT_OF(QWEN3_5), QWEN3_5_TRAITS,
	 .own = {"attn_output_gate", "output_gate_type", "full_attention_interval", "mamba_ssm_dtype"}, QWEN3_5_LAYERS, .state_tiled = true, .kv_heads = 4},
	{"Qwen3_5MoeForCausalLM", QWEN3_5_MOE, COUNT_OF(QWEN3_5_MOE), QWEN3_5_TRAITS | ARCH_EXPERTS_SOME | ARCH_SHARED_EXPERT,
	 .own = {"attn_output_gate", "output_gate_type", "full_attention_interval", "mamba_ssm_dtype"}, QWEN3_5_LAYERS, .state_tiled = true, .experts_only = true, .experts_norm = true, .kv_heads = 2},
	{"Qwen3NextForCausalLM", QWEN3_NEXT, COUNT_OF(QWEN3_NEXT), QWEN3_5_TRAITS | ARCH_EXPERTS_SOME | ARCH_SHARED_EXPERT,
	 .own = {"full_attention_interval"}, QWEN3_5_LAYERS, .experts_norm = true, .kv_heads = 2},
	{"OlmoHybridForCausalLM", OLMO_HYBRID, COUNT_OF(OLMO_HYBRID), ARCH_QK_NORMS,
	 .own = {"linear_allow_neg_eigval"}, .recurrent = RECURRENT_DELTA, .recurrent_layer = "linear_attention",
	 .state_as_attention = true, .gate_eps = 1e-5f, .rope_nullable = true, .rope_theta = 10000, .norm_eps = 1e-6f},
	{"RecurrentGemmaForCausalLM", RECURRENT_GEMMA, COUNT_OF(RECURRENT_GEMMA), GEMMA_TRAITS | ARCH_PARTIAL_ROTARY | ARCH_WINDOW_ALL,
	 .fields = {{"attention_window_size", "sliding_window"}, {"logits_soft_cap", "final_logit_softcapping"}},
	 .own = {"final_logit_softcapping", "embeddings_scale_by_sqrt_dim"}, .recurrent = RECURRENT_LRU, .recurrent_layer = "recurrent", .halved = true,
	 .vocab_size = 256000, .heads = 10, .context = 8192, .window = 2048, .logits_soft_cap = 30, .rope_theta = 10000, .norm_eps = 1e-6f,
	 .rotary_share = 0.5f},
	{"Lfm2ForCausalLM", LFM2, COUNT_OF(LFM2), ARCH_HEAD_NORMS | ARCH_TIED,
	 .fields = {{"norm_eps", "rms_norm_eps"}, {"block_ff_dim", "intermediate_size"}, {"tie_embedding", "tie_word_embeddings"}},
	 .own = {"use_pos_enc", "block_use_swiglu", "block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of", "block_dim",
		 "block_norm_eps", "conv_dim", "conv_dim_out", "num_heads", "full_attn_idxs"},
	 .recurrent = RECURRENT_CONV, .recurrent_layer = "conv", .kv_heads = 8, .rope_theta = 1000000, .norm_eps = 1e-5f},
	{"Lfm3ForCausalLM", LFM3, COUNT_OF(LFM3), ARCH_HEAD_NORMS | ARCH_TIED | ARCH_WINDOW_ALL | ARCH_LOCAL_ROPE,
	 .fields = {{"norm_eps", "rms_norm_eps"}, {"use_sandwich_norm", "use_post_norm"}},
	 .own = {"use_post_norm", "use_attention_gate"},
	 .rope_stated = "{\"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": 1000000.0, \"partial_rotary_factor\": 0.5}, "
			"\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}}",
	 .recurrent = RECURRENT_CONV, .recurrent_layer = "conv", .taps = 7, .proportional = true, .head_dim = 128, .kv_heads = 4, .window = 256,
	 .rope_theta = 1000000, .local_theta = 1000000, .norm_eps = 1e-5f},
	{"Lfm2MoeForCausalLM", LFM2_MOE, COUNT_OF(LFM2_MOE), ARCH_HEAD_NORMS | ARCH_TIED | ARCH_EXPERTS_OWN,
	 .fields = {{"norm_eps", "rms_norm_eps"}, {"num_dense_layers", "first_k_dense_replace"}, {"tie_embedding", "tie_word_embeddings"}},
	 .own = {"first_k_dense_replace", "norm_topk_prob", "routed_scaling_factor", "use_expert_bias"},
	 .recurrent = RECURRENT_CONV, .recurrent_layer = "conv", .kv_heads = 8, .rope_theta = 1000000, .norm_eps = 1e-5f,
	 .router_sigmoid = true, .router_sum_plus = 1e-6f, .dense_layers = 2},
	{"Qwen3OmniMoeTextModel", QWEN3, COUNT_OF(QWEN3), QWEN3_TRAITS | ARCH_EXPERTS_SOME,
	 .own = {"interleaved"}, .part = true, .experts_norm = true, .kv_heads = 4, .rope_theta = 1000000},
	{"Qwen3VLMoeTextModel", QWEN3_VL_MOE, COUNT_OF(QWEN3_VL_MOE), QWEN3_TRAITS | ARCH_EXPERTS_SOME,
	 .part = true, .whole_experts = true, .experts_norm = true, .kv_heads = 16, .rope_theta = 500000},
	HY4_ARCH("HYV4VLTextModel", .part = true, .interleaved = true),
	{"Glm4vTextModel", GLM4, COUNT_OF(GLM4), ARCH_ATTENTION_BIAS | ARCH_PARTIAL_ROTARY,
	 .own = {"attention_bias"}, .part = true, .interleaved = true, .kv_heads = 2, .rope_theta = 10000, .norm_eps = 1e-5f, .attention_bias = true},
	{"GlmOcrTextModel", GLM4, COUNT_OF(GLM4), ARCH_PARTIAL_ROTARY,
	 .own = {"num_nextn_predict_layers"}, .part = true, .interleaved = true, .kv_heads = 8, .rope_theta = 10000, .norm_eps = 1e-5f},
	{"PaddleOCRTextModel", LLAMA, COUNT_OF(LLAMA), ARCH_USE_BIAS | ARCH_TIED,
	 .own = {"use_3d_rope", "rope_is_neox_style", "weight_share_add_bias"}, .part = true, .head_dim = 128, .kv_heads = 2, .rope_theta = 500000, .norm_eps = 1e-5f},
	{"Ernie4_5_VLMoeTextModel", ERNIE4_5_VL_MOE, COUNT_OF(ERNIE4_5_VL_MOE), ARCH_TIED | ARCH_EXPERTS_OWN,
	 .fields = {{"moe_num_experts", "num_experts"}, {"moe_k", "num_experts_per_tok"}, {"moe_num_shared_experts", "n_shared_experts"}},
	 .own = {"first_k_dense_replace", "mlp_layer_types", "n_shared_experts", "moe_norm_min"}, .part = true, .image_experts = true,
	 .interleaved = true, .kv_heads = 4, .rope_theta = 500000, .norm_eps = 1e-5f, .dense_layers = 1, .shared_experts = 2},
	{"Glm4vMoeTextModel", GLM4_MOE, COUNT_OF(GLM4_MOE), ARCH_ATTENTION_BIAS | ARCH_PARTIAL_ROTARY | ARCH_EXPERTS_OWN, GLM4_MOE_MEMBERS,
	 .part = true, .attention_bias = true},
	{"MuseGlimmerTextModel", MUSE_GLIMMER, COUNT_OF(MUSE_GLIMMER), ARCH_NORM_OFFSET | ARCH_WINDOW_ALL,
	 .fields = {{"hidden_activation", "hidden_act"}},
	 .own = {"layer_types", "layer_rope_theta", "final_logit_softcapping", "qk_scale_factor", "output_multiplier", "post_norm_eps"},
	 .part = true, .plain_head_norms = true, .embed_norm = true, .plain_final_norm = true, .output_gate = true, .from_last = true,
	 .head_dim = 128, .kv_heads = 2, .window = 2048, .window_pattern = 4, .rope_theta = 10000, .logits_soft_cap = 20, .norm_eps = 1e-5f},
	{"MllamaTextModel", LLAMA, COUNT_OF(LLAMA), 0, .own = {"cross_attention_layers"}, .part = true, .kv_heads = 8, .rope_theta = 500000,
	 .norm_eps = 1e-5f},
};
/* clang-format on */

bool arch_has_own(const struct arch *a, const char *field)
{
	for (size_t i = 0; i < ARCH_OWN_MAX && a->own[i]; i++)
		if (!strcmp(a->own[i], field))
			return true;
	return false;
}

const char *arch_field_in_file(const struct arch *a, const char *here)
{
	for (size_t i = 0; i < ARCH_FIELDS_MAX && a->fields[i].file; i++)
		if (!strcmp(a->fields[i].here, here))
			return a->fields[i].file;
	return here;
}

const struct arch *arch_find(const char *name)
{
	for (size_t i = 0; i < COUNT_OF(ARCHS); i++)
		if (!strcmp(ARCHS[i].name, name))
			return &ARCHS[i];
	return NULL;
}

const struct arch *arch_find_backbone(const char *name)
{
	static const char backbone[] = "Model", causal[] = "ForCausalLM";
	const size_t bytes = strlen(name), tail = sizeof(backbone) - 1;
	const size_t stem = bytes > tail && !strcmp(name + bytes - tail, backbone) ? bytes - tail : 0;

	for (size_t i = 0; stem && i < COUNT_OF(ARCHS); i++)
		if (!ARCHS[i].part && !strncmp(ARCHS[i].name, name, stem) && !strcmp(ARCHS[i].name + stem, causal))
			return &ARCHS[i];
	return NULL;
}

const char *arch_name_at(size_t i)
{
	return i < COUNT_OF(ARCHS) ? ARCHS[i].name : NULL;
}

void arch_tensor_name(char *out, size_t bytes, const struct arch_tensor *t, u32 layer, u32 expert)
{
	const char *hole = strstr(t->name, "{}");
	const char *second = hole ? strstr(hole + 2, "{}") : NULL;

	if (t->pairs == PAIRS_EACH)
		expert = layer % 2;
	if (t->pairs != PAIRS_NONE)
		layer /= 2;

	if (second)
		snprintf(out, bytes, "%.*s%u%.*s%u%s", (int)(hole - t->name), t->name, layer,
			 (int)(second - hole - 2), hole + 2, expert, second + 2);
	else if (hole)
		snprintf(out, bytes, "%.*s%u%s", (int)(hole - t->name), t->name, layer, hole + 2);
	else
		snprintf(out, bytes, "%s", t->name);
}
