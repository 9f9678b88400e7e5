"""Base class of methods that divide the clients into groups, each of which is a federation of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfed.methods.aggregation import mean_of
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import (
    Client,
    ClientId,
    ClientState,
    Message,
    Method,
    NamedTensors,
    Server,
    ServerState,
    Serves,
)
from kinfed.methods.travels import OF_GROUP, Sent
from kinfed.methods.wrapper import Wrapper
from kinfed.models import Tensors, select, under

__all__ = ["GROUP", "Grouped", "mean_state", "of_group", "with_groups"]

GROUP = "group"  # name of the tensor with the number of each client's group, N, in the server's state
OWN = "group"  # name of a client's model, that of its group


@dataclass(frozen=True, kw_only=True)
class Grouped(Wrapper):
    """Clients in groups: each group works as the base does in a federation of its own.

    The server keeps the base's state for every group. With one group, models and messages are those of the base, bit
    for bit. A subclass says in `regrouped` how groups come about.
    """

    serves: ClassVar[Serves] = "private"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base.primary == "global":
            object.__setattr__(self, "primary", OWN)
            object.__setattr__(self, "primary_label", "own group's model")

    @property
    def carries_down(self) -> Sequence[Sent]:
        """The model of the client's group."""
        return [replace(sent, what=f"{sent.what}, for its group", labels=OF_GROUP) for sent in super().carries_down]

    @classmethod
    def wraps(cls, kind: type[Method]) -> bool:
        """Return True for a class whose methods read labels and send all clients the same part of a model."""
        alike = issubclass(kind, FedAvg) and kind.download is FedAvg.download and bool(kind.shared)
        return alike and kind.trains == "sampled" and kind.supervised

    @classmethod
    def needs(cls) -> str:
        """Return the reason for which other methods cannot be the base, in words."""
        return "groups need a method with labels whose server sends all clients the same part of a model"

    # -- at the server ------------------------------------------------------------------------------------------------

    def init(self, server: Server) -> ServerState:
        """Initial state: that of the base for the only group, number 0."""
        return with_groups({0: self.base.init(server)}, torch.zeros(server.clients, dtype=torch.int64))

    def download(self, state: ServerState, client: ClientId) -> Message:
        """Message of the base to a client of the group."""
        return self.base.download(of_group(state, int(state.tensors[GROUP][client])), client)

    def regrouped(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> Tensor:
        """Return the group of each client after the uploads, N; a new group has a number that was not in use.

        Args:
            server: Server in this round.
            state: State before the round.
            uploads: Usable uploads by client, one or more, in client order.
        """
        del server, uploads
        return state.tensors[GROUP]

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Form the groups, then aggregate in each one as the base does, from the state with which its clients began.

        A group that there was already goes on from its state, without the uploads of clients that have just joined it.
        A new group begins from the state, or the mean of the states, from which its clients began.
        """
        before, groups = state.tensors[GROUP], self.regrouped(server, state, uploads)
        states = {}
        for group in groups.unique().tolist():
            members = groups == group
            began = [group] if (before == group).any() else before[members].unique().tolist()
            of = mean_state(state, {former: int((before[members] == former).sum()) for former in began})
            theirs = {id: upload for id, upload in uploads.items() if members[id] and int(before[id]) in began}
            alone = replace(server, clients=int(members.sum()))
            states[group] = self.base.aggregate(alone, of, theirs) if theirs else of
        return with_groups(states, groups)

    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        """Return None: every group has a model of its own."""
        del server, state
        return None

    def groups(self, state: ServerState) -> Tensor:
        """Return the group of each client, N."""
        return state.tensors[GROUP]

    # -- at the client -------------------------------------------------------------------------------------------------

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        """Models of the client as the base has them; if these are none, the model of its group."""
        if self.primary != OWN:
            return super().evaluated(client, message, state)
        client.model.load(select(message.tensors, self.base.shared))
        return {OWN: client.model.tensors()}


def of_group(state: NamedTensors, group: int) -> ServerState:
    """Return the base's state of one group, from the state of all or from a message with it."""
    prefix = f"{GROUP}{group}."
    numbers = {name.removeprefix(prefix): of for name, of in state.numbers.items() if name.startswith(prefix)}
    return ServerState(under(prefix, state.tensors), numbers)


def mean_state(state: ServerState, sizes: Mapping[int, int]) -> ServerState:
    """Return the mean of the base's states of some groups, weighted by their numbers of clients."""
    states = [of_group(state, group) for group in sizes]
    if len(states) == 1:
        return states[0]
    shares = [size / sum(sizes.values()) for size in sizes.values()]
    return ServerState(mean_of(shares, (of.tensors for of in states)), states[0].numbers)


def with_groups(states: Mapping[int, ServerState], groups: Tensor) -> ServerState:
    """Join the base's states of all groups to one state.

    Args:
        states: State of each group, by its number.
        groups: Number of each client's group, N.
    """
    tensors = {f"{GROUP}{group}.{name}": tensor for group, of in states.items() for name, tensor in of.tensors.items()}
    numbers = {f"{GROUP}{group}.{name}": number for group, of in states.items() for name, number in of.numbers.items()}
    return ServerState({**tensors, GROUP: groups}, numbers)
