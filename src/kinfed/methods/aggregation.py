"""Means of tensors over clients (METHODS.md 0.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kinfed.methods.method import ClientId, Message
from kinfed.models import Tensors

__all__ = ["mix", "sample_shares", "weighted_mean"]

CHUNK = 1 << 22  # entries of one client mixed at once


def sample_shares(uploads: Mapping[ClientId, Message]) -> Tensor:
    """p_i = n_i / Σ n_j over the uploads, in their order; float64."""
    counts = torch.tensor([upload.numbers["samples"] for upload in uploads.values()], dtype=torch.float64)
    return counts / counts.sum()


def weighted_mean(uploads: Mapping[ClientId, Message]) -> Tensors:
    """Σ p_i w_i of every tensor; integer counters take the maximum."""
    mixed = mix([upload.tensors for upload in uploads.values()], sample_shares(uploads)[None])
    return {name: rows[0] for name, rows in mixed.items()}


def mix(tensors: Sequence[Tensors], weights: Tensor) -> Tensors:
    """Every row of weights makes its own mixture of the clients' tensors, as one matrix product a tensor.

    Args:
        tensors: m clients' tensors, alike in names and shapes.
        weights: r×m; row sums are 1.

    Returns:
        Each tensor r×…, in its own type, computed in float64. Integer counters take the maximum over the clients in
        every row.
    """
    mixed = {}
    for name in tensors[0]:
        own = [client[name] for client in tensors]
        if not own[0].is_floating_point():
            mixed[name] = torch.stack(own).amax(dim=0).expand(len(weights), *own[0].shape).clone()
            continue
        flat = [tensor.reshape(-1) for tensor in own]
        result = own[0].new_empty(len(weights), flat[0].numel())
        for start in range(0, flat[0].numel(), CHUNK):
            part = slice(start, start + CHUNK)
            result[:, part] = weights.double() @ torch.stack([tensor[part] for tensor in flat]).double()
        mixed[name] = result.reshape(len(weights), *own[0].shape)
    return mixed
