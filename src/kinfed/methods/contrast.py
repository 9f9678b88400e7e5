"""Common base of MOON and FedCKA: a loss term that compares the local, the global and the previous local model."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from kinfed.learning import Batch, Loss, Objective, cross_entropy
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import Client, ClientState, Message, unread
from kinfed.models import Model, Tensors, reinitialised

__all__ = ["ContrastiveBase"]


@dataclass(frozen=True, kw_only=True)
class ContrastiveBase(FedAvg):
    """FedAvg with a contrastive term: local representations near the global model's, far from the previous local ones.

    The term is the cross-entropy of a softmax over the two similarities; if they are equal, it is log 2.

    Attributes:
        mu: Weight μ of the term, ≥ 0; 0 gives FedAvg.
        prev_init: Previous local model at a client's first participation: ``global``, the global model, with the
            constant term log 2 and no gradient; ``random``, a model with random weights (MOON's code).
    """

    mu: Annotated[float, Ge(0)]
    prev_init: Literal["global", "random"] = "global"

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields without effect: those of the term, if its weight is 0."""
        reads = {"prev_init": ("mu above 0", self.mu > 0)}
        return {**super().idle, **unread(reads)}

    @property
    def reads(self) -> frozenset[str]:
        """Fields read: those of FedAvg, and ``feature_cache_mb`` if frozen models are compared."""
        return super().reads | ({"feature_cache_mb"} if self.mu > 0 else set())

    @abstractmethod
    def contrast(self, client: Client, message: Message, previous: Tensors) -> Objective:
        """Return the objective: cross-entropy plus the term.

        Args:
            client: Client that trains.
            message: Message with the tensors of the global model.
            previous: Tensors of the previous local model.
        """

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train the global model with the term, and keep the result as the client's previous model."""
        client.model.load(message.tensors)
        previous = state.tensors or (_random(client) if self.prev_init == "random" else {})
        objective = self.contrast(client, message, previous) if self.mu and previous else self._without
        numbers = self.local_training(client, objective)
        tensors = client.model.tensors()
        return Message(tensors, numbers), ClientState(tensors)

    def _without(self, model: Model, batch: Batch) -> Loss:
        """Cross-entropy plus the constant μ log 2, the value of the term if the previous model is the global one."""
        plain = cross_entropy(model, batch)
        return Loss(plain, plain.new_tensor(self.mu * math.log(2)))


def _random(client: Client) -> Tensors:
    """Random tensors for the client's model, different for every client; permanently frozen layers do not change."""
    return reinitialised(client.model, client.stream("previous")).tensors()
