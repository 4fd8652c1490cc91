#!/usr/bin/env python3
"""Real tokenizers as files in GGUF, by the package `gguf`, as llama.cpp's converter writes them; imported by tercet, whose ids must be
those of the tokenizers' test vectors. By hand: python3 tests/e2e/gguf_import_differential.py [FOLDER...] [--tercet PROGRAM]

FOLDER: with folders of tokenizer.json, tokenizer_config.json and vectors.jsonl in it (default: ../shared/data/tokenizers)."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
# The name that the converter finds for each, by hashing the ids of a text.
PRE = {"llama3": "llama-bpe", "qwen2": "qwen2", "gpt2": "gpt-2", "starcoder2": "starcoder", "falcon": "falcon"}
ARCH = {"phi3": "phi3"}
# What the format does not hold, by the number of texts that show it: tokens that look special and are not, which the converter makes
# control tokens (phi3: </s>, too); and that nothing goes in front of a text that begins with a space, as this family's has it.
KNOWN = {"phi3": {"decoded_skip_special": 4}, "qwen2": {"decoded_skip_special": 1},
         "mistral-style": {"ids": 44, "decoded": 44, "ids_special": 44, "decoded_skip_special": 43}}
# Nothing goes in front of texts.
NO_PREFIX = {"gemma-style"}


def token_text(value):
    return value.get("content") if isinstance(value, dict) else value


def make_tokens(spec):
    """Texts, types and added tokens by id."""
    vocab = {i: t for t, i in spec["model"]["vocab"].items()}
    added = {a["id"]: a for a in spec["added_tokens"]}
    texts, types = [], []
    for i in range(max(list(vocab) + list(added)) + 1):
        if i in added:
            texts.append(added[i]["content"])
            special = added[i]["special"] or (added[i]["content"].startswith("<|") and added[i]["content"].endswith("|>"))
            types.append(gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED)
        elif i in vocab:
            texts.append(vocab[i])
            types.append(gguf.TokenType.NORMAL)
        else:
            texts.append("[PAD%d]" % i)
            types.append(gguf.TokenType.UNUSED)
    return texts, types


def add_scored(writer, name, spec, texts, types):
    """SentencePiece's. tokenizer.json has no scores, but all merges in the order of what they make."""
    ranks = {}
    for merge in spec["model"]["merges"]:
        sides = merge.split(" ") if isinstance(merge, str) else merge
        ranks.setdefault("".join(sides), len(ranks))
    scores = [-float(ranks.get(t, 1e6)) for t in texts]
    for i, text in enumerate(texts[:259]):
        if text == "<unk>":
            types[i] = gguf.TokenType.UNKNOWN
        elif text in ("<s>", "</s>"):
            types[i] = gguf.TokenType.CONTROL
        elif text.startswith("<0x"):
            types[i] = gguf.TokenType.BYTE
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_scores(scores)
    if name in NO_PREFIX:
        writer.add_add_space_prefix(False)


def add_merged(writer, name, spec):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE[name])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]])


def adds_bos(spec, bos):
    processor = json.dumps(spec.get("post_processor") or {})
    return bos is not None and '"SpecialToken": {"id": %s' % json.dumps(bos) in processor


def write(path, folder, name):
    spec = json.load(open(os.path.join(folder, "tokenizer.json"), encoding="utf-8"))
    config = json.load(open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8"))
    texts, types = make_tokens(spec)
    arch = ARCH.get(name, "llama")
    w = gguf.GGUFWriter(path, arch)
    w.add_context_length(64)
    w.add_embedding_length(2)
    w.add_block_count(1)
    w.add_feed_forward_length(2)
    w.add_head_count(1)
    w.add_layer_norm_rms_eps(1e-5)
    if spec["model"].get("byte_fallback"):
        add_scored(w, name, spec, texts, types)
    else:
        add_merged(w, name, spec)
    w.add_token_list(texts)
    w.add_token_types(types)
    bos, eos = token_text(config.get("bos_token")), token_text(config.get("eos_token"))
    if bos in texts:
        w.add_bos_token_id(texts.index(bos))
    if eos in texts:
        w.add_eos_token_id(texts.index(eos))
    w.add_add_bos_token(adds_bos(spec, bos))
    if config.get("chat_template"):
        w.add_chat_template(config["chat_template"])
    w.add_tensor("token_embd.weight", np.zeros((len(texts), 2), dtype=np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return config.get("chat_template")


def tokenize(tercet, model, texts, flags=()):
    lines = "".join(json.dumps({"text": t}) + "\n" for t in texts)
    run = subprocess.run([tercet, "tokenize", "--model", model, "--jsonl", "-", *flags], input=lines, capture_output=True, text=True,
                         check=False)
    if run.returncode:
        sys.exit(run.stderr)
    return [json.loads(line) for line in run.stdout.splitlines()]


def compare(tercet, folder, name, scratch):
    path = os.path.join(scratch, name + ".gguf")
    template = write(path, folder, name)
    vectors = [json.loads(line) for line in open(os.path.join(folder, "vectors.jsonl"), encoding="utf-8")]
    texts = [v["text"] for v in vectors]
    plain, special = tokenize(tercet, path, texts), tokenize(tercet, path, texts, ["--add-special-tokens", "--skip-special-tokens"])
    wrong, shown = {"ids": 0, "decoded": 0, "ids_special": 0, "decoded_skip_special": 0}, 0
    for v, a, b in zip(vectors, plain, special):
        got = {"ids": a["ids"], "decoded": a["decoded"], "ids_special": b["ids"], "decoded_skip_special": b["decoded"]}
        for key, value in got.items():
            if value != v[key]:
                wrong[key] += 1
                if shown < 3 and name not in KNOWN:
                    print("  %s: %r\n    %r\n    %r" % (key, v["text"][:100], value[:60], v[key][:60]))
                    shown += 1
    out = subprocess.run([tercet, "chat-template", "--model", path, "--jsonl", "-"], capture_output=True, text=True, check=False,
                         input=json.dumps({"messages": [{"role": "user", "content": "x"}]}) + "\n") if template else None
    print("%-14s %5d texts, wrong: %s%s" % (name, len(texts), wrong, "" if out is None or out.returncode == 0 else out.stderr))
    return wrong != {key: KNOWN.get(name, {}).get(key, 0) for key in wrong}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="*", default=[os.path.join(ROOT, "..", "shared", "data", "tokenizers")])
    parser.add_argument("--tercet", default=os.path.join(ROOT, "build", "client", "cli", "tercet"))
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch
        for root in args.folders:
            for name in sorted(os.listdir(root)):
                folder = os.path.join(root, name)
                if os.path.exists(os.path.join(folder, "vectors.jsonl")):
                    failed += compare(args.tercet, folder, name, scratch)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
