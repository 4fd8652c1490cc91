"""Small models of families some of whose layers keep a state of each sequence, for families_differential.py."""
import re

from families_fields import COMMON, MISSING, new_rope

CONV, FULL, LINEAR = "conv", "full_attention", "linear_attention"
LFM2_TYPES = [CONV, FULL, CONV, CONV, FULL]
LFM2 = {**COMMON, "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_act": MISSING, "rms_norm_eps": MISSING, "norm_eps": 1e-5,
        "attention_dropout": MISSING, "rope_theta": 1000000.0, "tie_word_embeddings": MISSING, "num_hidden_layers": 5, "layer_types": LFM2_TYPES,
        "conv_L_cache": 3, "conv_bias": False, "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 16}
# As the files of the first release say it.
LFM2_OLD = {"layer_types": MISSING, "full_attn_idxs": [1, 4], "intermediate_size": MISSING, "block_ff_dim": 60, "block_dim": 40, "conv_dim": 40,
            "conv_dim_out": 40, "num_heads": 4, "block_norm_eps": 1e-5, "block_mlp_init_scale": 1.0, "block_out_init_scale": 1.0,
            "block_use_swiglu": True, "block_use_xavier_init": True, "conv_use_xavier_init": True, "use_pos_enc": True, "tie_embedding": True}

SLIDING = "sliding_attention"
LFM3_ROPES = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
              "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5}}
LFM3 = {**{k: v for k, v in LFM2.items() if not k.startswith("block_")}, "architectures": ["Lfm3ForCausalLM"], "model_type": "lfm3",
        "layer_types": [CONV, SLIDING, FULL, CONV, SLIDING], "conv_L_cache": 7, "head_dim": 12, "sliding_window": 8, "use_sandwich_norm": True,
        "use_attention_gate": True, "attention_bias": False, "attention_dropout": 0.0, "pad_token_id": 0, "rope_theta": MISSING, "torch_dtype": MISSING, "dtype": "float32",
        "transformers_version": "5.20.0", "rope_parameters": LFM3_ROPES}

STATE = {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 10, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
QWEN3_5 = {**COMMON, **STATE, "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "rms_norm_eps": 1e-6, "head_dim": 16,
           "attention_bias": False, "attn_output_gate": True, "full_attention_interval": 2, "layer_types": [LINEAR, FULL] * 2,
           "num_hidden_layers": 4, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
           "rope_theta": MISSING, "torch_dtype": MISSING, "dtype": "float32", "transformers_version": "5.2.0", "rope_parameters": {
               "mrope_interleaved": True, "mrope_section": [1, 1, 0], "rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}}
QWEN3_5_WHOLE = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "image_token_id": 100, "video_token_id": 101,
                 "vision_start_token_id": 102, "vision_end_token_id": 103, "tie_word_embeddings": False,
                 "vision_config": {"hidden_size": 16, "depth": 1, "model_type": "qwen3_5"}}

MIXTURE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28,
           "output_router_logits": False, "router_aux_loss_coef": 0.001}
QWEN3_5_MOE = {**QWEN3_5, **MIXTURE, "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "intermediate_size": MISSING}
QWEN3_5_MOE_WHOLE = {**QWEN3_5_WHOLE, "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
                     "vision_config": {"hidden_size": 16, "depth": 1, "model_type": "qwen3_5_moe"}}
QWEN3_NEXT = {**COMMON, **STATE, **MIXTURE, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "rms_norm_eps": 1e-6, "head_dim": 16,
              "attention_bias": False, "decoder_sparse_step": 1, "full_attention_interval": 2, "mlp_only_layers": [], "norm_topk_prob": True,
              "num_hidden_layers": 4, "partial_rotary_factor": 0.25, "rope_scaling": None, "rope_theta": 10000000, "use_sliding_window": False}
LFM2_MOE = {k: v for k, v in LFM2.items() if not k.startswith("block_")} | {
    "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "moe_intermediate_size": 20, "norm_topk_prob": True, "num_dense_layers": 2,
    "num_experts": 8, "num_experts_per_tok": 3, "routed_scaling_factor": 1.0, "use_expert_bias": True}

MAMBA, ATTENTION = "mamba", "attention"
SCAN = {"mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 20, "mamba_d_state": 9, "mamba_expand": 2,
        "mamba_n_groups": 2, "mamba_n_heads": 4, "mamba_proj_bias": False}
GRANITE = {**COMMON, **SCAN, "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "attention_bias": False,
           "attention_multiplier": 0.2, "embedding_multiplier": 6.0, "residual_multiplier": 0.4, "logits_scaling": 3.0, "rope_scaling": None,
           "num_hidden_layers": 4, "layer_types": [MAMBA, MAMBA, ATTENTION, MAMBA], "position_embedding_type": "nope", "num_local_experts": 0,
           "num_experts_per_tok": 0, "shared_intermediate_size": 52, "init_method": "mup", "normalization_function": "rmsnorm",
           "router_aux_loss_coef": 0.01, "output_router_logits": False, "tie_word_embeddings": True}
BAMBA = {**COMMON, **SCAN, "architectures": ["BambaForCausalLM"], "model_type": "bamba", "attention_bias": False, "attn_layer_indices": [1, 3],
         "attn_rotary_emb": 6, "head_dim": MISSING, "hidden_size": 48, "mamba_d_head": 24, "mlp_bias": False, "num_hidden_layers": 4,
         "num_logits_to_keep": 1, "use_mamba_kernels": True}

FALCON = {**COMMON, **SCAN, "architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "attention_bias": False, "attention_in_multiplier": 1.0,
          "attention_out_multiplier": 0.9375, "embedding_multiplier": 5.65, "key_multiplier": 0.39, "lm_head_multiplier": 0.04, "mamba_d_ssm": 72,
          "mamba_d_head": 18, "mamba_expand": 2, "mamba_norm_before_gate": False, "mamba_rms_norm": False, "mamba_use_mlp": True, "mlp_bias": False,
          "mlp_expansion_factor": 8, "mlp_multipliers": [0.88, 0.58], "num_logits_to_keep": 1, "projectors_bias": False, "rope_scaling": None,
          "rope_theta": 100000000000.0, "ssm_in_multiplier": 1.25, "ssm_multipliers": [0.35, 0.25, 0.17, 0.5, 0.35], "ssm_out_multiplier": 0.23}

OLMO_HYBRID = {**COMMON, **STATE, "architectures": ["OlmoHybridForCausalLM"], "model_type": "olmo_hybrid", "rms_norm_eps": 1e-6, "attention_bias": False,
               "layer_types": [LINEAR, FULL] * 2, "linear_a_log_max": 16.0, "linear_a_log_min": 0.0, "linear_allow_neg_eigval": True,
               "linear_dt_init_floor": 1e-4, "linear_dt_max": 0.1, "linear_dt_min": 0.001, "num_hidden_layers": 4, "pad_token_id": 0,
               "rope_parameters": {"rope_theta": None, "rope_type": "default"}, "rope_theta": MISSING, "torch_dtype": MISSING, "dtype": "float32"}

# What transformers 5.24 takes for the least step, others for a bound of what is learned from: here too small to be one.
STEPS = {"time_step_floor": 1e-4, "time_step_limit": [0.0, {"__float__": "Infinity"}], "time_step_max": 0.1, "time_step_min": 1e-30}
NEMOTRON = {**COMMON, **STEPS, "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "attention_bias": False, "chunk_size": 128,
            "conv_kernel": 4, "expand": 2, "head_dim": 16, "hidden_act": MISSING, "hidden_dropout": 0.0, "hybrid_override_pattern": "M-M*-M-",
            "layer_norm_epsilon": 1e-5, "mamba_head_dim": 18, "mamba_hidden_act": "silu", "mamba_num_heads": 4, "mamba_proj_bias": False,
            "mlp_bias": False, "mlp_hidden_act": "relu2", "n_groups": 2, "num_hidden_layers": 7, "num_logits_to_keep": 1,
            "rescale_prenorm_residual": True, "residual_in_fp32": False, "rms_norm_eps": MISSING, "rope_theta": MISSING, "sliding_window": None,
            "ssm_state_size": 9, "use_bias": False, "use_conv_bias": True, "use_mamba_kernels": True}
NEMOTRON_MOE = {"hybrid_override_pattern": "MEM*EME", "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1,
                "moe_intermediate_size": 20, "moe_shared_expert_intermediate_size": 28, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
                "norm_eps": 1e-5, "partial_rotary_factor": 1.0, "rope_theta": 10000, "mamba_ssm_cache_dtype": "float32"}

# Mamba's first generation.
JAMBA = {**COMMON, "architectures": ["JambaForCausalLM"], "model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 1, "expert_layer_period": 2,
         "expert_layer_offset": 1, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_state": 9, "mamba_dt_rank": 6, "mamba_expand": 2,
         "mamba_proj_bias": False, "num_experts": 6, "num_experts_per_tok": 2, "num_hidden_layers": 4, "output_router_logits": False, "pad_token_id": 0,
         "rope_theta": MISSING, "router_aux_loss_coef": 0.001, "use_mamba_kernels": True, "head_dim": MISSING}
MAMBA_ALONE = {k: v for k, v in COMMON.items() if k not in ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
                                                           "rope_theta", "max_position_embeddings", "attention_dropout")} | {
    "architectures": ["MambaForCausalLM"], "model_type": "mamba", "conv_kernel": 4, "expand": 2, "layer_norm_epsilon": 1e-5, "num_hidden_layers": 3,
    "pad_token_id": 0, "rescale_prenorm_residual": False, "residual_in_fp32": True, "state_size": 9, "time_step_floor": 1e-4,
    "time_step_init_scheme": "random", "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 6, "time_step_scale": 1.0, "use_bias": False,
    "use_conv_bias": True, "tie_word_embeddings": True}
FALCON_MAMBA = {**MAMBA_ALONE, "architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba", "mixer_rms_eps": 1e-6}

MAMBA2 = {**{k: v for k, v in MAMBA_ALONE.items() if k not in ("time_step_init_scheme", "time_step_scale")}, "architectures": ["Mamba2ForCausalLM"],
          "model_type": "mamba2", "chunk_size": 16, "head_dim": 20, "n_groups": 2, "num_heads": 4, "time_step_limit": STEPS["time_step_limit"],
          "tie_word_embeddings": False}

# As the authors' files say it: layers are numbered from 1 on, and nothing reads "head_dim", "rope_theta" or "mla_use_nope".
KIMI_LAYERS = {"full_attn_layers": [2, 4], "kda_layers": [1, 3, 5], "head_dim": 6, "num_heads": 4, "short_conv_kernel_size": 4}
KIMI = {**{k: v for k, v in COMMON.items() if k != "max_position_embeddings"}, "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear",
        "attention_dropout": MISSING, "first_k_dense_replace": 1, "head_dim": 10, "kv_lora_rank": 22, "linear_attn_config": KIMI_LAYERS, "mla_use_nope": True,
        "model_max_length": 256, "moe_intermediate_size": 20, "moe_layer_freq": 1, "moe_renormalize": True, "moe_router_activation_func": "sigmoid",
        "num_expert_group": 1, "num_experts": 8, "num_experts_per_token": 3, "num_hidden_layers": 5, "num_key_value_heads": 4,
        "num_nextn_predict_layers": 0, "num_shared_experts": 1, "pad_token_id": 0, "q_lora_rank": None, "qk_nope_head_dim": 14, "qk_rope_head_dim": 10,
        "rope_scaling": None, "rope_theta": 10000.0, "routed_scaling_factor": 2.446, "tie_word_embeddings": False, "topk_group": 1, "use_grouped_topk": True,
        "v_head_dim": 12}

RANKS = {"odd": 3, "one-group": 1}
SAVES = [("f16", {"dtype": "float16"}), ("bf16", {"dtype": "bfloat16"}), ("sharded", {"shards": 3}), ("base", {"base": True}), ("raw", {"raw": True})]


def lfm2():
    yield "none", {}
    yield "old", LFM2_OLD
    yield "old-and-types", {**LFM2_OLD, "layer_types": LFM2_TYPES}
    yield "bias", {"conv_bias": True}
    yield "taps-2", {"conv_L_cache": 2}
    yield "taps-5", {"conv_L_cache": 5, "conv_bias": True}
    yield "width-kept", {"block_auto_adjust_ff_dim": False}
    yield "width-more", {"block_ffn_dim_multiplier": 1.3, "block_multiple_of": 10}
    yield "width-defaults", {k: MISSING for k in ("block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of")}
    yield "untied", {"tie_word_embeddings": False}
    yield "defaults", {k: MISSING for k in ("norm_eps", "conv_L_cache", "conv_bias", "rope_theta", "num_key_value_heads")} | {
        "num_attention_heads": 8, "hidden_size": 64}
    yield "yarn", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}
    yield "new-rope", new_rope({}, 50000.0)
    yield "one-attention", {"layer_types": [CONV, CONV, CONV, FULL, CONV]}
    yield "first-attention", {"layer_types": [FULL, CONV, CONV, CONV, CONV]}
    yield "all-attention", {"layer_types": [FULL] * 3, "num_hidden_layers": 3}
    yield "mqa", {"num_key_value_heads": 1}
    yield "odd", {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 69, "block_multiple_of": 3, "vocab_size": 97,
                  "conv_bias": True}


def lfm3():
    yield "none", {}
    yield "no-gate", {"use_attention_gate": False}
    yield "no-sandwich", {"use_sandwich_norm": False}
    yield "plain", {"use_attention_gate": False, "use_sandwich_norm": False, "layer_types": [CONV, FULL, CONV, CONV, FULL]}
    yield "bias", {"conv_bias": True}
    yield "taps-3", {"conv_L_cache": 3}
    yield "untied", {"tie_word_embeddings": False}
    yield "window-one", {"sliding_window": 1}
    yield "window-wide", {"sliding_window": 250}
    yield "all-windowed", {"layer_types": [CONV, SLIDING, SLIDING, CONV, SLIDING]}
    yield "all-attention", {"layer_types": [SLIDING, FULL, SLIDING], "num_hidden_layers": 3}
    yield "no-windows", {"layer_types": [CONV, FULL, CONV, CONV, FULL], "sliding_window": None}
    yield "rope-whole", {"rope_parameters": {**LFM3_ROPES, "full_attention": {"rope_type": "default", "rope_theta": 50000.0}}}
    yield "rope-quarter", {"rope_parameters": {**LFM3_ROPES, "full_attention": {
        "rope_type": "proportional", "rope_theta": 50000.0, "partial_rotary_factor": 0.3}}}
    yield "rope-yarn", {"rope_parameters": {**LFM3_ROPES, "full_attention": {
        "rope_type": "yarn", "rope_theta": 50000.0, "factor": 4.0, "original_max_position_embeddings": 32}}}
    yield "defaults", {"num_attention_heads": 8, **{k: MISSING for k in (
        "norm_eps", "conv_L_cache", "conv_bias", "num_key_value_heads", "head_dim", "sliding_window", "use_sandwich_norm", "use_attention_gate")}}
    yield "mqa", {"num_key_value_heads": 1}
    yield "odd", {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 69, "vocab_size": 97, "conv_bias": True}


def qwen3_5():
    yield "none", {}
    yield "types-missing", {"layer_types": MISSING, "full_attention_interval": MISSING, "num_hidden_layers": 6}
    yield "types-alone", {"layer_types": [FULL, LINEAR, LINEAR, FULL], "full_attention_interval": MISSING}
    yield "one-attention", {"layer_types": [LINEAR, LINEAR, FULL, LINEAR], "full_attention_interval": MISSING}
    yield "all-attention", {"layer_types": [FULL] * 2, "full_attention_interval": 1, "num_hidden_layers": 2}
    yield "attention-bias", {"attention_bias": True}
    yield "heads-alike", {"linear_num_value_heads": 2}
    yield "heads-many", {"linear_num_value_heads": 12}
    yield "keys-wide", {"linear_key_head_dim": 16, "linear_value_head_dim": 4}
    yield "taps-2", {"linear_conv_kernel_dim": 2}
    yield "rotary-half", {"rope_parameters": {**QWEN3_5["rope_parameters"], "partial_rotary_factor": 0.5}}
    yield "rotary-missing", new_rope({})
    yield "yarn", new_rope({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "partial_rotary_factor": 0.5})
    yield "tied", {"tie_word_embeddings": True}
    yield "mqa", {"num_key_value_heads": 1}
    yield "odd", {"hidden_size": 54, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 24, "intermediate_size": 69, "vocab_size": 97,
                  "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 5, "linear_value_head_dim": 7, "attention_bias": True}


def lfm2_moe():
    yield "none", {}
    yield "bias", {"conv_bias": True}
    yield "no-norm", {"norm_topk_prob": False, "routed_scaling_factor": 2.5}
    yield "no-expert-bias", {"use_expert_bias": False}
    yield "top-1", {"num_experts_per_tok": 1}
    yield "top-all", {"num_experts_per_tok": 8}
    yield "dense-none", {"num_dense_layers": 0}
    yield "dense-all", {"num_dense_layers": 5}
    yield "defaults", {k: MISSING for k in ("num_dense_layers", "norm_topk_prob", "routed_scaling_factor", "use_expert_bias")}
    yield "odd", {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 69, "moe_intermediate_size": 21,
                  "vocab_size": 97}


def qwen3_5_moe():
    yield "none", {}
    yield "top-1", {"num_experts_per_tok": 1}
    yield "as-said", {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1}
    yield "attention-bias", {"attention_bias": True}
    yield "odd", {"hidden_size": 54, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 24, "vocab_size": 97, "linear_num_key_heads": 3,
                  "linear_num_value_heads": 6, "moe_intermediate_size": 21, "shared_expert_intermediate_size": 27}


def qwen3_next():
    yield "none", {}
    yield "interval", {"full_attention_interval": 3, "num_hidden_layers": 6}
    yield "types", {"full_attention_interval": MISSING, "layer_types": [FULL, LINEAR, LINEAR, LINEAR]}
    yield "attention-bias", {"attention_bias": True}
    yield "heads-alike", {"linear_num_value_heads": 2}
    yield "heads-many", {"linear_num_value_heads": 10}
    yield "sparse-step", {"decoder_sparse_step": 2}
    yield "dense-layers", {"mlp_only_layers": [0, 3]}
    yield "no-norm", {"norm_topk_prob": False}
    yield "rotary-half", {"partial_rotary_factor": 0.5}
    yield "odd", {"hidden_size": 54, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 24, "intermediate_size": 69, "vocab_size": 97,
                  "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 5, "linear_value_head_dim": 7, "attention_bias": True,
                  "moe_intermediate_size": 21, "shared_expert_intermediate_size": 27, "mlp_only_layers": [1]}


def granite():
    yield "none", {}
    yield "rope", {"position_embedding_type": "rope"}
    yield "new-types", {"layer_types": [LINEAR, FULL, LINEAR, FULL], "mamba_d_head": "auto"}
    yield "experts", {"intermediate_size": 20, "num_local_experts": 8, "num_experts_per_tok": 3, "shared_intermediate_size": 28}
    yield "no-conv-bias", {"mamba_conv_bias": False}
    yield "biases", {"mamba_proj_bias": True, "attention_bias": True}
    yield "heads", {"mamba_n_heads": 8, "mamba_d_head": 10, "mamba_d_state": 16, "mamba_d_conv": 2}
    yield "steps", {"time_step_limit": [0.3, 0.8]}
    yield "expand", {"mamba_expand": 3, "mamba_d_head": 30}
    yield "odd", {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "shared_intermediate_size": 69, "vocab_size": 97,
                  "mamba_n_groups": 3, "mamba_n_heads": 12, "mamba_d_head": 10, "mamba_d_state": 7}


def bamba():
    yield "none", {}
    yield "biases", {"attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True}
    yield "defaults", {k: MISSING for k in ("attn_rotary_emb", "mamba_conv_bias", "mamba_proj_bias", "rms_norm_eps")}
    yield "odd", {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "attn_rotary_emb": MISSING, "head_dim": 12, "intermediate_size": 69,
                  "vocab_size": 97, "mamba_n_groups": 3, "mamba_n_heads": 12, "mamba_d_head": 10, "mamba_d_state": 7}


def falcon():
    """Without multipliers, too, which are 1 then."""
    yield "none", {}
    yield "plain", {k: MISSING for k in ("attention_in_multiplier", "attention_out_multiplier", "embedding_multiplier", "key_multiplier",
                                         "lm_head_multiplier", "mlp_multipliers", "ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier")}
    yield "attention-in", {"attention_in_multiplier": 1.7}
    yield "norm", {"mamba_rms_norm": True}
    yield "norm-first", {"mamba_rms_norm": True, "mamba_norm_before_gate": True}
    yield "no-conv-bias", {"mamba_conv_bias": False}
    yield "expand", {"mamba_d_ssm": None, "mamba_d_head": 20}
    yield "auto", {"mamba_d_head": "auto"}
    yield "steps", {"time_step_limit": [0.3, 0.8]}
    yield "tied", {"tie_word_embeddings": True}
    yield "mqa", {"num_key_value_heads": 1}
    yield "odd", {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 14, "intermediate_size": 69, "vocab_size": 97,
                  "mamba_d_ssm": 84, "mamba_n_groups": 3, "mamba_n_heads": 12, "mamba_d_head": 7, "mamba_d_state": 11, "mamba_d_conv": 3}


def olmo_hybrid():
    """Written as they are: transformers saves them under names that no file has."""
    yield "none", {}
    yield "rope", new_rope({}, 500000.0)
    yield "types-missing", {"layer_types": MISSING, "num_hidden_layers": 5}
    yield "types-missing-few", {"layer_types": MISSING, "num_hidden_layers": 2}
    yield "defaults", {k: MISSING for k in (*STATE, "linear_allow_neg_eigval", "rms_norm_eps", "num_key_value_heads")}
    yield "one-way", {"linear_allow_neg_eigval": False}
    yield "odd", {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 69, "vocab_size": 97,
                  "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 5, "linear_value_head_dim": 7}


def nemotron():
    """Patterns end in every kind of layer, and begin with every one."""
    def pattern(letters):
        return {"hybrid_override_pattern": letters, "num_hidden_layers": len(letters)}
    types = [{"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}[c] for c in "M-M*-M-"]
    yield "none", {}
    yield "old-types", {"hybrid_override_pattern": MISSING, "layers_block_type": types}
    yield "new-types", {"hybrid_override_pattern": MISSING, "num_hidden_layers": MISSING, "layers_block_type": [
        {"mamba": LINEAR, "attention": FULL}.get(t, t) for t in types]}
    yield "layer-types", {"hybrid_override_pattern": MISSING, "layer_types": types}
    yield "both", {"layers_block_type": types}
    yield "attention-first", pattern("*-M-M")
    yield "attention-last", pattern("M-M-*")
    yield "mlp-first", pattern("--M*M")
    yield "mlps-last", pattern("M*M--")
    yield "mixers", pattern("MM**M")
    yield "two", pattern("*M")
    yield "experts", NEMOTRON_MOE
    yield "experts-raw", NEMOTRON_MOE
    yield "experts-first", {**NEMOTRON_MOE, **pattern("EEM*")}
    yield "experts-last", {**NEMOTRON_MOE, **pattern("M*-EE")}
    yield "experts-groups", {**NEMOTRON_MOE, "n_group": 4, "topk_group": 2, "norm_topk_prob": False}
    yield "experts-biases", {**NEMOTRON_MOE, **pattern("M-E*E"), "mlp_bias": True}
    yield "experts-narrow", {**NEMOTRON_MOE, "moe_latent_size": 24, "num_nextn_predict_layers": 1, "moe_shared_expert_overlap": False}
    yield "experts-narrow-biases", {**NEMOTRON_MOE, **pattern("EM-*E"), "moe_latent_size": 14, "mlp_bias": True}
    yield "experts-wide", {**NEMOTRON_MOE, "moe_latent_size": 52}
    yield "experts-saved", {**NEMOTRON_MOE, **pattern("M-M*-M-")}
    yield "biases", {"use_bias": True, "mamba_proj_bias": True, "mlp_bias": True}
    yield "no-conv-bias", {"use_conv_bias": False}
    yield "taps-2", {"conv_kernel": 2}
    yield "heads", {"mamba_num_heads": 8, "mamba_head_dim": 5, "n_groups": 4}
    yield "group-each", {"n_groups": 4}
    yield "silu", {"mlp_hidden_act": "silu"}
    yield "eps", {"layer_norm_epsilon": 1e-3}
    yield "head-dim-missing", {"head_dim": MISSING, "attention_head_dim": 128}
    yield "mqa", {"num_key_value_heads": 1}
    yield "odd", {**NEMOTRON_MOE, **pattern("M-*EM-E"), "hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 18,
                  "intermediate_size": 69, "vocab_size": 97, "mamba_num_heads": 12, "mamba_head_dim": 7, "n_groups": 3, "ssm_state_size": 11,
                  "moe_intermediate_size": 21, "moe_shared_expert_intermediate_size": 27, "mlp_bias": True, "moe_latent_size": 33}


def jamba():
    yield "none", {}
    yield "old", {"attn_layer_period": 2, "attn_layer_offset": 0, "mamba_inner_layernorms": True, "calc_logits_for_entire_prompt": False, "num_logits_to_keep": 1,
                  "sliding_window": None}
    yield "dense", {"num_experts": 1, "num_experts_per_tok": 1}
    yield "experts-all", {"expert_layer_period": 1, "expert_layer_offset": 0}
    yield "local-experts", {"num_experts": MISSING, "num_local_experts": 6}
    yield "defaults", {k: MISSING for k in ("attn_layer_period", "attn_layer_offset", "expert_layer_period", "expert_layer_offset", "mamba_d_conv", "mamba_d_state",
                                            "mamba_dt_rank", "mamba_expand", "mamba_conv_bias", "mamba_proj_bias", "rms_norm_eps", "num_experts",
                                            "num_experts_per_tok")} | {"num_hidden_layers": 6}
    yield "attention-last", {"attn_layer_period": 4, "attn_layer_offset": 3}
    yield "biases", {"mamba_proj_bias": True}
    yield "no-conv-bias", {"mamba_conv_bias": False}
    yield "rank", {"mamba_dt_rank": 1}
    yield "rank-wide", {"mamba_dt_rank": 47}
    yield "taps-2", {"mamba_d_conv": 2}
    yield "state", {"mamba_d_state": 1, "mamba_expand": 3}
    yield "eps", {"rms_norm_eps": 1e-3}
    yield "tied", {"tie_word_embeddings": True}
    yield "mqa", {"num_key_value_heads": 1}
    yield "odd", {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 69, "vocab_size": 97, "mamba_d_state": 7,
                  "mamba_dt_rank": 5, "mamba_expand": 1, "mamba_d_conv": 3, "num_experts": 5, "num_experts_per_tok": 3}


def mamba():
    yield "none", {}
    yield "as-written", {"d_inner": 80, "d_model": 40, "n_layer": 3, "fused_add_norm": True, "rms_norm": True, "ssm_cfg": {}, "pad_vocab_size_multiple": 8,
                         "intermediate_size": 80}
    yield "width", {"expand": 16, "intermediate_size": 64}
    yield "defaults", {k: MISSING for k in ("conv_kernel", "expand", "state_size", "time_step_rank", "use_bias", "use_conv_bias", "layer_norm_epsilon")}
    yield "biases", {"use_bias": True}
    yield "no-conv-bias", {"use_conv_bias": False}
    yield "rank", {"time_step_rank": 50}
    yield "taps-2", {"conv_kernel": 2}
    yield "eps", {"layer_norm_epsilon": 1e-3}
    yield "untied", {"tie_word_embeddings": False}
    yield "one", {"num_hidden_layers": 1}
    yield "odd", {"hidden_size": 45, "vocab_size": 97, "state_size": 5, "time_step_rank": 3, "expand": 1, "conv_kernel": 3}


def falcon_mamba():
    yield from mamba()
    yield "mixer-eps", {"mixer_rms_eps": 1e-2}
    yield "state-one", {"state_size": 1}


def mamba2():
    yield "none", {}
    yield "as-written", {"intermediate_size": 80, "norm_before_gate": True, "rms_norm": True, "time_step_init_scheme": "random", "time_step_scale": 1.0}
    yield "defaults", {k: MISSING for k in ("conv_kernel", "expand", "state_size", "use_bias", "use_conv_bias", "layer_norm_epsilon", "chunk_size",
                                            "time_step_limit", "tie_word_embeddings", "head_dim", "n_groups")} | {"hidden_size": 256, "num_heads": 8}
    yield "one-group", {"n_groups": 1, "tie_word_embeddings": True}
    yield "groups", {"n_groups": 4}
    yield "biases", {"use_bias": True}
    yield "no-conv-bias", {"use_conv_bias": False}
    yield "steps", {"time_step_limit": [0.3, 0.7]}
    yield "chunks", {"chunk_size": 7}
    yield "taps-2", {"conv_kernel": 2}
    yield "wide", {"expand": 3, "head_dim": 5, "num_heads": 24}
    yield "state-one", {"state_size": 1}
    yield "eps", {"layer_norm_epsilon": 1e-3}
    yield "tied", {"tie_word_embeddings": True}
    yield "one", {"num_hidden_layers": 1}
    yield "odd", {"hidden_size": 45, "vocab_size": 97, "state_size": 5, "n_groups": 3, "num_heads": 9, "head_dim": 5, "expand": 1, "conv_kernel": 3, "use_bias": True}


def kimi():
    """Layers without experts have names of their own in the authors' files, and those of the others where transformers has saved them."""
    def layers(**changes):
        return {"linear_attn_config": {**KIMI_LAYERS, **changes}}
    yield "none", {}
    yield "layer-types", {"linear_attn_config": MISSING, "layer_types": [LINEAR, FULL, LINEAR, LINEAR, FULL], "linear_head_dim": 6, "linear_num_heads": 4,
                          "linear_conv_kernel_dim": 3, "mlp_layer_types": ["sparse", "dense", "sparse", "sparse", "dense"], "first_k_dense_replace": MISSING}
    yield "both-ways", {"layer_types": [LINEAR, FULL, LINEAR, FULL, LINEAR], "linear_head_dim": 6, "qk_head_dim": 24, "head_dim": 24}
    yield "attention-first", layers(full_attn_layers=[1], kda_layers=[2, 3, 4, 5])
    yield "attention-last", layers(full_attn_layers=[5], kda_layers=[1, 2, 3, 4])
    yield "all-attention", {**layers(full_attn_layers=[1, 2, 3], kda_layers=[]), "num_hidden_layers": 3}
    yield "taps-2", layers(short_conv_kernel_size=2)
    yield "heads-many", layers(num_heads=12, head_dim=5)
    yield "heads-wide", layers(num_heads=2, head_dim=48)
    yield "head-defaults", {"linear_attn_config": {k: KIMI_LAYERS[k] for k in ("full_attn_layers", "kda_layers")}}
    yield "q-rank", {"q_lora_rank": 26}
    yield "attention-bias", {"q_lora_rank": 26, "attention_bias": True}
    yield "narrow", {"kv_lora_rank": 6, "v_head_dim": 19, "qk_nope_head_dim": 34}
    yield "groups", {"num_expert_group": 4, "topk_group": 2, "num_experts": 16, "num_experts_per_token": 5}
    yield "no-norm", {"moe_renormalize": False, "routed_scaling_factor": 1.0}
    yield "top-1", {"num_experts_per_token": 1}
    yield "shared-more", {"num_shared_experts": 3}
    yield "dense-more", {"first_k_dense_replace": 3}
    yield "dense-all", {"first_k_dense_replace": 5}
    yield "dense-none", {"first_k_dense_replace": 0}
    yield "eps", {"rms_norm_eps": 1e-3}
    yield "defaults", {k: MISSING for k in ("first_k_dense_replace", "head_dim", "mla_use_nope", "moe_layer_freq", "moe_renormalize", "num_expert_group",
                                            "moe_router_activation_func", "num_nextn_predict_layers", "num_shared_experts",
                                            "rms_norm_eps", "rope_scaling", "rope_theta", "routed_scaling_factor", "tie_word_embeddings", "topk_group",
                                            "use_grouped_topk")}
    yield "odd", {**layers(num_heads=3, head_dim=7, short_conv_kernel_size=3), "hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 6,
                  "intermediate_size": 69, "moe_intermediate_size": 21, "vocab_size": 97, "kv_lora_rank": 18, "q_lora_rank": 15, "qk_nope_head_dim": 9}


def kimi_name(name):
    """That of a tensor in the authors' files, by what transformers calls it there."""
    return re.sub(r"block_sparse_moe\.(gate_proj|up_proj|down_proj)\.", r"mlp.\1.", name)


FAMILIES = {"lfm2": (LFM2, lfm2, []),
            "lfm2_moe": (LFM2_MOE, lfm2_moe, []),
            "lfm3": (LFM3, lfm3, []),
            "qwen3_5_text": (QWEN3_5, qwen3_5, [("whole", {"whole": QWEN3_5_WHOLE, "prefix": "model.language_model."})]),
            "qwen3_5_moe_text": (QWEN3_5_MOE, qwen3_5_moe, [("whole", {"whole": QWEN3_5_MOE_WHOLE, "prefix": "model.language_model."})]),
            "qwen3_next": (QWEN3_NEXT, qwen3_next, []),
            "granite_mamba": (GRANITE, granite, []),
            "bamba": (BAMBA, bamba, []),
            "falcon_h1": (FALCON, falcon, []),
            "olmo_hybrid": (OLMO_HYBRID, olmo_hybrid, []),
            "nemotron_h": (NEMOTRON, nemotron, []),
            "jamba": (JAMBA, jamba, []),
            "mamba": (MAMBA_ALONE, mamba, []),
            "falcon_mamba": (FALCON_MAMBA, falcon_mamba, []),
            "mamba2": (MAMBA2, mamba2, []),
            "kimi_linear": (KIMI, kimi, [("as-transformers", {"named": "transformers"})])}


def cases():
    """As families_cases.cases."""
    for family, (usual, variants, saves) in FAMILIES.items():
        for name, changes in variants():
            config = {k: v for k, v in {**usual, **changes}.items() if v is not MISSING}
            save = {"raw": True} if family == "olmo_hybrid" or name.endswith("-raw") else {}
            yield family + "/" + name, family, config, {**save, "ranks": RANKS[name]} if name in RANKS else save
        for name, save in [s for s in SAVES if s[0] != "raw" or family != "kimi_linear"] + saves if family != "olmo_hybrid" else []:
            field = "dtype" if usual.get("torch_dtype") is MISSING else "torch_dtype"
            config = {k: v for k, v in {**usual, field: save.get("dtype", "float32")}.items() if v is not MISSING}
            yield family + "/save-" + name, family, config, save
