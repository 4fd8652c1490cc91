"""Files in GGUF made of model folders, as llama.cpp's converter makes them: names, values and what it does to tensors."""
import array
import json
import math
import struct

import gguf_further
import gguf_gemma3n
import gguf_gemma4
import gguf_gpt
import gguf_hybrids
import gguf_step
from lora_files import bf16_floats, floats, read_safetensors

TYPES = {"F32": 0, "F16": 1, "BF16": 30, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12}
BLOCKS = {"Q4_0": (32, 7), "Q8_0": (32, 127), "Q4_K": (256, 7)}  # how many values share a scale, and how large its codes are
Q4_K_SCALES = bytes([1] * 4 + [8] * 4 + [1 | 8 << 4] * 4)  # of all parts 1 times the block's scale, and 8 times that is taken off
NORMAL, CONTROL, BYTE = 1, 3, 6
TYPE_OF = {bool: 7, int: 4, float: 6, str: 8}


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def one(value):
    if isinstance(value, str):
        return text(value)
    return struct.pack({bool: "<?", int: "<I", float: "<f"}[type(value)], value)


def value_of(value):
    """A number's type goes by Python's, a list's by its first element."""
    if not isinstance(value, list):
        return struct.pack("<I", TYPE_OF[type(value)]) + one(value)
    kind = TYPE_OF[type(value[0])] if value else 8
    return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(map(one, value))


def write_gguf(path, values, tensors):
    """`tensors`: name -> (type, shape, bytes), rows first."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    header += b"".join(text(key) + value_of(value) for key, value in values.items())
    data = []
    at = 0
    for name, (kind, shape, raw) in tensors.items():
        header += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        header += struct.pack("<IQ", TYPES[kind], at)
        data.append(raw + bytes(-len(raw) % 32))
        at += len(data[-1])
    path.write_bytes(header + bytes(-len(header) % 32) + b"".join(data))
    return path


# ---------------------------------------------------------------- tensors

NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "model.final_layernorm": "output_norm", "lm_head": "output", "model.word_embeddings": "token_embd"}
LAYER_NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
               "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm",
               "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
               "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
               "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "self_attn.dense": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "self_attn.query_layernorm": "attn_q_norm",
               "self_attn.key_layernorm": "attn_k_norm", "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
               "attention.query_layernorm": "attn_q_norm", "attention.key_layernorm": "attn_k_norm", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
               "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
               "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
               "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp",
               "attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm", "mlp.router": "ffn_gate_inp", "mlp.gate.wg": "ffn_gate_inp", "mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
               "mlp.shared_mlp.up_proj": "ffn_up_shexp", "mlp.shared_mlp.down_proj": "ffn_down_shexp", "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
               "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
               "self_attn.kv_b_proj": "attn_kv_b", "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm", "post_self_attn_layernorm": "post_attention_norm",
               "post_mlp_layernorm": "post_ffw_norm"}
# Where the norm of this name is behind attention, or is called as if it were.
BEHIND = {"gpt-oss", "glm4moe", "gemma2", "gemma3", "gemma3n", "gemma4", "olmo2", "exaone4", "seed_oss"}
EXPERT_NAMES = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
ARCHITECTURES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "llama", "MixtralForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2",
                 "Qwen3ForCausalLM": "qwen3", "Qwen3MoeForCausalLM": "qwen3moe", "Phi3ForCausalLM": "phi3", "GemmaForCausalLM": "gemma",
                 "Gemma2ForCausalLM": "gemma2", "Gemma3ForCausalLM": "gemma3", "GraniteForCausalLM": "granite", "SmolLM3ForCausalLM": "smollm3",
                 "ArceeForCausalLM": "arcee", "NemotronForCausalLM": "nemotron", "OlmoForCausalLM": "olmo", "Olmo2ForCausalLM": "olmo2", "Olmo3ForCausalLM": "olmo2",
                 "OlmoeForCausalLM": "olmoe", "CohereForCausalLM": "command-r", "Cohere2ForCausalLM": "cohere2",
                 "StableLmForCausalLM": "stablelm", "Starcoder2ForCausalLM": "starcoder2", "Glm4ForCausalLM": "glm4",
                 "Exaone4ForCausalLM": "exaone4", "SeedOssForCausalLM": "seed_oss", "Ernie4_5ForCausalLM": "ernie4_5",
                 "HunYuanDenseV1ForCausalLM": "hunyuan-dense", "Qwen2MoeForCausalLM": "qwen2moe", "Glm4MoeForCausalLM": "glm4moe",
                 "ExaoneMoEForCausalLM": "exaone-moe", "ExaoneMoeForCausalLM": "exaone-moe", "ApertusForCausalLM": "apertus",
                 "Ernie4_5_MoeForCausalLM": "ernie4_5-moe", "BailingMoeV2ForCausalLM": "bailingmoe2", "HunYuanMoEV1ForCausalLM": "hunyuan-moe", "GptOssForCausalLM": "gpt-oss", "MiniMaxM2ForCausalLM": "minimax-m2", "Gemma3nForCausalLM": "gemma3n", "Gemma3nForConditionalGeneration": "gemma3n", "Gemma4ForCausalLM": "gemma4", "PhiForCausalLM": "phi2", "Dots1ForCausalLM": "dots1", "MiniCPMForCausalLM": "minicpm",
                 "Qwen3VLMoeForConditionalGeneration": "qwen3vlmoe", "DeepseekV2ForCausalLM": "deepseek2", "DeepseekV3ForCausalLM": "deepseek2", "MiniCPM3ForCausalLM": "minicpm3", "MellumForCausalLM": "mellum", "Step3p5ForCausalLM": "step35", "Cohere2MoeForCausalLM": "cohere2moe", **gguf_gpt.ARCHITECTURES, **gguf_hybrids.ARCHITECTURES, **gguf_further.ARCHITECTURES}
PERMUTED = {"xverse", "minicpm", "llama", "mistral3", "internlm2", "granite", "smollm3", "arcee", "olmo", "granitehybrid"}
ONE_MORE = {"step35", "gemma", "gemma2", "gemma3", "nemotron", *gguf_hybrids.QWEN} # norms in the file are those of the checkpoint and 1


def to_floats(tensor):
    kind, _, raw = tensor
    if kind == "F32":
        return array.array("f", raw)
    return bf16_floats(raw) if kind == "BF16" else array.array("f", struct.unpack("<%de" % (len(raw) // 2), raw))


def to_halves(tensor):
    values = to_floats(tensor)
    return "F16", tensor[1], struct.pack("<%de" % len(values), *values)


def to_blocks(tensor, kind):
    """Of values that are whole numbers of a power of two, few enough that the type has them all."""
    values, out = to_floats(tensor), []
    count, most = BLOCKS[kind]
    for at in range(0, len(values), count):
        block = values[at:at + count]
        scale = 2.0 ** -24
        while max(map(abs, block)) / scale > most:
            scale *= 2
        codes = [round(x / scale) for x in block]
        if kind == "Q8_0":
            out.append(struct.pack("<e32b", scale, *codes))
            continue
        half = 16 if kind == "Q4_0" else 32
        pairs = bytes(codes[run + i] + 8 | codes[run + half + i] + 8 << 4 for run in range(0, count, 2 * half) for i in range(half))
        out.append((struct.pack("<e", scale) if kind == "Q4_0" else struct.pack("<2e", scale, scale) + Q4_K_SCALES) + pairs)
    return kind, tensor[1], b"".join(out)


def permuted(tensor, heads):
    """The rows of a head's halves take turns: what turns together lies together."""
    kind, shape, raw = tensor
    size, width = len(raw) // shape[0], shape[0] // heads
    order = [h * width + side * width // 2 + i for h in range(heads) for i in range(width // 2) for side in (0, 1)]
    return kind, shape, b"".join(raw[r * size:(r + 1) * size] for r in order)


def turned(tensor, first=0, step=1):
    """Every expert's matrix the other way round, and of its rows then every so many."""
    kind, (experts, rows, columns), raw = tensor
    size = len(raw) // (experts * rows * columns)
    picked = range(first, columns, step)
    return kind, [experts, len(picked), rows], b"".join(raw[((x * rows + r) * columns + c) * size:((x * rows + r) * columns + c + 1) * size]
                                                      for x in range(experts) for c in picked for r in range(rows))


def taken(tensor, first):
    """Every other value of a row."""
    kind, (rows, columns), raw = tensor
    size = len(raw) // (rows * columns)
    return kind, [rows, columns // 2], b"".join(raw[(r * columns + c) * size:(r * columns + c + 1) * size]
                                              for r in range(rows) for c in range(first, columns, 2))


def whole_experts(part, tensor, arch):
    """Of all of a layer's in one tensor, whose matrices are turned in checkpoints; gpt-oss has gate and up in turns."""
    if part == "down_proj":
        return {"ffn_down_exps.weight": turned(tensor)}
    if part == "down_proj_bias":
        return {"ffn_down_exps.bias": tensor}
    if part == "gate_up_proj_bias":
        return {"ffn_gate_exps.bias": taken(tensor, 0), "ffn_up_exps.bias": taken(tensor, 1)}
    if arch == "gpt-oss":
        return {"ffn_gate_exps.weight": turned(tensor, 0, 2), "ffn_up_exps.weight": turned(tensor, 1, 2)}
    gate, up = gguf_hybrids.halves(turned(tensor), tensor[1][2] // 2)
    return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}


def put_layer(out, experts, name, tensor, config, arch):
    layer, whole = name[len("model.layers."):].split(".", 1)
    stem, end = whole.rsplit(".", 1) if "." in whole else (whole, "")
    if arch in gguf_hybrids.ALL:
        own = gguf_hybrids.layer_tensors(*((stem, end) if end in ("weight", "bias") else (whole, "")), tensor, config, arch, to_floats)
        if own is not None:
            out.update({"blk.%s.%s" % (layer, n): t for n, t in own.items()})
            return
    if whole.startswith(("mlp.experts.", "feed_forward.experts.")) and arch in ("gpt-oss", "qwen3vlmoe", "llama4"):
        out.update({"blk.%s.%s" % (layer, n): t for n, t in whole_experts(whole.split(".experts.")[1], tensor, arch).items()})
        return
    if arch in gguf_further.ALL:
        own = gguf_further.layer_tensors(layer, stem, end, tensor, config, arch, to_floats, permuted)
        if own is not None:
            out.update({"blk.%s.%s" % (layer, n): t for n, t in own.items()})
            return
    if "_layernorm.norms." in stem:  # those of all heads in one tensor
        kind, _, number = stem.split(".")[1:]
        experts.setdefault("blk.%s.attn_%s_norm.weight" % (layer, kind[0]), {})[int(number)] = tensor
        return
    if arch == "gemma4" and whole in gguf_gemma4.LAYER:
        out["blk.%s.%s" % (layer, gguf_gemma4.LAYER[whole])] = tensor
        return
    if arch == "step35" and gguf_step.layer_tensor(whole):
        out["blk.%s.%s" % (layer, gguf_step.layer_tensor(whole))] = tensor
        return
    if arch == "gemma3n" and gguf_gemma3n.layer_tensor(whole):
        out["blk.%s.%s" % (layer, gguf_gemma3n.layer_tensor(whole))] = tensor
        return
    if whole.startswith("mlp.act_fn."):
        out.setdefault("xielu." + end, {})[int(layer)] = to_floats(tensor)[0]
        return
    if whole == "self_attn.sinks":
        out["blk.%s.attn_sinks.weight" % layer] = tensor
        return
    if ".experts." in stem:
        number, part = stem.split(".experts.")[1].split(".")
        experts.setdefault("blk.%s.ffn_%s_exps.weight" % (layer, EXPERT_NAMES[part]), {})[int(number)] = tensor
        return
    heads = config["num_attention_heads"]
    if arch in PERMUTED and stem in ("self_attn.q_proj", "self_attn.k_proj"):
        tensor = permuted(tensor, heads if stem.endswith("q_proj") else config.get("num_key_value_heads") or heads)
    if arch == "gemma2" and stem == "self_attn.q_proj": # the format takes it for granted that scores are divided by the heads' width
        factor = math.sqrt(config["head_dim"] / config["query_pre_attn_scalar"])
        tensor = "F32", tensor[1], floats([x * factor for x in to_floats(tensor)])
    if whole.endswith(("e_score_correction_bias", "gate.expert_bias")):
        out["blk.%s.exp_probs_b.bias" % layer] = tensor[0], tensor[1][-1:], tensor[2]
        return
    if stem == "mlp.shared_expert_gate":
        tensor = tensor[0], tensor[1][1:], tensor[2]
    name = "post_attention_norm" if arch in BEHIND and stem == "post_attention_layernorm" else LAYER_NAMES[stem]
    out["blk.%s.%s.%s" % (layer, name, end)] = tensor


def is_plain(name):
    """Never in fewer bits."""
    return not name.endswith(".weight") or name == "position_embd.weight" or name.endswith(("ffn_gate_inp.weight", "conv1d.weight", "conv1d_q.weight", "conv1d_k.weight", "conv1d_v.weight", "shortconv.conv.weight", "_norm.weight")) or "altup" in name or "laurel" in name


def tensors_of(folder, config, arch, kind):
    out, experts = {}, {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in read_safetensors(path).items():
            for prefix in ("backbone.", "model.language_model.", "language_model.model.", "model.language_model.model."):
                name = "model." + name[len(prefix):] if name.startswith(prefix) else name
            name = name.removeprefix("language_model.")
            if "vision_tower." in name or name.startswith(("model.visual.", "visual.", "model.projector.", "mlp_AR.", "mm_projector.", "model.mm_projector.")):
                continue
            if arch == "falcon-h1":
                tensor = gguf_hybrids.multiplied(name, tensor, config, to_floats)
            if name.startswith(gguf_gpt.PREFIX):
                name, tensor = gguf_gpt.layer_tensor(name, tensor, config, arch)
                out[name] = tensor
            elif name.startswith("model.layers."):
                put_layer(out, experts, name, tensor, config, arch)
            elif not (arch == "gemma3n" and gguf_gemma3n.stack(experts, name, tensor)):
                stem, end = name.rsplit(".", 1)
                out[{**NAMES, **gguf_hybrids.WHOLE, **gguf_gemma4.WHOLE, **gguf_gpt.WHOLE}[stem] + "." + end] = tensor
    for name, parts in experts.items():
        stored, shape, _ = parts[0]
        out[name] = stored, [len(parts)] + shape, b"".join(parts[i][2] for i in range(len(parts)))
    gguf_further.finish(out, arch)
    for name, tensor in out.items():
        if isinstance(tensor, dict): # is a value, not a tensor
            continue
        if len(tensor[1]) == 1:
            offset = 1 if arch in ONE_MORE and name.endswith("norm.weight") and not name.endswith("ssm_norm.weight") else 0
            out[name] = "F32", tensor[1], floats([x + offset for x in to_floats(tensor)])
        elif is_plain(name):
            out[name] = "F32", tensor[1], floats(to_floats(tensor))
        elif kind: # what has no whole blocks in a row is of another type
            fits = [k for k in (kind, "Q8_0") if kind in BLOCKS and tensor[1][-1] % BLOCKS[k][0] == 0]
            out[name] = to_blocks(tensor, fits[0]) if fits else to_halves(tensor)
    return out


# ---------------------------------------------------------------- values


def rotary(config):
    return config.get("rope_scaling") or config.get("rope_parameters") or {}


def llama3_factors(config):
    """What the frequencies of rotations are divided by."""
    s, dim = rotary(config), config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    dim = int(dim * config.get("partial_rotary_factor", 1))
    low, high, original = s["low_freq_factor"], s["high_freq_factor"], s["original_max_position_embeddings"]
    factors = []
    for i in range(dim // 2):
        wave = 2 * math.pi * s.get("rope_theta", config.get("rope_theta")) ** (2 * i / dim)
        smooth = (original / wave - low) / (high - low) if high > low else 0  # of Llama 4's there is nothing between them
        factors.append(1.0 if wave < original / high else s["factor"] if wave > original / low else 1 / ((1 - smooth) / s["factor"] + smooth))
    return "F32", [dim // 2], floats(factors)


def expert_values(config):
    v = {"expert_count": config["n_routed_experts"], "expert_shared_count": config.get("n_shared_experts", 0),
         "leading_dense_block_count": config.get("first_k_dense_replace", 0), "expert_weights_scale": config["routed_scaling_factor"],
         "expert_weights_norm": config["norm_topk_prob"], "expert_gating_func": 1 if config.get("topk_method", "noaux_tc") != "noaux_tc" else 2}
    if "n_group" in config:
        v.update({"expert_group_count": config["n_group"], "expert_group_used_count": config["topk_group"]})
    return v


def latent_values(config):
    turns = config["qk_rope_head_dim"]
    v = {"attention.kv_lora_rank": config["kv_lora_rank"], "attention.key_length": config["qk_nope_head_dim"] + turns,
         "rope.dimension_count": turns}
    if "v_head_dim" in config:
        v["attention.value_length"] = config["v_head_dim"]
    if config["q_lora_rank"]:
        v["attention.q_lora_rank"] = config["q_lora_rank"]
    return v


def values_of(config, arch):
    if arch in gguf_hybrids.ALONE:
        return {"general.architecture": arch, "general.type": "model", "general.name": "a test",
                **{arch + "." + k: x for k, x in gguf_hybrids.mamba_values(config).items()}}
    step, config = config, gguf_step.turning(config) if arch == "step35" else config
    heads = config["num_attention_heads"]
    kv = config.get("num_key_value_heads") or heads
    width = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope) if arch in ("olmo2", "gemma3n", "mellum") else rope
    v = {"context_length": config.get("max_position_embeddings", config.get("model_max_length")), "embedding_length": config["hidden_size"],
         "block_count": config.get("num_hidden_layers", 0), "feed_forward_length": config.get("intermediate_size", 0), "attention.head_count": heads,
         "attention.head_count_kv": kv, "rope.freq_base": float(rope.get("rope_theta", config.get("rope_theta", 10000))),
         "rope.dimension_count": int(width * rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 0.25 if arch in gguf_hybrids.QWEN else 0.5 if arch in ("phi2", "chatglm", "glm4moe") else 0.25 if arch == "stablelm" else 1))),
         "vocab_size": config["vocab_size"]}
    if "head_dim" in config:
        v.update({"attention.key_length": width, "attention.value_length": width})
    if config.get("sliding_window") and not config.get("use_sliding_window") is False:
        v["attention.sliding_window"] = config["sliding_window"]
    for theirs, ours in (("num_local_experts", "expert_count"), ("num_experts", "expert_count"), ("num_experts_per_tok", "expert_used_count"),
                         ("moe_intermediate_size", "expert_feed_forward_length"), ("attn_logit_softcapping", "attn_logit_softcapping"),
                         ("final_logit_softcapping", "final_logit_softcapping"), ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
                         ("layer_norm_eps", "attention.layer_norm_epsilon"), ("norm_epsilon", "attention.layer_norm_epsilon"),
                         ("norm_eps", "attention.layer_norm_epsilon"), ("logit_scale", "logit_scale"), ("clip_qkv", "attention.clamp_kqv"),
                         ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
                         ("embedding_multiplier", "embedding_scale"), ("residual_multiplier", "residual_scale"),
                         ("attention_multiplier", "attention.scale"), ("logits_scaling", "logit_scale")):
        if config.get(theirs) is not None and (arch, ours) != ("falcon-h1", "embedding_scale"):  # which is in the weights there
            v[ours] = config[theirs]
    if "n_routed_experts" in config:
        v.update(expert_values(config))
    if arch == "exaone-moe":
        shared = config.get("num_shared_experts") or config["n_shared_experts"]
        v.update({**expert_values({**config, "n_routed_experts": config["num_experts"], "n_shared_experts": shared}),
                  "expert_shared_feed_forward_length": config["moe_intermediate_size"] * shared, "nextn_predict_layers": 0, "rope.scaling.type": "none"})
        v["attention.sliding_window_pattern"] = [t == "sliding_attention" for t in config["layer_types"]]
    if arch == "step35":
        v.update(gguf_step.values(step))
    if arch == "mellum":
        if config.get("sliding_window"):
            v["attention.sliding_window_pattern"] = [t == "sliding_attention" for t in config["layer_types"]]
        local = (config.get("rope_parameters") or {}).get("sliding_attention", {})
        v["rope.freq_base_swa"] = float(local.get("rope_theta", config.get("rope_local_base_freq", 10000)))
    if arch == "cohere2moe":
        kinds, shared = config.get("mlp_layer_types"), config["num_shared_experts"]
        v.update({"feed_forward_length": config["prefix_dense_intermediate_size"], "expert_feed_forward_length": config["intermediate_size"],
                  "leading_dense_block_count": kinds.count("dense") if kinds else config["first_k_dense_replace"], "expert_weights_norm": config["norm_topk_prob"],
                  "attention.sliding_window_pattern": [t == "sliding_attention" for t in config["layer_types"]], "rope.scaling.type": "none"})
        if shared:
            v.update({"expert_shared_count": shared, "expert_shared_feed_forward_length": config["intermediate_size"] * shared})
    if arch == "bailingmoe2":
        shared = config["num_shared_experts"]
        v.update({**expert_values({**config, "n_routed_experts": config["num_experts"], "n_shared_experts": shared}),
                  "expert_shared_feed_forward_length": config["moe_intermediate_size"] * shared, "nextn_predict_layers": 0, "rope.scaling.type": "none"})
    if arch == "ernie4_5-moe":
        v.update({"expert_count": config["moe_num_experts"], "expert_used_count": config["moe_k"],
                  "interleave_moe_layer_step": config["moe_layer_interval"], "leading_dense_block_count": config["moe_layer_start_index"],
                  "expert_shared_count": config["moe_num_shared_experts"], "expert_shared_feed_forward_length": config["intermediate_size"] // kv})
    if arch == "hunyuan-moe":
        alpha, (used, *_) = config["rope_scaling"]["alpha"], config["moe_topk"]
        v.update({"expert_used_count": used, "expert_feed_forward_length": config["moe_intermediate_size"][0], "expert_shared_count": 1,
                  "expert_shared_feed_forward_length": config["intermediate_size"], "rope.freq_base": 10000.0 * alpha ** (width / (width - 2)),
                  "rope.scaling.type": "none", "rope.scaling.factor": 1.0})
    if arch in ("gpt-oss", "minimax-m2"):
        v["expert_feed_forward_length"] = config["intermediate_size"]
    if arch == "minimax-m2":
        v.update({"rope.dimension_count": config.get("rotary_dim", width), "expert_gating_func": 2})
    if arch == "minicpm":
        v.update({"embedding_scale": float(config["scale_emb"]), "residual_scale": config["scale_depth"] / math.sqrt(config["num_hidden_layers"]),
                  "logit_scale": config["hidden_size"] / config["dim_model_base"]})
    if "kv_lora_rank" in config:
        v.update(latent_values(config))
    if arch in gguf_hybrids.ALL:
        v.update(gguf_hybrids.values(config, arch))
    v.update(gguf_gpt.values(config, arch))
    v.update(gguf_further.values(config, arch, expert_values))
    if arch == "gemma4":
        v.update(gguf_gemma4.values(config))
    if arch == "gemma3n":
        v.update(gguf_gemma3n.values(config))
    scaling = config.get("rope_scaling") or (rope if rope.get("rope_type", "default") != "default" else {})
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind in ("linear", "yarn"):
        v.update({"rope.scaling.type": kind, "rope.scaling.factor": scaling["factor"]})
    if kind == "yarn":
        v["rope.scaling.original_context_length"] = scaling["original_max_position_embeddings"]
    if kind == "yarn" and arch == "olmo2" and "attention_factor" in scaling:
        v["rope.scaling.yarn_attn_factor"] = scaling["attention_factor"]
    if "kv_lora_rank" in config and kind == "yarn":
        v["rope.scaling.yarn_log_multiplier"] = 0.1 * scaling["mscale_all_dim"]
    if arch == "mistral3" and scaling:
        v.update({"rope.scaling.yarn_log_multiplier": scaling["mscale_all_dim"], "attention.temperature_scale": scaling["llama_4_scaling_beta"]})
    return {"general.architecture": arch, "general.type": "model", "general.name": "a test", **{arch + "." + k: x for k, x in v.items()}}


def numbered_tokens(count):
    """A vocabulary for what is not about text."""
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["t%d" % i for i in range(count)],
            "tokenizer.ggml.token_type": [NORMAL] * count, "tokenizer.ggml.merges": []}


def tokens_of(folder, pre):
    """Of a byte-level tokenizer.json with a token that begins every text."""
    spec = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    by_id = {i: (t, NORMAL) for t, i in spec["model"]["vocab"].items()}
    by_id.update({a["id"]: (a["content"], CONTROL) for a in spec["added_tokens"]})
    ids = {t: i for i, (t, _) in by_id.items()}
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": [by_id[i][0] for i in range(len(by_id))],
            "tokenizer.ggml.token_type": [by_id[i][1] for i in range(len(by_id))], "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.bos_token_id": ids[config["bos_token"]], "tokenizer.ggml.eos_token_id": ids[config["eos_token"]],
            "tokenizer.ggml.add_bos_token": True, "tokenizer.chat_template": config["chat_template"]}


def convert(folder, path, tokens=None, kind=None, arch=None, change=None):
    """`folder` with config.json and *.safetensors becomes the file. `kind`: what matrices become, None: they stay as they are.
    `change`: what changes the file's values and tensors before they are written."""
    config = json.loads((folder / "config.json").read_text())
    if "text_config" in config:
        config = {**config["text_config"], "architectures": config["architectures"]}
    arch = arch or ARCHITECTURES[config["architectures"][0]]
    if arch in gguf_gpt.ARCHITECTURES.values():
        config = gguf_gpt.config(config, arch)
    if arch == "nemotron_h" and "n_routed_experts" in config:
        arch = "nemotron_h_moe"
    tensors = tensors_of(folder, config, arch, kind)
    if rotary(config).get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(gguf_step.turning(config) if arch == "step35" else config)
    if arch == "step35" and "rope_freqs.weight" in tensors:
        tensors["rope_freqs.weight"] = gguf_step.padded_factors(tensors["rope_freqs.weight"], config, floats)
    if arch in ("minicpm3", "phimoe") and config.get("rope_scaling"):
        for name in ("short", "long"):
            factors = config["rope_scaling"][name + "_factor"]
            tensors["rope_factors_%s.weight" % name] = "F32", [len(factors)], floats(factors)
    if arch == "gemma4" and config["rope_parameters"]["full_attention"]["rope_type"] == "proportional":
        tensors["rope_freqs.weight"] = gguf_gemma4.factors(config)
    values = {**values_of(config, arch), **(tokens or numbered_tokens(config["vocab_size"]))}
    for name in [n for n in tensors if n.startswith("xielu.")]:
        values[name] = [x for _, x in sorted(tensors.pop(name).items())]
    if change:
        change(values, tensors)
    return write_gguf(path, values, tensors)
