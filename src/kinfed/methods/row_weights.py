"""Weights of a mixture of clients from their similarities (specification C.4).

Letters: m clients, C their similarities, W the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

__all__ = ["RowWeights"]

Norm = Literal["distance", "sum", "minmax", "softmax", "topk", "power", "own"]
Control = Literal["none", "erased", "permuted"]


@dataclass(frozen=True, kw_only=True)
class RowWeights:
    """Function from the similarities of clients to the weights with which each one mixes the clients' models.

    >>> similarity = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    >>> RowWeights(norm="sum").row_weights(similarity, torch.ones(2), similarity)
    tensor([[0.6667, 0.3333],
            [0.3333, 0.6667]])

    Attributes:
        norm: Function that turns a row C of the CRSM into weights, which are then divided by their sum. ``sum`` (the
            paper): C itself; ``minmax``: C scaled to [0, 1]; ``softmax``: exp(C / temperature); ``power``: C^gamma;
            ``topk``: 1 for the client and the k most similar others, 0 for the rest; ``distance``:
            exp(-(1 - C) / (reach · d)), where d is the row's mean of 1 - C over the others at the last stage, which
            adapts the scale to the clients; ``own``: no similarity at all, but ``own`` for the client, and the rest
            equally for the others.
        control: What a similarity must beat. ``erased``: every client keeps its own weight, and the rest is spread
            equally over the others; ``permuted``: the weights of the others change places by chance in every row.
        reach: Scale of ``distance``, > 0; smaller values give more weight to the client's own model.
        temperature: Temperature of ``softmax``, > 0.
        gamma: Exponent of ``power``, > 0.
        k: Number of most similar other clients in ``topk``.
        own: Weight of the client itself in ``own``, in (0, 1].
        include_self: True if a client's own upload is part of its mixture (Algorithm 3; the paper's text excludes it).
        size_weights: True to multiply the weights by the clients' sample counts.
    """

    norm: Norm = "distance"
    control: Control = "none"
    reach: Annotated[float, Gt(0)] = 0.2
    temperature: Annotated[float, Gt(0)] = 0.05
    gamma: Annotated[float, Gt(0)] = 4.0
    k: Annotated[int, Ge(1)] = 3
    own: Annotated[float, Gt(0), Le(1)] = 0.5
    include_self: bool = True
    size_weights: bool = False

    @property
    def fields_of_norms(self) -> Mapping[str, tuple[str, bool]]:
        """Fields of single norms, each with the norm that reads it and True if it is the chosen one."""
        norms = {"reach": "distance", "temperature": "softmax", "gamma": "power", "k": "topk", "own": "own"}
        of_norms = {field: (f"norm={norm}", self.norm == norm) for field, norm in norms.items()}
        return {**of_norms, "control": ("a norm that has a similarity", self.norm != "own")}

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
            case "own":
                weights = torch.where(alone.bool(), self.own, (1 - self.own) / max(len(alone) - 1, 1))
        weights = weights.masked_fill(left_out, 0.0)
        if self.size_weights:
            weights = weights * counts
        total = weights.sum(dim=1, keepdim=True)
        return torch.where(total > 0, weights / total, alone)

    def controlled(self, weights: Tensor, stream: torch.Generator) -> Tensor:
        """Return the weights as they are, or those of the control, m×m.

        Args:
            weights: Weights, m×m, whose rows sum to 1.
            stream: Stream from which places are drawn.
        """
        own = weights.diagonal()
        match self.control:
            case "none":
                return weights
            case "erased":
                rest = ((1 - own) / max(len(own) - 1, 1))[:, None].expand_as(weights).clone()
                return rest.diagonal_scatter(own)
            case "permuted":
                others = [torch.tensor([j for j in range(len(own)) if j != i]) for i in range(len(own))]
                permuted = weights.clone()
                for row, places in zip(permuted, others, strict=True):
                    row[places] = row[places[torch.randperm(len(places), generator=stream)]]
                return permuted
