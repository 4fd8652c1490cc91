#!/usr/bin/env python3
"""Peers of bench_grammar: xgrammar and llguidance over the same schemas and documents, one thread: bench_grammar.py MODEL_DIR prints one
JSON line for each that is installed. A compiled schema is used for all its documents; the first time over them is cold."""
import json
import os
import sys
import time

SCHEMAS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "unit", "text", "grammar_schemas.json")
WARM_ROUNDS = 20


class Times:
    def __init__(self):
        self.sum, self.max, self.count = 0.0, 0.0, 0

    def run(self, action):
        begin = time.perf_counter()
        result = action()
        us = (time.perf_counter() - begin) * 1e6
        self.sum, self.max, self.count = self.sum + us, max(self.max, us), self.count + 1
        return result


class Llguidance:
    name = "llguidance"

    def __init__(self, tokenizer, eos):
        import llguidance
        import llguidance.numpy
        self.peer = llguidance
        self.tokenizer = llguidance.LLTokenizer(tokenizer.to_str(), eos_token=eos)
        self.bits = llguidance.numpy.allocate_token_bitmask(1, tokenizer.get_vocab_size())

    def compile(self, schema):
        self.peer.LLMatcher(self.tokenizer, self.peer.LLMatcher.grammar_from_json_schema(schema))
        return self.peer.LLMatcher.grammar_from_json_schema(schema)

    def start(self, grammar):
        return self.peer.LLMatcher(self.tokenizer, grammar)

    def mask(self, matcher):
        self.peer.numpy.fill_next_token_bitmask(matcher, self.bits)

    def step(self, matcher, token):
        return matcher.consume_token(token)


class Xgrammar:
    name = "xgrammar"

    def __init__(self, tokenizer, eos):
        import xgrammar
        self.peer = xgrammar
        size = tokenizer.get_vocab_size()
        vocab = [""] * size
        for token, number in tokenizer.get_vocab().items():
            vocab[number] = token
        info = xgrammar.TokenizerInfo(vocab, xgrammar.VocabType.BYTE_LEVEL, vocab_size=size, stop_token_ids=[eos])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bits = xgrammar.allocate_token_bitmask(1, size)

    def compile(self, schema):
        return self.compiler.compile_json_schema(schema)

    def start(self, grammar):
        return self.peer.GrammarMatcher(grammar)

    def mask(self, matcher):
        matcher.fill_next_token_bitmask(self.bits)

    def step(self, matcher, token):
        return matcher.accept_token(token)


def walk(peer, grammar, ids, masks):
    matcher = peer.start(grammar)
    for token in ids:
        masks.run(lambda: peer.mask(matcher))
        if not peer.step(matcher, token):
            return False
    masks.run(lambda: peer.mask(matcher))
    return True


def bench(peer, tokenizer, cases):
    compiling, cold, warm, refused = Times(), Times(), Times(), 0
    for case in cases:
        schema = json.dumps(case["schema"])
        try:
            grammar = compiling.run(lambda: peer.compile(schema))
        except Exception:  # pylint: disable=broad-except
            refused += 1
            continue
        documents = [tokenizer.encode(json.dumps(d, ensure_ascii=False), add_special_tokens=False).ids for d in case["valid"]]
        for turn in range(WARM_ROUNDS + 1):
            for ids in documents:
                refused += not walk(peer, grammar, ids, warm if turn else cold) and turn == 0
    print(json.dumps({"bench": "grammar", "peer": peer.name, "schemas": compiling.count, "compile_us": round(compiling.sum / compiling.count, 1), "compile_us_max": round(compiling.max, 1),
                      "cold_mask_us": round(cold.sum / cold.count, 2), "cold_mask_us_max": round(cold.max, 1), "mask_us": round(warm.sum / warm.count, 2), "mask_us_max": round(warm.max, 1),
                      "refused": refused}), flush=True)


def main():
    import tokenizers
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(sys.argv[1], "tokenizer.json"))
    eos = next(i for i in (tokenizer.token_to_id(t) for t in ("<|end_of_text|>", "<|endoftext|>", "</s>")) if i is not None)
    cases = json.load(open(SCHEMAS, encoding="utf-8"))
    for kind in (Llguidance, Xgrammar):
        try:
            peer = kind(tokenizer, eos)
        except ImportError as e:
            print("%s: %s" % (kind.name, e), file=sys.stderr)
            continue
        bench(peer, tokenizer, cases)


if __name__ == "__main__":
    main()
