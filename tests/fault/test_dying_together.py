"""Two processes of an engine are killed at the same moment, under load: every request still ends with the tokens that
it has when nothing happens."""
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from engine import SANITIZED, SLOWER, TERCET, Engine, wait_until  # noqa: E402

PAIRS = [("tercet-detok", "tercet-scheduler"), ("tercet-worker", "tercet-scheduler"), ("tercet-worker", "tercet-detok")]


@pytest.mark.parametrize("names", PAIRS[:1] if SANITIZED else PAIRS, ids="+".join)
def test_two_that_die_together_cost_a_pause_and_no_token(names):
    with Engine("--dtype", "float32") as e:
        load = subprocess.Popen(
            [str(TERCET), "bench", "serve", "--base-url", "http://127.0.0.1:%d" % e.port, "--num-prompts", "32",
             "--concurrency", "16", "--output-len", "250", "--ignore-eos", "--check", "--distinct", "4", "--timeout",
             str(60 * SLOWER), "--quiet"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            time.sleep(0.5 * SLOWER)
            victims = [e.pid_of(name) for name in names]
            assert load.poll() is None, "the load was over before anything happened"
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            output = load.communicate(timeout=120 * SLOWER)[0].decode()
        finally:
            if load.poll() is None:
                load.kill()
                load.wait()
        assert load.returncode == 0, output + e.log()[-4000:]
        for name, victim in zip(names, victims):
            wait_until(lambda n=name, v=victim: e.pid_of(n) != v, 20, "the restart of " + name)
