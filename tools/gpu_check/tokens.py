"""Tokens of the demo and the reference models through HTTP, on the device against the CPU backend and the references."""
import time

import device_tokens
import engine as engines
from gpu_check.machine import Skipped, troubles

KV8_WRONG = 0.1
FLAGS = ["--max-num-seqs", 8, "--max-num-batched-tokens", 256]


def shortened(here, prompts):
    if not here.emulated:
        return prompts
    ordered = sorted(prompts, key=lambda p: len(p["ids"]))[:2]
    return [{"ids": p["ids"], "output_ids": p["output_ids"][:3], "margins": p["margins"][:3]} for p in ordered]


def continuations(api, cpu_wanted, prompts, margin):
    """Where the device leaves what the CPU says, although that is sure; texts."""
    got = device_tokens.together(api, [(p["ids"], len(p["output_ids"]), {}) for p in prompts])
    found = [device_tokens.same_as_far_as_sure(tokens, right, margins, margin) for tokens, (right, margins) in zip(got, cpu_wanted)]
    return [f for f in found if f]


def one(here, part, name, model, prompts, wanted, flags, allowed, margin=device_tokens.MARGIN):
    """An engine with `flags`; `allowed`: share of the sure tokens that may be others."""
    what = " ".join([name, *[str(f) for f in flags]])
    log = ""
    try:
        with here.engine(*FLAGS, *flags, model=model) as e:
            try:
                sure, wrong = device_tokens.sure_tokens(e.api, prompts, margin)
                others = continuations(e.api, wanted, prompts, margin) if allowed == 0 else []
                others += troubles(e.log())
            except Exception:
                log = e.log()[-3000:]
                raise
    except Exception as problem:  # pylint: disable=broad-except  # the other models shall run, too
        part.judge(False, what, problem="%s: %s" % (type(problem).__name__, str(problem)[-3000:]), log=log)
        return
    part.judge(sure > 0 and len(wrong) <= allowed * sure and not others, what, sure=sure, wrong=len(wrong),
               examples=(wrong + others)[:5])


def demo_ways(here):
    ways = [[], ["--enforce-eager"], ["--kv-cache-dtype", "int8"], ["--async-depth", 0], ["--kv-cache-dtype", "fp8"]]
    if here.emulated:
        ways = ways[:1]
    if here.devices() >= 2:
        ways.insert(1, ["--tensor-parallel-size", 2])
    return ways[:1] if here.emulated else ways


def check(here, part, end):
    prompts = shortened(here, device_tokens.demo_prompts())
    with here.engine(*FLAGS, "--dtype", "bfloat16", model=engines.DEMO, cuda=False) as cpu:
        wanted = [device_tokens.continuation(cpu.api, p["ids"], len(p["output_ids"])) for p in prompts]
    for flags in demo_ways(here):
        one(here, part, "demo", engines.DEMO, prompts, wanted, flags, KV8_WRONG if "--kv-cache-dtype" in flags else 0)
    if here.devices() < 2:
        part.row("tensor parallelism: one device only")
    if here.emulated:
        return
    folder = here.reference_models()
    if folder is None:
        part.row("no reference models here")
        return
    for name, (model, reference) in device_tokens.reference_models(folder).items():
        if time.monotonic() > end - 8:
            part.row("%s and those behind it: no time left" % name)
            break
        listed = device_tokens.read_reference(reference)
        greedy = [(p["output_ids"], p["margins"]) for p in listed]
        one(here, part, name, model, listed, greedy, [], device_tokens.experts_wrong(name),
            device_tokens.REFERENCE_MARGIN)
    if part.passed + part.failed == 0:
        raise Skipped("no model was run")
    part.row("%d models and ways right, %d wrong" % (part.passed, part.failed))
