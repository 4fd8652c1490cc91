#!/usr/bin/env python3
"""From `tercet serve` to the first token, and what all processes of the engine then hold in memory.

    bench/start_time.py [--build build] [--repeats 3] MODEL -- [FLAGS OF SERVE]

The checkpoint is read once before, so that it comes from the page cache, and memory as large as it is written and given back
right before each start: a virtual machine whose host takes free pages back would else measure how fast the host gives them out
again, which may take several seconds a GiB. One JSON line: seconds to the first token of a completion that is asked for until
it is answered (median, best), seconds to write the memory (median; a part of each start that no program can save), and of all
processes together in MiB the resident memory that is theirs alone or their share of (Pss, private and of files) at the moment
of that token."""
import argparse
import json
import mmap
import os
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
OTHER_BYTES = 256 << 20  # what an engine takes beside the weights


def warm_up(model):
    """Bytes of the checkpoint's tensors."""
    total = 0
    folder = pathlib.Path(model)
    for path in sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin")):
        with open(path, "rb", buffering=0) as file:
            while block := file.read(1 << 24):
                total += len(block)
    return total


def write_memory(count):
    """Seconds to write so many bytes of new memory, a byte a page."""
    begin = time.perf_counter()
    with mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, count, mmap.PAGESIZE):
            memory[at] = 1
        return time.perf_counter() - begin


def resident(pids):
    """MiB: all, and of it the pages of mapped files."""
    total = files = 0
    for pid in pids:
        for line in pathlib.Path("/proc/%d/smaps_rollup" % pid).read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "Pss":
                total += int(value.split()[0])
            elif name == "Pss_File":
                files += int(value.split()[0])
    return total / 1024, files / 1024


def start_once(engine, model, flags):
    begin = time.perf_counter()
    with engine.Engine(*flags, model=model, wait=False) as e:
        while True:
            try:
                next(iter(e.api.stream(prompt=[1, 2, 3], max_tokens=8, ignore_eos=True, return_token_ids=True)))
                break
            except (OSError, engine.api.ApiError):  # not listening yet, or still loading
                assert e.process.poll() is None, e.log()
                time.sleep(0.005)
        seconds = time.perf_counter() - begin
        return seconds, resident([e.process.pid, *engine.descendants(e.process.pid)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("model")
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    os.environ["TERCET_BUILD_ROOT"] = os.path.abspath(args.build)
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    import engine
    bytes_read = warm_up(args.model)
    # pages of the KV cache are taken when they are first written
    flags = ["--threads", str(len(os.sched_getaffinity(0))), "--kv-cache-memory", "4GiB", *args.flags]
    runs, writes = [], []
    for _ in range(args.repeats):
        write_memory(bytes_read + OTHER_BYTES)
        writes.append(write_memory(bytes_read + OTHER_BYTES))
        runs.append(start_once(engine, os.path.abspath(args.model), flags))
    seconds = [r[0] for r in runs]
    print(json.dumps({"model": pathlib.Path(args.model).resolve().name, "flags": args.flags, "checkpoint_mib": round(bytes_read / 2**20),
                      "first_token_s": round(statistics.median(seconds), 3), "best_s": round(min(seconds), 3),
                      "memory_written_s": round(statistics.median(writes), 3),
                      "resident_mib": round(max(r[1][0] for r in runs)), "of_files_mib": round(max(r[1][1] for r in runs))}))


if __name__ == "__main__":
    main()
