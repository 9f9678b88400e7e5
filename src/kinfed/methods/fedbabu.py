"""FedBABU: Oh, Kim and Yun 2022, Toward Enhanced Representation for Federated Image Classification.

https://arxiv.org/abs/2106.06042
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt

from kinfed.learning import Phase, train
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import Client, Memory, Message, Server, State
from kinfed.models import ALL, BODY, HEAD, Part, Tensors

__all__ = ["FedBABU"]

PARTS: dict[str, Part] = {"body": BODY, "head": HEAD, "full": ALL}


@dataclass(frozen=True, kw_only=True)
class FedBABU(FedAvg):
    """Only the body is trained and averaged; the head stays as it was initialised, and is fine-tuned at the end.

    Attributes:
        ft_epochs: Epochs of each client's fine-tuning after the last round; 0 leaves it out.
        ft_lr: Its step size.
        ft_part: What it trains (the authors' notebook: full).
    """

    shared: ClassVar[Part] = BODY
    personal: ClassVar[bool] = True
    tested: ClassVar[str] = "initial head"

    ft_epochs: Annotated[int, Ge(0)] = 5
    ft_lr: Annotated[float, Gt(0)] = 1e-3
    ft_part: Literal["body", "head", "full"] = "full"

    def phases(self) -> Sequence[Phase]:
        """The head is frozen at h⁰."""
        return [Phase(train=BODY)]

    def global_model(self, server: Server, state: State) -> Tensors | None:
        """The averaged body under the initial head."""
        return {**server.model.tensors(HEAD), **state.tensors}

    def evaluated(self, client: Client, message: Message, memory: Memory) -> dict[str, Tensors]:
        """After the last round: a copy that the client has fine-tuned on its own training samples."""
        del memory
        if not (client.last_round and self.ft_epochs):
            return {}
        client.model.load(message.tensors)
        phase = Phase(train=PARTS[self.ft_part], epochs=self.ft_epochs, lr=self.ft_lr)
        train(client.model, client.train, phase, client.sgd, client.stream("fine-tuning"))
        return {"fine_tuned": client.model.tensors()}
