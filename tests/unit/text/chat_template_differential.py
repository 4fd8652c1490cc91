#!/usr/bin/env python3
"""Chat templates written in the manner of published families (tools, thinking, parts, documents, dates, macros, recursive schemas)
over generated conversations, with Tercet and with Jinja2 as transformers sets it up. Usage:
chat_template_differential.py TERCET [--cases N] [--seed N]. Exit 77 (skipped) without python3-jinja2."""
import argparse
import json
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import jinja_differential as jd  # noqa: E402  (skips where Jinja2 is missing)

TEMPLATES = {
    # macros that call each other over a JSON schema, namespaces, tests on types
    "schema": r"""
{%- macro type_of(spec, required=[], level=0) -%}
    {%- if spec.type is undefined -%}any
    {%- elif spec.type is string and spec.type == 'array' -%}
        {%- if spec['items'] %}{{ type_of(spec['items'], level=level + 1) + '[]' }}{% else %}any[]{% endif -%}
        {%- if spec.nullable %} | null{% endif -%}
    {%- elif spec.type is iterable and spec.type is not string -%}
        {{ spec.type | join(' | ') }}
    {%- elif spec.type == 'object' -%}
        {%- if spec.properties -%}
            {{- '{\n' }}
            {%- for name, inner in spec.properties.items() -%}
                {{ '  ' * (level + 1) ~ name }}{{ '?' if name not in (spec.required or []) }}: {{ type_of(inner, level=level + 1) }}
                {%- if inner.enum %} // {{ inner.enum | map('tojson') | join(', ') }}{% endif -%}
                {%- if inner.default is defined %} = {{ inner.default | tojson }}{% endif -%}
                {{- ',\n' if not loop.last else '\n' }}
            {%- endfor -%}
            {{ '  ' * level }}}
        {%- else -%}object{%- endif -%}
    {%- elif spec.type in ['integer', 'number'] -%}number
    {%- else -%}{{ spec.type }}{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(system='You are a model.', tools=false) -%}
{%- if messages and messages[0].role in ('system', 'developer') -%}
    {%- set ns.system = messages[0].content if messages[0].content is string else messages[0].content | map(attribute='text') | join('\n') -%}
    {%- set messages = messages[1:] -%}
{%- endif -%}
<|start|>system<|message|>{{ ns.system }}
Current date: {{ strftime_now("%Y-%m-%d") }}
Reasoning: {{ reasoning_effort | default('medium') }}
{% if tools %}
namespace functions {
{% for tool in tools %}
{%- set f = tool.function if tool.function is defined else tool %}
// {{ f.description | default('', true) | replace('\n', '\n// ') }}
type {{ f.name }} = {% if f.parameters and f.parameters.properties %}(_: {{ type_of(f.parameters) }}) => any;{% else %}() => any;{% endif %}

{% endfor %}
}{% endif -%}
<|end|>
{%- for m in messages -%}
    {%- if m.role == 'assistant' and m.tool_calls -%}
        {%- for call in m.tool_calls -%}
<|start|>assistant<|channel|>commentary to=functions.{{ call.function.name }}<|message|>{{ call.function.arguments | tojson if call.function.arguments is mapping else call.function.arguments }}<|call|>
        {%- endfor -%}
    {%- elif m.role == 'tool' -%}
<|start|>functions to=assistant<|message|>{{ m.content | tojson }}<|end|>
    {%- else -%}
<|start|>{{ m.role }}<|message|>{{ m.content if m.content is string else (m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join) }}<|end|>
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|start|>assistant{% endif -%}
""",
    # thinking that is cut out of earlier turns, searching backwards for the last question
    "thinking": r"""
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- if tools %}
    {{- '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{% endif %}
    {{- "# Tools\n\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' }}{{- content }}{{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}
""",
    # parts of text and pictures, a prefix of the first user message, alternation enforced
    "parts": r"""
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set first_user_prefix = messages[0]['content'] + '

' -%}{%- else -%}{%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}{%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model
'}}{%- endif -%}
""",
    # dates, default prompts, tool ids that must have nine characters, validation
    "dates": r"""
{%- set today = strftime_now("%Y-%m-%d") %}
{%- set default_system_message = "You are a model. The current date is " + today + ".\n\nWhen asked, say \"I don't know\"." %}
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}{%- set system_message = messages[0]['content'] %}{%- else %}{%- set system_message = messages[0]['content'][0]['text'] %}{%- endif %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = default_system_message %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- elif tools is not none %}
    {%- set parallel_tool_prompt = "You are a helpful assistant that can call tools." %}
    {%- if system_message is defined %}{%- set system_message = parallel_tool_prompt + "\n\n" + system_message %}{%- endif %}
{%- endif %}
{{- '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- for message in loop_messages | rejectattr("role", "equalto", "tool") | rejectattr("role", "equalto", "tool_results") | selectattr("tool_calls", "undefined") %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}{{- raise_exception("roles must alternate") }}{%- endif %}
{%- endfor %}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST]" + (message["content"] if message.content is string else message.content[-1].text) + "[/INST]" }}
    {%- elif message["role"] == "tool_calls" or message.tool_calls is defined %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {{- {"name": tool_call.function.name, "arguments": tool_call.function.arguments}|tojson }}
            {%- if not tool_call.id is defined or tool_call.id|length < 9 %}{{- raise_exception("Tool call IDs should be alphanumeric strings with length >= 9!") }}{%- endif %}
            {{- ', "id": "' + tool_call.id[-9:] + '"}' }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + (message["content"] if message.content is string else '')|trim + eos_token}}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + "}[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
""",
    # documents, groups, call blocks, filters with arguments, caller with parameters
    "documents": r"""
{%- macro section(title, level=2) -%}
{{ '#' * level }} {{ title | title }}
{{ caller(level + 1) | trim | indent(2) }}

{% endmacro -%}
{%- macro turns(items) %}{% for m in items %}{{ loop.index }}. {{ m.role | upper }}: {{ m.content | string | truncate(40, true, '...', 0) }}
{% else %}none
{% endfor %}{% endmacro -%}
{% call(level) section('conversation so far') -%}
{{ turns(messages[:-1]) }}
{%- endcall %}
{% if documents %}{% call(level) section('documents', 3) %}
{% for d in documents | sort(attribute='title') %}
[{{ loop.index0 }}|{{ loop.revindex }}] {{ d.title | default('untitled') }}{{ ': ' ~ (d.text | wordcount) ~ ' words' if d.text }}
{{ d.text | default('-') | wordwrap(30) | indent(level * 2, first=true) }}
{% endfor %}
{% endcall %}{% endif %}
{%- for role, group in messages | groupby('role') %}
{{ role }}={{ group | length }}{{ ';' if not loop.last }}
{%- endfor %}
{% filter replace('\n\n\n', '\n\n') | trim %}
{{ messages[-1].content if messages[-1].content is string else messages[-1].content | tojson(indent=1) }}


{% endfilter %}
{% set keys = messages | map('list') | map('sort') | map('join', ',') | unique | list %}{{ keys }}
{{ (tools or []) | map(attribute='function.name') | select('string') | sort | join('/') }}
""",
    # generation marks, break and continue, sliding over the history, set blocks, loop controls
    "window": r"""
{%- set ns = namespace(seen=0, text='') -%}
{%- for m in messages | reverse -%}
    {%- if m.role == 'system' -%}{%- continue -%}{%- endif -%}
    {%- if ns.seen >= (window | default(4)) -%}{%- break -%}{%- endif -%}
    {%- set ns.seen = ns.seen + 1 -%}
    {%- set line -%}
        <{{ m.role }}{% for k, v in m | dictsort if k not in ['role', 'content', 'tool_calls'] %} {{ k }}="{{ v | e }}"{% endfor %}>
        {%- if m.role == 'assistant' -%}{% generation %}{{ m.content | default('', true) }}{% endgeneration %}{%- else -%}{{ m.content }}{%- endif -%}
        </{{ m.role }}>
    {%- endset -%}
    {%- set ns.text = line ~ '\n' ~ ns.text -%}
{%- endfor -%}
{{ ns.text -}}
{{ '%s of %s (%.1f%%)' | format(ns.seen, messages | length, 100 * ns.seen / (messages | length)) }}
{{ {'seen': ns.seen, 'roles': messages | map(attribute='role') | list} | tojson(indent=2) }}
{% with a = ns.seen, b = cycler('x', 'y') %}{{ a ** 2 // 3 }}{{ b.next() }}{{ b.next() }}{{ b.current }}{% endwith %}
""",
    # a tree of comments, walked recursively
    "tree": r"""
{%- for m in messages recursive -%}
{{ '  ' * loop.depth0 }}- {{ m.role | default('part') }}{{ ' ' ~ m.text if m.text }}{{ ' ' ~ loop.changed(m.role) }}
{% if m.content is iterable and m.content is not string and m.content is not mapping -%}
{{ loop(m.content) }}
{%- elif m.content -%}
{{ '  ' * loop.depth }}{{ m.content | trim | replace('\n', '\\n') }}
{% endif -%}
{%- endfor %}
""",
}
WORDS = ["hello", " hi ", "你好", "a\nb", "<think>", "why</think>ok", "</think>", "  ", "é", "\"q\"", "it's", "\\n", "{{ x }}", "😀", "\n\n", "tool", "<tool_response>x</tool_response>", "<b>&", "\t", "2 + 2", "x" * 30]
SCHEMAS = [None, {}, {"type": "object", "properties": {}}, {"type": "object", "properties": {"city": {"type": "string", "enum": ["a", "b\"c"], "default": "é"}, "n": {"type": "integer"}}, "required": ["city"]},
           {"type": "object", "properties": {"list": {"type": "array", "items": {"type": "object", "properties": {"v": {"type": ["string", "null"]}, "w": {"type": "number", "default": 1.5}}}}, "any": {}}}]


class Talk:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def text(self):
        return "".join(self.r.choice(WORDS) for _ in range(self.r.randrange(5)))

    def content(self):
        k = self.r.random()
        if k < 0.75:
            return self.text()
        if k < 0.95:
            return [self.r.choice([{"type": "text", "text": self.text()}, {"type": "image"}]) for _ in range(self.r.randrange(1, 4))]
        return None

    def call(self):
        return {"id": self.r.choice(["call_1234", "abcdefghi", "x"]), "type": "function", "function": {"name": "f%d" % self.r.randrange(3), "arguments": self.r.choice([{"city": self.text(), "n": 3}, "{\"a\": 1}", {}])}}

    def messages(self):
        out = [{"role": "system", "content": self.text()}] if self.r.random() < 0.5 else []
        for i in range(self.r.randrange(1, 6)):
            role = ["user", "assistant"][i % 2] if self.r.random() < 0.9 else self.r.choice(["tool", "user", "assistant"])
            m = {"role": role, "content": self.content()}
            if role == "assistant" and self.r.random() < 0.35:
                m["tool_calls"] = [self.call() for _ in range(self.r.randrange(1, 3))]
            if role == "assistant" and self.r.random() < 0.2:
                m["reasoning_content"] = self.text()
            if self.r.random() < 0.1:
                m["name"] = self.text()
            out.append(m)
        return out

    def tool(self, i):
        f = {"name": "f%d" % i, "description": self.text()}
        schema = self.r.choice(SCHEMAS)
        if schema is not None:
            f["parameters"] = schema
        return {"type": "function", "function": f}

    def case(self, name):
        c = {"template": TEMPLATES[name], "messages": self.messages(), "add_generation_prompt": self.r.random() < 0.5, "bos_token": "<s>", "eos_token": "</s>", "now": jd.NOW.isoformat(), "extra": {}}
        if self.r.random() < 0.4:
            c["tools"] = [self.tool(i) for i in range(self.r.randrange(1, 4))]
        if self.r.random() < 0.4:
            c["documents"] = [{"title": self.text(), "text": self.text() + " and some more words that go on for a while"} for _ in range(self.r.randrange(1, 4))]
        if self.r.random() < 0.3:
            c["extra"] = {"enable_thinking": self.r.random() < 0.5, "window": self.r.randrange(1, 5), "reasoning_effort": "high"}
        return c


def reference(env, c):
    variables = dict(c["extra"], messages=c["messages"], tools=c.get("tools"), documents=c.get("documents"), add_generation_prompt=c["add_generation_prompt"], bos_token=c["bos_token"], eos_token=c["eos_token"])
    try:
        return env.from_string(c["template"]).render(**variables), None
    except Exception as e:  # any failure of the template is an answer
        return None, "%s: %s" % (type(e).__name__, e)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tercet")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    env = jd.environment()
    names = sorted(TEMPLATES)
    cases = [Talk(args.seed + i).case(names[i % len(names)]) for i in range(args.cases)]
    data = "".join(json.dumps(c) + "\n" for c in cases)
    out = subprocess.run([args.tercet, "chat-template", "--jsonl", "-"], input=data.encode(), capture_output=True, check=True)
    answers = [json.loads(line) for line in out.stdout.decode("utf-8").split("\n") if line]
    passed = failed = rendered_count = 0
    for i, (c, got) in enumerate(zip(cases, answers)):
        rendered, error = reference(env, c)
        same = got.get("rendered") == rendered if error is None else "error" in got
        passed += same
        failed += not same
        rendered_count += error is None
        if not same and failed <= 8:
            print("seed %d, %s: %s\n  jinja2 %r\n  tercet %r" % (args.seed + i, names[i % len(names)], json.dumps({k: v for k, v in c.items() if k != "template"}), rendered if error is None else error, got))
    print("%d passed, %d failed" % (passed, failed + len(cases) - len(answers)))
    print("(%d rendered)" % rendered_count)
    return 1 if failed or len(answers) != len(cases) else 0


if __name__ == "__main__":
    sys.exit(main())
