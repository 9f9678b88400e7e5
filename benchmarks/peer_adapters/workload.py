"""What every system of benchmarks/peers.py works on, and the turns in which it does; needs NumPy and PyTorch alone."""

import itertools
import os
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

LR, MOMENTUM, BATCH = 0.01, 0.9, 50
MU = {"fedprox": 0.1, "moon": 5.0}
MOON_TEMPERATURE = 0.5


def samples(split: str) -> tuple[Tensor, Tensor]:
    """Return the normalised images (N×3×32×32) and labels of ``train`` or ``test``."""
    with np.load(os.environ["PEERS_IMAGES"]) as stored:
        images, labels, mean, std = (stored[name] for name in (f"{split}_images", f"{split}_labels", "mean", "std"))
    normalised = (images.astype(np.float32) - mean[:, None, None]) / std[:, None, None]
    return torch.from_numpy(normalised), torch.from_numpy(labels)


def shares(clients: int, images: int) -> list[Tensor]:
    """Return the rows of each client: equal parts of a random order."""
    return list(torch.randperm(images, generator=torch.Generator().manual_seed(0)).chunk(clients))


class Body(nn.Module):
    """FedCKA's CNN without its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList((nn.Conv2d(3, 16, 5), nn.Conv2d(16, 32, 5)))
        sizes = (800, 120, 84, 84, 256)
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(sizes))

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, N×256."""
        for convolution in self.convolutions:
            images = functional.max_pool2d(functional.relu(convolution(images)), 2)
        features = images.flatten(1)
        for layer in self.layers:
            features = functional.relu(layer(features))
        return features


class Network(nn.Module):
    """FedCKA's CNN, as kinfed's ``small_cnn``."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Body(), nn.Linear(256, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, N×10."""
        return self.head(self.encoder(images))


class Turns:
    """Tells the benchmark that this system is ready, or has finished a round, and waits until it may go on."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._benchmark = Connection(int(os.environ["PEERS_PIPE"]))

    def wait(self, accuracy: float | None = None) -> None:
        """Report the test accuracy of the round, None before the first one, and wait."""
        self._benchmark.send(accuracy)
        self._benchmark.recv()
