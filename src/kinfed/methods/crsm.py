"""FedSHIBU's client representation similarity matrix (CRSM) and personalised aggregation by it (specification C.4).

Letters: N clients, m participants of the round, K classes, s samples, d the width of a representation. θ_i are the
tensors that client i uploads, A_i its representations, C the CRSM, W the weights, and θ̄_i its mixture, the weighted
mean of the uploads that it receives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.learning import class_overlap, rank_correlation
from kinfed.methods.aggregation import mix
from kinfed.methods.client_similarity import ClientSimilarity
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
from kinfed.methods.row_weights import RowWeights
from kinfed.methods.travels import Sent, of_parts
from kinfed.models import Tensors, select
from kinfed.similarity import Gram
from kinfed.streams import torch_stream

__all__ = ["CRSMMixing"]

CRSM, WEIGHTS = "crsm", "weights"
OF_LIKE = "those of the clients with large weights, perhaps of a single one"
OF_SAMPLES, FROM_SAMPLES = "the class of each of these samples, nearly", "with rep_source=local_random"
OWN_SAMPLES = "representation"  # name of the representations of a client's own samples in its upload


@dataclass(frozen=True, kw_only=True)
class CRSMMixing(RowWeights, ClientSimilarity, FedAvg):
    """Personalised aggregation: each client receives a mean of the uploads, weighted by similarity of representations.

    The fields of `ClientSimilarity` say what is compared, those of `RowWeights` how similarities become weights.
    """

    serves: ClassVar[Serves] = "private"
    primary: ClassVar[str] = "mixture"
    primary_label: ClassVar[str] = "own mixture"
    unknown: ClassVar[tuple[str, ...]] = (CRSM, WEIGHTS)

    @property
    def carries_up(self) -> Sequence[Sent]:
        """The shared part after local training, and representations of own samples, if these are compared."""
        own = Sent((OWN_SAMPLES,), "representations of some of its samples", "samples × d", OF_SAMPLES, FROM_SAMPLES)
        return [*super().carries_up, own]

    @property
    def carries_down(self) -> Sequence[Sent]:
        """The client's mixture of what all clients sent."""
        return of_parts(self.shared, "mixed for this client from all clients'", labels=True, body=OF_LIKE, head=OF_LIKE)

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields without effect: those of another ``norm`` or ``rep_source``."""
        return {**super().idle, **unread({**self.fields_of_sources, **self.fields_of_norms})}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_similarity()

    @property
    def requires(self) -> Requirements:
        """Public images at the server, if ``rep_source`` is ``probe``."""
        return Requirements(public_images=self.rep_source == "probe")

    @property
    def reads(self) -> frozenset[str]:
        """Fields read: those of FedAvg; what clients send besides their models cannot be saved."""
        return super().reads - ({"save_local"} if self.rep_source != "probe" else set())

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
        parts = self.parts(server.model, self.shared)
        seen = self._seen(server, state, uploads, [*parts])
        mixed: Tensors = {}
        similarities = {tap: self.similarity(seen.pop(tap)).cpu() for tap in parts}
        similarity = similarities[[*parts][-1]]  # of the representation or the last stage
        for tap, part in parts.items():
            stream = torch_stream(server.seed, "permuted weights")  # the same places in all rounds and stages
            weights = self.controlled(self.row_weights(similarities[tap], counts, similarity), stream)
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

    def _seen(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message], taps: Sequence[str]
    ) -> dict[str, list[Any]]:
        """Collect the matrices to compare at each tap point, one for each client, or their Grams if these suffice."""
        if self.rep_source != "probe":
            return {"body": [upload.tensors[OWN_SAMPLES] for upload in uploads.values()]}
        seen: dict[str, list[Any]] = {tap: [] for tap in taps}
        for id, upload in uploads.items():
            now = self.of_public_images(server, upload.tensors, taps)
            if self.compared == "change":
                before = self.of_public_images(server, self.download(state, id).tensors, taps)
                now = [x - y for x, y in zip(now, before, strict=True)]
            for tap, x in zip(taps, now, strict=True):
                seen[tap].append(Gram.of_features(x, **self.measure.options) if self.measure.of_grams else x)
        return seen

    def upload_like(self, server: Server) -> Tensors:
        """Shared part of the model, and the representations of own samples if ``rep_source`` asks for them."""
        rows = server.model.head.out_features if self.measure.needs_labels else self.samples
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
        told = {} if self.rep_source == "probe" else {OWN_SAMPLES: self.of_own_samples(client)}
        return Message({**upload.tensors, **told}, upload.numbers), state

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        """Model of the client: its mixture."""
        del state
        client.model.load(message.tensors)
        return {self.primary: client.model.tensors()}


def _mixtures(state: ServerState) -> Tensors:
    return {name: tensor for name, tensor in state.tensors.items() if name not in (CRSM, WEIGHTS)}
