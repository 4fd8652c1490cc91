"""Sessions: the engine keeps the tokens of a conversation, the client sends only the new turn. Every answer is that of
the whole conversation sent without a session, whatever dies in between."""
import concurrent.futures
import contextlib
import os
import random
import signal
import time

import pytest

from api import ApiError, joined
from engine import FULL, SANITIZED, SLOWER, Engine, slowed, wait_until

FLOAT = ["--dtype", "float32"]
TURNS = ["The little fox went to", " the river, where", " an old owl said:"]


def ids(api, text):
    return api.call("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]


def turn(api, name, prompt, count=12, **fields):
    return api.completions(prompt, session_id=name, temperature=0, max_tokens=count, ignore_eos=True,
                           return_token_ids=True, **fields)


def answer(reply):
    return reply["choices"][0]["token_ids"]


def state(api, name, **kwargs):
    return api.call("GET", "/v1/sessions/" + name, **kwargs)


def refused(status, function, *args, **kwargs):
    with pytest.raises(ApiError) as caught:
        function(*args, **kwargs)
    assert caught.value.status in (status if isinstance(status, tuple) else (status,)), caught.value
    return caught.value


def whole(api, turns, count=12):
    """Prompts of the whole conversation, each without a session, and its answers."""
    history, answers = [], []
    for k, text in enumerate(turns):
        history = history + (api.call("POST", "/tokenize", {"prompt": text})["tokens"] if k == 0 else ids(api, text))
        answers.append(api.greedy_ids(history, count, cache_salt="aside"))
        history = history + answers[-1]
    return answers, history


def check_three_turns(api, name, before=lambda k: None):
    wanted, history = whole(api, TURNS)
    total = 0
    for k, text in enumerate(TURNS):
        before(k)
        reply = turn(api, name, text, session_start=k == 0)
        assert answer(reply) == wanted[k], "turn %d" % k
        assert reply["usage"]["prompt_tokens"] + 12 == reply["session"]["tokens"]
        assert reply["session"]["tokens"] > total
        total = reply["session"]["tokens"]
    assert total == len(history)
    return reply


def test_three_turns_are_the_whole_conversation_and_compute_only_what_is_new(api):
    reply = check_three_turns(api, "three")
    usage = reply["usage"]
    # all but the new turn, the last output and those that asynchronous steps had not told yet
    new = len(ids(api, TURNS[2]))
    assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] <= new + 5
    s = state(api, "three")
    assert s["tokens"] == reply["session"]["tokens"] and s["turns"] == 3 and not s["running"]
    assert s["tokens"] - 5 <= s["cached_tokens"] < s["tokens"]
    assert s["age_s"] >= s["idle_s"] and s["expires_in_s"] > 3000


def test_chats_send_only_new_messages(api):
    messages = [{"role": "user", "content": "Tell me about a fox."}]
    fields = {"temperature": 0, "max_tokens": 20, "return_token_ids": True}
    reply = api.chat(messages, session_id="chat", session_start=True, **fields)
    history = reply["prompt_token_ids"] + answer(reply)
    for k, text in enumerate(["And then?", "The end?"]):
        # the whole, from the tokens that were generated: what ends an answer is said once
        rendered = api.call("POST", "/tokenize", {"messages": [{"role": "user", "content": "x"},
                            {"role": "assistant", "content": "y"}, {"role": "user", "content": text}]})["tokens"]
        begun = api.call("POST", "/tokenize", {"messages": [{"role": "user", "content": "x"},
                         {"role": "assistant", "content": "y"}], "add_generation_prompt": False})["tokens"]
        end = ids(api, "<|end|>\n")
        assert begun[-len(end):] == end
        if history[-1] == end[0]:
            history = history[:-1]
        history = history + end + rendered[len(begun):]
        wanted = api.completions(history, cache_salt="aside", **fields)
        events = list(api.stream("/v1/chat/completions", messages=[{"role": "user", "content": text}],
                                 session_id="chat", stream_options={"include_usage": True}, **fields))
        assert joined(events)[0]["token_ids"] == answer(wanted), "turn %d" % k
        assert joined(events)[0]["text"] == wanted["choices"][0]["text"]
        assert events[-1]["usage"]["prompt_tokens"] == len(history)
        history = history + answer(wanted)
        assert [e["session"] for e in events if "session" in e] == [{"id": "chat", "tokens": len(history)}]


def test_a_step_back_generates_the_answer_again(api):
    first = turn(api, "back", TURNS[0], session_start=True)
    prompt = first["usage"]["prompt_tokens"]
    turn(api, "back", TURNS[1])
    again = turn(api, "back", "", session_step=prompt)
    assert answer(again) == answer(first)
    assert again["session"]["tokens"] == prompt + 12 == state(api, "back")["tokens"]
    drawn = api.completions([], session_id="back", session_step=prompt, max_tokens=12, temperature=1, seed=5,
                            ignore_eos=True, return_token_ids=True)
    assert answer(drawn) != answer(first)
    onward = turn(api, "back", [])
    assert onward["usage"]["prompt_tokens"] == prompt + 12
    error = refused(400, turn, api, "back", "", session_step=99)
    assert "session_step is 99" in error.message and "has %d tokens" % (prompt + 24) in error.message


def test_unknown_ended_and_begun_twice(api):
    error = refused(404, turn, api, "nobody", "Hello")
    assert error.error["code"] == "session_not_found" and "begin it" in error.message
    refused(404, state, api, "nobody")
    turn(api, "once", "Hello", session_start=True)
    error = refused(409, turn, api, "once", "Hello", session_start=True)
    assert error.error["code"] == "session_conflict" and "is there already" in error.message
    gone = api.call("DELETE", "/v1/sessions/once")
    assert gone["deleted"] and gone["tokens"] > 12
    error = refused(410, turn, api, "once", "Hello")
    assert error.error["code"] == "session_dropped" and "was ended" in error.message
    again = api.call("DELETE", "/v1/sessions/once")
    assert again["deleted"] and (again["tokens"], again["turns"]) == (gone["tokens"], gone["turns"])
    last = turn(api, "once", "Hello", session_start=True, session_end=True)
    assert last["session"]["tokens"] == 0
    wait_until(lambda: api.raw("GET", "/v1/sessions/once")[0] == 410, 10, "the end of the session")
    refused(410, state, api, "once")
    status, headers, _ = api.raw("PUT", "/v1/sessions/once")
    assert status == 405 and headers["Allow"] == "GET, HEAD, DELETE"


def test_one_turn_at_a_time_and_what_an_aborted_one_leaves(engine, api):
    worker = engine.pid_of("tercet-worker")
    stream = api.stream(prompt="A long story:", session_id="busy", session_start=True, max_tokens=480, temperature=0,
                        ignore_eos=True)
    next(stream)
    with slowed(worker):  # so that the turn is in work for longer than another one waits
        error = refused(409, turn, api, "busy", "Hello")
        assert "in work" in error.message
        assert state(api, "busy")["running"]
        stream.close()
    wait_until(lambda: not state(api, "busy")["running"], 10, "the end of the turn")
    kept = state(api, "busy")["tokens"]
    assert kept > 4
    reply = turn(api, "busy", " And", 4)
    assert reply["usage"]["prompt_tokens"] == kept + len(ids(api, " And"))


def test_a_context_that_is_full_names_the_numbers_and_leaves_the_session(api):
    reply = turn(api, "full", TURNS[0], 400, session_start=True)
    tokens = reply["session"]["tokens"]
    assert state(api, "full")["tokens"] == tokens
    error = refused(400, turn, api, "full", list(range(10, 10 + 512 - tokens)))
    assert error.error["code"] == "context_length_exceeded"
    assert "%d tokens" % tokens in error.message and "%d;" % (512 - tokens) in error.message and "512" in error.message
    assert state(api, "full")["tokens"] == tokens
    # max_tokens beyond the room is cut, since only the engine knows what is left
    reply = turn(api, "full", list(range(10, 10 + 500 - tokens)), 200)
    assert reply["choices"][0]["finish_reason"] == "length" and reply["usage"]["completion_tokens"] == 12
    assert reply["session"]["tokens"] == 512
    refused(400, turn, api, "full", "more")


def test_a_stop_string_just_in_front_of_the_end_ends_the_history_with_the_answer(api):
    """The last tokens end the turn in the scheduler, at times before it hears of the stop string in front of them."""
    said = turn(api, "just", TURNS[0], 8, session_start=True)["choices"][0]["text"]
    word, own = said.split()[3], len(ids(api, TURNS[1]))
    for i in range(60):
        kept = turn(api, "just-%d" % i, TURNS[0], 8, session_start=True, stop=[word])["session"]["tokens"]
        reply = turn(api, "just-%d" % i, TURNS[1], 1, session_end=True)
        assert reply["usage"]["prompt_tokens"] == kept + own, i


def test_a_stop_string_ends_the_history_with_the_answer(api):
    fields = {"temperature": 0, "max_tokens": 60, "ignore_eos": True, "return_token_ids": True}
    text = api.completions(TURNS[0], **fields)["choices"][0]["text"]
    stop = text[20:26]
    reply = api.completions(TURNS[0], session_id="stop", session_start=True, stop=stop, **fields)
    assert reply["choices"][0]["stop_reason"] == stop
    assert state(api, "stop")["tokens"] == reply["session"]["tokens"]
    assert reply["session"]["tokens"] == reply["usage"]["prompt_tokens"] + len(answer(reply))


BAD = [({"session_start": True}, "session_start", "without 'session_id'"),
       ({"session_step": 3}, "session_step", "without 'session_id'"),
       ({"session_id": ""}, "session_id", "letters"), ({"session_id": "a/b"}, "session_id", "letters"),
       ({"session_id": "x" * 65}, "session_id", "letters"), ({"session_id": 7}, "session_id", "string"),
       ({"session_id": "a", "session_start": 1}, "session_start", "true or false"),
       ({"session_id": "a", "session_step": -1}, "session_step", "at least 0"),
       ({"session_id": "a", "session_step": 1, "session_start": True}, "session_step", "begins"),
       ({"session_id": "a", "session_start": True, "n": 2}, "n", "one answer"),
       ({"session_id": "a", "session_start": True, "use_beam_search": True}, "use_beam_search", "together"),
       ({"session_id": "a", "session_start": True, "echo": True}, "echo", "repeated"),
       ({"session_id": "a", "session_start": True, "prompt_logprobs": 1}, "prompt_logprobs", "together"),
       ({"session_id": "a", "session_start": True, "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "session_step"),
       ({"session_id": "a", "session_start": True, "prompt": []}, "prompt", "empty"),
       ({"session_id": "a", "session_start": True, "prompt": ["x", "y"]}, "prompt", "one")]


@pytest.mark.parametrize("fields,param,text", BAD)
def test_bad_fields_are_named(api, fields, param, text):
    error = refused(400, api.completions, **{"prompt": "Hello", "max_tokens": 2, **fields})
    assert error.error["param"] == param and text in error.message, error
    assert api.call("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})["choices"]


def test_templates_that_change_what_was_said_are_refused(api, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{% if loop.last %}<|user|>\n{% endif %}{{ m.content }}\n{% endfor %}")
    with Engine("--chat-template", template) as e:
        fields = {"session_id": "s", "max_tokens": 2}
        e.api.chat([{"role": "user", "content": "a"}], session_start=True, **fields)
        error = refused(400, e.api.chat, [{"role": "user", "content": "b"}], **fields)
        assert error.error["param"] == "session_id" and "send the whole conversation" in error.message


def test_keys_bounds_time_and_a_restart_with_a_directory(tmp_path):
    where = tmp_path / "kept"
    keys = [{"Authorization": "Bearer " + k} for k in ("one", "two")]

    def say(e, key, name, text, **fields):
        return e.api.call("POST", "/v1/completions", {"prompt": text, "session_id": name, "max_tokens": 4, "temperature": 0,
                          "ignore_eos": True, "return_token_ids": True, **fields}, headers=keys[key])

    flags = FLOAT + ["--session-dir", where, "--max-sessions", 2, "--api-key", "one", "--api-key", "two"]
    with Engine(*flags) as e:
        say(e, 0, "talk", "One", session_start=True)
        refused(404, say, e, 1, "talk", "Two")
        refused(404, e.api.call, "GET", "/v1/sessions/talk", headers=keys[1])
        refused(401, e.api.call, "GET", "/v1/sessions/talk")
        say(e, 1, "talk", "Two", session_start=True)
        kept = say(e, 0, "talk", " more")
        say(e, 1, "third", "Three", session_start=True)  # the other's is the least recently used
        error = refused(410, say, e, 1, "talk", "x")
        assert "--max-sessions" in error.message
        assert e.terminate() == 0
    with Engine(*flags) as e:
        found = e.api.call("GET", "/v1/sessions/talk", headers=keys[0])
        assert found["tokens"] == kept["session"]["tokens"] and found["turns"] == 2 and found["cached_tokens"] == 0
        reply = say(e, 0, "talk", " and")
        assert reply["usage"]["prompt_tokens"] == kept["session"]["tokens"] + len(
            e.api.call("POST", "/tokenize", {"prompt": " and", "add_special_tokens": False}, headers=keys[0])["tokens"])
        with Engine(*FLOAT, "--session-dir", where, wait=False) as other:
            assert other.wait_exit() != 0
            assert "another engine uses it" in other.log()
    if SANITIZED:
        return
    with Engine(*flags, "--session-ttl", 1) as e:
        wait_until(lambda: e.api.raw("GET", "/v1/sessions/talk", headers=keys[0])[0] == 410, 10, "the end of an idle session")
    with Engine(*FLOAT, "--session-dir", "/proc/none", wait=False) as e:
        assert e.wait_exit() != 0
        assert "--session-dir" in e.log()
    with Engine("--max-sessions", 0) as e:
        error = refused(400, turn, e.api, "a", "x", session_start=True)
        assert "--max-sessions 0" in error.message


@pytest.mark.skipif(SANITIZED, reason="three kills in one engine are slow there")
@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_processes_change_no_turn(ranks):
    with Engine(*FLOAT, "--tensor-parallel-size", ranks) as e:
        wanted, _ = whole(e.api, TURNS, 60)

        def strike(name):
            gone = [p for p, comm in e.pids().items() if comm.startswith(name[:15])]
            for pid in gone:
                with contextlib.suppress(ProcessLookupError):  # a rank whose neighbour has died may be ended already
                    os.kill(pid, signal.SIGKILL)
            return gone

        count = len(e.pids())
        for name in ("tercet-worker", "tercet-detok", "tercet-scheduler"):
            session = "after-" + name
            for k, text in enumerate(TURNS):
                stream = e.api.stream(prompt=text, session_id=session, session_start=k == 0, temperature=0, max_tokens=60,
                                      ignore_eos=True, return_token_ids=True)
                events = [next(stream)]
                if k == 1:  # in the middle of a turn
                    strike(name)
                events += list(stream)
                assert joined(events)[0]["token_ids"] == wanted[k], "%s, turn %d" % (name, k)
                if k == 0:  # and between two
                    gone = strike(name)
                    wait_until(lambda: len(e.pids()) == count and not set(gone) & set(e.pids()) and e.api.healthy(), 20, "health")
            assert state(e.api, session)["tokens"] == events[-1]["session"]["tokens"], e.log()[-3000:]


class Frozen:
    """Processes that stand still, and begin to move when they are told, or at the end."""

    def __init__(self):
        self.pids = []

    def __enter__(self):
        return self

    def stop(self, pid):
        os.kill(pid, signal.SIGSTOP)
        self.pids.append(pid)

    def move(self, pid):
        self.pids.remove(pid)
        os.kill(pid, signal.SIGCONT)

    def __exit__(self, *_):
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def turn_that_only_the_detokenizer_sees_end(e, name, prompt, detok_dies=False, **fields):
    """All steps of a short turn are sent before the worker may compute; its results then reach the detokenizer and a
    scheduler that stands still, and dies without having read them."""
    worker, scheduler = e.pid_of("tercet-worker"), e.pid_of("tercet-scheduler")
    with Frozen() as frozen, concurrent.futures.ThreadPoolExecutor(1) as pool:
        frozen.stop(worker)
        before = e.api.metric("tercet_diff_bytes_total")
        reply = pool.submit(turn, e.api, name, prompt, 3, **fields)
        wait_until(lambda: e.api.metric("tercet_diff_bytes_total") > before, 10, "the turn's steps")
        time.sleep(0.02)
        frozen.stop(scheduler)
        frozen.move(worker)
        with contextlib.suppress(concurrent.futures.TimeoutError):
            reply.result(0.2)
        os.kill(scheduler, signal.SIGKILL)
        if detok_dies:
            os.kill(e.pid_of("tercet-detok"), signal.SIGKILL)
        reply = reply.result(30 * SLOWER)
    wait_until(e.api.healthy, 20, "health")
    return reply


@pytest.mark.skipif(SANITIZED, reason="kills in one engine are slow there")
def test_a_turn_that_only_the_detokenizer_has_seen_the_end_of_is_not_lost_with_the_scheduler():
    with Engine(*FLOAT) as e:
        wanted, history = whole(e.api, TURNS, 3)
        stop = joined(e.api.stream(prompt=TURNS[0], temperature=0, max_tokens=2, ignore_eos=True))[0]["text"][-2:]
        for k, text in enumerate(TURNS):
            reply = turn_that_only_the_detokenizer_sees_end(e, "cut", text, k == 1, session_start=k == 0)
            assert answer(reply) == wanted[k], e.log()[-3000:]
            found = state(e.api, "cut")
            assert found["tokens"] == reply["session"]["tokens"] and found["turns"] == k + 1 and not found["running"]
        assert found["tokens"] == len(history)
        # found in text that the scheduler never sees
        reply = turn_that_only_the_detokenizer_sees_end(e, "stop", TURNS[0], session_start=True, stop=stop)
        assert answer(reply) == wanted[0][:2] and reply["choices"][0]["stop_reason"] == stop
        assert state(e.api, "stop")["tokens"] == reply["session"]["tokens"]
        # its client has ended it
        reply = turn_that_only_the_detokenizer_sees_end(e, "stop", " And", session_end=True)
        # 410 where the end was sent again to the scheduler's next life, which knows of it then
        refused((404, 410), state, e.api, "stop")
        refused((404, 410), turn, e.api, "stop", "Hello")
        assert answer(turn(e.api, "stop", TURNS[0], 3, session_start=True)) == wanted[0]


def turn_whose_stop_string_comes_late(e, name, prompt, moment, **fields):
    """The scheduler has a turn in its journal as it ended by its length, before the detokenizer reads any of it and finds a stop
    string; and dies `moment` its CLOSE or the STOPPED is read, or when all is told. The reply, and what came before the death."""
    detok, scheduler, turns = e.pid_of("tercet-detok"), e.pid_of("tercet-scheduler"), state(e.api, name)["turns"]
    early = None
    with Frozen() as frozen, concurrent.futures.ThreadPoolExecutor(1) as pool:
        frozen.stop(detok)
        reply = pool.submit(turn, e.api, name, prompt, 40, **fields)
        wait_until(lambda: state(e.api, name)["turns"] > turns, 10, "the end of the turn for the scheduler")
        if moment == "before CLOSE":
            os.kill(scheduler, signal.SIGKILL)
            frozen.move(detok)
        else:
            if moment != "afterwards":
                frozen.stop(scheduler)
            frozen.move(detok)
            with contextlib.suppress(concurrent.futures.TimeoutError):
                early = reply.result(30 * SLOWER if moment == "afterwards" else 0.3)
            os.kill(scheduler, signal.SIGKILL)
            if moment == "before STOPPED, with the detokenizer":
                os.kill(detok, signal.SIGKILL)
        reply = reply.result(30 * SLOWER)
    wait_until(e.api.healthy, 20, "health")
    return reply, early


@pytest.mark.skipif(SANITIZED, reason="kills in one engine are slow there")
def test_a_stop_string_that_a_dying_scheduler_never_heard_of_ends_the_history_too():
    with Engine(*FLOAT) as e:
        turn(e.api, "late", TURNS[0], 3, session_start=True)
        text = turn(e.api, "late", TURNS[0], 20, session_step=0)["choices"][0]["text"]
        fields = {"stop": [" " + text.split()[3]], "session_step": 0}
        wanted = turn(e.api, "late", TURNS[0], 40, **fields)
        assert wanted["choices"][0]["finish_reason"] == "stop" and len(answer(wanted)) < 20
        for moment in ("before CLOSE", "before STOPPED", "before STOPPED, with the detokenizer", "afterwards"):
            reply, early = turn_whose_stop_string_comes_late(e, "late", TURNS[0], moment, **fields)
            assert (early is not None) == (moment == "afterwards"), "the end was told before it was kept, or was not told at all"
            assert answer(reply) == answer(wanted), moment
            found = state(e.api, "late")
            assert found["tokens"] == reply["session"]["tokens"] == wanted["session"]["tokens"], (moment, e.log()[-3000:])
            reply = turn(e.api, "late", TURNS[1], 3)
            assert reply["usage"]["prompt_tokens"] == found["tokens"] + len(ids(e.api, TURNS[1])), moment


@pytest.mark.skipif(SANITIZED, reason="kills in one engine are slow there")
def test_an_end_that_is_asked_for_again_behind_a_crash_is_answered_as_the_first_time():
    with Engine(*FLOAT) as e:
        turn(e.api, "over", TURNS[0], 3, session_start=True)
        turn(e.api, "last", TURNS[0], 3, session_start=True)
        refused(404, e.api.call, "DELETE", "/v1/sessions/never")
        first = e.api.call("DELETE", "/v1/sessions/over")
        turn(e.api, "last", TURNS[1], 3, session_end=True)
        wait_until(lambda: e.api.raw("GET", "/v1/sessions/last")[0] == 410, 10, "the end of the session")
        for _ in range(2):
            os.kill(e.pid_of("tercet-scheduler"), signal.SIGKILL)
            again = e.api.call("DELETE", "/v1/sessions/over")
            assert again["deleted"] and (again["tokens"], again["turns"]) == (first["tokens"], first["turns"])
            assert e.api.call("DELETE", "/v1/sessions/last")["deleted"]
            assert "was ended" in refused(410, state, e.api, "over").message
            refused(404, e.api.call, "DELETE", "/v1/sessions/never")
        turn(e.api, "over", TURNS[0], 3, session_start=True)
        assert state(e.api, "over")["turns"] == 1


@pytest.mark.skipif(SANITIZED, reason="kills in one engine are slow there")
@pytest.mark.parametrize("seed", range(5 if FULL else 1))
def test_a_turn_whose_end_has_come_is_there_whenever_the_scheduler_dies(seed):
    rng = random.Random(seed)
    with Engine(*FLOAT) as e:
        wanted, _ = whole(e.api, TURNS + TURNS[:2], 6)
        for k, text in enumerate(TURNS + TURNS[:2]):
            stream = e.api.stream(prompt=text, session_id="end", session_start=k == 0, temperature=0, max_tokens=6,
                                  ignore_eos=True, return_token_ids=True)
            events = []
            while not events or events[-1]["choices"][0]["finish_reason"] is None:
                events.append(next(stream))
            time.sleep(rng.choice((0, rng.random() / 1000)))
            os.kill(e.pid_of("tercet-scheduler"), signal.SIGKILL)
            events += list(stream)
            assert joined(events)[0]["token_ids"] == wanted[k], "turn %d of seed %d" % (k, seed)
            wait_until(e.api.healthy, 20, "health")
            assert state(e.api, "end")["tokens"] == events[-1]["session"]["tokens"]
