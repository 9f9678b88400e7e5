"""Central BYOL: one network trained without labels on the pooled images of all clients (specification D.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from kinfed.methods.central import Central
from kinfed.methods.fedbyol import FedBYOL

__all__ = ["CentralBYOL"]


@dataclass(frozen=True, kw_only=True)
class CentralBYOL(FedBYOL):
    """Central BYOL: one client holds all training images and trains for the run's local epochs in every round.

    >>> CentralBYOL().trains
    'pooled'
    """

    trains: ClassVar[Literal["sampled", "all", "pooled"]] = "pooled"
    primary_label: ClassVar[str] = "linear probe, central encoder"
    ceiling: ClassVar[str] = "all data at one place"

    carries_up = Central.carries_up
    carries_down = Central.carries_down
