#!/usr/bin/env python3
"""Encodes and decodes with Tercet and with Hugging Face tokenizers (PyPI), over generated tokenizer.json files and,
where there are some, real ones, and compares. Usage: tokenizers_differential.py TERCET [--configs N] [--seed N]
[--data DIR]. Exit 77 (skipped) without the package tokenizers."""
import argparse
import glob
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    from tokenizers import Tokenizer
except ImportError:
    print("0 passed, 0 failed (the package tokenizers is not installed)")
    sys.exit(77)

MARK = "\u2581"
PIECES = ["a", "b", "e", "h", "l", "o", "t", "he", "ll", "the", "hello", "A", "Z", " ", "  ", "\n", "\r\n", "\t", "1", "23", "4567", ".", ",", "!?", "'s", "'LL", "-", "_",
          "é", "e\u0301", "ß", "İ", "你好", "，", "。", "😀", "👩‍👩‍👧", "Ω", "ﬁ", "½", "²", "٣", "\u00a0", "\u180e", "\u200b", "\u2028", "\u0085", "한국", "가", "ก็", "नमस्ते",
          "<s>", "</s>", "<|x|>", "<|xy|>", "[M]", " [M] ", "foo", "foobar", MARK, MARK * 2, "\x00", "\x7f", "Ａ", "\ufffd", "K", "ſ", "ǅ", "\u0300", "$", "<0x41>", "##a"]


def gpt2_bytes():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, n = {}, 0
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + n)
            n += 1
    return table


BYTES = gpt2_bytes()


class Config:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, items):
        return self.r.choice(items)

    def chance(self, p):
        return self.r.random() < p

    def pattern(self):
        if self.chance(0.35):
            return {"String": self.pick([" ", "a", "\n", "he", ".", MARK])}
        return {"Regex": self.pick([r"\s+", r"\d", r"\p{N}{1,3}", r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|\w+|\W", r"[a-z]+", r"\p{Han}+|\p{Lu}\p{Ll}*", r"[\p{L}&&[^\p{Han}]]+", r"\S+", r"[[:punct:]]", r"\h+", r"[^\s\w]+",
                                    r"\p{Hangul}|\p{Punct}", r"a{1,2}+", r"^.", r"(?m).\n", r"[\s\p{P}]", r"\p{M}+", r"[^\p{L}]", r"\p{Alpha}+|\p{Digit}+", r"[A-Z]|[\W_]", r"(?:he|l)+?"])}

    def behavior(self):
        return self.pick(["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"])

    def normalizer(self, depth=0):
        kind = self.pick(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Prepend", "Replace", "Replace", "BertNormalizer", "Nmt"] + (["Sequence"] * 3 if depth == 0 else []))
        n = {"type": kind}
        if kind == "Strip":
            n.update(strip_left=self.chance(0.5), strip_right=self.chance(0.5))
        elif kind == "Prepend":
            n["prepend"] = self.pick([MARK, "a", "he "])
        elif kind == "Replace":
            n.update(pattern=self.pattern(), content=self.pick([MARK, "", "b", "he"]))
        elif kind == "BertNormalizer":
            n.update(clean_text=self.chance(0.5), handle_chinese_chars=self.chance(0.5), strip_accents=self.pick([None, True, False]), lowercase=self.chance(0.5))
        elif kind == "Sequence":
            n["normalizers"] = [self.normalizer(1) for _ in range(self.r.randrange(3))]
        return n

    def pretokenizer(self, depth=0):
        kind = self.pick(["ByteLevel", "Split", "Split", "Split", "Digits", "Metaspace", "Metaspace", "Whitespace", "WhitespaceSplit", "Punctuation", "BertPreTokenizer", "CharDelimiterSplit"] + (["Sequence"] * 8 if depth == 0 else []))
        p = {"type": kind}
        if kind == "ByteLevel":
            p.update(add_prefix_space=self.chance(0.5), trim_offsets=True, use_regex=self.chance(0.5))
        elif kind == "Split":
            p.update(pattern=self.pattern(), behavior=self.behavior(), invert=self.chance(0.3))
        elif kind == "Digits":
            p["individual_digits"] = self.chance(0.5)
        elif kind == "Metaspace":
            p.update(replacement=self.pick([MARK, MARK, "_"]), prepend_scheme=self.pick(["always", "first", "never"]), split=self.chance(0.5))
        elif kind == "Punctuation":
            p["behavior"] = self.behavior()
        elif kind == "CharDelimiterSplit":
            p["delimiter"] = self.pick([" ", "a", "é"])
        elif kind == "Sequence":
            p["pretokenizers"] = [self.pretokenizer(1) for _ in range(self.r.randrange(1, 4))]
        return p

    def decoder(self, depth=0):
        kind = self.pick(["ByteLevel", "ByteFallback", "Fuse", "Replace", "Strip", "Metaspace", "WordPiece", "BPEDecoder"] + (["Sequence"] * 8 if depth == 0 else []))
        d = {"type": kind}
        if kind == "ByteLevel":
            d.update(add_prefix_space=True, trim_offsets=True, use_regex=True)
        elif kind == "Replace":
            d.update(pattern=self.pick([{"String": MARK}, {"String": "l"}, {"Regex": "[ae]+"}]), content=self.pick([" ", "", "xx"]))
        elif kind == "Strip":
            d.update(content=self.pick([" ", "a"]), start=self.r.randrange(3), stop=self.pick([0, 0, 1]))
        elif kind == "Metaspace":
            d.update(replacement=MARK, prepend_scheme=self.pick(["always", "first", "never"]), split=True)
        elif kind == "WordPiece":
            d.update(prefix="##", cleanup=self.chance(0.5))
        elif kind == "BPEDecoder":
            d["suffix"] = self.pick(["</w>", "e"])
        elif kind == "Sequence":
            if self.chance(0.5):
                llama = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
                d["decoders"] = llama[:self.r.randrange(2, 5)]
            else:
                d["decoders"] = [self.decoder(1) for _ in range(self.r.randrange(1, 4))]
        return d

    def model(self, byte_level):
        space = BYTES[32] if byte_level else MARK
        prefix = suffix = None
        if not byte_level and self.chance(0.15):
            prefix, suffix = self.pick([("##", None), (None, "</w>"), ("##", "</w>")])
        if byte_level:
            tokens = [BYTES[b] for b in range(256)]
            if self.chance(0.1):
                tokens.remove(BYTES[0xf0])
        else:
            tokens = ["<unk>"] + (["<0x%02X>" % b for b in range(256)] if self.chance(0.8) else ["<0x41>"])
            tokens += [c for c in "abehlotAZ .,!'-_1234567\n\t" if c not in tokens] + [MARK, "é", "你", "ß", "##a", "##l", "##e", "a</w>", "e</w>", "##e</w>"]
        merges = []
        for a, b in [("h", "e"), ("l", "l"), ("t", "he"), (space, "the"), ("he", "ll"), ("hell", "o"), (space, "hello"), ("a", "a"), ("aa", "aa"), (space, space), ("e", space), ("##l", "##e")]:
            skip = len(prefix) if prefix and b.startswith(prefix) else (min(len(prefix), len(b)) if prefix else 0)
            joined = a + b[skip:]
            if a in tokens and b in tokens and self.chance(0.8):
                if joined not in tokens:
                    tokens.append(joined)
                merges.append([a, b] if self.chance(0.5) or " " in a + b else a + " " + b)
        if self.chance(0.5):
            tokens += ["foo", "hello" + space + "the"]
        m = {"type": "BPE", "dropout": None, "unk_token": "<unk>" if not byte_level and self.chance(0.8) else None, "continuing_subword_prefix": prefix,
             "end_of_word_suffix": suffix, "fuse_unk": self.chance(0.5), "byte_fallback": not byte_level and self.chance(0.7), "ignore_merges": self.chance(0.4),
             "vocab": {t: i for i, t in enumerate(dict.fromkeys(tokens))}, "merges": merges if all(isinstance(x, list) for x in merges) else [x if isinstance(x, str) else " ".join(x) for x in merges if isinstance(x, str) or " " not in "".join(x)]}
        return m

    def tokens(self, space):
        """Single characters and a few words, in any order, as the vocabulary of the models without merges."""
        tokens = [c for c in "abehlotAZ .,!'-_1234567\n\t" if self.chance(0.9)] + [t for t in [space, "é", "你", "ß", "½", "Ω"] if self.chance(0.8)]
        tokens += [t for t in ["he", "ll", "the", "hello", "hell", "lo", "ell", "o" + space + "t", space + "the", space + "hello", "foo", "oo", "aa", "aaa", "你好", "23", "4567", "!?", "e\u0301"] if self.chance(0.7)]
        self.r.shuffle(tokens)
        return tokens

    def unigram(self):
        tokens = self.tokens(MARK)
        if self.chance(0.6):
            tokens += ["<0x%02X>" % b for b in range(256) if b != 0xf0 or self.chance(0.8)]
        tokens.insert(self.r.randrange(3), "<unk>")
        score = lambda: self.pick([0.0, -1.0, -2.0, -3.5, -7.25, round(-self.r.random() * 12, self.pick([1, 4, 15]))])
        return {"type": "Unigram", "unk_id": tokens.index("<unk>") if self.chance(0.9) else None, "vocab": [[t, score()] for t in tokens], "byte_fallback": self.chance(0.5)}

    def wordpiece(self):
        prefix = self.pick(["##", "##", "", "a"])
        tokens = ["[UNK]"] + self.tokens(MARK)
        tokens += [prefix + t for t in tokens[1:] if self.chance(0.8)]
        return {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": prefix, "max_input_chars_per_word": self.pick([100, 100, 5]),
                "vocab": {t: i for i, t in enumerate(dict.fromkeys(tokens))}}

    def wordlevel(self):
        return {"type": "WordLevel", "unk_token": "<unk>", "vocab": {t: i for i, t in enumerate(["<unk>"] + self.tokens(MARK))}}

    def added(self, size):
        out, seen = [], set()
        for _ in range(self.r.randrange(5)):
            text = self.pick(["<s>", "</s>", "<|x|>", "<|xy|>", "[M]", "foo", "foobar", "  ", "he", "\n", "é", "İ", "ll o", MARK + "a"])
            if text in seen:
                continue
            seen.add(text)
            special = self.chance(0.5)
            out.append({"id": size + len(out), "content": text, "single_word": self.chance(0.2), "lstrip": self.chance(0.25), "rstrip": self.chance(0.25),
                        "normalized": self.chance(0.4), "special": special})
        return out

    def keep_distinct(self, added, normalizer):
        """Two added tokens that normalise to the same text, or one to nothing, leave to chance which one is found."""
        if normalizer is None:
            return
        t = Tokenizer.from_str(json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": None, "post_processor": None,
                                           "decoder": None, "model": {"type": "BPE", "vocab": {}, "merges": []}}))
        seen = {""}
        for a in added:
            text = t.normalizer.normalize_str(a["content"])
            a["normalized"] = a["normalized"] and text not in seen
            seen.add(text)

    def make(self):
        kind = self.pick(["bytes"] * 3 + ["bpe"] * 3 + ["unigram", "unigram", "wordpiece", "wordlevel"])
        byte_level = kind == "bytes"
        pre = None if self.chance(0.15) else self.pretokenizer()
        if byte_level and self.chance(0.8):
            last = {"type": "ByteLevel", "add_prefix_space": self.chance(0.3), "trim_offsets": True, "use_regex": self.chance(0.5)}
            pre = {"type": "Sequence", "pretokenizers": [p for p in [pre] if p and p["type"] != "ByteLevel"] + [last]}
        model = self.model(byte_level) if kind in ("bytes", "bpe") else getattr(self, kind)()
        ids = {t: i for i, (t, _) in enumerate(model["vocab"])} if kind == "unigram" else model["vocab"]
        added = self.added(len(model["vocab"]))
        for i, a in enumerate(added):  # as the library numbers them: what the model has keeps its id
            a["id"] = ids.get(a["content"], -1)
        free = len(model["vocab"])
        for a in [a for a in added if a["special"]] + [a for a in added if not a["special"]]:
            if a["id"] < 0:
                a["id"], free = free, free + 1
        added.sort(key=lambda a: a["id"])
        normalizer = None if self.chance(0.4) else self.normalizer()
        self.keep_distinct(added, normalizer)
        post = None
        if added and self.chance(0.3):
            a = added[0]
            post = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": a["content"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                    "special_tokens": {a["content"]: {"id": a["content"], "ids": [a["id"]], "tokens": [a["content"]]}}}
        decoder = None if self.chance(0.1) else {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True} if byte_level and self.chance(0.7) else self.decoder()
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre,
                "post_processor": post, "decoder": decoder, "model": model}

    def text(self):
        return "".join(self.pick(PIECES) for _ in range(self.r.randrange(12)))


def tercet(binary, model, lines, special):
    flags = ["--add-special-tokens", "--skip-special-tokens"] if special else []
    data = "".join(json.dumps(line) + "\n" for line in lines)
    out = subprocess.run([binary, "tokenize", "--model", model, "--jsonl", "-"] + flags, input=data.encode(), capture_output=True)
    if out.returncode != 0:
        return out.stderr.decode()
    return [json.loads(line) for line in out.stdout.decode().split("\n") if line]


class Tally:
    def __init__(self, show):
        self.passed = self.failed = self.refused = 0
        self.show = show
        self.places = set()  # one difference a configuration is enough to look at

    def add(self, same, what):
        self.passed += same
        self.failed += not same
        place = what.split(":")[0]
        if not same and len(self.places) < self.show and place not in self.places:
            self.places.add(place)
            print(what)


def compare(binary, folder, tok, texts, id_lists, tally, name, config):
    for special in (False, True):
        got = tercet(binary, folder, [{"text": t} for t in texts] + [{"ids": i} for i in id_lists], special)
        if isinstance(got, str):
            tally.refused += 1
            if tally.refused <= tally.show:
                print("refused %s: %s" % (name, got.strip()))
            return
        for text, g in zip(texts, got):
            try:
                ids = tok.encode(text, add_special_tokens=special).ids
            except Exception:  # no unknown token for an unknown character
                tally.add("error" in g, "%s: encode %r\n  tokenizers refuses\n  tercet     %r\n  %s" % (name, text, g, config))
                continue
            except BaseException:  # a panic of the library
                continue
            tally.add(g.get("ids") == ids, "%s: encode %r\n  tokenizers %r\n  tercet     %r\n  %s" % (name, text, ids, g.get("ids", g), config))
        for ids, g in zip([g.get("ids") for g in got[:len(texts)]] + id_lists, got):
            if ids is None:
                continue
            try:
                want = tok.decode(ids, skip_special_tokens=special)
            except BaseException:  # a panic of the library
                continue
            tally.add(g.get("decoded") == want, "%s: decode %r\n  tokenizers %r\n  tercet     %r\n  %s" % (name, ids, want, g.get("decoded", g), config))


def run_generated(args, tally):
    """In children of 25 configurations each: some make the library abort its process."""
    unloadable = 0
    for first in range(args.seed, args.seed + args.configs, 25):
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            part = Tally(args.show)
            missed = run_some(args, part, range(first, min(first + 25, args.seed + args.configs)))
            os.write(theirs, json.dumps([part.passed, part.failed, part.refused, missed]).encode())
            sys.stdout.flush()
            os._exit(0)
        os.close(theirs)
        report = os.read(ours, 4096)
        os.close(ours)
        os.waitpid(child, 0)
        if report:
            passed, failed, refused, missed = json.loads(report)
            tally.passed, tally.failed, tally.refused = tally.passed + passed, tally.failed + failed, tally.refused + refused
            unloadable += missed
    return unloadable


def run_some(args, tally, seeds):
    unloadable = 0
    for seed in seeds:
        c = Config(seed)
        config = c.make()
        text = json.dumps(config, ensure_ascii=False)
        try:
            tok = Tokenizer.from_str(text)
        except BaseException:
            unloadable += 1
            continue
        size = max([len(config["model"]["vocab"])] + [a["id"] for a in config["added_tokens"]]) + 3
        texts = [c.text() for _ in range(12)] + [""]
        ids = [[c.r.randrange(size) for _ in range(c.r.randrange(14))] for _ in range(8)]
        short = dict(config, model={k: v for k, v in config["model"].items() if k not in ("vocab", "merges")}, version=None)
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
                f.write(text)
            try:
                compare(args.tercet, folder, tok, texts, ids, tally, "seed %d" % seed, json.dumps(short, ensure_ascii=False))
            except UnicodeEncodeError:
                pass
    return unloadable


def run_real(args, tally):
    for path in sorted(glob.glob(os.path.join(args.data, "**", "tokenizer.json"), recursive=True)):
        tok = Tokenizer.from_file(path)
        tok.no_truncation()
        tok.no_padding()
        c = Config(args.seed)
        texts = [c.text() for _ in range(args.texts)]
        ids = [[c.r.randrange(tok.get_vocab_size() + 2) for _ in range(c.r.randrange(30))] for _ in range(args.texts)]
        compare(args.tercet, os.path.dirname(path), tok, texts, ids, tally, path, "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tercet")
    parser.add_argument("--configs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data")
    parser.add_argument("--texts", type=int, default=400, help="of each tokenizer in --data")
    parser.add_argument("--show", type=int, default=10)
    args = parser.parse_args()
    tally = Tally(args.show)
    unloadable = run_generated(args, tally)
    if args.data:
        run_real(args, tally)
    print("%d passed, %d failed (%d configurations refused, %d not loadable by tokenizers)" % (tally.passed, tally.failed, tally.refused, unloadable))
    return 1 if tally.failed or tally.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
