"""Random streams that are named by their purpose.

Every draw in kinfed comes from a stream with an address: ``(seed, purpose, client, round)``. The global generators are
only used in blocks that seed them from such a stream. So the order of the clients, the number of worker processes and
restarts do not change any number.
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

__all__ = ["numpy_stream", "secret_stream", "seeded_globals", "torch_stream", "with_secret", "without_draws"]

_GLOBALS = threading.RLock()  # held by the thread that seeds the global generators, which the whole process shares
_SECRET: ContextVar[int | None] = ContextVar("secret", default=None)
_WITHOUT_DRAWS: ContextVar[bool] = ContextVar("without_draws", default=False)


def _digest(seed: int, address: tuple[str | int, ...]) -> bytes:
    # repr distinguishes ("1",) from (1,), and ("a", "b") from ("a, b",).
    return hashlib.sha256(repr((int(seed), *address)).encode()).digest()


def numpy_stream(seed: int, *address: str | int) -> np.random.Generator:
    """Make the NumPy generator for one purpose.

    Args:
        seed: Seed of the run, any integer.
        *address: Purpose of the stream, such as ``"sampling", round``.

    >>> numpy_stream(0, "sampling", 3).integers(100) == numpy_stream(0, "sampling", 3).integers(100)
    np.True_
    """
    return np.random.default_rng(np.frombuffer(_digest(seed, address), np.uint32))


def torch_stream(seed: int, *address: str | int) -> torch.Generator:
    """Make the torch generator for one purpose (see `numpy_stream`), on the CPU, whatever the device of the work."""
    import torch

    return torch.Generator().manual_seed(int.from_bytes(_digest(seed, address)[:8], "little", signed=True))


def secret_stream(seed: int, *address: str | int) -> np.random.Generator:
    """Make the NumPy generator of what no client may foresee: in `with_secret` its address begins with the secret."""
    secret = _SECRET.get()
    return numpy_stream(seed, *address) if secret is None else numpy_stream(secret, seed, *address)


@contextlib.contextmanager
def with_secret(secret: int | None) -> Iterator[None]:
    """Context manager in whose block `secret_stream` depends on a number that only the server knows.

    Sites of a real federation are told the seed of the run, so that noise from it would protect nobody. None changes
    nothing: in a simulation all is drawn from the seed.
    """
    token = _SECRET.set(secret)
    try:
        yield
    finally:
        _SECRET.reset(token)


@contextlib.contextmanager
def without_draws() -> Iterator[None]:
    """Context manager in whose block nothing draws from the global generators, so that threads need not wait.

    In such a block, `seeded_globals` with ``certain=False`` does nothing. With ``certain=True`` it seeds and locks the
    generators as usual.
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
    """Context manager that seeds the global generators from a stream, and restores them at the end.

    They are those of torch, Python and NumPy's legacy functions. The constructors of `torch.nn` and dropout accept no
    generator, and a user's own module may draw from any of them. Only one thread at a time runs such a block.

    Args:
        stream: Random stream whose seed is used; nothing is drawn from it.
        device: Device on which the block works; a CUDA device has its own generator.
        certain: True if the block does draw; False if it may, so that nothing is seeded inside `without_draws`.
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
                # torch.manual_seed seeds all devices; it stores a stack trace for each device that is not in use yet.
                (torch.manual_seed if accelerated else torch.default_generator.manual_seed)(seed)
                np.random.seed(seed % 2**32)  # noqa: NPY002
                random.seed(seed)
                yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)  # noqa: NPY002
