"""Means of tensors over clients (METHODS.md 0.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kinfed.methods.method import ClientId, Message
from kinfed.models import Tensors

__all__ = ["mix", "sample_shares", "weighted_mean"]

CHUNK = 1 << 18  # entries of all clients together that are mixed at once; in float64 they fit into the cache


def sample_shares(uploads: Mapping[ClientId, Message]) -> Tensor:
    """p_i = n_i / Σ n_j over the uploads, in their order; float64."""
    counts = torch.tensor([upload.numbers["samples"] for upload in uploads.values()], dtype=torch.float64)
    return counts / counts.sum()


def weighted_mean(uploads: Mapping[ClientId, Message]) -> Tensors:
    """Σ p_i w_i of every tensor, added up in float64; integer counters take the maximum."""
    shares = sample_shares(uploads).tolist()
    mean = {}
    for name, first in next(iter(uploads.values())).tensors.items():
        own = [upload.tensors[name] for upload in uploads.values()]
        if not first.is_floating_point():
            mean[name] = torch.stack(own).amax(dim=0)
            continue
        total = torch.zeros(first.shape, dtype=torch.float64)
        for share, tensor in zip(shares, own, strict=True):
            total.add_(tensor, alpha=share)
        mean[name] = total.to(first.dtype)
    return mean


def mix(tensors: Sequence[Tensors], weights: Tensor) -> Tensors:
    """Every row of weights makes its own mixture of the clients' tensors: one matrix product, in chunks.

    Args:
        tensors: m clients' tensors, alike in names and shapes.
        weights: r×m; row sums are 1.

    Returns:
        Each tensor r×…, in its own type, computed in float64; beside it and the clients' no more than a chunk is in
        memory. Integer counters take the maximum over the clients in every row.
    """
    weights = weights.double()
    mixed = {}
    for name, first in tensors[0].items():
        if not first.is_floating_point():
            most = torch.stack([client[name] for client in tensors]).amax(dim=0)
            mixed[name] = most.expand(len(weights), *first.shape).clone()
            continue
        columns = min(max(CHUNK // len(tensors), 1), max(first.numel(), 1))
        parts = [client[name].reshape(-1).split(columns) for client in tensors]
        rows = first.new_empty(len(weights), first.numel())
        # Buffers for all chunks: memory that is got anew for each costs as much as the product.
        stacked = first.new_empty(len(tensors), columns)
        given, made = stacked.double(), weights.new_empty(len(weights), columns)
        for result, of_clients in zip(rows.split(columns, dim=1), zip(*parts, strict=True), strict=True):
            if (left := result.shape[1]) < columns:
                stacked, given, made = (buffer.new_empty(len(buffer), left) for buffer in (stacked, given, made))
            torch.stack(of_clients, out=stacked)
            given.copy_(stacked)
            result.copy_(torch.mm(weights, given, out=made))
        mixed[name] = rows.reshape(len(weights), *first.shape)
    return mixed
