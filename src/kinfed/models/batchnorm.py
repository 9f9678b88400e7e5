"""Replacement and freezing of BatchNorm layers (specification 0.5)."""

from __future__ import annotations

import math
from typing import Literal

from torch import nn

__all__ = ["BatchNorm", "set_batchnorm"]

BatchNorm = Literal["track", "batch", "group", "frozen"]

GROUPS = 32  # Wu and He 2018


def set_batchnorm(module: nn.Module, bn: BatchNorm) -> None:
    """Change the BatchNorm layers of a module in place.

    ``track``: no change; running statistics are updated in training, averaged at the server, and used in evaluation.
    ``batch``: no running statistics, as in FedBABU's code; an evaluation depends on which samples share a batch.
    ``group``: GroupNorm of 32 groups (or their largest common divisor with the channels), independent of the batch.
    ``frozen``: evaluation mode for good, so that running statistics do not change, and parameters that are not trained.

    >>> net = nn.Sequential(nn.BatchNorm2d(64))
    >>> set_batchnorm(net, "group")
    >>> type(net[0]).__name__, net[0].num_groups
    ('GroupNorm', 32)
    """
    if bn == "track":
        return
    instead: dict[nn.Module, nn.Module] = {}  # a layer that is used in several places gets one replacement
    for parent in [*module.modules()]:
        for name, layer in parent._modules.items():
            if isinstance(layer, nn.BatchNorm2d):
                if bn == "frozen":
                    layer.eval().requires_grad_(requires_grad=False)
                    continue
                if layer not in instead:
                    instead[layer] = _in_place_of(layer, bn)
                setattr(parent, name, instead[layer])


def _in_place_of(layer: nn.BatchNorm2d, bn: BatchNorm) -> nn.Module:
    if bn == "group":
        return nn.GroupNorm(math.gcd(GROUPS, layer.num_features), layer.num_features)
    return nn.BatchNorm2d(layer.num_features, track_running_stats=False)
