"""Models some of whose layers keep a state of each sequence, served by the emulated device: the tokens of the CPU backend as far as these are sure, whatever
sequences share, lose and come back with."""
import concurrent.futures

import pytest

import device_tokens
from device_models import BLOCK, ENVIRONMENT, FLAGS, Expected, check_beams, check_preempted, cpu_api, device_engine, logits
from engine import FULL, SANITIZED, killed_amid, run
from small_models import HEAD, KV_HEADS, RECURRENT, ids, write_model

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
    with cpu_api(model) as api:
        yield api


@pytest.fixture(scope="module")
def expect(cpu):
    return Expected(cpu)


def test_logits_are_near_those_of_the_cpu(model):
    """Of chunks that fused kernels take, and of one that they do not; and of int8 weights, which the CPU reads otherwise."""
    def all_logits(device, *flags):
        return logits(model, ids(21, 40), device, "--all", *flags)

    def apart(some, others):
        assert len(some) == len(others) == 40
        return max(abs(a - b) for x, y in zip(some, others) for a, b in zip(x, y))

    wanted = all_logits("cpu")
    spread = max(map(max, wanted)) - min(map(min, wanted))
    for chunk in (7, 64):
        assert apart(all_logits("cuda", "--max-num-batched-tokens", chunk), wanted) < 0.03 * spread
    if not SANITIZED:
        assert apart(all_logits("cuda", "--quantization", "int8"), all_logits("cpu", "--quantization", "int8")) < 0.08 * spread


def test_a_conversation_goes_on_where_its_last_answer_ended(served, expect):
    history, compared = ids(1, 30), 0
    for turn in range(4):
        answer, cached = served.api.cached_ids(history, 21)
        compared += expect(history, answer)
        # all but the last output, which was never run, a part of a block, and what is new
        assert turn == 0 or cached >= len(history) - 11 - 1 - 4 - BLOCK, (turn, cached, len(history))
        history = history + answer + ids(100 + turn, 11)
    assert compared >= 50, compared


def test_what_prompts_have_in_common_is_found_from_the_third_on(served, expect):
    common, compared = ids(2, 150), 0
    for k in range(4):
        prompt = common + ids(200 + k, 40)
        answer, cached = served.api.cached_ids(prompt, 8)
        compared += expect(prompt, answer)
        assert cached == (0 if k < 2 else 150 // BLOCK * BLOCK), k
    assert compared >= 20, compared


def test_beams_are_as_likely_as_those_of_the_cpu(served, cpu):
    for k in range(1 if SANITIZED else 2):
        prompt = ids(400 + k, 20 + 9 * k)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            beside = pool.submit(served.api.greedy_ids, ids(410 + k, 50), 12)
            beams = served.api.beam_ids(prompt, 10)
            beside.result()
        check_beams(beams, prompt, cpu, 10)


@pytest.mark.parametrize("model,tensor_parallel", [("qwen", 1), ("qwen", 2), ("lfm2", 2), ("nemotron", 2)], indirect=["model"])
def test_many_at_once_with_too_little_memory(model, expect, tensor_parallel):
    """Who comes back does so with what was saved of it, if anything."""
    if SANITIZED:
        pytest.skip("the same code as without a device")
    check_preempted(model, expect, tensor_parallel, 2 * KV_HEADS * HEAD * 2 // tensor_parallel)


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
