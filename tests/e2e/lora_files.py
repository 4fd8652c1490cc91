"""Adapters for the demo model as PEFT writes them, and checkpoints that have them merged in: both from the same numbers."""
import array
import json
import random
import shutil
import struct

from engine import DEMO

HIDDEN, KV, INTERMEDIATE, LAYERS = 256, 128, 704, 6
SHAPES = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV, HIDDEN), "self_attn.v_proj": (KV, HIDDEN),
          "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
          "mlp.up_proj": (INTERMEDIATE, HIDDEN), "mlp.down_proj": (HIDDEN, INTERMEDIATE)}


def floats(values):
    return array.array("f", values).tobytes()


def write_safetensors(path, tensors):
    """name -> (type, shape, bytes)"""
    header, data, at = {}, [], 0
    for name, (kind, shape, raw) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def read_safetensors(path):
    raw = path.read_bytes()
    length, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], raw[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]])
            for name, t in header.items()}


def bf16_floats(raw):
    wide = bytearray(2 * len(raw))
    wide[2::4], wide[3::4] = raw[::2], raw[1::2]
    return array.array("f", bytes(wide))


class Adapter:
    """`modules`: name -> the layers that have it."""

    def __init__(self, seed, modules, rank=4, alpha=8):
        rng = random.Random(seed)
        self.rank, self.alpha, self.modules = rank, alpha, modules
        self.pairs = {}
        for name, layers in modules.items():
            rows, columns = SHAPES[name]
            for layer in layers:
                self.pairs["model.layers.%d.%s" % (layer, name)] = (
                    [[rng.uniform(-0.15, 0.15) for _ in range(columns)] for _ in range(rank)],
                    [[rng.uniform(-0.15, 0.15) for _ in range(rank)] for _ in range(rows)])

    def write(self, folder):
        folder.mkdir()
        tensors = {}
        for name, (a, b) in self.pairs.items():
            tensors["base_model.model.%s.lora_A.weight" % name] = ("F32", (len(a), len(a[0])), floats(sum(a, [])))
            tensors["base_model.model.%s.lora_B.weight" % name] = ("F32", (len(b), len(b[0])), floats(sum(b, [])))
        write_safetensors(folder / "adapter_model.safetensors", tensors)
        # expressions need no matrices in every layer
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "demo", "r": self.rank,
                  "lora_alpha": self.alpha, "lora_dropout": 0.0, "bias": "none", "use_rslora": False, "use_dora": False,
                  "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True, "modules_to_save": None,
                  "layers_to_transform": None, "layers_pattern": None, "rank_pattern": {}, "alpha_pattern": {},
                  "target_modules": r".*\.(%s)" % "|".join(sorted(m.rsplit(".", 1)[1] for m in self.modules))}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        return folder

    def merge(self, folder):
        """The demo with the adapter inside; what it changes is float32 there."""
        shutil.copytree(DEMO, folder)
        tensors = read_safetensors(DEMO / "model.safetensors")
        for name, (a, b) in self.pairs.items():
            kind, shape, raw = tensors[name + ".weight"]
            assert kind == "BF16"
            values = bf16_floats(raw)
            columns, scale = shape[1], self.alpha / self.rank
            for i, row in enumerate(b):
                at = i * columns
                for r, factor in enumerate(row):
                    factor *= scale
                    for j, x in enumerate(a[r]):
                        values[at + j] += factor * x
            tensors[name + ".weight"] = ("F32", shape, values.tobytes())
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
