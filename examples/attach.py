#!/usr/bin/env python3
"""A client of a running Tercet engine in Python, written from docs/PROTOCOL.md.

    attach.py RUN_DIR TOKEN [TOKEN ...] [--max-tokens N] [--drop-after CHUNKS]

Submits a prompt given as token ids and prints the text as it comes. With --drop-after it closes its output socket
after so many chunks, stays away for a moment, attaches again behind the last chunk it has, and ends with the same text.
Needs Debian's python3-zmq and python3-msgpack."""
import argparse
import os
import struct
import sys
import time

import msgpack
import zmq

# version: begin
VERSION, SCHEMA_HASH = 1, 0x549cbd1a17679dea
# version: end
HELLO, ERROR, ENGINE, SUBMIT, ACCEPTED, REFUSED, ALIVE = 1, 2, 3, 4, 5, 6, 8
ATTACH, ATTACHED, ACK, DETACHED, CHUNK, BYE = 16, 17, 18, 19, 20, 21
FINISH = ["", "stop", "length", "abort", "error"]


def u32s(data):
    return struct.unpack("<%dI" % (len(data or b"") // 4), data or b"")


class Channel:
    """One DEALER socket: greets, numbers what it sends, checks what it receives."""

    def __init__(self, context, endpoint, client_id):
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 200
        self.socket.connect(endpoint)
        self.sent = self.received = 0
        self.send(HELLO, VERSION, SCHEMA_HASH, 6, 0, client_id, b"attach.py")

    def send(self, number, *fields):
        self.sent += 1
        self.socket.send(msgpack.packb([number, self.sent, 0, *fields], use_bin_type=True))

    def receive(self, timeout_ms):
        """The next message as (number, fields), or None."""
        if not self.socket.poll(timeout_ms):
            return None
        number, sequence, _epoch, *fields = msgpack.unpackb(self.socket.recv(), raw=False)
        if number == ERROR:
            sys.exit("error %d: %s" % (fields[0], (fields[2] or b"").decode()))
        if sequence != self.received + 1:
            sys.exit("a message was lost: number %d came behind %d" % (sequence, self.received))
        self.received = sequence
        return number, fields

    def expect(self, number, timeout_s=60):
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            message = self.receive(1000)
            if message and message[0] == number:
                return message[1]
        sys.exit("no message %d within %d seconds" % (number, timeout_s))


def entries(fields):
    """The entries of a CHUNK as (req_id, first_token, tokens, text, finish)."""
    req_ids = struct.unpack("<%dQ" % (len(fields[2] or b"") // 8), fields[2] or b"")
    firsts, token_counts, text_bytes = u32s(fields[3]), u32s(fields[4]), u32s(fields[5])
    finish, tokens, text = fields[8], u32s(fields[11]), fields[12] or b""
    token = byte = 0
    for i, req_id in enumerate(req_ids):
        yield (req_id, firsts[i], tokens[token:token + token_counts[i]], text[byte:byte + text_bytes[i]], finish[i])
        token += token_counts[i]
        byte += text_bytes[i]


def attach(context, run_dir, client_id, last_chunk, live):
    """`live`: {req_id: (tokens, bytes)} of what is held already."""
    output = Channel(context, "ipc://%s/output" % run_dir, client_id)
    output.expect(HELLO)
    columns = [struct.pack("<%dQ" % len(live), *live) or None]
    columns += [struct.pack("<%dI" % len(live), *(v[k] for v in live.values())) or None for k in (0, 1)]
    output.send(ATTACH, client_id, last_chunk, *columns)
    output.expect(ATTACHED)
    return output


def submit(channel, client_id, req_id, tokens, max_tokens):
    prompt = struct.pack("<%dI" % len(tokens), *tokens)
    greedy = [0.0, 1.0, 0.0, 0, 1.0, 0.0, 0.0, 0, max_tokens, 0, -1, -1, 2, 0]
    channel.send(SUBMIT, client_id, req_id, 0, 0, 0, *greedy, prompt, None, None, None, None, None, 0, 0, 0, 0, None, 1, 1.0,
                 0, 0, None, None)
    while True:
        number, fields = channel.receive(60000) or sys.exit("the scheduler does not answer")
        if number == REFUSED:
            sys.exit("refused: %s" % (fields[3] or b"").decode())
        if number == ACCEPTED:
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir")
    parser.add_argument("tokens", type=int, nargs="+")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--drop-after", type=int, default=0)
    args = parser.parse_args()

    context = zmq.Context()
    client_id = int.from_bytes(os.urandom(8), "little") | 1
    req_id, held_tokens, held_bytes, last_chunk = 1, 0, 0, 0
    engine = Channel(context, "ipc://%s/submit" % args.run_dir, client_id)
    lease_s = engine.expect(ENGINE)[5]
    output = attach(context, args.run_dir, client_id, 0, {})
    submit(engine, client_id, req_id, args.tokens, args.max_tokens)
    alive = time.monotonic()
    while True:
        if time.monotonic() - alive > lease_s / 4:
            engine.send(ALIVE, client_id)
            alive = time.monotonic()
        number, fields = output.receive(200) or (None, None)
        if number == DETACHED:
            sys.exit("detached: %s" % (fields[2] or b"").decode())
        if number != CHUNK or fields[1] <= last_chunk:
            continue
        last_chunk = fields[1]
        for entry_req_id, first, tokens, text, finish in entries(fields):
            if entry_req_id != req_id:
                continue
            assert first == held_tokens, "tokens are missing"
            held_tokens += len(tokens)
            held_bytes += len(text)
            sys.stdout.buffer.write(text)
            sys.stdout.flush()
            if finish:
                output.send(BYE, client_id)
                engine.send(BYE, client_id)
                print("\n[%s after %d tokens]" % (FINISH[finish], held_tokens), file=sys.stderr)
                return 0 if finish in (1, 2) else 1
        if last_chunk % 8 == 0:
            output.send(ACK, client_id, last_chunk)
        if last_chunk == args.drop_after:
            print("\n[gone after chunk %d]" % last_chunk, file=sys.stderr)
            output.socket.close(linger=0)
            time.sleep(0.5)
            output = attach(context, args.run_dir, client_id, last_chunk, {req_id: (held_tokens, held_bytes)})


if __name__ == "__main__":
    sys.exit(main())
