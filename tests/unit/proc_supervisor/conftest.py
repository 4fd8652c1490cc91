"""Engines of fake processes, ended with the test."""
import pytest

from fake_engine import Engine


@pytest.fixture
def engine(tmp_path):
    engines = []

    def start(*flags, **more):
        engines.append(Engine(tmp_path, *flags, **more))
        return engines[-1]

    yield start
    for e in engines:
        if e.process.poll() is None:
            e.process.kill()
            e.process.wait()
