"""Small models of families whose program comes with the checkpoint, for families_differential.py. Their references are Llama with other layers: DeciLM and
Nemotron NAS, whose layers have KV heads and MLPs of their own sizes or lack one of both."""
import copy

from torch import nn
from transformers.models.llama import modeling_llama

from families_fields import COMMON, LLAMA3, MISSING


def has(c):
    return c["model_type"] in ("nemotron-nas", "deci")


# ---------------------------------------------------------------- DeciLM

def block(group, width, **ffn):
    """A layer: heads that share a key, or None, and how wide the MLP is, a number as it stands or a multiple, or None."""
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
    """KV heads and width of the MLP, or None."""
    if "block_configs" not in c:
        return c["num_key_value_heads_per_layer"][layer], c["intermediate_size"]
    attention, ffn = (c["block_configs"][layer][part] for part in ("attention", "ffn"))
    width = ffn.get("intermediate_size") or -(-int(2 * (ffn.get("ffn_mult") or 0) * c["hidden_size"] / 3) // 256) * 256
    return None if attention["no_op"] else c["num_attention_heads"] // attention["n_heads_in_group"], None if ffn["no_op"] else width


def deci_config(c):
    own = ("block_configs", "num_key_value_heads_per_layer", "auto_map", "intermediate_size", "num_key_value_heads")
    return {**{k: v for k, v in c.items() if k not in own}, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "intermediate_size": 4,
            "num_key_value_heads": c["num_attention_heads"]}


class DeciLayer(nn.Module):
    def __init__(self, config, layer, kv_heads, width):
        super().__init__()
        own = copy.copy(config)
        own.num_key_value_heads, own.intermediate_size = kv_heads or 1, width or 1
        self.attends, self.computes = kv_heads is not None, width is not None
        if self.attends:
            self.input_layernorm = modeling_llama.LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
            self.self_attn = modeling_llama.LlamaAttention(own, layer)
        if self.computes:
            self.post_attention_layernorm = modeling_llama.LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
            self.mlp = modeling_llama.LlamaMLP(own)

    def forward(self, x, **how):
        if self.attends:
            x = x + self.self_attn(hidden_states=self.input_layernorm(x), **how)[0]
        return x + self.mlp(self.post_attention_layernorm(x)) if self.computes else x


# ---------------------------------------------------------------- for families_standins.py and families_differential.py

def config(c):
    """What the reference is made from."""
    return deci_config(c)


def remake(model, c):
    """Gives the reference the layers that its family has."""
    if c["model_type"] in ("nemotron-nas", "deci"):
        for i in range(c["num_hidden_layers"]):
            model.model.layers[i] = DeciLayer(model.config, i, *sizes(c, i)).eval()


FAMILIES = {"nemotron-nas": (NAS, nas), "deci": (DECI, deci)}
SAVES = [("f16", {"dtype": "float16"}), ("bf16", {"dtype": "bfloat16"}), ("sharded", {"shards": 3})]


# Of sizes that devices take.
DEVICE = {"nemotron-nas": {**blocks((2, 96), (None, 36), (2, None), (2, 5.25), (None, None), (2, 64)), "hidden_size": 64, "vocab_size": 131}}


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
