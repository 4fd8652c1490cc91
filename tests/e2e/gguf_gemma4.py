"""What llama.cpp's converter does with Gemma 4: names, values, and the tensor that says which part of a head turns."""
from lora_files import floats

LAYER = {"layer_scalar": "layer_output_scale.weight", "per_layer_input_gate.weight": "inp_gate.weight", "per_layer_projection.weight": "proj.weight",
         "post_per_layer_input_norm.weight": "post_norm.weight", "router.proj.weight": "ffn_gate_inp.weight", "router.scale": "ffn_gate_inp.scale",
         "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
         "experts.down_proj": "ffn_down_exps.weight", "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
         "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight", "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight"}
WHOLE = {"model.embed_tokens_per_layer": "per_layer_token_embd", "model.per_layer_model_projection": "per_layer_model_proj",
         "model.per_layer_projection_norm": "per_layer_proj_norm"}


def values(config):
    full, windows = config["rope_parameters"]["full_attention"], config["rope_parameters"]["sliding_attention"]
    kinds = [kind == "sliding_attention" for kind in config["layer_types"]]
    shared, layers, width = config["num_kv_shared_layers"], config["num_hidden_layers"], config["intermediate_size"]
    v = {"attention.shared_kv_layers": shared, "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
         "attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": kinds,
         "attention.key_length": config["global_head_dim"], "attention.value_length": config["global_head_dim"],
         "attention.key_length_swa": config["head_dim"], "attention.value_length_swa": config["head_dim"],
         "rope.dimension_count": config["global_head_dim"], "rope.dimension_count_swa": config["head_dim"],
         "rope.freq_base": float(full["rope_theta"]), "rope.freq_base_swa": float(windows["rope_theta"])}
    if config["use_double_wide_mlp"]:
        v["feed_forward_length"] = [width if i < layers - shared else 2 * width for i in range(layers)]
    if config.get("num_global_key_value_heads") is not None:
        v["attention.head_count_kv"] = [config["num_key_value_heads"] if window else config["num_global_key_value_heads"] for window in kinds]
    if config["enable_moe_block"]:
        v.update({"expert_count": config["num_experts"], "expert_used_count": config["top_k_experts"],
                  "expert_feed_forward_length": config["moe_intermediate_size"]})
    return v


def factors(config):
    """Those of a head's pairs that do not turn are divided by a very large number."""
    pairs = config["global_head_dim"] // 2
    turning = int(config["global_head_dim"] * config["rope_parameters"]["full_attention"]["partial_rotary_factor"] / 2)
    return "F32", [pairs], floats([1.0] * turning + [1e30] * (pairs - turning))
