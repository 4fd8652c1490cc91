#!/usr/bin/env python3
"""Train a small Llama-architecture story model on the CPU and save it as a Hugging Face model directory.

    train_demo.py --corpus stories.txt --out demo --minutes 60

Needs PyTorch (1.13 or later), NumPy and `regex`. The directory must already hold tokenizer.json and
tokenizer_config.json (see train_tokenizer.py). The learning rate follows the clock rather than a step count, so
that the schedule ends when the time is up; a checkpoint is written every ten minutes and picked up on a restart.
`--init demo` goes on from the weights of a finished run, with a new schedule.
"""
import argparse, json, math, os, random, struct, time

import numpy as np
import regex
import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4096, "hidden_size": 256,
    "intermediate_size": 704, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": True, "attention_bias": False,
    "mlp_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True,
    "bos_token_id": 4091, "eos_token_id": 4092, "torch_dtype": "bfloat16", "transformers_version": "4.46.0"}


# ------------------------------------------------------------------------------------------------ tokenizer
class Tokenizer:
    """Just enough of tokenizer.json (byte-level BPE with a Split regex) to prepare training data."""

    def __init__(self, path):
        j = json.load(open(path, encoding="utf-8"))
        self.vocab = j["model"]["vocab"]
        self.rank = {tuple(m.split(" ")): i for i, m in enumerate(j["model"]["merges"])}
        self.pattern = regex.compile(j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"])
        self.special = {t["content"]: t["id"] for t in j["added_tokens"]}
        self.names = {i: t for t, i in {**self.vocab, **self.special}.items()}
        plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
        rest = [b for b in range(256) if b not in plain]
        self.byte = {**{b: chr(b) for b in plain}, **{b: chr(256 + k) for k, b in enumerate(rest)}}
        self.unbyte = {c: b for b, c in self.byte.items()}
        self.cache = {}

    def word(self, w):
        parts = [self.byte[b] for b in w.encode("utf-8")]
        while len(parts) > 1:
            best = min(zip(parts, parts[1:]), key=lambda p: self.rank.get(p, 1 << 30))
            if best not in self.rank:
                break
            out, i = [], 0
            while i < len(parts):
                if i + 1 < len(parts) and (parts[i], parts[i + 1]) == best:
                    out.append(parts[i] + parts[i + 1])
                    i += 2
                else:
                    out.append(parts[i])
                    i += 1
            parts = out
        return [self.vocab[p] for p in parts]

    def encode(self, text):
        ids = []
        for m in self.pattern.finditer(text):
            w = m.group()
            if w not in self.cache:
                self.cache[w] = self.word(w)
            ids += self.cache[w]
        return ids

    def decode(self, ids):
        out = bytearray()
        for i in ids:
            t = self.names[int(i)]
            out += t.encode("utf-8") if t in self.special else bytes(self.unbyte[c] for c in t)
        return out.decode("utf-8", "replace")


# ------------------------------------------------------------------------------------------------ data
SUBJECTS = """king queen prince princess wolf fox bear lion tiger horse dog cat bird fish frog snake dragon giant witch fairy
dwarf ogre castle palace forest garden river sea mountain island ship boat house cottage mill farm school train bridge well
golden silver ring sword crown apple rose tree flower snow winter summer storm moon star fire gold treasure boy girl mother
father brother sister daughter son grandmother uncle doctor soldier fisherman tailor shoemaker miller merchant robber
giant's puppet rabbit mouse rat mole toad monkey elephant camel goat sheep cow pig hen goose duck eagle""".split()


class Stories:
    """Documents are separated by two blank lines; paragraphs by one. Each sample starts with <|begin_of_text|> at
    the beginning of a paragraph; a fifth of the samples are dressed as a chat: a request, then a passage."""

    def __init__(self, path, tok, context, documents=None, chat_share=0.2):
        docs = [d for d in open(path, encoding="utf-8").read().split("\n\n\n") if d.strip()][:documents]
        self.tok, self.context, self.chat_share = tok, context, chat_share
        s = tok.special
        self.bos, self.eos = s["<|begin_of_text|>"], s["<|end_of_text|>"]
        self.user, self.assistant, self.end = s["<|user|>"], s["<|assistant|>"], s["<|end|>"]
        self.newline = tok.encode("\n")
        enc = [[(p, np.array(tok.encode(p + "\n\n"), dtype=np.int64)) for p in d.split("\n\n")] for d in docs]
        self.valid = [d for i, d in enumerate(enc) if i % 25 == 12]
        self.train = [d for i, d in enumerate(enc) if i % 25 != 12]
        weight = np.array([sum(len(t) for _, t in d) for d in self.train], dtype=np.float64)
        self.prob = weight / weight.sum()
        self.tokens = int(weight.sum())

    def passage(self, doc, start, room):
        out, i = [], start
        while i < len(doc) and len(out) < room:
            out.extend(doc[i][1])
            i += 1
        return out[:room], i >= len(doc) and len(out) <= room

    def sample(self, rng, context):
        n = context + 1
        ids = []
        while len(ids) < n:
            doc = self.train[int(rng.choice(len(self.train), p=self.prob))]
            chat = rng.random() < self.chat_share
            start = 0 if rng.random() < (0.5 if chat else 0.1) else int(rng.integers(0, len(doc)))
            if chat:
                ids += self.chat(doc, start, rng)
            else:
                body, done = self.passage(doc, start, n - 1)
                ids += [self.bos] + body + ([self.eos] if done else [])
        return ids[:n]

    def chat(self, doc, start, rng):
        if rng.random() < 0.3 and start + 1 < len(doc):
            ask, start = "Continue this story: " + doc[start][0].replace("\n", " "), start + 1
        else:
            ask = None
        room = int(rng.integers(60, 340))
        size, i = 0, start
        while i < len(doc) and (size < 50 or size + len(doc[i][1]) < room):
            size, i = size + len(doc[i][1]), i + 1
        if ask is None:
            words = set(regex.findall(r"[a-z]+", " ".join(p for p, _ in doc[start:i]).lower()))
            about = [w for w in SUBJECTS if w in words]
            if about and rng.random() < 0.8:
                w = about[int(rng.integers(0, len(about)))]
                ask = ("Tell me a story about %s %s." if rng.random() < 0.7 else "Please write about %s %s.") % ("an" if w[0] in "aeiou" else "a", w)
            else:
                ask = "Tell me a story."
        ask = self.tok.encode("\n" + ask)[:150]
        nl = self.newline
        text = self.tok.encode("\n\n".join(p for p, _ in doc[start:i]))
        return [self.bos, self.user] + ask + [self.end] + nl + [self.assistant] + nl + text + [self.end] + nl + [self.eos]

    def batch(self, tokens, rng, context):
        x = torch.tensor([self.sample(rng, context) for _ in range(tokens // context)], dtype=torch.long)
        return x[:, :-1], x[:, 1:]

    def valid_batches(self, size, limit):
        rows, n = [], self.context + 1
        for d in self.valid:
            ids = [self.bos] + [int(t) for _, p in d for t in p]
            for k in range(0, len(ids) - n, self.context - 1):
                rows.append([self.bos] + ids[max(k, 1):][: n - 1])
        rows = [r for r in rows if len(r) == n][:limit]
        for k in range(0, len(rows), size):
            x = torch.tensor(rows[k:k + size])
            yield x[:, :-1], x[:, 1:]


# ------------------------------------------------------------------------------------------------ model
class RMSNorm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.nh, self.nk, self.hd = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        h = c["hidden_size"]
        self.q_proj = nn.Linear(h, self.nh * self.hd, bias=False)
        self.k_proj = nn.Linear(h, self.nk * self.hd, bias=False)
        self.v_proj = nn.Linear(h, self.nk * self.hd, bias=False)
        self.o_proj = nn.Linear(self.nh * self.hd, h, bias=False)

    def forward(self, x, cos, sin, mask):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.nh, self.hd).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.nk, self.hd).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.nk, self.hd).transpose(1, 2)
        half = self.hd // 2
        turn = lambda z: z * cos + torch.cat((-z[..., half:], z[..., :half]), -1) * sin
        q, k = turn(q) * self.hd ** -0.5, turn(k)
        g = self.nh // self.nk
        if g > 1:
            k = k[:, :, None].expand(b, self.nk, g, t, self.hd).reshape(b, self.nh, t, self.hd)
            v = v[:, :, None].expand(b, self.nk, g, t, self.hd).reshape(b, self.nh, t, self.hd)
        a = torch.softmax(q @ k.transpose(-1, -2) + mask, -1)
        return self.o_proj((a @ v).transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), MLP(c)
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, *rope_and_mask):
        x = x + self.self_attn(self.input_layernorm(x), *rope_and_mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])


class Llama(nn.Module):
    """Module names match those of transformers' LlamaForCausalLM, so the state dict needs no renaming."""

    def __init__(self, c):
        super().__init__()
        self.model = Body(c)
        n, hd = c["max_position_embeddings"], c["head_dim"]
        f = 1.0 / c["rope_theta"] ** (torch.arange(0, hd, 2).float() / hd)
        a = torch.arange(n).float()[:, None] * f[None]
        a = torch.cat((a, a), -1)
        self.cos, self.sin = a.cos(), a.sin()
        self.mask = torch.full((n, n), float("-inf")).triu(1)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                std = c["initializer_range"]
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    std /= math.sqrt(2 * c["num_hidden_layers"])
                nn.init.normal_(p, 0.0, std)

    def forward(self, ids, last_only=False):
        t = ids.shape[1]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, self.cos[:t], self.sin[:t], self.mask[:t, :t])
        x = self.model.norm(x[:, -1:] if last_only else x)
        return x @ self.model.embed_tokens.weight.t()


# ------------------------------------------------------------------------------------------------ saving
def bf16_bits(t):
    u = t.detach().contiguous().float().numpy().view(np.uint32).astype(np.uint64)
    return (((u + 0x7FFF + ((u >> 16) & 1)) >> 16) & 0xFFFF).astype("<u2")


def save(model, out, config):
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, p in model.state_dict().items():
        b = bf16_bits(p).tobytes()
        header[name] = {"dtype": "BF16", "shape": list(p.shape), "data_offsets": [offset, offset + len(b)]}
        offset += len(b)
        blobs.append(b)
    h = json.dumps(header, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(out + "/model.safetensors.part", "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h)
        for b in blobs:
            f.write(b)
    os.replace(out + "/model.safetensors.part", out + "/model.safetensors")
    json.dump(config, open(out + "/config.json", "w"), indent=2)
    json.dump({"bos_token_id": config["bos_token_id"], "eos_token_id": [4092, 4095], "pad_token_id": 4092,
               "do_sample": True, "temperature": 0.6, "top_p": 0.9, "transformers_version": "4.46.0"},
              open(out + "/generation_config.json", "w"), indent=2)


def load(out):
    """The saved directory as a float32 model (its weights are the bf16 ones, exactly)."""
    config = json.load(open(out + "/config.json"))
    raw = open(out + "/model.safetensors", "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    state = {}
    for name, t in header.items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            u = np.frombuffer(raw[8 + n + a:8 + n + b], dtype="<u2").astype(np.uint32) << 16
            state[name] = torch.from_numpy(u.view(np.float32).reshape(t["shape"]).copy())
    model = Llama(config)
    model.load_state_dict(state)
    return model.eval(), config


# ------------------------------------------------------------------------------------------------ training
class Muon(torch.optim.Optimizer):
    """Momentum whose step is made (nearly) orthogonal by five Newton-Schulz iterations, for the weight matrices of
    the layers: it learns from about half as many tokens as AdamW, and tokens are what a small corpus is short of."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.1):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @staticmethod
    def orthogonal(g):
        x = g.bfloat16()
        tall = x.shape[0] > x.shape[1]
        x = x.t() if tall else x
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            a = x @ x.t()
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return (x.t() if tall else x).float()

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                u = self.orthogonal(p.grad.lerp(m, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(u, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


@torch.no_grad()
def evaluate(model, data, limit=160):
    model.eval()
    total = count = 0
    for x, y in data.valid_batches(16, limit):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
        total, count = total + float(loss), count + y.numel()
    model.train()
    return total / count


@torch.no_grad()
def generate(model, ids, n, temperature=0.0, stop=(), seed=0):
    g = torch.Generator().manual_seed(seed)
    ids, made = list(ids), []
    for _ in range(n):
        logits = model(torch.tensor([ids[-512:]]), last_only=True)[0, -1]
        if temperature == 0:
            i = int(logits.argmax())
        else:
            p = torch.softmax(logits / temperature, -1)
            top = torch.sort(p, descending=True)
            keep = top.values.cumsum(0) - top.values < 0.95
            q = torch.zeros_like(p)
            q[top.indices[keep]] = p[top.indices[keep]]
            i = int(torch.multinomial(q, 1, generator=g))
        if i in stop:
            break
        made.append(i)
        ids.append(i)
    return made


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--corpus", default="data/corpus/stories.txt")
    ap.add_argument("--documents", type=int, help="use only so many, from the first on (the corpus begins with 314 fairy tales)")
    ap.add_argument("--out", default="data/demo")
    ap.add_argument("--state", default="data/demo_state.pt", help="checkpoint for a restart")
    ap.add_argument("--init", help="model directory whose weights a new run begins with, instead of random ones")
    ap.add_argument("--minutes", type=float, default=60)
    ap.add_argument("--batch", type=int, default=4096, help="tokens a step")
    ap.add_argument("--short", type=float, default=0.7, help="share of the time spent on half the context")
    ap.add_argument("--lr", type=float, default=2e-3, help="peak rate of embedding and norms (AdamW)")
    ap.add_argument("--lr-matrices", type=float, default=0.015, help="peak rate of the layers' matrices (Muon)")
    ap.add_argument("--compile", action="store_true", help="torch.compile (PyTorch 2; needs a C++ compiler)")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--float32", action="store_true", help="no bfloat16 in the matrix products (slower)")
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    torch.set_num_threads(a.threads)
    rng = np.random.default_rng(a.seed)
    tok = Tokenizer(a.out + "/tokenizer.json")
    data = Stories(a.corpus, tok, CONFIG["max_position_embeddings"], a.documents)
    model = load(a.init)[0].train() if a.init else Llama(CONFIG)
    n_params = sum(p.numel() for p in model.parameters())
    print(f"{n_params:,} parameters; {data.tokens:,} training tokens in {len(data.train)} documents, "
          f"{len(data.valid)} documents held out", flush=True)
    matrices = [p for n, p in model.named_parameters() if p.dim() > 1 and "embed" not in n]
    embed = [p for n, p in model.named_parameters() if "embed" in n]
    plain = [p for p in model.parameters() if p.dim() == 1]
    adam = torch.optim.AdamW([{"params": embed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
                             lr=a.lr, betas=(0.9, 0.95), eps=1e-8)
    muon = Muon(matrices, a.lr_matrices)
    rates = [(g, g["lr"]) for o in (adam, muon) for g in o.param_groups]
    run = torch.compile(model, dynamic=False) if a.compile else model
    spent, step, log = 0.0, 0, []
    if os.path.exists(a.state):
        st = torch.load(a.state)
        model.load_state_dict(st["model"])
        adam.load_state_dict(st["adam"])
        muon.load_state_dict(st["muon"])
        spent, step, log = st["spent"], st["step"], st["log"]
        rng = np.random.default_rng(a.seed + step)
        print(f"resumed at step {step}, {spent / 60:.1f} min", flush=True)
    budget, begin, saved, shown, mean = a.minutes * 60, time.time() - spent, spent, spent, []
    while True:
        now = time.time() - begin
        if now >= budget:
            break
        share = min(1.0, (step + 1) / 150) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * now / budget)))
        lr = a.lr * share
        for g, peak in rates:
            g["lr"] = peak * share
        context = 256 if now < a.short * budget else 512
        x, y = data.batch(a.batch, rng, context)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not a.float32):
            logits = run(x)
        loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        adam.zero_grad(set_to_none=True)
        muon.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        muon.step()
        step += 1
        mean.append(float(loss.detach()))
        now = time.time() - begin
        if now - shown >= 60:
            print(f"{now / 60:6.1f} min  step {step:5d}  lr {lr:.2e}  train {np.mean(mean[-200:]):.4f}  "
                  f"{step * a.batch / now:,.0f} tokens/s overall", flush=True)
            shown = now
        if now - saved >= 600:
            v = evaluate(model, data)
            log.append({"minutes": round(now / 60, 1), "step": step, "train": float(np.mean(mean[-200:])), "valid": v})
            print("    valid", round(v, 4), flush=True)
            save(model, a.out, CONFIG)
            saved = time.time() - begin
            torch.save({"model": model.state_dict(), "adam": adam.state_dict(), "muon": muon.state_dict(), "spent": saved, "step": step, "log": log}, a.state)
    save(model, a.out, CONFIG)
    final, _ = load(a.out)
    v = evaluate(final, data, limit=10 ** 9)
    log.append({"minutes": round((time.time() - begin) / 60, 1), "step": step, "train": float(np.mean(mean[-200:])), "valid": v,
                "note": "the saved bf16 weights, all held-out windows"})
    json.dump({"parameters": n_params, "steps": step, "batch_tokens": a.batch, "context": [256, 512], "lr": a.lr, "train_tokens": data.tokens,
               "tokens_seen": step * a.batch, "log": log}, open(a.out + "/training_log.json", "w"), indent=1)
    print("final", log[-1], flush=True)
    for k, p in enumerate(["Once upon a time", "There was once a little girl who", "The old king", "\"Come in,\" said the fox,", "One day in winter"]):
        print("---", tok.decode([*tok.encode(p), *generate(final, [data.bos] + tok.encode(p), 120, 0.8, (data.eos,), k)]), flush=True)


if __name__ == "__main__":
    main()
