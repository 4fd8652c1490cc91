"""--weights-cache: the second start maps what the first one packed, computes the same, and survives a bad file."""
import resource

import pytest

from engine import DEMO, SANITIZED, Engine, run
from quantized_files import FORMATS, write_models
from test_quantized import logits

QUANTIZATION = ["int8"] if SANITIZED else ["auto", "int8"]


def file_of(cache):
    files = [f for f in cache.iterdir()]
    assert len(files) == 1 and files[0].suffix == ".weights", files
    return files[0]


@pytest.mark.parametrize("quantization", QUANTIZATION)
def test_restarts_map_the_file_and_a_damaged_one_is_packed_anew(quantization, tmp_path, reference):
    flags = ["--weights-cache", tmp_path / "cache", "--quantization", quantization]
    prompt, tokens = reference["prompts"][0]["ids"], []
    for event in ("WEIGHTS_CACHE_WRITTEN", "WEIGHTS_CACHE_USED"):
        with Engine(*flags) as e:
            assert event in e.log()
            tokens.append(e.api.greedy_ids(prompt, 16))
    path = file_of(tmp_path / "cache")
    with open(path, "r+b") as f:
        f.seek(-1000, 2)
        byte = f.read(1)
        f.seek(-1000, 2)
        f.write(bytes([byte[0] ^ 1]))
    with Engine(*flags) as e:
        assert "its weights are damaged" in e.log() and "WEIGHTS_CACHE_WRITTEN" in e.log()
        tokens.append(e.api.greedy_ids(prompt, 16))
    assert tokens[0] == tokens[1] == tokens[2]


def test_an_ordered_checkpoint_on_two_ranks(tmp_path):
    _plain, quantized = write_models(tmp_path, FORMATS["gptq-order-64"])
    cache = tmp_path / "cache"
    flags = ["--weights-cache", cache, "--tensor-parallel-size", 2]
    packed = logits(quantized, *flags)
    assert len(list(cache.glob("quantized-*.weights"))) == 2
    status, output = run("logits", "--model", quantized, "--ids", "5,17", "--dtype", "float32", "--threads", 1,
                         "--log-level", "debug", *flags)
    assert status == 0 and output.count("WEIGHTS_CACHE_USED") == 2, output
    assert logits(quantized, *flags) == packed


def test_a_folder_that_cannot_be_used_is_a_warning(tmp_path):
    file = tmp_path / "file"
    file.write_text("no folder")
    status, output = run("logits", "--model", DEMO, "--ids", "5", "--weights-cache", file,
                         "--log-level", "debug")
    assert status == 0 and "WEIGHTS_CACHE_NOT_WRITTEN" in output and "Not a directory" in output, output


def test_a_limit_on_file_sizes_is_a_warning(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    status, output = run("logits", "--model", DEMO, "--ids", "5", "--weights-cache", tmp_path, "--log-level", "debug",
                         preexec_fn=limit)
    assert status == 0 and "WEIGHTS_CACHE_NOT_WRITTEN" in output and "File too large" in output, output
    assert not list(tmp_path.iterdir())
