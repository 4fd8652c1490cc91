"""Small models of Llama 4, for families_differential.py: chunks, layers that do not rotate and mixtures in the combinations of its config.json."""
from families_fields import COMMON, LLAMA3, MISSING, YARN

# Chunks and steps of the temperature are shorter than the prompts.
USUAL = {**COMMON, "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "attention_bias": False, "attention_chunk_size": 16,
         "attn_scale": 0.4, "attn_temperature_tuning": True, "cache_implementation": "hybrid", "floor_scale": 8, "for_llm_compressor": False,
         "head_dim": 12, "interleave_moe_layer_step": 1, "intermediate_size": 20, "intermediate_size_mlp": 52, "moe_layers": [0, 1, 2, 3],
         "no_rope_layers": [1, 1, 1, 0], "num_experts_per_tok": 1, "num_hidden_layers": 4, "num_local_experts": 6, "output_router_logits": False,
         "pad_token_id": 3, "rope_scaling": {**LLAMA3, "factor": 16.0, "high_freq_factor": 1.0}, "rope_theta": 500000.0,
         "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "use_qk_norm": True}
VISION = {"hidden_size": 16, "model_type": "llama4_vision_model", "num_hidden_layers": 1}
WHOLE = {"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "boi_token_index": 100, "eoi_token_index": 101,
         "image_token_index": 102, "tie_word_embeddings": False, "vision_config": VISION}


def variants():
    yield "none", {}
    # As Maverick: every other layer has experts, nothing is normed or stretched.
    yield "dense-between", {"interleave_moe_layer_step": 2, "moe_layers": MISSING, "use_qk_norm": False, "rope_scaling": None}
    yield "moe-listed", {"moe_layers": [2, 0]}
    yield "all-dense", {"moe_layers": []}
    yield "step-long", {"interleave_moe_layer_step": 3, "moe_layers": None}
    yield "top-2", {"num_experts_per_tok": 2}
    yield "top-all", {"num_experts_per_tok": 6}
    yield "rotates-listed", {"no_rope_layers": [0, 1, 0, 1]}
    yield "rotates-nowhere", {"no_rope_layers": [0, 0, 0, 0]}
    yield "rotates-everywhere", {"no_rope_layers": [1, 1, 1, 1]}
    yield "interval", {"no_rope_layers": [], "no_rope_layer_interval": 2}
    yield "interval-missing", {"no_rope_layers": MISSING, "num_hidden_layers": 5, "moe_layers": None}
    yield "chunk-one", {"attention_chunk_size": 1}
    yield "chunk-odd", {"attention_chunk_size": 23}
    yield "chunk-wide", {"attention_chunk_size": 250}
    yield "chunk-null", {"attention_chunk_size": None}
    yield "types", {"layer_types": ["full_attention", "chunked_attention", "full_attention", "chunked_attention"]}
    yield "types-full", {"layer_types": ["full_attention"] * 4}
    yield "no-temperature", {"attn_temperature_tuning": False}
    yield "temperature-often", {"floor_scale": 3, "attn_scale": 0.9}
    yield "bias", {"attention_bias": True}
    yield "bias-no-norm", {"attention_bias": True, "use_qk_norm": False}
    yield "plain-rope", {"rope_scaling": None}
    yield "llama3", {"rope_scaling": LLAMA3}
    yield "yarn", {"rope_scaling": YARN}
    yield "new-rope", {"rope_theta": MISSING, "rope_scaling": MISSING, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 9000.0}}
    yield "defaults", {**{k: MISSING for k in ("attention_bias", "attention_chunk_size", "attn_scale", "attn_temperature_tuning", "floor_scale",
                                               "head_dim", "interleave_moe_layer_step", "moe_layers", "no_rope_layers", "rope_scaling", "rope_theta",
                                               "rms_norm_eps", "use_qk_norm")}, "num_attention_heads": 8, "num_key_value_heads": MISSING}
    yield "mha", {"num_key_value_heads": 4}
    yield "mqa", {"num_key_value_heads": 1}
    yield "tied", {"tie_word_embeddings": True}
    yield "act-gelu", {"hidden_act": "gelu"}
    yield "one-layer", {"num_hidden_layers": 1, "moe_layers": [0], "no_rope_layers": [1]}
    yield "odd", {"hidden_size": 54, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 18, "intermediate_size": 21,
                  "intermediate_size_mlp": 69, "vocab_size": 97, "moe_layers": [1, 3]}


SAVES = [("bf16", {"dtype": "bfloat16"}), ("sharded", {"shards": 3}), ("base", {"base": True}), ("raw", {"raw": True}),
         ("whole", {"whole": WHOLE, "prefix": "language_model.model."})]


def cases():
    """As families_cases.cases."""
    for name, changes in variants():
        config = {k: v for k, v in {**USUAL, **changes}.items() if v is not MISSING}
        yield "llama4_text/" + name, "llama4_text", config, {"ranks": 3} if name == "odd" else {}
    for name, save in SAVES:
        yield "llama4_text/save-" + name, "llama4_text", {**USUAL, "torch_dtype": save.get("dtype", "float32")}, save
