"""FedSHIBU's client representation similarity matrix (CRSM) and personalised aggregation by it (specification C.4).

Letters: N clients, m participants of the round, K classes, s samples, d the width of a representation. θ_i are the
tensors that client i uploads, A_i its representations, C the CRSM, W the weights, and θ̄_i its mixture, the weighted
mean of the uploads that it receives.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from torch import Tensor

from kinfed.data.samples import Samples
from kinfed.errors import InputError
from kinfed.learning import activations, class_overlap, features, rank_correlation
from kinfed.methods.aggregation import mix
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import (
    Client,
    ClientId,
    ClientState,
    Message,
    Requirements,
    Server,
    ServerState,
    Serves,
    unread,
)
from kinfed.methods.picture import Picture
from kinfed.models import BODY, HEAD, Model, Part, Tensors, select
from kinfed.similarity import MEASURES, BiasedSimilarityWarning, Gram, Measure, class_means, similarity_matrix

__all__ = ["CRSMMixing"]

CRSM, WEIGHTS = "crsm", "weights"
OWN_SAMPLES = "representation"  # name of the representations of a client's own samples in its upload
WITHOUT_CKA = {"local_feature_cov": "feature_cov", "local_class_mean": "class_mean"}
RepSource = Literal["probe", "local_random", "local_sorted", "local_feature_cov", "local_class_mean"]
Compared = Literal["representation", "change", "prediction", "mean_prediction"]
Norm = Literal["distance", "sum", "minmax", "softmax", "topk", "power"]


@dataclass(frozen=True, kw_only=True)
class CRSMMixing(FedAvg):
    """Personalised aggregation: each client receives a mean of the uploads, weighted by similarity of representations.

    Attributes:
        rep_source: Samples whose representations are compared. ``probe``: the server's public images. The other choices
            take ``samples`` of a client's own samples, and the client uploads their representations or class means:
            ``local_random`` (Algorithm 2, which pairs unrelated rows), ``local_sorted`` by label,
            ``local_feature_cov``, and ``local_class_mean``, which reveals the client's classes to the server.
        compared: Quantity that is compared on the public images: the representation, its change in this round, the
            predictions of the head (all three by CKA), or the mean prediction (by cosine).
        layers: ``last``: one similarity, that of the representations, for all tensors (the paper). ``each``: for every
            stage of the body the similarity of its own outputs, so that all clients share the similar early stages, and
            similar clients the late ones. With predictions or own samples there is only one similarity, as in ``last``.
        samples: Number s of a client's own samples in each round, ≥ 4.
        kernel: Kernel of the CKA.
        debiased: True for debiased CKA, which is 0 on average for unrelated representations.
        norm: Function that turns a row C of the CRSM into weights, which are then divided by their sum. ``sum`` (the
            paper): C itself; ``minmax``: C scaled to [0, 1]; ``softmax``: exp(C / temperature); ``power``: C^gamma;
            ``topk``: 1 for the client and the k most similar others, 0 for the rest; ``distance``:
            exp(-(1 - C) / (reach · d)), where d is the row's mean of 1 - C over the others at the last stage, which
            adapts the scale to the clients.
        reach: Scale of ``distance``, > 0; smaller values give more weight to the client's own model.
        temperature: Temperature of ``softmax``, > 0.
        gamma: Exponent of ``power``, > 0.
        k: Number of most similar other clients in ``topk``.
        include_self: True if a client's own upload is part of its mixture (Algorithm 3; the paper's text excludes it).
        size_weights: True to multiply the weights by the clients' sample counts.
    """

    serves: ClassVar[Serves] = "private"
    primary: ClassVar[str] = "mixture"
    primary_label: ClassVar[str] = "own mixture"
    unknown: ClassVar[tuple[str, ...]] = (CRSM, WEIGHTS)

    rep_source: RepSource = "probe"
    compared: Compared = "representation"
    layers: Literal["last", "each"] = "each"
    samples: Annotated[int, Ge(4)] = 100
    kernel: Literal["linear", "rbf"] = "linear"
    debiased: bool = False
    norm: Norm = "distance"
    reach: Annotated[float, Gt(0)] = 0.2
    temperature: Annotated[float, Gt(0)] = 0.05
    gamma: Annotated[float, Gt(0)] = 4.0
    k: Annotated[int, Ge(1)] = 3
    include_self: bool = True
    size_weights: bool = False

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields without effect: those of another ``norm`` or ``rep_source``."""
        reads = {
            "reach": ("norm=distance", self.norm == "distance"),
            "temperature": ("norm=softmax", self.norm == "softmax"),
            "gamma": ("norm=power", self.norm == "power"),
            "k": ("norm=topk", self.norm == "topk"),
            "samples": ("a rep_source of the clients' own samples", self.rep_source != "probe"),
            "layers": (
                "rep_source=probe with compared=representation or compared=change",
                self.layers == "last" or (self.rep_source == "probe" and "prediction" not in self.compared),
            ),
        }
        return {**super().idle, **unread(reads)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rep_source != "probe" and self.compared != "representation":
            raise InputError(
                f"compared: {self.compared!r} is not allowed with rep_source {self.rep_source!r}; it "
                "needs public images"
            )
        plain = self.kernel == "linear" and not self.debiased
        if not plain and (self.compared == "mean_prediction" or self.rep_source in WITHOUT_CKA):
            raise InputError("kernel, debiased: are options of CKA, which this similarity does not use; leave them out")

    @property
    def requires(self) -> Requirements:
        """Public images at the server, if ``rep_source`` is ``probe``."""
        return Requirements(public_images=self.rep_source == "probe")

    # -- at the server ------------------------------------------------------------------------------------------------

    def init(self, server: Server) -> ServerState:
        """Initial state: the initial model as the mixture of every client, N×… each; all similarities unknown (NaN)."""
        initial = server.model.tensors(self.shared)
        unknown = torch.full((server.clients, server.clients), torch.nan, dtype=torch.float64)
        mixtures = {name: tensor.expand(server.clients, *tensor.shape) for name, tensor in initial.items()}
        return ServerState({**mixtures, CRSM: unknown, WEIGHTS: unknown})

    def download(self, state: ServerState, client: ClientId) -> Message:
        """Message with the client's own mixture θ̄_i."""
        return Message({name: rows[client] for name, rows in _mixtures(state).items()})

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Compute the CRSM and from it the mixture of each participant; the other clients keep theirs.

        C_ij = SimMet(A_i, A_j), θ̄_i ← Σ_j W_ij θ_j, where SimMet is the similarity measure that the fields select.
        """
        counts = torch.tensor([upload.numbers["samples"] for upload in uploads.values()], dtype=torch.float64)
        sent = [select(upload.tensors, self.shared) for upload in uploads.values()]
        parts = self._parts(server.model)
        seen = self._seen(server, state, uploads, [*parts])
        mixed: Tensors = {}
        similarities = {tap: self._similarity(seen.pop(tap)).cpu() for tap in parts}
        similarity = similarities[[*parts][-1]]  # of the representation or the last stage
        for tap, part in parts.items():
            weights = self.row_weights(similarities[tap], counts, similarity)
            mixed |= self.mixed([select(tensors, part) for tensors in sent], weights)

        took_part = torch.tensor(list(uploads))
        mixtures = {}
        for name, rows in _mixtures(state).items():
            mine = mixed.pop(name)  # frees memory: there is only one copy of the mixtures at any time
            mixtures[name] = mine if len(mine) == len(rows) else rows.index_copy(0, took_part, mine)
        known = {CRSM: similarity, WEIGHTS: weights}
        for name, matrix in known.items():
            known[name] = state.tensors[name].clone()
            known[name][took_part[:, None], took_part] = matrix
        return ServerState({**mixtures, **known})

    def mixed(self, sent: Sequence[Tensors], weights: Tensor) -> Tensors:
        """Mix the tensors of m participants by an m×m weight matrix, Σ_j W_ij θ_j; m×… each."""
        return mix(sent, weights)

    def _parts(self, model: Model) -> dict[str, Part]:
        """Parts of the model by the tap point whose similarity weights them, in order; the head joins the last stage.

        The similarity of the representation (``body``) weights the stages without a tap point.
        """
        if self.layers == "last" or self.rep_source != "probe" or "prediction" in self.compared:
            return {"body": self.shared}
        stages = [name for name, stage in model.stages.items() if stage.state_dict()]
        parts: dict[str, Part] = {}
        for name in stages:
            tap = name if name in model.taps else "body"
            parts[tap] = (*parts.pop(tap, ()), f"body.{name}.")
        *_, last = parts
        return {**parts, last: (*parts[last], *HEAD)}

    def _seen(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message], taps: Sequence[str]
    ) -> dict[str, list[Any]]:
        """Collect the matrices to compare at each tap point, one for each client, or their Grams if these suffice."""
        if self.rep_source != "probe":
            return {"body": [upload.tensors[OWN_SAMPLES] for upload in uploads.values()]}
        seen: dict[str, list[Any]] = {tap: [] for tap in taps}
        for id, upload in uploads.items():
            now = self._of_public_images(server, upload.tensors, taps)
            if self.compared == "change":
                before = self._of_public_images(server, self.download(state, id).tensors, taps)
                now = [x - y for x, y in zip(now, before, strict=True)]
            for tap, x in zip(taps, now, strict=True):
                seen[tap].append(Gram.of_features(x, **self._measure.options) if self._measure.of_grams else x)
        return seen

    def _of_public_images(self, server: Server, tensors: Tensors, taps: Sequence[str]) -> list[Tensor]:
        """Compute activations, s×… for each tap point, or predictions, s×K or 1×K, for the s public images."""
        assert server.public_images is not None
        server.model.load(select(tensors, BODY))  # the head is the initial one
        if self.compared in ("representation", "change"):
            return activations(server.model, server.public_images, taps)
        predicted = features(server.model, server.public_images, "head").softmax(dim=1)
        return [predicted.mean(dim=0, keepdim=True) if self.compared == "mean_prediction" else predicted]

    def _similarity(self, compared: Sequence[Tensor] | Sequence[Gram]) -> Tensor:
        """Compute the CRSM of m clients, m×m; NaN in the rows and columns of constant representations."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BiasedSimilarityWarning)  # it only gives weights and is not reported
            similarity: Tensor = similarity_matrix(compared, self._measure)
        return similarity

    @property
    def _measure(self) -> Measure:
        """Similarity measure that the fields select."""
        if self.compared == "mean_prediction":
            return MEASURES["cosine"]
        cka = f"{'debiased_' if self.debiased else ''}{'rbf_' if self.kernel == 'rbf' else ''}cka"
        return MEASURES[WITHOUT_CKA.get(self.rep_source, cka)]

    def row_weights(self, similarity: Tensor, counts: Tensor, representation: Tensor) -> Tensor:
        """Turn a similarity matrix into weights, m×m, whose rows sum to 1.

        Undefined similarities (NaN) get weight 0, and so do negative ones with ``sum`` and ``power``. If a whole row
        has weight 0, the client keeps its own upload. Equal similarities give equal weights.

        Args:
            similarity: Similarities of m clients, m×m.
            counts: Training samples of each client, m; read with ``size_weights``.
            representation: CRSM of the representation or the last stage, m×m, which sets the scale of ``distance``.
        """
        alone = torch.eye(len(similarity), dtype=similarity.dtype)
        left_out = similarity.isnan() if self.include_self else similarity.isnan() | alone.bool()
        low = similarity.masked_fill(left_out, torch.inf).amin(dim=1, keepdim=True)
        high = similarity.masked_fill(left_out, -torch.inf).amax(dim=1, keepdim=True)
        match self.norm:
            case "distance":
                scale = (1 - representation).masked_fill(alone.bool(), torch.nan).nanmean(dim=1, keepdim=True)
                distance = torch.where(scale > 0, (high - similarity) / scale, 0.0)
                weights = (-distance / self.reach).exp()
            case "sum":
                weights = similarity.clamp(min=0)
            case "minmax":
                weights = torch.where(high > low, (similarity - low) / (high - low), 1.0)
            case "softmax":
                weights = ((similarity - high) / self.temperature).exp()
            case "power":
                weights = similarity.clamp(min=0) ** self.gamma
            case "topk":
                others = similarity.masked_fill(left_out | alone.bool(), -torch.inf)
                nearest = others.topk(min(self.k, len(others)), dim=1).indices
                weights = torch.zeros_like(similarity).scatter(1, nearest, 1.0).maximum(alone)
        weights = weights.masked_fill(left_out, 0.0)
        if self.size_weights:
            weights = weights * counts
        total = weights.sum(dim=1, keepdim=True)
        return torch.where(total > 0, weights / total, alone)

    def upload_like(self, server: Server) -> Tensors:
        """Shared part of the model, and the representations of own samples if ``rep_source`` asks for them."""
        rows = server.model.head.out_features if self._measure.needs_labels else self.samples
        told = {} if self.rep_source == "probe" else {OWN_SAMPLES: torch.zeros(rows, server.model.head.in_features)}
        return {**super().upload_like(server), **told}

    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        """Return None: there is no global model, every client has its own."""
        del server, state
        return None

    def notes(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Return one diagnostic of the round, ``crsm_overlap_correlation``.

        It is Spearman's correlation, over all pairs of clients, between the CRSM and the cosine of the clients' class
        counts (``class_counts``, N×K); None if too few similarities are known.
        """
        del server, uploads
        return {"crsm_overlap_correlation": rank_correlation(state.tensors[CRSM].numpy(), class_overlap(class_counts))}

    def pictures(self, state: ServerState) -> Mapping[str, Picture]:
        """Return the CRSM and the weights of the mixtures, N×N; NaN for clients that were never in the same round."""
        crsm, weights = state.tensors[CRSM], state.tensors[WEIGHTS]
        return {
            CRSM: Picture(crsm, "CRSM", "clients", "clients", similarity=True),
            WEIGHTS: Picture(weights, "Weights of each client's mixture (rows)", "clients", "clients", low=0.0),
        }

    # -- at the client -------------------------------------------------------------------------------------------------

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train the client's mixture; add representations of own samples to the upload if ``rep_source`` needs them."""
        upload, state = super().update(client, message, state)
        told = {} if self.rep_source == "probe" else {OWN_SAMPLES: self._of_own_samples(client)}
        return Message({**upload.tensors, **told}, upload.numbers), state

    def _of_own_samples(self, client: Client) -> Tensor:
        """Compute the client's representation matrix from its own samples, for the upload.

        Returns:
            Outputs of the body for s samples that are drawn anew each round, s×d; with
            ``rep_source=local_class_mean``, their mean of each class, K×d. A client with fewer than s samples uses
            some of them several times.
        """
        stream, count = client.stream("representation"), len(client.train)
        passes = [torch.randperm(count, generator=stream) for _ in range(math.ceil(self.samples / count))]
        rows = torch.cat(passes)[: self.samples]
        labels = _labels(client.train)[rows]
        if self.rep_source == "local_sorted":
            labels, order = labels.sort(stable=True)
            rows = rows[order]
        seen = features(client.model, client.train.take(rows.numpy())).cpu()
        if self._measure.needs_labels:
            means: Tensor = class_means(seen, labels, client.model.head.out_features)
            return means.to(seen.dtype)
        return seen

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        """Model of the client: its mixture."""
        del state
        client.model.load(message.tensors)
        return {self.primary: client.model.tensors()}


def _labels(samples: Samples) -> Tensor:
    assert samples.labels is not None
    return samples.labels.cpu()


def _mixtures(state: ServerState) -> Tensors:
    return {name: tensor for name, tensor in state.tensors.items() if name not in (CRSM, WEIGHTS)}
