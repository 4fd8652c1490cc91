"""Times of transformers' LlamaForCausalLM on the device: peers_torch.py SHAPE SECONDS. JSON lines; 77 where torch,
transformers or a device is missing."""
import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import time

STEPS = 12
CASES = [("decode", 1, 1024), ("prefill", 512, 512), ("prefill", 2048, 2048), ("decode", 8, 1024), ("prefill", 8192, 8192),
         ("decode", 64, 1024)]


def skip(reason):
    print(reason)
    sys.exit(77)


def shapes():
    path = str(pathlib.Path(__file__).resolve().parents[1] / "make-checkpoint")
    loader = importlib.machinery.SourceFileLoader("make_checkpoint", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("make_checkpoint", loader))
    loader.exec_module(module)
    return {name: {**module.COMMON, **shape} for name, shape in module.SHAPES.items()}


def make_model(torch, transformers, config):
    config = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "torch_dtype")}
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).to(torch.bfloat16)
    model = model.to_empty(device="cuda")
    with torch.device("cuda"):  # its tables are computed, not loaded
        model.model.rotary_emb = model.model.rotary_emb.__class__(config=model.config)
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.data.fill_(1)
        else:
            weight.data.normal_(0, weight.shape[1] ** -0.5)
    return model.eval()


def timed(torch, call):
    torch.cuda.synchronize()
    begin = time.monotonic()
    call()
    torch.cuda.synchronize()
    return 1000 * (time.monotonic() - begin)


def decode(torch, model, batch, context):
    """Milliseconds a step behind `context` tokens a row."""
    ids = torch.randint(10, 3000, (batch, context), device="cuda")
    cache = None
    for row in range(0, context, 256):  # in pieces, for the memory of activations
        out = model(input_ids=ids[:, row:row + 256], past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
    state = {"token": out.logits[:, -1:].argmax(-1)}

    def steps():
        for _ in range(STEPS):
            answer = model(input_ids=state["token"], past_key_values=cache, use_cache=True)
            state["token"] = answer.logits[:, -1:].argmax(-1)
    steps()
    return timed(torch, steps) / STEPS


def prefill(torch, model, tokens):
    ids = torch.randint(10, 3000, (1, tokens), device="cuda")

    def run():
        model(input_ids=ids, use_cache=True, logits_to_keep=1)
    run()
    return min(timed(torch, run) for _ in range(3))


def main():
    name, end = sys.argv[1], time.monotonic() + float(sys.argv[2])
    try:
        import torch  # pylint: disable=import-outside-toplevel
        import transformers  # pylint: disable=import-outside-toplevel
    except ImportError as missing:
        skip("no %s in this python" % missing.name)
    if not torch.cuda.is_available():
        skip("torch sees no device")
    with torch.inference_mode():
        model = make_model(torch, transformers, shapes()[name])
        for what, size, context in CASES:
            if time.monotonic() > end:
                break
            try:
                ms = decode(torch, model, size, context) if what == "decode" else prefill(torch, model, size)
            except torch.cuda.OutOfMemoryError:
                continue
            print(json.dumps({"bench": "transformers", "model": name, "what": what, "size": size, "context": context,
                              "ms": round(ms, 3), "torch": torch.__version__, "transformers": transformers.__version__}),
                  flush=True)


if __name__ == "__main__":
    main()
