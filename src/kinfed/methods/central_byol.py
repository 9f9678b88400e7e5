"""Central BYOL: one network trained without labels on the pooled images of all clients (specification D.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from kinfed.methods.fedbyol import FedBYOL
from kinfed.methods.travels import POOLED, Sent

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

    @property
    def carries_up(self) -> Sequence[Sent]:
        """All samples: nothing of this is federated."""
        return POOLED

    @property
    def carries_down(self) -> Sequence[Sent]:
        """Nothing."""
        return ()
