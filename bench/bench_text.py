#!/usr/bin/env python3
"""bench_text next to Hugging Face tokenizers: the same documents, one thread, one run. Makes a virtual environment for
the package tokenizers (from PyPI) under the build folder unless the interpreter has it.
Usage: bench_text.py BUILD_DIR [--model DIR]... [--text FILE] [--json]"""
import argparse
import json
import os
import subprocess
import sys
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
DOCUMENT_BYTES = 2048
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"


def into_venv(build):
    """Runs again in the virtual environment when the package is missing here."""
    try:
        import tokenizers  # noqa: F401
        return
    except ImportError:
        pass
    python = os.path.join(build, "bench-venv", "bin", "python")
    if sys.executable == python:
        sys.exit("bench_text: the package tokenizers could not be installed")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", os.path.join(build, "bench-venv")], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "tokenizers"], check=True)
    os.execv(python, [python] + sys.argv)


def documents(path):
    data, at = open(path, "rb").read(), 0
    while at < len(data):
        end = data.find(b"\n", at + DOCUMENT_BYTES) + 1 if at + DOCUMENT_BYTES < len(data) else 0
        end = end or len(data)
        yield data[at:end].decode("utf-8")
        at = end


def best(run, seconds=0.6):
    fastest, spent, rounds = float("inf"), 0.0, 0
    while rounds < 3 or spent < seconds:
        begin = time.perf_counter()
        run()
        took = time.perf_counter() - begin
        fastest, spent, rounds = min(fastest, took), spent + took, rounds + 1
    return fastest


def hugging_face(model, texts):
    from tokenizers import Tokenizer, __version__
    from tokenizers.decoders import DecodeStream
    path = os.path.join(model, "tokenizer.json")
    begin = time.perf_counter()
    tok = Tokenizer.from_file(path)
    load = time.perf_counter() - begin
    tok.no_truncation()
    tok.no_padding()
    ids = [tok.encode(t, add_special_tokens=False).ids for t in texts]
    every = [i for d in ids for i in d]
    encode = best(lambda: [tok.encode(t, add_special_tokens=False) for t in texts])
    decode = best(lambda: tok.decode(every, skip_special_tokens=False))

    def stream():
        s = DecodeStream(skip_special_tokens=False)
        for i in some:
            s.step(tok, i)
    some = every[:20000]
    streamed = len(some) / best(stream)
    size = sum(len(t.encode("utf-8")) for t in texts) / 1e6
    return {"version": __version__, "ids": len(every), "encode_mb_s": size / encode, "decode_tokens_s": len(every) / decode, "stream_tokens_s": streamed, "load_ms": load * 1e3}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--model", action="append")
    parser.add_argument("--text", default=os.path.join(ROOT, "docs", "ARCHITECTURE.md"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    into_venv(os.path.abspath(args.build))
    for model in args.model or [os.path.join(ROOT, "demo")]:
        out = subprocess.run([os.path.join(args.build, "bench", "bench_text"), "--json", "--model", model, "--text", args.text], check=True, capture_output=True)
        ours = json.loads(out.stdout)
        theirs = hugging_face(model, list(documents(args.text)))
        if ours["ids"] != theirs["ids"]:
            sys.exit("bench_text: %d ids here, %d there" % (ours["ids"], theirs["ids"]))
        row = {"model": model, "tercet": ours, "tokenizers": theirs, "encode_ratio": ours["encode_mb_s"] / theirs["encode_mb_s"],
               "decode_ratio": ours["decode_tokens_s"] / theirs["decode_tokens_s"], "stream_ratio": ours["stream_tokens_s"] / theirs["stream_tokens_s"],
               "load_ratio": theirs["load_ms"] / ours["load_ms"]}
        if args.json:
            print(json.dumps(row))
        else:
            print("%-40s encode %6.1f MB/s against %5.1f (%.1fx)  decode %6.1f M tokens/s against %5.2f (%.1fx)  stream %6.1f against %5.2f (%.1fx)  load %5.1f ms against %5.1f" % (
                model[-40:], ours["encode_mb_s"], theirs["encode_mb_s"], row["encode_ratio"], ours["decode_tokens_s"] / 1e6,
                theirs["decode_tokens_s"] / 1e6, row["decode_ratio"], ours["stream_tokens_s"] / 1e6, theirs["stream_tokens_s"] / 1e6, row["stream_ratio"], ours["load_ms"], theirs["load_ms"]))


if __name__ == "__main__":
    main()
