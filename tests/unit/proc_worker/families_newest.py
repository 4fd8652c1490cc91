"""Small models of the families of transformers 5.24 that came last, for families_differential.py: language parts of wholes, which families_vision.py has
with the others, and models of text alone."""
import torch

from families_fields import COMMON, LLAMA3, MISSING, YARN

KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
VISION = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
HY4 = {**{k: v for k, v in COMMON.items() if k != "rope_theta"}, "architectures": ["HYV4ForCausalLM"], "model_type": "hy_v4", "attention_bias": False, "hc_eps": 1e-6,
       "hc_magnitude": 2.0, "hc_mult": 4, "head_dim": 10, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 100, "kv_lora_rank": 22, "learnable_sink_init": 0.0,
       "mlp_layer_types": ["dense", "sparse", "sparse"], "moe_intermediate_size": 20, "n_group": 1, "n_routed_experts": 8, "n_shared_experts": 1,
       "norm_topk_prob": True, "num_experts_per_tok": 3, "num_key_value_heads": 4, "output_router_logits": False, "pad_token_id": 0, "q_lora_rank": 26,
       "qk_nope_head_dim": 14, "qk_rope_head_dim": 10, "rope_parameters": PLAIN, "routed_scaling_factor": 2.827, "swiglu_limit": 10.0, "tie_word_embeddings": False,
       "topk_group": 1, "v_head_dim": 12}
# As the authors' files have it: lists go on behind the four layers of the model.
PARTS = {
    "step3p5": {**{k: v for k, v in COMMON.items() if k not in ("hidden_act", "num_key_value_heads", "tie_word_embeddings")}, "att_impl_type": "GQA",
                "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 6, "num_attention_groups": 2, "head_dim": 12,
                                            "true_head_dim": 12},
                "head_dim": 12, "layer_types": KINDS, "moe_every_n_layer": 1, "moe_intermediate_size": 20, "moe_layer_offset": 0, "moe_layers_enum": "1,2,3",
                "moe_num_experts": 8, "moe_router_activation": "sigmoid", "moe_router_scaling_factor": 2.5, "moe_top_k": 3, "need_fp32_gate": True,
                "norm_expert_weight": True, "num_attention_groups": 2, "num_hidden_layers": 4, "num_nextn_predict_layers": 1, "pad_token_id": 1,
                "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0], "rope_scaling": {**LLAMA3, "factor": 2.0}, "rope_theta": [5e6, 1e4, 1e4, 5e6, 1e4],
                "share_expert_dim": 28, "sliding_window": 17, "swiglu_limits": [0.0, 0.0, 0.4, 0.6, 0.0], "swiglu_limits_shared": [0.7, 0, None, 0.5, 16],
                "use_head_wise_attn_gate": True, "use_moe": True, "use_moe_router_bias": True, "use_rope_layers": [], "yarn_only_types": ["full_attention"],
                "zero_centered": True},
    "hy_v4_vl_text": {**{k: v for k, v in HY4.items() if k != "tie_word_embeddings"}, "rope_parameters": {**PLAIN, "mrope_section": [2, 2, 1]}},
}
WHOLES = {"step3p7": ("Step3p7", {"image_token_id": 1, "projector_bias": False, "vision_config": VISION}, ["step3p5"]),
          "hy_v4_vl": ("HYV4VL", {"image_token_id": 1, "video_token_id": 0, "vision_config": {**VISION, "out_hidden_size": 40}}, ["hy_v4_vl_text"])}
ODD = {"step3p5": {"attention_other_setting": {"num_attention_heads": 9}, "head_dim": 20, "moe_intermediate_size": 21, "num_attention_groups": 3,
                   "num_key_value_heads": MISSING, "share_expert_dim": 33},
       "hy_v4_vl_text": {"head_dim": 6, "hc_mult": 3, "kv_lora_rank": 18, "moe_intermediate_size": 21, "num_key_value_heads": 6, "qk_nope_head_dim": 9,
                         "qk_rope_head_dim": 6, "rope_parameters": {**PLAIN, "mrope_section": [1, 1, 1]}, "v_head_dim": 11}}
# What transformers writes of the same.
SAVED = {**{k: MISSING for k in ("att_impl_type", "attention_other_setting", "moe_every_n_layer", "moe_layer_offset", "moe_layers_enum", "moe_num_experts",
                                 "moe_router_activation", "moe_top_k", "need_fp32_gate", "norm_expert_weight", "num_attention_groups", "partial_rotary_factors",
                                 "rope_scaling", "rope_theta", "use_head_wise_attn_gate", "use_moe", "use_moe_router_bias", "use_rope_layers",
                                 "yarn_only_types", "zero_centered")},
         "attention_bias": False, "hidden_act": "silu", "layer_types": KINDS[:4], "mlp_bias": False, "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
         "mtp_layer_types": KINDS[4:], "mtp_mlp_layer_types": ["sparse"], "n_routed_experts": 8, "num_experts_per_tok": 3, "num_key_value_heads": 2,
         "num_nextn_predict_layers": 1, "num_sliding_attention_heads": 6, "output_router_logits": False,
         "per_layer_config": {"1": {"num_attention_heads": 6}, "2": {"num_attention_heads": 8}}, "query_pre_attn_scalar": 20, "swiglu_limits": [0.5] * 4,
         "rope_parameters": {"full_attention": {**PLAIN, **YARN, "rope_type": "yarn", "partial_rotary_factor": 0.67}, "sliding_attention": {**PLAIN, "partial_rotary_factor": 0.34}},
         "swiglu_limits_shared": None}


def part_variants(part):
    if part == "hy_v4_vl_text":
        yield "deep", {"num_hidden_layers": 9, "mlp_layer_types": MISSING}
        yield "limit", {"swiglu_limit": 0.3}
        yield "defaults", {**{k: MISSING for k in PARTS[part]}, "hidden_size": 24, "intermediate_size": 20, "kv_lora_rank": 22, "max_position_embeddings": 256, "model_type": part,
                           "moe_intermediate_size": 4, "num_attention_heads": 2, "num_hidden_layers": 2, "q_lora_rank": 26, "vocab_size": 131, "pad_token_id": 0}
    if part == "step3p5":
        yield "saved", SAVED
        yield "no-limits", {"swiglu_limits": MISSING, "swiglu_limits_shared": None}
        yield "limits-wide", {"swiglu_limits": [7.0] * 5, "swiglu_limits_shared": [16.0] * 5, "hidden_act": "swigluoai"}
        yield "heads-alike", {"attention_other_setting": MISSING, "moe_layers_enum": [0, 2]}
        yield "heads-sliding", {"attention_other_setting": MISSING, "num_sliding_attention_heads": 8, "num_attention_heads": 2}
        yield "theta-number", {"rope_theta": 500000.0, "rope_scaling": MISSING, "partial_rotary_factors": MISSING, "yarn_only_types": MISSING}
        yield "windows-all", {"layer_types": ["sliding_attention"] * 5, "rope_theta": 1e4, "partial_rotary_factors": [0.5] * 5}
        yield "top-1", {"moe_top_k": 1, "moe_router_scaling_factor": MISSING}
        yield "deep", {"num_hidden_layers": 13, **{k: (PARTS[part][k] * 3)[:14] for k in ("swiglu_limits", "swiglu_limits_shared")},
                       "layer_types": (KINDS * 3)[:14], "moe_layers_enum": MISSING, "partial_rotary_factors": [[0.5, 1.0][k[0] == "s"] for k in KINDS * 3][:14],
                       "rope_theta": [[5e6, 1e4][k[0] == "s"] for k in KINDS * 3][:14]}
        yield "defaults", {**{k: MISSING for k in PARTS[part]}, "hidden_size": 40, "intermediate_size": 56, "layer_types": KINDS[:4], "max_position_embeddings": 256,
                           "model_type": part, "num_attention_heads": 8, "num_hidden_layers": 4, "sliding_window": 17, "vocab_size": 131}


def step_config(c):
    """Step 3.5, of text alone, is there as a part."""
    name, fields, _ = WHOLES["step3p7"]
    return {"architectures": [name + "ForConditionalGeneration"], "model_type": "step3p7", "torch_dtype": "float32", "tie_word_embeddings": False, **fields, "text_config": c}


STEP = [("model.language_model.", "model."), (".mlp.gate.e_score_correction_bias", ".moe.router_bias"), (".mlp.gate.", ".moe.gate."),
        (".mlp.shared_experts.", ".share_expert."), (".mlp.experts.down_proj", ".moe.down_proj.weight")]
STEP_GATE_UP = ".mlp.experts.gate_up_proj"


def step_name(name):
    for ours, file in STEP:
        name = name.replace(ours, file)
    return name


def step_to_file(tensors):
    """As files have the experts: stacks of gates and of what they multiply. What has its name in the file already keeps it, and images are left out."""
    out = {}
    for name, t in tensors.items():
        if name.endswith(STEP_GATE_UP):
            out.update({step_name(name.replace(STEP_GATE_UP, ".moe.%s_proj.weight" % part)): x for part, x in zip(("gate", "up"), t.chunk(2, 1))})
        elif "lm_head" in name or ".layers." in step_name(name) and "vision" not in name or ".embed_tokens." in name or step_name(name) == "model.norm.weight":
            out[step_name(name)] = t
    return out


def step_from_file(tensors, state):
    def whole(name, t):
        if name.endswith(STEP_GATE_UP):
            return torch.cat([tensors[step_name(name.replace(STEP_GATE_UP, ".moe.%s_proj.weight" % part))] for part in ("gate", "up")], 1)
        return tensors.get(step_name(name), t)
    return {name: whole(name, t) for name, t in state.items()}


BAILING = {**{k: v for k, v in COMMON.items() if k not in ("tie_word_embeddings",)}, "architectures": ["BailingHybridForCausalLM"], "model_type": "bailing_hybrid",
           "attention_bias": False, "first_k_dense_replace": 1, "head_dim": 6, "kda_lower_bound": -5.0, "kda_safe_gate": True, "kv_lora_rank": 22,
           "layer_group_size": 3, "moe_intermediate_size": 20, "n_group": 4, "norm_topk_prob": True, "num_experts": 16, "num_experts_per_tok": 5, "num_hidden_layers": 5,
           "num_key_value_heads": 4, "num_nextn_predict_layers": 1, "num_shared_experts": 1, "pad_token_id": 0, "q_lora_rank": None, "qk_nope_head_dim": 14,
           "qk_rope_head_dim": 10, "rope_theta": 10000.0, "routed_scaling_factor": 2.5, "score_function": "sigmoid", "short_conv_kernel_size": 4, "topk_group": 2,
           "v_head_dim": 12}


def bailing():
    linear, full = "linear_attention", "full_attention"
    yield "none", {}
    yield "saved", {**{k: MISSING for k in ("n_group", "norm_topk_prob", "num_experts_per_tok", "max_position_embeddings")}, "head_dim": 10, "linear_conv_kernel_dim": 4,
                    "layer_types": [linear, linear, full, linear, full], "linear_head_dim": 6, "linear_num_heads": 4, "mlp_layer_types": ["sparse", "dense"] + ["sparse"] * 3,
                    "model_max_length": 256, "moe_renormalize": True, "mtp_loss_scaling_factor": 0.0, "num_expert_group": 4, "num_experts_per_token": 5,
                    "output_router_logits": False, "pretraining_tp": 1, "qk_head_dim": 24, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
    yield "no-bound", {"kda_safe_gate": False}
    yield "bound-near", {"kda_lower_bound": -0.25}
    yield "bound-far", {"kda_lower_bound": -40.0}
    yield "q-rank", {"q_lora_rank": 31}
    yield "groups-two", {"layer_group_size": 2, "num_hidden_layers": 4}
    yield "all-attention", {"layer_group_size": 1, "num_hidden_layers": 3}
    yield "attention-first", {"layer_types": [full, linear, linear, full, linear]}
    yield "deep", {"num_hidden_layers": 13}
    yield "taps-2", {"short_conv_kernel_size": 2}
    yield "heads-wide", {"head_dim": 48}
    yield "heads-others", {"linear_num_heads": 6, "linear_head_dim": 5}
    yield "narrow", {"kv_lora_rank": 6, "v_head_dim": 19, "qk_nope_head_dim": 34}
    yield "one-expert", {"num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
    yield "no-norm", {"norm_topk_prob": False, "routed_scaling_factor": 1.0, "num_shared_experts": 2}
    yield "yarn", {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9}}
    yield "eps", {"rms_norm_eps": 1e-3}
    yield "defaults", {"num_hidden_layers": 6, **{k: MISSING for k in (
        "attention_bias", "first_k_dense_replace", "head_dim", "kda_lower_bound", "kda_safe_gate", "layer_group_size", "n_group", "norm_topk_prob",
        "num_nextn_predict_layers", "num_shared_experts", "q_lora_rank", "rms_norm_eps", "rope_theta", "routed_scaling_factor", "score_function",
        "short_conv_kernel_size", "topk_group")}}
    yield "odd", {"hidden_size": 54, "num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 7, "intermediate_size": 69, "moe_intermediate_size": 21,
                  "vocab_size": 97, "kv_lora_rank": 18, "qk_nope_head_dim": 9, "qk_rope_head_dim": 6, "v_head_dim": 11}



def hy4():
    yield "none", {}
    yield "saved", {"indexer_types": ["full", "full", "shared"], "layer_types": ["indexed_attention"] * 3, "qk_head_dim": 24}
    yield "limit", {"swiglu_limit": 0.3}
    yield "streams-two", {"hc_mult": 2, "hc_magnitude": 0.7, "hc_eps": 0.125}
    yield "streams-one", {"hc_mult": 1}
    yield "streams-many", {"hc_mult": 8}
    yield "dense", {"mlp_layer_types": ["dense"] * 3}
    yield "deep", {"num_hidden_layers": 9, "mlp_layer_types": MISSING}
    yield "one-layer", {"num_hidden_layers": 1, "mlp_layer_types": ["sparse"]}
    yield "narrow", {"kv_lora_rank": 6, "v_head_dim": 19, "qk_nope_head_dim": 34}
    yield "shared-more", {"n_shared_experts": 3, "norm_topk_prob": False, "routed_scaling_factor": 1.0}
    yield "groups", {"n_group": 4, "topk_group": 2, "n_routed_experts": 16}
    yield "yarn", {"rope_parameters": {**PLAIN, **YARN, "rope_type": "yarn", "mscale": 0.7, "mscale_all_dim": 0.9}}
    yield "eps", {"rms_norm_eps": 1e-3}
    yield "tied", {"tie_word_embeddings": True}
    yield "defaults", {k: MISSING for k in ("attention_bias", "hc_eps", "hc_magnitude", "hc_mult", "head_dim", "index_head_dim", "index_n_heads", "index_topk", "mlp_layer_types",
                                            "n_group", "n_shared_experts", "norm_topk_prob", "num_key_value_heads", "rms_norm_eps", "rope_parameters", "routed_scaling_factor",
                                            "swiglu_limit", "tie_word_embeddings", "topk_group")}
    yield "odd", {"hidden_size": 54, "num_attention_heads": 6, "num_key_value_heads": 6, "intermediate_size": 69, "moe_intermediate_size": 21, "vocab_size": 97,
                  "kv_lora_rank": 18, "qk_nope_head_dim": 9, "qk_rope_head_dim": 6, "head_dim": 6, "v_head_dim": 11, "hc_mult": 3}


MODELS = {"bailing_hybrid": (BAILING, bailing), "hy_v4": (HY4, hy4)}
SAVES = [("bf16", {"dtype": "bfloat16"}), ("sharded", {"shards": 3})]


def model_cases():
    for family, (usual, variants) in MODELS.items():
        for name, changes in variants():
            yield "%s/%s" % (family, name), family, {k: v for k, v in {**usual, **changes}.items() if v is not MISSING}, {"ranks": 3} if name == "odd" else {}
        for name, save in SAVES + ([("raw", {"raw": True})] if family == "hy_v4" else []):
            yield "%s/save-%s" % (family, name), family, {**usual, "torch_dtype": save.get("dtype", "float32")}, save


def cases():
    """As families_cases.cases."""
    yield from model_cases()
    step = {**PARTS["step3p5"], "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "torch_dtype": "float32", "transformers_version": "4.54.0"}
    yield "step3p5/none", "step3p5", step, {}
    yield "step3p5/bf16", "step3p5", {**step, "torch_dtype": "bfloat16"}, {"dtype": "bfloat16", "shards": 2}
    yield "step3p5/odd", "step3p5", {k: v for k, v in {**step, "hidden_size": 60, "intermediate_size": 69, "num_attention_heads": 6, "vocab_size": 97, **ODD["step3p5"]}.items() if v is not MISSING}, {"ranks": 3}
