"""Models whose layers attend to chosen tokens: keys of the indexer go wherever a sequence's blocks go, so that every answer is that of the prompt alone.
The models are those of families.json, whose prompts here are many times as long as what is chosen."""
import concurrent.futures
import json

import pytest

from company import BLOCK, FLAGS, SHORT, alone, apart, folders, served  # noqa: F401 (fixtures)
from device_models import ENVIRONMENT
from engine import SANITIZED, Engine, killed_amid, run
from small_models import deepseek, ids, write_model

NAMES = ["glm_moe_dsa/chosen-pattern"] if SANITIZED else ["glm_moe_dsa/chosen-pattern", "deepseek_v32/chosen-16", "axk2/chosen-16"]


@pytest.fixture(scope="module", params=NAMES)
def model(request, folders):
    return folders(request.param)


def test_a_conversation_goes_on_with_what_is_cached(served, alone):
    history = ids(1, 30)
    for turn in range(4):
        answer, cached = served.api.cached_ids(history, 21)
        assert answer == alone(history, 21), "turn %d" % turn
        assert turn == 0 or cached >= len(history) - 11 - 1 - 4 - BLOCK, (turn, cached, len(history))
        history = history + answer + ids(100 + turn, 11)


def room(folder):
    """KiB of a rank's latents, twice, and keys of the indexer of a little more than one sequence; ranks have all of it each."""
    config = json.loads((folder / "config.json").read_text())
    latent = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    layers = config["num_hidden_layers"]
    keys = config.get("index_topk_pattern", "F" * layers)[:layers].count("F") * config["index_head_dim"]
    return SHORT * (2 * layers * latent + keys) * 4 // 1024 * 5 // 4 + 4


@pytest.mark.parametrize("tensor_parallel,swap", ((1, 0), (1, 1), (2, 0)))
def test_many_at_once_with_too_little_memory(model, alone, tensor_parallel, swap):
    common = ids(3, 120)
    prompts = [common[:7 * k] + ids(300 + k, 9 + 5 * k % 31) for k in range(6 if SANITIZED else 16)]
    with Engine(*FLAGS, "--max-model-len", SHORT, "-tp", tensor_parallel, "--max-num-seqs", 6, "--swap-space", swap, "--kv-cache-memory",
                "%dKiB" % room(model), model=model) as engine, concurrent.futures.ThreadPoolExecutor(len(prompts) + 1) as pool:
        # rows of one request are beside each other however slowly clients come
        crowd = pool.submit(engine.api.completions, ids(9, 20), n=6, max_tokens=100, temperature=1.0, seed=1, ignore_eos=True)
        answers = list(pool.map(lambda p: engine.api.greedy_ids(p, 60), prompts))
        assert crowd.result()["usage"]["completion_tokens"] == 600
        assert [k for k, (p, a) in enumerate(zip(prompts, answers)) if a != alone(p, 60)] == []
        assert engine.api.metric("vllm:num_preemptions_total") > 0
        assert (engine.api.metric("tercet_swapped_in_blocks_total") > 0) == (swap > 0)


def test_beams_are_those_of_a_search_alone(served, apart):
    prompts = [ids(400 + k, 20 + 9 * k) for k in range(3)]
    wanted = [apart.beam_ids(p, 12) for p in prompts]
    assert all(len({tuple(b) for b in beams}) == 3 for beams in wanted)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        beside = [pool.submit(served.api.greedy_ids, ids(410 + k, 50), 30) for k in range(3)]
        assert list(pool.map(lambda p: served.api.beam_ids(p, 12), prompts)) == wanted
        assert all(len(b.result()) == 30 for b in beside)


def test_a_killed_worker_costs_nobody_a_token(served, alone):
    prompts = [ids(600 + k, 40 + k) for k in range(4)]

    def all_at_once():
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda p: served.api.greedy_ids(p, 1500), prompts))

    assert killed_amid(served, "tercet-worker", all_at_once, 4) == [alone(p, 1500) for p in prompts]


def test_a_context_of_which_all_are_chosen_answers_as_one_that_goes_on(model, served):
    top = json.loads((model / "config.json").read_text())["index_topk"]
    with Engine(*FLAGS, "--max-model-len", top, model=model) as engine:
        for k in range(3):
            prompt = ids(700 + k, 3 + k)
            assert engine.api.greedy_ids(prompt, top - 3 - k) == served.api.greedy_ids(prompt, top - 3 - k)


def answer_of(folder, device, *flags):
    return run("run", folder, "--prompt-ids", "1,2,3", "--max-tokens", 5, "--ignore-eos", "--output-ids", "--temperature", 0, "--device", device,
               "--kv-cache-memory", "1MiB", *flags, env=ENVIRONMENT)


@pytest.mark.skipif(SANITIZED, reason="the same with and without")
def test_devices_end_a_context_where_not_all_are_chosen(tmp_path):
    kept = deepseek()
    # no tensors of an indexer: nobody reads them
    folder = write_model(tmp_path, {**kept, "config": {**kept["config"], "architectures": ["DeepseekV32ForCausalLM"], "index_topk": 64}})
    for flags in ((), ("--max-model-len", 64)):
        status, said = answer_of(folder, "cuda", *flags)
        assert status == 0 and len(said.splitlines()[-1].split(",")) == 5, said
    status, said = answer_of(folder, "cuda", "--max-model-len", 65)
    assert status != 0 and '--max-model-len 65 is more than "index_topk" 64 (config.json), behind which a DeepseekV32ForCausalLM attends to tokens that it ' \
        "chooses, which is computed on CPUs alone: lower it, or use --device cpu" in said, said
    status, said = run("logits", "--model", folder, "--ids", ",".join(["7"] * 65), "--device", "cuda", env=ENVIRONMENT)
    assert status != 0 and "65 ids are more than the model's context of 64 tokens" in said, said
    status, said = answer_of(folder, "cpu")
    assert status != 0 and "the checkpoint has no tensor model.layers.0.self_attn.indexer.wk.weight" in said, said
    assert answer_of(folder, "cpu", "--max-model-len", 64)[0] == 0
