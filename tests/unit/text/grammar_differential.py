#!/usr/bin/env python3
"""Grammars against other implementations: grammar_differential.py GRAMMAR_TOOL MODEL_DIR... Answers that are sampled from masks must be
valid for the schema (by the small validator below, and python3-jsonschema where it is installed), valid documents must be taken token by token and invalid ones must not; where
llguidance is installed too, --masks compares whole masks with it."""
import argparse
import datetime
import ipaddress
import json
import os
import random
import re
import subprocess
import sys
import uuid

KIND = {"choice": 1, "regex": 2, "schema": 3, "object": 4, "ebnf": 5}
SCHEMAS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "grammar_schemas.json")


class Tool:
    def __init__(self, path, model):
        self.process = subprocess.Popen([path, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, **command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("grammar_tool ended: %d" % self.process.wait())
        return json.loads(line)

    def compile(self, kind, source, flags=0):
        answer = self.ask(kind=KIND[kind], flags=flags, source=source)
        return answer["error"], answer["message"]

    def close(self):
        self.process.stdin.close()
        return self.process.wait()


def forms(document):
    """The ways of writing a document that a model is likely to choose."""
    yield json.dumps(document)
    yield json.dumps(document, ensure_ascii=False)
    yield json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    yield json.dumps(document, ensure_ascii=False, indent=2)
    yield json.dumps(document, ensure_ascii=False, indent="\t")


FORMATS = {
    "date-time": lambda s: datetime.datetime.fromisoformat(re.sub(r"\.(\d{1,6})\d*", lambda m: "." + m.group(1).ljust(6, "0"), s.replace("Z", "+00:00"))),
    "date": datetime.date.fromisoformat,
    "uuid": uuid.UUID,
    "ipv4": ipaddress.IPv4Address,
    "email": re.compile(r"[^@ ]+@[^@ ]+\Z").match,
}
TYPES = {"null": lambda v: v is None, "boolean": lambda v: isinstance(v, bool), "string": lambda v: isinstance(v, str), "array": lambda v: isinstance(v, list),
         "object": lambda v: isinstance(v, dict), "integer": lambda v: isinstance(v, int) and not isinstance(v, bool) or isinstance(v, float) and v == int(v),
         "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool)}


def same(x, y):
    return json.dumps(x, sort_keys=True) == json.dumps(y, sort_keys=True)


def numbers_hold(schema, v):
    return (v >= schema.get("minimum", v) and v <= schema.get("maximum", v) and ("exclusiveMinimum" not in schema or v > schema["exclusiveMinimum"])
            and ("exclusiveMaximum" not in schema or v < schema["exclusiveMaximum"]))


def strings_hold(schema, v):
    try:
        if "format" in schema and not FORMATS[schema["format"]](v):
            return False
    except ValueError:
        return False
    return schema.get("minLength", 0) <= len(v) <= schema.get("maxLength", len(v)) and re.search(schema.get("pattern", ""), v) is not None


def arrays_hold(schema, v, root):
    first = schema.get("prefixItems", [])
    return (schema.get("minItems", 0) <= len(v) <= schema.get("maxItems", len(v)) and all(holds(s, e, root) for s, e in zip(first, v))
            and all(holds(schema.get("items", True), e, root) for e in v[len(first):]))


def objects_hold(schema, v, root):
    named = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    if not all(re.search(schema.get("propertyNames", {}).get("pattern", ""), k) for k in v) or not schema.get("minProperties", 0) <= len(v) <= schema.get("maxProperties", len(v)):
        return False
    if not all(holds(s, e, root) for k, e in v.items() for p, s in patterns.items() if re.search(p, k)):
        return False
    return (all(name in v for name in schema.get("required", [])) and all(holds(named[k], e, root) for k, e in v.items() if k in named)
            and all(holds(schema.get("additionalProperties", True), e, root) for k, e in v.items()
                    if k not in named and not any(re.search(p, k) for p in patterns)))


def holds(schema, v, root):
    """Whether the value is valid, for the keywords that the cases use."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        target = root
        for step in schema["$ref"].split("/")[1:]:
            target = target[step]
        if not holds(target, v, root):
            return False
    types = schema.get("type", list(TYPES))
    if not any(TYPES[t](v) for t in ([types] if isinstance(types, str) else types)):
        return False
    if "enum" in schema and not any(same(v, e) for e in schema["enum"]) or "const" in schema and not same(v, schema["const"]):
        return False
    if not all(holds(s, v, root) for s in schema.get("allOf", [])) or "anyOf" in schema and not any(holds(s, v, root) for s in schema["anyOf"]):
        return False
    if TYPES["number"](v):
        return numbers_hold(schema, v)
    if isinstance(v, str):
        return strings_hold(schema, v)
    if isinstance(v, list):
        return arrays_hold(schema, v, root)
    return objects_hold(schema, v, root) if isinstance(v, dict) else True


def check_schema(tool, case, walks, validator):
    """Yields what is wrong."""
    schema = case["schema"]
    error, message = tool.compile("schema", json.dumps(schema))
    if error != "OK":
        yield "does not compile: " + message
        return
    for document in case["valid"]:
        for text in list(forms(document))[1 if "enum" in json.dumps(schema) else 0:]:  # literals are not escaped needlessly
            answer = tool.ask(accept=text)
            if not answer["may_end"]:
                yield "refused at token %d of %d: %s" % (answer["taken"], answer["tokens"], text)
    for document in case["invalid"]:
        for text in forms(document):
            if tool.ask(accept=text)["may_end"]:
                yield "taken: " + text
    for seed in range(walks):
        answer = tool.ask(walk=seed, steps=60)
        if answer["error"] != "OK" or not answer["ended"]:
            yield "a walk did not end (seed %d, %s): %s" % (seed, answer["error"], answer["text"][:300])
            continue
        try:
            value = json.loads(answer["text"])
            if not holds(schema, value, schema):
                raise ValueError("the small validator says so")
            if validator is not None:
                validator.validate(value)
        except Exception as e:  # pylint: disable=broad-except
            yield "an answer is not valid (seed %d): %s: %s" % (seed, str(e).split("\n")[0], answer["text"][:300])


class Schemas:
    """Random schemas of what is supported, and some of what is not."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, p):
        return self.random.random() < p

    def number(self):
        r = self.random
        return r.choice([r.randint(-200, 200), round(r.uniform(-50, 50), r.randint(0, 4)), 0, 1, -1, 10 ** r.randint(0, 6), 0.001])

    def numeric(self, schema):
        low, high = sorted([self.number(), self.number()])
        if self.chance(.5):
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(.5):
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = high

    def string(self, schema):
        if self.chance(.4):
            schema["minLength"] = self.random.randint(0, 4)
        if self.chance(.4):
            schema["maxLength"] = self.random.randint(4, 30)
        if self.chance(.4):
            schema["pattern"] = self.random.choice(["^[a-z]+$", "^-*[0-9]{2}", "^(a|bc)*d?$", "^y*x", "^\\w+ ?\\w*$", "^.{2,5}$", "^\\\\n?"])

    def array(self, schema, levels):
        r = self.random
        if self.chance(.7):
            schema["items"] = self.schema(levels) if self.chance(.9) else False
        if self.chance(.3):
            schema["prefixItems"] = [self.schema(levels) for _ in range(r.randint(1, 3))]
        if self.chance(.4):
            schema["minItems"] = r.randint(0, 3)
        if self.chance(.4):
            schema["maxItems"] = r.randint(2, 5)

    def object(self, schema, levels):
        r = self.random
        names = r.sample(["a", "ab", "abc", "b", "x y", "\u00e9", "q\"t", "back\\", "n\nl", "", "long_name_here"], r.randint(0, 5))
        if names:
            schema["properties"] = {n: self.schema(levels) for n in names}
        if self.chance(.6):
            schema["required"] = [n for n in names if self.chance(.5)] + (["extra"] if self.chance(.15) else [])
        if self.chance(.5):
            schema["additionalProperties"] = r.choice([False, True, self.schema(levels)])
        if not names and self.chance(.3):
            schema.update(minProperties=r.randint(0, 1), maxProperties=r.randint(2, 4))
        if not names and self.chance(.3):
            schema["propertyNames"] = {"pattern": "^[a-d]{1,3}$"}
        if self.chance(.2):
            schema["patternProperties"] = {"^p[0-9]$": self.schema(levels)}

    def schema(self, levels):
        r = self.random
        kinds = ["integer", "number", "string", "enum", "types"]
        kind = r.choice(kinds + ["array", "object", "any", "ref", "union", "all"] if levels > 0 else kinds)
        schema = {"type": kind} if kind in TYPES else {}
        if kind in ("integer", "number"):
            self.numeric(schema)
        elif kind == "string":
            self.string(schema)
        elif kind == "array":
            self.array(schema, levels - 1)
        elif kind == "object":
            self.object(schema, levels - 1)
        elif kind == "enum":
            schema["enum"] = [r.choice([1, "a", None, True, 1.5, "x\"y", [1], {"k": "v"}, "", -3, "\u00e9\n"]) for _ in range(r.randint(1, 4))]
        elif kind == "types":
            schema["type"] = r.choice(["null", "boolean", ["boolean", "null"], ["integer", "string"]])
        elif kind == "ref":
            schema["$ref"] = "#/$defs/" + r.choice("de")
        elif kind == "union":
            schema["anyOf"] = [self.schema(levels - 1) for _ in range(r.randint(1, 3))]
        elif kind == "all":
            schema["allOf"] = [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]}, {"properties": {"b": self.schema(levels - 1)}}]
        return schema

    def root(self):
        return dict(self.schema(3), **{"$defs": {"d": self.schema(0), "e": self.schema(1)}})


def check_random(tool, seed, count):
    """Answers of random schemas are valid. Returns the number of failures and of schemas that compiled."""
    schemas, failures, compiled = Schemas(seed), 0, 0
    for number in range(count):
        schema = schemas.root()
        error, message = tool.compile("schema", json.dumps(schema), flags=number % 2)
        if error != "OK":
            if error not in ("UNSUPPORTED", "INVALID", "TOO_LONG") or not message:
                print("random schema %d of seed %d: %s %s: %s" % (number, seed, error, message, json.dumps(schema)))
                failures += 1
            continue
        compiled += 1
        for walk in range(3):
            answer = tool.ask(walk=walk, steps=(0, 30, 60)[walk])
            try:
                good = answer["error"] == "OK" and answer["ended"] and holds(schema, json.loads(answer["text"]), schema)
            except (ValueError, RecursionError):
                good = False
            if not good:
                print("random schema %d of seed %d, walk %d: %s: %s" % (number, seed, walk, answer["text"][:200], json.dumps(schema)))
                failures += 1
    return failures, compiled


def check_model(args, model):
    try:
        import jsonschema
    except ImportError:
        jsonschema = None
    tool = Tool(args.tool, model)
    failures = 0
    cases = json.load(open(SCHEMAS, encoding="utf-8"))
    for number, case in enumerate(cases):
        validator = jsonschema.Draft202012Validator(case["schema"], format_checker=jsonschema.FormatChecker()) if jsonschema is not None else None
        for document, wanted in [(d, True) for d in case["valid"]] + [(d, False) for d in case["invalid"]]:
            assert holds(case["schema"], document, case["schema"]) == wanted, (number, document)
        for failure in check_schema(tool, case, args.walks, validator):
            print("%s, schema %d: %s" % (os.path.basename(model), number, failure))
            failures += 1
    wrong, compiled = check_random(tool, args.seed, args.random)
    failures += wrong + (compiled < args.random // 2)
    failures += check_masks(tool, model, cases, args.masks)
    if tool.close() != 0:
        failures += 1
    return len(cases) - min(failures, len(cases)), failures


def check_masks(tool, model, cases, count):
    """Masks along valid documents against llguidance's, without white space so that both allow the same."""
    if count == 0:
        return 0
    import llguidance
    import tokenizers
    hf = tokenizers.Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
    eos = next(i for i in (hf.token_to_id(t) for t in ("<|end_of_text|>", "<|endoftext|>", "</s>", "<|im_end|>")) if i is not None)
    data = llguidance.LLTokenizer(hf.to_str(), eos_token=eos)
    generator, failures, compared, differing = random.Random(1), 0, 0, {}
    for number, case in enumerate(cases):
        schema = dict(case["schema"])
        if tool.compile("schema", json.dumps(schema), flags=1)[0] != "OK":
            continue
        schema["x-guidance"] = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        for document in case["valid"]:
            text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
            ids = hf.encode(text, add_special_tokens=False).ids
            ours = tool.ask(masks=ids)["masks"]
            matcher = llguidance.LLMatcher(data, grammar)
            if matcher.is_error():
                print("%s: llguidance does not take schema %d: %s" % (model, number, matcher.get_error()[:200]))
                break
            for place, mask in enumerate(ours):
                theirs = matcher.compute_bitmask()
                words = [int(mask[i:i + 8], 16) for i in range(0, len(mask), 8)]
                own = b"".join(w.to_bytes(4, "little") for w in words)
                only_ours, only_theirs = [], []
                for byte, (a, b) in enumerate(zip(own, theirs)):
                    for bit in range(8):
                        if (a ^ b) >> bit & 1:
                            (only_ours if a >> bit & 1 else only_theirs).append(8 * byte + bit)
                compared += 1
                if only_ours or only_theirs:
                    key = (number, len(only_ours) > 0, len(only_theirs) > 0)
                    differing.setdefault(key, []).append((text[:200], place, hf.decode(ids[:place]), [hf.id_to_token(i) for i in generator.sample(only_ours, min(6, len(only_ours)))],
                                                          [hf.id_to_token(i) for i in generator.sample(only_theirs, min(6, len(only_theirs)))], len(only_ours), len(only_theirs)))
                if place < len(ids) and not matcher.consume_token(ids[place]):
                    print("llguidance refuses token %d of %s" % (place, text))
                    break
    print("%s: %d masks compared, %d differ" % (os.path.basename(model), compared, sum(len(v) for v in differing.values())))
    for key, places in differing.items():
        print("  schema %d, %d places, as behind %r: only ours %r (%d), only theirs %r (%d)" % (key[0], len(places), places[0][2][-60:], places[0][3], places[0][5], places[0][4], places[0][6]))
    return failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--walks", type=int, default=12)
    parser.add_argument("--masks", type=int, default=0, help="1: compare masks with llguidance")
    parser.add_argument("--random", type=int, default=80, help="how many random schemas")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    passed = failed = 0
    for model in args.models:
        if not os.path.exists(os.path.join(model, "tokenizer.json")):
            continue
        good, bad = check_model(args, model)
        passed += good
        failed += bad
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
