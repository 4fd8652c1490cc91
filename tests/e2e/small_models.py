"""Small models that no checkpoint has to be kept of: weights are a function of a tensor's name and place, so that config.json and the tensors' shapes are all.
Used by tests and tools/gpu-check, whose machine has Python alone."""
import array
import json
import math
import struct

TOKENIZER = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
U64 = (1 << 64) - 1


def noise(name, first, count):
    """Floats in [-1, 1): a stream of SplitMix64 that begins at the FNV-1a hash of the name, as in test_families.c."""
    start, out = 0xcbf29ce484222325, array.array("f")
    for byte in name.encode():
        start = (start ^ byte) * 0x100000001b3 & U64
    for i in range(start + first, start + first + count):
        z = i * 0x9e3779b97f4a7c15 & U64
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 & U64
        z = (z ^ z >> 27) * 0x94d049bb133111eb & U64
        out.append(((z ^ z >> 31) >> 40) * 2.0 ** -23 - 1)
    return out


def bfloat16(values):
    """Rounded to nearest even, as bytes."""
    bits = array.array("I", values.tobytes())
    return array.array("H", [(b + 0x7fff + (b >> 16 & 1)) >> 16 for b in bits]).tobytes()


def tensor(name, shape, amplitude, middle, source=None, first=0):
    amplitude = struct.unpack("f", struct.pack("f", amplitude))[0]
    scaled = array.array("f", [x * amplitude for x in noise(source or name, first, math.prod(shape))])
    return bfloat16(array.array("f", [x + middle for x in scaled]))


def write_model(folder, kept):
    header, data = {}, b""
    for name, t in kept["tensors"].items():
        values = tensor(name, *t)
        header[name] = {"dtype": "BF16", "shape": t[0], "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(kept["config"]))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return folder


# ---------------------------------------------------------------- layers that keep a state, of sizes that devices take

VOCAB, HIDDEN, WIDE, HEADS, KV_HEADS, HEAD = 101, 64, 96, 4, 2, 16
# Of the best logit and the second, whose values lie 35 apart: rounding to bfloat16 may exchange them, and quicker processors round more.
RECURRENT_MARGIN = 0.5
SMALL = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": WIDE, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
         "max_position_embeddings": 512, "torch_dtype": "bfloat16", "eos_token_id": 2}


def matrix(rows, columns, gain=1):
    """Of values whose products with normed inputs have a deviation of `gain`."""
    return [[rows, columns], gain * math.sqrt(3 / columns), 0.0]


def attention(at, out, gates):
    return {at + "q_proj.weight": matrix((2 if gates else 1) * HEADS * HEAD, HIDDEN), at + "k_proj.weight": matrix(KV_HEADS * HEAD, HIDDEN),
            at + "v_proj.weight": matrix(KV_HEADS * HEAD, HIDDEN), at + out: matrix(HIDDEN, HEADS * HEAD)}


def qwen():
    """The gated delta rule, and attention with gates."""
    key, value, key_heads, heads = 16, 16, 2, 4
    channels = 2 * key * key_heads + value * heads
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    tensors = {"model.embed_tokens.weight": [[VOCAB, HIDDEN], 1.0, 0.0], "model.norm.weight": [[HIDDEN], 0.2, 0.0],
               "lm_head.weight": matrix(VOCAB, HIDDEN, 5)}
    for k, kind in enumerate(kinds):
        at = "model.layers.%d." % k
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[at + norm + ".weight"] = [[HIDDEN], 0.2, 0.0]
        for part, shape in (("gate", (WIDE, HIDDEN)), ("up", (WIDE, HIDDEN)), ("down", (HIDDEN, WIDE))):
            tensors[at + "mlp.%s_proj.weight" % part] = matrix(*shape)
        if kind == "full_attention":
            tensors.update(attention(at + "self_attn.", "o_proj.weight", True))
            tensors.update({at + "self_attn.%s_norm.weight" % x: [[HEAD], 0.2, 0.0] for x in "qk"})
            continue
        at += "linear_attn."
        tensors.update({at + "in_proj_qkv.weight": matrix(channels, HIDDEN), at + "in_proj_z.weight": matrix(value * heads, HIDDEN),
                        at + "in_proj_b.weight": matrix(heads, HIDDEN), at + "in_proj_a.weight": matrix(heads, HIDDEN),
                        at + "conv1d.weight": [[channels, 1, 4], 0.9, 0.0], at + "A_log": [[heads], 0.3, -1.5], at + "dt_bias": [[heads], 0.3, 0.0],
                        at + "norm.weight": [[value], 0.2, 1.0], at + "out_proj.weight": matrix(HIDDEN, value * heads)})
    config = {**SMALL, "architectures": ["Qwen3_5ForCausalLM"], "num_hidden_layers": len(kinds), "head_dim": HEAD, "layer_types": kinds,
              "linear_conv_kernel_dim": 4, "linear_key_head_dim": key, "linear_value_head_dim": value, "linear_num_key_heads": key_heads,
              "linear_num_value_heads": heads, "rms_norm_eps": 1e-6, "partial_rotary_factor": 0.5}
    return {"config": config, "tensors": tensors}


def lfm2():
    """Short convolutions, whose states are small, and attention without gates."""
    kinds = ["conv", "full_attention", "conv"]
    tensors = {"model.embed_tokens.weight": [[VOCAB, HIDDEN], 1.0, 0.0], "model.embedding_norm.weight": [[HIDDEN], 1.7, 0.0]}
    for k, kind in enumerate(kinds):
        at = "model.layers.%d." % k
        for norm in ("operator_norm", "ffn_norm"):
            tensors[at + norm + ".weight"] = [[HIDDEN], 0.2, 1.0]
        for part, shape in (("w1", (WIDE, HIDDEN)), ("w3", (WIDE, HIDDEN)), ("w2", (HIDDEN, WIDE))):
            tensors[at + "feed_forward.%s.weight" % part] = matrix(*shape)
        if kind == "full_attention":
            tensors.update(attention(at + "self_attn.", "out_proj.weight", False))
            tensors.update({at + "self_attn.%s_layernorm.weight" % x: [[HEAD], 0.2, 1.0] for x in "qk"})
        else:
            tensors.update({at + "conv.in_proj.weight": matrix(3 * HIDDEN, HIDDEN, 1.5), at + "conv.conv.weight": [[HIDDEN, 1, 3], 0.9, 0.0],
                            at + "conv.out_proj.weight": matrix(HIDDEN, HIDDEN)})
    config = {**SMALL, "architectures": ["Lfm2ForCausalLM"], "num_hidden_layers": len(kinds), "layer_types": kinds, "conv_L_cache": 3, "norm_eps": 1e-5,
              "block_auto_adjust_ff_dim": False, "conv_bias": False}
    return {"config": config, "tensors": tensors}


def nemotron():
    """Mamba 2 with several keys, and layers of one block each."""
    pattern, heads, head, groups, state = "M*M-", 4, 16, 2, 16
    values, keys = heads * head, groups * state
    tensors = {"model.embeddings.weight": [[VOCAB, HIDDEN], 1.0, 0.0], "model.norm_f.weight": [[HIDDEN], 0.2, 1.0], "lm_head.weight": matrix(VOCAB, HIDDEN, 5)}
    for k, kind in enumerate(pattern):
        at = "model.layers.%d." % k
        tensors[at + "norm.weight"] = [[HIDDEN], 0.2, 1.0]
        at += "mixer."
        if kind == "*":
            tensors.update(attention(at, "o_proj.weight", False))
        elif kind == "-":
            tensors.update({at + "up_proj.weight": matrix(WIDE, HIDDEN), at + "down_proj.weight": matrix(HIDDEN, WIDE)})
        else:
            tensors.update({at + "in_proj.weight": matrix(2 * values + 2 * keys + heads, HIDDEN), at + "conv1d.weight": [[values + 2 * keys, 1, 4], 0.9, 0.0],
                            at + "conv1d.bias": [[values + 2 * keys], 0.2, 0.0], at + "A_log": [[heads], 0.3, -1.5], at + "D": [[heads], 0.3, 1.0],
                            at + "dt_bias": [[heads], 0.3, 0.0], at + "norm.weight": [[values], 0.2, 1.0], at + "out_proj.weight": matrix(HIDDEN, values)})
    config = {**SMALL, "architectures": ["NemotronHForCausalLM"], "num_hidden_layers": len(pattern), "hybrid_override_pattern": pattern, "head_dim": HEAD,
              "mamba_num_heads": heads, "mamba_head_dim": head, "n_groups": groups, "ssm_state_size": state, "conv_kernel": 4, "expand": 2,
              "mlp_hidden_act": "relu2", "layer_norm_epsilon": 1e-5}
    return {"config": config, "tensors": tensors}


RECURRENT = {"qwen": qwen, "lfm2": lfm2, "nemotron": nemotron}
