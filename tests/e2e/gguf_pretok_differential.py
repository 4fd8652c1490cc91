#!/usr/bin/env python3
"""How byte-level models of files in GGUF cut their text, by the name in tokenizer.ggml.pre: small vocabularies whose merges cross every cut,
as files and as what `tokenizers` makes of the patterns that the families' first models have; ids must be the same. By hand, with an
interpreter that has tokenizers:

    gguf_pretok_differential.py [--tercet build/client/cli/tercet] [--only kimi-k2] [--texts 3000]

Prints a line a name; status 1 if one differs."""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

import gguf_files

SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN = LLAMA3.replace("{1,3}", "")
DEEPSEEK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def cased(upper, lower, number, behind="/"):
    before = r"[^\r\n\p{L}\p{N}]?"
    return "|".join([before + upper + "*" + lower + "+" + SHORT + "?", before + upper + "+" + lower + "*" + SHORT + "?", number,
                     r" ?[^\s\p{L}\p{N}]+[\r\n%s]*" % behind, SPACES])


# Letters that have a case, as DeepSeek's first list has them.
LETTERS = ("A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ\u1f5f-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌ\u1fd0-\u1fd3"
           "\u1fd6-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎ\uab70-\uabbfﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃")
PATTERNS = {
    "falcon-h1": [LLAMA3], "midm-2.0": [LLAMA3], "solar-open": [QWEN], "minicpm5": [r"\p{N}{1,3}", LLAMA3.replace("{1,3}", "+")],
    "jais-2": [LLAMA3.replace(r"|\s+(?!\S)|\s+", "".join(r"|\s{%d}(?!\S)" % 2 ** i for i in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s{1}")],
    "exaone-moe": [SHORT + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    "kimi-k2": [r"[\p{Han}]+|" + cased("[%s&&[^\\p{Han}]]" % UPPER, "[%s&&[^\\p{Han}]]" % LOWER, r"\p{N}{1,3}", "")],
    "youtu": ["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥ぁ-ゟ゠-ヿ]+".replace("ぁ", "\u3040"), cased("[%s]" % UPPER, "[%s]" % LOWER, r"\p{N}")],
    "afmoe": [r"\p{N}{1,2}(?=(?:\p{N}{3})+(?!\p{N}))|\p{N}{1,3}",
              "[一-\u9fff㐀-\u4dbf\uf900-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+", DEEPSEEK],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK], "hunyuan-dense": [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK],
    "bloom": [r" ?[^(\s|.,!?…。，、।۔،)]+"],
    "deepseek-llm": [r"[\r\n]", r"\s?[%s]+" % LETTERS, "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", "[一-龥ࠀ-一가-\ud7ff]+", "digits"],
}
WHOLE_WORDS = {"falcon-h1", "midm-2.0", "minicpm5", "kimi-k2", "youtu"}
PIECES = ["the ", " worker", "Step", "HTTPServer", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "a", "b", "Z", "é", "e\u0301", "ß", "İ", "你好", "世界", "，", "。", "々", "〇", "😀", "½", "²", "٣",
          "\u00a0", "\u2028", "한국", "가", "ㄱ", "ㄅ", "カタ", "ｶﾞ", "ひら", "ก็", "ລາວ", "ខ្មែរ", "မြန်", "नमस्ते", "12", "2025", "1234567", "7", ".", "!?", "/", "'s", "'LL", "don't", "Ａ", "！", "\u3000",
          "①", "-", "_", "#", "$x", "{}", "ǅ", "\u212a", "\u2126", "ΑΣ", "ώ", "Ա", "ա", "ა", "ᏸ", "𐐀", "“", "…", "\u2fdf", "\u9fff", "\U00020000"]


def texts(count, seed):
    draw = random.Random(seed)
    return ["".join(draw.choices(PIECES, k=draw.randint(1, 14))) for _ in range(count)]


def reference(name):
    tok = Tokenizer(models.BPE(ignore_merges=name in WHOLE_WORDS))
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.pre_tokenizer = whole
    tok.train_from_iterator(texts(4000, 1), trainers.BpeTrainer(vocab_size=4000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    cuts = [pre_tokenizers.Digits(individual_digits=True) if p == "digits" else pre_tokenizers.Split(Regex(p), "isolated") for p in PATTERNS[name]]
    tok.pre_tokenizer = pre_tokenizers.Sequence([*cuts, whole])
    return tok


def write(path, name, tok):
    model = json.loads(tok.to_str())["model"]
    tokens = [t for t, _ in sorted(model["vocab"].items(), key=lambda x: x[1])]
    config = {"max_position_embeddings": 64, "hidden_size": 4, "num_hidden_layers": 1, "intermediate_size": 4, "num_attention_heads": 1, "rms_norm_eps": 1e-5,
              "vocab_size": len(tokens)}
    values = {**gguf_files.values_of(config, "llama"), "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name, "tokenizer.ggml.tokens": tokens,
              "tokenizer.ggml.token_type": [gguf_files.NORMAL] * len(tokens), "tokenizer.ggml.add_bos_token": False,
              "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]}
    return gguf_files.write_gguf(path, values, {"token_embd.weight": ("F16", [len(tokens), 4], bytes(8 * len(tokens)))})


def tokenize(tercet, path, lines):
    run = subprocess.run([tercet, "tokenize", "--model", path, "--jsonl", "-"], input="".join(json.dumps({"text": t}) + "\n" for t in lines),
                         capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(run.stderr)
    return [json.loads(line)["ids"] for line in run.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tercet", default="build/client/cli/tercet")
    parser.add_argument("--only", nargs="+", default=sorted(PATTERNS))
    parser.add_argument("--texts", type=int, default=3000)
    options = parser.parse_args()
    bad = 0
    for name in options.only:
        tok, lines = reference(name), texts(options.texts, 2)
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            got = tokenize(options.tercet, write(pathlib.Path(folder) / "model.gguf", name, tok), lines)
        wrong = [(t, a, b) for t, a, b in zip(lines, got, (tok.encode(t).ids for t in lines)) if a != b]
        print("%s: %d of %d texts differ%s" % (name, len(wrong), len(lines), ", as %r: %s, not %s" % wrong[0] if wrong else ""))
        bad += bool(wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
