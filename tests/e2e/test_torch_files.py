"""Checkpoints and adapters as torch.save writes them: the same logits as from safetensors, and what is refused, by name, with nothing of it run."""
import array
import json
import os
import random
import shutil
import struct
import zipfile

import pytest

from engine import DEMO, run
from lora_files import LAYERS, Adapter, bf16_floats, floats, read_safetensors, write_safetensors
from small_models import TOKENIZER
from test_bad_input import start_fails
from torch_files import Storage, Tensor, pickled, state_dict, write_older, write_shards, write_zip

IDS = "5,17,3,9"
FORMS = {"zip": write_zip, "zip-4": lambda path, value: write_zip(path, value, 4, "pytorch_model"), "zip-5": lambda path, value: write_zip(path, value, 5),
         "older": write_older, "older-4": lambda path, value: write_older(path, value, 4)}


def logits(model, *flags):
    status, output = run("logits", "--model", model, "--ids", IDS, "--top", 0, "--dtype", "float32", "--threads", 1, *flags)
    assert status == 0, output
    return json.loads(output.strip().splitlines()[-1])["logits"]


def as_kind(tensors, kind):
    out = {}
    for name, (was, shape, raw) in tensors.items():
        assert was == "BF16"
        values = bf16_floats(raw)
        out[name] = (kind, shape, {"BF16": lambda: raw, "F32": values.tobytes, "F16": lambda: struct.pack("<%de" % len(values), *values)}[kind]())
    return out


@pytest.fixture(scope="module")
def demo():
    return read_safetensors(DEMO / "model.safetensors")


@pytest.fixture(scope="module")
def wanted():
    return logits(DEMO)


def beside(folder, source=DEMO):
    """A folder with all of the model but its weights."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("form", FORMS)
def test_logits_are_those_of_safetensors(form, kind, tmp_path, demo):
    tensors = as_kind(demo, kind)
    write_safetensors(beside(tmp_path / "plain") / "model.safetensors", tensors)
    FORMS[form](beside(tmp_path / "torch") / "pytorch_model.bin", state_dict(tensors, parameters=form.endswith("4")))
    assert logits(tmp_path / "torch") == logits(tmp_path / "plain")


@pytest.mark.parametrize("write", [write_zip, write_older])
def test_shards_of_an_index(write, tmp_path, demo, wanted):
    write_shards(beside(tmp_path / "model"), demo, 3, write)
    assert logits(tmp_path / "model") == wanted
    assert logits(tmp_path / "model", "-tp", 2) == logits(DEMO, "-tp", 2)
    (tmp_path / "model" / "pytorch_model-00002-of-00003.bin").unlink()
    output = start_fails(tmp_path, model=tmp_path / "model")
    assert "pytorch_model.bin.index.json names shard pytorch_model-00002-of-00003.bin" in output, output


def test_what_old_checkpoints_have_beside_their_weights(tmp_path, demo, wanted):
    """lm_head beside tied embeddings, tensors that nobody reads, and values that are none."""
    value = state_dict({**demo, "lm_head.weight": demo["model.embed_tokens.weight"],
                        "model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", [16], floats([1.0] * 16)),
                        "model.layers.0.attn.bias": ("BOOL", [1, 1, 4, 4], bytes(16)), "step": ("I64", [], bytes(8))})
    value.update({"epoch": 3, "note": "text", "empty": {}, "nothing": None, "rate": 1e-5, "shape": (1, 2), "list": [1, True], 7: "a number"})
    for form in ("zip", "older"):
        FORMS[form](beside(tmp_path / form) / "pytorch_model.bin", value)
        assert logits(tmp_path / form) == wanted, form


def test_tensors_may_share_a_storage(tmp_path, demo, wanted):
    """All of a layer's in one, from different places on."""
    value, whole = state_dict(demo), b""
    names = [name for name in demo if ".layers.2." in name]
    storage = Storage("BF16", b"".join(demo[name][2] for name in names), "all")
    for name in names:
        value[name] = Tensor(storage, demo[name][1], len(whole) // 2)
        whole += demo[name][2]
    for form in ("zip", "older"):
        FORMS[form](beside(tmp_path / form) / "pytorch_model.bin", value)
        assert logits(tmp_path / form) == wanted, form


# ---------------------------------------------------------------- saved without the prefix of the model with its head

HIDDEN, VOCAB, WIDE, CONTEXT, COUNT = 32, 101, 64, 48, 2
SIZES = {"vocab_size": VOCAB, "torch_dtype": "float32", "eos_token_id": 2, "bos_token_id": 2}
GPT_SIZES = {**SIZES, "n_embd": HIDDEN, "n_head": 4, "n_layer": COUNT, "n_positions": CONTEXT}
MASK = [1, 1, CONTEXT, CONTEXT]


def pair(name, rows, columns=HIDDEN, turned=False):
    return {name + ".weight": [columns, rows] if turned else [rows, columns], name + ".bias": [rows]}


def norms(*names):
    return {name + end: [HIDDEN] for name in names for end in (".weight", ".bias")}


def layers(prefix, of_layer):
    return {prefix + "%d." % i + name: shape for i in range(COUNT) for name, shape in of_layer.items()}


def gpt2():
    layer = {**norms("ln_1", "ln_2"), **pair("attn.c_attn", 3 * HIDDEN, turned=True), **pair("attn.c_proj", HIDDEN, turned=True),
             **pair("mlp.c_fc", 4 * HIDDEN, turned=True), **pair("mlp.c_proj", HIDDEN, 4 * HIDDEN, turned=True)}
    shapes = {"wte.weight": [VOCAB, HIDDEN], "wpe.weight": [CONTEXT, HIDDEN], **norms("ln_f"), **layers("h.", layer)}
    return {**GPT_SIZES, "architectures": ["GPT2LMHeadModel"]}, "transformer.", shapes, layers("h.", {"attn.bias": MASK, "attn.masked_bias": []}), {}


def gptj():
    layer = {**norms("ln_1"), **{"attn.%s_proj.weight" % x: [HIDDEN, HIDDEN] for x in ("q", "k", "v", "out")}, **pair("mlp.fc_in", 4 * HIDDEN),
             **pair("mlp.fc_out", HIDDEN, 4 * HIDDEN)}
    shapes = {"wte.weight": [VOCAB, HIDDEN], **norms("ln_f"), **layers("h.", layer)}
    return ({**GPT_SIZES, "architectures": ["GPTJForCausalLM"], "rotary_dim": 4}, "transformer.", shapes,
            layers("h.", {"attn.bias": MASK, "attn.masked_bias": []}), pair("lm_head", VOCAB))


def codegen():
    layer = {**norms("ln_1"), "attn.qkv_proj.weight": [3 * HIDDEN, HIDDEN], "attn.out_proj.weight": [HIDDEN, HIDDEN], **pair("mlp.fc_in", 4 * HIDDEN),
             **pair("mlp.fc_out", HIDDEN, 4 * HIDDEN)}
    shapes = {"wte.weight": [VOCAB, HIDDEN], **norms("ln_f"), **layers("h.", layer)}
    return ({**GPT_SIZES, "architectures": ["CodeGenForCausalLM"], "rotary_dim": 4}, "transformer.", shapes, layers("h.", {"attn.causal_mask": MASK}),
            pair("lm_head", VOCAB))


def opt():
    layer = {**norms("self_attn_layer_norm", "final_layer_norm"), **pair("fc1", WIDE), **pair("fc2", HIDDEN, WIDE)}
    for x in ("q", "k", "v", "out"):
        layer.update(pair("self_attn.%s_proj" % x, HIDDEN))
    shapes = {"decoder.embed_tokens.weight": [VOCAB, HIDDEN], "decoder.embed_positions.weight": [CONTEXT + 2, HIDDEN], **norms("decoder.final_layer_norm"),
              **layers("decoder.layers.", layer)}
    config = {**SIZES, "architectures": ["OPTForCausalLM"], "hidden_size": HIDDEN, "ffn_dim": WIDE, "num_hidden_layers": COUNT, "num_attention_heads": 4,
              "max_position_embeddings": CONTEXT, "word_embed_proj_dim": HIDDEN, "do_layer_norm_before": True, "activation_function": "relu"}
    return config, "model.", shapes, {"decoder.version": [1]}, {}


def neox():
    layer = {**norms("input_layernorm", "post_attention_layernorm"), **pair("attention.query_key_value", 3 * HIDDEN), **pair("attention.dense", HIDDEN),
             **pair("mlp.dense_h_to_4h", WIDE), **pair("mlp.dense_4h_to_h", HIDDEN, WIDE)}
    shapes = {"embed_in.weight": [VOCAB, HIDDEN], **norms("final_layer_norm"), **layers("layers.", layer)}
    config = {**SIZES, "architectures": ["GPTNeoXForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": WIDE, "num_hidden_layers": COUNT,
              "num_attention_heads": 4, "max_position_embeddings": CONTEXT, "rotary_pct": 0.5, "layer_norm_eps": 1e-5, "use_parallel_residual": True,
              "tie_word_embeddings": True}
    return config, "gpt_neox.", shapes, layers("layers.", {"attention.bias": MASK, "attention.masked_bias": [], "attention.rotary_emb.inv_freq": [2]}), {}


def llama():
    layer = {"input_layernorm.weight": [HIDDEN], "post_attention_layernorm.weight": [HIDDEN], "mlp.gate_proj.weight": [WIDE, HIDDEN],
             "mlp.up_proj.weight": [WIDE, HIDDEN], "mlp.down_proj.weight": [HIDDEN, WIDE]}
    layer.update({"self_attn.%s_proj.weight" % x: [HIDDEN, HIDDEN] for x in "qkvo"})
    shapes = {"embed_tokens.weight": [VOCAB, HIDDEN], "norm.weight": [HIDDEN], **layers("layers.", layer)}
    config = {**SIZES, "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": WIDE, "num_hidden_layers": COUNT,
              "num_attention_heads": 4, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5}
    return config, "model.", shapes, layers("layers.", {"self_attn.rotary_emb.inv_freq": [4]}), {"lm_head.weight": [VOCAB, HIDDEN]}


def falcon():
    layer = {**norms("input_layernorm"), "self_attention.query_key_value.weight": [HIDDEN + 16, HIDDEN], "self_attention.dense.weight": [HIDDEN, HIDDEN],
             "mlp.dense_h_to_4h.weight": [4 * HIDDEN, HIDDEN], "mlp.dense_4h_to_h.weight": [HIDDEN, 4 * HIDDEN]}
    shapes = {"word_embeddings.weight": [VOCAB, HIDDEN], **norms("ln_f"), **layers("h.", layer)}
    config = {**SIZES, "architectures": ["FalconForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": COUNT, "num_attention_heads": 4,
              "multi_query": True, "parallel_attn": True, "bias": False, "alibi": False, "new_decoder_architecture": False}
    return config, "transformer.", shapes, layers("h.", {"self_attention.maybe_rotary.inv_freq": [4]}), {}


def phi():
    layer = {**norms("input_layernorm"), **pair("mlp.fc1", WIDE), **pair("mlp.fc2", HIDDEN, WIDE)}
    for x in ("q_proj", "k_proj", "v_proj", "dense"):
        layer.update(pair("self_attn." + x, HIDDEN))
    shapes = {"embed_tokens.weight": [VOCAB, HIDDEN], **norms("final_layernorm"), **layers("layers.", layer)}
    config = {**SIZES, "architectures": ["PhiForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": WIDE, "num_hidden_layers": COUNT,
              "num_attention_heads": 4, "max_position_embeddings": CONTEXT, "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5}
    return config, "model.", shapes, layers("layers.", {"self_attn.rotary_emb.inv_freq": [2]}), pair("lm_head", VOCAB)


FAMILIES = {"gpt2": gpt2, "gptj": gptj, "codegen": codegen, "opt": opt, "neox": neox, "llama": llama, "falcon": falcon, "phi": phi}


def randoms(name, shape):
    count = 1
    for n in shape:
        count *= n
    rng = random.Random(name)
    middle = 1.0 if "norm" in name or "ln_" in name else 0.0
    return "F32", shape, array.array("f", [middle + rng.uniform(-0.4, 0.4) for _ in range(count)]).tobytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_names_without_the_prefix_and_tensors_that_nobody_reads(family, tmp_path):
    config, prefix, shapes, unread, head = FAMILIES[family]()
    base, beside_base = {name: randoms(name, shape) for name, shape in shapes.items()}, {name: randoms(name, shape) for name, shape in head.items()}
    masks = {name: ("BOOL", shape, bytes(CONTEXT * CONTEXT)) if shape == MASK else randoms(name, shape) for name, shape in unread.items()}
    found = []
    for name, file, tensors in (("plain", None, {prefix + name: t for name, t in base.items()}),
                                ("whole", write_zip, {prefix + name: t for name, t in {**base, **masks}.items()}),
                                ("bare", None, {**base, **masks}), ("zip", write_zip, {**base, **masks}), ("older", write_older, {**base, **masks})):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        if file:
            file(folder / "pytorch_model.bin", state_dict({**tensors, **beside_base}))
        else:
            write_safetensors(folder / "model.safetensors", {**tensors, **beside_base})
        found.append(logits(folder))
    assert found == found[:1] * len(found)
    assert max(found[0]) - min(found[0]) > 0.1


# ---------------------------------------------------------------- which file is read

def test_safetensors_come_first_and_gguf_second(tmp_path, wanted, demo):
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)
    (folder / "pytorch_model.bin").write_bytes(b"nothing")
    assert logits(folder) == wanted
    (folder / "model.safetensors").unlink()
    assert "pytorch_model.bin: this is no file of torch.save" in start_fails(tmp_path, model=folder)
    write_zip(folder / "pytorch_model.bin", state_dict(demo))
    assert logits(folder) == wanted
    os.symlink("nowhere", folder / "model.gguf")
    assert "model.gguf" in start_fails(tmp_path, model=folder)


def test_packed_weights_are_those_of_the_file(tmp_path, demo, wanted):
    folder, cache = beside(tmp_path / "model"), tmp_path / "cache"
    flags = ("--weights-cache", cache, "--log-level", "info")
    write_zip(folder / "pytorch_model.bin", state_dict(demo))
    kept = os.stat(folder / "pytorch_model.bin")
    assert logits(folder, *flags) == wanted and len(list(cache.iterdir())) == 1
    assert logits(folder, *flags) == wanted
    # as large and as old as before, with two layers in each other's place
    other = {name.translate(str.maketrans("01", "10")) if ".layers." in name else name: t for name, t in demo.items()}
    write_zip(folder / "pytorch_model.bin", state_dict({name: other[name] for name in demo}))
    os.utime(folder / "pytorch_model.bin", ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert os.stat(folder / "pytorch_model.bin").st_size == kept.st_size
    assert logits(folder, *flags) != wanted


# ---------------------------------------------------------------- what is refused

class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, ("touch %s" % self.path,)


def refused(tmp_path, name, *texts):
    output = start_fails(tmp_path, model=tmp_path / name)
    for text in ("pytorch_model.bin", *texts):
        assert text in output, output


@pytest.mark.parametrize("form", FORMS)
def test_nothing_of_a_file_is_run(form, tmp_path, demo):
    value = state_dict(demo)
    value["model.norm.weight"] = Evil(tmp_path / "made")
    FORMS[form](beside(tmp_path / "model") / "pytorch_model.bin", value)
    refused(tmp_path, "model", "it wants posix.system, which weights do not need: nothing of the file was run", "safetensors")
    assert not (tmp_path / "made").exists()


def test_what_cannot_be_read_in_place_is_refused(tmp_path, demo):
    name = "model.layers.3.mlp.up_proj.weight"
    kind, shape, raw = demo[name]
    turned = state_dict(demo)
    turned[name] = Tensor(Storage(kind, raw, "t"), shape, strides=(1, shape[0]))
    short = state_dict(demo)
    short[name] = Tensor(Storage(kind, raw[:-2], "s"), shape)
    behind = state_dict(demo)
    behind[name] = Tensor(Storage(kind, raw, "b"), shape, offset=1)
    for which, value, text in (("turned", turned, "BF16, not row by row (strides [1, 704]); save the weights again, with .contiguous()"),
                               ("short", short, "does not fit its storage of %d bytes" % (len(raw) - 2)),
                               ("behind", behind, "from element 1 on does not fit its storage")):
        for form in ("zip", "older"):
            FORMS[form](beside(tmp_path / (which + form)) / "pytorch_model.bin", value)
            refused(tmp_path, which + form, "tensor " + name, text)
    write_zip(beside(tmp_path / "packed") / "pytorch_model.bin", state_dict(demo), compression=zipfile.ZIP_DEFLATED)
    refused(tmp_path, "packed", "entry archive/", "it is compressed (method 8); entries must be stored as they are")
    write_zip(beside(tmp_path / "big") / "pytorch_model.bin", state_dict(demo), order=b"big")
    refused(tmp_path, "big", 'entry byteorder says "big"')
    write_older(beside(tmp_path / "bigolder") / "pytorch_model.bin", state_dict(demo), little=False)
    refused(tmp_path, "bigolder", "a file of a big-endian machine")
    write_zip(beside(tmp_path / "nested") / "pytorch_model.bin", {"state_dict": state_dict(demo)})
    refused(tmp_path, "nested", "no tensors: none of the 1 values of its dictionary is one")
    (beside(tmp_path / "lfs") / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:%064x\nsize 9876\n" % 7)
    refused(tmp_path, "lfs", "git lfs pull")
    (beside(tmp_path / "plain") / "pytorch_model.bin").write_bytes(pickled({"a": 1}, 2)[0])
    refused(tmp_path, "plain", "a pickle, but not one of torch.save")


@pytest.mark.parametrize("form", ["zip", "older"])
def test_cut_files_are_refused(form, tmp_path, demo):
    path = beside(tmp_path / "model") / "pytorch_model.bin"
    FORMS[form](path, state_dict(demo))
    whole = path.read_bytes()
    for share in (0.0002, 0.001, 0.3, 0.999999):
        path.write_bytes(whole[:int(len(whole) * share)])
        refused(tmp_path, "model", "truncated")


# ---------------------------------------------------------------- adapters

def test_adapters(tmp_path):
    adapter = Adapter(3, {"self_attn.q_proj": range(LAYERS), "mlp.down_proj": range(LAYERS)})
    folder = adapter.write(tmp_path / "adapter")
    flags = ("--enable-lora", "--lora-modules", "a=%s" % folder)
    wanted = logits(DEMO, *flags)
    assert wanted != logits(DEMO)
    tensors = read_safetensors(folder / "adapter_model.safetensors")
    (folder / "adapter_model.safetensors").unlink()
    for form in ("zip", "older"):
        FORMS[form](folder / "adapter_model.bin", state_dict(tensors))
        assert logits(DEMO, *flags) == wanted, form
    tensors.pop("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight")
    write_zip(folder / "adapter_model.bin", state_dict(tensors))
    output = start_fails(tmp_path, *flags)
    assert "adapter_model.bin: lora_B of model.layers.0.self_attn.q_proj is missing" in output, output
    (folder / "adapter_model.bin").unlink()
    assert "holds neither adapter_model.safetensors nor adapter_model.bin" in start_fails(tmp_path, *flags)
