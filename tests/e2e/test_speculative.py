"""Tokens proposed ahead (--speculative-config): every request gets the tokens that it gets without."""
import concurrent.futures
import json

import pytest

import engine as engines
from api import joined
from engine import SANITIZED, Engine, killed_amid, wait_until

COUNTERS = {name: "vllm:spec_decode_num_%s_total" % name for name in ("drafts", "draft_tokens", "accepted_tokens")}


def config(tokens=4, longest=3, shortest=1, batch=64):
    return ["--speculative-config",
            json.dumps({"method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_max": longest,
                        "prompt_lookup_min": shortest, "disable_by_batch_size": batch})]


FLAGS = ["--dtype", "float32"]
REPEATING = "The cat sat on the mat. The dog sat on the mat. The cat sat on the mat. The dog sat on the"
TWO = {"prompt": REPEATING, "logit_bias": {"300": 100, "301": 100}, "temperature": 1.0, "ignore_eos": True}
STOP = "@@"  # replaced by what the two tokens say, thrice
REQUESTS = {
    "greedy": {"prompt": REPEATING, "temperature": 0, "max_tokens": 120, "ignore_eos": True},
    "greedy to its end": {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 200},
    "sampled": {"prompt": REPEATING, "temperature": 0.7, "max_tokens": 100, "ignore_eos": True},
    "two answers": {"prompt": REPEATING, "temperature": 0.8, "max_tokens": 60, "n": 2},
    "top-p, top-k, min-p": {"prompt": REPEATING, "temperature": 0.9, "top_p": 0.8, "top_k": 20, "min_p": 0.02,
                            "max_tokens": 60},
    "penalties": {"prompt": REPEATING, "temperature": 0.5, "max_tokens": 100, "repetition_penalty": 1.1,
                  "presence_penalty": 0.3, "frequency_penalty": 0.2, "ignore_eos": True},
    "frequency": {"prompt": REPEATING, "temperature": 0, "max_tokens": 100, "frequency_penalty": 0.1, "ignore_eos": True},
    "a bias": {"prompt": REPEATING, "temperature": 0, "max_tokens": 60, "logit_bias": {"300": 3, "400": -5}},
    "a least length": {"prompt": REPEATING, "temperature": 0.9, "min_tokens": 40, "max_tokens": 80},
    "a stop string": {"prompt": REPEATING, "temperature": 0, "max_tokens": 100, "stop": ["the mat", " cat"]},
    "a stop string later": {"prompt": REPEATING, "temperature": 0, "max_tokens": 100, "stop": ["zebra"], "min_tokens": 20},
    "log-probabilities": {"prompt": REPEATING, "temperature": 0, "max_tokens": 60, "logprobs": 3, "ignore_eos": True},
    "penalized log-probabilities": {"prompt": REPEATING, "temperature": 0.6, "max_tokens": 60, "logprobs": 2,
                                    "repetition_penalty": 1.05, "ignore_eos": True},
    "echo": {"prompt": REPEATING, "temperature": 0, "max_tokens": 30, "logprobs": 1, "echo": True},
    # Two tokens, or a third that ends it: of what is proposed a good part comes true, and ends come in the middle.
    "one of two": {**TWO, "max_tokens": 90},
    "one alone": {**TWO, "logit_bias": {"300": 100}, "temperature": 0, "max_tokens": 90},
    "one of two, penalized": {**TWO, "max_tokens": 100, "frequency_penalty": 0.05, "presence_penalty": -0.3,
                              "repetition_penalty": 1.01},
    "one of two, three times, listed": {**TWO, "max_tokens": 80, "n": 3, "logprobs": 2},
    "an end among two": {**TWO, "n": 4, "logit_bias": {"300": 100, "301": 100, "302": 98}, "stop_token_ids": [302],
                         "max_tokens": 90},
    "the end among two": {**TWO, "n": 4, "logit_bias": {"300": 100, "301": 100, "4092": 98}, "ignore_eos": False,
                          "max_tokens": 90},
    "an end among two, later": {**TWO, "n": 4, "logit_bias": {"300": 100, "301": 100, "4092": 98}, "ignore_eos": False,
                                "min_tokens": 60, "max_tokens": 90},
    "words of two": {**TWO, "n": 4, "max_tokens": 90, "stop": [STOP]},
    "one token": {"prompt": REPEATING, "temperature": 0, "max_tokens": 1},
    "two tokens": {"prompt": REPEATING, "temperature": 0, "max_tokens": 2},
    "beams": {"prompt": REPEATING, "use_beam_search": True, "n": 3, "temperature": 0, "max_tokens": 20},
    "an expression": {"prompt": REPEATING, "temperature": 0.7, "max_tokens": 80,
                      "structured_outputs": {"regex": "( the cat| the dog| sat on the mat){8,20}\\."}},
    "an expression that ends": {"prompt": REPEATING, "temperature": 0, "max_tokens": 80, "n": 1,
                                "structured_outputs": {"regex": "(ab){20}"}},
    "objects": {"prompt": REPEATING, "temperature": 0.8, "max_tokens": 120, "structured_outputs": {"json": {
        "type": "array", "minItems": 6, "items": {"type": "object", "additionalProperties": False,
                                                  "required": ["name", "color"],
                                                  "properties": {"name": {"enum": ["Tom", "Ann"]},
                                                                 "color": {"enum": ["red", "blue"]}}}}}},
}


def name_stop(api):
    """The text of a stop string that the two tokens make now and then."""
    text = api.call("POST", "/detokenize", {"tokens": [300, 301, 300]})["prompt"]
    REQUESTS["words of two"]["stop"] = [text]


def ask(api, fields):
    """What a request is answered with, but for times and ids; log-probabilities as they are, since their bits are the same."""
    reply = api.call("POST", "/v1/completions", {"seed": 7, "return_token_ids": True, **fields})
    return [(c["token_ids"], c["text"], c["finish_reason"], c.get("stop_reason"), c.get("logprobs"))
            for c in reply["choices"]], reply["usage"]["completion_tokens"]


def together(api):
    with concurrent.futures.ThreadPoolExecutor(len(REQUESTS)) as pool:
        asked = {name: pool.submit(ask, api, fields) for name, fields in REQUESTS.items()}
        return {name: a.result() for name, a in asked.items()}


def counters(api):
    m = api.metrics()
    return {name: m[metric] for name, metric in COUNTERS.items()}


def stop_ids(api, wanted):
    """The greedy answer, ended at some token that stands in the middle of it."""
    ids = wanted["greedy"][0][0][0]
    return [ask(api, {**REQUESTS["greedy"], "stop_token_ids": [ids[k]], "min_tokens": least})
            for k, least in ((9, 0), (10, 0), (11, 0), (40, 12), (41, 30))]


@pytest.fixture(scope="module")
def plain():
    with Engine(*FLAGS) as e:
        name_stop(e.api)
        answers = together(e.api)
        answers["stop ids"] = stop_ids(e.api, answers)
        assert counters(e.api) == dict.fromkeys(COUNTERS, 0)
        return answers


def assert_same(wanted, got, parts=5):
    """`parts` 3: without log-probabilities, whose last bits are others with several ranks, and after a restart."""
    for name in REQUESTS:
        assert [c[:parts] for c in got[name][0]] == [c[:parts] for c in wanted[name][0]], name
        assert got[name][1] == wanted[name][1], name


@pytest.mark.parametrize("flags", [config(), config(7) + ["--no-enable-prefix-caching", "--max-num-batched-tokens", "16",
                                                          "--max-num-seqs", "8"]][:1 if SANITIZED else 2])
def test_every_answer_is_that_without(plain, flags):
    with Engine(*FLAGS, *flags) as e:
        assert "async_depth=0" in e.log()
        assert_same(plain, together(e.api))
        made = counters(e.api)
        assert 0 < made["drafts"] <= made["draft_tokens"] > made["accepted_tokens"] > 0
        assert stop_ids(e.api, plain) == plain["stop ids"]
        assert ask(e.api, REQUESTS["one of two"]) == plain["one of two"]
        wait_until(lambda: e.api.metric("vllm:kv_cache_usage_perc") == 0, 10, "the end of the last request")


def test_what_repeats_itself_takes_fewer_steps(plain):
    fields = REQUESTS["greedy"]
    with Engine(*FLAGS, *config(8)) as e:
        steps = e.api.metric("tercet_steps_total")
        got = ask(e.api, fields)
        steps = e.api.metric("tercet_steps_total") - steps
        assert got == plain["greedy"]
        made = counters(e.api)
    assert made["accepted_tokens"] > 0
    assert steps <= fields["max_tokens"] + 3 - made["accepted_tokens"]


@pytest.mark.skipif(SANITIZED, reason="one configuration of each kind")
def test_two_ranks_few_blocks_and_swap_space(plain):
    tiny = ["--max-model-len", "330", "--kv-cache-memory", "2MiB"]
    for flags in (tiny, [*config(16, 2, 1), *tiny, "--swap-space", "0.004", "--block-size", "8"],
                  ["--tensor-parallel-size", "2", "--max-model-len", "330", "--kv-cache-memory", "1MiB"]):
        with Engine(*FLAGS, *config(), *flags) as e:
            ranks = "--tensor-parallel-size" in flags
            assert_same(plain, together(e.api), 3 if ranks else 5)
            m = e.api.metrics()
            assert m["vllm:num_preemptions_total"] > 0
            assert (m["tercet_swapped_in_blocks_total"] > 0) == ("--swap-space" in flags)
            assert counters(e.api)["accepted_tokens"] > 0


@pytest.mark.skipif(SANITIZED, reason="fault/kill kills processes")
def test_a_killed_process_changes_no_token(plain):
    with Engine(*FLAGS, *config()) as e:
        for name in ("tercet-worker", "tercet-scheduler", "tercet-detok"):
            assert_same(plain, killed_amid(e, name, lambda: together(e.api), 4), 3)
        assert counters(e.api)["accepted_tokens"] > 0


def test_streams_and_sessions(plain):
    turns = ["The cat sat on the mat. The cat sat on", " the mat. The dog sat on the mat. The", " cat sat"]

    def talk(api, name):
        said = []
        for i, prompt in enumerate(turns):
            reply = api.completions(prompt, temperature=0, max_tokens=24, return_token_ids=True,
                                    ignore_eos=True, session_id=name, session_start=i == 0)
            said.append(reply["choices"][0]["token_ids"])
        return said

    with Engine(*FLAGS, *config()) as e:
        stream = joined(e.api.stream(seed=7, return_token_ids=True, **REQUESTS["greedy"]))[0]
        ids, text = plain["greedy"][0][0][:2]
        assert (stream["token_ids"], stream["text"]) == (ids, text)
        with_drafts = talk(e.api, "a")
    with Engine(*FLAGS) as e:
        assert talk(e.api, "a") == with_drafts


@pytest.mark.parametrize("text, says", [
    ("{", "no JSON"), ("[]", "must be an object"), ('{"method":"ngram"}', "num_speculative_tokens"),
    ('{"num_speculative_tokens":3}', '"method" is missing'),
    ('{"method":"eagle","num_speculative_tokens":3}', 'must be "ngram"'),
    ('{"method":"ngram","num_speculative_tokens":0}', "between 1 and 32"),
    ('{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":2,"prompt_lookup_min":3}', "prompt_lookup_min"),
    ('{"method":"ngram","num_speculative_tokens":3,"prompt_lookup":2}', '"prompt_lookup" is none of')])
def test_a_wrong_setting_is_refused(text, says):
    status, output = engines.run("serve", engines.DEMO, "--speculative-config", text)
    assert status != 0 and says in output, output
