"""Base class of wrappers: methods that add something to another method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kinfed.errors import InputError
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import (
    Client,
    ClientId,
    ClientState,
    Message,
    Method,
    Requirements,
    Server,
    ServerState,
)
from kinfed.methods.picture import Picture
from kinfed.methods.travels import Sent
from kinfed.models import Model, Source, Tensors

__all__ = ["Wrapper"]

# Declarations that a wrapper takes over from its base, unless it has its own.
DECLARED = (
    "trains", "serves", "primary", "primary_label", "supervised", "adapts", "mixes_architectures", "unknown", "ceiling",
    "trains_head_alone", "optimizers", "tells_class_counts",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Wrapper(Method):
    """Method that adds something to another method, its base; without additions of its own it works as the base does.

    By name, ``WRAPPER+NAME`` wraps another method, and ``WRAPPER`` alone FedAvg.

    Attributes:
        base: Method that is wrapped.
    """

    base: FedAvg = field(default=FedAvg(), kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.wraps(type(self.base)):
            raise InputError(f"base: {self.base!r} is not allowed; {self.needs()}")
        for name in DECLARED:  # set on the object, since they differ from base to base
            if getattr(type(self), name) == getattr(Method, name):
                object.__setattr__(self, name, getattr(self.base, name))
        object.__setattr__(self, "space", {**self.base.space, **type(self).space})

    @classmethod
    def wraps(cls, kind: type[Method]) -> bool:
        """Return True if the methods of a class can be the base."""
        return issubclass(kind, FedAvg)

    @classmethod
    def needs(cls) -> str:
        """Return the reason for which other methods cannot be the base, in words."""
        return "it needs a method of FedAvg's kind"

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields of the base without effect."""
        return self.base.idle

    @property
    def requires(self) -> Requirements:
        """Requirements of the base."""
        return self.base.requires

    @property
    def reads(self) -> frozenset[str]:
        """Fields that the base reads."""
        return self.base.reads

    @property
    def unwrapped(self) -> Method:
        """Method inside all wrappers."""
        return self.base.unwrapped

    @property
    def carries_up(self) -> Sequence[Sent]:
        """What clients of the base send."""
        return self.base.carries_up

    @property
    def carries_down(self) -> Sequence[Sent]:
        """What clients of the base receive."""
        return self.base.carries_down

    def check(self, models: Sequence[Model], sources: Sequence[Source], shape: tuple[int, ...]) -> None:
        """Refuse what the base refuses."""
        self.base.check(models, sources, shape)

    # -- at the server ------------------------------------------------------------------------------------------------

    def init(self, server: Server) -> ServerState:
        """Initial state of the base."""
        return self.base.init(server)

    def download(self, state: ServerState, client: ClientId) -> Message:
        """Message of the base."""
        return self.base.download(state, client)

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Aggregate as the base does."""
        return self.base.aggregate(server, state, uploads)

    def upload_like(self, server: Server) -> Tensors:
        """Tensors that the base uploads."""
        return self.base.upload_like(server)

    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        """Global model of the base."""
        return self.base.global_model(server, state)

    def greeting(self, state: ServerState) -> Message | None:
        """Greeting of the base."""
        return self.base.greeting(state)

    def group_of_new(self, server: Server, state: ServerState, upload: Message) -> int:
        """Group as the base finds it."""
        return self.base.group_of_new(server, state, upload)

    def extra_download_bytes(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> int:
        """Extra bytes of the base."""
        return self.base.extra_download_bytes(server, state, uploads)

    # -- for metrics and reports --------------------------------------------------------------------------------------

    def notes(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Notes of the base."""
        return self.base.notes(server, state, uploads, class_counts)

    def groups(self, state: ServerState) -> Tensor | None:
        """Groups of the base."""
        return self.base.groups(state)

    def pictures(self, state: ServerState) -> Mapping[str, Picture]:
        """Pictures of the base."""
        return self.base.pictures(state)

    def outcome(
        self, server: Server, lines: Sequence[Mapping[str, Any]], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Entries of the base for ``summary.json``."""
        return self.base.outcome(server, lines, class_counts)

    # -- at the client -------------------------------------------------------------------------------------------------

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train as the base does."""
        return self.base.update(client, message, state)

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        """Models of the client as the base has them."""
        return self.base.evaluated(client, message, state)
