"""Processes of the engine die or hang in the middle of 16 seeded requests: every answer is the undisturbed one."""
import concurrent.futures
import contextlib
import functools
import os
import signal
import threading
import time

import pytest

from api import joined
from engine import FULL, SANITIZED, SLOWER, Engine, alive, in_time, wait_until
from load import Load, differences

TINY = ["--max-model-len", "330", "--kv-cache-memory", "2MiB"]
CONFIGS = {
    "default": [],
    "tiny_cache": TINY,
    "two_ranks": ["--tensor-parallel-size", "2"],
    "depth_0": ["--async-depth", "0"],
    "depth_1_tiny_cache_no_prefix_caching": TINY + ["--async-depth", "1", "--no-enable-prefix-caching"],
    "two_ranks_tiny_cache": ["--tensor-parallel-size", "2", "--max-model-len", "330", "--kv-cache-memory", "1MiB"],
    "no_prefix_caching": ["--no-enable-prefix-caching"],
    "two_ranks_swap_space": ["--tensor-parallel-size", "2", "--max-model-len", "330", "--kv-cache-memory", "1MiB",
                             "--swap-space", "0.004"],
}
# Seconds until the ranks begin to start again when one of them has died, or was stopped.
PROMISE_S = 5
PARTS = ("tercet-worker", "tercet-detok", "tercet-scheduler")

pytestmark = pytest.mark.skipif(SANITIZED, reason="e2e/lifecycle kills one of them under sanitizers")


@pytest.fixture(scope="module")
def wanted():
    with Engine("--dtype", "float32") as e:
        answers = Load(e.api).results()
        assert differences(answers, Load(e.api).results()) == {}
        return answers


def victims(engine, name):
    """Process ids of all processes whose name begins so, by rank."""
    return sorted(pid for pid, comm in engine.pids().items() if comm.startswith(name[:15]))


def strike(engine, wanted, pids, signals=(signal.SIGKILL,), pause=0.0):
    count = len(engine.pids())
    load = Load(engine.api).wait_begun()
    time.sleep(0.1)
    for kind in signals:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # a rank whose neighbour has died may be ended already
                os.kill(pid, kind)
        time.sleep(pause)
    assert differences(wanted, load.results()) == {}, engine.log()[-4000:]
    # a load that was over before the blow has waited for nobody
    wait_until(lambda: len(engine.pids()) == count and engine.api.healthy(), 20, "health")


@pytest.mark.parametrize("config", CONFIGS if FULL else list(CONFIGS)[:3])
def test_a_killed_process_changes_no_token(config, wanted):
    with Engine("--dtype", "float32", *CONFIGS[config]) as e:
        for name in PARTS:
            for rank in range(len(victims(e, name))):
                strike(e, wanted, [victims(e, name)[rank]])
        if "tiny_cache" in config or "swap" in config:
            assert e.api.metric("vllm:num_preemptions_total") > 0


def test_what_dies_with_requests_in_its_swap_space_changes_no_token(wanted):
    with Engine("--dtype", "float32", *TINY, "--swap-space", 0.01) as e:
        for name in ("tercet-worker", "tercet-scheduler"):
            victim = e.pid_of(name)
            # 800 tokens of one request, with room for 340: whatever the pace of clients, some of it is swapped out
            crowd = threading.Thread(target=e.api.crowd, args=(4, 200))
            crowd.start()
            load = Load(e.api)
            wait_until(lambda: e.api.metric("vllm:num_requests_swapped") > 0, 30, "a swapped request")
            os.kill(victim, signal.SIGKILL)
            assert differences(wanted, load.results()) == {}, e.log()[-4000:]
            crowd.join()
            e.successor(name, victim)
        assert e.api.metric("tercet_swapped_in_blocks_total") > 0
        wait_until(lambda: e.api.metric("vllm:num_requests_swapped") == e.api.metric("vllm:cpu_cache_usage_perc") == 0, 10,
                   "an empty swap space")


LISTED = [{"prompt": "Once upon a time", "logprobs": 3, "stream": True},
          {"prompt": "The little dog", "logprobs": 0, "temperature": 0.9},
          {"prompt": "A king and his queen lived", "logprobs": 2, "echo": True},
          {"prompt": "In the deep forest", "logprobs": 1, "stream": True, "stop": [" the end of"]}]


def listed(api, fields):
    """Tokens and their log-probabilities of one request."""
    fields = {"max_tokens": 150, "temperature": 0, "seed": 4, "ignore_eos": True, **fields}
    if fields.pop("stream", False):
        lists = joined(api.stream(**fields))[0]
    else:
        lists = api.call("POST", "/v1/completions", fields)["choices"][0]["logprobs"]
    return lists["tokens"], lists["token_logprobs"]


@pytest.mark.parametrize("name", PARTS)
def test_a_killed_process_loses_no_log_probability(name):
    with Engine("--dtype", "float32") as e, concurrent.futures.ThreadPoolExecutor(len(LISTED)) as pool:
        ask = functools.partial(listed, e.api)
        wanted = list(pool.map(ask, LISTED))
        for _ in range(3):
            victim = e.pid_of(name)
            answers = pool.map(ask, LISTED)
            time.sleep(0.15)
            os.kill(victim, signal.SIGKILL)
            for (tokens, values), (wanted_tokens, wanted_values) in zip(answers, wanted):
                assert tokens == wanted_tokens
                assert [v is None for v in values] == [v is None for v in wanted_values], e.log()[-4000:]
                assert all(v is None or abs(v - w) < 1e-3 for v, w in zip(values, wanted_values))
            e.successor(name, victim)


@pytest.mark.parametrize("config", list(CONFIGS)[:3] if FULL else ["default"])
def test_two_killed_at_once_change_no_token(config, wanted):
    with Engine("--dtype", "float32", *CONFIGS[config]) as e:
        for i, name in enumerate(PARTS):
            strike(e, wanted, [victims(e, name)[-1], victims(e, PARTS[(i + 1) % 3])[0]])
        if FULL:
            strike(e, wanted, [victims(e, name)[0] for name in PARTS])


def test_a_killed_gateway_takes_only_its_own_connections(wanted):
    with Engine("--dtype", "float32", "--api-server-count", "2") as e:
        for attempt in range(5):  # on a busy machine the load can be over before the blow
            victim = victims(e, "tercet-gateway")[1]
            load = Load(e.api).wait_begun()
            os.kill(victim, signal.SIGKILL)
            load.join()
            assert load.answers, "16 connections meet both gateways"
            assert differences({n: wanted[n] for n in load.answers}, load.answers) == {}, e.log()[-4000:]
            wait_until(lambda: e.log().count("RESTARTED process=gateway-") == attempt + 1, 20, "two gateways")
            assert differences(wanted, Load(e.api).results()) == {}
            if load.errors:
                break
        assert load.errors, "16 connections meet both gateways"


def test_a_short_stop_changes_no_token(wanted):
    with Engine("--dtype", "float32", *TINY) as e:
        pids = e.pids()
        for name in PARTS + ("tercet-gateway",):
            strike(e, wanted, victims(e, name), (signal.SIGSTOP, signal.SIGCONT), 0.7)
        assert e.pids() == pids, "nobody was restarted"


@pytest.mark.parametrize("name", ["tercet-detok"] + (["tercet-scheduler", "tercet-gateway"] if FULL else []))
def test_a_stopped_process_is_restarted(name, wanted):
    with Engine("--dtype", "float32", "--api-server-count", "2", "--progress-timeout", "2") as e:
        victim = victims(e, name)[0]
        load = Load(e.api).wait_begun()
        os.kill(victim, signal.SIGSTOP)
        wait_until(lambda: "RESTARTED process=" + name[7:] in e.log(), 20, "its successor")
        answers = load.join().answers
        wait_until(lambda: victim not in e.pids(), 5, "its end")
        assert name == "tercet-gateway" or len(answers) == load.count, load.errors
        assert differences({n: wanted[n] for n in answers}, answers) == {}, e.log()[-4000:]
        assert "STUCK" in e.log()


def replaced_s(engine, wanted, rank, kind):
    """Strikes a rank under load; the seconds until the group began to start again. It also has to get there."""
    before, length = victims(engine, "tercet-worker"), len(engine.log())
    load = Load(engine.api).wait_begun()
    began = time.monotonic()
    os.kill(before[rank], kind)
    wait_until(lambda: "RESTARTING process=worker-" in engine.log()[length:], 60, "notice")
    seconds = time.monotonic() - began
    wait_until(lambda: all("RESTARTED process=worker-%d" % r in engine.log()[length:] for r in range(len(before))), 60,
               "a new group")
    assert differences(wanted, load.results()) == {}, engine.log()[-4000:]
    assert not set(before) & set(victims(engine, "tercet-worker"))
    return seconds


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("rank", [0, 1] if FULL else [1])
def test_a_dead_or_stopped_rank_is_replaced_within_five_seconds(rank, kind, wanted):
    with Engine("--dtype", "float32", "--tensor-parallel-size", "2") as e:
        in_time(PROMISE_S, lambda: replaced_s(e, wanted, rank, kind))


@pytest.mark.skipif(not FULL, reason="waits")
def test_a_pause_of_the_whole_machine_restarts_nobody(wanted):
    with Engine("--dtype", "float32", "--progress-timeout", "2") as e:
        pids = e.pids()
        strike(e, wanted, list(pids) + [e.process.pid], (signal.SIGSTOP, signal.SIGCONT), 6)
        time.sleep(3)
        assert e.pids() == pids, e.log()


def test_an_engine_that_gives_up_says_so_and_leaves_nobody_waiting():
    with Engine("--dtype", "float32") as e:
        pids = dict(e.pids())
        load = Load(e.api, tokens=400).wait_begun()
        end = time.monotonic() + 40 * SLOWER
        while e.process.poll() is None and time.monotonic() < end:
            for pid in victims(e, "tercet-worker"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            pids.update(e.pids())
            time.sleep(0.05)
        assert e.wait_exit(20) == 1
        assert "restarted 5 times within a minute" in e.log()
        load.join(20)
        assert len(load.errors) + len(load.answers) == load.count and load.errors
        for error in load.errors.values():
            assert getattr(error, "status", 500) in (500, 503), error
        wait_until(lambda: not any(alive(pid) for pid in pids), 5, "the end of all processes")
