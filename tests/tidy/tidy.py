#!/usr/bin/env python3
"""Checks the rules of docs/STYLE.md that a machine can check. Prints every breach with its place, and closes with
"N passed, N failed", one case a rule."""
import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

# Which folders a folder's files may include, itself excepted. tests/ and bench/ link the real thing and may
# include anything.
MAY_INCLUDE = {
    "common": set(),
    "text": {"common"},
    "ipc": {"common"},
    "kernels": {"common"},
    "client": {"common", "ipc", "text"},
    "client/cli": {"common", "ipc", "text", "client", "proc_supervisor"},
    "proc_scheduler": {"common", "ipc"},
    "proc_worker": {"common", "ipc", "kernels", "text"},
    "proc_detok": {"common", "ipc", "text"},
    "proc_gateway": {"common", "ipc", "text", "client"},
    "proc_supervisor": {"common", "ipc"},
}
WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK|hack|not implemented|unimplemented|stubbed|for now)\b")


def sources():
    try:
        out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True,
                             check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        out = [os.path.relpath(os.path.join(d, f), ROOT) for d, _, files in os.walk(ROOT) for f in files
               if "build" not in d]
    out = [f for f in out if re.search(r"\.(c|h|cc|cu|cuh)$", f) and os.path.exists(os.path.join(ROOT, f))]
    return {f: open(os.path.join(ROOT, f), encoding="utf-8").read().split("\n") for f in sorted(out)}


def folder(path):
    parts = path.split("/")
    return "client/cli" if path.startswith("client/cli/") else parts[0]


def check_includes(path, lines):
    own = folder(path)
    if own not in MAY_INCLUDE:
        return
    for number, line in enumerate(lines, 1):
        m = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not m or "/" not in m.group(1):
            continue
        other = folder(m.group(1))
        if other != own and other in MAY_INCLUDE and other not in MAY_INCLUDE[own]:
            yield number, "%s may not include %s" % (own, other)


def check_file_length(_path, lines):
    if len(lines) - 1 > FILE_LINES_MAX:
        yield 1, "%d lines, at most %d" % (len(lines) - 1, FILE_LINES_MAX)


def check_function_length(path, lines):
    if path.endswith(".h"):
        return
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif re.match(r"^[A-Za-z_].*\)\s*\{$", line) and not line.startswith(("namespace", "extern")):
            start = number
        elif line.startswith("}") and start:
            if number - start - 1 > FUNCTION_LINES_MAX:
                yield start, "a function of %d lines, at most %d" % (number - start - 1, FUNCTION_LINES_MAX)
            start = None


def check_mutable_globals(path, lines):
    if path == "common/log.c" or folder(path) not in MAY_INCLUDE:
        return
    variable = re.compile(r"^(static\s+)?(?!const\b|typedef\b|extern\b|return\b)(volatile\s+|_Atomic\s+|struct\s+|unsigned\s+"
                          r"|_Thread_local\s+)*[A-Za-z_]\w*[\s*]+[A-Za-z_]\w*(\[[^]]*\])*\s*(=|;)")
    for number, line in enumerate(lines, 1):
        if variable.match(line) and "const" not in line.split("=")[0] and "(" not in line.split("=")[0] \
                and not line.startswith(("typedef", "struct", "union", "enum", "using", "namespace", "goto", "#")):
            yield number, "a mutable file-level variable"


def check_words(_path, lines):
    for number, line in enumerate(lines, 1):
        m = WORDS.search(line)
        if m:
            yield number, "the word %r" % m.group(0)


def check_opening(path, lines):
    """Every file says what it is before anything else."""
    if path.startswith("tests/"):  # a test file is named after what it tests
        return
    first = next((line for line in lines if line.strip()), "")
    if not first.startswith(("/*", "//", "#!")):
        yield 1, "no opening comment that says what the file owns"


def check_spaces(_path, lines):
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            yield number, "space at the end of the line"


def check_errors_are_tested(files):
    """Every error that the product returns is produced by a test."""
    tested = {name for path, lines in files.items() if path.startswith("tests/") and not path.endswith("test_err.c")
              for line in lines for name in re.findall(r"\bERR_[A-Z_]+", line)}
    names = {"ERR_" + m for line in files["common/err.h"] for m in re.findall(r'X\((\w+), "', line)}
    seen = set()
    for path, lines in files.items():
        if path.startswith("tests/") or not path.endswith(".c"):
            continue
        for number, line in enumerate(lines, 1):
            for name in re.findall(r"\bERR_[A-Z_]+", line):
                if name in names - tested - seen:
                    seen.add(name)
                    yield path, number, "no test produces " + name


RULES = [check_includes, check_file_length, check_function_length, check_mutable_globals, check_words, check_opening,
         check_spaces]


def main():
    files = sources()
    failed = 0
    for rule in RULES:
        breaches = [(path, number, text) for path, lines in files.items() for number, text in rule(path, lines)]
        for path, number, text in breaches:
            print("%s:%d: %s" % (path, number, text))
        failed += bool(breaches)
    untested = list(check_errors_are_tested(files))
    for breach in untested:
        print("%s:%d: %s" % breach)
    failed += bool(untested)
    print("%d passed, %d failed" % (len(RULES) + 1 - failed, failed))
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
