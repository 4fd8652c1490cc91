#!/usr/bin/env python3
"""Makes small tokenizers in the shape of published families (normalizers, pre-tokenizers, decoders and post-processors as
those have them; vocabularies trained on this repository's documentation) with their vectors: ids and decoded text by
Hugging Face tokenizers and transformers, sentencepiece, tiktoken and mistral-common. `make_models.py OUT --all` writes every
family, for comparing (tokenizers_differential.py TERCET --data OUT); without --all those that the tests keep in
tests/unit/text/models, or of them the one named by `--only`.
Needs the packages tokenizers, sentencepiece and tiktoken, and for the last three of the kept ones transformers and mistral-common."""
import argparse
import base64
import contextlib
import glob
import io
import json
import os
import random

import sentencepiece
import tiktoken
import tiktoken._educational
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
MARK = "\u2581"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
LLAMA_DECODER = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
SPECIALS = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
PIECES = ["the ", " worker", "step", " ", "  ", "\n", "\n\n", "\t", "a", "b", "Z", "é", "e\u0301", "ß", "İ", "你好", "，", "。", "😀", "👩‍👩‍👧", "ﬁ", "½", "²", "٣", "\u00a0", "\u200b", "\u2028", "한국", "가",
          "ก็", "नमस्ते", "12", "2025", "1234567", ".", "!?", "'s", "'LL", "Ａ", "\u3000", "①", "scheduler", "ing", "-", "_", "\r\n", "\u0300", "ｶﾞ", "<|im_start|>", "<|im_end|>", "user\n", "<think>", "def f(x):\n    return", "HTTPServer",
          "don't", "$x^2$", "\x00", "\x7f", MARK, "naïve", "#", "{}", "`a`", "...", "ǅ", "K", "A\u030a", "ΑΣ", "[gMASK]", "[MASK]", " [MASK] ", "<extra_id_0>"]


def lines():
    out = []
    for path in sorted(glob.glob(os.path.join(ROOT, "docs", "*.md"))):
        with open(path, encoding="utf-8") as f:
            out += f.read().split("\n")
    return out + ["héé 你好 你好 한국 ﬁ ½ é 2025 12 naïve"] * 20


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def template(single, tok):
    names = [p for p in single.split() if p != "$A"]
    return processors.TemplateProcessing(single=single, pair=single + " $B:1", special_tokens=[(n, tok.token_to_id(n)) for n in names])


def finish(tok, specials=SPECIALS, others=("<think>",)):
    tok.add_special_tokens([AddedToken(s, normalized=False) for s in specials])
    tok.add_tokens([AddedToken(s, normalized=False) for s in others])
    return tok


def byte_bpe(size, pre, normalizer=None, ignore_merges=False, **added):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(lines(), trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, special_tokens=["<|bos|>"]))
    return finish(tok, **added)


def fallback_bpe(size, normalizer, pre, decoder, train_pre):
    """Byte tokens have to be in the vocabulary: they are put there behind the trained tokens."""
    tok = Tokenizer(models.BPE(unk_token="<unk>"))
    tok.normalizer = normalizers.Replace(" ", MARK)
    tok.pre_tokenizer = train_pre
    tok.train_from_iterator(lines(), trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)], show_progress=False, limit_alphabet=120))
    data = json.loads(tok.to_str())
    data["model"].update(byte_fallback=True, fuse_unk=True)
    data["added_tokens"] = [a for a in data["added_tokens"] if not a["content"].startswith("<0x")]
    data["normalizer"] = data["pre_tokenizer"] = None
    tok = Tokenizer.from_str(json.dumps(data))
    if normalizer is not None:
        tok.normalizer = normalizer
    if pre is not None:
        tok.pre_tokenizer = pre
    tok.decoder = decoder
    return tok


def llama_like(size, scheme):
    word = pre_tokenizers.Metaspace(prepend_scheme="always")
    if scheme == "prepend":
        tok = fallback_bpe(size, normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), None, LLAMA_DECODER, word)
    elif scheme == "replace":
        tok = fallback_bpe(size, normalizers.Replace(" ", MARK), None, LLAMA_DECODER, word)
    else:
        tok = fallback_bpe(size, None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), LLAMA_DECODER, word)
    tok.post_processor = template("<s> $A", tok)
    return finish(tok)


def charsmap(rule):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines()), model_writer=model, vocab_size=400, hard_vocab_limit=False, minloglevel=2, **rule)
    return model.getvalue()


def precompiled(rule):
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(charsmap(rule))
    return normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)


def unigram(size, normalizer, pre, decoder, post):
    tok = Tokenizer(models.Unigram())
    tok.normalizer, tok.pre_tokenizer, tok.decoder = normalizer, pre, decoder
    tok.train_from_iterator(lines(), trainers.UnigramTrainer(vocab_size=size, special_tokens=["<pad>", "<s>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    tok.post_processor = template(post, tok)
    tok.add_special_tokens(["<extra_id_0>"])
    tok.add_special_tokens([AddedToken("[MASK]", lstrip=True, normalized=False)])
    return tok


def wordpiece(size, lower):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece()
    tok.train_from_iterator(lines(), trainers.WordPieceTrainer(vocab_size=size, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False, limit_alphabet=120))
    tok.post_processor = template("[CLS] $A [SEP]", tok)
    return tok


def clip(size):
    tok = Tokenizer(models.BPE(unk_token="<|endoftext|>", continuing_subword_prefix="", end_of_word_suffix="</w>"))
    tok.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    tok.pre_tokenizer = pre_tokenizers.Sequence([split(CLIP, "removed", True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(lines(), trainers.BpeTrainer(vocab_size=size, end_of_word_suffix="</w>", special_tokens=["<|startoftext|>", "<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tok.post_processor = processors.RobertaProcessing(("<|endoftext|>", 1), ("<|startoftext|>", 0), trim_offsets=False, add_prefix_space=False)
    return tok


def with_template(tok, single):
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template(single, tok)])
    return tok


def whitespace_tokens(tok):
    tok.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    return tok


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
NMT = {"normalization_rule_name": "nmt_nfkc"}


def seq(*stages):
    return pre_tokenizers.Sequence(list(stages))


FAMILIES = {
    "llama3": lambda n: with_template(byte_bpe(n, seq(split(LLAMA3), BYTES), ignore_merges=True), "<|bos|> $A"),
    "qwen2": lambda n: byte_bpe(n, seq(split(QWEN), BYTES), normalizers.NFC()),
    "deepseek-v3": lambda n: byte_bpe(n, seq(split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK3), BYTES), normalizers.Sequence([])),
    "deepseek-v2": lambda n: byte_bpe(n, seq(split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"), pre_tokenizers.Digits(individual_digits=True), BYTES), normalizers.Sequence([])),
    "tekken": lambda n: byte_bpe(n, seq(split(TEKKEN), BYTES), ignore_merges=True),
    "o200k": lambda n: byte_bpe(n, seq(split(O200K), BYTES)),
    "kimi": lambda n: byte_bpe(n, seq(split(KIMI), BYTES)),
    "gpt-neox": lambda n: whitespace_tokens(byte_bpe(n, pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC())),
    "falcon": lambda n: byte_bpe(n, seq(pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]"))),
    "command-r": lambda n: byte_bpe(n, seq(pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)), normalizers.NFC()),
    "glm4": lambda n: with_template(byte_bpe(n, seq(split(LLAMA3), BYTES), specials=SPECIALS + ["[gMASK]", "<sop>"]), "[gMASK] <sop> $A"),
    "bloom": lambda n: byte_bpe(n, seq(split(BLOOM), BYTES)),
    "roberta": lambda n: byte_bpe(n, pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "smollm": lambda n: byte_bpe(n, seq(pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))),
    "clip": clip,
    "llama2": lambda n: llama_like(n, "prepend"),
    "yi": lambda n: llama_like(n, "replace"),
    "mistral": lambda n: llama_like(n, "first"),
    "gemma": lambda n: finish(fallback_bpe(n, normalizers.Replace(" ", MARK), pre_tokenizers.Split(" ", "merged_with_previous"), decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]),
                                           pre_tokenizers.Split(MARK, "merged_with_next"))),
    "t5": lambda n: unigram(n, precompiled(NMT), seq(pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")), decoders.Metaspace(prepend_scheme="always"), "$A </s>"),
    "xlm-r": lambda n: unigram(n, precompiled(NMT), pre_tokenizers.Metaspace(prepend_scheme="always"), decoders.Metaspace(prepend_scheme="always"), "<s> $A </s>"),
    "albert": lambda n: unigram(n, normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), precompiled(NMT)]),
                                seq(pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")), decoders.Metaspace(prepend_scheme="always"), "<s> $A </s>"),
    "deberta-v3": lambda n: unigram(n, normalizers.Sequence([normalizers.Strip(), precompiled(NMT), normalizers.Replace(Regex(" {2,}"), " ")]), seq(pre_tokenizers.Metaspace(prepend_scheme="always")),
                                    decoders.Metaspace(prepend_scheme="always"), "<s> $A </s>"),
    "bert": lambda n: wordpiece(n, True),
    "bert-cased": lambda n: wordpiece(n, False),
}
KEPT = ["deepseek-v3", "falcon", "bloom", "clip", "gemma", "mistral", "bert", "gpt-neox"]


def texts(count, seed):
    r = random.Random(seed)
    return ["", " ", "The worker's step 12345 <|im_end|>", "  two  spaces\n\n\tand tabs"] + ["".join(r.choice(PIECES) for _ in range(r.randrange(1, 12))) for _ in range(count)]


def write_vectors(folder, some, encode, decode, unknown=None, encode_special=None, decode_skip=None):
    with open(os.path.join(folder, "vectors.jsonl"), "w", encoding="utf-8") as f:
        for text in some:
            ids = encode(text)
            row = {"text": text, "ids": ids}
            if unknown is None or unknown not in ids:
                row["decoded"] = decode(ids)
            if encode_special is not None:
                row["ids_special"] = encode_special(text)
                row["decoded_skip_special"] = decode_skip(row["ids_special"])
            f.write(json.dumps(row) + "\n")


def write_family(out, name, size, vectors):
    tok = FAMILIES[name](size)
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(json.loads(tok.to_str()), f, ensure_ascii=False, separators=(",", ":"))
    write_vectors(folder, texts(vectors, 7), lambda t: tok.encode(t, add_special_tokens=False).ids, lambda ids: tok.decode(ids, skip_special_tokens=False))


def write_sentencepiece(out, kind):
    """With a character map of its own, which is small where the usual ones have 200 KB."""
    rules = os.path.join(out, "rules.tsv")
    with open(rules, "w", encoding="utf-8") as f:
        for source, target in [("ﬁ", "fi"), ("½", "1/2"), ("e\u0301", "é"), ("\u3000", " "), ("\t", " "), ("Ａ", "A"), ("ｶﾞ", "ガ"), ("ｶ", "カ"), ("\u200b", "")]:
            f.write("%s\t%s\n" % (" ".join("%X" % ord(c) for c in source), " ".join("%X" % ord(c) for c in target)))
    model = charsmap({"normalization_rule_tsv": rules, "model_type": kind, "byte_fallback": kind == "bpe", "user_defined_symbols": ["<tool>"]})
    os.remove(rules)
    folder = os.path.join(out, "sentencepiece-" + kind)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.model"), "wb") as f:
        f.write(model)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}, f)
    sp = sentencepiece.SentencePieceProcessor(model_proto=model)
    write_vectors(folder, texts(80, 8), sp.encode, sp.decode, sp.unk_id())


def write_tiktoken(out):
    with contextlib.redirect_stdout(io.StringIO()):
        ranks = tiktoken._educational.bpe_train("\n".join(lines())[:12000], 400, LLAMA3, visualise=None)
    encoding = tiktoken.Encoding("t", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={s: 400 + i for i, s in enumerate(SPECIALS)})
    folder = os.path.join(out, "tiktoken")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tiktoken.model"), "wb") as f:
        for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
            f.write(base64.b64encode(token) + b" %d\n" % rank)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"added_tokens_decoder": {str(400 + i): {"content": s, "special": True} for i, s in enumerate(SPECIALS)}, "bos_token": "<|bos|>", "eos_token": "<|eos|>"}, f)
    write_vectors(folder, texts(80, 9), lambda t: encoding.encode(t, allowed_special="all"), encoding.decode)


def write_old_files(out, name, vocab, merges, files):
    """vocab.json and merges.txt with what is beside them; the vectors are of the class that transformers takes for them."""
    from transformers import AutoTokenizer
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    for file, content in dict(files, **{"vocab.json": vocab}).items():
        with open(os.path.join(folder, file), "w", encoding="utf-8") as f:
            json.dump(content, f, ensure_ascii=False, separators=(",", ":"))
    with open(os.path.join(folder, "merges.txt"), "w", encoding="utf-8") as f:
        f.write("#version: 0.2\n" + "".join("%s %s\n" % tuple(m) for m in merges))
    tok = AutoTokenizer.from_pretrained(folder)._tokenizer
    some = texts(60, 10) + ["".join(t for t in tok.get_vocab() if "<" in t and len(t) > 3), "a </s>b <pad> <|im_end|>\n<plain>", "Don't  stop 2025\r\n"]
    write_vectors(folder, some, lambda t: tok.encode(t, add_special_tokens=False).ids, lambda ids: tok.decode(ids, skip_special_tokens=False), None,
                  lambda t: tok.encode(t).ids, lambda ids: tok.decode(ids, skip_special_tokens=True))


def trained_bytes(pattern, size):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pattern
    tok.train_from_iterator(lines(), trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    model = json.loads(tok.to_str())["model"]
    return model["vocab"], model["merges"]


def write_opt(out):
    """As OPT has them: special tokens in the vocabulary, one of them in front of every text."""
    vocab, merges = trained_bytes(pre_tokenizers.ByteLevel(add_prefix_space=False), 400)
    vocab = dict({t: i for i, t in enumerate(["<s>", "<pad>", "</s>", "<unk>"])}, **{t: i + 4 for t, i in vocab.items()})
    end, pad = ({"content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": True} for t in ("</s>", "<pad>"))
    config = {"bos_token": end, "eos_token": end, "unk_token": end, "pad_token": pad}
    config = {key: dict(value, __type="AddedToken") for key, value in config.items()}
    config.update({"errors": "replace", "add_prefix_space": False, "add_bos_token": True, "tokenizer_class": "GPT2Tokenizer"})
    write_old_files(out, "opt", vocab, merges, {"config.json": {"model_type": "opt"}, "tokenizer_config.json": config,
                                                "special_tokens_map.json": {"bos_token": end, "eos_token": end, "unk_token": end, "pad_token": pad}})


def write_qwen(out):
    """As Qwen's first ones: the class by the model's type, added tokens in a file of their own."""
    vocab, merges = trained_bytes(seq(split(QWEN), BYTES), 400)
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<plain>"]
    write_old_files(out, "qwen-vocab", vocab, merges, {"config.json": {"model_type": "qwen2"}, "added_tokens.json": {t: len(vocab) + i for i, t in enumerate(names)},
                                                       "special_tokens_map.json": {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}})


def write_tekken(out):
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    from transformers.integrations.mistral.tokenizer import MistralConverter
    with contextlib.redirect_stdout(io.StringIO()):
        ranks = tiktoken._educational.bpe_train("\n".join(lines())[:12000], 340, TEKKEN, visualise=None)
    special = [t["token_str"] for t in Tekkenizer.DEPRECATED_SPECIAL_TOKENS] + ["[THINK]", "[/THINK]"]
    folder = os.path.join(out, "tekken")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tekken.json"), "w", encoding="utf-8") as f:
        json.dump({"config": {"pattern": TEKKEN, "num_vocab_tokens": len(ranks), "default_vocab_size": 350, "default_num_special_tokens": 30, "version": "v11"},
                   "vocab": [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for token, rank in sorted(ranks.items(), key=lambda item: item[1])],
                   "special_tokens": [{"rank": i, "token_str": str(getattr(t, "value", t)), "is_control": True} for i, t in enumerate(special)]}, f, separators=(",", ":"))
    tok = MistralConverter(os.path.join(folder, "tekken.json")).converted()
    common = Tekkenizer.from_file(os.path.join(folder, "tekken.json"))
    some = texts(60, 11)
    assert all(tok.encode(t).ids == common.encode(t, False, False) for t in some)
    some += ["[INST] step [/INST]the worker</s>", "<SPECIAL_29>[THINK]a[/THINK]", "[INST", "<pad><unk>"]
    write_vectors(folder, some, lambda t: tok.encode(t).ids, lambda ids: tok.decode(ids, skip_special_tokens=False), None,
                  lambda t: [1] + tok.encode(t).ids, lambda ids: tok.decode(ids, skip_special_tokens=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    kept = {"sentencepiece-bpe": lambda: write_sentencepiece(args.out, "bpe"), "sentencepiece-unigram": lambda: write_sentencepiece(args.out, "unigram"), "tiktoken": lambda: write_tiktoken(args.out),
            "opt": lambda: write_opt(args.out), "qwen-vocab": lambda: write_qwen(args.out), "tekken": lambda: write_tekken(args.out)}
    for name in FAMILIES if args.all else KEPT:
        if args.only in (None, name):
            write_family(args.out, name, 900 if args.all else 400, 80)
    for name, write in {} if args.all else kept.items():
        if args.only in (None, name):
            write()


if __name__ == "__main__":
    main()
