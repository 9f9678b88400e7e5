"""VGG-16 of torchvision, without and with BatchNorm."""

from __future__ import annotations

from typing import Any

from torch import nn

from kinfed.models.model import BeforeReLU
from kinfed.models.resnet import SMALL_IMAGE

__all__ = ["vgg16", "vgg16_bn"]

Stages = dict[str, nn.Module]
Shape = tuple[int, ...]


def vgg16(shape: Shape) -> Stages:
    """VGG-16 without BatchNorm; 14,719,818 parameters for CIFAR-10."""
    return _stages("vgg16", shape)


def vgg16_bn(shape: Shape) -> Stages:
    """VGG-16 with BatchNorm; 14,728,266 parameters for CIFAR-10."""
    return _stages("vgg16_bn", shape)


def _stages(name: str, shape: Shape) -> Stages:
    """Stages of a VGG: for images up to 64×64 without the two layers of 4096 between pooling and head, else with them.

    The tap point of a convolution is after its ReLU.
    """
    from torchvision import models

    channels, *sides = shape
    net: Any = getattr(models, name)()
    if channels != 3:
        net.features[0] = nn.Conv2d(channels, 64, 3, padding=1)
        nn.init.kaiming_normal_(net.features[0].weight, mode="fan_out", nonlinearity="relu")  # as in torchvision
        nn.init.zeros_(net.features[0].bias)
    stages: Stages = {}
    block, conv, pending = 1, 1, []
    for layer in net.features:
        pending.append(layer)
        if isinstance(layer, nn.ReLU):
            stages[f"conv{block}_{conv}"] = nn.Sequential(*pending)
            conv, pending = conv + 1, []
        elif isinstance(layer, nn.MaxPool2d):
            name, stage = stages.popitem()
            *before, relu = stage.children()
            stages |= {name: BeforeReLU(*before), f"pool{block}": nn.Sequential(layer, relu)}
            block, conv, pending = block + 1, 1, []
    if max(sides) <= SMALL_IMAGE:
        return {**stages, "gap": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    first, relu, drop, second, relu2, drop2, _ = net.classifier
    return {
        **stages,
        "pool7": net.avgpool,
        "flatten": nn.Flatten(),
        "fc1": nn.Sequential(first, relu, drop),
        "fc2": nn.Sequential(second, relu2, drop2),
    }
