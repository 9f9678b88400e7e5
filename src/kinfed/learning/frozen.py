"""Outputs of frozen models for a client's samples, computed once in a round instead of in every batch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kinfed.data.samples import AS_THEY_ARE, Samples
from kinfed.learning.phases import Batch, LocalTraining
from kinfed.models import HEAD, NOTHING, Model
from kinfed.similarity.gram import gram_of, times_own_transpose
from kinfed.similarity.inputs import magnitude

__all__ = ["activations", "features", "frozen_copy", "frozen_grams", "frozen_rows", "store", "with_frozen_body"]

CHUNK = 128  # samples in a forward pass; with so few the activations stay in the cache

Function = Callable[
    [Tensor], Sequence[Tensor]
]  # normalised inputs b×… → tensors b×…, each row from its own input alone
Reader = Callable[[Batch], list[Tensor]]


def features(model: Model, samples: Samples, tap: str = "body") -> Tensor:
    """Compute the activations at one tap point for all samples, n×…, in evaluation mode, without augmentation.

    Args:
        model: Model to evaluate; it is left in evaluation mode.
        samples: n samples on the model's device.
        tap: Tap point, a named place in the model; ``"body"`` gives the representations, n×d, ``"head"`` the logits,
            n×classes.
    """
    return activations(model, samples, [tap])[0]


def activations(model: Model, samples: Samples, taps: Sequence[str]) -> list[Tensor]:
    """Compute the activations at several tap points for all samples in one pass, n×… each; see `features`."""
    model.eval()
    stored = store(lambda inputs: [*model.activations(inputs, taps).values()], samples)
    assert stored is not None
    return stored


@torch.no_grad()
def store(function: Function, samples: Samples, limit_mb: float | None = None) -> list[Tensor] | None:
    """Compute and store a function of frozen models for all samples.

    Args:
        function: Function of normalised inputs, of one sample in each row.
        samples: n ≥ 1 samples on the models' device.
        limit_mb: Limit on the memory of the results, in MiB; None for no limit.

    Returns:
        The results, n×… each. None, with a warning, if they exceed the limit.
    """
    stored: list[Tensor] = []
    for start in range(0, len(samples), CHUNK):
        parts = function(samples.batch(slice(start, start + CHUNK)))
        if not stored:
            needed = sum(part[0].nbytes for part in parts) * len(samples) / 2**20
            if limit_mb is not None and needed > limit_mb:
                warnings.warn(
                    "the outputs of frozen models for a client's samples need more than feature_cache_mb "
                    f"({limit_mb:g}); they are recomputed for every batch",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return None
            stored = [part.new_empty(len(samples), *part.shape[1:]) for part in parts]
        for whole, part in zip(stored, parts, strict=True):
            whole[start : start + CHUNK] = part
    return stored


def with_frozen_body(model: Model, samples: Samples, training: LocalTraining) -> tuple[Model, Samples]:
    """Replace a model with a frozen body by its head, and the samples by their representations, n×d.

    The body then runs only once, for any number of phases that train the head alone. The head is the model's own, not a
    copy. With augmentation, or if ``training.feature_cache_mb`` is too small, model and samples are returned unchanged.

    Args:
        model: Model of the client; only its head is left trainable.
        samples: Samples of the client, on the model's device.
        training: Training settings of the round.
    """
    model.freeze_all_but(HEAD)
    body = model.body
    stored = _stored(lambda inputs: [body(inputs)], samples, training) if len(body) else None
    if stored is None:
        return model, samples
    return Model({}, model.head, ()), replace(samples, inputs=stored[0], normalise=AS_THEY_ARE)


def frozen_rows(function: Function, samples: Samples, training: LocalTraining) -> Reader:
    """Return a function that gives the outputs of frozen models for a batch, b×… each.

    The outputs of all samples are computed once and stored. With augmentation, or if ``training.feature_cache_mb`` is
    too small, they are computed for every batch.

    Args:
        function: Function of normalised inputs, of one sample in each row.
        samples: Samples of the client, on the models' device.
        training: Training settings of the round.
    """
    return _reader(function, _stored(function, samples, training))


def frozen_grams(function: Function, samples: Samples, training: LocalTraining) -> Reader:
    """Return a function that gives the linear Grams, b×b, of outputs of frozen models for a batch; see `frozen_rows`.

    Each is the Gram of the rows minus some common row, not necessarily their mean, up to a factor.
    """
    stored = _stored(function, samples, training)
    if stored is None:
        read = _reader(function, None)
        return lambda batch: [gram_of(x) for x in read(batch)]
    for x in stored:  # centre and scale once, for precise products of any rows
        x.sub_(x.mean(dim=0)).div_(magnitude(x))
    if (
        len(samples) < training.epochs * training.batch_size
    ):  # one Gram of all samples is cheaper than the Grams of all batches
        grams = [times_own_transpose(x) for x in stored]
        return lambda batch: [gram.index_select(0, batch.rows).index_select(1, batch.rows) for gram in grams]
    read = _reader(function, stored)
    return lambda batch: [times_own_transpose(x) for x in read(batch)]


def _stored(function: Function, samples: Samples, training: LocalTraining) -> list[Tensor] | None:
    return store(function, samples, training.feature_cache_mb) if training.augment == "none" else None


def _reader(function: Function, stored: list[Tensor] | None) -> Reader:
    if stored is not None:
        return lambda batch: [whole.index_select(0, batch.rows) for whole in stored]
    run = torch.no_grad()(function)
    return lambda batch: list(run(batch.inputs))


def frozen_copy(model: Model, tensors: Mapping[str, Tensor]) -> Model:
    """Copy a model, load the given tensors (by name) into the copy, and freeze it in evaluation mode."""
    frozen = copy.deepcopy(model)
    frozen.load(tensors)
    frozen.freeze_all_but(NOTHING)
    return frozen
