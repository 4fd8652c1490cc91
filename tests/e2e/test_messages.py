"""Anthropic's Messages API: whole replies and streams say the same, calls and thoughts come back as what they are, tokens are
counted as they are used, errors have the API's form."""
import json

import pytest

from engine import Engine

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
KEY = {"x-api-key": "sk-one", "anthropic-version": "2023-06-01", "anthropic-beta": "some-beta-2025-01-01"}
ASKED = [{"role": "user", "content": "Tell me a story about a fox."}]
SAMPLED = {"max_tokens": 60, "temperature": 0.9, "seed": 7}
TOOLS = [{"name": "add", "description": "adds", "cache_control": {"type": "ephemeral"}, "input_schema": {
    "type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "to": {"enum": ["a", "b"]}},
    "required": ["x", "to"], "additionalProperties": False}}]
# writes calls as Hermes' models do, and lets the model think where it is asked to
TEMPLATE = """\
{%- if tools %}{{ tools | tojson }}
{% endif %}{%- for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}\
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% if enable_thinking %}<think>{% endif %}{% endif %}"""


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    template = tmp_path_factory.mktemp("messages") / "template.jinja"
    template.write_text(TEMPLATE)
    with Engine("--dtype", "float32", "--api-key", "sk-one", "--chat-template", str(template)) as engine:
        yield engine.api


def ask(api, messages=ASKED, path=PATH, **fields):
    return api.call("POST", path, {"model": "demo", "messages": messages, **fields}, KEY)


def events(api, **fields):
    """Of a stream, each with its name in front."""
    body = json.dumps({"messages": ASKED, "stream": True, **fields})
    status, headers, text = api.raw("POST", PATH, body, dict(KEY, **{"Content-Type": "application/json"}))
    assert status == 200, text
    assert headers["Content-Type"].startswith("text/event-stream")
    found = []
    for event in text.decode().strip().split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == "event: " + found[-1]["type"]
    return found


def put_together(found):
    """The message that a client makes of the events, whose order is checked."""
    message = found[0]["message"]
    assert found[0]["type"] == "message_start" and found[-1] == {"type": "message_stop"} and found[-2]["type"] == "message_delta"
    assert message["content"] == [] and message["stop_reason"] is None
    texts, current = [], None
    for e in found[1:-2]:
        if e["type"] == "ping":
            continue
        if e["type"] == "content_block_start":
            assert current is None and e["index"] == len(texts)
            message["content"].append(e["content_block"])
            current = e["index"]
            texts.append("")
            continue
        assert e["index"] == current
        block = message["content"][current]
        if e["type"] == "content_block_stop":
            if block["type"] == "tool_use":
                block["input"] = json.loads(texts[current] or "{}")
            current = None
            continue
        assert e["type"] == "content_block_delta"
        kind = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}[block["type"]]
        if e["delta"]["type"] == "signature_delta":
            assert block["type"] == "thinking"
            continue
        assert e["delta"]["type"] == kind
        texts[current] += e["delta"].get("partial_json", "")
        for field in ("text", "thinking"):
            if field in block:
                block[field] += e["delta"][field]
    assert current is None
    message.update(found[-2]["delta"])
    message["usage"].update(found[-2]["usage"])
    return message


def same(a, b):
    """But for what differs from request to request."""
    def plain(message):
        message = json.loads(json.dumps(message))
        del message["id"]
        usage = message["usage"]
        usage["input_tokens"] += usage.pop("cache_read_input_tokens")
        for block in message["content"]:
            block.pop("id", None)
        return message
    assert plain(a) == plain(b)


@pytest.mark.parametrize("extra", [
    {}, {"stop_sequences": ["the", "king"]}, {"system": "Be brief.", "top_k": 5, "top_p": 0.9}, {"max_tokens": 100000},
    {"tools": TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 200},
    {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "add"}, "max_tokens": 200},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"thinking": {"type": "disabled"}}])
def test_stream_says_what_the_whole_reply_says(api, extra):
    fields = {**SAMPLED, **extra}
    same(put_together(events(api, **fields)), ask(api, **fields))


def test_reply_is_a_message(api):
    reply = ask(api, **SAMPLED)
    assert reply["type"] == "message" and reply["role"] == "assistant" and reply["model"] == "demo"
    assert reply["id"].startswith("msg_") and [b["type"] for b in reply["content"]] == ["text"]
    assert reply["stop_reason"] in ("end_turn", "max_tokens") and reply["stop_sequence"] is None
    chat = api.call("POST", "/v1/chat/completions", {"messages": ASKED, **SAMPLED}, KEY)
    assert reply["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    usage = reply["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == chat["usage"]["prompt_tokens"]
    assert usage["output_tokens"] == chat["usage"]["completion_tokens"]


@pytest.mark.parametrize("cut", ['"x"', "}"])
def test_a_call_that_a_stop_sequence_cuts_is_none_to_run(api, cut):
    forced = {"tools": TOOLS, "tool_choice": {"type": "any"}, "max_tokens": 100, "temperature": 0}
    whole = ask(api, **forced)
    assert whole["stop_reason"] == "tool_use" and whole["content"][-1]["input"]["to"] in ("a", "b")
    reply = ask(api, **forced, stop_sequences=[cut])
    assert reply["stop_reason"] == "stop_sequence" and reply["stop_sequence"] == cut
    chat = api.call("POST", "/v1/chat/completions", {"messages": ASKED, "tools": [{"type": "function", "function": {
        "name": "add", "parameters": TOOLS[0]["input_schema"]}}], "tool_choice": "required", "max_tokens": 100, "temperature": 0, "stop": [cut]}, KEY)
    assert chat["choices"][0]["finish_reason"] == "stop"


def test_an_empty_last_message_of_the_assistant_is_none(api):
    tokens = ask(api, path=COUNT)["input_tokens"]
    for content in ("", [], " \n", [{"type": "text", "text": ""}]):
        assert ask(api, ASKED + [{"role": "assistant", "content": content}], COUNT)["input_tokens"] == tokens, content


def test_stop_sequence_is_told(api):
    reply = ask(api, stop_sequences=["zzz", "e"], **SAMPLED)
    assert reply["stop_reason"] == "stop_sequence" and reply["stop_sequence"] == "e"
    assert "e" not in reply["content"][0]["text"]


def test_what_fits_is_generated(api):
    reply = ask(api, max_tokens=100000, temperature=0, ignore_eos=True)
    assert reply["stop_reason"] == "model_context_window_exceeded"
    limit = api.call("GET", "/v1/models", headers=KEY)["data"][0]["max_model_len"]
    assert sum(reply["usage"][k] for k in ("input_tokens", "cache_read_input_tokens", "output_tokens")) == limit


def test_conversation_with_a_tool(api):
    reply = ask(api, tools=TOOLS, tool_choice={"type": "tool", "name": "add"}, max_tokens=200, temperature=0)
    call = reply["content"][0]
    assert reply["stop_reason"] == "tool_use" and call["type"] == "tool_use" and call["id"].startswith("toolu_")
    assert set(call["input"]) == {"x", "to"} and call["input"]["to"] in "ab" and 0 <= call["input"]["x"] <= 99
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "5"}]}
    history = ASKED + [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": [result]}]
    after = ask(api, history, tools=TOOLS, max_tokens=8, temperature=0)
    assert after["usage"]["cache_read_input_tokens"] > 0 and after["stop_reason"] in ("max_tokens", "end_turn")
    counted = ask(api, history, COUNT, tools=TOOLS)
    assert counted == {"input_tokens": after["usage"]["input_tokens"] + after["usage"]["cache_read_input_tokens"]}


def test_answer_goes_on_where_a_last_message_ends(api):
    history = ASKED + [{"role": "assistant", "content": "Once upon a"}]
    text = ask(api, history, max_tokens=20, temperature=0)["content"][0]["text"]
    chat = api.call("POST", "/v1/chat/completions", {"messages": history, "max_tokens": 20, "temperature": 0,
                                                     "add_generation_prompt": False, "continue_final_message": True}, KEY)
    assert text == chat["choices"][0]["message"]["content"] and not text.startswith("Once")


def test_answer_follows_a_schema(api):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    reply = ask(api, max_tokens=60, temperature=0, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert json.loads(reply["content"][0]["text"]) in ({"a": True}, {"a": False})


@pytest.mark.parametrize("status,kind,fields,headers", [
    (401, "authentication_error", {}, {"x-api-key": "sk-two"}),
    (401, "authentication_error", {}, {}),
    (404, "not_found_error", {"model": "claude-x"}, KEY),
    (400, "invalid_request_error", {"max_tokens": 0}, KEY),
    (400, "invalid_request_error", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, KEY),
    (400, "invalid_request_error", {"messages": [{"role": "user", "content": []}]}, KEY),
    (400, "invalid_request_error", {"messages": [{"role": "user", "content": ""}]}, KEY),
    (400, "invalid_request_error", {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": []}, {"role": "user", "content": "y"}]}, KEY),
    (400, "invalid_request_error", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, KEY)])
def test_errors_have_the_form_of_the_api(api, status, kind, fields, headers):
    body = json.dumps({"max_tokens": 5, "messages": ASKED, **fields})
    got, head, text = api.raw("POST", PATH, body, headers)
    assert got == status
    error = json.loads(text)
    assert error["type"] == "error" and error["error"]["type"] == kind and len(error["error"]["message"]) > 10
    assert head["Request-Id"] == head["X-Request-Id"]


def test_bearer_works_too(api):
    body = json.dumps({"max_tokens": 2, "messages": ASKED})
    assert api.raw("POST", PATH + "?beta=true", body, {"Authorization": "Bearer sk-one"})[0] == 200
