#!/usr/bin/env python3
"""Small models written by the gguf package, in every type that is read, compared with plain checkpoints of the values that the package
makes of them; and what holding the types as weights costs, by numbers alone. By hand, not in the suite: it needs gguf and numpy. Run as

    gguf_differential.py --tercet build/client/cli/tercet [NAME ...]
    gguf_differential.py --losses

with names of types, all without. Prints a line a type; status 1 if one differs."""
import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import gguf
import numpy

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB, INNER = 256, 4, 2, 64, 2, 64, 512
IDS = "5,17,3,60,33,8,41"
LIMIT = 1e-3
TYPES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S TQ1_0 TQ2_0 NVFP4 Q1_0".split()
# Where a block has halves that multiply everything, and of what size they are here.
HALVES = {"Q4_0": {0: 0.02}, "Q4_1": {0: 0.02, 2: -0.15}, "Q5_0": {0: 0.01}, "Q5_1": {0: 0.01, 2: -0.15}, "Q8_0": {0: 0.002},
          "Q2_K": {80: 0.01, 82: 0.01}, "Q3_K": {108: 0.002}, "Q4_K": {0: 4e-4, 2: 3e-3}, "Q5_K": {0: 2e-4, 2: 3e-3}, "Q6_K": {208: 5e-5},
          "IQ4_NL": {0: 0.002}, "IQ4_XS": {0: 1e-4}, "IQ1_S": {0: 0.015}, "IQ2_XXS": {0: 0.002}, "IQ2_XS": {0: 0.002}, "IQ2_S": {0: 0.002},
          "IQ3_XXS": {0: 1e-3}, "IQ3_S": {0: 5e-4}, "TQ1_0": {52: 0.1}, "TQ2_0": {64: 0.1}, "Q1_0": {0: 0.1}}

# ---------------------------------------------------------------- models


def dequantize(raw, name):
    """Q1_0 the package does not: a half, and a bit a value, 1 for plus."""
    if name != "Q1_0":
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name]).astype(numpy.float32)
    block = raw.reshape(-1, 18)
    scale = block[:, :2].copy().view(numpy.float16).astype(numpy.float32)
    values = scale * (numpy.unpackbits(block[:, 2:], axis=1, bitorder="little").astype(numpy.float32) * 2 - 1)
    return values.reshape(len(raw), -1)


def blocks(name, rows, columns, rng):
    """Any bytes are codes; scales have to be numbers."""
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows * columns // elements, size), dtype=numpy.uint8)
    for place, least in HALVES.get(name, {}).items():
        raw[:, place:place + 2] = (least * rng.uniform(0.5, 1, len(raw))).astype(numpy.float16).view(numpy.uint8).reshape(-1, 2)
    if name == "MXFP4":
        raw[:, 0] = rng.integers(121, 124, len(raw))
    if name == "NVFP4":
        raw[:, :4] = rng.integers(4, 24, (len(raw), 4))
    if name == "IQ1_M":  # a half of some 0.01, a quarter of it in each of four bytes
        for i, part in enumerate((rng.uniform(0.5, 1, len(raw)) * 0.015).astype(numpy.float16).view(numpy.uint16)[:, None] >> numpy.arange(0, 16, 4)):
            raw[i, 49::2] = raw[i, 49::2] & 15 | (part & 15) << 4
    raw = raw.reshape(rows, -1)
    return raw, dequantize(raw, name)


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        raw = values.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_models(folder, name):
    """folder/gguf, and folder/plain of the same values; of a family that has nothing permuted."""
    rng = numpy.random.default_rng(len(name) + ord(name[1]))
    for kind in ("gguf", "plain"):
        (folder / kind).mkdir()
    writer, plain = gguf.GGUFWriter(folder / "gguf" / "model.gguf", "qwen3"), {}
    wide, narrow = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM

    def matrix(file, here, rows, columns=HIDDEN):
        raw, plain[here + ".weight"] = blocks(name, rows, columns, rng)
        writer.add_tensor(file + ".weight", raw, raw_dtype=gguf.GGMLQuantizationType[name])

    def norm(file, here, count=HIDDEN):
        plain[here + ".weight"] = rng.uniform(0.9, 1.1, count).astype(numpy.float32)
        writer.add_tensor(file + ".weight", plain[here + ".weight"])

    matrix("token_embd", "model.embed_tokens", VOCAB)
    matrix("output", "lm_head", VOCAB)
    norm("output_norm", "model.norm")
    for layer in range(LAYERS):
        file, here = "blk.%d." % layer, "model.layers.%d." % layer
        for norm_file, norm_here, count in (("attn_norm", "input_layernorm", HIDDEN), ("ffn_norm", "post_attention_layernorm", HIDDEN),
                                            ("attn_q_norm", "self_attn.q_norm", HEAD_DIM), ("attn_k_norm", "self_attn.k_norm", HEAD_DIM)):
            norm(file + norm_file, here + norm_here, count)
        for side, rows in (("q", wide), ("k", narrow), ("v", narrow)):
            matrix(file + "attn_" + side, here + "self_attn.%s_proj" % side, rows)
        matrix(file + "attn_output", here + "self_attn.o_proj", HIDDEN, wide)
        for side in ("gate", "up"):
            matrix(file + "ffn_" + side, here + "mlp.%s_proj" % side, INNER)
        matrix(file + "ffn_down", here + "mlp.down_proj", HIDDEN, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_safetensors(folder / "plain" / "model.safetensors", plain)
    config = {"architectures": ["Qwen3ForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER, "head_dim": HEAD_DIM,
              "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 128,
              "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16"}
    for kind, extra in (("gguf", {"quantization_config": {"quant_method": "gguf"}}), ("plain", {})):
        (folder / kind / "config.json").write_text(json.dumps({**config, **extra}))


def logits(tercet, model, dtype):
    done = subprocess.run([tercet, "logits", "--model", model, "--ids", IDS, "--top", "0", "--dtype", dtype, "--threads", "1"], text=True,
                          capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return numpy.array(json.loads(done.stdout.strip().splitlines()[-1])["logits"])


def compare(tercet, name):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_models(folder, name)
        wanted, exact = (logits(tercet, folder / kind, "float32") for kind in ("plain", "gguf"))
        held = logits(tercet, folder / "gguf", "bfloat16")
    spread, off = wanted.max() - wanted.min(), abs(exact - wanted).max()
    print("%-7s float32 %.1e, as it is held %.2f %% of the logits' spread, %.1f: %s" % (
        name, off, 100 * abs(held - wanted).max() / spread, spread, "the same" if off < LIMIT else "DIFFERENT"))
    return off < LIMIT


# ---------------------------------------------------------------- losses


def nearest(values, table):
    return table[abs(values[..., None] - table).argmin(-1)]


def half(x):
    return x.astype(numpy.float16).astype(numpy.float64)


def ranges(x, group, levels, bits):
    """Scales and smallest values of groups of a block of 256, both whole numbers of `bits` bits: -> scale, least, codes."""
    x = x.reshape(-1, 256 // group, group)
    least = numpy.minimum(x.min(-1), 0)
    step, top = (x.max(-1) - least) / levels, (1 << bits) - 1
    d, dmin = half(step.max(-1, keepdims=True) / top), half(-least.min(-1, keepdims=True) / top)
    step, least = d * numpy.round(step / d), -dmin * numpy.round(-least / dmin)
    codes = numpy.clip(numpy.round((x - least[..., None]) / numpy.where(step == 0, 1, step)[..., None]), 0, levels)
    return step[..., None], least[..., None], codes


def middles(x, group, levels, top):
    """Groups of a block of 256 around 0, with scales of up to `top` times a half."""
    x = x.reshape(-1, 256 // group, group)
    step = abs(x).max(-1, keepdims=True) / levels
    d = half(step.max(1, keepdims=True) / top)
    step = d * numpy.maximum(numpy.round(step / d), 1)
    return step, numpy.clip(numpy.round(x / step), -levels - 1, levels)


# Of lattices: values that share a scale, all that a scale may be, and whether there is an even number of minuses.
LATTICES = {"IQ1_S": (32, numpy.arange(1, 16, 2), None), "IQ1_M": (16, numpy.arange(1, 16, 2), None),
            "IQ2_XXS": (32, (numpy.arange(16) + 0.5) / 4, True), "IQ2_XS": (16, (numpy.arange(16) + 0.5) / 4, True),
            "IQ2_S": (16, (numpy.arange(16) + 0.5) / 4, False), "IQ3_XXS": (32, (numpy.arange(16) + 0.5) / 2, True),
            "IQ3_S": (32, numpy.arange(1, 32, 2), False)}


def signs_of(x, even):
    """-1 and 1 for each of eights; where an even number of minuses is asked for the smallest value's sign gives way."""
    sign = numpy.where(x < 0, -1.0, 1.0).reshape(-1, 8)
    odd = numpy.nonzero((sign < 0).sum(-1) % 2)[0] if even else []
    sign[odd, abs(x.reshape(-1, 8))[odd].argmin(-1)] *= -1
    return sign.reshape(x.shape)


def lattice(name, x):
    """Of each scale's values the scale that leaves the least error, with the nearest points: -> scales, points."""
    width, steps, even = LATTICES[name]
    kind = gguf.quants._type_traits[gguf.GGMLQuantizationType[name]]
    kind.init_grid()
    points = kind.grid.reshape(kind.grid_shape).astype(numpy.float64)
    sign = 1.0 if even is None else signs_of(x, even)
    groups = (x * sign).reshape(-1, width)
    shifted = [points] if even is not None else [numpy.concatenate((points - 0.125, points + 0.125))] if name == "IQ1_M" else [points - 0.125, points + 0.125]
    most = abs(groups).max(-1).reshape(-1, 256 // width).max(-1, keepdims=True) / points.max() / steps[-1]
    d = half(most).repeat(256 // width)
    least, scales, best = numpy.full(len(groups), numpy.inf), numpy.zeros(len(groups)), numpy.zeros(groups.shape)
    for at in range(0, len(groups), 128):
        part = groups[at:at + 128]
        for table in shifted:
            product, size = part.reshape(-1, table.shape[1]) @ table.T, (table ** 2).sum(-1)
            for step in steps:
                scale = d[at:at + len(part)] * step
                each = scale.repeat(width // table.shape[1])[:, None]
                error = each ** 2 * size - 2 * each * product
                chosen = error.argmin(-1)
                total = numpy.take_along_axis(error, chosen[:, None], -1).reshape(len(part), -1).sum(-1)
                better = numpy.nonzero(total < least[at:at + len(part)])[0]
                least[at + better], scales[at + better] = total[better], scale[better]
                best[at + better] = table[chosen].reshape(part.shape)[better]
    return scales[:, None], best * (sign if even is None else sign.reshape(groups.shape))


def nvfp4(x):
    """Scales of E4M3, of which the largest is as large as it may be, by one number for all."""
    groups = x.reshape(-1, 16)
    scale = abs(groups).max(-1, keepdims=True) / 6
    times = scale.max() / 448
    unit = 2.0 ** numpy.maximum(numpy.floor(numpy.log2(scale / times)) - 3, -9)
    scale = times * unit * numpy.round(scale / times / unit)
    codes = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    return scale * nearest(groups / scale, numpy.concatenate((-codes, codes)))


def as_type(name, x):
    """-> values, and where these are scale * code + least with codes of 4 bits: that."""
    groups = x.reshape(-1, 32)
    iq4 = numpy.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.0])
    if name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"):
        kind = gguf.GGMLQuantizationType[name]
        values = gguf.quants.dequantize(gguf.quants.quantize(groups.astype(numpy.float32), kind), kind).astype(numpy.float64)
        if name == "Q4_1":
            step = half((groups.max(-1, keepdims=True) - groups.min(-1, keepdims=True)).astype(numpy.float32) / 15)
            least = half(groups.min(-1, keepdims=True))
            return values, (step, least, numpy.round((values - least) / step))
        return values, None
    if name in LATTICES:
        scales, points = lattice(name, x)
        return scales * points, (scales, 0 * scales, points) if name in ("IQ1_S", "IQ3_S") else None
    if name in ("TQ1_0", "TQ2_0"):
        kind = gguf.GGMLQuantizationType[name]
        return dequantize(gguf.quants.quantize(x.reshape(-1, 256).astype(numpy.float32), kind), name).astype(numpy.float64), None
    if name == "Q1_0":
        return half(abs(x.reshape(-1, 128)).mean(-1, keepdims=True)) * numpy.where(x.reshape(-1, 128) < 0, -1, 1), None
    if name == "NVFP4":
        return nvfp4(x), None
    if name in ("Q4_K", "Q5_K", "Q2_K"):
        linear = ranges(x, 16, 3, 4) if name == "Q2_K" else ranges(x, 32, 15 if name == "Q4_K" else 31, 6)
        return linear[0] * linear[2] + linear[1], linear if name == "Q4_K" else None
    if name in ("Q3_K", "Q6_K"):
        step, codes = middles(x, 16, 3 if name == "Q3_K" else 31, 31 if name == "Q3_K" else 127)
        return step * codes, None
    scale = half(abs(groups).max(-1, keepdims=True) / 113)
    if name == "IQ4_XS":
        scale, _ = middles(x, 32, 113, 31)
        scale = scale.reshape(-1, 1)
    return scale * nearest(groups / scale, iq4), None


def as_int8(values):
    groups = values.reshape(-1, 128)
    scale = numpy.maximum(abs(groups).max(-1, keepdims=True), 1e-30) / 127
    return scale * numpy.round(groups / scale)


def losses(name, kinds):
    line = "%-7s" % name
    for x in kinds:
        values, linear = as_type(name, x)
        if name in ("Q4_0", "TQ1_0", "TQ2_0", "Q1_0"):
            held = values  # scales are halves, and all zeros are 8
        elif linear:
            step, least, codes = linear
            held = half(step) * (codes - half(-least / numpy.where(step == 0, 1, step)))
        elif name == "MXFP4":
            groups = values.reshape(-1, 128)
            power = 2.0 ** numpy.ceil(numpy.log2(abs(groups).max(-1, keepdims=True) / 127))
            held = power * numpy.round(groups / power)
        else:
            held = as_int8(values)

        def off(a, b):
            return 100 * numpy.sqrt(((a.reshape(-1) - b.reshape(-1)) ** 2).mean() / (x ** 2).mean())

        line += "  type %6.3f %%, held %6.3f %%, both %6.3f %%" % (off(values, x), off(held, values), off(held, x))
    print(line)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tercet", default="build/client/cli/tercet")
    parser.add_argument("--losses", action="store_true")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    names = [name for name in TYPES if not args.names or name in args.names]
    if args.losses:
        rng = numpy.random.default_rng(1)
        kinds = [0.02 * rng.standard_normal(1 << 18), 0.02 * rng.standard_t(5, 1 << 18)]
        for name in names:
            losses(name, kinds)
        return 0
    right = [compare(args.tercet, name) for name in names]
    print("%d the same, %d different" % (right.count(True), right.count(False)))
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
