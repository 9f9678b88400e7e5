"""Common base of the self-supervised methods: the online network, its target, and local training without labels.

It follows EasyFL's ``applications/fedssl``, the authors' code of FedU and FedEMA (specification D). Letters: the online
network is q(o(x)), with the encoder o (body and projector) and the predictor q; ξ is the target network, a moving
average of o.
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
from kinfed.methods.travels import NO_LABELS, Sent
from kinfed.models import BODY, HEAD, ONLINE, TARGET, Model, Part, Siamese, Source, Target, Tensors, select

__all__ = ["SelfSupervised", "divergence", "encoder_weights", "target_state"]

WIDER = 4  # width of the hidden layers of projector and predictor, as a multiple of the representation's


@dataclass(frozen=True, kw_only=True)
class SelfSupervised(FedAvg):
    """FedAvg of online networks that are trained without labels; each client keeps its target network.

    Attributes:
        hidden: Width of the hidden layers of projector and predictor; None for four times the width of the
            representation. (The papers' 4096 is eight times that width and costs many times what a small encoder does.)
        out: Width of the outputs of projector and predictor, equal for all encoders.
    """

    supervised: ClassVar[bool] = False
    adapts: ClassVar[bool] = False
    primary_label: ClassVar[str] = "linear probe, global encoder"
    shared: ClassVar[Part] = ONLINE
    trial: ClassVar[Mapping[str, Any]] = {"hidden": 32, "out": 16}

    hidden: Annotated[int, Gt(0)] | None = None
    out: Annotated[int, Gt(0)] = 128

    @property
    def carries_up(self) -> Sequence[Sent]:
        """The shared part after local training, and how far its outputs spread."""
        return [*super().carries_up, Sent(("spread",), "spread of the network's outputs", "1", NO_LABELS)]

    def check(self, models: Sequence[Model], sources: Sequence[Source], shape: tuple[int, ...]) -> None:
        """Refuse inputs from which no views can be made, and models without a trainable parameter in the body."""
        super().check(models, sources, shape)
        check_viewable(shape)
        if not all(model.trainable(BODY) for model in models):
            raise InputError("model: all parameters of its body are frozen, so that no representation can be learned")

    def has_target(self) -> bool:
        """Return True for BYOL, which has a target network; False for SimSiam."""
        return True

    def online(self, site: Site) -> Siamese:
        """Make the online network q(o(x)) with its initial weights on the body of the site's model."""
        hidden = WIDER * site.model.head.in_features if self.hidden is None else self.hidden
        return Siamese(site.model, site.seed, hidden=hidden, out=self.out)

    def network(self, site: Site) -> Model:
        """Return the online network q(o(x))."""
        return self.online(site)

    def target(self, online: Siamese, kept: Mapping[str, Tensor]) -> Target | None:
        """Return the target ξ that the client kept; at its first participation a deep copy of o; None for SimSiam."""
        if not self.has_target():
            return None
        target = Target(online)
        target.load({name: tensor for name, tensor in kept.items() if name.startswith(TARGET)})
        return target

    def init(self, server: Server) -> ServerState:
        """Initial state: the initial online network, o⁰ and q⁰."""
        return ServerState(self.online(server).tensors(self.shared))

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Load the global o and q, train them, upload them and keep ξ."""
        online = self.online(client)
        online.load(message.tensors)
        target = self.target(online, state.tensors)
        numbers = self.learn(client, online, target)
        return Message(online.tensors(ONLINE), numbers), ClientState(target_state(target))

    def learn(
        self,
        client: Client,
        online: Siamese,
        target: Target | None,
        term: Callable[[], Tensor | None] | None = None,
    ) -> dict[str, float]:
        """Train the online network in place, and return the numbers of the upload.

        Args:
            client: Client that trains.
            online: Online network, on the body of the client's model.
            target: Target network; None for SimSiam.
            term: Function for the term that the method adds to the loss of a step; None, or its result None, for no
                term.

        Returns:
            ``samples``, ``steps`` and ``skipped`` samples; with at least one step also ``loss``, ``spread``, which
            shows a collapse (`kinfed.learning.spread`), and ``term`` if there is one.
        """
        stream = client.stream("batches 0")
        tally, spread = train_siamese(online, target, client.train, client.training, stream, term=term)
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
        """Return ``spread``: by client, `kinfed.learning.spread` of its network's outputs, near 0 at a collapse."""
        del server, state, class_counts
        told = {id: upload.numbers["spread"] for id, upload in uploads.items() if "spread" in upload.numbers}
        return {"spread": {str(id): float(spread) for id, spread in told.items()}} if told else {}

    def outcome(
        self, server: Server, lines: Sequence[Mapping[str, Any]], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Return ``collapsed``, the clients whose network has collapsed, and ``spread``, the clients' mean one.

        Both are of each client's last training. A network that has collapsed gave nearly equal outputs for all images.
        """
        del server, class_counts
        last = {int(id): spread for line in lines for id, spread in line.get("spread", {}).items()}
        return {
            "collapsed": sorted(id for id, spread in last.items() if spread < COLLAPSED),
            "spread": math.fsum(last.values()) / len(last) if last else None,
        }

    def upload_like(self, server: Server) -> Tensors:
        """Tensors of the online network, o and q."""
        return select(self.online(server).named_tensors(), self.shared)

    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        """Return the averaged body with the initial head."""
        return {**server.model.tensors(HEAD), **select(state.tensors, BODY)}


def target_state(target: Target | None) -> Tensors:
    """Tensors of the target ξ for the client's state; empty without a target."""
    return {} if target is None else target.tensors(TARGET)


def encoder_weights(online: Siamese) -> list[Tensor]:
    """Copy the weights from which FedU and FedEMA compute the divergence of a client.

    These are the weights of the body's convolutions or, if it has none, of its linear layers.
    """
    modules = [*online.body.modules()]
    layers: list[nn.Conv2d | nn.Linear] = [m for m in modules if isinstance(m, nn.Conv2d)]
    layers = layers or [m for m in modules if isinstance(m, nn.Linear)]
    return [layer.weight.detach().clone() for layer in layers]


def divergence(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Compute the divergence d of a network: the mean of the L2 norms of the changes of its tensors; 0 without tensors.

    >>> divergence([torch.zeros(2), torch.zeros(1)], [torch.tensor([3.0, 4.0]), torch.ones(1)])
    3.0
    """
    norms = [torch.linalg.vector_norm(b.double() - a.double()).item() for a, b in zip(before, after, strict=True)]
    return math.fsum(norms) / max(len(norms), 1)
