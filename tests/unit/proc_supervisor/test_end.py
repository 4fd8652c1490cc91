"""How an engine ends: drain, signals, nothing left behind."""
import json
import signal
import socket
import time

from fake_engine import PATIENCE, alive, children, until


def test_sigterm_drains_gateways_before_the_scheduler_and_stops_the_rest_after(engine):
    e = engine(scripts={"gateway": "drain=300;ready"})
    e.until_ready()
    assert e.finish(signal.SIGTERM) == 0
    order = [(what, name) for what, name, _ in e.log() if what != "spawn"]
    # Clients end before those they are connected to.
    assert order == [("drain", "gateway-0"), ("end", "gateway-0"), ("drain", "scheduler"),
                     ("stop", "worker-0"), ("end", "worker-0"), ("stop", "scheduler"), ("end", "scheduler"),
                     ("stop", "detok"), ("end", "detok")]


def test_ctrl_c_of_the_terminal_is_a_drain(engine):
    e = engine()
    e.until_ready()
    assert e.finish(signal.SIGINT) == 0
    assert ("drain", "gateway-0") in [x[:2] for x in e.log()]


def test_requests_that_do_not_end_in_time_do_not_stop_the_end(engine):
    e = engine("--shutdown-timeout", "1", scripts={"gateway": "drain=600000;ready"})
    e.until_ready()
    begin = time.monotonic()
    assert e.finish(signal.SIGTERM) == 0
    assert 0.9 < time.monotonic() - begin
    assert "DRAIN_TIMED_OUT" in e.text()


def test_the_second_signal_ends_everything_at_once(engine):
    e = engine(scripts={"gateway": "drain=600000;ready", "worker": "deaf;ready"})
    e.until_ready()
    e.process.send_signal(signal.SIGTERM)
    until(lambda: e.log("drain"), "the drain began")
    begin = time.monotonic()
    assert e.finish(signal.SIGTERM) == 128 + signal.SIGTERM
    assert time.monotonic() - begin < PATIENCE


def test_sigquit_ends_everything_at_once(engine):
    e = engine(scripts={"worker": "deaf;ready"})
    e.until_ready()
    assert e.finish(signal.SIGQUIT) == 128 + signal.SIGQUIT


def test_a_signal_during_the_start_stops_it_at_once(engine):
    e = engine(scripts={"worker": "sleep=600000"})
    until(lambda: e.spawned("worker-0"), "the worker loads")
    begin = time.monotonic()
    assert e.finish(signal.SIGTERM) == 0
    assert time.monotonic() - begin < PATIENCE


def test_a_process_that_does_not_stop_is_killed(engine):
    e = engine(scripts={"detok": "deaf;ready"})
    e.until_ready()
    assert e.finish(signal.SIGTERM) == 0
    assert "KILLED process=detok" in e.text()


def test_what_children_started_ends_too(engine):
    e = engine(scripts={"worker": "child;ready"})
    e.until_ready()
    pid = e.spawned("worker-0")[0]
    started = until(lambda: children(pid), "the grandchild is there")
    assert e.finish(signal.SIGTERM) == 0
    until(lambda: not any(alive(c) for c in started), "the grandchild is gone")


def test_children_end_with_a_killed_supervisor(engine):
    e = engine("-tp", "2")
    e.until_ready()
    e.process.kill()
    e.process.wait()
    until(lambda: not any(alive(p) for p in e.spawned()), "all children are gone")


def test_the_timeline_is_written_at_the_end(engine, tmp_path):
    e = engine("--trace", str(tmp_path / "trace.json"))
    e.until_ready()
    (e.run_dir / "trace").mkdir()
    assert e.finish(signal.SIGTERM) == 0
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"] == []


def test_a_timeline_that_cannot_be_written_is_refused_at_the_start(engine):
    e = engine("--trace", "/proc/nowhere/trace.json")
    assert e.finish() == 1
    assert "tercet: --trace /proc/nowhere/trace.json: No such file" in e.text()


def test_the_service_manager_is_told(engine, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(tmp_path / "notify"))
        s.settimeout(PATIENCE)
        e = engine(env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert s.recv(100) == b"READY=1"
        assert e.finish(signal.SIGTERM) == 0
        assert s.recv(100) == b"STOPPING=1"
