"""A run has the same bits whatever the program around it has set, and leaves all of that as it was."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import kinfed
from kinfed import settings
from kinfed.settings import own_settings
from tests.experiment.test_run import files


@contextlib.contextmanager
def changed(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


@contextlib.contextmanager
def of_a_library(owner: Any, name: str, value: Any) -> Iterator[None]:
    if not hasattr(owner, name):
        pytest.skip("this version of torch has no such setting")
    with changed(lambda: getattr(owner, name), lambda value: setattr(owner, name, value), value):
        yield


@contextlib.contextmanager
def errors_of_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextlib.contextmanager
def flushing_denormals() -> Iterator[None]:
    with changed(lambda: False, torch.set_flush_denormal, True):
        yield


HOSTS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "without gradients": torch.no_grad,
    "for inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "float64": lambda: changed(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "on another device": lambda: torch.device("meta"),
    "another default device": lambda: changed(lambda: None, torch.set_default_device, "meta"),
    "deterministic": lambda: changed(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 2),
    "looking for NaN": lambda: torch.autograd.set_detect_anomaly(True),
    "two threads": lambda: changed(torch.get_num_threads, torch.set_num_threads, 2),
    "less precise": lambda: changed(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    "less precise, in the new way": lambda: of_a_library(torch.backends.mkldnn, "fp32_precision", "bf16"),
    "other kernels": lambda: of_a_library(torch.backends.mkldnn, "enabled", False),
    "small numbers are zero": flushing_denormals,
    "NumPy raises": lambda: np.errstate(all="raise"),
    "warnings are errors": errors_of_warnings,
}


def all_of_them() -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    for name, host in HOSTS.items():
        if name != "less precise, in the new way":  # torch forbids both ways at once
            stack.enter_context(host())
    return stack


def found() -> list[Any]:
    """What code sees of the settings, read in the ways that work whoever has set them."""
    of, x = torch.backends, torch.ones(2, 2)
    precise = [getattr(part, "fp32_precision", None) for part in (of, of.mkldnn, of.mkldnn.matmul, of.cuda.matmul)]
    small = torch.tensor(2e-38, device="cpu", dtype=torch.float32)
    return [
        [None if precision in ("none", "ieee") else precision for precision in precise],  # which come to the same
        (x.dtype, x.device, x.is_inference(), (x @ x).dtype, nn.Linear(2, 2).weight.requires_grad),
        (torch.is_grad_enabled(), torch.is_anomaly_enabled(), torch.get_deterministic_debug_mode()),
        (of.mkldnn.enabled, torch.get_num_threads(), small.mul(0.1).item() == 0),
        np.geterr(),
    ]


@pytest.mark.parametrize("name", HOSTS)
def test_settings_of_the_program_are_as_torch_has_them_inside_and_as_they_were_after(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # case 315
    monkeypatch.setattr(settings, "INSTEAD_OF_ERRORS", "default")
    with own_settings():
        plain = found()
    with HOSTS[name]():
        before, filters = found(), list(warnings.filters)
        with own_settings():
            assert found() == plain
            assert "error" not in {action for action, *_ in warnings.filters}
        assert found() == before
        assert list(warnings.filters) == filters
    assert before != plain or name in ("warnings are errors", "small numbers are zero")


def test_the_environment_and_global_generators_are_left_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINFED_OLD", "1")
    monkeypatch.setenv("KINFED_GONE", "1")
    before = dict(os.environ), random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    with own_settings():
        os.environ |= {"KINFED_OLD": "2", "KINFED_NEW": "2"}
        del os.environ["KINFED_GONE"]
        random.random(), torch.rand(1), np.random.rand()  # noqa: NPY002
    after = dict(os.environ), random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    assert after == before


SMALL: dict[str, Any] = {"clients": 3, "partition": "iid", "rounds": 2, "ft_epochs": 1, "new_clients": 1, "quiet": True}


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_has_the_same_bits_whatever_the_program_has_set(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # case 315
    monkeypatch.setattr(settings, "INSTEAD_OF_ERRORS", "ignore")
    fields = {**SMALL, "feature_cache_mb": 0}  # of which moon warns
    kinfed.run("moon", out=tmp_path / "plain", **fields)
    with all_of_them():
        kinfed.run("moon", out=tmp_path / "inside", workers=workers, **fields)
    (tmp_path / "plain" / "config.toml").unlink()
    (tmp_path / "inside" / "config.toml").unlink()
    assert files(tmp_path / "inside") == files(tmp_path / "plain")
    images = torch.randint(256, (40, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).numpy()
    told = kinfed.load(tmp_path / "plain").predict(images)
    with all_of_them():
        assert kinfed.load(tmp_path / "inside").predict(images) == told


WATCHING = """
import os, random, sys, numpy as np, torch, warnings
def state():
    return [dict(os.environ), random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(),
            torch.get_num_threads(), np.geterr(), list(warnings.filters)]
before = state()
import kinfed
kinfed.run("fedavg", data="digits", clients=3, partition="iid", rounds=1, ft_epochs=0, quiet=True, out=sys.argv[1])
for now, then in zip(state(), before):
    assert now == then, (now, then)
"""


@pytest.mark.slow
def test_a_program_is_as_it_was_after_its_first_run(tmp_path: Path) -> None:  # case 315: also where that imports much
    done = subprocess.run(
        [sys.executable, "-c", WATCHING, str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
