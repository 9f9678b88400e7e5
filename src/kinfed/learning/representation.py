"""What a frozen representation is worth: a linear probe, and a vote of the nearest neighbours (METHODS.md D.7).

Both take features that were read once (`kinfed.learning.features`), so no encoder is touched here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from kinfed.streams import seeded_globals

__all__ = ["knn", "linear_probe"]

CHUNK = 256  # test samples whose neighbours are looked for at once


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
    """A linear classifier of features, by Adam and cross-entropy, after its last epoch.

    Args:
        features: n×d, n ≥ 1, to learn from.
        labels: n, in 0..classes−1.
        classes: Outputs of the classifier.
        stream: On the CPU; its seed gives the initial weights, and it shuffles the samples once an epoch.
        bias: Whether it has one.
        hidden: Width of a linear layer in between, without anything after it (the paper's 1000); None leaves it out.
            The two are one linear map, which is what is returned.
        epochs: Passes over the features.
        lr: Of Adam.
        batch_size: Features a step; the last batch of a pass may be smaller.

    Returns:
        d → classes, on the device of the features.
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
    """Two linear layers as one."""
    joined: nn.Linear = nn.utils.skip_init(
        nn.Linear, first.in_features, second.out_features, bias=second.bias is not None, device=first.weight.device
    )
    with torch.no_grad():
        joined.weight.copy_(second.weight @ first.weight)
        if second.bias is not None:
            joined.bias.copy_(second(first.bias))
    return joined


@torch.no_grad()
def knn(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    classes: int,
    k: int = 200,
    temperature: float = 0.1,
    top: int = 1,
) -> Tensor:
    """Which of m samples a vote of the k training features nearest by cosine gets right, with weights ``e^{cos / t}``.

    Args:
        train_features: n×d, n ≥ 1.
        train_labels: n, in 0..classes−1.
        test_features: m×d.
        test_labels: m.
        classes: How many there are.
        k: Neighbours; all n if there are fewer.
        temperature: t.
        top: A sample counts as right if its class is among this many with most votes. A class without a vote never is.

    Returns:
        Bool, m.
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
