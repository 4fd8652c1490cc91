"""What an engine that computes in bfloat16 has to say: the tokens of a float reference wherever that one is sure, and the
CPU backend's continuations as far as those are. Used by test_device.py and tools/gpu-check."""
import concurrent.futures
import json
import pathlib

import engine as engines

# Below this distance between the best logit and the second, rounding to bfloat16 may exchange them.
MARGIN = 0.15
# Reference models have random weights and so larger logits: in bfloat16 their log-probabilities are 0.035 off on the average,
# on a device as on the CPU, and one token of a thousand that is sure by more than 0.15 comes out otherwise (docs/GPU.md,
# Exactness). Between two experts that are nearly equal a router decides by the last bits, and then nothing is sure: 1.3 % of
# the tokens of mixtures come out otherwise, several at a time.
REFERENCE_MARGIN = 0.2
EXPERTS_WRONG = 0.04


def read_reference(path):
    """[{ids, output_ids, margins}] of a reference of demo/ or of shared/data/refmodels."""
    prompts = json.loads(pathlib.Path(path).read_text())["prompts"]
    return [{"ids": p["ids"], "output_ids": p.get("output_ids") or p["greedy"],
             "margins": p.get("margins") or p["greedy_margins"]} for p in prompts]


def reference_models(folder):
    """{name: (model, reference)} of the models below shared/data/refmodels; empty where that is not."""
    folder = pathlib.Path(folder)
    return {p.name: (p, p / "reference.json") for p in sorted(folder.glob("*")) if (p / "reference.json").exists()}


def ranks(api, ids, output_ids):
    """Rank of each output among all tokens behind the ones before it, all in one request."""
    reply = api.completions(ids + output_ids, max_tokens=1, temperature=0, prompt_logprobs=1)
    listed = reply["choices"][0]["prompt_logprobs"]
    assert listed[0] is None and len(listed) == len(ids) + len(output_ids)
    return [listed[len(ids) + k][str(token)]["rank"] for k, token in enumerate(output_ids)]


def likelihood(api, ids, output_ids):
    """Of the outputs together, as a logarithm."""
    reply = api.completions(ids + output_ids, max_tokens=1, temperature=0, prompt_logprobs=1)
    listed = reply["choices"][0]["prompt_logprobs"]
    return sum(listed[len(ids) + k][str(token)]["logprob"] for k, token in enumerate(output_ids))


def sure_tokens(api, prompts, margin=MARGIN):
    """Teacher-forced: (tokens that the reference is sure of, those of them that the engine ranks otherwise)."""
    sure, wrong = 0, []
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for p, got in [(p, pool.submit(ranks, api, p["ids"], p["output_ids"])) for p in prompts]:
            for k, (rank, far) in enumerate(zip(got.result(), p["margins"])):
                sure += far > margin
                if far > margin and rank != 1:
                    wrong.append("prompt %s..., token %d: rank %d, margin %.3f" % (p["ids"][:4], k, rank, far))
    return sure, wrong


def experts_wrong(model):
    """Share of the sure tokens of a reference model that may be others."""
    return EXPERTS_WRONG if "moe" in model or "mixtral" in model else 0


def continuation(api, ids, count, **fields):
    """Greedy tokens, and how far each was from the second best."""
    reply = api.completions(ids, temperature=0, max_tokens=count, ignore_eos=True, return_token_ids=True, logprobs=2,
                            return_tokens_as_token_ids=True, **fields)["choices"][0]
    best = [sorted(top.values(), reverse=True)[:2] for top in reply["logprobs"]["top_logprobs"]]
    return reply["token_ids"], [b[0] - b[1] for b in best]


def same_as_far_as_sure(got, wanted, margins, margin=MARGIN):
    """None, or where `got` leaves `wanted` although that was sure. Behind a place that was not sure both may go on as they
    like."""
    for k, (token, right, far) in enumerate(zip(got, wanted, margins)):
        if token != right:
            return None if far <= margin else "token %d is %d, should be %d (margin %.3f)" % (k, token, right, far)
    return None if len(got) == len(wanted) else "%d tokens, should be %d" % (len(got), len(wanted))


def together(api, requests):
    """[(ids, count, fields)] all at once: their greedy tokens."""
    with concurrent.futures.ThreadPoolExecutor(max(len(requests), 1)) as pool:
        return [r.result() for r in [pool.submit(api.greedy_ids, ids, count, **fields)
                                     for ids, count, fields in requests]]


def noise(api, k):
    """Something else for the batch: sampled, of another length, with other features. Gives the number of its tokens."""
    reply = api.completions("Noise %d" % k, max_tokens=4 + k, temperature=1.0, seed=k, ignore_eos=True,
                            frequency_penalty=0.3 if k % 2 else 0, logprobs=k % 3)
    return reply["usage"]["completion_tokens"]


def demo_prompts():
    return read_reference(engines.DEMO / "reference.json")
