"""PyTorch and transformers of this machine on the same shapes, in a process of their own."""
import json
import os
import sys
import time

from gpu_check.machine import Skipped, json_lines

SHAPES = ("llama-3.2-1b", "llama-3.1-8b")


def ours(report):
    """What the part `engine` of this run measured, by (model, what, size, context)."""
    path = report.folder / "gpu-engine.jsonl"
    found = {}
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
        row = json.loads(line) if line else {}
        if row.get("run") != report.run or row.get("bench") != "gpu_engine":
            continue
        if row.get("what") == "decode" and "step_ms" in row:
            found[row["model"], "decode", row["batch"], row["context"]] = row["step_ms"]
        elif row.get("what") == "prefill" and "device_ms" in row:
            found[row["model"], "prefill", row["tokens"], row["tokens"]] = row["device_ms"]
    return found


def measure(here, part, end):
    if here.emulated:
        raise Skipped("they know no emulated device")
    program = here.root / "tools" / "gpu_check" / "peers_torch.py"
    environment = dict(here.plain_environment, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    mine = ours(part.report)
    for number, name in enumerate(SHAPES):
        seconds = (end - time.monotonic()) / (len(SHAPES) - number)
        status, text = here.run([sys.executable, program, name, str(seconds * 0.8)], seconds, environment)
        rows = json_lines(text)
        if status == 77:
            raise Skipped(text.strip().split("\n")[-1])
        for row in rows:
            part.passed += 1
            own = mine.get((name, row["what"], row["size"], row["context"]))
            part.line(**row, ours_ms=own, ratio=own and round(row["ms"] / own, 2))
            part.row("%-13s %-7s %5d context %4d  transformers %9.2f ms%s" % (
                name, row["what"], row["size"], row["context"], row["ms"],
                "  ours %9.2f ms, %.2f times as fast" % (own, row["ms"] / own) if own else ""))
        if status not in (0, None) or not rows:
            part.row("%s: %s" % (name, "ended early" if rows else "nothing measured: " + text.strip()[-200:].replace(
                os.linesep, " ")))
    if not part.passed:
        raise Skipped("transformers measured nothing here")
