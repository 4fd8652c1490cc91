"""What files in GGUF of GPT-2, GPT-NeoX, StarCoder 1, Falcon, BLOOM and MPT call their tensors, and their config.json under the names that other families have;
for gguf_files.py."""
PREFIX = ("transformer.h.", "gpt_neox.layers.", "transformer.blocks.")
ARCHITECTURES = {"GPT2LMHeadModel": "gpt2", "GPTNeoXForCausalLM": "gptneox", "GPTBigCodeForCausalLM": "starcoder", "FalconForCausalLM": "falcon",
                 "BloomForCausalLM": "bloom", "MPTForCausalLM": "mpt"}
WHOLE = {"transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.word_embeddings": "token_embd",
         "transformer.ln_f": "output_norm", "gpt_neox.embed_in": "token_embd", "gpt_neox.final_layer_norm": "output_norm", "embed_out": "output",
         "transformer.word_embeddings_layernorm": "token_embd_norm", "transformer.norm_f": "output_norm"}
LAYER = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up",
         "mlp.c_proj": "ffn_down", "input_layernorm": "attn_norm", "ln_mlp": "attn_norm", "ln_attn": "attn_norm_2",
         "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up",
         "mlp.dense_4h_to_h": "ffn_down", "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
         "post_attention_layernorm": "ffn_norm", "mlp.w1": "ffn_up", "mlp.w2": "ffn_gate",
         "norm_1": "attn_norm", "norm_2": "ffn_norm", "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "ffn.up_proj": "ffn_up",
         "ffn.down_proj": "ffn_down"}
TURNED = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")  # of GPT-2
FIELDS = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_positions": "max_position_embeddings",
          "n_inner": "intermediate_size", "ffn_hidden_size": "intermediate_size", "layer_norm_epsilon": "layer_norm_eps", "rotary_pct": "partial_rotary_factor",
          "rotary_emb_base": "rope_theta", "d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
          "max_seq_len": "max_position_embeddings", "seq_length": "max_position_embeddings"}


def config(c, arch):
    """With one KV head, as the converter has it of all StarCoders."""
    named = {FIELDS.get(k, k): v for k, v in c.items()}
    if arch == "gptneox":
        named.setdefault("partial_rotary_factor", 0.25)
    if arch == "mpt":
        how = named.get("attn_config", {})
        named["num_kv_heads"] = how.get("kv_n_heads") or (1 if how.get("attn_type") == "multiquery_attention" else None)
    newer = arch in ("gpt2", "gptneox", "bloom", "mpt") or arch == "falcon" and named.get("new_decoder_architecture")
    return {**named, "num_key_value_heads": named.get("num_kv_heads") or named["num_attention_heads"] if newer else 1,
            "intermediate_size": named.get("intermediate_size") or 4 * named["hidden_size"],
            "max_position_embeddings": named.get("max_position_embeddings", 2048), "layer_norm_eps": named.get("layer_norm_eps", 1e-5)}


def apart(tensor, heads, kv_heads):
    """Queries of all heads, then keys, then values, instead of those of each KV head."""
    kind, shape, raw = tensor
    size, width = len(raw) // (heads + 2 * kv_heads), heads // kv_heads + 2
    groups = [[raw[(g * width + i) * size:(g * width + i + 1) * size] for i in range(width)] for g in range(kv_heads)]
    return kind, shape, b"".join(part for g in groups for part in g[:-2]) + b"".join(g[-2] for g in groups) + b"".join(g[-1] for g in groups)


def turned(tensor):
    """A matrix of rows as one of columns."""
    kind, (rows, columns), raw = tensor
    size = len(raw) // (rows * columns)
    return kind, [columns, rows], b"".join(raw[(r * columns + c) * size:(r * columns + c + 1) * size] for c in range(columns) for r in range(rows))


def values(c, arch):
    """What such a file says beside."""
    if arch == "mpt":
        how = c.get("attn_config", {})
        return {"attention.max_alibi_bias": float(how.get("alibi_bias_max", 8)) if how.get("alibi", True) else 0.0,
                **({"attention.clamp_kqv": how["clip_qkv"]} if how.get("clip_qkv") else {})}
    return {"use_parallel_residual": c.get("use_parallel_residual", True)} if arch == "gptneox" else {}


def layer_tensor(name, tensor, c, arch):
    """The whole name in the file of one of a layer, which has one of PREFIX in front, and what becomes of it."""
    layer, whole = next(name[len(p):] for p in PREFIX if name.startswith(p)).split(".", 1)
    stem, end = whole.rsplit(".", 1)
    if stem.endswith("query_key_value"):
        tensor = apart(tensor, c["num_attention_heads"], c["num_key_value_heads"])
    if arch == "gpt2" and stem in TURNED and end == "weight":
        tensor = turned(tensor)
    return "blk.%s.%s.%s" % (layer, LAYER[stem], end), tensor
