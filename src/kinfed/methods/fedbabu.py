"""FedBABU: Oh, Kim and Yun 2022, Toward Enhanced Representation for Federated Image Classification.

https://arxiv.org/abs/2106.06042
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kinfed.learning import Phase
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import Server, ServerState, Serves
from kinfed.models import BODY, HEAD, Part, Tensors

__all__ = ["FedBABU"]


@dataclass(frozen=True, kw_only=True)
class FedBABU(FedAvg):
    """FedAvg of the body alone: the head keeps its initial values until the clients fine-tune the model.

    >>> FedBABU().shared
    ('body.',)
    """

    shared: ClassVar[Part] = BODY
    serves: ClassVar[Serves] = "both"
    primary_label: ClassVar[str] = "initial head"

    def phases(self) -> Sequence[Phase]:
        """One phase: the body is trained under the frozen initial head h⁰."""
        return [Phase(train=BODY)]

    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        """Return the averaged body with the initial head."""
        return {**server.model.tensors(HEAD), **state.tensors}
