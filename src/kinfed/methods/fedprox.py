"""FedProx: Li et al. 2020, Federated Optimization in Heterogeneous Networks.

https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge

from kinfed.learning import BeforeStep
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import Client, ClientState, Message
from kinfed.models import Model, Tensors

__all__ = ["FedProx", "proximal"]


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term that holds each client near the global model w^t: F(w) + (μ/2)‖w − w^t‖².

    F is the client's mean loss, w the model that it trains.

    >>> FedProx(mu=1.0)
    FedProx(mu=1.0)

    Attributes:
        mu: Strength μ of the proximal term, ≥ 0; 0 gives FedAvg.
    """

    space: ClassVar[Mapping[str, str]] = {"mu": "0.001,0.01,0.1,1"}

    mu: Annotated[float, Ge(0)] = 0.1

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train with μ(w − w^t) added to every gradient; the term does not hold BatchNorm statistics."""
        del state
        client.model.load(message.tensors)
        numbers = self.local_training(client, before_step=proximal(message.tensors, client.model, self.mu))
        return Message(client.model.tensors(), numbers), ClientState()


def proximal(anchor: Tensors, model: Model, strength: float) -> BeforeStep:
    """Return a function that adds strength · (w − anchor) to the gradients of the model's parameters w.

    Args:
        anchor: Tensors to stay near, by name.
        model: Model that is trained.
        strength: Strength of the proximal term (μ or λ), ≥ 0.
    """
    centre = {name: torch.empty_like(p).copy_(anchor[name]) for name, p in model.named_parameters()}

    def pull(weights: Tensors, gradients: Tensors) -> None:
        away = torch._foreach_sub([*weights.values()], [centre[name] for name in weights])
        torch._foreach_add_([*gradients.values()], away, alpha=strength)

    return pull
