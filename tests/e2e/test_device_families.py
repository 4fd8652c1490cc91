"""Families that compute otherwise than Llama, as whole models on the emulated device: the tokens and logits of transformers, one
device and two. families_differential.py --keep-device wrote the models down (device_families.json): weights are a function of a
tensor's name and place, so that config.json, shapes and what follows some prompts is all that has to be kept."""
import json
import pathlib

import pytest

import device_tokens
from device_models import device_engine, logits
from engine import FULL, SANITIZED
from small_models import Folders

MODELS = json.loads((pathlib.Path(__file__).parent / "device_families.json").read_text())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return Folders(tmp_path_factory.mktemp, MODELS.get)


# LayerNorm; blocks side by side and biases everywhere; neighbours rotate; norms behind blocks only, and over all heads
FEW = ["stablelm", "phi", "cohere2", "olmo3"]
CHOSEN = FEW[1:2] if SANITIZED else list(MODELS) if FULL else FEW


@pytest.mark.parametrize("name", CHOSEN if SANITIZED else list(MODELS))
def test_logits_are_those_of_transformers(name, folders):
    """Of a prompt in chunks that fused kernels take, and in one that they do not."""
    for p, chunk in zip(MODELS[name]["prompts"], (7, 64)):
        got = logits(folders(name), p["ids"], "cuda", "--max-num-batched-tokens", chunk)[-1]
        assert len(got) == len(p["last_logits"])
        apart = [abs(a - b) for a, b in zip(got, p["last_logits"])]
        # the CPU in bfloat16 is as far off: squared ReLU, 0.6 % of the distance of the best logit to the worst, others less
        assert max(apart) < 0.015 * (max(p["last_logits"]) - min(p["last_logits"])), max(apart)


@pytest.mark.parametrize("tensor_parallel", (1, 2))
@pytest.mark.parametrize("name", CHOSEN)
def test_tokens_are_those_of_transformers(name, tensor_parallel, folders):
    prompts = MODELS[name]["prompts"]
    with device_engine("--max-num-seqs", 4, "--max-num-batched-tokens", 64, "--max-model-len", 128, "-tp", tensor_parallel,
                       model=folders(name)) as e:
        margin = device_tokens.REFERENCE_MARGIN
        sure, wrong = device_tokens.sure_tokens(e.api, prompts, margin)
        assert sure >= 20 and not wrong, wrong
        got = device_tokens.together(e.api, [(p["ids"], len(p["output_ids"]), {}) for p in prompts])
        left = [device_tokens.same_as_far_as_sure(tokens, p["output_ids"], p["margins"], margin)
                for tokens, p in zip(got, prompts)]
        assert left.count(None) == len(prompts), left
