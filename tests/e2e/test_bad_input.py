"""Bad input of every kind: each has its own clear error, and nothing is left running."""
import json
import os
import pathlib
import shutil
import socket
import struct

import pytest

import engine as engines
from api import ApiError
from engine import Engine, free_ports, run

# ---------------------------------------------------------------- at the start


@pytest.fixture
def folder(tmp_path):
    """A copy of the bundled model that a test may damage."""
    copy = tmp_path / "model"
    shutil.copytree(engines.DEMO, copy)
    return copy


def start_fails(tmp_path, *flags, model=engines.DEMO, seconds=60):
    """Starts an engine that must refuse; what it wrote."""
    arguments = ["serve", model, "--port", free_ports(), "--threads", "1"]
    if "--run-dir" not in flags:
        arguments += ["--run-dir", tmp_path / "run"]
    if not any(str(f).startswith("--kv-cache-memory") for f in flags):
        arguments += ["--kv-cache-memory", "64MiB"]
    status, output = run(*arguments, *flags, seconds=seconds)
    assert status not in (0, None) and status > 0, output
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = pathlib.Path("/proc/%s/cmdline" % pid).read_bytes()
        except OSError:
            continue
        assert str(tmp_path).encode() not in command, "left running: %r" % command
    return output


def edit(path, **changes):
    config = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            config.pop(key, None)
        else:
            config[key] = value
    path.write_text(json.dumps(config))


def test_missing_folder(tmp_path):
    output = start_fails(tmp_path, model=tmp_path / "nowhere")
    assert "nowhere" in output and "config.json" in output or "no such" in output.lower()


def test_missing_weights(tmp_path, folder):
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in start_fails(tmp_path, model=folder)


def test_truncated_weights(tmp_path, folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    output = start_fails(tmp_path, model=folder)
    assert "model.safetensors" in output and ("truncated" in output or "bytes" in output)


def test_weights_that_are_no_safetensors(tmp_path, folder):
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    assert "model.safetensors" in start_fails(tmp_path, model=folder)


def test_weights_that_git_lfs_did_not_fetch(tmp_path, folder):
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:%064x\nsize 9876\n" % 7)
    output = start_fails(tmp_path, model=folder)
    assert "model.safetensors" in output and "git lfs pull" in output


def test_tensor_missing_from_the_weights(tmp_path, folder):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = data[8:8 + size].replace(b"model.layers.3.mlp.up_proj.weight", b"model.layers.3.mlp.UP_proj.weight")
    path.write_bytes(data[:8] + header + data[8 + size:])
    assert "model.layers.3.mlp.up_proj.weight" in start_fails(tmp_path, model=folder)


def test_wrong_shape(tmp_path, folder):
    edit(folder / "config.json", intermediate_size=512)
    output = start_fails(tmp_path, model=folder)
    assert "mlp" in output and "704" in output and "512" in output


def test_unknown_architecture(tmp_path, folder):
    edit(folder / "config.json", architectures=["FancyForCausalLM"], model_type="fancy")
    output = start_fails(tmp_path, model=folder)
    assert "FancyForCausalLM" in output and "docs/ADDING_A_MODEL.md lists the" in output


def test_config_without_a_needed_field(tmp_path, folder):
    edit(folder / "config.json", num_hidden_layers=None)
    output = start_fails(tmp_path, model=folder)
    assert "num_hidden_layers" in output and "config.json" in output


def test_config_that_is_no_json(tmp_path, folder):
    (folder / "config.json").write_text('{\n "hidden_size": 256,')
    output = start_fails(tmp_path, model=folder)
    assert "config.json" in output and "ends too early" in output and "line 2" in output
    (folder / "config.json").write_text('{"hidden_size": NaN}')
    output = start_fails(tmp_path, model=folder)
    assert "config.json" in output and "NaN and Infinity are no JSON" in output and "byte 16" in output


def test_missing_tokenizer(tmp_path, folder):
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json" in start_fails(tmp_path, model=folder)


def test_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        output = start_fails(tmp_path, "--port", port)
    assert str(port) in output and "in use" in output.lower()


def test_run_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    output = start_fails(tmp_path, "--run-dir", tmp_path / "file" / "run")
    assert str(tmp_path / "file") in output


def test_run_directory_that_is_too_long_for_sockets(tmp_path):
    output = start_fails(tmp_path, "--run-dir", tmp_path / ("x" * 120))
    assert "--run-dir" in output and "shorter" in output


def test_run_directory_of_a_running_engine(tmp_path, engine):
    output = start_fails(tmp_path, "--run-dir", engine.run_dir)
    assert str(engine.run_dir) in output
    assert engine.api.healthy(), "the running one is not disturbed"


def test_too_little_memory_says_how_much_is_needed(tmp_path):
    output = start_fails(tmp_path, "--kv-cache-memory", "4KiB")
    assert "--kv-cache-memory" in output or "kv" in output.lower()
    assert any(unit in output for unit in ("KiB", "MiB", "bytes"))


def test_context_longer_than_the_model(tmp_path):
    output = start_fails(tmp_path, "--max-model-len", "100000")
    assert "512" in output and "max-model-len" in output


def test_tensor_parallel_size_that_does_not_divide(tmp_path):
    output = start_fails(tmp_path, "--tensor-parallel-size", "3")
    assert "3" in output and "head" in output


@pytest.mark.parametrize("flags,words", [
    (["--prot", "1"], ["--prot", "--port"]),
    (["--port", "70000"], ["70000", "65535"]),
    (["--ctx-size", "4096"], ["there is no option --ctx-size: use --max-model-len"]),
    (["-np", "4"], ["there is no option -np: use --max-num-seqs"]),
    (["--trust_remote_code"], ["no code of a model folder is run"]),
    (["--pipeline-parallel-size", "2"], ["--tensor-parallel-size"]),
    (["--dtype", "int3"], ["int3", "bfloat16", "float32"]),
    (["--async-depth", "x"], ["--async-depth", "x"]),
    (["--kv-cache-memory", "12XB"], ["12XB"]),
    (["--config", "/nonexistent.yaml"], ["/nonexistent.yaml"]),
])
def test_bad_flags(tmp_path, flags, words):
    status, output = run("serve", engines.DEMO, "--run-dir", tmp_path / "run", *flags)
    assert status not in (0, None)
    for word in words:
        assert word in output


def test_bad_environment_and_file(tmp_path):
    status, output = run("serve", engines.DEMO, "--run-dir", tmp_path / "run", env={"TERCET_PORT": "many"})
    assert status != 0 and "TERCET_PORT" in output and "many" in output
    config = tmp_path / "conf.yaml"
    config.write_text("max-num-seqs: 0\n")
    status, output = run("serve", engines.DEMO, "--config", config)
    assert status != 0 and "max-num-seqs" in output.replace("_", "-") and "conf.yaml" in output


def test_no_model(tmp_path):
    status, output = run("serve", "--run-dir", tmp_path / "run")
    assert status != 0 and "model" in output.lower()


# ---------------------------------------------------------------- in requests

GOOD = {"prompt": "x", "max_tokens": 1}


def refused(api, path, body):
    """The error of a request that must be refused with 400."""
    with pytest.raises(ApiError) as error:
        api.call("POST", path, body)
    e = error.value
    assert e.status == 400, e
    assert e.error.get("type") and e.message, e
    return e


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"nonsense", b'{"prompt": "a" "b"}', b'{"prompt": "\xff\xfe"}',
                                  b'{"prompt": "\\ud800"}', b'{"a":' * 200 + b"1" + b"}" * 200, b'"text"', b"null"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_bodies_that_are_no_request(api, path, body):
    refused(api, path, body)


WRONG = [
    ("temperature", "hot"), ("temperature", -1), ("temperature", 1e9), ("temperature", True),
    ("top_p", 0), ("top_p", 1.5), ("top_p", "x"), ("top_k", -2), ("top_k", 1.5), ("min_p", 2), ("min_p", -0.1),
    ("repetition_penalty", 0), ("presence_penalty", 3), ("frequency_penalty", -3), ("frequency_penalty", []),
    ("max_tokens", -2), ("max_tokens", "many"), ("max_tokens", 1.5), ("min_tokens", -1), ("min_tokens", 5),
    ("n", 0), ("n", 1000), ("n", "2"), ("seed", "x"), ("seed", 1.5), ("stop", 5), ("stop", [1]), ("stop", [""]),
    ("stop", ["a"] * 100), ("stop", "x" * 5000), ("stop_token_ids", 5), ("stop_token_ids", ["a"]),
    ("stop_token_ids", [999999]), ("stop_token_ids", [-1]), ("logit_bias", 5), ("logit_bias", {"x": 1}), ("logit_bias", [[5, 1]]),
    ("logit_bias", {"999999": 1}), ("logit_bias", {"5": "x"}), ("logit_bias", {"5": 101}), ("stream", "yes"),
    ("stream_options", 5), ("ignore_eos", 3), ("user", 5), ("cache_salt", 5), ("truncate_prompt_tokens", -2),
    ("best_of", 0), ("add_special_tokens", "x"), ("skip_special_tokens", 1), ("model", 5),
    ("use_beam_search", 1), ("length_penalty", "x"), ("length_penalty", 11), ("length_penalty", 0.5),
    ("early_stopping", "never"), ("early_stopping", True), ("best_of", 129),
    ("guided_json", {"type": "objectt"}), ("guided_regex", 5), ("structured_outputs", []), ("response_format", {"type": "unheard of"}),
]


@pytest.mark.parametrize("field,value", WRONG)
def test_fields_of_wrong_type_or_range(api, field, value):
    e = refused(api, "/v1/completions", {**GOOD, field: value})
    assert field in e.message or e.error.get("param") == field, e


@pytest.mark.parametrize("field,value", WRONG)
def test_fields_of_wrong_type_or_range_in_chats(api, field, value):
    e = refused(api, "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1,
                                              field: value})
    assert field in e.message or e.error.get("param") == field, e


@pytest.mark.parametrize("prompt", [5, None, {}, [], [[]], ["a", 5], [[1, "x"]], [1.5], [-1], [999999], True])
def test_prompts_that_are_none(api, prompt):
    refused(api, "/v1/completions", {"prompt": prompt, "max_tokens": 1})


@pytest.mark.parametrize("messages", [None, [], "hello", [5], [{}], [{"role": "user"}], [{"content": "x"}],
                                      [{"role": 5, "content": "x"}], [{"role": "user", "content": 5}],
                                      [{"role": "user", "content": [{"type": "image_url"}]}]])
def test_messages_that_are_none(api, messages):
    refused(api, "/v1/chat/completions", {"messages": messages, "max_tokens": 1})


def test_logprobs_out_of_range(api):
    for value in (21, -2, "x", 1.5):
        refused(api, "/v1/completions", {**GOOD, "logprobs": value})
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    refused(api, "/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 21})
    refused(api, "/v1/chat/completions", {**chat, "logprobs": 3})


def test_prompt_longer_than_the_limit_names_both_lengths(api):
    e = refused(api, "/v1/completions", {"prompt": [300] * 600, "max_tokens": 1})
    assert "600" in e.message and "512" in e.message
    e = refused(api, "/v1/completions", {"prompt": "word " * 3000, "max_tokens": 1})
    assert "512" in e.message


def test_unknown_model(api):
    with pytest.raises(ApiError) as error:
        api.completions("x", model="gpt-4", max_tokens=1)
    assert error.value.status == 404 and "gpt-4" in error.value.message
    assert api.model() in error.value.message


def test_unknown_paths_and_methods(api):
    for method, path, status in (("GET", "/nowhere", 404), ("GET", "/v1/completions", 405), ("POST", "/health", 405),
                                 ("DELETE", "/v1/models", 405)):
        assert api.raw(method, path)[0] == status, (method, path)
    for path, instead in (("/completion/", "; /completion is, without"), ("/v1/chat/completions/", "; /v1/chat/completions is, without"),
                          ("/slots", "; /load and /metrics say"), ("/lora-adapters", "; /v1/models lists"), ("/nowhere/", "here.")):
        status, _, body = api.raw("POST", path, b"{}")
        assert status == 404 and instead in json.loads(body)["error"]["message"], body


def test_compressed_bodies_are_refused(api):
    for coding, status in (("gzip", 415), ("identity", 200)):
        got, _, body = api.raw("POST", "/tokenize", b'{"prompt": "x"}', {"Content-Type": "application/json", "Content-Encoding": coding})
        assert got == status and (status == 200 or "not compressed" in json.loads(body)["error"]["message"]), body


def test_what_the_scheduler_refuses_names_its_field(api):
    with pytest.raises(ApiError) as error:
        api.completions("x", max_tokens=1, priority=5)
    assert error.value.status == 400 and error.value.error["param"] == "priority" and "--scheduling-policy" in error.value.message


def test_bodies_above_the_limit():
    with Engine("--max-body-size", "10000") as e:
        status, _, body = e.api.raw("POST", "/v1/completions", b"x" * 20000, {"Content-Type": "application/json"})
        assert status == 413 and "limit of 10000 bytes. --max-body-size sets it." in json.loads(body)["error"]["message"], body
        assert e.api.completions("x", max_tokens=1)["usage"]["completion_tokens"] == 1


def test_errors_leave_the_engine_alone(api):
    """Behind all these errors it still answers."""
    assert api.completions("x", max_tokens=3, ignore_eos=True)["usage"]["completion_tokens"] == 3
