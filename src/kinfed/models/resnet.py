"""ResNets of torchvision, with the stem that small images need."""

from __future__ import annotations

from torch import nn
from torchvision.models import resnet18 as torchvision_resnet18

__all__ = ["SMALL_IMAGE", "resnet18"]

SMALL_IMAGE = 64  # largest side that gets the small stem


def resnet18(shape: tuple[int, ...]) -> dict[str, nn.Module]:
    """ResNet-18; images up to 64×64 get a 3×3 stem of stride 1 and no max pooling, larger ones the original stem.

    A block's tap is its output after the addition and the ReLU.
    """
    channels, *sides = shape
    net = torchvision_resnet18()
    small = max(sides) <= SMALL_IMAGE
    if small or channels != 3:
        kernel, stride, padding = (3, 1, 1) if small else (7, 2, 3)
        net.conv1 = nn.Conv2d(channels, 64, kernel, stride=stride, padding=padding, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision's own
    stages: dict[str, nn.Module] = {"stem": nn.Sequential(net.conv1, net.bn1, net.relu)}
    if not small:
        stages["pool"] = net.maxpool
    for layer in ("layer1", "layer2", "layer3", "layer4"):
        for i, block in enumerate(net.get_submodule(layer).children(), start=1):
            stages[f"{layer}_{i}"] = block
    return {**stages, "gap": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
