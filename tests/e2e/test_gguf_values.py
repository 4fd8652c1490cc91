"""What the values of a file in GGUF become in config.json, and which are refused."""
import time

import pytest

import gguf_files
from gguf_bare import TINY, bare, cache, config_of, refusal  # noqa: F401
from gguf_files import numbered_tokens, values_of, write_gguf
from lora_files import floats


@pytest.mark.parametrize("arch,change,expected", [
    ("llama", {}, {"architectures": ["LlamaForCausalLM"], "rope_interleave": True, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
                   "tie_word_embeddings": True, "torch_dtype": "float16", "head_dim": 2, "quantization_config": {"quant_method": "gguf"}}),
    ("llama", {"attention.sliding_window": 16}, {"architectures": ["MistralForCausalLM"], "sliding_window": 16}),
    ("gemma2", {"attention.sliding_window": 16, "attn_logit_softcapping": 50.0}, {"query_pre_attn_scalar": 2.0, "attn_logit_softcapping": 50.0}),
    ("gemma3", {"attention.sliding_window": 16, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
     {"sliding_window_pattern": 6, "rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    ("olmo2", {}, {"architectures": ["Olmo2ForCausalLM"], "sliding_window": None}),
    ("olmo2", {"attention.sliding_window": 16, "attention.sliding_window_pattern": [True, False]},
     {"architectures": ["Olmo3ForCausalLM"], "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}),
    ("cohere2", {"attention.layer_norm_epsilon": 1e-5, "logit_scale": 0.25, "attention.sliding_window": 16,
                 "attention.sliding_window_pattern": [True, False]},
     {"layer_norm_eps": 1e-05, "logit_scale": 0.25, "layer_types": ["sliding_attention", "full_attention"]}),
    ("granite", {"embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0, "attention.scale": 0.125},
     {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0, "attention_multiplier": 0.125}),
    ("mellum", {"attention.sliding_window": 16, "attention.sliding_window_pattern": [True, False], "expert_count": 4, "expert_used_count": 2, "rope.freq_base": 5e5,
                "expert_feed_forward_length": 4, "rope.freq_base_swa": None},
     {"architectures": ["MellumForCausalLM"], "layer_types": ["sliding_attention", "full_attention"], "mlp_layer_types": ["dense", "dense"], "norm_topk_prob": True,
      "rope_theta": 500000.0, "rope_local_base_freq": 500000.0}),
    ("phi3", {"rope.scaling.original_context_length": 32, "rope.scaling.attn_factor": 1.25}, {"partial_rotary_factor": 1.0, "rope_scaling": {
        "rope_type": "longrope", "short_factor": [1.5], "long_factor": [4.0], "original_max_position_embeddings": 32, "attention_factor": 1.25}}),
], ids=lambda x: x if isinstance(x, str) else "")
def test_values_become_fields(arch, change, expected, tmp_path, cache):
    factors = {"rope_factors_%s.weight" % n: ("F32", [1], gguf_files.floats([x])) for n, x in (("short", 1.5), ("long", 4.0))}
    path = bare(tmp_path / "m.gguf", {arch + "." + k: v for k, v in change.items()}, arch=arch, tensors=factors if arch == "phi3" else None)
    config = config_of(path, cache)
    assert {k: config.get(k) for k in expected} == expected


GLOBAL = {"attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0, "attention.sliding_window": 8,
          "attention.sliding_window_pattern": [True, False], "attention.key_length": 8, "attention.value_length": 8,
          "attention.key_length_swa": 2, "attention.value_length_swa": 2, "attention.head_count_kv": [2, 1], "rope.dimension_count": 8,
          "rope.dimension_count_swa": 2}
TURNING = {"rope_freqs.weight": ("F32", [4], gguf_files.floats([1.0, 1e30, 1e30, 1e30])), "blk.1.attn_k.weight": ("F16", [8, 4], bytes(64))}


@pytest.mark.parametrize("change,tensors,expected", [
    ({}, {}, {"head_dim": 2, "global_head_dim": 8, "num_key_value_heads": 2, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
              "layer_types": ["sliding_attention", "full_attention"], "use_double_wide_mlp": False, "enable_moe_block": False,
              "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 10000.0},
                                  "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}),
    ({"feed_forward_length": [4, 8], "attention.shared_kv_layers": 1}, {}, {"intermediate_size": 4, "num_kv_shared_layers": 1, "use_double_wide_mlp": True}),
    ({"feed_forward_length": [4, 8]}, {}, "gemma4.feed_forward_length is 8 for layer 1; all layers with keys of their own must have the same"),
    ({"feed_forward_length": [4, 12], "attention.shared_kv_layers": 1}, {}, "gemma4.feed_forward_length is 12 for the last layer; it must be 4, as"),
    ({"attention.sliding_window_pattern": [True]}, {}, "gemma4.attention.sliding_window_pattern has 1 values; it must have one for each of the 2"),
    ({"attention.sliding_window_pattern": [1.0, 0.0]}, {}, "gemma4.attention.sliding_window_pattern must have true or false, or an integer, for each"),
    ({"attention.sliding_window_pattern": 2}, {}, "gemma4.attention.sliding_window_pattern is missing, or no list; it must have true or false"),
    ({"attention.key_length_swa": None}, {}, "gemma4.attention.key_length_swa is missing"),
    ({}, {"blk.1.attn_v.weight": ("F16", [8, 4], bytes(64))}, "gemma4.attention.head_count_kv is 2 for layers with a window and 1 for those"),
    ({"attention.sliding_window_pattern": [False, False], "attention.head_count_kv": 1}, {"blk.0.attn_k.weight": ("F16", [8, 4], bytes(64)),
                                                                                         "blk.0.attn_v.weight": ("F16", [8, 4], bytes(64))},
     "layers 0 and 1, both without a window: only one has a tensor attn_v.weight"),
    ({}, {"rope_freqs.weight": ("F32", [4], gguf_files.floats([1.0, 1e30, 1.0, 1e30]))}, "the tensor rope_freqs.weight must be 1 for pairs that turn"),
    ({}, {"rope_freqs.weight": ("F32", [2], gguf_files.floats([1.0, 1e30]))}, "the tensor rope_freqs.weight must be 4 numbers of F32"),
    ({"embedding_length_per_layer_input": 4}, {}, "the tensor per_layer_token_embd.weight is missing"),
    ({"rope.dimension_count_swa": 1}, {}, "gemma4.rope.dimension_count_swa is 1; only 2, all of a head, is supported"),
], ids=["usual", "wide", "width-of-own", "width", "pattern", "pattern-type", "pattern-number", "length", "values", "some-values", "pairs", "pairs-count", "inputs", "turning"])
def test_layers_with_heads_of_their_own_sizes(change, tensors, expected, tmp_path, cache):
    values = {"gemma4." + k: v for k, v in {**GLOBAL, **change}.items()}
    values["general.architecture"] = "gemma4"
    usual = {k.replace("llama.", "gemma4."): v for k, v in values_of(TINY, "llama").items() if k.startswith("llama.")}
    path = bare(tmp_path / "m.gguf", {**usual, **values}, tensors={**TURNING, **tensors})
    if isinstance(expected, str):
        assert expected in refusal(path)
        return
    config = config_of(path, cache)
    assert {k: config.get(k) for k in expected} == expected


STREAMS = {"altup.num_inputs": 4, "altup.active_idx": 0, "attention.shared_kv_layers": 1, "embedding_length_per_layer_input": 4, "attention.sliding_window": 8,
           "attention.sliding_window_pattern": [True, True], "activation_sparsity_scale": [1.6448533535003662, float("-inf")]}
BESIDE = {"per_layer_token_embd.weight": ("F16", [6, 8], bytes(96)), "blk.0.laurel_l.weight": ("F16", [3, 4], bytes(24)),
          "blk.1.altup_correct_scale.weight": ("F32", [4], bytes(16))}


@pytest.mark.parametrize("change,tensors,expected", [
    ({}, {}, {"altup_num_inputs": 4, "altup_active_idx": 0, "altup_correct_scale": True, "laurel_rank": 3, "hidden_size_per_layer_input": 4,
              "vocab_size_per_layer_input": 6, "num_kv_shared_layers": 1, "layer_types": ["sliding_attention"] * 2, "sliding_window": 8,
              "rope_theta": 10000.0, "rope_local_base_freq": 10000.0}),
    ({"altup.active_idx": 2, "feed_forward_length": [4, 4], "activation_sparsity_scale": None, "final_logit_softcapping": 5.0},
     {"blk.1.altup_correct_scale.weight": None}, {"altup_active_idx": 2, "altup_correct_scale": False, "intermediate_size": 4,
                                                  "activation_sparsity_pattern": None, "final_logit_softcapping": 5.0}),
    ({"altup.num_inputs": None}, {}, "gemma3n.altup.num_inputs is missing"),
    ({"attention.shared_kv_layers": None}, {}, "gemma3n.attention.shared_kv_layers is missing; it must be the number of layers that have no keys"),
    ({"activation_sparsity_scale": [1.0]}, {}, "gemma3n.activation_sparsity_scale must have a number for each of the 2 layers"),
    ({"activation_sparsity_scale": [1.0, float("nan")]}, {}, "that of layer 1 is none, or so large that no gate is"),
    ({"activation_sparsity_scale": [9.0, 1.0]}, {}, "that of layer 0 is none, or so large that no gate is"),
    ({"activation_sparsity_scale": ["1", "1"]}, {}, "that of layer 0 is none, or so large that no gate is"),
    ({}, {"blk.0.laurel_l.weight": None}, "the tensor blk.0.laurel_l.weight is missing, or has not two dimensions"),
    ({}, {"per_layer_token_embd.weight": ("F16", [8], bytes(16))}, "the tensor per_layer_token_embd.weight is missing, or has not two dimensions"),
    ({}, {"altup_proj.weight": ("F16", [4, 4, 4], bytes(128))}, "the tensor altup_proj.weight must have three dimensions, the first one of 3 streams"),
    ({}, {"altup_unembd_proj.weight": ("F16", [4, 4], bytes(32))}, "the tensor altup_unembd_proj.weight must have three dimensions, the first one of 3"),
    ({"attention.sliding_window": None}, {}, "gemma3n.attention.sliding_window is missing; it must be an integer above 0"),
    ({"attention.sliding_window": None, "attention.sliding_window_pattern": None}, {}, "gemma3n.attention.sliding_window is missing; it must be an integer above 0"),
    ({"attention.sliding_window": 0}, {}, "gemma3n.attention.sliding_window is missing; it must be an integer above 0"),
    ({"feed_forward_length": [4]}, {}, "gemma3n.feed_forward_length has 1 values; it must have one for each of the 2 layers"),
    ({"feed_forward_length": [4, 4, 4]}, {}, "gemma3n.feed_forward_length has 3 values; it must have one for each of the 2 layers"),
    ({"altup.coef_clip": 3.0}, {}, "the value gemma3n.altup.coef_clip is not known for Gemma3nForCausalLM"),
], ids=["usual", "other", "count", "shared", "scales", "nan", "scale", "texts", "rank", "inputs", "matrices", "flat",
        "window", "windows", "window-none", "width-short", "width-long", "unknown"])
def test_several_residual_streams(change, tensors, expected, tmp_path, cache):
    values = {"gemma3n." + k: v for k, v in {**STREAMS, **change}.items()}
    values["general.architecture"] = "gemma3n"
    usual = {k.replace("llama.", "gemma3n."): v for k, v in values_of(TINY, "llama").items() if k.startswith("llama.")}
    path = bare(tmp_path / "m.gguf", {**usual, **values}, tensors={k: t for k, t in {**BESIDE, **tensors}.items() if t})
    if isinstance(expected, str):
        assert expected in refusal(path)
        return
    config = config_of(path, cache)
    assert {k: config.get(k) for k in expected} == expected
    if change == {}:
        assert abs(config["activation_sparsity_pattern"][0] - 0.95) < 1e-7 and config["activation_sparsity_pattern"][1] == 0


@pytest.mark.parametrize("pattern", [[1.0, 0.0], ["yes", "no"]], ids=["floats", "texts"])
def test_windows_are_no_guess(pattern, tmp_path, cache):
    values = {"olmo2.attention.sliding_window": 16, "olmo2.attention.sliding_window_pattern": pattern}
    assert "olmo2.attention.sliding_window_pattern must have true or false, or an integer, for each" in refusal(bare(tmp_path / "m.gguf", values, arch="olmo2"))


COHERE = {"logit_scale": 0.25, "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 4, "expert_shared_count": 2}


@pytest.mark.parametrize("change,said", [
    ({"expert_gating_func": 1}, "cohere2moe.expert_gating_func is 1; of a Cohere2MoeForCausalLM it must be 2"),
    ({"expert_shared_feed_forward_length": 7}, "cohere2moe.expert_shared_feed_forward_length is 7; it must be cohere2moe.expert_feed_forward_length times"),
    ({"expert_weights_scale": 2.5}, "cohere2moe.expert_weights_scale is 2.5; only 1 is supported"),
    ({"attention.sliding_window": 16, "attention.sliding_window_pattern": 4}, "cohere2moe.attention.sliding_window_pattern must be a list"),
])
def test_what_cohere_says_of_experts_is_checked(change, said, tmp_path, cache):
    values = {"cohere2moe." + k: x for k, x in {**COHERE, **change}.items()}
    with pytest.MonkeyPatch.context() as m:
        m.setattr("gguf_bare.TINY", {**TINY, "num_shared_experts": 0, "prefix_dense_intermediate_size": 4, "norm_topk_prob": True, "layer_types": ["full_attention"] * 2,
                                     "first_k_dense_replace": 1})
        path = bare(tmp_path / "m.gguf", values, arch="cohere2moe")
    assert said in refusal(path)


@pytest.mark.parametrize("pattern", [None, 4])
def test_which_layers_of_mellum_have_windows_must_be_listed(pattern, tmp_path, cache):
    values = {"mellum.attention.sliding_window": 16, "mellum.attention.sliding_window_pattern": pattern}
    assert "mellum.attention.sliding_window_pattern must be a list of true or false for each layer" in refusal(bare(tmp_path / "m.gguf", values, arch="mellum"))


@pytest.mark.parametrize("arch,pattern,said", [
    ("gemma3", [True, False], "gemma3.attention.sliding_window is missing; it must be an integer above 0"),
    ("cohere2", 4, "cohere2.attention.sliding_window is missing; it must be an integer above 0"),
    ("llama", [True, False], "the value llama.attention.sliding_window_pattern is not known for LlamaForCausalLM"),
])
def test_windows_that_have_no_size_are_refused(arch, pattern, said, tmp_path, cache):
    values = {arch + ".attention.sliding_window_pattern": pattern, "cohere2.logit_scale": 1.0, "cohere2.attention.layer_norm_epsilon": 1e-5}
    assert said in refusal(bare(tmp_path / "m.gguf", values, arch=arch))


NEAR_AND_FAR = {"rope_factors_short.weight": ("F32", [1], floats([1.0])), "rope_factors_long.weight": ("F32", [1], floats([2.0]))}


@pytest.mark.parametrize("change,tensors,expected", [
    ({}, NEAR_AND_FAR, {"v_head_dim": 2, "qk_nope_head_dim": 1, "qk_rope_head_dim": 2, "q_lora_rank": 6, "kv_lora_rank": 8, "tie_word_embeddings": True,
                        "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0], "original_max_position_embeddings": 64}}),
    ({"attention.value_length": 5, "attention.q_lora_rank": None}, {}, {"v_head_dim": 5, "q_lora_rank": None, "rope_scaling": None}),
    ({"attention.kv_lora_rank": None}, {}, "minicpm3.attention.kv_lora_rank is missing; it must be an integer above 0"),
    ({"attention.key_length": 2}, {}, "heads of keys have 2 dimensions, of which 2 turn"),
    ({}, {"rope_factors_long.weight": NEAR_AND_FAR["rope_factors_long.weight"]}, "rotary factors by length need the tensors rope_factors_short.weight and"),
    ({"logit_scale": 2.0}, {}, "the value minicpm3.logit_scale is not known for MiniCPM3ForCausalLM"),
], ids=["usual", "stated", "latent", "keys", "factors", "scale"])
def test_what_files_of_minicpm_3_leave_to_be_known(change, tensors, expected, tmp_path, cache):
    usual = {"attention.kv_lora_rank": 8, "attention.q_lora_rank": 6, "attention.key_length": 3, "rope.dimension_count": 2}
    path = bare(tmp_path / "m.gguf", {"minicpm3." + k: v for k, v in {**usual, **change}.items()}, arch="minicpm3", tensors=tensors)
    if isinstance(expected, str):
        assert expected in refusal(path)
        return
    config = config_of(path, cache)
    assert {k: config.get(k) for k in expected} == expected


@pytest.mark.parametrize("change,tensors,expected", [
    ({}, {}, {"mamba_n_heads": 2, "mamba_d_head": 3, "mamba_d_ssm": 6, "mamba_n_groups": 1, "mamba_d_state": 4, "mamba_d_conv": 4, "mamba_rms_norm": False,
              "mamba_norm_before_gate": False, "mamba_conv_bias": False, "embedding_multiplier": None, "ssm_multipliers": None}),
    ({}, {"blk.0.ssm_norm.weight": ("F32", [1, 6], bytes(24)), "blk.1.ssm_conv1d.bias": ("F32", [14], bytes(56))}, {"mamba_rms_norm": True, "mamba_conv_bias": True}),
    ({"ssm.inner_size": 7}, {}, "falcon-h1.ssm.inner_size is 7; it must be a multiple of falcon-h1.ssm.time_step_rank, which is 2"),
    ({"ssm.state_size": None}, {}, "falcon-h1.ssm.state_size is missing; it must be an integer above 0"),
    ({}, {"output.weight": None}, "the tensor output.weight is missing: token_embd.weight has the multiplier of embeddings in it"),
    ({"embedding_scale": 2.0}, {}, "the value falcon-h1.embedding_scale is not known for FalconH1ForCausalLM"),
], ids=["usual", "norm", "width", "state", "tied", "scale"])
def test_states_beside_attention(change, tensors, expected, tmp_path, cache):
    usual = {"ssm.conv_kernel": 4, "ssm.state_size": 4, "ssm.group_count": 1, "ssm.time_step_rank": 2, "ssm.inner_size": 6}
    values = {**{k.replace("llama.", ""): v for k, v in values_of(TINY, "llama").items() if k.startswith("llama.")}, **usual, **change}
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "falcon-h1", **numbered_tokens(8),
                                            **{"falcon-h1." + k: v for k, v in values.items() if v is not None}},
                      {name: t for name, t in {**dict.fromkeys(("token_embd.weight", "output.weight"), ("F16", [8, 4], bytes(64))), **tensors}.items() if t})
    if isinstance(expected, str):
        assert expected in refusal(path)
        return
    config = config_of(path, cache)
    assert {k: config.get(k) for k in expected} == expected


@pytest.mark.parametrize("value,mode", [(0, None), (1, "mean"), (2, "cls"), (3, None), (4, "rank")])
def test_other_poolings_than_the_last_tokens_are_written_down(value, mode, tmp_path, cache):
    assert config_of(bare(tmp_path / "m.gguf", {"llama.pooling_type": value}), cache).get("_pooling_mode") == mode


@pytest.mark.parametrize("value,said", [(None, "is missing; it must be true or false"), (1, "must be true or false")])
def test_whether_blocks_stand_side_by_side_is_no_guess(value, said, tmp_path, cache):
    change = {"gptneox.attention.layer_norm_epsilon": 1e-5, "gptneox.use_parallel_residual": value}
    assert "gptneox.use_parallel_residual " + said in refusal(bare(tmp_path / "m.gguf", change, arch="gptneox"))


@pytest.mark.parametrize("change,said", [
    ({"general.architecture": "rwkv7"}, "general.architecture is 'rwkv7', which is not supported; supported: llama, "),
    ({"general.architecture": None}, "general.architecture is missing"),
    ({"general.type": "adapter"}, "general.type is 'adapter': the file holds no model"),
    ({"llama.context_length": None}, "llama.context_length is missing; it must be an integer above 0"),
    ({"llama.attention.scale": 0.5}, "the value llama.attention.scale is not known for LlamaForCausalLM: it may change"),
    ({"llama.attention.head_count_kv": [1, 2]}, "llama.attention.head_count_kv must be an integer from 0 to 1073741824, the same for all layers"),
    ({"llama.feed_forward_length": [8, 8, 8]}, "llama.feed_forward_length has 3 values; it must have one for each of the 2 layers"),
    ({"llama.feed_forward_length": []}, "llama.feed_forward_length has 0 values; it must have one for each of the 2 layers"),
    ({"llama.feed_forward_length": [8, 4]}, "llama.feed_forward_length must be an integer from 0 to 1073741824, the same for all layers"),
    ({"llama.attention.causal": False}, "llama.attention.causal is false; only models whose tokens attend to those before them are supported"),
    ({"llama.pooling_type": 5}, "llama.pooling_type is 5, which is not known; it must be 0 to 4"),
    ({"llama.rope.scaling.type": 5}, "llama.rope.scaling.type must be a text"),
    ({"llama.rope.scaling.type": "other"}, "llama.rope.scaling.type is 'other', which is not supported; supported: none, linear, yarn, longrope"),
    ({"tokenizer.ggml.model": "t5"}, "tokenizer.ggml.model is 't5', which is not supported; supported: gpt2, llama, gemma4"),
    ({"tokenizer.ggml.pre": "other"}, "tokenizer.ggml.pre is 'other', which is not known; known are: llama-bpe, "),
    ({"tokenizer.ggml.pre": None}, "tokenizer.ggml.pre is missing"),
    ({"tokenizer.ggml.merges": ["ab"]}, "tokenizer.ggml.merges[0] must be two pieces with a space between"),
    ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens holds 0 tokens"),
    ({"tokenizer.ggml.token_type": 1}, "tokenizer.ggml.token_type must be an array of 8 integers, one for each token"),
    ({"tokenizer.ggml.token_type": [1] * 7}, "tokenizer.ggml.token_type must be an array of 8 integers, one for each token"),
    ({"tokenizer.ggml.token_type": [1.0] * 8}, "tokenizer.ggml.token_type must be an array of 8 integers, one for each token"),
    ({"tokenizer.ggml.token_type": ["1"] * 8}, "tokenizer.ggml.token_type must be an array of 8 integers, one for each token"),
    ({"tokenizer.ggml.token_type": [1] * 7 + [7]}, "tokenizer.ggml.token_type[7] is 7; it must be 1 to 6"),
    ({"tokenizer.ggml.scores": [0.5] * 7}, "tokenizer.ggml.scores must be an array of 8 numbers, one for each token"),
    ({"tokenizer.ggml.scores": "0"}, "tokenizer.ggml.scores must be an array of 8 numbers, one for each token"),
    ({"tokenizer.ggml.eos_token_id": 8}, "tokenizer.ggml.eos_token_id is 8, but there are only 8 tokens"),
], ids=lambda x: "" if isinstance(x, str) else next(iter(x)))
def test_what_is_not_understood_is_refused_by_name(change, said, tmp_path, cache):
    path = bare(tmp_path / "m.gguf", change)
    output = refusal(path)
    assert str(path) + ": " + said in output, output
    assert not list(cache.glob("*")) if cache.exists() else True


def test_a_number_of_layers_that_no_file_has_is_refused_at_once(tmp_path):
    began = time.monotonic()
    assert "deepseek2.block_count" in refusal(bare(tmp_path / "m.gguf", {"deepseek2.block_count": (1 << 30) - 1, "deepseek2.expert_count": 4}, arch="deepseek2"))
    assert time.monotonic() - began < 20  # a look at each of them took minutes


LATENT = {"attention.kv_lora_rank": 4, "attention.key_length": 4, "attention.value_length": 2, "rope.dimension_count": 2, "expert_count": 2,
          "expert_used_count": 1, "expert_feed_forward_length": 4}
HALVES = ("F16", [4, 4], bytes(32))


@pytest.mark.parametrize("arch,change,tensors,said", [
    ("deepseek2", {**LATENT, "expert_gating_func": 4}, {}, "deepseek2.expert_gating_func is 4, which is not supported for DeepseekV2ForCausalLM"),
    ("deepseek2", LATENT, {"blk.1.ffn_up_shexp.weight": HALVES}, "deepseek2.expert_shared_count is missing or 0, and the file has experts of all tokens"),
    ("deci", {"attention.head_count": [2, 2], "attention.head_count_kv": [1, 1], "feed_forward_length": [4, 0]}, {"blk.1.ffn_up.weight": HALVES},
     "deci.feed_forward_length has no value for layer 1, or 0, and the file has the tensor blk.1.ffn_up.weight"),
    ("deci", {"attention.head_count": [2, 0], "attention.head_count_kv": [1, 0]}, {"blk.1.attn_q.weight": HALVES},
     "deci.attention.head_count has no value for layer 1, or 0, and the file has the tensor blk.1.attn_q.weight"),
    ("deci", {"attention.head_count": [2, 2], "attention.head_count_kv": [1, 0]}, {"blk.1.attn_k.weight": HALVES},
     "deci.attention.head_count_kv has no value for layer 1, or 0, and the file has the tensor blk.1.attn_k.weight"),
])
def test_values_that_leave_out_what_the_file_has_are_refused(arch, change, tensors, said, tmp_path, cache):
    values = {k.replace("llama.", arch + "."): v for k, v in values_of(TINY, "llama").items()}
    values = {**values, **numbered_tokens(8), "general.architecture": arch, **{arch + "." + k: v for k, v in change.items()}}
    assert said in refusal(write_gguf(tmp_path / "m.gguf", values, {"token_embd.weight": ("F16", [8, 4], bytes(64)), **tensors}))


def test_scores_that_biases_are_added_to_are_sigmoids(tmp_path, cache):
    """Files of GLM 4.7 Flash that do not say which function scores go through."""
    change = {"deepseek2." + k: v for k, v in {**LATENT, "attention.q_lora_rank": 4, "expert_shared_count": 1, "expert_weights_norm": True}.items()}
    config = config_of(bare(tmp_path / "m.gguf", change, arch="deepseek2", tensors={"blk.1.exp_probs_b.bias": ("F32", [2], floats([0, 0]))}), cache)
    assert config["architectures"] == ["DeepseekV3ForCausalLM"] and config["norm_topk_prob"] is True
    config = config_of(bare(tmp_path / "n.gguf", {**change, "deepseek2.expert_weights_norm": False}, arch="deepseek2"), cache)
    assert config["architectures"] == ["DeepseekV2ForCausalLM"]
