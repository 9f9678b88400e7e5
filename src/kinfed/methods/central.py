"""Central: one model trained on the pooled data of all clients, the upper reference for federated methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt

from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import Client, ClientState, Message
from kinfed.methods.travels import POOLED, Sent

__all__ = ["Central"]


@dataclass(frozen=True, kw_only=True)
class Central(FedAvg):
    """Central training: one client holds all training data and trains for the run's local epochs in every round.

    >>> Central(lr_scale=0.5).trains
    'pooled'

    Attributes:
        lr_scale: Factor of the run's learning rate, > 0. All steps of a round share one momentum here, so a learning
            rate that suits clients with few steps can be too large.
    """

    trains: ClassVar[Literal["sampled", "all", "pooled"]] = "pooled"
    primary_label: ClassVar[str] = "central"
    ceiling: ClassVar[str] = "all data at one place"
    trial: ClassVar[Mapping[str, Any]] = {"lr_scale": 1.0}  # all samples of the short test run make only a few steps

    lr_scale: Annotated[float, Gt(0)] = 0.3

    @property
    def carries_up(self) -> Sequence[Sent]:
        """All samples: nothing of this is federated."""
        return POOLED

    @property
    def carries_down(self) -> Sequence[Sent]:
        """Nothing."""
        return ()

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train the global model on all data, with the scaled learning rate."""
        slower = replace(client.training, lr=client.training.lr * self.lr_scale)
        return super().update(replace(client, training=slower), message, state)
