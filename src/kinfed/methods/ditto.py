"""Ditto: Li et al. 2021, Ditto: Fair and Robust Federated Learning Through Personalization.

https://arxiv.org/abs/2012.04221
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedprox import proximal
from kinfed.methods.method import Client, ClientState, Message, Serves
from kinfed.models import ALL, Part

__all__ = ["Ditto"]


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg):
    """FedAvg plus a personal model v_i for each client, held near the global model w: min F(v) + (λ/2)‖v − w‖².

    F is the client's mean loss.

    >>> Ditto(lam=0.1).serves
    'both'

    Attributes:
        lam: Strength λ of the proximal term, ≥ 0; 0 trains the personal models alone.
    """

    space: ClassVar[Mapping[str, str]] = {"lam": "0.01,0.1,1"}
    private: ClassVar[Part] = ALL
    serves: ClassVar[Serves] = "both"
    primary: ClassVar[str] = "own"
    primary_label: ClassVar[str] = "own model"

    lam: Annotated[float, Ge(0)] = 1.0

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train v_i near the received w, then train w itself, both on the same batches."""
        client.model.load(state.tensors)  # v_i⁰ = w⁰
        self.local_training(client, before_step=proximal(message.tensors, client.model, self.lam))
        v = client.model.tensors()
        client.model.load(message.tensors)
        numbers = self.local_training(client)
        return Message(client.model.tensors(), numbers), ClientState(v)
