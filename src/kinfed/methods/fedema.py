"""FedEMA: Zhuang, Wen and Zhang 2022, Divergence-aware Federated Self-Supervised Learning.

https://arxiv.org/abs/2204.04385
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from kinfed.methods.method import Client, ClientState, Message, unread
from kinfed.methods.selfsupervised import SelfSupervised, divergence, encoder_weights, target_state
from kinfed.models import ONLINE, PREDICTOR, Siamese, Tensors, select

__all__ = ["FedEMA", "merged"]

DIVERGENCE, SCALE, ROUND = "divergence", "scale", "round"


@dataclass(frozen=True, kw_only=True)
class FedEMA(SelfSupervised):
    """FedBYOL whose clients move from their own network to the global one, the less the more they have diverged.

    Attributes:
        autoscale: Whether λ is the client's own, τ / d with the d of its first training.
        tau: τ, then the share of its own network that a client keeps at its second participation.
        scale: λ of everybody, if not.
    """

    autoscale: bool = True
    tau: Annotated[float, Ge(0)] = 0.7
    scale: Annotated[float, Ge(0)] = 1.0

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields that would do nothing: the scale or the threshold that sets it."""
        reads = {"tau": ("autoscale=true", self.autoscale), "scale": ("autoscale=false", not self.autoscale)}
        return {**super().idle, **unread(reads)}

    def update(self, client: Client, message: Message, memory: ClientState) -> tuple[Message, ClientState]:
        """With μ = min(λ d, 1): o, q ← μ own + (1 − μ) global. A client that was not here last round starts anew.

        Then its o, q and ξ are the global ones. It trains, and keeps o, q, ξ, d, λ and the round.
        """
        online = self.online(client)
        online.load(message.tensors)
        kept: Tensors = memory.tensors if memory.numbers.get(ROUND) == client.round - 1 else {}
        if kept:
            mu = min(memory.numbers.get(SCALE, 0.0) * memory.numbers[DIVERGENCE], 1.0)
            online.load(merged(online, select(kept, ONLINE), message.tensors, mu))
        target = self.target(online, kept)
        before = encoder_weights(online)
        numbers = self.learn(client, online, target)
        moved = {**memory.numbers, ROUND: client.round, DIVERGENCE: divergence(before, encoder_weights(online))}
        upload = Message(online.tensors(ONLINE), numbers)
        return upload, ClientState({**upload.tensors, **target_state(target)}, self._with_scale(moved))

    def _with_scale(self, moved: dict[str, float]) -> dict[str, float]:
        """λ is fixed when a d is known for the first time."""
        if not self.autoscale:
            return {**moved, SCALE: self.scale}
        if SCALE in moved or not moved[DIVERGENCE]:
            return moved
        return {**moved, SCALE: self.tau / moved[DIVERGENCE]}


def merged(online: Siamese, own: Mapping[str, Tensor], everybodys: Mapping[str, Tensor], mu: float) -> Tensors:
    """μ own + (1 − μ) global of all parameters; BatchNorm's buffers, and what is frozen, are taken whole.

    Those of o are the global ones, those of q the own if μ > ½.
    """
    parameters = {name for name, _ in online.named_parameters()} - online.frozen
    return {
        name: mu * mine + (1 - mu) * everybodys[name]
        if name in parameters
        else (mine if mu > 0.5 and name.startswith(PREDICTOR) else everybodys[name])
        for name, mine in own.items()
    }
