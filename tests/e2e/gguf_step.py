"""What llama.cpp's converter does with Step 3.5: names and values; for gguf_files.py."""
LAYER = {"self_attn.g_proj": "attn_gate", "moe.gate": "ffn_gate_inp", "moe.gate_proj": "ffn_gate_exps", "moe.up_proj": "ffn_up_exps", "moe.down_proj": "ffn_down_exps",
         "share_expert.gate_proj": "ffn_gate_shexp", "share_expert.up_proj": "ffn_up_shexp", "share_expert.down_proj": "ffn_down_shexp"}


def layer_tensor(whole):
    """What a layer's tensor is called; None: as of others."""
    if whole == "moe.router_bias":
        return "exp_probs_b.bias"
    stem, _, end = whole.rpartition(".")
    return LAYER[stem] + "." + end if stem in LAYER else None


def padded(values, count):
    return [float(x or 0) for x in (list(values) + [0.0] * count)[:count]]


def values(config):
    count, kinds = config["num_hidden_layers"], config["layer_types"]
    theta, other = config["rope_theta"], config.get("attention_other_setting") or {}
    heads, windowed = config["num_attention_heads"], other.get("num_attention_heads", config["num_attention_heads"])
    first = {k: t for k, t in reversed(list(zip(kinds, theta)))} if isinstance(theta, list) else {}
    v = {"attention.head_count": [windowed if kinds[i] == "sliding_attention" else heads for i in range(count)],
         "attention.head_count_kv": [config["num_attention_groups"]] * count, "attention.sliding_window_pattern": [k == "sliding_attention" for k in kinds[:count]],
         "rope.freq_base": float(first.get("full_attention", 10000.0)), "rope.freq_base_swa": float(first.get("sliding_attention", 10000.0)),
         "rope.dimension_count": config["head_dim"], "expert_count": config["moe_num_experts"], "expert_used_count": config["moe_top_k"],
         "expert_shared_feed_forward_length": config["share_expert_dim"], "expert_weights_scale": config.get("moe_router_scaling_factor", 1.0),
         "expert_weights_norm": True, "leading_dense_block_count": 1, "moe_every_n_layers": 1}
    for theirs, ours in (("swiglu_limits", "swiglu_clamp_exp"), ("swiglu_limits_shared", "swiglu_clamp_shexp")):
        if config.get(theirs) is not None:
            v[ours] = padded(config[theirs], count)
    return v


def turning(config):
    """Of layers without a window, of whose heads a half turns."""
    theta = config["rope_theta"]
    return {**config, "rope_theta": theta[config["layer_types"].index("full_attention")] if isinstance(theta, list) else theta, "partial_rotary_factor": 0.5}


def padded_factors(tensor, config, floats):
    """Ones behind those of pairs that turn."""
    kind, (count,), raw = tensor
    return kind, [config["head_dim"] // 2], raw + floats([1.0] * (config["head_dim"] // 2 - count))
