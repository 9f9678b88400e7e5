"""Means of tensors over clients (specification 0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from kinfed.methods.method import ClientId, Message
from kinfed.models import Tensors

__all__ = ["mean_of", "mix", "sample_shares", "weighted_mean"]

CHUNK = 1 << 18  # entries of all clients together that are mixed at once; in float64 they fit into the cache


def sample_shares(uploads: Mapping[ClientId, Message]) -> Tensor:
    """p_i = n_i / Σ n_j over the uploads, in their order; float64."""
    counts = torch.tensor([upload.numbers["samples"] for upload in uploads.values()], dtype=torch.float64)
    return counts / counts.sum()


def weighted_mean(uploads: Mapping[ClientId, Message]) -> Tensors:
    """Σ p_i w_i of every tensor of the uploads; see `mean_of`."""
    return mean_of(sample_shares(uploads).tolist(), (upload.tensors for upload in uploads.values()))


def mean_of(shares: Sequence[float], tensors: Iterable[Tensors]) -> Tensors:
    """Σ p_i w_i of every tensor, added up in float64; integer counters take the maximum.

    Args:
        shares: m weights that sum to 1.
        tensors: m clients' tensors, one or more, alike in names and shapes; one client's at a time is held.
    """
    totals: Tensors = {}
    types = {}
    for share, own in zip(shares, tensors, strict=True):
        for name, tensor in own.items():
            types[name] = tensor.dtype
            if not tensor.is_floating_point():
                totals[name] = torch.maximum(totals.get(name, tensor), tensor)
                continue
            if name not in totals:
                totals[name] = torch.zeros(tensor.shape, dtype=torch.float64)
            totals[name].add_(tensor, alpha=share)
    return {name: total.to(types[name]) for name, total in totals.items()}


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
