#!/usr/bin/env python3
"""Tokenizers of vocab.json with merges.txt and of tekken.json: writes small ones with random files beside them (classes, names,
added tokens in their old and new files), encodes and decodes with Tercet and with transformers and mistral-common (PyPI), and
compares.

vocab_files_differential.py TERCET [--configs N] [--texts N] [--seed S]. Last line "N passed, M failed"; exit 77 without the packages.
"""
import argparse
import base64
import json
import os
import random
import sys
import tempfile

try:
    import transformers
    from mistral_common.tokens.tokenizers.tekken import SpecialTokenPolicy, Tekkenizer
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import AutoTokenizer
    from transformers.integrations.mistral.tokenizer import MistralConverter
except ImportError:
    print("0 passed, 0 failed (the packages transformers and mistral-common are not installed)")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from sentencepiece_differential import PIECES, Tally, lines, tercet  # noqa: E402

NAMES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
TOKENS = ["<|endoftext|>", "<s>", "</s>", "<pad>", "<unk>", "<mask>", "<cls>", "<sep>", "<|im_start|>", "<x>", "<yy>", "<x><yy>", " <sp>", "é<n>", "the ", "<d>"]
CLASSES = ["GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer", "RobertaTokenizer", "BartTokenizer"]
TYPES = ["gpt2", "opt", "codegen", "gpt_neo", "gptj", "gpt_neox", "olmo", "mamba", "qwen2_moe", "qwen3", "starcoder2", "roberta", "phi"]
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def trained(size):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.train_from_iterator(lines(), trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    model = json.loads(tok.to_str())["model"]
    return model["vocab"], [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]


def write(folder, name, content):
    with open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as f:
        f.write(content if isinstance(content, str) else json.dumps(content))


def added(r, content, typed=False, **more):
    token = {"content": content, "lstrip": r.random() < 0.2, "rstrip": r.random() < 0.2, "single_word": r.random() < 0.2, "normalized": r.random() < 0.5, **more}
    return dict(token, __type="AddedToken") if typed else token


def name_values(r, typed):
    """Some of the names, as strings, objects or null."""
    out = {}
    for name in r.sample(NAMES, r.randrange(5)):
        token = r.choice(TOKENS)
        out[name] = r.choice([token, token, added(r, token, typed), None if typed and name != "unk_token" else token])
    return out


def beside(r, vocab):
    """The files beside: those of a newer tokenizer, those of an older one, or hardly any."""
    config = {"tokenizer_class": r.choice(CLASSES)}
    files = {}
    fresh = [t for t in r.sample(TOKENS, r.randrange(6)) if t not in vocab]
    for key, chance in (("add_bos_token", 0.5), ("add_eos_token", 0.4), ("add_prefix_space", 0.3)):
        if r.random() < chance:
            config[key] = r.random() < 0.6
    config.update(name_values(r, True))
    if r.random() < 0.3:
        config["additional_special_tokens"] = r.sample(TOKENS, r.randrange(1, 4))
    if r.random() < 0.2:
        config["image_token"] = r.choice(TOKENS)
    kind = r.randrange(3)
    if kind == 0:
        config["added_tokens_decoder"] = {str(len(vocab) + i): added(r, t, special=r.random() < 0.5) for i, t in enumerate(fresh)}
    if kind == 1 or r.random() < 0.3:
        files["special_tokens_map.json"] = name_values(r, False)
        files["added_tokens.json"] = {t: len(vocab) + i for i, t in enumerate(fresh)}
    files["config.json"] = {"model_type": "gpt2"}
    if r.random() < 0.3:
        files["config.json"] = {"model_type": r.choice(TYPES)}
        del config["tokenizer_class"]
    if r.random() < 0.85 or "tokenizer_class" in config:
        files["tokenizer_config.json"] = config
    return files


def compare(binary, folder, name, texts, encode, decode, size, tally, r, lowest=0):
    for special in (False, True):
        got = tercet(binary, folder, [{"text": t} for t in texts], *(["--add-special-tokens"] if special else []))
        for text, g in zip(texts, got):
            want = encode(text, special)
            tally.add(g.get("ids") == want, "%s: encode %r (special %s)\n  wanted %r\n  tercet %r" % (name, text, special, want, g.get("ids", g)))
    ids = [[r.randrange(lowest, size) if r.random() < 0.6 else r.randrange(max(lowest, size - 20), size) for _ in range(r.randrange(1, 10))] for _ in range(len(texts))]
    for skip in (False, True):
        for row, g in zip(ids, tercet(binary, folder, [{"ids": row} for row in ids], *(["--skip-special-tokens"] if skip else []))):
            want = decode(row, skip)
            tally.add(g.get("decoded") == want, "%s: decode %r (skip %s)\n  wanted %r\n  tercet %r" % (name, row, skip, want, g.get("decoded", g)))


def vocab_models(args, r, texts, tally):
    base, merges = trained(420)
    for number in range(args.configs):
        vocab = dict(base)
        for token in r.sample(TOKENS[:8], r.randrange(4)):
            vocab[token] = len(vocab)
        files = beside(r, vocab)
        end = r.choice(["\n", "\r\n"])
        with tempfile.TemporaryDirectory() as folder:
            for file, content in dict(files, **{"vocab.json": vocab}).items():
                write(folder, file, content)
            write(folder, "merges.txt", r.choice(["#version: 0.2" + end, ""]) + end.join(merges) + r.choice(["", end]))
            try:
                tok = AutoTokenizer.from_pretrained(folder)._tokenizer
            except (TypeError, ValueError):  # some cannot do without a token, or with one that has a space in it
                continue
            some = texts + ["".join(r.choice(TOKENS + PIECES[:20]) for _ in range(r.randrange(8))) for _ in range(args.texts // 2)]
            compare(args.tercet, folder, "%d: %s" % (number, json.dumps(files)), some, lambda t, s: tok.encode(t, add_special_tokens=s).ids,
                    lambda ids, skip: tok.decode(ids, skip_special_tokens=skip), tok.get_vocab_size(), tally, r)


def tekken_models(args, r, texts, tally):
    base, _ = trained(500)
    decode = {c: b for b, c in zip(list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256)) + [b for b in range(256) if not (33 <= b < 127 or 161 <= b < 173 or b >= 174)],
                                   [chr(b) for b in list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))] + [chr(256 + i) for i in range(68)])}
    tokens = [bytes([b]) for b in range(256)] + [t for t in (bytes(decode[c] for c in text) for text, _ in sorted(base.items(), key=lambda item: item[1])) if len(t) > 1]
    names = [str(getattr(t["token_str"], "value", t["token_str"])) for t in Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
    for number in range(max(1, args.configs // 8)):
        listed = r.random() < 0.7
        special = names + r.sample(["[THINK]", "[/THINK]", "[ARGS]", "[CALL_ID]"], r.randrange(5)) if listed else names
        count = len(special) + r.randrange(8)
        size = count + r.randrange(300, len(tokens) + 1)
        data = {"config": {"pattern": TEKKEN, "num_vocab_tokens": len(tokens), "default_vocab_size": size, "default_num_special_tokens": count, "version": "v11" if listed else r.choice(["v3", "v7"])},
                "vocab": [{"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None} for i, t in enumerate(tokens)]}
        if listed:
            data["special_tokens"] = [{"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(special)]
        with tempfile.TemporaryDirectory() as folder:
            write(folder, "tekken.json", data)
            hf = MistralConverter(os.path.join(folder, "tekken.json")).converted()
            common = Tekkenizer.from_file(os.path.join(folder, "tekken.json"))
            some = texts + ["".join(r.choice(special + ["<SPECIAL_%d>" % (count - 1), "[INST", "<s"] + PIECES) for _ in range(r.randrange(8))) for _ in range(args.texts)]
            compare(args.tercet, folder, "tekken %d" % number, some, lambda t, s: [1] * s + hf.encode(t).ids, lambda ids, skip: hf.decode(ids, skip_special_tokens=skip), size, tally, r)
            compare(args.tercet, folder, "tekken %d, mistral-common" % number, [t for t in some if not any(s in t for s in special) and "<SPECIAL_" not in t], lambda t, s: common.encode(t, s, False),
                    lambda ids, skip: common.decode(ids, SpecialTokenPolicy.IGNORE if skip else SpecialTokenPolicy.KEEP), size, tally, r, count)  # it decodes what is between special tokens apart


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tercet")
    parser.add_argument("--configs", type=int, default=40)
    parser.add_argument("--texts", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    r = random.Random(args.seed)
    texts = ["", " ", "the worker", " the  worker\n"] + ["".join(r.choice(PIECES) for _ in range(r.randrange(12))) for _ in range(args.texts)]
    tally = Tally()
    vocab_models(args, r, texts, tally)
    tekken_models(args, r, texts, tally)
    print("%d passed, %d failed" % (tally.passed, tally.failed))
    return 1 if tally.failed or tally.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
