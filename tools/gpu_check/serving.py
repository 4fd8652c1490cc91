"""Speed of the whole engine: decode at several batch sizes and contexts, prefill, the device's busy share and start-up, on
checkpoints of random weights. Steps are those of the engine's timeline, so that what is measured is the device's pace and
not this client's."""
import concurrent.futures
import json
import re
import statistics
import sys
import time

import engine as engines
from gpu_check.machine import Skipped, troubles

BLOCK = 16
BUDGET = 8192
DECODE_STEPS = 64  # that all rows of a load have together
SHAPES = {  # layers, KV heads, head size, elements of the matrices that a step reads, goal at batch 1 and above
    "llama-3.1-8b": {"bytes": 16.1e9, "layers": 32, "kv_heads": 8, "head_dim": 128, "heads": 32, "read": 7.504e9,
                     "linear": 6.979e9, "goals": (0.90, 0.85)},
    "llama-3.2-1b": {"bytes": 2.5e9, "layers": 16, "kv_heads": 8, "head_dim": 64, "heads": 32, "read": 1.236e9,
                     "linear": 0.973e9, "goals": (0.80, 0.80)},
}
LOADS = [(1, 1024), (8, 1024), (32, 1024), (64, 1024), (128, 1024), (256, 1024), (1, 4096), (8, 4096), (32, 4096),
         (64, 4096), (128, 4096)]
PREFILLS = [512, 2048, 8192]
# The large model again: name, flags, bytes of a weight and of a value in the cache with their scales.
WAYS = [("int8", ["--quantization", "int8"], 1 + 4 / 128, 2), ("int4", ["--quantization", "int4"], 0.5 + 4 / 128, 2),
        ("int8 cache", ["--kv-cache-dtype", "int8"], 2, 1 + 4 / 128)]
WAY_LOADS = [(1, 1024), (8, 1024), (64, 1024), (32, 4096)]
WAY_PREFILLS = [2048]
# Milliseconds a step that were predicted for an H200 before anything was measured: (shape, batch, context)
PREDICTED = {("llama-3.1-8b", 1, 1024): 4.18, ("llama-3.1-8b", 64, 1024): 6.96, ("llama-3.1-8b", 128, 1024): 9.3,
             ("llama-3.2-1b", 1, 1024): 0.84}
PREDICTED_PREFILL = {("llama-3.1-8b", 2048): 45.0}


def demo_shape():
    c = json.loads((engines.DEMO / "config.json").read_text())
    hidden, inner, layers = c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"]
    linear = layers * (hidden * (c["num_attention_heads"] + 2 * c["num_key_value_heads"]) * c["head_dim"] +
                       hidden * c["num_attention_heads"] * c["head_dim"] + 3 * hidden * inner)
    return {"bytes": 0, "layers": layers, "kv_heads": c["num_key_value_heads"], "head_dim": c["head_dim"],
            "heads": c["num_attention_heads"], "linear": linear, "read": linear + hidden * c["vocab_size"], "goals": (0, 0)}


# ---------------------------------------------------------------- floors

def decode_floor_ms(here, shape, batch, context, weight=2, value=2):
    """What reading weights and caches, or computing, takes at the ceilings of this run; None without those."""
    read, rate = here.ceilings.get("read_gbytes_s"), here.ceilings.get("bf16_tflops")
    if not read or not rate:
        return None
    cache = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * value * batch * context
    weights = max(weight * shape["read"] / read / 1e6, 2 * shape["read"] * batch / rate / 1e9)
    return weights + cache / read / 1e6


def prefill_floor_ms(here, shape, tokens):
    rate = here.ceilings.get("bf16_tflops")
    if not rate:
        return None
    attention = 4 * shape["layers"] * shape["heads"] * shape["head_dim"] * tokens * (tokens + 1) / 2
    return (2 * shape["linear"] * tokens + attention) / rate / 1e9


# ---------------------------------------------------------------- the timeline

class Timeline:
    """Steps of the first worker's device: [(begin, end, tokens)] in seconds of time.monotonic()."""

    def __init__(self, path):
        trace = json.loads(path.read_text())
        origin = int(trace.get("otherData", {}).get("origin_ns", 0)) / 1e9
        workers = sorted((e["args"]["name"], e["pid"]) for e in trace["traceEvents"]
                         if e["name"] == "process_name" and e["args"]["name"].startswith("worker"))
        pid = workers[0][1] if workers else None
        spans = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == pid and e["name"] == "device"]
        self.steps = sorted((origin + e["ts"] / 1e6, origin + (e["ts"] + e["dur"]) / 1e6, e["args"]["count"])
                            for e in spans)

    def decode(self, window, batch):
        """The longest run of steps within `window` in which all rows decode, without its first and last tenth."""
        best, run = [], []
        for step in [s for s in self.steps if window[0] <= s[0] and s[1] <= window[1]] + [(0, 0, -1)]:
            if step[2] == batch:
                run.append(step)
                continue
            best, run = max(best, run, key=len), []
        edge = len(best) // 10
        return best[edge:len(best) - edge]

    def prefill(self, window, tokens):
        """Seconds of the device for a prompt, as it came in steps."""
        inside = [s for s in self.steps if window[0] <= s[0] and s[1] <= window[1]]
        if sum(s[2] for s in inside) < tokens or not inside:
            return None
        return inside[-1][1] - inside[0][0]


def pace(steps):
    """(median milliseconds from step to step, share of the time in which the device was busy)"""
    periods = [b[1] - a[1] for a, b in zip(steps, steps[1:])]
    busy, reached = 0.0, steps[0][0]
    for begin, end, _ in steps:
        busy += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return 1000 * statistics.median(periods), busy / (reached - steps[0][0])


# ---------------------------------------------------------------- loads

def prompt(tokens, number):
    """Ids of no meaning; every prompt has its own."""
    return [10 + (7919 * (number + 1) + 31 * i * (number % 97 + 1)) % 3000 for i in range(tokens)]


def load(api, batch, context, steps):
    """`batch` requests at once; (begin, end), and the tokens that came."""
    begin = time.monotonic()
    pool = concurrent.futures.ThreadPoolExecutor(batch)
    try:
        jobs = [pool.submit(api.completions, prompt(context - steps // 2, k), max_tokens=steps, temperature=0,
                            ignore_eos=True) for k in range(batch)]
        tokens = sum(j.result()["usage"]["completion_tokens"] for j in jobs)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # requests that wait end with their engine
    return (begin, time.monotonic()), tokens


def outputs(batch, context, steps):
    """Tokens of each row: those that come first decode while others are still computing their prompts."""
    return steps + -(-batch * context // BUDGET)


class Run:
    """One engine, its loads, and what they came to."""

    def __init__(self, here, part, name, shape, end, way=None):
        self.here, self.part, self.name, self.shape, self.end = here, part, name, shape, end
        self.flags, self.bytes = [], (2, 2)
        if way:
            self.name, self.flags, self.bytes = "%s %s" % (name, way[0]), way[1], way[2:]
        self.windows = []  # (kind, batch or tokens, context, window, tokens)

    def start(self, what, model, flags):
        """An engine that answers; how long that took is a line of its own."""
        began = time.monotonic()
        e = self.here.engine(*flags, model=model, wait=False)
        try:
            e.wait_ready(min(max(self.end - time.monotonic(), 10), 120))
        except BaseException as problem:
            log = e.log()[-3000:]
            e.close()
            if isinstance(problem, AssertionError):
                raise AssertionError("%s\n%s" % (problem, log)) from problem
            raise
        e.api.timeout = max(self.end - time.monotonic(), e.api.timeout)
        seconds = time.monotonic() - began
        self.part.line(bench="gpu_engine", model=self.name, what=what, seconds=round(seconds, 2))
        self.part.row("%s: %s %.1f s" % (self.name, what, seconds))
        return e

    def measure(self, model, loads, prefills, steps):
        trace = model.parent / "timeline.json" if not self.here.emulated else self.here.scratch(1e6) / "timeline.json"
        longest = max([c + outputs(b, c, steps) for b, c in loads] + [p + 1 for p in prefills])
        flags = ["--max-num-seqs", max(b for b, _ in loads), "--max-num-batched-tokens", min(BUDGET, longest),
                 "--max-model-len", longest, "--no-enable-prefix-caching", "--weights-cache", trace.parent / "products", *self.flags]
        if not self.here.emulated:
            flags += ["--kv-cache-memory", 0, "--gpu-memory-utilization", 0.9]
        # the first start measures matrix products and remembers which algorithms are fastest; the second is as all later ones
        if not self.flags:
            with self.start("first start-up", model, flags) as e:
                e.terminate()
        with self.start("start-up", model, flags + ["--trace", trace]) as e:
            try:
                self.run(e, loads, prefills, steps)
            except Exception as problem:  # pylint: disable=broad-except  # what was measured before it counts
                self.part.judge(False, "%s: %s: %s" % (self.name, type(problem).__name__, problem), log=e.log()[-3000:])
            log = e.log()
            status = e.terminate()
        self.part.judge(status == 0, "%s ended in order" % self.name, log="" if status == 0 else log[-3000:])
        self.judge_log(log)
        if trace.exists():
            self.judge(Timeline(trace))
            trace.unlink()
        else:
            self.part.judge(False, "%s: no timeline was written" % self.name)

    def run(self, e, loads, prefills, steps):
        blocks = block_count(e)
        for tokens in prefills:
            for number in range(3):  # the first one may still choose algorithms
                begin = time.monotonic()
                e.api.completions(prompt(tokens, number), max_tokens=1, temperature=0)
                self.windows.append(("prefill", tokens, tokens, (begin, time.monotonic()), tokens))
        for batch, context in loads:
            count = outputs(batch, context, steps)
            if blocks and batch * (-(-(context + count) // BLOCK) + 1) > blocks:
                self.part.row("%s batch %d context %d: does not fit (%d blocks)" % (self.name, batch, context, blocks))
                self.part.line(bench="gpu_engine", model=self.name, what="decode", batch=batch, context=context,
                               skipped="does not fit", blocks=blocks)
                continue
            if time.monotonic() > self.end - 5:
                self.part.row("%s batch %d context %d: no time left" % (self.name, batch, context))
                continue
            window, tokens = load(e.api, batch, context, count)
            self.part.judge(tokens == batch * count, "%s batch %d context %d answered" % (self.name, batch, context),
                            tokens=tokens)
            self.windows.append(("decode", batch, context, window, tokens))

    def judge_log(self, log):
        refused = troubles(log)
        self.part.judge(not refused, "%s: nothing that the device refused" % self.name, log=refused)
        times = sorted(int(us) / 1000 for us in re.findall(r"GRAPH_RECORDED.* us=(\d+)", log))
        if times:
            self.part.line(bench="gpu_engine", model=self.name, what="graphs", count=len(times),
                           median_ms=round(statistics.median(times), 2), most_ms=round(times[-1], 2))
            self.part.row("%s: %d graphs recorded, median %.1f ms, at most %.1f ms" % (
                self.name, len(times), statistics.median(times), times[-1]))

    def judge(self, timeline):
        for kind, size, context, window, tokens in self.windows:
            if kind == "decode":
                self.decode_row(timeline, size, context, window, tokens)
        for size in sorted({w[1] for w in self.windows if w[0] == "prefill"}):
            self.prefill_row(timeline, size, [w[3] for w in self.windows if w[0] == "prefill" and w[1] == size])

    def decode_row(self, timeline, batch, context, window, tokens):
        fields = {"bench": "gpu_engine", "model": self.name, "what": "decode", "batch": batch, "context": context,
                  "client_tokens_s": round(tokens / (window[1] - window[0]), 1)}
        steps = timeline.decode(window, batch)
        if len(steps) < 3:
            self.part.line(**fields, steps=len(steps))
            self.part.judge(False, "%s batch %d context %d: no steady decode in the timeline" % (self.name, batch, context))
            return
        ms, busy = pace(steps)
        floor = decode_floor_ms(self.here, self.shape, batch, context, *self.bytes)
        predicted = PREDICTED.get((self.name, batch, context))
        goal = self.shape["goals"][batch > 1]
        fields.update(step_ms=round(ms, 3), tokens_s=round(1000 * batch / ms, 1), busy=round(busy, 4), steps=len(steps),
                      floor_ms=floor and round(floor, 3), share=floor and round(floor / ms, 3), goal=goal,
                      predicted_ms=predicted)
        self.part.line(**fields)
        self.part.row("%-23s decode  batch %3d context %4d  %8.3f ms  %8.0f tokens/s  busy %5.1f %%%s%s" % (
            self.name, batch, context, ms, 1000 * batch / ms, 100 * busy,
            "  %3.0f %% of the floor (goal %.0f)" % (100 * floor / ms, 100 * goal) if floor else "",
            "  predicted %.2f ms" % predicted if predicted else ""))

    def prefill_row(self, timeline, tokens, windows):
        device = [t for t in (timeline.prefill(w, tokens) for w in windows) if t]
        fields = {"bench": "gpu_engine", "model": self.name, "what": "prefill", "tokens": tokens,
                  "client_ms": round(1000 * min(w[1] - w[0] for w in windows), 3)}
        if not device:
            self.part.line(**fields)
            self.part.judge(False, "%s prefill of %d: not in the timeline" % (self.name, tokens))
            return
        ms = 1000 * min(device)
        floor = prefill_floor_ms(self.here, self.shape, tokens)
        predicted = PREDICTED_PREFILL.get((self.name, tokens))
        fields.update(device_ms=round(ms, 3), tokens_s=round(1000 * tokens / ms, 1), floor_ms=floor and round(floor, 3),
                      share=floor and round(floor / ms, 3), goal=self.shape["goals"][1], predicted_ms=predicted)
        self.part.line(**fields)
        self.part.row("%-23s prefill %5d tokens          %8.3f ms  %8.0f tokens/s  first token after %.1f ms%s%s" % (
            self.name, tokens, ms, 1000 * tokens / ms, fields["client_ms"],
            "  %3.0f %% of the floor (goal %.0f)" % (100 * floor / ms, 100 * self.shape["goals"][1]) if floor else "",
            "  predicted %.1f ms" % predicted if predicted else ""))


def block_count(e):
    """KV blocks of the engine, as its metrics say; None where they do not."""
    for line in e.api.raw("GET", "/metrics")[2].decode().split("\n"):
        if "num_gpu_blocks=\"" in line:
            return int(line.split("num_gpu_blocks=\"")[1].split("\"")[0])
    return None


def prepare(here):
    """Begins to write the checkpoints, which takes the host's processors and time that other parts leave it."""
    try:
        folder = here.scratch(sum(shape["bytes"] for shape in SHAPES.values()))
    except Skipped:
        return  # the part will say so
    for name in SHAPES:
        here.begin(name, [sys.executable, here.root / "tools" / "make-checkpoint", name, folder / name])


def checkpoint(here, name, end):
    folder = here.scratch(0) / name
    status, text = here.ended(name, end - time.monotonic())
    if status != 0:
        raise Skipped("no checkpoint of %s: %s" % (name, "its time was up" if status is None else text.strip()[-200:]))
    return folder


def measure(here, part, end):
    if here.emulated:
        Run(here, part, "demo", demo_shape(), end).measure(engines.DEMO, [(2, 16)], [8], 12)
        return
    if not here.programs:
        prepare(here)
    for name, share in (("llama-3.2-1b", 0.3), ("llama-3.1-8b", 0.6)):
        stop = time.monotonic() + (end - time.monotonic()) * share
        try:
            folder = checkpoint(here, name, stop)
        except Skipped as reason:
            part.row("%s skipped: %s" % (name, reason))
            part.line(model=name, skipped=str(reason))
            continue
        attempt(Run(here, part, name, SHAPES[name], stop), folder, LOADS, PREFILLS)
        for way in WAYS if name == "llama-3.1-8b" else ():
            if time.monotonic() > end - 15:
                part.row("%s %s: no time left" % (name, way[0]))
                continue
            attempt(Run(here, part, name, SHAPES[name], end, way), folder, WAY_LOADS, WAY_PREFILLS)
    if part.passed + part.failed == 0:
        raise Skipped("neither model could be measured")


def attempt(run, folder, loads, prefills):
    """What goes wrong is said, and the other models are measured, too."""
    try:
        run.measure(folder, loads, prefills, DECODE_STEPS)
    except Exception as problem:  # pylint: disable=broad-except
        run.part.judge(False, "%s: %s: %s" % (run.name, type(problem).__name__, str(problem)[-3000:]))
