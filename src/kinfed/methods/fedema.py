"""FedEMA: Zhuang, Wen and Zhang 2022, Divergence-aware Federated Self-Supervised Learning.

https://arxiv.org/abs/2204.04385. Letters: o is the online encoder (body and projector), q the predictor, ξ the target
network, d the divergence: the mean of the L2 norms of the changes of the convolutions' weights in a training.
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
    """FedBYOL with divergence-aware updates: a client starts from a moving average of its own and the global network.

    The more a client has diverged, the larger is the share of its own network.

    >>> FedEMA(autoscale=False, scale=0.5).idle
    {'tau': 'autoscale=true'}

    Attributes:
        autoscale: True to set the scale λ of each client to τ / d, where d is the divergence of its first training.
        tau: Threshold τ, ≥ 0: with ``autoscale``, the share of its own network that a client keeps at its second
            participation.
        scale: Scale λ of all clients without ``autoscale``, ≥ 0.
    """

    autoscale: bool = True
    tau: Annotated[float, Ge(0)] = 0.7
    scale: Annotated[float, Ge(0)] = 1.0

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields without effect: ``scale`` with ``autoscale``, otherwise ``tau``."""
        reads = {"tau": ("autoscale=true", self.autoscale), "scale": ("autoscale=false", not self.autoscale)}
        return {**super().idle, **unread(reads)}

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train from a moving average of the client's own and the global network.

        The start is o, q ← μ own + (1 − μ) global, with μ = min(λ d, 1). A client that did not take part in the
        previous round starts from the global network in o, q and ξ. The client keeps o, q, ξ, d, λ and the round.
        """
        online = self.online(client)
        online.load(message.tensors)
        kept: Tensors = state.tensors if state.numbers.get(ROUND) == client.round - 1 else {}
        if kept:
            mu = min(state.numbers.get(SCALE, 0.0) * state.numbers[DIVERGENCE], 1.0)
            online.load(merged(online, select(kept, ONLINE), message.tensors, mu))
        target = self.target(online, kept)
        before = encoder_weights(online)
        numbers = self.learn(client, online, target)
        moved = {**state.numbers, ROUND: client.round, DIVERGENCE: divergence(before, encoder_weights(online))}
        upload = Message(online.tensors(ONLINE), numbers)
        return upload, ClientState({**upload.tensors, **target_state(target)}, self._with_scale(moved))

    def _with_scale(self, moved: dict[str, float]) -> dict[str, float]:
        """Add the scale λ to the numbers that the client keeps; it is set once, at the first divergence above 0."""
        if not self.autoscale:
            return {**moved, SCALE: self.scale}
        if SCALE in moved or not moved[DIVERGENCE]:
            return moved
        return {**moved, SCALE: self.tau / moved[DIVERGENCE]}


def merged(online: Siamese, own: Mapping[str, Tensor], everybodys: Mapping[str, Tensor], mu: float) -> Tensors:
    """Compute the moving average of two online networks, μ own + (1 − μ) global, for all parameters not frozen.

    Buffers of BatchNorm and frozen parameters are not averaged: those of the encoder are the global ones, those of the
    predictor the client's own if μ > ½, otherwise the global ones.

    Args:
        online: Online network, which tells parameters from buffers.
        own: Tensors of the client's own network.
        everybodys: Tensors of the global network.
        mu: Share μ of the client's own network, in [0, 1].
    """
    parameters = {name for name, _ in online.named_parameters()} - online.frozen
    return {
        name: mu * mine + (1 - mu) * everybodys[name]
        if name in parameters
        else (mine if mu > 0.5 and name.startswith(PREDICTOR) else everybodys[name])
        for name, mine in own.items()
    }
