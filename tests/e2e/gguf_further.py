"""What llama.cpp's converter does with Llama 4, DeciLM, GLM 4 (9B), Mistral 4, AFMoE, Kimi Linear, GLM 5, Baichuan, Qwen 1 and others: names, values,
and what becomes of their tensors; for gguf_files.py."""
import gguf_hybrids
from lora_files import floats

ARCHITECTURES = {"Llama4ForCausalLM": "llama4", "Llama4ForConditionalGeneration": "llama4", "DeciLMForCausalLM": "deci", "GlmForCausalLM": "chatglm", "Mistral4ForCausalLM": "mistral4",
                 "AfmoeForCausalLM": "afmoe", "KimiLinearForCausalLM": "kimi-linear", "GlmMoeDsaForCausalLM": "glm-dsa", "DeepseekV32ForCausalLM": "deepseek32", "YoutuForCausalLM": "deepseek2",
                 "Glm4MoeLiteForCausalLM": "deepseek2", "BaichuanForCausalLM": "baichuan", "BaiChuanForCausalLM": "baichuan", "QWenLMHeadModel": "qwen",
                 "OrionForCausalLM": "orion", "Jais2ForCausalLM": "jais2", "PhiMoEForCausalLM": "phimoe", "BitNetForCausalLM": "bitnet",
                 "Glm4vForConditionalGeneration": "glm4", "GlmOcrForConditionalGeneration": "glm4", "Glm4vMoeForConditionalGeneration": "glm4moe",
                 "PaddleOCRVLForConditionalGeneration": "paddleocr", "SolarOpenForCausalLM": "glm4moe", "Kimi_K25ForConditionalGeneration": "deepseek2",
                 "IQuestCoderForCausalLM": "llama"}
# What readers of the format take for granted, by the names of families in families.json.
GRANTED = {"llama4_text": {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1},
           "phimoe": {"router_jitter_noise": 0.01}, "bitnet": {"hidden_act": "silu"}}
MLP = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
LAYER = {"llama4": {**{"feed_forward." + k: v for k, v in MLP.items()}, **{"feed_forward.shared_expert." + k: v + "_shexp" for k, v in MLP.items()},
                    "feed_forward.router": "ffn_gate_inp"},
         "afmoe": {"self_attn.gate_proj": "attn_gate", "post_attention_layernorm": "post_attention_norm", "pre_mlp_layernorm": "ffn_norm",
                   "mlp.router.gate": "ffn_gate_inp"},
         "kimi-linear": {**{"self_attn." + k + "_proj": "ssm_" + k for k in ("f_a", "f_b", "g_a", "g_b")}, "self_attn.b_proj": "ssm_beta",
                         "self_attn.o_norm": "ssm_norm", **{"block_sparse_moe.shared_experts." + k: v + "_shexp" for k, v in MLP.items()},
                         **{"block_sparse_moe." + k: v for k, v in MLP.items()}},
         "deci": {"self_attn.linear_attn": "attn_output"},
         "bitnet": {"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"}}
SPLIT_LATENT = ("mistral4", "glm-dsa", "deepseek32", "kimi-linear")  # the newer form of latent attention
ALL = {*ARCHITECTURES.values(), "stablelm"} - {"glm4moe", "llama"}


def rows_of(tensor, first, count):
    return gguf_hybrids.rows_in_order(tensor, range(first, first + count))


def turned(tensor):
    """The matrix of every head the other way round."""
    kind, (heads, rows, columns), raw = tensor
    size = len(raw) // (heads * rows * columns)
    return kind, [heads, columns, rows], b"".join(raw[((h * rows + r) * columns + c) * size:((h * rows + r) * columns + c + 1) * size]
                                                  for h in range(heads) for c in range(columns) for r in range(rows))


def latent_parts(tensor, config):
    """kv_b_proj in two: keys turned, and values."""
    key, value, heads = config["qk_nope_head_dim"], config["v_head_dim"], config["num_attention_heads"]
    rank = tensor[1][1]
    keys, values = (gguf_hybrids.rows_in_order(tensor, [h * (key + value) + r for h in range(heads) for r in part])
                    for part in (range(key), range(key, key + value)))
    return {"attn_k_b.weight": turned((keys[0], [heads, key, rank], keys[2])), "attn_v_b.weight": (values[0], [heads, value, rank], values[2])}


def halves_together(tensor, config):
    """Of the part of each head that turns first those that turn with the next one, then these."""
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    turns = int(head * (config.get("rope_parameters") or config["rope_scaling"]).get("partial_rotary_factor", config.get("partial_rotary_factor", 1)))
    order = [*range(0, turns, 2), *range(1, turns, 2), *range(turns, head)]
    flat = tensor if len(tensor[1]) == 2 else (tensor[0], [tensor[1][0], 1], tensor[2])
    kind, _, raw = gguf_hybrids.rows_in_order(flat, [h + i for h in range(0, tensor[1][0], head) for i in order])
    return kind, tensor[1], raw


def kv_heads(config, layer):
    if "num_key_value_heads_per_layer" in config:
        return config["num_key_value_heads_per_layer"][layer]
    group = config["block_configs"][layer]["attention"]["n_heads_in_group"]
    return config["num_attention_heads"] // group if group else 0


def kimi(stem, end, tensor, to_floats):
    if end == "A_log":
        values = [-2.718281828459045 ** x for x in to_floats(tensor)]
        return {"ssm_a": ("F32", [1, 1, len(values), 1], floats(values))}
    if end == "dt_bias":
        return {"ssm_dt.bias": tensor}
    if stem.endswith("conv1d"):
        return {"ssm_conv1d_%s.weight" % stem[-8]: (tensor[0], [1, tensor[1][0], 1, tensor[1][-1]], tensor[2])}
    return None


def layer_tensors(layer, stem, end, tensor, config, arch, to_floats, permuted):
    """Of a layer's tensor `stem` and `end`: what the file has, by names behind the layer's. None: it is as of other models."""
    heads = config["num_attention_heads"]
    if arch == "baichuan" and stem == "self_attn.W_pack":
        size = tensor[1][0] // 3
        q, k, v = (rows_of(tensor, i * size, size) for i in range(3))
        return {"attn_q.weight": permuted(q, heads), "attn_k.weight": permuted(k, heads), "attn_v.weight": v}
    if arch == "deci" and stem in ("self_attn.q_proj", "self_attn.k_proj"):
        return {"attn_%s.%s" % (stem[10], end): permuted(tensor, heads if "q_proj" in stem else kv_heads(config, int(layer)))}
    if arch == "glm4" and "mrope_section" in (config.get("rope_scaling") or config.get("rope_parameters") or {}) and stem[-6:] in ("q_proj", "k_proj"):
        return {"attn_%s.%s" % (stem[10], end): halves_together(tensor, config)}
    if arch in SPLIT_LATENT and stem == "self_attn.kv_b_proj":
        return latent_parts(tensor, config)
    if ".indexer." in stem:
        return {"indexer." + {"wq_b": "attn_q_b", "wk": "attn_k", "k_norm": "k_norm", "weights_proj": "proj"}[stem.split(".")[-1]] + "." + end: tensor}
    if arch == "kimi-linear" and kimi(stem, end, tensor, to_floats):
        return kimi(stem, end, tensor, to_floats)
    if arch == "mistral4" and stem == "mlp.experts":
        return {{"gate_up_proj": "ffn_gate_up_exps.weight", "down_proj": "ffn_down_exps.weight"}[end]: tensor}
    if end == "expert_bias":
        return {"exp_probs_b.bias": tensor}
    name = LAYER.get(arch, {}).get(stem)
    return {name + "." + end: tensor} if name else None


def joined(parts):
    """Matrices of as many columns, or vectors, one behind the other."""
    return parts[0][0], [sum(p[1][0] for p in parts), *parts[0][1][1:]], b"".join(p[2] for p in parts)


def finish(out, arch):
    """What is one tensor in the file."""
    for name in [n for n in out if n.endswith("attn_q.weight") and arch == "chatglm"]:
        layer = name[:-len("attn_q.weight")]
        for end in ("weight", "bias"):
            parts = [out.pop(layer + "attn_%s.%s" % (x, end), None) for x in "qkv"]
            if parts[0]:
                out[layer + "attn_qkv." + end] = joined(parts)


def deci_values(config):
    layers = range(config["num_hidden_layers"])
    v = {"attention.head_count_kv": [kv_heads(config, i) for i in layers]}
    if "block_configs" in config:
        ffns = [c["ffn"] for c in config["block_configs"]]
        widths = [f.get("intermediate_size") or -(-int(2 * (f.get("ffn_mult") or 0) * config["hidden_size"] / 3) // 256) * 256 for f in ffns]
        attends = [c["attention"].get("replace_with_linear") or not c["attention"]["no_op"] for c in config["block_configs"]]
        v.update({"attention.head_count": [config["num_attention_heads"] if a else 0 for a in attends], "feed_forward_length": widths})
    return v


def kimi_values(config, experts):
    own = config["linear_attn_config"]
    v = experts({**config, "n_routed_experts": config["num_experts"], "n_shared_experts": config["num_shared_experts"], "norm_topk_prob": True,
                 "n_group": config["num_expert_group"]})
    del v["expert_weights_norm"]
    return {**v, "expert_used_count": config["num_experts_per_token"], "context_length": config["model_max_length"], "kda.head_dim": own["head_dim"],
            "attention.head_count_kv": [int(i + 1 in own["full_attn_layers"]) for i in range(config["num_hidden_layers"])],
            "ssm.conv_kernel": own["short_conv_kernel_size"]}


def latent_values(config):
    turns, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    return {"attention.key_length": rank + turns, "attention.value_length": rank, "attention.head_count_kv": 1, "attention.value_length_mla": config["v_head_dim"],
            "attention.key_length_mla": config["qk_nope_head_dim"] + turns, "rope.dimension_count": turns}


def values(config, arch, experts):
    """What such a file says beside, or otherwise than others."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    v = {}
    if arch == "llama4":
        v = {"feed_forward_length": config["intermediate_size_mlp"], "expert_feed_forward_length": config["intermediate_size"],
             "interleave_moe_layer_step": config.get("interleave_moe_layer_step", 1)}
    if arch == "deci":
        v = deci_values(config)
    if arch == "afmoe":
        v = experts({**config, "n_routed_experts": config["num_experts"], "n_shared_experts": config["num_shared_experts"], "norm_topk_prob": config["route_norm"],
                     "first_k_dense_replace": config["num_dense_layers"], "routed_scaling_factor": config["route_scale"]})
    if arch in SPLIT_LATENT:
        v = latent_values(config)
    if arch == "kimi-linear":
        v.update(kimi_values(config, experts))
    if arch == "mistral4":
        v.update({"expert_gating_func": 1, "rope.scaling.yarn_log_multiplier": 0.1 * rope.get("mscale_all_dim", 0),
                  "attention.temperature_scale": rope["llama_4_scaling_beta"], "attention.temperature_length": rope["original_max_position_embeddings"]})
    if arch in ("glm-dsa", "deepseek32"):
        v.update({"attention.indexer.head_count": config["index_n_heads"], "attention.indexer.key_length": config["index_head_dim"],
                  "attention.indexer.top_k": config["index_topk"]})
    if arch == "deepseek2" and "n_routed_experts" not in config:
        v.update({"leading_dense_block_count": config["num_hidden_layers"], "expert_feed_forward_length": config["intermediate_size"], "expert_shared_count": 0})
    if arch == "qwen":
        v = {"attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"], "rope.freq_base": float(config["rotary_emb_base"])}
    if arch == "orion":
        v = {"attention.layer_norm_epsilon": config["rms_norm_eps"]}
    if arch == "bitnet":
        v = {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}
    if arch == "phimoe" and "short_mscale" in rope:
        v = {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": rope["short_mscale"],
             "rope.scaling.original_context_length": rope["original_max_position_embeddings"]}
    if arch == "stablelm":
        v = {"use_parallel_residual": config.get("use_parallel_residual", True)}
    if "mrope_section" in rope:
        v["rope.dimension_sections"] = (rope["mrope_section"] + [0])[:4]
    return v
