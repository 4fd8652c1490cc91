"""KV caches in whole numbers and 8 bits: the same tokens whatever a request shares the engine with, and little lost."""
import concurrent.futures
import json

import pytest

import engine as engines
from engine import SANITIZED, Engine, wait_until

# Of the tokens after the prompts, how many are float32's, fed with float32's tokens before.
AGREEMENT = {"int8": 0.99, "fp8": 0.95, "int16": 0.999}


def reference():
    return json.loads((engines.DEMO / "reference.json").read_text())["prompts"]


def prompts():
    # the longest fill blocks of the KV cache that can be shared
    return sorted(reference(), key=lambda p: -len(p["ids"]))[:4] if SANITIZED else reference()


def alone(api, p):
    return api.greedy_ids(p["ids"], len(p["output_ids"]))


def noise(api, k):
    reply = api.completions("Noise %d" % k, max_tokens=20 + 3 * k, temperature=1.0, seed=k, ignore_eos=True)
    return reply["usage"]["completion_tokens"]


def together(api, count=32):
    """Tokens of all prompts, among `count` requests."""
    listed = prompts()
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        got = [pool.submit(alone, api, p) for p in listed]
        others = [pool.submit(noise, api, k) for k in range(count - len(listed))]
        assert [o.result() for o in others] == [20 + 3 * k for k in range(len(others))]
        return [g.result() for g in got]


def agreement(api):
    """Share of the reference's tokens that are the likeliest behind the ones before them."""
    right = total = 0
    for p in reference():
        reply = api.completions(p["ids"] + p["output_ids"], max_tokens=1, prompt_logprobs=1)
        listed = reply["choices"][0]["prompt_logprobs"]
        for k, token in enumerate(p["output_ids"]):
            total += 1
            right += listed[len(p["ids"]) + k][str(token)]["rank"] == 1
    return right / total


@pytest.mark.parametrize("dtype", AGREEMENT)
def test_tokens_do_not_depend_on_company_cache_or_preemption(dtype):
    flags = ["--kv-cache-dtype", dtype, "--dtype", "float32"]
    with Engine(*flags, "--no-enable-prefix-caching", "--async-depth", 0) as e:
        assert "kv_dtype=%s" % dtype in e.log()
        wanted = [alone(e.api, p) for p in prompts()]
        assert together(e.api) == wanted
    with Engine(*flags, "--max-num-batched-tokens", 16, "--max-num-seqs", 16) as e:
        assert together(e.api) == wanted
        assert [alone(e.api, p) for p in prompts()] == wanted
        assert e.api.metric("vllm:prefix_cache_hits_total") > 0
        assert 'cache_dtype="%s"' % dtype in e.api.raw("GET", "/metrics")[2].decode()
    # room for a sequence and a half: whoever came last makes room
    memory = "2MiB" if dtype == "int16" else "1MiB"
    for swap_space in (0, 0.004 if dtype == "int16" else 0.002):
        with (Engine(*flags, "--kv-cache-memory", memory, "--max-model-len", 400, "--swap-space", swap_space) as e,
              concurrent.futures.ThreadPoolExecutor(1) as pool):
            crowd = pool.submit(e.api.crowd, 5, 150)
            assert together(e.api, 16 if SANITIZED else 32) == wanted
            crowd.result()
            m = e.api.metrics()
            assert m["vllm:num_preemptions_total"] > 0
            assert (m["tercet_swapped_out_blocks_total"] > 0) == (m["tercet_swapped_in_blocks_total"] > 0) == (swap_space > 0)
            wait_until(lambda: e.api.metric("vllm:num_requests_swapped") == e.api.metric("vllm:cpu_cache_usage_perc") == 0, 10,
                       "an empty swap space")


@pytest.mark.parametrize("tensor_parallel", (1, 2))
@pytest.mark.parametrize("dtype", AGREEMENT)
def test_few_tokens_differ_from_float32(dtype, tensor_parallel):
    with Engine("--kv-cache-dtype", dtype, "--dtype", "float32", "--tensor-parallel-size", tensor_parallel) as e:
        share = agreement(e.api)
    assert share >= AGREEMENT[dtype], share


def test_an_unknown_type_is_refused(tmp_path):
    with pytest.raises(AssertionError) as refusal:
        Engine("--kv-cache-dtype", "int3")
    assert "auto, bfloat16, float32, int8, fp8" in str(refusal.value) or "auto|bfloat16" in str(refusal.value)
