"""FedPer: Arivazhagan et al. 2019, Federated Learning with Personalization Layers.

https://arxiv.org/abs/1912.00818
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kinfed.learning import Phase, train
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import Client, ClientState, Message, Serves
from kinfed.models import BODY, HEAD, Part, Tensors

__all__ = ["FedPer"]


@dataclass(frozen=True, kw_only=True)
class FedPer(FedAvg):
    """Shared body, personal head; both are trained together."""

    shared: ClassVar[Part] = BODY
    kept: ClassVar[Part] = HEAD
    serves: ClassVar[Serves] = "private"
    primary: ClassVar[str] = "stale"
    primary_label: ClassVar[str] = "stale head"

    def head_phase(self) -> Phase:
        """How a personal head is trained on a body that stays as it is."""
        return Phase(train=HEAD)

    def evaluated(self, client: Client, message: Message, memory: ClientState) -> dict[str, Tensors]:
        """The latest body under the head as the client left it, and in the end with that head trained for it."""
        heads = super().evaluated(client, message, memory)
        if client.last_round:
            train(client.model, client.train, self.head_phase(), client.sgd, client.stream("refreshed head"))
            heads["refreshed"] = client.model.tensors()
        return heads
