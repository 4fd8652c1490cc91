"""`tercet serve` with processes that do what a script says (fake_child.c): order, readiness, failures, restarts, drain,
and that nothing is left behind."""
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

TERCET = os.environ["TERCET_EXE"]
FAKE = os.environ["FAKE_CHILD_EXE"]
PATIENCE = 30.0 if os.environ.get("TERCET_TEST_SANITIZED") else 10.0


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid, encoding="ascii") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def until(condition, what):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.01)
    raise AssertionError("waited in vain until " + what)


class Engine:
    """One `tercet serve`."""

    def __init__(self, tmp_path, *flags, scripts=None, env=None, model="model"):
        self.dir = tmp_path / "fake"
        self.dir.mkdir()
        libexec = tmp_path / "libexec"
        libexec.mkdir()
        for role in ("scheduler", "detok", "worker", "gateway"):
            (libexec / ("tercet-" + role)).symlink_to(FAKE)
        self.run_dir = tmp_path / "run"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TERCET_")}
        environment.update({"TERCET_LIBEXEC": str(libexec), "FAKE_DIR": str(self.dir), "PATH": os.environ["PATH"]})
        for role, script in (scripts or {}).items():
            environment["FAKE_" + role.upper()] = script
        environment.update(env or {})
        self.out = open(tmp_path / "out", "w+", encoding="utf-8")
        self.process = subprocess.Popen([TERCET, "serve", model, "--run-dir", str(self.run_dir), "--port", "0", *flags],
                                        env=environment, stdout=self.out, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL)

    def log(self, what=None):
        """[(event, name, pid)] that the processes wrote."""
        try:
            lines = (self.dir / "log").read_text().splitlines()
        except OSError:
            return []
        events = [(e, n, int(p)) for e, n, p in (line.split() for line in lines)]
        return [e for e in events if what is None or e[0] == what]

    def spawned(self, name=None):
        return [pid for _, n, pid in self.log("spawn") if name is None or n == name]

    def text(self):
        with open(self.out.name, encoding="utf-8") as f:
            return f.read()

    def until_ready(self):
        until(lambda: "ready after" in self.text() or self.process.poll() is not None, "the engine is ready")
        assert self.process.poll() is None, self.text()

    def finish(self, sig=None):
        """Exit status; nothing may be left."""
        if sig is not None:
            self.process.send_signal(sig)
        status = self.process.wait(PATIENCE)
        assert [pid for pid in self.spawned() if alive(pid)] == []
        assert not self.run_dir.exists()
        return status


@pytest.fixture
def engine(tmp_path):
    engines = []

    def start(*flags, **more):
        engines.append(Engine(tmp_path, *flags, **more))
        return engines[-1]

    yield start
    for e in engines:
        if e.process.poll() is None:
            e.process.kill()
            e.process.wait()


# ---------------------------------------------------------------- start

def test_processes_start_in_order_and_the_banner_tells_what_runs(engine):
    e = engine("-tp", "2", "--api-server-count", "2", "--block-size", "16", scripts={
        "scheduler": "sleep=150;ready=block_count=64 max_model_len=512 vocab_size=9",
        "worker": "ready=device=cpu dtype=bfloat16 threads=1",
        "gateway": "ready=url=http://127.0.0.1:1234"})
    e.until_ready()
    names = [n for _, n, _ in e.log("spawn")]
    assert sorted(names) == ["detok", "gateway-0", "gateway-1", "scheduler", "worker-0", "worker-1"]
    assert sorted(names[-2:]) == ["gateway-0", "gateway-1"]  # once the scheduler was ready
    text = e.text()
    for word in ("model, bfloat16", "2 on cpu, threads each: 1", "64 blocks of 16, 1024 tokens",
                 "2.0 requests of 512 tokens at once", "http://127.0.0.1:1234", str(e.run_dir)):
        assert word in text
    assert text.count("ready after") == 1
    assert (e.run_dir.stat().st_mode & 0o777) == 0o700
    assert e.finish(signal.SIGTERM) == 0


def test_the_text_of_a_failed_start_is_printed_once_and_the_rest_ends(engine):
    e = engine(scripts={"worker": "progress=0.3;fail=model/config.json: there is no field hidden_size"})
    assert e.finish() == 1
    assert e.text().count("there is no field hidden_size") == 1
    assert "tercet: model/config.json: there is no field hidden_size" in e.text()


@pytest.mark.parametrize("script, words", [("exit=3", "worker-0 ended unexpectedly with status 3"),
                                           ("crash", "worker-0 was ended by signal 11")])
def test_a_start_that_ends_without_a_text_is_named(engine, script, words):
    e = engine(scripts={"worker": script})
    assert e.finish() == 1
    assert words in e.text()


def test_a_missing_program_is_named(engine, tmp_path):
    e = engine(env={"TERCET_LIBEXEC": str(tmp_path)})
    assert e.finish() == 1
    assert "tercet-scheduler: there is no program of this name in TERCET_LIBEXEC" in e.text()


def test_loading_is_reported(engine):
    e = engine(scripts={"worker": "progress=0.1;sleep=600;progress=0.25;sleep=10;progress=0.4;sleep=600;progress=0.55;ready"})
    e.until_ready()
    assert "LOADING percent=20" in e.text() and "LOADING percent=50" in e.text()
    assert "LOADING percent=40" not in e.text()  # too soon after the one before
    assert e.finish(signal.SIGTERM) == 0


def test_a_port_in_use_is_one_clear_line_before_anything_starts(engine):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        e = engine("--port", str(port))
        assert e.finish() == 1
    assert e.text() == "tercet: port %d on 127.0.0.1 is in use; choose another one with --port (0: any free one)\n" % port
    assert e.spawned() == []


def test_every_gateway_gets_the_same_port_when_any_is_wanted(engine, tmp_path):
    e = engine("--api-server-count", "1", scripts={"gateway": "args=%s;ready" % (tmp_path / "args")})
    e.until_ready()
    ports = [line for line in (tmp_path / "args").read_text().splitlines() if line.startswith("--port=")]
    assert len(ports) == 1 and int(ports[0].split("=")[1]) > 1023
    assert e.finish(signal.SIGTERM) == 0


def test_keys_reach_gateways_through_the_environment_and_nobody_else(engine, tmp_path):
    e = engine("--api-key", "sesame,open", env={"TERCET_MAX_NUM_SEQS": "7"}, scripts={
        "gateway": "env=%s/g;args=%s/ga;ready" % (tmp_path, tmp_path),
        "worker": "env=%s/w;args=%s/wa;ready" % (tmp_path, tmp_path)})
    e.until_ready()
    read = {n: (tmp_path / n).read_text() for n in ("g", "ga", "w", "wa")}
    assert "TERCET_API_KEY=sesame,open\n" in read["g"]
    assert "sesame" not in read["ga"] + read["w"] + read["wa"]
    assert "TERCET_MAX_NUM_SEQS" not in read["w"]  # it travels as an argument
    assert "--max-num-seqs=7\n" in read["wa"]
    assert "TERCET_RANK=0\n" in read["w"]
    assert e.finish(signal.SIGTERM) == 0


def test_json_logs_replace_the_banner(engine):
    e = engine("--log-format", "json", scripts={"scheduler": "ready=block_count=4 max_model_len=32"})
    until(lambda: "ENGINE_READY" in e.text(), "the engine is ready")
    event = next(json.loads(x) for x in e.text().splitlines() if "ENGINE_READY" in x)
    assert event["kv_tokens"] == "64" and event["process"] == "supervisor"
    assert e.finish(signal.SIGTERM) == 0


# ---------------------------------------------------------------- run directory

def test_a_run_directory_that_cannot_be_made_is_named(engine):
    e = engine("--run-dir", "/proc/nowhere")
    assert e.finish() == 1
    assert "tercet: run directory /proc/nowhere: No such file or directory; name a writable one with --run-dir" in e.text()


def test_two_engines_do_not_share_a_run_directory(engine, tmp_path):
    e = engine()
    e.until_ready()
    second = subprocess.run([TERCET, "serve", "model", "--run-dir", str(e.run_dir), "--port", "0"], capture_output=True,
                            text=True, check=False, timeout=PATIENCE)
    assert second.returncode == 1 and "another engine runs in it" in second.stderr
    assert e.run_dir.exists()
    assert e.finish(signal.SIGTERM) == 0


# ---------------------------------------------------------------- restarts

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


def test_a_stuck_process_is_restarted(engine):
    e = engine("--progress-timeout", "1", env={"FAKE_WORKER_FIRST": "stuck;ready", "FAKE_WORKER": "idle;ready"})
    e.until_ready()
    stuck = e.spawned("worker-0")[0]
    until(lambda: "RESTARTED process=worker-0" in e.text(), "the stuck worker is back")
    assert not alive(stuck)
    assert "STUCK process=worker-0" in e.text()
    time.sleep(2.5)
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
    e = engine("--progress-timeout", "1", env={"FAKE_%s_FIRST" % role.upper(): "ready;frozen"})
    e.until_ready()
    until(lambda: "RESTARTED process=" + role in e.text(), "it is back")
    assert 'why="does not answer"' in e.text()
    time.sleep(2)
    assert len(e.log("spawn")) == 5  # those that answer stay
    assert e.finish(signal.SIGTERM) == 0


def test_a_frozen_worker_is_restarted_and_not_the_scheduler_that_waits_for_it(engine):
    e = engine("--progress-timeout", "2", env={"FAKE_WORKER_FIRST": "ready;frozen", "FAKE_SCHEDULER": "stuck;ready"})
    e.until_ready()
    until(lambda: "STUCK" in e.text(), "somebody is stuck")
    assert "STUCK process=worker-0" in e.text()
    assert e.finish(signal.SIGTERM) == 0


# ---------------------------------------------------------------- end

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
    e = engine("--shutdown-timeout", "1", scripts={"gateway": "drain=60000;ready"})
    e.until_ready()
    begin = time.monotonic()
    assert e.finish(signal.SIGTERM) == 0
    assert 0.9 < time.monotonic() - begin
    assert "DRAIN_TIMED_OUT" in e.text()


def test_the_second_signal_ends_everything_at_once(engine):
    e = engine(scripts={"gateway": "drain=60000;ready", "worker": "deaf;ready"})
    e.until_ready()
    e.process.send_signal(signal.SIGTERM)
    until(lambda: e.log("drain"), "the drain began")
    begin = time.monotonic()
    assert e.finish(signal.SIGTERM) == 128 + signal.SIGTERM
    assert time.monotonic() - begin < PATIENCE / 2


def test_sigquit_ends_everything_at_once(engine):
    e = engine(scripts={"worker": "deaf;ready"})
    e.until_ready()
    assert e.finish(signal.SIGQUIT) == 128 + signal.SIGQUIT


def test_a_signal_during_the_start_stops_it_at_once(engine):
    e = engine(scripts={"worker": "sleep=60000"})
    until(lambda: e.spawned("worker-0"), "the worker loads")
    begin = time.monotonic()
    assert e.finish(signal.SIGTERM) == 0
    assert time.monotonic() - begin < PATIENCE / 4


def test_a_process_that_does_not_stop_is_killed(engine):
    e = engine(scripts={"detok": "deaf;ready"})
    e.until_ready()
    assert e.finish(signal.SIGTERM) == 0
    assert "KILLED process=detok" in e.text()


def test_what_children_started_ends_too(engine):
    e = engine(scripts={"worker": "child;ready"})
    e.until_ready()
    pid = e.spawned("worker-0")[0]
    children = until(lambda: open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii").read().split(),
                     "the grandchild is there")
    assert e.finish(signal.SIGTERM) == 0
    until(lambda: not any(alive(int(c)) for c in children), "the grandchild is gone")


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


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
