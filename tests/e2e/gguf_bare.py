"""Files in GGUF that have just enough of a model to be imported, and what that makes of them."""
import json

import pytest

from engine import run
from gguf_files import numbered_tokens, values_of, write_gguf

TINY = {"vocab_size": 8, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 64}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own for one test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tercet" / "gguf"


def bare(path, change=None, tokens=None, arch="llama", tensors=None):
    """Enough of a model to be imported. `change`: values to add, or to leave out where they are None."""
    values = {**values_of(TINY, arch), **(tokens or numbered_tokens(8)), **(change or {})}
    return write_gguf(path, {k: v for k, v in values.items() if v is not None},
                      {"token_embd.weight": ("F16", [8, 4], bytes(64)), **(tensors or {})})


def imported(path, cache):
    """The folder that is made of it."""
    before = set(cache.glob("*/*"))
    status, output = run("tokenize", "--model", path, "t")
    assert status == 0, output
    folder, = set(cache.glob("*/*")) - before
    return folder


def config_of(path, cache):
    return json.loads((imported(path, cache) / "config.json").read_text())


def refusal(path):
    status, output = run("tokenize", "--model", path, "t")
    assert status == 1, output
    return output
