"""References of families that transformers does not have: another family computes the same from the same values under other
names. A file's tensors become that family's and back; for families_differential.py.

InternLM2 is Llama with q, k and v in one tensor: for every KV head the rows of the heads that read it, its k, its v. InternLM3
is Llama with the biases of q, k, v and all others switched by two fields. MiniCPM is Granite by other fields, MiMo Qwen 2 whose
further layers are not read: their tensors have the same names. The experts of Qwen 3 VL's mixtures are Qwen 3's, transposed.
OLMo Hybrid is there, under other names than its files have, and with one convolution for three. So is Sarvam, whose files have
q, k and v in one tensor, and by whose names Ling 2 is GLM 4.5. EXAONE 3 and Phi 4 Multimodal are in families_renamed.py."""
import re

import torch

import families_newer
import families_newest
import families_remote
import families_renamed
import families_unrotated

INTERNLM2 = [(r"model\.embed_tokens", "model.tok_embeddings"), (r"lm_head", "output"), (r"input_layernorm", "attention_norm"),
             (r"post_attention_layernorm", "ffn_norm"), (r"mlp\.gate_proj", "feed_forward.w1"), (r"mlp\.up_proj", "feed_forward.w3"),
             (r"mlp\.down_proj", "feed_forward.w2"), (r"self_attn\.o_proj", "attention.wo")]


def has(config):
    return config["model_type"] in ("internlm2", "internlm3", "qwen3_vl_moe_text", "olmo_hybrid", "sarvam_moe", "exaone", "bailing_moe", "phi4mm", "phi4_multimodal", "ernie4_5_vl_moe", "step3p5", *families_remote.RENAMED)


OLMO_NORMS = {"input_layernorm": "attention_layer_norm", "post_attention_layernorm": "feedforward_layer_norm"}


def olmo_name(tensors, name):
    """Of layers that keep a state norms are called otherwise."""
    layer = re.match(r"(model\.layers\.\d+\.)(\w+)(\.weight)$", name)
    keeps = layer and any(k.startswith(layer[1] + "linear_attn.") for k in tensors)
    return layer[1] + OLMO_NORMS.get(layer[2], layer[2]) + layer[3] if keeps else name


def olmo_to_file(tensors):
    out = {}
    for name, t in tensors.items():
        if "linear_attn.conv1d" in name:
            rows = [tensors[name.replace("conv1d", x + "_proj")].shape[0] for x in "qkv"]
            out.update({name.replace("conv1d", x + "_conv1d"): part for x, part in zip("qkv", torch.split(t, rows))})
        else:
            out[olmo_name(tensors, name)] = t
    return out


def olmo_from_file(tensors, state):
    return {name: torch.cat([tensors[name.replace("conv1d", x + "_conv1d")] for x in "qkv"]) if "linear_attn.conv1d" in name
            else tensors[olmo_name(state, name)] for name in state}


SARVAM = [("model.embed_tokens.", "model.word_embeddings."), (".self_attn.o_proj.", ".attention.dense."), (".self_attn.q_norm.", ".attention.query_layernorm."),
          (".self_attn.k_norm.", ".attention.key_layernorm."), (".mlp.gate.e_score_correction_bias", ".mlp.gate.expert_bias")]
SARVAM_QKV = ".attention.query_key_value."


def sarvam_name(name):
    for ours, file in SARVAM:
        name = name.replace(ours, file)
    return name


def sarvam_to_file(tensors):
    """What has its name in the file already keeps it."""
    out = {}
    for name, t in tensors.items():
        if name.endswith("mlp.experts.gate_up_proj"):
            for x, (gate, up) in enumerate(both.chunk(2) for both in t):
                out.update({name.replace("gate_up_proj", "%d.%s_proj.weight" % (x, part)): v for part, v in (("gate", gate), ("up", up))})
        elif name.endswith("mlp.experts.down_proj"):
            out.update({name.replace("down_proj", "%d.down_proj.weight" % x): one for x, one in enumerate(t)})
        elif ".self_attn.q_proj." in name:
            out[name.replace(".self_attn.q_proj.", SARVAM_QKV)] = torch.cat([tensors[name.replace("q_proj", p + "_proj")] for p in "qkv"])
        elif not re.search(r"\.self_attn\.[kv]_proj\.", name):
            out[sarvam_name(name)] = t
    return out


def sarvam_from_file(tensors, state):
    def whole(name, t):
        experts = name.rpartition("gate_up_proj")[0] or name.rpartition("down_proj")[0]
        part = re.search(r"\.self_attn\.([qkv])_proj\.", name)
        if name.endswith("mlp.experts.gate_up_proj"):
            return torch.stack([torch.cat([tensors["%s%d.%s_proj.weight" % (experts, x, p)] for p in ("gate", "up")]) for x in range(len(t))])
        if name.endswith("mlp.experts.down_proj"):
            return torch.stack([tensors["%s%d.down_proj.weight" % (experts, x)] for x in range(len(t))])
        if part:
            rows = [state[name.replace(part[1] + "_proj", p + "_proj")].shape[0] for p in "qkv"]
            return torch.split(tensors[name.replace(part[0], SARVAM_QKV)], rows)["qkv".index(part[1])]
        return tensors[sarvam_name(name)]
    return {name: whole(name, t) for name, t in state.items()}


def turned(tensors):
    return {k: t.transpose(1, 2).contiguous() if ".mlp.experts." in k else t for k, t in tensors.items()}


def minicpm(c):
    own = ("scale_emb", "scale_depth", "dim_model_base", "mup_denominator", "auto_map")
    head = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    return {**{k: v for k, v in c.items() if k not in own}, "architectures": ["GraniteForCausalLM"], "model_type": "granite",
            "embedding_multiplier": c.get("scale_emb", 1), "attention_multiplier": head ** -0.5,
            "residual_multiplier": c.get("scale_depth", 1) / c["num_hidden_layers"] ** 0.5,
            "logits_scaling": c["hidden_size"] / c.get("dim_model_base", 1)}


def config(c):
    """What the reference is made from."""
    if families_remote.has(c):
        return families_remote.config(c)
    if c["model_type"] == "minicpm":
        return minicpm(c)
    if c["model_type"] == "step3p5":
        return families_newest.step_config(c)
    if c["model_type"] == "mimo":
        return {**{k: v for k, v in c.items() if k not in ("attention_bias", "head_dim", "num_nextn_predict_layers", "auto_map")},
                "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    if c["model_type"] == "qwen3_vl_moe_text":
        return {**c, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
    if c["model_type"] == "exaone":
        return families_renamed.exaone_config(c)
    if c["model_type"] in ("phi4mm", "phi4_multimodal"):
        return families_renamed.phi_config(c)
    if c["model_type"] == "bailing_moe":
        return families_renamed.ling_config(c)
    if c["model_type"] == "mpt":
        return families_unrotated.config_known(c)
    if not has(c) or c["model_type"] in ("olmo_hybrid", "sarvam_moe", "ernie4_5_vl_moe"):
        return c
    bias, qkv_bias = c.get("bias", c["model_type"] == "internlm2"), c.get("qkv_bias", False)
    llama = {k: v for k, v in c.items() if k not in ("bias", "qkv_bias", "auto_map")}
    if c["model_type"] == "internlm2":
        return {**llama, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": bias}
    return {**llama, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": bias or qkv_bias,
            "mlp_bias": bias}


def fuse(q, k, v, groups):
    parts = [t.unflatten(0, (groups, t.shape[0] // groups)) for t in (q, k, v)]
    return torch.cat(parts, dim=1).flatten(0, 1)


def split(fused, heads, groups):
    blocks = fused.unflatten(0, (groups, heads // groups + 2, -1))
    q, k, v = torch.split(blocks, [heads // groups, 1, 1], dim=1)
    return q.flatten(0, 2), k.flatten(0, 2), v.flatten(0, 2)


def groups_of(c):
    return c.get("num_key_value_heads") or c["num_attention_heads"]


def absent(c, name):
    """The stand-in has a bias that the file has not: it is 0."""
    if c["model_type"] != "internlm3" or not name.endswith(".bias"):
        return False
    qkv = re.search(r"self_attn\.[qkv]_proj", name)
    return not c.get("qkv_bias" if qkv else "bias", False)


def to_file(c, tensors):
    if c["model_type"] in families_remote.RENAMED:
        return families_remote.to_file(c, tensors)
    if c["model_type"] == "qwen3_vl_moe_text":
        return turned(tensors)
    if c["model_type"] == "step3p5":
        return families_newest.step_to_file(tensors)
    if c["model_type"] == "ernie4_5_vl_moe":
        return families_newer.ernie_to_file(tensors)
    if c["model_type"] == "olmo_hybrid":
        return olmo_to_file(tensors)
    if c["model_type"] in ("sarvam_moe", "bailing_moe"):
        return sarvam_to_file(tensors)
    if c["model_type"] == "exaone":
        return {families_renamed.exaone_name(name): t for name, t in tensors.items()}
    if c["model_type"] == "phi4mm":
        return families_renamed.phi_to_file(tensors)
    if c["model_type"] == "phi4_multimodal":
        return tensors
    tensors = {k: v for k, v in tensors.items() if not absent(c, k)}
    if c["model_type"] == "internlm3":
        return tensors
    out = {}
    for name, t in tensors.items():
        if re.search(r"self_attn\.[kv]_proj", name):
            continue
        if "self_attn.q_proj" in name:
            parts = [tensors[name.replace("q_proj", x + "_proj")] for x in "qkv"]
            out[name.replace("self_attn.q_proj", "attention.wqkv")] = fuse(*parts, groups_of(c))
            continue
        for pattern, new in INTERNLM2:
            name = re.sub(pattern, new, name)
        out[name] = t
    return out


def from_file(c, tensors, state):
    """The stand-in's whole state."""
    if c["model_type"] in families_remote.RENAMED:
        return families_remote.from_file(c, tensors, state)
    if c["model_type"] == "qwen3_vl_moe_text":
        return turned(tensors)
    if c["model_type"] == "step3p5":
        return families_newest.step_from_file(tensors, state)
    if c["model_type"] == "ernie4_5_vl_moe":
        return families_newer.ernie_from_file(tensors, state)
    if c["model_type"] == "olmo_hybrid":
        return olmo_from_file(tensors, state)
    if c["model_type"] in ("sarvam_moe", "bailing_moe"):
        return sarvam_from_file(tensors, state)
    if c["model_type"] in ("phi4mm", "phi4_multimodal"):
        named = families_renamed.phi_name if c["model_type"] == "phi4mm" else str
        return {name: tensors["model.embed_tokens.weight" if name == "lm_head.weight" and c["tie_word_embeddings"] else named(name)] for name in state}
    if c["model_type"] == "exaone":
        tied = c.get("tie_word_embeddings", True)
        return {name: tensors["transformer.wte.weight" if name == "lm_head.weight" and tied else families_renamed.exaone_name(name)] for name in state}
    out = {name: torch.zeros_like(t) for name, t in state.items()}
    for name in out:
        if absent(c, name):
            continue
        attention = re.search(r"self_attn\.([qkv])_proj", name)
        if attention and c["model_type"] == "internlm2":
            fused = tensors[name.replace("self_attn.%s_proj" % attention[1], "attention.wqkv")]
            out[name] = split(fused, c["num_attention_heads"], groups_of(c))["qkv".index(attention[1])]
            continue
        file = name
        for pattern, new in INTERNLM2 if c["model_type"] == "internlm2" else []:
            file = re.sub(pattern, new, file)
        out[name] = tensors[file] if file in tensors else tensors[file.replace("output", "model.tok_embeddings")]
    return out
