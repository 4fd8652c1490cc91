"""What files in GGUF of StarCoder 1 call its tensors, and its config.json under the names that other families have; for gguf_files.py."""
WHOLE = {"transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm"}
LAYER = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
FIELDS = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_positions": "max_position_embeddings",
          "n_inner": "intermediate_size", "layer_norm_epsilon": "layer_norm_eps"}
PREFIX = "transformer.h."


def layer_name(name):
    """The whole name in the file of one of a layer, which has PREFIX in front."""
    layer, whole = name[len(PREFIX):].split(".", 1)
    stem, end = whole.rsplit(".", 1)
    return "blk.%s.%s.%s" % (layer, LAYER[stem], end)


def config(c):
    """With one KV head, as the converter has it of all of them."""
    named = {FIELDS.get(k, k): v for k, v in c.items()}
    return {**named, "num_key_value_heads": 1, "intermediate_size": named.get("intermediate_size") or 4 * named["hidden_size"],
            "layer_norm_eps": named.get("layer_norm_eps", 1e-5)}
