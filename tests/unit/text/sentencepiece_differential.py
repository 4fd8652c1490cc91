#!/usr/bin/env python3
"""Tokenizers without tokenizer.json: trains small SentencePiece models and tiktoken vocabularies in many settings, encodes
and decodes with Tercet and with the packages sentencepiece and tiktoken (PyPI), and compares.
Usage: sentencepiece_differential.py TERCET [--texts N] [--seed N]. Exit 77 (skipped) without the packages."""
import argparse
import base64
import glob
import contextlib
import io
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import sentencepiece
    import tiktoken
except ImportError:
    print("0 passed, 0 failed (the packages sentencepiece and tiktoken are not installed)")
    sys.exit(77)

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
PIECES = ["the ", "worker", "step", " ", "  ", "\n", "\t", "a", "b", "Z", "é", "e\u0301", "ß", "İ", "你好", "，", "😀", "👩‍👩‍👧", "ﬁ", "½", "²", "٣", "\u00a0", "\u200b", "\u2028",
          "한국", "가", "ก็", "नमस्ते", "<tool>", "12", "2025", ".", "!?", "'s", "Ａ", "\u3000", "①", "™", "x" * 20, " \u2581", "scheduler", "ing", "-", "_", "\r\n", "\u0300", "ｶﾞ"]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")


def lines():
    for path in sorted(glob.glob(os.path.join(ROOT, "docs", "*.md"))):
        with open(path, encoding="utf-8") as f:
            yield from f.read().split("\n")
    yield from ["héé 你好 你好 한국 ﬁ ½ é"] * 20


def tercet(binary, folder, rows, *flags):
    data = "".join(json.dumps(row) + "\n" for row in rows)
    out = subprocess.run([binary, "tokenize", "--model", folder, "--jsonl", "-", *flags], input=data.encode(), capture_output=True)
    if out.returncode != 0:
        sys.exit(out.stderr.decode())
    return [json.loads(line) for line in out.stdout.decode().split("\n") if line]


class Tally:
    def __init__(self):
        self.passed = self.failed = 0

    def add(self, same, what):
        self.passed += same
        self.failed += not same
        if not same and self.failed <= 12:
            print(what)


def compare(binary, folder, name, texts, encode, decode, tally, unknown=None):
    got = tercet(binary, folder, [{"text": t} for t in texts])
    for text, g in zip(texts, got):
        ids = encode(text)
        tally.add(g.get("ids") == ids, "%s: encode %r\n  wanted %r\n  tercet %r" % (name, text, ids, g.get("ids", g)))
        if g.get("ids") == ids and unknown not in ids:  # sentencepiece shows an unknown token as its surface, transformers as its text
            want = decode(ids)
            tally.add(g["decoded"] == want, "%s: decode %r\n  wanted %r\n  tercet %r" % (name, ids, want, g["decoded"]))


def sentencepiece_models(args, texts, tally):
    settings = itertools.product(["bpe", "unigram"], [True, False], ["identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf"], [True, False], [True, False])
    for kind, fallback, rule, prefix, extra in settings:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines()), model_writer=model, vocab_size=900, model_type=kind, byte_fallback=fallback, normalization_rule_name=rule,
                                                 add_dummy_prefix=prefix, remove_extra_whitespaces=extra, user_defined_symbols=["<tool>"], hard_vocab_limit=False, minloglevel=2,
                                                 split_digits=kind == "bpe")
        sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "tokenizer.model"), "wb") as f:
                f.write(model.getvalue())
            with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
                json.dump({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False}, f)
            # A symbol of the user cuts the text in two here, as in transformers: what surrounds it is not compared.
            plain = [t for t in texts if "<tool>" not in t or rule == "identity" and not extra and not (prefix and t.startswith("<tool>"))]
            name = "%s fallback=%s %s prefix=%s extra=%s" % (kind, fallback, rule, prefix, extra)
            compare(args.tercet, folder, name, plain, sp.encode, sp.decode, tally, sp.unk_id())


def tiktoken_models(args, texts, tally):
    for file, pattern in (("tiktoken.model", LLAMA3), ("qwen.tiktoken", QWEN), ("tokenizer.model", LLAMA3)):
        with contextlib.redirect_stdout(io.StringIO()):
            ranks = tiktoken._educational.bpe_train("\n".join(lines())[:12000], 400, pattern, visualise=None)
        tt = tiktoken.Encoding("t", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|end|>": 400})
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, file), "wb") as f:
                for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
                    f.write(base64.b64encode(token) + b" %d\n" % rank)
            with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
                json.dump({"added_tokens_decoder": {"400": {"content": "<|end|>", "special": True}}, "eos_token": "<|end|>"}, f)
            some = texts + [t + "<|end|>" + t for t in texts[:50]]
            if file == "qwen.tiktoken":
                import unicodedata
                some = [unicodedata.normalize("NFC", t) for t in some]
            compare(args.tercet, folder, file, some, lambda t: tt.encode(t, allowed_special="all"), tt.decode, tally)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tercet")
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    r = random.Random(args.seed)
    texts = ["", " ", "the worker", " the  worker ", "the\nworker"] + ["".join(r.choice(PIECES) for _ in range(r.randrange(12))) for _ in range(args.texts)]
    tally = Tally()
    import tiktoken._educational  # noqa: F401
    tiktoken_models(args, texts, tally)
    sentencepiece_models(args, texts, tally)
    print("%d passed, %d failed" % (tally.passed, tally.failed))
    return 1 if tally.failed or tally.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
