"""What llama.cpp's converter does with models some of whose layers keep a state: names, values, and what becomes of their tensors."""
import math

from lora_files import floats

FULL = "full_attention"
ARCHITECTURES = {"Lfm2ForCausalLM": "lfm2", "Lfm2MoeForCausalLM": "lfm2moe", "Qwen3NextForCausalLM": "qwen3next", "Qwen3_5ForCausalLM": "qwen35",
                 "Qwen3_5MoeForCausalLM": "qwen35moe", "GraniteMoeHybridForCausalLM": "granitehybrid", "NemotronHForCausalLM": "nemotron_h",
                 "FalconH1ForCausalLM": "falcon-h1", "JambaForCausalLM": "jamba", "MambaForCausalLM": "mamba", "FalconMambaForCausalLM": "mamba", "Mamba2ForCausalLM": "mamba2"}
QWEN = {"qwen3next", "qwen35", "qwen35moe"}
NEMOTRON = {"nemotron_h", "nemotron_h_moe"}
SELECTIVE = {"jamba", "mamba"}
ALONE = {"mamba", "mamba2"}  # without attention
ALL = {*ARCHITECTURES.values(), "nemotron_h_moe"}
WHOLE = {"model.embedding_norm": "token_embd_norm", "model.embeddings": "token_embd", "model.norm_f": "output_norm"}
OPERATORS = {"operator_norm": "attn_norm", "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
             "self_attn.out_proj": "attn_output", "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv",
             "conv.out_proj": "shortconv.out_proj", "ffn_norm": "ffn_norm", "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up",
             "feed_forward.w2": "ffn_down", "feed_forward.gate": "ffn_gate_inp", "feed_forward.expert_bias": "exp_probs_b"}
DELTA = {"linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta",
         "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.conv1d": "ssm_conv1d",
         "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
         "post_attention_layernorm": "post_attention_norm"}
SCAN = {"in_proj": "ssm_in", "conv1d": "ssm_conv1d", "A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt", "norm": "ssm_norm", "out_proj": "ssm_out"}
GRANITE = {**{"mamba." + k: v for k, v in SCAN.items()}, "block_sparse_moe.router.layer": "ffn_gate_inp"}
BLOCKS = {**{"mixer." + k: v for k, v in SCAN.items()}, "norm": "attn_norm", "mixer.q_proj": "attn_q", "mixer.k_proj": "attn_k",
          "mixer.v_proj": "attn_v", "mixer.o_proj": "attn_output", "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down",
          "mixer.gate": "ffn_gate_inp", "mixer.gate.e_score_correction_bias": "exp_probs_b", "mixer.shared_experts.up_proj": "ffn_up_shexp",
          "mixer.shared_experts.down_proj": "ffn_down_shexp", "mixer.fc1_latent_proj": "ffn_latent_down", "mixer.fc2_latent_proj": "ffn_latent_up"}
STEPS = {"in_proj": "ssm_in", "conv1d": "ssm_conv1d", "x_proj": "ssm_x", "dt_proj": "ssm_dt", "A_log": "ssm_a", "D": "ssm_d", "out_proj": "ssm_out"}
JAMBA = {**{"mamba." + k: v for k, v in STEPS.items()}, "mamba.dt_layernorm": "ssm_dt_norm", "mamba.b_layernorm": "ssm_b_norm",
         "mamba.c_layernorm": "ssm_c_norm", "pre_ff_layernorm": "ffn_norm", "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up",
         "feed_forward.down_proj": "ffn_down", "feed_forward.router": "ffn_gate_inp"}
FALCON_H1 = {**{"mamba." + k: v for k, v in SCAN.items()}, "pre_ff_layernorm": "ffn_norm", "feed_forward.gate_proj": "ffn_gate",
             "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down"}
MAMBA = {**{"mixer." + k: v for k, v in STEPS.items()}, "norm": "attn_norm"}
MAMBA2 = {**{"mixer." + k: v for k, v in SCAN.items()}, "norm": "attn_norm"}
NAMES = {"falcon-h1": FALCON_H1, "jamba": JAMBA, "mamba": MAMBA, "mamba2": MAMBA2, **dict.fromkeys(("lfm2", "lfm2moe"), OPERATORS), **dict.fromkeys(QWEN, DELTA), **dict.fromkeys(NEMOTRON, BLOCKS), "granitehybrid": GRANITE}
BARE = {"exp_probs_b": ".bias", "ssm_dt": ".bias", "ssm_a": "", "ssm_d": ""}  # how those end that end in nothing in checkpoints


def rows_in_order(tensor, order):
    kind, shape, raw = tensor
    size = len(raw) // shape[0]
    return kind, [len(order)] + list(shape[1:]), b"".join(raw[r * size:(r + 1) * size] for r in order)


def columns_in_order(tensor, order):
    kind, shape, raw = tensor
    size = len(raw) // (shape[0] * shape[1])
    return kind, shape, b"".join(raw[(r * shape[1] + c) * size:(r * shape[1] + c + 1) * size] for r in range(shape[0]) for c in order)


def halves(tensor, rows):
    """Of rows, or of those of every expert: the first ones and the others."""
    kind, shape, raw = tensor
    count, width = (shape[0] if len(shape) == 3 else 1), shape[-2]
    parts = [[x * width + r for x in range(count) for r in part] for part in (range(rows), range(rows, width))]
    flat = kind, [count * width, shape[-1]], raw
    return [(kind, ([count] if len(shape) == 3 else []) + [len(part) // count, shape[-1]], rows_in_order(flat, part)[2]) for part in parts]


def of_tiles(config, width, first=0):
    """The rows of heads that read one key head, each head `width` of them, behind `first` others: the first of every key head, then the
    second ones."""
    keys, per = config["linear_num_key_heads"], config["linear_num_value_heads"] // config["linear_num_key_heads"]
    return list(range(first)) + [first + (k * per + j) * width + i for j in range(per) for k in range(keys) for i in range(width)]


def tiled(stem, tensor, config):
    """Qwen 3.5's converter; Qwen 3 Next's leaves them as they are."""
    value, keys = config["linear_value_head_dim"], config["linear_num_key_heads"] * config["linear_key_head_dim"]
    part = stem.removeprefix("linear_attn.")
    if part in ("in_proj_qkv", "conv1d"):
        return rows_in_order(tensor, of_tiles(config, value, 2 * keys))
    if part == "in_proj_z":
        return rows_in_order(tensor, of_tiles(config, value))
    if part in ("in_proj_a", "in_proj_b", "A_log", "dt_bias"):
        return rows_in_order(tensor, of_tiles(config, 1))
    return columns_in_order(tensor, of_tiles(config, value)) if part == "out_proj" else tensor


def qkv_and_z(tensor, config):
    """Qwen 3 Next has q, k, v and z of every key head together."""
    key = config["linear_key_head_dim"]
    value = config["linear_value_head_dim"] * config["linear_num_value_heads"] // config["linear_num_key_heads"]
    heads = range(config["linear_num_key_heads"])
    parts, at = [], 0
    for width in (key, key, value, value):
        parts.append([h * 2 * (key + value) + at + i for h in heads for i in range(width)])
        at += width
    return rows_in_order(tensor, parts[0] + parts[1] + parts[2]), rows_in_order(tensor, parts[3])


def multiplied(name, tensor, config, to_floats):
    """A tensor of Falcon H1, by its name in the checkpoint, with what config.json multiplies by."""
    inputs = config["attention_in_multiplier"]
    factors = {"q_proj": inputs, "k_proj": inputs * config["key_multiplier"], "v_proj": inputs, "o_proj": config["attention_out_multiplier"],
               "gate_proj": config["mlp_multipliers"][0], "down_proj": config["mlp_multipliers"][1], "out_proj": config["ssm_out_multiplier"],
               "embed_tokens": config["embedding_multiplier"], "lm_head": config["lm_head_multiplier"]}
    stem = name.split(".")[-2]
    if stem == "in_proj":
        state = config["mamba_n_groups"] * config["mamba_d_state"]
        values = config["mamba_d_ssm"] or config["mamba_expand"] * config["hidden_size"]
        counts = values, values, state, state, config["mamba_n_heads"]
        rows = [m * config["ssm_in_multiplier"] for m, count in zip(config["ssm_multipliers"], counts) for _ in range(count)]
    elif stem in factors:
        rows = [factors[stem]] * tensor[1][0]
    else:
        return tensor
    values, width = to_floats(tensor), tensor[1][1]
    return "F32", tensor[1], floats([x * rows[i // width] for i, x in enumerate(values)])


def layer_tensors(stem, end, tensor, config, arch, to_floats):
    """Of a layer's tensor `stem` and `end`: what the file has, by names behind the layer's. None: it is as of other models."""
    if arch == "qwen3next" and stem == "linear_attn.in_proj_qkvz":
        qkv, z = qkv_and_z(tensor, config)
        return {"attn_qkv.weight": qkv, "attn_gate.weight": z}
    if stem in ("block_sparse_moe.input_linear", "mlp.experts.gate_up_proj"):
        gate, up = halves(tensor, tensor[1][-2] // 2)
        return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
    if stem in ("block_sparse_moe.output_linear", "mlp.experts.down_proj"):
        return {"ffn_down_exps.weight": tensor}
    shared = "_shexp" if config.get("num_local_experts") else ""
    if stem == "shared_mlp.input_linear":
        gate, up = halves(tensor, tensor[1][-2] // 2)
        return {"ffn_gate%s.weight" % shared: gate, "ffn_up%s.weight" % shared: up}
    if stem == "shared_mlp.output_linear":
        return {"ffn_down%s.weight" % shared: tensor}
    name = NAMES[arch].get(stem)
    if name is None:
        return None
    if arch in ("qwen35", "qwen35moe") and stem.startswith("linear_attn."):
        tensor = tiled(stem, tensor, config)
    if name == "ssm_a":
        tensor = "F32", tensor[1], floats([-math.exp(x) for x in to_floats(tensor)])
    if name in ("ssm_conv1d", "shortconv.conv") and len(tensor[1]) == 3:
        tensor = tensor[0], [tensor[1][0], tensor[1][2]], tensor[2]
    if arch in SELECTIVE:
        return {name + ("." + end if end else ""): tensor}
    if arch not in QWEN and name in ("ssm_a", "ssm_d"):
        tensor = tensor[0], [tensor[1][0], 1], tensor[2]
    if arch not in QWEN and name == "ssm_norm":
        groups = config.get("mamba_n_groups") or config["n_groups"]
        tensor = tensor[0], [groups, tensor[1][0] // groups], tensor[2]
    return {name + BARE.get(name, "." + end): tensor}


# ---------------------------------------------------------------- values


def types_of(config):
    """Of every layer: M keeps a state, * attends, - and E are an MLP and experts alone."""
    if "hybrid_override_pattern" in config:
        return config["hybrid_override_pattern"]
    words = config.get("layers_block_type") or config.get("layer_types")
    if words is None:
        return "".join("*" if (i + 1) % config.get("full_attention_interval", 4) == 0 else "M" for i in range(config["num_hidden_layers"]))
    return "".join({"attention": "*", FULL: "*", "mlp": "-", "moe": "E"}.get(word, "M") for word in words)


def delta_values(config):
    heads = config["linear_num_value_heads"]
    return {"ssm.conv_kernel": config["linear_conv_kernel_dim"], "ssm.state_size": config["linear_key_head_dim"],
            "ssm.group_count": config["linear_num_key_heads"], "ssm.time_step_rank": heads,
            "ssm.inner_size": config["linear_value_head_dim"] * heads, "full_attention_interval": config.get("full_attention_interval", 4)}


def scan_values(config, names):
    taps, state, groups, heads, width = (config[n] for n in names.split())
    return {"ssm.conv_kernel": taps, "ssm.state_size": state, "ssm.group_count": groups, "ssm.time_step_rank": heads, "ssm.inner_size": heads * width}


def lfm2_width(config):
    width = config["intermediate_size"]
    if config.get("block_auto_adjust_ff_dim", True) and config["architectures"] == ["Lfm2ForCausalLM"]:
        width = int(2 * width / 3)
        multiple = config.get("block_multiple_of", 256)
        width = -(-int(config.get("block_ffn_dim_multiplier", 1.0) * width) // multiple) * multiple
    return width


def selective_values(config):
    """Of Mamba's first generation, by the names of either kind of configuration."""
    def of(*names):
        return next(config[n] for n in names if n in config)
    hidden = config["hidden_size"]
    width = config["mamba_expand"] * hidden if "mamba_expand" in config else config.get("intermediate_size", config.get("expand", 2) * hidden)
    return {"ssm.conv_kernel": of("mamba_d_conv", "conv_kernel"), "ssm.state_size": of("mamba_d_state", "state_size"),
            "ssm.time_step_rank": of("mamba_dt_rank", "time_step_rank"), "ssm.inner_size": width}


def mamba_values(config):
    """Of models without attention: what others have of it is 0."""
    v = {"context_length": 1 << 20, "embedding_length": config["hidden_size"], "feed_forward_length": 0, "attention.head_count": 0,
         "block_count": config["num_hidden_layers"], "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"]}
    if config["architectures"] == ["Mamba2ForCausalLM"]:
        return {**v, **scan_values(config, "conv_kernel state_size n_groups num_heads head_dim")}
    return {**v, "ssm.dt_b_c_rms": config["architectures"] == ["FalconMambaForCausalLM"], **selective_values(config)}


def values(config, arch):
    """What these have beside, or instead of, the values of others."""
    if arch == "falcon-h1":
        width = (config["mamba_d_ssm"] or config["mamba_expand"] * config["hidden_size"]) // config["mamba_n_heads"]
        return scan_values({**config, "mamba_d_head": width}, "mamba_d_conv mamba_d_state mamba_n_groups mamba_n_heads mamba_d_head")
    types = types_of(config)
    by_layer = {"block_count": len(types), "attention.head_count_kv": [config["num_key_value_heads"] if t == "*" else 0 for t in types]}
    if arch in ("lfm2", "lfm2moe"):
        v = {**by_layer, "shortconv.l_cache": config["conv_L_cache"], "feed_forward_length": lfm2_width(config),
             "attention.layer_norm_rms_epsilon": config["norm_eps"]}
        if arch == "lfm2moe":
            v.update({"leading_dense_block_count": config.get("num_dense_layers", 2), "expert_gating_func": 2})
        return v
    if arch == "jamba":
        kinds = [i % config["attn_layer_period"] == config["attn_layer_offset"] for i in range(config["num_hidden_layers"])]
        return {"attention.head_count_kv": [config["num_key_value_heads"] if attends else 0 for attends in kinds], **selective_values(config)}
    if arch in QWEN:
        v = delta_values(config)
        if types != types_of({k: x for k, x in config.items() if k != "layer_types"}):
            v["attention.recurrent_layers"] = [t == "M" for t in types]
        if arch != "qwen3next":
            v["rope.dimension_sections"] = [1, 1, 0, 0]
        return v
    if arch == "granitehybrid":
        v = {**by_layer, **scan_values(config, "mamba_d_conv mamba_d_state mamba_n_groups mamba_n_heads mamba_d_head"),
             "rope.scaling.finetuned": config["position_embedding_type"] == "rope"}
        if config.get("shared_intermediate_size"):
            v["expert_shared_feed_forward_length"] = config["shared_intermediate_size"]
        return v
    v = {**by_layer, **scan_values(config, "conv_kernel ssm_state_size n_groups mamba_num_heads mamba_head_dim"), "rope.scaling.finetuned": False,
         "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"]}
    width = config["moe_intermediate_size"] if arch == "nemotron_h_moe" else config["intermediate_size"]
    v["feed_forward_length"] = [width if t in "-E" else 0 for t in types]
    if arch == "nemotron_h_moe":
        v["expert_shared_feed_forward_length"] = config["moe_shared_expert_intermediate_size"]
        if config.get("moe_latent_size"):
            v["moe_latent_size"] = config["moe_latent_size"]
    return v
