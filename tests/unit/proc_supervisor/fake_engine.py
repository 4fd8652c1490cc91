"""`tercet serve` with processes that do what a script says (fake_child.c)."""
import os
import subprocess
import time

TERCET = os.environ["TERCET_EXE"]
FAKE = os.environ["FAKE_CHILD_EXE"]
PATIENCE = 60.0 if os.environ.get("TERCET_TEST_SANITIZED") else 30.0


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid, encoding="ascii") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as f:
        return [int(p) for p in f.read().split()]


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
        (tmp_path / "model").mkdir()
        for name in ("config.json", "tokenizer.json"):
            (tmp_path / "model" / name).touch()
        self.run_dir = tmp_path / "run"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TERCET_")}
        environment.update({"TERCET_LIBEXEC": str(libexec), "FAKE_DIR": str(self.dir), "PATH": os.environ["PATH"]})
        for role, script in (scripts or {}).items():
            environment["FAKE_" + role.upper()] = script
        environment.update(env or {})
        self.out = open(tmp_path / "out", "w+", encoding="utf-8")
        self.process = subprocess.Popen([TERCET, "serve", model, "--run-dir", str(self.run_dir), "--port", "0", *flags],
                                        env=environment, stdout=self.out, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL, cwd=tmp_path)

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
