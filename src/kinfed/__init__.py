"""Federated learning among kin: for clients that differ in their data, their labels or their models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfed import similarity
    from kinfed.api import Result, compare, load, open_result, reproduce, resume, run, train_sources, vote

__all__ = [
    "Result",
    "__version__",
    "compare",
    "load",
    "open_result",
    "reproduce",
    "resume",
    "run",
    "similarity",
    "train_sources",
    "vote",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Late, so that `import kinfed` and the command's help need no torch.
    if name == "similarity":
        return importlib.import_module("kinfed.similarity")
    if name in __all__:
        from kinfed.settings import untouched

        with untouched():
            from kinfed import api

        return getattr(api, name)
    raise AttributeError(f"module 'kinfed' has no attribute {name!r}")
