"""A fixed load of seeded requests, streamed and not, whose every answer can be compared with the undisturbed one."""
import http.client
import threading

from api import ApiError, joined
from engine import SLOWER, wait_until

WORDS = ("Once upon a time", "The little dog", "A king and his", "In the deep forest", "One day the sun",
         "She said that", "There was a bear", "The old ship")


def request(number, tokens):
    """Request `number` of the load: half of them long prompts, some greedy, some with stop strings."""
    prompt = " ".join([WORDS[number % len(WORDS)]] * (1 + 6 * (number % 3 == 0)))
    fields = {"prompt": prompt, "max_tokens": tokens - number % 5, "seed": 1000 + number, "return_token_ids": True,
              "temperature": 0.0 if number % 4 == 0 else 0.9, "ignore_eos": number % 5 != 0}
    if number % 7 == 3:
        fields["stop"] = ["zebra crossing", " the end of"]
    if number % 6 == 2:
        fields["repetition_penalty"] = 1.2
    return fields


class Load:
    """All requests at once, each in a thread of its own; odd ones are streamed."""

    def __init__(self, api, count=16, tokens=120):
        self.api, self.count, self.tokens = api, count, tokens
        self.answers, self.errors = {}, {}
        self.begun = threading.Semaphore(0)
        self.threads = [threading.Thread(target=self.ask, args=(i,), daemon=True) for i in range(count)]
        for t in self.threads:
            t.start()

    def ask(self, number):
        fields = request(number, self.tokens)
        try:
            if number % 2:
                stream = self.api.stream(**fields)
                events = []
                for event in stream:
                    if not events:
                        self.begun.release()
                    events.append(event)
                assert stream.done, "the stream ends without [DONE]"
                choice = joined(events)[0]
            else:
                choice = self.api.call("POST", "/v1/completions", fields)["choices"][0]
            self.answers[number] = (choice["token_ids"], choice["text"], choice["finish_reason"])
        except (ApiError, OSError, http.client.HTTPException, AssertionError, ValueError) as error:
            self.errors[number] = error

    def wait_begun(self, streams=4, seconds=60):
        """Until that many streams have brought their first token."""
        for _ in range(streams):
            assert self.begun.acquire(timeout=seconds * SLOWER), ("no first token", self.errors)
        return self

    def wait_taken_in(self, engine, before=0, seconds=60):
        """Until the engine, which had taken in so many before, has them all."""
        wait_until(lambda: engine.taken_in() >= before + self.count or not self.running(), seconds, "the arrival of all requests")
        return self

    def running(self):
        return any(t.is_alive() for t in self.threads)

    def join(self, seconds=90):
        for t in self.threads:
            t.join(seconds * SLOWER)
        assert not self.running(), "%d requests hang" % sum(t.is_alive() for t in self.threads)
        return self

    def results(self, seconds=90):
        self.join(seconds)
        assert not self.errors, self.errors
        return self.answers


def differences(wanted, got):
    """number -> what is wrong with that answer; empty when all are the same."""
    wrong = {}
    for number, (ids, text, finish) in wanted.items():
        if got.get(number) == (ids, text, finish):
            continue
        other = got.get(number)
        if other is None:
            wrong[number] = "missing"
            continue
        same = next((i for i, (a, b) in enumerate(zip(ids, other[0])) if a != b), min(len(ids), len(other[0])))
        wrong[number] = "ids differ from %d of %d/%d on, finish %s/%s, text %s" % (
            same, len(ids), len(other[0]), finish, other[2], "same" if text == other[1] else "differs")
    return wrong
