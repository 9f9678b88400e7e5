"""What frozen models make of a client's samples: once a sample and round, not once a batch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kinfed.data.samples import AS_THEY_ARE, Samples
from kinfed.learning.phases import SGD, Batch
from kinfed.models import HEAD, NOTHING, Model
from kinfed.similarity.gram import gram_of, times_own_transpose
from kinfed.similarity.inputs import magnitude

__all__ = ["activations", "features", "frozen_copy", "frozen_grams", "frozen_rows", "store", "with_frozen_body"]

CHUNK = 128  # samples a forward pass: so few that the activations stay in the cache

Function = Callable[
    [Tensor], Sequence[Tensor]
]  # normalised inputs b×… → tensors b×…, each row from its own input alone
Reader = Callable[[Batch], list[Tensor]]


def features(model: Model, samples: Samples, tap: str = "body") -> Tensor:
    """Activations of one tap point over all samples, n×…, in evaluation mode and without augmentation.

    Args:
        model: Left in evaluation mode.
        samples: n samples on the model's device.
        tap: A tap point of the model; ``"body"`` is the representation n×d, ``"head"`` the logits n×classes.
    """
    return activations(model, samples, [tap])[0]


def activations(model: Model, samples: Samples, taps: Sequence[str]) -> list[Tensor]:
    """The same of several tap points, in one pass."""
    model.eval()
    stored = store(lambda inputs: [*model.activations(inputs, taps).values()], samples)
    assert stored is not None
    return stored


@torch.no_grad()
def store(function: Function, samples: Samples, limit_mb: float | None = None) -> list[Tensor] | None:
    """What a function of frozen models gives for all of n ≥ 1 samples, n×… each.

    Args:
        function: What is to be stored of each sample.
        samples: On the models' device.
        limit_mb: The most MiB that the results may take.

    Returns:
        None, with a warning, if they would take more.
    """
    stored: list[Tensor] = []
    for start in range(0, len(samples), CHUNK):
        parts = function(samples.batch(slice(start, start + CHUNK)))
        if not stored:
            needed = sum(part[0].nbytes for part in parts) * len(samples) / 2**20
            if limit_mb is not None and needed > limit_mb:
                warnings.warn(
                    "what frozen models make of a client's samples takes more than feature_cache_mb allows, "
                    f"{limit_mb:g}; it is computed anew for every batch",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return None
            stored = [part.new_empty(len(samples), *part.shape[1:]) for part in parts]
        for whole, part in zip(stored, parts, strict=True):
            whole[start : start + CHUNK] = part
    return stored


def with_frozen_body(model: Model, samples: Samples, sgd: SGD) -> tuple[Model, Samples]:
    """What phases that train the head alone work on: the head, and the samples' representations, n×d.

    The body runs once, however many phases follow; the head is the model's own, changed in place. Where augmentation
    makes every batch new, or ``sgd.feature_cache_mb`` is too small, they are the model and the samples as they came.

    Args:
        model: Left with only its head trainable.
        samples: The client's, on the model's device.
        sgd: How the client trains in this round.
    """
    model.freeze_all_but(HEAD)
    body = model.body
    stored = _stored(lambda inputs: [body(inputs)], samples, sgd) if len(body) else None
    if stored is None:
        return model, samples
    return Model({}, model.head, ()), replace(samples, inputs=stored[0], normalise=AS_THEY_ARE)


def frozen_rows(function: Function, samples: Samples, sgd: SGD) -> Reader:
    """Read a function of frozen models batch by batch, b×… each.

    Each sample goes through the models once, and what a step reads is stored. Where augmentation makes every batch new,
    or ``sgd.feature_cache_mb`` is too small, they run on every batch.

    Args:
        function: Of normalised inputs, row by row.
        samples: The client's, on the models' device.
        sgd: How the client trains in this round.
    """
    return _reader(function, _stored(function, samples, sgd))


def frozen_grams(function: Function, samples: Samples, sgd: SGD) -> Reader:
    """The same for the linear Grams of a batch, b×b, of what a function gives, b×p.

    Each is of rows minus some common row, not necessarily the batch's mean, and known up to a factor.
    """
    stored = _stored(function, samples, sgd)
    if stored is None:
        read = _reader(function, None)
        return lambda batch: [gram_of(x) for x in read(batch)]
    for x in stored:  # once, so that products of any rows keep their digits
        x.sub_(x.mean(dim=0)).div_(magnitude(x))
    if len(samples) < sgd.epochs * sgd.batch_size:  # all pairs of samples are fewer than those of all batches
        grams = [times_own_transpose(x) for x in stored]
        return lambda batch: [gram.index_select(0, batch.rows).index_select(1, batch.rows) for gram in grams]
    read = _reader(function, stored)
    return lambda batch: [times_own_transpose(x) for x in read(batch)]


def _stored(function: Function, samples: Samples, sgd: SGD) -> list[Tensor] | None:
    return store(function, samples, sgd.feature_cache_mb) if sgd.augment == "none" else None


def _reader(function: Function, stored: list[Tensor] | None) -> Reader:
    if stored is not None:
        return lambda batch: [whole.index_select(0, batch.rows) for whole in stored]
    run = torch.no_grad()(function)
    return lambda batch: list(run(batch.inputs))


def frozen_copy(model: Model, tensors: Mapping[str, Tensor]) -> Model:
    """A model of the same architecture with tensors of its own, in evaluation mode; nothing of it is trained."""
    frozen = copy.deepcopy(model)
    frozen.load(tensors)
    frozen.freeze_all_but(NOTHING)
    return frozen
