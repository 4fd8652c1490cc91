"""A small client of the HTTP API: plain requests, event streams, metrics."""
import http.client
import json
import re


class ApiError(Exception):
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body
        try:
            self.error = json.loads(body)["error"]
        except (ValueError, KeyError, TypeError):
            self.error = {}
        super().__init__("HTTP %d: %s" % (status, body[:500]))

    @property
    def message(self):
        return self.error.get("message", "")


class Stream:
    """An event stream that is read one event at a time."""

    def __init__(self, connection, response):
        self.connection, self.response = connection, response
        self.done = False

    def __iter__(self):
        return self

    def __next__(self):
        while True:
            line = self.response.readline()
            if not line:
                self.close()
                raise StopIteration
            line = line.rstrip(b"\r\n")
            if not line.startswith(b"data: "):
                assert line == b"" or line.startswith(b":"), line  # comments keep the connection alive
                continue
            if line == b"data: [DONE]":
                self.done = True
                continue
            return json.loads(line[6:])

    def close(self):
        self.connection.close()


class Api:
    def __init__(self, host, port, timeout=120):
        self.host, self.port, self.timeout = host, port, timeout

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)

    def raw(self, method, path, body=None, headers=None, connection=None):
        """(status, headers, body bytes)"""
        own = connection is None
        connection = connection or self.connect()
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            if own:
                connection.close()

    def call(self, method, path, value=None, headers=None):
        headers = dict(headers or {})
        body = None
        if value is not None:
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            headers.setdefault("Content-Type", "application/json")
        status, head, text = self.raw(method, path, body, headers)
        if status != 200:
            raise ApiError(status, head, text.decode(errors="replace"))
        return json.loads(text) if text else None

    def healthy(self):
        try:
            return self.raw("GET", "/health")[0] == 200
        except OSError:
            return False

    def model(self):
        return self.call("GET", "/v1/models")["data"][0]["id"]

    def completions(self, prompt, **fields):
        return self.call("POST", "/v1/completions", {"prompt": prompt, **fields})

    def chat(self, messages, **fields):
        return self.call("POST", "/v1/chat/completions", {"messages": messages, **fields})

    def crowd(self, count, tokens):
        """`count` sampled sequences of so many tokens, which one request brings: they run beside each other whatever the
        clients' timing, so what they need together beyond the KV cache is preempted for certain."""
        reply = self.completions("A crowd", n=count, max_tokens=tokens, temperature=1.0, seed=count, ignore_eos=True)
        assert reply["usage"]["completion_tokens"] == count * tokens

    def stream(self, path="/v1/completions", **fields):
        connection = self.connect()
        connection.request("POST", path, json.dumps({"stream": True, **fields}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise ApiError(response.status, response.headers, response.read().decode(errors="replace"))
        return Stream(connection, response)

    def greedy_ids(self, prompt, count, **fields):
        """`count` greedy tokens behind a prompt (text or ids)."""
        reply = self.completions(prompt, temperature=0, max_tokens=count, ignore_eos=True, return_token_ids=True,
                                 **fields)
        return reply["choices"][0]["token_ids"]

    def cached_ids(self, prompt, count):
        """The same, and how many tokens of the prompt were in the cache."""
        reply = self.completions(prompt, temperature=0, max_tokens=count, ignore_eos=True, return_token_ids=True)
        return reply["choices"][0]["token_ids"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    def beam_ids(self, prompt, count):
        """The three likeliest continuations that a beam search finds, best first."""
        reply = self.completions(prompt, max_tokens=count, use_beam_search=True, n=3, temperature=0, ignore_eos=True,
                                 return_token_ids=True)
        return [c["token_ids"] for c in reply["choices"]]

    def metrics(self):
        """name (with labels other than model_name) -> value"""
        text = self.raw("GET", "/metrics")[2].decode()
        found = {}
        for line in text.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            name, value = line.rsplit(" ", 1)
            name = re.sub(r'model_name="[^"]*",?', "", name).replace("{}", "").replace(",}", "}")
            found[name] = float(value)
        return found

    def metric(self, name):
        return self.metrics()[name]


def joined(events):
    """What an event stream of completions or chat says, per choice: text, token ids, finish, stop reason."""
    choices = {}
    for event in events:
        assert "error" not in event, event
        for c in event["choices"]:
            mine = choices.setdefault(c["index"], {"text": "", "token_ids": [], "finish_reason": None,
                                                   "stop_reason": None, "tokens": [], "token_logprobs": [],
                                                   "text_offset": [], "events": 0})
            assert mine["finish_reason"] is None, "news behind the end"
            mine["events"] += 1
            mine["text"] += c["text"] if "text" in c else c["delta"].get("content") or ""
            mine["token_ids"] += c.get("token_ids") or []
            mine["finish_reason"] = c["finish_reason"]
            mine["stop_reason"] = c.get("stop_reason")
            logprobs = c.get("logprobs") or {}
            for field in ("tokens", "token_logprobs", "text_offset"):
                mine[field] += logprobs.get(field) or []
    return choices
