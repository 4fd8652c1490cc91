"""Peers that keep to no rule on the sockets of the run directory: the engine's answers stay the same."""
import random
import resource
import struct
import time

import msgpack
import pytest
import zmq

import wire
from engine import FULL, ROOT, SANITIZED, Engine
from load import Load, differences

MESSAGES = ROOT / "docs" / "MESSAGES.md"
PROTOCOL = wire.Protocol(MESSAGES)
HELLO = {"version": PROTOCOL.version, "schema_hash": PROTOCOL.schema_hash, "role": wire.ROLE_CLIENT, "name": b"hostile"}


class Target:
    """An engine, what it answers when left alone, and its processes, none of which may be restarted."""

    def __init__(self, engine):
        self.engine = engine
        self.wanted = Load(engine.api, 8, 60).results()
        self.pids = engine.pids()

    def endpoint(self, name):
        return "ipc://%s/%s" % (self.engine.run_dir, name)

    def check(self):
        assert differences(self.wanted, Load(self.engine.api, 8, 60).results(40)) == {}
        assert self.engine.pids() == self.pids, self.engine.log()[-3000:]


@pytest.fixture(scope="module")
def target():
    # Few descriptors as its shell would give it: it has to help itself to more.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        engine = Engine("--dtype", "float32")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with engine:
        yield Target(engine)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def some_value(rnd):
    return rnd.choice([None, 0, -1, 2**64 - 1, b"", rnd.randbytes(rnd.randrange(100)), "text", 1.5, [], {}, True])


def well_typed(rnd, sequence):
    """A message whose fields have the right types and senseless values."""
    number, fields = PROTOCOL.by_name[rnd.choice([n for n in PROTOCOL.by_name if n != "HELLO"])]
    frame = [number, sequence, 0]
    for _, kind, is_array in fields:
        if is_array:
            frame.append(rnd.randbytes(struct.calcsize(wire.FORMATS[kind]) * rnd.randrange(20)) or None)
        else:
            frame.append(rnd.random() if kind == "f32" else rnd.randrange(2**31))
    return msgpack.packb(frame, use_bin_type=True)


def some_frame(rnd, sequence):
    return rnd.choice([
        lambda: rnd.randbytes(rnd.randrange(200)),
        lambda: msgpack.packb([rnd.randrange(40), sequence, 0] + [some_value(rnd) for _ in range(rnd.randrange(30))]),
        lambda: well_typed(rnd, sequence),
        lambda: b"\xdd\xff\xff\xff\xff" + rnd.randbytes(20),
        lambda: b"\x93\x04" + msgpack.packb(sequence) + b"\xc6\xff\xff\xff\xff",
        lambda: PROTOCOL.encode("SUBMIT", sequence, client_id=77, req_id=sequence, temperature=float("nan"),
                                top_p=1.0, tokens=[1] * 3, max_tokens=2**32 - 1),
        lambda: PROTOCOL.encode("SUBMIT", sequence, client_id=77, req_id=sequence, top_p=1.0, tokens=[1] * 3,
                                repetition_penalty=1.0, max_tokens=5, output_count=2**32 - 1, logprobs=-1,
                                prompt_logprobs=-1, stop_strings=b"abc", stop_string_bytes=[2**32 - 1, 4]),
        lambda: PROTOCOL.encode("ATTACH", sequence, client_id=77, last_chunk=2**64 - 1, live_req_id=[1, 2, 3],
                                live_token_count=[2**32 - 1], live_text_bytes=[]),
        lambda: PROTOCOL.encode("ACK", sequence, client_id=77, chunk=2**64 - 1),
    ])()


@pytest.mark.parametrize("greets", [False, True])
@pytest.mark.parametrize("name", ["submit", "output", "streams", "step"])
def test_garbage_is_answered_or_ignored(target, name, greets):
    rnd = random.Random("%s %s" % (name, greets))
    with zmq.Context() as context, context.socket(zmq.DEALER) as s:
        s.linger = 0
        s.connect(target.endpoint(name))
        if greets:
            s.send(PROTOCOL.encode("HELLO", 1, client_id=77, **HELLO))
        for i in range(3000 if FULL else 300):
            frame = some_frame(rnd, i + 2)
            try:
                s.send_multipart([frame] if rnd.random() < 0.9 else [b"", frame, frame], zmq.NOBLOCK)
            except zmq.Again:
                time.sleep(0.001)
        time.sleep(0.1)
        target.check()


def test_a_strangers_greeting_does_not_silence_the_worker(target):
    with zmq.Context() as context, context.socket(zmq.PUSH) as s:
        s.linger = 0
        s.connect(target.endpoint("tokens"))
        s.send(PROTOCOL.encode("HELLO", 1, version=99, schema_hash=1, role=3))
        for i in range(100):
            s.send(random.Random(i).randbytes(40))
        time.sleep(0.2)
        target.check()


@pytest.mark.parametrize("name", ["submit", "output"])
def test_a_flood_of_connections_keeps_nobody_out(target, name):
    """More than the descriptors it was started with, more than its tables hold; and all go without a word."""
    count = 200 if SANITIZED else 6000 if FULL else 1500
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 16384)
    try:
        for i in range(count):
            s = context.socket(zmq.DEALER)
            s.linger = 0
            s.connect(target.endpoint(name))
            s.send(PROTOCOL.encode("HELLO", 1, client_id=10000 + i, **HELLO))
            if name == "output":
                s.send(PROTOCOL.encode("ATTACH", 2, client_id=10000 + i))
        time.sleep(1)
        target.check()
    finally:
        context.destroy(0)
    target.check()
    with wire.Client(target.engine.run_dir, MESSAGES, 5) as client:
        number = client.submit([4091, 300], max_tokens=5, flags=3)
        client.read_until_finished(number)
        assert len(client.requests[number].tokens) == 5
        client.close()


def test_clients_that_never_read_cost_only_themselves(target):
    context = zmq.Context()
    try:
        deaf = wire.Channel(context, PROTOCOL, target.endpoint("submit"), 4242)
        deaf.socket.sndhwm = 0
        for i in range(5000):
            deaf.send("SUBMIT", client_id=4242, req_id=i, tokens=[1], temperature=-1.0)
        with wire.Client(target.engine.run_dir, MESSAGES, 4343) as client:
            for i in range(8):
                client.submit([4091, 300 + i], max_tokens=400, flags=3, logprobs=20)
            target.check()
    finally:
        context.destroy(0)  # one that is left open lets nobody end
    target.check()
