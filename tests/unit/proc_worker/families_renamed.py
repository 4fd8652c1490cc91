"""Small models of families whose tensors have other names or numbers than what computes the same, for families_differential.py. EXAONE 3 is
Llama, Ling 2 GLM 4.5 and the language part of Phi 4 Multimodal Phi 3, and transformers has none of them so: families_standins.py makes references of them by what is here. Llama 3.2
Vision without an image is Llama without some of its layers."""
import re

import torch

from families_fields import COMMON, LLAMA3, MISSING, YARN, new_rope

EXAONE = {**COMMON, "architectures": ["ExaoneForCausalLM"], "model_type": "exaone", "num_hidden_layers": MISSING, "num_layers": 3,
          "hidden_act": MISSING, "activation_function": "silu", "rms_norm_eps": MISSING, "layer_norm_epsilon": 1e-5, "head_dim": 10,
          "embed_dropout": 0.0, "pad_token_id": 0, "rope_theta": 500000.0, "rope_scaling": None,
          "auto_map": {"AutoConfig": "configuration_exaone.ExaoneConfig"}}
LING = {**COMMON, "architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe", "head_dim": 12, "partial_rotary_factor": 0.5,
        "moe_intermediate_size": 20, "moe_shared_expert_intermediate_size": 20, "num_experts": 8, "num_shared_experts": 1, "num_experts_per_tok": 3,
        "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "score_function": "sigmoid", "router_dtype": "fp32",
        "moe_router_enable_expert_bias": True, "first_k_dense_replace": 1, "use_qk_norm": True, "use_qkv_bias": False, "use_bias": False,
        "use_rmsnorm": True, "embedding_dropout": 0.0, "output_dropout": 0.0, "rope_scaling": None, "rope_theta": 600000, "pad_token_id": 0,
        "num_nextn_predict_layers": 0, "mtp_loss_scaling_factor": 0, "auto_map": {"AutoConfig": "configuration_bailing_moe_v2.BailingMoeV2Config"}}

# What the reference calls it, and the file. Between "model.layers.0." and "transformer.h.0." as well.
NAMES = [("model.embed_tokens.", "transformer.wte."), ("model.norm.", "transformer.ln_f."), ("model.layers.", "transformer.h."),
         (".input_layernorm.", ".ln_1."), (".post_attention_layernorm.", ".ln_2."), (".self_attn.o_proj.", ".attn.attention.out_proj."),
         (".self_attn.", ".attn.attention."), (".mlp.gate_proj.", ".mlp.c_fc_0."), (".mlp.up_proj.", ".mlp.c_fc_1."), (".mlp.down_proj.", ".mlp.c_proj.")]


def exaone_name(name):
    for ours, file in NAMES:
        name = name.replace(ours, file)
    return name


def without(c, *names):
    return {k: v for k, v in c.items() if k not in (*names, "auto_map")}


def exaone_config(c):
    return {**without(c, "num_layers", "activation_function", "layer_norm_epsilon", "embed_dropout"), "architectures": ["LlamaForCausalLM"],
            "model_type": "llama", "num_hidden_layers": c["num_layers"], "hidden_act": c["activation_function"],
            "rms_norm_eps": c.get("layer_norm_epsilon", 1e-5), "tie_word_embeddings": c.get("tie_word_embeddings", True)}


def ling_config(c):
    return {**without(c, "num_experts", "num_shared_experts", "use_qkv_bias", "score_function", "router_dtype", "use_rmsnorm", "use_bias", "rotary_dim"),
            "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "n_routed_experts": c["num_experts"],
            "n_shared_experts": c.get("num_shared_experts", 0), "attention_bias": c.get("use_qkv_bias", False), "use_qk_norm": True,
            **({"partial_rotary_factor": c["rotary_dim"] / c["head_dim"]} if "rotary_dim" in c else {})}


def phi_config(c):
    return {**without(c, "audio_processor", "embd_layer", "full_attn_mod", "img_processor", "interpolate_factor", "lm_head_bias", "mlp_bias", "speech_lora",
                      "vision_lora", "audio_config", "vision_config"), "architectures": ["Phi3ForCausalLM"], "model_type": "phi3"}


def phi_name(name):
    """Matrices that adapters for images and sound are added to."""
    return re.sub(r"((qkv|o|gate_up|down)_proj)\.", r"\1.base_layer.", name)


def phi_to_file(tensors):
    adapters = {phi_name(name).replace("base_layer", "lora_%s.%s" % (side, kind)): torch.ones(4, 4)
                for name in tensors if phi_name(name) != name for side in "AB" for kind in ("speech", "vision")}
    return {**{phi_name(name): t for name, t in tensors.items()}, **adapters}


def phi4mm():
    yield "none", {}
    yield "plain-rope", {"rope_scaling": None}
    yield "window", {"sliding_window": 8}
    yield "untied", {"tie_word_embeddings": False}
    yield "odd", {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 69, "vocab_size": 97}


def phi4_multimodal():
    yield "none", {}
    yield "untied", {"tie_word_embeddings": False}


def exaone():
    yield "none", {}
    yield "llama3", {"rope_scaling": {**LLAMA3, "factor": 8.0}, "rope_theta": 1000000}
    yield "dynamic", {"rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_position_embeddings": 24}
    yield "head-dim-missing", {"head_dim": MISSING}
    yield "kv-missing", {"num_key_value_heads": MISSING}
    yield "tied", {"tie_word_embeddings": True}
    yield "tied-unsaid", {"tie_word_embeddings": MISSING}
    yield "act-gelu", {"activation_function": "gelu"}
    yield "eps", {"layer_norm_epsilon": 1e-2}
    yield "one-layer", {"num_layers": 1}
    yield "odd", {"hidden_size": 54, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 18, "intermediate_size": 69, "vocab_size": 97}


def ling():
    yield "none", {}
    yield "groups", {"n_group": 4, "topk_group": 2, "num_experts": 16, "num_experts_per_tok": 5}
    yield "biases", {"use_qkv_bias": True}
    yield "no-norm", {"norm_topk_prob": False}
    yield "scale", {"routed_scaling_factor": 1.0}
    yield "shared-more", {"num_shared_experts": 3, "moe_shared_expert_intermediate_size": 60, "first_k_dense_replace": 2}
    yield "shared-unsaid", {"moe_shared_expert_intermediate_size": MISSING}
    yield "no-dense", {"first_k_dense_replace": 0}
    yield "rotates-whole", {"partial_rotary_factor": 1.0}
    yield "rotates-quarter", {"head_dim": 16, "partial_rotary_factor": 0.25}
    yield "rotary-dim", {"partial_rotary_factor": MISSING, "rotary_dim": 8}
    yield "yarn", {"rope_scaling": YARN}
    yield "new-rope", new_rope({"partial_rotary_factor": 0.5}, 5e5)
    yield "tied", {"tie_word_embeddings": True}
    yield "odd", {"hidden_size": 54, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 20, "intermediate_size": 69, "vocab_size": 97,
                  "moe_intermediate_size": 21, "moe_shared_expert_intermediate_size": 21}


LONG = {"type": "longrope", "short_factor": [1.0, 1.1, 1.25, 1.4], "long_factor": [1.5, 2.0, 3.0, 4.5]}  # of 8 dimensions of 10
ADAPTER = {"dp": 0.01, "layer": "((layers.*self_attn\\.(qkv|o)_proj)|(layers.*mlp\\.(gate_up|down)_proj))", "lora_alpha": 320, "r": 4}
PHI4MM = {**COMMON, "architectures": ["Phi4MMForCausalLM"], "model_type": "phi4mm", "attention_bias": False, "audio_processor": {"name": "cascades"},
          "embd_layer": {"embedding_cls": "image_audio"}, "embd_pdrop": 0.0, "full_attn_mod": 1, "img_processor": None, "interpolate_factor": 1,
          "lm_head_bias": False, "mlp_bias": False, "original_max_position_embeddings": 32, "pad_token_id": 0, "partial_rotary_factor": 0.8,
          "resid_pdrop": 0.0, "rope_scaling": LONG, "sliding_window": 262144, "speech_lora": ADAPTER, "vision_lora": ADAPTER,
          "tie_word_embeddings": True, "auto_map": {"AutoConfig": "configuration_phi4mm.Phi4MMConfig"}}
PHI4_MULTIMODAL = {**COMMON, "architectures": ["Phi4MultimodalForCausalLM"], "model_type": "phi4_multimodal", "audio_config": {"hidden_size": 8},
                   "vision_config": {"hidden_size": 8}, "original_max_position_embeddings": 32, "pad_token_id": 0, "rope_theta": MISSING,
                   "partial_rotary_factor": MISSING, "sliding_window": None, "tie_word_embeddings": True,
                   "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.8, "original_max_position_embeddings": 32,
                                       "short_factor": LONG["short_factor"], "long_factor": LONG["long_factor"]}}
MLLAMA = {**COMMON, "architectures": ["MllamaForCausalLM"], "model_type": "mllama_text_model", "num_hidden_layers": 5, "cross_attention_layers": [1, 3],
          "rope_scaling": {**LLAMA3, "factor": 8.0}, "rope_theta": 500000.0, "dropout": 0, "pad_token_id": 4}
WHOLE = {"architectures": ["MllamaForConditionalGeneration"], "model_type": "mllama", "image_token_index": 131, "tie_word_embeddings": False,
         "vision_config": {"hidden_size": 16, "model_type": "mllama_vision_model", "num_hidden_layers": 1}}


def mllama():
    yield "none", {}
    yield "first-and-last", {"cross_attention_layers": [4, 0]}
    yield "no-cross", {"cross_attention_layers": []}
    yield "one-left", {"cross_attention_layers": [0, 1, 2, 4]}
    yield "no-scaling", {"rope_scaling": {"rope_type": "default"}}
    yield "mqa", {"num_key_value_heads": 1}
    yield "odd", {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 69, "vocab_size": 97}


FAMILIES = {"phi4mm": (PHI4MM, phi4mm), "phi4_multimodal": (PHI4_MULTIMODAL, phi4_multimodal), "mllama": (MLLAMA, mllama), "exaone": (EXAONE, exaone), "bailing_moe": (LING, ling)}
WHOLE_SAVES = [("newer", {"whole": WHOLE, "prefix": "model.language_model."}),
               ("sharded", {"whole": WHOLE, "prefix": "language_model.model.", "shards": 3})]
SAVES = [("bf16", {"dtype": "bfloat16"}), ("sharded", {"shards": 3})]


def cases():
    """As families_cases.cases."""
    for family, (usual, variants) in FAMILIES.items():
        for name, changes in variants():
            config = {k: v for k, v in {**usual, **changes}.items() if v is not MISSING}
            how = {"whole": WHOLE, "prefix": "language_model.model."} if family == "mllama" else {}
            yield family + "/" + name, family, config, {**how, "ranks": 3} if name == "odd" else how
        for name, save in SAVES if family != "mllama" else WHOLE_SAVES:
            config = {k: v for k, v in usual.items() if v is not MISSING}
            yield family + "/save-" + name, family, {**config, "torch_dtype": save.get("dtype", "float32")}, save
