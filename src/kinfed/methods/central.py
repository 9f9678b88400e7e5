"""Central: one model trained on everybody's data at one place. What federation gives up is measured against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from kinfed.methods.fedavg import FedAvg

__all__ = ["Central"]


@dataclass(frozen=True, kw_only=True)
class Central(FedAvg):
    """Not federated: one client holds all training data, and trains as long as the clients would."""

    trains: ClassVar[Literal["sampled", "all", "pooled"]] = "pooled"
    tested: ClassVar[str] = "central"
