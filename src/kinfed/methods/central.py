"""Central: one model trained on everybody's data at one place. What federation gives up is measured against it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt

from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import Client, Memory, Message

__all__ = ["Central"]


@dataclass(frozen=True, kw_only=True)
class Central(FedAvg):
    """Not federated: one client holds all training data, and trains as long as the clients would.

    Attributes:
        lr_factor: What the learning rate is multiplied by. With one momentum it makes as many steps in a round as all
            clients together, so that a rate which suits clients of few steps can be too large here.
    """

    trains: ClassVar[Literal["sampled", "all", "pooled"]] = "pooled"
    tested: ClassVar[str] = "central"

    lr_factor: Annotated[float, Gt(0)] = 0.3

    def update(self, client: Client, message: Message, memory: Memory) -> tuple[Message, Memory]:
        """Train as FedAvg does, at the factor's part of the learning rate."""
        sgd = replace(client.sgd, lr=self.lr_factor * client.sgd.lr)
        return super().update(replace(client, sgd=sgd), message, memory)
