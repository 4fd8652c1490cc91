"""Models in Mistral AI's own format: params.json and consolidated.safetensors, without config.json. They compute what they compute as transformers writes them,
to the last bit."""
import json
import random
import shutil
import struct

import pytest

from engine import SANITIZED, Engine, run
from lora_files import read_safetensors, write_safetensors
import quantized_files
from mistral_files import HEAD, HEADS, HIDDEN, KV_HEADS, LAYERS, MODELS, TEKKEN, VOCAB, own_tensors, write_models

IDS = ",".join(map(str, random.Random(5).choices(range(3, VOCAB), k=70)))


def logits(model, *flags):
    """Of every position."""
    status, output = run("logits", "--model", model, "--ids", IDS, "--top", 0, "--all", "--threads", 1, *flags)
    assert status == 0, output
    lines = [json.loads(line)["logits"] for line in output.splitlines() if line.startswith("{")]
    assert len(lines) == 70 and len(lines[0]) == VOCAB and max(lines[-1]) - min(lines[-1]) > 1
    return lines


def refusal(model, *flags):
    status, output = run("logits", "--model", model, "--ids", "5", "--threads", 1, *flags)
    assert status != 0, output
    return output


@pytest.fixture(scope="module", params=["mistral", "mistral4"] if SANITIZED else MODELS)
def folders(request, tmp_path_factory):
    return write_models(tmp_path_factory.mktemp(request.param), request.param, shards=3 if request.param in ("mixtral", "mistral4") else 1)


@pytest.mark.parametrize("flags", [(), ("-tp", 2, "--dtype", "float32"), ("--max-num-batched-tokens", 16), ("--quantization", "int8"),
                                   ("--quantization", "int4", "-tp", 2)], ids=lambda f: "-".join(map(str, f)) or "plain")
def test_both_formats_give_the_same_logits(flags, folders):
    usual, own = folders
    assert logits(own, *flags) == logits(usual, *flags)


@pytest.mark.parametrize("name", ["mistral", "mistral4"])
def test_matrices_in_fp8_are_found_with_their_scales(name, tmp_path):
    usual, own = write_models(tmp_path, name, fp8=True)
    for flags in ((), ("-tp", 2)):
        assert logits(own, *flags) == logits(usual, *flags)
    tensors = read_safetensors(own / "consolidated.safetensors")
    gone = "layers.1.attention.%s.qscale_weight" % ("wq" if name == "mistral" else "wkv_b")
    del tensors[gone]
    write_safetensors(own / "consolidated.safetensors", tensors)
    assert "the checkpoint has no tensor %s (float" % gone in refusal(own)


@pytest.mark.parametrize("name", ["fp4-nv", "fp8-row", "fp8-blocks"])
def test_parts_of_compressed_matrices_keep_their_names(name, tmp_path):
    _plain, usual = quantized_files.write_models(tmp_path, quantized_files.FORMATS[name], family={**quantized_files.LLAMA, "architecture": "MistralForCausalLM"})
    config = {**json.loads((usual / "config.json").read_text()), "sliding_window": None, "rope_theta": 10000.0}
    (usual / "config.json").write_text(json.dumps(config))
    own = tmp_path / "own"
    own.mkdir()
    write_safetensors(own / "consolidated.safetensors", own_tensors(read_safetensors(usual / "model.safetensors"), quantized_files.HEAD_DIM, {}))
    (own / "params.json").write_text(json.dumps({
        "dim": config["hidden_size"], "n_layers": config["num_hidden_layers"], "n_heads": config["num_attention_heads"], "n_kv_heads": config["num_key_value_heads"],
        "head_dim": quantized_files.HEAD_DIM, "hidden_dim": config["intermediate_size"], "vocab_size": config["vocab_size"], "norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 128, "quantization_config": config["quantization_config"]}))
    shutil.copy(TEKKEN, own)
    answers = [run("logits", "--model", folder, "--ids", "5,17,3,60,33,8,41", "--top", 0, "--dtype", "float32", "--threads", 1, *more)
               for folder in (usual, own) for more in ((), ("-tp", 2))]
    assert all(status == 0 for status, _ in answers), answers
    found = [json.loads(output.strip().splitlines()[-1])["logits"] for _, output in answers]
    assert found[0] == found[2] and found[1] == found[3] and max(found[0]) > min(found[0])


def test_a_cache_knows_the_description(tmp_path):
    _usual, own = write_models(tmp_path, "mistral")
    flags = ["--weights-cache", tmp_path / "cache", "--log-level", "debug"]
    outputs = []
    for change in (None, None, '"norm_eps": 0.5'):
        if change:
            (own / "params.json").write_text((own / "params.json").read_text().replace('"norm_eps": 1e-05', change))
        outputs.append(run("logits", "--model", own, "--ids", "5,17", "--threads", 1, *flags)[1])
    assert "WEIGHTS_CACHE_WRITTEN" in outputs[0] and "WEIGHTS_CACHE_USED" in outputs[1] and "WEIGHTS_CACHE_WRITTEN" in outputs[2], outputs


def test_adapters_of_transformers_fit(tmp_path):
    usual, own = write_models(tmp_path, "mistral")
    adapter, rng, tensors = tmp_path / "adapter", random.Random(3), {}
    adapter.mkdir()
    for layer in range(LAYERS):
        for module, rows in (("q_proj", HEADS * HEAD), ("k_proj", KV_HEADS * HEAD), ("o_proj", HIDDEN)):
            for side, shape in (("A", (2, HIDDEN)), ("B", (rows, 2))):
                values = [rng.uniform(-0.3, 0.3) for _ in range(shape[0] * shape[1])]
                tensors["base_model.model.model.layers.%d.self_attn.%s.lora_%s.weight" % (layer, module, side)] = (
                    "F32", shape, struct.pack("<%df" % len(values), *values))
    write_safetensors(adapter / "adapter_model.safetensors", tensors)
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "bias": "none",
                                                             "target_modules": ["q_proj", "k_proj", "o_proj"]}))
    answers = []
    for folder in (usual, own):
        with Engine("--dtype", "float32", "--enable-lora", "--lora-modules", "tuned=%s" % adapter, "--served-model-name", "plain", model=folder) as e:
            answers.append([e.api.greedy_ids([1, 40, 77, 300], 24, model=who) for who in ("plain", "tuned")])
    assert answers[0] == answers[1] and answers[0][0] != answers[0][1]


def test_a_folder_is_served_with_chats(tmp_path):
    usual, own = write_models(tmp_path, "ministral3")
    request = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 12, "temperature": 0}
    answers = []
    for folder in (usual, own):
        with Engine("-tp", 2, model=folder) as e:
            assert "NO_CHAT_TEMPLATE" not in e.log() and "TENSOR_NOT_READ" not in e.log()
            models = e.api.call("GET", "/v1/models")["data"]
            assert models[0]["id"] == folder.name and models[0]["max_model_len"] == 256
            answers.append(e.api.call("POST", "/v1/chat/completions", request)["choices"][0]["message"]["content"])
            ended = e.api.call("POST", "/v1/completions", {"prompt": [5, 9], "max_tokens": 9, "logit_bias": {"2": 100}, "temperature": 0})
            assert ended["choices"][0]["finish_reason"] == "stop", "</s> ends a text"
    assert answers[0] == answers[1] and answers[0]
    status, output = run("run", own, "ab", "--max-tokens", 8, "--temperature", 0, "--threads", 1, "--kv-cache-memory", "64MiB")
    assert status == 0, output


def test_of_two_copies_of_the_weights_one_is_read(tmp_path):
    usual, own = write_models(tmp_path, "mistral")
    wanted = logits(usual)
    for name in ("params.json", "consolidated.safetensors"):
        shutil.copy(own / name, usual / name)
    (usual / "consolidated.safetensors").write_bytes(b"damaged")
    assert logits(usual) == wanted, "config.json goes with model.safetensors"
    (own / "other.gguf").write_bytes(b"damaged")
    status, output = run("run", own, "ab", "--max-tokens", 1, "--threads", 1, "--kv-cache-memory", "64MiB")
    assert status == 0, "a file in GGUF beside it is not asked: " + output
    (usual / "model.safetensors").rename(usual / "model-00001-of-00001.safetensors")
    shutil.copy(own / "consolidated.safetensors", usual)
    assert logits(usual) == wanted, "shards without an index are none"
    (usual / "consolidated.safetensors").unlink()
    assert "holds neither model.safetensors nor" in refusal(usual)


def test_errors_have_the_words_of_the_files(tmp_path):
    _usual, own = write_models(tmp_path, "mistral")
    params = json.loads((own / "params.json").read_text())

    def with_params(**changes):
        (own / "params.json").write_text(json.dumps({**params, **changes}))
        return refusal(own)

    assert 'params.json: unknown field "ffn_dim_multiplier"' in with_params(ffn_dim_multiplier=1.5)
    assert 'params.json: "n_heads"' in with_params(n_heads="four")
    assert "params.json says that the model has 2 layers (n_layers), and the checkpoint has 3" in with_params(n_layers=2)
    said = with_params(hidden_dim=80)
    assert "tensor layers.0.feed_forward.w1.weight has the shape [96, 64]; by params.json it must be [80, 64]" in said or \
        "tensor layers.0.feed_forward.w2.weight has the shape [64, 96]; by params.json it must be [64, 80]" in said, said
    (own / "params.json").write_text(json.dumps(params))
    status, output = run("run", own, "ab", "--max-model-len", 512, "--threads", 1)
    assert status != 0 and "--max-model-len 512 is more than the model's 256 tokens (params.json)" in output, output
    (own / "consolidated.safetensors").unlink()
    status, output = run("run", own, "ab")
    assert status != 0 and "has no config.json; it must hold config.json" in output and "or params.json and consolidated*.safetensors" in output, output
