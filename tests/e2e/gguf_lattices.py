"""Blocks of the types of GGUF files that have one to three bits a value, and NVFP4: a generator of numbers -> bytes, values. Of each lattice a few
points, those that are written here; unit tests have the others."""
import struct

from quantized_files import E2M1, halves, to_half

# Place in the type's table: what it is there.
POINTS = {"IQ1": {385: (1, 1, 0, 0, -1, 1, 0, -1), 1031: (-1, 1, 0, 0, 0, 0, 0, 0), 2043: (0, 0, 0, 1, 1, 1, 1, 1)},
          "IQ2_XXS": {49: (43, 25, 8, 25, 25, 25, 8, 8), 135: (8, 43, 25, 8, 8, 8, 8, 25), 251: (25, 43, 8, 8, 25, 8, 43, 43)},
          "IQ2_XS": {97: (25, 8, 43, 25, 25, 25, 8, 8), 263: (8, 25, 43, 8, 8, 8, 8, 25), 507: (43, 25, 8, 43, 25, 43, 43, 43)},
          "IQ2_S": {193: (25, 8, 25, 25, 25, 43, 8, 8), 519: (25, 25, 25, 25, 25, 8, 8, 25), 1019: (8, 8, 43, 8, 43, 43, 43, 43)},
          "IQ3_XXS": {49: (20, 28, 44, 4), 135: (36, 62, 44, 20), 251: (12, 36, 36, 62)},
          "IQ3_S": {97: (3, 7, 13, 1), 263: (3, 3, 11, 5), 507: (5, 5, 11, 15)}}


def chosen(rng, name, count):
    """-> places, the values of all points."""
    places = [rng.choice(list(POINTS[name])) for _ in range(count)]
    return places, [x for place in places for x in POINTS[name][place]]


def half(rng, top):
    """One that leaves values below a quarter."""
    return to_half(rng.uniform(0.5, 1) * 0.25 / top)


def some(rng, count, top):
    return [rng.randrange(top) for _ in range(count)]


def fours(codes):
    return bytes(codes[i] | codes[i + 1] << 4 for i in range(0, len(codes), 2))


def bits(codes):
    return bytes(sum(c << i for i, c in enumerate(codes[at:at + 8])) for at in range(0, len(codes), 8))


def even_signs(rng):
    """For eight values: 7 bits, all signs."""
    seven = rng.randrange(128)
    eight = seven | bin(seven).count("1") % 2 << 7
    return seven, [-1 if eight >> i & 1 else 1 for i in range(8)]


def four_sevens(rng):
    parts = [even_signs(rng) for _ in range(4)]
    return sum(seven << 7 * i for i, (seven, _) in enumerate(parts)), [x for _, signs in parts for x in signs]


def any_signs(rng):
    codes = some(rng, 256, 2)
    return bits(codes), [1 - 2 * c for c in codes]


def times(d, scales, signs, values):
    """`d` times a scale of each so many neighbours."""
    width = 256 // len(scales)
    return [d * scales[i // width] * signs[i] * x for i, x in enumerate(values)]


def iq2_xxs(rng):
    d, places, values = half(rng, 43 * 4), *chosen(rng, "IQ2_XXS", 32)
    scales, signs, raw = some(rng, 8, 16), [], halves([d])
    for run in range(8):
        word, more = four_sevens(rng)
        signs += more
        raw += bytes(places[4 * run:4 * run + 4]) + struct.pack("<I", word | scales[run] << 28)
    return raw, times(d, [(s + 0.5) / 4 for s in scales], signs, values)


def iq2_xs(rng):
    d, places, values = half(rng, 43 * 4), *chosen(rng, "IQ2_XS", 32)
    scales, parts = some(rng, 16, 16), [even_signs(rng) for _ in range(32)]
    raw = halves([d]) + struct.pack("<32H", *[place | seven << 9 for place, (seven, _) in zip(places, parts)]) + fours(scales)
    return raw, times(d, [(s + 0.5) / 4 for s in scales], [x for _, signs in parts for x in signs], values)


def iq2_s(rng):
    d, places, values = half(rng, 43 * 4), *chosen(rng, "IQ2_S", 32)
    scales, (raw_signs, signs) = some(rng, 16, 16), any_signs(rng)
    high = bytes(sum(places[at + i] >> 8 << 2 * i for i in range(4)) for at in range(0, 32, 4))
    raw = halves([d]) + bytes(place & 255 for place in places) + raw_signs + high + fours(scales)
    return raw, times(d, [(s + 0.5) / 4 for s in scales], signs, values)


def iq3_xxs(rng):
    d, places, values = half(rng, 62 * 8), *chosen(rng, "IQ3_XXS", 64)
    scales, parts = some(rng, 8, 16), [four_sevens(rng) for _ in range(8)]
    raw = halves([d]) + bytes(places) + struct.pack("<8I", *[word | s << 28 for (word, _), s in zip(parts, scales)])
    return raw, times(d, [(s + 0.5) / 2 for s in scales], [x for _, signs in parts for x in signs], values)


def iq3_s(rng):
    d, places, values = half(rng, 15 * 31), *chosen(rng, "IQ3_S", 64)
    scales, (raw_signs, signs) = some(rng, 8, 16), any_signs(rng)
    raw = halves([d]) + bytes(place & 255 for place in places) + bits([place >> 8 for place in places]) + raw_signs + fours(scales)
    return raw, times(d, [1 + 2 * s for s in scales], signs, values)


def iq1_s(rng):
    d, places, values = half(rng, 15), *chosen(rng, "IQ1", 32)
    scales, less = some(rng, 8, 8), some(rng, 8, 2)
    words = [sum(places[4 * run + i] >> 8 << 3 * i for i in range(4)) | scales[run] << 12 | less[run] << 15 for run in range(8)]
    raw = halves([d]) + bytes(place & 255 for place in places) + struct.pack("<8H", *words)
    return raw, times(d, [1 + 2 * s for s in scales], [1] * 256, [x + 0.125 - less[i // 32] / 4 for i, x in enumerate(values)])


def iq1_m(rng):
    d, places, values = half(rng, 15), *chosen(rng, "IQ1", 32)
    scales, less, parts = some(rng, 16, 8), some(rng, 32, 2), struct.unpack("<H", halves([d]))[0]
    words = [sum(scales[4 * word + i] << 3 * i for i in range(4)) | (parts >> 4 * word & 15) << 12 for word in range(4)]
    raw = bytes(place & 255 for place in places) + fours([place >> 8 | bit << 3 for place, bit in zip(places, less)]) + struct.pack("<4H", *words)
    return raw, times(d, [1 + 2 * s for s in scales], [1] * 256, [x + 0.125 - less[i // 8] / 4 for i, x in enumerate(values)])


def tq1_0(rng):
    """Numbers of five digits to the base of three as parts of 256, rounded up."""
    d, codes, raw = half(rng, 1), some(rng, 256, 3), b""
    for at, width, count in ((0, 32, 5), (160, 16, 5), (240, 4, 4)):
        numbers = [sum(codes[at + run * width + i] * 3 ** (4 - run) for run in range(count)) for i in range(width)]
        raw += bytes((number * 256 + 242) // 243 for number in numbers)
    return raw + halves([d]), [d * (c - 1) for c in codes]


def tq2_0(rng):
    d, codes = half(rng, 1), some(rng, 256, 3)
    raw = bytes(sum(codes[side + run * 32 + i] << 2 * run for run in range(4)) for side in (0, 128) for i in range(32))
    return raw + halves([d]), [d * (c - 1) for c in codes]


def q1_0(rng):
    d, codes = half(rng, 1), some(rng, 128, 2)
    return halves([d]) + bits(codes), [d * (2 * c - 1) for c in codes]


def nvfp4(rng):
    """Scales of E4M3 from 2^-6 on, a few below."""
    scales, codes = [rng.randrange(4, 24) for _ in range(4)], some(rng, 64, 16)
    raw = bytes(scales) + b"".join(bytes(codes[at + i] | codes[at + 8 + i] << 4 for i in range(8)) for at in range(0, 64, 16))
    numbers = [2.0 ** (s // 8 - 7) * (1 + s % 8 / 8) if s >= 8 else s * 2.0 ** -9 for s in scales]
    return raw, [numbers[i // 16] * E2M1[c] for i, c in enumerate(codes)]


# number in the file, elements of a block, how one is made
TYPES = {"IQ1_S": (19, 256, iq1_s), "IQ1_M": (29, 256, iq1_m), "IQ2_XXS": (16, 256, iq2_xxs), "IQ2_XS": (17, 256, iq2_xs), "IQ2_S": (22, 256, iq2_s),
         "IQ3_XXS": (18, 256, iq3_xxs), "IQ3_S": (21, 256, iq3_s), "TQ1_0": (34, 256, tq1_0), "TQ2_0": (35, 256, tq2_0),
         "NVFP4": (40, 64, nvfp4), "Q1_0": (41, 128, q1_0)}
