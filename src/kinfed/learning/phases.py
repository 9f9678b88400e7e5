"""Settings of local training: how clients train in a round, in which phases, and what a step is given."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kinfed.learning.augmentation import Augmentation
from kinfed.models import ALL, Part

__all__ = ["SGD", "Batch", "Phase"]


@dataclass(frozen=True, kw_only=True)
class SGD:
    """How clients train in one round: stochastic gradient descent with a fresh optimiser a phase.

    Attributes:
        lr: Step size in this round.
        epochs: Passes over the client's samples.
        batch_size: Samples a step; the last batch of a pass may be smaller.
        momentum: In [0, 1).
        weight_decay: Times the weights, added to their gradients.
        augment: What is done to the images of a batch.
        feature_cache_mb: The most MiB of what frozen models make of a client's samples that are stored.
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
    """One stretch of local training.

    Attributes:
        train: The part that is trained; the rest is frozen and in evaluation mode.
        epochs: Passes over the data, if not the round's.
        lr: Step size, if not the round's.
        drop_last: Whether the last batch of a pass is left out if it is smaller than the others, and not the only one.
    """

    train: Part = ALL
    epochs: int | None = None
    lr: float | None = None
    drop_last: bool = False


@dataclass(frozen=True)
class Batch:
    """What a step sees.

    Attributes:
        inputs: Normalised, b×c×h×w; in a phase whose body is frozen, the representations b×d.
        labels: b; of unlabelled samples none, 0.
        rows: Which of the client's samples these are, b.
    """

    inputs: Tensor
    labels: Tensor
    rows: Tensor
