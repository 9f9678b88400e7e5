"""What a frozen model makes of some samples, computed once."""

from __future__ import annotations

import torch
from torch import Tensor

from kinfed.data.samples import Samples
from kinfed.models import Model

__all__ = ["features"]

CHUNK = 128  # samples a forward pass: so few that the activations stay in the cache


@torch.no_grad()
def features(model: Model, samples: Samples, tap: str = "body") -> Tensor:
    """Activations of one tap point over all samples, n×…, in evaluation mode and without augmentation.

    Args:
        model: Left in evaluation mode.
        samples: n samples on the model's device.
        tap: A tap point of the model; ``"body"`` is the representation n×d, ``"head"`` the logits n×classes.
    """
    model.eval()
    batches = map(samples.normalise, samples.inputs.split(CHUNK))
    return torch.cat([model.activations(batch, [tap])[tap] for batch in batches])
