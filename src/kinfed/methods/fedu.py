"""FedU: Zhuang, Gan, Wen, Zhang and Yi 2021, Collaborative Unsupervised Visual Representation Learning.

https://arxiv.org/abs/2108.06492
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from kinfed.methods.method import Client, ClientState, Message
from kinfed.methods.selfsupervised import SelfSupervised, divergence, encoder_weights, target_state
from kinfed.models import ONLINE, PREDICTOR, select

__all__ = ["FedU"]

DIVERGENCE = "divergence"


@dataclass(frozen=True, kw_only=True)
class FedU(SelfSupervised):
    """FedBYOL with divergence-aware predictor updates: a client whose encoder moved far keeps its own predictor.

    >>> FedU(threshold=0.2)
    FedU(hidden=None, out=128, threshold=0.2)

    Attributes:
        threshold: Threshold μ on the divergence d of the encoder in the client's last training, ≥ 0; if d ≥ μ, the
            predictor stays local.
    """

    threshold: Annotated[float, Ge(0)] = 0.4

    def update(self, client: Client, message: Message, memory: ClientState) -> tuple[Message, ClientState]:
        """Load the global o, and the global q if d < μ, otherwise the client's own; train; keep q, ξ and the new d."""
        online = self.online(client)
        online.load(message.tensors)
        if memory.tensors and memory.numbers[DIVERGENCE] >= self.threshold:
            online.load(select(memory.tensors, PREDICTOR))
        target = self.target(online, memory.tensors)
        before = encoder_weights(online)
        numbers = self.learn(client, online, target)
        moved = {DIVERGENCE: divergence(before, encoder_weights(online))}
        return Message(online.tensors(ONLINE), numbers), ClientState(
            {**online.tensors(PREDICTOR), **target_state(target)}, moved
        )
