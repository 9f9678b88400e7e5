"""Local SSL: every client learns alone, without labels. What Hetero-SSFL must beat (specification D.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from kinfed.methods.method import Client, ClientId, ClientState, Message, Server, ServerState, Serves
from kinfed.methods.selfsupervised import SelfSupervised, target_state
from kinfed.models import BODY, NOTHING, ONLINE, Part, Siamese, Tensors, select

__all__ = ["LocalSSL"]


@dataclass(frozen=True, kw_only=True)
class LocalSSL(SelfSupervised):
    """No communication: each client trains an online network of its own, all of them in every round.

    Attributes:
        ssl: What it learns by.
    """

    trains: ClassVar[Literal["sampled", "all", "pooled"]] = "all"
    shared: ClassVar[Part] = NOTHING
    kept: ClassVar[Part] = ONLINE
    serves: ClassVar[Serves] = "private"
    mixes_architectures: ClassVar[bool] = True
    primary: ClassVar[str] = "own"
    primary_label: ClassVar[str] = "linear probe, own encoder"

    ssl: Literal["byol", "simsiam"] = "byol"

    def has_target(self) -> bool:
        """BYOL has one."""
        return self.ssl == "byol"

    def own(self, client: Client, memory: ClientState) -> Siamese:
        """The client's online network as it kept it."""
        online = self.online(client)
        online.load(select(memory.tensors, ONLINE))
        return online

    def update(self, client: Client, message: Message, memory: ClientState) -> tuple[Message, ClientState]:
        """Go on with one's own o, q and ξ."""
        del message
        online = self.own(client, memory)
        target = self.target(online, memory.tensors)
        numbers = self.learn(client, online, target)
        return Message({}, numbers), ClientState({**online.tensors(ONLINE), **target_state(target)})

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Nothing came."""
        del server, uploads
        return state

    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        """None: every client has its own."""
        del server, state
        return None

    def evaluated(self, client: Client, message: Message, memory: ClientState) -> dict[str, Tensors]:
        """The client's own body; its head is the initial one."""
        del message
        client.model.load(select(memory.tensors, BODY))
        return {self.primary: client.model.tensors()}
