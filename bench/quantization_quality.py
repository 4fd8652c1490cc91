#!/usr/bin/env python3
"""What quantization costs: perplexity of a text and agreement with float32 about the most probable next token.

    bench/quantization_quality.py --tercet build/client/cli/tercet --text story.txt demo
    bench/quantization_quality.py --tercet build/client/cli/tercet refmodels/*      # prompts from reference.json

Compares bfloat16, --quantization int8 and int4, and KV caches of other types (kv-...) with float32, and beside them
the same checkpoint with its matrices rounded as llama.cpp's q8_0 and q4_0 round them (groups of 32, a scale of 16
bits), computed in float32. One JSON line a model and kind. Needs numpy, and tokenizers for --text."""
import argparse
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np

KINDS = {"bfloat16": ["--dtype", "bfloat16"], "int8": ["--dtype", "float32", "--quantization", "int8"],
         "int4": ["--dtype", "float32", "--quantization", "int4"], "q8_0": ["--dtype", "float32"],
         "q4_0": ["--dtype", "float32"],
         "kv-bfloat16": ["--dtype", "float32", "--kv-cache-dtype", "bfloat16"],
         "kv-int16": ["--dtype", "float32", "--kv-cache-dtype", "int16"],
         "kv-int8": ["--dtype", "float32", "--kv-cache-dtype", "int8"],
         "kv-fp8": ["--dtype", "float32", "--kv-cache-dtype", "fp8"]}
GROUP = 32


def groups_of(rows):
    """[n][k] as [n][groups][32], filled up with zeros."""
    padded = np.zeros((rows.shape[0], -(-rows.shape[1] // GROUP) * GROUP), np.float32)
    padded[:, :rows.shape[1]] = rows
    return padded.reshape(rows.shape[0], -1, GROUP)


def half(scale):
    return scale.astype(np.float16).astype(np.float32)


def inverse(scale):
    return np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)


def round_q8_0(rows):
    g = groups_of(rows)
    scale = np.abs(g).max(axis=2, keepdims=True) / 127
    q = np.rint(g * inverse(scale))
    return (q * half(scale)).reshape(rows.shape[0], -1)[:, :rows.shape[1]]


def round_q4_0(rows):
    g = groups_of(rows)
    largest = np.take_along_axis(g, np.abs(g).argmax(axis=2)[..., None], axis=2)
    scale = largest / -8
    q = np.minimum(np.floor(g * inverse(scale) + 8.5), 15) - 8
    return (q * half(scale)).reshape(rows.shape[0], -1)[:, :rows.shape[1]]


def read_tensors(folder):
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        with open(path, "rb") as f:
            header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            base = f.tell()
            for name, t in header.items():
                if name == "__metadata__":
                    continue
                f.seek(base + t["data_offsets"][0])
                data = f.read(t["data_offsets"][1] - t["data_offsets"][0])
                if t["dtype"] == "BF16":
                    values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
                else:
                    values = np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[t["dtype"]]).astype(np.float32)
                yield name, values.reshape(t["shape"])


def write_tensors(path, tensors):
    header, offset = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            values.astype("<f4").tofile(f)


def write_rounded(folder, out, rounded):
    """The checkpoint with its matrices rounded; like the engine's own, without embedding and routers."""
    tensors = dict(read_tensors(folder))
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    if "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        config["tie_word_embeddings"] = False
    for name, values in tensors.items():
        router = name.endswith((".mlp.gate.weight", ".block_sparse_moe.gate.weight"))
        if values.ndim == 2 and "embed_tokens" not in name and not router:
            tensors[name] = rounded(values)
    for name in os.listdir(folder):
        if name.endswith(".json") and "safetensors" not in name and name != "config.json":
            shutil.copyfile(os.path.join(folder, name), os.path.join(out, name))
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    write_tensors(os.path.join(out, "model.safetensors"), tensors)


def log_probabilities(tercet, folder, ids, flags):
    """[tokens][vocabulary]"""
    done = subprocess.run([tercet, "logits", "--model", folder, "--ids", ",".join(map(str, ids)), "--all", "--top", "0",
                           *flags], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit("%s %s: %s" % (folder, " ".join(flags), done.stderr.strip()))
    return np.array([json.loads(line)["logprobs"] for line in done.stdout.splitlines()])


def windows(args, folder):
    if args.text is None:
        with open(os.path.join(folder, "reference.json"), encoding="utf-8") as f:
            return [p["ids"] + p["greedy"] for p in json.load(f)["prompts"]]
    from tokenizers import Tokenizer
    with open(args.text, encoding="utf-8") as f:
        text = f.read()
    ids = Tokenizer.from_file(os.path.join(folder, "tokenizer.json")).encode(text[:20 * args.tokens]).ids
    ids = ids[:args.tokens]
    return [ids[i:i + args.window] for i in range(0, len(ids), args.window) if len(ids) - i > 1]


def measure(args, folder, lists, flags, exact):
    agree, total, loss, divergence, results = 0, 0, 0.0, 0.0, []
    for i, ids in enumerate(lists):
        p = log_probabilities(args.tercet, folder, ids, flags)
        results.append(p)
        loss -= p[np.arange(len(ids) - 1), ids[1:]].sum()
        total += len(ids) - 1
        if exact:
            agree += int((p.argmax(axis=1) == exact[i].argmax(axis=1))[:-1].sum())
            divergence += float((np.exp(exact[i]) * (exact[i] - p))[:-1].sum())
    figures = {"tokens": total, "perplexity": round(float(np.exp(loss / total)), 4)}
    if exact:
        figures["top1_agreement"] = round(agree / total, 4)
        figures["kl_divergence"] = float("%.3g" % (divergence / total))
    return figures, results


def run_model(args, folder):
    name, lists = os.path.basename(os.path.normpath(folder)), windows(args, folder)
    figures, exact = measure(args, folder, lists, ["--dtype", "float32"], None)
    print(json.dumps({"bench": "quantization_quality", "model": name, "kind": "float32", **figures}), flush=True)
    for kind in args.kinds:
        flags = KINDS[kind]
        with tempfile.TemporaryDirectory() as scratch:
            source = folder
            if kind in ("q8_0", "q4_0"):
                write_rounded(folder, scratch, round_q8_0 if kind == "q8_0" else round_q4_0)
                source = scratch
            figures, _ = measure(args, source, lists, flags, exact)
        print(json.dumps({"bench": "quantization_quality", "model": name, "kind": kind, **figures}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tercet", default="tercet")
    parser.add_argument("--text", help="a text; default: the prompts and answers of the models' reference.json")
    parser.add_argument("--tokens", type=int, default=8192, help="of the text")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="default: all")
    args = parser.parse_args()
    for folder in args.models:
        run_model(args, folder)


if __name__ == "__main__":
    main()
