"""ResNets of torchvision, with a smaller stem for small images."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["SMALL_IMAGE", "resnet18", "resnet34", "resnet50"]

SMALL_IMAGE = 64  # largest height and width with the small stem

Stages = dict[str, nn.Module]
Shape = tuple[int, ...]


def resnet18(shape: Shape) -> Stages:
    """ResNet-18; 11,173,962 parameters for CIFAR-10."""
    return _stages("resnet18", shape)


def resnet34(shape: Shape) -> Stages:
    """ResNet-34; 21,282,122 parameters for CIFAR-10."""
    return _stages("resnet34", shape)


def resnet50(shape: Shape) -> Stages:
    """ResNet-50; 23,520,842 parameters for CIFAR-10."""
    return _stages("resnet50", shape)


def _stages(name: str, shape: Shape) -> Stages:
    """Stages of a ResNet: for images up to 64×64 with a 3×3 stem of stride 1 and no max pooling, else the original.

    The tap point of a block is its output after the addition and the ReLU.
    """
    from torchvision import models

    channels, *sides = shape
    net: Any = getattr(models, name)()
    small = max(sides) <= SMALL_IMAGE
    if small or channels != 3:
        kernel, stride, padding = (3, 1, 1) if small else (7, 2, 3)
        net.conv1 = nn.Conv2d(channels, 64, kernel, stride=stride, padding=padding, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")  # as in torchvision
    stages: Stages = {"stem": nn.Sequential(net.conv1, net.bn1, net.relu)}
    if not small:
        stages["pool"] = net.maxpool
    for layer in ("layer1", "layer2", "layer3", "layer4"):
        for i, block in enumerate(net.get_submodule(layer).children(), start=1):
            stages[f"{layer}_{i}"] = block
    return {**stages, "gap": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
