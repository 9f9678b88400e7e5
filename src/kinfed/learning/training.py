"""Local training: SGD in phases, each of which names what it trains; the rest is frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from kinfed.data.samples import Samples
from kinfed.learning.augmentation import Augmentation, crop_and_flip
from kinfed.learning.frozen import with_frozen_body
from kinfed.models import ALL, BODY, Model, Part
from kinfed.streams import forked_global_torch

__all__ = ["SGD", "AfterStep", "Batch", "BeforeStep", "Objective", "Phase", "Tally", "cross_entropy", "train"]


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


Objective = Callable[[Model, Batch], Tensor]

BeforeStep = Callable[[list[Tensor], list[Tensor]], None]
"""Changes the gradients, the second list, in place; the first are the trained weights, in the model's order."""

AfterStep = Callable[[list[Tensor]], None]
"""Changes the trained weights in place."""


def cross_entropy(model: Model, batch: Batch) -> Tensor:
    """Mean cross-entropy of the logits over the batch."""
    return functional.cross_entropy(model(batch.inputs), batch.labels)


@dataclass(frozen=True)
class Tally:
    """What a phase did.

    Attributes:
        steps: Optimiser steps.
        skipped: Samples in batches that were left out (a batch of one where BatchNorm needs two, or the phase's
            ``drop_last``), over all epochs.
        loss: Mean of the objective over the samples seen; NaN if there was no step.
    """

    steps: int
    skipped: int
    loss: float


def train(
    model: Model,
    samples: Samples,
    phase: Phase,
    sgd: SGD,
    order: torch.Generator,
    objective: Objective = cross_entropy,
    *,
    read: Callable[[Tensor], Tensor] | None = None,
    before_step: BeforeStep | None = None,
    after_step: AfterStep | None = None,
) -> Tally:
    """Train one part of a model in place.

    Args:
        model: Changed in place; left with only the phase's part trainable.
        samples: On the model's device; labelled, if the objective asks for labels.
        phase: What is trained.
        sgd: Step size, epochs and batch size of the round.
        order: The stream that shuffles the samples, once an epoch, and augments them. What draws from the global
            generator (dropout) draws from one that belongs to this stream, too.
        objective: Loss of a batch, a mean over its samples.
        read: The inputs of a batch, given its rows; if not given, these are normalised and augmented as ``sgd`` says.
        before_step: What is done to the gradients before each optimiser step.
        after_step: What is done to the weights after it.
    """
    if read is None and not BODY[0].startswith(phase.train):
        # A frozen body says the same of a sample in every epoch.
        model, samples = with_frozen_body(model, samples, sgd)
    model.freeze_all_but(phase.train)
    if read is None:
        read = partial(_augmented, samples, order) if sgd.augment == "crop_flip" else samples.batch
    needs_two = any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in model.modules())
    fewest = 2 if needs_two else 1
    parameters = [p for p in model.parameters() if p.requires_grad]
    weights = [p.detach() for p in parameters]  # the same memory, outside autograd
    one_call = "fused" if samples.inputs.device.type in ("cpu", "cuda") else "foreach"  # for all tensors, in a step
    optimiser = torch.optim.SGD(
        parameters, phase.lr or sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay, **{one_call: True}
    )
    labels = samples.labels
    steps = skipped = seen = 0
    total = torch.zeros((), dtype=torch.float64, device=samples.inputs.device)
    epochs = sgd.epochs if phase.epochs is None else phase.epochs
    with forked_global_torch(order.initial_seed(), samples.inputs.device):
        for _ in range(epochs):
            shuffled = torch.randperm(len(samples), generator=order).to(samples.inputs.device)
            for rows in shuffled.split(sgd.batch_size):
                dropped = phase.drop_last and len(rows) < min(sgd.batch_size, len(samples))
                if len(rows) < fewest or dropped:
                    skipped += len(rows)
                    continue
                optimiser.zero_grad(set_to_none=True)
                loss = objective(model, Batch(read(rows), rows[:0] if labels is None else labels[rows], rows))
                loss.backward()
                if before_step:
                    before_step(weights, [p.grad for p in parameters if p.grad is not None])
                optimiser.step()
                if after_step:
                    after_step(weights)
                steps += 1
                seen += len(rows)
                total += loss.detach() * len(rows)
    return Tally(steps, skipped, total.item() / seen if seen else float("nan"))


def _augmented(samples: Samples, stream: torch.Generator, rows: Tensor) -> Tensor:
    """Some rows as `Samples.batch`, but augmented before they are normalised, so that the margin is black."""
    return samples.normalise(crop_and_flip(samples.inputs.index_select(0, rows), stream))
