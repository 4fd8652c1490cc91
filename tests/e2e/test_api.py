"""What a client of the HTTP API may rely on: streams, stops, log-probabilities, n, echo, seeds, usage."""
import concurrent.futures
import json
import math
import time

import pytest

from api import ApiError, joined
from engine import Engine, wait_until

PROMPT = "Once upon a time"
# Sampled on purpose, and long enough to meet stops.
SAMPLED = {"temperature": 0.9, "seed": 7, "max_tokens": 60, "ignore_eos": True}


def choice(reply, index=0):
    return reply["choices"][index]


# ---------------------------------------------------------------- streams

@pytest.mark.parametrize("extra", [{}, {"stop": ["king", "and the"]}, {"logprobs": 2}, {"n": 3},
                                   {"echo": True}, {"echo": True, "logprobs": 1},
                                   {"stop": "the", "include_stop_str_in_output": True}])
def test_stream_says_what_the_whole_reply_says(api, extra):
    fields = dict(SAMPLED, return_token_ids=True, **extra)
    whole = api.completions(PROMPT, **fields)
    streamed = joined(api.stream(prompt=PROMPT, **fields))
    assert len(streamed) == len(whole["choices"])
    for c in whole["choices"]:
        s = streamed[c["index"]]
        assert s["text"] == c["text"]
        assert s["token_ids"] == c["token_ids"]
        assert s["finish_reason"] == c["finish_reason"] and s["stop_reason"] == c["stop_reason"]
        if "logprobs" in extra:
            assert s["tokens"] == c["logprobs"]["tokens"]
            assert s["text_offset"] == c["logprobs"]["text_offset"]
            assert s["token_logprobs"] == pytest.approx(c["logprobs"]["token_logprobs"], abs=1e-3)


def test_chat_stream_says_what_the_whole_reply_says(api):
    messages = [{"role": "user", "content": "Tell me a story about a fox."}]
    whole = api.chat(messages, **SAMPLED)
    stream = api.stream("/v1/chat/completions", messages=messages, stream_options={"include_usage": True}, **SAMPLED)
    events = list(stream)
    assert stream.done
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert joined(events)[0]["text"] == choice(whole)["message"]["content"]
    assert events[-1]["choices"] == []
    for usage in (whole["usage"], events[-1]["usage"]):
        assert usage["completion_tokens"] == 60
        assert usage["total_tokens"] == usage["prompt_tokens"] + 60


def test_chat_follows_the_models_template(api, reference):
    turns = [{"role": "user", "content": "Tell me a story about a fox."}]
    wanted = next(p for p in reference["prompts"] if p["kind"] == "chat" and "fox" in p["text"])
    reply = api.chat(turns, temperature=0, max_tokens=48, ignore_eos=True, return_token_ids=True)
    assert reply["prompt_token_ids"] == wanted["ids"]
    assert choice(reply)["token_ids"] == wanted["output_ids"]


def test_tokens_stream_as_they_come(api):
    for _ in range(20):
        times = [time.monotonic() for _ in api.stream(prompt=PROMPT, **dict(SAMPLED, max_tokens=400))]
        # a machine that stands still for the 50 ms that this takes merges them, but not every time
        if len(times) > 20 and times[-1] > times[0]:
            return
    pytest.fail("news were held back")


# ---------------------------------------------------------------- stops

def test_stop_strings_end_the_text_in_front_of_them(api):
    full = choice(api.completions(PROMPT, temperature=0, max_tokens=48, ignore_eos=True))["text"]
    # one in the middle of a token, one over several tokens, one that never comes
    for begin, length in ((10, 2), (17, 9), (30, 14)):
        stop = full[begin:begin + length]
        begin = full.find(stop)
        reply = choice(api.completions(PROMPT, temperature=0, max_tokens=48, stop=["never there", stop]))
        assert reply["text"] == full[:begin]
        assert reply["finish_reason"] == "stop" and reply["stop_reason"] == stop
        reply = choice(api.completions(PROMPT, temperature=0, max_tokens=48, stop=stop,
                                       include_stop_str_in_output=True))
        assert reply["text"] == full[:begin] + stop
    reply = choice(api.completions(PROMPT, temperature=0, max_tokens=48, stop="never there", ignore_eos=True))
    assert reply["text"] == full and reply["finish_reason"] == "length"


def test_the_stop_that_completes_first_wins(api):
    full = choice(api.completions(PROMPT, temperature=0, max_tokens=48, ignore_eos=True))["text"]
    late, early = full[10:25], full[12:15]
    reply = choice(api.completions(PROMPT, temperature=0, max_tokens=48, stop=[late, early]))
    assert reply["stop_reason"] == early and reply["text"] == full[:full.find(early)]


def test_usage_counts_only_up_to_the_stop(api):
    ids = api.greedy_ids(PROMPT, 48)
    text = choice(api.completions(PROMPT, temperature=0, max_tokens=48, ignore_eos=True))["text"]
    reply = api.completions(PROMPT, temperature=0, max_tokens=48, stop=text[12:16], return_token_ids=True)
    count = reply["usage"]["completion_tokens"]
    assert choice(reply)["token_ids"] == ids[:count] and count < 48


def test_stop_token_ids_and_min_tokens(api):
    ids = api.greedy_ids(PROMPT, 30)
    stop = ids[5]
    reply = api.completions(PROMPT, temperature=0, max_tokens=30, stop_token_ids=[stop], return_token_ids=True)
    first = ids.index(stop)
    assert choice(reply)["token_ids"] == ids[:first + 1]
    assert choice(reply)["finish_reason"] == "stop" and choice(reply)["stop_reason"] == stop
    reply = api.completions(PROMPT, temperature=0, max_tokens=30, min_tokens=20, stop_token_ids=[stop],
                            return_token_ids=True)
    assert reply["usage"]["completion_tokens"] >= 20
    assert stop not in choice(reply)["token_ids"][:20]


# ---------------------------------------------------------------- seeds, sampling

def test_seeds_give_the_same_alone_and_in_company(api):
    def ask(seed):
        return choice(api.completions(PROMPT, temperature=1.0, top_p=0.9, seed=seed, max_tokens=40, ignore_eos=True,
                                      return_token_ids=True))["token_ids"]
    alone = [ask(seed) for seed in range(8)]
    assert len(set(map(tuple, alone))) > 4, "different seeds give different texts"
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        together = [pool.submit(ask, seed % 8) for seed in range(32)]
        for i, got in enumerate(together):
            assert got.result() == alone[i % 8], "seed %d" % (i % 8)


def test_n_gives_different_answers_and_one_usage(api):
    reply = api.completions(PROMPT, n=4, return_token_ids=True, **SAMPLED)
    assert [c["index"] for c in reply["choices"]] == [0, 1, 2, 3]
    assert len({c["text"] for c in reply["choices"]}) > 1
    assert reply["usage"]["completion_tokens"] == 4 * 60
    assert reply["usage"]["prompt_tokens"] == len(choice(reply)["prompt_token_ids"])
    assert choice(api.completions(PROMPT, **SAMPLED))["text"] == choice(reply)["text"]


def test_list_of_prompts_is_indexed_prompt_major(api):
    prompts = [PROMPT, "The old king", [4091, 442, 308]]
    reply = api.completions(prompts, n=2, max_tokens=4, temperature=0)
    assert [c["index"] for c in reply["choices"]] == list(range(6))
    for i, prompt in enumerate(prompts):
        alone = choice(api.completions(prompt, max_tokens=4, temperature=0))["text"]
        assert reply["choices"][2 * i]["text"] == alone == reply["choices"][2 * i + 1]["text"]


def test_logit_bias_forces_and_forbids(api):
    ids = api.greedy_ids(PROMPT, 5)
    forced = choice(api.completions(PROMPT, temperature=0, max_tokens=5, logit_bias={"442": 100},
                                    return_token_ids=True))["token_ids"]
    assert forced == [442] * 5
    without = choice(api.completions(PROMPT, temperature=0, max_tokens=1, logit_bias={str(ids[0]): -100},
                                     return_token_ids=True))["token_ids"]
    assert without[0] != ids[0]


@pytest.mark.parametrize("chat", [False, True])
def test_what_llama_servers_clients_send_for_nothing(api, chat):
    """-1 tokens are as many as fit; a grammar and a list of biases that are empty are none."""
    room = api.call("GET", "/v1/models")["data"][0]["max_model_len"]
    fields = {"max_tokens": -1, "logit_bias": [], "grammar": "", "temperature": 0, "ignore_eos": True}
    fields.update({"messages": [{"role": "user", "content": PROMPT}]} if chat else {"prompt": PROMPT})
    reply = api.call("POST", "/v1/chat/completions" if chat else "/v1/completions", fields)
    assert reply["choices"][0]["finish_reason"] == "length" and reply["usage"]["total_tokens"] == room


# ---------------------------------------------------------------- logprobs, echo

def test_logprobs_list_the_token_and_the_best(api):
    reply = choice(api.completions(PROMPT, logprobs=3, return_token_ids=True, **SAMPLED))
    got = reply["logprobs"]
    assert len(got["tokens"]) == len(got["token_logprobs"]) == len(got["top_logprobs"]) == 60
    text = ""
    for token, logprob, top, offset in zip(got["tokens"], got["token_logprobs"], got["top_logprobs"],
                                           got["text_offset"]):
        assert 3 <= len(top) <= 4 and logprob <= 0
        assert top[token] == pytest.approx(logprob, abs=1e-6)
        assert offset <= len(text) + 1
        text += token
    assert sum(map(math.exp, reply["logprobs"]["top_logprobs"][0].values())) <= 1.0001


def test_chat_logprobs_have_bytes(api):
    reply = choice(api.chat([{"role": "user", "content": "Tell me a story."}], logprobs=True, top_logprobs=2,
                            temperature=0, max_tokens=10))
    content = reply["logprobs"]["content"]
    assert len(content) == 10
    joined_bytes = b"".join(bytes(c["bytes"]) for c in content)
    assert joined_bytes.decode(errors="replace").startswith(reply["message"]["content"][:20])
    for c in content:
        assert len(c["top_logprobs"]) == 2
        assert c["top_logprobs"][0]["logprob"] >= c["top_logprobs"][1]["logprob"]


def test_echo_repeats_the_prompt(api):
    reply = choice(api.completions(PROMPT, echo=True, temperature=0, max_tokens=4, logprobs=1))
    alone = choice(api.completions(PROMPT, temperature=0, max_tokens=4, logprobs=1))
    assert reply["text"].endswith(PROMPT + alone["text"])
    assert reply["logprobs"]["token_logprobs"][0] is None
    assert reply["logprobs"]["token_logprobs"][-4:] == pytest.approx(alone["logprobs"]["token_logprobs"], abs=1e-4)


def test_echo_without_new_tokens_scores_the_prompt(api):
    reply = api.completions(PROMPT, echo=True, max_tokens=0, logprobs=1, return_token_ids=True)
    assert reply["usage"]["completion_tokens"] == 0
    got = choice(reply)["logprobs"]["token_logprobs"]
    assert got[0] is None and all(x <= 0 for x in got[1:])
    assert len(got) == len(choice(reply)["prompt_token_ids"])


@pytest.mark.parametrize("times", [1, 1000])  # the long one is read and answered on a thread of its own
def test_tokenize_and_detokenize_are_inverse(api, times):
    text = "The na\u00efve king said: \u201cI have 3 sons!\u201d \U0001f600" * times
    ids = api.call("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    assert api.call("POST", "/detokenize", {"tokens": ids})["prompt"] == text


# ---------------------------------------------------------------- prefix cache, limits, connections

def test_prefix_cache_is_counted_in_usage(api):
    ids = [4091] + [300 + k for k in range(99)]
    api.completions(ids, max_tokens=1, temperature=0)
    reply = api.completions(ids, max_tokens=1, temperature=0)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] >= 80
    other = api.completions(ids, max_tokens=1, temperature=0, cache_salt="another tenant")
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_length_is_limited_by_the_context(api):
    ids = [4091] + [300] * 499
    reply = api.completions(ids, max_tokens=12, temperature=0, ignore_eos=True)
    assert reply["usage"]["completion_tokens"] == 512 - 500
    assert choice(reply)["finish_reason"] == "length"
    with pytest.raises(ApiError) as error:
        api.completions(ids, max_tokens=13, temperature=0)
    assert error.value.status == 400
    assert all(number in error.value.message for number in ("512", "500", "13", "12"))


def test_disconnect_ends_the_request_at_once(engine):
    api = engine.api
    before = api.metrics()
    # seconds of work, so that a slow client is still in the middle of it
    stream = api.stream(prompt=PROMPT, max_tokens=480, temperature=0.5, ignore_eos=True, n=64)
    next(stream)
    stream.close()
    wait_until(lambda: api.metric("vllm:num_requests_running") == 0, 20, "the end of the requests")
    made = api.metric("vllm:generation_tokens_total") - before["vllm:generation_tokens_total"]
    assert made < 64 * 400, "the requests went on without a reader"
    time.sleep(0.2)
    assert api.metric("vllm:generation_tokens_total") - before["vllm:generation_tokens_total"] == made


def test_disconnect_without_stream_ends_the_request_too(engine):
    api = engine.api
    connection, aborted = api.connect(), api.metric("tercet_request_success_abort_total")
    connection.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT, "max_tokens": 480, "n": 64,
                                                              "ignore_eos": True}),
                       {"Content-Type": "application/json"})
    wait_until(lambda: api.metric("vllm:num_requests_running") > 0, 20, "the start of the requests")
    connection.close()
    wait_until(lambda: api.metric("vllm:num_requests_running") == 0, 20, "the end of the requests")
    assert api.metric("tercet_request_success_abort_total") >= aborted + 60, "they went on without a reader"


def test_connections_are_kept_alive(api):
    connection = api.connect()
    for _ in range(3):
        status, _, body = api.raw("GET", "/v1/models", connection=connection)
        assert status == 200 and json.loads(body)["object"] == "list"
        local = connection.sock.getsockname()
    assert connection.sock.getsockname() == local
    connection.close()


def test_page_version_health_metrics(api):
    status, headers, body = api.raw("GET", "/")
    assert status == 200 and headers["Content-Type"].startswith("text/html") and b"<html" in body
    assert "version" in api.call("GET", "/version")
    assert api.raw("GET", "/health")[0] == 200
    metrics = api.metrics()
    for name in ("vllm:num_requests_running", "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_count",
                 "tercet_device_busy_ratio", "tercet_chunks_sent_total"):
        assert name in metrics, name


def test_api_keys_guard_v1():
    with Engine("--api-key", "secret", "--served-model-name", "storyteller") as e:
        body = {"prompt": "x", "max_tokens": 1}
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(ApiError) as error:
                e.api.call("POST", "/v1/completions", body, headers)
            assert error.value.status == 401
        reply = e.api.call("POST", "/v1/completions", body, {"Authorization": "Bearer secret"})
        assert reply["model"] == "storyteller"
        assert e.api.healthy()


def test_several_gateways_share_one_engine():
    with Engine("--api-server-count", 2) as e:
        assert sum(n.startswith("tercet-gateway") for n in e.pids().values()) == 2
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            texts = [pool.submit(e.api.completions, PROMPT, temperature=0, max_tokens=16) for _ in range(32)]
            assert len({choice(t.result())["text"] for t in texts}) == 1
        # counters are summed over the gateways, whichever answers; the scheduler may hear of an end after the client
        name = "vllm:request_success_total{finished_reason=\"length\"}"
        wait_until(lambda: e.api.metric(name) == 32, 20, "the count of all requests")


def test_preempted_requests_go_on_where_they_were():
    """A pool too small for all of them: some are dropped and computed again, none notices. They come in one message, so
    that they run together however slow a client is."""
    with Engine("--dtype", "float32", "--kv-cache-memory", "2MiB", "--max-model-len", 256,
                "--max-num-seqs", 32) as e:
        prompts = ["Story %d: the king" % k for k in range(12)]
        alone = [e.api.greedy_ids(p, 100) for p in prompts]
        together = e.api.completions(prompts, temperature=0, max_tokens=100, ignore_eos=True, return_token_ids=True)
        assert [c["token_ids"] for c in together["choices"]] == alone
        assert e.api.metric("vllm:num_preemptions_total") > 0


def test_templates_that_read_parts_alone_get_parts(tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{% if m.role == 'user' %}{% for p in m.content if p is mapping %}<{{ p.text }}>{% endfor %}"
                        "{% else %}{{ m.content }}{% endif %}{% endfor %}")
    with Engine("--chat-template", template) as e:
        def prompt(*messages):
            tokens = e.api.call("POST", "/tokenize", {"messages": messages})["tokens"]
            return e.api.call("POST", "/detokenize", {"tokens": tokens})["prompt"]

        parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]
        assert prompt({"role": "user", "content": "a"}) == "<a>"
        assert prompt({"role": "system", "content": parts}, {"role": "user", "content": parts}) == "a\nb\nc<a><b><c>"
        with pytest.raises(ApiError, match="is a kind of content that this model does not take"):
            prompt({"role": "user", "content": [*parts, {"type": "image_url", "image_url": {"url": "x"}}]})
