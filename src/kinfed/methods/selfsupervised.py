"""What the self-supervised methods share: the online network, its target, and local training without labels.

After EasyFL's ``applications/fedssl``, the authors' code of FedU and FedEMA (specification D).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Gt
from numpy.typing import NDArray
from torch import Tensor, nn

from kinfed.errors import InputError
from kinfed.learning import COLLAPSED, check_viewable, train_siamese
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import Client, ClientId, ClientState, Message, Server, ServerState, Site
from kinfed.models import BODY, HEAD, ONLINE, TARGET, Model, Part, Siamese, Source, Target, Tensors, select

__all__ = ["SelfSupervised", "divergence", "encoder_weights", "target_state"]

WIDER = 4  # times the representation, between the layers of projector and predictor


@dataclass(frozen=True, kw_only=True)
class SelfSupervised(FedAvg):
    """FedAvg of online networks, trained without labels: o and q travel, the target ξ stays with its client.

    Attributes:
        hidden: Width of projector and predictor between their layers; if not given, four times that of the
            representation, so that they do not cost many times what the encoder does (the papers' 4096 is eight times).
        out: Width of their outputs, the same whatever the encoder.
    """

    supervised: ClassVar[bool] = False
    adapts: ClassVar[bool] = False
    primary_label: ClassVar[str] = "linear probe, global encoder"
    shared: ClassVar[Part] = ONLINE
    trial: ClassVar[Mapping[str, Any]] = {"hidden": 32, "out": 16}

    hidden: Annotated[int, Gt(0)] | None = None
    out: Annotated[int, Gt(0)] = 128

    def check(self, models: Sequence[Model], sources: Sequence[Source], shape: tuple[int, ...]) -> None:
        """The inputs must be images of which views are made, and every body must have something to train."""
        super().check(models, sources, shape)
        check_viewable(shape)
        if not all(model.trainable(BODY) for model in models):
            raise InputError("model: all parameters of its body are frozen, and what is learned is a representation")

    def has_target(self) -> bool:
        """Whether it is BYOL, with a target; else SimSiam."""
        return True

    def online(self, site: Site) -> Siamese:
        """q(o(x)) with its initial weights, on the body of the site's model."""
        hidden = WIDER * site.model.head.in_features if self.hidden is None else self.hidden
        return Siamese(site.model, site.seed, hidden=hidden, out=self.out)

    def target(self, online: Siamese, kept: Mapping[str, Tensor]) -> Target | None:
        """ξ as the client kept it; if it kept none, at its first participation, a deep copy of o."""
        if not self.has_target():
            return None
        target = Target(online)
        target.load({name: tensor for name, tensor in kept.items() if name.startswith(TARGET)})
        return target

    def init(self, server: Server) -> ServerState:
        """The initial online network, o⁰ and q⁰."""
        return ServerState(self.online(server).tensors(self.shared))

    def update(self, client: Client, message: Message, memory: ClientState) -> tuple[Message, ClientState]:
        """Load the global o and q, train them, send them back and keep ξ."""
        online = self.online(client)
        online.load(message.tensors)
        target = self.target(online, memory.tensors)
        numbers = self.learn(client, online, target)
        return Message(online.tensors(ONLINE), numbers), ClientState(target_state(target))

    def learn(
        self,
        client: Client,
        online: Siamese,
        target: Target | None,
        term: Callable[[], Tensor | None] | None = None,
    ) -> dict[str, float]:
        """Train in place; what an upload tells of it. ``spread`` shows a collapse (`kinfed.learning.spread`)."""
        stream = client.stream("batches 0")
        tally, spread = train_siamese(online, target, client.train, client.sgd, stream, term=term)
        told = {"loss": tally.loss, "term": tally.term, "spread": spread}
        return {
            "samples": len(client.train),
            "steps": tally.steps,
            "skipped": tally.skipped,
            **({name: number for name, number in told.items() if number is not None} if tally.steps else {}),
        }

    def notes(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """How far apart the directions of each network's outputs are (`kinfed.learning.spread`)."""
        del server, state, class_counts
        told = {id: upload.numbers["spread"] for id, upload in uploads.items() if "spread" in upload.numbers}
        return {"spread": {str(id): float(spread) for id, spread in told.items()}} if told else {}

    def outcome(
        self, server: Server, lines: Sequence[Mapping[str, Any]], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Clients whose network says nearly the same of every image since it was last trained."""
        del server, class_counts
        last = {int(id): spread for line in lines for id, spread in line.get("spread", {}).items()}
        return {"collapsed": sorted(id for id, spread in last.items() if spread < COLLAPSED)}

    def upload_like(self, server: Server) -> Tensors:
        """The online network, o and q."""
        return select(self.online(server).named_tensors(), self.shared)

    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        """The averaged body; its head is the initial one."""
        return {**server.model.tensors(HEAD), **select(state.tensors, BODY)}


def target_state(target: Target | None) -> Tensors:
    """ξ as a memory keeps it."""
    return {} if target is None else target.tensors(TARGET)


def encoder_weights(online: Siamese) -> list[Tensor]:
    """Copies of the weights by which FedU and FedEMA tell how far a client has moved.

    Those of o's convolutions; where it has none, those of the body's linear layers.
    """
    modules = [*online.body.modules()]
    layers: list[nn.Conv2d | nn.Linear] = [m for m in modules if isinstance(m, nn.Conv2d)]
    layers = layers or [m for m in modules if isinstance(m, nn.Linear)]
    return [layer.weight.detach().clone() for layer in layers]


def divergence(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """d: the L2 norm of each tensor's change, mean over the tensors; 0 of none."""
    norms = [torch.linalg.vector_norm(b.double() - a.double()).item() for a, b in zip(before, after, strict=True)]
    return math.fsum(norms) / max(len(norms), 1)
