"""Executors by name, checked before anything is loaded: which there are, and which fields they read."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING

from kinfed.errors import InputError, check_choice

if TYPE_CHECKING:
    from kinfed.experiment.config import Config

__all__ = ["RAY", "address_of", "refuse_executor", "refuse_unknown"]

RAY = "ray"
ADDRESS = re.compile(r"auto|[\w.-]+:\d+|\[[\da-fA-F:]+\]:\d+")


def address_of(executor: str) -> str | None:
    """Return the address of the Ray cluster that an executor's name tells; None if it tells none.

    >>> address_of("ray:10.0.0.1:6379"), address_of("ray")
    ('10.0.0.1:6379', None)
    """
    return executor.partition(":")[2] or None


def refuse_unknown(executor: object) -> None:
    """Refuse the name of an executor that does not exist.

    Raises:
        InputError: If the name is unknown, or its address is none.
    """
    if not isinstance(executor, str):
        return
    kind, colon, address = executor.partition(":")
    if kind != RAY:
        check_choice("executor", executor, ["flower", RAY])
    elif colon and not ADDRESS.fullmatch(address):
        raise InputError(f"executor: {executor!r} is not allowed; must be ray, ray:auto or ray:HOST:PORT")


def refuse_executor(config: Config, executor: object) -> None:
    """Refuse an executor that does not exist or does not fit the config, and fields that it does not read.

    Args:
        config: Config of a run or a comparison.
        executor: Name, ``flower``, ``ray`` or ``ray:ADDRESS``; or an object; None for that of the config.

    Raises:
        InputError: If the executor is refused, or Ray is not installed.
    """
    refuse_unknown(executor)
    name = executor if isinstance(executor, str) else ""
    on_ray = name.startswith(RAY)
    for field in ("cpus_per_client", "gpus_per_client"):
        if (value := getattr(config, field)) is not None and not on_ray:
            raise InputError(f"{field}: {value:g} would do nothing without executor=ray")
    if config.parallel > 1 and name in ("flower", RAY):
        why = "give the address of a cluster, ray:HOST:PORT" if on_ray else "its sites work side by side"
        raise InputError(f"parallel: {config.parallel} is not possible with executor={name}; {why}")
    if not on_ray:
        return
    if not config.workers:
        raise InputError("workers: 0 is not allowed with executor=ray; must be 1 or more, the number of actors")
    on_gpus = config.device.startswith("cuda")
    if config.gpus_per_client is not None and not on_gpus:
        raise InputError(f"gpus_per_client: {config.gpus_per_client:g} would do nothing with device={config.device}")
    if on_gpus and (config.gpus_per_client is None or config.device != "cuda"):
        raise InputError(
            f"device: {config.device!r} with executor=ray must be cuda with gpus_per_client, as in 0.25; Ray chooses "
            "the GPU"
        )
    if find_spec("ray") is None:
        raise InputError("executor: ray is not installed: pip install 'kinfed[ray]'")
