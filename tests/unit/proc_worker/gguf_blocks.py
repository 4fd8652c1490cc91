#!/usr/bin/env python3
"""What values the gguf package makes of many blocks of every type, as test_quant_gguf.c has them: prints its table. By hand, when a type is
added: it needs gguf and numpy."""
import gguf
import numpy

BLOCKS = 1024
# Places of the higher bytes of halves that multiply everything, one bit of which is taken out, so that they are numbers.
HALVES = {"Q4_0": [1], "Q4_1": [1, 3], "Q5_0": [1], "Q5_1": [1, 3], "Q8_0": [1], "Q2_K": [81, 83], "Q3_K": [109], "Q4_K": [1, 3], "Q5_K": [1, 3],
          "Q6_K": [209], "IQ1_S": [1], "IQ1_M": [55], "IQ2_XXS": [1], "IQ2_XS": [1], "IQ2_S": [1], "IQ3_XXS": [1], "IQ3_S": [1], "IQ4_NL": [1],
          "IQ4_XS": [1], "TQ1_0": [53], "TQ2_0": [65], "MXFP4": [0], "NVFP4": [], "Q1_0": [1]}


def random_bytes(count):
    state, out = 1, bytearray()
    for _ in range(count):
        state = (state * 1664525 + 1013904223) & 0xffffffff
        out.append(state >> 24)
    return numpy.frombuffer(bytes(out), dtype=numpy.uint8)


def signs(raw):
    """Q1_0, which the package knows by name only: a half, and a bit a value, 1 for plus (ggml, ggml-quants.c)."""
    scale = raw[:, :2].copy().view(numpy.float16).astype(numpy.float32)
    return scale * (numpy.unpackbits(raw[:, 2:], axis=1, bitorder="little").astype(numpy.float32) * 2 - 1)


def fnv1a(raw):
    value = 0xcbf29ce484222325
    for byte in raw:
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return value


for name, places in HALVES.items():
    kind = gguf.GGMLQuantizationType[name]
    size = gguf.GGML_QUANT_SIZES[kind][1]
    raw = random_bytes(BLOCKS * size).reshape(BLOCKS, size).copy()
    raw[:, places] &= 0xbf
    values = signs(raw) if name == "Q1_0" else gguf.quants.dequantize(raw, kind)
    print("\t{GGUF_%s, {%s}, 0x%016x}," % (name, ", ".join(map(str, (places + ["NONE", "NONE"])[:2])), fnv1a(values.astype("<f4").tobytes())))
