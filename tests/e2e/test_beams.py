"""Beam search and best_of as a whole: answers of torch's searches (make_beam_reference.py) through HTTP, whatever the engine's
settings are, what else runs, and which process dies meanwhile."""
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess

import pytest

import engine as engines
from api import ApiError, joined
from engine import DEMO, SANITIZED, SLOWER, Engine, killed_amid, wait_until

CASES = json.loads((pathlib.Path(__file__).parent / "beam_reference.json").read_text())
OURS = [c for c in CASES if c["model"] == "demo"]
KERNELS = engines.BUILD / "tests" / "kern" / "tercet-cuda-emu.so"
SEARCH = {"use_beam_search": True, "return_token_ids": True}


def fields(case):
    return dict(SEARCH, n=case["n"], max_tokens=case["max_tokens"], length_penalty=case["length_penalty"],
                ignore_eos=case["ignore_eos"])


def check(case, reply):
    assert [c["index"] for c in reply["choices"]] == list(range(case["n"]))
    for choice, wanted in zip(reply["choices"], case["answers"]):
        assert choice["token_ids"] == wanted["token_ids"], (case["prompt"], case["n"], choice["index"])
        assert abs(choice["cumulative_logprob"] - wanted["sum"]) < 2e-3
        assert choice["finish_reason"] == ("stop" if wanted["stopped"] else "length")


def search(api, case, **more):
    return api.completions(case["prompt"], **dict(fields(case), **more))


def noise(api, k):
    reply = api.completions("Noise %d" % k, max_tokens=15 + 5 * k, temperature=1.0, seed=k, ignore_eos=True)
    assert reply["usage"]["completion_tokens"] == 15 + 5 * k


def check_all(api, cases, others=3):
    """All searches at once, and sampled requests between them."""
    with concurrent.futures.ThreadPoolExecutor(len(cases) + others) as pool:
        got = [pool.submit(search, api, c) for c in cases]
        rest = [pool.submit(noise, api, k) for k in range(others)]
        for case, reply in zip(cases, got):
            check(case, reply.result())
        for r in rest:
            r.result()


def idle(e):
    m = e.api.metrics()
    return m["vllm:num_requests_running"] == 0 and m["vllm:num_requests_waiting"] == 0


def test_the_reference_has_answers_of_all_kinds():
    ends = {a["stopped"] for c in OURS for a in c["answers"]}
    assert ends == {True, False} and any(c["hugging_face"] for c in OURS)


def test_answers_are_those_of_torch(api):
    for case in OURS:
        check(case, search(api, case))


@pytest.mark.skipif(SANITIZED, reason="the bundled model says it")
@pytest.mark.parametrize("model", sorted({c["model"] for c in CASES} - {"demo"}))
def test_other_models_answer_as_torch(model):
    folder = engines.SHARED / "refmodels" / model
    if not folder.exists():
        pytest.skip("no %s" % folder)
    with Engine("--dtype", "float32", model=folder) as e:
        for case in CASES:
            if case["model"] == model:
                check(case, search(e.api, case))


SETTINGS = {
    "two ranks": ["--tensor-parallel-size", 2],
    "no prefix cache, one step at a time": ["--no-enable-prefix-caching", "--async-depth", 0],
    "prompts in pieces": ["--max-num-batched-tokens", 12, "--max-num-seqs", 12, "--block-size", 4],
    "preempted": ["--kv-cache-memory", "2MiB", "--max-model-len", 300, "--block-size", 4],
    "preempted without cache": ["--kv-cache-memory", "2MiB", "--max-model-len", 300, "--block-size", 4,
                                "--no-enable-prefix-caching"],
}


@pytest.mark.parametrize("setting", list(SETTINGS)[:1] if SANITIZED else list(SETTINGS))
def test_answers_do_not_depend_on_settings_and_company(setting):
    with Engine("--dtype", "float32", *SETTINGS[setting]) as e, concurrent.futures.ThreadPoolExecutor(1) as pool:
        if "preempted" in setting: # 800 tokens before the searches, with room for 340
            crowd = pool.submit(e.api.crowd, 4, 200)
            wait_until(lambda: e.api.metric("vllm:num_requests_running") > 0 or crowd.done(), 10, "the crowd's start")
        check_all(e.api, OURS if not SANITIZED else OURS[:3], others=8)
        if "preempted" in setting:
            crowd.result()
            assert e.api.metric("vllm:num_preemptions_total") > 0
        wait_until(lambda: idle(e) and e.api.metric("vllm:kv_cache_usage_perc") == 0, 10, "the end of all requests")


def test_an_answer_s_log_probabilities_are_those_of_its_tokens(api):
    case = OURS[2]
    reply = search(api, case, logprobs=3, best_of=4, n=2)
    assert [c["token_ids"] for c in reply["choices"]] == [a["token_ids"] for a in case["answers"][:2]]
    for choice in reply["choices"]:
        lp = choice["logprobs"]
        assert len(lp["tokens"]) == len(choice["token_ids"]) == case["max_tokens"]
        assert abs(sum(lp["token_logprobs"]) - choice["cumulative_logprob"]) < 1e-5
        assert all(3 <= len(top) <= 4 for top in lp["top_logprobs"])
        whole = api.completions(case["prompt"] + choice["token_ids"], max_tokens=0, echo=True, logprobs=0)
        again = whole["choices"][0]["logprobs"]["token_logprobs"][len(case["prompt"]):]
        assert max(abs(a - b) for a, b in zip(again, lp["token_logprobs"])) < 1e-3


def test_the_prompt_comes_before_every_answer(api):
    case = OURS[1]
    reply = search(api, case, echo=True, logprobs=1, prompt_logprobs=1)
    n = len(case["prompt"])
    for choice, wanted in zip(reply["choices"], case["answers"]):
        assert choice["token_ids"] == case["prompt"] + wanted["token_ids"]
        assert len(choice["logprobs"]["tokens"]) == n + case["max_tokens"]
        assert None not in choice["logprobs"]["token_logprobs"][1:]
        assert len(choice["prompt_logprobs"]) == n and choice["prompt_logprobs"][1]


def test_the_prompt_s_log_probabilities_come_before_the_end(engine):
    """A detokenizer that was kept waiting reads the scheduler's socket, with the answers, before the worker's."""
    body = dict(SEARCH, prompt="Once upon a time", n=2, max_tokens=2, prompt_logprobs=1)
    wanted = [c["prompt_logprobs"] for c in engine.api.completions(**body)["choices"]]
    assert all(wanted[0][1:]) and wanted[0] == wanted[1]
    detok = engine.pid_of("tercet-detok")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for k in range(3):
            before = engine.api.metrics()["vllm:generation_tokens_total"]
            os.kill(detok, signal.SIGSTOP)
            try:
                reply = pool.submit(engine.api.completions, **body)
                wait_until(lambda: idle(engine) and engine.api.metrics()["vllm:generation_tokens_total"] > before, 10,
                           "the end of the search")
            finally:
                os.kill(detok, signal.SIGCONT)
            assert [c["prompt_logprobs"] for c in reply.result()["choices"]] == wanted, k


def test_a_stream_gives_every_answer_whole(api):
    case = OURS[2]
    events = list(api.stream(prompt=case["prompt"], stream_options={"include_usage": True}, **fields(case)))
    assert events[-1]["usage"]["completion_tokens"] == case["n"] * case["max_tokens"]
    choices = joined(events)
    for i, wanted in enumerate(case["answers"]):
        assert choices[i]["token_ids"] == wanted["token_ids"]


def test_a_chat_has_several_answers(api):
    turns = [{"role": "user", "content": "Tell me a tale."}]
    reply = api.chat(turns, use_beam_search=True, best_of=5, n=3, max_tokens=16, logprobs=True, top_logprobs=2)
    texts = [c["message"]["content"] for c in reply["choices"]]
    sums = [c["cumulative_logprob"] for c in reply["choices"]]
    assert len(set(texts)) == 3 and len(reply["choices"][0]["logprobs"]["content"]) == 16
    assert sums == sorted(sums, reverse=True) # of equal lengths


def test_ends_and_biases_steer_a_search(api):
    case = OURS[2]
    banned = case["answers"][0]["token_ids"][0]
    biased = search(api, case, logit_bias={str(banned): -100})
    assert all(banned not in c["token_ids"] for c in biased["choices"])
    stop = case["answers"][0]["token_ids"][5]
    stopped = search(api, case, stop_token_ids=[stop], length_penalty=0)["choices"][0]
    assert stopped["token_ids"][-1] == stop and stopped["stop_reason"] == stop and stopped["finish_reason"] == "stop"
    later = search(api, case, stop_token_ids=[stop], min_tokens=20, length_penalty=0)["choices"]
    assert all(len(c["token_ids"]) >= 20 and stop not in c["token_ids"][:19] for c in later)
    early = search(api, dict(case, ignore_eos=False), stop_token_ids=[stop], early_stopping=True)["choices"]
    assert all(c["finish_reason"] == "stop" for c in early)


def test_several_prompts_are_several_searches(api):
    some = [c for c in OURS if c["n"] == 4 and c["length_penalty"] == 1.0]
    reply = api.completions([c["prompt"] for c in some], **dict(fields(some[0]), max_tokens=30))
    assert [c["index"] for c in reply["choices"]] == list(range(4 * len(some)))
    alone = search(api, some[0], max_tokens=30)
    assert [c["token_ids"] for c in reply["choices"][:4]] == [c["token_ids"] for c in alone["choices"]]


def test_what_can_never_fit_is_refused_with_the_numbers():
    with Engine("--kv-cache-memory", "2MiB", "--max-num-seqs", 6) as e:
        with pytest.raises(ApiError) as refused:
            e.api.completions("Once upon a time", use_beam_search=True, n=6, max_tokens=400)
        assert refused.value.status == 400 and "KV blocks" in str(refused.value) and "6 beams" in str(refused.value)
        with pytest.raises(ApiError) as refused:
            e.api.completions("Once upon a time", use_beam_search=True, n=7, max_tokens=4)
        assert refused.value.status == 400 and "--max-num-seqs allows 6" in str(refused.value)


def test_of_best_of_samples_the_likeliest_come_first(api):
    body = {"max_tokens": 12, "temperature": 1.0, "seed": 5, "ignore_eos": True, "return_token_ids": True, "logprobs": 0}
    samples = api.completions("Once upon a time", n=6, **body)["choices"]
    ranked = sorted(samples, key=lambda c: -sum(c["logprobs"]["token_logprobs"]))
    best = api.completions("Once upon a time", n=2, best_of=6, **body)
    assert [c["token_ids"] for c in best["choices"]] == [c["token_ids"] for c in ranked[:2]]
    assert [c["index"] for c in best["choices"]] == [0, 1]
    assert best["usage"]["completion_tokens"] == 6 * 12
    chat = api.chat([{"role": "user", "content": "Hello"}], n=1, best_of=3, temperature=1.0, max_tokens=5)
    assert len(chat["choices"]) == 1 and chat["choices"][0]["logprobs"] is None


def test_the_command_prints_the_best_answer(engine):
    case = OURS[2]
    def command(*more):
        return subprocess.run([str(engines.TERCET), "run", str(DEMO), "--run-dir", str(engine.run_dir), "--prompt-ids",
                               ",".join(map(str, case["prompt"])), "--beam-width", "4", "--max-tokens",
                               str(case["max_tokens"]), "--ignore-eos", "--output-ids", *more], capture_output=True,
                              text=True, timeout=60 * SLOWER, stdin=subprocess.DEVNULL)
    done = command()
    assert done.returncode == 0 and [int(t) for t in re.findall(r"\d+", done.stdout)] == case["answers"][0]["token_ids"]
    refused = command("--temperature", "0.5")
    assert refused.returncode != 0 and "temperature is 0.5; with beam search it must be 0" in refused.stderr


def test_who_goes_away_leaves_nothing_behind():
    with Engine("--dtype", "float32") as e:
        stream = e.api.stream(prompt="Once upon a time", **dict(SEARCH, n=8, max_tokens=480, ignore_eos=True))
        wait_until(lambda: e.api.metric("vllm:num_requests_running") >= 8, 20, "the beams' start")
        stream.close()
        wait_until(lambda: idle(e) and e.api.metric("vllm:kv_cache_usage_perc") == 0, 10, "the end of the search")
        check(OURS[2], search(e.api, OURS[2]))


@pytest.mark.parametrize("name", ["tercet-worker"] if SANITIZED else
                         ["tercet-worker", "tercet-scheduler", "tercet-detok"])
def test_a_killed_process_changes_no_answer(name):
    long = dict(OURS[3], max_tokens=400) # eight beams
    with Engine("--dtype", "float32") as e:
        wanted = search(e.api, long, logprobs=1)["choices"]
        got = killed_amid(e, name, lambda: search(e.api, long, logprobs=1)["choices"], 8)
        for a, b in zip(got, wanted):
            assert a["token_ids"] == b["token_ids"] and a["finish_reason"] == b["finish_reason"]
            assert len(a["logprobs"]["tokens"]) == len(b["logprobs"]["tokens"])


def test_a_device_forks_rows_as_the_cpu_does():
    """It computes in bfloat16: its answers are held against its own scores of the same tokens, which come without forks."""
    small = ["--max-num-seqs", 8, "--max-num-batched-tokens", 64, "--max-model-len", 128, "--block-size", 4]
    environment = {"TERCET_CUDA_KERNELS": str(KERNELS)}
    if not KERNELS.exists():
        pytest.skip("no emulated device")
    with Engine("--device", "cuda", *small, env=environment) as e:
        prompt = OURS[2]["prompt"]
        reply = e.api.completions(prompt, logprobs=0, **dict(SEARCH, n=4, max_tokens=14, ignore_eos=True))
        assert len({tuple(c["token_ids"]) for c in reply["choices"]}) == 4
        sums = [c["cumulative_logprob"] for c in reply["choices"]]
        assert sums == sorted(sums, reverse=True)
        for c in reply["choices"]:
            whole = e.api.completions(prompt + c["token_ids"], max_tokens=1, prompt_logprobs=0, temperature=0)
            again = whole["choices"][0]["prompt_logprobs"][len(prompt):]
            for token, own, entry in zip(c["token_ids"], c["logprobs"]["token_logprobs"], again):
                assert abs(entry[str(token)]["logprob"] - own) < 0.15
        best = OURS[2]["answers"][0]
        assert reply["choices"][0]["token_ids"] == best["token_ids"][:14] or abs(sums[0] - sums[1]) < 0.5
        assert e.terminate() == 0 and "Sanitizer" not in e.log()
