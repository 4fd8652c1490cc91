"""Files in GGUF of families whose tensors are not simply called otherwise, most of all models some of whose layers keep a state of each
sequence: they compute what the folders do that they were made of. The models are those of families.json."""
import json
import random

import pytest

import gguf_files
import gguf_further
from engine import SANITIZED, Engine, run
from gguf_bare import TINY, cache, refusal  # noqa: F401
from gguf_files import convert, numbered_tokens, values_of, write_gguf
from lora_files import floats, write_safetensors
from small_models import write_model
from test_recurrent import KEPT

NAMES = ["lfm2/old", "lfm2_moe/odd", "qwen3_5_text/none", "qwen3_5_text/odd", "qwen3_5_moe_text/none", "qwen3_next/odd", "granite_mamba/experts",
         "granite_mamba/odd", "nemotron_h/mlps-last", "nemotron_h/experts-narrow", "jamba/none", "jamba/odd", "mamba/none", "falcon_mamba/odd", "mamba2/none", "mamba2/odd", "gpt_oss/none", "qwen3_vl_moe_text/save-whole-new", "minimax_m2/none", "dots1/groups", "bailing_moe/none", "bailing_moe/groups",
         "minicpm/none", "hunyuan_v1_moe/none", "ernie4_5_moe/interval", "exaone_moe/none",
         "apertus/none", "gemma3n_text/none", "gemma3n_text/streams-3-active", "gemma3n_text/odd", "gemma3n_text/save-whole-new", "gemma4_text/none", "gemma4_text/untied", "gemma4_text/rope-half", "gemma4_text/small",
         "gemma4_text/small-odd", "gemma4_text/small-keys", "gemma4_text/mixture", "phi/none", "falcon_h1/none", "falcon_h1/odd", "minicpm3/none", "gpt2/none", "gpt2/untied", "gpt2/odd", "gpt_neox/none", "gpt_neox/sequential", "gpt_neox/no-bias",
         "gpt_neox/odd", "bloom/none", "bloom/odd-12", "mpt/biases-clip", "mpt/positions", "mpt/odd-gqa", "gpt_bigcode/none", "gpt_bigcode/untied", "falcon/none", "falcon/newer", "falcon/newer-one-norm", "falcon/odd-newer",
         "llama4_text/none", "nemotron-nas/none", "nemotron-nas/nothing-between", "mistral4/beta", "mistral4/groups", "afmoe/none", "afmoe/odd",
         "glm_moe_dsa/shared-listed", "glm_moe_dsa/chosen-pattern", "deepseek_v32/chosen-16", "youtu/none", "baichuan/odd-first", "qwen/none", "orion/none", "orion/odd", "jais2/none", "phimoe/none",
         "bitnet/none", "stablelm/head-norms-parallel", "cohere/head-norms", "glm4v/glm4v_text-odd", "glm4v_moe/glm4v_moe_text-groups", "glm_ocr/glm_ocr_text-odd",
         "paddleocr_vl/paddleocr_vl_text-odd", "solar_open/none", "kimi_k25/deepseek_v3-hub", "mellum/none", "step3p5/none", "step3p5/odd", "cohere2_moe/none", "cohere2_moe/rms-norm",
         "deepseek_v32/groups", "deepseek_v32/odd"]
# What readers of the format take for granted, in the place of what the kept models have.
GRANTED = {**gguf_further.GRANTED, "afmoe": {"global_attn_every_n_layers": 4, "layer_types": ["sliding_attention"] * 3}}
if SANITIZED:
    NAMES = ["qwen3_5_text/none", "granite_mamba/experts", "gpt_oss/none", "gemma3n_text/none", "gemma4_text/small", "gemma4_text/mixture"]
IDS = ",".join(str(i * 7 % 60) for i in range(40))


def logits(model, *flags):
    status, output = run("logits", "--model", model, "--ids", IDS, "--threads", 1, "--top", 0, *flags)
    assert status == 0, output
    return json.loads(output.splitlines()[-1])["logits"]


def kept_folder(folder, name):
    config = {**json.loads(KEPT[name]["config"]), **GRANTED.get(name.split("/")[0], {})}
    if "block_ff_dim" in config:  # as newer files say it
        config.update({"intermediate_size": config.pop("block_ff_dim"), "norm_eps": config.pop("block_norm_eps"), "tie_word_embeddings": True,
                       "layer_types": ["full_attention" if i in config["full_attn_idxs"] else "conv" for i in range(config["num_hidden_layers"])]})
        for field in ("tie_embedding", "full_attn_idxs", "conv_dim", "conv_dim_out", "block_dim", "num_heads"):
            config.pop(field, None)
    if "scale_emb" in config and "kv_lora_rank" in config:  # files of MiniCPM 3 leave these to be known
        config = {k: v for k, v in config.items() if k not in ("scale_emb", "scale_depth", "dim_model_base")}
    if "lm_head_multiplier" in config:  # logits far enough apart
        config["lm_head_multiplier"] = 1.5
    folder.mkdir()
    return write_model(folder, {"config": config, "tensors": KEPT[name]["tensors"]})


@pytest.mark.parametrize("name", NAMES)
def test_files_compute_what_their_folders_do(name, tmp_path, cache):  # noqa: F811
    folder = kept_folder(tmp_path / "folder", name)
    wanted = logits(folder, "--dtype", "float32")
    path = convert(folder, tmp_path / "model.gguf")
    ranks = KEPT[name]["ranks"]
    for flags in ([], ["-tp", ranks]):
        got = logits(path, "--dtype", "float32", *flags)
        assert max(wanted) - min(wanted) > 1 and max(abs(a - b) for a, b in zip(wanted, got)) < 1e-4, flags


# ---------------------------------------------------------------- other types

H, HEAD = 64, 32


def delta_shapes(hidden, keys, values, dim):
    """A layer of the gated delta rule and one of attention, as Qwen 3.5 has them."""
    state = {"in_proj_qkv.weight": [2 * keys * dim + values * dim, hidden], "in_proj_z.weight": [values * dim, hidden],
             "in_proj_b.weight": [values, hidden], "in_proj_a.weight": [values, hidden], "conv1d.weight": [2 * keys * dim + values * dim, 1, 4],
             "A_log": [values], "dt_bias": [values], "norm.weight": [dim], "out_proj.weight": [hidden, values * dim]}
    attention = {"q_proj.weight": [4 * HEAD, hidden], "k_proj.weight": [HEAD, hidden], "v_proj.weight": [HEAD, hidden], "q_norm.weight": [HEAD],
                 "k_norm.weight": [HEAD], "o_proj.weight": [hidden, 2 * HEAD]}
    shapes = {"model.embed_tokens.weight": [64, hidden], "model.norm.weight": [hidden], "lm_head.weight": [64, hidden]}
    shapes.update({"model.layers.0.linear_attn." + n: s for n, s in state.items()})
    shapes.update({"model.layers.1.self_attn." + n: s for n, s in attention.items()})
    for layer in "01":
        mlp = {"gate_proj": [hidden, hidden], "up_proj": [hidden, hidden], "down_proj": [hidden, hidden]}
        shapes.update({"model.layers.%s.mlp.%s.weight" % (layer, n): s for n, s in mlp.items()})
        shapes.update({"model.layers.%s.%s.weight" % (layer, n): [hidden] for n in ("input_layernorm", "post_attention_layernorm")})
    config = {"architectures": ["Qwen3_5ForCausalLM"], "vocab_size": 64, "hidden_size": hidden, "intermediate_size": hidden, "num_hidden_layers": 2,
              "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": HEAD, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
              "full_attention_interval": 2, "linear_conv_kernel_dim": 4, "linear_num_key_heads": keys, "linear_num_value_heads": values,
              "linear_key_head_dim": dim, "linear_value_head_dim": dim, "tie_word_embeddings": False, "torch_dtype": "float32",
              "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}
    return config, shapes


def turns_shapes():
    """gpt-oss."""
    attention = {"q_proj": 2 * HEAD, "k_proj": HEAD, "v_proj": HEAD}
    layer = {**{"self_attn.%s.weight" % n: [rows, H] for n, rows in attention.items()}, **{"self_attn.%s.bias" % n: [r] for n, r in attention.items()},
             "self_attn.o_proj.weight": [H, 2 * HEAD], "self_attn.o_proj.bias": [H], "self_attn.sinks": [2], "mlp.router.weight": [4, H],
             "mlp.router.bias": [4], "mlp.experts.gate_up_proj": [4, H, 2 * H], "mlp.experts.gate_up_proj_bias": [4, 2 * H],
             "mlp.experts.down_proj": [4, H, H], "mlp.experts.down_proj_bias": [4, H], "input_layernorm.weight": [H],
             "post_attention_layernorm.weight": [H]}
    shapes = {"model.embed_tokens.weight": [64, H], "model.norm.weight": [H], "lm_head.weight": [64, H]}
    shapes.update({"model.layers.%d.%s" % (i, n): s for i in range(2) for n, s in layer.items()})
    config = {"architectures": ["GptOssForCausalLM"], "vocab_size": 64, "hidden_size": H, "intermediate_size": H, "num_hidden_layers": 2,
              "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": HEAD, "attention_bias": True, "sliding_window": 8, "rms_norm_eps": 1e-5,
              "rope_theta": 150000.0, "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 64, "tie_word_embeddings": False,
              "torch_dtype": "float32", "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False}}
    return config, shapes


def routed_shapes():
    """Nemotron H with experts."""
    mixers = {"M": {"in_proj.weight": [2 * H + 2 * 2 * 16 + 4, H], "conv1d.weight": [H + 2 * 2 * 16, 1, 4], "conv1d.bias": [H + 2 * 2 * 16],
                    "A_log": [4], "D": [4], "dt_bias": [4], "norm.weight": [H], "out_proj.weight": [H, H]},
              "E": {"gate.weight": [4, H], "gate.e_score_correction_bias": [4], "shared_experts.up_proj.weight": [HEAD, H],
                    "shared_experts.down_proj.weight": [H, HEAD], **{"experts.%d.up_proj.weight" % i: [HEAD, H] for i in range(4)},
                    **{"experts.%d.down_proj.weight" % i: [H, HEAD] for i in range(4)}},
              "*": {"q_proj.weight": [H, H], "k_proj.weight": [HEAD, H], "v_proj.weight": [HEAD, H], "o_proj.weight": [H, H]}}
    shapes = {"backbone.embeddings.weight": [64, H], "backbone.norm_f.weight": [H], "lm_head.weight": [64, H]}
    for i, letter in enumerate("ME*E"):
        shapes.update({"backbone.layers.%d.mixer.%s" % (i, n): s for n, s in mixers[letter].items()})
        shapes["backbone.layers.%d.norm.weight" % i] = [H]
    config = {"architectures": ["NemotronHForCausalLM"], "vocab_size": 64, "hidden_size": H, "intermediate_size": 96, "num_hidden_layers": 4,
              "hybrid_override_pattern": "ME*E", "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": HEAD, "layer_norm_epsilon": 1e-5,
              "max_position_embeddings": 64, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "conv_kernel": 4,
              "use_conv_bias": True, "use_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "torch_dtype": "float32",
              "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": HEAD, "n_group": 1, "topk_group": 1,
              "moe_shared_expert_intermediate_size": HEAD, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
    return config, shapes


def global_shapes(experts):
    """Gemma 4, as its small models are, or with experts."""
    wide, types = 2 * HEAD, ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    config = {"architectures": ["Gemma4ForCausalLM"], "vocab_size": 64, "hidden_size": H, "intermediate_size": H, "num_hidden_layers": 4,
              "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": HEAD, "global_head_dim": wide, "layer_types": types, "sliding_window": 8,
              "attention_k_eq_v": experts, "num_global_key_value_heads": 2 if experts else None, "num_kv_shared_layers": 0 if experts else 2,
              "use_double_wide_mlp": not experts, "hidden_size_per_layer_input": 0 if experts else 32, "vocab_size_per_layer_input": 64,
              "enable_moe_block": experts, "num_experts": 4 if experts else None, "top_k_experts": 2 if experts else None,
              "moe_intermediate_size": HEAD if experts else None, "final_logit_softcapping": 30.0, "rms_norm_eps": 1e-6,
              "max_position_embeddings": 64, "tie_word_embeddings": False, "torch_dtype": "float32", "rope_parameters": {
                  "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
                  "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}
    shapes = {"model.embed_tokens.weight": [64, H], "model.norm.weight": [H], "lm_head.weight": [64, H]}
    if not experts:
        shapes.update({"model.embed_tokens_per_layer.weight": [64, 4 * 32], "model.per_layer_model_projection.weight": [4 * 32, H],
                       "model.per_layer_projection_norm.weight": [32]})
    for i, kind in enumerate(types):
        full, shared = kind == "full_attention", not experts and i >= 2
        head, inner = wide if full else HEAD, 2 * H if shared else H
        kv = 2 if full and experts else 1
        layer = {"self_attn.q_proj.weight": [2 * head, H], "self_attn.q_norm.weight": [head], "self_attn.o_proj.weight": [H, 2 * head],
                 "mlp.gate_proj.weight": [inner, H], "mlp.up_proj.weight": [inner, H], "mlp.down_proj.weight": [H, inner], "layer_scalar": [1],
                 **{n + ".weight": [H] for n in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                                 "post_feedforward_layernorm")}}
        if not shared:
            layer.update({"self_attn.k_proj.weight": [kv * head, H], "self_attn.k_norm.weight": [head]})
            if not (full and experts):
                layer["self_attn.v_proj.weight"] = [kv * head, H]
        if experts:
            layer.update({"router.proj.weight": [4, H], "router.scale": [H], "router.per_expert_scale": [4], "experts.gate_up_proj": [4, 2 * HEAD, H],
                          "experts.down_proj": [4, H, HEAD], "pre_feedforward_layernorm_2.weight": [H], "post_feedforward_layernorm_1.weight": [H],
                          "post_feedforward_layernorm_2.weight": [H]})
        else:
            layer.update({"per_layer_input_gate.weight": [32, H], "per_layer_projection.weight": [H, 32], "post_per_layer_input_norm.weight": [H]})
        shapes.update({"model.layers.%d.%s" % (i, n): shape for n, shape in layer.items()})
    return config, shapes


def streams_shapes():
    """Gemma 3n."""
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    config = {"architectures": ["Gemma3nForCausalLM"], "vocab_size": 64, "hidden_size": H, "intermediate_size": [2 * H] * 3, "num_hidden_layers": 3,
              "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": HEAD, "layer_types": types, "sliding_window": 8, "num_kv_shared_layers": 1,
              "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 64, "altup_num_inputs": 3, "altup_active_idx": 0, "laurel_rank": 32,
              "activation_sparsity_pattern": [0.9, 0.0, 0.5], "final_logit_softcapping": 30.0, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
              "rope_local_base_freq": 10000.0, "max_position_embeddings": 64, "tie_word_embeddings": False, "torch_dtype": "float32"}
    shapes = {"model.embed_tokens.weight": [64, H], "model.norm.weight": [H], "lm_head.weight": [64, H],
              "model.embed_tokens_per_layer.weight": [64, 3 * 32], "model.per_layer_model_projection.weight": [3 * 32, H],
              "model.per_layer_projection_norm.weight": [32], **{"model.altup_%sprojections.%d.weight" % (n, i): [H, H] for n in ("", "unembed_") for i in range(2)}}
    for i in range(len(types)):
        layer = {"self_attn.q_proj.weight": [2 * HEAD, H], "self_attn.q_norm.weight": [HEAD], "self_attn.o_proj.weight": [H, 2 * HEAD],
                 "mlp.gate_proj.weight": [2 * H, H], "mlp.up_proj.weight": [2 * H, H], "mlp.down_proj.weight": [H, 2 * H],
                 "per_layer_input_gate.weight": [32, H], "per_layer_projection.weight": [H, 32], "laurel.linear_left.weight": [32, H],
                 "laurel.linear_right.weight": [H, 32], "altup.modality_router.weight": [3, H], "altup.prediction_coefs.weight": [9, 3],
                 "altup.correction_coefs.weight": [3, 3], "altup.correct_output_scale": [H],
                 **{n + ".weight": [H] for n in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
                                                 "post_per_layer_input_norm", "altup.router_norm", "laurel.post_laurel_norm")}}
        if i < 2:
            layer.update({"self_attn.k_proj.weight": [2 * HEAD, H], "self_attn.v_proj.weight": [2 * HEAD, H], "self_attn.k_norm.weight": [HEAD]})
        shapes.update({"model.layers.%d.%s" % (i, n): shape for n, shape in layer.items()})
    return config, shapes


NORMS_OF_ONE = ("Gemma3nForCausalLM", "Gemma4ForCausalLM", "GptOssForCausalLM", "Llama4ForCausalLM", "GlmForCausalLM", "KimiLinearForCausalLM", "BaichuanForCausalLM", "LlamaForCausalLM")


def layer_shapes(layers, each):
    """Embeddings, norms and lm_head, and in layer i what each(i) says; its norms are added."""
    shapes = {"model.embed_tokens.weight": [64, H], "model.norm.weight": [H], "lm_head.weight": [64, H]}
    for i in range(layers):
        norms = {n + ".weight": [H] for n in ("input_layernorm", "post_attention_layernorm")}
        shapes.update({"model.layers.%d.%s" % (i, n): s for n, s in {**norms, **each(i)}.items()})
    return shapes


USUAL = {"vocab_size": 64, "hidden_size": H, "intermediate_size": H, "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "max_position_embeddings": 64, "tie_word_embeddings": False, "torch_dtype": "float32"}
QKVO = {"self_attn.q_proj.weight": [2 * HEAD, H], "self_attn.k_proj.weight": [HEAD, H], "self_attn.v_proj.weight": [HEAD, H], "self_attn.o_proj.weight": [H, 2 * HEAD]}


def llama4_shapes():
    def layer(i):
        mlp = {"feed_forward.%sgate_proj.weight": [H, H], "feed_forward.%sup_proj.weight": [H, H], "feed_forward.%sdown_proj.weight": [H, H]}
        if i == 0:
            return {**QKVO, **{n % "": s for n, s in mlp.items()}}
        return {**QKVO, **{n % "shared_expert.": s for n, s in mlp.items()}, "feed_forward.router.weight": [4, H],
                "feed_forward.experts.gate_up_proj": [4, H, 2 * H], "feed_forward.experts.down_proj": [4, H, H]}
    return {**USUAL, "architectures": ["Llama4ForCausalLM"], "num_hidden_layers": 2, "head_dim": HEAD, "intermediate_size_mlp": H, "num_local_experts": 4,
            "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "use_qk_norm": True}, layer_shapes(2, layer)


def glm_shapes():
    biases = {"self_attn.q_proj.bias": [2 * HEAD], "self_attn.k_proj.bias": [HEAD], "self_attn.v_proj.bias": [HEAD]}
    mlp = {"mlp.gate_up_proj.weight": [2 * H, H], "mlp.down_proj.weight": [H, H]}
    return {**USUAL, "architectures": ["GlmForCausalLM"], "num_hidden_layers": 2, "head_dim": HEAD, "attention_bias": True,
            "partial_rotary_factor": 0.5}, layer_shapes(2, lambda i: {**QKVO, **biases, **mlp})


def kimi_shapes():
    """A layer of each kind; the second has experts."""
    delta = {**{"%s_proj.weight" % n: [H, H] for n in "qkvo"}, "b_proj.weight": [2, H], "f_a_proj.weight": [HEAD, H], "f_b_proj.weight": [H, HEAD],
             "g_a_proj.weight": [HEAD, H], "g_b_proj.weight": [H, HEAD], "o_norm.weight": [HEAD], "A_log": [2], "dt_bias": [H],
             **{n + "_conv1d.weight": [H, 1, 4] for n in "qkv"}}
    latent = {"q_proj.weight": [2 * 64, H], "kv_a_proj_with_mqa.weight": [32 + 32, H], "kv_a_layernorm.weight": [32], "kv_b_proj.weight": [2 * 64, 32],
              "o_proj.weight": [H, 2 * 32]}
    moe = {"block_sparse_moe.gate.weight": [4, H], "block_sparse_moe.gate.e_score_correction_bias": [4],
           **{"block_sparse_moe.shared_experts.%s_proj.weight" % n: [H, H] for n in ("gate", "up", "down")},
           **{"block_sparse_moe.experts.%d.w%d.weight" % (x, w): [H, H] for x in range(4) for w in (1, 2, 3)}}
    config = {**{k: v for k, v in USUAL.items() if k != "max_position_embeddings"}, "architectures": ["KimiLinearForCausalLM"], "num_hidden_layers": 2,
              "num_key_value_heads": 2, "model_max_length": 64, "kv_lora_rank": 32, "q_lora_rank": None, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32,
              "v_head_dim": 32, "mla_use_nope": True, "moe_intermediate_size": H, "moe_renormalize": True, "num_expert_group": 1, "topk_group": 1, "num_experts": 4,
              "num_experts_per_token": 2, "num_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "linear_attn_config": {
                  "full_attn_layers": [2], "kda_layers": [1], "head_dim": HEAD, "num_heads": 2, "short_conv_kernel_size": 4}}
    return config, layer_shapes(2, lambda i: {"self_attn." + n: s for n, s in (latent if i else delta).items()} | (
        moe if i else {"mlp.%s_proj.weight" % n: [H, H] for n in ("gate", "up", "down")}))


def baichuan_shapes(vocab, layers=1):
    shapes = layer_shapes(layers, lambda i: {"self_attn.W_pack.weight": [3 * H, H], "self_attn.o_proj.weight": [H, H],
                                        **{"mlp.%s_proj.weight" % n: [H, H] for n in ("gate", "up", "down")}})
    shapes.update({"model.embed_tokens.weight": [vocab, H], "lm_head.weight": [vocab, H]})
    return {**{k: v for k, v in USUAL.items() if k not in ("num_key_value_heads", "rope_theta")}, "architectures": ["BaichuanForCausalLM"],
            "num_hidden_layers": layers, "vocab_size": vocab}, shapes


def grid_folder(folder, config, shapes):
    """Matrices of whole numbers of a 64th, which all types hold."""
    rng = random.Random(len(shapes))
    tensors = {}
    for name, shape in shapes.items():
        count = 1
        for n in shape:
            count *= n
        if len(shape) == 3 and "experts" in name or len(shape) == 2:
            values = [x / 64 for x in rng.choices(range(-7, 8), k=count)]
        else:
            middle = 1 if "scal" in name or "norm" in name and (config["architectures"][0] in NORMS_OF_ONE or name.startswith("backbone.") or "linear_attn" in name) else 0
            values = [middle + rng.uniform(-0.4, 0.4) for _ in range(count)]
        tensors[name] = "F32", shape, gguf_files.floats(values)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.mark.parametrize("kind,model", [("F16", routed_shapes()), ("Q8_0", routed_shapes()), ("Q8_0", delta_shapes(H, 2, 6, 32)),
                                        ("Q4_0", delta_shapes(H, 2, 6, 32)), ("Q4_0", delta_shapes(H, 2, 4, 16)),
                                        ("Q4_K", delta_shapes(256, 2, 8, 32)), ("Q8_0", turns_shapes()), ("Q4_0", turns_shapes()),
                                        ("Q8_0", global_shapes(False)), ("Q4_0", global_shapes(True)), ("Q8_0", streams_shapes()),
                                        ("Q8_0", llama4_shapes()), ("Q4_0", llama4_shapes()), ("Q8_0", glm_shapes()), ("Q4_0", kimi_shapes())], ids=lambda x: x if isinstance(x, str) else x[0]["architectures"][0])
def test_matrices_of_other_types_are_what_they_are(kind, model, tmp_path, cache):  # noqa: F811
    folder = grid_folder(tmp_path / "folder", *model)
    path = convert(folder, tmp_path / "model.gguf", kind=kind)
    wanted = logits(folder, "--dtype", "float32")
    spread = max(wanted) - min(wanted)
    checks = [(["--dtype", "float32"], 1e-4), (["--dtype", "float32", "-tp", 2], 1e-4), (["--dtype", "bfloat16"], 0.05 * spread)]
    for flags, off in checks[:2] if model[0].get("enable_moe_block") else checks:  # of which inputs that are rounded choose other experts
        got = logits(path, *flags)
        assert spread > 1 and max(abs(a - b) for a, b in zip(wanted, got)) < off, flags


def apart(values, tensors):
    """As files of GLM 4's newer checkpoints have q, k and v."""
    for name in [n for n in tensors if ".attn_qkv." in n]:
        kind, (rows, *width), raw = tensors.pop(name)
        size, at = len(raw) // rows, 0
        for letter, count in zip("qkv", (2 * HEAD, HEAD, HEAD)):
            tensors[name.replace("attn_qkv", "attn_" + letter)] = kind, [count, *width], raw[at * size:(at + count) * size]
            at += count


def test_queries_keys_and_values_are_in_one_tensor_or_apart(tmp_path, cache):  # noqa: F811
    folder = grid_folder(tmp_path / "folder", *glm_shapes())
    wanted = logits(folder, "--dtype", "float32")
    for name, change in (("fused", None), ("apart", apart)):
        got = logits(convert(folder, tmp_path / (name + ".gguf"), change=change), "--dtype", "float32", "-tp", 2)
        assert max(wanted) - min(wanted) > 1 and max(abs(a - b) for a, b in zip(wanted, got)) < 1e-4, name


@pytest.mark.parametrize("arch", ["xverse", "pangu-embedded"])
def test_architectures_whose_tensors_are_those_of_llama(arch, tmp_path, cache):  # noqa: F811
    _, shapes = glm_shapes()
    shapes = {n.replace("gate_up_proj", "up_proj"): [H, H] if "gate_up" in n else s for n, s in shapes.items() if not n.endswith(".bias")}
    shapes.update({n.replace("up_proj", "gate_proj"): s for n, s in shapes.items() if "up_proj" in n})
    folder = grid_folder(tmp_path / "folder", {**USUAL, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2}, shapes)
    wanted, got = (logits(m, "--dtype", "float32") for m in (folder, convert(folder, tmp_path / "model.gguf", arch=arch)))
    assert max(wanted) - min(wanted) > 1 and max(abs(a - b) for a, b in zip(wanted, got)) < 1e-4


@pytest.mark.parametrize("kind", [None, "Q8_0"])
def test_the_second_baichuan_is_known_by_its_vocabulary(kind, tmp_path, cache):  # noqa: F811
    """Its lm_head counts as if rows were of length 1."""
    folder = grid_folder(tmp_path / "folder", *baichuan_shapes(125696))
    wanted, got = (logits(m, "--dtype", "float32") for m in (folder, convert(folder, tmp_path / "model.gguf", kind=kind)))
    assert max(wanted) - min(wanted) > 1 and max(abs(a - b) for a, b in zip(wanted, got)) < 1e-4


@pytest.mark.parametrize("vocab", [64000, 125696])
def test_baichuan_of_13b_is_known_by_its_layers(vocab, tmp_path, cache):  # noqa: F811
    """Its heads have ALiBi, and lm_head counts as if rows were of length 1 in the second generation alone, as the vocabulary tells."""
    config, shapes = baichuan_shapes(vocab, 40)
    config["model_max_length"] = config.pop("max_position_embeddings")
    folder = grid_folder(tmp_path / "folder", config, shapes)
    wanted, got = (logits(m, "--dtype", "float32") for m in (folder, convert(folder, tmp_path / "model.gguf")))
    assert max(wanted) - min(wanted) > 1 and max(abs(a - b) for a, b in zip(wanted, got)) < 1e-3


def without_width(values, tensors):
    del values["glm4moe.feed_forward_length"]


def test_where_all_layers_have_experts_nothing_says_how_wide_others_are(tmp_path, cache):  # noqa: F811
    folder = kept_folder(tmp_path / "folder", "solar_open/none")
    wanted, got = (logits(m, "--dtype", "float32") for m in (folder, convert(folder, tmp_path / "model.gguf", change=without_width)))
    assert max(wanted) - min(wanted) > 1 and max(abs(a - b) for a, b in zip(wanted, got)) < 1e-4


def as_deepseek2(values, tensors):
    """As Mistral's own format becomes a file."""
    for key in [k for k in values if k.startswith("mistral4.")]:
        values["deepseek2." + key.removeprefix("mistral4.")] = values.pop(key)
    values["general.architecture"] = "deepseek2"


def test_another_architecture_whose_far_tokens_count_more_is_mistral_4(tmp_path, cache):  # noqa: F811
    folder = kept_folder(tmp_path / "folder", "mistral4/beta")
    wanted, got = (logits(m, "--dtype", "float32") for m in (folder, convert(folder, tmp_path / "model.gguf", change=as_deepseek2)))
    assert max(wanted) - min(wanted) > 1 and max(abs(a - b) for a, b in zip(wanted, got)) < 1e-4


def without_temperature(values, tensors):
    for key in ("scale", "length"):
        del values["mistral4.attention.temperature_" + key]


def test_files_that_say_nothing_of_far_tokens_have_them_count_as_others(tmp_path, cache):  # noqa: F811
    folder = kept_folder(tmp_path / "folder", "mistral4/beta")
    path = convert(folder, tmp_path / "model.gguf", change=without_temperature)
    config = json.loads((folder / "config.json").read_text())
    far = logits(folder, "--dtype", "float32")
    del config["rope_parameters"]["llama_4_scaling_beta"]
    (folder / "config.json").write_text(json.dumps(config))
    wanted, got = (logits(m, "--dtype", "float32") for m in (folder, path))
    assert max(abs(a - b) for a, b in zip(wanted, got)) < 1e-4 < max(abs(a - b) for a, b in zip(wanted, far))


def with_a_draft(values, tensors):
    """A layer behind the others, which guesses a further token: as the last one of attention, and what it begins with."""
    arch = values["general.architecture"]
    count = values[arch + ".block_count"]
    last = max(int(n.split(".")[1]) for n in tensors if n.endswith("attn_q.weight"))
    tensors.update({n.replace("blk.%d." % last, "blk.%d." % count): t for n, t in tensors.items() if n.startswith("blk.%d." % last)})
    tensors["blk.%d.nextn.eh_proj.weight" % count] = "F32", [4, 8], bytes(128)
    values.update({arch + ".block_count": count + 1, arch + ".nextn_predict_layers": 1})
    for key in ("feed_forward_length", "attention.head_count_kv"):
        if isinstance(values.get(arch + "." + key), list):
            values[arch + "." + key].append(4)


@pytest.mark.parametrize("model", [delta_shapes(64, 2, 4, 32), routed_shapes()], ids=lambda x: x[0]["architectures"][0])
def test_layers_that_guess_further_tokens_are_not_read(model, tmp_path, cache):  # noqa: F811
    folder = grid_folder(tmp_path / "folder", *model)
    wanted, got = (logits(m, "--dtype", "float32") for m in (folder, convert(folder, tmp_path / "model.gguf", change=with_a_draft)))
    assert max(abs(a - b) for a, b in zip(wanted, got)) < 1e-4


def as_first_written(values, tensors):
    """Qwen 3 Next's first files have the first product as checkpoints have it."""
    for name in [n for n in tensors if n.endswith("attn_gate.weight")]:
        layer = name.rsplit(".", 2)[0]
        (kind, (rows, width), qkv), (_, _, z) = tensors.pop(layer + ".attn_qkv.weight"), tensors.pop(name)
        arch = values["general.architecture"]
        keys, heads = values[arch + ".ssm.group_count"], values[arch + ".ssm.time_step_rank"]
        key, value = values[arch + ".ssm.state_size"], values[arch + ".ssm.inner_size"] // keys
        size = len(qkv) // rows
        parts = [(qkv, 0, key), (qkv, keys * key, key), (qkv, 2 * keys * key, value), (z, 0, value)]
        raw = b"".join(part[(at + k * n) * size:(at + (k + 1) * n) * size] for k in range(keys) for part, at, n in parts)
        assert heads % keys == 0
        tensors[layer + ".ssm_in.weight"] = kind, [rows + keys * value, width], raw


def test_the_first_files_of_a_family_are_read(tmp_path, cache):  # noqa: F811
    folder = kept_folder(tmp_path / "folder", "qwen3_next/odd")
    wanted, got = (logits(m, "--dtype", "float32") for m in (folder, convert(folder, tmp_path / "model.gguf", change=as_first_written)))
    assert max(abs(a - b) for a, b in zip(wanted, got)) < 1e-4


def test_a_file_is_served(tmp_path, cache):  # noqa: F811
    kept = KEPT["qwen3_5_text/none"]
    folder = kept_folder(tmp_path / "folder", "qwen3_5_text/none")
    status, output = run("run", folder, "--prompt-ids", ",".join(map(str, kept["ids"])), "--max-tokens", 24, "--temperature", 0, "--ignore-eos",
                         "--output-ids", "--dtype", "float32", "--threads", 1, "--kv-cache-memory", "16MiB")
    assert status == 0, output
    with Engine("--dtype", "float32", model=convert(folder, tmp_path / "model.gguf")) as engine:
        assert engine.api.greedy_ids(kept["ids"], 24) == [int(i) for i in output.split(",")]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name,tensor", [("mamba/none", "mixer.A_log"), ("granite_mamba/experts", "mamba.A_log"), ("mamba2/none", "mixer.A_log")])
def test_states_that_would_grow_are_refused(name, tensor, tmp_path, cache):  # noqa: F811
    def grow(values, tensors):
        kind, shape, raw = tensors["blk.0.ssm_a"]
        tensors["blk.0.ssm_a"] = kind, shape, floats([0.5]) + raw[4:]
    path = convert(kept_folder(tmp_path / "folder", name), tmp_path / "model.gguf", change=grow)
    status, output = run("logits", "--model", path, "--ids", IDS)
    assert status != 0 and "tensor model.layers.0.%s has 0.5" % tensor in output and "what states decay by must be 0 at most" in output, output


MAMBA = {"ssm.conv_kernel": 4, "ssm.state_size": 4, "ssm.group_count": 1, "ssm.time_step_rank": 2, "ssm.inner_size": 8}


@pytest.mark.parametrize("arch,change,said", [
    ("lfm2", {"attention.head_count_kv": [0, 1]}, "lfm2.shortconv.l_cache is missing; it must be an integer above 0"),
    ("lfm2", {"attention.head_count_kv": [0, 1, 1]}, "lfm2.attention.head_count_kv has 3 values; it must have one for each of the 2 layers"),
    ("lfm2", {"attention.head_count_kv": [2, 1]}, "lfm2.attention.head_count_kv has 2 and 1; all layers must have the same, or 0"),
    ("qwen35", {**MAMBA, "full_attention_interval": 0}, "qwen35.full_attention_interval is 0; it must be an integer above 0"),
    ("qwen35", {**MAMBA, "ssm.inner_size": 9}, "qwen35.ssm.inner_size is 9; it must be a multiple of qwen35.ssm.time_step_rank, which is 2"),
    ("granitehybrid", {**MAMBA, "ssm.inner_size": 6}, "granitehybrid.ssm.inner_size is 6; it must be a multiple of"),
    ("nemotron_h", {**MAMBA, "feed_forward_length": [4, 4], "attention.head_count_kv": [0, 1]}, "layer 1 has attention and an MLP"),
    ("nemotron_h", {**MAMBA, "feed_forward_length": [4, 0], "attention.head_count_kv": [0, 0], "moe_latent_size": 2},
     "the value nemotron_h.moe_latent_size is not known for NemotronHForCausalLM"),
    ("jamba", {**MAMBA, "ssm.inner_size": 6}, "jamba.ssm.inner_size is 6; it must be a multiple of jamba.embedding_length, which is 4"),
    ("jamba", {**MAMBA, "attention.head_count_kv": [0, 0]}, "none of the 2 layers has heads of keys and values (attention.head_count_kv)"),
    ("jamba", {**MAMBA, "attention.head_count_kv": [1, 1, 0, 1], "block_count": 4}, "layers 0 and 1 have heads of keys and values (attention.head_count_kv), and layer 2 has not"),
    ("jamba", {**MAMBA, "attention.head_count_kv": [0, 0, 0, 1, 0, 1], "block_count": 6}, "layers 3 and 5 have heads of keys and values (attention.head_count_kv), and layer 1 has not"),
    ("jamba", {**MAMBA, "attention.head_count_kv": [0, 1], "expert_count": 4, "expert_used_count": 2}, "none of the 2 layers has experts (ffn_gate_inp)"),
    ("mamba", MAMBA, "the value mamba."),
    ("mpt", {"attention.max_alibi_bias": 8.5}, "mpt.attention.max_alibi_bias is 8.5; it must be a whole number from 0 to 64"),
    ("llama4", {"expert_count": 4, "expert_used_count": 1, "expert_feed_forward_length": 4, "interleave_moe_layer_step": 1, "attention.sliding_window": 4096},
     "llama4.attention.sliding_window is 4096; only 8192, or none, is supported"),
    ("llama4", {}, "llama4.expert_count is missing; it must be an integer above 0"),
    ("deci", {"attention.head_count": [0, 0]}, "deci.attention.head_count is missing, or 0 for all layers; one must attend"),
    ("deci", {"attention.head_count": [2, 2], "attention.head_count_kv": [1, 3]}, "deci.attention.head_count_kv has 3 for layer 1; it must divide deci.attention.head_count, which is 2"),
    ("glm-dsa", {"attention.kv_lora_rank": 4, "attention.key_length": 4, "attention.value_length": 2, "rope.dimension_count": 2, "expert_count": 2,
                 "expert_used_count": 1, "expert_feed_forward_length": 4}, "glm-dsa.attention.indexer.top_k is missing; it must be an integer above 0"),
    ("kimi-linear", {"attention.kv_lora_rank": 4, "attention.key_length_mla": 4, "attention.value_length_mla": 2, "rope.dimension_count": 2},
     "kimi-linear.kda.head_dim is missing; it must be an integer above 0"),
    ("mistral4", {"attention.kv_lora_rank": 4, "attention.key_length": 4, "attention.value_length": 2, "rope.dimension_count": 2, "expert_count": 2,
                  "expert_used_count": 1, "expert_feed_forward_length": 4, "expert_gating_func": 2}, "mistral4.expert_gating_func is 2; of a Mistral4ForCausalLM it must be 1"),
    ("mistral4", {"attention.kv_lora_rank": 4, "attention.key_length": 4, "attention.value_length": 2, "rope.dimension_count": 2, "expert_count": 2,
                  "expert_used_count": 1, "expert_feed_forward_length": 4, "attention.temperature_scale": 0.1, "attention.temperature_length": 9, "rope.scaling.type": "yarn",
                  "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 8},
     "mistral4.attention.temperature_length is 9; it must be mistral4.rope.scaling.original_context_length, which is 8"),
    ("afmoe", {}, "afmoe.expert_count is missing; it must be an integer above 0"),
    ("mamba2", {**MAMBA, "ssm.inner_size": 6}, "mamba2.ssm.inner_size is 6; it must be a multiple of mamba2.ssm.time_step_rank, which is 2, and of "
     "mamba2.embedding_length, which is 4"),
    ("mamba2", {**MAMBA, "ssm.group_count": 0}, "mamba2.ssm.group_count is missing; it must be an integer above 0"),
    ("mamba2", MAMBA, "the value mamba2.attention.head_count is not known for Mamba2ForCausalLM"),
])
def test_values_that_make_no_sense_are_refused_by_name(arch, change, said, tmp_path, cache):  # noqa: F811
    values = {k.replace("llama.", arch + "."): v for k, v in values_of(TINY, "llama").items()}
    values = {**values, **numbered_tokens(8), "general.architecture": arch, **{arch + "." + k: v for k, v in change.items()}}
    assert said in refusal(write_gguf(tmp_path / "m.gguf", values, {"token_embd.weight": ("F16", [8, 4], bytes(64))}))


def drafting(values, tensors):
    """A layer behind the model's, which guesses a further token."""
    values["step35.nextn_predict_layers"] = 1
    values["step35.block_count"] += 1
    for key, value in values.items():
        if key.startswith("step35.") and isinstance(value, list):
            value.append(value[-1])
    last = values["step35.block_count"] - 1
    for name in [n for n in tensors if n.startswith("blk.%d." % (last - 1))]:
        tensors[name.replace("blk.%d." % (last - 1), "blk.%d." % last)] = tensors[name]
    tensors["blk.%d.nextn.enorm.weight" % last] = tensors["output_norm.weight"]


def test_layers_of_step_that_guess_are_not_read(tmp_path, cache):  # noqa: F811
    folder = kept_folder(tmp_path / "folder", "step3p5/none")
    wanted = logits(folder, "--dtype", "float32")
    assert logits(convert(folder, tmp_path / "model.gguf", change=drafting), "--dtype", "float32") == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("change, said", [
    ({"attention.head_count_kv": [2, 2, 1, 2]}, "step35.attention.head_count_kv differs between layers 0 and 2; all must have the same"),
    ({"attention.head_count": [8, 6, 6]}, "step35.attention.head_count has 3 values; it must have one for each of the 4 layers"),
    ({"attention.sliding_window_pattern": None}, "step35.attention.sliding_window_pattern is missing; it must be a list of true or false for each layer"),
    ({"attention.value_length": 6}, "step35.attention.value_length must be what step35.attention.key_length is, 12"),
    ({"swiglu_clamp_exp": [0.0, 1.0]}, "step35.swiglu_clamp_exp must have a number for each of the 4 layers"),
    ({"swiglu_clamp_shexp": [0.0, 1.0, -1.0, 0.0]}, "step35.swiglu_clamp_shexp must be numbers, 0 for layers without a bound; that of layer 2 is none"),
    ({"expert_weights_norm": False}, "step35.expert_weights_norm is missing or false; of a Step3p5ForCausalLM it must be true"),
    ({"expert_gating_func": 1}, "step35.expert_gating_func is 1; of a Step3p5ForCausalLM it must be 2"),
    ({"rope.scaling.type": "yarn"}, "step35.rope.scaling.type is 'yarn'; only none is supported"),
    ({"rope.dimension_count": 6}, "step35.rope.dimension_count is 6; it must be what heads have, 12"),
])
def test_what_files_of_step_say_is_checked(change, said, tmp_path, cache):  # noqa: F811
    def changed(values, tensors):
        for key, value in change.items():
            values.pop("step35." + key, None)
            if value is not None:
                values["step35." + key] = value
    assert said in refusal(convert(kept_folder(tmp_path / "folder", "step3p5/none"), tmp_path / "model.gguf", change=changed))
