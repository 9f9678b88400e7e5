"""FedAvg with personalised aggregation by FedSHIBU's similarity matrix (its Algorithm 4 and Figure 5).

The printed algorithm resets the head, calls itself an update of the body, and returns one model although the mixture is
per client; specification C.5 says how it is read here.
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
    """Whole models are trained, and each client gets its own mixture of them.

    Attributes:
        mix_head: Whether heads are mixed too; if not, each client gets its own back.
        reset_head: Whether local training starts from the initial head (as Algorithm 4 prints).
    """

    mix_head: bool = True
    reset_head: bool = False

    def update(self, client: Client, message: Message, memory: ClientState) -> tuple[Message, ClientState]:
        """Train all of the client's mixture."""
        start = Message(select(message.tensors, BODY)) if self.reset_head else message
        return super().update(client, start, memory)

    def mixed(self, sent: Sequence[Tensors], weights: Tensor) -> Tensors:
        """Every tensor mixed, or the head left to whom it belongs."""
        if self.mix_head:
            return super().mixed(sent, weights)
        own = {name: torch.stack([tensors[name] for tensors in sent]) for name in select(sent[0], HEAD)}
        return {**super().mixed([select(tensors, BODY) for tensors in sent], weights), **own}
