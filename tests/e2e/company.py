"""Fixtures for models of families.json that are served to many at once: every answer is that of the prompt alone. A test's module imports them, and has a
fixture `model` of its own."""
import json
import pathlib

import pytest

from engine import Engine
from small_models import Folders

KEPT = json.loads((pathlib.Path(__file__).parents[1] / "unit" / "proc_worker" / "families.json").read_text())
BLOCK = 8
FLAGS = ["--dtype", "float32", "--block-size", BLOCK, "--max-num-batched-tokens", 64]
SHORT, LONG = 320, 2048  # contexts


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    def kept(name):
        return {"config": {**json.loads(KEPT[name]["config"]), "max_position_embeddings": LONG}, "tensors": KEPT[name]["tensors"]}
    return Folders(tmp_path_factory.mktemp, kept)


@pytest.fixture(scope="module")
def served(model):
    with Engine(*FLAGS, model=model) as engine:
        yield engine


@pytest.fixture(scope="module")
def apart(model):
    """An engine that keeps nothing for anybody, and is asked one thing at a time."""
    with Engine(*FLAGS, "--no-enable-prefix-caching", "--max-num-seqs", 3, model=model) as engine:
        yield engine.api


@pytest.fixture(scope="module")
def alone(apart):
    known = {}

    def answer(ids, count):
        key = (tuple(ids), count)
        if key not in known:
            known[key] = apart.greedy_ids(list(ids), count)
        return known[key]
    return answer
