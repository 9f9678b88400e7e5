"""FedU: Zhuang, Gan, Wen, Zhang and Yi 2021, Collaborative Unsupervised Visual Representation Learning.

https://arxiv.org/abs/2108.06492. Letters: o is the online encoder (body and projector), q the predictor, ξ the target
network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from kinfed.methods.method import Client, ClientState, Message
from kinfed.methods.selfsupervised import SelfSupervised, divergence, encoder_weights, target_state
from kinfed.models import ONLINE, PREDICTOR, select

__all__ = ["FedU"]

DIVERGENCE = "divergence"


@dataclass(frozen=True, kw_only=True)
class FedU(SelfSupervised):
    """FedBYOL in which a client keeps its own predictor if its last training changed its encoder by μ or more.

    >>> FedU(threshold=0.2)
    FedU(hidden=None, out=128, threshold=0.2)

    Attributes:
        threshold: Threshold μ ≥ 0. The change of the encoder is the divergence d: the mean of the L2 norms of the
            changes of its convolutions' weights (`kinfed.methods.selfsupervised.encoder_weights`). If d ≥ μ, the
            predictor stays local; otherwise the global one replaces it.
    """

    space: ClassVar[Mapping[str, str]] = {"threshold": "0.1,0.4"}

    threshold: Annotated[float, Ge(0)] = 0.4

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Load the global o, and the global q if d < μ, else the client's own q; train; keep q, ξ and the new d."""
        online = self.online(client)
        online.load(message.tensors)
        if state.tensors and state.numbers[DIVERGENCE] >= self.threshold:
            online.load(select(state.tensors, PREDICTOR))
        target = self.target(online, state.tensors)
        before = encoder_weights(online)
        numbers = self.learn(client, online, target)
        moved = {DIVERGENCE: divergence(before, encoder_weights(online))}
        return Message(online.tensors(ONLINE), numbers), ClientState(
            {**online.tensors(PREDICTOR), **target_state(target)}, moved
        )
