"""A model whose folder has tekken.json and neither tokenizer.json nor a chat template, as Mistral publishes some: it answers chats."""
import json
import shutil

import pytest

import engine as engines
from api import ApiError
from engine import Engine, run

TEKKEN = engines.ROOT / "tests" / "unit" / "text" / "models" / "tekken" / "tekken.json"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "ab"}, {"role": "user", "content": "c"}]
# what mistral-common makes of them in version 11
PROMPT = "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]ab\n\nc[/INST]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistral")
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(engines.DEMO.resolve() / name)
    shutil.copy(TEKKEN, folder / "tekken.json")
    return folder


def test_chats_have_mistrals_prompt(folder):
    status, output = run("tokenize", "--model", folder, PROMPT)
    assert status == 0, output
    ids = [int(line.split()[0]) for line in output.splitlines()]
    assert ids[0] == 1 and ids[1] == 17 and ids[-1] == 4, "control tokens are one token each"
    with Engine(model=folder) as e:
        assert "NO_CHAT_TEMPLATE" not in e.log() and "tool_calls=mistral" in e.log()
        got = e.api.call("POST", "/tokenize", {"messages": MESSAGES})
        assert got["tokens"] == ids
        parts = [{"role": "user", "content": [{"type": "text", "text": t} for t in ("ab", "c")]}]
        assert e.api.call("POST", "/tokenize", {"messages": [MESSAGES[0]] + parts})["tokens"] == ids
        answer = e.api.call("POST", "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4, "temperature": 0})
        assert answer["usage"]["prompt_tokens"] == len(ids) and answer["usage"]["completion_tokens"] >= 1
        tools = [{"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}}} for name in ("f", "g")]
        for choice, names in (("required", {"f", "g"}), ({"type": "function", "function": {"name": "g"}}, {"g"})):
            answer = e.api.call("POST", "/v1/chat/completions", {"messages": MESSAGES, "tools": tools, "tool_choice": choice, "max_tokens": 60,
                                                                 "parallel_tool_calls": False, "seed": 1})
            (call,) = answer["choices"][0]["message"]["tool_calls"]
            assert call["function"]["name"] in names and json.loads(call["function"]["arguments"])["a"] in (1, 2), call
            assert len(call["id"]) == 9 and answer["choices"][0]["finish_reason"] == "tool_calls"
        odd = [{"type": "function", "function": {"name": "get weather [ARGS]", "parameters": tools[0]["function"]["parameters"]}}]
        answer = e.api.call("POST", "/v1/chat/completions", {"messages": MESSAGES, "tools": odd, "tool_choice": "required", "max_tokens": 90, "seed": 1,
                                                             "parallel_tool_calls": False})
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "get weather [ARGS]" and answer["choices"][0]["finish_reason"] == "tool_calls"
        with pytest.raises(ApiError) as refused:
            e.api.call("POST", "/v1/chat/completions", {"messages": [{"role": "judge", "content": "a"}]})
        assert refused.value.status == 400 and 'role "judge"; this model knows system, user, assistant and tool' in refused.value.message
