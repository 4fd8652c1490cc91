"""Two nodes on this machine, over TCP: their answers are those of one process, whatever dies or hangs on either."""
import os
import secrets
import signal
import socket
import threading
import time

import pytest

from engine import BUILD, DEMO, FULL, SANITIZED, Engine, alive, free_ports, in_time, run, wait_until
from load import Load, differences

pytestmark = pytest.mark.skipif(SANITIZED, reason="the unit tests of the bridge run under sanitizers")

# What has to be seen within this time is promised so.
PROMISE_S = 5

DEVICE = {"TERCET_CUDA_KERNELS": str(BUILD / "tests" / "kern" / "tercet-cuda-emu.so")}


class Node(Engine):
    """A node that has workers only, and no API."""

    def wait_ready(self, seconds=60):
        def ready():
            assert self.process.poll() is None, "the node ended with %s:\n%s" % (self.process.returncode, self.log())
            return "ready after" in self.log()
        wait_until(ready, seconds, "start-up of the node")
        self.pids()


class Wire:
    """The way from other nodes to node 0: forwards connections to the ports behind `target`, until it is told otherwise."""

    def __init__(self, port, target, count):
        self.port = port
        self.frozen, self.closed = False, False
        self.pairs = [[] for _ in range(count)]
        self.listeners = []
        for i in range(count):
            listener = socket.create_server(("127.0.0.1", self.port + i))
            self.listeners.append(listener)
            threading.Thread(target=self.accept, args=(i, listener, target + i), daemon=True).start()

    def accept(self, i, listener, target):
        while True:
            try:
                near = listener.accept()[0]
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", target))
            except OSError:
                near.close()
                continue
            self.pairs[i].append((near, far))
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(a, b), daemon=True).start()

    def pump(self, source, sink):
        try:
            while data := source.recv(65536):
                while self.frozen:
                    time.sleep(0.02)
                sink.sendall(data)
        except OSError:
            pass
        self.end(source, sink)

    @staticmethod
    def end(*sockets):
        for s in sockets:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self, i):
        """Breaks all connections of one port; new ones are forwarded again."""
        for pair in self.pairs[i]:
            self.end(*pair)
        self.pairs[i].clear()

    def close(self):
        self.frozen = False
        for i, listener in enumerate(self.listeners):
            self.end(listener)
            listener.close()
            self.cut(i)


class Cluster:
    def __init__(self, nodes, ranks, *flags, wire=False, env=None):
        self.secret = {"TERCET_CLUSTER_SECRET": secrets.token_hex(32), **(env or {})}
        self.nodes, self.ranks = nodes, ranks
        self.port = free_ports(2 * (ranks + 1))
        self.flags = ["--dtype", "float32", "--tensor-parallel-size", ranks, "--nnodes", nodes, "--master-addr", "127.0.0.1",
                      "--master-port", self.port, *flags]
        self.wire = Wire(self.port + ranks + 1, self.port, ranks + 1) if wire else None
        self.engine = Engine("--node-rank", 0, *self.flags, env=self.secret, wait=False)
        self.others = []
        try:
            for node in range(1, nodes):
                self.others.append(self.start(node))
            for e in [self.engine] + self.others:
                e.wait_ready()
        except BaseException:
            self.close()
            raise
        self.api = self.engine.api

    def start(self, node):
        by_wire = ["--master-port", self.wire.port] if self.wire else []
        return Node("--node-rank", node, *self.flags, *by_wire, env=self.secret, wait=False)

    def log(self):
        return "\n".join(e.log() for e in [self.engine] + self.others)

    def close(self):
        for e in [self.engine] + self.others:
            e.close()
        if self.wire:
            self.wire.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@pytest.fixture(scope="module")
def wanted():
    with Engine("--dtype", "float32") as e:
        return Load(e.api).results()


def workers(engine):
    return sorted(pid for pid, comm in engine.pids().items() if comm.startswith("tercet-worker"))


def strike(cluster, wanted, blow, seen, healed=None):
    """In the middle of the load: blow, then within the promised time `seen` in the log of node 0, then what heals."""
    def once():
        before, count = len(cluster.engine.log()), len(cluster.engine.pids())
        load = Load(cluster.api).wait_begun()
        time.sleep(0.1)
        begin = time.monotonic()
        blow()
        wait_until(lambda: seen in cluster.engine.log()[before:], 30, "'%s' in the log" % seen)
        took = time.monotonic() - begin
        if healed:
            healed()
        assert differences(wanted, load.results()) == {}, cluster.log()[-8000:]
        # a load that was over before the blow has waited for nobody
        wait_until(lambda: len(cluster.engine.pids()) == count and cluster.api.healthy(), 20, "health")
        for e in cluster.others:
            wait_until(lambda e=e: e.process.poll() is not None or len(workers(e)) == cluster.ranks // cluster.nodes, 20, "all ranks")
        return took

    in_time(PROMISE_S, once)


@pytest.mark.parametrize("nodes, ranks", [(2, 2), (2, 4)] + ([(4, 4)] if FULL else []))
def test_nodes_answer_as_one_process_does(nodes, ranks, wanted):
    with Cluster(nodes, ranks) as c:
        assert differences(wanted, Load(c.api).results()) == {}, c.log()[-6000:]
        for e in c.others:
            assert len(workers(e)) == ranks // nodes and not any("scheduler" in comm for comm in e.pids().values())


def test_a_killed_rank_on_either_node_changes_no_token(wanted):
    with Cluster(2, 2) as c:
        for e in (c.engine, c.others[0]):
            before = workers(e)
            strike(c, wanted, lambda e=e: os.kill(workers(e)[0], signal.SIGKILL), "RESTARTING process=worker-0")
            assert not any(alive(pid) for pid in before)


def test_a_frozen_rank_on_another_node_is_seen_in_time(wanted):
    with Cluster(2, 2, "--progress-timeout", "8") as c:
        # silence is noticed after 3 s, and so is the stop by its own supervisor
        strike(c, wanted, lambda: os.kill(workers(c.others[0])[0], signal.SIGSTOP), "is lost: it")
        assert "STUCK process=worker-1" in c.others[0].log()


def test_a_connection_that_breaks_changes_no_token(wanted):
    with Cluster(2, 2, wire=True) as c:
        pids = c.engine.pids()
        strike(c, wanted, lambda: c.wire.cut(0), "WORKERS_LOST")  # that of the steps: it is made again
        assert c.engine.pids() == pids, "nobody was restarted"
        strike(c, wanted, lambda: c.wire.cut(1), "is lost: it has closed the connection")  # between the ranks


def test_a_network_that_swallows_everything_is_seen_in_time(wanted):
    with Cluster(2, 2, wire=True) as c:
        def freeze():
            c.wire.frozen = True

        def thaw():
            c.wire.frozen = False
        strike(c, wanted, freeze, "is lost: it is silent", thaw)


def test_a_node_that_pauses_briefly_is_not_lost(wanted):
    with Cluster(2, 2) as c:
        pids = c.engine.pids()
        load = Load(c.api).wait_begun()
        everybody = list(c.others[0].pids()) + [c.others[0].process.pid]
        for kind in (signal.SIGSTOP, signal.SIGCONT):
            for pid in everybody:
                os.kill(pid, kind)
            time.sleep(1)
        assert differences(wanted, load.results()) == {}, c.log()[-6000:]
        assert c.engine.pids() == pids, "nobody was restarted"


def test_a_lost_node_that_comes_back_goes_on(wanted):
    with Cluster(2, 2) as c:
        def kill_node():
            c.others[-1].pids()
            c.others[-1].process.kill()

        def come_back():
            gone = c.others[-1]
            wait_until(lambda: not any(alive(pid) for pid in gone.known), 20, "end of the workers of the node")
            gone.process.wait()
            c.others.append(c.start(1))
        strike(c, wanted, kill_node, "is lost: it has closed the connection", come_back)


def test_a_first_node_that_comes_back_finds_the_others(wanted):
    with Cluster(2, 2) as c:
        scheduler = c.engine.pid_of("tercet-scheduler")
        load = Load(c.api).wait_begun()
        os.kill(scheduler, signal.SIGKILL)
        assert differences(wanted, load.results()) == {}, c.log()[-6000:]
        pids, gone = c.engine.pids(), c.engine
        gone.process.kill()
        wait_until(lambda: not any(alive(pid) for pid in pids), 20, "end of the first node")
        wait_until(lambda: "RESTARTING process=worker-1" in c.others[0].log(), 20, "notice on the other node")
        c.engine = Engine("--node-rank", 0, *c.flags, env=c.secret)
        c.api = c.engine.api
        try:
            assert differences(wanted, Load(c.api).results()) == {}, c.log()[-6000:]
        finally:
            gone.close()


def test_a_stop_of_the_first_node_stops_all():
    with Cluster(2, 2) as c:
        load = Load(c.api, count=4).wait_taken_in(c.engine)
        assert c.engine.terminate() == 0
        assert c.others[0].wait_exit() == 0
        assert "ENGINE_STOPPED" in c.others[0].log()
        load.join()
        assert len(load.answers) == 4 and not load.errors, "running requests are finished first"


def test_a_stop_of_all_at_once_finishes_what_runs():
    with Cluster(2, 2) as c:
        load = Load(c.api, count=4).wait_taken_in(c.engine)
        c.others[0].process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert c.engine.terminate() == 0
        assert c.others[0].wait_exit() == 0
        load.join()
        assert len(load.answers) == 4 and not load.errors


# ---------------------------------------------------------------- what is refused


def test_nodes_without_a_secret_do_not_start(tmp_path):
    flags = ["serve", DEMO, "-tp", 2, "--nnodes", 2, "--node-rank", 0, "--master-addr", "127.0.0.1"]
    status, output = run(*flags)
    assert status == 1 and "openssl rand -hex 32" in output, output
    (tmp_path / "short").write_text("hush\n")
    status, output = run(*flags, "--cluster-secret-file", tmp_path / "short")
    assert status == 1 and "it must have 16 to 4096" in output, output


def test_a_node_with_another_secret_is_told_so():
    port = free_ports(3)
    flags = ["-tp", 2, "--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", port]
    with Engine("--node-rank", 0, *flags, env={"TERCET_CLUSTER_SECRET": "0123456789abcdef"}, wait=False) as e:
        wait_until(lambda: "LISTENS_TO_NODES" in e.log(), 10, "start-up")
        status, output = run("serve", DEMO, "--node-rank", 1, *flags, env={"TERCET_CLUSTER_SECRET": "fedcba9876543210"})
        assert status == 1 and "it has another cluster secret" in output, output
        assert "NODE_REFUSED" in e.log() and e.process.poll() is None


@pytest.mark.parametrize("other", (("--block-size", 32), ("--quantization", "int8"), ("--kv-cache-dtype", "int8"),
                                   ("--device", "cuda")))
def test_a_node_with_other_options_is_told_so(other):
    port, secret = free_ports(3), {"TERCET_CLUSTER_SECRET": secrets.token_hex(16)}
    flags = ["-tp", 2, "--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", port]
    with Engine("--node-rank", 0, *flags, "--device", "cpu", env=secret, wait=False) as e:
        wait_until(lambda: "LISTENS_TO_NODES" in e.log(), 10, "start-up")
        status, output = run("serve", DEMO, "--node-rank", 1, *flags, *other, env={**secret, **DEVICE, "TERCET_DEVICE": "cpu"})
        assert status == 1 and "all nodes need the same" in output, output
