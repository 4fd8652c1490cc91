"""Small models of Falcon, StarCoder 1, SantaCoder, GPT-J and CodeGen, for families_differential.py: the three orders of Falcon's query_key_value, and its
blocks side by side with one norm or two, or one behind the other. Beside variants by hand there are drawn ones, the same every time."""
import random

from families_fields import COMMON, MISSING, YARN, new_rope

DRAWN = 12  # of each family

USUAL = {"hidden_act": MISSING, "intermediate_size": MISSING, "num_key_value_heads": MISSING, "rms_norm_eps": MISSING,
         "layer_norm_epsilon": 1e-5}

FAMILIES = {
    "falcon": {**USUAL, "architectures": ["FalconForCausalLM"], "alibi": False, "apply_residual_connection_post_layernorm": False, "bias": False,
               "hidden_dropout": 0.0, "multi_query": True, "new_decoder_architecture": False, "parallel_attn": True, "tie_word_embeddings": MISSING},
}
# GPT-2's names of fields.
SIZES = {"hidden_size": MISSING, "num_hidden_layers": MISSING, "num_attention_heads": MISSING, "max_position_embeddings": MISSING,
         "n_embd": 40, "n_layer": 3, "n_head": 4, "n_positions": 100, "n_inner": None, "rope_theta": MISSING, "attention_dropout": MISSING,
         "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "summary_type": "cls_index", "summary_use_proj": True}
FAMILIES["gpt_bigcode"] = {**USUAL, **SIZES, "architectures": ["GPTBigCodeForCausalLM"], "activation_function": "gelu_pytorch_tanh",
                           "attention_softmax_in_fp32": True, "multi_query": True, "scale_attention_softmax_in_fp32": True,
                           "scale_attn_weights": True, "tie_word_embeddings": MISSING}
FAMILIES["gptj"] = {**USUAL, **SIZES, "architectures": ["GPTJForCausalLM"], "activation_function": "gelu_new", "n_positions": 256, "rotary": True,
                    "rotary_dim": 4, "scale_attn_weights": True, "tie_word_embeddings": False, "gradient_checkpointing": False}
FAMILIES["codegen"] = {**FAMILIES["gptj"], "architectures": ["CodeGenForCausalLM"], "n_ctx": 256, "rotary": MISSING}

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
    # As 7B, which no number of ranks divides.
    yield "heads-71", {"hidden_size": 426, "num_attention_heads": 71, "ffn_hidden_size": 71}
    yield "odd", {**SIX, "ffn_hidden_size": 69, "bias": True}
    yield "odd-newer", {**SIX, **NEWER, "num_kv_heads": 3, "ffn_hidden_size": 69, "bias": True}
    yield "odd-older", {**SIX, **OLDER, "ffn_hidden_size": 69}
    yield "one-layer", {"num_hidden_layers": 1, "vocab_size": 64}
    yield "act-tanh", {"activation": "gelu_pytorch_tanh"}
    yield "eps", {"layer_norm_epsilon": 1e-2}
    yield "n-embed", {"n_embed": 40, "hidden_size": MISSING}
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


def gpt_bigcode():
    yield "none", {}
    yield "mha", {"multi_query": False}
    yield "inner", {"n_inner": 52}
    yield "inner-mha", {"n_inner": 52, "multi_query": False, "num_key_value_heads": 4}
    yield "untied", {"tie_word_embeddings": False, "num_key_value_heads": 1}
    yield "odd", {"n_embd": 60, "n_head": 6, "vocab_size": 97, "n_inner": 69}
    yield "odd-mha", {"n_embd": 60, "n_head": 6, "vocab_size": 97, "n_inner": 69, "multi_query": False}
    yield "one-layer", {"n_layer": 1, "vocab_size": 64}
    yield "act-gelu", {"activation_function": "gelu"}
    yield "eps", {"layer_norm_epsilon": 1e-2}
    # As StarCoder's file.
    yield "runner", {"inference_runner": 0, "max_batch_size": None, "max_sequence_length": None, "pad_key_length": True,
                     "pre_allocate_kv_cache": False, "validate_runner_input": True}
    yield "defaults", {k: MISSING for k in ("activation_function", "layer_norm_epsilon", "multi_query", "n_inner", "scale_attn_weights")}


def drawn_gpt_bigcode(draw):
    heads = 2 * draw.randint(1, 4)
    return {"n_embd": heads * 2 * draw.randint(3, 9), "n_head": heads, "n_layer": draw.randint(1, 4), "n_inner": 2 * draw.randint(8, 60),
            "multi_query": draw.random() < 0.6, "vocab_size": draw.randint(64, 150), "tie_word_embeddings": draw.random() < 0.5,
            "activation_function": draw.choice(("gelu", "gelu_new", "gelu_pytorch_tanh", "relu"))}


def gptj():
    yield "none", {}
    # Quarters of the heads of CodeGen that ranks divide; six heads that quarters do.
    yield "eight-heads", {"n_embd": 80, "n_head": 8}
    yield "rotary-2", {"rotary_dim": 2}
    yield "rotary-whole", {"rotary_dim": 10}
    yield "inner", {"n_inner": 52}
    yield "tied", {"tie_word_embeddings": True}
    yield "odd", {"n_embd": 60, "n_head": 6, "vocab_size": 97, "n_inner": 69, "rotary_dim": 6}
    yield "one-layer", {"n_layer": 1, "vocab_size": 64}
    yield "act-gelu", {"activation_function": "gelu"}
    yield "eps", {"layer_norm_epsilon": 1e-2}
    yield "defaults", {"n_embd": 256, **{k: MISSING for k in ("activation_function", "layer_norm_epsilon", "n_inner", "rotary", "rotary_dim",
                                                              "scale_attn_weights", "tie_word_embeddings")}}


def drawn_gptj(draw):
    heads, pairs = 2 * draw.randint(1, 4), draw.randint(2, 9)
    return {"n_embd": heads * 2 * pairs, "n_head": heads, "n_layer": draw.randint(1, 4), "n_inner": 2 * draw.randint(8, 60),
            "rotary_dim": 2 * draw.randint(1, pairs), "vocab_size": draw.randint(64, 150), "tie_word_embeddings": draw.random() < 0.3,
            "activation_function": draw.choice(("gelu", "gelu_new", "gelu_pytorch_tanh", "relu"))}


def drawn_codegen(draw):
    changes = drawn_gptj(draw)
    return {**changes, "n_embd": 2 * changes["n_embd"]}  # a multiple of 4


VARIANTS = {"falcon": (falcon, drawn_falcon), "gpt_bigcode": (gpt_bigcode, drawn_gpt_bigcode), "gptj": (gptj, drawn_gptj), "codegen": (gptj, drawn_codegen)}
SAVES = [("f16", {"dtype": "float16"}), ("bf16", {"dtype": "bfloat16"}), ("sharded", {"shards": 3}), ("base", {"base": True})]
# Of sizes that devices take.
DEVICE = {"falcon": {"hidden_size": 64, "bias": True},
          "falcon-newer": {"hidden_size": 64, **NEWER, "tie_word_embeddings": False},
          "gptj": {"n_embd": 64, "n_inner": 96, "rotary_dim": 8},
          "codegen": {"n_embd": 64, "n_inner": 96, "rotary_dim": 8},
          "gpt_bigcode": {"n_embd": 64, "n_inner": 96, "tie_word_embeddings": False}}


def config(family, changes):
    return {k: v for k, v in {**COMMON, **FAMILIES[family], "model_type": family, **changes}.items() if v is not MISSING}


def cases():
    """As families_cases.cases."""
    for family, (variants, drawn) in VARIANTS.items():
        for name, changes in variants():
            yield family + "/" + name, family, config(family, changes), {"ranks": 3 if name.startswith("odd") else 1 if name == "heads-71" else 2}
        draw = random.Random(family)
        for i in range(DRAWN):
            yield "%s/drawn-%d" % (family, i), family, config(family, drawn(draw)), {}
        for name, save in SAVES:
            yield family + "/save-" + name, family, config(family, {"torch_dtype": save.get("dtype", "float32")}), save


def device_cases():
    """As families_cases.device_cases."""
    for name, changes in DEVICE.items():
        yield name, config(name.partition("-")[0], {**changes, "torch_dtype": "bfloat16"}), {}
