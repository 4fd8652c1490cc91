"""Small models that no checkpoint has to be kept of: weights are a function of a tensor's name and place, so that config.json and the tensors' shapes are all.
Used by tests and tools/gpu-check, whose machine has Python alone."""
import array
import json
import math
import random
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


def ids(seed, count):
    """A prompt that is in every small model's vocabulary."""
    return random.Random(seed).choices(range(3, 100), k=count)


class Folders:
    """The folders of models, each written when it is first asked for. `kept`: what write_model takes, by a model's name."""

    def __init__(self, make, kept):
        self.make, self.kept, self.made = make, kept, {}

    def __call__(self, name):
        if name not in self.made:
            self.made[name] = write_model(self.make("model"), self.kept(name))
        return self.made[name]


# ---------------------------------------------------------------- layers that keep a state, of sizes that devices take

VOCAB, HIDDEN, WIDE, HEADS, KV_HEADS, HEAD = 101, 64, 96, 4, 2, 16
# Of the best logit and the second, whose values lie 35 apart: rounding to bfloat16 may exchange them, and quicker processors round more.
MARGIN = 0.5
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


# ---------------------------------------------------------------- heads that share a latent, or differ in size by layer; "kv_bytes": of a token in bfloat16

def mlp(at, wide=WIDE, gain=1):
    return {at + "gate_proj.weight": matrix(wide, HIDDEN), at + "up_proj.weight": matrix(wide, HIDDEN), at + "down_proj.weight": matrix(HIDDEN, wide, gain)}


def deepseek():
    """A layer with an MLP and one with experts, which come from groups."""
    rank, q_rank, key, rope, value, experts = 32, 32, 32, 16, 16, 4
    tensors = {"model.embed_tokens.weight": [[VOCAB, HIDDEN], 1.0, 0.0], "model.norm.weight": [[HIDDEN], 0.2, 1.0],
               "lm_head.weight": matrix(VOCAB, HIDDEN, 5)}
    for k in range(2):
        at = "model.layers.%d." % k
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[at + norm + ".weight"] = [[HIDDEN], 0.2, 1.0]
        for part, shape in (("q_a_proj", (q_rank, HIDDEN)), ("q_b_proj", (HEADS * (key + rope), q_rank)), ("kv_a_proj_with_mqa", (rank + rope, HIDDEN)),
                            ("kv_b_proj", (HEADS * (key + value), rank)), ("o_proj", (HIDDEN, HEADS * value))):
            tensors[at + "self_attn.%s.weight" % part] = matrix(*shape)
        tensors.update({at + "self_attn.q_a_layernorm.weight": [[q_rank], 0.2, 1.0], at + "self_attn.kv_a_layernorm.weight": [[rank], 0.2, 1.0]})
        if k == 0:
            tensors.update(mlp(at + "mlp."))
            continue
        tensors.update({at + "mlp.gate.weight": matrix(experts, HIDDEN, 3), at + "mlp.gate.e_score_correction_bias": [[experts], 0.1, 0.0]})
        tensors.update(mlp(at + "mlp.shared_experts.", 32))
        for x in range(experts):
            tensors.update(mlp(at + "mlp.experts.%d." % x, 32, 0.03))  # little: where groups are nearly equal, another may be chosen
    config = {**SMALL, "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 2, "num_key_value_heads": HEADS, "kv_lora_rank": rank,
              "q_lora_rank": q_rank, "qk_nope_head_dim": key, "qk_rope_head_dim": rope, "v_head_dim": value, "n_routed_experts": experts,
              "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
              "norm_topk_prob": True, "routed_scaling_factor": 1.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rms_norm_eps": 1e-6}
    return {"config": config, "tensors": tensors, "kv_bytes": 2 * 2 * 2 * (rank + rope)}


def gemma():
    """Layers with a window and without, whose heads differ in size; the last two read keys and values of earlier ones; inputs of every layer."""
    head, head_far, kv_heads, width = 16, 32, KV_HEADS, 32
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    tensors = {"model.embed_tokens.weight": [[VOCAB, HIDDEN], 1.0, 0.0], "model.norm.weight": [[HIDDEN], 0.2, 1.0], "lm_head.weight": matrix(VOCAB, HIDDEN, 5),
               "model.embed_tokens_per_layer.weight": [[VOCAB, len(kinds) * width], 1.0, 0.0], "model.per_layer_projection_norm.weight": [[width], 0.2, 1.0],
               "model.per_layer_model_projection.weight": matrix(len(kinds) * width, HIDDEN)}
    for k, kind in enumerate(kinds):
        at, size, shares = "model.layers.%d." % k, head_far if kind == "full_attention" else head, k >= 2
        for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm", "post_per_layer_input_norm"):
            tensors[at + norm + ".weight"] = [[HIDDEN], 0.2, 1.0]
        for part, count in (("q", HEADS), ("k", 0 if shares else kv_heads), ("v", 0 if shares else kv_heads)):
            if count:
                tensors[at + "self_attn.%s_proj.weight" % part] = matrix(count * size, HIDDEN)
        tensors.update({at + "self_attn.%s_norm.weight" % x: [[size], 0.2, 1.0] for x in ("q" if shares else "qk")})
        tensors.update(mlp(at + "mlp."))
        tensors.update({at + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * size), at + "layer_scalar": [[1], 0.0, 0.75],
                        at + "per_layer_input_gate.weight": matrix(width, HIDDEN), at + "per_layer_projection.weight": matrix(HIDDEN, width)})
    config = {**SMALL, "architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": len(kinds), "layer_types": kinds, "head_dim": head,
              "global_head_dim": head_far, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": width, "vocab_size_per_layer_input": VOCAB,
              "sliding_window": 24, "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "final_logit_softcapping": None}
    return {"config": config, "tensors": tensors, "kv_bytes": 2 * 2 * kv_heads * (head + head_far)}


OTHER_HEADS = {"deepseek": deepseek, "gemma": gemma}
