"""Learning without labels: BYOL and SimSiam (METHODS.md D.0), and how a collapse shows.

BYOL is Grill et al. 2020, https://arxiv.org/abs/2006.07733; SimSiam is Chen and He 2020,
https://arxiv.org/abs/2011.10566.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from kinfed.data.samples import Samples
from kinfed.learning.phases import SGD, Batch, Phase
from kinfed.learning.training import Loss, Tally, train
from kinfed.learning.views import two_views
from kinfed.models import ONLINE, Model, Siamese, Target, Tensors

__all__ = ["COLLAPSED", "byol_loss", "simsiam_loss", "spread", "train_siamese"]

MOMENTUM = 0.99  # m of the target

COLLAPSED = 0.1  # a `spread` below this: the network says nearly the same of every image


def byol_loss(p: Tensor, z: Tensor) -> Tensor:
    """``2 − 2 cos(p, z)``, mean over the batch, in [0, 4]; no gradient reaches z.

    Args:
        p: A predictor's outputs, b×d.
        z: What they should be like, b×d.
    """
    return 2 - 2 * _cosine(p, z)


def simsiam_loss(p: Tensor, z: Tensor) -> Tensor:
    """``− cos(p, z)``, mean over the batch, in [−1, 1]; no gradient reaches z."""
    return -_cosine(p, z)


def _cosine(p: Tensor, z: Tensor) -> Tensor:
    """In float32 at least: in half precision the bound on a norm, 1e-12, is 0."""
    wide = torch.promote_types(p.dtype, torch.float32)
    p, z = functional.normalize(p.to(wide), dim=1), functional.normalize(z.detach().to(wide), dim=1)
    return (p * z).sum(dim=1).mean()


@torch.no_grad()
def spread(outputs: Tensor) -> Tensor:
    """How far apart the directions of outputs b×d are: the standard deviation of what has norm 1, by dimension.

    Its mean over the dimensions, relative to 1/√d, which evenly spread directions have (Chen and He 2020, section 4.1):
    in [0, 1], 0 where all outputs point the same way.
    """
    unit = functional.normalize(outputs.float(), dim=1)
    unit = unit - unit[:1]  # so that equal outputs differ by exactly 0
    relative: Tensor = unit.std(dim=0, correction=0).mean() * unit.shape[1] ** 0.5
    return relative


def train_siamese(
    online: Siamese,
    target: Target | None,
    samples: Samples,
    sgd: SGD,
    stream: torch.Generator,
    *,
    term: Callable[[], Tensor | None] | None = None,
) -> tuple[Tally, float]:
    """Train a network on two views of every image, in place; labels are not read.

    Whole batches only, as long as there is one (`Phase.drop_last`). The views take the place of ``sgd.augment``.

    Args:
        online: ``q(o(x))``; its head is left alone.
        target: ``ξ``, for BYOL: follows ``o`` after every step. None for SimSiam.
        samples: Images, on the networks' device.
        sgd: Step size, epochs and batch size of the round.
        stream: Shuffles the images and draws the views.
        term: What is added to a step's loss, if anything.

    Returns:
        What was done, and the mean `spread` of ``o``'s outputs over the last epoch; NaN if there was no step.
    """
    unlabelled = samples.without_labels()
    spreads: list[Tensor] = []

    def read(rows: Tensor) -> Tensor:
        return torch.stack(two_views(unlabelled.inputs.index_select(0, rows), stream))

    def loss(_: Model, batch: Batch) -> Loss:
        first, second = batch.inputs
        z = online.project(first), online.project(second)
        p = online.predictor(z[0]), online.predictor(z[1])
        spreads.append(spread(z[0]))
        if target is None:
            value = simsiam_loss(p[0], z[1]) / 2 + simsiam_loss(p[1], z[0]) / 2
        else:
            with torch.no_grad():
                of_first, of_second = target(first), target(second)
            value = byol_loss(p[0], of_second) + byol_loss(p[1], of_first)
        return Loss(value, term() if term else None)

    def follow(_: Tensors) -> None:
        if target is not None:
            target.follow(online, MOMENTUM)

    phase = Phase(train=ONLINE, drop_last=True)
    tally = train(online, unlabelled, phase, sgd, stream, loss, read=read, after_step=follow)
    an_epoch = len(spreads) // sgd.epochs
    return tally, torch.stack(spreads[-an_epoch:]).mean().item() if spreads else float("nan")
