"""Models some of whose layers keep a state of each sequence: whatever sequences share, lose and come back with, every answer is that of the prompt alone.
The models are those of families.json: weights are a function of a tensor's name and place."""
import concurrent.futures
import json
import time

import pytest

from api import ApiError
from company import BLOCK, FLAGS, KEPT, SHORT, alone, apart, folders, served  # noqa: F401 (fixtures)
from device_models import ENVIRONMENT
from engine import FULL, SANITIZED, Engine, killed_amid, run
from small_models import ids, write_model

NAMES = ["qwen3_5_text/none"] if SANITIZED else ["qwen3_5_text/none", "lfm2/bias", "granite_mamba/experts", "nemotron_h/mlps-last", "falcon_h1/none", "jamba/none", "mamba/none", "mamba2/none", "zamba2/none"] if FULL else ["qwen3_5_text/none", "lfm2/bias", "mamba/none", "mamba2/none", "zamba2/none"]


@pytest.fixture(scope="module", params=NAMES)
def model(request, folders):
    return folders(request.param)


def test_a_conversation_goes_on_where_its_last_answer_ended(served, alone):
    history = ids(1, 30)
    for turn in range(4):
        answer, cached = served.api.cached_ids(history, 21)
        assert answer == alone(history, 21), "turn %d" % turn
        # all but the last output, which was never run, a part of a block, and what is new
        assert turn == 0 or cached >= len(history) - 11 - 1 - 4 - BLOCK, (turn, cached, len(history))
        history = history + answer + ids(100 + turn, 11)


def test_what_prompts_have_in_common_is_found_from_the_third_on(served, alone):
    common = ids(2, 150)
    for k in range(4):
        prompt = common + ids(200 + k, 40)
        answer, cached = served.api.cached_ids(prompt, 5)
        assert answer == alone(prompt, 5), k
        assert cached == (0 if k < 2 else 150 // BLOCK * BLOCK), k


@pytest.mark.parametrize("tensor_parallel", (1, 2))
def test_many_at_once_with_too_little_memory(model, alone, tensor_parallel):
    common = ids(3, 120)
    prompts = [common[:7 * k] + ids(300 + k, 9 + 5 * k % 31) for k in range(6 if SANITIZED else 16)]
    with Engine(*FLAGS, "--max-model-len", SHORT, "-tp", tensor_parallel, "--max-num-seqs", 6, "--kv-cache-memory", "%dKiB" % room(model, tensor_parallel), model=model) as engine, \
            concurrent.futures.ThreadPoolExecutor(len(prompts) + 1) as pool:
        # rows of one request are beside each other, and long enough that it does not matter how slowly they come
        crowd = pool.submit(engine.api.completions, ids(9, 20), n=6, max_tokens=280, temperature=1.0, seed=1, ignore_eos=True)
        while not crowd.done() and engine.api.metric("vllm:num_preemptions_total") == 0:
            time.sleep(0.005)  # others would take the rows' turns
        answers = list(pool.map(lambda p: engine.api.greedy_ids(p, 60), prompts))
        assert crowd.result()["usage"]["completion_tokens"] == 6 * 280
        wrong = [k for k, (p, a) in enumerate(zip(prompts, answers)) if a != alone(p, 60)]
        assert not wrong
        assert engine.api.metric("vllm:num_preemptions_total") > 0


def room(folder, ranks):
    """KiB of a rank's keys and values of a little more than one sequence; or of its ids, where no layer has keys and values."""
    config = json.loads((folder / "config.json").read_text())
    if "num_attention_heads" not in config:
        return SHORT * 4 // 1024 + 1
    head = config.get("head_dim") or config.get("attention_head_dim") or config["hidden_size"] // config["num_attention_heads"]
    kinds = config.get("layer_types") or config.get("layers_block_type") or config.get("hybrid_override_pattern") or ["attention"] * config["num_hidden_layers"]
    if "attn_layer_period" in config:
        kinds = ["attention" if i % config["attn_layer_period"] == config["attn_layer_offset"] else "mamba" for i in range(config["num_hidden_layers"])]
    attention = sum(kind in ("full_attention", "attention", "hybrid", "*") for kind in kinds)
    return (SHORT * 2 * attention * config["num_key_value_heads"] * head * 4 // 1024 * 5 // 4 + 4) // ranks


def test_beams_are_those_of_a_search_alone(served, apart):
    prompts = [ids(400 + k, 20 + 9 * k) for k in range(3)]
    wanted = [apart.beam_ids(p, 12) for p in prompts]
    assert all(len({tuple(b) for b in beams}) == 3 for beams in wanted)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        beside = [pool.submit(served.api.greedy_ids, ids(410 + k, 50), 30) for k in range(3)]
        assert list(pool.map(lambda p: served.api.beam_ids(p, 12), prompts)) == wanted
        for b in beside:
            b.result()


def test_sessions_keep_their_tokens_and_say_what_is_cached(served, alone):
    history = []
    for k in range(3):
        new = ids(500 + k, 25)
        reply = served.api.completions(new, session_id="talk", session_start=k == 0, temperature=0, max_tokens=14, ignore_eos=True,
                                       return_token_ids=True)
        history += new
        assert reply["choices"][0]["token_ids"] == alone(history, 14), k
        history += reply["choices"][0]["token_ids"]
    state = served.api.call("GET", "/v1/sessions/talk")
    assert state["tokens"] == len(history)
    assert len(history) - BLOCK - 5 <= state["cached_tokens"] < len(history) and state["cached_tokens"] % BLOCK == 0


def test_a_killed_worker_costs_nobody_a_token(served, alone):
    prompts = [ids(600 + k, 40 + k) for k in range(4)]

    def all_at_once():
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda p: served.api.greedy_ids(p, 1500), prompts))

    assert killed_amid(served, "tercet-worker", all_at_once, 4) == [alone(p, 1500) for p in prompts]


@pytest.mark.parametrize("tensor,shape,said", [
    ("layers.1.norm.weight", None, "the checkpoint has no tensor backbone.layers.1.norm.weight ([40] expected)"),
    ("embeddings.weight", None, "the checkpoint has no tensor backbone.embeddings.weight ([131, 40] expected)"),
    ("norm_f.weight", [20], "model.safetensors: tensor backbone.norm_f.weight has the shape [20]; by config.json it must be [40]"),
    ("layers.2.mixer.out_proj.weight", [40, 40], "model.safetensors: tensor backbone.layers.2.mixer.out_proj.weight has the shape [40, 40]; by config.json it must be [40, 80]"),
])
@pytest.mark.parametrize("name", ["mamba/none", "mamba2/none"])
def test_errors_have_the_names_that_files_have(name, tensor, shape, said, tmp_path):
    tensors = dict(KEPT[name]["tensors"])
    if shape is None:
        del tensors["backbone." + tensor]
    else:
        tensors["backbone." + tensor] = [shape, *tensors["backbone." + tensor][1:]]
    status, output = run("logits", "--model", write_model(tmp_path, {"config": json.loads(KEPT[name]["config"]), "tensors": tensors}), "--ids", "1")
    assert status == 1 and said in output, output


def test_tensors_that_are_not_read_have_the_names_that_files_have(tmp_path):
    kept = KEPT["mamba2/none"]
    model = {"config": json.loads(kept["config"]), "tensors": {**kept["tensors"], "backbone.layers.1.mixer.in_proj.bias": [[200], 0.25, 0]}}
    with Engine(*FLAGS, model=write_model(tmp_path, model)) as engine:
        assert "tensor=backbone.layers.1.mixer.in_proj.bias reason=" in engine.log()


def test_what_such_models_cannot_do_is_said(folders):
    folder = folders(NAMES[0])
    status, output = run("serve", folder, "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}')
    assert status != 0
    assert "keeps a state of each sequence, which cannot go back where a token that was proposed does not come true" in output
    status, output = run("serve", folder, "--device", "cuda", env=ENVIRONMENT)
    assert status != 0 and "hidden_size is 40; the device's kernels want a multiple of 32: use --device cpu" in output, output
    with Engine(*FLAGS, "--max-model-len", SHORT, "--swap-space", "0.01", model=folder) as engine:
        assert "SWAP_SPACE_UNUSED" in engine.log()
        with pytest.raises(ApiError):
            engine.api.completions(ids(7, SHORT), max_tokens=1)
