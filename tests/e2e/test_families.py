"""Checkpoints of every family against references of another implementation: logits within 1e-3 and greedy tokens
exactly, with one and two workers, whole prompts and chunks."""
import concurrent.futures
import json
import struct

import pytest

import engine as engines
from engine import SANITIZED, Engine, run

FOLDER = engines.SHARED / "refmodels"
# What is in the folder, or one that is skipped, so that its absence is seen.
MODELS = sorted(p.name for p in FOLDER.iterdir() if (p / "reference.json").exists()) if FOLDER.exists() else ["none"]
if SANITIZED:
    MODELS = [m for m in MODELS if m in ("gemma2", "qwen3-moe-dense-layer", "phi3-swa", "none")]
WAYS = [(1, 512), (2, 16)] if SANITIZED else [(1, 512), (1, 16), (2, 512), (2, 16)]
TOLERANCE = 1e-3


def load(model):
    if model == "none":
        pytest.skip("no reference models here")
    return FOLDER / model, json.loads((FOLDER / model / "reference.json").read_text())["prompts"]


def read_logits(folder, prompt):
    """[positions][vocabulary] from a .npy file of float32 in C order."""
    data = (folder / prompt["logits_file"]).read_bytes()
    assert data[:8] == b"\x93NUMPY\x01\x00" and b"'<f4'" in data[:128]
    start = 10 + struct.unpack("<H", data[8:10])[0]
    positions, vocabulary = prompt["logits_shape"]
    values = struct.unpack("<%df" % (positions * vocabulary), data[start:])
    return [values[i * vocabulary:(i + 1) * vocabulary] for i in range(positions)]


def tercet_logits(folder, ids, *flags):
    status, output = run("logits", "--model", folder, "--ids", ",".join(map(str, ids)), "--dtype", "float32",
                         "--threads", 1, *flags)
    assert status == 0, output
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize("tensor_parallel,budget", WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_logits_of_every_position_are_those_of_the_reference(model, tensor_parallel, budget):
    folder, prompts = load(model)
    for p in prompts:
        lines = tercet_logits(folder, p["ids"], "--all", "--top", 0, "-tp", tensor_parallel,
                              "--max-num-batched-tokens", budget)
        assert [line["position"] for line in lines] == list(range(len(p["ids"])))
        for line, wanted in zip(lines, read_logits(folder, p)):
            worst = max(abs(a - b) for a, b in zip(line["logits"], wanted))
            assert worst <= TOLERANCE, "position %d" % line["position"]


@pytest.mark.parametrize("model", MODELS)
def test_the_best_of_the_last_position_are_printed_in_order(model):
    folder, prompts = load(model)
    for p in prompts:
        line, = tercet_logits(folder, p["ids"], "--top", 20)
        assert line["position"] == len(p["ids"]) - 1 and line["dtype"] == "float32"
        assert line["logits"] == sorted(line["logits"], reverse=True)
        reference = {token: (logit, logprob) for token, logit, logprob in p["last_top20"]}
        for token, logit, logprob in list(zip(line["ids"], line["logits"], line["logprobs"]))[:19]:
            assert abs(reference[token][0] - logit) <= TOLERANCE  # the last may change places with the 21st
            assert abs(reference[token][1] - logprob) <= TOLERANCE


@pytest.mark.parametrize("tensor_parallel,budget", WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_greedy_tokens_are_those_of_the_reference(model, tensor_parallel, budget):
    """All prompts at once, so that prefill chunks and decoding share steps."""
    folder, prompts = load(model)
    with Engine("--dtype", "float32", "-tp", tensor_parallel, "--max-num-batched-tokens", budget,
                "--max-num-seqs", 8, model=folder) as e:
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            for p, got in [(p, pool.submit(e.api.greedy_ids, p["ids"], len(p["greedy"]))) for p in prompts]:
                assert got.result() == p["greedy"], p["ids"][:8]


@pytest.mark.parametrize("model", MODELS)
def test_run_prints_the_token_ids(model):
    folder, prompts = load(model)
    p = prompts[-1]
    status, output = run("run", folder, "--prompt-ids", ",".join(map(str, p["ids"])), "--max-tokens",
                         len(p["greedy"]), "--temperature", 0, "--ignore-eos", "--output-ids", "--dtype", "float32",
                         "--threads", 1, "--kv-cache-memory", "16MiB")
    assert status == 0, output
    assert list(map(int, output.split("\n")[0].split(","))) == p["greedy"]


def test_logits_name_what_is_wrong():
    folder, _ = load(MODELS[0])
    for flags, status, text in ((["--ids", "1,x"], 1, "--ids is \"1,x\": it must be token ids"),
                                (["--ids", "1,512"], 1, "id 512 is not below the vocabulary's 512"),
                                (["--ids", ",".join(["1"] * 2000)], 1, "2000 ids are more than the model's context"),
                                (["--top", "3"], 2, "the prompt is missing"),
                                (["--ids", "1", "--top", "many"], 2, "--top"),
                                (["--ids", "1", "-tp", "64"], 1, "--tensor-parallel-size 64")):
        got, output = run("logits", "--model", folder, *flags)
        assert got == status and text in output, output
        assert output.count("tercet: ") == 1, output


@pytest.mark.parametrize("change,text", [
    ({"clip_qkv": 8.0}, "\"clip_qkv\" is set, which is not supported for LlamaForCausalLM"),
    ({"sliding_window": 64}, "\"sliding_window\" is set, which is not supported for LlamaForCausalLM"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mrope_section": [1, 2]}}, "\"mrope_section\""),
    ({"architectures": ["FooForCausalLM"]}, "unknown architecture 'FooForCausalLM'; docs/ADDING_A_MODEL.md lists the "),
    ({"attention_bias": True}, "has no tensor model.layers.0.self_attn.q_proj.bias")])
def test_a_model_that_would_be_misunderstood_is_not_run(tmp_path, change, text):
    for path in engines.DEMO.iterdir():
        if path.is_file() and path.name != "config.json":
            (tmp_path / path.name).symlink_to(path.resolve())
    config = json.loads((engines.DEMO / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    for words in (["logits", "--model", tmp_path, "--ids", "1"], ["run", tmp_path, "--prompt-ids", "1"]):
        status, output = run(*words)
        assert status == 1 and text in output, output
