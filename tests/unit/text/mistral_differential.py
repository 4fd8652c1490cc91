#!/usr/bin/env python3
"""Chats of models that come with tekken.json, or tokenizer.model.v3 or v7: random conversations by tercet's built-in template and by mistral-common. Of the
latter the ids are compared, since what of them a text is depends on where its pieces begin.
Usage: mistral_differential.py TERCET [--cases N] [--seed N]. Exit 77 (skipped) without the package mistral-common.

Tool results of version 3 are JSON where they look like it; mistral-common parses them, so none here looks like it and is another text then."""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

try:
    import mistral_common
    from mistral_common.exceptions import MistralCommonException
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
except ImportError:
    print("skipped: no mistral_common")
    sys.exit(77)

SPECIAL = ("<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] "
           "[IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT] [TRANSCRIBE] [AUDIO] [BEGIN_AUDIO] [ARGS] "
           "[CALL_ID] [THINK] [/THINK] [MODEL_SETTINGS] [/MODEL_SETTINGS]").split()
WORDS = ["Hello", "  spaced  ", "ünï ☺", "a\nb", '{"x":1}', "[INSTALL]", "x", "trail  ", "1.5", "3", "true", '"q"', "<b>&"]
ARGUMENTS = [{"a": 1}, {}, {"city": "Zürich", "n": [1, 2, {"k": None}]}, {"b": True, "a": 1.5, "s": '<x> & "y"'}]
RESULTS = ['{"r": 1}', "22.5", "plain", "[1, 2]", '"s"', "true", "-3"]


def changes_as_json(text):
    try:
        return json.dumps(json.loads(text), ensure_ascii=False) != text
    except ValueError:
        return text[0] + text[-1] in ("{}", "[]", '""')


class Talk:
    def __init__(self, rng, version):
        self.rng, self.version, self.messages = rng, version, []

    def words(self):
        return " ".join(self.rng.choice(WORDS) for _ in range(self.rng.randint(1, 4)))

    def say(self, role, **more):
        content = self.words()
        if role in ("user", "system") and self.rng.random() < 0.15:
            content = [{"type": "text", "text": self.words()} for _ in range(self.rng.randint(1, 3))]
        message = {"role": role, "content": content, **more}
        if role == "assistant" and self.version >= 13 and self.rng.random() < 0.3:
            message["reasoning_content"] = self.words()
        self.messages.append(message)
        return message

    def call(self):
        identity = "".join(self.rng.choice("abcdefghijkABC0123456789") for _ in range(9))
        name = "f%d" % self.rng.randint(0, 2)
        return {"id": identity, "type": "function", "function": {"name": name, "arguments": json.dumps(self.rng.choice(ARGUMENTS))}}

    def use_tools(self):
        calls = [self.call() for _ in range(self.rng.choice([1, 1, 2, 3]))]
        message = self.say("assistant", tool_calls=calls)
        if self.version < 7 or self.rng.random() < 0.5:
            message["content"] = ""
        if self.rng.random() < 0.5:
            calls = self.rng.sample(calls, len(calls))
        for call in calls:
            result = self.rng.choice(RESULTS + [self.words()])
            while self.version < 7 and changes_as_json(result):
                result = self.words()
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": result})

    def whole(self, tools):
        for _ in range(self.rng.choice([0, 0, 1, 1, 2])):
            self.say("system")["role"] = self.rng.choice(["system", "system", "developer"])
        for _ in range(self.rng.randint(1, 4)):
            for _ in range(self.rng.choice([1, 1, 1, 2, 3])):
                self.say("user")
            while tools and self.rng.random() < 0.5:
                self.use_tools()
            for _ in range(self.rng.choice([1, 1, 2])):
                self.say("assistant")
        while self.rng.random() < 0.8 and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if self.messages[-1]["role"] == "assistant":
            self.say("user")
        return self.messages


def some_tools(rng):
    tools = []
    for i in range(rng.randint(1, 3)):
        schema = {"type": "object", "properties": {"a": {"type": "integer", "description": "ä <"}}}
        function = {"name": "f%d" % i, "parameters": rng.choice([schema, {}])}
        if rng.random() < 0.7:
            function["description"] = rng.choice(["does", "", 'x "y"'])
        tools.append({"type": "function", "function": function})
    return tools


PIECES = {3: "mistral_instruct_tokenizer_240323.model.v3", 7: "mistral_instruct_tokenizer_241114.model.v7"}


def make_pieces_folder(folder, version):
    path = os.path.join(folder, "tokenizer.model.v%d" % version)
    shutil.copy(os.path.join(os.path.dirname(mistral_common.__file__), "data", PIECES[version]), path)
    return MistralTokenizer.from_file(path)


def make_folder(folder, version):
    data = os.path.join(os.path.dirname(mistral_common.__file__), "data", "tekken_240911.json")
    with open(data, encoding="utf-8") as f:
        file = json.load(f)
    file["config"]["version"] = "v%d" % version
    file["special_tokens"] = [{"rank": i, "token_str": s, "is_control": True} for i, s in enumerate(SPECIAL)]
    if version >= 15:
        effort = {"type": "enum", "values": ["none", "high"], "accepts_none": True, "default": "none"}
        file["model_settings_builder"] = {"reasoning_effort": effort}
    path = os.path.join(folder, "tekken.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(file, f)
    return MistralTokenizer.from_file(path)


def make_cases(tokenizer, rng, version, count, pieces):
    while count > 0:
        tools = some_tools(rng) if rng.random() < 0.5 else None
        messages = Talk(rng, version).whole(tools)
        more = {"reasoning_effort": rng.choice(["high", "none"])} if version >= 15 and rng.random() < 0.6 else {}
        try:
            encoded = tokenizer.encode_chat_completion(ChatCompletionRequest.from_openai(messages=messages, tools=tools, **more))
        except MistralCommonException:
            continue  # a conversation that it does not take
        expected = encoded.tokens if pieces else tokenizer.instruct_tokenizer.tokenizer.decode(encoded.tokens, special_token_policy=SpecialTokenPolicy.KEEP)
        line = {"messages": json.loads(json.dumps(messages)), "bos_token": "<s>", "eos_token": "</s>", "extra": more}
        for message in line["messages"]:
            for call in message.get("tool_calls", []):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        if tools:
            line["tools"] = tools
        yield line, expected
        count -= 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tercet")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    compared = failed = 0
    for version, pieces in [(v, False) for v in (3, 7, 11, 13, 15)] + [(v, True) for v in PIECES]:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = (make_pieces_folder if pieces else make_folder)(folder, version)
            cases = list(make_cases(tokenizer, random.Random(a.seed * 100 + version), version, a.cases, pieces))

            def ask(command, lines, where=folder):
                text = "".join(json.dumps(line) + "\n" for line in lines)
                return subprocess.run([a.tercet, command, "--model", where, "--jsonl", "-"], input=text, capture_output=True, text=True,
                                      check=True).stdout.splitlines()
            answers = ask("chat-template", [line for line, _ in cases])
            if pieces:
                answers = ask("tokenize", [{"text": json.loads(got)["rendered"]} for got in answers])
        for (line, expected), got in zip(cases, answers, strict=True):
            compared += 1
            if json.loads(got).get("ids" if pieces else "rendered") != expected:
                failed += 1
                print(f"version {version}: {json.dumps(line)}\n  expected {expected!r}\n  found {got}")
    print(f"{compared} conversations, {failed} differ")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
