"""Starts `tercet serve` from the build tree, and ends exactly what it started."""
import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import api

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TERCET_BUILD_ROOT", ROOT / "build"))
TERCET = BUILD / "client" / "cli" / "tercet"
DEMO = ROOT / "demo"
SHARED = ROOT / ".." / "shared" / "data"

# The sanitizer build is ten times slower: it runs one configuration of each kind.
SANITIZED = os.environ.get("TERCET_TEST_SANITIZED") == "1"
# Everything, the whole matrix of configurations and the timings included.
FULL = os.environ.get("TERCET_E2E_FULL") == "1"
SLOWER = 8 if SANITIZED else 1


def claim(port):
    """A name that is given once on this machine and freed with the process, or None: of two processes that try the same port
    at the same time both would find it free."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind("\0tercet-test-port-%d" % port)
    except OSError:
        name.close()
        return None
    return name


def free_ports(count=1):
    """The first of so many free ones in a row: below those that the kernel gives out by itself, never the same again, and
    none that another process of tests was given, so that tests can run beside each other."""
    first = free_ports.next
    while True:
        claims, sockets = [], []
        try:
            for port in range(first, first + count):
                claims.append(claim(port))
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
            if None not in claims:
                free_ports.next = 10000 + (first + count - 10000) % 22000
                free_ports.claims += claims
                return first
        except OSError:
            pass
        finally:
            for s in sockets:
                s.close()
        for c in filter(None, claims):
            c.close()
        first = 10000 + (first + count - 10000) % 22000


free_ports.next = 10000 + os.getpid() * 97 % 21000
free_ports.claims = []


def alive(pid):
    """False for a zombie as well: nobody may be left who still runs."""
    try:
        stat = pathlib.Path("/proc/%d/stat" % pid).read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def descendants(pid):
    """pid -> name of every process below `pid`, children first."""
    found = {}
    try:
        children = pathlib.Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split()
    except OSError:
        return found
    for child in map(int, children):
        try:
            found[child] = pathlib.Path("/proc/%d/comm" % child).read_text().strip()
        except OSError:
            continue
        found.update(descendants(child))
    return found


def cpu_seconds(pid):
    fields = pathlib.Path("/proc/%d/stat" % pid).read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until(condition, seconds, what):
    end = time.monotonic() + seconds * SLOWER
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("%s did not happen within %d s" % (what, seconds * SLOWER))


@contextlib.contextmanager
def slowed(pid):
    """The process runs a few milliseconds in a second: one that is stopped for longer would be taken for one that hangs."""
    ended = threading.Event()

    def pulses():
        while not ended.is_set():
            os.kill(pid, signal.SIGSTOP)
            ended.wait(0.5)
            os.kill(pid, signal.SIGCONT)
            ended.wait(0.002)

    thread = threading.Thread(target=pulses)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def in_time(seconds, attempt, tries=2):
    """What is promised to happen within so many seconds: attempt() says how many it took. A machine that was busy with other
    things gets another chance, the engine none that it does not need."""
    took = []
    while len(took) < tries:
        took.append(attempt())
        if took[-1] < seconds:
            return
    raise AssertionError("it took %s s, and %g are promised" % (took, seconds))


def environment_with(more):
    """The environment without options for the engine; instruction sets may be hidden from all tests."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TERCET_") or k == "TERCET_KERN_CAPS"}
    return kept | (more or {})


class Engine:
    """A served model. Use as a context manager, or call close()."""

    def __init__(self, *flags, model=DEMO, env=None, wait=True, port=None, run_dir=None):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="tercet-e2e-"))
        self.run_dir = pathlib.Path(run_dir) if run_dir else self.home / "run"
        self.log_path = self.home / "log"
        self.port = port or free_ports()
        self.api = api.Api("127.0.0.1", self.port, 120 * SLOWER)
        environment = environment_with(env)
        flags = [str(f) for f in flags]
        command = [str(TERCET), "serve", str(model), "--port", str(self.port), "--run-dir", str(self.run_dir)]
        if not any(f.startswith("--kv-cache-memory") for f in flags):
            command += ["--kv-cache-memory", "64MiB"]
        if not any(f.startswith("--threads") for f in flags):
            command += ["--threads", "1"]
        command += flags
        self.known = set()
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=environment, start_new_session=True)
        if not wait:
            return
        try:
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def pids(self):
        """pid -> name of all processes of the engine but the supervisor."""
        found = descendants(self.process.pid)
        self.known.update(found)
        return found

    def pid_of(self, name):
        """The one process whose name begins with `name` (15 characters of it are kept by the kernel)."""
        found = [pid for pid, comm in self.pids().items() if comm.startswith(name[:15])]
        assert len(found) == 1, "%d processes are called %s: %s" % (len(found), name, self.pids())
        return found[0]

    def successor(self, name, victim, seconds=20):
        """The one process whose name begins so, once it is another than the one that was killed, and all is well."""
        def others():
            found = [pid for pid, comm in self.pids().items() if comm.startswith(name[:15])]
            return len(found) == 1 and found[0] != victim and self.api.healthy() and found[0]
        return wait_until(others, seconds, "the restart of " + name)

    def taken_in(self):
        """How many requests are here or were."""
        m = self.api.metrics()
        return m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"] + sum(
            value for name, value in m.items() if name.startswith("vllm:request_success_total"))

    def wait_ready(self, seconds=60):
        def ready():
            assert self.process.poll() is None, "the engine ended with %s:\n%s" % (self.process.returncode, self.log())
            # the banner comes when every gateway is ready
            return "ready after" in self.log() and self.api.healthy()
        wait_until(ready, seconds, "start-up of the engine")
        self.pids()

    def wait_exit(self, seconds=30):
        return self.process.wait(timeout=seconds * SLOWER)

    def terminate(self, seconds=30):
        """SIGTERM, then the exit status."""
        self.pids()
        self.process.send_signal(signal.SIGTERM)
        return self.wait_exit(seconds)

    def close(self):
        try:
            self.pids()
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                try:
                    self.process.wait(timeout=5 * SLOWER)
                except subprocess.TimeoutExpired:
                    self.pids()
                    self.process.kill()
                    self.process.wait()
            for pid in self.known:
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
        finally:
            if os.environ.get("TERCET_E2E_KEEP") != "1":
                shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def killed_amid(engine, name, ask, sequences):
    """What ask() gives when the process is killed as soon as so many sequences run: in the middle of its work, or else once
    more, as far as the supervisor allows."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for _ in range(4):
            victim = engine.pid_of(name)
            answer = pool.submit(ask)
            wait_until(lambda a=answer: engine.api.metric("vllm:num_requests_running") >= sequences or a.done(), 60, "the start")
            time.sleep(0.05)
            amid = not answer.done()
            os.kill(victim, signal.SIGKILL)
            result = answer.result()
            engine.successor(name, victim)
            if amid:
                return result
    raise AssertionError("every time it was over before the kill")


def run(*arguments, seconds=60, env=None, **kwargs):
    """Runs the tercet command to its end: (exit status, output of both kinds)."""
    environment = environment_with(env)
    done = subprocess.run([str(TERCET)] + [str(a) for a in arguments], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                          timeout=seconds * SLOWER, check=False, **kwargs)
    return done.returncode, done.stdout.decode(errors="replace")
