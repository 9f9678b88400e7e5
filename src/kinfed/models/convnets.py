"""Small networks: the papers' CNNs, a CNN for 8×8 digits, and an MLP.

Each function gives the stages of a body for inputs of one shape. The tap point of a convolution, at which its
activations are read, is after its ReLU and before pooling (specification B.5).
"""

from __future__ import annotations

import math

from torch import nn

from kinfed.models.model import BeforeReLU

__all__ = ["cnn4", "cnn4_half", "mcmahan_cnn", "mlp", "small_cnn", "tiny_cnn"]

Stages = dict[str, nn.Module]
Shape = tuple[int, ...]


def _conv(inputs: int, outputs: int, kernel: int, padding: int = 0) -> nn.Module:
    return BeforeReLU(nn.Conv2d(inputs, outputs, kernel, padding=padding))


def _pool() -> nn.Module:
    return nn.Sequential(nn.MaxPool2d(2), nn.ReLU(inplace=True))


def _dense(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU())


def tiny_cnn(shape: Shape) -> Stages:
    """CNN for 8×8 digits: conv3×3(16)-pool, conv3×3(32)-pool, FC 64."""
    channels, height, width = shape
    return {
        "conv1": _conv(channels, 16, 3, padding=1),
        "pool1": _pool(),
        "conv2": _conv(16, 32, 3, padding=1),
        "pool2": _pool(),
        "flatten": nn.Flatten(),
        "fc64": _dense(32 * (height // 4) * (width // 4), 64),
    }


def small_cnn(shape: Shape) -> Stages:
    """FedCKA's CNN (specification B.5): two 5×5 convolutions, FC 120 and 84, and MOON's projection 84 → 84 → 256.

    The projection stays part of the classifier. 151,802 parameters for CIFAR-10.
    """
    channels, *sides = shape
    height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
    return {
        "conv1": _conv(channels, 16, 5),
        "pool1": _pool(),
        "conv2": _conv(16, 32, 5),
        "pool2": _pool(),
        "flatten": nn.Flatten(),
        "fc120": _dense(32 * height * width, 120),
        "fc84": _dense(120, 84),
        "proj84": _dense(84, 84),
        "proj256": nn.Linear(84, 256),
    }


def cnn4(shape: Shape, width: int = 64) -> Stages:
    """FedBABU's and FedCRC's CNN (specification C.6): four times conv3×3(64)-BatchNorm-ReLU-pool.

    115,658 parameters for CIFAR-10.
    """
    stages: Stages = {}
    for i, inputs in enumerate((shape[0], width, width, width), start=1):
        stages[f"conv{i}"] = BeforeReLU(nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width))
        stages[f"pool{i}"] = _pool()
    return {**stages, "flatten": nn.Flatten()}


def cnn4_half(shape: Shape) -> Stages:
    """CNN `cnn4` with 32 filters, for clients with less computing power; 30,186 parameters for CIFAR-10."""
    return cnn4(shape, width=32)


def mcmahan_cnn(shape: Shape) -> Stages:
    """CNN of McMahan et al. 2017: conv5×5(32)-pool, conv5×5(64)-pool, FC 512; 1,663,370 parameters for MNIST."""
    channels, height, width = shape
    return {
        "conv1": _conv(channels, 32, 5, padding=2),
        "pool1": _pool(),
        "conv2": _conv(32, 64, 5, padding=2),
        "pool2": _pool(),
        "flatten": nn.Flatten(),
        "fc512": _dense(64 * (height // 4) * (width // 4), 512),
    }


def mlp(shape: Shape) -> Stages:
    """MLP with two hidden layers of 200 (McMahan et al. 2017), for images and flat features."""
    return {"flatten": nn.Flatten(), "fc1": _dense(math.prod(shape), 200), "fc2": _dense(200, 200)}
