"""Small federations to test on: digits, few clients, few rounds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kinfed import registry, testing
from kinfed.data import Federation, Normalisation, Partition, Samples
from kinfed.engine import ClientRuntime, RunFolder, SerialExecutor, TaskRunner
from kinfed.methods import Method, fedavg, make_method
from kinfed.models import Model, Tensors
from kinfed.testing import NOBODY, Outcome, card_of, same
from kinfed.testing import complete_run as run
from kinfed.testing import enlarged as larger
from kinfed.testing import small_dataset as dataset
from kinfed.testing import small_federation as federation
from kinfed.testing import untrained_sources as pool

__all__ = [
    "NOBODY",
    "Outcome",
    "build_runtime",
    "card_of",
    "close",
    "dataset",
    "equal_sizes",
    "federation",
    "float_samples",
    "larger",
    "parabolas",
    "pool",
    "run",
    "same",
    "serial",
    "small",
]


def equal_sizes(clients: int = 4) -> Federation:
    data = dataset()
    cut = lambda rows: np.array_split(rows, clients)  # noqa: E731
    return Federation(data, Partition(cut(np.arange(24, 240)), cut(np.arange(120))), np.arange(24))


def small(name: str) -> Method:
    """A method with its defaults, but for narrow projectors and predictors, an early vote, and a term that shows."""
    method = make_method(name)
    fields = testing.trial_fields(type(method.unwrapped))
    return make_method(name, fields if method is method.unwrapped else fields | testing.trial_fields(type(method)))


def build_runtime(
    method: str | Method,
    fed: Federation | None = None,
    *,
    wrap: Callable[[Model], Model] = lambda m: m,
    **given: Any,
) -> ClientRuntime:
    return testing.small_runtime(small(method) if isinstance(method, str) else method, fed, wrap=wrap, **given)


def serial(runtime: ClientRuntime, folder: RunFolder) -> SerialExecutor:
    """A serial executor that is started."""
    executor = SerialExecutor()
    executor.start(lambda: runtime, TaskRunner(runtime, folder.client_states))
    return executor


def close(a: Tensors, b: Tensors) -> bool:
    assert a.keys() == b.keys()
    return all(torch.allclose(a[n].double(), b[n].double(), rtol=0, atol=1e-6) for n in a)


def float_samples(inputs: torch.Tensor, labels: list[int] | torch.Tensor) -> Samples:
    identity = Normalisation((0.0,) * inputs.shape[1], (1.0,) * inputs.shape[1])
    return Samples(inputs, torch.as_tensor(labels), identity)


def parabolas(method: Method, centres: list[float], monkeypatch: pytest.MonkeyPatch, **given: Any) -> ClientRuntime:
    """The model is one weight; client i has one sample, and its loss is (w − m_i)²/2 whatever the method says."""
    monkeypatch.setattr(fedavg, "train", testing.parabola_training)
    return testing.parabolas(method, centres, **given)


def write_package(folder: Path, name: str, version: str, entry_points: str) -> None:
    """What pip leaves of an installed package: its name, its version and its entry points."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(entry_points)


@contextlib.contextmanager
def installed_package(
    folder: Path, name: str, version: str, entry_points: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A package that is installed in a folder meanwhile."""
    write_package(folder, name, version, entry_points)
    monkeypatch.syspath_prepend(str(folder))
    registry._entry_points.cache_clear()
    try:
        yield
    finally:
        registry._entry_points.cache_clear()
