"""Quantized checkpoints (quantized_files.py) compute what their values do, and what is damaged or not supported is refused by name.
Those that the libraries write: quantized_differential.py."""
import json
import struct

import pytest

from engine import SANITIZED, run
from quantized_files import (Awq, BITNET, BitsAndBytes, BitsAndBytes8, FORMATS, Fp4, Fp8, Gptq, INTERNLM2, Int8, QuarkFp4, QuarkFp8,
                             QuarkInt4, QuarkInt8, Ternary, TernaryAtLoad, VOCAB, bf16s, floats, quark, write_models)

IDS = "5,17,3,60,33,8,41"
AS_VALUES = ("fp", "bnb4", "mixed-fp")  # no matrix of those is held in whole numbers


def logits(model, *flags, env=None):
    status, output = run("logits", "--model", model, "--ids", IDS, "--top", 0, "--dtype", "float32", "--threads", 1,
                         *flags, env=env)
    assert status == 0, output
    return json.loads(output.strip().splitlines()[-1])["logits"]


def distance(a, b):
    assert len(a) == len(b) == VOCAB
    return max(abs(x - y) for x, y in zip(a, b))


@pytest.mark.parametrize("name", ["awq-64", "gptq-order-64", "gptq3-64", "fp4-nv", "bnb4-nested", "mixed-int"] if SANITIZED else FORMATS)
def test_quantized_checkpoints_compute_what_they_stand_for(name, tmp_path):
    plain, quantized = write_models(tmp_path, FORMATS[name], 320 if name == "fp8-blocks" else 384)
    expect_the_same(name, plain, quantized)


@pytest.mark.parametrize("name", ["awq-64", "gptq-order-64", "packed4-128-zeros", "int8-row", "fp8-row", "fp8-blocks",
                                  "fp4-nv", "bnb4-nested", "gptq8-128"])
def test_quantized_matrices_in_groups_compute_what_they_stand_for(name, tmp_path):
    plain, quantized = write_models(tmp_path, FORMATS[name], family=INTERNLM2)
    expect_the_same(name, plain, quantized)
    wanted = logits(plain)
    spread = max(wanted) - min(wanted)
    assert distance(logits(plain, "--quantization", "int8"), wanted) < 0.05 * spread


@pytest.mark.parametrize("name", ["ternary", "at-load"])
def test_weights_of_bitnet_are_three_values(name, tmp_path):
    plain, quantized = write_models(tmp_path, TernaryAtLoad() if name == "at-load" else FORMATS[name], family=BITNET)
    expect_the_same("fp" if name == "at-load" else name, plain, quantized)
    portable = {"TERCET_KERN_CAPS": "none"}
    assert distance(logits(quantized, "--quantization", "int4", env=portable), logits(plain)) < 1e-3  # which must not move the one that is 0


def test_a_float_is_no_worse_a_scale_of_three_values(tmp_path):
    plain, quantized = write_models(tmp_path, Ternary(False, "F32"), family=BITNET)
    for flags in ((), ("--quantization", "int4")):
        assert distance(logits(quantized, *flags, env={"TERCET_KERN_CAPS": "none"}), logits(plain)) < 0.02, flags


@pytest.mark.parametrize("spoil,words_said", [
    (lambda part: (part[0], part[1], floats([7e4, -7e4] * (part[1][0] * part[1][1] // 2))), "has a mean magnitude of 70000, which 4 bits do not hold"),
    (lambda part: ("F64", part[1], bytes(8 * part[1][0] * part[1][1])), "weight is of type F64, expected float (F16, BF16, F32)"),
])
def test_weights_that_cannot_be_rounded_at_load(tmp_path, spoil, words_said):
    form = TernaryAtLoad()

    def make(stem, rows, columns, rng):
        parts, values = TernaryAtLoad.make(form, stem, rows, columns, rng)
        return {name: spoil(part) if "v_proj" in stem else part for name, part in parts.items()}, values

    form.make = make
    _plain, quantized = write_models(tmp_path, form, family=BITNET)
    status, output = run("logits", "--model", quantized, "--ids", IDS, "--quantization", "int4")
    assert status == 1 and words_said in output, output


def test_a_matrix_of_another_shape_is_not_rounded_at_load(tmp_path):
    form = TernaryAtLoad()
    form.make = lambda stem, rows, columns, rng: TernaryAtLoad.make(form, stem, rows - ("v_proj" in stem), columns, rng)
    _plain, quantized = write_models(tmp_path, form, family=BITNET)
    status, output = run("logits", "--model", quantized, "--ids", IDS)
    assert status == 1 and "v_proj.weight has the shape [63, 128], expected [64, 128]" in output, output


def test_weights_are_rounded_at_load_of_bitnet_only(tmp_path):
    assert "'online', which is read of a BitNetForCausalLM only, not of a LlamaForCausalLM" in refused(tmp_path, TernaryAtLoad())


def expect_the_same(name, plain, quantized):
    wanted = logits(plain)
    spread = max(wanted) - min(wanted)
    assert spread > 1
    portable = {"TERCET_KERN_CAPS": "none"}  # inputs of products are not rounded there
    assert distance(logits(quantized, env=portable), wanted) < 1e-3
    # Products round their inputs to 8 bits where weights are held in 4 or 8.
    limit = 1e-3 if name.startswith(AS_VALUES) else 0.05 * spread
    assert distance(logits(quantized), wanted) < limit
    assert distance(logits(quantized, "--tensor-parallel-size", 2, env=portable), wanted) < 1e-3


def refused(tmp_path, form, **changes):
    """What is said of a checkpoint whose quantization_config has these fields changed."""
    _plain, quantized = write_models(tmp_path, form)
    config = json.loads((quantized / "config.json").read_text())
    for key, value in changes.items():
        config["quantization_config"][key] = value
    (quantized / "config.json").write_text(json.dumps(config))
    status, output = run("logits", "--model", quantized, "--ids", IDS)
    assert status == 1, output
    return output


@pytest.mark.parametrize("changes,words_said", [
    ({"bits": 3}, '"bits" must be a number from 4 to 4'),
    ({"version": "gemv"}, "'gemv'; supported: gemm"),
    ({"zero_point": False}, '"zero_point" is false'),
    ({"mystery": 7}, 'field "mystery" is unknown'),
    ({"group_size": 0}, '"group_size" is 0'),
    ({"group_size": 32}, "qzeros has the shape"),
    ({"quant_method": "hqq"}, "'hqq'; supported: awq, gptq, compressed-tensors, fp8"),
    ({"format": "gemv_fast"}, "'gemv_fast'; supported: gemm"),
])
def test_unsupported_settings_are_refused_by_name(changes, words_said, tmp_path):
    output = refused(tmp_path, Awq(64), **changes)
    assert words_said in output or words_said.replace("qzeros", "scales") in output, output


@pytest.mark.parametrize("form,changes,words_said", [
    (Gptq(64), {"checkpoint_format": "marlin"}, "'marlin'; supported: gptq, gptq_v2"),
    (Gptq(64), {"is_marlin_format": True}, '"is_marlin_format" is set, which is not supported'),
    (Int8(0), {"sparsity_config": {"format": "sparse-24-bitmask"}}, "is 'sparse-24-bitmask'; supported: dense"),
    (Int8(0), {"format": "mxfp6-pack-quantized"}, "supported: pack-quantized, int-quantized, float-quantized"),
    (Int8(0), {"format": "nvfp4-pack-quantized"}, "is 'int'; supported in the format nvfp4-pack-quantized: float"),
    (Int8(0), {"format": "mixed-precision"}, "\"format\" is 'missing'; supported: pack-quantized"),
    (Int8(0), {"config_groups": {}}, '"config_groups" must be an object of one or more schemes'),
    (Gptq(64), {"bits": 5}, '"bits" is 5; supported: 2, 3, 4, 8'),
    (Gptq(64), {"format": "gptq_v2", "checkpoint_format": "gptq"}, '"format" and "checkpoint_format" are the same field, and differ'),
    (Gptq(64), {"dynamic": {"+:.*down.*": {"bits": 8, "mystery": 1}}}, 'dynamic.*": field "mystery" is unknown'),
    (Gptq(64), {"dynamic": [{"bits": 8}]}, 'exceptions must be an object with names of modules, found array'),
    (Gptq(64), {"dynamic": {"+:.*": [{"bits": 8}]}}, 'quantization_config.dynamic.*" must be an object, found array'),
    (Int8(0), {"config_groups": {"group_0": [1]}}, 'quantization_config.config_groups.*" must be an object, found array'),
    (Int8(0), {"config_groups": {"group_0": {"weights": [1]}}}, 'config_groups.*.weights" must be an object, found array'),
    (QuarkFp4(), {"global_quant_config": [{}]}, 'quantization_config.*_quant_config" must be an object, found array'),
    (Gptq(64), {"bits": 8, "dynamic": {"+:.*": {"bits": 2}}}, 'none of the schemes of "quantization_config" fits'),
    (Fp4(16, True), {"quant_algo": "NVFP4_AWQ"}, "'NVFP4_AWQ'; supported: FP8, FP8_PER_CHANNEL_PER_TOKEN, NVFP4"),
    (Fp4(16, True), {"quant_algo": "MIXED_PRECISION"}, '"quantized_layers" must be an object of layers'),
    (BitsAndBytes(True), {"bnb_4bit_quant_storage": "bfloat16"}, "'bfloat16'; supported: uint8"),
    (BitsAndBytes(True), {"_load_in_8bit": True}, 'one of "load_in_4bit" and "load_in_8bit" must be true'),
    (Ternary(False), {"use_rms_norm": True}, '"use_rms_norm" is set, which is not supported'),
    (Ternary(False), {"linear_class": "trilinear"}, "'trilinear'; supported: bitlinear, autobitlinear"),
    (Ternary(False), {"quantization_mode": "later"}, "'later'; supported: offline, online"),
    (Ternary(False), {"quantization_mode": "online", "modules_to_not_convert": ["lm_head", "q_proj"]},
     '"modules_to_not_convert" must be null or ["lm_head"]'),
    (QuarkFp4(), quark(dtype="fp6_e2m3", qscheme="per_group"), "'fp6_e2m3' and 'per_group'; supported: fp8_e4m3 and int8, per_tensor or per_channel"),
    (QuarkFp4(), quark(dtype="fp4", qscheme="per_group", group_size=16, ch_axis=-1), '"group_size" of fp4 is 16; supported: 32'),
    (QuarkFp4(), quark(dtype="fp4", qscheme="per_group", group_size=32, ch_axis=-1), "\"scale_format\" is 'missing'; supported: e8m0"),
    (QuarkInt4(32, True), quark(dtype="int4", qscheme="per_group", group_size=32, ch_axis=0), '"ch_axis" must be 1 or -1'),
    (QuarkInt4(32, True), {"export": {"pack_method": "order"}}, "is 'order'; supported: reorder"),
    (QuarkInt4(32, True), {"algo_config": [{"name": "quarot"}]}, '"r4" of quarot is true'),
    (QuarkInt4(32, True), {"algo_config": [{"name": "rotation", "r4": True}]}, '"r4" of rotation is true: inputs that are rotated'),
    (QuarkInt4(32, True), {"algo_config": [{"name": "rotation", "r1": True, "online_r1_rotation": True}]}, '"online_r1_rotation" of rotation is true'),
    (QuarkInt4(32, True), {"algo_config": "awq"}, '"algo_config" must be an array of objects, found string'),
    (QuarkInt4(32, True), {"layer_quant_config": [{}]}, '"layer_quant_config" must be an object, found array'),
    (QuarkInt4(32, True), {"layer_quant_config": {"*": quark(dtype="uint4", qscheme="per_group", group_size=32, ch_axis=1)["global_quant_config"]}},
     "int4 and uint4 in one checkpoint are not supported"),
    (QuarkInt4(32, True), {"algo_config": {"name": "svd"}}, "'svd'; supported: smooth"),
    (QuarkInt4(32, True), {"global_quant_config": {"weight": [{}, {}]}}, "is a list: weights that are rounded in several steps"),
    (QuarkInt4(32, True), {"global_quant_config": {"weight": None}}, 'has no "weight" that is quantized'),
    (QuarkFp8("tensor"), quark(dtype="fp8_e4m3", qscheme="per_tensor", mystery=1), 'field "mystery" is unknown'),
    (Fp8("blocks"), {"weight_block_size": [128]}, '"weight_block_size" must be two numbers'),
    (Fp8("blocks"), {"weight_block_size": [64, 128]}, "weight_scale_inv has the shape"),
    (Fp8("blocks"), {"fmt": "e5m2"}, "'e5m2'; supported: e4m3"),
], ids=lambda value: value.__class__.__name__ if not isinstance(value, (dict, str)) else "")
def test_unsupported_settings_of_other_formats(form, changes, words_said, tmp_path):
    output = refused(tmp_path, form, **changes)
    assert words_said in output, output


def damaged(tmp_path, damage, form=None):
    """What is said of a checkpoint (GPTQ) of which damage(parts, stem) changed one matrix."""
    form = form or Gptq(64)
    make = form.make

    def damaging(stem, rows, columns, rng):
        parts, values = make(stem, rows, columns, rng)
        if stem == "model.layers.1.mlp.up_proj.":
            damage(parts, stem)
        return parts, values

    form.make = damaging
    return refused(tmp_path, form)


def test_a_missing_part_is_named(tmp_path):
    output = damaged(tmp_path, lambda parts, stem: parts.pop(stem + "scales"))
    assert "no tensor model.layers.1.mlp.up_proj.scales" in output, output


def test_an_input_in_a_group_that_is_not_there_is_refused(tmp_path):
    def damage(parts, stem):
        kind, shape, raw = parts[stem + "g_idx"]
        parts[stem + "g_idx"] = (kind, shape, struct.pack("<i", -1) + raw[4:])

    output = damaged(tmp_path, damage)
    assert "model.layers.1.mlp.up_proj.g_idx: input 0 is in group -1 of 2" in output, output


def test_a_part_of_another_type_is_refused(tmp_path):
    def damage(parts, stem):
        parts[stem + "qweight"] = ("F32",) + parts[stem + "qweight"][1:]

    output = damaged(tmp_path, damage)
    assert "model.layers.1.mlp.up_proj.qweight is of type F32, expected I32" in output, output


def changing(suffix, *part):
    """Replaces a part of the matrix; a single argument is what its bytes become."""
    def damage(parts, stem):
        parts[stem + suffix] = part if len(part) == 3 else parts[stem + suffix][:2] + part
    return damage


@pytest.mark.parametrize("form,damage,words_said", [
    (Fp4(16), changing("weight_global_scale", floats([0])), "weight_global_scale is 0; it must be a finite number other than 0"),
    (Fp4(16), changing("weight_scale", "F32", (384, 8), floats([1] * 384 * 8)), "weight_scale is of type F32, expected F8_E4M3"),
    (Fp4(16, True), changing("weight_scale_2", "F32", (2,), floats([1, 1])), "weight_scale_2 must be one float"),
    (BitsAndBytes(True), changing("weight.quant_state.bitsandbytes__nf4", "U8", (2,), b"{}"), 'must have an even "blocksize"'),
    (BitsAndBytes(True), changing("weight.quant_state.bitsandbytes__nf4", "U8", (1,), b"{"), "bitsandbytes__nf4: "),
    (BitsAndBytes(True), changing("weight.nested_quant_map", "F32", (16,), floats([1] * 16)), "nested_quant_map has the shape [16], expected [256]"),
    (Ternary(False), changing("weight_scale", "BF16", (2,), bf16s([1, 1])), "weight_scale has the shape [2], expected [1]"),
    (Ternary(False), changing("weight_scale", "BF16", (1,), bf16s([float("inf")])), "weight_scale is inf; it must be a finite number other than 0"),
    (Ternary(True), changing("weight_scale", "F32", (1,), floats([0])), "weight_scale is 0; it must be a finite number other than 0"),
    (Ternary(True), changing("weight", "F32", (384, 128), floats([1] * 384 * 128)), "is of type F32, but has a scale"),
    (Ternary(False), changing("weight", "U8", (384, 128), bytes(384 * 128)), "weight has the shape [384, 128], expected [96, 128]"),
    (QuarkInt8("channel"), changing("weight_zero_point", b"\1" * 384), "has the zero point 1, and its scheme is symmetric"),
    (QuarkInt8("channel"), changing("weight_zero_point", "I8", (), b"\0"), "weight_zero_point has the shape [], expected [384]"),
    (BitsAndBytes8(), changing("weight_format", b"\1"), "weight_format says that rows are not one behind the other"),
], ids=lambda value: value.__class__.__name__ if not callable(value) and not isinstance(value, str) else "")
def test_parts_that_do_not_fit_are_named(form, damage, words_said, tmp_path):
    output = damaged(tmp_path, damage, form)
    assert "model.layers.1.mlp.up_proj." in output and words_said in output, output


def test_model_optimizer_may_say_it_in_a_file_of_its_own(tmp_path):
    plain, quantized = write_models(tmp_path, Fp4(16, True))
    config = json.loads((quantized / "config.json").read_text())
    del config["quantization_config"]
    (quantized / "config.json").write_text(json.dumps(config))
    beside = quantized / "hf_quant_config.json"
    beside.write_text(json.dumps({"producer": {"name": "modelopt", "version": "0.19.0"},
                                  "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
                                                   "exclude_modules": ["lm_head"]}}))
    expect_the_same("fp4-nv", plain, quantized)
    beside.write_text(json.dumps({"quantization": {"quant_algo": "W4A8_AWQ"}}))
    status, output = run("logits", "--model", quantized, "--ids", IDS)
    assert status == 1 and "hf_quant_config.json, read as config.json's" in output and "'W4A8_AWQ'; supported: FP8" in output, output
