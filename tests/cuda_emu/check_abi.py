#!/usr/bin/env python3
"""Compares the emulation's headers with those of the CUDA toolkit: every constant has the same value, every function the
same parameters, so that what is compiled against one runs on the other. check_abi.py CC HEADERS_OF_THE_EMULATION..."""
import os
import re
import subprocess
import sys
import tempfile

TOOLKITS = ["/usr/local/cuda/include", "/usr/include", "/usr/local/include"]


def body(path):
    text = open(path, encoding="utf-8").read()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = text.split("#ifdef __cplusplus\nstruct dim3")[0]
    return text


def constants(text):
    for name, value in re.findall(r"\b((?:cuda|CUBLAS|CUDA_R|nccl)\w*)\s*=\s*([0-9][0-9a-fx]*)\b", text):
        yield name, value
    for name, value in re.findall(r"#define ((?:cuda|NCCL_)\w+) ([0-9][0-9a-fx]*)\n", text):
        if name != "NCCL_VERSION_CODE":
            yield name, value


def prototypes(text):
    for m in re.finditer(r"^(?:const char \*|[A-Za-z_]\w* )\*?((?:cuda|cublasLt|nccl)\w+)\([^;{}]*\);", text, re.M):
        yield m.group(0)


def main():
    compiler, headers = sys.argv[1].split(), sys.argv[2:]
    folder = next((t for t in TOOLKITS if os.path.exists(os.path.join(t, "cuda_runtime_api.h"))), None)
    if folder is None:
        print("no CUDA toolkit: nothing to compare with")
        return 77
    failed = checked = 0
    for header in headers:
        name = os.path.basename(header)
        if not os.path.exists(os.path.join(folder, name)):
            print("%s: not in %s, skipped" % (name, folder))
            continue
        text = body(header)
        lines = ["#include <%s>" % ("cuda_runtime_api.h" if name == "cuda_runtime.h" else name)]
        pairs, functions = list(constants(text)), list(prototypes(text))
        lines += ['_Static_assert((long long)(%s) == %s, "%s");' % (n, v, n) for n, v in pairs]
        with tempfile.NamedTemporaryFile("w", suffix=".c") as f:
            f.write("\n".join(lines + functions) + "\n")
            f.flush()
            done = subprocess.run(compiler + ["-std=gnu11", "-fsyntax-only", "-Wno-deprecated-declarations", "-I", folder,
                                              f.name], capture_output=True, text=True)
        print("%s: %d constants, %d functions: %s" % (name, len(pairs), len(functions),
                                                      "the same" if done.returncode == 0 else "DIFFERENT"))
        if done.returncode != 0:
            print(done.stderr)
            failed += 1
        checked += len(pairs) + len(functions)
    return 1 if failed or checked == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
