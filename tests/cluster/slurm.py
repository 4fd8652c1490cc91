#!/usr/bin/env python3
"""Two Slurm nodes on this machine run `srun tercet serve` with one worker each, over TCP; what they answer through HTTP is
what one process answers, also after a worker was killed. Needs Debian's slurm-wlm and munge, and no configuration: own
daemons in a directory of their own, ended at the end. Ends with status 77, which Meson shows as SKIP, where they are missing.

    tests/cluster/slurm.py             TERCET_BUILD_ROOT: the build directory, else build"""
import ctypes
import getpass
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from api import Api  # noqa: E402
from engine import DEMO, SLOWER, TERCET, Engine, alive, wait_until  # noqa: E402

SKIP = 77
NODES = ("tercet1", "tercet2")
FLAGS = ["--dtype", "float32", "--threads", "1", "--kv-cache-memory", "64MiB"]
REQUESTS = [{"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0},
            {"prompt": "The king said", "max_tokens": 60, "temperature": 0.9, "seed": 7},
            {"prompt": "In the deep forest there lived", "max_tokens": 200, "temperature": 0.7, "seed": 8,
             "ignore_eos": True}]
# Runs while everything is told to end.
LONG = {"prompt": "Two brothers", "max_tokens": 480, "temperature": 0.8, "seed": 9, "ignore_eos": True}

CONF = """\
ClusterName=tercet
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
CredType=cred/munge
SlurmctldPort={port}
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.%n.log
SlurmdSpoolDir={home}/spool.%n
StateSaveLocation={home}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/builtin
SelectType=select/linear
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
InactiveLimit=0
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def adopt():
    """What the daemons leave behind becomes a child of this process instead of the machine's."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def program(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def ports(count):
    """So many free ports."""
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    found = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return found


def row(count):
    """The first of so many free ports in a row, for node 0 and its ranks."""
    first = 20000 + os.getpid() * 3 % 10000
    while True:
        try:
            for i in range(count):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", first + i))
            return first
        except OSError:
            first += count


class Slurm:
    """munged, slurmctld and two slurmd, all in the foreground and children of this process."""

    def __init__(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="tercet-slurm-"))
        os.chmod(self.home, 0o755)  # munged wants its socket to be reachable by others
        self.daemons = []
        self.env = dict(os.environ, SLURM_CONF=str(self.home / "slurm.conf"))

    def spawn(self, name, *arguments):
        with open(self.home / ("%s.out" % name), "wb") as out:
            self.daemons.append(subprocess.Popen([program(arguments[0]), *map(str, arguments[1:])], env=self.env,
                                                 stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                                 start_new_session=True))

    def configure(self):
        control, *slurmd = ports(1 + len(NODES))
        nodes = "\n".join("NodeName=%s NodeHostname=%s NodeAddr=127.0.0.1 Port=%d CPUs=1 RealMemory=1000 State=UNKNOWN"
                          % (name, socket.gethostname().split(".")[0], port) for name, port in zip(NODES, slurmd))
        (self.home / "slurm.conf").write_text(CONF.format(host=socket.gethostname().split(".")[0], user=getpass.getuser(),
                                                          home=self.home, port=control, nodes=nodes))
        (self.home / "state").mkdir()
        key = self.home / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)

    def start(self):
        self.configure()
        self.spawn("munged", "munged", "--foreground", "--force", "--num-threads", 2, "--socket",
                   self.home / "munge.socket", "--key-file", self.home / "munge.key", "--pid-file",
                   self.home / "munge.pid", "--log-file", self.home / "munge.log", "--seed-file", self.home / "munge.seed")
        wait_until((self.home / "munge.socket").exists, 10, "munged's socket")
        self.spawn("slurmctld", "slurmctld", "-D", "-f", self.env["SLURM_CONF"])
        for name in NODES:
            (self.home / ("spool.%s" % name)).mkdir()
            self.spawn("slurmd." + name, "slurmd", "-D", "-N", name, "-f", self.env["SLURM_CONF"])

        def idle():
            for daemon in self.daemons:
                assert daemon.poll() is None, "%s ended with %s" % (daemon.args[0], daemon.returncode)
            return self.ask("sinfo", "-h", "-o", "%T %D").split() == ["idle", str(len(NODES))]
        wait_until(idle, 60, "readiness of both Slurm nodes")

    def ask(self, *command):
        done = subprocess.run([program(command[0]), *command[1:]], env=self.env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=30 * SLOWER, check=False)
        return done.stdout.decode(errors="replace")

    def logs(self):
        return "\n".join("---- %s\n%s" % (p.name, p.read_text(errors="replace")[-3000:])
                         for p in sorted(self.home.glob("*.log")) + sorted(self.home.glob("*.out")))

    def close(self):
        for daemon in reversed(self.daemons):
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
                try:
                    daemon.wait(10 * SLOWER)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
        reap()
        shutil.rmtree(self.home, ignore_errors=True)


def answer(api, request):
    return api.call("POST", "/v1/completions", dict(request, return_token_ids=True))["choices"][0]["token_ids"]


def answers(api):
    return [answer(api, r) for r in REQUESTS]


def workers(secret):
    """Slurm's node number -> process id of the worker that runs there. The secret tells our engine from others."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if not (path / "comm").read_text().startswith("tercet-worker"):
                continue
            env = dict(e.split("=", 1) for e in (path / "environ").read_text().split("\0") if "=" in e)
        except (OSError, UnicodeDecodeError):
            continue
        if env.get("TERCET_CLUSTER_SECRET") == secret:
            found[int(env["SLURM_NODEID"])] = int(path.name)
    return found


class Job:
    """`srun tercet serve` on both nodes."""

    def __init__(self, slurm):
        self.slurm, self.secret = slurm, secrets.token_hex(32)
        self.log_path = slurm.home / "srun.out"
        port = ports(1)[0]
        env = {k: v for k, v in slurm.env.items() if not k.startswith("TERCET_") and k != "MASTER_PORT"}
        env["TERCET_CLUSTER_SECRET"] = self.secret
        command = [program("srun"), "--nodes=2", "--ntasks-per-node=1", "--label", str(TERCET), "serve", str(DEMO), "-tp", "2",
                   "--port", str(port), "--master-port", str(row(3)), *FLAGS]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True)
        self.api = Api("127.0.0.1", port)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_ready(self):
        def ready():
            assert self.process.poll() is None, "srun ended with %s:\n%s" % (self.process.returncode, self.log())
            return self.log().count("ready after") == 2 and self.api.healthy()
        wait_until(ready, 60, "start-up over Slurm")

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20 * SLOWER)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in workers(self.secret).values():
            os.kill(pid, signal.SIGKILL)


def check(slurm, wanted, answer_of_long):
    start = time.monotonic()
    job = Job(slurm)
    try:
        job.wait_ready()
        found = workers(job.secret)
        assert sorted(found) == [0, 1], "a worker on each Slurm node: %s" % found
        assert 'from="Slurm"' in job.log() and job.log().count("NODE_JOINED") == 2, job.log()
        assert answers(job.api) == wanted, job.log()
        print("ready after %.1f s" % (time.monotonic() - start))
        print("two Slurm nodes answer as one process does: %d requests" % len(wanted))
        begin = time.monotonic()
        os.kill(found[1], signal.SIGKILL)
        wait_until(lambda: "RESTARTING process=worker-0" in job.log(), 5, "notice of the killed worker")
        print("a killed worker on the second node is seen on the first after %.2f s" % (time.monotonic() - begin))
        assert answers(job.api) == wanted, job.log()
        print("and the answers are the same")
        late = []
        running = threading.Thread(target=lambda: late.append(answer(job.api, LONG)), daemon=True)
        job_id = slurm.ask("squeue", "-h", "-o", "%A").strip()
        running.start()
        wait_until(lambda: job.api.metric("vllm:num_requests_running") > 0, 10, "a request that runs")
        pids = list(workers(job.secret).values())
        begin = time.monotonic()
        slurm.ask("scancel", job_id)
        running.join(10 * SLOWER)
        job.process.wait(30 * SLOWER)
        wait_until(lambda: not any(alive(pid) for pid in pids), 10, "end of the workers")
        assert late == [answer_of_long], (late, answer_of_long, job.log())
        print("scancel lets the running request end, and everything after %.1f s" % (time.monotonic() - begin))
    except BaseException:
        print(job.log()[-6000:], slurm.logs(), sep="\n", file=sys.stderr)
        raise
    finally:
        job.close()


def main():
    missing = [name for name in ("munged", "slurmctld", "slurmd", "srun", "sinfo", "squeue", "scancel") if not program(name)]
    if missing:
        print("SKIPPED: %s missing (Debian: apt-get install slurm-wlm munge)" % ", ".join(missing))
        return SKIP
    adopt()
    with Engine(*FLAGS) as engine:
        wanted, answer_of_long = answers(engine.api), answer(engine.api, LONG)
    slurm = Slurm()
    try:
        slurm.start()
        check(slurm, wanted, answer_of_long)
    except AssertionError as error:
        print("FAILED: %s" % error, slurm.logs(), sep="\n", file=sys.stderr)
        return 1
    finally:
        slurm.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
