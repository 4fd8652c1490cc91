"""Small models of families in which nothing rotates, for families_differential.py: BLOOM, MPT and the first Falcons, whose scores fall with the distance of
keys (ALiBi), and GPT Neo, BioGPT and XGLM, which add positions to embeddings. Numbers of heads are no power of two in the odd ones. Of MPT transformers
has no biases, no positions and no KV heads, whatever a file says: they are put into its modules here. Baichuan 13B is in families_remote.py."""
import math
import random
import types

import torch
from torch import nn

from families_fields import COMMON, MISSING

DRAWN = 12  # of each family

BARE = {k: COMMON[k] for k in ("vocab_size", "initializer_range", "torch_dtype", "use_cache", "bos_token_id", "eos_token_id", "transformers_version")}
BLOOM = {**BARE, "architectures": ["BloomForCausalLM"], "apply_residual_connection_post_layernorm": False, "attention_dropout": 0.0,
         "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "hidden_dropout": 0.0, "hidden_size": 40, "n_layer": 3, "n_head": 4, "n_inner": None,
         "layer_norm_epsilon": 1e-5, "masked_softmax_fusion": True, "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 1, "seq_length": 256,
         "skip_bias_add": True, "skip_bias_add_qkv": False, "slow_but_exact": False, "unk_token_id": 0}
ATTENTION = {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "attn_type": "multihead_attention", "attn_uses_sequence_id": False,
             "clip_qkv": None, "prefix_lm": False, "qk_ln": False, "softmax_scale": None}
MPT = {**BARE, "architectures": ["MPTForCausalLM"], "attn_config": ATTENTION, "d_model": 40, "emb_pdrop": 0, "embedding_fraction": 1.0, "expansion_ratio": 4,
       "init_config": {"init_nonlinearity": "relu", "name": "kaiming_normal_"}, "init_device": "cpu", "learned_pos_emb": True, "logit_scale": None,
       "max_seq_len": 256, "n_heads": 4, "n_layers": 3, "no_bias": True, "norm_type": "low_precision_layernorm", "resid_pdrop": 0,
       "tokenizer_name": "EleutherAI/gpt-neox-20b", "verbose": 0}
FALCON = {**BARE, "architectures": ["FalconForCausalLM"], "alibi": True, "apply_residual_connection_post_layernorm": False, "attention_dropout": 0.0, "bias": True,
          "hidden_dropout": 0.0, "hidden_size": 40, "layer_norm_epsilon": 1e-5, "multi_query": False, "new_decoder_architecture": False,
          "num_attention_heads": 4, "num_hidden_layers": 3, "parallel_attn": False}
GPT_NEO = {**BARE, "architectures": ["GPTNeoForCausalLM"], "activation_function": "gelu_new", "attention_dropout": 0, "attention_types": [[["global", "local"], 2]],
           "attention_layers": ["global", "local"] * 2, "embed_dropout": 0, "gradient_checkpointing": False, "hidden_size": 40, "intermediate_size": None,
           "layer_norm_epsilon": 1e-5, "max_position_embeddings": 256, "num_heads": 4, "num_layers": 4, "resid_dropout": 0, "summary_activation": None,
           "summary_first_dropout": 0.1, "summary_type": "cls_index", "window_size": 8}
BIOGPT = {**BARE, "architectures": ["BioGptForCausalLM"], "activation_dropout": 0.0, "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
          "hidden_dropout_prob": 0.1, "hidden_size": 40, "intermediate_size": 52, "layer_norm_eps": 1e-12, "layerdrop": 0.0, "max_position_embeddings": 256,
          "num_attention_heads": 4, "num_hidden_layers": 3, "pad_token_id": 1, "scale_embedding": True}
XGLM = {**BARE, "architectures": ["XGLMForCausalLM"], "activation_dropout": 0, "activation_function": "gelu", "attention_dropout": 0.1, "attention_heads": 4,
        "d_model": 40, "decoder_start_token_id": 2, "dropout": 0.1, "ffn_dim": 52, "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 256,
        "num_layers": 3, "pad_token_id": 1, "scale_embedding": True}


def bloom():
    yield "none", {}
    yield "n-embed", {"n_embed": 40, "hidden_size": MISSING, "num_attention_heads": 4, "n_head": MISSING}
    yield "untied", {"tie_word_embeddings": False}
    yield "odd", {"hidden_size": 60, "n_head": 6, "vocab_size": 97}
    yield "odd-12", {"hidden_size": 48, "n_head": 12, "vocab_size": 97}
    yield "heads-7", {"hidden_size": 70, "n_head": 7}
    yield "one-layer", {"n_layer": 1, "vocab_size": 64}
    yield "eps", {"layer_norm_epsilon": 1e-2}
    yield "defaults", {k: MISSING for k in ("layer_norm_epsilon", "seq_length", "n_inner", "offset_alibi", "apply_residual_connection_post_layernorm")}


def drawn_bloom(draw):
    heads = 2 * draw.randint(1, 6)
    return {"hidden_size": heads * 2 * draw.randint(3, 9), "n_head": heads, "n_layer": draw.randint(1, 4), "vocab_size": draw.randint(64, 150),
            "tie_word_embeddings": draw.random() < 0.6}


def attention(**changes):
    return {"attn_config": {**ATTENTION, **changes}}


def mpt():
    yield "none", {}
    yield "as-saved", {"architectures": ["MptForCausalLM"], "attn_config": {**ATTENTION, "model_type": ""}, "dtype": "float32", "torch_dtype": MISSING}
    yield "clip", attention(clip_qkv=0.5)
    yield "scale", attention(softmax_scale=0.5)
    yield "bias-max", attention(alibi_bias_max=4)
    yield "biases", {"no_bias": False}
    yield "biases-clip", {"no_bias": False, **attention(clip_qkv=0.8)}
    yield "positions", attention(alibi=False)
    yield "mqa", attention(attn_type="multiquery_attention")
    yield "gqa", attention(attn_type="grouped_query_attention", kv_n_heads=2)
    yield "odd", {"d_model": 60, "n_heads": 6, "vocab_size": 97}
    yield "odd-12", {"d_model": 48, "n_heads": 12, "vocab_size": 97, **attention(alibi_bias_max=16)}
    yield "odd-gqa", {"d_model": 60, "n_heads": 6, "vocab_size": 97, "no_bias": False, **attention(attn_type="grouped_query_attention", kv_n_heads=3)}
    yield "heads-7", {"d_model": 70, "n_heads": 7}
    yield "one-layer", {"n_layers": 1, "vocab_size": 64}
    yield "eps", {"layer_norm_epsilon": 1e-2}
    yield "defaults", {k: MISSING for k in ("attn_config", "expansion_ratio", "no_bias", "norm_type", "learned_pos_emb")}


def drawn_mpt(draw):
    heads = 2 * draw.randint(1, 6)
    return {"d_model": heads * 2 * draw.randint(3, 9), "n_heads": heads, "n_layers": draw.randint(1, 4), "vocab_size": draw.randint(64, 150),
            "no_bias": draw.random() < 0.5, **attention(clip_qkv=draw.choice((None, 1.0, 6.0)), alibi_bias_max=draw.choice((4, 8, 16)))}


def falcon():
    yield "none", {}
    # As falcon-rw-1b saved by newer programs.
    yield "rope-stated", {"rope_theta": 10000.0, "rope_scaling": None}
    yield "newer", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": False, "parallel_attn": True}
    yield "newer-one-norm", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1, "parallel_attn": True}
    yield "mqa", {"multi_query": True, "parallel_attn": True, "bias": False}
    yield "odd", {"hidden_size": 60, "num_attention_heads": 6, "vocab_size": 97}
    yield "odd-12", {"hidden_size": 48, "num_attention_heads": 12, "vocab_size": 97}
    yield "heads-7", {"hidden_size": 70, "num_attention_heads": 7}
    yield "act-tanh", {"activation": "gelu_pytorch_tanh"}


def drawn_falcon(draw):
    kv_heads = draw.choice((1, 2, 4))
    return {"hidden_size": kv_heads * 2 * draw.choice((6, 10, 16)), "num_attention_heads": kv_heads * 2, "num_hidden_layers": draw.randint(1, 4),
            "bias": draw.random() < 0.5, "vocab_size": draw.randint(60, 150), "parallel_attn": True,
            **({"new_decoder_architecture": True, "num_kv_heads": kv_heads} if draw.random() < 0.5 else {"multi_query": draw.random() < 0.5})}


def gpt_neo():
    yield "none", {}
    yield "types-alone", {"attention_layers": MISSING}
    yield "three", {"num_layers": 3, "attention_types": [[["local"], 1], [["global", "local"], 1]], "attention_layers": ["local", "global", "local"]}
    yield "usual", {"num_layers": 24, "attention_types": MISSING, "attention_layers": MISSING, "window_size": MISSING, "hidden_size": 16, "num_heads": 2}
    yield "inner", {"intermediate_size": 52}
    yield "untied", {"tie_word_embeddings": False}
    yield "odd", {"hidden_size": 60, "num_heads": 6, "vocab_size": 97, "intermediate_size": 69, "window_size": 5}
    yield "window-1", {"window_size": 1}
    yield "act-gelu", {"activation_function": "gelu"}
    yield "eps", {"layer_norm_epsilon": 1e-2}


def drawn_gpt_neo(draw):
    heads, layers = 2 * draw.randint(1, 4), draw.randint(1, 4)
    kinds = [draw.choice(("global", "local")) for _ in range(layers)]
    return {"hidden_size": heads * 2 * draw.randint(3, 9), "num_heads": heads, "num_layers": layers, "attention_types": [[kinds, 1]], "attention_layers": kinds,
            "intermediate_size": 2 * draw.randint(8, 60), "window_size": draw.randint(2, 40), "vocab_size": draw.randint(64, 150)}


def biogpt():
    yield "none", {}
    yield "unscaled", {"scale_embedding": False}
    yield "untied", {"tie_word_embeddings": False}
    yield "odd", {"hidden_size": 60, "num_attention_heads": 6, "vocab_size": 97, "intermediate_size": 69}
    yield "act-relu", {"hidden_act": "relu"}
    yield "eps", {"layer_norm_eps": 1e-2}


def drawn_biogpt(draw):
    heads = 2 * draw.randint(1, 4)
    return {"hidden_size": heads * 2 * draw.randint(3, 9), "num_attention_heads": heads, "num_hidden_layers": draw.randint(1, 4),
            "intermediate_size": 2 * draw.randint(8, 60), "vocab_size": draw.randint(64, 150), "scale_embedding": draw.random() < 0.5}


def xglm():
    yield "none", {}
    yield "unscaled", {"scale_embedding": False}
    yield "untied", {"tie_word_embeddings": False}
    yield "odd", {"d_model": 60, "attention_heads": 6, "vocab_size": 97, "ffn_dim": 69}
    yield "act-relu", {"activation_function": "relu"}
    yield "few-positions", {"max_position_embeddings": 100}
    yield "padded", {"pad_token_id": 5}  # whose row of the table is zeros
    yield "no-padding", {"pad_token_id": None}


def drawn_xglm(draw):
    changes = drawn_biogpt(draw)
    names = {"hidden_size": "d_model", "num_attention_heads": "attention_heads", "num_hidden_layers": "num_layers", "intermediate_size": "ffn_dim"}
    return {names.get(k, k): v for k, v in changes.items()}


FAMILIES = {"bloom": (BLOOM, bloom, drawn_bloom), "mpt": (MPT, mpt, drawn_mpt), "falcon": (FALCON, falcon, drawn_falcon),
            "gpt_neo": (GPT_NEO, gpt_neo, drawn_gpt_neo), "biogpt": (BIOGPT, biogpt, drawn_biogpt), "xglm": (XGLM, xglm, drawn_xglm)}
SAVES = [("f16", {"dtype": "float16"}), ("bf16", {"dtype": "bfloat16"}), ("sharded", {"shards": 3}), ("base", {"base": True})]


def config(family, changes):
    return {k: v for k, v in {**FAMILIES[family][0], "model_type": family, **changes}.items() if v is not MISSING}


def cases():
    """As families_cases.cases."""
    for family, (_, variants, drawn) in FAMILIES.items():
        named = "falcon_rw" if family == "falcon" else family
        for name, changes in variants():
            yield named + "/" + name, family, config(family, changes), {"ranks": 3 if name.startswith("odd") else 1 if name == "heads-7" else 2}
        draw = random.Random(named)
        for i in range(DRAWN):
            yield "%s/drawn-%d" % (named, i), family, config(family, drawn(draw)), {}
        for name, save in SAVES[:3 if family in ("biogpt", "xglm") else 4]:
            yield named + "/save-" + name, family, config(family, {"torch_dtype": save.get("dtype", "float32")}), save


# Of sizes that devices take, which have no ALiBi.
DEVICE = {"gpt_neo": {"hidden_size": 64, "intermediate_size": 96}, "biogpt": {"hidden_size": 64, "intermediate_size": 96},
          "mpt": {"d_model": 64, "no_bias": False, **attention(alibi=False, clip_qkv=0.8)}}


def device_cases():
    """As families_cases.device_cases."""
    for family, changes in DEVICE.items():
        yield family, config(family, {**changes, "torch_dtype": "bfloat16"}), {}


# ---------------------------------------------------------------- what transformers has not

def grouped(self, hidden_states, position_bias, attention_mask=None, **kwargs):
    """An MPT's attention with fewer KV heads, as its authors' program has it."""
    count, size = hidden_states.shape[1], self.head_dim
    mixed = self.Wqkv(hidden_states)
    if self.clip_qkv:
        mixed = mixed.clamp(min=-self.clip_qkv, max=self.clip_qkv)
    q, k, v = (x.view(1, count, -1, size).transpose(1, 2) for x in mixed.split([self.hidden_size, self.kv_heads * size, self.kv_heads * size], dim=2))
    k, v = (x.repeat_interleave(self.n_heads // self.kv_heads, dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * self.softmax_scale + position_bias[:, :, -count:]
    weights = scores.masked_fill(attention_mask, torch.finfo(scores.dtype).min).softmax(-1)
    return self.out_proj((weights @ v).transpose(1, 2).reshape(1, count, -1)), weights


def config_known(c):
    """Of an MPT what transformers takes."""
    return {**c, "attn_config": {k: v for k, v in c.get("attn_config", {}).items() if k not in ("attn_type", "kv_n_heads")}}


def remake_mpt(model, c):
    how = {**ATTENTION, **c.get("attn_config", {})}
    body, kind = model.transformer, how["attn_type"]
    kv_heads = {"multihead_attention": c["n_heads"], "multiquery_attention": 1}.get(kind) or how["kv_n_heads"]
    usual = body.build_mpt_alibi_tensor
    body.build_mpt_alibi_tensor = lambda heads, length, device: usual(heads, length, how["alibi_bias_max"], device) * how["alibi"]
    if not how["alibi"]:
        body.wpe = nn.Embedding(c["max_seq_len"], c["d_model"])
        body.wte.register_forward_hook(lambda module, ids, out: out + body.wpe(torch.arange(out.shape[1])))
    for block in body.blocks if kv_heads != c["n_heads"] else ():
        block.attn.kv_heads = kv_heads
        block.attn.Wqkv = nn.Linear(c["d_model"], c["d_model"] + 2 * kv_heads * block.attn.head_dim, bias=False)
        block.attn.forward = types.MethodType(grouped, block.attn)
    for module in body.modules() if not c.get("no_bias", True) else ():
        if isinstance(module, (nn.Linear, nn.LayerNorm)):
            module.bias = nn.Parameter(torch.zeros(len(module.weight)))


def remake(model, c):
    """Gives the reference what its family has. A Falcon's other attention adds what scores fall by twice."""
    if c["model_type"] == "falcon" and c.get("alibi"):
        model.config._attn_implementation = "sdpa"
    if c["model_type"] == "mpt":
        remake_mpt(model, c)


def slopes(heads):
    """Of a Baichuan of 13B."""
    def series(count):
        first = 2 ** -(2 ** -(math.log2(count) - 3))
        return [first ** (i + 1) for i in range(count)]
    power = 2 ** math.floor(math.log2(heads))
    return torch.tensor(series(power) + series(2 * power)[0::2][:heads - power])


def attend_by_distance(model):
    """Makes a Llama's heads have ALiBi in place of rotation."""
    falls = slopes(model.config.num_attention_heads)[None, :, None, None]
    rotary = model.model.rotary_emb
    rotary.forward = lambda x, position_ids: (torch.ones(1, x.shape[1], model.config.head_dim), torch.zeros(1, x.shape[1], model.config.head_dim))
    for layer in model.model.layers:
        def forward(usual=layer.self_attn.forward, **how):
            how["attention_mask"] = how["attention_mask"] + falls * torch.arange(how["attention_mask"].shape[-1])
            return usual(**how)
        layer.self_attn.forward = forward
