"""Central: one model trained on everybody's data at one place. What federation gives up is measured against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt

from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import Client, ClientState, Message

__all__ = ["Central"]


@dataclass(frozen=True, kw_only=True)
class Central(FedAvg):
    """Not federated: one client holds all training data, and trains as long as the clients would.

    Attributes:
        lr_scale: What the run's learning rate is multiplied by. All steps of a round share one momentum here, so that a
            rate which serves clients of a few steps can be too large.
    """

    trains: ClassVar[Literal["sampled", "all", "pooled"]] = "pooled"
    primary_label: ClassVar[str] = "central"
    trial: ClassVar[Mapping[str, Any]] = {"lr_scale": 1.0}  # all samples are a few steps

    lr_scale: Annotated[float, Gt(0)] = 0.3

    def update(self, client: Client, message: Message, memory: ClientState) -> tuple[Message, ClientState]:
        """Train the model on everything."""
        slower = replace(client.sgd, lr=client.sgd.lr * self.lr_scale)
        return super().update(replace(client, sgd=slower), message, memory)
