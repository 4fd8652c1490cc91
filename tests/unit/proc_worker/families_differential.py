#!/usr/bin/env python3
"""Differential test of model loading and arithmetic: small checkpoints of random weights over the variants of every
family's config.json, computed by transformers in float32 and by tercet. Run by hand with an interpreter that has torch and
transformers 5; the suite runs what --keep wrote of it: families.json, read by test_families.c.

    families_differential.py [--tercet build/client/cli/tercet] [--only qwen3] [--list]
    families_differential.py --keep tests/unit/proc_worker/families.json
    families_differential.py --keep-device tests/e2e/device_families.json

Weights are a function of a tensor's name, shape and place (`values`), so that a case can be written down without them.
Logits of every position have to agree within 1e-3, 32 greedy tokens exactly, with one and two workers, whole prompts and
chunks. Exits with 1 if anything differs, naming it."""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402
from transformers.utils import logging  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import families_cases  # noqa: E402
import families_further  # noqa: E402
import families_gemma3n  # noqa: E402
import families_gemma4  # noqa: E402
import families_gpt  # noqa: E402
import families_known  # noqa: E402
import families_latent  # noqa: E402
import families_llama4  # noqa: E402
import families_mixers  # noqa: E402
import families_newer  # noqa: E402
import families_newest  # noqa: E402
import families_recurrent  # noqa: E402
import families_remote  # noqa: E402
import families_renamed  # noqa: E402
import families_shortcut  # noqa: E402
import families_standins  # noqa: E402
import families_unrotated  # noqa: E402
import families_vision  # noqa: E402

TOLERANCE = 1e-3
GREEDY = 32
TIE = 2e-3  # the two best of a reference's step must be further apart, or its token says nothing
BUDGETS = (512, 7)
TOKENIZER = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}


# ---------------------------------------------------------------- weights

def fnv(name):
    h = 0xcbf29ce484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return h


def noise(name, count):
    """Uniform in [-1, 1): the same as in test_families.c."""
    with np.errstate(over="ignore"):
        z = (np.arange(count, dtype=np.uint64) + np.uint64(fnv(name))) * np.uint64(0x9e3779b97f4a7c15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94d049bb133111eb)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0 ** -23) - np.float32(1)


def spread(name, shape, centre):
    """(amplitude, middle): of norms around `centre`, of biases around 0, of matrices such that outputs are as large as
    inputs."""
    if name.endswith("sinks"):  # as large as scores
        return 2, 0
    if name.endswith("act_fn.beta"):
        return 0.2, 0.5
    if name.endswith("act_fn.eps"):
        return 0, -1e-6
    if "correction_bias" in name or name.endswith("expert_bias"):  # as large as what scores differ by
        return 0.2, 0
    if name.endswith("A_log"):  # of what a state keeps from token to token from a half to nearly all
        return 1.5, -1.5
    if ".self_attn.lambda_" in name:  # of whose products the sums are exponents
        return 0.5, 0
    if name.endswith("recurrent_param"):  # likewise
        return 2, -3
    if name.endswith(("linear_attn.norm.weight", "mamba.D", "mixer.D")):
        return 0.25, 1
    if name.endswith(("layer_scalar", "router.scale", "per_expert_scale", "correct_output_scale")):  # factors
        return 0.25, 1
    if name.endswith("modality_router.weight"):  # of what is divided by as much
        return round((3 * shape[-1]) ** 0.5, 4), 0
    if name.endswith(("prediction_coefs.weight", "correction_coefs.weight")):  # streams that stay nearly as large as they are, also of many layers
        return 0.1 if "prediction" in name else 0.4, 0
    if len(shape) == 1:
        return 0.25, centre if "norm" in name or ".ln_" in name else 0
    gain = 4 if "lm_head" in name or "embed" in name else 3 if name.endswith(("gate.weight", "router.weight", "router.proj.weight", "classifier.weight")) else 1
    return round(gain * (3 / shape[-1]) ** 0.5, 4), 0


def values(name, shape, centre, unbiased=False):
    amplitude, middle = spread(name, shape, centre)
    if unbiased and "correction_bias" in name:  # experts are chosen by their scores alone
        amplitude = 0
    flat = noise(name, int(np.prod(shape))) * np.float32(amplitude) + np.float32(middle)
    return torch.from_numpy(flat).reshape(list(shape))


def centre_of(config):
    offset = config["model_type"].startswith(("gemma", "recurrent_gemma", "qwen3_5", "qwen3_next", "step3p")) and config["model_type"] not in ("gemma3n_text", "gemma4_text", "gemma4_unified_text")
    return 0 if offset else 1


def weights_of(model):
    """Names and tensors of what is random: some of it transformers has in buffers."""
    yield from model.named_parameters()
    yield from ((name, t) for name, t in model.named_buffers()
                if "correction_bias" in name or "act_fn." in name or name.endswith(("layer_scalar", "expert_bias")))


def fill(model, config, dtype):
    centre = centre_of(config)
    if families_standins.has(config):  # values go by the names in the file
        tensors = {name: values(name, t.shape, centre).to(dtype).float()
                   for name, t in families_standins.to_file(config, model.state_dict()).items()}
        model.load_state_dict(families_standins.from_file(config, tensors, model.state_dict()))
        return
    with torch.no_grad():
        for name, p in weights_of(model):
            p.copy_(values(name, p.shape, centre, families_latent.is_unbiased(config)).to(dtype).float())
    model.tie_weights()


# ---------------------------------------------------------------- checkpoints

def hub_tensors(model, folder):
    """As save_pretrained names them: experts one by one."""
    model.save_pretrained(folder)
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
        file.unlink()
    for file in ("config.json", "generation_config.json", "model.safetensors.index.json"):
        (folder / file).unlink(missing_ok=True)
    return tensors


def written(config, save):
    """config.json of the checkpoint."""
    if "talks" in save:
        return {"architectures": [save["talks"] + "ForConditionalGeneration"], "model_type": config["model_type"].removesuffix("_thinker"),
                "enable_audio_output": True, "thinker_config": {k: v for k, v in config.items() if k != "architectures"}}
    if "whole" not in save:
        return {k: v for k, v in config.items() if k != save.get("unsaid")}
    outside = ("architectures", "torch_dtype", "eos_token_id", "transformers_version")
    return {**save["whole"], **{k: config[k] for k in outside[1:] if k in config},
            "text_config": {**{k: v for k, v in config.items() if k not in outside},
                            **save["whole"].get("text_config", {})}}


def write(model, config, save, folder):
    dtype = getattr(torch, save.get("dtype", "float32"))
    tensors = model.state_dict() if save.get("raw") else hub_tensors(model, folder)
    if config.get("tie_word_embeddings", model.config.tie_word_embeddings):
        tensors = {k: v for k, v in tensors.items() if not k.endswith("lm_head.weight")}
        if save.get("keep_head"):
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    if families_standins.has(config):
        tensors = families_standins.to_file(config, tensors)
    if not save.get("raw") and (save.get("shards", 1) == 1 or config["model_type"] != "hyperclovax_vision_v2"):
        tensors = families_vision.on_hub(config, tensors)
    if "talks" in save:
        tensors = {"thinker." + k: v for k, v in tensors.items()}
    if config["model_type"] == "kimi_linear" and save.get("named") != "transformers":
        tensors = {families_recurrent.kimi_name(k): v for k, v in tensors.items()}
    if save.get("extra"):
        for i in range(config["num_hidden_layers"]):
            tensors["model.layers.%d.self_attn.rotary_emb.inv_freq" % i] = torch.ones(5)
    if save.get("base"):
        tensors = {k.removeprefix("model.").removeprefix("transformer."): v for k, v in tensors.items()}
    if save.get("prefix"):  # the language part of a model of several
        lm_head = "language_model." if save["prefix"].startswith("language_model.") else ""
        tensors = {(save["prefix"] + k.removeprefix("model.") if k.startswith("model.") else lm_head + k): v
                   for k, v in tensors.items()}
        tensors["vision_tower.embeddings.position_embedding.weight"] = torch.ones(3, 4)
    if families_latent.is_unbiased(config):
        tensors = {k: v for k, v in tensors.items() if "correction_bias" not in k}
    tensors = {k: v.to(dtype).contiguous() for k, v in tensors.items()}
    shards = save.get("shards", 1)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        names, index = sorted(tensors), {}
        for i in range(shards):
            file = "model-%05d-of-%05d.safetensors" % (i + 1, shards)
            save_file({n: tensors[n] for n in names[i::shards]}, folder / file, metadata={"format": "pt"})
            index.update({n: file for n in names[i::shards]})
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(written(config, save), indent=2))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))


def build(config, save, folder):
    """The reference; its checkpoint is in `folder` afterwards."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(families_mixers.reference_config(families_standins.config(config))))
    wanted, how = AutoConfig.from_pretrained(folder), {"attn_implementation": "eager", "experts_implementation": "eager",
                                                       "dtype": torch.float32}
    if type(wanted) in AutoModelForCausalLM._model_mapping:
        model = AutoModelForCausalLM.from_config(wanted, **how).eval()
    else:  # known there by its whole alone
        model = getattr(transformers, wanted.architectures[0])._from_config(wanted, **how).eval()
    families_remote.remake(model, config)
    families_unrotated.remake(model, config)
    fill(model, config, getattr(torch, save.get("dtype", "float32")))
    write(model, config, save, folder)
    return model


# ---------------------------------------------------------------- reference

def rope_type(config):
    r = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return r.get("rope_type", r.get("type", "default"))


def dynamic(model):
    return rope_type(families_vision.of(model.config.to_dict())) == "dynamic"


def fresh_rope(model):
    """Dynamic scaling remembers the longest sequence that it saw."""
    if dynamic(model):
        rotary = (families_vision.language(model) if families_vision.has(model.config.to_dict()) else model.base_model).rotary_emb
        rotary.register_buffer("inv_freq", rotary.original_inv_freq, persistent=False)
        rotary.max_seq_len_cached = rotary.original_max_seq_len


@torch.no_grad()
def reference(model, ids, count, gaps=None):
    """Logits [len(ids)][vocab], greedy tokens, and the least gap between the two best of a step; all of them into `gaps`."""
    fresh_rope(model)
    # As `generate`: what depends on a prompt's length stays as it was for the prompt (dynamic), or is computed anew as a
    # whole (longrope). Without a cache wherever it makes no difference: that of windows of one token is wrong.
    keep, factor = dynamic(model), families_vision.factor(model.config)
    out = model(torch.tensor([ids]), use_cache=keep)
    logits, past, gap, tokens = out.logits[0].float() * factor, getattr(out, "past_key_values", None), float("inf"), []
    last = logits[-1]
    for _ in range(count):
        best = torch.topk(last, 2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        if gaps is not None:
            gaps.append(round(float(best.values[0] - best.values[1]), 3))
        tokens.append(int(best.indices[0]))
        if keep:
            last = model(torch.tensor([[tokens[-1]]]), past_key_values=past, use_cache=True).logits[0, -1].float()
        else:
            last = model(torch.tensor([ids + tokens]), use_cache=False).logits[0, -1].float() * factor
    return logits, tokens, gap


def prompts_of(config):
    part = families_vision.of(config)
    return prompts(part.get("output_vocab_size") or part["vocab_size"])


def prompts(vocab):
    state = np.random.RandomState(7)
    return [[3 + int(i) for i in state.randint(0, vocab - 3, n)] for n in (1, 21, 60)]


# ---------------------------------------------------------------- tercet

class Refused(Exception):
    """What tercet says instead of an answer."""


def tercet(options, *arguments):
    done = subprocess.run([options.tercet, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise Refused((done.stderr or done.stdout).strip().splitlines()[-1])
    return done.stdout


def check_logits(options, folder, ids, wanted, ranks, budget):
    text = tercet(options, "logits", "--model", folder, "--ids", ",".join(map(str, ids)), "--all", "--top", 0, "--dtype",
                  "float32", "--threads", 1, "-tp", ranks, "--max-num-batched-tokens", budget)
    found = np.array([json.loads(line)["logits"] for line in text.splitlines()], dtype=np.float64)
    if found.shape != tuple(wanted.shape):
        return "logits of shape %s, not %s" % (found.shape, tuple(wanted.shape))
    worst = np.abs(found - wanted.double().numpy()).max(axis=1)
    if not (worst <= TOLERANCE).all():
        return "logits differ by %g, first at position %d of %d" % (np.nanmax(worst), int(np.argmax(~(worst <= TOLERANCE))),
                                                                   len(ids))
    return None


def check_greedy(options, folder, ids, wanted, ranks, budget):
    text = tercet(options, "run", folder, "--prompt-ids", ",".join(map(str, ids)), "--max-tokens", len(wanted),
                  "--temperature", 0, "--ignore-eos", "--output-ids", "--dtype", "float32", "--threads", 1, "-tp", ranks,
                  "--max-num-batched-tokens", budget, "--kv-cache-memory", 1 << 24)
    found = [int(t) for t in text.strip().split(",")]
    if found != wanted:
        at = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b), min(len(found), len(wanted)))
        return "greedy token %d differs: %s, not %s" % (at, found[at:at + 4], wanted[at:at + 4])
    return None


def differences(options, model, config, ranks_most, folder):
    greedy = prompts_of(config)[1:]
    for ids in prompts_of(config):
        logits, tokens, gap = reference(model, ids, GREEDY if ids in greedy else 0)
        for ranks, budget in ((r, b) for r in (1, ranks_most) for b in BUDGETS):
            where = "%d ids, -tp %d, chunks of %d: " % (len(ids), ranks, budget)
            found = check_logits(options, folder, ids, logits, ranks, budget)
            if found:
                yield where + found
            if ids in greedy and gap > TIE and (ranks == 1) == (budget == 512):
                found = check_greedy(options, folder, ids, tokens, ranks, budget)
                if found:
                    yield where + found


def check(options, name, config, save, folder):
    """What differs; [] if nothing."""
    try:
        model = build(config, save, folder)
    except Exception as e:  # transformers does not take it
        return ["skipped: transformers: %s" % str(e).splitlines()[0][:200]]
    try:
        return list(differences(options, model, config, save.get("ranks", 2), folder))
    except Refused as e:
        return [str(e)]
    except RuntimeError as e:
        return ["skipped: transformers: %s" % str(e).splitlines()[0][:200]]


# ---------------------------------------------------------------- what the suite keeps

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
KEPT = """llama/dynamic llama/llama3-new llama/yarn-mscale llama/odd llama/act-gelu llama/act-relu llama/save-base mistral/window-8 ministral/none iquestcoder/none cwm/none cwm/types-missing ministral3/beta ministral3/save-whole-new
qwen2/window qwen3/yarn-new phi3/partial-0.6 phi3/longrope-new gemma2/caps mixtral/save-raw phimoe/none phimoe/longrope phimoe/save-raw qwen3_moe/save-raw qwen3_moe/sparse-step
afmoe/none afmoe/odd llama4_text/none llama4_text/odd llama4_text/save-whole mellum/none qwen2_moe/none qwen2_moe/dense-layer
qwen2_moe/no-qkv-bias gemma3_text/none gemma3_text/new-ropes granite/biases granite/none smollm3/none
smollm3/window granitemoe/attention-bias granitemoe/odd granitemoe/save-raw granitemoeshared/none granitemoeshared/odd granite_swa/none granitemoe_swa/types-missing olmo/none olmo/odd olmo/clip-bias olmoe/clip
hunyuan_v1_dense/none hunyuan_v1_dense/odd hunyuan_v1_moe/none hunyuan_v1_moe/as-saved olmo2/odd olmo3/yarn-full olmoe/top-1 exaone4/window exaone_moe/none exaone_moe/odd hy_v3/none hy_v3/odd hy_v3/save-raw seed_oss/mlp-bias gemma3_text/save-whole mistral/save-whole-new qwen3/save-whole-new qwen3_vl_moe_text/save-whole-new starcoder2/none
stablelm/qkv-bias stablelm/head-norms-parallel nemotron/odd arcee/none apertus/none phi/none cohere/biases cohere/head-norms cohere2/none cohere2_moe/none cohere2_moe/rms-norm glm4/none glm4_moe/groups glm4_moe/qk-norm glm4_moe/odd ernie4_5_moe/none ernie4_5_moe/interval
ernie4_5_moe/norm-min ernie4_5_moe/save-raw ernie4_5/biases
deepseek_v2/groups deepseek_v2/lite deepseek_v2/attention-bias deepseek_v3/yarn deepseek_v3/groups deepseek_v3/odd deepseek_v3/q-rank-null deepseek_v3/halves
axk1/groups axk1/choice-biases axk2/chosen-16 axk2/odd deepseek_v32/groups deepseek_v32/odd deepseek_v32/chosen-16 deepseek_v32/chosen-narrow glm_moe_dsa/shared-listed glm_moe_dsa/chosen-pattern sarvam_mla/none sarvam_mla/groups
glm4_moe_lite/listed minicpm3/none minicpm3/longrope
gemma3n_text/none gemma3n_text/streams-3-active gemma3n_text/odd gemma3n_text/save-whole-new
gemma4_text/none gemma4_text/untied gemma4_text/values gemma4_text/by-layer gemma4_text/odd gemma4_text/rope-half gemma4_text/small gemma4_text/small-keys
lfm2/old lfm2/bias lfm2/odd lfm2_moe/odd lfm3/none lfm3/no-gate lfm3/odd lfm3/save-raw qwen3_5_text/none qwen3_5_text/odd qwen3_5_text/save-whole qwen3_5_moe_text/none qwen3_next/odd
granite_mamba/experts granite_mamba/odd bamba/none falcon_h1/none falcon_h1/odd olmo_hybrid/none olmo_hybrid/odd nemotron_h/mlps-last nemotron_h/experts-narrow nemotron_h/odd
recurrent_gemma/none recurrent_gemma/attention-bias recurrent_gemma/odd minimax/none minimax/types-missing minimax/odd minimax_text_01/none jetmoe/none jetmoe/odd diffllama/none diffllama/odd
jamba/none jamba/odd mamba/none falcon_mamba/odd mamba2/none mamba2/odd zamba2/none zamba2/odd zamba2/untied
kimi_linear/layer-types kimi_linear/odd hyperclovax/none hyperclovax/no-post-norm sarvam_moe/none sarvam_moe/odd phi4mm/none phi4mm/odd mllama/none mllama/first-and-last exaone/llama3 exaone/odd bailing_moe/none bailing_moe/groups bailing_moe/odd
gemma4_text/small-odd gemma4_text/mixture gemma4_text/mixture-small gemma4_text/save-whole-new gemma4_unified_text/none gemma4_unified_text/odd gemma4_unified_text/save-whole-new
granitemoehybrid/none granitemoehybrid/no-positions vaultgemma/none helium/biases bitnet/none bitnet/odd jais2/none jais2/bias-missing minimax_m2/none minimax_m2/partial-new
minimax_m2/save-raw dots1/groups solar_open/none flex_olmo/none mistral4/beta mistral4/groups youtu/none minicpm/none minicpm/scales-missing mimo/none
gpt_oss/none gpt_oss/limit internlm2/none internlm2/odd internlm2/bias-mqa internlm3/qkv-bias internlm3/bias known/internlm2_5-7b-chat
gpt2/none gpt2/untied gpt2/odd gpt2/save-base opt/none opt/no-bias gpt_neox/none gpt_neox/sequential gpt_neox/no-bias gpt_neox/odd
nemotron-nas/none nemotron-nas/nothing-between nemotron-nas/odd nemotron-nas/linear deci/none orion/none orion/odd baichuan/none baichuan/odd-first qwen/none qwen/odd longcat_flash/none longcat_flash/odd
bloom/none bloom/odd-12 mpt/biases-clip mpt/positions mpt/odd-12 mpt/odd-gqa falcon_rw/newer falcon_rw/odd-12 gpt_neo/three gpt_neo/odd biogpt/none biogpt/odd xglm/none xglm/odd persimmon/none persimmon/odd baichuan/odd-alibi
falcon/none falcon/newer falcon/newer-one-norm falcon/odd-newer falcon/odd-older
gpt_bigcode/none gpt_bigcode/untied gpt_bigcode/odd-mha gptj/none gptj/odd codegen/none codegen/odd
known/llama-3.2-1b known/qwen2.5-0.5b known/qwen3-0.6b known/phi-4-mini known/gemma-2b known/gemma-2-2b
known/gemma-3-1b-it known/qwen3-coder-30b-a3b
aya_vision/cohere2-head-kept cohere2_vision/cohere2-hub glm4v/glm4v_text-odd glm4v_moe/glm4v_moe_text-groups idefics3/llama-older internvl/qwen3_moe-raw lfm2_vl/lfm2-old
llava/llama-few llava_next/mistral-hub llava_onevision/qwen2-tied-part ovis2/qwen2-raw perception_lm/llama-tied-part
exaone4_5/exaone4-hub glm46v/glm4v_moe_text-odd granite4_vision/granite4_vision_text-raw hyperclovax_vision_v2/hyperclovax-hub kimi_k25/deepseek_v3-hub lfm3_vl/lfm3-hub minicpmv4_6/qwen3_5_text-odd qianfan_ocr/qwen3-hub
glm_ocr/glm_ocr_text-odd granite_docling/granite_docling_text-hub paddleocr_vl/paddleocr_vl_text-odd qwen2_5_omni_thinker/qwen2_5_omni_text-talks qwen3_omni_moe_thinker/qwen3_omni_moe_text-talks
nanochat/none nanochat/odd apertus1p5_text/none apertus1p5_text/odd apertus1p5_text/save-whole
kolibri1/none kolibri1/odd kolibri1/no-norm muse_glimmer/muse_glimmer_text-hub muse_glimmer/muse_glimmer_text-odd
ernie4_5_vl_moe/ernie4_5_vl_moe_text-hub ernie4_5_vl_moe/ernie4_5_vl_moe_text-odd
laguna/none laguna/per-element laguna/odd laguna/save-raw
bailing_hybrid/none bailing_hybrid/q-rank bailing_hybrid/odd hy_v4/limit hy_v4/odd hy_v4/save-raw step3p5/none step3p5/odd step3p7/step3p5-raw hy_v4_vl/hy_v4_vl_text-raw""".split()


def kept_tensors(model, config, folder):
    """Of the checkpoint in `folder`: shape, amplitude, middle and, if these are not its own from the first on, where in
    which parameter's values it begins."""
    found = {}
    for name, t in sorted(load_file(folder / "model.safetensors").items()):
        if name.startswith("vision_tower.") or families_vision.has(config) and not families_vision.is_language(name):
            continue
        if name.endswith(("slope_rate", "query_decay", "key_decay", "diagonal_decay")):  # which follow from its sizes
            continue
        if families_standins.has(config):
            source = name.replace("model.language_model.", "model.")  # as part of a whole
            found[name] = [list(t.shape), *spread(source, t.shape, centre_of(config))] + ([] if source == name else [source, 0])
            continue
        source, first = None, 0
        for parameter, p in weights_of(model):
            flat, wanted = p.detach().flatten(), t.float().flatten()
            starts = range(0, len(flat) - len(wanted) + 1, len(wanted))
            first = next((at for at in starts if flat[at] == wanted[0] and torch.equal(flat[at:at + len(wanted)], wanted)),
                         None)
            if first is not None:
                source = parameter
                break
        amplitude, middle = spread(source, dict(weights_of(model))[source].shape, centre_of(config))
        found[name] = [list(t.shape), amplitude, middle] + ([] if (source, first) == (name, 0) else [source, first])
    return found


def keep(name, config, save, folder):
    model = build(config, save, folder)
    ids = prompts_of(config)[2][:45]
    logits, tokens, gap = reference(model, ids, 24)
    for count in range(45, 20, -1):  # a prompt whose answer is no coin's toss
        if gap > TIE:
            break
        ids = ids[:count]
        logits, tokens, gap = reference(model, ids, 24)
    return {"config": json.dumps(written(config, save)), "ranks": save.get("ranks", 2), "dtype": DTYPES[save.get("dtype", "float32")],
            "tensors": kept_tensors(model, config, folder), "ids": ids,
            "last_logits": [round(float(x), 5) for x in logits[-1]], "greedy": tokens}


def keep_all(path):
    kept = {}
    for name, _, config, save in all_cases():
        if name in KEPT:
            with tempfile.TemporaryDirectory() as scratch:
                kept[name] = keep(name, config, save, pathlib.Path(scratch) / "model")
    lines = ["%s: %s" % (json.dumps(n), json.dumps(kept[n], separators=(",", ":"))) for n in KEPT if n in kept]
    pathlib.Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print("%d of %d cases kept" % (len(kept), len(KEPT)))


def keep_device(path):
    """Models in bfloat16 of sizes that devices take: prompts, what follows, and how sure that is."""
    lines = []
    for name, config, save in [*families_cases.device_cases(), *families_gpt.device_cases(), *families_newer.device_cases(), *families_remote.device_cases(),
                               *families_unrotated.device_cases()]:
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch) / "model"
            model = build(config, {"dtype": "bfloat16", **save}, folder)
            kept = {"config": written(config, save), "tensors": kept_tensors(model, config, folder), "prompts": []}
        for ids in (prompts_of(config)[1], prompts_of(config)[2][:45]):
            margins = []
            logits, tokens, _ = reference(model, ids, 16, margins)
            kept["prompts"].append({"ids": ids, "output_ids": tokens, "margins": margins,
                                    "last_logits": [round(float(x), 4) for x in logits[-1]]})
        lines.append("%s: %s" % (json.dumps(name), json.dumps(kept, separators=(",", ":"))))
    pathlib.Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print("%d models kept" % len(lines))


def all_cases():
    yield from families_cases.cases()
    yield from families_gemma3n.cases()
    yield from families_gemma4.cases()
    yield from families_gpt.cases()
    yield from families_llama4.cases()
    yield from families_newer.cases()
    yield from families_further.cases()
    yield from families_newest.cases()
    yield from families_recurrent.cases()
    yield from families_mixers.cases()
    yield from families_remote.cases()
    yield from families_renamed.cases()
    yield from families_shortcut.cases()
    yield from families_unrotated.cases()
    yield from families_known.cases()
    yield from families_vision.cases()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tercet", default="build/client/cli/tercet")
    parser.add_argument("--only", default="", help="part of the names")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--keep", metavar="FILE", help="write the cases that the suite runs, compare nothing")
    parser.add_argument("--keep-device", metavar="FILE", help="write the models of tests/e2e/test_device_families.py")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    if options.keep:
        keep_all(options.keep)
        return 0
    if options.keep_device:
        keep_device(options.keep_device)
        return 0
    wrong = count = skipped = 0
    for name, _, config, save in all_cases():
        if options.only not in name:
            continue
        if options.list:
            print(name)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            found = check(options, name, config, save, pathlib.Path(scratch) / "model")
        count += 1
        if found and found[0].startswith("skipped"):
            skipped += 1
        elif found:
            wrong += 1
        for line in found[:3]:
            print("%s: %s" % (name, line), flush=True)
    print("%d cases, %d differ, %d skipped" % (count, wrong, skipped))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
