"""Models as files in GGUF: what they compute, against the folders that the files were made of, their tokenizers, and the folders that are
made of them."""
import concurrent.futures
import json
import os
import random

import pytest

import engine as engines
import gguf_files
from engine import DEMO, SANITIZED, Engine, run
from gguf_bare import bare, cache, config_of, imported, refusal  # noqa: F401
from gguf_files import BYTE, CONTROL, NORMAL, convert, numbered_tokens, tokens_of, write_gguf
from lora_files import write_safetensors
from test_families import TOLERANCE, read_logits

FOLDER = engines.SHARED / "refmodels"
MODELS = sorted(p.name for p in FOLDER.iterdir() if (p / "reference.json").exists()) if FOLDER.exists() else ["none"]
if SANITIZED:
    MODELS = [m for m in MODELS if m in ("gemma2", "llama3-gqa-ropescale", "qwen3-moe-dense-layer", "none")]
TEXTS = ["Once upon a time, 12345 kings", "  two spaces", "<|user|>Hi<|end|>", "naïve – 日本語 🙂"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo model in 16 bits, and a cache for all that is made of it."""
    folder = tmp_path_factory.mktemp("gguf")
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    yield convert(DEMO, folder / "Demo.F16.gguf", tokens_of(DEMO, "smaug-bpe"), "F16")
    del os.environ["XDG_CACHE_HOME"]


# ---------------------------------------------------------------- what is computed


def test_a_download_is_called_by_its_name(demo, tmp_path, reference):
    commit = "fedcba9876543210" * 2 + "fedcba98"
    downloads = tmp_path / "hub" / "models--a-team--Demo-GGUF"
    (downloads / "refs").mkdir(parents=True)
    (downloads / "refs" / "main").write_text(commit)
    (downloads / "snapshots" / commit).mkdir(parents=True)
    (downloads / "snapshots" / commit / demo.name).symlink_to(demo)
    p = reference["prompts"][0]
    for model in ("a-team/Demo-GGUF", downloads / "snapshots" / commit):
        with Engine("--dtype", "float32", model=model, env={"HF_HOME": str(tmp_path)}) as e:
            assert e.api.model() == "a-team/Demo-GGUF"
            assert e.api.greedy_ids(p["ids"], 8) == p["output_ids"][:8]


def test_the_demo_says_what_it_says_as_a_folder(demo, reference):
    with Engine("--dtype", "float32", model=demo) as e:
        assert "GGUF file=" in e.log() and "Demo.F16.gguf" in e.log()
        assert e.api.model() == "Demo.F16.gguf"
        assert e.api.call("GET", "/v1/models")["data"][0]["root"] == str(demo)
        for p in reference["prompts"]:
            assert e.api.greedy_ids(p["ids"], len(p["output_ids"])) == p["output_ids"], p["text"][:60]
        chat = e.api.chat([{"role": "user", "content": "Who was the king?"}], temperature=0, max_tokens=8)
        assert chat["choices"][0]["message"]["content"]


@pytest.mark.parametrize("model", MODELS)
def test_families_compute_what_their_references_do(model, tmp_path, cache):
    if model == "none":
        pytest.skip("no reference models here")
    path = convert(FOLDER / model, tmp_path / "model.gguf")
    prompt = json.loads((FOLDER / model / "reference.json").read_text())["prompts"][-1]
    status, output = run("logits", "--model", path, "--ids", ",".join(map(str, prompt["ids"])), "--dtype", "float32", "--threads", 1, "--all",
                         "--top", 0)
    assert status == 0, output
    for line, wanted in zip(output.splitlines(), read_logits(FOLDER / model, prompt)):
        assert max(abs(a - b) for a, b in zip(json.loads(line)["logits"], wanted)) <= TOLERANCE


# Families without a reference: one of random numbers as a folder and as a file. Fields; what differs from Llama's tensors of a layer.
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": False,
         "torch_dtype": "float32"}
RMS, LAYER_NORM = {"rms_norm_eps": 1e-5}, {"layer_norm_eps": 1e-5}
Q, KV, H, I = 32, 16, 32, 48
NO_GATE = {"mlp.gate_proj.weight": None}
QKV_BIAS = {"self_attn.q_proj.bias": [Q], "self_attn.k_proj.bias": [KV], "self_attn.v_proj.bias": [KV]}
NORM_BIAS = {"input_layernorm.bias": [H], "post_attention_layernorm.bias": [H], "norm.bias": [H]}
NORMS_BEHIND = {"input_layernorm.weight": None, "post_feedforward_layernorm.weight": [H]}
HEAD_NORMS = {"self_attn.q_norm.weight": [8], "self_attn.k_norm.weight": [8]}
WHOLE_NORMS = {"self_attn.q_norm.weight": [Q], "self_attn.k_norm.weight": [KV]}
NO_MLP = {"mlp.gate_proj.weight": None, "mlp.up_proj.weight": None, "mlp.down_proj.weight": None}


def experts(width):
    return {"mlp.gate.weight": [4, H], **{"mlp.experts.%d.%s.weight" % (i, n): s for i in range(4) for n, s in
                                          (("gate_proj", [width, H]), ("up_proj", [width, H]), ("down_proj", [H, width]))}}


OTHERS = {
    "granite": ("GraniteForCausalLM", {**RMS, "embedding_multiplier": 12.0, "residual_multiplier": 0.25, "attention_multiplier": 0.125,
                                       "logits_scaling": 8.0}, {}),
    "mistral3": ("Ministral3ForCausalLM", {**RMS, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4, "mscale": 1.0, "mscale_all_dim": 0.5,
        "llama_4_scaling_beta": 0.25}}, {}),
    "internlm2": ("LlamaForCausalLM", RMS, {}),
    "smollm3": ("SmolLM3ForCausalLM", RMS, {}),
    "arcee": ("ArceeForCausalLM", RMS, NO_GATE),
    "nemotron": ("NemotronForCausalLM", {"norm_eps": 1e-5, "partial_rotary_factor": 0.5}, {**NO_GATE, **NORM_BIAS}),
    "olmo": ("OlmoForCausalLM", {"clip_qkv": 0.5, "layer_norm_eps": 1e-5},
             {"input_layernorm.weight": None, "post_attention_layernorm.weight": None, "norm.weight": None}),
    "olmo2": ("Olmo2ForCausalLM", RMS, {**NORMS_BEHIND, **WHOLE_NORMS}),
    "olmo2-v3": ("Olmo3ForCausalLM", {**RMS, "sliding_window": 4, "rope_scaling": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8, "attention_factor": 1.5}}, {**NORMS_BEHIND, **WHOLE_NORMS}),
    "olmoe": ("OlmoeForCausalLM", {**RMS, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": False},
              {**WHOLE_NORMS, **NO_MLP, **experts(I)}),
    "command-r": ("CohereForCausalLM", {**LAYER_NORM, "logit_scale": 0.25, "tie_word_embeddings": True}, {"post_attention_layernorm.weight": None}),
    "cohere2": ("Cohere2ForCausalLM", {**LAYER_NORM, "logit_scale": 0.25, "sliding_window": 4, "tie_word_embeddings": True},
                {"post_attention_layernorm.weight": None}),
    "stablelm": ("StableLmForCausalLM", {**LAYER_NORM, "partial_rotary_factor": 0.25, "use_qkv_bias": True}, {**NORM_BIAS, **QKV_BIAS}),
    "starcoder2": ("Starcoder2ForCausalLM", {"norm_epsilon": 1e-5, "use_bias": True, "tie_word_embeddings": True},
                   {**NO_MLP, **NORM_BIAS, **QKV_BIAS, "self_attn.o_proj.bias": [H], "mlp.c_fc.weight": [I, H], "mlp.c_fc.bias": [I],
                    "mlp.c_proj.weight": [H, I], "mlp.c_proj.bias": [H]}),
    "glm4": ("Glm4ForCausalLM", {**RMS, "partial_rotary_factor": 0.5, "attention_bias": True},
             {**QKV_BIAS, "mlp.gate_proj.weight": None, "mlp.up_proj.weight": None, "mlp.gate_up_proj.weight": [2 * I, H],
              "post_self_attn_layernorm.weight": [H], "post_mlp_layernorm.weight": [H]}),
    "exaone": ("LlamaForCausalLM", {**RMS, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                            "original_max_position_embeddings": 32}}, {}),
    "exaone4": ("Exaone4ForCausalLM", {**RMS, "sliding_window": 4}, {**NORMS_BEHIND, **HEAD_NORMS}),
    "seed_oss": ("SeedOssForCausalLM", {**RMS, "attention_bias": True}, QKV_BIAS),
    "ernie4_5": ("Ernie4_5ForCausalLM", {**RMS, "tie_word_embeddings": True}, {}),
    "hunyuan-dense": ("HunYuanDenseV1ForCausalLM", RMS, {"self_attn.query_layernorm.weight": [8], "self_attn.key_layernorm.weight": [8]}),
    "gemma3": ("Gemma3ForCausalLM", {**RMS, "sliding_window": 4, "query_pre_attn_scalar": 8, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                                     "tie_word_embeddings": True},
               {**HEAD_NORMS, "pre_feedforward_layernorm.weight": [H], "post_feedforward_layernorm.weight": [H]}),
    "qwen2moe": ("Qwen2MoeForCausalLM", {**RMS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                                         "shared_expert_intermediate_size": 24, "norm_topk_prob": False},
                 {**QKV_BIAS, **NO_MLP, **experts(16), "mlp.shared_expert.gate_proj.weight": [24, H], "mlp.shared_expert.up_proj.weight": [24, H],
                  "mlp.shared_expert.down_proj.weight": [H, 24], "mlp.shared_expert_gate.weight": [1, H]}),
}


ROUTED = {**RMS, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 2, "first_k_dense_replace": 0,
          "routed_scaling_factor": 1.5}
SHARED = {"mlp.shared_experts.gate_proj.weight": [32, H], "mlp.shared_experts.up_proj.weight": [32, H],
          "mlp.shared_experts.down_proj.weight": [H, 32]}
LATENT = {"num_key_value_heads": 4, "head_dim": 4, "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 6}
LATENT_TENSORS = {"self_attn.k_proj.weight": None, "self_attn.v_proj.weight": None, "self_attn.kv_a_proj_with_mqa.weight": [16, H],
                  "self_attn.kv_a_layernorm.weight": [12], "self_attn.kv_b_proj.weight": [48, 12], "self_attn.o_proj.weight": [H, 24]}
OTHERS.update({
    "glm4moe": ("Glm4MoeForCausalLM", {**ROUTED, "partial_rotary_factor": 0.5, "norm_topk_prob": True, "attention_bias": True, "use_qk_norm": True,
                                       "n_group": 1, "topk_group": 1},
                {**QKV_BIAS, **HEAD_NORMS, **NO_MLP, **experts(16), **SHARED, "mlp.gate.e_score_correction_bias": [4]}),
    "deepseek2": ("DeepseekV2ForCausalLM", {**ROUTED, **LATENT, "q_lora_rank": None, "norm_topk_prob": False, "topk_method": "greedy", "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.5, "mscale_all_dim": 0.5}},
                  {**LATENT_TENSORS, **NO_MLP, **experts(16), **SHARED, "self_attn.q_proj.weight": [40, H]}),
    "deepseek2-v3": ("DeepseekV3ForCausalLM", {**ROUTED, **LATENT, "q_lora_rank": 20, "norm_topk_prob": True, "n_group": 2, "topk_group": 1},
                     {**LATENT_TENSORS, **NO_MLP, **experts(16), **SHARED, "self_attn.q_proj.weight": None, "self_attn.q_a_proj.weight": [20, H],
                      "self_attn.q_a_layernorm.weight": [20], "self_attn.q_b_proj.weight": [40, 20], "mlp.gate.e_score_correction_bias": [4]}),
})


def random_folder(folder, name, fields, differences):
    rng = random.Random(name)
    layer = {"input_layernorm.weight": [H], "post_attention_layernorm.weight": [H], "self_attn.q_proj.weight": [Q, H],
             "self_attn.k_proj.weight": [KV, H], "self_attn.v_proj.weight": [KV, H], "self_attn.o_proj.weight": [H, Q],
             "mlp.gate_proj.weight": [I, H], "mlp.up_proj.weight": [I, H], "mlp.down_proj.weight": [H, I], **differences}
    shapes = {"model.embed_tokens.weight": [64, H], "model.norm.weight": [H], "lm_head.weight": [64, H]}
    for end in ("norm.weight", "norm.bias"): # beside the layers
        if end in layer:
            shapes["model." + end] = layer.pop(end)
    if fields.get("tie_word_embeddings"):
        del shapes["lm_head.weight"]
    shapes.update({"model.layers.%d.%s" % (i, n): s for i in range(4) for n, s in layer.items()})
    tensors = {}
    for n, shape in shapes.items():
        if shape:
            middle = 1 if "norm.weight" in n and name not in gguf_files.ONE_MORE else 0
            count = shape[0] * (shape[1] if len(shape) > 1 else 1)
            tensors[n] = ("F32", shape, gguf_files.floats([middle + rng.uniform(-0.4, 0.4) for _ in range(count)]))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [OTHERS[name][0]], **SIZES, **fields}))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def logits(model):
    ids = ",".join(str(i * 7 % 64) for i in range(12))
    status, output = run("logits", "--model", model, "--ids", ids, "--dtype", "float32", "--threads", 1, "--top", 0)
    assert status == 0, output
    return json.loads(output.splitlines()[-1])["logits"]


@pytest.mark.parametrize("name", ["olmo2", "qwen2moe"] if SANITIZED else sorted(OTHERS))
def test_families_compute_what_their_folders_do(name, tmp_path, cache):
    _, fields, differences = OTHERS[name]
    folder = random_folder(tmp_path / "folder", name, fields, differences)
    wanted = logits(folder)
    got = logits(convert(folder, tmp_path / "model.gguf", arch=name.split("-v")[0]))
    assert max(wanted) - min(wanted) > 0.1 and max(abs(a - b) for a, b in zip(wanted, got)) < 1e-4


def test_run_and_tokenize_take_the_file(demo):
    answers = [run("run", model, "Once upon a time", "--temperature", 0, "--max-tokens", 8, "--dtype", "float32", "--threads", 1,
                   "--kv-cache-memory", "64MiB") for model in (DEMO, demo)]
    assert answers[0][0] == 0 and answers[0] == answers[1]
    for text in TEXTS:
        ids = [run("tokenize", "--model", model, "--add-special-tokens", text) for model in (DEMO, demo)]
        assert ids[0][0] == 0 and ids[0] == ids[1], text


# ---------------------------------------------------------------- tokenizers


def test_pieces_with_scores_are_put_together_by_them(tmp_path, cache):
    pieces = [("<unk>", 2, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0), ("\u2581", NORMAL, -9.0), ("a", NORMAL, -8.0),
              ("b", NORMAL, -7.0), ("ab", NORMAL, -2.0), ("\u2581a", NORMAL, -1.0)] + [("<0x%02X>" % i, BYTE, 0.0) for i in range(256)]
    tokens = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [p[0] for p in pieces],
              "tokenizer.ggml.token_type": [p[1] for p in pieces], "tokenizer.ggml.scores": [p[2] for p in pieces],
              "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}

    def ids(text, **change):
        path = bare(tmp_path / "m.gguf", {"tokenizer.ggml." + k: v for k, v in change.items()}, tokens)
        status, output = run("tokenize", "--model", path, "--add-special-tokens", text)
        assert status == 0, output
        return [int(line.split()[0]) for line in output.splitlines()]

    assert ids("ab") == [1, 7, 5]
    assert ids("ab", add_space_prefix=False) == [1, 6]
    assert ids("ab", add_space_prefix=False, add_bos_token=False, add_eos_token=True) == [6, 2]
    assert ids("b\n", add_space_prefix=False) == [1, 5, 8 + 10]
    assert "the same score" in refusal(bare(tmp_path / "m.gguf", {"tokenizer.ggml.scores": [-1.0] * len(pieces)}, tokens))


def test_pieces_of_characters_are_put_together_by_merges(tmp_path, cache):
    """Gemma 4's: no word ends where a space is, and what is no piece is bytes."""
    pieces = [("<pad>", CONTROL), ("<eos>", CONTROL), ("<bos>", CONTROL), ("\n", NORMAL), ("\n\n", NORMAL), ("\u2581", NORMAL), ("a", NORMAL),
              ("b", NORMAL), ("ab", NORMAL), ("\u2581ab", NORMAL), ("\u2581\u2581", NORMAL), ("b\u2581ab", NORMAL),
              ("<turn|>", CONTROL)] + [("<0x%02X>" % i, BYTE) for i in range(256)]
    tokens = {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.tokens": [p[0] for p in pieces], "tokenizer.ggml.token_type": [p[1] for p in pieces],
              "tokenizer.ggml.scores": [0.0] * len(pieces), "tokenizer.ggml.merges": ["\n \n", "\u2581 \u2581", "a b", "\u2581 ab", "b \u2581ab"],
              "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.add_space_prefix": False}
    path = bare(tmp_path / "m.gguf", None, tokens)

    def ids(text):
        status, output = run("tokenize", "--model", path, "--add-special-tokens", text)
        assert status == 0, output
        return [int(line.split()[0]) for line in output.splitlines() if line.split()]

    assert ids("ab") == [2, 8]
    assert ids(" ab ab") == [2, 9, 9]
    assert ids("b ab\n\n\n") == [2, 11, 4, 3]
    assert ids("a  ab<turn|>") == [2, 6, 10, 8, 12]
    assert ids("\u00e9") == [2, 13 + 0xc3, 13 + 0xa9]
    folder = next(cache.glob("*/*"))
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == [1, 12]
    assert [d["type"] for d in json.loads((folder / "tokenizer.json").read_text())["decoder"]["decoders"]] == ["Replace", "ByteFallback", "Fuse"]


def test_falcons_text_is_cut_as_by_its_tokenizer(tmp_path, cache):
    """Runs of signs, words, numbers, and of these three digits at a time: the vectors that the tokenizer itself is tested with."""
    folder = engines.ROOT / "tests" / "unit" / "text" / "models" / "falcon"
    spec = json.loads((folder / "tokenizer.json").read_text())
    texts = {i: t for t, i in spec["model"]["vocab"].items()}
    added = {a["id"]: a["content"] for a in spec["added_tokens"]}
    count = max([*texts, *added]) + 1
    tokens = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "falcon", "tokenizer.ggml.add_bos_token": False,
              "tokenizer.ggml.tokens": [added.get(i, texts.get(i)) for i in range(count)],
              "tokenizer.ggml.token_type": [CONTROL if i in added else NORMAL for i in range(count)],
              "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]}
    path = bare(tmp_path / "m.gguf", None, tokens)
    vectors = [json.loads(line) for line in (folder / "vectors.jsonl").read_text().splitlines()]
    (tmp_path / "texts").write_text("".join(json.dumps({"text": v["text"]}) + "\n" for v in vectors))
    status, output = run("tokenize", "--model", path, "--jsonl", tmp_path / "texts")
    assert status == 0 and len(vectors) > 50, output
    assert [json.loads(line)["ids"] for line in output.splitlines() if line.startswith("{")] == [v["ids"] for v in vectors]


def letters_of_bytes():
    """What stands for each byte in byte-level vocabularies."""
    shown = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = iter(range(0x100, 0x200))
    return {b: chr(b if b in shown else next(others)) for b in range(256)}


@pytest.mark.parametrize("pre,pieces", [
    ("kimi-k2", ["ab", "\u4f60\u597d", "cd", " ", "123", "45"]), ("gpt-4o", ["ab\u4f60\u597dcd", " ", "123", "45"]),
    ("afmoe", ["1", "234", "567", " ab"]), ("deepseek-v3", ["123", "456", "7", " ab"]), ("deepseek-llm", ["Ab", " ", "1", "2", ".", "5"]),
    ("youtu", ["\ud55c\uad6d", "ab", "\uff0c", "1", "2"]), ("jais-2", ["a", "  ", " ", " b"]), ("llama-bpe", ["a", "      ", " b"]),
    ("bloom", ["ab", " 12", "\u0964", "'cd", "  "]), ("exaone-moe", ["ab cd ef", "1", "2"]), ("solar-open", ["ab", " cd", " ef", "1", "2"]), ("minicpm5", ["123", "4", " ab"])])
def test_text_is_cut_as_the_name_says(pre, pieces, tmp_path, cache):
    """Merges make the pieces, and would join each with the next one."""
    letter = letters_of_bytes()
    tokens, merges = list(letter.values()), []
    written = ["".join(letter[b] for b in piece.encode()) for piece in pieces]
    for text, first in [(w, 1) for w in written] + [(a + b, len(a)) for a, b in zip(written, written[1:])]:
        for i in range(first, len(text) if first == 1 else first + 1):
            whole = text[:i + 1] if first == 1 else text
            if whole not in tokens:
                merges.append("%s %s" % (text[:i], whole[i:]))
                tokens.append(whole)
    path = bare(tmp_path / "m.gguf", None, {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.tokens": tokens,
                                          "tokenizer.ggml.token_type": [NORMAL] * len(tokens), "tokenizer.ggml.merges": merges})
    status, output = run("tokenize", "--model", path, "".join(pieces))
    assert status == 0, output
    assert [int(line.split()[0]) for line in output.splitlines() if line.split()] == [tokens.index(w) for w in written], output


def test_ends_of_turns_are_ends(tmp_path, cache):
    tokens = numbered_tokens(8)
    tokens["tokenizer.ggml.tokens"][4:8] = ["<|im_end|>", "<|eot_id|>", "<|end|>", "</s>"]
    tokens["tokenizer.ggml.token_type"][4:6] = [CONTROL] * 2
    change = {"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 5, "general.sampling.temp": 0.5, "general.sampling.top_k": 3}
    folder = imported(bare(tmp_path / "m.gguf", change, tokens), cache)
    for name in ("config.json", "generation_config.json"):
        assert json.loads((folder / name).read_text())["eos_token_id"] == [7, 5, 4]
    defaults = json.loads((folder / "generation_config.json").read_text())
    assert (defaults["temperature"], defaults["top_k"]) == (0.5, 3)


# ---------------------------------------------------------------- files and folders


def test_a_folder_is_made_once_and_again_when_the_file_changes(tmp_path, cache):
    path = bare(tmp_path / "m.gguf")
    first = imported(path, cache)
    assert first.name == "m.gguf" and os.readlink(first / "model.gguf") == str(path)
    stamp = (first / "config.json").stat().st_mtime_ns
    assert run("tokenize", "--model", path, "t")[0] == 0 and (first / "config.json").stat().st_mtime_ns == stamp
    os.utime(path, ns=(1, 1))
    assert imported(path, cache) != first
    (first / "tokenizer.json").unlink()  # by who tidies up
    bare(path)
    os.utime(path, ns=(stamp, stamp))
    again = imported(path, cache)
    (again / "tokenizer.json").unlink()
    assert run("tokenize", "--model", path, "t")[0] == 0 and (again / "tokenizer.json").exists()
    assert not list(cache.glob(".*"))


def test_several_starts_at_once_make_one_folder(tmp_path, cache):
    path = bare(tmp_path / "m.gguf")
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda _: run("tokenize", "--model", path, "t1"), range(6)))
    assert all(status == 0 for status, _ in done) and len(set(done)) == 1, done
    assert len(list(cache.iterdir())) == 1


def test_a_folder_may_hold_the_file(tmp_path, cache):
    folder = tmp_path / "a-model"
    folder.mkdir()
    bare(folder / "x.Q4.gguf")
    (folder / "mmproj-x.gguf").write_bytes(b"")
    assert imported(folder, cache).name == "a-model"
    bare(folder / "y.Q8.gguf")
    assert "%s holds 2 models in GGUF (x.Q4.gguf, y.Q8.gguf); give the path of one of them" % folder in refusal(folder)
    status, output = run("serve", tmp_path)
    assert status == 1 and "has no config.json" in output and "or a file *.gguf" in output


def test_files_of_one_model_are_one(tmp_path, cache):
    folder = tmp_path / "parts"
    folder.mkdir()
    bare(folder / "m-00001-of-00002.gguf", {"split.no": 0, "split.count": 2, "split.tensors.count": 2})
    assert "m-00002-of-00002.gguf" in refusal(folder)
    write_gguf(folder / "m-00002-of-00002.gguf", {"split.no": 1, "split.count": 2, "split.tensors.count": 2},
               {"output.weight": ("F16", [8, 4], bytes(64))})
    assert config_of(folder, cache)["tie_word_embeddings"] is False


def test_a_place_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    path = bare(tmp_path / "m.gguf")
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    output = refusal(path)
    assert "XDG_CACHE_HOME says where" in output and "file/tercet cannot be made: Not a directory" in output, output
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    assert run("tokenize", "--model", path, "t1")[0] == 0
    assert len(list((tmp_path / "tmp").glob("tercet-*/gguf/*/m.gguf/config.json"))) == 1


def test_a_place_where_others_write_is_not_used(tmp_path, cache):
    path = bare(tmp_path / "m.gguf")
    imported(path, cache)
    for folder in (cache, cache.parent):
        folder.chmod(0o777)
        assert "%s and the folder it is in must belong to who runs this" % cache in refusal(path)
        folder.chmod(0o700)
    assert run("tokenize", "--model", path, "t")[0] == 0


def test_files_that_are_damaged_or_missing_are_refused(tmp_path, cache):
    path = bare(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:400])
    assert "m.gguf: value 9 of 18: truncated" in refusal(path)
    path.write_bytes(b"no model")
    assert 'm.gguf: this is no GGUF file: it does not begin with "GGUF"' in refusal(path)
    status, output = run("serve", tmp_path / "none.gguf")
    assert status == 1 and "none.gguf cannot be opened: No such file or directory" in output
