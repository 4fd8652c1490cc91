"""Models whose heads share a latent, or differ in size by layer, served by the emulated device: the tokens of the CPU backend as far as these are sure, whatever sequences share,
lose and come back with."""
import pytest

from device_models import BLOCK, FLAGS, Expected, check_beams, check_preempted, cpu_api, device_engine
from engine import SANITIZED
from small_models import OTHER_HEADS, ids, write_model


@pytest.fixture(scope="module", params=list(OTHER_HEADS))
def kept(request):
    return OTHER_HEADS[request.param]()


@pytest.fixture(scope="module")
def model(kept, tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("heads"), kept)


@pytest.fixture(scope="module")
def cpu(model):
    with cpu_api(model) as api:
        yield api


@pytest.fixture(scope="module")
def expect(cpu):
    return Expected(cpu)


def test_prompts_share_blocks_and_beams_copy_them(model, cpu, expect):
    common, compared = ids(2, 50), 0
    with device_engine(*FLAGS, "--max-num-seqs", 6, model=model) as engine:
        for k in range(3):
            prompt = common + ids(200 + k, 20)
            answer, cached = engine.api.cached_ids(prompt, 12)
            compared += expect(prompt, answer)
            assert cached == (0 if k == 0 else 50 // BLOCK * BLOCK), k
        assert compared >= 20, compared
        check_beams(engine.api.beam_ids(common, 8), common, cpu, 8)


@pytest.mark.parametrize("tensor_parallel", (1, 2))
def test_many_at_once_with_too_little_memory(kept, model, expect, tensor_parallel):
    if SANITIZED:
        pytest.skip("the same code as without a device")
    # a latent is on every rank, of other keys and values each has its share
    check_preempted(model, expect, tensor_parallel, kept["kv_bytes"] // (1 if "kv_lora_rank" in kept["config"] else tensor_parallel))
