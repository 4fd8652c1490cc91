#!/usr/bin/env python3
"""Greedy float32 continuations of the demo model by PyTorch, for checking the engine: demo/reference.json.

    make_reference.py [--model demo] [--out demo/reference.json]

Every prompt is continued by 48 tokens, end-of-sequence ignored. Prompts on whose way two tokens come closer than
MARGIN_MIN are left out: there another order of summation may rightly choose the other one. `margins` holds the gap between the best and the
second logit at each step, so that a test in lower precision knows which tokens it may expect.
"""
import argparse
import json
import sys

sys.dont_write_bytecode = True
import torch

import train_demo

TEXTS = [
    "Once upon a time",
    "There was once a little girl who lived in a forest",
    "The old king called his three sons and said:",
    "\"Come in,\" said the fox,",
    "One day in winter, when the snow lay deep,",
    "The Princess looked out of the window and saw",
    "\"Where are you going, my boy?\" asked the old woman.",
    "In the middle of the night",
    "The giant was so angry that he",
    "Far away, in a castle by the sea,",
    "\"I am very hungry,\" said the wolf",
    "At last they came to",
    "",
    "The cat sat on the mat.\n\nThe dog",
    "  Hello, world! 12345 \u00e9\u4f60\u597d \U0001f600",
    " ".join(["The fisherman rowed his boat over the grey water, and the wind blew cold from the north."] * 14),
]
CHATS = [
    [("user", "Tell me a story about a fox.")],
    [("user", "Tell me a story.")],
    [("user", "Continue this story: A poor fisherman lived by the sea with his wife.")],
    [("user", "Tell me a story about a king."), ("assistant", "There was once a king who had three sons."),
     ("user", "Go on.")],
]
NEW_TOKENS = 48
MARGIN_MIN = 0.001


def chat_prompt(tok, turns):
    """The chat template by hand: its text and its ids, special tokens as single ids."""
    special = tok.special
    text, ids = "<|begin_of_text|>", [special["<|begin_of_text|>"]]
    for role, content in turns:
        text += "<|%s|>\n%s<|end|>\n" % (role, content)
        ids += [special["<|%s|>" % role]] + tok.encode("\n" + content) + [special["<|end|>"]] + tok.encode("\n")
    return text + "<|assistant|>\n", ids + [special["<|assistant|>"]] + tok.encode("\n")


@torch.no_grad()
def continue_greedily(model, ids):
    ids, made, margins, first = list(ids), [], [], None
    for _ in range(NEW_TOKENS):
        row = model(torch.tensor([ids]), last_only=True)[0, -1]
        first = row.clone() if first is None else first
        best = torch.topk(row, 2)
        made.append(int(best.indices[0]))
        margins.append(round(float(best.values[0] - best.values[1]), 5))
        ids.append(made[-1])
    return made, margins, first


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", default="demo")
    ap.add_argument("--out", default="demo/reference.json")
    a = ap.parse_args()
    torch.set_num_threads(2)
    model, _ = train_demo.load(a.model)
    tok = train_demo.Tokenizer(a.model + "/tokenizer.json")
    bos = tok.special["<|begin_of_text|>"]
    prompts = [("text", t, [bos] + tok.encode(t)) for t in TEXTS]
    prompts += [("chat",) + chat_prompt(tok, turns) for turns in CHATS]
    out = {"model": "demo", "dtype": "float32 arithmetic on the stored bf16 weights", "eos_is_ignored": True,
           "max_new_tokens": NEW_TOKENS, "prompts": []}
    for kind, text, ids in prompts:
        made, margins, first = continue_greedily(model, ids)
        if min(margins) < MARGIN_MIN:
            continue
        logprobs, best = torch.log_softmax(first.double(), -1), torch.topk(first, 20)
        out["prompts"].append({
            "kind": kind, "text": text, "ids": ids, "output_ids": made, "output_text": tok.decode(made),
            "margins": margins, "min_margin": min(margins),
            "top20": [[int(i), float(v), float(logprobs[i])] for v, i in zip(best.values, best.indices)]})
    with open(a.out, "w") as f:
        json.dump(out, f, ensure_ascii=True, indent=1)
    print(len(out["prompts"]), "prompts; smallest margins", sorted(p["min_margin"] for p in out["prompts"])[:6])


if __name__ == "__main__":
    main()
