"""FedProto: Tan et al. 2022, FedProto: Federated Prototype Learning across Heterogeneous Clients.

https://arxiv.org/abs/2105.00243. Letters: K classes, d the width of a representation z, c_{i,k} the mean representation
of client i's |D_{i,k}| samples of class k, c̄_k the mean over clients, called the prototype of class k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn import functional

from kinfed.errors import InputError
from kinfed.learning import Batch, Loss, Objective, features
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import Client, ClientId, ClientState, Message, Server, ServerState, Serves
from kinfed.methods.travels import OF_ALL, Sent
from kinfed.models import ALL, NOTHING, Model, Part, Source, Tensors
from kinfed.similarity.unpaired import class_means

__all__ = ["FedProto"]

PROTOTYPES, COUNTS = "prototypes", "counts"  # K×d, and the numbers of samples that they are means of, K


@dataclass(frozen=True, kw_only=True)
class FedProto(FedAvg):
    """Class prototypes instead of weights are shared: clients keep representations near the global class means.

    >>> FedProto(lam=0.5).mixes_architectures
    True

    Attributes:
        lam: Weight λ of the distance to the prototypes, ≥ 0; 0 gives local training.
        aggregation: Weights of the clients' prototypes of a class: ``counts``, their samples of this class (the paper),
            or ``uniform``, equal weights (the authors' code).
    """

    space: ClassVar[Mapping[str, str]] = {"lam": "0.1,1,4"}
    shared: ClassVar[Part] = NOTHING
    private: ClassVar[Part] = ALL
    serves: ClassVar[Serves] = "private"
    primary: ClassVar[str] = "own"
    primary_label: ClassVar[str] = "own model"
    mixes_architectures: ClassVar[bool] = True
    tells_class_counts: ClassVar[bool] = True
    unknown: ClassVar[tuple[str, ...]] = (PROTOTYPES,)

    lam: Annotated[float, Ge(0)] = 1.0
    aggregation: Literal["counts", "uniform"] = "counts"

    @property
    def carries_up(self) -> Sequence[Sent]:
        """Prototypes and numbers of samples of the client's classes."""
        return [
            Sent(("prototypes",), "mean representation of each of its classes", "K × d", "which classes it has"),
            Sent(("counts",), "number of its samples of each class", "K", "the number of each class, exactly"),
        ]

    @property
    def carries_down(self) -> Sequence[Sent]:
        """Prototypes of all clients together."""
        return [Sent(("prototypes",), "mean prototypes of all clients", "K × d", OF_ALL)]

    def check(self, models: Sequence[Model], sources: Sequence[Source], shape: tuple[int, ...]) -> None:
        """Refuse what FedAvg refuses, and models whose representations differ in width."""
        super().check(models, sources, shape)
        widths = [model.head.in_features for model in models]
        if len({*widths}) > 1:
            names = [model.recipe.get("architecture", "a model") for model in models]
            told = ", ".join(f"{name} has {width}" for name, width in zip(names, widths, strict=True))
            raise InputError(f"models: fedproto needs representations of equal width; {told}")

    def init(self, server: Server) -> ServerState:
        """Initial state: no class has a prototype (NaN)."""
        return ServerState({PROTOTYPES: torch.full_like(server.model.head.weight, torch.nan, device="cpu").detach()})

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train the client's own model near the received prototypes, and upload its class means and counts."""
        assert client.train.labels is not None
        client.model.load(state.tensors)
        numbers = self.local_training(client, self.near(message.tensors[PROTOTYPES].to(client.train.labels.device)))
        z, classes = features(client.model, client.train), client.model.head.out_features
        means = class_means(z.double(), client.train.labels, classes).to(z.dtype)
        counts = torch.bincount(client.train.labels, minlength=classes)
        return Message({PROTOTYPES: means.cpu(), COUNTS: counts.cpu()}, numbers), ClientState(client.model.tensors())

    def near(self, prototypes: Tensor) -> Objective:
        """Return the objective: cross-entropy plus the mean squared distance to the prototypes.

        CE + λ · mean (z − c̄_y)²; a sample whose class has no prototype adds 0 to the mean.

        Args:
            prototypes: Prototypes c̄, K×d, on the device of the samples; NaN for unknown ones.
        """
        known = ~prototypes.isnan()

        def loss(model: Model, batch: Batch) -> Loss:
            z = model.body(batch.inputs)
            gap = torch.where(known[batch.labels], z - prototypes[batch.labels], 0)
            return Loss(functional.cross_entropy(model.head(z), batch.labels), self.lam * gap.square().mean())

        return loss

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Average the prototypes of each class over the clients that have it; if no client has it, keep the old one.

        ``c̄_k ← Σ |D_{i,k}| c_{i,k} / Σ |D_{i,k}|``.
        """
        del server
        counts = torch.stack([upload.tensors[COUNTS] for upload in uploads.values()])
        weights = (counts if self.aggregation == "counts" else counts > 0).double()
        total = torch.zeros_like(state.tensors[PROTOTYPES], dtype=torch.float64)
        for weight, upload in zip(weights, uploads.values(), strict=True):
            total += weight[:, None] * upload.tensors[PROTOTYPES]
        mean = (total / weights.sum(dim=0)[:, None]).to(state.tensors[PROTOTYPES].dtype)
        return ServerState({PROTOTYPES: torch.where(mean.isnan(), state.tensors[PROTOTYPES], mean)})

    def upload_like(self, server: Server) -> Tensors:
        """Prototypes, K×d, and sample counts, K."""
        weight = server.model.head.weight
        return {PROTOTYPES: weight, COUNTS: torch.empty(len(weight), dtype=torch.int64)}

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        """Client's own model, and its body with a classifier by the nearest prototype of the client's classes."""
        assert client.train.labels is not None
        own = super().evaluated(client, Message(), state)
        prototypes = message.tensors[PROTOTYPES]
        held = torch.bincount(client.train.labels.cpu(), minlength=len(prototypes)) > 0
        answers = held & ~prototypes.isnan().any(dim=1)
        if client.model.head.bias is None or not answers.any():
            return own
        # argmin ‖z − c‖² is argmax 2 c·z − ‖c‖²: a linear head.
        c = torch.where(answers[:, None], prototypes, 0)
        bias = torch.where(answers, -c.square().sum(dim=1), torch.finfo(c.dtype).min)
        return {**own, "prototype": {**own[self.primary], "head.weight": 2 * c, "head.bias": bias}}
