"""Small models on the emulated device, beside the CPU backend that says what is right. Used by test_device*.py."""
import contextlib
import json

import device_tokens
import engine as engines
from engine import Engine, run
from small_models import MARGIN, ids

KERNELS = engines.BUILD / "tests" / "kern" / "tercet-cuda-emu.so"
# The cache takes what the device has, and the emulator fills every byte of it: more than is needed costs seconds an engine.
ENVIRONMENT = {"TERCET_CUDA_KERNELS": str(KERNELS), "CUDA_EMU_MEMORY": str(512 << 20)}
BLOCK, CONTEXT = 8, 448
FLAGS = ["--dtype", "bfloat16", "--kv-cache-dtype", "bfloat16", "--block-size", BLOCK, "--max-num-batched-tokens", 64, "--max-model-len", CONTEXT]


@contextlib.contextmanager
def device_engine(*flags, model=engines.DEMO, env=None):
    """An engine that has to end in order, and without a word from a sanitizer."""
    with Engine("--device", "cuda", *flags, model=model, env={**ENVIRONMENT, **(env or {})}) as e:
        yield e
        status = e.terminate()
        assert status == 0 and "Sanitizer" not in e.log() and "runtime error" not in e.log(), e.log()[-4000:]


@contextlib.contextmanager
def cpu_api(model):
    """The CPU backend's, which keeps nothing for anybody."""
    with Engine(*FLAGS, "--no-enable-prefix-caching", "--max-num-seqs", 4, model=model) as engine:
        yield engine.api


def logits(model, prompt, device, *flags):
    """What `tercet logits` prints of a prompt, a line a position: all of the last, or of others, too."""
    status, output = run("logits", "--model", model, "--ids", ",".join(map(str, prompt)), "--top", 0, "--dtype", "bfloat16",
                         "--device", device, *flags, env=ENVIRONMENT)
    assert status == 0, output
    return [json.loads(line)["logits"] for line in output.splitlines()]


class Expected:
    """Tokens of a prompt against those of the CPU, which have to be sure for the most part; gives the number that were compared."""

    def __init__(self, cpu):
        self.cpu, self.known = cpu, {}

    def __call__(self, prompt, got):
        key = (tuple(prompt), len(got))
        if key not in self.known:
            self.known[key] = device_tokens.continuation(self.cpu, prompt, len(got))
        wanted, margins = self.known[key]
        assert device_tokens.same_as_far_as_sure(got, wanted, margins, MARGIN) is None, prompt[:8]
        return next((k for k, (a, b) in enumerate(zip(got, wanted)) if a != b), len(got))


def check_beams(beams, prompt, cpu, count):
    """As likely as those of the CPU, by what that says of them; which are found may depend on the last bits."""
    wanted = cpu.beam_ids(prompt, count)
    assert len({tuple(b) for b in beams}) == 3
    assert sum(device_tokens.likelihood(cpu, prompt, b) for b in beams) > \
        sum(device_tokens.likelihood(cpu, prompt, b) for b in wanted) - 0.5


def check_preempted(model, expect, tensor_parallel, token_bytes):
    """Six prompts at once, with room for the longest sequence and a little more: whoever came last makes room, and comes back.
    `token_bytes`: keys and values of a token, of each rank."""
    common, longest = ids(3, 60), 96
    prompts = [common[:9 * k] + ids(300 + k, 9 + 5 * k) for k in range(6)]
    flags = ["--max-model-len", longest + 8, "-tp", tensor_parallel, "--max-num-seqs", 4,
             "--kv-cache-memory", (longest // BLOCK + 3) * BLOCK * token_bytes]
    with device_engine(*FLAGS, *flags, model=model, env={"CUDA_EMU_SCHEDULE": "random:3"}) as engine:
        reply = engine.api.completions(prompts, temperature=0, max_tokens=24, ignore_eos=True, return_token_ids=True)
        compared = sum(expect(p, c["token_ids"]) for p, c in zip(prompts, reply["choices"]))
        assert compared >= 60, compared
        assert engine.api.metric("vllm:num_preemptions_total") > 0
