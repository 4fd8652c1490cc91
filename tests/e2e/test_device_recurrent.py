"""Models some of whose layers keep a state of each sequence, served by the emulated device: the tokens of the CPU backend as far as these are sure, whatever
sequences share, lose and come back with."""
import concurrent.futures
import json

import pytest

import device_tokens
from engine import FULL, SANITIZED, Engine, killed_amid, run
from small_models import HEAD, KV_HEADS, MARGIN, RECURRENT, write_model
from test_device import ENVIRONMENT, device_engine
from test_recurrent import ask, ids

BLOCK, CONTEXT = 8, 448
FLAGS = ["--dtype", "bfloat16", "--kv-cache-dtype", "bfloat16", "--block-size", BLOCK, "--max-num-batched-tokens", 64, "--max-model-len", CONTEXT]


@pytest.fixture(scope="module", params=["qwen"] if SANITIZED else list(RECURRENT) if FULL else ["qwen", "lfm2"])
def model(request, tmp_path_factory):
    return write_model(tmp_path_factory.mktemp(request.param), RECURRENT[request.param]())


@pytest.fixture(scope="module")
def served(model):
    """Two steps ahead, graphs, one device: what is chosen by default."""
    with device_engine(*FLAGS, "--max-num-seqs", 6, model=model) as engine:
        yield engine


@pytest.fixture(scope="module")
def cpu(model):
    with Engine(*FLAGS, "--no-enable-prefix-caching", "--max-num-seqs", 4, model=model) as engine:
        yield engine.api


@pytest.fixture(scope="module")
def expect(cpu):
    """Tokens of a prompt against those of the CPU, which have to be sure for the most part; gives the number that were compared."""
    known = {}

    def check(prompt, got):
        key = (tuple(prompt), len(got))
        if key not in known:
            known[key] = device_tokens.continuation(cpu, prompt, len(got))
        wanted, margins = known[key]
        assert device_tokens.same_as_far_as_sure(got, wanted, margins, MARGIN) is None, prompt[:8]
        return next((k for k, (a, b) in enumerate(zip(got, wanted)) if a != b), len(got))
    return check


def test_logits_are_near_those_of_the_cpu(model):
    """Of chunks that fused kernels take, and of one that they do not; and of int8 weights, which the CPU reads otherwise."""
    def logits(device, *flags):
        status, output = run("logits", "--model", model, "--ids", ",".join(map(str, ids(21, 40))), "--top", 0, "--dtype", "bfloat16", "--device", device,
                             "--all", *flags, env=ENVIRONMENT)
        assert status == 0, output
        return [json.loads(line)["logits"] for line in output.splitlines()]

    def apart(some, others):
        assert len(some) == len(others) == 40
        return max(abs(a - b) for x, y in zip(some, others) for a, b in zip(x, y))

    wanted = logits("cpu")
    spread = max(map(max, wanted)) - min(map(min, wanted))
    for chunk in (7, 64):
        assert apart(logits("cuda", "--max-num-batched-tokens", chunk), wanted) < 0.03 * spread
    if not SANITIZED:
        assert apart(logits("cuda", "--quantization", "int8"), logits("cpu", "--quantization", "int8")) < 0.08 * spread


def test_a_conversation_goes_on_where_its_last_answer_ended(served, expect):
    history, compared = ids(1, 30), 0
    for turn in range(4):
        answer, cached = ask(served.api, history, 21)
        compared += expect(history, answer)
        # all but the last output, which was never run, a part of a block, and what is new
        assert turn == 0 or cached >= len(history) - 11 - 1 - 4 - BLOCK, (turn, cached, len(history))
        history = history + answer + ids(100 + turn, 11)
    assert compared >= 50, compared


def test_what_prompts_have_in_common_is_found_from_the_third_on(served, expect):
    common, compared = ids(2, 150), 0
    for k in range(4):
        prompt = common + ids(200 + k, 40)
        answer, cached = ask(served.api, prompt, 8)
        compared += expect(prompt, answer)
        assert cached == (0 if k < 2 else 150 // BLOCK * BLOCK), k
    assert compared >= 20, compared


def test_beams_are_as_likely_as_those_of_the_cpu(served, cpu):
    """By what the CPU says of them; which are found may depend on the last bits."""
    def search(api):
        reply = api.completions(prompt, max_tokens=10, use_beam_search=True, n=3, temperature=0, ignore_eos=True, return_token_ids=True)
        return [c["token_ids"] for c in reply["choices"]]

    def likelihood(tokens):
        listed = cpu.completions(prompt + tokens, max_tokens=1, temperature=0, prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
        return sum(listed[len(prompt) + k][str(t)]["logprob"] for k, t in enumerate(tokens))

    for k in range(1 if SANITIZED else 2):
        prompt = ids(400 + k, 20 + 9 * k)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            beside = pool.submit(ask, served.api, ids(410 + k, 50), 12)
            beams = search(served.api)
            beside.result()
        assert len({tuple(b) for b in beams}) == 3
        assert sum(map(likelihood, beams)) > sum(map(likelihood, search(cpu))) - 0.5


@pytest.mark.parametrize("model,tensor_parallel", [("qwen", 1), ("qwen", 2), ("lfm2", 2), ("nemotron", 2)], indirect=["model"])
def test_many_at_once_with_too_little_memory(model, expect, tensor_parallel):
    """Room for the longest sequence and a little more: whoever came last makes room, and comes back with what was saved of it, if anything."""
    if SANITIZED:
        pytest.skip("the same code as without a device")
    common, longest = ids(3, 60), 96
    prompts = [common[:9 * k] + ids(300 + k, 9 + 5 * k) for k in range(6)]
    memory = (longest // BLOCK + 3) * BLOCK * 2 * KV_HEADS * HEAD * 2 // tensor_parallel
    flags = ["--max-model-len", longest + 8, "-tp", tensor_parallel, "--max-num-seqs", 4, "--kv-cache-memory", memory]
    with device_engine(*FLAGS, *flags, model=model, env={"CUDA_EMU_SCHEDULE": "random:3"}) as engine:
        reply = engine.api.completions(prompts, temperature=0, max_tokens=24, ignore_eos=True, return_token_ids=True)
        compared = sum(expect(p, c["token_ids"]) for p, c in zip(prompts, reply["choices"]))
        assert compared >= 60, compared
        assert engine.api.metric("vllm:num_preemptions_total") > 0


@pytest.mark.parametrize("model", ["qwen"], indirect=True)
def test_a_killed_worker_costs_nobody_a_token(served, expect):
    prompts, count = [ids(600 + k, 20 + k) for k in range(3)], 40 if SANITIZED else 100
    got = killed_amid(served, "tercet-worker", lambda: device_tokens.together(served.api, [(p, count, {}) for p in prompts]), 3)
    assert sum(expect(p, tokens) for p, tokens in zip(prompts, got)) >= 40


@pytest.mark.parametrize("model", ["qwen"], indirect=True)
def test_what_a_device_cannot_do_of_such_models_is_said(model):
    status, output = run("serve", model, "--device", "cuda", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}', env=ENVIRONMENT)
    assert status != 0 and "--speculative-config: tokens are proposed ahead on the CPU alone" in output, output
    with device_engine(*FLAGS, "--swap-space", "0.01", model=model) as engine:
        assert "SWAP_SPACE_UNUSED" in engine.log() and "host_blocks=0" in engine.log()
