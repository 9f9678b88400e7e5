"""CFL: Sattler, Müller and Samek 2019, Clustered Federated Learning.

https://arxiv.org/abs/1910.01991. Letters: m clients of a cluster, Δ_i the change of client i's weights in a round, n_i
its training samples, α_ij the cosine of Δ_i and Δ_j.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from kinfed.methods.aggregation import sample_shares
from kinfed.methods.grouped import GROUP, Grouped, of_group
from kinfed.methods.method import ClientId, Message, Server, ServerState

__all__ = ["CFL", "bipartition"]


@dataclass(frozen=True, kw_only=True)
class CFL(Grouped):
    """Clusters of clients are split in two where their model no longer improves but the clients' own updates go on.

    All clients train in every round.

    >>> CFL(eps1=0.1).trains
    'all'

    Attributes:
        eps1: Norm ε₁ of the mean update below which a cluster's model counts as stationary, ≥ 0.
        eps2: Norm ε₂ that the largest update of a client must exceed for a split, ≥ 0. (0.4 and 1.6 are those of the
            authors' code; norms grow with the learning rate and the number of steps.)
        gamma: Largest error γ of the clients' gradients that is allowed for: a split needs γ < √((1 − max α_ij)/2)
            over pairs across the two parts; 0 for no condition.
        linkage: ``single`` minimises the largest α_ij across the two parts, as in the paper; ``complete`` is that of
            the authors' code.
        after: Rounds before the first split, ≥ 0; 20 in the authors' code.
    """

    trains: ClassVar[Literal["sampled", "all", "pooled"]] = "all"
    space: ClassVar[Mapping[str, str]] = {"eps1": "0.1,0.2,0.4,0.8"}
    trial: ClassVar[Mapping[str, Any]] = {"after": 1}

    eps1: Annotated[float, Ge(0)] = 0.4
    eps2: Annotated[float, Ge(0)] = 1.6
    gamma: Annotated[float, Ge(0)] = 0.0
    linkage: Literal["single", "complete"] = "single"
    after: Annotated[int, Ge(0)] = 20

    def regrouped(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> Tensor:
        """Split every cluster that is stationary, though its clients are not, in two (the paper's Algorithm 3)."""
        groups = state.tensors[GROUP].clone()
        if server.round <= self.after:
            return groups
        for group in groups.unique().tolist():
            of = {id: upload for id, upload in uploads.items() if groups[id] == group}
            if len(of) > 2 and (apart := self.split(server, of_group(state, group), of)):
                groups[apart] = int(groups.max()) + 1
        return groups

    def change(self, server: Server, state: ServerState, upload: Message) -> Tensor:
        """Return the change Δ of a client's weights as one vector, in float64."""
        return torch.cat([of.double().flatten() for of in self.base.change(server, state, upload).values()])

    def split(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> list[ClientId]:
        """Return the clients that leave the cluster; none if it stays together.

        Args:
            server: Server in this round.
            state: State of the cluster before the round.
            uploads: Usable uploads of the cluster's clients.
        """
        updates = torch.stack([self.change(server, state, upload) for upload in uploads.values()])
        mean = sample_shares(uploads) @ updates
        norms = updates.norm(dim=1)
        if not (mean.norm() < self.eps1 and norms.max() > self.eps2):
            return []
        unit = updates / norms.clamp(min=torch.finfo(torch.float64).tiny)[:, None]
        cosines = unit @ unit.T
        second = bipartition(cosines, self.linkage)
        across = cosines[second][:, ~second].max().clamp(max=1)
        if self.gamma >= ((1 - across) / 2).sqrt():
            return []
        return [id for id, apart in zip(uploads, second.tolist(), strict=True) if apart]


def bipartition(similarity: Tensor, linkage: Literal["single", "complete"] = "single") -> Tensor:
    """Divide clients in two parts by agglomerative clustering, and return the mask of those without the first one.

    >>> bipartition(torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]]))
    tensor([False, False,  True])

    Args:
        similarity: Similarities of m ≥ 2 clients, m×m.
        linkage: With ``single``, the largest similarity across the parts is as small as possible (the paper's
            Algorithm 1); with ``complete``, parts are joined by their least similar clients.
    """
    from scipy.cluster.hierarchy import fcluster
    from scipy.cluster.hierarchy import linkage as joined
    from scipy.spatial.distance import squareform

    distance = (1 - similarity).clamp(min=0).numpy().copy()
    np.fill_diagonal(distance, 0)
    parts = fcluster(joined(squareform(distance, checks=False), linkage), 2, "maxclust")
    return torch.from_numpy(parts != parts[0])
