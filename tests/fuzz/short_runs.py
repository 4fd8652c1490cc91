#!/usr/bin/env python3
"""A short libFuzzer run of each target that is named: short_runs.py SOURCE BUILD SECONDS CLANG TARGET... builds the targets in
BUILD with clang (once; later runs build what changed) and runs each from its committed corpus. Exit 77 (skipped) where
clang cannot link libFuzzer, and in builds with sanitizers of their own, which have run them already."""
import os
import subprocess
import sys
import tempfile


def skip(why):
    print("0 passed, 0 failed (skipped: %s)" % why)
    sys.exit(77)


def has_libfuzzer(clang):
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "f.c")
        with open(source, "w", encoding="ascii") as f:
            f.write("int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d == 0 && n != 0; }\n")
        return subprocess.run([clang, "-fsanitize=fuzzer,address", source, "-o", os.path.join(folder, "f")], capture_output=True).returncode == 0


def build(source, folder, clang, targets):
    if not os.path.exists(os.path.join(folder, "build.ninja")):
        env = dict(os.environ, CC=clang, CXX=clang + "++")
        subprocess.run(["meson", "setup", folder, source, "-Dfuzzers=true", "-Dtests=disabled", "-Db_lundef=false", "--buildtype=debugoptimized",
                        "-Doptimization=1"], check=True, env=env, stdout=subprocess.DEVNULL)
    out = subprocess.run(["ninja", "-C", folder] + ["tests/fuzz/fuzz_" + t for t in targets], capture_output=True, text=True)
    if out.returncode != 0:
        sys.exit(out.stdout[-6000:] + out.stderr)


def run(source, folder, target, seconds):
    """New inputs go to a folder that is thrown away; a finding stays in the build."""
    with tempfile.TemporaryDirectory() as grown:
        command = [os.path.join(folder, "tests", "fuzz", "fuzz_" + target), grown, os.path.join(source, "tests", "fuzz", "corpus", target), "-max_total_time=%d" % seconds, "-timeout=30", "-rss_limit_mb=4096",
                   "-max_len=4096", "-seed=1", "-print_final_stats=1", "-artifact_prefix=%s/finding-%s-" % (folder, target)]
        out = subprocess.run(command, capture_output=True, text=True, errors="replace")
    runs = [line.split()[-1] for line in out.stderr.split("\n") if line.startswith("stat::number_of_executed_units")]
    print("%s: %s, %s runs" % (target, "no finding" if out.returncode == 0 else "FINDING", runs[0] if runs else "?"), flush=True)
    if out.returncode != 0:
        print(out.stderr[-4000:])
    return out.returncode == 0


def main():
    source, folder, seconds, clang, targets = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:]
    if os.environ.get("TERCET_TEST_SANITIZED"):
        skip("the build without sanitizers runs it")
    if not has_libfuzzer(clang):
        skip("%s has no libFuzzer: the package libclang-rt-14-dev is missing" % clang)
    build(source, folder, clang, targets)
    passed = sum(run(source, folder, target, seconds) for target in targets)
    print("%d passed, %d failed" % (passed, len(targets) - passed))
    return 0 if passed == len(targets) else 1


if __name__ == "__main__":
    sys.exit(main())
