"""Central BYOL: one network trained without labels on everybody's images at one place, the reference from above."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from kinfed.methods.fedbyol import FedBYOL

__all__ = ["CentralBYOL"]


@dataclass(frozen=True, kw_only=True)
class CentralBYOL(FedBYOL):
    """Not federated: one client holds all training images, and trains as long as the clients would."""

    trains: ClassVar[Literal["sampled", "all", "pooled"]] = "pooled"
    primary_label: ClassVar[str] = "linear probe, central encoder"
