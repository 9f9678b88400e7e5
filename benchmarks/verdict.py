"""How often the verdict names a winner: in ties, where it should not, and where one method is better.

``python benchmarks/verdict.py [--repeats R]``

Each repeat draws the accuracies of methods at clients and seeds, spread as real ones are, and asks as the verdict does
(`kinfed.report.statistics.alike`) which rows cannot be told from the best. Clients are the same in all seeds, as in
data with one folder a client, or others in each seed, as where the seed draws the partition. The output is Markdown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinfed.report.statistics import Measured, alike

MEAN = 0.75
OF_CLIENTS, OF_METHOD_AT_CLIENTS, OF_METHOD_IN_SEEDS = 0.1, 0.03, 0.01  # standard deviations of an accuracy
SAMPLES = (20, 100)  # fewest and most test samples of a client
SEEDS, CLIENTS, DIFFERENCES = (1, 3, 5), (5, 20, 100), (0.005, 0.01, 0.02, 0.03, 0.05, 0.08)


@dataclass(frozen=True)
class Design:
    """What is drawn.

    Attributes:
        seeds: Number of seeds.
        clients: Number of clients.
        better: By how much each method is better than the first one.
        same: True if all seeds have the same clients, who then answer half of their test samples alike in all seeds.
        of_seeds: Standard deviation of a method over the seeds.
        at_clients: Standard deviation of a method over the clients.
    """

    seeds: int
    clients: int
    better: tuple[float, ...]
    same: bool
    of_seeds: float = OF_METHOD_IN_SEEDS
    at_clients: float = OF_METHOD_AT_CLIENTS

    def draw(self, stream: np.random.Generator) -> dict[str, Measured]:
        """Draw the accuracies of one comparison."""
        seeds, methods = self.seeds, len(self.better)
        cells = (1 if self.same else seeds, self.clients)
        samples = np.broadcast_to(stream.integers(SAMPLES[0], SAMPLES[1] + 1, cells), (seeds, self.clients))
        expected = MEAN + OF_CLIENTS * stream.standard_normal(cells)
        expected = expected + self.at_clients * stream.standard_normal((methods, *cells))
        expected = expected + np.array(self.better)[:, None, None]
        alike_in_all = samples // 2 if self.same else np.zeros_like(samples)
        fixed = stream.binomial(alike_in_all[:1], expected.clip(0, 1)[:, :1])
        of_seed = expected + self.of_seeds * stream.standard_normal((methods, seeds, 1))
        right = fixed + stream.binomial(samples - alike_in_all, of_seed.clip(0, 1))
        sizes = samples.astype(np.float64)
        return {
            f"method {i}": Measured(tuple(range(seeds)), own, sizes, sizes) for i, own in enumerate(right / samples)
        }


def told(design: Design, repeats: int) -> NDArray[np.float64]:
    """Return how often the verdict names a winner, and how often it tells any row from the best."""
    stream = np.random.default_rng(0)
    left = np.array([len(alike(design.draw(stream))) for _ in range(repeats)])
    return np.array([(left == 1).mean(), (left < len(design.better)).mean()])


def rows_of(name: str, same: bool) -> Iterator[tuple[int, int, str]]:
    """Yield seeds, clients and the first cells of a row; one seed only once, since it has no others to differ from."""
    for seeds in SEEDS:
        for clients in CLIENTS:
            if seeds > 1 or not same:
                yield seeds, clients, f"| {name if seeds > 1 else 'one seed'} | {seeds} | {clients} |"


def ties(repeats: int) -> None:
    """Print how often a winner is named in ties of two and of five methods, and of two that beat three others."""
    print("| clients of the seeds | seeds | clients | 2 tied | 5 tied | 2 tied of 5 | 5 tied: any row told apart |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, same in (("others", False), ("the same", True)):
        for seeds, clients, cells in rows_of(name, same):
            of_seeds = OF_METHOD_IN_SEEDS if seeds > 1 else 0.0  # one seed cannot know it
            better = ((0.0, 0.0), (0.0,) * 5, (-0.1, -0.1, -0.1, 0.0, 0.0))
            two, five, top = (told(Design(seeds, clients, of, same, of_seeds), repeats) for of in better)
            print(f"{cells} {two[0]:.1%} | {five[0]:.1%} | {top[0]:.1%} | {five[1]:.1%} |", flush=True)


def blind(repeats: int) -> None:
    """Print how often one seed names a winner where two methods are a tie over seeds, but not in this one."""
    rates = [told(Design(1, clients, (0.0, 0.0), False), repeats)[0] for clients in CLIENTS]
    print("| clients | " + " | ".join(map(str, CLIENTS)) + " |\n|---|" + "--:|" * len(rates))
    print("| winner named | " + " | ".join(f"{rate:.1%}" for rate in rates) + " |")


def few(repeats: int) -> None:
    """Print how often a winner is named where two methods are a tie at each of three clients."""
    print("| seeds | clients of the seeds | 2 tied at 3 clients |\n|--:|---|--:|")
    for seeds, name, same in ((1, "", False), (3, "others", False), (3, "the same", True), (5, "the same", True)):
        of_seeds = OF_METHOD_IN_SEEDS if seeds > 1 else 0.0
        rate = told(Design(seeds, 3, (0.0, 0.0), same, of_seeds, at_clients=0.0), repeats)[0]
        print(f"| {seeds} | {name} | {rate:.1%} |")


def power(repeats: int) -> None:
    """Print how often the better of two methods is named, by its difference."""
    print("| clients of the seeds | seeds | clients | " + " | ".join(f"{of:g}" for of in DIFFERENCES) + " |")
    print("|---|--:|--:|" + "--:|" * len(DIFFERENCES))
    for name, same in (("others", False), ("the same", True)):
        for seeds, clients, cells in rows_of(name, same):
            of_seeds = OF_METHOD_IN_SEEDS if seeds > 1 else 0.0
            rates = [told(Design(seeds, clients, (0.0, of), same, of_seeds), repeats)[0] for of in DIFFERENCES]
            print(f"{cells} " + " | ".join(f"{rate:.0%}" for rate in rates) + " |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2000)
    given = parser.parse_args()
    began = time.monotonic()
    print("Ties: a winner is named in\n")
    ties(given.repeats)
    print("\nOne seed, of a tie over seeds: a winner is named in\n")
    blind(given.repeats)
    print("\nFew clients, who are all there are: a winner is named in\n")
    few(given.repeats)
    print("\nPower: the better of two methods is named in, by its difference\n")
    power(given.repeats)
    print(f"\n{given.repeats:,} repeats a cell, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
