"""The device kernels alone: against the reference, under compute-sanitizer, and their times."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import time

from gpu_check.machine import Skipped, json_lines

GROUPS = ["linear", "sampling", "step", "moe", "recurrent", "heads", "attention", "matmul"]  # the quick ones first
SUMMARY = re.compile(r"(\d+) passed, (\d+) failed\s*$")


def left(end):
    return max(end - time.monotonic(), 1)


def side_by_side(here, commands, end):
    """(exit status, output) of each, all at once: most of a check is the reference, and that is the host's work."""
    with concurrent.futures.ThreadPoolExecutor(max(min(len(commands), os.cpu_count() or 1), 1)) as pool:
        yield from pool.map(lambda command: here.run(command, left(end)), commands)


def other_groups(here, end):
    """Those that the program has and we do not, or the other way round."""
    found = re.search(r"^groups of checks:(.*)$", here.run([here.checkkern, "--help"], left(end))[1], re.M)
    return sorted(set(found.group(1).split() if found else []) ^ set(GROUPS))


def check(here, part, end):
    """A process for each group: what a broken kernel leaves of a device is an error for all that follow."""
    passed = failed = 0
    others = other_groups(here, end)
    part.judge(not others, "all groups of checkkern-gpu are run", others=others)
    groups = ["linear,sampling"] if here.emulated else GROUPS
    commands = [[here.checkkern, "--seed", "1", "--only", group] for group in groups]
    for group, (status, text) in zip(groups, side_by_side(here, commands, end)):
        found = SUMMARY.search(text.strip())
        wrong = [line for line in text.split("\n") if "FAILED" in line][:40]
        if status is None or not found:
            part.judge(False, "%s: checkkern-gpu %s" % (group, "did not end" if status is None else "died"), failures=wrong,
                       output=text.strip()[-2000:])
            continue
        count = [int(found.group(i)) for i in (1, 2)]
        passed, failed = passed + count[0], failed + count[1]
        part.judge(count[0] > 0 and count[1] == 0 and status == 0, "%s against the reference" % group, cases=count[0],
                   wrong=count[1], seed="1", failures=wrong)
    part.row("%d cases right, %d wrong" % (passed, failed))


# ---------------------------------------------------------------- compute-sanitizer

def sanitizer_tool():
    for path in (shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer",
                 "/usr/local/cuda/compute-sanitizer/compute-sanitizer"):
        if path and os.access(path, os.X_OK):
            return path
    return None


def own_kernels(root):
    """Names of the kernels of this tree; what cuBLASLt runs is not ours to judge."""
    table = pathlib.Path(root) / "kernels" / "cuda" / "ptx_table.txt"
    return sorted(set(re.findall(r"^\S+\s+\w+:(\w+)", table.read_text(), re.M)))


def errors_of(text, names):
    """(errors in our kernels, in others): blocks of the report by the kernel that they name."""
    ours = others = 0
    for block in re.split(r"(?m)^=+ (?=Error|Warning|Invalid|Program hit|Race|Potential|Uninitialized|Barrier)", text)[1:]:
        if any(re.search(r"\b%s\b" % re.escape(name), block) for name in names):
            ours += 1
        else:
            others += 1
    return ours, others


def sanitize(here, part, end):
    tool = sanitizer_tool()
    if here.emulated or not tool:
        raise Skipped("the emulated device has checks of its own" if here.emulated else "no compute-sanitizer here")
    names = own_kernels(here.root)
    runs = [(kind, group) for group in reversed(GROUPS) for kind in ("racecheck", "memcheck")]  # the slow ones first
    commands = [[tool, "--tool", kind, "--error-exitcode", "9", here.checkkern, "--seed", "1", "--only", group]
                for kind, group in runs]
    for (kind, group), (status, text) in zip(runs, side_by_side(here, commands, end)):
        ours, others = errors_of(text, names)
        if status is None:
            part.line(check="%s %s" % (kind, group), result="unfinished", errors=ours)
            part.row("%s %s: no end within its time%s" % (kind, group, ", errors so far" if ours else ""))
            part.failed += ours > 0
            continue
        found = SUMMARY.search("\n".join(line for line in text.split("\n") if not line.startswith("=")).strip())
        ran = found and int(found.group(1)) > 0
        part.judge(ours == 0 and bool(ran), "%s %s" % (kind, group), status=status, errors=ours, elsewhere=others,
                   output="" if ours == 0 and ran else text[-3000:])


# ---------------------------------------------------------------- times

def worst(rows):
    """Those furthest below what was predicted."""
    missed = [(r["share"] / r["predicted"][0], r) for r in rows if "share" in r and "predicted" in r]
    return [r for ratio, r in sorted(missed, key=lambda x: x[0]) if ratio < 1][:12]


def times(here, part, end):
    status, text = here.run([here.checkkern, "--bench", "--seed", "1"] + (["--small"] if here.emulated else []), left(end))
    rows = json_lines(text)
    for row in rows:
        part.line(**row)
    for row in rows:
        if row["bench"] == "gpu_ceilings" and not here.emulated:
            if row["what"] == "memory read":
                here.ceilings["read_gbytes_s"] = row["gbytes_s"]
            if "tflops" in row:
                here.ceilings["bf16_tflops"] = row["tflops"]
            part.row("%-28s %s" % (row["what"], ", ".join("%s %s" % (v, k) for k, v in row.items()
                                                           if k not in ("bench", "what"))))
    measured = [r for r in rows if r["bench"] == "gpu_kernels"]
    errors = [r for r in measured if "error" in r]
    for row in errors:
        part.judge(False, row["op"], error=row["error"])
    part.judge(status == 0 and len(measured) > 20, "kernels timed", count=len(measured), status=status,
               output="" if status == 0 else text[-1000:])
    predicted = [r for r in measured if "predicted" in r and "share" in r]
    if predicted and not here.emulated:
        part.row("%d of %d kernels reach what was predicted; furthest below:" % (
            sum(r["share"] >= r["predicted"][0] for r in predicted), len(predicted)))
        for r in worst(predicted):
            part.row("  %-30s %-62s %8.1f us %3.0f %% of %s, predicted %.0f %%" % (
                r["op"], r["shape"], r["us"], 100 * r["share"], r["ceiling"], 100 * r["predicted"][0]))
