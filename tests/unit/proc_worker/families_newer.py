"""Small models of the families that transformers came to know last, for families_differential.py."""
from families_cases import SAVES
from families_fields import COMMON, LLAMA3, MISSING, YARN, new_rope

SHAPES = {"odd": {"hidden_size": 54, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 18, "intermediate_size": 69, "vocab_size": 97}}
VISION = {"hidden_size": 16, "num_hidden_layers": 1}
FAMILIES = {
    "nanochat": {**COMMON, "architectures": ["NanoChatForCausalLM"], "attention_bias": False, "final_logit_softcapping": 15.0, "hidden_act": "relu2",
                 "pad_token_id": 1, "rms_norm_eps": 1e-6},
    "apertus1p5_text": {**COMMON, "architectures": ["Apertus1p5TextForCausalLM"], "attention_bias": False, "hidden_act": "xielu", "output_vocab_size": 101,
                        "pad_token_id": 3, "rope_scaling": LLAMA3},
}
# Models that have it as a part.
WHOLES = {"apertus1p5_text": {"architectures": ["Apertus1p5ForConditionalGeneration"], "model_type": "apertus1p5", "image_token_id": 100,
                              "tie_word_embeddings": False, "vision_config": VISION}}


def variants(family):
    yield "none", {}
    yield "mha", {"num_key_value_heads": 4}
    yield "kv-missing", {"num_key_value_heads": MISSING}
    yield "one-layer", {"num_hidden_layers": 1, "vocab_size": 128}
    yield "deep", {"num_hidden_layers": 13}
    if family == "nanochat":
        yield "head-dim", {"head_dim": 22}
        yield "bias", {"attention_bias": True}
        yield "no-cap", {"final_logit_softcapping": None}
        yield "cap", {"final_logit_softcapping": 2.0}
        yield "act-gelu", {"hidden_act": "gelu"}
        yield "eps", {"rms_norm_eps": 1e-3}
        yield "new-rope", new_rope({}, 100000.0)
        yield "llama3", {"rope_scaling": LLAMA3}
        yield "yarn", {"rope_scaling": YARN}
        yield "dynamic", {"rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_position_embeddings": 24}
        yield "defaults", {k: MISSING for k in ("attention_bias", "final_logit_softcapping", "hidden_act", "rms_norm_eps", "rope_theta", "tie_word_embeddings")}
    if family == "apertus1p5_text":
        yield "whole-vocabulary", {"output_vocab_size": 131}
        yield "vocabulary-null", {"output_vocab_size": None}
        yield "bias", {"attention_bias": True}
        yield "new-rope", new_rope({**LLAMA3, "factor": 4.0}, 100000.0)
        yield "head-dim", {"head_dim": 22}
        yield "tied", {"output_vocab_size": MISSING, "tie_word_embeddings": True}
        yield "defaults", {k: MISSING for k in ("attention_bias", "hidden_act", "output_vocab_size", "rms_norm_eps", "tie_word_embeddings")}
    yield "odd", {**SHAPES["odd"], **({"output_vocab_size": 71} if family == "apertus1p5_text" else {})}


def config(family, changes):
    return {k: v for k, v in {**FAMILIES[family], "model_type": family, **changes}.items() if v is not MISSING}


def saves(family):
    for name, save in SAVES:
        if name != "tied-head-kept":
            yield name, save
    if family in WHOLES:
        yield "whole", {"whole": WHOLES[family], "prefix": "model.language_model."}


def cases():
    """As families_cases.cases."""
    for family in FAMILIES:
        for name, changes in variants(family):
            yield "%s/%s" % (family, name), family, config(family, changes), {"ranks": 3} if name == "odd" else {}
        for name, save in saves(family):
            yield "%s/save-%s" % (family, name), family, config(family, {"torch_dtype": save.get("dtype", "float32")}), save
