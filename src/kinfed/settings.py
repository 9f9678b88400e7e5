"""Settings of the process, such as threads and precision, on which the numbers of a run depend beside its config."""

from __future__ import annotations

import contextlib
import os
import random
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

__all__ = ["own_settings", "untouched"]

INSTEAD_OF_ERRORS = "default"  # replaces the filter action "error", so that a warning does not stop a client

Setting = tuple[Callable[[], Any], Callable[[Any], Any], Any]  # read function, write function, value that a run needs


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """Context manager that restores environment variables, Python's random generator and warning filters at its end.

    Some libraries change them when they are imported.
    """
    environment, generator = dict(os.environ), random.getstate()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        random.setstate(generator)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})


@contextlib.contextmanager
def own_settings(threads: int | None = 1) -> Iterator[None]:
    """Context manager and decorator that fixes the settings on which the numbers of a block or function depend.

    Afterwards all settings are restored: threads, precision, default types and devices, gradients and autocast of
    torch, NumPy's error handling, the global random generators, and everything that `untouched` restores.

    Args:
        threads: Number of threads of one operation, which decides the order of sums; None for no change.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(untouched())
        filters: list[Any] = warnings.filters  # type: ignore[assignment]
        filters[:] = [(INSTEAD_OF_ERRORS if action == "error" else action, *which) for action, *which in filters]
        import numpy as np
        import torch

        stack.enter_context(_global_generators())
        stack.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        stack.enter_context(torch.inference_mode(mode=False))
        if torch.empty(0).device.type != "cpu":  # only if needed, since it slows down every call
            stack.enter_context(torch.device("cpu"))
        for setting in _settings(threads):
            stack.enter_context(_set(*setting))
        yield


def _settings(threads: int | None) -> Iterator[Setting]:
    import torch

    yield torch.is_grad_enabled, torch.set_grad_enabled, True
    yield torch.get_default_dtype, torch.set_default_dtype, torch.float32
    yield torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0
    yield torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, False
    yield _flushes_denormals, torch.set_flush_denormal, False
    for device in ("cpu", "cuda", *(["mps"] if torch.backends.mps.is_available() else [])):
        yield partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device), False
    for owner, name, value in _attributes():
        if hasattr(owner, name):
            yield partial(getattr, owner, name), partial(setattr, owner, name), value
    yield torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"
    if threads is not None:
        yield torch.get_num_threads, torch.set_num_threads, threads


def _attributes() -> Iterator[tuple[Any, str, Any]]:
    """Attributes of torch's backends as owner, name and value; newer versions have one precision for each operation."""
    import torch

    of = torch.backends
    for general in (of, of.mkldnn, of.cudnn, of.cuda.matmul):  # first, since they set those of the operations
        yield general, "fp32_precision", "none"
    for operation in ("matmul", "conv", "rnn"):
        yield getattr(of.mkldnn, operation, None), "fp32_precision", "none"
    for operation in ("conv", "rnn"):
        yield getattr(of.cudnn, operation, None), "fp32_precision", "tf32"
    yield of.mkldnn, "enabled", True
    yield of.cudnn, "enabled", True
    yield of.cudnn, "allow_tf32", True
    yield of.cudnn, "benchmark", False
    yield of.cudnn, "deterministic", False


@contextlib.contextmanager
def _set(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = read()
    if before != value:
        write(value)
    try:
        yield
    finally:
        if read() != before:
            write(before)


def _flushes_denormals() -> bool:
    """Return True if denormal numbers are treated as zero, found by a test, since torch has no function for it."""
    import torch

    return not torch.tensor(2e-38, dtype=torch.float32, device="cpu").mul(0.1).item()


@contextlib.contextmanager
def _global_generators() -> Iterator[None]:
    import numpy as np
    import torch

    state = np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        np.random.set_state(state)  # noqa: NPY002
