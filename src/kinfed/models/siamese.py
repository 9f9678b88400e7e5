"""What self-supervised learning adds to a model: projector, predictor, and a target that follows (METHODS.md D.0)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from kinfed.models.model import BODY, Model, Part, Parts
from kinfed.streams import seeded_globals, torch_stream

__all__ = ["ONLINE", "PREDICTOR", "PROJECTOR", "TARGET", "Siamese", "Target"]

PROJECTOR: Part = ("projector.",)
PREDICTOR: Part = ("predictor.",)
ONLINE: Part = BODY + PROJECTOR + PREDICTOR  # what is trained; the head is not
TARGET: Part = ("target.",)


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Linear-BatchNorm-ReLU-Linear."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, outputs)
    )


class Siamese(Model):
    """A model with the online network ``q(o(x))`` on its body; its own head stays as it is.

    The body is the model's, not a copy. ``o`` is body and projector, ``q`` the predictor.

    Args:
        model: Its body gives representations n×d.
        seed: Of the run. The weights of projector and predictor come from its stream ``"siamese"``, so they are common
            to all whose bodies have the same d.
        hidden: Width of both between their layers.
        out: Width of their outputs.
    """

    def __init__(self, model: Model, seed: int, *, hidden: int, out: int) -> None:
        super().__init__(model.stages, model.head, model.taps[:-2])
        self.recipe, self.frozen, self.still = model.recipe, model.frozen, model.still
        self.out = out
        with seeded_globals(torch_stream(seed, "siamese")):
            projector, predictor = _mlp(model.head.in_features, hidden, out), _mlp(out, hidden, out)
        self.projector = projector.to(model.head.weight.device)
        self.predictor = predictor.to(model.head.weight.device)

    def project(self, x: Tensor) -> Tensor:
        """``o(x)``, n×out."""
        projection: Tensor = self.projector(self.body(x))
        return projection


class Target(Parts):
    """``ξ``: a deep copy of the body and the projector, which no gradient reaches, and which follows them.

    It is in training mode: its BatchNorm uses the statistics of the batch, and keeps running ones of its own. What is
    frozen in evaluation mode there is so here.
    """

    def __init__(self, online: Siamese) -> None:
        super().__init__()
        self.target = nn.Sequential()
        self.target.add_module("body", copy.deepcopy(online.body))
        self.target.add_module("projector", copy.deepcopy(online.projector))
        self.requires_grad_(False)
        self.still = frozenset(f"target.{name}" for name in online.still)
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        """``ξ(x)``, n×out."""
        projection: Tensor = self.target(x)
        return projection

    @torch.no_grad()
    def follow(self, online: Siamese, momentum: float) -> None:
        """``ξ ← m ξ + (1 − m) o``: parameters only, the buffers of BatchNorm are the target's own."""
        leading = [*online.body.parameters(), *online.projector.parameters()]
        torch._foreach_lerp_([*self.parameters()], [p.detach() for p in leading], 1 - momentum)
