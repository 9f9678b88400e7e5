"""Detection of modules that may draw random numbers in a forward pass."""

from __future__ import annotations

from torch import nn

__all__ = ["may_draw"]

# Layers that draw nothing. Their subclasses may draw, so only these exact types count.
KNOWN: tuple[type[nn.Module], ...] = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Tanh, nn.Sigmoid, nn.Softmax,
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    nn.Flatten, nn.Identity, nn.Sequential, nn.ModuleList, nn.ModuleDict,
)  # fmt: skip
BLOCKS = {("torchvision.models.resnet", name) for name in ("BasicBlock", "Bottleneck")}  # by name: slow to import


def may_draw(model: nn.Module) -> bool:
    """Return True if a forward pass may draw from global random generators: dropout does, and unknown modules may.

    >>> may_draw(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), may_draw(nn.Sequential(nn.Dropout()))
    (False, True)
    """
    return not all(_is_known(module) for module in model.modules())


def _is_known(module: nn.Module) -> bool:
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return False
    kind = type(module)
    known = kind in KNOWN or (kind.__module__, kind.__qualname__) in BLOCKS
    return known or kind.__module__.startswith("kinfed.models.")
