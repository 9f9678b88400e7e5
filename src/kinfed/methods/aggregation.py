"""Means of tensors over clients (specification 0.4).

Letters: m clients; client i uploads tensors w_i, has n_i training samples, and gets the weight p_i.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from kinfed.methods.method import ClientId, Message
from kinfed.models import Tensors

__all__ = ["mean_of", "mix", "sample_shares", "uniform_mean", "weighted_mean"]

CHUNK = 1 << 18  # entries of all clients together in one chunk of `mix`; in float64 they fit into the cache


def sample_shares(uploads: Mapping[ClientId, Message]) -> Tensor:
    """Compute the share of each client in all training samples, p_i = n_i / Σ n_j; m in float64, in upload order."""
    counts = torch.tensor([upload.numbers["samples"] for upload in uploads.values()], dtype=torch.float64)
    return counts / counts.sum()


def weighted_mean(uploads: Mapping[ClientId, Message]) -> Tensors:
    """Average every uploaded tensor over the clients, weighted by their training samples: Σ p_i w_i; see `mean_of`."""
    return mean_of(sample_shares(uploads).tolist(), (upload.tensors for upload in uploads.values()))


def uniform_mean(uploads: Mapping[ClientId, Message]) -> Tensors:
    """Average every uploaded tensor over the clients with equal weights, 1/m each; see `mean_of`."""
    return mean_of([1 / len(uploads)] * len(uploads), (upload.tensors for upload in uploads.values()))


def mean_of(shares: Sequence[float], tensors: Iterable[Tensors]) -> Tensors:
    """Average every tensor over the clients, Σ p_i w_i, summed in float64; integer tensors take the maximum.

    >>> mean_of([0.25, 0.75], [{"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}])
    {'w': tensor([3.])}

    Args:
        shares: m weights p_i that sum to 1.
        tensors: Tensors of m ≥ 1 clients, equal in names and shapes; only one client's tensors are in memory at a time.
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
    """Mix the clients' tensors by every row of a weight matrix: one matrix product, computed in chunks.

    Args:
        tensors: Tensors of m clients, equal in names and shapes.
        weights: Weight matrix, r×m; every row sums to 1.

    Returns:
        Mixed tensors by name, r×… each, in their own type, computed in float64. Besides them and the clients' tensors
        only one chunk is in memory. In every row, integer tensors take the maximum over the clients.
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
        # All chunks share these buffers: to allocate memory for each chunk costs as much as the product.
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
