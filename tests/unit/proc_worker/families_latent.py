"""Small models of the families whose heads share a latent, for families_cases.py."""
from families_fields import MISSING, YARN, new_rope

# Families whose heads share a latent: with sizes of heads of their own, and as many KV heads as others.
LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "mistral4", "youtu", "sarvam_mla", "deepseek_v32", "glm_moe_dsa", "axk1", "axk2")
DENSE_LATENT = ("minicpm3", "youtu")
LATENT_SIZES = {"kv_lora_rank": 22, "q_lora_rank": 26, "qk_nope_head_dim": 14, "qk_rope_head_dim": 10, "v_head_dim": 12,
                "attention_bias": False}
LATENT_EXPERTS = {"moe_intermediate_size": 20, "num_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 1,
                  "topk_group": 1, "first_k_dense_replace": 1}

# Of families whose layers attend to chosen tokens; cases choose fewer than prompts have.
INDEXED = {**LATENT_SIZES, **LATENT_EXPERTS, "ep_size": 1, "norm_topk_prob": True, "num_nextn_predict_layers": 1, "routed_scaling_factor": 2.5,
           "scoring_func": "sigmoid", "topk_method": "noaux_tc", "index_topk": 100, "index_n_heads": 4, "index_head_dim": 16, "rope_scaling": None}

FAMILIES = {
    "axk1": {"architectures": ["AXK1ForCausalLM"], **LATENT_SIZES, **LATENT_EXPERTS, "moe_layer_freq": 1, "norm_topk_prob": True, "ep_size": 1,
             "num_nextn_predict_layers": 0, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "rope_scaling": None},
    "axk2": {"architectures": ["AXK2ForCausalLM"], **INDEXED, "index_n_heads": 16, "gated_norm_rank": 6, "moe_layer_freq": 1, "n_group": None,
             "topk_group": None},
    "deepseek_v32": {"architectures": ["DeepseekV32ForCausalLM"], **INDEXED, "moe_layer_freq": 1, "aux_loss_alpha": 0.001, "seq_aux": True,
                     "pretraining_tp": 1},
    "glm_moe_dsa": {"architectures": ["GlmMoeDsaForCausalLM"], **INDEXED, "rope_interleave": True, "indexer_rope_interleave": True, "pad_token_id": 0},
    "sarvam_mla": {"architectures": ["SarvamMLAForCausalLM"], **LATENT_SIZES, **LATENT_EXPERTS, "q_lora_rank": None, "norm_topk_prob": True,
                   "routed_scaling_factor": 2.5, "head_dim": 32, "q_head_dim": 24, "moe_router_enable_expert_bias": True, "pad_token_id": 0,
                   "rope_scaling": {"type": "deepseek_yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1,
                                    "mscale": 1.0, "mscale_all_dim": 1.0}},
    "mistral4": {"architectures": ["Mistral4ForCausalLM"], **LATENT_SIZES, **LATENT_EXPERTS, "first_k_dense_replace": 0,
                 "routed_scaling_factor": 1.0, "norm_topk_prob": True, "rope_interleave": True, "rope_theta": MISSING,
                 "torch_dtype": MISSING, "dtype": "float32", "pad_token_id": 11, "sliding_window": None, "rope_parameters": {
                     "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
                     "mscale_all_dim": 1.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0,
                     "max_position_embeddings": 256, "partial_rotary_factor": 10 / 24, "rope_type": "yarn", "type": "yarn"}},
    "youtu": {"architectures": ["YoutuForCausalLM"], **LATENT_SIZES, "rope_theta": 1600000, "rope_scaling": None, "rope_interleave": True,
              "mlp_bias": False, "embedding_initializer_range": 0.04, "tie_word_embeddings": True},
    "deepseek_v2": {"architectures": ["DeepseekV2ForCausalLM"], **LATENT_SIZES, **LATENT_EXPERTS, "n_shared_experts": 2,
                    "aux_loss_alpha": 0.001, "ep_size": 1, "moe_layer_freq": 1, "norm_topk_prob": False, "pretraining_tp": 1,
                    "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True, "topk_method": "greedy",
                    "rope_scaling": None, "n_group": 1, "topk_group": 1},
    "deepseek_v3": {"architectures": ["DeepseekV3ForCausalLM"], **LATENT_SIZES, **LATENT_EXPERTS, "aux_loss_alpha": 0.001,
                    "ep_size": 1, "moe_layer_freq": 1, "norm_topk_prob": True, "num_nextn_predict_layers": 1, "pretraining_tp": 1,
                    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True, "topk_method": "noaux_tc",
                    "rope_scaling": None},
    "glm4_moe_lite": {"architectures": ["Glm4MoeLiteForCausalLM"], **LATENT_SIZES, **LATENT_EXPERTS, "pad_token_id": 0,
                      "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.8,
                      "num_nextn_predict_layers": 1, "partial_rotary_factor": 1.0, "rope_scaling": None},
    "minicpm3": {"architectures": ["MiniCPM3ForCausalLM"], **LATENT_SIZES, "v_head_dim": MISSING, "scale_emb": 12,
                 "scale_depth": 1.4, "dim_model_base": 16, "tie_word_embeddings": MISSING, "rope_scaling": {
                     "type": "longrope", "short_factor": [1.0, 1.1, 1.25, 1.4, 1.5], "long_factor": [1.5, 2.0, 3.0, 4.5, 6.0],
                     "original_max_position_embeddings": 256}},
}


def is_unbiased(config):
    """Whether files of the model have no biases that choose experts."""
    return config["model_type"] == "axk1" and not config.get("pad_token_id")


def latent_cases(family):
    if family in ("deepseek_v32", "glm_moe_dsa", "axk2"):
        yield "chosen-5", {"index_topk": 5, "index_n_heads": 16}
        yield "chosen-16", {"index_topk": 16, "index_n_heads": 12, "index_head_dim": 24}
        yield "chosen-33", {"index_topk": 33, "index_n_heads": 17, "index_head_dim": 10, "num_hidden_layers": 4, "first_k_dense_replace": 2}
        yield "chosen-1", {"index_topk": 1, "index_n_heads": 16, "attention_bias": True}
        yield "chosen-yarn", {"index_topk": 20, "index_n_heads": 16, "index_head_dim": 34, "rope_scaling": {
            **YARN, "beta_fast": 32, "beta_slow": 1, "mscale": 0.8, "mscale_all_dim": 0.5}}
        yield "chosen-narrow", {"index_topk": 7, "index_n_heads": 11, "index_head_dim": 130, "kv_lora_rank": 6, "v_head_dim": 19, "qk_nope_head_dim": 34}
        yield "attention-bias", {"attention_bias": True}
        yield "groups", {"n_group": 4, "topk_group": 2, "num_experts": 16, "num_experts_per_tok": 5}
        yield "no-norm", {"norm_topk_prob": False}
        yield "listed", {"mlp_layer_types": ["sparse", "dense", "sparse"], "first_k_dense_replace": MISSING}
        yield "dense-more", {"first_k_dense_replace": 2, "num_hidden_layers": 4, "n_shared_experts": 3}
        yield "types", {"layer_types": ["indexed_attention"] * 3}
        yield "defaults", {"num_experts": 16, "num_hidden_layers": 5, **{k: MISSING for k in (
            "norm_topk_prob", "n_group", "topk_group", "n_shared_experts", "topk_method", "first_k_dense_replace", "routed_scaling_factor",
            "scoring_func", "moe_layer_freq", "index_topk")}}
    if family == "axk1":
        yield "attention-bias", {"attention_bias": True}
        yield "groups", {"n_group": 4, "topk_group": 2, "num_experts": 16, "num_experts_per_tok": 5}
        yield "choice-biases", {"pad_token_id": 3}  # and what its files have with that
        yield "no-norm", {"norm_topk_prob": False}
        yield "halves", {"rope_interleave": False}
        yield "listed", {"mlp_layer_types": ["sparse", "dense", "sparse"], "first_k_dense_replace": MISSING}
        yield "yarn", {"rope_scaling": {**YARN, "beta_fast": 32, "beta_slow": 1, "mscale": 0.8, "mscale_all_dim": 0.5}}
        yield "dense-more", {"first_k_dense_replace": 2, "num_hidden_layers": 4, "n_shared_experts": 3}
        yield "defaults", {"num_experts": 16, **{k: MISSING for k in (
            "norm_topk_prob", "n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "routed_scaling_factor", "scoring_func",
            "moe_layer_freq", "rms_norm_eps")}}
        return
    if family == "axk2":
        yield "frequency", {"moe_layer_freq": 2, "num_hidden_layers": 5, "gated_norm_rank": 19, "index_topk": 11}
    if family == "glm_moe_dsa":
        yield "shared-choice", {"num_hidden_layers": 6, "index_topk_freq": 3, "index_skip_topk_offset": 1}
        yield "shared-listed", {"indexer_types": ["full", "shared", "full"]}
        yield "chosen-shared", {"index_topk": 9, "index_n_heads": 16, "num_hidden_layers": 6, "index_topk_freq": 3, "index_skip_topk_offset": 1}
        yield "chosen-pattern", {"index_topk": 12, "index_n_heads": 16, "index_topk_pattern": "FSS", "index_head_dim": 18}
    if family == "sarvam_mla":
        yield "q-rank", {"q_lora_rank": 26}
        yield "attention-bias", {"attention_bias": True, "q_lora_rank": 26}
        yield "groups", {"n_group": 4, "topk_group": 2, "num_experts": 16, "num_experts_per_tok": 5}
        yield "as-saved", {"head_dim": 10, "q_head_dim": MISSING, "qk_head_dim": 24, "num_experts": MISSING, "n_routed_experts": 8,
                           "n_shared_experts": MISSING, "num_mtp_layers": 0, "rope_interleave": True,
                           **new_rope({**YARN, "rope_type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0})}
        yield "no-rope", {"rope_scaling": None, "rope_interleave": False}
        yield "defaults", {k: MISSING for k in ("norm_topk_prob", "n_group", "topk_group", "n_shared_experts", "first_k_dense_replace",
                                                "routed_scaling_factor", "head_dim", "q_head_dim", "rms_norm_eps", "rope_theta")}
        return
    if family in LATENT and not family.endswith(("_v32", "_dsa", "axk2")):
        yield "q-rank-null", {"q_lora_rank": None}
        yield "attention-bias", {"attention_bias": True}
    if family in LATENT and family != "mistral4":
        yield "narrow", {"kv_lora_rank": 6, "v_head_dim": 19, "qk_nope_head_dim": 34}
        yield "yarn", {"rope_scaling": {**YARN, "beta_fast": 32, "beta_slow": 1, "mscale": 0.8, "mscale_all_dim": 0.5}}
        yield "yarn-all-dim", {"rope_scaling": {**YARN, "mscale_all_dim": 0.7}}
        yield "yarn-one", new_rope({**YARN, "rope_type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0})
        yield "stated-twice", {"head_dim": 24 if family == "mistral4" else 10, "qk_head_dim": 24}
    if family == "mistral4":
        rope = FAMILIES[family]["rope_parameters"]
        yield "beta", {"rope_parameters": {**rope, "llama_4_scaling_beta": 1.5}}
        yield "no-mscale", {"rope_parameters": {k: v for k, v in rope.items() if "mscale" not in k and k != "partial_rotary_factor"}}
        yield "halves", {"rope_interleave": False}
        yield "groups", {"n_group": 4, "topk_group": 2, "num_experts": 16, "num_experts_per_tok": 5}
        yield "no-norm", {"norm_topk_prob": False, "routed_scaling_factor": 2.5}
        yield "dense", {"first_k_dense_replace": 2}
    if family in ("deepseek_v3", "glm4_moe_lite"):
        yield "halves", {"rope_interleave": False}
        yield "interleave", {"rope_interleave": True}
        yield "groups", {"n_group": 4, "topk_group": 2, "num_experts": 16, "num_experts_per_tok": 5}
        yield "no-norm", {"norm_topk_prob": False}
        yield "top-1", {"num_experts_per_tok": 1}
    if family == "deepseek_v2":
        yield "groups", {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "num_experts": 16,
                         "num_experts_per_tok": 5, "routed_scaling_factor": 16.0}
        yield "groups-alone", {"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 5, "num_experts": 16}
        yield "groups-unused", {"n_group": 4, "topk_group": 2}
        yield "lite", {"q_lora_rank": None, "topk_method": MISSING, "first_k_dense_replace": MISSING, "n_group": None,
                       "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}}
    if family == "youtu":
        yield "halves", {"rope_interleave": False}
        yield "untied", {"tie_word_embeddings": False}
    if family in ("deepseek_v2", "deepseek_v3"):
        yield "dense-more", {"first_k_dense_replace": 2, "num_hidden_layers": 4, "n_shared_experts": 3}
        yield "dense-all", {"first_k_dense_replace": 3}
    if family == "deepseek_v3":
        yield "defaults", {"num_experts": 16, "num_hidden_layers": 4,
                           **{k: MISSING for k in ("norm_topk_prob", "n_group", "topk_group", "n_shared_experts", "topk_method",
                                                   "first_k_dense_replace", "routed_scaling_factor", "scoring_func", "moe_layer_freq")}}
    if family == "glm4_moe_lite":
        yield "listed", {"mlp_layer_types": ["sparse", "dense", "sparse"], "first_k_dense_replace": MISSING}
    if family == "minicpm3":
        yield "longrope", {"rope_scaling": {**FAMILIES[family]["rope_scaling"], "original_max_position_embeddings": 32}}
        yield "plain", {"rope_scaling": None, "scale_emb": 3, "scale_depth": 2.5, "dim_model_base": 64, "v_head_dim": 12}
        yield "untied", {"tie_word_embeddings": False, "dim_model_base": MISSING, "scale_emb": MISSING, "scale_depth": MISSING}
