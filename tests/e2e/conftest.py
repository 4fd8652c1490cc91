"""Fixtures: an engine per configuration, shared by the tests of a file, and its log when a test fails."""
import json
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import engine as engines  # noqa: E402


@pytest.fixture(scope="session")
def shared_engine():
    """One engine with default settings, in float32, for all tests that only ask it."""
    with engines.Engine("--dtype", "float32") as engine:
        yield engine


@pytest.fixture
def engine(shared_engine):
    assert shared_engine.process.poll() is None, "the engine ended:\n" + shared_engine.log()[-4000:]
    return shared_engine


@pytest.fixture
def api(engine):
    return engine.api


@pytest.fixture(scope="session")
def reference():
    return json.loads((engines.DEMO / "reference.json").read_text())


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    shared = item.funcargs.get("shared_engine") if hasattr(item, "funcargs") else None
    if report.when == "call" and report.failed and shared is not None:
        report.sections.append(("engine log", shared.log()[-6000:]))
