"""Self-supervised learning by BYOL and SimSiam (specification D.0), and the detection of collapse.

BYOL is Grill et al. 2020, https://arxiv.org/abs/2006.07733; SimSiam is Chen and He 2020,
https://arxiv.org/abs/2011.10566. Letters: the online network q(o(x)) is trained; o is its encoder (body and projector),
q its predictor. The target network ξ of BYOL is a moving average of o. b images in a batch, d outputs of an image.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from kinfed.data.samples import Samples
from kinfed.learning.phases import Batch, LocalTraining, Phase
from kinfed.learning.training import Loss, Tally, train
from kinfed.learning.views import two_views
from kinfed.models import ONLINE, Model, Siamese, Target, Tensors

__all__ = ["COLLAPSED", "byol_loss", "simsiam_loss", "spread", "train_siamese"]

MOMENTUM = 0.99  # m of the target

COLLAPSED = 0.1  # with a `spread` below this, the outputs are nearly equal for all images


def byol_loss(p: Tensor, z: Tensor) -> Tensor:
    """BYOL's loss ``2 − 2 cos(p, z)``, a mean over the batch, in [0, 4]; no gradient reaches z.

    Args:
        p: Outputs of the predictor, b×d.
        z: Targets of the outputs, b×d.

    >>> byol_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0]]))
    tensor(2.)
    """
    return 2 - 2 * _cosine(p, z)


def simsiam_loss(p: Tensor, z: Tensor) -> Tensor:
    """SimSiam's loss ``− cos(p, z)``, a mean over the batch, in [−1, 1]; no gradient reaches z.

    >>> simsiam_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 0.0]]))
    tensor(-1.)
    """
    return -_cosine(p, z)


def _cosine(p: Tensor, z: Tensor) -> Tensor:
    """Mean cosine, at least in float32: in half precision the lower bound of a norm, 1e-12, would be 0."""
    wide = torch.promote_types(p.dtype, torch.float32)
    p, z = functional.normalize(p.to(wide), dim=1), functional.normalize(z.detach().to(wide), dim=1)
    return (p * z).sum(dim=1).mean()


@torch.no_grad()
def spread(outputs: Tensor) -> Tensor:
    """Compute the spread of the directions of b outputs, b×d: the standard deviation of the outputs of unit length.

    It is a mean over the dimensions, relative to the 1/√d of evenly spread directions (Chen and He 2020, section 4.1),
    in [0, 1]; 0 if all outputs have the same direction.

    >>> spread(torch.tensor([[1.0, 2.0], [2.0, 4.0]]))
    tensor(0.)
    """
    unit = functional.normalize(outputs.float(), dim=1)
    unit = unit - unit[:1]  # makes the spread of equal outputs exactly 0
    relative: Tensor = unit.std(dim=0, correction=0).mean() * unit.shape[1] ** 0.5
    return relative


def train_siamese(
    online: Siamese,
    target: Target | None,
    samples: Samples,
    training: LocalTraining,
    stream: torch.Generator,
    *,
    term: Callable[[], Tensor | None] | None = None,
) -> tuple[Tally, float]:
    """Train a BYOL or SimSiam network in place for one round of local training, on two random views of every image.

    Labels are not read. Smaller last batches are dropped, as by `Phase.drop_last`. The views replace
    ``training.augment``.

    Args:
        online: Online network; body, projector and predictor are trained, the head is not.
        target: Target network ξ of BYOL, whose moving average is updated after every step; None for SimSiam.
        samples: Images, on the networks' device.
        training: Training settings of the round.
        stream: Random stream that shuffles the images and draws the views.
        term: Function that gives a term to add to the loss of a step, or None for no term.

    Returns:
        The record of the training (steps, skipped samples, mean losses), and the mean `spread` of o's outputs over the
        last epoch, which is near 0 if the network has collapsed; NaN without a step.
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
    tally = train(online, unlabelled, phase, training, stream, loss, read=read, after_step=follow)
    an_epoch = len(spreads) // training.epochs
    return tally, torch.stack(spreads[-an_epoch:]).mean().item() if spreads else float("nan")
