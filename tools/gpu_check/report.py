"""Collects what the parts found: JSON lines in files as they come, a table last."""
import json
import pathlib
import sys
import time

# Files by part; one run appends to each it has something for.
FILES = {"kernels": "gpu-checks", "sanitizer": "gpu-checks", "tokens": "gpu-checks", "times": "gpu-kernels",
         "engine": "gpu-engine", "peers": "gpu-engine"}

ROW_FIELD = 400  # characters of a field in the table


class Part:
    """What one part reports to."""

    def __init__(self, report, name):
        self.report, self.name = report, name
        self.passed = self.failed = 0
        self.rows = []  # of the table: texts

    def line(self, **fields):
        self.report.write(self.name, fields)

    def judge(self, right, what, **fields):
        """A thing that is right or wrong."""
        self.passed += bool(right)
        self.failed += not right
        self.line(check=what, result="passed" if right else "FAILED", **fields)
        if not right:  # all of it is in the file; of a log its end says most
            self.row("FAILED: %s %s" % (what, " ".join("%s=%s" % (k, str(v)[-ROW_FIELD:]) for k, v in fields.items())))

    def row(self, text):
        self.rows.append(text)
        print("  " + text, flush=True)


class Report:
    def __init__(self, here, folder):
        self.here, self.folder = here, pathlib.Path(folder)
        self.run = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        self.parts, self.reasons, self.times = {}, {}, {}
        self.headed = set()

    def machine(self):
        facts = self.here.facts()
        print("%(device)s; %(devices)d device(s), %(cores)d cores, %(system)s" % facts, flush=True)

    def write(self, name, fields):
        path = self.folder / (FILES[name] + ("-emulated" if self.here.emulated else "") + ".jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as f:
            if path not in self.headed:
                self.headed.add(path)
                f.write(json.dumps({"run": self.run, "machine": self.here.facts()}) + "\n")
            f.write(json.dumps({"run": self.run, "part": name, **fields}) + "\n")

    def begin(self, name):
        print("== %s" % name, flush=True)
        self.parts[name] = Part(self, name)
        return self.parts[name]

    def skip(self, name, reason):
        self.reasons[name] = "skipped: " + reason
        print("== %s %s" % (name, self.reasons[name]), flush=True)
        self.write(name, {"skipped": reason})

    def fail(self, name, reason):
        part = self.parts.setdefault(name, Part(self, name))
        part.judge(False, reason)

    def seconds(self, name, seconds):
        self.times[name] = seconds

    def close(self):
        """Prints the table; the exit status."""
        print("\n%-10s %7s %7s %8s" % ("part", "passed", "failed", "seconds"))
        for name, seconds in self.times.items():
            part = self.parts.get(name)
            print("%-10s %7s %7s %8.1f  %s" % (name, part.passed if part else "-", part.failed if part else "-", seconds,
                                               self.reasons.get(name, "")))
        for name, part in self.parts.items():
            if part.rows:
                print("\n%s" % name)
                print("\n".join("  " + row for row in part.rows))
        print("\nJSON lines: %s" % ", ".join(sorted(str(p) for p in self.headed)))
        sys.stdout.flush()
        if any(part.failed for part in self.parts.values()):
            return 1
        return 0 if any(part.passed for part in self.parts.values()) else 77
