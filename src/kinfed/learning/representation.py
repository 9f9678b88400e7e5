"""Evaluation of frozen representations by a linear probe and by nearest neighbours (specification D.7).

All functions take features computed before, by `kinfed.learning.features`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from kinfed.streams import seeded_globals

__all__ = ["NEIGHBOURS", "TEMPERATURE", "knn", "linear_probe", "own_view_nearer"]

NEIGHBOURS, TEMPERATURE = 200, 0.1  # of votes of nearest neighbours

CHUNK = 256  # samples for which neighbours are searched at once


def linear_probe(
    features: Tensor,
    labels: Tensor,
    *,
    classes: int,
    stream: torch.Generator,
    bias: bool = True,
    hidden: int | None = None,
    epochs: int = 100,
    lr: float = 3e-3,
    batch_size: int = 512,
) -> nn.Linear:
    """Train a linear classifier of features by Adam and cross-entropy.

    Args:
        features: Training features, n×d, n ≥ 1.
        labels: Labels, n integers in 0..classes−1.
        classes: Number of outputs of the classifier.
        stream: Random stream on the CPU; its seed gives the initial weights, and it shuffles the samples each epoch.
        bias: True for a classifier with a bias.
        hidden: Width of a linear layer before the classifier (1000 in the paper), without a nonlinearity; None for no
            such layer. The product of both layers is returned.
        epochs: Passes over the features.
        lr: Learning rate of Adam.
        batch_size: Samples in a batch; the last batch of a pass may be smaller.

    Returns:
        The classifier after the last epoch, d → classes, on the device of the features.

    >>> features, labels = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> probe = linear_probe(features, labels, classes=2, stream=torch.Generator().manual_seed(0), epochs=10, lr=1.0)
    >>> probe(features).argmax(dim=1)
    tensor([0, 1])
    """
    device, width = features.device, features.shape[1]
    with seeded_globals(stream):
        last = nn.Linear(width if hidden is None else hidden, classes, bias=bias)
        first = nn.Linear(width, 1 if hidden is None else hidden, bias=bias)
    classifier = (last if hidden is None else nn.Sequential(first, last)).to(device)
    optimiser = torch.optim.Adam(classifier.parameters(), lr, fused=device.type in ("cpu", "cuda"))
    for _ in range(epochs):
        shuffled = torch.randperm(len(features), generator=stream).to(device)
        for rows in shuffled.split(batch_size):
            optimiser.zero_grad(set_to_none=True)
            logits = classifier(features.index_select(0, rows))
            functional.cross_entropy(logits, labels.index_select(0, rows)).backward()
            optimiser.step()
    return last if hidden is None else _joined(first, last)


def _joined(first: nn.Linear, second: nn.Linear) -> nn.Linear:
    """Join two linear layers into one."""
    joined: nn.Linear = nn.utils.skip_init(
        nn.Linear, first.in_features, second.out_features, bias=second.bias is not None, device=first.weight.device
    )
    with torch.no_grad():
        joined.weight.copy_(second.weight @ first.weight)
        if second.bias is not None:
            joined.bias.copy_(second(first.bias))
    return joined


@torch.no_grad()
def own_view_nearer(first: Tensor, second: Tensor) -> Tensor:
    """Compare representations of two views of n images, without labels: is an image's other view the nearer one?

    Args:
        first: Features of one view of each image, n×d.
        second: Features of another view of each image, n×d.

    Returns:
        For each image, the fraction of the n − 1 other images whose second view has a smaller cosine to its first view
        than its own second view has; equal cosines count half, so that equal features give 0.5. n in float64.

    >>> own_view_nearer(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0, 1.0], [2.0, 0.0]]))
    tensor([0., 0.], dtype=torch.float64)
    """
    known, nearer = functional.normalize(second, dim=1), []
    for start, asked in zip(range(0, len(first), CHUNK), first.split(CHUNK), strict=True):
        cosines = functional.normalize(asked, dim=1) @ known.T
        own = cosines.diagonal(start)[:, None]
        nearer.append(((own > cosines).double() + (own == cosines).double() / 2).sum(dim=1) - 0.5)  # itself is equal
    return torch.cat(nearer) / max(len(first) - 1, 1)


@torch.no_grad()
def knn(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    classes: int,
    k: int = NEIGHBOURS,
    temperature: float = TEMPERATURE,
    top: int = 1,
) -> Tensor:
    """Classify m test samples by a vote of the k training samples with the largest cosine.

    The weight of a vote is ``e^{cos / t}``.

    Args:
        train_features: Training features, n×d, n ≥ 1.
        train_labels: Training labels, n integers in 0..classes−1.
        test_features: Test features, m×d.
        test_labels: Test labels, m.
        classes: Number of classes.
        k: Number of neighbours; all n if there are fewer.
        temperature: Temperature t of the weights.
        top: Number of classes with the largest votes among which the true class must be. A class without votes is never
            among them.

    Returns:
        m booleans, True where the classification is correct.

    >>> train, test = torch.eye(2), torch.tensor([[3.0, 1.0], [3.0, 1.0]])
    >>> knn(train, torch.tensor([0, 1]), test, torch.tensor([0, 1]), classes=2)
    tensor([ True, False])
    """
    known = functional.normalize(train_features, dim=1)
    right = []
    for asked, truth in zip(test_features.split(CHUNK), test_labels.split(CHUNK), strict=True):
        cosines, nearest = (functional.normalize(asked, dim=1) @ known.T).topk(min(k, len(known)), dim=1)
        votes = cosines.new_zeros(len(asked), classes)
        votes.scatter_add_(1, train_labels[nearest], (cosines / temperature).exp())
        weights, best = votes.topk(min(top, classes), dim=1)
        right.append(((best == truth[:, None]) & (weights > 0)).any(dim=1))
    return torch.cat(right)
