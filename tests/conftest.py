from __future__ import annotations

import random
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets  # noqa: F401 - its first import draws from Python's global generator
import torch

from kinfed import settings

# A shell that runs the tests in the background has them ignore Ctrl-C, which some of them are about.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _name in ("SIGTERM", "SIGHUP"):
    signal.signal(getattr(signal, _name), signal.SIG_DFL)

torch.set_num_threads(1)  # small tensors: two threads cost more than they bring, above all on a busy machine


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", metavar="K/N", help="run only part K of N parts of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other parts. A test's part depends on its name alone, so that it is stable."""
    part, parts = map(int, config.getoption("--part").split("/"))
    chosen = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts == part - 1]
    if len(chosen) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINFED_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("KINFED_DATA", raising=False)


@pytest.fixture(autouse=True)
def _warnings_are_errors_in_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "INSTEAD_OF_ERRORS", "error")


@pytest.fixture(autouse=True)
def _no_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def global_generators() -> Iterator[None]:
    """Fails a test in which something drew from a global generator."""
    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    yield
    assert torch.equal(before[0], torch.random.get_rng_state()), "torch's global generator was used"
    assert before[1] == np.random.get_state()[1].tolist(), "NumPy's global generator was used"  # noqa: NPY002
    assert before[2] == random.getstate(), "Python's global generator was used"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"
