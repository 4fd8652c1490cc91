"""Small models of Gemma 3n, for families_differential.py: several residual streams, sparse gates, inputs of every layer and shared keys and values."""
from families_fields import COMMON, MISSING
from families_usual import GEMMA

ROPES = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
         "full_attention": {"rope_type": "default", "rope_theta": 1000000.0}}
TYPES = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"]
# As the released files have it; where lm_head is not the embedding a small model says more than its last token once again.
USUAL = {**COMMON, **GEMMA, "architectures": ["Gemma3nForCausalLM"], "model_type": "gemma3n_text", "tie_word_embeddings": False,
         "activation_sparsity_pattern": [0.95, 0.8, 0.5, 0.0, 0.3, 0.0], "altup_active_idx": 0, "altup_coef_clip": 120.0,
         "altup_correct_scale": True, "altup_lr_multiplier": 1.0, "altup_num_inputs": 4, "final_logit_softcapping": 30.0,
         "hidden_size_per_layer_input": 10, "intermediate_size": [100] * 6, "laurel_rank": 8, "layer_types": TYPES, "num_hidden_layers": 6,
         "num_kv_shared_layers": 3, "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1000000.0,
         "sliding_window": 8, "vocab_size_per_layer_input": 131}
VISION = {"architecture": "mobilenetv5_300m_enc", "hidden_size": 16, "model_type": "gemma3n_vision"}
WHOLE = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n", "audio_config": {"hidden_size": 16, "model_type": "gemma3n_audio"},
         "audio_soft_tokens_per_image": 188, "audio_token_id": 102, "boa_token_id": 103, "boi_token_id": 100, "image_token_id": 101,
         "tie_word_embeddings": True, "vision_config": VISION, "vision_soft_tokens_per_image": 256}


def new(**ropes):
    """As transformers writes it now."""
    return {"rope_local_base_freq": MISSING, "rope_scaling": MISSING, "rope_theta": MISSING, "rope_parameters": {**ROPES, **ropes}}


def changes():
    yield "none", {}
    yield "tied", {"tie_word_embeddings": True}
    yield "new-ropes", new()
    yield "ropes-missing", {"rope_local_base_freq": MISSING, "rope_scaling": MISSING, "rope_theta": MISSING}
    yield "rope-linear", new(full_attention={"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0})
    yield "streams-2", {"altup_num_inputs": 2}
    yield "streams-3-active", {"altup_num_inputs": 3, "altup_active_idx": 2}
    yield "streams-8", {"altup_num_inputs": 8, "altup_active_idx": 3}
    yield "active", {"altup_active_idx": 1}
    yield "unscaled", {"altup_correct_scale": False}
    yield "clip", {"altup_coef_clip": 0.1}
    yield "laurel-1", {"laurel_rank": 1}
    yield "laurel-wide", {"laurel_rank": 64}
    yield "dense", {"activation_sparsity_pattern": [0.0] * 6}
    yield "sparse-least", {"activation_sparsity_pattern": [0.01] * 6}
    yield "sparse-most", {"activation_sparsity_pattern": [0.99, 0.999, 0.97, 0.95, 0.95, 0.9]}
    yield "sparsity-missing", {"activation_sparsity_pattern": MISSING}
    yield "sparsity-missing-deep", {"activation_sparsity_pattern": MISSING, "num_hidden_layers": 12, "intermediate_size": 100, "layer_types": MISSING,
                                    "num_kv_shared_layers": 5}
    yield "width-number", {"intermediate_size": 100}
    yield "unshared", {"num_kv_shared_layers": 0}
    yield "shared-missing", {"num_kv_shared_layers": MISSING, "num_hidden_layers": 17, "intermediate_size": 100, "layer_types": TYPES[1:4] * 5 + TYPES[1:3],
                             "activation_sparsity_pattern": MISSING}
    yield "types-missing", {"layer_types": MISSING, "num_hidden_layers": 7, "intermediate_size": 100, "num_kv_shared_layers": 2,
                            "activation_sparsity_pattern": [0.0] * 7}
    yield "last-full", {"layer_types": TYPES[:5] + ["full_attention"]}
    yield "all-full", {"layer_types": ["full_attention"] * 6}
    yield "all-windowed", {"layer_types": ["sliding_attention"] * 6}
    yield "one-layer", {"layer_types": ["full_attention"], "num_hidden_layers": 1, "intermediate_size": [100], "num_kv_shared_layers": 0,
                        "activation_sparsity_pattern": [0.9]}
    yield "window-one", {"sliding_window": 1}
    yield "window-wide", {"sliding_window": 250}
    yield "cap", {"final_logit_softcapping": 5.0}
    yield "cap-missing", {"final_logit_softcapping": MISSING}
    yield "inputs-few", {"vocab_size_per_layer_input": 100}
    yield "inputs-more", {"vocab_size_per_layer_input": 200}
    yield "inputs-missing", {"hidden_size_per_layer_input": MISSING, "num_hidden_layers": 3, "intermediate_size": 100, "num_kv_shared_layers": 1,
                             "layer_types": TYPES[1:4], "activation_sparsity_pattern": [0.9, 0.0, 0.5]}
    yield "inputs-vocab-missing", {"vocab_size_per_layer_input": MISSING, "hidden_size_per_layer_input": 2}
    yield "mqa", {"num_key_value_heads": 1}
    yield "mha", {"num_key_value_heads": 4}
    yield "act-gelu", {"hidden_activation": "gelu"}
    yield "eps", {"rms_norm_eps": 1e-3}
    yield "scalar", {"query_pre_attn_scalar": 256}
    yield "odd", {"hidden_size": 54, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 18, "hidden_size_per_layer_input": 11,
                  "intermediate_size": 69, "laurel_rank": 7, "vocab_size": 97, "vocab_size_per_layer_input": 97}


SAVES = [("f16", {"dtype": "float16"}), ("bf16", {"dtype": "bfloat16"}), ("sharded", {"shards": 3}), ("base", {"base": True}),
         ("tied-head-kept", {"keep_head": True}), ("raw", {"raw": True}), ("whole", {"whole": WHOLE, "prefix": "language_model.model."}),
         ("whole-new", {"whole": WHOLE, "prefix": "model.language_model."})]


def cases():
    """As families_cases.cases."""
    for name, change in changes():
        config = {k: v for k, v in {**USUAL, **change}.items() if v is not MISSING}
        yield "gemma3n_text/" + name, "gemma3n_text", config, {"ranks": 3} if name == "odd" else {}
    for name, save in SAVES:  # all tied
        config = {**USUAL, "tie_word_embeddings": True, "torch_dtype": save.get("dtype", "float32")}
        yield "gemma3n_text/save-" + name, "gemma3n_text", {k: v for k, v in config.items() if v is not MISSING}, save
