"""FedSHIBU: every client gets its own mixture of the clients' bodies, weighted by how alike their representations are.

FedBABU with personalised aggregation by a client representation similarity matrix (CRSM). METHODS.md C.4 says where the
paper is silent or cannot work as printed, and what stands in for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kinfed.learning import features
from kinfed.methods.aggregation import mix
from kinfed.methods.fedbabu import FedBABU
from kinfed.methods.method import Client, ClientId, Memory, Message, Server, State
from kinfed.models import Tensors
from kinfed.similarity import similarity_matrix

__all__ = ["FedSHIBU", "row_weights"]

CRSM = "crsm"
Norm = Literal["minmax", "sum"]


@dataclass(frozen=True, kw_only=True)
class FedSHIBU(FedBABU):
    """FedBABU, but each client receives a mixture of all bodies by the similarity of their representations.

    The rows that are compared are the server's probe images (the paper's own-sample rows pair unrelated images).

    Attributes:
        norm: How a row of the CRSM becomes weights: ``minmax`` stretches it to [0, 1] and divides by its sum; ``sum``
            (the paper) only divides, which is nearly uniform.
        kernel: Of the CKA.
    """

    personal: ClassVar[bool] = True
    headline: ClassVar[str] = "mixture"
    tested: ClassVar[str] = "own mixture"
    needs_probe: ClassVar[bool] = True

    norm: Norm = "minmax"
    kernel: Literal["linear", "rbf"] = "linear"

    def init(self, server: Server) -> State:
        """Everybody's mixture is the initial body (N×… a tensor); no similarity is known (NaN)."""
        body = server.model.tensors(self.shared)
        bodies = {name: tensor.expand(server.clients, *tensor.shape) for name, tensor in body.items()}
        return State({**bodies, CRSM: torch.full((server.clients, server.clients), torch.nan, dtype=torch.float64)})

    def download(self, state: State, client: ClientId) -> Message:
        """θ̄_i, the client's own mixture."""
        return Message({name: rows[client] for name, rows in _bodies(state).items()})

    def aggregate(self, server: Server, state: State, uploads: Mapping[ClientId, Message]) -> State:
        """C_ij = CKA(A_i, A_j) on the probe; θ̄_i ← Σ_j W_ij θ_j. Clients that took no part keep their mixture."""
        assert server.probe is not None
        representations = []
        for upload in uploads.values():
            server.model.load(upload.tensors)
            representations.append(features(server.model, server.probe))
        similarity = similarity_matrix(representations, kernel=self.kernel).cpu()
        mixed = mix([upload.tensors for upload in uploads.values()], row_weights(similarity, self.norm))

        took_part = torch.tensor(list(uploads))
        bodies = {}
        for name, rows in _bodies(state).items():
            mine = mixed.pop(name)  # so that there is never more than one copy of the mixtures
            bodies[name] = mine if len(mine) == len(rows) else rows.index_copy(0, took_part, mine)
        crsm = state.tensors[CRSM].clone()
        crsm[took_part[:, None], took_part] = similarity
        return State({**bodies, CRSM: crsm})

    def global_model(self, server: Server, state: State) -> Tensors | None:
        """None: every client has its own."""
        del server, state
        return None

    def evaluated(self, client: Client, message: Message, memory: Memory) -> dict[str, Tensors]:
        """The client's mixture under the initial head."""
        del memory
        client.model.load(message.tensors)
        return {self.headline: client.model.tensors()}

    def pictures(self, state: State) -> Tensors:
        """The CRSM, N×N; NaN where two clients never took part together."""
        return {CRSM: state.tensors[CRSM]}


def _bodies(state: State) -> Tensors:
    return {name: tensor for name, tensor in state.tensors.items() if name != CRSM}


def row_weights(similarity: Tensor, norm: Norm) -> Tensor:
    """Rows of a similarity matrix, m×m, as weights that sum to 1.

    An undefined similarity (NaN, of a constant representation) and a negative one weigh nothing; where a whole row
    weighs nothing, the client keeps its own body. Equal similarities give equal weights.
    """
    similarity = similarity.nan_to_num(0.0).clamp(min=0)
    if norm == "minmax":
        low, high = similarity.amin(dim=1, keepdim=True), similarity.amax(dim=1, keepdim=True)
        spread = high - low
        similarity = torch.where(spread > 0, (similarity - low) / spread, (high > 0).to(similarity.dtype))
    total = similarity.sum(dim=1, keepdim=True)
    return torch.where(total > 0, similarity / total, torch.eye(len(similarity), dtype=similarity.dtype))
