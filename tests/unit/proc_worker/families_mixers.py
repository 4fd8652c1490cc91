"""Small models of families whose layers mix tokens otherwise than others do, for families_differential.py."""
from families_fields import COMMON, MISSING, new_rope

RECURRENT, ATTENTION = "recurrent", "attention"
RECURRENT_GEMMA = {
    **{k: v for k, v in COMMON.items() if k not in ("hidden_act", "max_position_embeddings", "tie_word_embeddings")},
    "architectures": ["RecurrentGemmaForCausalLM"], "model_type": "recurrent_gemma", "attention_bias": False, "attention_window_size": 16, "num_hidden_layers": 4,
    "block_types": [RECURRENT, RECURRENT, ATTENTION], "conv1d_width": 4, "embeddings_scale_by_sqrt_dim": True, "final_w_init_variance_scale": 0.5, "head_dim": 12, "hidden_size": 48,
    "hidden_activation": "gelu_pytorch_tanh", "intermediate_size": 104, "logits_soft_cap": 30.0, "lru_width": 48, "num_key_value_heads": 1, "pad_token_id": 0,
    "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-6, "w_init_variance_scale": 0.01}

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


FAMILIES = {"recurrent_gemma": (RECURRENT_GEMMA, recurrent_gemma, [])}


def cases():
    """As families_cases.cases."""
    for family, (usual, variants, saves) in FAMILIES.items():
        for name, changes in variants():
            config = {k: v for k, v in {**usual, **changes}.items() if v is not MISSING}
            yield family + "/" + name, family, config, {"ranks": RANKS[name]} if name in RANKS else {}
        for name, save in SAVES + saves:
            config = {k: v for k, v in {**usual, "torch_dtype": save.get("dtype", "float32")}.items() if v is not MISSING}
            yield family + "/save-" + name, family, config, save
