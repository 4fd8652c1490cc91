"""Fields of config.json that families share, and their variants, for families_cases.py: values to take, sizes, ropes, shapes."""

MISSING = object()

SIZES = {"vocab_size": 131, "hidden_size": 40, "intermediate_size": 52, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
COMMON = {**SIZES, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "float32",
          "initializer_range": 0.02, "use_cache": True, "bos_token_id": 1, "eos_token_id": 2, "attention_dropout": 0.0,
          "tie_word_embeddings": False, "transformers_version": "4.46.0"}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "decoder_sparse_step": 1,
           "mlp_only_layers": [], "norm_topk_prob": True, "output_router_logits": False, "router_aux_loss_coef": 0.001}


def LAYER_NORM(field):
    return {"rms_norm_eps": MISSING, field: 1e-5}


WINDOWED = ["sliding_attention", "sliding_attention", "full_attention"]

# Every head of 10 dimensions: 5 frequencies.
LONG = {"type": "longrope", "short_factor": [1.0, 1.1, 1.25, 1.4, 1.5], "long_factor": [1.5, 2.0, 3.0, 4.5, 6.0]}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def new_rope(scaling, theta=10000.0):
    """As transformers 5 writes it."""
    return {"rope_theta": MISSING, "rope_scaling": MISSING, "torch_dtype": MISSING, "dtype": "float32",
            "transformers_version": "5.0.0", "rope_parameters": {"rope_theta": theta, "rope_type": "default", **scaling}}


def rope_cases():
    yield "none", {}
    yield "new-default", new_rope({})
    yield "new-theta", new_rope({}, 500000.0)
    yield "linear", {"rope_scaling": {"type": "linear", "factor": 2.5}}
    yield "linear-new", new_rope({"rope_type": "linear", "factor": 4.0})
    yield "dynamic", {"rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_position_embeddings": 24}
    yield "dynamic-new", {**new_rope({"rope_type": "dynamic", "factor": 3.0}), "max_position_embeddings": 40}
    yield "llama3", {"rope_scaling": LLAMA3}
    yield "llama3-new", new_rope(LLAMA3, 500000.0)
    yield "yarn", {"rope_scaling": YARN}
    yield "yarn-new", new_rope({**YARN, "rope_type": "yarn"})
    yield "yarn-attention-factor", {"rope_scaling": {**YARN, "attention_factor": 1.3}}
    yield "yarn-mscale", {"rope_scaling": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.5}}
    yield "yarn-mscale-one", {"rope_scaling": {**YARN, "mscale": 0.8}}
    yield "yarn-betas", {"rope_scaling": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}}
    yield "yarn-no-original", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "max_position_embeddings": 48}
    yield "longrope", {"rope_scaling": {**LONG, "rope_type": "longrope", "factor": 8.0,
                                        "original_max_position_embeddings": 32}}
    yield "longrope-new", new_rope({**LONG, "rope_type": "longrope", "original_max_position_embeddings": 32,
                                    "attention_factor": 1.2})


def shape_cases():
    yield "mha", {"num_key_value_heads": 4}
    yield "mqa", {"num_key_value_heads": 1}
    yield "kv-missing", {"num_key_value_heads": MISSING, "num_attention_heads": 4, "hidden_size": 40}
    yield "head-dim", {"head_dim": 22}
    yield "head-dim-null", {"head_dim": None}
    yield "odd", {"hidden_size": 54, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 18,
                  "intermediate_size": 69, "vocab_size": 97}
    yield "one-layer", {"num_hidden_layers": 1, "vocab_size": 64}
    yield "tied", {"tie_word_embeddings": True}
    yield "act-gelu", {"hidden_act": "gelu"}
    yield "act-gelu-tanh", {"hidden_act": "gelu_pytorch_tanh"}
    yield "act-gelu-new", {"hidden_act": "gelu_new"}
    yield "act-relu", {"hidden_act": "relu"}
