"""llama-server's own API: its completions say what /v1/completions says, whole and streamed, whatever dies meanwhile; code is
filled in by the tokenizer's own tokens; what its clients send is taken, and what is not here is refused by name."""
import concurrent.futures
import json

import pytest

from api import ApiError
from engine import DEMO, Engine, killed_amid, wait_until
from lora_files import LAYERS, Adapter

PROMPT = "Once upon a time"
SAMPLED = {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "seed": 11}
# as SillyTavern and others send them: all there are, most of them off
EVERYTHING = {
    "dynatemp_range": 0, "dynatemp_exponent": 1, "typical_p": 1, "top_n_sigma": -1, "xtc_probability": 0, "xtc_threshold": 0.1,
    "repeat_penalty": 1, "repeat_last_n": 64, "presence_penalty": 0, "frequency_penalty": 0, "dry_multiplier": 0, "dry_base": 1.75,
    "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n", ":", "\"", "*"], "mirostat": 0,
    "mirostat_tau": 5, "mirostat_eta": 0.1, "n_keep": 0, "n_discard": 0, "min_keep": 0, "n_probs": 0, "post_sampling_probs": False,
    "grammar": "", "logit_bias": [], "ignore_eos": False, "cache_prompt": True, "id_slot": -1, "lora": [], "stop": [],
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    "smoothing_factor": 0, "truncation_length": 4096, "custom_token_bans": "", "return_progress": False, "n_indent": 0}
FIM = {"<|user|>": "<|fim_prefix|>", "<|assistant|>": "<|fim_suffix|>", "<|end|>": "<|fim_middle|>"}
BOS, PREFIX, SUFFIX, MIDDLE = 4091, 4093, 4094, 4095


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    adapter = Adapter(1, {"self_attn.q_proj": range(LAYERS), "self_attn.o_proj": range(LAYERS)})
    folder = adapter.write(tmp_path_factory.mktemp("llama") / "first")
    with Engine("--dtype", "float32", "--enable-lora", "--lora-modules", "first=%s" % folder, "--served-model-name", "demo") as e:
        yield e


@pytest.fixture(scope="module")
def api(engine):
    return engine.api


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    """The demo with a tokenizer that has the tokens for filling in, in place of those of chats."""
    folder = tmp_path_factory.mktemp("coder") / "coder"
    folder.mkdir()
    for name in ("config.json", "generation_config.json", "special_tokens_map.json", "model.safetensors"):
        (folder / name).symlink_to(DEMO / name)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (DEMO / name).read_text()
        for old, new in FIM.items():
            assert old in text
            text = text.replace(old, new)
        (folder / name).write_text(text)
    with Engine("--dtype", "float32", model=folder) as e:
        yield e.api


def native(api, prompt=PROMPT, path="/completion", **fields):
    return api.call("POST", path, {"prompt": prompt, **fields})


def streamed(api, path="/completion", **fields):
    """The events of a stream; what they say together is in the last one."""
    events = list(api.stream(path, **fields))
    assert all(e["stop"] is False for e in events[:-1]) and events[-1]["stop"] is True
    last = dict(events[-1])
    for field in ("content", "tokens"):
        for e in reversed(events[:-1]):
            last[field] = e[field] + last[field]
    probs = [p for e in events for p in e.get("completion_probabilities", [])]
    return dict(last, completion_probabilities=probs) if probs else last


def plain(reply):
    """Without what differs from request to request."""
    reply = {k: v for k, v in reply.items() if k not in ("timings", "tokens_cached", "tokens")}
    return dict(reply, generation_settings={k: v for k, v in reply["generation_settings"].items() if k != "stream"})


@pytest.mark.parametrize("fields, same", [
    ({"n_predict": 40, "temperature": 0}, {"max_tokens": 40, "temperature": 0}),
    ({"n_predict": 60, **SAMPLED}, {"max_tokens": 60, **SAMPLED}),
    ({"n_predict": 60, **EVERYTHING, **SAMPLED}, {"max_tokens": 60, **SAMPLED}),
    ({"n_predict": 40, "seed": 5}, {"max_tokens": 40, "seed": 5}),
    ({"temperature": 0}, {"max_tokens": -1, "temperature": 0}),
    ({"n_predict": 60, **SAMPLED, "repeat_penalty": 1.3, "presence_penalty": 0.5}, {
        "max_tokens": 60, **SAMPLED, "repetition_penalty": 1.3, "presence_penalty": 0.5}),
    ({"n_predict": 60, **SAMPLED, "samplers": ["top_k", "temperature"]}, {
        "max_tokens": 60, **SAMPLED, "top_p": 1, "min_p": 0}),
    ({"n_predict": 40, "temperature": 0, "stop": ["sons", ""]}, {"max_tokens": 40, "temperature": 0, "stop": ["sons"]}),
    ({"n_predict": 40, "temperature": 0, "logit_bias": [[" king", False], [308, -2]]}, {
        "max_tokens": 40, "temperature": 0, "logit_bias": {"753": -100, "308": -2}}),
    ({"n_predict": 40, "temperature": 0, "logit_bias": {" king": False, "308": -2}}, {
        "max_tokens": 40, "temperature": 0, "logit_bias": {"753": -100, "308": -2}}),
    ({"n_predict": 80, "temperature": 0, "json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}, {
        "max_tokens": 80, "temperature": 0, "json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}),
    ({"n_predict": 20, "temperature": 0, "grammar": 'root ::= "a" [b-d]+'}, {"max_tokens": 20, "temperature": 0, "grammar": 'root ::= "a" [b-d]+'}),
    ({"n_predict": 20, "temperature": 0, "lora": [{"id": 0, "scale": 1}]}, {"max_tokens": 20, "temperature": 0, "model": "first"}),
    ({"n_predict": 20, "temperature": 0, "lora": [{"id": 0, "scale": 0}]}, {"max_tokens": 20, "temperature": 0}),
])
def test_completions_say_the_same(api, fields, same):
    reply = native(api, **fields, return_tokens=True)
    choice = api.completions(PROMPT, return_token_ids=True, **same)["choices"][0]
    assert reply["content"] == choice["text"] and reply["tokens"] == choice["token_ids"]
    assert reply["tokens_predicted"] == len(choice["token_ids"])
    stop = choice["stop_reason"] if isinstance(choice["stop_reason"], str) else ""
    assert reply["stopping_word"] == stop
    assert reply["stop_type"] == ("word" if stop else {"length": "limit", "stop": "eos"}[choice["finish_reason"]])
    stream = streamed(api, prompt=PROMPT, **fields)
    assert stream["tokens"] == reply["tokens"] and plain(stream).keys() == plain(reply).keys()
    if "seed" in fields:
        assert plain(stream) == plain(reply)
    assert plain(native(api, path="/completions", **{"seed": 1, **fields})) == plain(native(api, **{"seed": 1, **fields}))


def test_probabilities_are_those_of_completions(api):
    reply = native(api, n_predict=12, temperature=0, n_probs=4)
    same = api.completions(PROMPT, max_tokens=12, temperature=0, logprobs=4)["choices"][0]["logprobs"]
    probs = reply["completion_probabilities"]
    assert [p["token"] for p in probs] == same["tokens"] and len(probs) == 12
    assert [p["logprob"] for p in probs] == same["token_logprobs"]
    for p, top in zip(probs, same["top_logprobs"]):
        assert bytes(p["bytes"]).decode() == p["token"] and len(p["top_logprobs"]) == 4
        assert {t["token"]: t["logprob"] for t in p["top_logprobs"]} == top
    assert api.call("POST", "/detokenize", {"tokens": [p["id"] for p in probs]})["content"] == reply["content"]
    assert streamed(api, prompt=PROMPT, n_predict=12, temperature=0, n_probs=4)["completion_probabilities"] == probs


def test_a_seed_that_was_drawn_gives_the_answer_again(api):
    first, other = (native(api, n_predict=30, temperature=1.5, seed=-1) for _ in range(2))
    assert first["content"] != other["content"]
    assert native(api, n_predict=30, temperature=1.5, seed=first["generation_settings"]["seed"])["content"] == first["content"]


def test_prompts_come_in_every_form(api):
    ids = api.call("POST", "/tokenize", {"content": PROMPT, "add_special": True})["tokens"]
    asked = {"n_predict": 20, "temperature": 0}
    want = native(api, **asked)
    for prompt in (ids, [ids[0], PROMPT], {"prompt_string": PROMPT}, [PROMPT], [ids]):
        reply = native(api, prompt, **asked)
        assert reply["content"] == want["content"] and reply["prompt"] == want["prompt"], prompt
    replies = native(api, [PROMPT, ids, [ids[0], PROMPT], {"prompt_string": "The dog"}], **asked, n_cmpl=2)
    assert [r["index"] for r in replies] == list(range(8))
    assert [r["content"] for r in replies[:6]] == [want["content"]] * 6
    assert replies[6]["content"] == native(api, "The dog", **asked)["content"] != want["content"]
    by_index = {}
    for e in api.stream("/completion", prompt=[PROMPT, "The dog"], **asked):
        by_index[e["index"]] = by_index.get(e["index"], "") + e["content"]
    assert by_index == {0: want["content"], 1: replies[6]["content"]}


def test_the_context_ends_an_answer_and_says_so(api):
    reply = native(api, n_predict=100000, temperature=0, ignore_eos=True)
    assert reply["truncated"] is True and reply["stop_type"] == "limit"
    assert reply["tokens_evaluated"] + reply["tokens_predicted"] == reply["generation_settings"]["n_ctx"] == 512
    assert native(api, n_predict=5, temperature=0, ignore_eos=True)["truncated"] is False
    with pytest.raises(ApiError) as e:
        native(api, [5] * 600)
    assert e.value.status == 400 and e.value.error["type"] == "exceed_context_size_error" and e.value.error["code"] == 400


def test_nothing_is_predicted_where_nothing_is_asked_for(api):
    reply = native(api, "A long text that is read ahead of its time, for it will be asked about before long", n_predict=0)
    assert reply["content"] == "" and reply["tokens_predicted"] == 0 and reply["stop_type"] == "limit"
    again = native(api, "A long text that is read ahead of its time, for it will be asked about before long", n_predict=1)
    assert again["tokens_cached"] == again["timings"]["cache_n"] > 0
    assert again["timings"]["prompt_n"] + again["tokens_cached"] == again["tokens_evaluated"]


def test_only_the_fields_that_are_asked_for(api):
    wanted = ["content", "timings/predicted_n", "generation_settings/n_predict", "no/such", ""]
    reply = native(api, n_predict=7, temperature=0, ignore_eos=True, response_fields=wanted)
    assert set(reply) == set(wanted[:3]) and reply["timings/predicted_n"] == reply["generation_settings/n_predict"] == 7
    last = list(api.stream("/completion", prompt=PROMPT, n_predict=7, response_fields=["stop", "tokens_predicted"]))[-1]
    assert set(last) == {"stop", "tokens_predicted"}


def test_a_line_that_is_indented_too_little_ends_an_answer(api):
    lines = {"grammar": r'root ::= "a\n    b\n      c\n  d\n    e"', "temperature": 0, "n_predict": 60}
    assert native(api, **lines)["content"] == "a\n    b\n      c\n  d\n    e"
    for reply in (native(api, n_indent=4, **lines), streamed(api, prompt=PROMPT, n_indent=4, **lines)):
        assert reply["content"] == "a\n    b\n      c\n  " and reply["stop_type"] == "limit" and reply["truncated"] is False
        assert reply["has_new_line"] is True
    wait_until(lambda: api.metric("vllm:num_requests_running") == 0, 10, "the end of what nobody waits for")


@pytest.mark.parametrize("field, value", [
    ("typical_p", 0.9), ("top_n_sigma", 1), ("dynatemp_range", 0.5), ("xtc_probability", 0.1), ("dry_multiplier", 0.8), ("mirostat", 1),
    ("mirostat", 2), ("adaptive_target", 0.3), ("min_keep", 5), ("reasoning_budget_tokens", 0), ("grammar_lazy", True),
    ("lora", [{"id": 0, "scale": 0.5}]), ("lora", [{"id": 7, "scale": 1}]), ("samplers", ["top_k", "magic"]), ("n_probs", 21),
    ("logit_bias", [[" king", 200]]), ("prompt", {"prompt_string": "a", "multimodal_data": ["AAAA"]}), ("n_predict", "many"),
    ("temperature", 1000), ("stream", "yes"), ("response_fields", {}), ("stop", [1])])
def test_what_is_not_here_is_refused_by_name(api, field, value):
    with pytest.raises(ApiError) as e:
        native(api, **{field: value})
    assert e.value.status == 400 and e.value.error["code"] == 400 and e.value.error["type"] == "invalid_request_error"
    assert "Field '%s'" % field in e.value.message and e.value.error["param"] == field


def test_windows_of_penalties_are_refused(api):
    with pytest.raises(ApiError) as e:
        native(api, repeat_penalty=1.1, repeat_last_n=64)
    assert "Field 'repeat_last_n'" in e.value.message
    with pytest.raises(ApiError) as e:
        native(api, n_probs=3, post_sampling_probs=True)
    assert "Field 'post_sampling_probs'" in e.value.message
    off = native(api, n_predict=30, temperature=0, repeat_penalty=1.5, repeat_last_n=0)
    assert off["content"] == native(api, n_predict=30, temperature=0)["content"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"prompt": "a"', b'{"prompt": "\xff"}', b"null", b'{"prompt": "\\ud800"}',
                                  b'{"prompt": ' + b"[" * 60 + b"]" * 60 + b"}", b'{"prompt": ' + b"[" * 500 + b"]" * 500 + b"}",
                                  b'{"prompt": "a", "logit_bias": ' + json.dumps([[i, 1] for i in range(2000)]).encode() + b"}"])
@pytest.mark.parametrize("path", ["/completion", "/infill", "/embedding", "/apply-template"])
def test_hostile_bodies_are_refused(api, path, body):
    status, _, text = api.raw("POST", path, body, {"Content-Type": "application/json"})
    error = json.loads(text)["error"]
    assert status == error["code"] and status in (400, 501) and error["message"], text


def test_the_answer_outlives_every_process(engine, api):
    want = native(api, n_predict=400, ignore_eos=True, **SAMPLED)
    for name in ("tercet-worker", "tercet-scheduler", "tercet-detok"):
        reply = killed_amid(engine, name, lambda: native(api, n_predict=400, ignore_eos=True, **SAMPLED), 1)
        assert plain(reply) == plain(want), name
        reply = killed_amid(engine, name, lambda: streamed(api, prompt=PROMPT, n_predict=400, ignore_eos=True, **SAMPLED), 1)
        assert plain(reply) == plain(want), name


def test_a_client_that_goes_ends_its_request(api):
    stream = api.stream("/completion", prompt=PROMPT, ignore_eos=True)
    next(stream)
    stream.close()
    wait_until(lambda: api.metric("vllm:num_requests_running") == 0, 10, "the end of the request")
    aborted = [v for k, v in api.metrics().items() if k.startswith("vllm:request_success_total") and "abort" in k]
    assert aborted and aborted[0] >= 1


def test_many_at_once(api):
    want = native(api, n_predict=30, **SAMPLED)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(lambda i: (native if i % 2 else lambda a, **f: streamed(a, prompt=PROMPT, **f))(api, n_predict=30, **SAMPLED), range(24)))
    assert all(plain(r) == plain(want) for r in replies)


# ---------------------------------------------------------------- filling in


def ids_of(api, text, **fields):
    return api.call("POST", "/tokenize", {"content": text, "parse_special": False, **fields})["tokens"]


def test_code_is_filled_in_by_the_tokens_for_it(coder):
    asked = {"n_predict": 24, "temperature": 0, "return_tokens": True}
    before, behind = "There was a king <|fim_middle|> who had ", " and they lived happily."
    body = {"input_prefix": before, "input_suffix": behind, "prompt": "three", **asked}
    reply = coder.call("POST", "/infill", body)
    ids = [BOS, PREFIX] + ids_of(coder, before) + ids_of(coder, "three") + [SUFFIX] + ids_of(coder, behind) + [MIDDLE]
    assert MIDDLE not in ids_of(coder, before), "a token that is written in a text is text"
    assert reply["tokens_evaluated"] == len(ids)
    assert reply["tokens"] == native(coder, ids, **asked)["tokens"]
    assert streamed(coder, "/infill", **body)["tokens"] == reply["tokens"]
    extra = [{"filename": "a.txt", "text": "The old king."}, {"text": "His sons."}]
    mark = "\n\n--- snippet ---\n\n"
    front = [t for e in extra for t in ids_of(coder, mark) + ids_of(coder, e["text"])]
    reply = coder.call("POST", "/infill", {**body, "input_extra": extra})
    assert reply["tokens"] == native(coder, ids[:1] + front + ids[1:], **asked)["tokens"]


def test_what_is_far_from_the_gap_is_left_out(coder):
    text = " ".join("word%d" % i for i in range(400))
    body = {"input_prefix": text + " the end", "input_suffix": "and then " + text, "input_extra": [{"text": text}], "temperature": 0, "n_predict": 16}
    reply = coder.call("POST", "/infill", body)
    assert reply["tokens_evaluated"] <= 512 - 16 and reply["tokens_predicted"] > 0
    shown = reply["prompt"]
    assert shown.index("the end<|fim_suffix|>and then word0") > shown.index("<|fim_prefix|>") and shown.endswith("<|fim_middle|>")
    assert "snippet" not in shown, "other files give way first"
    short = coder.call("POST", "/infill", {**body, "input_prefix": "x", "input_suffix": "y"})["prompt"]
    assert "word399<|fim_prefix|>x<|fim_suffix|>y" in short


def test_editors_send_what_they_send(coder):
    """As llama.vim fills in, and as it warms the cache."""
    body = {"id_slot": 0, "input_prefix": "def f(x):\n    return ", "input_suffix": "\n", "input_extra": [{"text": "a", "filename": "b"}],
            "prompt": "    y", "n_predict": 32, "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.9, "stream": False,
            "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 500,
            "response_fields": ["content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms",
                                "timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms",
                                "timings/predicted_per_token_ms", "timings/predicted_per_second", "truncated", "tokens_cached"]}
    reply = coder.call("POST", "/infill", body)
    assert set(reply) == set(body["response_fields"]) and reply["timings/predicted_n"] > 0
    warm = {**body, "prompt": "", "n_predict": 0, "temperature": 0.0, "samplers": [], "t_max_prompt_ms": 1, "t_max_predict_ms": 1,
            "response_fields": [""]}
    assert coder.call("POST", "/infill", warm) == {}


@pytest.mark.parametrize("wrong, words", [
    ({"input_suffix": "a"}, "Field 'input_prefix' is missing"), ({"input_prefix": "a"}, "Field 'input_suffix' is missing"),
    ({"input_prefix": 5, "input_suffix": "a"}, "Field 'input_prefix': 5 is not a string"),
    ({"input_prefix": "a", "input_suffix": "a", "prompt": [1]}, "Field 'prompt': [1] is not a string"),
    ({"input_prefix": "a", "input_suffix": "a", "input_extra": {}}, "Field 'input_extra': {} is no list"),
    ({"input_prefix": "a", "input_suffix": "a", "input_extra": [{"filename": "x"}]}, "Field 'input_extra[0]'"),
    ({"input_prefix": "a", "input_suffix": "a", "input_extra": [{"text": "x"}, {"text": "x", "filename": 5}]}, "Field 'input_extra[1]'"),
    ({"input_prefix": "a", "input_suffix": "a", "mirostat": 1}, "Field 'mirostat'")])
def test_what_is_wrong_with_filling_in_is_named(coder, wrong, words):
    with pytest.raises(ApiError) as e:
        coder.call("POST", "/infill", wrong)
    assert e.value.status == 400 and words in e.value.message


def test_a_model_that_cannot_fill_in_says_so(api):
    with pytest.raises(ApiError) as e:
        api.call("POST", "/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert e.value.status == 501 and e.value.error["type"] == "not_supported_error" and "<|fim_prefix|>" in e.value.message


# ---------------------------------------------------------------- the rest


def test_props_tell_what_is_served(api):
    props = api.call("GET", "/props")
    params = props["default_generation_settings"]["params"]
    assert props["default_generation_settings"]["n_ctx"] == 512 and props["total_slots"] == 256
    assert props["model_alias"] == "demo" and props["model_path"] == str(DEMO)
    assert props["chat_template"] == json.loads((DEMO / "tokenizer_config.json").read_text())["chat_template"]
    assert props["bos_token"] == "<|begin_of_text|>" and props["eos_token"] == "<|end_of_text|>"
    assert (params["temperature"], params["top_p"]) == (0.6, 0.9), "the demo's generation_config.json has these"
    assert params.keys() == native(api, n_predict=1)["generation_settings"].keys()


def test_templates_are_applied_without_an_answer(api):
    messages = [{"role": "user", "content": "Tell me a story."}]
    prompt = api.call("POST", "/apply-template", {"messages": messages})["prompt"]
    assert prompt == "<|begin_of_text|><|user|>\nTell me a story.<|end|>\n<|assistant|>\n"
    chat = api.chat(messages, max_tokens=20, temperature=0)["choices"][0]["message"]["content"]
    assert native(api, api.call("POST", "/tokenize", {"content": prompt})["tokens"], n_predict=20, temperature=0)["content"] == chat
    with pytest.raises(ApiError) as e:
        api.call("POST", "/apply-template", {})
    assert e.value.status == 400 and "Field 'messages' is missing" in e.value.message


def test_tokens_have_pieces(api):
    text = "A <|end|> caf\u00e9"
    tokens = api.call("POST", "/tokenize", {"content": text, "with_pieces": True, "parse_special": False})["tokens"]
    raw = b"".join(t["piece"].encode() if isinstance(t["piece"], str) else bytes(t["piece"]) for t in tokens)
    assert raw.decode() == text and any(isinstance(t["piece"], list) for t in tokens)
    ids = [t["id"] for t in tokens]
    assert ids == api.call("POST", "/tokenize", {"content": text, "parse_special": False})["tokens"] and 4095 not in ids
    assert 4095 in api.call("POST", "/tokenize", {"content": text})["tokens"]
    assert api.call("POST", "/tokenize", {"content": ["A", 4095, " b"]})["tokens"].count(4095) == 1
    assert api.call("POST", "/detokenize", {"tokens": ids})["content"] == text


def test_embeddings_are_those_of_the_other_api(api):
    want = api.call("POST", "/v1/embeddings", {"input": ["The fox", "The dog"]})["data"]
    for path, field in (("/embedding", "content"), ("/embeddings", "input")):
        assert api.call("POST", path, {field: ["The fox", "The dog"]}) == [
            {"index": w["index"], "embedding": [w["embedding"]]} for w in want]
    long = api.call("POST", "/embedding", {"content": "The fox", "embd_normalize": -1})[0]["embedding"][0]
    assert abs(sum(x * x for x in want[0]["embedding"]) - 1) < 1e-4 < abs(sum(x * x for x in long) - 1)
    for body, words in (({"content": "a", "embd_normalize": 0}, "Field 'embd_normalize'"), ({}, "Field 'input' is missing"),
                        ({"content": 5}, "Field 'content'")):
        with pytest.raises(ApiError) as e:
            api.call("POST", "/embedding", body)
        assert e.value.status == 400 and words in e.value.message


def test_keys_and_limits_hold_for_these_paths():
    with Engine("--api-key", "sk-one", "--max-body-size", "1KiB") as e:
        for path in ("/completion", "/infill", "/embedding", "/apply-template"):
            with pytest.raises(ApiError) as refused:
                e.api.call("POST", path, {"prompt": "a"})
            assert refused.value.status == 401 and refused.value.error["type"] == "authentication_error"
        with pytest.raises(ApiError) as large:
            e.api.call("POST", "/completion", {"prompt": "a" * 2000}, {"Authorization": "Bearer sk-one"})
        assert large.value.status == 413 and large.value.error["code"] == 413
        reply = e.api.call("POST", "/completion", {"prompt": "a", "n_predict": 2}, {"Authorization": "Bearer sk-one"})
        assert reply["stop"] is True
        for path in ("/health", "/v1/health"):
            assert e.api.call("GET", path)["status"] == "ok"
        assert e.api.raw("GET", "/props")[0] == 401
