"""IFCA: Ghosh et al. 2020, An Efficient Framework for Clustered Federated Learning.

https://arxiv.org/abs/2006.04088
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge

from kinfed.learning import losses
from kinfed.methods.grouped import GROUP, Grouped, of_group, with_groups
from kinfed.methods.method import Client, ClientId, ClientState, Message, Server, ServerState
from kinfed.methods.travels import OF_ALL, Sent
from kinfed.models import Tensors, reinitialised, select
from kinfed.streams import torch_stream

__all__ = ["IFCA"]

CHOSEN = "chosen"  # name of the number of the chosen model in an upload


@dataclass(frozen=True, kw_only=True)
class IFCA(Grouped):
    """Every client gets k models, trains the one with the least loss on its own data, and joins this one's group.

    The models are averaged in each group (the paper's model averaging). They begin with different random weights.

    >>> IFCA(k=2).serves
    'private'

    Attributes:
        k: Number of models, ≥ 1; the paper gives it the true number of groups.
    """

    space: ClassVar[Mapping[str, str]] = {"k": "2,3,4,6"}

    k: Annotated[int, Ge(1)] = 4

    @property
    def carries_up(self) -> Sequence[Sent]:
        """What the base's clients send, and the chosen group."""
        return [
            *super().carries_up,
            Sent((CHOSEN,), "group whose model fits best", "1", "which clients have like ones"),
        ]

    @property
    def carries_down(self) -> Sequence[Sent]:
        """The models of all groups."""
        return [Sent((GROUP,), "models of all groups", "groups × the model", OF_ALL)]

    def init(self, server: Server) -> ServerState:
        """Initial state: k models, the common initial one and others with new random weights."""
        states = {0: self.base.init(server)}
        for group in range(1, self.k):
            model = reinitialised(server.model, torch_stream(server.seed, "ifca", group))
            states[group] = self.base.init(replace(server, model=model))
        return with_groups(states, torch.zeros(server.clients, dtype=torch.int64))

    def download(self, state: ServerState, client: ClientId) -> Message:
        """Message with all k models."""
        del client
        return Message({name: tensor for name, tensor in state.tensors.items() if name != GROUP})

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Aggregate each model over the clients that chose it; a choice that does not exist is left out."""
        groups = state.tensors[GROUP].clone()
        chosen = {id: upload.numbers.get(CHOSEN, -1.0) for id, upload in uploads.items()}
        for id, group in chosen.items():
            if group in range(self.k):
                groups[id] = int(group)
        states = {}
        for group in range(self.k):
            of, theirs = of_group(state, group), {id: uploads[id] for id in uploads if chosen[id] == group}
            alone = replace(server, clients=int((groups == group).sum()))
            states[group] = self.base.aggregate(alone, of, theirs) if theirs else of
        return with_groups(states, groups)

    # -- at the client -------------------------------------------------------------------------------------------------

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Choose the model with the least loss, train it as the base does, and send the choice with it."""
        chosen, own = self.chosen(client, message, state)
        upload, state = self.base.update(client, own, state)
        return replace(upload, numbers={**upload.numbers, CHOSEN: chosen}), state

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        """Models of the client with the model that it would choose."""
        _, own = self.chosen(client, message, state)
        return super().evaluated(client, own, state)

    def chosen(self, client: Client, message: Message, state: ClientState) -> tuple[int, Message]:
        """Return the number of the model with the least mean loss on the client's training samples, and its message."""
        initial = client.model.tensors()
        private = select(state.tensors, self.base.private)
        messages, means = [], []
        for group in range(self.k):
            of = of_group(message, group)
            messages.append(Message(of.tensors, of.numbers))
            client.model.load({**private, **select(of.tensors, self.base.shared)})
            means.append(losses(client.model, client.train).mean().item())
        client.model.load(initial)
        best = min(range(self.k), key=lambda group: means[group] if math.isfinite(means[group]) else math.inf)
        return best, messages[best]
