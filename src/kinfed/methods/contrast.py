"""What MOON and FedCKA share: a term that compares a client's model with the global one and with its own last one."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from kinfed.learning import Batch, Loss, Objective, cross_entropy
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import Client, ClientState, Message, unread
from kinfed.models import Model, Tensors
from kinfed.streams import seeded_globals

__all__ = ["ContrastiveBase"]


@dataclass(frozen=True, kw_only=True)
class ContrastiveBase(FedAvg):
    """FedAvg with a loss that keeps a client's representations near the global model's and off its own former ones.

    The loss is a softmax over two similarities, so it is log 2 where they are equal.

    Attributes:
        mu: Weight of the term; 0 is FedAvg.
        prev_init: What stands for the previous model at a client's first participation: the global one, whose term is
            log 2 without a gradient, or one with random weights (MOON's code).
    """

    mu: Annotated[float, Ge(0)]
    prev_init: Literal["global", "random"] = "global"

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields that would do nothing: those of the term, if its weight is 0."""
        reads = {"prev_init": ("mu above 0", self.mu > 0)}
        return {**super().idle, **unread(reads)}

    @abstractmethod
    def contrast(self, client: Client, message: Message, previous: Tensors) -> Objective:
        """Cross-entropy and the term, given the previous local model."""

    def update(self, client: Client, message: Message, memory: ClientState) -> tuple[Message, ClientState]:
        """Train the global model with the term, and keep the result as the next round's previous model."""
        client.model.load(message.tensors)
        previous = memory.tensors or (_random(client) if self.prev_init == "random" else {})
        objective = self.contrast(client, message, previous) if self.mu and previous else self._without
        numbers = self.local_training(client, objective)
        tensors = client.model.tensors()
        return Message(tensors, numbers), ClientState(tensors)

    def _without(self, model: Model, batch: Batch) -> Loss:
        """What the term is while the previous model is the global one."""
        plain = cross_entropy(model, batch)
        return Loss(plain, plain.new_tensor(self.mu * math.log(2)))


def _random(client: Client) -> Tensors:
    """The client's model with random weights of its own; what is frozen in it stays."""
    model = copy.deepcopy(client.model).cpu()  # so that every device draws the same
    with seeded_globals(client.stream("previous")):
        for name, module in model.named_modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset) and name not in model.frozen_layers:
                reset()
    return model.tensors()
