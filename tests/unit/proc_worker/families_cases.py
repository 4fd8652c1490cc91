"""Small models of every family, for families_differential.py: what config.json says in each, and how the checkpoint is saved.

A case is a family's usual config.json with some fields changed (None: the field is null; MISSING: it is not there), and
optionally how its tensors are laid down. Known checkpoints keep every field that their config.json has and are made small
by the sizes alone."""
from families_fields import (COMMON, LONG, MISSING, WINDOWED, YARN, new_rope,
                             rope_cases, shape_cases)
from families_latent import DENSE_LATENT, LATENT, latent_cases
from families_usual import FAMILIES, NAMES, ONE_A_HEAD, SQUARE

DEVICE = {"hidden_size": 64, "intermediate_size": 96}
DEVICE_FAMILIES = ("stablelm", "nemotron", "starcoder2", "arcee", "phi", "cohere", "cohere2", "glm4", "ernie4_5", "exaone4",
                   "olmo2", "olmo3", "olmoe", "granitemoeshared", "olmo", "mistral", "ministral", "glm", "seed_oss", "internlm2",
                   "internlm3", "granitemoe", "phimoe", "glm4_moe", "ernie4_5_moe",
                   "hunyuan_v1_dense", "ministral3", "gpt_oss", "gpt_neox", "gpt2",
                   "granitemoehybrid", "vaultgemma", "jais2", "minimax_m2", "qwen3_vl_moe_text", "apertus", "opt", "afmoe")


def device_cases():
    """(family, config.json, save options)"""
    for family in DEVICE_FAMILIES:
        changes = {**DEVICE, "torch_dtype": "bfloat16"}
        if "head_dim" in FAMILIES[family]:
            changes["head_dim"] = 16
        if "partial_rotary_factor" in FAMILIES[family]:
            changes["partial_rotary_factor"] = 0.5
        if "intermediate_size" in FAMILIES[family]:
            changes.pop("intermediate_size")
        more = {"stablelm": {"use_qkv_bias": True}, "nemotron": {"attention_bias": True, "mlp_bias": True},
                "cohere": {"attention_bias": True}, "ernie4_5": {"use_bias": True},
                # many that count little: in bfloat16 now and then another one is chosen
                "glm4_moe": {"num_experts": 16, "n_group": 4, "topk_group": 3, "num_experts_per_tok": 7, "use_qk_norm": True,
                             "routed_scaling_factor": 0.9},
                "gpt2": {"max_position_embeddings": 128, "tie_word_embeddings": False},
                "opt": {"max_position_embeddings": 128, "tie_word_embeddings": False},
                "hunyuan_v1_dense": {"attention_head_dim": 16}, "olmo": {"clip_qkv": 0.8, "attention_bias": True},
                "ministral3": {"dtype": MISSING, "rope_parameters": {**FAMILIES["ministral3"]["rope_parameters"],
                                                                     "llama_4_scaling_beta": 1.5}},
                "qwen3_vl_moe_text": {"num_experts": 16, "num_experts_per_tok": 7},
                "afmoe": {"num_experts": 16, "num_experts_per_tok": 7, "route_scale": 0.9},
                "minimax_m2": {"rotary_dim": 8, "num_local_experts": 16, "num_experts_per_tok": 7},
                "olmo3": {"num_key_value_heads": 1}}  # of two ranks one counts its squares
        save = dict(whole(family))["whole-new"] if family == "qwen3_vl_moe_text" else {}
        yield family, config(family, {**changes, **more.get(family, {})}), save


def config(family, changes):
    c = {**COMMON, **FAMILIES[family], "model_type": family, **changes}
    if family in ONE_A_HEAD:
        c["num_key_value_heads"] = MISSING
    if family in LATENT:
        c["num_key_value_heads"] = c["num_attention_heads"]
    names = NAMES.get(family, {})
    return {names.get(k, k): v for k, v in c.items() if v is not MISSING}


def window_cases(family):
    types = ["full_attention", "sliding_attention", "full_attention"]
    if family in ("qwen2", "qwen3", "qwen3_moe"):
        # of mixtures transformers forgot the field; tercet obeys it where it is there
        yield "window", {"use_sliding_window": True, "sliding_window": 8,
                         "max_window_layers": MISSING if family == "qwen3_moe" else 1}
        yield "window-all", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}
        if family != "qwen3_moe":
            yield "window-types", {"use_sliding_window": True, "sliding_window": 8, "layer_types": types}
        yield "window-off", {"use_sliding_window": False, "sliding_window": 8, "layer_types": ["full_attention"] * 3}
    if family in ("mistral", "phi3", "mixtral"):
        yield "window-null", {"sliding_window": None}
        yield "window-one", {"sliding_window": 1}
        yield "window-wide", {"sliding_window": 250}
        yield "window-8", {"sliding_window": 8}
    if family == "ministral":
        yield "types-missing", {"layer_types": MISSING}
    if family == "cwm":
        yield "types-missing", {"layer_types": MISSING, "num_hidden_layers": 6}
        yield "types", {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 1}
    if family == "ministral3":
        rope = FAMILIES[family]["rope_parameters"]
        yield "window-8", {"sliding_window": 8}
        yield "beta", {"rope_parameters": {**rope, "llama_4_scaling_beta": 1.5, "max_position_embeddings": 256}}
        yield "default", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "llama_4_scaling_beta": 0.7,
                                              "original_max_position_embeddings": 8}}
    if family in ("gemma2", "gemma3_text"):
        yield "window-types", {"layer_types": types, "num_hidden_layers": 3}


def family_cases(family):
    if family in ("llama", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "granite", "granitemoe", "granitemoeshared", "smollm3"):
        yield "attention-bias", {"attention_bias": True}
    if family == "hyperclovax":
        yield "no-post-norm", {"use_post_norm": False}
        yield "plain", {k: MISSING for k in ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")}
        yield "attention-null", {"attention_multiplier": None}
        yield "biases", {"attention_bias": True, "mlp_bias": True}
        yield "tied", {"tie_word_embeddings": True}
        yield "eps", {"rms_norm_eps": 1e-2, "residual_multiplier": 0.2}
    if family == "sarvam_moe":
        yield "biases", {"use_qkv_bias": True}
        yield "groups", {"n_group": 4, "topk_group": 2, "num_experts": 16, "num_experts_per_tok": 5}
        yield "no-norm", {"norm_topk_prob": False}
        yield "shared-more", {"num_shared_experts": 3, "first_k_dense_replace": 2}
        yield "as-saved", {"num_experts": MISSING, "n_routed_experts": 8, "num_shared_experts": MISSING, "n_shared_experts": 1, "num_mtp_layers": MISSING,
                           "num_nextn_predict_layers": 0, "use_qkv_bias": MISSING, "attention_bias": False, **new_rope({"partial_rotary_factor": 1.0}, 5e5)}
        yield "defaults", {"num_attention_heads": 8, **{k: MISSING for k in (
            "head_dim", "num_key_value_heads", "rms_norm_eps", "rope_theta", "first_k_dense_replace", "num_shared_experts", "routed_scaling_factor",
            "norm_topk_prob", "n_group", "topk_group", "num_mtp_layers", "score_function", "use_qk_norm", "use_qkv_bias")}}
    if family == "cwm":
        yield "mlp-bias", {"mlp_bias": True}
    if family in ("llama", "granite", "smollm3"):
        yield "biases", {"attention_bias": True, "mlp_bias": True}
    if family in ("gemma2", "gemma3_text"):
        yield "no-caps", {"attn_logit_softcapping": None, "final_logit_softcapping": None}
        yield "caps", {"attn_logit_softcapping": 3.0 if family == "gemma2" else None, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 7}
    if family in ("gemma", "gemma2"):
        yield "old-act", {"hidden_act": "gelu", "hidden_activation": MISSING}
        yield "no-tie-field", {"tie_word_embeddings": MISSING}
    if family == "phi3":
        for share in (0.6, 0.8):
            yield "partial-%g" % share, {"partial_rotary_factor": share, "num_attention_heads": 2, "num_key_value_heads": 1}
        yield "partial-new", {**new_rope({"partial_rotary_factor": 0.6}), "num_attention_heads": 2,
                              "num_key_value_heads": 1, "partial_rotary_factor": MISSING}
        yield "old-longrope", {"rope_scaling": LONG, "original_max_position_embeddings": 32}
    if family in ("mixtral", "qwen3_moe", "qwen2_moe", "granitemoe", "granitemoeshared"):
        count = "num_local_experts" if family in ("mixtral", "granitemoe", "granitemoeshared") else "num_experts"
        for n in (1, 3, 8):
            yield "top-%d" % n, {count: 8, "num_experts_per_tok": n}
    if family == "phimoe":
        yield "no-bias", {"attention_bias": False, "lm_head_bias": MISSING, "architectures": ["PhimoeForCausalLM"]}
        yield "window-8", {"sliding_window": 8, "num_local_experts": 16}
        yield "noise-usual", {"router_jitter_noise": MISSING}
        # transformers takes the near factors for far positions, too: here they are the same
        yield "longrope", {"original_max_position_embeddings": 32, "rope_scaling": {
            **LONG, "long_factor": LONG["short_factor"], "short_mscale": 1.1, "long_mscale": 1.3,
            "original_max_position_embeddings": 32}}
    if family in ("qwen3_moe", "qwen2_moe"):
        yield "norm", {"norm_topk_prob": True}
        yield "no-norm", {"norm_topk_prob": False}
        yield "sparse-step", {"decoder_sparse_step": 2}
        yield "dense-layer", {"mlp_only_layers": [0, 2]}
        yield "no-sparse-fields", {"decoder_sparse_step": MISSING, "mlp_only_layers": MISSING}
        yield "num-local", {"num_local_experts": 8, "num_experts": MISSING} if family == "qwen3_moe" else {}
    if family == "qwen2_moe":
        yield "no-qkv-bias", {"qkv_bias": False}
        yield "window", {"use_sliding_window": True, "sliding_window": 8, "layer_types": WINDOWED}
    if family == "gemma3_text":
        yield "pattern-missing", {"sliding_window_pattern": MISSING, "num_hidden_layers": 7}
        yield "scaled", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
        yield "new-ropes", {**new_rope({}), "rope_local_base_freq": MISSING, "sliding_window_pattern": MISSING,
                            "layer_types": WINDOWED + ["full_attention"], "rope_parameters": {
                                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0}}}
    if family == "gpt_oss":
        yield "limit", {"swiglu_limit": 0.5, "swiglu_alpha": 1.2}
        yield "no-bias", {"attention_bias": False}
        yield "types-missing", {"layer_types": MISSING, "num_hidden_layers": 4}
        yield "window-one", {"sliding_window": 1}
        yield "top-1", {"num_experts_per_tok": 1, "experts_per_token": MISSING}
        yield "top-all", {"num_experts_per_tok": 6, "experts_per_token": MISSING}
        yield "truncate", {"rope_scaling": {**FAMILIES[family]["rope_scaling"], "truncate": True}}
        yield "defaults", {"head_dim": MISSING, "swiglu_limit": MISSING, "attention_bias": MISSING, "rms_norm_eps": MISSING,
                           "initial_context_length": MISSING, "num_attention_heads": 8, "num_key_value_heads": 4}
    if family == "smollm3":
        yield "interval", {"no_rope_layers": MISSING, "no_rope_layer_interval": 2, "layer_types": MISSING}
        yield "interval-missing", {"no_rope_layers": MISSING, "no_rope_layer_interval": MISSING,
                                   "num_hidden_layers": 4, "layer_types": MISSING}
        yield "window", {"use_sliding_window": True, "sliding_window": 8, "layer_types": MISSING}
    if family == "olmo3":
        yield "yarn-full", {"rope_scaling": {**YARN, "rope_type": "yarn", "attention_factor": 1.2}}
        yield "types-missing", {"layer_types": MISSING, "num_hidden_layers": 5}
        yield "new-ropes", {**new_rope({}), "rope_parameters": {
            "full_attention": {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 4.0,
                               "original_max_position_embeddings": 32},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0}}}
    if family in ("olmo", "olmoe"):
        yield "clip", {"clip_qkv": 0.8}
    if family in ("olmo", "hunyuan_v1_dense", "apertus", "bitnet"):
        yield "attention-bias", {"attention_bias": True}
    if family == "olmo":
        yield "clip-bias", {"clip_qkv": 0.5, "attention_bias": True, "num_key_value_heads": MISSING}
    if family == "hunyuan_v1_moe":
        yield "top-1", {"moe_topk": 1}
        yield "top-all", {"moe_topk": [8] * 3}
        yield "attention-bias", {"attention_bias": True}
        yield "as-saved", {"moe_topk": MISSING, "num_experts_per_tok": 2, "moe_intermediate_size": MISSING, "num_shared_expert": MISSING,
                           "norm_topk_prob": MISSING, "attention_head_dim": MISSING}
    if family.startswith("hunyuan"):
        yield "plain", {"rope_scaling": None}
        yield "alpha-new", {**new_rope({"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0})}
    if family == "olmoe":
        yield "norm", {"norm_topk_prob": True}
        yield "top-1", {"num_experts_per_tok": 1}
    if family == "exaone4":
        yield "window", {"sliding_window": 8, "sliding_window_pattern": 3, "num_hidden_layers": 4,
                         "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]}
        yield "pattern", {"sliding_window": 8, "sliding_window_pattern": 2, "layer_types": MISSING}
        yield "llg", {"sliding_window": 8, "sliding_window_pattern": "LLG", "layer_types": WINDOWED}
    if family == "hy_v3":
        yield "attention-bias", {"attention_bias": True}
        yield "listed", {"mlp_layer_types": ["sparse", "dense", "sparse"], "first_k_dense_replace": MISSING}
        yield "more-shared", {"n_shared_experts": 3}
        yield "top-1", {"num_experts_per_tok": 1}
        yield "top-all", {"num_experts_per_tok": 8}
        yield "combined", {"enable_moe_fp32_combine": True, "router_scaling_factor": 0.7}
        yield "defaults", {"num_attention_heads": 8, **{k: MISSING for k in (
            "head_dim", "num_key_value_heads", "rms_norm_eps", "rope_theta", "rope_scaling", "first_k_dense_replace", "n_shared_experts",
            "router_scaling_factor", "expert_hidden_dim", "num_nextn_predict_layers", "route_norm", "qk_norm")}}
    if family == "exaone_moe":
        yield "pattern", {"sliding_window_pattern": 2, "layer_types": MISSING}
        yield "listed", {"mlp_layer_types": ["sparse", "dense", "sparse"], "first_k_dense_replace": MISSING, "is_moe_layer": MISSING}
        yield "groups", {"n_group": 4, "topk_group": 2, "num_experts": 16, "num_experts_per_tok": 5}
        yield "no-norm", {"norm_topk_prob": False}
        yield "more-shared", {"num_shared_experts": 3}
        yield "top-1", {"num_experts_per_tok": 1, "first_k_dense_replace": 0, "is_moe_layer": [True] * 3}
        yield "defaults", {"num_hidden_layers": 5, **{k: MISSING for k in (
            "first_k_dense_replace", "is_moe_layer", "routed_scaling_factor", "norm_topk_prob", "n_group", "topk_group", "topk_method",
            "num_shared_experts", "scoring_func", "layer_types", "sliding_window_pattern")}}
    if family == "opt":
        yield "no-bias", {"enable_bias": False}
        yield "bias-missing", {"enable_bias": MISSING, "word_embed_proj_dim": 40}
        yield "untied", {"tie_word_embeddings": False}
    if family in ("granite_swa", "granitemoe_swa"):
        yield "types-missing", {"layer_types": MISSING, "num_hidden_layers": 6, "layer_rope_theta": MISSING}
        yield "theta", {"layer_rope_theta": [500000.0] * 3, "sliding_window": 1}
        yield "no-positions", {"layer_rope_theta": [0, 0, 0]}
    if family == "granitemoe_swa":
        yield "no-shared", {"shared_intermediate_size": 0, "attention_bias": True}
    if family == "granite_swa":
        yield "biases", {"attention_bias": True, "mlp_bias": True}
    if family == "mellum":
        yield "defaults", {k: MISSING for k in ("layer_types", "mlp_layer_types", "norm_topk_prob", "rope_parameters", "num_mtp_layers",
                                                "mtp_layer_types", "mtp_mlp_layer_types", "attention_bias")}
        yield "no-norm", {"norm_topk_prob": False, "mlp_layer_types": ["dense", "sparse", "sparse"]}
        yield "attention-bias", {"attention_bias": True}
    if family in ("stablelm", "nemotron", "glm", "glm4", "phi"):
        yield "partial-default", {"partial_rotary_factor": MISSING, "hidden_size": 64} if "glm" not in family else {
            "partial_rotary_factor": MISSING}
    if family == "starcoder2":
        yield "no-bias", {"use_bias": False}
        yield "no-window", {"sliding_window": None}
    if family == "stablelm":
        yield "qkv-bias", {"use_qkv_bias": True}
        yield "parallel", {"use_parallel_residual": True}
    if family in ("stablelm", "cohere"):
        norms = {"qk_layernorm": True} if family == "stablelm" else {"use_qk_norm": True}
        yield "head-norms", norms
        yield "head-norms-mqa", {**norms, "num_key_value_heads": 1}
        yield "head-norms-biases", {**norms, "num_key_value_heads": 4, "use_qkv_bias" if family == "stablelm" else "attention_bias": True}
        if family == "stablelm":  # as that of 12B
            yield "head-norms-parallel", {**norms, "use_parallel_residual": True}
    if family in ("nemotron", "arcee", "cohere"):
        yield "biases", {"attention_bias": True} if family == "cohere" else {"attention_bias": True, "mlp_bias": True}
    if family in ("glm", "glm4"):
        yield "no-bias", {"attention_bias": False}
    if family == "cohere2":
        yield "types", {"sliding_window_pattern": MISSING, "layer_switch": MISSING, "layer_types": WINDOWED}
        yield "pattern-missing", {"sliding_window_pattern": MISSING, "layer_switch": MISSING, "num_hidden_layers": 5}
    if family == "internlm2":
        yield "bias", {"bias": True}
        yield "bias-missing", {"bias": MISSING}
        yield "bias-mqa", {"bias": True, "num_key_value_heads": 1}
    if family == "internlm3":
        yield "bias", {"bias": True}
        yield "qkv-bias", {"qkv_bias": True}
        yield "biases", {"bias": True, "qkv_bias": True}
    if family == "gpt2":
        yield "untied", {"tie_word_embeddings": False}
        yield "inner-null", {"intermediate_size": None}
        yield "inner-missing", {"intermediate_size": MISSING, "hidden_act": MISSING}
        yield "scaled", {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False}
    if family == "gpt_neox":
        yield "sequential", {"use_parallel_residual": False}
        yield "choice-missing", {"use_parallel_residual": MISSING}
        yield "no-bias", {"attention_bias": False}
        yield "defaults", {"partial_rotary_factor": MISSING, "rope_theta": MISSING, "hidden_size": 64}
        yield "whole-heads", {"partial_rotary_factor": 1.0, "rope_theta": 20000}
        yield "new-partial", {**new_rope({"partial_rotary_factor": 0.4}, 5000.0), "partial_rotary_factor": MISSING}
        yield "twice", {"rope_theta": 10000, "rotary_emb_base": 10000}
    if family == "ernie4_5":
        yield "biases", {"use_bias": True}
    if family == "glm4_moe":
        yield "qk-norm", {"use_qk_norm": True}
        yield "no-bias", {"attention_bias": False}
        yield "partial-default", {"partial_rotary_factor": MISSING}
        yield "groups", {"n_group": 4, "topk_group": 2, "num_experts": 16, "num_experts_per_tok": 5}
        yield "groups-one", {"n_group": 2, "topk_group": 1, "num_experts_per_tok": 4}
        yield "no-norm", {"norm_topk_prob": False}
        yield "no-shared", {"n_shared_experts": 3, "first_k_dense_replace": 0}
        yield "dense-more", {"first_k_dense_replace": 2, "num_hidden_layers": 4}
        yield "top-1", {"num_experts_per_tok": 1}
        yield "top-all", {"num_experts_per_tok": 8}
        yield "defaults", {k: MISSING for k in ("norm_topk_prob", "n_group", "topk_group", "n_shared_experts", "use_qk_norm",
                                                "first_k_dense_replace", "routed_scaling_factor", "attention_bias")}
    if family == "ernie4_5_moe":
        yield "interval", {"moe_layer_interval": 2, "num_hidden_layers": 5, "moe_layer_end_index": 3}
        yield "start", {"moe_layer_start_index": 0}
        yield "no-shared", {"n_shared_experts": 0}
        yield "norm-min", {"moe_norm_min": 0.5}
        yield "top-1", {"num_experts_per_tok": 1}
        yield "defaults", {k: MISSING for k in ("n_shared_experts", "moe_layer_start_index", "moe_layer_end_index",
                                                "moe_layer_interval", "tie_word_embeddings", "use_bias")}
    if family == "cohere2_moe":
        yield "rms-norm", {"rms_norm_eps": 1e-5}
        yield "softmax", {"expert_selection_fn": "softmax", "norm_topk_prob": False}
        yield "no-norm", {"norm_topk_prob": False, "shared_expert_combination_strategy": "sum"}
        yield "no-shared", {"num_shared_experts": 0}
        yield "biases", {"attention_bias": True}
        yield "prefix", {"layer_types": MISSING, "mlp_layer_types": MISSING, "first_k_dense_replace": 3, "num_hidden_layers": 6,
                         "prefix_dense_sliding_window_pattern": 2, "sliding_window_pattern": 3}
        yield "prefix-one", {"layer_types": MISSING, "mlp_layer_types": MISSING, "first_k_dense_replace": 2, "num_hidden_layers": 5}
        yield "defaults", {"num_hidden_layers": 5, **{k: MISSING for k in (
            "layer_types", "mlp_layer_types", "prefix_dense_intermediate_size", "prefix_dense_sliding_window_pattern", "num_shared_experts",
            "shared_expert_combination_strategy", "expert_selection_fn", "norm_topk_prob", "logit_scale", "sliding_window", "num_key_value_heads")}}
    if family == "afmoe":
        yield "no-mup", {"mup_enabled": False}
        yield "pattern", {"layer_types": MISSING, "global_attn_every_n_layers": 2, "num_hidden_layers": 5}
        yield "types", {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 1}
        yield "all-full", {"layer_types": ["full_attention"] * 3}
        yield "all-experts", {"num_dense_layers": 0}
        yield "dense-more", {"num_dense_layers": 2}
        yield "more-shared", {"n_shared_experts": 3}
        yield "top-1", {"num_experts_per_tok": 1}
        yield "top-all", {"num_experts_per_tok": 8}
        yield "defaults", {"num_hidden_layers": 5, **{k: MISSING for k in (
            "layer_types", "global_attn_every_n_layers", "num_dense_layers", "n_shared_experts", "route_scale", "mup_enabled", "head_dim",
            "num_key_value_heads", "sliding_window", "rope_theta", "rms_norm_eps")}}
    yield from latent_cases(family)
    if family == "granitemoeshared":
        yield "no-shared", {"shared_intermediate_size": 0}
        yield "shared-missing", {"shared_intermediate_size": MISSING}
    if family == "granitemoehybrid":
        yield "no-positions", {"position_embedding_type": "nope"}
        yield "positions-missing", {"position_embedding_type": MISSING}
        yield "new-types", {"layer_types": ["full_attention"] * 3}
        yield "attention-bias", {"attention_bias": True}
    if family == "minicpm":
        yield "scales-missing", {k: MISSING for k in ("scale_emb", "scale_depth", "dim_model_base")}
        yield "biases", {"attention_bias": True}
    if family == "vaultgemma":
        yield "no-caps", {"attn_logit_softcapping": None, "final_logit_softcapping": None}
        yield "window-types", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}
    if family == "bitnet":
        yield "missing", {name: MISSING for name in ("hidden_act", "rms_norm_eps", "rope_theta", "tie_word_embeddings")}
        yield "tied-mqa", {"tie_word_embeddings": True, "num_key_value_heads": 1}
    if family in ("helium", "jais2"):
        yield "biases", {"attention_bias": family == "helium", "mlp_bias": family == "helium"}
    if family == "jais2":
        yield "bias-missing", {"attention_bias": MISSING, "mlp_bias": MISSING}
    if family == "minimax_m2":
        yield "partial-new", {**new_rope({"partial_rotary_factor": 0.5}, 5000000.0), "rotary_dim": MISSING}
        yield "whole-heads", {"rotary_dim": MISSING}
        yield "top-1", {"num_experts_per_tok": 1}
        yield "top-all", {"num_experts_per_tok": 8}
    if family in ("dots1", "solar_open"):
        yield "no-norm", {"norm_topk_prob": False}
        yield "groups", {"n_group": 4, "topk_group": 2, "num_experts": 16, "num_experts_per_tok": 5}
        yield "attention-bias", {"attention_bias": True}
        yield "more-shared", {"n_shared_experts": 3}
    if family == "dots1":
        yield "all-experts", {"first_k_dense_replace": 0}
        yield "window-above", {"sliding_window": 8, "max_window_layers": 1, "use_sliding_window": MISSING}
        yield "window-types", {"sliding_window": 8, "use_sliding_window": MISSING, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
        yield "window-nowhere", {"sliding_window": MISSING, "max_window_layers": MISSING, "use_sliding_window": MISSING}
    if family == "solar_open":
        yield "no-width", {"intermediate_size": MISSING}
    if family == "flex_olmo":
        yield "norm", {"norm_topk_prob": True}
        yield "top-1", {"num_experts_per_tok": 1}
    if family == "seed_oss":
        yield "no-bias", {"attention_bias": False}
        yield "mlp-bias", {"mlp_bias": True}
    if family == "granite":
        yield "neutral", {"attention_multiplier": 1.0, "embedding_multiplier": 1.0, "residual_multiplier": 1.0,
                          "logits_scaling": 1.0}


SAVES = [("f16", {"dtype": "float16"}), ("bf16", {"dtype": "bfloat16"}), ("sharded", {"shards": 3}),
         ("base", {"base": True}), ("tied-head-kept", {"keep_head": True}), ("inv-freq", {"extra": True}),
         ("raw", {"raw": True})]


def whole(family):
    """A checkpoint of several parts, of which the family is the language part, in its older and its newer form."""
    vision = {"hidden_size": 16, "image_size": 28, "model_type": "siglip_vision_model", "patch_size": 14}
    parts = {"gemma3_text": {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
                             "boi_token_index": 100, "mm_tokens_per_image": 4, "vision_config": vision},
             "mistral": {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
                         "image_token_index": 10, "spatial_merge_size": 2, "vision_config": vision},
             "ministral3": {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
                            "image_token_index": 10, "spatial_merge_size": 2, "vision_config": vision},
             "qwen3": {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
                       "image_token_id": 10, "vision_config": vision,
                       "text_config": {"model_type": "qwen3_vl_text", "rope_scaling": {
                           "mrope_interleaved": True, "mrope_section": [2, 2, 2], "rope_type": "default"}}}}
    parts["qwen3_vl_moe_text"] = {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe",
                                  "image_token_id": 10, "vision_config": vision, "text_config": {"rope_scaling": {
                                      "mrope_interleaved": True, "mrope_section": [2, 2, 2], "rope_type": "default"}}}
    more = {"raw": True} if family == "qwen3_vl_moe_text" else {}
    if family in parts:
        yield "whole", {"whole": parts[family], "prefix": "language_model.model.", **more}
        yield "whole-new", {"whole": parts[family], "prefix": "model.language_model.", **more}


def cases():
    """(name, family, config.json, save options)"""
    for family in FAMILIES:
        if family == "qwen3_vl_moe_text":  # is only ever a part
            for name, save in whole(family):
                yield family + "/save-" + name, family, config(family, {}), save
                yield family + "/odd-" + name, family, config(family, {"moe_intermediate_size": 21, "num_key_value_heads": 3,
                                                                       "num_attention_heads": 6}), {**save, "ranks": 3}
            continue
        ropes = rope_cases() if family in ("llama", "qwen2", "phi3", "qwen3", "mistral", "granite", "hyperclovax", "internlm2", "minicpm") else []
        if family in ("gemma", "gemma2", "mixtral", "qwen3_moe", "smollm3", "qwen2_moe", "olmo2", "olmoe", "exaone4", "seed_oss", "arcee", "granitemoe",
                      "cohere", "bitnet", "ernie4_5", "phi", "glm4", "internlm3", "gpt_neox", "glm4_moe", "ernie4_5_moe", "granitemoeshared", "olmo", "deepseek_v2", "deepseek_v3"):
            ropes = [r for r in rope_cases() if r[0] in ("none", "new-default", "linear", "yarn-new", "llama3", "dynamic")]
        if family == "gpt_oss":  # without one transformers takes one of its own
            ropes = [("none", {}), ("plain", {"rope_scaling": {"rope_type": "default"}, "initial_context_length": MISSING})]
            ropes += [(n, {**c, "initial_context_length": MISSING}) for n, c in rope_cases() if n in ("yarn-new", "llama3")]
        if family in ("cwm", "apertus"):  # likewise
            ropes = [r for r in rope_cases() if r[0] in ("new-default", "llama3-new", "yarn")] + [("none", {})]
        if family == "phi3":
            ropes = [r for r in rope_cases() if "longrope" in r[0] or "default" in r[0] or "none" in r[0]]
        if family == "phimoe":
            ropes = [r for r in rope_cases() if r[0] in ("none", "new-default")]
        if family == "exaone_moe":
            ropes = [r for r in rope_cases() if r[0] in ("none", "new-default", "llama3-new")]
        if family in ("iquestcoder", "granite_swa", "granitemoe_swa"):
            ropes = [r for r in rope_cases() if r[0] in ("none", "llama3-new", "yarn")]
        if family in ("opt", "mellum", "afmoe", "cohere2_moe", "gemma3_text", "olmo3", "starcoder2", "stablelm", "nemotron", "cohere2", "glm", "gpt2", "ministral", "ministral3", "hunyuan_v1_dense", "hunyuan_v1_moe", "glm4_moe_lite", "minicpm3",
                      "granitemoehybrid", "vaultgemma", "helium", "jais2", "minimax_m2", "dots1", "solar_open", "sarvam_moe", "flex_olmo", "mistral4", "youtu", "mimo", "hy_v3",
                      "sarvam_mla", "deepseek_v32", "glm_moe_dsa", "axk1", "axk2"):
            ropes = [("none", {})]
        for name, changes in ropes:
            if family == "mixtral":  # transformers' formulas want it
                changes = {**changes, "head_dim": 10}
            if family in ("qwen3", "gemma", "gemma2", "qwen3_moe") and "longrope" in name:
                changes = {**changes, "head_dim": 10}
            yield family + "/" + name, family, config(family, changes), {}
        gelu = family.startswith("gemma")
        for name, changes in shape_cases():
            if family in (*ONE_A_HEAD, *LATENT) and ("kv_heads" in str(changes) and name != "odd" or "head-dim" in name):
                continue
            if family == "gemma" and name.startswith("act-"):
                changes = {**changes, "hidden_activation": MISSING}
                if name == "act-gelu":  # means the approximation there
                    continue
            elif gelu and name.startswith("act-"):
                changes = {**{"hidden_activation": changes["hidden_act"]}, "hidden_act": MISSING}
            if family in ("phi3", "granite", "hyperclovax", "granitemoe", "smollm3", "qwen2_moe", "qwen2", "olmoe", *SQUARE) and name == "head-dim":
                continue
            if family == "apertus" and name.startswith("act-"):
                continue
            if family == "gpt_oss" and name.startswith("act-"):  # is called silu, and is none of the others
                continue
            if name == "kv-missing" and family != "llama":
                continue
            if name == "head-dim-null" and family not in ("llama", "mistral", "mixtral"):
                continue
            if name == "odd" and family in (*ONE_A_HEAD, *LATENT, "phi3", "granite", "hyperclovax", "granitemoe", "smollm3", "qwen2_moe", "qwen2", "olmoe", *SQUARE):
                changes = {**changes, "head_dim": MISSING, "hidden_size": 60}
            if family in ("glm", "glm4", "glm4_moe", "nemotron", "minimax_m2") and "head_dim" in changes:  # an even part of it turns
                changes = {**changes, "head_dim": 20}
            if name == "odd" and family != "cohere2_moe" and (family.endswith("_moe") or family in ("dots1", "solar_open", "mellum", "afmoe", "hy_v3") or family in LATENT and family not in DENSE_LATENT):
                changes = {**changes, "moe_intermediate_size": 21, "shared_expert_intermediate_size":
                           27 if family == "qwen2_moe" else MISSING}
            if name == "odd" and family == "hy_v3":
                changes = {**changes, "expert_hidden_dim": MISSING}
            if name == "odd" and family == "cohere2_moe":
                changes = {**changes, "prefix_dense_intermediate_size": 27}
            if family == "helium":  # heads are as wide together as the stream
                if name == "head-dim":
                    continue
                changes = {**changes, "hidden_size": 60, "head_dim": 10} if name == "odd" else changes
            if family == "hunyuan_v1_moe":  # numbers for each layer
                changes = {**changes, **({"intermediate_size": 21, "moe_intermediate_size": 21} if name == "odd" else {}),
                           **({"moe_topk": [3], "moe_intermediate_size": [20], "num_shared_expert": [1]} if name == "one-layer" else {})}
            if family.startswith("hunyuan") and "head_dim" in changes:
                changes = {**changes, "attention_head_dim": changes["head_dim"]}
            if name == "odd" and family in ("granitemoeshared", "granitemoe_swa"):
                changes = {**changes, "shared_intermediate_size": 27}
            if name == "one-layer":
                types = FAMILIES[family].get("layer_types")
                changes = {**changes, **({"layer_types": types[:1]} if types else {}),
                           **({"is_moe_layer": [False]} if family == "exaone_moe" else {}),
                           **({"layer_rope_theta": [10000.0]} if family == "granite_swa" else {}),
                           **({"mlp_layer_types": ["sparse"]} if family in ("mellum", "cohere2_moe") else {}),
                           **({"no_rope_layers": [1]} if family == "smollm3" else {}),
                           **({"attn_type_list": [1]} if family == "minimax_m2" else {})}
            yield family + "/" + name, family, config(family, changes), {"ranks": 3} if name == "odd" else {}
        for name, changes in list(window_cases(family)) + list(family_cases(family)):
            yield family + "/" + name, family, config(family, changes), {}
        for name, save in SAVES + list(whole(family)):
            changes = {"tie_word_embeddings": True} if save.get("keep_head") else {}
            if family == "sarvam_moe" and name == "tied-head-kept":  # its embedding has another name by then
                continue
            if family.startswith(("internlm", "gpt", "opt")) and name in ("base", "raw", "inv-freq", "tied-head-kept") and (
                    family + name not in ("gpt2base", "optbase")):
                continue
            if "dtype" in save:
                changes["dtype" if "dtype" in FAMILIES[family] else "torch_dtype"] = save["dtype"]
            yield family + "/save-" + name, family, config(family, changes), save
