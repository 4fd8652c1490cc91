#!/usr/bin/env python3
"""Small checkpoints in the formats of compressed-tensors and bitsandbytes, written by these libraries, compared with plain
checkpoints of the values that the libraries read from them. By hand, not in the suite: it needs torch, compressed-tensors, bitsandbytes
and safetensors. Run as

    quantized_differential.py --tercet build/client/cli/tercet [NAME ...]

with parts of the names of cases, all without. Prints a line a case and counts at the end; status 1 if one differs."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from bitsandbytes import functional as bnb
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam
from safetensors.torch import save_file

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB, INTERMEDIATE = 256, 4, 2, 64, 2, 64, 384
IDS = "5,17,3,60,33,8,41"
LIMIT = 1e-3

# ---------------------------------------------------------------- a matrix: (parts by their suffix, values)


def ranges(weight, args):
    """Smallest and largest values of what shares a scale."""
    rows, columns = weight.shape
    strategy = args.strategy
    if strategy == "tensor":
        return weight.min().reshape(1), weight.max().reshape(1)
    if strategy == "block":
        high, wide = args.block_structure
        filled = torch.nn.functional.pad(weight, (0, -columns % wide, 0, -rows % high))
        blocks = filled.reshape(filled.shape[0] // high, high, filled.shape[1] // wide, wide)
        return blocks.amin((1, 3)), blocks.amax((1, 3))
    groups = weight.reshape(rows, -1, args.group_size if strategy in ("group", "tensor_group") else columns)
    return groups.amin(2), groups.amax(2)


def compressed(scheme, weight):
    args = scheme.weights
    low, high = ranges(weight, args)
    whole = generate_gparam(weight.min(), weight.max()) if args.strategy == "tensor_group" else None
    scale, zero = calculate_qparams(low, high, args, whole)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    if whole is not None:
        state["weight_global_scale"] = whole
    name = infer_module_format(torch.nn.Linear, scheme).value
    compressor = BaseCompressor.get_value_from_registry(name)
    parts = compressor.compress(dict(state), scheme)
    if args.type == "float" and args.num_bits == 4:  # the library rounds these values to bfloat16
        packed = parts["weight_packed"]
        codes = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, dtype=torch.float32)
        scales = parts["weight_scale"]
        scales = (decompress_mx_scale(scales) if scales.dtype == torch.uint8 else scales).to(torch.float32)
        values = dequantize(x_q=codes, scale=scales, args=args, global_scale=whole, dtype=torch.float32)
    else:
        values = compressor.decompress(dict(parts), scheme)["weight"]
    return parts, values


class Compressed:
    """A scheme of all matrices, or several that take turns."""

    def __init__(self, *presets):
        self.schemes = [preset_name_to_scheme(name, ["Linear"]) for name in presets]
        self.made = 0

    def config(self):
        groups = {}
        for i, scheme in enumerate(self.schemes):
            groups["group_%d" % i] = scheme.model_dump(mode="json")
            groups["group_%d" % i]["format"] = infer_module_format(torch.nn.Linear, scheme).value
        form = groups["group_0"]["format"] if len(groups) == 1 else "mixed-precision"
        return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"],
                "quantization_status": "compressed", "version": "0.20.0"}

    def make(self, weight):
        self.made += 1
        return compressed(self.schemes[self.made % len(self.schemes)], weight)


class ModelOptimizer:
    """The names of NVIDIA's Model Optimizer: its scale of all is what the other library divides by."""

    def __init__(self, algorithm, preset, nested=False, file=None):
        self.algorithm, self.nested, self.file = algorithm, nested, file
        self.scheme = preset_name_to_scheme(preset, ["Linear"])

    def config(self):
        said = {"quant_algo": self.algorithm, "exclude_modules": ["lm_head"], "kv_cache_quant_algo": "FP8"}
        producer = {"name": "modelopt", "version": "0.33.0"}
        if self.nested:
            return {"quant_method": "modelopt", "producer": producer, "quantization": said}
        return {"quant_method": "modelopt", "producer": producer, **said}

    def make(self, weight):
        parts, values = compressed(self.scheme, weight)
        if "weight_packed" in parts:
            parts["weight"] = parts.pop("weight_packed")
        if "weight_global_scale" in parts:
            scale = (1 / parts.pop("weight_global_scale")).reshape(())
            parts["weight_scale_2"] = scale
            codes = unpack_fp4_from_uint8(parts["weight"], weight.shape[0], weight.shape[1], dtype=torch.float32)
            values = dequantize(x_q=codes, scale=parts["weight_scale"].to(torch.float32) * scale, args=self.scheme.weights, dtype=torch.float32)
        parts["input_scale"] = torch.tensor(0.5)
        return parts, values


class BitsAndBytes:
    def __init__(self, kind, nested=False, block=64):
        self.kind, self.nested, self.block = kind, nested, block

    def config(self):
        four = self.kind != "int8"
        return {"quant_method": "bitsandbytes", "_load_in_4bit": four, "_load_in_8bit": not four, "load_in_4bit": four,
                "load_in_8bit": not four, "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8",
                "bnb_4bit_quant_type": self.kind if four else "fp4", "bnb_4bit_use_double_quant": self.nested,
                "llm_int8_enable_fp32_cpu_offload": False, "llm_int8_has_fp16_weight": False, "llm_int8_skip_modules": None,
                "llm_int8_threshold": 6.0}

    def make(self, weight):
        if self.kind == "int8":
            codes, scales, _ = bnb.int8_vectorwise_quant(weight.half())
            parts = {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
            return parts, bnb.int8_vectorwise_dequant(codes, scales)
        codes, state = bnb.quantize_4bit(weight, blocksize=self.block, compress_statistics=self.nested, quant_type=self.kind)
        parts = {"weight": codes, **{"weight." + k: v for k, v in state.as_dict(packed=True).items()}}
        return parts, bnb.dequantize_4bit(codes, state)


class Fbgemm:
    def config(self):
        return {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}

    def make(self, weight):
        scale = weight.abs().amax(1, keepdim=True) / 448
        codes = (weight / scale).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale": scale}, codes.to(torch.float32) * scale


class Fp8Powers:
    """DeepSeek's and others' blocks whose scales are powers of two, in a type of their own."""

    def config(self):
        return {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128],
                "scale_fmt": "ue8m0"}

    def make(self, weight):
        rows, columns = weight.shape
        filled = torch.nn.functional.pad(weight, (0, -columns % 128, 0, -rows % 128))
        blocks = filled.reshape(filled.shape[0] // 128, 128, filled.shape[1] // 128, 128)
        scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax((1, 3)) / 448)))
        wide = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
        codes = (weight / wide).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale_inv": scale.to(torch.float8_e8m0fnu)}, codes.to(torch.float32) * wide


PRESETS = ("NVFP4A16", "NVFP4", "MXFP4A16", "MXFP4", "MXFP8A16", "MXFP8", "MXFP4XFP8", "W2A16", "W3A16", "W4A16", "W5A16", "W6A16", "W7A16",
           "W8A16", "W4A16_ASYM", "W8A8", "W4A8", "W4AFP8", "FP8", "FP8_DYNAMIC", "FP8_BLOCK")
MIXED = (("NVFP4", "FP8_DYNAMIC"), ("W4A16", "W8A16"), ("W4A16", "FP8_BLOCK", "W8A8"), ("MXFP4", "MXFP8"),
         ("W4A16_ASYM", "W4A16"))
class Experts:
    """A mixture of experts, each of which is quantized by itself: the schemes that `form` takes turns with differ from expert to expert."""

    experts = 4

    def __init__(self, form):
        self.config, self.make = form.config, form.make


CASES = {
    **{preset.lower(): (lambda preset=preset: Compressed(preset)) for preset in PRESETS},
    **{"mixed-" + "-".join(names).lower(): (lambda names=names: Compressed(*names)) for names in MIXED},
    "modelopt-fp8": lambda: ModelOptimizer("FP8", "FP8"),
    "modelopt-fp8-row": lambda: ModelOptimizer("FP8_PER_CHANNEL_PER_TOKEN", "FP8_DYNAMIC"),
    "modelopt-nvfp4": lambda: ModelOptimizer("NVFP4", "NVFP4"),
    "modelopt-nvfp4-nested": lambda: ModelOptimizer("NVFP4", "NVFP4", True),
    "modelopt-nvfp4-file": lambda: ModelOptimizer("NVFP4", "NVFP4", True, "hf_quant_config.json"),
    "modelopt-mxfp8": lambda: ModelOptimizer("MXFP8", "MXFP8"),
    "bnb-nf4": lambda: BitsAndBytes("nf4"), "bnb-nf4-nested": lambda: BitsAndBytes("nf4", True),
    "bnb-nf4-nested-128": lambda: BitsAndBytes("nf4", True, 128), "bnb-fp4": lambda: BitsAndBytes("fp4"),
    "bnb-fp4-nested": lambda: BitsAndBytes("fp4", True), "bnb-int8": lambda: BitsAndBytes("int8"),
    "fbgemm": Fbgemm, "fp8-powers": Fp8Powers,
    "experts-nvfp4": lambda: Experts(Compressed("NVFP4")), "experts-w4a16": lambda: Experts(Compressed("W4A16")),
    "experts-mixed": lambda: Experts(Compressed("W4A16", "W8A16", "FP8_DYNAMIC")),
    "experts-modelopt": lambda: Experts(ModelOptimizer("NVFP4", "NVFP4")), "experts-bnb": lambda: Experts(BitsAndBytes("nf4", True)),
}

# ---------------------------------------------------------------- checkpoints


def write_models(folder, form):
    """folder/quantized, and folder/plain in float32."""
    torch.manual_seed(7)
    wide, narrow = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    experts = getattr(form, "experts", 0)
    plain, quantized = {}, {}

    def both(name, tensor):
        plain[name], quantized[name] = tensor, tensor.clone()

    both("model.embed_tokens.weight", torch.randn(VOCAB, HIDDEN))
    both("model.norm.weight", 1 + 0.1 * torch.randn(HIDDEN))
    both("lm_head.weight", 0.2 * torch.randn(VOCAB, HIDDEN))
    for layer in range(LAYERS):
        stem = "model.layers.%d." % layer
        for norm in ("input_layernorm", "post_attention_layernorm"):
            both(stem + norm + ".weight", 1 + 0.1 * torch.randn(HIDDEN))
        attention = [("self_attn.q_proj", wide, HIDDEN), ("self_attn.k_proj", narrow, HIDDEN), ("self_attn.v_proj", narrow, HIDDEN),
                     ("self_attn.o_proj", HIDDEN, wide)]
        mlp = [("mlp.gate_proj", INTERMEDIATE, HIDDEN), ("mlp.up_proj", INTERMEDIATE, HIDDEN), ("mlp.down_proj", HIDDEN, INTERMEDIATE)]
        if experts:
            both(stem + "block_sparse_moe.gate.weight", torch.randn(experts, HIDDEN))
            mlp = [("block_sparse_moe.experts.%d.%s" % (e, name), rows, columns)
                   for e in range(experts) for name, (_, rows, columns) in zip(("w1", "w3", "w2"), mlp)]
        for name, rows, columns in attention + mlp:
            parts, values = form.make(torch.randn(rows, columns) / columns ** 0.5)
            plain[stem + name + ".weight"] = values.to(torch.float32).contiguous()
            for part, tensor in parts.items():
                quantized[stem + name + "." + part] = tensor.contiguous()
    config = {"architectures": ["MixtralForCausalLM" if experts else "LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
              "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
              "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
              **({"num_local_experts": experts, "num_experts_per_tok": 2} if experts else {})}
    file = getattr(form, "file", None)
    said = {"quantization_config": form.config()} if not file else {}
    for name, tensors, extra in (("plain", plain, {}), ("quantized", quantized, said)):
        (folder / name).mkdir()
        if file and name == "quantized":
            (folder / name / file).write_text(json.dumps({k: v for k, v in form.config().items() if k != "quant_method"}))
        (folder / name / "config.json").write_text(json.dumps({**config, **extra}))
        save_file(tensors, folder / name / "model.safetensors")


def logits(tercet, model, *flags):
    done = subprocess.run([tercet, "logits", "--model", model, "--ids", IDS, "--top", "0", "--dtype", "float32", "--threads", "1", *flags],
                          capture_output=True, text=True, env={"TERCET_KERN_CAPS": "none"}, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.strip().splitlines()[-1])["logits"]


def run(tercet, name):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_models(folder, CASES[name]())
        wanted = logits(tercet, folder / "plain")
        found = {"": logits(tercet, folder / "quantized"), " -tp 2": logits(tercet, folder / "quantized", "--tensor-parallel-size", "2")}
    spread = max(wanted) - min(wanted)
    off = {how: max(abs(a - b) for a, b in zip(wanted, those)) for how, those in found.items()}
    return spread > 1 and max(off.values()) < LIMIT, ", ".join("%.1e%s" % (x, how) for how, x in off.items())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tercet", required=True)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    wrong = count = 0
    for name in CASES:
        if args.names and not any(part in name for part in args.names):
            continue
        count += 1
        try:
            right, said = run(args.tercet, name)
        except RuntimeError as error:
            right, said = False, str(error)
        wrong += not right
        print("%-40s %s %s" % (name, "ok  " if right else "FAIL", said), flush=True)
    print("%d cases, %d differ" % (count, wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
