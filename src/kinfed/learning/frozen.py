"""What a frozen model makes of some samples, computed once."""

from __future__ import annotations

import torch
from torch import Tensor

from kinfed.data.samples import Samples
from kinfed.models import Model

__all__ = ["features"]

CHUNK = 512  # samples a forward pass; without gradients this is bounded by activations alone


@torch.no_grad()
def features(model: Model, samples: Samples, tap: str = "body") -> Tensor:
    """Activations of one tap point over all samples, n×…, in evaluation mode and without augmentation.

    Args:
        model: Left in evaluation mode.
        samples: n samples on the model's device.
        tap: A tap point of the model; ``"body"`` is the representation n×d, ``"head"`` the logits n×classes.
    """
    model.eval()
    rows = torch.arange(len(samples), device=samples.inputs.device)
    return torch.cat([model.activations(samples.batch(part), [tap])[tap] for part in rows.split(CHUNK)])
