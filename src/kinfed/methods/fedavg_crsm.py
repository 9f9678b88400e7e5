"""FedAvg with aggregation by FedSHIBU's client representation similarity matrix, CRSM (its Algorithm 4, Figure 5).

A client's mixture is the mean of the uploads, weighted by similarity to this client. The printed algorithm resets the
head, is named an update of the body, and returns one model although every client has its own mixture.
Specification C.5 says how kinfed resolves this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kinfed.methods.crsm import CRSMMixing
from kinfed.methods.method import Client, ClientState, Message
from kinfed.models import BODY, HEAD, Tensors, select

__all__ = ["FedAvgCRSM"]


@dataclass(frozen=True, kw_only=True)
class FedAvgCRSM(CRSMMixing):
    """FedAvg with a mixture for each client: whole models are trained and mixed by similarity of representations.

    >>> FedAvgCRSM(norm="sum", layers="last").requires.public_images
    True

    Attributes:
        mix_head: True to mix the heads too; False to give each client its own head back.
        reset_head: True to start local training from the initial head (as printed in Algorithm 4).
    """

    mix_head: bool = True
    reset_head: bool = False

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train all parameters of the client's mixture, with the initial head if ``reset_head`` is set."""
        start = Message(select(message.tensors, BODY)) if self.reset_head else message
        return super().update(client, start, state)

    def mixed(self, sent: Sequence[Tensors], weights: Tensor) -> Tensors:
        """Mix all tensors, or all but the heads, which stay with their clients."""
        if self.mix_head:
            return super().mixed(sent, weights)
        own = {name: torch.stack([tensors[name] for tensors in sent]) for name in select(sent[0], HEAD)}
        return {**super().mixed([select(tensors, BODY) for tensors in sent], weights), **own}
