"""Random streams that have an address instead of a position.

Every draw in kinfed comes from a stream named by what it is for: ``(seed, purpose, client, round)``. Nothing reads the
global generators but in a block that seeds them from such a stream, so neither the order in which clients run, nor the
number of worker processes, nor a restart in between can change a number.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["numpy_stream", "seeded_globals", "torch_stream", "without_draws"]

_GLOBALS = threading.RLock()  # they belong to the whole process: a thread that seeds them has them alone
_WITHOUT_DRAWS: ContextVar[bool] = ContextVar("without_draws", default=False)


def _digest(seed: int, address: tuple[str | int, ...]) -> bytes:
    # repr keeps ("1",) and (1,) apart, and the tuple's commas keep ("a", "b") and ("a, b",) apart.
    return hashlib.sha256(repr((int(seed), *address)).encode()).digest()


def numpy_stream(seed: int, *address: str | int) -> np.random.Generator:
    """NumPy generator for one purpose.

    Args:
        seed: The run's seed, any integer.
        *address: What the stream is for, e.g. ``"sampling", round``.

    >>> numpy_stream(0, "sampling", 3).integers(100) == numpy_stream(0, "sampling", 3).integers(100)
    np.True_
    """
    return np.random.default_rng(np.frombuffer(_digest(seed, address), np.uint32))


def torch_stream(seed: int, *address: str | int) -> torch.Generator:
    """Torch generator (on the CPU, so that every device sees the same draws) for one purpose; see `numpy_stream`."""
    import torch

    return torch.Generator().manual_seed(int.from_bytes(_digest(seed, address)[:8], "little", signed=True))


@contextlib.contextmanager
def without_draws() -> Iterator[None]:
    """Promise that nothing in a block draws from global generators; `seeded_globals` then leaves them alone.

    Threads in such blocks work side by side. What draws for certain still seeds them, and has them alone meanwhile.
    """
    token = _WITHOUT_DRAWS.set(True)
    try:
        yield
    finally:
        _WITHOUT_DRAWS.reset(token)


@contextlib.contextmanager
def seeded_globals(
    stream: torch.Generator, device: torch.device | None = None, *, certain: bool = True
) -> Iterator[None]:
    """Run a block that draws from global generators, seeded by a stream, and leave these generators as they were.

    They are torch's, Python's, and that of NumPy's legacy functions: the constructors of `torch.nn` and dropout take no
    generator, and a user's own module may draw from any of them. One thread at a time runs such a block.

    Args:
        stream: Names the seed; it is not drawn from.
        device: Device on which the block works; a CUDA device has a generator of its own.
        certain: The block does draw. If it only may, nothing is seeded in a block `without_draws`.
    """
    import torch

    if not certain and _WITHOUT_DRAWS.get():
        yield
        return
    seed = stream.initial_seed()
    accelerated = device is not None and device.type != "cpu"
    with _GLOBALS:
        of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            with torch.random.fork_rng(devices=[device] if device is not None and device.type == "cuda" else []):
                # torch.manual_seed is for all devices: it keeps a note, stack trace and all, for each not in use yet.
                (torch.manual_seed if accelerated else torch.default_generator.manual_seed)(seed)
                np.random.seed(seed % 2**32)  # noqa: NPY002
                random.seed(seed)
                yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)  # noqa: NPY002
