"""Seconds that every recipe takes: the table of docs/partitions.md.

``python benchmarks/partition.py`` cuts 50,000 labels for 100 clients and 1,000,000 for 10,000, a fifth as many for the
tests, 10 and 100 classes, and measures what a run does with the result: `Federation`, which checks it, and its class
counts. Medians of five, and of three for the large ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from kinfed.data import (
    IID,
    ByColumn,
    Dataset,
    Dirichlet,
    DirichletClients,
    Disjoint,
    Federation,
    Normalisation,
    Partition,
    Quantity,
    Samples,
    Shards,
    SortedShards,
    TwoGroups,
)
from kinfed.streams import numpy_stream

RECIPES: dict[str, Callable[..., Partition]] = {
    "iid": IID(),
    "shards 2": Shards(2),
    "dirichlet 0.5": Dirichlet(0.5),
    "dirichlet_clients 0.5": DirichletClients(0.5),
    "disjoint": Disjoint(),
    "sort": SortedShards(),
    "groups": TwoGroups(),
    "quantity 0.5": Quantity(0.5),
    "by a column": lambda train, test, clients, rng: ByColumn("column")(
        np.arange(len(train)) % clients, np.arange(len(test)) % clients, clients, rng
    ),
}


def seconds(work: Callable[[], object], turns: int) -> float:
    """Median seconds of a piece of work."""
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def samples(labels: np.ndarray) -> Samples:
    """The labels with inputs of no size."""
    return Samples(torch.zeros(len(labels), 0), torch.from_numpy(labels), Normalisation((), ()))


def main() -> None:
    """Print the table."""
    sizes = [(50_000, 100, 10, 5), (50_000, 100, 100, 5), (1_000_000, 10_000, 10, 3), (1_000_000, 10_000, 100, 3)]
    print(f"{'seconds':24}" + "".join(f"{f'{n:,}/{N:,}/K={K}':>26}" for n, N, K, _ in sizes))
    rows: dict[str, list[float]] = {}
    for n, clients, classes, turns in sizes:
        train, test = (numpy_stream(0, "labels", m).permutation(np.arange(m) % classes) for m in (n, n // 5))
        data = Dataset("labels", samples(train), samples(test), tuple(map(str, range(classes))))
        for name, recipe in RECIPES.items():
            cut = lambda recipe=recipe: recipe(train, test, clients, numpy_stream(0, "partition"))  # noqa: B023, E731
            rows.setdefault(name, []).append(seconds(cut, turns))
        held = IID()(train, test, clients, numpy_stream(0, "partition"))
        federation = Federation(data, held, np.arange(0))
        check = lambda: Federation(data, held, np.arange(0))  # noqa: B023, E731
        rows.setdefault("the federation's check", []).append(seconds(check, turns))
        rows.setdefault("class counts", []).append(seconds(federation.class_counts, turns))
    for name, times in rows.items():
        print(f"{name:24}" + "".join(f"{t:26.3f}" for t in times))


if __name__ == "__main__":
    main()
