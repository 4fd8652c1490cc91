"""How an engine starts: order, readiness, failures, the run directory."""
import json
import signal
import socket
import subprocess

import pytest

from fake_engine import PATIENCE, TERCET, until


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
    assert event["kv_tokens"] == 64 and event["process"] == "supervisor"
    assert e.finish(signal.SIGTERM) == 0

def test_a_run_directory_that_cannot_be_made_is_named(engine):
    e = engine("--run-dir", "/proc/nowhere")
    assert e.finish() == 1
    assert "tercet: run directory /proc/nowhere: No such file or directory; name a writable one with --run-dir" in e.text()


def test_two_engines_do_not_share_a_run_directory(engine, tmp_path):
    e = engine()
    e.until_ready()
    second = subprocess.run([TERCET, "serve", "model", "--run-dir", str(e.run_dir), "--port", "0"], capture_output=True,
                            text=True, check=False, timeout=PATIENCE, cwd=tmp_path)
    assert second.returncode == 1 and "another engine runs in it" in second.stderr
    assert e.run_dir.exists()
    assert e.finish(signal.SIGTERM) == 0
