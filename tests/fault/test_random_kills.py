"""Processes die at any instant of a load of everything, some while others stand still: every answer is the undisturbed one, and
every conversation goes on. The seed of a failure is in its name: TERCET_KILL_SEED=N runs that one alone."""
import contextlib
import os
import random
import signal
import time

import pytest

from engine import FULL, SANITIZED, Engine, wait_until
from mixed import Mixed, wrong

PARTS = ("tercet-scheduler", "tercet-detok", "tercet-worker")
KILLS_MAX = 4  # of one part in one engine: the sixth restart within a minute is its end
FLAGS = ([], ["--async-depth", 0], ["--tensor-parallel-size", 2], ["--max-model-len", 330, "--kv-cache-memory", "2MiB", "--swap-space", 0.01],
         ["--async-depth", 1, "--no-enable-prefix-caching"])
SEEDS = [int(os.environ["TERCET_KILL_SEED"])] if "TERCET_KILL_SEED" in os.environ else range(15 if FULL else 1)

pytestmark = pytest.mark.skipif(SANITIZED, reason="too slow to be disturbed")


def send(engine, part, kind):
    """To one process of a part, whichever it is."""
    pids = [pid for pid, comm in engine.pids().items() if comm.startswith(part[:15])]
    if pids:
        with contextlib.suppress(ProcessLookupError):
            pid = random.choice(pids)
            os.kill(pid, kind)
            return pid
    return None


def strike(engine, rng, struck):
    """One blow: somebody dies; before that another, or the same, may stand still for a moment, so that it misses what happened."""
    victims = rng.sample(PARTS, 2 if rng.random() < 0.3 else 1)
    frozen = send(engine, rng.choice(PARTS), signal.SIGSTOP) if rng.random() < 0.6 else None
    time.sleep(rng.random() * 0.15)
    for part in victims:
        if struck.get(part, 0) < KILLS_MAX:
            struck[part] = struck.get(part, 0) + 1
            send(engine, part, signal.SIGKILL)
    time.sleep(rng.random() * 0.05)
    if frozen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(frozen, signal.SIGCONT)


@pytest.fixture(scope="module")
def wanted():
    with Engine("--dtype", "float32", "--max-model-len", 330) as e:
        values = Mixed(e.api).results()
        begin = time.monotonic()
        assert wrong(values, Mixed(e.api, seed=1).results()) == {}
        return values, time.monotonic() - begin


@pytest.mark.parametrize("seed", SEEDS)
def test_every_answer_is_the_undisturbed_one(seed, wanted):
    rng, struck, (values, seconds) = random.Random(seed), {}, wanted
    with Engine("--dtype", "float32", "--max-model-len", 330, *FLAGS[seed % len(FLAGS)]) as e:
        for blow in range(20):
            load = Mixed(e.api, seed=seed * 20 + blow)
            for _ in range(4):
                time.sleep(rng.random() * min(seconds / 2, 0.6))
                if load.running():
                    strike(e, rng, struck)
            assert wrong(values, load.results()) == {}, e.log()[-6000:]
            wait_until(e.api.healthy, 20, "health")
            if sum(struck.values()) > 0 and blow + 1 >= (2 if FULL else 1):
                break
        assert sum(struck.values()) > 0, "every load was over before the first blow"
