"""Settings of local training: SGD settings of a round, phases, and batches."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kinfed.learning.augmentation import Augmentation
from kinfed.models import ALL, Part

__all__ = ["Batch", "LocalTraining", "Phase"]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Settings of stochastic gradient descent at the clients in one round; each phase has a new optimiser.

    Attributes:
        lr: Learning rate of this round.
        epochs: Passes over the client's samples.
        batch_size: Samples in a batch; the last batch of a pass may be smaller.
        momentum: Momentum of the optimiser, in [0, 1).
        weight_decay: Factor of the weights that is added to their gradients.
        augment: Augmentation of the images of a batch.
        feature_cache_mb: Limit on the stored outputs of frozen models for a client's samples, in MiB.

    >>> LocalTraining(lr=0.1, epochs=5).batch_size
    50
    """

    lr: float
    epochs: int = 1
    batch_size: int = 50
    momentum: float = 0.9
    weight_decay: float = 0.0
    augment: Augmentation = "none"
    feature_cache_mb: float = 1024.0


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Phase of local training, in which one part of the model is trained.

    Attributes:
        train: Part that is trained; the rest is frozen and in evaluation mode.
        epochs: Passes over the data; None for those of the round.
        lr: Learning rate; None for that of the round.
        drop_last: True to skip the last batch of a pass if it is smaller than the others and not the only one.

    >>> Phase(train=("head.",), epochs=10).lr is None
    True
    """

    train: Part = ALL
    epochs: int | None = None
    lr: float | None = None
    drop_last: bool = False


@dataclass(frozen=True)
class Batch:
    """Batch of b samples for one optimiser step.

    Attributes:
        inputs: Normalised inputs, b×c×h×w; in a phase with a frozen body, the representations, b×d.
        labels: Labels, b; empty for unlabelled samples.
        rows: Indices of the samples in the client's data, b.
    """

    inputs: Tensor
    labels: Tensor
    rows: Tensor
