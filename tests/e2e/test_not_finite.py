"""Checkpoints with values that are no finite numbers: refused at the start, by file, tensor and place, however they are stored."""
import json
import random
import struct

import pytest

import engine as engines
from engine import SANITIZED, run
from quantized_files import BITNET, FORMATS, HIDDEN, TernaryAtLoad, write_models
from test_bad_input import start_fails
from test_quantized import IDS

CUDA = {"TERCET_CUDA_KERNELS": str(engines.BUILD / "tests" / "kern" / "tercet-cuda-emu.so")}
NAN = {"F32": struct.pack("<f", float("nan")), "F16": struct.pack("<e", float("nan")), "BF16": b"\xc0\x7f", "F8_E4M3": b"\xff"}
INFINITY = {"F32": struct.pack("<f", float("inf")), "F16": struct.pack("<e", float("-inf")), "BF16": b"\x80\x7f", "F8_E4M3": b"\x7f"}


def header_of(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return 8 + size, json.loads(data[8:8 + size])


def spoil(model, name, element=None, raw=NAN):
    """Writes one value of a tensor; what was there, to be written back, and the place as messages say it."""
    begin, header = header_of(model / "model.safetensors")
    entry = header[name]
    size, shape = len(raw[entry["dtype"]]), entry["shape"]
    count = (entry["data_offsets"][1] - entry["data_offsets"][0]) // size
    element = random.Random(name).randrange(count) if element is None else element
    at = begin + entry["data_offsets"][0] + element * size
    with open(model / "model.safetensors", "r+b") as f:
        f.seek(at)
        before = f.read(size)
        f.seek(at)
        f.write(raw[entry["dtype"]])
    place = [element] if len(shape) == 1 else [element // shape[1], element % shape[1]]

    def restore():
        with open(model / "model.safetensors", "r+b") as f:
            f.seek(at)
            f.write(before)
    return restore, str(place)


def logits_output(model, *flags, env=None):
    return run("logits", "--model", model, "--ids", IDS, "--threads", 2, *flags, env=env)


def refused(model, *flags, env=None):
    status, output = logits_output(model, *flags, env=env)
    assert status == 1 and "model.safetensors: tensor " in output, output
    return output


@pytest.mark.parametrize("flags", [["--dtype", "float32"], ["--dtype", "bfloat16"], ["--quantization", "int8"], ["--quantization", "int4"],
                                   ["--tensor-parallel-size", "2"], ["--device", "cuda"]], ids=lambda f: f[-1])
def test_every_tensor_of_a_plain_checkpoint(flags, tmp_path):
    model, _quantized = write_models(tmp_path, FORMATS["awq-64"])
    _begin, header = header_of(model / "model.safetensors")
    env = CUDA if "cuda" in flags else None
    names = [n for n in header if ".layers.0." not in n]
    assert len(names) == 12
    for name in names[::4] if SANITIZED or env else names:
        restore, place = spoil(model, name)
        output = refused(model, *flags, env=env)
        assert "tensor %s has the value NaN at %s; all must be finite" % (name, place) in output, output
        restore()
    if not env:
        status, output = logits_output(model, *flags)
        assert status == 0, output


# One of each way in which scales are stored and read.
SCALES = ["awq-64", "gptq-64", "gptq-order-64", "gptq8-64-zeros", "packed3-32-zeros", "packed4-32", "packed8-row", "int8-row", "int8-128",
          "int8-64-zeros", "fp8-tensor", "fp8-row", "fp8-blocks", "fp4-nv", "fp4-nv-modelopt", "fp4-mx", "fp8-mx", "bnb4", "bnb4-nested",
          "bnb8"]


@pytest.mark.parametrize("name", SCALES)
def test_scales_of_quantized_checkpoints(name, tmp_path):
    _plain, model = write_models(tmp_path, FORMATS[name])
    _begin, header = header_of(model / "model.safetensors")
    module = "model.layers.1.mlp.up_proj."
    named = [n for n in header if n.startswith(module) and n.endswith(("scales", "weight_scale", "weight_scale_inv", "nested_absmax", "SCB"))]
    scales = (named or [n for n in header if n.startswith(module) and n.endswith("absmax")])[0]
    raw = {**INFINITY, "U8": b"\xff"}  # E8M0, which has no infinity, nor has E4M3
    words = {"U8": "255, which is no number in MXFP4" if name == "fp4-mx" else "NaN at the scale of [", "F8_E4M3": "NaN at the scale of ["}
    said = words.get(header[scales]["dtype"], "infinity at the scale of [")
    settings = [([], None), (["--quantization", "int8"], None), (["--device", "cuda"], CUDA)]
    for flags, env in settings[:1] if SANITIZED else settings:
        restore, _place = spoil(model, scales, raw=raw)
        output = refused(model, *flags, env=env)
        assert "tensor %s" % scales in output and said in output, output
        restore()
    status, output = logits_output(model)
    assert status == 0, output


@pytest.mark.parametrize("name", ["fp8-tensor", "fp8-row", "fp8-blocks"])
def test_values_of_fp8_checkpoints(name, tmp_path):
    _plain, model = write_models(tmp_path, FORMATS[name])
    weight = "model.layers.1.mlp.down_proj.weight"
    for raw in (NAN, INFINITY):  # of the two codes of E4M3 that are no numbers, one each
        _restore, place = spoil(model, weight, raw=raw)
        for flags, env in (([], None), (["--device", "cuda"], CUDA)):
            output = refused(model, *flags, env=env)
            assert "tensor %s has the value NaN at %s" % (weight, place) in output, output


@pytest.mark.parametrize("flags", [[], ["--quantization", "int4"], ["--tensor-parallel-size", "2"]], ids=["values", "int4", "ranks"])
def test_values_that_are_rounded_to_three_at_load(flags, tmp_path):
    _plain, model = write_models(tmp_path, TernaryAtLoad(), family=BITNET)
    weight = "model.layers.1.mlp.down_proj.weight"
    for raw, word in ((NAN, "NaN"), (INFINITY, "infinity")):
        restore, place = spoil(model, weight, raw=raw)
        output = refused(model, *flags)
        assert "tensor %s has the value %s at %s" % (weight, word, place) in output, output
        restore()
    status, output = logits_output(model, *flags)
    assert status == 0, output


def test_values_beyond_the_type_that_is_to_hold_them(tmp_path):
    model, _quantized = write_models(tmp_path, FORMATS["awq-64"])
    weight = "model.layers.1.self_attn.o_proj.weight"
    restore, place = spoil(model, weight, raw={"F32": struct.pack("<f", 3.4e38)})
    output = refused(model, "--dtype", "bfloat16")
    assert "tensor %s has the value 3.4e+38 at %s, which is too large for bfloat16" % (weight, place) in output, output
    assert logits_output(model, "--dtype", "float32")[0] == 0
    restore()
    _restore, place = spoil(model, weight, raw={"F32": struct.pack("<f", -70000)})
    output = refused(model, "--quantization", "int4")
    assert "tensor %s has the value -70000 at %s, which is too large for int4" % (weight, place) in output, output
    assert logits_output(model, "--dtype", "bfloat16")[0] == 0


def test_a_cache_holds_only_what_was_found_right(tmp_path):
    model, _quantized = write_models(tmp_path, FORMATS["awq-64"])
    cache = ["--weights-cache", tmp_path / "cache"]
    for name in ("model.embed_tokens.weight", "model.layers.1.input_layernorm.weight", "lm_head.weight"):
        restore, _place = spoil(model, name)
        assert "tensor %s has the value NaN" % name in refused(model, *cache)
        assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())
        restore()
    files = []
    for _start in range(2):
        status, output = logits_output(model, *cache)
        assert status == 0 and "WEIGHTS_CACHE" not in output, output
        files += (tmp_path / "cache").iterdir()
    assert len(files) == 2 and files[0] == files[1]
    spoil(model, "model.layers.1.mlp.up_proj.weight", HIDDEN * 3 + 5)
    assert "up_proj.weight has the value NaN at [3, 5]" in refused(model, *cache)


def test_an_engine_says_so_and_ends(tmp_path):
    model, _quantized = write_models(tmp_path, FORMATS["awq-64"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes((engines.DEMO / name).read_bytes())
    spoil(model, "model.norm.weight", 7)
    output = start_fails(tmp_path, model=model)
    assert "model.safetensors: tensor model.norm.weight has the value NaN at [7]" in output, output
