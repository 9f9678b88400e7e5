"""Local training only: every client trains alone, the reference that a personalised method must beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import ClientId, Message, Server, ServerState, Serves
from kinfed.models import ALL, NOTHING, Part

__all__ = ["Local"]


@dataclass(frozen=True, kw_only=True)
class Local(FedAvg):
    """Local training without communication: each client trains its own model, and all clients train in every round.

    >>> Local().trains
    'all'
    """

    trains: ClassVar[Literal["sampled", "all", "pooled"]] = "all"
    shared: ClassVar[Part] = NOTHING
    private: ClassVar[Part] = ALL
    serves: ClassVar[Serves] = "private"
    mixes_architectures: ClassVar[bool] = True
    primary: ClassVar[str] = "own"
    primary_label: ClassVar[str] = "own model"

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Return the state unchanged: clients upload no tensors."""
        del server, uploads
        return state
