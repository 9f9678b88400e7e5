"""Local SSL: every client trains alone and without labels, the reference for Hetero-SSFL (specification D.5)."""

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
    """Self-supervised learning without communication: each client trains its own network, all of them in every round.

    >>> LocalSSL(ssl="simsiam").has_target()
    False

    Attributes:
        ssl: Self-supervised loss: ``byol``, with a target network, or ``simsiam``, without one.
    """

    trains: ClassVar[Literal["sampled", "all", "pooled"]] = "all"
    shared: ClassVar[Part] = NOTHING
    private: ClassVar[Part] = ONLINE
    serves: ClassVar[Serves] = "private"
    mixes_architectures: ClassVar[bool] = True
    primary: ClassVar[str] = "own"
    primary_label: ClassVar[str] = "linear probe, own encoder"

    ssl: Literal["byol", "simsiam"] = "byol"

    def has_target(self) -> bool:
        """Return True for BYOL, which has a target network."""
        return self.ssl == "byol"

    def own(self, client: Client, state: ClientState) -> Siamese:
        """Return the client's own online network."""
        online = self.online(client)
        online.load(select(state.tensors, ONLINE))
        return online

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Continue the training of the client's own encoder o, predictor q and target ξ; upload only numbers."""
        del message
        online = self.own(client, state)
        target = self.target(online, state.tensors)
        numbers = self.learn(client, online, target)
        return Message({}, numbers), ClientState({**online.tensors(ONLINE), **target_state(target)})

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Return the state unchanged: clients upload no tensors."""
        del server, uploads
        return state

    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        """Return None: there is no global model, every client has its own."""
        del server, state
        return None

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        """Client's own body with the initial head."""
        del message
        client.model.load(select(state.tensors, BODY))
        return {self.primary: client.model.tensors()}
