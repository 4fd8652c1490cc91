"""Models whose heads share a latent, or differ in size by layer, served by the emulated device: the tokens of the CPU backend as far as these are sure, whatever sequences share,
lose and come back with. Weights are a function of a tensor's name and place, as in test_device_families.py."""
import pytest

import device_tokens
from engine import SANITIZED, Engine
from small_models import HEADS, HIDDEN, SMALL, VOCAB, WIDE, matrix, write_model
from test_device import device_engine
from test_device_recurrent import BLOCK, FLAGS
from test_recurrent import ask, ids


def mlp(at, wide=WIDE):
    return {at + "gate_proj.weight": matrix(wide, HIDDEN), at + "up_proj.weight": matrix(wide, HIDDEN), at + "down_proj.weight": matrix(HIDDEN, wide)}


def deepseek():
    """A layer with an MLP and one with experts, which come from groups."""
    rank, q_rank, key, rope, value, experts = 32, 32, 32, 16, 16, 4
    tensors = {"model.embed_tokens.weight": [[VOCAB, HIDDEN], 1.0, 0.0], "model.norm.weight": [[HIDDEN], 0.2, 1.0],
               "lm_head.weight": matrix(VOCAB, HIDDEN, 5)}
    for k in range(2):
        at = "model.layers.%d." % k
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[at + norm + ".weight"] = [[HIDDEN], 0.2, 1.0]
        for part, shape in (("q_a_proj", (q_rank, HIDDEN)), ("q_b_proj", (HEADS * (key + rope), q_rank)), ("kv_a_proj_with_mqa", (rank + rope, HIDDEN)),
                            ("kv_b_proj", (HEADS * (key + value), rank)), ("o_proj", (HIDDEN, HEADS * value))):
            tensors[at + "self_attn.%s.weight" % part] = matrix(*shape)
        tensors.update({at + "self_attn.q_a_layernorm.weight": [[q_rank], 0.2, 1.0], at + "self_attn.kv_a_layernorm.weight": [[rank], 0.2, 1.0]})
        if k == 0:
            tensors.update(mlp(at + "mlp."))
            continue
        tensors.update({at + "mlp.gate.weight": matrix(experts, HIDDEN, 3), at + "mlp.gate.e_score_correction_bias": [[experts], 0.1, 0.0]})
        tensors.update(mlp(at + "mlp.shared_experts.", 32))
        for x in range(experts):
            tensors.update(mlp(at + "mlp.experts.%d." % x, 32))
    config = {**SMALL, "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 2, "num_key_value_heads": HEADS, "kv_lora_rank": rank,
              "q_lora_rank": q_rank, "qk_nope_head_dim": key, "qk_rope_head_dim": rope, "v_head_dim": value, "n_routed_experts": experts,
              "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
              "norm_topk_prob": True, "routed_scaling_factor": 1.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rms_norm_eps": 1e-6}
    return {"config": config, "tensors": tensors, "block_bytes": 2 * 2 * BLOCK * 2 * (rank + rope)}


def gemma():
    """Layers with a window and without, whose heads differ in size; the last two read keys and values of earlier ones; inputs of every layer."""
    head, head_far, kv_heads, width = 16, 32, SMALL["num_key_value_heads"], 32
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    tensors = {"model.embed_tokens.weight": [[VOCAB, HIDDEN], 1.0, 0.0], "model.norm.weight": [[HIDDEN], 0.2, 1.0], "lm_head.weight": matrix(VOCAB, HIDDEN, 5),
               "model.embed_tokens_per_layer.weight": [[VOCAB, len(kinds) * width], 1.0, 0.0], "model.per_layer_projection_norm.weight": [[width], 0.2, 1.0],
               "model.per_layer_model_projection.weight": matrix(len(kinds) * width, HIDDEN)}
    for k, kind in enumerate(kinds):
        at, size, shares = "model.layers.%d." % k, head_far if kind == "full_attention" else head, k >= 2
        for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm", "post_per_layer_input_norm"):
            tensors[at + norm + ".weight"] = [[HIDDEN], 0.2, 1.0]
        for part, count in (("q", HEADS), ("k", 0 if shares else kv_heads), ("v", 0 if shares else kv_heads)):
            if count:
                tensors[at + "self_attn.%s_proj.weight" % part] = matrix(count * size, HIDDEN)
        tensors.update({at + "self_attn.%s_norm.weight" % x: [[size], 0.2, 1.0] for x in ("q" if shares else "qk")})
        tensors.update(mlp(at + "mlp."))
        tensors.update({at + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * size), at + "layer_scalar": [[1], 0.0, 0.75],
                        at + "per_layer_input_gate.weight": matrix(width, HIDDEN), at + "per_layer_projection.weight": matrix(HIDDEN, width)})
    config = {**SMALL, "architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": len(kinds), "layer_types": kinds, "head_dim": head,
              "global_head_dim": head_far, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": width, "vocab_size_per_layer_input": VOCAB,
              "sliding_window": 24, "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "final_logit_softcapping": None}
    return {"config": config, "tensors": tensors, "block_bytes": 2 * BLOCK * 2 * kv_heads * (head + head_far)}


MODELS = {"deepseek": deepseek, "gemma": gemma}


@pytest.fixture(scope="module", params=list(MODELS))
def kept(request):
    return MODELS[request.param]()


@pytest.fixture(scope="module")
def model(kept, tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("heads"), kept)


@pytest.fixture(scope="module")
def cpu(model):
    with Engine(*FLAGS, "--no-enable-prefix-caching", "--max-num-seqs", 4, model=model) as engine:
        yield engine.api


@pytest.fixture(scope="module")
def expect(cpu):
    """Tokens of a prompt against those of the CPU, which have to be sure for the most part; gives the number that were compared."""
    def check(prompt, got):
        wanted, margins = device_tokens.continuation(cpu, prompt, len(got))
        assert device_tokens.same_as_far_as_sure(got, wanted, margins) is None, prompt[:8]
        return next((k for k, (a, b) in enumerate(zip(got, wanted)) if a != b), len(got))
    return check


def test_prompts_share_blocks_and_beams_copy_them(model, cpu, expect):
    common, compared = ids(2, 50), 0
    with device_engine(*FLAGS, "--max-num-seqs", 6, model=model) as engine:
        for k in range(3):
            prompt = common + ids(200 + k, 20)
            answer, cached = ask(engine.api, prompt, 12)
            compared += expect(prompt, answer)
            assert cached == (0 if k == 0 else 50 // BLOCK * BLOCK), k
        assert compared >= 20, compared
        beams = [[c["token_ids"] for c in api.completions(common, max_tokens=8, use_beam_search=True, n=3, temperature=0, ignore_eos=True,
                                                          return_token_ids=True)["choices"]] for api in (engine.api, cpu)]

    def likelihood(tokens):
        listed = cpu.completions(common + tokens, max_tokens=1, temperature=0, prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
        return sum(listed[len(common) + k][str(t)]["logprob"] for k, t in enumerate(tokens))

    assert len({tuple(b) for b in beams[0]}) == 3
    assert sum(map(likelihood, beams[0])) > sum(map(likelihood, beams[1])) - 0.5


@pytest.mark.parametrize("tensor_parallel", (1, 2))
def test_many_at_once_with_too_little_memory(kept, model, expect, tensor_parallel):
    """Room for the longest sequence and a little more: whoever came last makes room, and comes back."""
    if SANITIZED:
        pytest.skip("the same code as without a device")
    common, longest = ids(3, 60), 96
    prompts = [common[:9 * k] + ids(300 + k, 9 + 5 * k) for k in range(6)]
    # a latent is on every rank, of other keys and values each has its share
    memory = (longest // BLOCK + 3) * kept["block_bytes"] // (1 if "kv_lora_rank" in kept["config"] else tensor_parallel)
    flags = ["--max-model-len", longest + 8, "-tp", tensor_parallel, "--max-num-seqs", 4, "--kv-cache-memory", memory]
    with device_engine(*FLAGS, *flags, model=model, env={"CUDA_EMU_SCHEDULE": "random:3"}) as engine:
        reply = engine.api.completions(prompts, temperature=0, max_tokens=24, ignore_eos=True, return_token_ids=True)
        compared = sum(expect(p, c["token_ids"]) for p, c in zip(prompts, reply["choices"]))
        assert compared >= 60, compared
        assert engine.api.metric("vllm:num_preemptions_total") > 0
