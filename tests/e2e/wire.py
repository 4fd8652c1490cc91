"""A client of the engine's sockets, written from docs/PROTOCOL.md with pyzmq and msgpack alone. The fields of the
messages are read from docs/MESSAGES.md."""
import itertools
import pathlib
import re
import struct
import time

import msgpack
import zmq

FORMATS = {"u8": "B", "u32": "I", "i32": "i", "u64": "Q", "f32": "f"}
ROLE_CLIENT = 6
SKIP_SPECIAL = 1 << 1
FINISH = ["", "stop", "length", "abort", "error"]
SECONDS = 30  # in which whatever is waited for has to come
SAME_BUILD = "are the binaries of the same build as docs/MESSAGES.md?"


class Refused(Exception):
    """The engine's ERROR, in its own words."""


class Protocol:
    """name -> (number, [(field, type, is array)]), from the document."""

    def __init__(self, path):
        text = pathlib.Path(path).read_text()
        self.version = int(re.search(r"Protocol version \*\*(\d+)\*\*", text).group(1))
        self.schema_hash = int(re.search(r"schema hash \*\*0x([0-9a-f]+)\*\*", text).group(1), 16)
        self.by_name, self.by_number = {}, {}
        for section in re.split(r"^## ", text, flags=re.M)[1:]:
            number, name = re.match(r"(\d+) (\w+)", section).groups()
            fields = re.findall(r"^\| (\d+) \| `(\w+)` \| (\w+)(\[\])? \|", section, flags=re.M)
            assert [int(f[0]) for f in fields] == list(range(3, 3 + len(fields))), name
            self.by_name[name] = (int(number), [(f[1], f[2], bool(f[3])) for f in fields])
            self.by_number[int(number)] = (name, self.by_name[name][1])

    def encode(self, message_name, sequence, **values):
        number, fields = self.by_name[message_name]
        message = [number, sequence, 0]
        for field, kind, is_array in fields:
            value = values.pop(field, [] if is_array else 0)
            if is_array and not isinstance(value, bytes):
                value = struct.pack("<%d%s" % (len(value), FORMATS[kind]), *value)
            message.append((value or None) if is_array else value)
        assert not values, "%s has no %s" % (message_name, list(values))
        return msgpack.packb(message, use_bin_type=True)

    def decode(self, frame):
        message = msgpack.unpackb(frame, raw=False)
        assert message[0] in self.by_number, "docs/MESSAGES.md has no message %r; %s" % (message[0], SAME_BUILD)
        name, fields = self.by_number[message[0]]
        values = {"name": name, "sequence": message[1], "epoch": message[2]}
        for (field, kind, is_array), value in zip(fields, message[3:]):
            if is_array and kind == "u8" and field not in ("finish", "stop_kind"):
                value = value or b""
            elif is_array:
                value = value or b""
                value = list(struct.unpack("<%d%s" % (len(value) // struct.calcsize(FORMATS[kind]), FORMATS[kind]), value))
            values[field + "_" if field in values else field] = value
        return values


class Channel:
    """One DEALER: greets, numbers what it sends, checks the numbers of what it gets. Nothing waits for ever: an engine that is
    silent, or does not read, is a TimeoutError that says where."""

    def __init__(self, context, protocol, endpoint, client_id, seconds=SECONDS):
        self.protocol, self.endpoint, self.seconds = protocol, endpoint, seconds
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 200)
        self.socket.setsockopt(zmq.SNDTIMEO, int(seconds * 1000))
        self.socket.setsockopt(zmq.RCVTIMEO, int(seconds * 1000))
        self.socket.connect(endpoint)
        self.sent = self.received = 0
        self.sent_at = time.monotonic()
        self.send("HELLO", version=protocol.version, schema_hash=protocol.schema_hash, role=ROLE_CLIENT,
                  client_id=client_id, name=b"python")

    def send(self, message_name, **values):
        self.sent += 1
        self.sent_at = time.monotonic()
        try:
            self.socket.send(self.protocol.encode(message_name, self.sent, **values))
        except zmq.Again:
            raise TimeoutError("%s takes no %s within %s s: nothing reads there" % (self.endpoint, message_name, self.seconds)) from None

    def receive(self, seconds=None, what="anything"):
        seconds = seconds or self.seconds
        if not self.socket.poll(int(seconds * 1000)):
            raise TimeoutError("%s did not say %s within %s s; does an engine run there, and %s" %
                               (self.endpoint, what, seconds, SAME_BUILD))
        message = self.protocol.decode(self.socket.recv())
        assert message["sequence"] == self.received + 1, message
        self.received += 1
        return message

    def expect(self, name, seconds=None):
        message = self.receive(seconds, name)
        if message["name"] == "ERROR" and name != "ERROR":
            raise Refused("%s: %s; %s" % (self.endpoint, message["text"].decode(), SAME_BUILD))
        assert message["name"] == name, message
        return message

    def close(self, linger=200):
        self.socket.close(linger)


class Request:
    def __init__(self):
        self.tokens, self.text, self.finish, self.error = [], b"", None, ""


class Client:
    """Submits on `submit`, reads chunks on `output`, and can drop and take up the latter."""

    def __init__(self, run_dir, messages, client_id, last_chunk=0, requests=None, seconds=SECONDS):
        self.context = zmq.Context()
        self.protocol = Protocol(messages)
        self.run_dir, self.id, self.seconds = run_dir, client_id, seconds
        self.last_chunk = last_chunk
        self.requests = requests or {}
        self.numbers = itertools.count(1)
        self.output = None
        try:
            self.submit_channel = Channel(self.context, self.protocol, "ipc://%s/submit" % run_dir, client_id, seconds)
            self.submit_channel.expect("HELLO")
            self.engine = self.submit_channel.expect("ENGINE")
            self.attach()
        except BaseException:
            self.vanish()  # else the end of the context waits for its sockets for ever
            raise

    def attach(self):
        self.output = Channel(self.context, self.protocol, "ipc://%s/output" % self.run_dir, self.id, self.seconds)
        live = [(n, r) for n, r in self.requests.items() if not r.finish]
        self.output.send("ATTACH", client_id=self.id, last_chunk=self.last_chunk, live_req_id=[n for n, _ in live],
                         live_token_count=[len(r.tokens) for _, r in live],
                         live_text_bytes=[len(r.text) for _, r in live])
        self.output.expect("HELLO")
        attached = self.output.expect("ATTACHED")
        assert attached["next_chunk"] == self.last_chunk + 1, attached

    def drop(self):
        """The output socket goes without a word."""
        self.output.close(0)
        self.output = None

    def submit(self, tokens, **values):
        number = next(self.numbers)
        self.requests[number] = Request()
        fields = {"temperature": 0.0, "top_p": 1.0, "repetition_penalty": 1.0, "max_tokens": 16, "logprobs": -1,
                  "prompt_logprobs": -1, "flags": SKIP_SPECIAL}
        fields.update(values)
        self.submit_channel.send("SUBMIT", client_id=self.id, req_id=number, tokens=tokens, **fields)
        answer = self.submit_channel.receive()
        assert answer["name"] in ("ACCEPTED", "REFUSED") and answer["req_id"] == number, answer
        if answer["name"] == "REFUSED":
            self.requests.pop(number)
            raise ValueError(answer["text"].decode())
        return number

    def keep_lease(self):
        """A client that says nothing on `submit` for a whole lease is taken for dead."""
        if time.monotonic() - self.submit_channel.sent_at > self.engine["client_lease_s"] / 4:
            self.submit_channel.send("ALIVE", client_id=self.id)

    def read_chunk(self, seconds=None, ack=True):
        self.keep_lease()
        chunk = self.output.expect("CHUNK", seconds)
        assert chunk["chunk"] == self.last_chunk + 1, "chunk %d behind %d" % (chunk["chunk"], self.last_chunk)
        self.last_chunk = chunk["chunk"]
        token_at = text_at = 0
        for i, number in enumerate(chunk["req_id"]):
            request = self.requests[number]
            assert chunk["first_token"][i] == len(request.tokens), "gap or repeat"
            token_end, text_end = token_at + chunk["token_count"][i], text_at + chunk["text_bytes"][i]
            request.tokens += chunk["tokens"][token_at:token_end]
            request.text += chunk["text"][text_at:text_end]
            request.finish = FINISH[chunk["finish"][i]] or None
            request.error = chunk["error_text"].decode()
            token_at, text_at = token_end, text_end
        if ack:
            self.output.send("ACK", client_id=self.id, chunk=self.last_chunk)
        return chunk

    def read_until_finished(self, *numbers):
        while not all(self.requests[n].finish for n in numbers):
            self.read_chunk()

    def close(self):
        if self.output:
            self.output.send("BYE", client_id=self.id)
        self.submit_channel.send("BYE", client_id=self.id)
        self.context.destroy(200)

    def vanish(self):
        """Without a good-bye, as a process that was killed."""
        self.context.destroy(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.context.closed:
            self.vanish()
