"""Small models of families whose program comes with the checkpoint, for families_differential.py. Their references are Llama with other layers: DeciLM and
Nemotron NAS, whose layers have KV heads and MLPs of their own sizes or lack one of both, and Orion, whose norms are LayerNorm; or the same values under other
names: Baichuan 1 (Llama) and 2, whose lm_head is divided row by row, and Qwen 1 (Qwen 2), both with q, k and v in one tensor."""
import copy
import re

import torch
from torch import nn
from transformers.models.llama import modeling_llama

import families_unrotated
from families_fields import COMMON, LLAMA3, MISSING

RENAMED = ("baichuan", "qwen")  # whose tensors have other names in the file


def has(c):
    return c["model_type"] in ("nemotron-nas", "deci", "orion", *RENAMED)


# ---------------------------------------------------------------- DeciLM

def block(group, width, **ffn):
    """A layer: heads that share a key, or None, or "linear", and how wide the MLP is, a number as it stands or a multiple, or None, or "linear"."""
    if "linear" in (group, width):
        made = block(None if group == "linear" else group, None if width == "linear" else width)
        for part, value in (("attention", group), ("ffn", width)):
            made[part].update({"no_op": False, "replace_with_linear": True} if value == "linear" else {})
        return made
    sized = {"ffn_mult" if isinstance(width, float) else "intermediate_size": width}
    return {"attention": {"n_heads_in_group": group, "no_op": group is None, "num_sink_tokens": None, "replace_with_linear": False, "sparsify": None,
                          "unshifted_sink": False, "use_prefill_window_in_sink_attention": False, "window_length": None},
            "ffn": {**sized, "no_op": width is None, "replace_with_linear": False, "sparsify": None, **ffn}}


def blocks(*layers):
    return {"num_hidden_layers": len(layers), "block_configs": [block(*layer) for layer in layers]}


NAS = {**COMMON, "architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1,
       "intermediate_size": None, "num_key_value_heads": None, "rope_scaling": {**LLAMA3, "factor": 8.0}, "rope_theta": 500000.0,
       "auto_map": {"AutoConfig": "configuration_decilm.DeciLMConfig", "AutoModelForCausalLM": "modeling_decilm.DeciLMForCausalLM"},
       **blocks((2, 52), (None, 36), (4, None), (1, 5.25), (2, 10.0))}
DECI = {**COMMON, "architectures": ["DeciLMForCausalLM"], "model_type": "deci", "num_hidden_layers": 4, "num_key_value_heads": MISSING,
        "num_key_value_heads_per_layer": [4, 2, 1, 2], "rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_position_embeddings": 24}
SIX = {"hidden_size": 60, "num_attention_heads": 6, "vocab_size": 97}


def nas():
    yield "none", {}
    yield "alike", blocks(*[(2, 52)] * 3)
    yield "alike-said", {**blocks(*[(2, 52)] * 3), "num_key_value_heads": 2, "intermediate_size": 52}
    yield "first-no-attention", blocks((None, 52), (2, 36), (1, 44))
    yield "first-nothing", blocks((None, None), (2, 36), (1, 44))
    yield "last-no-attention", blocks((2, 36), (1, 44), (None, 52))
    yield "last-no-mlp", blocks((None, 36), (1, 44), (4, None))
    yield "last-nothing", blocks((2, 36), (1, None), (None, None), (None, None))
    yield "nothing-between", blocks((2, 36), (None, None), (1, 44), (None, None), (None, 60), (None, 20), (4, 52))
    yield "no-mlp", blocks((2, None), (4, None))
    yield "one-attends", blocks((None, 36), (None, 44), (4, None), (None, 52), (None, 20))
    yield "kv-heads", blocks((4, 52), (1, 52), (2, 52), (4, 52), (1, 52))
    yield "widths", blocks((2, 20), (2, 100), (2, 12), (2, 0.5), (2, 9.6), (2, 19.2))
    yield "gated", {"num_hidden_layers": 2, "block_configs": [block(2, 52, gated=True, hidden_act="silu", moe=None), block(1, 20, gated=True, hidden_act="silu", moe=None)]}
    yield "linear", blocks((2, 52), ("linear", 36), (4, "linear"), ("linear", "linear"), (1, 44))
    yield "linear-first-last", blocks(("linear", None), (2, 36), (None, None), (1, "linear"), (None, "linear"))
    yield "biases", {"attention_bias": True, "mlp_bias": True}
    yield "attention-bias", {"attention_bias": True}
    yield "tied", {"tie_word_embeddings": True}
    yield "no-scaling", {"rope_scaling": None}
    yield "defaults", {"rope_theta": MISSING, "rms_norm_eps": MISSING, "rope_scaling": MISSING, "intermediate_size": MISSING, "num_key_value_heads": MISSING}
    yield "act-gelu", {"hidden_act": "gelu"}
    yield "odd", {**SIX, **blocks((2, 69), (None, 27), (6, None), (1, 12.9), (2, 33)), "attention_bias": True}


def deci():
    yield "none", {}
    yield "plain-rope", {"rope_scaling": None, "max_position_embeddings": 256}
    yield "alike", {"num_key_value_heads_per_layer": [2] * 4, "num_key_value_heads": 2}
    yield "odd", {**SIX, "num_key_value_heads_per_layer": [3, 6, 1, 3], "intermediate_size": 69}


def sizes(c, layer):
    """KV heads and width of the MLP, or None, or "linear"."""
    if "block_configs" not in c:
        return c["num_key_value_heads_per_layer"][layer], c["intermediate_size"]
    attention, ffn = (c["block_configs"][layer][part] for part in ("attention", "ffn"))
    width = ffn.get("intermediate_size") or -(-int(2 * (ffn.get("ffn_mult") or 0) * c["hidden_size"] / 3) // 256) * 256
    kv_heads = None if attention["no_op"] else "linear" if attention["replace_with_linear"] else c["num_attention_heads"] // attention["n_heads_in_group"]
    return kv_heads, None if ffn["no_op"] else "linear" if ffn["replace_with_linear"] else width


def deci_config(c):
    own = ("block_configs", "num_key_value_heads_per_layer", "auto_map", "intermediate_size", "num_key_value_heads")
    return {**{k: v for k, v in c.items() if k not in own}, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "intermediate_size": 4,
            "num_key_value_heads": c["num_attention_heads"]}


class Linear(nn.Module):
    """A matrix in place of a block."""
    def __init__(self, name, hidden):
        super().__init__()
        self.name = name
        setattr(self, name, nn.Linear(hidden, hidden, bias=False))

    def forward(self, hidden_states, **how):
        return getattr(self, self.name)(hidden_states), None


class DeciLayer(nn.Module):
    def __init__(self, config, layer, kv_heads, width):
        super().__init__()
        own = copy.copy(config)
        own.num_key_value_heads, own.intermediate_size = (x if isinstance(x, int) else 1 for x in (kv_heads, width))
        self.attends, self.computes = kv_heads is not None, width is not None
        if self.attends:
            self.input_layernorm = modeling_llama.LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
            self.self_attn = modeling_llama.LlamaAttention(own, layer) if kv_heads != "linear" else Linear("linear_attn", config.hidden_size)
        if self.computes:
            self.post_attention_layernorm = modeling_llama.LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
            self.mlp = modeling_llama.LlamaMLP(own) if width != "linear" else Linear("linear_mlp", config.hidden_size)

    def forward(self, x, **how):
        if self.attends:
            x = x + self.self_attn(hidden_states=self.input_layernorm(x), **how)[0]
        if not self.computes:
            return x
        made = self.mlp(self.post_attention_layernorm(x))
        return x + (made[0] if isinstance(made, tuple) else made)


# ---------------------------------------------------------------- Orion

ORION = {**COMMON, "architectures": ["OrionForCausalLM"], "model_type": "orion", "attention_bias": False, "max_sequence_length": 256, "pad_token_id": 0,
         "pretraining_tp": 1, "rope_scaling": None, "auto_map": {"AutoConfig": "configuration_orion.OrionConfig"}}


def orion():
    yield "none", {}
    yield "mha", {"num_key_value_heads": 4}
    yield "biases", {"attention_bias": True}
    yield "tied", {"tie_word_embeddings": True}
    yield "eps", {"rms_norm_eps": 1e-2}
    yield "linear", {"rope_scaling": {"type": "linear", "factor": 2.0}}
    yield "odd", {**SIX, "num_key_value_heads": 3, "intermediate_size": 69}


# ---------------------------------------------------------------- Baichuan and Qwen 1

BAICHUAN = {**COMMON, "architectures": ["BaichuanForCausalLM"], "model_type": "baichuan", "num_key_value_heads": MISSING, "rope_theta": MISSING,
            "model_max_length": 256, "pad_token_id": 0, "rms_norm_eps": 1e-6, "_from_model_config": True, "tokenizer_class": "BaichuanTokenizer",
            "auto_map": {"AutoConfig": "configuration_baichuan.BaichuanConfig"}}
QWEN = {**{k: COMMON[k] for k in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "initializer_range", "torch_dtype", "transformers_version")},
        "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "attn_dropout_prob": 0.0, "bf16": False, "emb_dropout_prob": 0.0, "fp16": False,
        "fp32": False, "intermediate_size": 104, "kv_channels": 10, "layer_norm_epsilon": 1e-6, "max_position_embeddings": 512, "no_bias": True,
        "onnx_safe": None, "rotary_emb_base": 10000, "rotary_pct": 1.0, "scale_attn_weights": True, "seq_length": 256, "softmax_in_fp32": False,
        "tie_word_embeddings": False, "tokenizer_class": "QWenTokenizer", "use_cache": True, "use_cache_kernel": False, "use_cache_quantization": False,
        "use_dynamic_ntk": True, "use_flash_attn": "auto", "use_logn_attn": True, "auto_map": {"AutoConfig": "configuration_qwen.QWenConfig"}}


def baichuan():
    yield "none", {}
    yield "first", {"architectures": ["BaiChuanForCausalLM"]}
    yield "first-tied", {"architectures": ["BaiChuanForCausalLM"], "tie_word_embeddings": True}
    yield "eps-missing", {"rms_norm_eps": MISSING}
    yield "odd", {**SIX, "intermediate_size": 69}
    # As 13B: of the second generation, and of the first.
    alibi = {"max_position_embeddings": MISSING, "z_loss_weight": 0}
    yield "alibi", alibi
    yield "alibi-first", {**alibi, "z_loss_weight": MISSING, "vocab_size": 64000, "hidden_size": 16, "num_hidden_layers": 1}
    yield "odd-alibi", {**alibi, **SIX, "intermediate_size": 69}
    yield "odd-first", {**SIX, "intermediate_size": 69, "architectures": ["BaiChuanForCausalLM"]}


def qwen():
    yield "none", {}
    yield "bf16-said", {"bf16": True, "softmax_in_fp32": True}
    yield "long", {"use_dynamic_ntk": False, "use_logn_attn": False, "seq_length": 32}
    yield "base", {"rotary_emb_base": 1000000}
    yield "eps", {"layer_norm_epsilon": 1e-2}
    yield "heads-wide", {"kv_channels": 16}
    yield "heads-missing", {"kv_channels": MISSING, "num_attention_heads": 2}
    yield "odd", {**SIX, "kv_channels": 12, "intermediate_size": 138}


LLAMA_FIELDS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "rms_norm_eps",
                "torch_dtype", "tie_word_embeddings")


def packed_config(c):
    usual = {k: c[k] for k in LLAMA_FIELDS if k in c}
    if c["model_type"] == "baichuan":
        return {**usual, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    return {**usual, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "intermediate_size": c["intermediate_size"] // 2,
            "head_dim": c.get("kv_channels", 128), "num_key_value_heads": c["num_attention_heads"], "rms_norm_eps": c["layer_norm_epsilon"],
            "rope_theta": c["rotary_emb_base"], "use_sliding_window": False}


QWEN_NAMES = [("model.embed_tokens.", "transformer.wte."), ("model.norm.", "transformer.ln_f."), ("model.layers.", "transformer.h."),
              (".input_layernorm.", ".ln_1."), (".post_attention_layernorm.", ".ln_2."), (".self_attn.o_proj.", ".attn.c_proj."),
              (".mlp.gate_proj.", ".mlp.w2."), (".mlp.up_proj.", ".mlp.w1."), (".mlp.down_proj.", ".mlp.c_proj."), (".self_attn.qkv.", ".attn.c_attn.")]


def packed_name(c, name):
    """Of q, k and v that of the tensor which they are in."""
    name = re.sub(r"\.self_attn\.[qkv]_proj\.", ".self_attn.qkv.", name)
    for ours, file in QWEN_NAMES if c["model_type"] == "qwen" else [(".self_attn.qkv.", ".self_attn.W_pack.")]:
        name = name.replace(ours, file)
    return name


def to_file(c, tensors):
    def whole(name, t):
        which = re.search(r"\.self_attn\.[qkv]_proj\.", name)
        return torch.cat([tensors[name.replace(which[0], ".self_attn.%s_proj." % x)] for x in "qkv"]) if which else t
    return {packed_name(c, name): whole(name, t) for name, t in tensors.items()}


def from_file(c, tensors, state):
    def part(name):
        which = re.search(r"\.self_attn\.([qkv])_proj\.", name)
        tied = name == "lm_head.weight" and c["tie_word_embeddings"]
        t = tensors[packed_name(c, "model.embed_tokens.weight" if tied else name)]
        return t.chunk(3)["qkv".index(which[1])] if which else t
    return {name: part(name) for name in state}


class UnitHead(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, nn.functional.normalize(self.weight))


# ---------------------------------------------------------------- for families_standins.py and families_differential.py

def config(c):
    """What the reference is made from."""
    if c["model_type"] in RENAMED:
        return packed_config(c)
    if c["model_type"] == "orion":
        return {**{k: v for k, v in c.items() if k != "auto_map"}, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    return deci_config(c)


def remake_norms(model, c):
    for layer in model.model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = (nn.LayerNorm(c["hidden_size"], c["rms_norm_eps"]) for _ in range(2))
    model.model.norm = nn.LayerNorm(c["hidden_size"], c["rms_norm_eps"])


def remake(model, c):
    """Gives the reference the layers that its family has."""
    if c["model_type"] in ("nemotron-nas", "deci"):
        for i in range(c["num_hidden_layers"]):
            model.model.layers[i] = DeciLayer(model.config, i, *sizes(c, i)).eval()
    if c["model_type"] == "orion":
        remake_norms(model, c)
    if c["architectures"] == ["BaichuanForCausalLM"] and c["vocab_size"] != 64000:
        model.lm_head.__class__ = UnitHead
    if c["model_type"] == "baichuan" and "max_position_embeddings" not in c:
        families_unrotated.attend_by_distance(model)


FAMILIES = {"nemotron-nas": (NAS, nas), "deci": (DECI, deci), "orion": (ORION, orion), "baichuan": (BAICHUAN, baichuan), "qwen": (QWEN, qwen)}
SAVES = [("f16", {"dtype": "float16"}), ("bf16", {"dtype": "bfloat16"}), ("sharded", {"shards": 3})]


# Of sizes that devices take.
DEVICE = {"nemotron-nas": {**blocks((2, 96), (None, 36), (2, None), (2, 5.25), (None, None), (2, 64)), "hidden_size": 64},
          "orion": {"hidden_size": 64, "intermediate_size": 96}, "baichuan": {"hidden_size": 64, "intermediate_size": 96},
          "qwen": {"hidden_size": 64, "intermediate_size": 192, "kv_channels": 16}}


def device_cases():
    """As families_cases.device_cases."""
    for family, changes in DEVICE.items():
        config = {**FAMILIES[family][0], **changes, "torch_dtype": "bfloat16"}
        yield family, {k: v for k, v in config.items() if v is not MISSING}, {}


def cases():
    """As families_cases.cases."""
    for family, (usual, variants) in FAMILIES.items():
        for name, changes in variants():
            yield family + "/" + name, family, {k: v for k, v in {**usual, **changes}.items() if v is not MISSING}, {"ranks": 3} if name.startswith("odd") else {}
        for name, save in SAVES:
            config = {k: v for k, v in usual.items() if v is not MISSING}
            yield family + "/save-" + name, family, {**config, "torch_dtype": save.get("dtype", "float32")}, save
