"""What is here: the build or the pack, the device, and where scratch files go."""
import glob
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import engine as engines

NO_DEVICE = 77
REQUEST_SECONDS = 60
CUDA_FOLDERS = ["/usr/local/cuda/lib64", "/usr/local/cuda/lib", "/usr/local/cuda/targets/x86_64-linux/lib"]
CUDA_LIBRARIES = ["libcublasLt.so.13", "libnccl.so.2"]

TROUBLES = ["GRAPHS_OFF", "CUDA_LAUNCH_REFUSED", "CUBLASLT_REFUSED", "DEVICE_LOST", "DEVICE_STUCK", "RESTARTING"]


class Skipped(Exception):
    """A part cannot be done; the text says why."""


class Stopped(BaseException):
    """A part has outlived its time, or somebody ends the script; the text says which."""


class Machine:
    """`problem`: why nothing can be run, or None."""

    def __init__(self, args):
        self.emulated = args.emulated
        self.root = pathlib.Path(engines.ROOT)
        self.plain_environment = dict(os.environ)  # of programs that are not ours
        self.pack = pathlib.Path(args.pack).resolve() if args.pack else None
        build = pathlib.Path(args.build).resolve()
        self.tests = self.pack / "tests" if self.pack else build / "tests" / "kern"
        self.checkkern = self.tests / ("checkkern-gpu-emu" if self.emulated else "checkkern-gpu")
        self.environment = {}  # of engines whose device is this one
        if self.emulated:
            self.environment["TERCET_CUDA_KERNELS"] = str(self.tests / "tercet-cuda-emu.so")
        elif not self.pack:
            self.environment["TERCET_CUDA_KERNELS"] = str(build / "kernels" / "tercet-cuda.so")
        engines.TERCET = self.pack / "bin" / "tercet" if self.pack else build / "client" / "cli" / "tercet"
        self.add_library_folders()
        self.programs = {}  # by name: those that run beside the parts
        self.scratch_root = args.scratch
        self.scratch_folder = None
        self.ceilings = {}  # filled by the part `times`: read_gbytes_s, bf16_tflops
        self.problem = self.find_problem()

    def add_library_folders(self):
        """Of the pack, of the toolkit, and of torch's packages for what the toolkit has not."""
        folders = ([str(self.pack / "lib")] if self.pack else []) + [f for f in CUDA_FOLDERS if os.path.isdir(f)]
        for name in CUDA_LIBRARIES:
            if not any(os.path.exists(os.path.join(f, name)) for f in folders):
                folders += [os.path.dirname(f) for p in sys.path for f in glob.glob(p + "/nvidia/*/lib/" + name)][:1]
        old = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = ":".join(folders + ([old] if old else []))

    def find_problem(self):
        for path in (self.checkkern, engines.TERCET, *[v for k, v in self.environment.items() if k.endswith("KERNELS")]):
            if not os.path.exists(path):
                return "%s is not there: build with -Dcuda=enabled, or give --pack" % path
        status, text = self.run([self.checkkern, "--seed", "1", "--only", "linear"], 60)
        if status == NO_DEVICE:
            return text.strip().split("\n")[-1]
        if "seed" not in text:
            return "%s does not run: %s" % (self.checkkern.name, text.strip()[-300:])
        return None

    def run(self, command, seconds, environment=None):
        """(exit status, output of both kinds); status None: the time was up, and it was ended."""
        process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        try:
            text = process.communicate(timeout=max(seconds, 1))[0]
            return process.returncode, text.decode(errors="replace")
        except subprocess.TimeoutExpired:
            return None, (self.end_tree(process) or b"").decode(errors="replace")
        except BaseException:
            self.end_tree(process)
            raise

    def begin(self, name, command):
        """Starts a program that is not ours, which goes on while other things are done."""
        self.programs[name] = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                               stderr=subprocess.STDOUT, env=self.plain_environment, start_new_session=True)

    def ended(self, name, seconds):
        """As run() for what begin() started; -1: it was not started."""
        process = self.programs.get(name)
        if process is None:
            return -1, "it was not begun"
        try:
            return process.wait(max(seconds, 1)), process.communicate()[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            return None, (self.end_tree(process) or b"").decode(errors="replace")

    @staticmethod
    def end_tree(process):
        """Kills a program and all that it has started: compute-sanitizer's program would go on without it and hold its
        output open. Gives the output so far."""
        for pid in [*engines.descendants(process.pid), -process.pid]:  # the last one: its session
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            return process.communicate(timeout=10)[0]
        except subprocess.TimeoutExpired as late:  # a process that waits for the device cannot be killed
            return late.output

    def devices(self):
        """How many the engine may use."""
        if self.emulated:
            return 2
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        if shown is not None:
            return len([d for d in shown.split(",") if d])
        return len(self.smi("name"))

    def smi(self, fields):
        """A line per device of what nvidia-smi says; empty without it."""
        tool = shutil.which("nvidia-smi")
        if not tool or self.emulated:
            return []
        status, text = self.run([tool, "--query-gpu=" + fields, "--format=csv,noheader"], 20)
        return [line.strip() for line in text.split("\n") if line.strip()] if status == 0 else []

    def engine(self, *flags, model, cuda=True, wait=True):
        """An engine of tests/e2e/engine.py, whose device is this one (or the CPU)."""
        flags = [*flags, "--device", "cuda" if cuda else "cpu"]
        if not any(str(f) == "--threads" for f in flags):
            flags += ["--threads", min(os.cpu_count() or 1, 8)]
        if not any(str(f).startswith("--kv-cache-memory") for f in flags):
            flags += ["--kv-cache-memory", "64MiB"]
        e = engines.Engine(*flags, model=model, env=self.environment if cuda else {}, wait=wait)
        if not self.emulated:
            e.api.timeout = REQUEST_SECONDS
        return e

    def scratch(self, bytes_needed):
        """A folder with that much room, made once."""
        if self.scratch_folder is None:
            roots = [self.scratch_root] if self.scratch_root else ["/dev/shm", tempfile.gettempdir()]
            roots = [r for r in roots if os.path.isdir(r) and shutil.disk_usage(r).free > bytes_needed * 1.1]
            if not roots:
                raise Skipped("no folder with %.0f GB free (--scratch)" % (bytes_needed / 1e9))
            self.scratch_folder = pathlib.Path(tempfile.mkdtemp(prefix="gpu-check-", dir=roots[0]))
        if shutil.disk_usage(self.scratch_folder).free < bytes_needed * 1.1:
            raise Skipped("%s has no %.0f GB free" % (self.scratch_folder, bytes_needed / 1e9))
        return self.scratch_folder

    def reference_models(self):
        """Where they are, or None."""
        for folder in ([self.pack / "refmodels"] if self.pack else []) + [engines.SHARED / "refmodels"]:
            if folder.is_dir():
                return folder
        return None

    def facts(self):
        names = self.smi("name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit")
        return {"device": "emulated" if self.emulated else names[0] if names else "unknown", "devices": self.devices(),
                "system": platform.platform(), "cores": os.cpu_count(), "python": sys.version.split()[0],
                "commit": self.commit(), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}

    def commit(self):
        if not shutil.which("git"):
            return None
        status, text = self.run(["git", "-C", self.root, "rev-parse", "--short", "HEAD"], 10)
        return text.strip() if status == 0 else None

    def close(self):
        for process in self.programs.values():
            if process.poll() is None:
                self.end_tree(process)
        if self.scratch_folder:
            shutil.rmtree(self.scratch_folder, ignore_errors=True)


def troubles(log):
    """Lines of an engine's log that tell of something which went wrong on the device, and the engine went on."""
    return [line.strip()[:300] for line in log.split("\n") if any(event in line for event in TROUBLES)][:10]


def json_lines(text):
    return [json.loads(line) for line in text.split("\n") if line.startswith("{")]
