"""Small models in two formats, of the same numbers: as transformers writes them, and in Mistral AI's own, whose rows of q and k lie so that neighbours rotate
together."""
import json
import re
import shutil

import small_models
from engine import ROOT
from lora_files import write_safetensors

TEKKEN = ROOT / "tests" / "unit" / "text" / "models" / "tekken" / "tekken.json"
VOCAB, HIDDEN, WIDE, HEADS, KV_HEADS, HEAD, LAYERS, EXPERTS = 1024, 64, 96, 4, 2, 16, 3, 4
KEY, ROTATES, VALUE, RANK, Q_RANK, NARROW = 16, 8, 16, 32, 32, 32

SIZES = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": WIDE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "rms_norm_eps": 1e-5,
         "max_position_embeddings": 256, "torch_dtype": "bfloat16", "eos_token_id": 2}
GROUPED = {**SIZES, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "sliding_window": None}
OWN = {"vocab_size": VOCAB, "dim": HIDDEN, "hidden_dim": WIDE, "n_layers": LAYERS, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "head_dim": HEAD, "norm_eps": 1e-5,
       "max_position_embeddings": 256, "rope_theta": 10000.0}
ROTATION = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 4.0, "beta_slow": 1.0,
            "attention_factor": 1.0, "llama_4_scaling_beta": 0.5}
STRETCHED = {"yarn": {"factor": 8.0, "original_max_position_embeddings": 32, "beta": 4.0, "alpha": 1.0, "apply_scale": False},
             "llama_4_scaling": {"original_max_position_embeddings": 32, "beta": 0.5}}
LATENT = {"q_lora_rank": Q_RANK, "kv_lora_rank": RANK, "qk_nope_head_dim": KEY, "qk_rope_head_dim": ROTATES, "v_head_dim": VALUE}

# name: config.json, params.json
MODELS = {
    "mistral": ({**GROUPED, "architectures": ["MistralForCausalLM"], "rope_theta": 10000.0}, OWN),
    "ministral": ({**GROUPED, "architectures": ["MinistralForCausalLM"], "rope_theta": 10000.0, "sliding_window": 16,
                   "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}, {**OWN, "_sliding_window": [None, 16, 16]}),
    "ministral3": ({**GROUPED, "architectures": ["Ministral3ForCausalLM"], "rope_parameters": ROTATION},
                   {**OWN, **STRETCHED, "vision_encoder": {"hidden_size": 8}}),
    "mixtral": ({**GROUPED, "architectures": ["MixtralForCausalLM"], "rope_theta": 1000000.0, "num_local_experts": EXPERTS, "num_experts_per_tok": 2},
                {**{k: v for k, v in OWN.items() if k != "rope_theta"}, "moe": {"num_experts": EXPERTS, "num_experts_per_tok": 2}}),
    "mistral4": ({**SIZES, **LATENT, "architectures": ["Mistral4ForCausalLM"], "num_key_value_heads": HEADS, "rope_parameters": ROTATION, "n_routed_experts": EXPERTS,
                  "num_experts_per_tok": 2, "moe_intermediate_size": NARROW, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
                  "routed_scaling_factor": 1.5, "norm_topk_prob": True},
                 {**OWN, **STRETCHED, **LATENT, "n_kv_heads": HEADS, "moe": {
                     "num_experts": EXPERTS, "num_experts_per_tok": 2, "expert_hidden_dim": NARROW, "num_shared_experts": 1, "num_expert_groups": 2,
                     "num_expert_groups_per_tok": 1, "first_k_dense_replace": 1, "routed_scale": 1.5, "route_every_n": 1}}),
}

NAMES = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk",
         "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo", "self_attn.q_a_proj": "attention.wq_a", "self_attn.q_b_proj": "attention.wq_b",
         "self_attn.q_a_layernorm": "attention.q_a_norm", "self_attn.kv_a_proj_with_mqa": "attention.wkv_a_with_mqa",
         "self_attn.kv_a_layernorm": "attention.kv_a_norm", "self_attn.kv_b_proj": "attention.wkv_b", "mlp.gate_proj": "feed_forward.w1",
         "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3", "mlp.gate": "gate", "block_sparse_moe.gate": "feed_forward.gate"}
WHOLE = {"model.embed_tokens.weight": "tok_embeddings.weight", "model.norm.weight": "norm.weight", "lm_head.weight": "output.weight"}
PARTS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3", "w1": "w1", "w2": "w2", "w3": "w3"}


SCALES = {"weight_scale": "qscale_weight", "input_scale": "qscale_act"}


def own_name(name, ends):
    if name in WHOLE:
        return WHOLE[name]
    layer, module, end = re.fullmatch(r"model\.layers\.(\d+)\.(.*)\.(\w+)", name).groups()
    expert = re.fullmatch(r"(mlp|block_sparse_moe)\.((?:shared_)?experts(?:\.\d+)?)\.(\w+)", module)
    if expert:
        module = ("feed_forward." if expert[1] == "block_sparse_moe" else "") + expert[2] + "." + PARTS[expert[3]]
    else:
        module = NAMES[module]
    return "layers.%s.%s.%s" % (layer, module, ends.get(end, end))


def neighbours(raw, rows, wide):
    """Rows of whole heads of so many, halves of which rotate with each other, so that neighbours do."""
    size = len(raw) // rows
    order = [head + i // 2 + i % 2 * wide // 2 for head in range(0, rows, wide) for i in range(wide)]
    return b"".join(raw[row * size:(row + 1) * size] for row in order)


def own_tensors(tensors, head=HEAD, ends=None):
    found = {}
    for name, (kind, shape, raw) in tensors.items():
        if re.search(r"self_attn\.[qk]_proj\.weight", name) and len(shape) > 1 and shape[0] % head == 0:
            raw = neighbours(raw, shape[0], head)
        found[own_name(name, SCALES if ends is None else ends)] = (kind, shape, raw)
    return found


def mlp(at, wide, names=("gate_proj", "up_proj", "down_proj")):
    return {at + names[0]: (wide, HIDDEN), at + names[1]: (wide, HIDDEN), at + names[2]: (HIDDEN, wide)}


def matrices(name, layer):
    """Of a layer: name -> (rows, columns)."""
    at = "model.layers.%d." % layer
    if name == "mistral4":
        found = {at + "self_attn." + k: v for k, v in {
            "q_a_proj": (Q_RANK, HIDDEN), "q_b_proj": (HEADS * (KEY + ROTATES), Q_RANK), "kv_a_proj_with_mqa": (RANK + ROTATES, HIDDEN),
            "kv_b_proj": (HEADS * (KEY + VALUE), RANK), "o_proj": (HIDDEN, HEADS * VALUE)}.items()}
    else:
        found = {at + "self_attn." + k: v for k, v in {
            "q_proj": (HEADS * HEAD, HIDDEN), "k_proj": (KV_HEADS * HEAD, HIDDEN), "v_proj": (KV_HEADS * HEAD, HIDDEN), "o_proj": (HIDDEN, HEADS * HEAD)}.items()}
    if name == "mixtral":
        found[at + "block_sparse_moe.gate"] = (EXPERTS, HIDDEN)
        for x in range(EXPERTS):
            found.update(mlp(at + "block_sparse_moe.experts.%d." % x, WIDE, ("w1", "w3", "w2")))
    elif name == "mistral4" and layer:
        found[at + "mlp.gate"] = (EXPERTS, HIDDEN)
        found.update(mlp(at + "mlp.shared_experts.", NARROW))
        for x in range(EXPERTS):
            found.update(mlp(at + "mlp.experts.%d." % x, NARROW))
    else:
        found.update(mlp(at + "mlp.", WIDE))
    return found


def bytes_of_fp8(name, count):
    """E4M3: numbers from 2^-3 to nearly 2, and their negatives."""
    return bytes((4 + k % 4) << 3 | k >> 3 & 7 | k & 128 for k in (int(x * 128) & 255 for x in small_models.noise(name, 0, count)))


def tensors_of(name, fp8):
    found = {}

    def add(tensor, shape, amplitude, middle=0.0):
        found[tensor] = ("BF16", shape, small_models.tensor(tensor, shape, amplitude, middle))

    add("model.embed_tokens.weight", [VOCAB, HIDDEN], 1.0)
    add("model.norm.weight", [HIDDEN], 0.2, 1.0)
    add("lm_head.weight", [VOCAB, HIDDEN], 0.9)
    for layer in range(LAYERS):
        at = "model.layers.%d." % layer
        for norm in ("input_layernorm", "post_attention_layernorm"):
            add(at + norm + ".weight", [HIDDEN], 0.2, 1.0)
        for norm, width in {"q_a_layernorm": Q_RANK, "kv_a_layernorm": RANK}.items() if name == "mistral4" else ():
            add(at + "self_attn.%s.weight" % norm, [width], 0.2, 1.0)
        for matrix, shape in matrices(name, layer).items():
            rounded = fp8 and not matrix.endswith((".gate", ".mlp.gate"))
            if not rounded:
                add(matrix + ".weight", list(shape), (4 / shape[1]) ** 0.5)
                continue
            found[matrix + ".weight"] = ("F8_E4M3", list(shape), bytes_of_fp8(matrix, shape[0] * shape[1]))
            found[matrix + ".weight_scale"] = ("F32", [], small_models.array.array("f", [0.2 + 0.01 * layer]).tobytes())
            found[matrix + ".input_scale"] = ("F32", [], small_models.array.array("f", [1.0]).tobytes())
    return found


def write_models(home, name, fp8=False, shards=1):
    """The folders of a model in both formats."""
    config, params = MODELS[name]
    tensors = tensors_of(name, fp8)
    if fp8:
        config = {**config, "quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}
        params = {**params, "quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}}
    usual, own = home / "usual", home / "own"
    for folder in (usual, own):
        folder.mkdir(parents=True)
        shutil.copy(TEKKEN, folder / "tekken.json")
    write_safetensors(usual / "model.safetensors", tensors)
    (usual / "config.json").write_text(json.dumps(config))
    own_ones = own_tensors(tensors)
    if name == "ministral3":
        own_ones["vision_encoder.patch_conv.weight"] = ("BF16", [2, 2], bytes(8))
    if shards == 1:
        write_safetensors(own / "consolidated.safetensors", own_ones)
    else:
        where = {}
        for i in range(shards):
            file = "consolidated-%05d-of-%05d.safetensors" % (i + 1, shards)
            part = dict(list(own_ones.items())[i::shards])
            write_safetensors(own / file, part)
            where.update(dict.fromkeys(part, file))
        (own / "consolidated.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (own / "params.json").write_text(json.dumps(params))
    return usual, own
