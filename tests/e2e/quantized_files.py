"""Checkpoints in the formats of AWQ, GPTQ, compressed-tensors, bitsandbytes, Model Optimizer, Quark and FP8, small ones and of random
numbers, each beside a plain one of the values that it stands for: written here by the published packing."""
import array
import json
import random
import struct

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB = 128, 4, 2, 32, 2, 64
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


# ---------------------------------------------------------------- files


def write_safetensors(path, tensors):
    """name -> (type, shape, bytes)"""
    header, data = {}, b""
    for name, (kind, shape, raw) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def floats(values):
    return array.array("f", values).tobytes()


def halves(values):
    return struct.pack("<%de" % len(values), *values)


def bf16s(values):
    """Of numbers that are exact in bfloat16."""
    raw = floats(values)
    return b"".join(raw[i + 2:i + 4] for i in range(0, len(raw), 4))


def words(values):
    return struct.pack("<%dI" % len(values), *values)


def to_half(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


def to_float(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def to_bf16(x):
    return struct.unpack("<f", b"\0\0" + struct.pack("<f", x)[2:])[0]


def f8_value(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    size = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0 ** -9
    return -size if code & 128 else size


# ---------------------------------------------------------------- formats: (name, rows, columns) -> parts, values


class Awq:
    def __init__(self, group):
        self.group = group
        self.config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm",
                       "modules_to_not_convert": None}

    def pack(self, per_input):
        """[inputs][outputs] of codes: eight outputs a word."""
        return words([sum(row[at + AWQ_ORDER[i]] << 4 * i for i in range(8))
                      for row in per_input for at in range(0, len(row), 8)])

    def make(self, stem, rows, columns, rng):
        groups = columns // self.group
        codes = [[rng.randrange(16) for _ in range(rows)] for _ in range(columns)]
        zeros = [[rng.randrange(16) for _ in range(rows)] for _ in range(groups)]
        scales = [[to_half(rng.uniform(0.002, 0.01)) for _ in range(rows)] for _ in range(groups)]
        parts = {stem + "qweight": ("I32", (columns, rows // 8), self.pack(codes)),
                 stem + "qzeros": ("I32", (groups, rows // 8), self.pack(zeros)),
                 stem + "scales": ("F16", (groups, rows), halves([s for row in scales for s in row]))}
        values = [(codes[k][n] - zeros[k // self.group][n]) * scales[k // self.group][n]
                  for n in range(rows) for k in range(columns)]
        return parts, values


def dense_words(codes, bits):
    """Numbers one behind the other, whose bits may go on in the next word."""
    whole = sum(code << bits * i for i, code in enumerate(codes))
    return [whole >> 32 * i & 0xffffffff for i in range(-(-len(codes) * bits // 32))]


class Gptq:
    def __init__(self, group, offset=1, ordered=False, bits=4, symmetric=False, **config):
        self.group, self.offset, self.ordered, self.bits, self.symmetric = group, offset, ordered, bits, symmetric
        self.config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": ordered, "sym": symmetric,
                       "damp_percent": 0.01, "true_sequential": True}
        if offset == 0:
            self.config["checkpoint_format"] = "gptq_v2"
        if config:
            self.config = {"bits": bits, "group_size": group, "sym": symmetric, **config}

    def make(self, stem, rows, columns, rng):
        bits, top = self.bits, 1 << self.bits
        group = self.group if self.group > 0 else columns
        groups = columns // group
        group_of = [k // group for k in range(columns)]
        if self.ordered:  # the same for all matrices that read the same inputs
            random.Random(columns).shuffle(group_of)
        codes = [[rng.randrange(top) for _ in range(rows)] for _ in range(columns)]
        zeros = [[top // 2 if self.symmetric else rng.randrange(self.offset, top) for _ in range(rows)] for _ in range(groups)]
        if not self.symmetric:
            zeros[0][0] = 0  # stored as the largest where 1 is taken off
        scales = [[to_half(rng.uniform(0.002, 0.01) * 16 / top) for _ in range(rows)] for _ in range(groups)]
        by_output = [dense_words([row[n] for row in codes], bits) for n in range(rows)]
        weights = [column[k] for k in range(columns * bits // 32) for column in by_output]
        stored = [word for z in zeros for word in dense_words([code - self.offset & top - 1 for code in z], bits)]
        parts = {stem + "qweight": ("I32", (columns * bits // 32, rows), words(weights)),
                 stem + "qzeros": ("I32", (groups, rows * bits // 32), words(stored)),
                 stem + "scales": ("F16", (groups, rows), halves([s for row in scales for s in row])),
                 stem + "g_idx": ("I32", (columns,), words(group_of))}
        values = [(codes[k][n] - zeros[group_of[k]][n]) * scales[group_of[k]][n]
                  for n in range(rows) for k in range(columns)]
        return parts, values


def compressed(form, **weights):
    scheme = {"dynamic": False, "observer": "minmax", "actorder": None, **weights}
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"], "kv_cache_scheme": None,
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme, "input_activations": None,
                                          "output_activations": None}}}


class Packed:
    """Neighbours of a row, in order, with half of the range added."""

    def __init__(self, bits, group, symmetric):
        self.bits, self.group, self.symmetric = bits, group, symmetric
        self.config = compressed("pack-quantized", num_bits=bits, type="int", symmetric=symmetric,
                                 strategy="group" if group else "channel", group_size=group or None)

    def make(self, stem, rows, columns, rng):
        bits, group, half = self.bits, self.group or columns, 1 << self.bits - 1
        groups, top = columns // group, 2 * half
        codes = [[rng.randrange(top) for _ in range(columns)] for _ in range(rows)]
        zeros = [[half if self.symmetric else rng.randrange(top) for _ in range(groups)] for _ in range(rows)]
        scales = [[to_bf16(rng.uniform(0.004, 0.01) * 16 / top) for _ in range(groups)] for _ in range(rows)]
        weights = [word for row in codes for word in dense_words(row, bits)]
        parts = {stem + "weight_packed": ("I32", (rows, -(-columns * bits // 32)), words(weights)),
                 stem + "weight_scale": ("BF16", (rows, groups), bf16s([s for row in scales for s in row])),
                 stem + "weight_shape": ("I64", (2,), struct.pack("<2q", rows, columns))}
        if not self.symmetric:
            by_group = [dense_words([row[g] for row in zeros], bits) for g in range(groups)]
            stored = [column[n] for n in range(rows * bits // 32) for column in by_group]
            parts[stem + "weight_zero_point"] = ("I32", (rows * bits // 32, groups), words(stored))
        values = [(codes[n][k] - zeros[n][k // group]) * scales[n][k // group]
                  for n in range(rows) for k in range(columns)]
        return parts, values


class Int8:
    def __init__(self, group, symmetric=True):
        self.group, self.symmetric = group, symmetric
        self.config = compressed("int-quantized", num_bits=8, type="int", symmetric=symmetric,
                                 strategy="group" if group else "channel", group_size=group or None)

    def make(self, stem, rows, columns, rng):
        group = self.group or columns
        groups = columns // group
        codes = [rng.randrange(-127, 128) for _ in range(rows * columns)]
        zeros = [0 if self.symmetric else rng.randrange(-20, 20) for _ in range(rows * groups)]
        scales = [to_float(rng.uniform(0.0002, 0.0006)) for _ in range(rows * groups)]
        parts = {stem + "weight": ("I8", (rows, columns), array.array("b", codes).tobytes()),
                 stem + "weight_scale": ("F32", (rows, groups), floats(scales))}
        if not self.symmetric:
            parts[stem + "weight_zero_point"] = ("I8", (rows, groups), array.array("b", zeros).tobytes())
        values = [to_float((codes[n * columns + k] - zeros[n * groups + k // group]) *
                           scales[n * groups + k // group]) for n in range(rows) for k in range(columns)]
        return parts, values


class Fp8:
    def __init__(self, strategy):
        self.strategy = strategy
        if strategy == "blocks":
            self.config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                           "weight_block_size": [128, 128]}
        else:
            self.config = compressed("float-quantized", num_bits=8, type="float", symmetric=True, strategy=strategy)

    def make(self, stem, rows, columns, rng):
        codes = bytes(rng.choice((0, 128)) | rng.randrange(127) for _ in range(rows * columns))
        shape = {"tensor": (1,), "channel": (rows, 1), "blocks": (-(-rows // 128), -(-columns // 128))}[self.strategy]
        high, wide = {"tensor": (rows, columns), "channel": (1, columns), "blocks": (128, 128)}[self.strategy]
        across = -(-columns // wide)
        scales = [to_bf16(rng.uniform(0.0001, 0.0004)) for _ in range(shape[0] * across)]
        suffix = "weight_scale_inv" if self.strategy == "blocks" else "weight_scale"
        parts = {stem + "weight": ("F8_E4M3", (rows, columns), codes),
                 stem + suffix: ("F32" if self.strategy == "blocks" else "BF16", shape,
                                 (floats if self.strategy == "blocks" else bf16s)(scales))}
        values = [to_float(f8_value(codes[n * columns + k]) * scales[n // high * across + k // wide])
                  for n in range(rows) for k in range(columns)]
        return parts, values


E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6)


def half_bytes(codes, high_first=False):
    pairs = zip(codes[1::2], codes[::2]) if high_first else zip(codes[::2], codes[1::2])
    return bytes(low | high << 4 for low, high in pairs)


class Fp4:
    """NVFP4, with a scale of all, or MXFP4; as compressed-tensors or Model Optimizer name their parts."""

    def __init__(self, group, optimizer=False):
        self.group, self.optimizer = group, optimizer
        form = "nvfp4-pack-quantized" if group == 16 else "mxfp4-pack-quantized"
        self.config = compressed(form, num_bits=4, type="float", symmetric=True, strategy="tensor_group" if group == 16 else "group",
                                 group_size=group)
        if optimizer:
            self.config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
                           "producer": {"name": "modelopt", "version": "0.33.0"}}

    def make(self, stem, rows, columns, rng):
        codes = [rng.randrange(16) for _ in range(rows * columns)]
        blocks = rows * columns // self.group
        stored = bytes(rng.randrange(64, 96) if self.group == 16 else rng.randrange(117, 121) for _ in range(blocks))
        every = to_float(rng.uniform(100, 300)) if self.group == 16 else 1
        if self.optimizer:
            every = to_float(1 / every)
        scales = [2.0 ** (code - 127) if self.group == 32 else
                  to_float(f8_value(code) * every) if self.optimizer else to_float(f8_value(code) / every) for code in stored]
        parts = {stem + ("weight" if self.optimizer else "weight_packed"): ("U8", (rows, columns // 2), half_bytes(codes)),
                 stem + "weight_scale": ("F8_E4M3" if self.group == 16 else "U8", (rows, columns // self.group), stored)}
        if self.group == 16:
            parts[stem + ("weight_scale_2" if self.optimizer else "weight_global_scale")] = (
                "F32", () if self.optimizer else (1,), floats([every]))
        return parts, [to_float(E2M1[code] * scales[i // self.group]) for i, code in enumerate(codes)]


class Mxfp8:
    def __init__(self):
        self.config = compressed("mxfp8-quantized", num_bits=8, type="float", symmetric=True, strategy="group", group_size=32,
                                 scale_dtype="torch.uint8")

    def make(self, stem, rows, columns, rng):
        codes = bytes(rng.choice((0, 128)) | rng.randrange(120) for _ in range(rows * columns))
        powers = bytes(rng.randrange(113, 117) for _ in range(rows * columns // 32))
        parts = {stem + "weight": ("F8_E4M3", (rows, columns), codes), stem + "weight_scale": ("U8", (rows, columns // 32), powers)}
        return parts, [f8_value(code) * 2.0 ** (powers[i // 32] - 127) for i, code in enumerate(codes)]


class Fbgemm(Fp8):
    """A scale a row, under another name of the method."""

    def __init__(self):
        super().__init__("channel")
        self.config = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}


def quark(**weight):
    """A configuration as AMD's Quark writes it, null fields and all."""
    spec = {"ch_axis": None, "group_size": None, "is_dynamic": False, "is_scale_quant": False, "mx_element_dtype": None,
            "observer_cls": "PerTensorMinMaxObserver", "round_method": "half_even", "scale_calculation_mode": None, "scale_format": None,
            "scale_type": "float", "symmetric": True, "max_input_numel": 4194304, "enable_buffer_reuse": False, **weight}
    return {"quant_method": "quark", "quant_mode": "eager_mode", "version": "0.13", "algo_config": None, "exclude": ["lm_head"],
            "global_quant_config": {"bias": None, "input_tensors": {"dtype": "fp8_e4m3"}, "output_tensors": None, "target_device": None,
                                    "weight": spec},
            "kv_cache_quant_config": {}, "layer_quant_config": {}, "layer_type_quant_config": {}, "softmax_quant_spec": None,
            "export": {"kv_cache_group": ["*k_proj", "*v_proj"], "min_kv_scale": 0.0, "pack_method": "reorder",
                       "weight_format": "real_quantized", "weight_merge_groups": None}}


class QuarkFp8(Fp8):
    """Scales are a number, or a vector of the rows'."""

    def __init__(self, strategy):
        super().__init__(strategy)
        self.config = quark(dtype="fp8_e4m3", qscheme="per_" + strategy, ch_axis=0 if strategy == "channel" else None)

    def make(self, stem, rows, columns, rng):
        parts, values = super().make(stem, rows, columns, rng)
        kind, shape, raw = parts[stem + "weight_scale"]
        parts[stem + "weight_scale"] = (kind, shape[:1] if self.strategy == "channel" else (), raw)
        return parts, values


class QuarkFp4(Fp4):
    def __init__(self):
        super().__init__(32, True)
        self.config = quark(dtype="fp4", qscheme="per_group", ch_axis=-1, group_size=32, scale_format="e8m0", symmetric=None)


class QuarkInt8:
    """Zero points are there of symmetric schemes, too."""

    def __init__(self, strategy, symmetric=True):
        self.strategy, self.symmetric = strategy, symmetric
        self.config = quark(dtype="int8", qscheme="per_" + strategy, ch_axis=0 if strategy == "channel" else None, symmetric=symmetric)

    def make(self, stem, rows, columns, rng):
        codes = [rng.randrange(-128, 128) for _ in range(rows * columns)]
        count, shape = (rows, (rows,)) if self.strategy == "channel" else (1, ())
        scales = [to_float(rng.uniform(0.0002, 0.0006)) for _ in range(count)]
        zeros = [0 if self.symmetric else rng.randrange(-40, 40) for _ in range(count)]
        parts = {stem + "weight": ("I8", (rows, columns), array.array("b", codes).tobytes()), stem + "weight_scale": ("F32", shape, floats(scales)),
                 stem + "weight_zero_point": ("I8", shape, array.array("b", zeros).tobytes())}
        return parts, [to_float((code - zeros[i // columns % count]) * scales[i // columns % count]) for i, code in enumerate(codes)]


class QuarkInt4(Awq):
    """Words as AWQ has them, under other names; whole numbers may be in two's complement."""

    def __init__(self, group, signed):
        super().__init__(group)
        self.signed = signed
        self.config = quark(dtype="int4" if signed else "uint4", qscheme="per_group", ch_axis=1, group_size=group, symmetric=signed)

    def pack(self, per_input):
        return super().pack([[code ^ 8 for code in row] for row in per_input] if self.signed else per_input)

    def make(self, stem, rows, columns, rng):
        parts, values = super().make(stem, rows, columns, rng)
        names = {"qweight": "weight", "qzeros": "weight_zero_point", "scales": "weight_scale"}
        return {stem + names[name[len(stem):]]: part for name, part in parts.items()}, values


class QuarkMixed:
    """Some modules in another scheme."""

    def __init__(self):
        self.four, self.eight = QuarkInt4(32, True), QuarkFp8("channel")
        self.config = {**self.four.config, "layer_quant_config": {"*down_proj": self.eight.config["global_quant_config"]},
                       "algo_config": [{"name": "awq", "scaling_layers": []}, {"name": "rotation", "r1": True}, {"name": "quarot", "r4": False}]}

    def make(self, stem, rows, columns, rng):
        return (self.eight if "down_proj" in stem else self.four).make(stem, rows, columns, rng)


class BitsAndBytes:
    """A table of 16 values, blocks of 64 of them; `nested`: their scales are in a table, too."""

    def __init__(self, nested):
        self.nested = nested
        self.config = {"quant_method": "bitsandbytes", "_load_in_4bit": True, "_load_in_8bit": False, "bnb_4bit_compute_dtype": "bfloat16",
                       "bnb_4bit_quant_storage": "uint8", "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": nested,
                       "llm_int8_threshold": 6.0, "llm_int8_has_fp16_weight": False, "llm_int8_skip_modules": None}

    def make(self, stem, rows, columns, rng):
        stem += "weight"
        codes = [rng.randrange(16) for _ in range(rows * columns)]
        table = [to_float(rng.uniform(-1, 1)) for _ in range(16)]
        blocks = rows * columns // 64
        state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [rows, columns]}
        parts = {stem: ("U8", (rows * columns // 2, 1), half_bytes(codes, True)), stem + ".quant_map": ("F32", (16,), floats(table))}
        if self.nested:
            places = bytes(rng.randrange(256) for _ in range(blocks))
            values = [to_float(rng.uniform(-1, 1)) for _ in range(256)]
            outer = [to_float(rng.uniform(0.01, 0.03)) for _ in range(-(-blocks // 256))]
            scales = [values[place] * outer[i // 256] + 0.0625 for i, place in enumerate(places)]
            state.update(nested_blocksize=256, nested_dtype="float32", nested_offset=0.0625)
            parts.update({stem + ".absmax": ("U8", (blocks,), places), stem + ".nested_quant_map": ("F32", (256,), floats(values)),
                          stem + ".nested_absmax": ("F32", (len(outer),), floats(outer))})
        else:
            scales = [to_float(rng.uniform(0.02, 0.1)) for _ in range(blocks)]
            parts[stem + ".absmax"] = ("F32", (blocks,), floats(scales))
        text = json.dumps(state).encode()
        parts[stem + ".quant_state.bitsandbytes__nf4"] = ("U8", (len(text),), text)
        return parts, [to_float(table[code] * scales[i // 64]) for i, code in enumerate(codes)]


class BitsAndBytes8:
    def __init__(self):
        self.config = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True, "llm_int8_threshold": 6.0}

    def make(self, stem, rows, columns, rng):
        codes = [rng.randrange(-127, 128) for _ in range(rows * columns)]
        largest = [to_float(rng.uniform(0.02, 0.06)) for _ in range(rows)]
        parts = {stem + "weight": ("I8", (rows, columns), array.array("b", codes).tobytes()), stem + "SCB": ("F32", (rows,), floats(largest)),
                 stem + "weight_format": ("U8", (), b"\0")}
        return parts, [to_float(code * largest[i // columns] / 127) for i, code in enumerate(codes)]


class Ternary:
    """Of BitNet: four rows, a quarter of all apart, in a byte, and a number of all, which multiplies or divides."""

    def __init__(self, divides, scale_type="BF16"):
        self.divides, self.scale_type = divides, scale_type
        self.config = {"quant_method": "bitnet", "modules_to_not_convert": None}
        if not divides:
            self.config.update(linear_class="autobitlinear", quantization_mode="offline")

    def make(self, stem, rows, columns, rng):
        codes = [rng.randrange(3) for _ in range(rows * columns)]
        part = rows * columns // 4
        scale, rounded = rng.uniform(10, 50) if self.divides else rng.uniform(0.02, 0.1), {"BF16": to_bf16, "F32": to_float}[self.scale_type]
        scale = rounded(scale)
        value = 1 / scale if self.divides else scale
        parts = {stem + "weight": ("U8", (rows // 4, columns), bytes(sum(codes[k * part + i] << 2 * k for k in range(4)) for i in range(part))),
                 stem + "weight_scale": (self.scale_type, (1,), bf16s([scale]) if self.scale_type == "BF16" else floats([scale]))}
        return parts, [(code - 1) * value for code in codes]


class TernaryAtLoad:
    """Values that are rounded as they are read: by how large they are on average."""
    config = {"quant_method": "bitnet", "modules_to_not_convert": ["lm_head"], "linear_class": "autobitlinear", "quantization_mode": "online",
              "use_rms_norm": False, "rms_norm_eps": 1e-6}

    def make(self, stem, rows, columns, rng):
        stored = [to_float(rng.gauss(0, 0.05)) for _ in range(rows * columns)]
        by = to_float(1 / to_float(sum(map(abs, stored)) / len(stored)))
        values = [max(-1, min(1, round(x * by))) / by for x in stored]
        return {stem + "weight": ("F32", (rows, columns), floats(stored))}, values


class Mixed:
    """Schemes take turns, matrix by matrix."""

    def __init__(self, *forms):
        self.forms, self.made = forms, 0
        groups = {"group_%d" % i: {**form.config["config_groups"]["group_0"], "format": form.config["format"]} for i, form in enumerate(forms)}
        self.config = {**forms[0].config, "format": "mixed-precision", "config_groups": groups}

    def make(self, stem, rows, columns, rng):
        self.made += 1
        return self.forms[self.made % len(self.forms)].make(stem, rows, columns, rng)


class GptqMixed:
    """Some modules in more bits, as GPTQModel ("dynamic") and AutoRound ("extra_config") say it."""

    def __init__(self, config):
        self.four, self.eight, self.config = Gptq(64), Gptq(32, bits=8, symmetric=True), config

    def make(self, stem, rows, columns, rng):
        return (self.eight if "down_proj" in stem or "v_proj" in stem else self.four).make(stem, rows, columns, rng)


# ---------------------------------------------------------------- checkpoints

FORMATS = {
    "awq-64": Awq(64), "awq-128": Awq(128), "gptq-64": Gptq(64), "gptq-row": Gptq(-1), "gptq-v2-32": Gptq(32, 0),
    "gptq-order-64": Gptq(64, ordered=True), "packed4-32": Packed(4, 32, True), "packed4-128-zeros": Packed(4, 128, False),
    "packed8-row": Packed(8, 0, True), "int8-row": Int8(0), "int8-128": Int8(128), "int8-64-zeros": Int8(64, False),
    "fp8-tensor": Fp8("tensor"), "fp8-row": Fp8("channel"), "fp8-blocks": Fp8("blocks"),
    "gptq2-32": Gptq(32, bits=2), "gptq3-64": Gptq(64, bits=3), "gptq8-128": Gptq(128, bits=8, symmetric=True),
    "gptq8-64-zeros": Gptq(64, 0, bits=8), "packed3-32-zeros": Packed(3, 32, False), "packed6-128": Packed(6, 128, True),
    "fp4-nv": Fp4(16), "fp4-nv-modelopt": Fp4(16, True), "fp4-mx": Fp4(32), "fp8-mx": Mxfp8(), "fp8-fbgemm": Fbgemm(),
    "bnb4": BitsAndBytes(False), "bnb4-nested": BitsAndBytes(True), "bnb8": BitsAndBytes8(),
    "mixed-fp": Mixed(Fp4(16), Fp8("channel")), "mixed-int": Mixed(Packed(4, 32, False), Packed(8, 0, True), Int8(128)),
    "gptq-dynamic": GptqMixed({"quant_method": "gptq", "method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": False,
                               "format": "gptq", "checkpoint_format": "gptq", "pack_dtype": "int32", "lm_head": False,
                               "dynamic": {"-:.*mlp.gate": {}, r"+:.*\.(down|v)_proj": {"bits": 8, "group_size": 32, "sym": True}}}),
    "auto-round": GptqMixed({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4, "group_size": 64,
                             "sym": False, "data_type": "int", "autoround_version": "0.16.1", "iters": 1000,
                             "extra_config": {"model.layers.0.mlp.down_proj": {"bits": 8, "group_size": 32, "sym": True},
                                              "lm_head": {"bits": 16}}}),
    "ternary": Ternary(False), "ternary-divides": Ternary(True),
    "fp-quark-tensor": QuarkFp8("tensor"), "fp-quark-row": QuarkFp8("channel"), "fp-quark-mx": QuarkFp4(), "quark-int8": QuarkInt8("tensor"),
    "quark-int8-row": QuarkInt8("channel"), "quark-int8-row-zeros": QuarkInt8("channel", False), "quark-int4-32": QuarkInt4(32, True),
    "quark-uint4-128": QuarkInt4(128, False), "quark-mixed": QuarkMixed(),
    "auto-round-v2": Gptq(32, 0, bits=2, quant_method="auto-round", packing_format="auto_round:gptqmodel", data_type="int"),
}


LLAMA = {"architecture": "LlamaForCausalLM", "embed": "model.embed_tokens", "head": "lm_head",
         "norms": ("input_layernorm", "post_attention_layernorm"), "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
         "out": "self_attn.o_proj", "mlp": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")}
BITNET = {**LLAMA, "architecture": "BitNetForCausalLM", "norms": (*LLAMA["norms"], "self_attn.attn_sub_norm"), "wide_norms": ("mlp.ffn_sub_norm",), "even_head": True}
# q, k and v in one matrix, in it the rows of a KV head side by side.
INTERNLM2 = {"architecture": "InternLM2ForCausalLM", "embed": "model.tok_embeddings", "head": "output",
             "norms": ("attention_norm", "ffn_norm"), "qkv": ("attention.wqkv",), "out": "attention.wo",
             "mlp": ("feed_forward.w1", "feed_forward.w3", "feed_forward.w2")}


def write_models(folder, form, intermediate=384, family=LLAMA):
    """folder/quantized, and folder/plain in float32 of the same values."""
    rng = random.Random(str(form.config))
    wide = HEADS * HEAD_DIM
    narrow = KV_HEADS * HEAD_DIM
    plain, quantized = {}, {}

    def both(name, shape, spread, middle=0.0):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        part = ("F32", shape, floats([rng.uniform(middle - spread, middle + spread) for _ in range(count)]))
        plain[name] = quantized[name] = part

    both(family["embed"] + ".weight", (VOCAB, HIDDEN), 1.0)
    both("model.norm.weight", (HIDDEN,), 0.1, 1.0)
    both(family["head"] + ".weight", (VOCAB, HIDDEN), 0.2)
    if "even_head" in family:  # what 4 bits hold exactly
        codes = [(0, 15)[i % 32] if i % 32 < 2 else rng.randrange(16) for i in range(VOCAB * HIDDEN)]
        plain["lm_head.weight"] = quantized["lm_head.weight"] = ("F32", (VOCAB, HIDDEN), floats([(code - 7) / 32 for code in codes]))
    gate, up, down = family["mlp"]
    qkv = zip(family["qkv"], (wide, narrow, narrow) if len(family["qkv"]) == 3 else (wide + 2 * narrow,))
    modules = [(name, rows, HIDDEN) for name, rows in qkv] + [
        (family["out"], HIDDEN, wide), (gate, intermediate, HIDDEN), (up, intermediate, HIDDEN), (down, HIDDEN, intermediate)]
    for layer in range(LAYERS):
        stem = "model.layers.%d." % layer
        for norm in family["norms"]:
            both(stem + norm + ".weight", (HIDDEN,), 0.1, 1.0)
        for norm in family.get("wide_norms", ()):
            both(stem + norm + ".weight", (intermediate,), 0.1, 1.0)
        for name, rows, columns in modules:
            parts, values = form.make(stem + name + ".", rows, columns, rng)
            quantized.update(parts)
            plain[stem + name + ".weight"] = ("F32", (rows, columns), floats(values))
    config = {"architectures": [family["architecture"]], **({"bias": False} if family is INTERNLM2 else {}), "vocab_size": VOCAB, "hidden_size": HIDDEN,
              "intermediate_size": intermediate, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
              "torch_dtype": "float16"}
    for name, tensors, extra in (("plain", plain, {}), ("quantized", quantized, {"quantization_config": form.config})):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({**config, **extra}))
        write_safetensors(folder / name / "model.safetensors", tensors)
    return folder / "plain", folder / "quantized"
