"""What llama.cpp's converter does with Gemma 3n: names, values, and matrices of all streams in one tensor."""
import statistics

LAYER = {"per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
         "altup.correction_coefs": "altup_correct_coef", "altup.prediction_coefs": "altup_predict_coef", "altup.modality_router": "altup_router",
         "altup.router_norm": "altup_router_norm", "laurel.linear_left": "laurel_l", "laurel.linear_right": "laurel_r",
         "laurel.post_laurel_norm": "laurel_post_norm"}
STREAMS = {"model.altup_projections": "altup_proj", "model.altup_unembed_projections": "altup_unembd_proj"}


def layer_tensor(whole):
    """Its name in the file; None: it is called as in other families."""
    if whole == "altup.correct_output_scale":
        return "altup_correct_scale.weight"
    stem = whole.removesuffix(".weight")
    return LAYER[stem] + ".weight" if stem in LAYER else None


def stack(out, name, tensor):
    """Whether it is one of several matrices, which `out` has together."""
    stem, _, number = name.removesuffix(".weight").rpartition(".")
    if stem not in STREAMS:
        return False
    out.setdefault(STREAMS[stem] + ".weight", {})[int(number)] = tensor
    return True


def deviations(share):
    return statistics.NormalDist().inv_cdf(share) if share > 0 else float("-inf")


def values(config):
    ropes = config.get("rope_parameters") or {}
    windows = ropes.get("sliding_attention", {})
    v = {"altup.active_idx": config["altup_active_idx"], "altup.num_inputs": config["altup_num_inputs"],
         "embedding_length_per_layer_input": config["hidden_size_per_layer_input"], "attention.shared_kv_layers": config["num_kv_shared_layers"],
         "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config["layer_types"]],
         "activation_sparsity_scale": [deviations(share) for share in config["activation_sparsity_pattern"]],
         "rope.freq_base_swa": float(windows.get("rope_theta", config.get("rope_local_base_freq", 10000.0)))}
    if not ropes and "rope_theta" not in config:
        v["rope.freq_base"] = 1000000.0
    return v
