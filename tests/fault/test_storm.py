"""Clients that vanish by the hundreds, and more of them than fit: nothing is left behind, and nobody else suffers."""
import concurrent.futures
import os
import pathlib
import time

from api import ApiError
from engine import FULL, SANITIZED, Engine, slowed, wait_until
from load import Load, differences

CLIENTS = 300 if FULL else 100 if not SANITIZED else 20
ROUNDS = 8 if FULL else 3
PAGE_KIB = os.sysconf("SC_PAGESIZE") // 1024


def usage(engine):
    """name -> (open descriptors, resident KiB) of every process."""
    found = {}
    for pid, name in engine.pids().items():
        fds = len(list(pathlib.Path("/proc/%d/fd" % pid).iterdir()))
        found[name] = (fds, int(pathlib.Path("/proc/%d/statm" % pid).read_text().split()[1]) * PAGE_KIB)
    return found


def vanish(api, number):
    """Reads a few tokens, or none, and goes without a word."""
    try:
        stream = api.stream(prompt="Once upon a time " * (1 + number % 9), max_tokens=400, ignore_eos=True,
                            seed=number, n=1 + number % 2)
        for _ in range(number % 4):
            next(stream)
        stream.close()
    except ApiError as error:
        assert error.status in (429, 503), error


def is_empty(engine):
    m = engine.api.metrics()
    return (m["vllm:num_requests_running"] == 0 and m["vllm:num_requests_waiting"] == 0 and
            m["vllm:kv_cache_usage_perc"] == 0)


def storm(engine):
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        for done in [pool.submit(vanish, engine.api, i) for i in range(CLIENTS)]:
            done.result()
    wait_until(lambda: is_empty(engine), 20, "the end of all requests")


def test_vanishing_clients_leave_nothing_behind():
    with Engine("--dtype", "float32") as e:
        wanted = Load(e.api, 8, 60).results()
        for _ in range(2):
            storm(e)
        time.sleep(0.5)
        before, pids = usage(e), e.pids()
        for _ in range(ROUNDS):
            storm(e)
        wait_until(lambda: all(usage(e)[n][0] <= fds + 2 for n, (fds, _) in before.items()), 10,
                   "the end of connections: before %s, now %s" % (before, usage(e)))
        after = usage(e)
        for name, (_, kib) in before.items():
            # shared pages of the KV cache and arenas come in by use; what leaks grows with every client
            assert SANITIZED or after[name][1] <= kib + 4096 + (32768 if "worker" in name else 0), (name, before, after)
        assert e.pids() == pids, "nobody was restarted"
        assert differences(wanted, Load(e.api, 8, 60).results()) == {}


def test_overload_is_refused_and_hurts_nobody_who_was_admitted():
    with Engine("--dtype", "float32", "--max-num-seqs", "4", "--max-queued-requests", "8") as e:
        wanted = Load(e.api, 8, 60).results()
        before = e.taken_in()
        load = Load(e.api, 8, 60).wait_taken_in(e, before)
        refused = []

        def ask(number):
            try:
                e.api.completions("The king", max_tokens=40, ignore_eos=True, seed=number)
            except ApiError as error:
                assert error.status in (429, 503) and int(error.headers["Retry-After"]) >= 1, error
                assert "try again" in error.message
                refused.append(number)

        with concurrent.futures.ThreadPoolExecutor(60) as pool:
            with slowed(e.pid_of("tercet-worker")):  # so that the queue is full however slow these clients are
                answers = [pool.submit(ask, number) for number in range(120)]
                wait_until(lambda: refused, 30, "a refusal")
            for a in answers:
                a.result()
        assert differences(wanted, load.results()) == {}
        wait_until(lambda: is_empty(e), 10, "the end of all requests")
