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
    """Shared body, personal head; both are trained together.

    >>> FedPer().shared, FedPer().private
    (('body.',), ('head.',))
    """

    shared: ClassVar[Part] = BODY
    private: ClassVar[Part] = HEAD
    serves: ClassVar[Serves] = "private"
    primary: ClassVar[str] = "stale"
    primary_label: ClassVar[str] = "stale head"

    @property
    def reads(self) -> frozenset[str]:
        """Fields read: those of FedAvg's variants, and ``feature_cache_mb`` for heads on a frozen body."""
        return super().reads | {"feature_cache_mb"}

    def head_phase(self) -> Phase:
        """Phase in which the personal head is trained on a frozen body."""
        return Phase(train=HEAD)

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        """Latest body with the client's last head (``stale``).

        If the client is tested further, after the last round, also the same with the head trained on the latest body
        (``refreshed``).
        """
        heads = super().evaluated(client, message, state)
        if client.tested_further:
            train(client.model, client.train, self.head_phase(), client.training, client.stream("refreshed head"))
            heads["refreshed"] = client.model.tensors()
        return heads
