"""A load of everything the API has: streams, log-probabilities, structured output, searches, several answers, conversations.
Each job's value is the same whenever it is asked, whatever dies meanwhile."""
import random
import threading

from api import ApiError, joined
from engine import SLOWER, wait_until
from load import WORDS, request

TURNS = (" and then", " But the fox", " In the morning", " So they went")


def rounded(values):
    return [None if v is None else round(v, 2) for v in values]


def sampled(api, number):
    fields = request(number, 90)
    choice = joined(api.stream(**fields))[0] if number % 2 else api.call("POST", "/v1/completions", fields)["choices"][0]
    return choice["token_ids"], choice["text"], choice["finish_reason"], choice["stop_reason"]


def listed(api, number):
    """Log-probabilities of the outputs, and with `echo` of the prompt."""
    fields = {"prompt": " ".join(WORDS[number % len(WORDS):] + WORDS), "max_tokens": 60, "temperature": 0, "logprobs": number % 3,
              "ignore_eos": True, "echo": number % 2 == 0}
    if number % 4 == 3:
        fields["stop"] = [" the", "."]
    if number % 2:
        lists = joined(api.stream(**fields))[0]
    else:
        lists = api.call("POST", "/v1/completions", fields)["choices"][0]["logprobs"]
    return lists["tokens"], [v is None for v in lists["token_logprobs"]], rounded(lists["token_logprobs"])


def prompt_listed(api, number):
    """Log-probabilities of the prompt alone, of an answer that a stop string ends."""
    fields = {"prompt": " ".join(WORDS[number % 5:]), "max_tokens": 40, "temperature": 0.8, "seed": number, "prompt_logprobs": 1,
              "ignore_eos": True, "stop": [" the", ".", "a "], "return_token_ids": True}
    choice = api.call("POST", "/v1/completions", fields)["choices"][0]
    lists = [None if p is None else sorted(p) for p in choice["prompt_logprobs"]]
    return choice["token_ids"], choice["text"], choice["stop_reason"], lists


def structured(api, number):
    schema = {"type": "object", "properties": {"name": {"type": "string", "minLength": 20, "maxLength": 60}, "age": {"type": "integer"}},
              "required": ["name", "age"], "additionalProperties": False}
    how = {"guided_regex": "([a-z]{2,9} ){40}"} if number % 2 else {"guided_json": schema}
    reply = api.completions("A person:", temperature=1.0, seed=number + 1, max_tokens=200, return_token_ids=True, **how)
    return reply["choices"][0]["token_ids"], reply["choices"][0]["finish_reason"]


def searched(api, number):
    reply = api.completions(WORDS[number % len(WORDS)], use_beam_search=True, n=2, best_of=3, max_tokens=30, return_token_ids=True)
    return [(c["token_ids"], c["finish_reason"]) for c in reply["choices"]]


def several(api, number):
    reply = api.completions(WORDS[number % len(WORDS)], n=3, seed=number + 1, temperature=1.0, max_tokens=50, return_token_ids=True)
    return [(c["token_ids"], c["finish_reason"]) for c in reply["choices"]]


def talk(api, number):
    """Turns that end by their length, by a stop string and by being given up; a step back; the end, and another beginning."""
    name, told = "talk-%d" % number, []
    common = {"session_id": name, "ignore_eos": True, "return_token_ids": True}

    def say(prompt, **fields):
        fields = {"max_tokens": 12 + number % 7, "temperature": 0.9 if number % 2 else 0, "seed": number + 1, **common, **fields}
        if (number + len(told)) % 2:
            events = list(api.stream(prompt=prompt, **fields))
            choice, tokens = joined(events)[0], [e["session"]["tokens"] for e in events if "session" in e][0]
        else:
            reply = api.completions(prompt, **fields)
            choice, tokens = reply["choices"][0], reply["session"]["tokens"]
        told.append((choice["token_ids"], choice["finish_reason"], choice["stop_reason"], tokens))
        if not fields.get("session_end"):
            found = api.call("GET", "/v1/sessions/" + name)
            assert found["tokens"] == tokens and not found["running"], (found, tokens)
        return tokens

    say(WORDS[number % len(WORDS)], session_start=True)
    say(TURNS[0], max_tokens=40)
    say(TURNS[3], max_tokens=40, stop=[" the", ".", " a"])
    before = say(TURNS[1], max_tokens=3)
    stream = api.stream(prompt=TURNS[2], max_tokens=200, temperature=0, **common)
    for _ in range(1 + number % 3):
        next(stream, None)  # behind a pause several are one
    stream.close()
    wait_until(lambda: not api.call("GET", "/v1/sessions/" + name)["running"], 30, "the end of a turn that was given up")
    kept = api.call("GET", "/v1/sessions/" + name)["tokens"]
    assert kept >= before, "it is shorter than before the turn that was given up"
    reply = api.completions(TURNS[3], max_tokens=2, **common)  # needs no step back
    assert reply["usage"]["prompt_tokens"] > kept and reply["session"]["tokens"] == reply["usage"]["prompt_tokens"] + 2
    say(TURNS[2], session_step=before)
    say(TURNS[3], session_end=True, max_tokens=2 + number % 3)
    # the end of a last turn is told before it is known to the scheduler: there is nothing to keep
    wait_until(lambda: api.raw("GET", "/v1/sessions/" + name)[0] in (404, 410), 30, "the end of the session")
    say(TURNS[0], session_start=True)
    status = api.raw("DELETE", "/v1/sessions/" + name)[0]
    assert status == 200, status  # also where it was asked for again, of an engine that had done it
    return told


KINDS = (sampled, listed, prompt_listed, structured, searched, several, talk, talk)


class Mixed:
    """All jobs beside each other, in an order of its own."""

    def __init__(self, api, count=24, seed=0):
        self.api, self.values, self.errors = api, {}, {}
        numbers = list(range(count))
        random.Random(seed).shuffle(numbers)
        self.threads = [threading.Thread(target=self.ask, args=(n,), daemon=True) for n in numbers]
        for t in self.threads:
            t.start()

    def ask(self, number):
        try:
            self.values[number] = KINDS[number % len(KINDS)](self.api, number)
        except (ApiError, OSError, AssertionError, ValueError, KeyError, StopIteration) as error:
            self.errors[number] = error

    def running(self):
        return any(t.is_alive() for t in self.threads)

    def results(self, seconds=120):
        for t in self.threads:
            t.join(seconds * SLOWER)
        assert not self.running(), "%d jobs hang" % sum(t.is_alive() for t in self.threads)
        assert not self.errors, {KINDS[n % len(KINDS)].__name__ + "-%d" % n: repr(e) for n, e in self.errors.items()}
        return self.values


def wrong(wanted, got):
    """name of the job -> what it should be and is; empty when all are the same."""
    return {KINDS[n % len(KINDS)].__name__ + "-%d" % n: (wanted[n], got.get(n)) for n in wanted if wanted[n] != got.get(n)}
