"""Models whose heads share a latent, or differ in size by layer, served by the emulated device: the tokens of the CPU backend as far as these are sure, whatever sequences share,
lose and come back with."""
import pytest

import device_tokens
from engine import SANITIZED, Engine
from small_models import MARGIN, OTHER_HEADS, write_model
from test_device import device_engine
from test_device_recurrent import BLOCK, FLAGS
from test_recurrent import ask, ids


@pytest.fixture(scope="module", params=list(OTHER_HEADS))
def kept(request):
    return OTHER_HEADS[request.param]()


@pytest.fixture(scope="module")
def model(kept, tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("heads"), kept)


@pytest.fixture(scope="module")
def cpu(model):
    with Engine(*FLAGS, "--no-enable-prefix-caching", "--max-num-seqs", 4, model=model) as engine:
        yield engine.api


@pytest.fixture(scope="module")
def expect(cpu):
    """Tokens of a prompt against those of the CPU, which have to be sure for the most part; gives the number that were compared."""
    def check(prompt, got):
        wanted, margins = device_tokens.continuation(cpu, prompt, len(got))
        assert device_tokens.same_as_far_as_sure(got, wanted, margins, MARGIN) is None, prompt[:8]
        return next((k for k, (a, b) in enumerate(zip(got, wanted)) if a != b), len(got))
    return check


def test_prompts_share_blocks_and_beams_copy_them(model, cpu, expect):
    common, compared = ids(2, 50), 0
    with device_engine(*FLAGS, "--max-num-seqs", 6, model=model) as engine:
        for k in range(3):
            prompt = common + ids(200 + k, 20)
            answer, cached = ask(engine.api, prompt, 12)
            compared += expect(prompt, answer)
            assert cached == (0 if k == 0 else 50 // BLOCK * BLOCK), k
        assert compared >= 20, compared
        beams = [[c["token_ids"] for c in api.completions(common, max_tokens=8, use_beam_search=True, n=3, temperature=0, ignore_eos=True,
                                                          return_token_ids=True)["choices"]] for api in (engine.api, cpu)]

    def likelihood(tokens):
        listed = cpu.completions(common + tokens, max_tokens=1, temperature=0, prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
        return sum(listed[len(common) + k][str(t)]["logprob"] for k, t in enumerate(tokens))

    assert len({tuple(b) for b in beams[0]}) == 3
    assert sum(map(likelihood, beams[0])) > sum(map(likelihood, beams[1])) - 0.5


@pytest.mark.parametrize("tensor_parallel", (1, 2))
def test_many_at_once_with_too_little_memory(kept, model, expect, tensor_parallel):
    """Room for the longest sequence and a little more: whoever came last makes room, and comes back."""
    if SANITIZED:
        pytest.skip("the same code as without a device")
    common, longest = ids(3, 60), 96
    prompts = [common[:9 * k] + ids(300 + k, 9 + 5 * k) for k in range(6)]
    # a latent is on every rank, of other keys and values each has its share
    memory = (longest // BLOCK + 3) * kept["kv_bytes"] * BLOCK // (1 if "kv_lora_rank" in kept["config"] else tensor_parallel)
    flags = ["--max-model-len", longest + 8, "-tp", tensor_parallel, "--max-num-seqs", 4, "--kv-cache-memory", memory]
    with device_engine(*FLAGS, *flags, model=model, env={"CUDA_EMU_SCHEDULE": "random:3"}) as engine:
        reply = engine.api.completions(prompts, temperature=0, max_tokens=24, ignore_eos=True, return_token_ids=True)
        compared = sum(expect(p, c["token_ids"]) for p, c in zip(prompts, reply["choices"]))
        assert compared >= 60, compared
        assert engine.api.metric("vllm:num_preemptions_total") > 0
