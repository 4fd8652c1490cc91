"""Small models of families whose layers share blocks, and of other families of transformers, for families_differential.py."""
from families_fields import COMMON, LAYER_NORM, LLAMA3, MISSING, YARN, new_rope

MAMBA, HYBRID = "mamba", "hybrid"
TYPES = [MAMBA, HYBRID, MAMBA, HYBRID, HYBRID, MAMBA]
# What transformers 5.24 takes for the least step: here too small to be one.
ZAMBA2 = {**COMMON, "architectures": ["Zamba2ForCausalLM"], "model_type": "zamba2", "adapter_rank": 6, "add_bias_linear": False, "attention_head_dim": 20,
          "attention_hidden_size": 80, "chunk_size": 256, "hidden_act": "gelu", "hybrid_layer_ids": [1, 3, 4], "kv_channels": 10, "layers_block_type": TYPES,
          "mamba_d_conv": 4, "mamba_d_state": 9, "mamba_expand": 2, "mamba_headdim": 20, "mamba_ngroups": 2, "n_mamba_heads": 4, "num_hidden_layers": 6,
          "num_key_value_heads": 4, "num_logits_to_keep": 1, "num_mem_blocks": 2, "num_query_groups": 4, "pad_token_id": 0, "time_step_floor": 1e-4,
          "time_step_limit": None, "time_step_max": 0.1, "time_step_min": 1e-30, "tie_word_embeddings": True, "use_conv_bias": True, "use_long_context": False,
          "use_mamba_kernels": True, "use_mem_eff_path": False, "use_mem_rope": True, "use_shared_attention_adapter": True}
DERIVED = {k: MISSING for k in ("attention_head_dim", "attention_hidden_size", "hybrid_layer_ids", "kv_channels", "mamba_headdim", "num_query_groups")}


def zamba2():
    yield "none", {}
    yield "one-block", {"num_mem_blocks": 1}
    yield "blocks-more", {"num_mem_blocks": 5}
    yield "mlp-alone", {"use_shared_attention_adapter": False}
    yield "no-positions", {"use_mem_rope": False}
    yield "untied", {"tie_word_embeddings": False}  # where transformers 5.24 ties no block either, and saves all
    yield "biases", {"add_bias_linear": True}
    yield "gqa", {"use_shared_attention_adapter": False, "num_key_value_heads": 2}
    yield "words", {**DERIVED, "layers_block_type": [{MAMBA: "linear_attention"}.get(t, t) for t in TYPES]}
    yield "first-hybrid", {**DERIVED, "layers_block_type": [HYBRID, MAMBA, HYBRID], "num_hidden_layers": 3}
    yield "all-hybrid", {**DERIVED, "layers_block_type": [HYBRID] * 4, "num_hidden_layers": 4, "num_mem_blocks": 3}
    yield "one-hybrid", {**DERIVED, "layers_block_type": [MAMBA, HYBRID], "num_hidden_layers": 2}
    yield "silu", {"hidden_act": "silu"}
    yield "rank-one", {"adapter_rank": 1}
    yield "rank-wide", {"adapter_rank": 97}
    yield "theta", {"rope_theta": 500000.0}
    yield "eps", {"rms_norm_eps": 1e-3}
    yield "taps-2", {"mamba_d_conv": 2}
    yield "groups", {"mamba_ngroups": 4}
    yield "one-group", {"mamba_ngroups": 1}
    yield "expand", {**DERIVED, "mamba_expand": 3, "n_mamba_heads": 8}
    yield "defaults", {**DERIVED, **{k: MISSING for k in (
        "adapter_rank", "add_bias_linear", "hidden_act", "intermediate_size", "mamba_d_conv", "mamba_d_state", "mamba_expand", "max_position_embeddings",
        "num_key_value_heads", "num_mem_blocks", "rms_norm_eps", "rope_theta", "tie_word_embeddings", "use_conv_bias", "use_mem_rope", "use_shared_attention_adapter")}}
    yield "odd", {**DERIVED, "hidden_size": 45, "num_attention_heads": 9, "num_key_value_heads": 9, "intermediate_size": 69, "vocab_size": 97, "mamba_d_state": 5,
                  "mamba_ngroups": 3, "n_mamba_heads": 9, "mamba_expand": 1, "mamba_d_conv": 3, "adapter_rank": 7, "add_bias_linear": True}


PERSIMMON = {**COMMON, **LAYER_NORM("layer_norm_eps"), "architectures": ["PersimmonForCausalLM"], "model_type": "persimmon", "hidden_act": "relu2",
             "hidden_dropout": 0.0, "num_key_value_heads": MISSING, "hidden_size": 48, "partial_rotary_factor": 0.5, "qk_layernorm": True, "rope_theta": 25000.0}


def persimmon():
    yield "none", {}
    yield "no-head-norms", {"qk_layernorm": False}
    yield "tied", {"tie_word_embeddings": True}
    yield "whole", {"partial_rotary_factor": 1.0}
    yield "new-rope", new_rope({"partial_rotary_factor": 0.5}, 500000.0)
    yield "yarn", {"rope_scaling": YARN}
    yield "llama3", {"rope_scaling": LLAMA3}
    yield "linear", {"rope_scaling": {"type": "linear", "factor": 2.5}}
    yield "gelu", {"hidden_act": "gelu_new"}
    yield "eps", {"layer_norm_eps": 1e-2}
    yield "deep", {"num_hidden_layers": 9}
    yield "one-head", {"num_attention_heads": 1}
    yield "defaults", {k: MISSING for k in ("hidden_act", "layer_norm_eps", "partial_rotary_factor", "qk_layernorm", "rope_theta", "tie_word_embeddings")}
    yield "odd", {"hidden_size": 60, "num_attention_heads": 6, "intermediate_size": 69, "vocab_size": 97, "partial_rotary_factor": 0.4}


MODELS = {"zamba2": (ZAMBA2, zamba2), "persimmon": (PERSIMMON, persimmon)}
RANKS = {"odd": 3, "one-group": 1, "zamba2/defaults": 1, "one-head": 1}
SAVES = [("bf16", {"dtype": "bfloat16"}), ("f16", {"dtype": "float16"}), ("sharded", {"shards": 3}), ("base", {"base": True})]


def cases():
    """As families_cases.cases."""
    for family, (usual, variants) in MODELS.items():
        for name, changes in variants():
            config = {k: v for k, v in {**usual, **changes}.items() if v is not MISSING}
            yield "%s/%s" % (family, name), family, config, {"ranks": RANKS.get("%s/%s" % (family, name), RANKS.get(name, 2))}
        for name, save in SAVES:
            yield "%s/save-%s" % (family, name), family, {**{k: v for k, v in usual.items() if v is not MISSING}, "torch_dtype": save.get("dtype", "float32")}, save
