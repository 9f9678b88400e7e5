"""Settings of local training: the optimiser and its settings in a round, phases, and batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from kinfed.learning.augmentation import Augmentation
from kinfed.models import ALL, Part

__all__ = ["Batch", "LocalTraining", "Optimizer", "Phase"]

Optimizer = Literal["sgd", "adam", "adamw"]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Settings of the training at the clients in one round; each phase has a new optimiser, without a state.

    Attributes:
        lr: Learning rate of this round.
        epochs: Passes over the client's samples.
        batch_size: Samples in a batch; the last batch of a pass may be smaller.
        optimizer: Optimiser: ``sgd``, ``adam`` or ``adamw``. The moments of the two Adams have torch's decay rates,
            0.9 and 0.999.
        momentum: Momentum of SGD, in [0, 1); the other optimisers do not read it.
        weight_decay: Factor of the weights that is added to their gradients or, with ``adamw``, by which the weights
            shrink in a step, times the learning rate.
        augment: Augmentation of the images of a batch.
        feature_cache_mb: Limit on the stored outputs of frozen models for a client's samples, in MiB.

    >>> LocalTraining(lr=0.1, epochs=5).batch_size
    50
    """

    lr: float
    epochs: int = 1
    batch_size: int = 50
    optimizer: Optimizer = "sgd"
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
