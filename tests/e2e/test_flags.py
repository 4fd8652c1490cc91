"""Flags as users of other servers give them, and limits of the shell that an engine is started from."""
import json
import resource

import pytest

import engine as engines
from api import ApiError
from engine import SANITIZED, Engine, run
from quantized_files import FORMATS, write_models
from test_bad_input import start_fails

# ---------------------------------------------------------------- flags


@pytest.mark.parametrize("name", ["float16", "half"])
def test_float16_is_computed_in_bfloat16_and_the_log_says_so(name, reference):
    ids = reference["prompts"][0]["ids"]
    with Engine("--dtype", name) as e, Engine("--dtype", "bfloat16") as b:
        assert e.log().count("DTYPE_BFLOAT16") == 1 and "asked=float16 computed=bfloat16" in e.log()
        assert "dtype=bfloat16 matrices" in e.log() and "DTYPE_BFLOAT16" not in b.log()
        assert e.api.greedy_ids(ids, 16) == b.api.greedy_ids(ids, 16)


def test_float_is_float32():
    ids = "5,17,3"
    logits = [run("logits", "--model", engines.DEMO, "--ids", ids, "--dtype", name) for name in ("float", "float32")]
    assert logits[0] == logits[1] and logits[0][0] == 0 and '"dtype": "float32"' in logits[0][1]


def test_defaults_of_sampling_come_from_the_folder_that_is_given(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "generation_config.json").write_text(json.dumps({"max_new_tokens": 3, "temperature": 0}))
    ask = {"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True}
    with Engine("--generation-config", tmp_path / "mine") as e:
        answers = [e.api.call("POST", "/v1/chat/completions", ask) for _ in range(2)]
        assert answers[0]["usage"]["completion_tokens"] == 3 and answers[0]["choices"][0]["finish_reason"] == "length"
        assert answers[0]["choices"][0]["message"] == answers[1]["choices"][0]["message"], "temperature 0 is its default"


def test_defaults_of_sampling_can_be_none_of_the_models(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for path in engines.DEMO.iterdir():
        (model / path.name).symlink_to(path)
    (model / "generation_config.json").unlink()
    (model / "generation_config.json").write_text('{"max_new_tokens": 3, "eos_token_id": 1}')
    ask = {"messages": [{"role": "user", "content": "Hello"}], "ignore_eos": True, "max_tokens": None}
    counts = []
    for choice in ("auto", "vllm"):
        with Engine("--generation-config", choice, "--max-model-len", "64", model=model) as e:
            counts.append(e.api.call("POST", "/v1/chat/completions", ask)["usage"])
    assert counts[0]["completion_tokens"] == 3
    assert counts[1]["total_tokens"] == 64, "up to the end of the context"


@pytest.mark.parametrize("command", [["serve"], ["run", "--max-tokens", "3"]], ids=lambda c: c[0])
def test_a_folder_without_defaults_is_refused(command, tmp_path):
    status, output = run(*command, "--model", engines.DEMO, "--generation-config", tmp_path)
    assert status != 0 and 'it must be auto, none or vllm, or a folder with a generation_config.json' in output, output


@pytest.mark.parametrize("text,words", [("{", "generation_config.json"), ('{"temperature": "hot"}', "temperature has to be a number from 0 to 100"),
                                        ('{"top_p": 0}', "top_p is 0, but has to be from 1e-06 to 1")])
def test_run_and_serve_refuse_the_same_defaults(text, words, tmp_path):
    (tmp_path / "generation_config.json").write_text(text)
    status, output = run("run", "--model", engines.DEMO, "--prompt-ids", "5", "--max-tokens", "3", "--generation-config", tmp_path)
    assert status == 1 and words in output, output
    assert words in start_fails(tmp_path, "--generation-config", tmp_path)


def test_what_is_to_be_proposed_ahead_is_refused_in_one_line():
    status, output = run("run", "--model", engines.DEMO, "--prompt-ids", "5", "--speculative-config", '{"method": "eagle"}')
    assert status == 1 and 'the method "eagle" is not there; it must be "ngram"' in output and len(output.splitlines()) == 1, output


def test_several_names_and_origins_as_vllm_takes_them():
    with Engine("--served-model-name", "a", "b", "--allowed-origins", '["http://x"]') as e:
        assert [m["id"] for m in e.api.call("GET", "/v1/models")["data"]] == ["a", "b"]
        _status, headers, _body = e.api.raw("GET", "/v1/models", headers={"Origin": "http://x"})
        assert headers["Access-Control-Allow-Origin"] == "http://x"


def test_a_download_is_served_by_its_name(tmp_path, reference):
    commit = "0123456789abcdef" * 2 + "01234567"
    downloads = tmp_path / "hub" / "models--a-team--demo"
    (downloads / "refs").mkdir(parents=True)
    (downloads / "refs" / "main").write_text(commit)
    (downloads / "snapshots" / commit).mkdir(parents=True)
    for file in engines.DEMO.iterdir():  # which the cache keeps elsewhere, too
        (downloads / "snapshots" / commit / file.name).symlink_to(file.resolve())
    home = {"HF_HOME": str(tmp_path)}
    ids = reference["prompts"][0]["ids"]
    with Engine(model="a-team/demo", env=home) as e, Engine() as demo:
        assert e.api.call("GET", "/v1/models")["data"][0]["id"] == "a-team/demo"
        assert 'DOWNLOADED name="a-team/demo"' in e.log()
        assert e.api.greedy_ids(ids, 16) == demo.api.greedy_ids(ids, 16)
    (downloads / "refs" / "v1").write_text(commit)
    answers = [run("run", "--model", m, *r, "--prompt-ids", "5,17,3", "--max-tokens", 6, "--temperature", 0, "--ignore-eos", "--output-ids", env=home)
               for m, r in (("a-team/demo", ["--revision", "v1"]), ("a-team/demo", ["--revision", commit]), (engines.DEMO, []))]
    assert answers[0][0] == 0 and answers[0] == answers[1] == answers[2], answers
    with Engine("--revision", "v1", model="a-team/demo", env=home) as e:
        assert e.api.call("GET", "/v1/models")["data"][0]["id"] == "a-team/demo"
    status, output = run("run", "--model", "a-team/demo", "--revision", "v2", "--prompt-ids", "5", env=home)
    assert status == 1 and "but not its revision v2" in output, output
    status, output = run("run", "--model", "a-team/other", "--prompt-ids", "5", env=home)
    assert status == 1 and "nor a model of that name among the downloads in %s/hub" % tmp_path in output, output
    status, output = run("run", "--model", engines.DEMO, "--revision", "v2", "--prompt-ids", "5")
    assert status == 1 and "leave --revision away" in output, output


def test_a_tokenizer_with_more_tokens_than_the_model_is_told(tmp_path):
    model, _quantized = write_models(tmp_path, FORMATS["awq-64"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes((engines.DEMO / name).read_bytes())
    with Engine(model=model) as e, Engine() as demo:
        assert "TOKENIZER_LARGER tokens=4096 vocab_size=64" in e.log() and "TOKENIZER_LARGER" not in demo.log()
        with pytest.raises(ApiError) as refused:
            e.api.completions("Once upon a time")
        assert refused.value.status == 400 and "the vocabulary has 64 ids" in refused.value.message


# ---------------------------------------------------------------- limits of the shell


def within(**limits):
    """What a child does first: to have these limits, hard ones."""
    def set_limits():
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))
    return set_limits


def test_too_few_open_files_are_refused_before_anything_starts(tmp_path):
    for files in (8, 20, 40):
        status, output = run("serve", engines.DEMO, "--port", engines.free_ports(), "--run-dir", tmp_path / "run", "--threads", 1,
                             preexec_fn=within(NOFILE=files))
        assert status == 1 and "may open %d files (ulimit -Hn)" % files in output and "ulimit -n 1024" in output, output
        assert "Aborted" not in output and len(output.splitlines()) == 1, output


def test_a_soft_limit_of_open_files_is_raised(tmp_path):
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    status, output = run("run", "--model", engines.DEMO, "--prompt-ids", "5", "--max-tokens", 2, "--kv-cache-memory", "64MiB", "--threads", 1,
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, hard)))
    assert status == 0, output


@pytest.mark.skipif(SANITIZED, reason="sanitizers take address space of their own")
def test_too_little_address_space_names_what_needs_less_of_it(tmp_path):
    flags = ["--port", engines.free_ports(), "--run-dir", tmp_path / "run", "--threads", 1]
    status, output = run("serve", engines.DEMO, *flags, "--kv-cache-memory", "2GiB", preexec_fn=within(AS=1 << 30))
    assert status == 1 and "for the KV cache" in output and "lower --kv-cache-memory" in output, output
    assert "(ulimit -v), which is 1024 MiB" in output, output
    status, output = run("serve", engines.DEMO, *flags, "--kv-cache-memory", "16MiB", "--max-queued-requests", 65536,
                         preexec_fn=within(AS=1 << 30))
    assert status == 1 and "lower --max-queued-requests" in output and "(ulimit -v), which is 1024 MiB" in output, output
