"""Small models of LongCat Flash, for families_differential.py: layers in pairs, with experts that skip the second of each, some of which do nothing."""
from families_fields import COMMON, MISSING, YARN, new_rope

LONGCAT = {**{k: v for k, v in COMMON.items() if k not in ("intermediate_size", "num_hidden_layers", "num_key_value_heads")},
           "architectures": ["LongcatFlashForCausalLM"], "model_type": "longcat_flash", "attention_bias": False, "num_layers": 2, "ffn_hidden_size": 52,
           "expert_ffn_hidden_size": 20, "moe_topk": 3, "n_routed_experts": 6, "zero_expert_num": 4, "zero_expert_type": "identity", "routed_scaling_factor": 6.0,
           "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "head_dim": 8, "mla_scale_q_lora": True,
           "mla_scale_kv_lora": True, "attention_method": "MLA", "router_bias": False, "rope_theta": 10000000.0}


def longcat():
    yield "none", {}
    yield "one-pair", {"num_layers": 1}
    yield "three-pairs", {"num_layers": 3}
    yield "layers-said", {"num_hidden_layers": 4}
    yield "no-zero-experts", {"zero_expert_num": 0}
    yield "zero-experts-most", {"n_routed_experts": 2, "zero_expert_num": 14, "moe_topk": 2}
    yield "all-chosen", {"moe_topk": 10}
    yield "scale", {"routed_scaling_factor": 1.0}
    yield "biases", {"attention_bias": True}
    yield "tied", {"tie_word_embeddings": True}
    yield "yarn", {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}
    yield "new-rope", new_rope({}, 1e6)
    yield "qk-head-dim", {"qk_head_dim": 20}
    yield "defaults", {k: MISSING for k in ("mla_scale_q_lora", "mla_scale_kv_lora", "attention_method", "router_bias", "rms_norm_eps", "rope_theta", "routed_scaling_factor")}
    yield "odd", {"hidden_size": 54, "num_attention_heads": 6, "ffn_hidden_size": 69, "expert_ffn_hidden_size": 21, "vocab_size": 97, "kv_lora_rank": 10,
                  "q_lora_rank": 14, "v_head_dim": 14}


SAVES = [("f16", {"dtype": "float16"}), ("bf16", {"dtype": "bfloat16"}), ("sharded", {"shards": 3})]


def cases():
    """As families_cases.cases."""
    for name, changes in longcat():
        config = {k: v for k, v in {**LONGCAT, **changes}.items() if v is not MISSING}
        yield "longcat_flash/" + name, "longcat_flash", config, {"ranks": 3} if name == "odd" else {}
    for name, save in SAVES:
        yield "longcat_flash/save-" + name, "longcat_flash", {**LONGCAT, "torch_dtype": save.get("dtype", "float32")}, save
