"""Why PWCCA prefers any source but the right one: what docs/results/sftl.md says of it.

``KINFED_DATA=… python benchmarks/pwcca.py [--seeds R]``

The small version of SFTL's Table 1: five sources learn a pair of classes of MNIST each (2,000 images, 5 epochs), and
ten clients with 600 images of such a pair each train a model of all classes for 5 epochs. Every client's representation
(512 features) of its own images is compared with every source's. Beside each score: the same after the source's rows
changed places, so that no image is compared with itself and whatever is left is no similarity; and the dimensions that
the source's features span on these images, to rounding and for 99 % of their variance.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfed.data import Samples, load
from kinfed.engine.malloc import keep_freed_memory
from kinfed.learning import LocalTraining
from kinfed.learning.frozen import features
from kinfed.learning.phases import Phase
from kinfed.learning.training import train
from kinfed.models import Model, build
from kinfed.similarity import cca, cka, kept_dimensions, pwcca, svcca

PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
MEASURES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "PWCCA": lambda own, source: pwcca(own, source, allow_degenerate=True),
    "CCA, R²": lambda own, source: cca(own, source, statistic="r2", allow_degenerate=True),
    "SVCCA": lambda own, source: svcca(own, source, allow_degenerate=True),
    "CKA": cka,
}


def trained(model: Model, samples: Samples, epochs: int, seed: int) -> Model:
    """Return the model after some epochs of SGD with learning rate 0.05, as in Table 1."""
    training = LocalTraining(lr=0.05, epochs=epochs, batch_size=50, momentum=0.0)
    train(model, samples, Phase(), training, torch.Generator().manual_seed(seed))
    return model


def representation(model: Model, samples: Samples) -> Tensor:
    """Return the outputs of the body, n×512."""
    return features(model, samples, "body").double()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    mnist = load("mnist").train
    assert mnist.labels is not None
    labels = mnist.labels.numpy()
    right: dict[str, list[bool]] = defaultdict(list)
    values: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for seed in range(arguments.seeds):
        rng = np.random.default_rng(seed)
        rows = {pair: rng.permutation(np.flatnonzero(np.isin(labels, pair))) for pair in PAIRS}
        anyone = mnist.take(rng.choice(60_000, 5000, replace=False))
        start = trained(build("mcmahan_cnn", (1, 28, 28), 10, seed=seed), anyone, 1, seed)
        sources = {
            pair: trained(build("mcmahan_cnn", (1, 28, 28), 10, seed=seed + 1), mnist.take(rows[pair][:2000]), 5, seed)
            for pair in PAIRS
        }
        begin = {name: tensor.clone() for name, tensor in start.tensors().items()}
        for client in range(10):
            pair = PAIRS[client % 5]
            own = mnist.take(rows[pair][3000 + 600 * (client // 5) :][:600])
            start.load(begin)
            seen = representation(trained(start, own, 5, seed), own)
            scores: dict[str, list[float]] = defaultdict(list)
            for of, source in sources.items():
                there = representation(source, own)
                elsewhere = there[torch.from_numpy(rng.permutation(len(there)))]
                for name, measure in MEASURES.items():
                    scores[name].append(float(measure(seen, there)))
                    scores[f"{name}, rows permuted"].append(float(measure(seen, elsewhere)))
                scores["dimensions"].append(float(torch.linalg.matrix_rank(there - there.mean(0))))
                scores["dimensions of 99 %"].append(kept_dimensions(there))
                for name, of_sources in scores.items():
                    values[name, of == pair].append(of_sources[-1])
            for name, of_sources in scores.items():
                right[name].append(int(np.argmax(of_sources)) == PAIRS.index(pair))
    print(f"{10 * arguments.seeds} clients; guessing finds 20 %\n")
    print("| | source of the client's classes | the four others | finds it |\n|---|---|---|---|")
    for name, found in right.items():
        mine, others = (np.array(values[name, is_own]) for is_own in (True, False))
        print(f"| {name} | {mine.mean():.3f} | {others.mean():.3f} | {100 * np.mean(found):.0f} % |")


if __name__ == "__main__":
    main()
