"""Tokens of the demo, the reference models and small ones whose layers keep a state, or whose heads are others, through HTTP, on the device against the CPU backend and the references."""
import concurrent.futures
import random
import time

import device_tokens
import engine as engines
import small_models
from gpu_check.machine import Skipped, troubles

# How the demo runs, and which share of the sure tokens may be others: what rounding a cache or weights may cost.
DEMO_WAYS = [([], 0), (["--enforce-eager"], 0), (["--async-depth", 0], 0), (["--kv-cache-dtype", "int8"], 0.1),
             (["--kv-cache-dtype", "fp8"], 0.1), (["--quantization", "int8"], 0.02), (["--quantization", "int4"], 0.25)]
AT_ONCE = 4
LONG = 400  # tokens of an answer that is interrupted
FLAGS = ["--max-num-seqs", 8, "--max-num-batched-tokens", 256]
SMALL_FLAGS = ["--max-model-len", 448]
SMALL_PROMPTS, SMALL_OUTPUTS = (20, 90, 200, 350), 40


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


def one(here, name, model, prompts, wanted, flags, allowed, margin=device_tokens.MARGIN):
    """An engine with `flags`; `allowed`: share of the sure tokens that may be others. Gives what Part.judge takes."""
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
        return False, what, {"problem": "%s: %s" % (type(problem).__name__, str(problem)[-3000:]), "log": log}
    return (sure > 0 and len(wrong) <= allowed * sure and not others, what,
            {"sure": sure, "wrong": len(wrong), "examples": (wrong + others)[:5]})


def demo_ways(here):
    if here.emulated:
        return DEMO_WAYS[:1]
    return DEMO_WAYS + ([(["--tensor-parallel-size", 2], 0)] if here.devices() >= 2 else [])


def small_jobs(here):
    """Models whose layers keep a state, or whose heads are not as Llama's. Each prompt is asked for more than once, so that states are saved and begun with."""
    models = {**small_models.RECURRENT, **small_models.OTHER_HEADS}
    for name in list(models)[:1 if here.emulated else None]:
        folder = here.scratch(1 << 20) / ("small-" + name)
        folder.mkdir(exist_ok=True)
        small_models.write_model(folder, models[name]())
        lengths, outputs = (SMALL_PROMPTS[:1], 3) if here.emulated else (SMALL_PROMPTS, SMALL_OUTPUTS)
        ids = [random.Random(n).choices(range(3, small_models.VOCAB), k=n) for n in lengths]
        with here.engine(*FLAGS, *SMALL_FLAGS, "--dtype", "bfloat16", model=folder, cuda=False) as cpu:
            wanted = [device_tokens.continuation(cpu.api, prompt, outputs) for prompt in ids]
        prompts = [{"ids": prompt, "output_ids": right, "margins": margins} for prompt, (right, margins) in zip(ids, wanted)]
        yield here, name, folder, prompts, wanted, SMALL_FLAGS, 0, small_models.MARGIN


def check(here, part, end):
    prompts = shortened(here, device_tokens.demo_prompts())
    with here.engine(*FLAGS, "--dtype", "bfloat16", model=engines.DEMO, cuda=False) as cpu:
        wanted = [device_tokens.continuation(cpu.api, p["ids"], len(p["output_ids"])) for p in prompts]
    jobs = [(here, "demo", engines.DEMO, prompts, wanted, flags, allowed) for flags, allowed in demo_ways(here)]
    jobs += small_jobs(here)
    folder = None if here.emulated else here.reference_models()
    if folder is None and not here.emulated:
        part.row("no reference models here")
    for name, (model, reference) in device_tokens.reference_models(folder).items() if folder else ():
        listed = device_tokens.read_reference(reference)
        greedy = [(p["output_ids"], p["margins"]) for p in listed]
        jobs.append((here, name, model, listed, greedy, [], device_tokens.experts_wrong(name),
                     device_tokens.REFERENCE_MARGIN))
    if here.devices() < 2:
        part.row("tensor parallelism: one device only")
    run_all(part, jobs, end)
    if not here.emulated and time.monotonic() < end - 20:  # tests/fault does it on the emulated device
        outlives(here, part)
    part.row("%d models and ways right, %d wrong" % (part.passed, part.failed))


def outlives(here, part):
    """Requests whose worker is killed while they are answered."""
    prompts = device_tokens.demo_prompts()[:4]
    with here.engine("--max-num-seqs", 8, model=engines.DEMO) as e:
        wanted = [device_tokens.continuation(e.api, p["ids"], LONG) for p in prompts]
        got = engines.killed_amid(e, "tercet-worker", lambda: device_tokens.together(
            e.api, [(p["ids"], LONG, {}) for p in prompts]), len(prompts))
    found = [device_tokens.same_as_far_as_sure(tokens, right, margins) for tokens, (right, margins) in zip(got, wanted)]
    part.judge(not any(found), "requests outlive their worker", examples=[f for f in found if f], tokens=LONG * len(prompts))


def run_all(part, jobs, end):
    """Some engines at a time: to start and to end takes longer than to answer."""
    def in_time(job):
        return one(*job) if time.monotonic() < end - 8 else None
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for job, found in zip(jobs, pool.map(in_time, jobs)):
            if found:
                part.judge(found[0], found[1], **found[2])
            else:
                part.row("%s %s: no time left" % (job[1], " ".join(str(f) for f in job[5])))
    if part.passed + part.failed == 0:
        raise Skipped("no model was run")
