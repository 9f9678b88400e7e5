"""How similar are two networks, layer by layer? No federation is needed.

Two networks of the same form learn the same digits from different initial weights, and become alike. A third one learns
nothing, and the debiased CKA tells it from them.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from kinfed.similarity import cka, compare_layers


def network(seed: int) -> nn.Sequential:
    """Two hidden layers, with initial weights that belong to the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(model: nn.Sequential, x: Tensor, y: Tensor) -> nn.Sequential:
    """Train on all samples for 200 steps."""
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model


@torch.no_grad()
def activations(model: nn.Sequential, x: Tensor) -> dict[str, Tensor]:
    """Return what both hidden layers and the output say about the samples, each n×d."""
    return {"first": model[:2](x), "second": model[:4](x), "output": model(x)}


if __name__ == "__main__":
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    one, two, untrained = train(network(0), x, y), train(network(1), x, y), network(2)

    similarity = compare_layers(activations(one, x), activations(two, x))
    print("CKA of the layers of one network (rows) and of another (columns):")
    for name, row in zip(similarity.features_a, similarity.values, strict=True):
        print(f"{name:8}", *(f"{value:.3f}" for value in row))

    for told, other in (("another trained network", two), ("an untrained one", untrained)):
        value = cka(activations(one, x)["second"], activations(other, x)["second"], debiased=True)
        print(f"second layer, compared with {told}: {value:.3f}")
