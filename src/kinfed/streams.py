"""Random streams that have an address instead of a position.

Every draw in kinfed comes from a stream named by what it is for: ``(seed, purpose, client, round)``. Nothing reads the
global generators, so neither the order in which clients run, nor the number of worker processes, nor a restart in
between can change a number.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["forked_global_torch", "numpy_stream", "seeded_global_torch", "torch_stream"]


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
def seeded_global_torch(seed: int, *address: str | int) -> Iterator[None]:
    """Run a block whose code can only draw from torch's global generator, and leave that generator as it was.

    For `torch.nn` modules, whose constructors take no generator.
    """
    with forked_global_torch(torch_stream(seed, *address).initial_seed()):
        yield


@contextlib.contextmanager
def forked_global_torch(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """The same with a seed of torch's own kind; also for the generator of a CUDA device, if that is named."""
    import torch

    accelerated = device is not None and device.type != "cpu"
    with torch.random.fork_rng(devices=[device] if device is not None and device.type == "cuda" else []):
        # torch.manual_seed is for all devices: it keeps a note for each that is not in use yet, stack trace and all.
        (torch.manual_seed if accelerated else torch.default_generator.manual_seed)(seed)
        yield
