"""Embeddings over HTTP: the hidden state that the lm_head would read of a prompt's last token. What an lm_head makes of it must be the distribution that the
engine samples from, so that weights, which tests can read, say what is right."""
import array
import base64
import concurrent.futures
import contextlib
import json
import math
import os
import pathlib
import signal
import struct
import time

import pytest

from api import ApiError
from device_models import device_engine
from engine import DEMO, FULL, SANITIZED, Engine, killed_amid, run
from small_models import Folders, ids, tensor, write_model

KEPT = json.loads((pathlib.Path(__file__).parents[1] / "unit" / "proc_worker" / "families.json").read_text())
DEVICE_KEPT = json.loads((pathlib.Path(__file__).parent / "device_families.json").read_text())
FLAGS = ["--dtype", "float32", "--block-size", 8, "--max-num-batched-tokens", 32]
HEAD, TIED = "lm_head.weight", "model.embed_tokens.weight"


def kept(name):
    return {"config": json.loads(KEPT[name]["config"]), "tensors": KEPT[name]["tensors"]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return Folders(tmp_path_factory.mktemp, kept)


@pytest.fixture(scope="module")
def device_folders(tmp_path_factory):
    return Folders(tmp_path_factory.mktemp, DEVICE_KEPT.get)


def embeddings(api, prompts, **fields):
    reply = api.call("POST", "/v1/embeddings", {"input": prompts, **fields})
    assert reply["object"] == "list" and reply["id"].startswith("embd-")
    assert [d["index"] for d in reply["data"]] == list(range(len(reply["data"]))) and {d["object"] for d in reply["data"]} == {"embedding"}
    return [d["embedding"] for d in reply["data"]]


def floats(bfloat16):
    return array.array("f", struct.pack("<%dI" % (len(bfloat16) // 2), *(h << 16 for h in array.array("H", bfloat16))))


def head_of(name):
    """Rows of the lm_head, and by what logits are divided."""
    model = kept(name)
    which = HEAD if HEAD in model["tensors"] else TIED
    rows, columns = model["tensors"][which][0]
    values = floats(tensor(which, *model["tensors"][which]))
    return [values[r * columns:(r + 1) * columns] for r in range(rows)], model["config"].get("logits_scaling", 1)


def log_softmax(logits):
    most = max(logits)
    total = most + math.log(sum(math.exp(x - most) for x in logits))
    return [x - total for x in logits]


@pytest.mark.parametrize("name, tensor_parallel", [("llama/odd", 1), ("llama/act-gelu", 2), ("granite/none", 1), ("granite/none", 2)])
def test_an_lm_head_makes_the_engines_logits_of_them(folders, name, tensor_parallel):
    head, scaling = head_of(name)
    prompts = [[t % 90 for t in ids(k, length)] for k, length in enumerate((1, 2, 31, 32, 33, 90))]
    with Engine(*FLAGS, "-tp", tensor_parallel, model=folders(name)) as engine:
        first = embeddings(engine.api, prompts, normalize=False)
        for prompt, e in zip(prompts, first):
            expected = log_softmax([sum(w * x for w, x in zip(row, e)) / scaling for row in head])
            listed = engine.api.call("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 5, "return_tokens_as_token_ids": True})
            best = listed["choices"][0]["logprobs"]["top_logprobs"][0]
            assert len(best) >= 5
            for token, logprob in best.items():
                assert abs(expected[int(token.removeprefix("token_id:"))] - logprob) < 1e-3, (len(prompt), token)
        assert embeddings(engine.api, prompts, normalize=False) == first  # their blocks are in the cache now
        assert engine.api.metric("vllm:prefix_cache_hits_total") > 0
        assert embeddings(engine.api, prompts[5], normalize=False) == first[5:]


@pytest.fixture(scope="module")
def demo():
    with Engine("--max-model-len", 256, "--served-model-name", "demo") as engine:
        yield engine


def test_forms_of_a_vector(demo):
    raw = embeddings(demo.api, ["A text.", "Another one"], normalize=False)
    length = [math.sqrt(sum(x * x for x in e)) for e in raw]
    assert min(length) > 2
    unit = embeddings(demo.api, ["A text.", "Another one"])
    for e, r, n in zip(unit, raw, length):
        assert max(abs(x - y / n) for x, y in zip(e, r)) < 1e-6
    coded = embeddings(demo.api, ["A text.", "Another one"], encoding_format="base64")
    for e, text in zip(unit, coded):
        assert array.array("f", base64.b64decode(text, validate=True)).tolist() == pytest.approx(e, abs=1e-8)
    short = embeddings(demo.api, "A text.", dimensions=7)[0]
    assert len(short) == 7 and abs(sum(x * x for x in short) - 1) < 1e-6
    assert all(x * raw[0][i] > 0 for i, x in enumerate(short))
    assert embeddings(demo.api, "A text.", dimensions=7, normalize=False)[0] == raw[0][:7]
    for count in (1, 2, 3):  # padding of every kind
        text = embeddings(demo.api, "A text.", dimensions=count, encoding_format="base64")[0]
        assert len(base64.b64decode(text, validate=True)) == 4 * count


def test_what_is_counted_and_how_long_a_text_may_be(demo):
    text = "Once upon a time there was a house. " * 40
    reply = demo.api.call("POST", "/v1/embeddings", {"input": [[5, 6, 7], [8]], "model": "demo", "user": "someone"})
    assert reply["usage"] == {"prompt_tokens": 4, "total_tokens": 4} and reply["model"] == "demo"
    with pytest.raises(ApiError) as e:
        embeddings(demo.api, text)
    assert e.value.status == 400 and "256" in e.value.message
    cut = demo.api.call("POST", "/v1/embeddings", {"input": text, "truncate_prompt_tokens": 100})
    assert cut["usage"]["prompt_tokens"] == 100
    assert len(embeddings(demo.api, [[9, 10]] * 300)) == 300  # more than rows


@pytest.mark.parametrize("body, said", [
    ({}, "'input' is missing"),
    ({"input": []}, "'input': [] is empty"),
    ({"input": [[]]}, "prompt is empty"),
    ({"input": 5}, "'input'"),
    ({"input": [1, 99999999]}, "99999999 is not a token"),
    ({"input": [[1], {"a": 1}]}, "'input'"),
    ({"input": "x", "encoding_format": "hex"}, '"float" or "base64"'),
    ({"input": "x", "encoding_format": 1}, "'encoding_format'"),
    ({"input": "x", "dimensions": 0}, "'dimensions'"),
    ({"input": "x", "dimensions": 257}, "from 1 to 256"),
    ({"input": ["x"] * 1025}, "at most 1024"),
    ({"input": "x", "cache_salt": ""}, "'cache_salt'"),
    ({"input": "x", "normalize": "no"}, "'normalize'"),
    ({"input": "x", "priority": 3}, "priority")])
def test_bodies_that_are_wrong(demo, body, said):
    with pytest.raises(ApiError) as e:
        demo.api.call("POST", "/v1/embeddings", body)
    assert e.value.status == 400 and said in e.value.message, e.value.message


def test_beside_texts_that_are_generated(demo):
    prompts = [ids(100 + k, 20 + 3 * k) for k in range(24)]
    alone = [embeddings(demo.api, p)[0] for p in prompts]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        texts = [pool.submit(demo.api.greedy_ids, p, 40) for p in prompts[:8]]
        assert list(pool.map(lambda p: embeddings(demo.api, p)[0], prompts)) == alone
        assert [t.result() for t in texts] == [demo.api.greedy_ids(p, 40) for p in prompts[:8]]


@pytest.mark.parametrize("victim", ["tercet-worker", "tercet-detok", "tercet-scheduler"])
def test_a_process_dies_amid_many(victim):
    prompts = [ids(k, 60 + k % 90) for k in range(40 if SANITIZED else 300 if FULL else 200)]
    with Engine("--no-enable-prefix-caching", "--max-num-batched-tokens", 64, "--max-model-len", 512) as engine:
        expected = embeddings(engine.api, prompts)
        assert len(expected) == len(prompts)
        found = killed_amid(engine, victim, lambda: embeddings(engine.api, prompts), 1)
        assert [k for k, (a, b) in enumerate(zip(found, expected)) if a != b] == []


def test_a_backbone_gives_nothing_else(folders, tmp_path):
    whole = kept("llama/odd")
    tensors = {name.removeprefix("model."): [*t, name] for name, t in whole["tensors"].items() if name != HEAD}
    folder = write_model(tmp_path, {"config": {**whole["config"], "architectures": ["LlamaModel"]}, "tensors": tensors})
    prompts = [[t % 90 for t in ids(k, 12 * k)] for k in (1, 4)]
    with Engine(*FLAGS, model=folders("llama/odd")) as engine:
        expected = embeddings(engine.api, prompts)
    with Engine(*FLAGS, model=folder) as engine:
        assert embeddings(engine.api, prompts) == expected
        with pytest.raises(ApiError) as e:
            engine.api.completions(prompts[0], max_tokens=3)
        assert e.value.status == 400 and "lm_head" in e.value.message
    status, text = run("logits", "--model", folder, "--ids", "5,6")
    assert status != 0 and "lm_head" in text
    tied = tmp_path / "tied"
    tied.mkdir()
    write_model(tied, {"config": {**whole["config"], "architectures": ["LlamaModel"], "tie_word_embeddings": True}, "tensors": tensors})
    status, text = run("logits", "--model", tied, "--ids", "5,6")  # its embeddings are its lm_head
    assert status == 0 and json.loads(text)["vocab_size"] == whole["config"]["vocab_size"]


@pytest.mark.parametrize("name, backbone, prefix", [("gpt2/untied", "GPT2Model", "transformer."), ("gemma3_text/none", "Gemma3TextModel", "model.")])
def test_backbones_may_be_named_otherwise(folders, tmp_path, name, backbone, prefix):
    whole = kept(name)
    tensors = {n.removeprefix(prefix): [*t, n] if len(t) == 3 else t for n, t in whole["tensors"].items() if n != HEAD}
    prompts = [[t % 90 for t in ids(k, 12 * k)] for k in (1, 4)]
    with Engine(*FLAGS, model=folders(name)) as engine:
        expected = embeddings(engine.api, prompts)
    with Engine(*FLAGS, model=write_model(tmp_path, {"config": {**whole["config"], "architectures": [backbone]}, "tensors": tensors})) as engine:
        assert embeddings(engine.api, prompts) == expected


POOLING, DENSE = "sentence_transformers.models.Pooling", "sentence_transformers.models.Dense"
MODULES = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}, {"idx": 1, "name": "1", "path": "1_Pooling", "type": POOLING},
           {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]
LAST = {"pooling_mode_cls_token": False, "pooling_mode_lasttoken": True}


@pytest.mark.parametrize("files, said", [
    ({"1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}}, "1_Pooling/config.json asks for 'pooling_mode_mean_tokens'"),
    ({"1_Pooling/config.json": {"pooling_mode": "cls"}}, "1_Pooling/config.json asks for 'cls'"),
    ({"1_Pooling/config.json": {"pooling_mode": ["mean", "lasttoken"]}}, "asks for 'several ways'"),
    ({"1_Pooling/config.json": {}}, "asks for 'mean'"),
    ({"modules.json": MODULES}, "modules.json names 1_Pooling/config.json, which is not there"),
    ({"modules.json": [*MODULES, {"type": DENSE, "path": "3"}], "1_Pooling/config.json": LAST}, "modules.json has a 'sentence_transformers.models.Dense'"),
    ({"modules.json": [{"type": POOLING, "path": "pool"}], "pool/config.json": {"pooling_mode": "mean"}}, "pool/config.json asks for 'mean'"),
    ({"1_Pooling/config.json": {"pooling_mode": ["lasttoken"]}}, None),
    ({"modules.json": MODULES, "1_Pooling/config.json": LAST}, None)][::4 if SANITIZED else 1])
def test_another_pooling_is_refused(tmp_path, files, said):
    write_model(tmp_path, kept("llama/odd"))
    for name, value in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(value))
    with Engine(*FLAGS, model=tmp_path) as engine:
        if said is None:
            assert len(embeddings(engine.api, [[5, 6]])[0]) == 54
            return
        with pytest.raises(ApiError) as e:
            embeddings(engine.api, [[5, 6]])
        assert e.value.status == 400 and said in e.value.message
        assert len(engine.api.greedy_ids([5, 6], 4)) == 4  # texts it has


def test_a_text_is_cut_within_the_tokenizers_own_tokens(tmp_path):
    for file in DEMO.iterdir():
        (tmp_path / file.name).symlink_to(file)
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    begin, end = ({"SpecialToken": {"id": "<|%s_of_text|>" % which, "type_id": 0}} for which in ("begin", "end"))
    tokenizer["post_processor"]["single"] = [begin, {"Sequence": {"id": "A", "type_id": 0}}, end]
    tokenizer["post_processor"]["special_tokens"]["<|end_of_text|>"] = {"id": "<|end_of_text|>", "ids": [4092], "tokens": ["<|end_of_text|>"]}
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    text = "Once upon a time there was a house in the woods."
    with Engine("--max-model-len", 256, model=tmp_path) as engine:
        whole = engine.api.call("POST", "/tokenize", {"prompt": text})["tokens"]
        assert whole[0] == 4091 and whole[-1] == 4092 and len(whole) > 9
        for fields, tokens in (({}, whole[:5] + [4092]), ({"truncation_side": "right"}, whole[:5] + [4092]), ({"truncation_side": "left"}, [4091] + whole[-5:])):
            assert embeddings(engine.api, text, truncate_prompt_tokens=6, **fields) == embeddings(engine.api, [tokens])
        assert embeddings(engine.api, text, truncate_prompt_tokens=100) == embeddings(engine.api, [whole])
        assert embeddings(engine.api, text, truncate_prompt_tokens=2) == embeddings(engine.api, [whole[:2]])  # no room for a text between
        assert embeddings(engine.api, whole, truncate_prompt_tokens=6) == embeddings(engine.api, [whole[:6]])  # ids are what they are


def test_a_pooling_of_a_file_in_gguf_is_refused(tmp_path):
    whole = kept("llama/odd")
    write_model(tmp_path, {**whole, "config": {**whole["config"], "_pooling_mode": "mean"}})
    with Engine(*FLAGS, model=tmp_path) as engine:
        with pytest.raises(ApiError) as e:
            embeddings(engine.api, [[5, 6]])
        assert e.value.status == 400 and "pooling_type is 'mean'" in e.value.message


DEVICE_FLAGS = ["--dtype", "bfloat16", "--block-size", 8, "--max-num-batched-tokens", 64, "--max-num-seqs", 8, "--max-model-len", 128]


@contextlib.contextmanager
def on_device_and_cpu(model, *flags):
    with device_engine(*DEVICE_FLAGS, *flags, model=model) as device, Engine(*DEVICE_FLAGS, model=model) as cpu:
        yield device.api, cpu.api


def check_close(got, wanted, share=0.03):
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted):
        assert len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) < share * max(map(abs, b))


# a norm whose weights have a factor of the logits; LayerNorm
@pytest.mark.parametrize("name, tensor_parallel", [("granitemoe", 1), ("stablelm", 2)] + ([("granitemoe", 2), ("gpt2", 1)] if FULL else []))
def test_those_of_a_device_are_those_of_the_cpu(device_folders, name, tensor_parallel):
    prompts = [[t % 90 for t in ids(k, length)] for k, length in enumerate((1, 2, 31, 90, 5, 5, 64))]
    single = [[k + 3] for k in range(8)]
    with on_device_and_cpu(device_folders(name), "-tp", tensor_parallel) as (device, cpu):
        check_close(embeddings(device, prompts, normalize=False), embeddings(cpu, prompts, normalize=False))
        wanted = embeddings(cpu, single, normalize=False)
        for _ in range(3):  # steps of one token a row, which are recorded
            check_close(embeddings(device, single, normalize=False), wanted)


def test_on_a_device_beside_others():
    """Prompts whose own log-probabilities are asked for, which pick other tokens out of the same step, and texts."""
    prompts = [ids(200 + k, 1 + 7 * k % 60) for k in range(12 if SANITIZED else 32)]

    def ask(api, k):
        fields = [{"logprobs": 3, "echo": True, "max_tokens": 2}, {"max_tokens": 9, "logit_bias": {"5": -3}}, {"max_tokens": 20}][k % 3]
        return api.call("POST", "/v1/completions", {"prompt": prompts[k], "temperature": 0, **fields}) and None if k % 4 else embeddings(api, prompts[k:k + 3])

    with on_device_and_cpu(DEMO) as (device, cpu), concurrent.futures.ThreadPoolExecutor(12) as pool:
        for k, got in enumerate(pool.map(lambda k: ask(device, k), range(len(prompts)))):
            if got:
                check_close(got, embeddings(cpu, prompts[k:k + 3]))


def wide_model(folder, gain=0.05):
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
              "num_key_value_heads": 1, "head_dim": 2, "rms_norm_eps": 1e-5, "vocab_size": 64, "max_position_embeddings": 64, "tie_word_embeddings": True}
    shapes = {"input_layernorm.weight": [4096], "post_attention_layernorm.weight": [4096], "self_attn.q_proj.weight": [2, 4096], "self_attn.k_proj.weight": [2, 4096],
              "self_attn.v_proj.weight": [2, 4096], "self_attn.o_proj.weight": [4096, 2], "mlp.gate_proj.weight": [8, 4096], "mlp.up_proj.weight": [8, 4096],
              "mlp.down_proj.weight": [4096, 8]}
    tensors = {"model.layers.0." + name: [shape, gain if "down" in name else 0.05, 1.0 if len(shape) == 1 else 0.0] for name, shape in shapes.items()}
    tensors.update({TIED: [[64, 4096], 0.05, 0.0], "model.norm.weight": [[4096], 0.05, 1.0]})
    return write_model(folder, {"config": config, "tensors": tensors})


def test_vectors_that_are_lost_are_computed_again(tmp_path):
    """More than the scheduler keeps for a detokenizer that begins anew."""
    prompts = [[k % 60 + 3, k // 60 + 3] for k in range(100 if SANITIZED else 1000)]
    with Engine(*FLAGS, "--max-num-seqs", 512, "--max-num-batched-tokens", 1024, model=wide_model(tmp_path)) as engine:
        expected = embeddings(engine.api, prompts, encoding_format="base64")
        detok = engine.pid_of("tercet-detok")
        os.kill(detok, signal.SIGSTOP)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(embeddings, engine.api, prompts, encoding_format="base64")
            time.sleep(1)
            os.kill(detok, signal.SIGKILL)
            assert answer.result() == expected
        assert SANITIZED or "EMBEDDING_AGAIN" in engine.log()


def test_a_vector_of_what_is_no_number_is_an_error(tmp_path):
    with Engine(*FLAGS, model=wide_model(tmp_path, gain=3e38)) as engine:
        with pytest.raises(ApiError) as e:
            embeddings(engine.api, [[5, 6]])
        assert e.value.status == 500 and "not a number" in e.value.message, e.value.message


def test_rows_of_too_many_numbers_are_refused_with_what_would_be_right(tmp_path):
    wide_model(tmp_path)
    for rows, good in ((512, True), (513, False)):
        with Engine(*FLAGS, "--max-num-seqs", rows, model=tmp_path) as engine:
            if good:
                assert len(embeddings(engine.api, [[5, 6]])[0]) == 4096
                continue
            with pytest.raises(ApiError) as e:
                embeddings(engine.api, [[5, 6]])
            assert e.value.status == 400 and "--max-num-seqs is 513" in e.value.message and "at most 512" in e.value.message
