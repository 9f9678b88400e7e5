"""Local training: SGD or Adam in phases, each of which trains one part of the model."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.sgd import sgd

from kinfed.data.samples import Samples
from kinfed.learning.augmentation import crop_and_flip
from kinfed.learning.frozen import with_frozen_body
from kinfed.learning.phases import Batch, LocalTraining, Phase
from kinfed.models import BODY, Model, Tensors
from kinfed.streams import seeded_globals

__all__ = ["AfterStep", "BeforeStep", "Loss", "Objective", "Tally", "cross_entropy", "train"]


class Loss(NamedTuple):
    """Loss in two parts, which are recorded separately.

    Attributes:
        plain: Cross-entropy, or the self-supervised loss for methods without labels.
        term: Term that the method adds; None for no term.

    >>> Loss(torch.tensor(2.0), term=torch.tensor(0.5)).total
    tensor(2.5000)
    """

    plain: Tensor
    term: Tensor | None = None

    @property
    def total(self) -> Tensor:
        """Sum of both parts, which is minimised."""
        return self.plain if self.term is None else self.plain + self.term


Objective = Callable[[Model, Batch], Tensor | Loss]
"""Function for the loss of a batch, a mean over its samples; a tensor is a loss without a term."""

BeforeStep = Callable[[Tensors, Tensors], None]
"""Function called before an optimiser step with weights and gradients, by name; it may change the gradients in place.

Both are those of the trained parameters that have a gradient, in the model's order.
"""

AfterStep = Callable[[Tensors], None]
"""Function called after an optimiser step with the same weights as `BeforeStep`; it may change them in place."""


def cross_entropy(model: Model, batch: Batch) -> Tensor:
    """Compute the mean cross-entropy of a model's logits over a batch."""
    return functional.cross_entropy(model(batch.inputs), batch.labels)


@dataclass(frozen=True)
class Tally:
    """Record of one phase of training.

    Attributes:
        steps: Number of optimiser steps.
        skipped: Number of samples in skipped batches over all epochs: batches of one sample if BatchNorm needs two, and
            those that ``drop_last`` of the phase drops.
        loss: Mean loss over the samples seen; NaN without a step.
        plain: Mean over the samples seen of the loss without the method's term; NaN without a step.
        term: Mean over the samples seen of the method's term, 0 in steps without one; None if no step had one.
    """

    steps: int
    skipped: int
    loss: float
    plain: float
    term: float | None


def train(
    model: Model,
    samples: Samples,
    phase: Phase,
    training: LocalTraining,
    order: torch.Generator,
    objective: Objective = cross_entropy,
    *,
    read: Callable[[Tensor], Tensor] | None = None,
    before_step: BeforeStep | None = None,
    after_step: AfterStep | None = None,
) -> Tally:
    """Train one part of a model in place; make no step if that part is permanently frozen.

    Args:
        model: Model to train; only the part of the phase is left trainable.
        samples: Samples on the model's device; labelled, if the objective needs labels.
        phase: Phase, which names the part to train.
        training: Training settings of the round.
        order: Random stream that shuffles the samples in every epoch and augments them. Its seed also seeds the global
            generators, from which dropout draws.
        objective: Function for the loss of a batch.
        read: Function that gives the inputs of a batch for the indices of its samples; None for the inputs of the
            samples, normalised and augmented according to ``training``.
        before_step: Function called before each optimiser step.
        after_step: Function called after each optimiser step.

    Returns:
        Record of the phase: steps, skipped samples and mean losses.
    """
    if read is None and not BODY[0].startswith(phase.train):
        # A frozen body gives the same representations in every epoch.
        model, samples = with_frozen_body(model, samples, training)
    model.freeze_all_but(phase.train)
    if read is None:
        read = partial(_augmented, samples, order) if training.augment == "crop_flip" else samples.batch
    needs_two = any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in model.modules())
    fewest = 2 if needs_two else 1
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        return Tally(0, 0, float("nan"), float("nan"), None)
    weights = {name: p.detach() for name, p in parameters.items()}  # the same memory, outside autograd
    optimiser, losses = _optimiser([*parameters.values()], phase, training), _Losses()
    with seeded_globals(order, samples.inputs.device, certain=False):
        for _ in range(training.epochs if phase.epochs is None else phase.epochs):
            shuffled = torch.randperm(len(samples), generator=order).to(samples.inputs.device)
            for rows in shuffled.split(training.batch_size):
                dropped = phase.drop_last and len(rows) < min(training.batch_size, len(samples))
                if len(rows) < fewest or dropped:
                    losses.skipped += len(rows)
                    continue
                optimiser.zero_grad(set_to_none=True)
                told = objective(model, Batch(read(rows), _labels_of(samples, rows), rows))
                loss = told if isinstance(told, Loss) else Loss(told)
                total = loss.total
                total.backward()
                if before_step or after_step:
                    gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
                    moving = {name: weights[name] for name in gradients}
                if before_step:
                    before_step(moving, gradients)
                optimiser.step()
                if after_step:
                    after_step(moving)
                losses.add(len(rows), total, loss)
    return losses.tally()


def _optimiser(listed: list[nn.Parameter], phase: Phase, training: LocalTraining) -> _Optimiser:
    """Make a new optimiser, without a state."""
    lr, decay = training.lr if phase.lr is None else phase.lr, training.weight_decay
    fused = listed[0].device.type in ("cpu", "cuda")  # one call for all tensors in a step, elsewhere by foreach
    match training.optimizer:
        case "sgd":
            return _SGD(listed, lr, training.momentum, decay, fused)
        case "adam":
            return torch.optim.Adam(listed, lr, weight_decay=decay, fused=fused, foreach=not fused)
        case "adamw":
            return torch.optim.AdamW(listed, lr, weight_decay=decay, fused=fused, foreach=not fused)


class _Optimiser(Protocol):
    """Optimiser of a phase."""

    def zero_grad(self, set_to_none: bool = ...) -> None:
        """Forget the gradients."""

    def step(self) -> object:
        """Change the parameters by their gradients."""


class _SGD:
    """SGD by the function that `torch.optim.SGD` calls.

    The class does the same, but imports PyTorch's compiler first: two seconds of every new process, and of every
    message to a site.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float, momentum: float, decay: float, fused: bool) -> None:
        self._parameters, self._lr, self._momentum, self._decay, self._fused = parameters, lr, momentum, decay, fused
        self._buffers: dict[nn.Parameter, Tensor | None] = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        moving = [parameter for parameter in self._parameters if parameter.grad is not None]
        gradients = [parameter.grad for parameter in moving if parameter.grad is not None]
        buffers = [self._buffers.get(parameter) for parameter in moving] if self._momentum else []
        sgd(
            [*moving], gradients, buffers, fused=self._fused, foreach=not self._fused, weight_decay=self._decay,
            momentum=self._momentum, lr=self._lr, dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip
        if self._momentum:
            self._buffers.update(zip(moving, buffers, strict=True))


def _labels_of(samples: Samples, rows: Tensor) -> Tensor:
    """Return the labels of a batch; an empty tensor for samples without labels."""
    return rows[:0] if samples.labels is None else samples.labels[rows]


class _Losses:
    """Losses of the steps of a phase; they stay on the device until the end, so that no step waits for it."""

    def __init__(self) -> None:
        self.skipped = 0
        self._totals: _Means = []
        self._plains: _Means = []
        self._terms: _Means = []

    def add(self, samples: int, total: Tensor, loss: Loss) -> None:
        """Add a step."""
        self._totals.append((samples, total.detach()))
        self._plains.append((samples, loss.plain.detach()))
        if loss.term is not None:
            self._terms.append((samples, loss.term.detach()))

    def tally(self) -> Tally:
        """Return the record of the phase."""
        seen = sum(samples for samples, _ in self._totals)
        term = _mean(self._terms, seen) if self._terms else None
        return Tally(len(self._totals), self.skipped, _mean(self._totals, seen), _mean(self._plains, seen), term)


_Means = list[tuple[int, Tensor]]  # for each step: the number of its samples, and a mean over them


def _mean(means: _Means, seen: int) -> float:
    """Compute the mean over all samples seen; NaN without a step."""
    if not means:
        return float("nan")
    counts, values = zip(*means, strict=True)
    weighted = torch.stack(values) * torch.tensor(counts, device=values[0].device)
    total: float = functools.reduce(operator.add, weighted.double().tolist())
    return total / seen


def _augmented(samples: Samples, stream: torch.Generator, rows: Tensor) -> Tensor:
    """Compute the inputs of a batch, augmented before they are normalised, so that the padding is black."""
    return samples.normalise(crop_and_flip(samples.inputs.index_select(0, rows), stream))
