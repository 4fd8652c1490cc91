"""Small models of the families that transformers came to know last, for families_differential.py."""
import re

import torch

from families_cases import SAVES
from families_fields import COMMON, LLAMA3, MISSING, YARN, new_rope

SHAPES = {"odd": {"hidden_size": 54, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 18, "intermediate_size": 69, "vocab_size": 97}}
VISION = {"hidden_size": 16, "num_hidden_layers": 1}
FAMILIES = {
    "nanochat": {**COMMON, "architectures": ["NanoChatForCausalLM"], "attention_bias": False, "final_logit_softcapping": 15.0, "hidden_act": "relu2",
                 "pad_token_id": 1, "rms_norm_eps": 1e-6},
    "apertus1p5_text": {**COMMON, "architectures": ["Apertus1p5TextForCausalLM"], "attention_bias": False, "hidden_act": "xielu", "output_vocab_size": 101,
                        "pad_token_id": 3, "rope_scaling": LLAMA3},
    "kolibri1": {**{k: v for k, v in COMMON.items() if k != "intermediate_size"}, "architectures": ["Kolibri1ForCausalLM"], "head_dim": 12,
                 "moe_intermediate_size": 20, "norm_topk_prob": True, "num_experts_per_tok": 3, "num_hidden_layers": 6, "num_local_experts": 8,
                 "output_router_logits": False, "pad_token_id": None, "shared_expert_intermediate_size": 28, "sliding_window": 17},
    "laguna": {**{k: v for k, v in COMMON.items() if k != "rope_theta"}, "architectures": ["LagunaForCausalLM"], "attention_bias": False, "gating": "per-head",
               "head_dim": 12, "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
               "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "moe_apply_router_weight_on_input": False, "moe_intermediate_size": 20,
               "moe_routed_scaling_factor": 2.5, "moe_router_logit_softcapping": 0.0, "num_attention_heads_per_layer": [4, 6, 6, 4], "num_experts": 8,
               "num_experts_per_tok": 3, "num_hidden_layers": 4, "output_router_logits": False, "pad_token_id": None, "router_aux_loss_coef": 0.0,
               "shared_expert_intermediate_size": 28, "sliding_window": 17, "rope_parameters": {
                   "full_attention": {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16.0,
                                      "beta_slow": 1.0, "attention_factor": 1.1, "partial_rotary_factor": 0.5},
                   "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}}},
    "muse_glimmer_text": {**{k: v for k, v in COMMON.items() if k not in ("hidden_act", "rope_theta")}, "attention_bias": False, "final_logit_softcapping": 20.0,
                          "head_dim": 12, "hidden_activation": "silu", "num_hidden_layers": 5, "output_multiplier": 0.7, "pad_token_id": None,
                          "post_norm_eps": 1e-3, "qk_scale_factor": 2.5, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
                          "sliding_window": 17},
    "ernie4_5_vl_moe_text": {**{k: v for k, v in COMMON.items() if k not in ("rope_theta", "tie_word_embeddings")}, "moe_intermediate_size": [20, 12], "moe_k": 3,
                             "moe_norm_min": 1e-12, "moe_num_experts": 8, "moe_num_shared_experts": 2, "output_router_logits": False, "pad_token_id": None,
                             "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default", "mrope_section": [2, 2, 1]}, "router_aux_loss_coef": 0.001, "use_bias": False},
}
LISTS = ("layer_types", "mlp_layer_types", "num_attention_heads_per_layer")
# These are only ever parts: families_vision.py.
PARTS = ("muse_glimmer_text", "ernie4_5_vl_moe_text")
# Models that have it as a part.
WHOLES = {"apertus1p5_text": {"architectures": ["Apertus1p5ForConditionalGeneration"], "model_type": "apertus1p5", "image_token_id": 100,
                              "tie_word_embeddings": False, "vision_config": VISION}}


def variants(family):
    yield "none", {}
    if family != "laguna":
        yield "mha", {"num_key_value_heads": 4}
        yield "kv-missing", {"num_key_value_heads": MISSING}
    yield "one-layer", {"num_hidden_layers": 1, "vocab_size": 128, **({k: FAMILIES[family][k][:1] for k in LISTS} if family == "laguna" else {})}
    yield "deep", {"num_hidden_layers": 13, **({k: (FAMILIES[family][k] * 4)[:13] for k in LISTS} if family == "laguna" else {})}
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
    if family == "laguna":
        default = {"rope_type": "default", "rope_theta": 10000.0}
        yield "per-element", {"gating": "per-element"}
        yield "gating-true", {"gating": True}
        yield "gating-missing", {"gating": MISSING}
        yield "heads-alike", {"num_attention_heads_per_layer": MISSING}
        yield "heads-few-first", {"num_attention_heads_per_layer": [8, 2, 4, 6]}
        yield "heads-local-wide", {"num_attention_heads_per_layer": [2, 8, 8, 8], "gating": "per-element"}
        yield "mqa", {"num_key_value_heads": 1}
        yield "full", {"layer_types": MISSING}
        yield "all-sparse", {"mlp_layer_types": ["sparse"] * 4}
        yield "dense-missing", {"mlp_layer_types": MISSING}
        yield "ropes", {"rope_parameters": {"full_attention": {**default, **LLAMA3, "partial_rotary_factor": 0.67}, "sliding_attention": {**default, "partial_rotary_factor": 0.34}}}
        yield "ropes-plain", {"rope_parameters": {"full_attention": default, "sliding_attention": default}}
        yield "experts", {"num_experts": 16, "num_experts_per_tok": 7}
        yield "top-1", {"num_experts_per_tok": 1}
        yield "tied", {"tie_word_embeddings": True}
        yield "defaults", {k: MISSING for k in ("attention_bias", "moe_apply_router_weight_on_input", "moe_routed_scaling_factor", "moe_router_logit_softcapping",
                                                "rms_norm_eps", "tie_word_embeddings")}
    if family == "kolibri1":
        yield "no-norm", {"norm_topk_prob": False}
        yield "norm-missing", {"norm_topk_prob": MISSING}
        yield "top-1", {"num_experts_per_tok": 1}
        yield "experts", {"num_local_experts": MISSING, "num_experts": 16, "num_experts_per_tok": 7}
        yield "types", {"layer_types": ["full_attention", "sliding_attention"] * 3}
        yield "window-wide", {"sliding_window": 250}
        yield "llama3", new_rope(LLAMA3, 500000.0)
        yield "defaults", {k: MISSING for k in ("norm_topk_prob", "rms_norm_eps", "rope_theta", "tie_word_embeddings")}
        yield "tied", {"tie_word_embeddings": True}
        yield "act-gelu", {"hidden_act": "gelu"}
    if family == "laguna":
        yield "odd", {**SHAPES["odd"], "head_dim": 20, "moe_intermediate_size": 21, "shared_expert_intermediate_size": 33, "num_attention_heads_per_layer": [6, 9, 3, 12]}
        return
    yield "odd", {**({"moe_intermediate_size": 21, "shared_expert_intermediate_size": 33} if family == "kolibri1" else {}), **SHAPES["odd"], **({"output_vocab_size": 71} if family == "apertus1p5_text" else {})}


def part_variants(family):
    yield "deep", {"num_hidden_layers": 13}
    yield "one-layer", {"num_hidden_layers": 1}
    if family == "ernie4_5_vl_moe_text":
        yield "listed", {"mlp_layer_types": ["sparse", "dense", "sparse"]}
        yield "one-shared", {"moe_num_shared_experts": 1, "moe_k": 1}
        yield "norm-min", {"moe_norm_min": 0.9}
        yield "defaults", {k: MISSING for k in ("mlp_layer_types", "moe_norm_min", "moe_num_shared_experts", "rms_norm_eps", "use_bias")}
    if family == "muse_glimmer_text":
        yield "types", {"layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]}
        yield "thetas", {"layer_rope_theta": [10000.0, 0, 0, 10000, 10000.0]}
        yield "rope", {"rope_parameters": {"rope_theta": 500000.0, **LLAMA3}}
        yield "plain", {"qk_scale_factor": 1.0, "output_multiplier": 1.0, "post_norm_eps": 1e-5, "final_logit_softcapping": 5.0}
        yield "act-gelu", {"hidden_activation": "gelu"}
        yield "defaults", {k: MISSING for k in ("attention_bias", "final_logit_softcapping", "hidden_activation", "output_multiplier", "post_norm_eps",
                                                "qk_scale_factor", "rms_norm_eps", "rope_parameters", "tie_word_embeddings")}


def ernie_layer(tensors, layer):
    """One layer's experts and what routes to them, as files have them."""
    text, images = ({k: tensors["%s.mlp.%s_moe.%s" % (layer, side, k)] for k in ("gate.weight", "gate.moe_statics.e_score_correction_bias", "experts.gate_up_proj",
                                                                                   "experts.down_proj")} for side in ("text", "vision"))
    out = {"gate.weight": text["gate.weight"].T, "gate.weight_1": images["gate.weight"].T,
           "moe_statics.e_score_correction_bias": torch.cat([side["gate.moe_statics.e_score_correction_bias"] for side in (text, images)])}
    for side, first in ((text, 0), (images, len(text["gate.weight"]))):
        for i, both in enumerate(side["experts.gate_up_proj"]):
            gate, up = both.chunk(2)
            out.update({"experts.%d.%s_proj.weight" % (first + i, k): x for k, x in (("gate", gate), ("up", up), ("down", side["experts.down_proj"][i]))})
    return {"%s.mlp.%s" % (layer.replace(".language_model.", "."), k): x for k, x in out.items()}


def ernie_to_file(tensors):
    """What save_pretrained makes of it; what it has made already stays as it is."""
    out = {k.replace("model.language_model.", "model."): x for k, x in tensors.items() if "_moe." not in k}
    for layer in (k.removesuffix(".mlp.text_moe.gate.weight") for k in tensors if k.endswith("text_moe.gate.weight")):
        out.update(ernie_layer(tensors, layer))
    return out


def ernie_from_file(tensors, state):
    out = {k: tensors[k.replace("model.language_model.", "model.")] for k in state if "_moe." not in k}
    for name in (k for k in state if "_moe." in k):
        layer, side, part = re.match(r"(.*\.mlp\.)(text|vision)_moe\.(.*)", name.replace(".language_model.", ".")).groups()
        images, count = side == "vision", tensors[layer + "gate.weight"].shape[1]
        experts = range(images * count, (1 + images) * count)
        out[name] = {"gate.weight": lambda: tensors[layer + "gate.weight" + "_1" * images].T,
                     "gate.moe_statics.e_score_correction_bias": lambda: tensors[layer + "moe_statics.e_score_correction_bias"][images:][:1],
                     "experts.gate_up_proj": lambda: torch.stack([torch.cat([tensors["%sexperts.%d.%s_proj.weight" % (layer, i, k)] for k in ("gate", "up")])
                                                                  for i in experts]),
                     "experts.down_proj": lambda: torch.stack([tensors["%sexperts.%d.down_proj.weight" % (layer, i)] for i in experts])}[part]().contiguous()
    return out


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
    for family in (f for f in FAMILIES if f not in PARTS):
        for name, changes in variants(family):
            yield "%s/%s" % (family, name), family, config(family, changes), {"ranks": 3} if name == "odd" else {}
        for name, save in saves(family):
            yield "%s/save-%s" % (family, name), family, config(family, {"torch_dtype": save.get("dtype", "float32")}), save


def device_cases():
    """As families_cases.device_cases."""
    import families_vision  # which has the families of this file for parts

    sizes = {"hidden_size": 64, "intermediate_size": 96, "torch_dtype": "bfloat16"}
    for family in ("nanochat", "apertus1p5_text"):
        yield family, config(family, sizes), {}
    yield "kolibri1", config("kolibri1", {**sizes, "intermediate_size": MISSING, "head_dim": 16, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
                                          "num_local_experts": 32, "num_experts_per_tok": 23, "num_hidden_layers": 5}), {}
    part = config("muse_glimmer_text", {**sizes, "head_dim": 16, "qk_scale_factor": 0.6, "post_norm_eps": 0.05, "torch_dtype": MISSING})
    yield "muse_glimmer", families_vision.whole("muse_glimmer", part, torch_dtype="bfloat16"), {}
    part = config("ernie4_5_vl_moe_text", {**sizes, "moe_k": 7, "moe_num_experts": 16, "rope_parameters": {
        "rope_theta": 500000.0, "rope_type": "default", "mrope_section": [3, 3, 2]}, "torch_dtype": MISSING})
    yield "ernie4_5_vl_moe", families_vision.whole("ernie4_5_vl_moe", part, torch_dtype="bfloat16"), {}
