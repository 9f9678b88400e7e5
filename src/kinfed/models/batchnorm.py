"""What BatchNorm layers become (METHODS.md 0.5)."""

from __future__ import annotations

import math
from typing import Literal

from torch import nn

__all__ = ["BatchNorm", "set_batchnorm"]

BatchNorm = Literal["track", "batch", "group"]

GROUPS = 32  # Wu and He 2018


def set_batchnorm(module: nn.Module, bn: BatchNorm) -> None:
    """Change the BatchNorm layers of a module in place.

    ``track``: as they are; running statistics are updated in training, averaged at the server, used in evaluation.
    ``batch``: without running statistics, as in FedBABU's code; an evaluation depends on which samples share a batch.
    ``group``: GroupNorm of 32 groups (or the largest common divisor with the channels), which knows no batch.
    """
    if bn == "track":
        return
    for name, child in module.named_children():
        if not isinstance(child, nn.BatchNorm2d):
            set_batchnorm(child, bn)
        elif bn == "group":
            setattr(module, name, nn.GroupNorm(math.gcd(GROUPS, child.num_features), child.num_features))
        else:
            setattr(module, name, nn.BatchNorm2d(child.num_features, track_running_stats=False))
