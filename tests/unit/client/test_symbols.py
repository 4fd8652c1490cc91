"""What libtercet shows of itself: symbols.py NM LIBTERCET.SO LIBCLIENT.A TERCET.H"""
import re
import subprocess
import sys


def symbols(nm, *arguments):
    out = subprocess.run([nm, "--defined-only", *arguments], stdout=subprocess.PIPE, check=True).stdout.decode()
    names = (line.split()[-1] for line in out.splitlines() if re.match(r"[0-9a-f]+ [TDBRVW] ", line))
    return {name.split("@")[0] for name in names}


nm, shared, archive, header = sys.argv[1:]
with open(header, encoding="utf-8") as f:
    declared = set(re.findall(r"\b(tercet_[a-z_]+)\(", f.read()))
shown = symbols(nm, "-D", shared)
assert shown and shown <= declared, "the shared library shows more than tercet.h: %s" % sorted(shown - declared)
assert {"tercet_open", "tercet_submit", "tercet_next"} <= shown
foreign = {n for n in symbols(nm, "-g", archive) if not n.startswith("tercet_")}
# what the sanitizers add
foreign = {n for n in foreign if not n.startswith(("__", "asan.", "_ZTI"))}
assert not foreign, "not of the library's prefix: %s" % sorted(foreign)
