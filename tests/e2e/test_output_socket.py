"""The engine without HTTP: an outside client attaches, drops, comes back, and misses nothing."""
import os
import subprocess
import sys
import time

import pytest
import zmq

import engine as engines
import wire
from api import joined
from engine import BUILD, ROOT, SLOWER, Engine

MESSAGES = ROOT / "docs" / "MESSAGES.md"
ids = iter(range(1000, 100000))


@pytest.fixture
def client(engine):
    c = wire.Client(engine.run_dir, MESSAGES, next(ids))
    yield c
    c.close()


def test_a_client_gets_what_http_gets(api, client, reference):
    prompts = reference["prompts"][:8]
    numbers = [client.submit(p["ids"], max_tokens=48, flags=wire.SKIP_SPECIAL | 1) for p in prompts]
    client.read_until_finished(*numbers)
    for number, p in zip(numbers, prompts):
        request = client.requests[number]
        assert request.tokens == p["output_ids"] and request.finish == "length"
        assert request.text.decode() == api.completions(p["ids"], temperature=0, max_tokens=48,
                                                        ignore_eos=True)["choices"][0]["text"]


def test_a_client_that_drops_and_comes_back_misses_nothing(client, reference):
    prompts = reference["prompts"][:6]
    numbers = [client.submit(p["ids"], max_tokens=400, flags=wire.SKIP_SPECIAL | 1) for p in prompts]
    drops = 0
    while not all(client.requests[n].finish for n in numbers):
        client.read_chunk(ack=drops % 2 == 0)
        # chunks merge on a busy machine: some of the drops come early
        if client.last_chunk in (1, 2, 3, 25, 50, 75):
            client.drop()
            time.sleep(0.02)
            client.attach()
            drops += 1
    assert drops >= 3
    for number, p in zip(numbers, prompts):
        assert client.requests[number].tokens[:48] == p["output_ids"]
        assert len(client.requests[number].tokens) == 400


def test_another_process_takes_a_client_up(engine, reference):
    """What the first one wrote down is all that the second one knows."""
    p = reference["prompts"][0]
    with wire.Client(engine.run_dir, MESSAGES, 555) as first:
        number = first.submit(p["ids"], max_tokens=300, flags=wire.SKIP_SPECIAL | 1)
        while len(first.requests[number].tokens) < 20:
            first.read_chunk()
        last_chunk, requests = first.last_chunk, first.requests
    with wire.Client(engine.run_dir, MESSAGES, 555, last_chunk, requests) as second:
        second.read_until_finished(number)
        assert second.requests[number].tokens[:48] == p["output_ids"]
        assert len(second.requests[number].tokens) == 300
        second.close()


def test_stop_strings_and_aborts(engine, client, reference):
    p = reference["prompts"][0]
    stop = p["output_text"][10:14].encode()
    number = client.submit(p["ids"], max_tokens=48, stop_strings=stop, stop_string_bytes=[len(stop)])
    client.read_until_finished(number)
    assert client.requests[number].text.decode() == p["output_text"][:10]
    assert client.requests[number].finish == "stop"
    with engines.slowed(engine.pid_of("tercet-worker")):  # so that it is not over before the abort
        number = client.submit(p["ids"], max_tokens=450, flags=wire.SKIP_SPECIAL | 1)
        client.read_chunk()
        client.submit_channel.send("ABORT", client_id=client.id, req_id=number)
        client.read_until_finished(number)
    assert client.requests[number].finish == "abort" and len(client.requests[number].tokens) < 450


def test_requests_that_can_never_run_are_refused(client):
    with pytest.raises(ValueError, match="512|context|long"):
        client.submit([300] * 600)
    with pytest.raises(ValueError, match="temperature"):
        client.submit([300], temperature=-1.0)
    with pytest.raises(ValueError, match="vocabulary|token"):
        client.submit([1 << 30])


def test_another_schema_is_refused_with_both_versions(engine):
    context = zmq.Context()
    try:
        protocol = wire.Protocol(MESSAGES)
        ours = protocol.schema_hash
        protocol.schema_hash ^= 1
        channel = wire.Channel(context, protocol, "ipc://%s/output" % engine.run_dir, 9)
        error = channel.expect("ERROR")
        assert "%016x" % ours in error["text"].decode() and "%016x" % (ours ^ 1) in error["text"].decode()
    finally:
        context.destroy(0)


def test_a_client_of_another_build_fails_at_once_with_the_reason(engine, tmp_path):
    own = "%016x" % wire.Protocol(MESSAGES).schema_hash
    other = tmp_path / "MESSAGES.md"
    other.write_text(MESSAGES.read_text().replace(own, "%016x" % (int(own, 16) ^ 1)))
    with pytest.raises(wire.Refused, match="both must come from the same release; are the binaries"):
        wire.Client(engine.run_dir, other, next(ids))


def test_a_client_of_an_engine_that_is_silent_or_does_not_read_ends(tmp_path):
    context = zmq.Context()
    silent = context.socket(zmq.ROUTER)  # never received from
    try:
        silent.bind("ipc://%s/submit" % tmp_path)
        with pytest.raises(TimeoutError, match="submit did not say HELLO within 0.2 s"):
            wire.Client(tmp_path, MESSAGES, 1, seconds=0.2)
        channel = wire.Channel(context, wire.Protocol(MESSAGES), "ipc://%s/submit" % tmp_path, 2, seconds=0.2)
        with pytest.raises(TimeoutError, match="takes no ACK within 0.2 s"):
            for _ in range(100000):
                channel.send("ACK", client_id=2, chunk=1)
    finally:
        context.destroy(0)


def test_slow_client_is_closed_and_others_are_not():
    with Engine("--output-retention", "20000", "--dtype", "float32") as e:
        with wire.Client(e.run_dir, MESSAGES, 1) as slow:
            for k in range(16):
                slow.submit([4091, 300 + k], max_tokens=480, flags=wire.SKIP_SPECIAL | 1, logprobs=20)
            slow.drop()  # away: what gathers is above the limit soon
            alone = e.api.greedy_ids("Once upon a time", 200)
            events = e.api.stream(prompt="Once upon a time", max_tokens=200, temperature=0, ignore_eos=True,
                                  return_token_ids=True)
            assert joined(events)[0]["token_ids"] == alone
            engines.wait_until(lambda: e.api.metric("vllm:num_requests_running") == 0, 20, "the end of its requests")
            engines.wait_until(lambda: e.api.metric("tercet_clients_closed_slow_total") == 1, 20, "the end of its connection")


PROMPT = "Once upon a time"


@pytest.fixture
def wanted(api):
    """Text of 100 greedy tokens, as far as they go."""
    return api.completions(PROMPT, temperature=0, max_tokens=100)["choices"][0]["text"]


def example(name, *arguments):
    """What an example program writes, without the line about its end."""
    done = subprocess.run([str(a) for a in (name,) + arguments], timeout=30 * SLOWER, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout.decode(), done.stderr.decode()


def test_the_c_examples_stream_drop_and_resume(engine, wanted):
    folder = BUILD / "examples"
    out, _ = example(folder / "example_stream", engine.run_dir, engines.DEMO, PROMPT)
    assert out.rsplit("\n[", 1)[0] == wanted
    for chunks in (1, 7, 40):
        for _ in range(20):
            out, err = example(folder / "example_resume", engine.run_dir, engines.DEMO, PROMPT, chunks)
            assert out.rsplit("\n[", 1)[0] == wanted, chunks
            # on a busy machine chunks merge, and the whole text may come in fewer of them: then once more
            if "[left after chunk" in err:
                break
        assert "[left after chunk %d]" % chunks in err
    assert len((ROOT / "examples" / "stream.c").read_text().splitlines()) < 60


def test_the_python_example_drops_and_resumes(engine, api, wanted):
    tokens = api.call("POST", "/tokenize", {"prompt": PROMPT})["tokens"]
    for drop in (0, 1, 9):
        out, _ = example(sys.executable, ROOT / "examples" / "attach.py", engine.run_dir, *tokens, "--max-tokens", 100,
                         "--drop-after", drop)
        assert out == wanted, drop


def test_attach_command_tails_the_tap(engine, api):
    tail = subprocess.Popen([str(engines.TERCET), "attach", "--run-dir", str(engine.run_dir)],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        text = ""
        os.set_blocking(tail.stdout.fileno(), False)
        end = time.monotonic() + 20 * SLOWER
        while "king" not in text and time.monotonic() < end:
            api.completions("Once upon a time", temperature=0, max_tokens=8)
            time.sleep(0.05)
            text += (tail.stdout.read() or b"").decode(errors="replace")
        assert "king" in text
    finally:
        tail.terminate()
        tail.wait()
        tail.stdout.close()
