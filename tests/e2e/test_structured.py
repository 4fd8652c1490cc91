"""Structured output as a whole: answers that follow a grammar, whatever the engine's settings are, what else runs, and which
process dies meanwhile."""
import concurrent.futures
import json
import os
import random
import re
import signal
import subprocess

import pytest

import engine as engines
from api import ApiError, joined
from engine import DEMO, SANITIZED, SLOWER, Engine, killed_amid, wait_until

KERNELS = engines.BUILD / "tests" / "kern" / "tercet-cuda-emu.so"
COMPACT = {"disable_any_whitespace": True}
LONG = {"guided_regex": "([a-z]{2,9} ){300}", "max_tokens": 400, "temperature": 1.0, "return_token_ids": True}


# ---------------------------------------------------------------- schemas that are bounded, and what follows them

def schema_of(rng, depth=0):
    kind = rng.choice(["string", "integer", "boolean", "enum", "const", "null", "union"] + ["object", "array"] * (depth < 2) * 2)
    if kind == "object" or depth == 0:
        names = rng.sample(["name", "age", "where", "why", "tags", "a b", "\u00e9t\u00e9"], rng.randint(1, 4))
        return {"type": "object", "properties": {n: schema_of(rng, depth + 1) for n in names},
                "required": rng.sample(names, rng.randint(0, len(names))), "additionalProperties": False}
    if kind == "array":
        return {"type": "array", "items": schema_of(rng, depth + 1), "minItems": rng.randint(0, 2), "maxItems": 3}
    if kind == "string":
        return {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 12)}
    if kind == "integer":
        low = rng.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 400)}
    if kind == "enum":
        return {"enum": rng.sample(["red", 7, None, True, "two words", 1.5], 3)}
    if kind == "const":
        return {"const": rng.choice(["yes", 12, False])}
    if kind == "union":
        return {"anyOf": [schema_of(rng, depth + 1), {"type": "boolean"}]}
    return {"type": kind}


def same(a, b):
    return type(a) is type(b) and a == b


def follows(value, schema):
    if "anyOf" in schema:
        return any(follows(value, s) for s in schema["anyOf"])
    if "enum" in schema:
        return any(same(value, v) for v in schema["enum"])
    if "const" in schema:
        return same(value, schema["const"])
    kind = schema["type"]
    if kind == "object":
        return (isinstance(value, dict) and set(schema["required"]) <= set(value) <= set(schema["properties"]) and
                all(follows(v, schema["properties"][k]) for k, v in value.items()))
    if kind == "array":
        return (isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"] and
                all(follows(v, schema["items"]) for v in value))
    if kind == "string":
        return isinstance(value, str) and schema["minLength"] <= len(value) <= schema["maxLength"]
    if kind == "integer":
        return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    return {"boolean": isinstance(value, bool), "null": value is None}[kind]


def structured(api, schema, seed, **more):
    return api.completions("Once", **dict({"max_tokens": 400, "temperature": 1.0, "seed": seed, "return_token_ids": True,
                                           "structured_outputs": dict(COMPACT, json=schema)}, **more))["choices"][0]


def free(api, seed):
    return api.completions("Noise %d" % seed, max_tokens=60, temperature=1.0, seed=seed, ignore_eos=True,
                           return_token_ids=True)["choices"][0]["token_ids"]


def check(choice, schema):
    assert choice["finish_reason"] == "stop", choice
    assert follows(json.loads(choice["text"]), schema), (choice["text"], schema)


def check_all(api, count, others=6):
    """All at once; who has no grammar says what it says alone."""
    schemas = [schema_of(random.Random(seed)) for seed in range(count)]
    alone = [free(api, k + 1) for k in range(others)]
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        got = [pool.submit(structured, api, s, k + 1) for k, s in enumerate(schemas)]
        rest = [pool.submit(free, api, k + 1) for k in range(others)]
        for choice, schema in zip(got, schemas):
            check(choice.result(), schema)
        assert [r.result() for r in rest] == alone


def test_a_hundred_random_schemas_are_followed_and_nobody_else_notices(engine):
    before = engine.api.metric("tercet_structured_requests_total")
    check_all(engine.api, 20 if SANITIZED else 100)
    assert engine.api.metric("tercet_structured_requests_total") - before == (20 if SANITIZED else 100)
    assert engine.api.metric("tercet_grammar_masks_total") > 100


SETTINGS = {
    "two ranks": ["--tensor-parallel-size", 2],
    "one step at a time, prompts in pieces": ["--async-depth", 0, "--max-num-batched-tokens", 12, "--max-num-seqs", 12],
    "preempted": ["--kv-cache-memory", "3MiB", "--max-model-len", 500, "--block-size", 4],
    "preempted and swapped": ["--kv-cache-memory", "3MiB", "--max-model-len", 500, "--block-size", 4, "--swap-space", 0.1],
}


@pytest.mark.parametrize("setting", list(SETTINGS)[:1] if SANITIZED else list(SETTINGS))
def test_answers_do_not_depend_on_settings_and_company(api, setting):
    wanted = api.completions("Once", seed=5, n=3, **LONG)["choices"]
    with Engine("--dtype", "float32", *SETTINGS[setting]) as e:
        if "preempted" not in setting:
            check_all(e.api, 12)
        got = e.api.completions("Once", seed=5, n=3, **LONG)["choices"]
        if "preempted" in setting:
            assert e.api.metric("vllm:num_preemptions_total") > 0
        assert [c["token_ids"] for c in got] == [c["token_ids"] for c in wanted]


# ---------------------------------------------------------------- fields

def test_every_way_to_ask(api):
    color = {"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"],
             "additionalProperties": False}
    as_json = [{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": color}}},
               {"guided_json": color}, {"guided_json": json.dumps(color)}, {"json_schema": color},
               {"structured_outputs": {"json": color}}, {"structured_outputs": {"json": json.dumps(color)}}]
    for k, fields in enumerate(as_json):
        choice = api.completions("Once", max_tokens=300, temperature=1.0, seed=k + 1, **fields)["choices"][0]
        text = api.chat([{"role": "user", "content": "x"}], max_tokens=300, temperature=1.0, seed=k + 1,
                        **fields)["choices"][0]["message"]["content"]
        for t, end in ((choice["text"], choice["finish_reason"]), (text, "stop")):
            assert end != "stop" or json.loads(t)["color"] in ("red", "blue"), (fields, t)
    patterns = [({"guided_regex": "[0-9]{3}-[a-f]{2}"}, r"[0-9]{3}-[a-f]{2}"),
                ({"structured_outputs": {"regex": "x{2,4}"}}, r"x{2,4}"),
                ({"guided_choice": ["yes", "no way"]}, r"yes|no way"),
                ({"structured_outputs": {"choice": ["a", "b c"]}}, r"a|b c"),
                ({"guided_grammar": 'root ::= "(" [0-9] ")"'}, r"\([0-9]\)"),
                ({"structured_outputs": {"grammar": 'root ::= a a\na ::= "k" | "l"'}}, r"[kl]{2}"),
                ({"grammar": 'root ::= "<" [a-c]{2} ">"'}, r"<[a-c]{2}>")]
    for k, (fields, pattern) in enumerate(patterns):
        choice = api.completions("Once", max_tokens=40, temperature=1.0, seed=k + 1, **fields)["choices"][0]
        assert re.fullmatch(pattern, choice["text"]) and choice["finish_reason"] == "stop", (fields, choice["text"])
    for fields in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}):
        assert api.completions("Once", max_tokens=5, temperature=1.0, **fields)["choices"][0]["text"].lstrip()[0] == "{"
    choice = api.completions("Once", max_tokens=300, temperature=1.0, seed=9,
                             response_format={"type": "json_object", "schema": color})["choices"][0]
    assert choice["finish_reason"] != "stop" or json.loads(choice["text"])["color"] in ("red", "blue"), choice
    for fields in ({"response_format": {"type": "text"}}, {"structured_outputs": None}, {"guided_regex": None},
                   {"guided_choice": None, "guided_json": None}):
        api.completions("Once", max_tokens=1, **fields)


WRONG = [
    ({"guided_json": {"type": "objectt"}}, "guided_json", "#/type"),
    ({"guided_json": "{"}, "guided_json", "JSON"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "is missing"),
    ({"response_format": {"type": "structural_tag"}}, "response_format", "triggers"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/x"}}}}, "response_format", "#/"),
    ({"guided_regex": "(a"}, "guided_regex", "not closed"), ({"guided_choice": [1]}, "guided_choice", "choice 0"),
    ({"guided_grammar": "root ::= ("}, "guided_grammar", ""), ({"grammar": "x ::= \"a\""}, "grammar", "root"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "no JSON"),
    ({"structured_outputs": {"json_object": True, "whitespace_pattern": " +"}}, "structured_outputs.whitespace_pattern", "empty text"),
    ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object", "true or false"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "only one of them"),
    ({"guided_regex": "a", "ignore_eos": True}, "guided_regex", "ignore_eos"),
    ({"guided_regex": "a", "use_beam_search": True}, "guided_regex", "beam search"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "not supported"),
    ({"guided_choice": []}, "guided_choice", "is empty"), ({"guided_regex": ""}, "guided_regex", "is empty"),
    ({"guided_json": ""}, "guided_json", "is empty"), ({"guided_grammar": ""}, "guided_grammar", "is empty"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": ""}}}, "response_format", "is empty"),
    ({"structured_outputs": {}}, "structured_outputs", "asks for nothing"),
    ({"structured_outputs": {"jsom": {}, "json": None, "json_object": False}}, "structured_outputs", "asks for nothing"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "is empty"),
    ({"structured_outputs": {"json": ""}}, "structured_outputs.json", "is empty"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "is empty"),
    ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar", "is empty"),
]


@pytest.mark.parametrize("fields,param,words", WRONG)
def test_what_cannot_be_followed_is_refused_with_its_place(api, fields, param, words):
    with pytest.raises(ApiError) as refused:
        api.completions("Once", max_tokens=5, **fields)
    assert refused.value.status == 400 and refused.value.error["param"] == param, refused.value
    assert words in refused.value.message, refused.value


def test_limits_and_stops_hold_in_a_grammar(api):
    cut = api.completions("Once", seed=1, **dict(LONG, max_tokens=9))["choices"][0]
    assert cut["finish_reason"] == "length" and len(cut["token_ids"]) == 9
    stopped = api.completions("Once", seed=1, stop=[" "], **LONG)["choices"][0]
    assert stopped["finish_reason"] == "stop" and re.fullmatch("[a-z]{2,9}", stopped["text"])
    longer = api.completions("Once", guided_regex="(ab)*", min_tokens=20, max_tokens=60, temperature=1.0, seed=2,
                             return_token_ids=True)["choices"][0]
    assert re.fullmatch("(ab)*a?", longer["text"]) and len(longer["token_ids"]) >= 20
    forced = api.completions("Once", guided_choice=["ab"], min_tokens=20, max_tokens=60)["choices"][0]
    assert forced["text"] == "ab" and forced["finish_reason"] == "stop", "what is whole ends"
    listed = api.completions("Once", guided_choice=["ab"], logprobs=2, max_tokens=9)["choices"][0]["logprobs"]
    assert listed["token_logprobs"][0] < -0.01 and len(listed["top_logprobs"][0]) >= 2, "those of the model itself"
    events = list(api.stream(prompt="Once", guided_regex="[a-z]{4} [0-9]{4}", max_tokens=20, temperature=1.0, seed=4))
    assert re.fullmatch("[a-z]{4} [0-9]{4}", joined(events)[0]["text"])


# ---------------------------------------------------------------- tool calls

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city", "days"], "additionalProperties": False, "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}}}}},
         {"type": "function", "function": {"name": "stop_all"}}]


@pytest.mark.parametrize("form", ["hermes"] if SANITIZED else ["hermes", "llama3_json", "mistral"])
def test_a_tool_call_that_is_asked_for_comes_and_parses(form):
    turns = [{"role": "user", "content": "How is it?"}]
    with Engine("--tool-call-parser", form) as e:
        for seed in range(1, 9):
            named = {"type": "function", "function": {"name": "weather"}}
            for choice, names in (("required", {"weather", "stop_all"}), (named, {"weather"})):
                reply = e.api.chat(turns, tools=TOOLS, tool_choice=choice, max_tokens=300, temperature=1.0, seed=seed,
                                   parallel_tool_calls=seed % 2 == 0)["choices"][0]
                calls = reply["message"].get("tool_calls")
                assert calls, reply
                assert reply["finish_reason"] != "tool_calls" or not (reply["message"]["content"] or "").strip(), reply
                for call in calls[:-1] if reply["finish_reason"] == "length" else calls:
                    assert call["function"]["name"] in names
                    arguments = json.loads(call["function"]["arguments"])
                    if call["function"]["name"] == "weather":
                        assert set(arguments) == {"city", "days"} and arguments["city"] in ("Oslo", "Rome")
                        assert 1 <= arguments["days"] <= 9
                    else:
                        assert arguments == {}
        untyped, text = ({"type": "function", "function": {"name": "say", "parameters": {
            "type": t, "properties": {}, "additionalProperties": False}}} for t in (None, "string"))
        # Of no seed, so with room for the longest call there is: a token for each byte, and an indent of 40 within the braces.
        reply = e.api.chat(turns, tools=[untyped], tool_choice="required", parallel_tool_calls=False, max_tokens=300)["choices"][0]
        assert json.loads(reply["message"]["tool_calls"][0]["function"]["arguments"]) == {}
        for fields, words in (({"tools": TOOLS, "tool_choice": {"function": {"name": "x"}}}, "not among the tools"),
                              ({"tools": TOOLS + [text], "tool_choice": "required"}, "function 'say'"),
                              ({"tool_choice": "required"}, "no 'tools'"), ({"tools": TOOLS, "tool_choice": "any"}, "required")):
            with pytest.raises(ApiError) as refused:
                e.api.chat(turns, **fields)
            assert refused.value.status == 400 and words in refused.value.message, refused.value


# ---------------------------------------------------------------- elsewhere

def test_the_command_follows_grammars(engine, tmp_path):
    def command(*more):
        return subprocess.run([str(engines.TERCET), "run", str(DEMO), "Once", "--run-dir", str(engine.run_dir), *more],
                              capture_output=True, text=True, timeout=60 * SLOWER, stdin=subprocess.DEVNULL)
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], '
                      '"additionalProperties": false}')
    (tmp_path / "rules.gbnf").write_text('root ::= "r" [0-9]')
    assert command("--regex", "[a-c]{5}").stdout.strip("\n")[:5].strip("abc") == ""
    assert command("--choice", "left|right").stdout.strip("\n") in ("left", "right")
    assert re.fullmatch("r[0-9]", command("--grammar", str(tmp_path / "rules.gbnf")).stdout.strip("\n"))
    assert "ok" in json.loads(command("--json-schema", str(schema), "--max-tokens", "400").stdout)
    refused = command("--regex", "(a")
    assert refused.returncode != 0 and "not closed" in refused.stderr
    refused = command("--regex", "a", "--choice", "b|c")
    assert refused.returncode != 0 and "only one" in refused.stderr


@pytest.mark.parametrize("name", ["tercet-worker"] if SANITIZED else ["tercet-worker", "tercet-scheduler", "tercet-detok"])
def test_a_killed_process_changes_no_answer(name):
    with Engine("--dtype", "float32") as e:
        wanted = e.api.completions("Once", seed=7, n=6, **LONG)["choices"]
        got = killed_amid(e, name, lambda: e.api.completions("Once", seed=7, n=6, **LONG)["choices"], 6)
        assert [c["token_ids"] for c in got] == [c["token_ids"] for c in wanted]


def test_a_session_and_a_grammar(api):
    for k in range(2):
        reply = api.completions("And then", session_id="s1", session_start=k == 0, guided_regex="[a-z]{5}", max_tokens=20,
                                temperature=1.0, seed=3)["choices"][0]
        assert re.fullmatch("[a-z]{5}", reply["text"])


@pytest.mark.skipif(SANITIZED, reason="the device's emulation has tests of its own there")
def test_a_device_waits_for_tokens_before_it_samples():
    small = ["--max-num-seqs", 8, "--max-num-batched-tokens", 64, "--max-model-len", 128, "--block-size", 4]
    with Engine("--device", "cuda", *small, env={"TERCET_CUDA_KERNELS": str(KERNELS)}) as e:
        alone = e.api.completions("Noise", max_tokens=12, temperature=1.0, seed=9, ignore_eos=True,
                                  return_token_ids=True)["choices"][0]["token_ids"]
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            rest = pool.submit(e.api.completions, "Noise", max_tokens=12, temperature=1.0, seed=9, ignore_eos=True,
                               return_token_ids=True)
            got = [pool.submit(e.api.completions, "Once", guided_regex="[a-z]{4} [0-9]{4}!", max_tokens=30, temperature=1.0,
                               seed=k + 1, logprobs=1 if k else None) for k in range(4)]
            for g in got:
                choice = g.result()["choices"][0]
                assert re.fullmatch("[a-z]{4} [0-9]{4}!", choice["text"]) and choice["finish_reason"] == "stop", choice
            assert rest.result()["choices"][0]["token_ids"] == alone


@pytest.mark.skipif(SANITIZED, reason="the device's emulation has tests of its own there")
def test_two_devices_follow_the_same_texts_also_through_a_scheduler_s_death():
    """Which finds a step that both have queued up to its sampling, or one of them whole. A recomputed bfloat16 need not say the same."""
    flags = ["--tensor-parallel-size", 2, "--max-num-seqs", 8, "--max-num-batched-tokens", 64, "--max-model-len", 128]
    environment = {"TERCET_CUDA_KERNELS": str(KERNELS), "CUDA_EMU_NCCL_TIMEOUT": "0"}
    with Engine("--device", "cuda", *flags, env=environment) as e, concurrent.futures.ThreadPoolExecutor(3) as pool:
        got = [pool.submit(e.api.completions, "Once", guided_regex="([a-z]{2,5} [0-9]{2},){9}", max_tokens=110, temperature=1.0,
                           seed=k + 1) for k in range(3)]
        wait_until(lambda: e.api.metric("vllm:generation_tokens_total") > 9, 20, "the first tokens")
        os.kill(e.pid_of("tercet-scheduler"), signal.SIGKILL)
        for g in got:
            choice = g.result()["choices"][0]
            assert re.fullmatch("([a-z]{2,5} [0-9]{2},){9}", choice["text"]) and choice["finish_reason"] == "stop", choice
