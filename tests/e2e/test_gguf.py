"""Models in the format of ggml: files written here, block by block as the types are published, beside a config.json by hand; compared
with plain checkpoints of the values that they stand for (gguf_differential.py: with the library's own)."""
import json
import random
import shutil
import struct

import pytest

import gguf_lattices
from device_models import ENVIRONMENT as DEVICE
from engine import DEMO, SANITIZED, run
from lora_files import Adapter, read_safetensors
from quantized_files import E2M1, floats, half_bytes, halves, to_float, to_half, write_safetensors

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB = 256, 4, 2, 64, 256, 64
IDS = "5,17,3,60,33,8,41"
PORTABLE = {"TERCET_KERN_CAPS": "none"}  # inputs of products are not rounded there

# ---------------------------------------------------------------- blocks: a generator of numbers -> bytes, values


def two_rows(codes):
    """The first half in the low halves of bytes, the second in the high ones."""
    half = len(codes) // 2
    return bytes(codes[i] | codes[half + i] << 4 for i in range(half))


def some(rng, count, top):
    return [rng.randrange(top) for _ in range(count)]


def scale(rng, spread):
    return to_half(rng.uniform(0.5, 1) * 0.25 / spread)


def older(bits, least):
    def make(rng):
        top = 1 << bits
        d, m, codes = scale(rng, top), scale(rng, 2) * -1 if least else 0, some(rng, 32, top)
        raw = halves([d, m] if least else [d])
        if bits == 5:
            raw += struct.pack("<I", sum((c >> 4) << i for i, c in enumerate(codes)))
        return raw + two_rows([c & 15 for c in codes]), [d * c + m if least else d * (c - top // 2) for c in codes]
    return make


def q8_0(rng):
    d, codes = scale(rng, 256), [c - 128 for c in some(rng, 32, 256)]
    return halves([d]) + struct.pack("32b", *codes), [d * c for c in codes]


def pairs_of_bits(codes):
    """Of 128 neighbours those that are 32 apart in a byte."""
    return bytes(sum((codes[side + run * 32 + i] & 3) << 2 * run for run in range(4)) for side in (0, 128) for i in range(32))


def q2_k(rng):
    d, dmin, scales, mins, codes = scale(rng, 48), scale(rng, 24), some(rng, 16, 16), some(rng, 16, 16), some(rng, 256, 4)
    raw = bytes(s | m << 4 for s, m in zip(scales, mins)) + pairs_of_bits(codes) + halves([d, dmin])
    return raw, [d * scales[i // 16] * c - dmin * mins[i // 16] for i, c in enumerate(codes)]


def q3_k(rng):
    d, scales, codes = scale(rng, 128), some(rng, 16, 64), some(rng, 256, 8)
    high = bytes(sum((codes[run * 32 + i] >> 2) << run for run in range(8)) for i in range(32))
    packed = bytes(scales[i] & 15 | (scales[8 + i] & 15) << 4 for i in range(8))
    packed += bytes(sum((scales[run * 4 + i] >> 4) << 2 * run for run in range(4)) for i in range(4))
    return high + pairs_of_bits(codes) + packed + halves([d]), [d * (scales[i // 16] - 32) * (c - 4) for i, c in enumerate(codes)]


def k_scales(scales, mins):
    return (bytes(scales[i] | scales[4 + i] >> 4 << 6 for i in range(4)) + bytes(mins[i] | mins[4 + i] >> 4 << 6 for i in range(4)) +
            bytes(scales[4 + i] & 15 | (mins[4 + i] & 15) << 4 for i in range(4)))


def k_type(bits):
    def make(rng):
        top = 1 << bits
        d, dmin, scales, mins, codes = scale(rng, 64 * top), scale(rng, 128), some(rng, 8, 64), some(rng, 8, 64), some(rng, 256, top)
        raw = halves([d, dmin]) + k_scales(scales, mins)
        if bits == 5:
            raw += bytes(sum((codes[run * 32 + i] >> 4) << run for run in range(8)) for i in range(32))
        raw += b"".join(two_rows([c & 15 for c in codes[i:i + 64]]) for i in range(0, 256, 64))
        return raw, [d * scales[i // 32] * c - dmin * mins[i // 32] for i, c in enumerate(codes)]
    return make


def q6_k(rng):
    d, scales, codes = scale(rng, 32 * 128), [s - 128 for s in some(rng, 16, 256)], some(rng, 256, 64)
    low = b"".join(two_rows([c & 15 for c in codes[i:i + 128]]) for i in (0, 128))
    raw = low + pairs_of_bits([c >> 4 for c in codes]) + struct.pack("16b", *scales) + halves([d])
    return raw, [d * scales[i // 16] * (c - 32) for i, c in enumerate(codes)]


IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def iq4_nl(rng):
    d, codes = scale(rng, 128), some(rng, 32, 16)
    return halves([d]) + two_rows(codes), [d * IQ4[c] for c in codes]


def iq4_xs(rng):
    d, scales, codes = scale(rng, 32 * 128), some(rng, 8, 64), some(rng, 256, 16)
    high = sum((s >> 4) << 2 * i for i, s in enumerate(scales))
    raw = halves([d]) + struct.pack("<H", high) + half_bytes([s & 15 for s in scales])
    raw += b"".join(two_rows(codes[i:i + 32]) for i in range(0, 256, 32))
    return raw, [d * (scales[i // 32] - 32) * IQ4[c] for i, c in enumerate(codes)]


def mxfp4(rng):
    power, codes = rng.randrange(121, 124), some(rng, 32, 16)
    return bytes([power]) + two_rows(codes), [2.0 ** (power - 127) * E2M1[c] for c in codes]


def number(pack):
    def make(rng):
        x = to_half(rng.uniform(-0.2, 0.2))
        return pack([x]), [x]
    return make


def bf16(rng):
    x = struct.unpack("<f", b"\0\0" + floats([rng.uniform(-0.2, 0.2)])[2:])[0]
    return floats([x])[2:], [x]


# number in the file, elements of a block, how one is made
TYPES = {"F32": (0, 1, number(floats)), "F16": (1, 1, number(halves)), "BF16": (30, 1, bf16), "Q4_0": (2, 32, older(4, False)),
         "Q4_1": (3, 32, older(4, True)), "Q5_0": (6, 32, older(5, False)), "Q5_1": (7, 32, older(5, True)), "Q8_0": (8, 32, q8_0),
         "Q2_K": (10, 256, q2_k), "Q3_K": (11, 256, q3_k), "Q4_K": (12, 256, k_type(4)), "Q5_K": (13, 256, k_type(5)),
         "Q6_K": (14, 256, q6_k), "IQ4_NL": (20, 32, iq4_nl), "IQ4_XS": (23, 256, iq4_xs), "MXFP4": (39, 32, mxfp4),
         **gguf_lattices.TYPES}
QUANTIZED = [name for name in TYPES if name not in ("F32", "F16", "BF16")]

# ---------------------------------------------------------------- files


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def write_gguf(path, architecture, tensors, values=()):
    """`tensors`: name -> (type's number, shape, bytes); `values`: further ones, by 32 bits each."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1 + len(values)) + text("general.architecture") + struct.pack("<I", 8) + text(architecture)
    for key, value in dict(values).items():
        header += text(key) + struct.pack("<II", 4, value)
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        header += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        header += struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % 32)
    path.write_bytes(header + bytes(-len(header) % 32) + data)


class Model:
    """Tensors of a GGUF file, and those of a plain checkpoint of the same values."""

    def __init__(self, architecture, name, seed=0, **config):
        self.rng, self.architecture = random.Random(seed), architecture
        self.file, self.plain = {}, {}
        self.config = {"architectures": [name], "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 1,
                       "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "max_position_embeddings": 128,
                       "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", **config}

    def matrix(self, kind, file, plain, rows, columns=HIDDEN, heads=0, experts=0):
        """`heads`: the rows of the halves that rotate take turns in the file. `experts`: so many matrices in one. `plain`: a name, or
        the names of all experts."""
        number_of, elements, make = TYPES[kind]
        blocks = [[make(self.rng) for _ in range(columns // elements)] for _ in range(16)]  # rows to choose from
        pool = [(b"".join(raw for raw, _ in row), [x for _, values in row for x in values]) for row in blocks]
        chosen = [pool[self.rng.randrange(16)] for _ in range(rows * max(experts, 1))]
        self.file[file] = (number_of, (experts, rows, columns) if experts else (rows, columns), b"".join(raw for raw, _ in chosen))
        if heads:
            width = rows // heads
            chosen = [chosen[h * width + 2 * i + side] for h in range(heads) for side in (0, 1) for i in range(width // 2)]
        for x in range(max(experts, 1)):
            part = chosen[x * rows:(x + 1) * rows]
            self.plain[plain % x if experts else plain] = ("F32", (rows, columns), b"".join(floats(values) for _, values in part))

    def vector(self, file, plain, count=HIDDEN, middle=1.0, offset=0.0):
        values = [to_half(self.rng.uniform(middle - 0.1, middle + 0.1)) for _ in range(count)]
        self.file[file] = (0, (count,), floats([to_float(x + offset) for x in values]))
        self.plain[plain] = ("F32", (count,), floats(values))

    def ends(self, embed="F16", head="F16", offset=0.0, tied=False):
        self.matrix(embed, "token_embd.weight", "model.embed_tokens.weight", VOCAB)
        self.vector("output_norm.weight", "model.norm.weight", offset=offset)
        if not tied:
            self.matrix(head, "output.weight", "lm_head.weight", VOCAB)

    def attention(self, kind, permuted=False, names=("q", "k", "v"), kinds=None):
        for name, heads in zip(names, (HEADS, KV_HEADS, KV_HEADS)):
            self.matrix((kinds or {}).get(name, kind), "blk.0.attn_%s.weight" % name, "model.layers.0.self_attn.%s_proj.weight" % name,
                        heads * HEAD_DIM, heads=heads if permuted and name != "v" else 0)
        self.matrix(kind, "blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight", HIDDEN, HEADS * HEAD_DIM)

    def mlp(self, kind, down=None):
        for name in ("gate", "up"):
            self.matrix(kind, "blk.0.ffn_%s.weight" % name, "model.layers.0.mlp.%s_proj.weight" % name, INNER)
        self.matrix(down or kind, "blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight", HIDDEN, INNER)

    def norms(self, *pairs, offset=0.0):
        for file, plain in pairs or (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")):
            self.vector("blk.0.%s.weight" % file, "model.layers.0.%s.weight" % plain, offset=offset)

    def experts(self, kind, stem, names, count=4, width=256):
        for name, plain in zip(("gate", "up", "down"), names):
            rows, columns = (HIDDEN, width) if name == "down" else (width, HIDDEN)
            self.matrix(kind, "blk.0.ffn_%s_exps.weight" % name, "model.layers.0.%s.experts.%%d.%s.weight" % (stem, plain), rows, columns,
                        experts=count)
        self.matrix("F32", "blk.0.ffn_gate_inp.weight", "model.layers.0.%s.gate.weight" % stem, count)

    def write(self, folder, permuted=False):
        config = {**self.config, "quantization_config": {"quant_method": "gguf"}, **({"rope_interleave": True} if permuted else {})}
        for name, fields in (("plain", self.config), ("gguf", config)):
            (folder / name).mkdir()
            (folder / name / "config.json").write_text(json.dumps(fields))
        write_safetensors(folder / "plain" / "model.safetensors", self.plain)
        write_gguf(folder / "gguf" / "model.gguf", self.architecture, self.file)
        return folder / "plain", folder / "gguf"


def llama(kind, down=None, embed="F16", head=None, kinds=None, tied=False, **config):
    m = Model("llama", "LlamaForCausalLM", kind, **config)
    m.ends(embed, head or kind, tied=tied)
    m.norms()
    m.attention(kind, permuted=True, kinds=kinds)
    m.mlp(kind, down)
    return m


def logits(model, *flags, dtype="float32", env=None):
    status, output = run("logits", "--model", model, "--ids", IDS, "--top", 0, "--dtype", dtype, "--threads", 1, *flags, env=env)
    assert status == 0, output
    return json.loads(output.strip().splitlines()[-1])["logits"]


def distance(a, b):
    assert len(a) == len(b) == VOCAB
    return max(abs(x - y) for x, y in zip(a, b))


def expect_the_same(plain, file, *flags):
    wanted = logits(plain)
    spread = max(wanted) - min(wanted)
    assert spread > 1
    assert distance(logits(file, *flags, env=PORTABLE), wanted) < 1e-3
    assert distance(logits(file, *flags, dtype="bfloat16"), wanted) < 0.05 * spread


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "MXFP4", "IQ1_M", "IQ2_XS", "IQ3_S", "TQ1_0"] if SANITIZED else TYPES)
def test_types_compute_what_they_stand_for(kind, tmp_path):
    expect_the_same(*llama(kind, embed=kind).write(tmp_path, permuted=True))


@pytest.mark.parametrize("kind,down", [("Q4_K", "Q6_K"), ("Q4_0", "Q8_0")])
def test_ranks_may_divide_blocks(kind, down, tmp_path):
    expect_the_same(*llama(kind, down, embed="Q6_K", kinds={"v": down}).write(tmp_path, permuted=True), "--tensor-parallel-size", 2)


def test_scales_for_all_of_a_matrix_multiply_it(tmp_path):
    """NVFP4 has them beside its blocks."""
    m, scales = llama("NVFP4", embed="F16", head="F16"), {}
    for name in [name for name, (kind, _, _) in m.file.items() if kind == 40]:
        scales[name] = to_half(m.rng.uniform(0.5, 2))
        m.file[name.replace(".weight", ".scale")] = (0, (1,), floats([scales[name]]))
        m.file[name.replace(".weight", ".input_scale")] = (0, (1,), floats([3]))
    for file, plain in (("attn_q", "self_attn.q"), ("attn_k", "self_attn.k"), ("attn_v", "self_attn.v"), ("attn_output", "self_attn.o"),
                        ("ffn_gate", "mlp.gate"), ("ffn_up", "mlp.up"), ("ffn_down", "mlp.down")):
        name = "model.layers.0.%s_proj.weight" % plain
        kind, shape, raw = m.plain[name]
        m.plain[name] = (kind, shape, floats([x * scales["blk.0.%s.weight" % file] for x in struct.unpack("<%df" % (len(raw) // 4), raw)]))
    expect_the_same(*m.write(tmp_path, permuted=True))


def test_scales_of_experts_multiply_each(tmp_path):
    m, name = mixtral("NVFP4"), "blk.0.ffn_%s_exps.%s"
    for file, plain in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        scales = [to_half(m.rng.uniform(0.5, 2)) for _ in range(4)]
        m.file[name % (file, "scale")] = (0, (4,), floats(scales))
        for x, scale in enumerate(scales):
            matrix = "model.layers.0.block_sparse_moe.experts.%d.%s.weight" % (x, plain)
            kind, shape, raw = m.plain[matrix]
            m.plain[matrix] = (kind, shape, floats([scale * value for value in struct.unpack("<%df" % (len(raw) // 4), raw)]))
    expect_the_same(*m.write(tmp_path, permuted=True))


def test_a_tied_head_is_the_quantized_embedding(tmp_path):
    expect_the_same(*llama("Q5_K", embed="Q6_K", tied=True, tie_word_embeddings=True).write(tmp_path, permuted=True))


@pytest.mark.parametrize("kind,down", [("Q4_K", "Q6_K"), ("Q8_0", "Q4_1")])
def test_devices_compute_what_they_stand_for(kind, down, tmp_path):
    plain, file = llama(kind, down, embed=down, kinds={"v": down}).write(tmp_path, permuted=True)
    wanted = logits(plain)
    there = logits(file, "--device", "cuda", "--max-num-batched-tokens", 8, dtype="auto", env=DEVICE)
    assert distance(there, wanted) < 0.05 * (max(wanted) - min(wanted))


def qwen3():
    m = Model("qwen3", "Qwen3ForCausalLM")
    m.ends()
    m.norms()
    m.attention("Q4_K")
    m.mlp("Q5_0", "Q6_K")
    for name in "qk":
        m.vector("blk.0.attn_%s_norm.weight" % name, "model.layers.0.self_attn.%s_norm.weight" % name, HEAD_DIM)
    return m


def qwen2():
    m = Model("qwen2", "Qwen2ForCausalLM")
    m.ends()
    m.norms()
    m.attention("Q8_0")
    m.mlp("Q4_1")
    for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        m.vector("blk.0.attn_%s.bias" % name, "model.layers.0.self_attn.%s_proj.bias" % name, heads * HEAD_DIM, 0)
    return m


def phi3():
    m = Model("phi3", "Phi3ForCausalLM")
    m.ends()
    m.norms()
    m.attention("Q4_K", names=())
    m.matrix("Q5_K", "blk.0.attn_qkv.weight", "model.layers.0.self_attn.qkv_proj.weight", (HEADS + 2 * KV_HEADS) * HEAD_DIM)
    m.matrix("Q4_K", "blk.0.ffn_up.weight", "model.layers.0.mlp.gate_up_proj.weight", 2 * INNER)
    m.matrix("Q6_K", "blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight", HIDDEN, INNER)
    return m


def gemma2():
    m = Model("gemma2", "Gemma2ForCausalLM", hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=64, rms_norm_eps=1e-6)
    m.ends("Q6_K", offset=1, tied=True)
    m.norms(("attn_norm", "input_layernorm"), ("post_attention_norm", "post_attention_layernorm"), ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"), offset=1)
    m.attention("Q4_0")
    m.mlp("Q4_0")
    return m


def mixtral(kind="Q4_K"):
    m = Model("llama", "MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2)
    m.ends()
    m.norms()
    m.attention("Q8_0", permuted=True)
    m.experts(kind, "block_sparse_moe", ("w1", "w3", "w2"))
    return m


def mixtral_one_by_one():
    """As the first files of the family are."""
    m = mixtral()
    for name in ("gate", "up", "down"):
        kind, (experts, *shape), raw = m.file.pop("blk.0.ffn_%s_exps.weight" % name)
        for x in range(experts):
            part = len(raw) // experts
            m.file["blk.0.ffn_%s.%d.weight" % (name, x)] = (kind, shape, raw[x * part:(x + 1) * part])
    return m


def qwen2_moe():
    m = Model("qwen2moe", "Qwen2MoeForCausalLM", qkv_bias=False, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=256,
              shared_expert_intermediate_size=256)
    m.ends()
    m.norms()
    m.attention("Q8_0")
    m.experts("Q4_0", "mlp", ("gate_proj", "up_proj", "down_proj"))
    for name in ("gate", "up", "down"):
        m.matrix("Q4_0", "blk.0.ffn_%s_shexp.weight" % name, "model.layers.0.mlp.shared_expert.%s_proj.weight" % name, 256, 256)
    m.matrix("F32", "blk.0.ffn_gate_inp_shexp.weight", "model.layers.0.mlp.shared_expert_gate.weight", 1)
    kind, shape, raw = m.file["blk.0.ffn_gate_inp_shexp.weight"]
    m.file["blk.0.ffn_gate_inp_shexp.weight"] = (kind, shape[1:], raw)
    return m


def deepseek(split=False):
    """Latent attention; `split`: keys and values of the latent in two tensors, as newer files have them."""
    latent, keys, turning, width = 128, 32, 32, 64
    m = Model("deepseek2", "DeepseekV2ForCausalLM", kv_lora_rank=latent, q_lora_rank=None, qk_nope_head_dim=keys, qk_rope_head_dim=turning,
              v_head_dim=width, num_key_value_heads=HEADS, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=256, n_shared_experts=1,
              first_k_dense_replace=0, topk_method="greedy", norm_topk_prob=False, routed_scaling_factor=1.0)
    del m.config["head_dim"]
    stem = "model.layers.0.self_attn."
    m.ends()
    m.norms()
    m.matrix("Q4_K", "blk.0.attn_q.weight", stem + "q_proj.weight", HEADS * (keys + turning))
    m.matrix("Q8_0", "blk.0.attn_kv_a_mqa.weight", stem + "kv_a_proj_with_mqa.weight", latent + turning)
    m.vector("blk.0.attn_kv_a_norm.weight", stem + "kv_a_layernorm.weight", latent)
    m.matrix("Q8_0", "blk.0.attn_output.weight", stem + "o_proj.weight", HIDDEN, HEADS * width)
    m.experts("Q4_0", "mlp", ("gate_proj", "up_proj", "down_proj"))
    for name in ("gate", "up", "down"):
        m.matrix("Q4_0", "blk.0.ffn_%s_shexp.weight" % name, "model.layers.0.mlp.shared_experts.%s_proj.weight" % name, 256, 256)
    if not split:
        m.matrix("Q5_0", "blk.0.attn_kv_b.weight", stem + "kv_b_proj.weight", HEADS * (keys + width), latent)
        return m
    m.matrix("Q5_1", "blk.0.attn_k_b.weight", "k_b", HEADS * latent, keys)
    m.matrix("Q5_0", "blk.0.attn_v_b.weight", "v_b", HEADS * width, latent)
    k, v = (struct.unpack("<%df" % (len(raw) // 4), raw) for _, _, raw in (m.plain.pop("k_b"), m.plain.pop("v_b")))
    whole = []
    for h in range(HEADS):
        whole += [k[(h * latent + j) * keys + i] for i in range(keys) for j in range(latent)]
        whole += v[h * width * latent:(h + 1) * width * latent]
    m.plain[stem + "kv_b_proj.weight"] = ("F32", (HEADS * (keys + width), latent), floats(whole))
    for name, shape in (("k", (HEADS, latent, keys)), ("v", (HEADS, width, latent))):
        kind, _, raw = m.file["blk.0.attn_%s_b.weight" % name]
        m.file["blk.0.attn_%s_b.weight" % name] = (kind, shape, raw)
    return m


def deepseek_split():
    return deepseek(split=True)


FAMILIES = [qwen3, qwen2, phi3, gemma2, mixtral, mixtral_one_by_one, qwen2_moe, deepseek, deepseek_split]


@pytest.mark.parametrize("make", FAMILIES[::5] if SANITIZED else FAMILIES, ids=lambda make: make.__name__)
def test_families_find_their_tensors(make, tmp_path):
    expect_the_same(*make().write(tmp_path, permuted=make in (mixtral, mixtral_one_by_one)))


def test_ranks_share_heads_that_are_apart(tmp_path):
    expect_the_same(*deepseek_split().write(tmp_path), "--tensor-parallel-size", 2)


def test_several_files_are_one_model_behind_a_link(tmp_path):
    m = llama("Q4_0")
    plain, file = m.write(tmp_path, permuted=True)
    names = list(m.file)
    (file / "model.gguf").unlink()
    for i, part in enumerate((names[:5], names[5:])):
        write_gguf(tmp_path / ("m-%05d-of-00002.gguf" % (i + 1)), "llama", {name: m.file[name] for name in part},
                   {"split.no": i, "split.count": 2, "split.tensors.count": len(names)}.items())
    (file / "model.gguf").symlink_to("../m-00001-of-00002.gguf")
    expect_the_same(plain, file)


DEMO_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
              "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def demo_file(folder):
    """The demo model's own numbers, with the rows of q and k in the order of llama.cpp."""
    shutil.copytree(DEMO, folder, ignore=lambda _folder, names: [name for name in names if name.endswith(".safetensors")])
    config = json.loads((folder / "config.json").read_text())
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    tensors = {}
    for name, (kind, shape, raw) in read_safetensors(DEMO / "model.safetensors").items():
        stem, end = name.rsplit(".", 1)
        layer = "blk.%s." % stem.split(".")[2] if stem.startswith("model.layers.") else ""
        stem = stem.split(".", 3)[3] if layer else stem
        if stem[-6:] in ("q_proj", "k_proj"):
            half, row = shape[0] // heads[stem[-6]] // 2, len(raw) // shape[0]
            order = [h + side * half + i for h in range(0, shape[0], 2 * half) for i in range(half) for side in (0, 1)]
            raw = b"".join(raw[i * row:(i + 1) * row] for i in order)
        tensors["%s%s.%s" % (layer, DEMO_NAMES[stem], end)] = ({"F32": 0, "BF16": 30}[kind], shape, raw)
    (folder / "config.json").write_text(json.dumps({**config, "rope_interleave": True, "quantization_config": {"quant_method": "gguf"}}))
    write_gguf(folder / "model.gguf", "llama", tensors)
    return folder


def test_adapters_change_rows_in_the_order_of_the_file(tmp_path):
    adapter = Adapter(3, {"self_attn.%s_proj" % name: range(6) for name in "qkvo"}).write(tmp_path / "adapter")
    flags = ("Once upon a time", "--temperature", 0, "--max-tokens", 24, "--dtype", "float32", "--threads", 1)
    texts = [[run("run", model, *flags, *more) for model in (DEMO, demo_file(tmp_path / ("demo%d" % len(more))))]
             for more in ((), ("--lora", adapter))]
    for (status, text), other in texts:
        assert status == 0 and other == (status, text), (text, other)
    assert texts[0] != texts[1]


# ---------------------------------------------------------------- what is refused


def refused(tmp_path, change=None, architecture="llama", cut=None):
    m = llama("Q4_0")
    if change:
        change(m.file)
    m.architecture = architecture
    _, file = m.write(tmp_path, permuted=True)
    if cut:
        path = file / "model.gguf"
        path.write_bytes(path.read_bytes()[:cut])
    status, output = run("logits", "--model", file, "--ids", IDS)
    assert status == 1, output
    return output


def replacing(name, part):
    def change(file):
        kind, shape, raw = file[name]
        file[name] = part(kind, shape, raw)
    return change


def with_scale(name, scale):
    def change(file):
        _, shape, _ = file[name]
        file[name] = (40, shape, bytes(shape[0] * shape[1] // 64 * 36))
        file[name.replace(".weight", ".scale")] = scale
    return change


UP = "blk.0.ffn_up.weight"


@pytest.mark.parametrize("change,words_said", [
    (lambda file: file.pop(UP), "no tensor that is model.layers.0.mlp.up_proj.weight ([256, 256] expected)"),
    (replacing(UP, lambda kind, shape, raw: (15, shape, bytes(256 * 292))), "mlp.up_proj.weight is of type Q8_K; supported: F32, F16"),
    (replacing(UP, lambda kind, shape, raw: (21, shape, bytes(256 * 110 - 40))), "in front of byte 220672 where the tensor before it ends"),
    (replacing(UP, lambda kind, shape, raw: (22, (512, 128), bytes(512 * 41))), "tensor blk.0.ffn_up.weight: rows of 128 elements of IQ2_S"),
    (lambda file: file.update({"blk.0.ffn_up.scale": (0, (1,), floats([2]))}), "blk.0.ffn_up.scale: scales of a matrix are read of NVFP4 alone, and "
                                                                               "blk.0.ffn_up.weight is Q4_0"),
    (with_scale(UP, (0, (2,), bytes(8))), "tensor blk.0.ffn_up.scale is F32 of 8 bytes; it must be 1 numbers of F32"),
    (replacing(UP, lambda kind, shape, raw: (99, shape, raw)), "mlp.up_proj.weight is of type type 99; supported"),
    (replacing(UP, lambda kind, shape, raw: (kind, (512, 128), raw)), "mlp.up_proj.weight has the shape [512, 128], expected [256, 256]"),
    (replacing(UP, lambda kind, shape, raw: (kind, (256, 248), raw)), "tensor blk.0.ffn_up.weight: rows of 248 elements of Q4_0"),
    (replacing(UP, lambda kind, shape, raw: (kind, shape, b"\0\x7e" + raw[2:])), "mlp.up_proj.weight has the value NaN"),
    (replacing("blk.0.attn_norm.weight", lambda kind, shape, raw: (8, (256,), bytes(8 * 34))), "input_layernorm.weight is of type Q8_0; supported"),
], ids=["missing", "type", "too-few-bytes", "rows-of-lattices", "scales-of-others", "scales", "unknown-type", "shape", "rows", "nan", "norm"])
def test_files_that_do_not_fit_are_refused_by_name(change, words_said, tmp_path):
    output = refused(tmp_path, change)
    assert words_said in output, output


@pytest.mark.parametrize("side", ("gate", "up"))
def test_scales_of_either_matrix_whose_rows_take_turns_are_refused(side, tmp_path):
    def change(file):
        for name in ("gate", "up"):
            file["blk.0.ffn_%s_exps.weight" % name] = (40, (2, 64, 64), bytes(2 * 64 * 36))
        file["blk.0.ffn_%s_exps.scale" % side] = (0, (2,), floats([1, 2]))

    output = refused(tmp_path, change, architecture="gpt-oss")
    assert "tensor blk.0.ffn_%s_exps.scale: scales of a matrix whose rows take turns with another's are not read" % side in output, output


def test_other_architectures_are_refused_by_name(tmp_path):
    output = refused(tmp_path, architecture="rwkv7")
    assert "general.architecture is 'rwkv7'; supported: llama, " in output, output


@pytest.mark.parametrize("cut,words_said", [(100, "truncated"), (60000, "the file has only"), (0, None)])
def test_files_cut_off_are_refused(cut, words_said, tmp_path):
    if not words_said:
        output = refused(tmp_path, cut=3)
        words_said = "this is no GGUF file"
    else:
        output = refused(tmp_path, cut=cut)
    assert "model.gguf" in output and words_said in output, output


def test_a_file_without_blocks_is_as_any_other_checkpoint(tmp_path):
    m = llama("F32", embed="F32")
    del m.config["torch_dtype"]
    plain, file = m.write(tmp_path, permuted=True)
    wanted = logits(plain, dtype="auto", env=PORTABLE)
    assert distance(logits(file, dtype="auto", env=PORTABLE), wanted) < 1e-3
