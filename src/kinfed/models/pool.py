from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinfed.models.model import Model

__all__ = ["Source", "open_pool"]


@dataclass(frozen=True)
class Source:
    name: str
    model: Model
    card: Any


def open_pool(folder: Path) -> tuple[Source, ...]:
    raise NotImplementedError
