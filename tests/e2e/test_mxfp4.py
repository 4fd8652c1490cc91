"""gpt-oss as it is published: experts in MXFP4, everything else in bfloat16. Compared with a plain checkpoint of the values
that the blocks stand for, written as transformers saves it (experts transposed, in one tensor a layer)."""
import json
import random

import pytest

from device_models import ENVIRONMENT as DEVICE
from engine import run
from quantized_files import bf16s, floats, to_bf16, write_safetensors

HIDDEN, INTER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB, EXPERTS = 64, 96, 4, 2, 16, 2, 64, 4
IDS = "5,17,3,60,33,8,41,12,9,9,30,2"
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
CONFIG = {"architectures": ["GptOssForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INTER,
          "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
          "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "num_local_experts": EXPERTS, "num_experts_per_tok": 2,
          "experts_per_token": 2, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"],
          "swiglu_limit": 7.0, "attention_bias": True, "hidden_act": "silu", "rope_theta": 150000, "initial_context_length": 64,
          "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                           "original_max_position_embeddings": 64}}
REFERENCE = {"TERCET_KERN_CAPS": "none"}  # inputs of products are not rounded there
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                             "model.embed_tokens", "lm_head"]}


def experts(rows, columns, spread, rng):
    """Blocks and scales of [experts][rows][columns], and the values by expert, row and column. The powers of neighbouring
    blocks are up to `spread` apart."""
    blocks, scales, values = bytearray(), bytearray(), []
    for _ in range(EXPERTS * rows):
        row = []
        for _ in range(columns // 32):
            scale = 124 - rng.randrange(spread + 1)
            codes = [rng.randrange(16) for _ in range(32)]
            scales.append(scale)
            blocks += bytes(codes[i] | codes[i + 1] << 4 for i in range(0, 32, 2))
            row += [(-1 if c & 8 else 1) * E2M1[c & 7] * 2.0 ** (scale - 127) for c in codes]
        values.append(row)
    return bytes(blocks), bytes(scales), [values[x * rows:(x + 1) * rows] for x in range(EXPERTS)]


def transposed(values):
    return bf16s([row[k] for expert in values for k in range(len(expert[0])) for row in expert])


def write_models(folder, spread=2, damage=None, exact=False):
    """folder/plain and folder/blocks. `exact`: int8 holds the other matrices without rounding."""
    rng = random.Random(5)
    plain, blocks = {}, {}

    def both(name, shape, size, middle=0.0):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        numbers = [to_bf16(rng.uniform(middle - size, middle + size)) for _ in range(count)]
        if exact and len(shape) == 2 and "bias" not in name and "router" not in name:
            numbers = [to_bf16(size) * rng.choice((-1, 0, 1)) for _ in range(count)]
        plain[name] = blocks[name] = ("BF16", shape, bf16s(numbers))

    both("model.embed_tokens.weight", (VOCAB, HIDDEN), 1.0)
    both("model.norm.weight", (HIDDEN,), 0.1, 1.0)
    both("lm_head.weight", (VOCAB, HIDDEN), 0.3)
    for layer in range(LAYERS):
        stem = "model.layers.%d." % layer
        both(stem + "input_layernorm.weight", (HIDDEN,), 0.1, 1.0)
        both(stem + "post_attention_layernorm.weight", (HIDDEN,), 0.1, 1.0)
        for name, rows, columns in (("q", HEADS * HEAD_DIM, HIDDEN), ("k", KV_HEADS * HEAD_DIM, HIDDEN),
                                    ("v", KV_HEADS * HEAD_DIM, HIDDEN), ("o", HIDDEN, HEADS * HEAD_DIM)):
            both(stem + "self_attn.%s_proj.weight" % name, (rows, columns), 0.2)
            both(stem + "self_attn.%s_proj.bias" % name, (rows,), 0.3)
        both(stem + "self_attn.sinks", (HEADS,), 2.0)
        both(stem + "mlp.router.weight", (EXPERTS, HIDDEN), 0.4)
        both(stem + "mlp.router.bias", (EXPERTS,), 0.5)
        both(stem + "mlp.experts.gate_up_proj_bias", (EXPERTS, 2 * INTER), 0.3)
        both(stem + "mlp.experts.down_proj_bias", (EXPERTS, HIDDEN), 0.3)
        for name, rows, columns in (("gate_up_proj", 2 * INTER, HIDDEN), ("down_proj", HIDDEN, INTER)):
            codes, scales, values = experts(rows, columns, spread, rng)
            name = stem + "mlp.experts." + name
            blocks[name + "_blocks"] = ("U8", (EXPERTS, rows, columns // 32, 16), codes)
            blocks[name + "_scales"] = ("U8", (EXPERTS, rows, columns // 32), scales)
            plain[name] = ("BF16", (EXPERTS, columns, rows), transposed(values))
    if damage:
        damage(blocks)
    for name, tensors, extra in (("plain", plain, {}), ("blocks", blocks, {"quantization_config": MXFP4})):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({**CONFIG, **extra}))
        write_safetensors(folder / name / "model.safetensors", tensors)
    return folder / "plain", folder / "blocks"


def logits(model, *flags, dtype="float32", env=None):
    status, output = run("logits", "--model", model, "--ids", IDS, "--top", 0, "--dtype", dtype, "--threads", 1, *flags, env=env)
    assert status == 0, output
    return json.loads(output.strip().splitlines()[-1])["logits"]


def distance(a, b):
    assert len(a) == len(b) == VOCAB
    return max(abs(x - y) for x, y in zip(a, b))


def test_blocks_are_the_values_that_they_stand_for(tmp_path):
    plain, blocks = write_models(tmp_path)
    wanted = logits(plain)
    assert max(wanted) - min(wanted) > 1
    # A power of two times E2M1 is exact in bfloat16 and in float: the same weights, hence the same bits.
    assert logits(blocks) == wanted
    assert logits(blocks, dtype="bfloat16") == logits(plain, dtype="bfloat16")
    for model in (plain, blocks):  # down's inputs of a rank begin inside a block
        assert distance(logits(model, "--tensor-parallel-size", 2), wanted) < 1e-3
    assert distance(logits(blocks, "--max-num-batched-tokens", 5), wanted) < 1e-3


def test_int8_holds_blocks_whose_powers_are_near_exactly(tmp_path):
    """Everything but the experts is zero or one there, so that what int8 rounds are these alone; the reference's products
    keep their inputs."""
    plain, blocks = write_models(tmp_path, exact=True)
    wanted = logits(plain, env=REFERENCE)
    assert max(wanted) - min(wanted) > 1
    assert distance(logits(blocks, "--quantization", "int8", env=REFERENCE), wanted) < 1e-4
    # The same values in bfloat16 do not say what they are multiples of.
    assert distance(logits(plain, "--quantization", "int8", env=REFERENCE), wanted) > 1e-3


def test_quantized_blocks_answer_nearly_as_they_are(tmp_path):
    plain, blocks = write_models(tmp_path, spread=6)
    wanted = logits(plain)
    spread = max(wanted) - min(wanted)
    assert distance(logits(blocks, "--quantization", "int8"), wanted) < 0.05 * spread
    assert distance(logits(blocks, "--quantization", "int4"), wanted) < 0.5 * spread


def test_devices_compute_blocks(tmp_path):
    """In bfloat16, which has their values exactly, and in 8 bits."""
    plain, blocks = write_models(tmp_path)
    wanted = logits(plain)
    spread = max(wanted) - min(wanted)
    there = ("--device", "cuda", "--max-num-batched-tokens", 5)
    exact = logits(blocks, *there, dtype="bfloat16", env=DEVICE)
    assert exact == logits(plain, *there, dtype="bfloat16", env=DEVICE)
    assert distance(exact, wanted) < 0.02 * spread
    assert distance(logits(blocks, *there, "--quantization", "int8", dtype="bfloat16", env=DEVICE), wanted) < 0.05 * spread


def refused(folder, said, damage=None, flags=(), **changes):
    _, blocks = write_models(folder, damage=damage)
    config = {**CONFIG, "quantization_config": MXFP4, **changes}
    (blocks / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    status, output = run("logits", "--model", blocks, "--ids", IDS, "--top", 0, "--dtype", "float32", *flags)
    assert status != 0
    for words in said:
        assert words in output, output


@pytest.mark.parametrize("changes, said", [
    ({"quantization_config": {**MXFP4, "block_size": 16}}, ("quantization_config", "block_size")),
    ({"quantization_config": {**MXFP4, "quant_method": "nvfp4"}}, ("nvfp4", "mxfp4")),
    ({"hidden_act": "gelu"}, ("hidden_act", "silu")),
    ({"swiglu_limit": 0}, ("swiglu_limit",)),
    ({"experts_per_token": 3}, ("experts_per_token", "num_experts_per_tok")),
    ({"initial_context_length": 32}, ("initial_context_length", "64")),
    ({"rope_scaling": None}, ("rope_scaling", "is missing")),
    ({"router_scale": 2}, ("router_scale",)),
])
def test_what_is_not_understood_is_refused_by_name(changes, said, tmp_path):
    refused(tmp_path, said, **changes)


def test_parts_of_other_shapes_and_types_are_refused(tmp_path):
    name = "model.layers.1.mlp.experts.down_proj_scales"

    def shorter(tensors):
        kind, (experts_, rows, groups), raw = tensors[name]
        tensors[name] = (kind, (experts_, rows * groups), raw)

    def missing(tensors):
        del tensors[name]

    def of_floats(tensors):
        kind, shape, raw = tensors[name]
        tensors[name] = ("F32", shape, floats([0.5] * len(raw)))

    for number, (damage, said) in enumerate(((shorter, ("scales", "shape")), (missing, ("no tensor", "scales")),
                                             (of_floats, ("scales", "F32", "U8")))):
        folder = tmp_path / str(number)
        folder.mkdir()
        refused(folder, said, damage)


def test_scales_that_are_no_numbers_or_too_large_are_refused_with_their_place(tmp_path):
    stem = "model.layers.1.mlp.experts."

    def scale(name, row, block, value, code=0x77):
        def damage(tensors):
            kind, shape, raw = tensors[stem + name + "_scales"]
            at = (2 * shape[1] + row) * shape[2] + block  # of expert 2
            tensors[stem + name + "_scales"] = (kind, shape, raw[:at] + bytes([value]) + raw[at + 1:])
            kind, shape, raw = tensors[stem + name + "_blocks"]
            tensors[stem + name + "_blocks"] = (kind, shape, raw[:16 * at] + bytes([code]) * 16 + raw[16 * at + 16:])
        return damage

    number = 0
    for damage, said in ((scale("down_proj", 5, 2, 255), ("experts.2.down_proj", "block 2 of row 5", "255")),
                         (scale("gate_up_proj", 190, 1, 255), ("experts.2.gate_up_proj", "block 1 of row 190", "255")),
                         (scale("down_proj", 5, 1, 254), ("experts.2.down_proj", "block 1 of row 5", "2^127", "input 32"))):
        for flags in ((), ("--quantization", "int8"), ("--tensor-parallel-size", 2)):
            number += 1
            folder = tmp_path / str(number)
            folder.mkdir()
            refused(folder, said, damage, flags=flags)
    # the largest scale of all with small enough values
    folder = tmp_path / "large"
    folder.mkdir()
    _, blocks = write_models(folder, damage=scale("down_proj", 5, 1, 254, 0x11))
    assert len(logits(blocks)) == VOCAB


@pytest.mark.parametrize("config", [MXFP4, None])
def test_a_matrix_that_is_there_plain_and_in_blocks_is_refused(config, tmp_path):
    def both(tensors):
        name = "model.layers.1.mlp.experts.down_proj"
        tensors[name] = ("BF16", (EXPERTS, INTER, HIDDEN), bf16s([0.0] * (EXPERTS * INTER * HIDDEN)))

    refused(tmp_path, ("experts.down_proj ", "experts.down_proj_blocks", "same matrix"), both, quantization_config=config)
