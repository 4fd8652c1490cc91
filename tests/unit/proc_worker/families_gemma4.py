"""Small models of Gemma 4, for families_differential.py: its layers differ in more than the cases of other families vary."""
from families_fields import COMMON, MISSING
from families_usual import GEMMA

ROPES = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
         "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}}
TYPES = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]
USUAL = {**COMMON, **GEMMA, "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "rope_theta": MISSING,
         "torch_dtype": MISSING, "dtype": "float32", "transformers_version": "5.5.0", "attention_k_eq_v": True,
         "enable_moe_block": False, "final_logit_softcapping": 30.0, "global_head_dim": 24,
         "hidden_size_per_layer_input": 0, "layer_types": TYPES, "moe_intermediate_size": None, "num_experts": None,
         "num_global_key_value_heads": 1, "num_hidden_layers": 5, "num_kv_shared_layers": 0, "rope_parameters": ROPES,
         "sliding_window": 8, "top_k_experts": None, "use_bidirectional_attention": "vision", "use_double_wide_mlp": False,
         "vocab_size_per_layer_input": 131}
VISION = {"hidden_size": 16, "model_type": "gemma4_vision", "num_hidden_layers": 1}
WHOLE = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "audio_config": None, "boi_token_id": 100,
         "image_token_id": 101, "tie_word_embeddings": True, "vision_config": VISION, "vision_soft_tokens_per_image": 280}


# The model without inputs of layers or experts, beside which images and sound have no towers.
UNIFIED = {"architectures": ["Gemma4UnifiedForCausalLM"], "model_type": "gemma4_unified_text", **{k: MISSING for k in (
    "enable_moe_block", "hidden_size_per_layer_input", "moe_intermediate_size", "num_experts", "top_k_experts", "vocab_size_per_layer_input")}}
UNIFIED_WHOLE = {**WHOLE, "architectures": ["Gemma4UnifiedForConditionalGeneration"], "model_type": "gemma4_unified",
                 "vision_config": {"model_type": "gemma4_unified_vision", "mm_embed_dim": 16}}


def full(**rope):
    return {"rope_parameters": {**ROPES, "full_attention": rope}}


def dense():
    """As the model of 31B: two sizes of heads, values that are keys."""
    yield "none", {}
    yield "values", {"attention_k_eq_v": False}
    yield "values-global", {"attention_k_eq_v": False, "num_global_key_value_heads": 4}
    yield "kv-heads-missing", {"num_global_key_value_heads": None}
    yield "kv-heads-more", {"num_global_key_value_heads": 4, "num_key_value_heads": 1}
    yield "heads-alike", {"global_head_dim": 12, "num_global_key_value_heads": 2}
    yield "heads-narrow", {"global_head_dim": 8, "num_attention_heads": 8}
    yield "heads-wide", {"global_head_dim": 64, "head_dim": 32, "num_global_key_value_heads": 2}
    yield "by-layer", {"global_head_dim": MISSING, "num_global_key_value_heads": MISSING, "per_layer_config": {
        "2": {"head_dim": 24, "num_key_value_heads": 1}, "4": {"head_dim": 24, "num_key_value_heads": 1}}}
    yield "by-layer-dim", {"global_head_dim": MISSING, "num_global_key_value_heads": MISSING, "attention_k_eq_v": False,
                           "per_layer_config": {"2": {"head_dim": 20}, "4": {"head_dim": 20}}}
    yield "no-cap", {"final_logit_softcapping": None}
    yield "cap", {"final_logit_softcapping": 5.0}
    yield "untied", {"tie_word_embeddings": False}
    yield "types-missing", {"layer_types": MISSING, "num_hidden_layers": 7}
    yield "last-windowed", {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "num_hidden_layers": 3}
    yield "all-full", {"layer_types": ["full_attention"] * 2, "num_hidden_layers": 2}
    yield "one-layer", {"layer_types": ["full_attention"], "num_hidden_layers": 1}
    yield "window-one", {"sliding_window": 1}
    yield "window-wide", {"sliding_window": 250}
    yield "ropes-missing", {"rope_parameters": MISSING}
    yield "rope-half", full(rope_type="proportional", partial_rotary_factor=0.5, rope_theta=5000.0)
    yield "rope-whole", full(rope_type="proportional", rope_theta=5000.0)
    yield "rope-floor", full(rope_type="proportional", partial_rotary_factor=0.3, rope_theta=5000.0)
    yield "rope-factor", full(rope_type="proportional", partial_rotary_factor=0.5, rope_theta=5000.0, factor=4.0)
    yield "rope-default", full(rope_type="default", rope_theta=5000.0)
    yield "rope-linear", full(rope_type="linear", rope_theta=5000.0, factor=2.0)
    yield "rope-windows", {"tie_word_embeddings": False, "rope_parameters": {**ROPES, "sliding_attention": {
        "rope_type": "proportional", "partial_rotary_factor": 0.7, "rope_theta": 5000.0}}}
    yield "act-gelu", {"hidden_activation": "gelu"}
    yield "odd", {"tie_word_embeddings": False, "hidden_size": 54, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 18, "global_head_dim": 22,
                  "num_global_key_value_heads": 3, "intermediate_size": 69, "vocab_size": 97}


# Where lm_head is not the embedding a small model says more than its last token once again.
SMALL = {"attention_k_eq_v": False, "tie_word_embeddings": False, "hidden_size_per_layer_input": 10, "num_global_key_value_heads": None, "num_hidden_layers": 7,
         "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
         "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
                         "sliding_attention", "full_attention"]}


def small():
    """As those of 2B and 4B: inputs of every layer, the last layers' keys and values those of earlier ones."""
    yield "small", {}
    yield "small-tied", {"tie_word_embeddings": True}
    yield "small-narrow", {"use_double_wide_mlp": False}
    yield "small-unshared", {"num_kv_shared_layers": 0}
    yield "small-shared-most", {"num_kv_shared_layers": 4}
    yield "small-keys", {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    # Without inputs transformers fails where it leaves out what nobody wants, unless everything is wanted.
    yield "small-no-inputs", {"hidden_size_per_layer_input": 0, "output_hidden_states": True}
    yield "small-vocab", {"vocab_size_per_layer_input": 200}
    yield "small-vocab-missing", {"vocab_size_per_layer_input": MISSING, "hidden_size_per_layer_input": 2, "num_hidden_layers": 3,
                                  "num_kv_shared_layers": 1, "layer_types": ["sliding_attention", "full_attention", "full_attention"]}
    yield "small-inputs-missing", {"hidden_size_per_layer_input": MISSING, "num_hidden_layers": 3, "num_kv_shared_layers": 1,
                                   "layer_types": ["sliding_attention", "full_attention", "full_attention"]}
    yield "small-mqa", {"num_key_value_heads": 1}
    yield "small-window-one", {"sliding_window": 1}
    yield "small-act-gelu", {"hidden_activation": "gelu"}
    yield "small-by-layer", {"global_head_dim": MISSING, "num_global_key_value_heads": MISSING,
                             "per_layer_config": {"2": {"head_dim": 20}, "6": {"head_dim": 20}}}
    yield "small-odd", {"hidden_size": 54, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 18, "global_head_dim": 22,
                        "hidden_size_per_layer_input": 11, "intermediate_size": 69, "vocab_size": 97, "vocab_size_per_layer_input": 97}


MIXTURE = {"tie_word_embeddings": False, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 20}


def mixture():
    """As that of 26B: experts beside the MLP."""
    yield "mixture", {}
    yield "mixture-tied", {"tie_word_embeddings": True}
    yield "mixture-top-1", {"top_k_experts": 1}
    yield "mixture-top-all", {"top_k_experts": 8}
    yield "mixture-many", {"num_experts": 32, "top_k_experts": 5}
    yield "mixture-act-gelu", {"hidden_activation": "gelu"}
    yield "mixture-small", SMALL
    yield "mixture-odd", {"hidden_size": 54, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 18, "global_head_dim": 22,
                          "num_global_key_value_heads": 3, "intermediate_size": 69, "moe_intermediate_size": 21, "vocab_size": 97}


def unified():
    """Of those of dense(), and what its files say that its family takes for nothing."""
    kept = ("none", "values", "by-layer", "no-cap", "untied", "types-missing", "window-one", "ropes-missing", "rope-half", "act-gelu", "odd")
    yield from ((name, changes) for name, changes in dense() if name in kept)
    yield "window-missing", {"sliding_window": MISSING}
    yield "neutral", {"hidden_size_per_layer_input": 0, "enable_moe_block": False, "num_experts": None, "vocab_size_per_layer_input": None}
    yield "shared", {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}


SAVES = [("f16", {"dtype": "float16"}), ("bf16", {"dtype": "bfloat16"}), ("sharded", {"shards": 3}), ("base", {"base": True}),
         ("tied-head-kept", {"keep_head": True}), ("raw", {"raw": True}), ("whole", {"whole": WHOLE, "prefix": "language_model.model."}),
         ("whole-new", {"whole": WHOLE, "prefix": "model.language_model."})]


def cases():
    """As families_cases.cases."""
    for name, changes in dense():
        config = {k: v for k, v in {**USUAL, **changes}.items() if v is not MISSING}
        yield "gemma4_text/" + name, "gemma4_text", config, {"ranks": 3} if name == "odd" else {}
    for name, changes in small():
        config = {k: v for k, v in {**USUAL, **SMALL, **changes}.items() if v is not MISSING}
        yield "gemma4_text/" + name, "gemma4_text", config, {"ranks": 3} if name == "small-odd" else {}
    for name, changes in mixture():
        config = {k: v for k, v in {**USUAL, **MIXTURE, **changes}.items() if v is not MISSING}
        yield "gemma4_text/" + name, "gemma4_text", config, {"ranks": 3} if name == "mixture-odd" else {}
    for name, changes in unified():
        config = {k: v for k, v in {**USUAL, **UNIFIED, **changes}.items() if v is not MISSING}
        yield "gemma4_unified_text/" + name, "gemma4_unified_text", config, {"ranks": 3} if name == "odd" else {}
    for name, prefix in (("whole", "language_model.model."), ("whole-new", "model.language_model.")):
        config = {k: v for k, v in {**USUAL, **UNIFIED}.items() if v is not MISSING}
        yield "gemma4_unified_text/save-" + name, "gemma4_unified_text", config, {"whole": UNIFIED_WHOLE, "prefix": prefix}
    for name, save in SAVES:  # all tied
        for kind, changes in (("", {}), ("small-", SMALL), ("mixture-", MIXTURE)):
            config = {k: v for k, v in {**USUAL, **changes, "tie_word_embeddings": True, "dtype": save.get("dtype", "float32")}.items() if v is not MISSING}
            yield "gemma4_text/save-" + kind + name, "gemma4_text", config, save
