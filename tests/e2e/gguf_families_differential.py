#!/usr/bin/env python3
"""Small models of random weights (families_differential.py), written as files in GGUF the way llama.cpp's converter does it and computed by
transformers and by tercet, with one and several workers, whole prompts and chunks. By hand, with an interpreter that has torch and
transformers 5:

    gguf_families_differential.py [--tercet build/client/cli/tercet] [--only qwen3_next] [--type F16] [--list]

With --type matrices are of that type: values are rounded to what it holds before anything is computed of them. Prints a line a case; status
1 if one differs."""
import argparse
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "unit" / "proc_worker")]
import families_differential as families  # noqa: E402
import families_gpt  # noqa: E402
import torch  # noqa: E402

import gguf_files  # noqa: E402

# What the format has no value for, or no program that reads it computes.
NOT_HELD = {
    "lfm2/bias": "biases of convolutions", "lfm2/taps-5": "biases of convolutions", "lfm2/odd": "biases of convolutions",
    "lfm2/old": "fields of the first release", "lfm2/old-and-types": "fields of the first release",
    "lfm2_moe/bias": "biases of convolutions", "lfm2_moe/no-norm": "weights that are not normalized and a factor of theirs",
    "granite_mamba/steps": "time_step_limit", "granite_mamba/new-types": "a width that is to be known",
    "qwen3_next/no-norm": "weights that are not normalized",
    "gemma3n_text/act-gelu": "the activation", "gemma3n_text/unscaled": "scales that the model does not use",
    **dict.fromkeys(("gemma4_text/act-gelu", "gemma4_text/small-act-gelu", "gemma4_text/mixture-act-gelu"), "the activation"),
    **dict.fromkeys(("gemma4_text/rope-factor", "gemma4_text/rope-linear", "gemma4_text/rope-windows"), "scaled rotations, and windows' parts"),
    **dict.fromkeys(("gemma4_text/values", "gemma4_text/values-global"), "a number of heads that the model does not use"),
    **dict.fromkeys(("olmo3/act-gelu", "olmo3/act-gelu-tanh", "olmo3/act-gelu-new", "olmo3/act-relu"), "the activation"),
    **{name: "the activation, and a key of each head" for name, family, config, _ in families_gpt.cases() if family == "gpt_bigcode" and (
        not config.get("multi_query", True) or config.get("activation_function", "gelu_new") not in ("gelu_new", "gelu_pytorch_tanh"))},
    **dict.fromkeys(("gpt2/act-gelu", "gpt2/act-relu", "gpt_neox/act-relu", "gpt_neox/act-gelu-new", "gpt_neox/act-gelu-tanh"), "the activation"),
    **{name: "multipliers of its own" for name, family, config, _ in families.all_cases() if family == "minicpm3" and "dim_model_base" in config},
    "falcon_h1/norm-first": "norms before gates", "falcon_h1/steps": "time_step_limit",
    "falcon_h1/tied": "multipliers of embeddings and lm_head in one tensor",
    "gpt_neox/dynamic": "rotations that follow the length",
    **{name: "blocks one behind the other, keys of each head without a norm of its own, the activation, and scaled rotations"
       for name, family, config, _ in families_gpt.cases()
       if family == "falcon" and (not config.get("parallel_attn", True) or config.get("activation", "gelu") != "gelu" or (
           not config.get("multi_query", True) and not config.get("new_decoder_architecture")) or "dynamic" in name)},
    "mamba2/steps": "time_step_limit", "falcon_mamba/mixer-eps": "the epsilon of norms of step, key and query",
    "phi/act-gelu": "the activation", "phi/act-relu": "the activation", "phi/dynamic": "rotations that follow the length",
    "nemotron_h/silu": "the activation", "nemotron_h/experts-saved": "experts that no layer has", "nemotron_h/head-dim-missing": "a default",
    **dict.fromkeys(("nemotron_h/experts-last", "nemotron_h/experts-biases", "nemotron_h/experts-narrow-biases", "nemotron_h/odd"), "experts, and MLPs of another width"),
}
ONE_ACTIVATION = {*gguf_files.gguf_further.ALL, "command-r"}
NOT_HELD.update({
    **dict.fromkeys(("kimi_linear/heads-many", "kimi_linear/heads-wide", "kimi_linear/odd"), "as many heads of states as others, or their width"),
    **dict.fromkeys(("qwen/heads-wide", "qwen/heads-missing", "qwen/odd"), "how wide heads are"),
    **dict.fromkeys(("llama4_text/moe-listed", "llama4_text/all-dense", "llama4_text/rotates-listed", "llama4_text/rotates-nowhere", "llama4_text/rotates-everywhere"),
                    "layers by a list"),
    "llama4_text/interval": "which layers rotate", "llama4_text/bias-no-norm": "norms of queries and keys", "llama4_text/defaults": "a default",
    **dict.fromkeys(("baichuan/none", "baichuan/odd", "baichuan/save-sharded"), "lengths of rows, but for the vocabulary of the published models"),
    "baichuan/eps-missing": "a default", "mellum/no-norm": "weights that are not normalized",
    "cohere2_moe/softmax": "scores by a softmax", "cohere2_moe/no-norm": "sums that are not halved", "cohere2_moe/biases": "biases of attention",
    **dict.fromkeys(("cohere2_moe/act-gelu", "cohere2_moe/act-gelu-tanh", "cohere2_moe/act-gelu-new", "cohere2_moe/act-relu"), "the activation"),
    **dict.fromkeys(("mellum/act-gelu", "mellum/act-gelu-tanh", "mellum/act-gelu-new", "mellum/act-relu"), "the activation"), "mpt/scale": "the scale of scores",
    "kimi_linear/no-norm": "weights that are not normalized", "nemotron-nas/defaults": "a default", "bitnet/missing": "a default",
    "kimi_linear/layer-types": "layers by a list", "glm_moe_dsa/listed": "layers by a list", "deepseek_v32/listed": "layers by a list", "glm4_moe_lite/listed": "layers by a list",
    **{f + "/" + v: "rotations of halves, and what scores and rotations count apart from each other" for f in ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "youtu", "glm4_moe_lite", "mistral4")
       for v in ("halves", "yarn", "yarn-all-dim")},
    "bitnet/llama3": "rotations by factors",
    **dict.fromkeys(("deci/none", "deci/alike", "deci/odd", "deci/save-sharded", "bitnet/dynamic", "cohere/dynamic", "deepseek_v2/dynamic", "deepseek_v3/dynamic"), "rotations that follow the length"),
})

LONGROPE = {**next(c["rope_scaling"] for name, _, c, _ in families.all_cases() if name == "phimoe/longrope")}
LONGROPE["long_mscale"] = LONGROPE["short_mscale"]
# What readers of the format take for granted, in the place of what cases have.
SLIDING, FULL = "sliding_attention", "full_attention"
GRANTED = {**gguf_files.gguf_further.GRANTED, "afmoe": {"num_hidden_layers": 5, "global_attn_every_n_layers": 4, "layer_types": [SLIDING] * 3 + [FULL, SLIDING], "mup_enabled": True},
           "llama4_text/dense-between": {**gguf_files.gguf_further.GRANTED["llama4_text"], "use_qk_norm": True},
           "llama4_text/odd": {**gguf_files.gguf_further.GRANTED["llama4_text"], "interleave_moe_layer_step": 2},
           "phimoe/longrope": {"router_jitter_noise": 0.01, "rope_scaling": LONGROPE}}


def grid(values, kind):
    """To what both F16 and blocks of few bits hold: some 15 steps for each row's largest value."""
    if kind is None or values.ndim < 2:
        return values
    steps = 4 if kind.startswith("Q4") else 64 if kind == "Q8_0" else 512
    unit = 2.0 ** torch.floor(torch.log2(values.abs().max() / steps))
    return (values / unit).round() * unit


def run(options, name, config, save, folder):
    kind = None if options.type in (None, "BF16") else options.type
    plain = families.values
    families.values = lambda *a: grid(plain(*a), kind)
    try:
        model = families.build(config, {**save, "dtype": "bfloat16"} if options.type == "BF16" else save, folder / "plain")
    except Exception as e:  # transformers does not take it
        return "skipped: transformers: %s" % str(e).splitlines()[0][:200]
    finally:
        families.values = plain
    try:
        path = gguf_files.convert(folder / "plain", folder / "model.gguf", kind=kind)
    except KeyError as e:
        return "skipped: config.json leaves %s to be known" % e
    try:
        found = list(families.differences(options, model, config, save.get("ranks", 2), path))
    except families.Refused as e:
        return "DIFFERENT: " + str(e)
    return "DIFFERENT: " + "; ".join(found) if found else "the same"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tercet", default="build/client/cli/tercet")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names")
    parser.add_argument("--type", choices=["F16", "BF16", "Q8_0", "Q4_0", "Q4_K"])
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    families.logging.disable_progress_bar()
    bad = 0
    for name, _, config, save in families.all_cases():
        arch = gguf_files.ARCHITECTURES.get((config.get("architectures") or save.get("whole", {}).get("architectures"))[0])
        if not any(part in name for part in options.only) or not arch or "dtype" in save or "base" in save or ("raw" in save and arch != "qwen3vlmoe"):
            continue
        config = {**config, **GRANTED.get(name, GRANTED.get(name.split("/")[0], {}))}
        reason = NOT_HELD.get(name, "the activation" if "/act-" in name and arch in ONE_ACTIVATION else "")
        if options.list or reason:
            print(name, reason)
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            said = run(options, name, config, save, pathlib.Path(folder))
        bad += said.startswith("DIFFERENT")
        print("%s: %s" % (name, said), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
