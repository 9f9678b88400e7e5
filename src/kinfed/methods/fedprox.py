"""FedProx: Li et al. 2020, Federated Optimization in Heterogeneous Networks.

https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import Client, Memory, Message

__all__ = ["FedProx"]


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg, but each client is held near the global model w^t: its loss is F(w) + (μ/2)‖w − w^t‖².

    Attributes:
        mu: μ, how hard it is held; 0 is FedAvg.
    """

    mu: Annotated[float, Ge(0)] = 0.1

    def update(self, client: Client, message: Message, memory: Memory) -> tuple[Message, Memory]:
        """Train with μ(w − w^t) added to every gradient; BatchNorm statistics are free."""
        del memory
        client.model.load(message.tensors)
        anchor = [parameter.detach().clone() for parameter in client.model.parameters()]

        def pull(weights: list[Tensor], gradients: list[Tensor]) -> None:
            torch._foreach_add_(gradients, torch._foreach_sub(weights, anchor), alpha=self.mu)

        numbers = self.local_training(client, before_step=pull)
        return Message(client.model.tensors(), numbers), Memory()
