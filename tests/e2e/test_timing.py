"""What is promised about time. Skipped unless TERCET_E2E_FULL=1: a loaded machine would fail them for no fault."""
import json
import os
import statistics
import time

import pytest

from engine import FULL, Engine, cpu_seconds, run

pytestmark = pytest.mark.skipif(not FULL, reason="timings run with TERCET_E2E_FULL=1")
PROMPT = "Once upon a time"


def first_token_ms(api):
    begin = time.monotonic()
    stream = api.stream(prompt=PROMPT, max_tokens=2, temperature=0)
    next(stream)
    spent = time.monotonic() - begin
    stream.close()
    return spent * 1000


def test_idle_engine_sleeps_and_wakes_at_once():
    seconds = float(os.environ.get("TERCET_E2E_IDLE_S", "60"))
    with Engine() as e:
        warm = statistics.median(first_token_ms(e.api) for _ in range(20))
        time.sleep(1)
        pids = [e.process.pid] + list(e.pids())
        before = sum(map(cpu_seconds, pids))
        time.sleep(seconds)
        spent = sum(map(cpu_seconds, pids)) - before
        cold = first_token_ms(e.api)
        print("idle: %.3f %% of a core; first token %.2f ms warm, %.2f ms after %d s" %
              (100 * spent / seconds, warm, cold, seconds))
        assert spent / seconds < 0.01
        assert cold < warm + 2


def spans(path, process, name):
    """(begin us, end us, step) of one kind of span of one process."""
    events = json.loads(path.read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    pids = {e["pid"] for e in events if e.get("ph") == "M" and e["name"] == "process_name" and
            e["args"]["name"].startswith(process)}
    return sorted((e["ts"], e["ts"] + e["dur"], e["args"].get("step", 0)) for e in events
                  if e.get("ph") == "X" and e["pid"] in pids and e["name"] == name)


@pytest.mark.parametrize("sequences", (1, 8))
@pytest.mark.parametrize("threads", (1, 2))
def test_next_step_is_planned_while_one_computes(tmp_path, sequences, threads):
    path = tmp_path / "trace.json"
    with Engine("--trace", path, "--threads", threads) as e:
        e.api.completions([PROMPT] * sequences, max_tokens=400, ignore_eos=True)
        assert e.terminate() == 0
    plans = {step: (begin, end) for begin, end, step in spans(path, "scheduler", "plan")}
    forwards = spans(path, "worker-0", "forward")
    waits = spans(path, "worker-0", "wait")
    steady = forwards[50:-20]
    ahead = sum(step + 1 in plans and plans[step + 1][1] <= end for _, end, step in steady)
    assert ahead >= 0.98 * len(steady), "%d of %d steps had their successor planned" % (ahead, len(steady))
    begin, end = steady[0][0], steady[-1][1]
    waited = sum(min(w[1], end) - max(w[0], begin) for w in waits if w[1] > begin and w[0] < end)
    print("%d sequences, %d threads: the worker waited %.2f %% of the time" %
          (sequences, threads, 100 * waited / (end - begin)))
    assert waited / (end - begin) < 0.02
    for process, name in (("detok", "decode"), ("detok", "write"), ("scheduler", "send"), ("worker-0", "sample")):
        assert spans(path, process, name), "%s has no %s spans" % (process, name)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize("concurrency", (1, 8, 32, 128))
def test_bench_serve_finds_no_lost_or_doubled_token(concurrency, dtype):
    with Engine("--dtype", dtype) as e:
        status, output = run("bench", "serve", "--base-url", "http://127.0.0.1:%d" % e.port, "--concurrency",
                             concurrency, "--num-prompts", 2 * concurrency, "--check", "--quiet", seconds=300)
        assert status == 0, output
        print(output.strip().splitlines()[-1])


def test_bench_control_plane_meets_its_targets():
    status, output = run("bench", "control-plane", "--requests", 1024, "--steps", 5000, seconds=120)
    assert status == 0, output
    result = json.loads(output.strip().splitlines()[-1])
    assert result["total_us"]["p50"] < 60, result
    assert result["diff_bytes_per_step"] < 1024, result
