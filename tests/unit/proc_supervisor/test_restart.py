"""What is restarted when a process dies or hangs, and when that ends."""
import os
import signal
import time

import pytest

from fake_engine import alive, children, until


def test_a_gateway_that_dies_is_restarted_alone(engine):
    e = engine()
    e.until_ready()
    before = e.log("spawn")
    os.kill(e.spawned("gateway-0")[0], signal.SIGKILL)
    until(lambda: len(e.spawned("gateway-0")) == 2, "the gateway is back")
    until(lambda: "RESTARTED process=gateway-0" in e.text(), "it is ready")
    assert len(e.log("spawn")) == len(before) + 1
    assert e.finish(signal.SIGTERM) == 0


@pytest.mark.parametrize("name", ["scheduler", "detok"])
def test_scheduler_and_detokenizer_restart_without_the_workers(engine, name):
    e = engine()
    e.until_ready()
    os.kill(e.spawned(name)[0], signal.SIGKILL)
    until(lambda: "RESTARTED process=" + name in e.text(), "it is back")
    assert len(e.spawned("worker-0")) == 1
    assert e.finish(signal.SIGTERM) == 0


def test_all_ranks_restart_when_one_dies(engine):
    e = engine("-tp", "3")
    e.until_ready()
    first = [e.spawned("worker-%d" % r)[0] for r in range(3)]
    os.kill(first[1], signal.SIGKILL)
    until(lambda: all("RESTARTED process=worker-%d" % r in e.text() for r in range(3)), "all ranks are back")
    assert [alive(p) for p in first] == [False] * 3
    assert len(e.spawned("scheduler")) == 1
    # Nobody comes back before the last of the old ones is gone.
    assert e.finish(signal.SIGTERM) == 0


def test_a_process_that_dies_again_and_again_ends_the_engine(engine):
    e = engine(env={"FAKE_DETOK_FIRST": "ready", "FAKE_DETOK": "exit=7"})
    e.until_ready()
    os.kill(e.spawned("detok")[0], signal.SIGKILL)
    assert e.finish() == 1
    assert len(e.spawned("detok")) == 6
    assert "detok ended unexpectedly with status 7; it was restarted 5 times within a minute" in e.text()


def test_a_gateway_that_dies_again_and_again_does_not_end_the_engine(engine):
    e = engine(env={"FAKE_GATEWAY_FIRST": "ready", "FAKE_GATEWAY": "exit=7"})
    e.until_ready()
    os.kill(e.spawned("gateway-0")[0], signal.SIGKILL)
    until(lambda: len(e.spawned("gateway-0")) == 6, "it was restarted five times")
    until(lambda: "error RESTARTING process=gateway-0" in e.text() and "delay_ms=5000" in e.text(), "it is told")
    assert e.process.poll() is None
    assert len(e.log("spawn")) == 9  # the others stay
    assert e.finish(signal.SIGTERM) == 0


def test_a_stuck_process_is_restarted(engine):
    e = engine("--progress-timeout", "2", env={"FAKE_WORKER_FIRST": "stuck;ready", "FAKE_WORKER": "idle;ready"})
    e.until_ready()
    stuck = e.spawned("worker-0")[0]
    until(lambda: "RESTARTED process=worker-0" in e.text(), "the stuck worker is back")
    assert not alive(stuck)
    assert "STUCK process=worker-0" in e.text()
    time.sleep(3.5)
    assert len(e.spawned("worker-0")) == 2  # idle is not stuck
    assert e.finish(signal.SIGTERM) == 0


def test_of_several_stuck_processes_the_worker_is_restarted_first(engine):
    e = engine("--progress-timeout", "1", env={"FAKE_WORKER_FIRST": "stuck;ready", "FAKE_WORKER": "idle;ready",
                                               "FAKE_SCHEDULER_FIRST": "stuck;ready", "FAKE_SCHEDULER": "idle;ready"})
    e.until_ready()
    until(lambda: "RESTARTED process=worker-0" in e.text(), "the worker is back")
    assert "STUCK process=scheduler" not in e.text()
    assert e.finish(signal.SIGTERM) == 0


@pytest.mark.parametrize("role", ["detok", "gateway"])
def test_a_process_that_does_not_answer_is_restarted_though_it_has_no_work(engine, role):
    e = engine("--progress-timeout", "2", env={"FAKE_%s_FIRST" % role.upper(): "ready;frozen"})
    e.until_ready()
    until(lambda: "RESTARTED process=" + role in e.text(), "it is back")
    assert 'why="does not answer"' in e.text()
    time.sleep(3)
    assert len(e.log("spawn")) == 5  # those that answer stay
    assert e.finish(signal.SIGTERM) == 0


def test_a_frozen_worker_is_restarted_and_not_the_scheduler_that_waits_for_it(engine):
    e = engine("--progress-timeout", "2", env={"FAKE_WORKER_FIRST": "ready;frozen", "FAKE_SCHEDULER": "stuck;ready"})
    e.until_ready()
    until(lambda: "STUCK" in e.text(), "somebody is stuck")
    assert "STUCK process=worker-0" in e.text()
    assert e.finish(signal.SIGTERM) == 0


def test_a_stopped_rank_and_its_group_are_restarted_within_seconds(engine):
    e = engine("-tp", "2")
    e.until_ready()
    first = [e.spawned("worker-%d" % r)[0] for r in range(2)]
    began = time.monotonic()
    os.kill(first[1], signal.SIGSTOP)
    until(lambda: "STUCK process=worker-1" in e.text(), "it is seen")
    assert 2.5 < time.monotonic() - began < 20, "--progress-timeout is 60 s"
    until(lambda: all("RESTARTED process=worker-%d" % r in e.text() for r in range(2)), "both ranks are back")
    assert "was stopped by a signal and not continued" in e.text()
    assert [alive(p) for p in first] == [False] * 2
    assert e.finish(signal.SIGTERM) == 0


def test_a_stopped_process_stays_if_it_is_continued_in_time(engine):
    e = engine()
    e.until_ready()
    for _ in range(3):  # 3 s together
        os.kill(e.spawned("detok")[0], signal.SIGSTOP)
        time.sleep(1)
        os.kill(e.spawned("detok")[0], signal.SIGCONT)
        time.sleep(0.2)
    time.sleep(1)
    assert "STUCK" not in e.text() and len(e.spawned("detok")) == 1
    assert e.finish(signal.SIGTERM) == 0


def test_a_stopped_process_stays_if_nobody_is_to_watch(engine):
    e = engine("--progress-timeout", "0")
    e.until_ready()
    os.kill(e.spawned("detok")[0], signal.SIGSTOP)
    time.sleep(3.5)
    assert len(e.spawned("detok")) == 1
    os.kill(e.spawned("detok")[0], signal.SIGCONT)
    assert e.finish(signal.SIGTERM) == 0


def test_what_a_dead_process_leaves_behind_is_ended_and_reaped(engine):
    e = engine(scripts={"worker": "child;ready"})
    e.until_ready()
    worker = e.spawned("worker-0")[0]
    left = until(lambda: children(worker), "the grandchild is there")
    os.kill(worker, signal.SIGKILL)
    until(lambda: "RESTARTED process=worker-0" in e.text(), "the worker is back")
    until(lambda: len(children(e.process.pid)) == 4, "nothing but the four processes is there, no zombie either")
    assert not any(alive(p) for p in left)
    assert e.finish(signal.SIGTERM) == 0
