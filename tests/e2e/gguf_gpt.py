"""What files in GGUF of StarCoder 1 and Falcon call their tensors, and their config.json under the names that other families have; for
gguf_files.py."""
PREFIX = "transformer.h."
ARCHITECTURES = {"GPTBigCodeForCausalLM": "starcoder", "FalconForCausalLM": "falcon"}
WHOLE = {"transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.word_embeddings": "token_embd",
         "transformer.ln_f": "output_norm"}
LAYER = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up",
         "mlp.c_proj": "ffn_down", "input_layernorm": "attn_norm", "ln_mlp": "attn_norm", "ln_attn": "attn_norm_2",
         "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up",
         "mlp.dense_4h_to_h": "ffn_down"}
FIELDS = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_positions": "max_position_embeddings",
          "n_inner": "intermediate_size", "ffn_hidden_size": "intermediate_size", "layer_norm_epsilon": "layer_norm_eps"}


def config(c, arch):
    """With one KV head, as the converter has it of all StarCoders."""
    named = {FIELDS.get(k, k): v for k, v in c.items()}
    newer = arch == "falcon" and named.get("new_decoder_architecture")
    return {**named, "num_key_value_heads": named.get("num_kv_heads") or named["num_attention_heads"] if newer else 1,
            "intermediate_size": named.get("intermediate_size") or 4 * named["hidden_size"],
            "max_position_embeddings": named.get("max_position_embeddings", 2048), "layer_norm_eps": named.get("layer_norm_eps", 1e-5)}


def apart(tensor, heads, kv_heads):
    """Queries of all heads, then keys, then values, instead of those of each KV head."""
    kind, shape, raw = tensor
    size, width = len(raw) // (heads + 2 * kv_heads), heads // kv_heads + 2
    groups = [[raw[(g * width + i) * size:(g * width + i + 1) * size] for i in range(width)] for g in range(kv_heads)]
    return kind, shape, b"".join(part for g in groups for part in g[:-2]) + b"".join(g[-2] for g in groups) + b"".join(g[-1] for g in groups)


def layer_tensor(name, tensor, c):
    """The whole name in the file of one of a layer, which has PREFIX in front, and what becomes of it."""
    layer, whole = name[len(PREFIX):].split(".", 1)
    stem, end = whole.rsplit(".", 1)
    if stem == "self_attention.query_key_value":
        tensor = apart(tensor, c["num_attention_heads"], c["num_key_value_heads"])
    return "blk.%s.%s.%s" % (layer, LAYER[stem], end), tensor
