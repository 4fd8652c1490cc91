"""Small models of Falcon, for families_differential.py: the three orders of its query_key_value, and its blocks side by side with one norm
or two, or one behind the other. Beside variants by hand there are drawn ones, the same every time."""
import random

from families_fields import COMMON, MISSING, YARN, new_rope

DRAWN = 12  # of each family

USUAL = {"hidden_act": MISSING, "intermediate_size": MISSING, "num_key_value_heads": MISSING, "rms_norm_eps": MISSING,
         "layer_norm_epsilon": 1e-5}

FAMILIES = {
    "falcon": {**USUAL, "architectures": ["FalconForCausalLM"], "alibi": False, "apply_residual_connection_post_layernorm": False, "bias": False,
               "hidden_dropout": 0.0, "multi_query": True, "new_decoder_architecture": False, "parallel_attn": True, "tie_word_embeddings": MISSING},
}

# As 40B and 180B.
NEWER = {"new_decoder_architecture": True, "num_kv_heads": 2}
# As falcon-rw, but for alibi.
OLDER = {"multi_query": False, "parallel_attn": False, "bias": True}
SIX = {"hidden_size": 60, "num_attention_heads": 6, "vocab_size": 97}


def falcon():
    yield "none", {}
    yield "wide", {"ffn_hidden_size": 52, "num_kv_heads": 4}
    yield "newer", NEWER
    yield "newer-mha", {**NEWER, "num_kv_heads": 4}
    yield "newer-kv-missing", {**NEWER, "num_kv_heads": MISSING}
    yield "newer-mqa", {**NEWER, "num_kv_heads": 1, "num_ln_in_parallel_attn": 2}
    yield "newer-bias", {**NEWER, "bias": True, "multi_query": False}
    # As 11B.
    yield "newer-one-norm", {**NEWER, "num_ln_in_parallel_attn": 1, "ff_factor": 4, "ffn_hidden_size": 160, "rope_theta": 500042.0,
                             "tie_word_embeddings": False}
    yield "older", OLDER
    yield "older-no-bias", {**OLDER, "bias": False, "num_kv_heads": 4, "num_ln_in_parallel_attn": 1}
    yield "sequential-mqa", {"parallel_attn": False}
    yield "parallel-mha", {"multi_query": False, "bias": True}
    yield "bias", {"bias": True}
    yield "untied", {"tie_word_embeddings": False}
    yield "odd", {**SIX, "ffn_hidden_size": 69, "bias": True}
    yield "odd-newer", {**SIX, **NEWER, "num_kv_heads": 3, "ffn_hidden_size": 69, "bias": True}
    yield "odd-older", {**SIX, **OLDER, "ffn_hidden_size": 69}
    yield "one-layer", {"num_hidden_layers": 1, "vocab_size": 64}
    yield "act-tanh", {"activation": "gelu_pytorch_tanh"}
    yield "eps", {"layer_norm_epsilon": 1e-2}
    yield "defaults", {k: MISSING for k in ("alibi", "bias", "layer_norm_epsilon", "multi_query", "new_decoder_architecture", "parallel_attn", "rope_theta",
                                            "max_position_embeddings", "apply_residual_connection_post_layernorm")}
    yield "linear", {"rope_scaling": {"type": "linear", "factor": 2.5}}
    yield "dynamic", {"rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_position_embeddings": 24}
    yield "yarn-new", new_rope({**YARN, "rope_type": "yarn"})


def drawn_falcon(draw):
    newer, kv_heads = draw.random() < 0.5, draw.choice((1, 2, 4))
    changes = {"hidden_size": kv_heads * 2 * draw.choice((6, 10, 16)), "num_attention_heads": kv_heads * 2, "num_hidden_layers": draw.randint(1, 4),
               "ffn_hidden_size": 2 * draw.randint(8, 60), "bias": draw.random() < 0.5, "vocab_size": draw.randint(60, 150),
               "tie_word_embeddings": draw.random() < 0.5, "rope_theta": draw.choice((1000.0, 10000.0, 500000.0)),
               "activation": draw.choice(("gelu", "gelu_new", "relu", "silu"))}
    if newer:
        return {**changes, "new_decoder_architecture": True, "num_kv_heads": kv_heads, "num_ln_in_parallel_attn": draw.choice((1, 2, None))}
    return {**changes, "multi_query": draw.random() < 0.5, "parallel_attn": draw.random() < 0.5}


VARIANTS = {"falcon": (falcon, drawn_falcon)}
SAVES = [("f16", {"dtype": "float16"}), ("bf16", {"dtype": "bfloat16"}), ("sharded", {"shards": 3}), ("base", {"base": True})]
# Of sizes that devices take.
DEVICE = {"falcon": {"hidden_size": 64, "bias": True},
          "falcon-newer": {"hidden_size": 64, **NEWER, "tie_word_embeddings": False}}


def config(family, changes):
    return {k: v for k, v in {**COMMON, **FAMILIES[family], "model_type": family, **changes}.items() if v is not MISSING}


def cases():
    """As families_cases.cases."""
    for family, (variants, drawn) in VARIANTS.items():
        for name, changes in variants():
            yield family + "/" + name, family, config(family, changes), {"ranks": 3} if name.startswith("odd") else {}
        draw = random.Random(family)
        for i in range(DRAWN):
            yield "%s/drawn-%d" % (family, i), family, config(family, drawn(draw)), {}
        for name, save in SAVES:
            yield family + "/save-" + name, family, config(family, {"torch_dtype": save.get("dtype", "float32")}), save


def device_cases():
    """As families_cases.device_cases."""
    for name, changes in DEVICE.items():
        yield name, config(name.partition("-")[0], {**changes, "torch_dtype": "bfloat16"}), {}
