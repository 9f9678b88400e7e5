"""Networks of self-supervised learning: projector, predictor, and the target network (specification D.0).

Letters: o is the encoder (body and projector), q the predictor, ξ the target network.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from kinfed.models.model import BODY, Body, Model, Part, Parts
from kinfed.streams import seeded_globals, torch_stream

__all__ = ["ONLINE", "PREDICTOR", "PROJECTOR", "TARGET", "Siamese", "Target"]

PROJECTOR: Part = ("projector.",)
PREDICTOR: Part = ("predictor.",)
ONLINE: Part = BODY + PROJECTOR + PREDICTOR  # the trained part; the head is not trained
TARGET: Part = ("target.",)


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """MLP of one hidden layer: Linear-BatchNorm-ReLU-Linear."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, outputs)
    )


class Siamese(Model):
    """Online network ``q(o(x))`` of a model: ``o`` is its body with a projector, ``q`` the predictor.

    Body and head are the model's own, not copies; the head is not used.

    Args:
        model: Model whose body gives representations n×d.
        seed: Seed of the run. Its stream ``"siamese"`` gives the initial weights of projector and predictor, equal for
            all bodies with the same d.
        hidden: Width of the hidden layer of projector and predictor.
        out: Width of the outputs of projector and predictor.

    >>> model = Model({"flatten": nn.Flatten()}, nn.Linear(4, 2), [])
    >>> Siamese(model, seed=0, hidden=16, out=8).project(torch.zeros(5, 1, 2, 2)).shape
    torch.Size([5, 8])
    """

    def __init__(self, model: Model, seed: int, *, hidden: int, out: int) -> None:
        super().__init__(model.stages, model.head, model.taps[:-2])
        self.recipe, self.frozen, self.still = model.recipe, model.frozen, model.still
        self.body.in_bfloat16, self.out = model.body.in_bfloat16, out
        with seeded_globals(torch_stream(seed, "siamese")):
            projector, predictor = _mlp(model.head.in_features, hidden, out), _mlp(out, hidden, out)
        self.projector = projector.to(model.head.weight.device)
        self.predictor = predictor.to(model.head.weight.device)

    def project(self, x: Tensor) -> Tensor:
        """Compute the projections ``o(x)``, n×out."""
        with self.body.computing():
            projection: Tensor = self.projector(self.body(x))
        return projection.float() if self.body.in_bfloat16 else projection


class Target(Parts):
    """Target network ``ξ``: a copy of body and projector that is updated by a moving average, without gradients.

    It is in training mode: its BatchNorm uses the statistics of the batch and keeps its own running statistics. Modules
    that stay in evaluation mode in the online network do so here.
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
        """Compute the projections ``ξ(x)``, n×out."""
        body = self.target.get_submodule("body")
        assert isinstance(body, Body)
        with body.computing():
            projection: Tensor = self.target(x)
        return projection.float() if body.in_bfloat16 else projection

    @torch.no_grad()
    def follow(self, online: Siamese, momentum: float) -> None:
        """Update the parameters (not buffers) by the moving average ``ξ ← m ξ + (1 − m) o``; m is the momentum."""
        leading = [*online.body.parameters(), *online.projector.parameters()]
        torch._foreach_lerp_([*self.parameters()], [p.detach() for p in leading], 1 - momentum)
