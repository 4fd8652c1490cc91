"""Small models of families whose layers mix tokens otherwise than others do, for families_differential.py."""
from families_fields import COMMON, LLAMA3, MISSING, new_rope

RECURRENT, ATTENTION = "recurrent", "attention"
RECURRENT_GEMMA = {
    **{k: v for k, v in COMMON.items() if k not in ("hidden_act", "max_position_embeddings", "tie_word_embeddings")},
    "architectures": ["RecurrentGemmaForCausalLM"], "model_type": "recurrent_gemma", "attention_bias": False, "attention_window_size": 16, "num_hidden_layers": 4,
    "block_types": [RECURRENT, RECURRENT, ATTENTION], "conv1d_width": 4, "embeddings_scale_by_sqrt_dim": True, "final_w_init_variance_scale": 0.5, "head_dim": 12, "hidden_size": 48,
    "hidden_activation": "gelu_pytorch_tanh", "intermediate_size": 104, "logits_soft_cap": 30.0, "lru_width": 48, "num_key_value_heads": 1, "pad_token_id": 0,
    "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-6, "w_init_variance_scale": 0.01}

FULL, LINEAR = "full_attention", "linear_attention"
MINIMAX = {**COMMON, "architectures": ["MiniMaxForCausalLM"], "model_type": "minimax", "block_size": 8, "full_attn_alpha_factor": 1.3, "full_attn_beta_factor": 0.7,
           "head_dim": 12, "layer_types": [LINEAR, LINEAR, FULL, LINEAR], "linear_attn_alpha_factor": 0.8, "linear_attn_beta_factor": 1.6, "mlp_alpha_factor": 2.1,
           "mlp_beta_factor": 0.4, "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_local_experts": 6, "output_router_logits": False, "rope_theta": 1000000.0,
           "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "sliding_window": None}
# As the authors' files say it, whose numbers these are.
TEXT01_FIELDS = {"layernorm_full_attention_alpha": "full_attn_alpha_factor", "layernorm_full_attention_beta": "full_attn_beta_factor",
                 "layernorm_linear_attention_alpha": "linear_attn_alpha_factor", "layernorm_linear_attention_beta": "linear_attn_beta_factor",
                 "layernorm_mlp_alpha": "mlp_alpha_factor", "layernorm_mlp_beta": "mlp_beta_factor"}
TEXT01 = {**{k: v for k, v in MINIMAX.items() if k not in (*TEXT01_FIELDS.values(), "block_size", "layer_types")}, "architectures": ["MiniMaxText01ForCausalLM"],
          "model_type": "minimax_text_01", "attn_type_list": [0, 1, 0, 1], "auto_map": {"AutoConfig": "configuration_minimax_text_01.MiniMaxText01Config"},
          "bos_token_id": None, "eos_token_id": None, "num_hidden_layers": 4, "postnorm": True, "rotary_dim": 12, "shared_intermediate_size": 0,
          "shared_moe_mode": "sigmoid", **{k: 3.5565588200778455 if k.endswith("alpha") else 1.0 for k in TEXT01_FIELDS}}

JETMOE = {**{k: v for k, v in COMMON.items() if k not in ("hidden_act", "num_attention_heads", "tie_word_embeddings")}, "architectures": ["JetMoeForCausalLM"],
          "model_type": "jetmoe", "activation_function": "silu", "aux_loss_coef": 0.01, "kv_channels": 12, "num_experts_per_tok": 2, "num_local_experts": 6,
          "output_router_logits": False, "rms_norm_eps": 1e-3}

DIFFLLAMA = {**COMMON, "architectures": ["DiffLlamaForCausalLM"], "model_type": "diffllama", "attention_bias": False, "head_dim": 10, "hidden_size": 80,
             "lambda_std_dev": 0.1, "num_attention_heads": 8, "num_key_value_heads": 4, "pad_token_id": None}

RANKS = {"odd": 3}
SAVES = [("f16", {"dtype": "float16"}), ("bf16", {"dtype": "bfloat16"}), ("sharded", {"shards": 3}), ("base", {"base": True}), ("raw", {"raw": True})]


def recurrent_gemma():
    yield "none", {}
    yield "attention-first", {"block_types": [ATTENTION, RECURRENT], "num_hidden_layers": 5}
    yield "all-attention", {"block_types": [ATTENTION], "num_hidden_layers": 2}
    yield "attention-bias", {"attention_bias": True, "num_key_value_heads": 2}
    yield "width-missing", {"lru_width": MISSING}
    yield "width-null", {"lru_width": None, "head_dim": MISSING}
    yield "width-more", {"lru_width": 100}
    yield "window-one", {"attention_window_size": 1}
    yield "taps-2", {"conv1d_width": 2}
    yield "taps-7", {"conv1d_width": 7}
    yield "act-silu", {"hidden_activation": "silu"}
    yield "act-gelu", {"hidden_activation": "gelu"}
    yield "act-relu", {"hidden_activation": "relu"}
    yield "cap", {"logits_soft_cap": 5.0}
    yield "rotary-whole", {"partial_rotary_factor": 1.0}
    yield "new-rope", {**new_rope({"partial_rotary_factor": 0.5}, 50000.0), "partial_rotary_factor": MISSING}
    yield "untied", {"tie_word_embeddings": False}
    yield "kv-missing", {"num_key_value_heads": MISSING}
    yield "defaults", {k: MISSING for k in ("attention_window_size", "block_types", "conv1d_width", "hidden_activation", "logits_soft_cap", "lru_width",
                                            "partial_rotary_factor", "rms_norm_eps", "rope_theta", "attention_bias")}
    yield "odd", {"hidden_size": 72, "num_attention_heads": 6, "head_dim": 12, "num_key_value_heads": 3, "intermediate_size": 139, "vocab_size": 97,
                  "lru_width": 42, "conv1d_width": 3}


def minimax():
    yield "none", {}
    yield "types-missing", {"layer_types": MISSING, "num_hidden_layers": 5}
    yield "plain", {k: MISSING for k in TEXT01_FIELDS.values()}
    yield "attention-first", {"layer_types": [FULL, LINEAR, LINEAR, LINEAR]}
    yield "all-attention", {"layer_types": [FULL, FULL], "num_hidden_layers": 2}
    yield "block-long", {"block_size": 256}
    yield "head-dim-missing", {"head_dim": MISSING}
    yield "eps", {"rms_norm_eps": 1e-2}
    yield "top-1", {"num_experts_per_tok": 1}
    yield "tied", {"tie_word_embeddings": True}
    yield "mqa", {"num_key_value_heads": 1}
    yield "new-rope", new_rope({}, 50000.0)
    yield "odd", {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 14, "intermediate_size": 69, "vocab_size": 97,
                  "num_local_experts": 5, "num_experts_per_tok": 3}


def text01():
    yield "none", {}
    yield "factors", {"layernorm_linear_attention_beta": 0.5, "layernorm_mlp_alpha": 1.25}
    yield "factors-missing", {k: MISSING for k in TEXT01_FIELDS}


def jetmoe():
    yield "none", {}
    yield "heads-said", {"num_attention_heads": 4}
    yield "top-1", {"num_experts_per_tok": 1}
    yield "top-3", {"num_experts_per_tok": 3}
    yield "top-all", {"num_experts_per_tok": 6}
    yield "wide", {"kv_channels": 34}
    yield "act-gelu", {"activation_function": "gelu"}
    yield "untied", {"tie_word_embeddings": False}
    yield "new-rope", new_rope({}, 50000.0)
    yield "yarn", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}
    yield "defaults", {k: MISSING for k in ("activation_function", "rms_norm_eps", "rope_theta")}
    yield "odd", {"hidden_size": 45, "num_key_value_heads": 3, "kv_channels": 14, "intermediate_size": 69, "vocab_size": 97, "num_local_experts": 5,
                  "num_experts_per_tok": 3}


def diffllama():
    yield "none", {}
    yield "biases", {"attention_bias": True}
    yield "mha", {"num_key_value_heads": MISSING}
    yield "heads-wide", {"head_dim": 22}
    yield "head-dim-missing", {"head_dim": MISSING}
    yield "groups-many", {"num_attention_heads": 16}
    yield "eps", {"rms_norm_eps": 1e-2}
    yield "act-gelu", {"hidden_act": "gelu"}
    yield "tied", {"tie_word_embeddings": True}
    yield "new-rope", new_rope({}, 50000.0)
    yield "llama3", {"rope_scaling": LLAMA3}
    yield "defaults", {k: MISSING for k in ("attention_bias", "lambda_std_dev", "rms_norm_eps", "rope_theta", "hidden_act")}
    yield "odd", {"hidden_size": 63, "num_attention_heads": 12, "num_key_value_heads": 6, "head_dim": 6, "intermediate_size": 69, "vocab_size": 97,
                  "attention_bias": True}


def reference_config(c):
    """Of what transformers knows under other names."""
    if c["model_type"] not in ("minimax_text_01", "minimax_m1"):
        return c
    kept = {TEXT01_FIELDS.get(k, k): v for k, v in c.items() if k not in ("attn_type_list", "auto_map", "postnorm", "rotary_dim")}
    return {**kept, "architectures": ["MiniMaxForCausalLM"], "model_type": "minimax", "layer_types": [[LINEAR, FULL][n] for n in c["attn_type_list"]]}


FAMILIES = {"recurrent_gemma": (RECURRENT_GEMMA, recurrent_gemma, []),
            "diffllama": (DIFFLLAMA, diffllama, []),
            "jetmoe": (JETMOE, jetmoe, []),
            "minimax": (MINIMAX, minimax, []),
            "minimax_text_01": (TEXT01, text01, [])}


def cases():
    """As families_cases.cases."""
    for family, (usual, variants, saves) in FAMILIES.items():
        for name, changes in variants():
            config = {k: v for k, v in {**usual, **changes}.items() if v is not MISSING}
            yield family + "/" + name, family, config, {"ranks": RANKS[name]} if name in RANKS else {}
        for name, save in SAVES + saves:
            config = {k: v for k, v in {**usual, "torch_dtype": save.get("dtype", "float32")}.items() if v is not MISSING}
            yield family + "/save-" + name, family, config, save
