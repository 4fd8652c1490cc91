"""A rank of a group of devices dies, is stopped, or hangs, under load: the group is replaced within seconds, and every request
comes to its end. On emulated devices, whose collectives notice nothing of that by themselves, as on real ones.

The tokens of a device depend on which rows shared a step, so requests that were disturbed are not compared token by token; a
request of its own is, before and after."""
import ctypes
import os
import pathlib
import re
import signal
import threading
import time

import pytest

from engine import BUILD, FULL, SANITIZED, Engine, in_time, wait_until
from load import Load
from test_nodes import Cluster, workers

PROMISE_S = 5
TOKENS = 20
# The cache takes what the device has, and the emulator fills every byte of it: more than is needed costs seconds an engine.
ENVIRONMENT = {"TERCET_CUDA_KERNELS": str(BUILD / "tests" / "kern" / "tercet-cuda-emu.so"), "CUDA_EMU_NCCL_TIMEOUT": "0",
               "CUDA_EMU_MEMORY": str(512 << 20)}
SMALL = ("--max-num-seqs", 8, "--max-num-batched-tokens", 64, "--max-model-len", 256, "--kv-cache-memory", "16MiB")
# On a device of its own thread the host queues steps and waits for nothing; else the call that queues a collective runs it.
THREAD = {"CUDA_EMU_THREAD": "1"}

pytestmark = pytest.mark.skipif(SANITIZED, reason="the unit tests of collectives and of the runner run under sanitizers")


def group(*flags, env=None):
    return Engine("--device", "cuda", "--tensor-parallel-size", 2, *SMALL, *flags, env={**ENVIRONMENT, **(env or {})})


def ranks(engine):
    return sorted(pid for pid, name in engine.pids().items() if name.startswith("tercet-worker"))


def alone(engine):
    """Tokens of one request in an idle engine."""
    return engine.api.call("POST", "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0.8, "seed": 5,
                                                       "ignore_eos": True, "return_token_ids": True})["choices"][0]["token_ids"]


def small_load(engine):
    return Load(engine.api, count=6, tokens=TOKENS).wait_begun(2)


def all_done(load):
    for number, (ids, text, finish) in load.results().items():
        assert finish == "stop" or (finish == "length" and len(ids) == TOKENS - number % 5), (number, finish, len(ids), text)


class Hang:
    """Holds a thread of a process, its main one, without a stop that its parent would be told of, until the process ends."""
    SEIZE, INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000

    def __init__(self, pid):
        self.pid, self.error = self.thread(pid), None
        self.begun = threading.Event()
        threading.Thread(target=self.hold, daemon=True).start()  # one thread alone may trace
        self.begun.wait()
        if self.error:
            pytest.skip("no process may trace another here: %s" % os.strerror(self.error))

    def thread(self, pid):
        return pid

    def hold(self):
        libc = ctypes.CDLL(None, use_errno=True)
        for request in (self.SEIZE, self.INTERRUPT):
            if libc.ptrace(request, self.pid, None, None) != 0:
                self.error = ctypes.get_errno()
        self.begun.set()
        while not self.error:
            try:
                _, status = os.waitpid(self.pid, self.WALL)
            except ChildProcessError:
                return
            if not os.WIFSTOPPED(status):
                return


class HangingKernel(Hang):
    """The host goes on."""

    def thread(self, pid):
        return next(int(t.name) for t in pathlib.Path("/proc/%d/task" % pid).iterdir() if t.joinpath("comm").read_text() == "emu-device\n")


def seconds_to_notice(engine, blow):
    """From the blow until the group began to start again; it also has to get there."""
    before, times, length = ranks(engine), engine.log().count("RESTARTED process=worker-"), len(engine.log())
    began = time.monotonic()
    blow(before)
    wait_until(lambda: "RESTARTING process=worker-" in engine.log()[length:], 60, "notice")
    seconds = time.monotonic() - began
    wait_until(lambda: engine.log().count("RESTARTED process=worker-") >= times + 2, 60, "a new group")
    assert not set(before) & set(ranks(engine))
    return seconds


def strike(engine, rank, kind):
    """A signal in the middle of a load."""
    load = small_load(engine)
    seconds = seconds_to_notice(engine, lambda before: os.kill(before[rank], kind))
    all_done(load)
    return seconds


def check_patience(log, seconds, pattern):
    """Whoever only takes far longer than usual is given as long as the log says, and that follows from what is usual."""
    limits = [int(ms) / 1000 for ms in re.findall(pattern, log)]
    assert limits and min(limits) <= 20 and seconds < min(limits) + 2 * PROMISE_S, (seconds, log[-4000:])


@pytest.mark.parametrize("flags, env", [((), THREAD)] + ([((), {}), (("--enforce-eager",), THREAD),
                                                          (("--async-depth", 0), {})] if FULL else []))
def test_a_dead_or_stopped_rank_is_replaced_within_five_seconds(flags, env):
    with group(*flags, env=env) as e:
        wanted = alone(e)
        for rank, kind in ((0, signal.SIGKILL), (1, signal.SIGSTOP)):
            in_time(PROMISE_S, lambda rank=rank, kind=kind: strike(e, rank, kind))
        assert alone(e) == wanted


HANGS = [(HangingKernel, THREAD)] + ([(Hang, THREAD), (Hang, {"CUDA_EMU_SCHEDULE": "reverse"})] if FULL else [])


@pytest.mark.parametrize("kind, env", HANGS)
def test_a_rank_that_hangs_is_an_error_of_those_that_wait_for_it(kind, env):
    """Half of --progress-timeout is 30 s; steps of a known size need not wait for that. One request alone has such steps."""
    with group(env=env) as e:
        alone(e)
        stream = e.api.stream(prompt="Once upon a time", max_tokens=100, seed=5, ignore_eos=True)
        next(stream), next(stream)
        seconds = seconds_to_notice(e, lambda before: kind(before[1]))
        assert list(stream)[-1]["choices"][0]["finish_reason"] == "length"
        check_patience(e.log(), seconds, r"has not ended step \d+ within (\d+) ms \(steps of its size take")


def test_a_rank_that_hangs_on_the_cpu_is_an_error_of_those_that_wait_for_it():
    with Engine("--tensor-parallel-size", 2) as e:
        all_done(small_load(e))
        loads = []

        def blow(before):  # in front of the load, which could be done before
            Hang(before[1])
            loads.append(Load(e.api, count=6, tokens=TOKENS))
        seconds = seconds_to_notice(e, blow)
        all_done(loads[0])
        check_patience(e.log(), seconds, r"worker 1 did not come within (\d+) ms")


def test_a_scheduler_that_dies_leaves_no_rank_waiting():
    """It may have told one rank of a step and the others not."""
    with group(env=THREAD) as e:
        wanted = alone(e)
        for _ in range(5 if FULL else 1):
            load = small_load(e)
            os.kill(e.pid_of("tercet-scheduler"), signal.SIGKILL)
            all_done(load)
        assert alone(e) == wanted


def test_a_lost_node_frees_a_host_that_waits_with_its_device():
    """Without a thread for the device the call that queues a collective runs it, as a full queue of a real device would make the
    host wait: it can look for nobody, so the thread that hears from the other nodes has to end the collective."""
    with Cluster(2, 2, "--dtype", "bfloat16", "--device", "cuda", *SMALL, env=ENVIRONMENT) as c:
        wanted = alone(c.engine)

        def once(kind):
            before = len(c.engine.log())
            load = small_load(c.engine)
            began = time.monotonic()
            os.kill(workers(c.others[0])[0], kind)
            wait_until(lambda: "RESTARTING process=worker-0" in c.engine.log()[before:], 60, "notice on the first node")
            seconds = time.monotonic() - began
            assert "is lost: it" in c.engine.log()[before:]
            all_done(load)
            return seconds

        for kind in (signal.SIGKILL, signal.SIGSTOP) if FULL else (signal.SIGKILL,):
            in_time(PROMISE_S, lambda kind=kind: once(kind))
        assert alone(c.engine) == wanted
