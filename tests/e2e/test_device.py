"""`--device cuda` as a whole, on the emulated device (docs/CUDA_EMULATION.md): the tokens of the references and of the CPU
backend, whatever is chosen of tensor parallelism, steps ahead, graphs and types of the cache.

A device computes in bfloat16, and rows of a step may go through other kernels when more of them share it; so tokens are
compared where the reference is sure. A step takes the emulation some 20 ms: requests are few and short. The whole
matrix runs with TERCET_E2E_FULL=1."""
import concurrent.futures
import itertools
import json

import pytest

import device_tokens
import engine as engines
from device_models import ENVIRONMENT, device_engine
from engine import FULL, SANITIZED, Engine, run, wait_until

SMALL = ["--max-num-seqs", 8, "--max-num-batched-tokens", 64, "--max-model-len", 448]
PROMPTS = 2 if SANITIZED else 19 if FULL else 6
TOKENS = 4 if SANITIZED else 48 if FULL else 10
BLOCK_BYTES = 16 * 6 * 2 * 4 * 32 * 2  # of the demo model: tokens, layers, keys and values, heads, their size, bfloat16


# How the emulated device does its work: in the calls that wait for it, or in a thread of its own; in what order of threads
# and streams; and whether a host that touches device memory dies of it.
THREAD = {"CUDA_EMU_THREAD": "1", "CUDA_EMU_SCHEDULE": "ahead:1"}
ORDERS = [{"CUDA_EMU_SCHEDULE": "reverse", "CUDA_EMU_PROTECT": "1"}, {"CUDA_EMU_SCHEDULE": "random:2"}, THREAD, {}]


def short(prompts):
    """Some prompts, short ones first, and less of what follows them; the last of all is long enough for several chunks."""
    ordered = sorted(prompts, key=lambda p: len(p["ids"]))
    chosen = ordered[:PROMPTS - 1] + ([p for p in ordered if len(p["ids"]) <= 60] or ordered)[-1:]
    return [{"ids": p["ids"], "output_ids": p["output_ids"][:TOKENS], "margins": p["margins"][:TOKENS]} for p in chosen]


@pytest.fixture(scope="module")
def shared_engine():
    """Two steps ahead, graphs, one device: what is chosen by default."""
    with device_engine(*SMALL, env=THREAD) as e:
        yield e


@pytest.fixture(scope="module")
def cpu():
    with Engine("--dtype", "bfloat16", *SMALL) as e:
        yield e.api


def check_continuations(api, cpu_api, prompts):
    """All at once, among others, against the CPU backend's."""
    wanted = [device_tokens.continuation(cpu_api, p["ids"], len(p["output_ids"])) for p in prompts]
    company = 1 if SANITIZED else 3
    with concurrent.futures.ThreadPoolExecutor(company) as pool:
        others = [pool.submit(device_tokens.noise, api, k) for k in range(company)]
        got = device_tokens.together(api, [(p["ids"], len(p["output_ids"]), {}) for p in prompts])
        assert [o.result() for o in others] == [4 + k for k in range(company)]
    for p, tokens, (right, margins) in zip(prompts, got, wanted):
        assert device_tokens.same_as_far_as_sure(tokens, right, margins) is None, p["ids"][:8]


# ---------------------------------------------------------------- one engine, all kinds of requests

def test_the_log_says_what_computes(engine):
    assert "device=cuda" in engine.log() and "processors=" in engine.log()


def test_tokens_that_the_reference_is_sure_of(api):
    sure, wrong = device_tokens.sure_tokens(api, short(device_tokens.demo_prompts()))
    assert sure > PROMPTS * TOKENS // 2 and not wrong, wrong


def test_continuations_in_company_are_those_of_the_cpu(api, cpu):
    check_continuations(api, cpu, short(device_tokens.demo_prompts()))


def test_a_request_repeats_itself(api):
    """Alone in the engine, the same bits go the same way."""
    if SANITIZED:
        pytest.skip("noise of the test before runs the same kernels")
    fields = {"max_tokens": TOKENS, "temperature": 0.9, "top_p": 0.9, "top_k": 40, "seed": 7, "ignore_eos": True,
              "return_token_ids": True}
    first, second = (api.completions("Once upon a time", **fields)["choices"][0] for _ in range(2))
    assert first["token_ids"] == second["token_ids"] and len(first["token_ids"]) == TOKENS


def test_logprobs_are_those_of_the_cpu(api, cpu):
    p = short(device_tokens.demo_prompts())[0]
    fields = {"max_tokens": 4, "temperature": 0, "logprobs": 5, "ignore_eos": True, "return_tokens_as_token_ids": True,
              "prompt_logprobs": 2}
    got, wanted = (a.completions(p["ids"], **fields)["choices"][0] for a in (api, cpu))
    for mine, other in zip(got["logprobs"]["top_logprobs"], wanted["logprobs"]["top_logprobs"]):
        shared = set(mine) & set(other)
        assert len(shared) >= 4
        assert all(abs(mine[t] - other[t]) < 0.1 for t in shared)
        if set(list(mine)[:1]) != set(list(other)[:1]):
            break  # from here on they say something else
    for mine, other in zip(got["prompt_logprobs"][1:], wanted["prompt_logprobs"][1:]):
        shared = set(mine) & set(other)
        assert shared and all(abs(mine[t]["logprob"] - other[t]["logprob"]) < 0.1 for t in shared)


def test_penalties_know_all_tokens_before(api, cpu):
    """They need the tokens of steps that were not collected when the next one was queued. Margins are those of the
    penalized logits, computed here from the best 20."""
    ids = next(p["ids"] for p in device_tokens.demo_prompts() if len(p["ids"]) == 6)  # what follows repeats a word soon
    count, frequency, presence = 7, 1.5, 0.5
    fields = {"frequency_penalty": frequency, "presence_penalty": presence}
    reply = cpu.completions(ids, temperature=0, max_tokens=count, ignore_eos=True, logprobs=20, return_token_ids=True,
                            return_tokens_as_token_ids=True, **fields)["choices"][0]
    wanted, margins = reply["token_ids"], []
    for k, top in enumerate(reply["logprobs"]["top_logprobs"]):
        seen = [wanted[:k].count(int(t.split(":")[1])) for t in top]
        value = sorted((lp - frequency * n - presence * (n > 0) for lp, n in zip(top.values(), seen)), reverse=True)
        margins.append(value[0] - value[1])
    assert wanted != cpu.greedy_ids(ids, count)
    assert device_tokens.same_as_far_as_sure(api.greedy_ids(ids, count, **fields), wanted, margins) is None


def logits(device, *flags):
    status, output = run("logits", "--model", engines.DEMO, "--ids", "1,2,3,17,200,45,9,300", "--top", 0, "--dtype", "bfloat16", "--device", device,
                         *flags, env=ENVIRONMENT)
    assert status == 0, output
    return [json.loads(line) for line in output.splitlines()]


def test_logits_are_near_those_of_the_cpu():
    """Of chunks that fused kernels take, and of one that they do not; the last position alone is the same."""
    wanted = logits("cpu", "--all")
    for chunk in (3, 64):
        lines = logits("cuda", "--all", "--max-num-batched-tokens", chunk)
        assert [line["position"] for line in lines] == list(range(8))
        for line, other in zip(lines, wanted):
            assert line["ids"] == other["ids"] == list(range(line["vocab_size"]))
            assert max(abs(a - b) for a, b in zip(line["logits"], other["logits"])) < 0.3
    assert logits("cuda", "--max-num-batched-tokens", 64) == lines[-1:]


def test_bias_and_forbidden_tokens(api):
    ids = short(device_tokens.demo_prompts())[0]["ids"]
    assert api.greedy_ids(ids, 3, logit_bias={"77": 100}) == [77, 77, 77]
    plain = api.greedy_ids(ids, 1)[0]
    assert api.greedy_ids(ids, 1, logit_bias={str(plain): -100}) != [plain]


def test_a_repeated_prompt_is_found_in_the_prefix_cache(api, cpu):
    ids = sorted((p["ids"] for p in device_tokens.demo_prompts()), key=len)[-2][:37]
    wanted, margins = device_tokens.continuation(cpu, ids, 3)
    assert device_tokens.same_as_far_as_sure(api.greedy_ids(ids, 3), wanted, margins) is None
    before = api.metric("vllm:prefix_cache_hits_total")
    assert device_tokens.same_as_far_as_sure(api.greedy_ids(ids, 3), wanted, margins) is None
    assert api.metric("vllm:prefix_cache_hits_total") >= before + 32
    # a whole block: its last token is computed once more, in a copy of the block
    full = ids[:32]
    first, second = api.greedy_ids(full, 3), api.greedy_ids(full, 3)
    wanted, margins = device_tokens.continuation(cpu, full, 3)
    assert device_tokens.same_as_far_as_sure(first, wanted, margins) is None
    assert device_tokens.same_as_far_as_sure(second, wanted, margins) is None


def test_a_storm_of_aborts_leaves_nothing_behind(api, cpu):
    def start_and_leave(k):
        stream = api.stream(prompt="Storm %d" % k, max_tokens=300, ignore_eos=True, temperature=1.0, seed=k)
        for _ in range(k % 3):
            next(stream)
        stream.close()

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(start_and_leave, range(6 if SANITIZED else 24)))
    wait_until(lambda: api.metric("vllm:num_requests_running") == api.metric("vllm:num_requests_waiting") ==
               api.metric("vllm:kv_cache_usage_perc") == 0, 30, "the end of requests that nobody reads")
    p = short(device_tokens.demo_prompts())[0]
    wanted, margins = device_tokens.continuation(cpu, p["ids"], 4)
    assert device_tokens.same_as_far_as_sure(api.greedy_ids(p["ids"], 4), wanted, margins) is None


# ---------------------------------------------------------------- ways to run it

def ways():
    """(tensor parallel, depth, graphs, KV type, prefix cache): few that together have every value, or all."""
    if FULL:
        return list(itertools.product((1, 2), (0, 1, 2), (True, False), ("auto", "int8", "fp8"), (True, False)))
    few = [(2, 1, False, "auto", False), (1, 0, True, "int8", True)]
    return few[:1] if SANITIZED else few + [(2, 2, True, "fp8", True)]


@pytest.mark.parametrize("tensor_parallel,depth,graphs,kv,prefix_cache", ways())
def test_every_way_gives_the_tokens_of_the_cpu(cpu, tensor_parallel, depth, graphs, kv, prefix_cache):
    prompts = short(device_tokens.demo_prompts())[-3:]
    flags = ["--tensor-parallel-size", tensor_parallel, "--async-depth", depth, "--kv-cache-dtype", kv,
             "--enable-prefix-caching" if prefix_cache else "--no-enable-prefix-caching"]
    order = ORDERS[(tensor_parallel + depth) % len(ORDERS)]
    with device_engine(*SMALL, *flags, *([] if graphs else ["--enforce-eager"]), env=order) as e:
        sure, wrong = device_tokens.sure_tokens(e.api, prompts)
        # 8 bits of a cache cost more than bfloat16 does: few of the sure tokens, and none without
        assert sure and len(wrong) <= (0 if kv == "auto" else sure * 0.1), wrong
        if kv == "auto":
            check_continuations(e.api, cpu, prompts)
        else:
            tokens = device_tokens.together(e.api, [(p["ids"], 6, {}) for p in prompts])
            assert [len(t) for t in tokens] == [6] * len(prompts)


def test_preempted_requests_end_as_if_nothing_had_been(cpu):
    """Room for a request and a half: whoever came last makes room, and comes back."""
    if SANITIZED:
        pytest.skip("the same code as without a device")
    prompts, count = [p["ids"] for p in device_tokens.demo_prompts() if 12 <= len(p["ids"]) <= 16][:3], 10
    wanted = [device_tokens.continuation(cpu, ids, count) for ids in prompts]
    with device_engine("--max-num-seqs", 4, "--max-num-batched-tokens", 32, "--max-model-len", 64, "--kv-cache-memory",
                       4 * BLOCK_BYTES, "--no-enable-prefix-caching") as e:
        # in one message, so that they run together however slow a client is
        reply = e.api.completions(prompts, temperature=0, max_tokens=count, ignore_eos=True, return_token_ids=True)
        got = [c["token_ids"] for c in reply["choices"]]
        assert e.api.metric("vllm:num_preemptions_total") > 0
        assert e.api.metric("tercet_swapped_in_blocks_total") > 0, "a device has swap space unless told otherwise"
    for tokens, (right, margins) in zip(got, wanted):
        assert device_tokens.same_as_far_as_sure(tokens, right, margins) is None


# ---------------------------------------------------------------- other models

MODELS = device_tokens.reference_models(engines.SHARED / "refmodels")
CHOSEN = ["gemma2"] if SANITIZED and MODELS else list(MODELS)


@pytest.mark.parametrize("tensor_parallel", (1, 2) if FULL else (1,))
@pytest.mark.parametrize("model", CHOSEN or ["none"])
def test_reference_models_have_their_tokens(model, tensor_parallel):
    if model == "none":
        pytest.skip("no reference models here")
    if model == "gemma" and tensor_parallel == 2:
        pytest.skip("a rank's share of 48 columns is refused: kernels want multiples of 32")
    folder, reference = MODELS[model]
    prompts = device_tokens.read_reference(reference)
    if not FULL:
        prompts = [{**p, "output_ids": p["output_ids"][:8], "margins": p["margins"][:8]} for p in prompts[:3]]
    with device_engine("--max-num-seqs", 8, "--max-num-batched-tokens", 64, "-tp", tensor_parallel, model=folder) as e:
        margin = device_tokens.REFERENCE_MARGIN
        sure, wrong = device_tokens.sure_tokens(e.api, prompts, margin)
        assert sure > 6 and len(wrong) <= device_tokens.experts_wrong(model) * sure, wrong
        got = device_tokens.together(e.api, [(p["ids"], len(p["output_ids"]), {}) for p in prompts])
        left = [device_tokens.same_as_far_as_sure(tokens, p["output_ids"], p["margins"], margin)
                for tokens, p in zip(got, prompts)]
        # whatever follows a token that went to another expert may be something else
        follow = 0.5 if device_tokens.experts_wrong(model) else 1
        assert left.count(None) >= follow * len(prompts), left


# ---------------------------------------------------------------- what cannot be

def test_an_error_of_the_device_costs_a_pause():
    """The worker says what the device said (719: a launch failed) and is replaced; the request goes on with what it has."""
    if SANITIZED:
        pytest.skip("the unit tests of the engine of one device run under sanitizers")
    p = short(device_tokens.demo_prompts())[1]
    with device_engine(*SMALL, "--enforce-eager") as e:
        wanted = e.api.greedy_ids(p["ids"], 12)
        assert "RESTARTED" not in e.log()
    with device_engine(*SMALL, "--enforce-eager", env={"CUDA_EMU_INJECT": "launch:300:719"}) as e:
        assert e.api.greedy_ids(p["ids"], 12) == wanted
        wait_until(lambda: "RESTARTED process=worker" in e.log(), 10, "the supervisor's word")


@pytest.mark.parametrize("flags,env,text", [
    (["--dtype", "float32"], {}, "bfloat16"),
    (["--block-size", "12"], {}, "--block-size"),
    (["--speculative-config", '{"method":"ngram","num_speculative_tokens":4}'], {}, "--speculative-config"),
    ([], {"TERCET_CUDA_KERNELS": "/nowhere/tercet-cuda.so"}, "/nowhere/tercet-cuda.so"),
    ([], {"CUDA_EMU_MEMORY": "8000000"}, "memory"),
])
def test_a_device_that_will_not_do_is_refused_with_the_reason(flags, env, text):
    status, output = run("serve", engines.DEMO, "--device", "cuda", "--port", 0, *SMALL, *flags, env={**ENVIRONMENT, **env})
    assert status == 1 and text in output, output
