"""The greedy continuations of the references, token by token through HTTP."""
import concurrent.futures
import itertools
import json

import pytest

import engine as engines
from engine import FULL, SANITIZED, Engine

MODELS = {"bundled": (engines.DEMO, engines.DEMO / "reference.json"),
          "shared": (engines.SHARED / "demo", engines.SHARED / "demo_reference.json")}
MARGIN = 0.15


def load(name):
    folder, path = MODELS[name]
    if not path.exists() or not folder.exists():
        pytest.skip("no %s" % path)
    return folder, json.loads(path.read_text())["prompts"]


def check_alone(api, prompts):
    for p in prompts:
        assert api.greedy_ids(p["ids"], len(p["output_ids"])) == p["output_ids"], p["text"][:60]


def noise(api, k):
    """Something else for the batch: sampled, of another length, with other features."""
    reply = api.completions("Noise %d" % k, max_tokens=20 + 3 * k, temperature=1.0, seed=k, ignore_eos=True,
                            frequency_penalty=0.3 if k % 2 else 0, logprobs=k % 3)
    return reply["usage"]["completion_tokens"]


def check_concurrent(api, prompts, count=32):
    """`count` requests at once: every prompt, and sampled ones in between."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        wanted = [(p, pool.submit(api.greedy_ids, p["ids"], len(p["output_ids"]))) for p in prompts]
        others = [pool.submit(noise, api, k) for k in range(count - len(prompts))]
        for p, got in wanted:
            assert got.result() == p["output_ids"], p["text"][:60]
        for k, got in enumerate(others):
            assert got.result() == 20 + 3 * k


def matrix():
    """(model, tensor parallel, depth, prefix cache, budget): all of them for the bundled model, and for the other one a
    choice in which every pair of values meets."""
    everything = list(itertools.product((1, 2), (0, 1, 2), (True, False), (16, 512)))
    pairs = [(1, 2, True, 512), (2, 2, False, 16), (1, 1, False, 512), (2, 1, True, 16), (1, 0, True, 16),
             (2, 0, False, 512)]
    if SANITIZED:
        return [("bundled",) + pairs[3]]
    return [("bundled",) + c for c in everything] + [("shared",) + c for c in (everything if FULL else pairs)]


@pytest.mark.parametrize("model,tensor_parallel,depth,prefix_cache,budget", matrix())
def test_float32_reproduces_the_reference(model, tensor_parallel, depth, prefix_cache, budget):
    folder, prompts = load(model)
    if SANITIZED:
        prompts = prompts[:4] + sorted(prompts, key=lambda p: len(p["ids"]))[-1:]  # a long one meets the cache
    with Engine("--dtype", "float32", "--tensor-parallel-size", tensor_parallel, "--async-depth", depth,
                "--enable-prefix-caching" if prefix_cache else "--no-enable-prefix-caching",
                "--max-num-batched-tokens", budget, "--max-num-seqs", min(budget, 64), model=folder) as e:
        check_alone(e.api, prompts)
        check_concurrent(e.api, prompts)
        hits = e.api.metric("vllm:prefix_cache_hits_total")
        assert (hits > 0) == prefix_cache


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tensor_parallel", (1, 2))
def test_bfloat16_agrees_where_the_reference_is_sure(model, tensor_parallel):
    """Teacher-forced: behind the reference's own tokens, each next one is the likeliest."""
    folder, prompts = load(model)
    if SANITIZED:
        prompts = prompts[:4]
    sure = wrong = 0
    with Engine("--dtype", "bfloat16", "--tensor-parallel-size", tensor_parallel, model=folder) as e:
        for p in prompts:
            reply = e.api.completions(p["ids"] + p["output_ids"], max_tokens=1, prompt_logprobs=1)
            listed = reply["choices"][0]["prompt_logprobs"]
            assert listed[0] is None and len(listed) == len(p["ids"]) + len(p["output_ids"])
            for k, (token, margin) in enumerate(zip(p["output_ids"], p["margins"])):
                if margin <= MARGIN:
                    continue
                sure += 1
                wrong += listed[len(p["ids"]) + k][str(token)]["rank"] != 1
    assert sure > 100 and wrong == 0, "%d of %d sure tokens differ" % (wrong, sure)


def test_texts_are_tokenized_as_in_the_reference(api, reference):
    for p in reference["prompts"]:
        if p["kind"] != "text":
            continue
        assert api.call("POST", "/tokenize", {"prompt": p["text"]})["tokens"] == p["ids"], p["text"][:60]
        reply = api.completions(p["text"], temperature=0, max_tokens=len(p["output_ids"]), ignore_eos=True,
                                skip_special_tokens=False)
        assert reply["choices"][0]["text"] == p["output_text"]


def test_first_logprobs_are_those_of_the_reference(api, reference):
    for p in reference["prompts"]:
        reply = api.completions(p["ids"], temperature=0, max_tokens=1, logprobs=5, return_tokens_as_token_ids=True,
                                ignore_eos=True)
        got = reply["choices"][0]["logprobs"]["top_logprobs"][0]
        for token, _logit, logprob in p["top20"][:5]:
            assert abs(got["token_id:%d" % token] - logprob) < 2e-3, p["text"][:60]
