"""Makes beam_reference.json: beam searches computed by torch in float32, for test_beams.py. Needs torch and transformers;
run it again only when a case is added:

    make_beam_reference.py OUTPUT NAME=MODEL_DIR ...

The rule is written down here once more, from vLLM's: every beam offers its 2 * width best tokens, those that end it make
an answer, the width best of the others go on, for all of max_tokens; answers and what is left are ordered by
sum / length ** length_penalty with the length of prompt and answer without its end-of-sequence token. Where that rule is
also Hugging Face's (no end-of-sequence token, no length), the sequences are compared with generate(num_beams=...)."""
import json
import sys

import torch
import transformers

# prompt, width, max_tokens, length_penalty, ignore_eos
CASES = [
    ("Once upon a time", 1, 12, 1.0, True),
    ("Once upon a time", 2, 24, 0.0, True),
    ("Once upon a time", 4, 40, 1.0, True),
    ("The old man said", 8, 20, 0.0, True),
    ("The old man said", 10, 16, 1.0, True),
    ("and they lived happily ever after.", 4, 30, 1.0, False),
    ("and they lived happily ever after.", 4, 30, -1.0, False),
    ("and they lived happily ever after.", 3, 60, 2.0, False),
]
IDS = [[1 + (7 * i * i + 3 * k) % 100 for i in range(9 + k)] for k in range(3)]


def log_probs(model, beams):
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor(beams)).logits[:, -1].double(), -1)


def search(model, prompt, width, max_tokens, length_penalty, eos):
    live, answers = [(0.0, list(prompt))], []
    for _ in range(max_tokens):
        best, ids = log_probs(model, [tokens for _, tokens in live]).topk(2 * width, -1)
        candidates = []
        for beam, (total, tokens) in enumerate(live):
            for value, token in zip(best[beam].tolist(), ids[beam].tolist()):
                candidates.append((total + value, beam, token))
        candidates.sort(key=lambda c: (-c[0], c[1], c[2]))
        answers += [(total, live[beam][1] + [token]) for total, beam, token in candidates if token in eos]
        live = [(total, live[beam][1] + [token]) for total, beam, token in candidates if token not in eos][:width]
    answers += live
    def score(answer):
        return answer[0] / (len(answer[1]) - (answer[1][-1] in eos)) ** length_penalty
    answers.sort(key=score, reverse=True)
    gaps = [score(a) - score(b) for a, b in zip(answers, answers[1:width + 1])]
    return [(total, tokens[len(prompt):]) for total, tokens in answers[:width]], min(gaps, default=1.0)


def hugging_face(model, prompt, width, max_tokens):
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), num_beams=width, num_return_sequences=width,
                         do_sample=False, max_new_tokens=max_tokens, min_new_tokens=max_tokens, length_penalty=0.0,
                         early_stopping="never", eos_token_id=None, pad_token_id=0, temperature=None, top_p=None, top_k=None)
    return [row[len(prompt):] for row in out.tolist()]


def cases_of(name, folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    eos = model.generation_config.eos_token_id
    eos = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if name == "demo":
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        wanted = [(tokenizer.encode(text), *rest) for text, *rest in CASES]
    else:
        wanted = [(ids, 2 + 2 * k, 12, k / 2, True) for k, ids in enumerate(IDS)]
    for prompt, width, max_tokens, length_penalty, ignore_eos in wanted:
        answers, gap = search(model, prompt, width, max_tokens, length_penalty, [] if ignore_eos else eos)
        if ignore_eos:
            theirs = hugging_face(model, prompt, width, max_tokens)
            assert theirs == [tokens for _, tokens in answers], (name, width, theirs, answers)
        print(name, width, max_tokens, length_penalty, "smallest gap between scores", gap, file=sys.stderr)
        yield {"model": name, "prompt": prompt, "n": width, "max_tokens": max_tokens, "length_penalty": length_penalty,
               "ignore_eos": ignore_eos, "hugging_face": ignore_eos,
               "answers": [{"sum": round(total, 6), "stopped": not ignore_eos and tokens[-1] in eos, "token_ids": tokens} for total, tokens in answers]}


def main():
    made = [case for argument in sys.argv[2:] for case in cases_of(*argument.split("=", 1))]
    with open(sys.argv[1], "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(case) for case in made) + "\n]\n")


main()
