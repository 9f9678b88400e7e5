"""Transfer between pairs of CIFAR-10's classes (SFTL, Figures 2 to 4): what a vote is worth, and when to hold it.

``python benchmarks/transfer.py`` prints ratios of speed-ups with 95 % intervals of the summaries kept in docs.
``--runs DIR`` first makes that of the sources anew, from the folder of ``kinfed reproduce sftl-figure2``.

A speed-up is the rounds of FedAvg to 95 % of its best accuracy on the target, divided by those with the transfer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from kinfed.experiment.papers.quantities import speed_up
from kinfed.files import read_json_lines

KEPT = Path(__file__).parent.parent / "docs" / "results" / "data"
SOURCES, ROUNDS = KEPT / "sftl-transfer.json", KEPT / "sftl-figure4.json"
PAIRS = tuple(f"classes {first} to {first + 1}" for first in range(0, 10, 2))


def interval(logs: ArrayLike) -> str:
    """Describe the geometric mean of ratios, given by their logs, with its interval (t distribution)."""
    values = np.asarray(logs)
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    mean, low, high = np.exp([values.mean(), values.mean() - half, values.mean() + half])
    return f"{mean:.2f} ({low:.2f} to {high:.2f}), {len(values)} pairs"


def measured(runs: Path, seeds: Sequence[int] = (0, 1, 2)) -> list[dict[str, Any]]:
    """Return the speed-ups of each target and seed: by vote, from each other source; and how often each was first."""
    found = []
    for target in PAIRS:
        for seed in seeds:
            base = runs / target / f"fedavg-seed{seed}"
            others = [source for source in PAIRS if source != target]
            of = {
                source: speed_up(runs / f"{target}, from {source}" / f"fedvote-seed{seed}", base) for source in others
            }
            voted = runs / target / f"fedvote-seed{seed}"
            ballots: dict[str, Any] = next(
                (line["ballots"] for line in read_json_lines(voted / "metrics.jsonl") if "ballots" in line), {}
            )
            found.append({
                "target": target, "seed": seed, "by vote": speed_up(voted, base), "from": of,
                "first on ballots": [ballot[0] for ballot in ballots.values()],
            })  # fmt: skip
    return found


def tell_sources(found: Sequence[dict[str, Any]]) -> None:
    """Print what the vote is worth beside a random source and the best one, and which sources slow down."""
    vote = np.log([of["by vote"] for of in found])
    every = [np.log([*of["from"].values()]) for of in found]
    print(f"by vote, by FedAvg:              {interval(vote)}")
    print(f"a random source, by FedAvg:      {interval([of.mean() for of in every])}")
    print(f"by vote, by a random source:     {interval(vote - [of.mean() for of in every])}")
    print(f"by vote, by the best source:     {interval(vote - [of.max() for of in every])}")
    slow = sum(int((of < 0).sum()) for of in every)
    print(f"single runs that are slower than FedAvg: {slow} of {sum(map(len, every))}")
    always = [
        f"{source.removeprefix('classes ')} for {target.removeprefix('classes ')}"
        for target in PAIRS
        for source in PAIRS
        if source != target and all(of["from"][source] < 1 for of in found if of["target"] == target)
    ]
    print(f"sources that are slower in all seeds: {', '.join(always) or 'none'}")
    for target in PAIRS:
        own = [of["from"] for of in found if of["target"] == target]
        means = {source: float(np.mean(np.log([of[source] for of in own]))) for source in own[0]}
        told = ", ".join(f"{source.removeprefix('classes ')} {np.exp(mean):.2f}" for source, mean in means.items())
        voted = np.exp(np.mean(np.log([of["by vote"] for of in found if of["target"] == target])))
        print(f"  {target}: by vote {voted:.2f}; from {told}")


def tell_rounds(curves: dict[str, Any]) -> None:
    """Print what early and late votes are worth."""
    by_vote = [panel["by vote"] for panel in curves.values()]
    # One row for each pair of classes and seed, one column for each round of the vote.
    speed_ups = np.log(np.concatenate([np.transpose(curve["values"]) for curve in by_vote]))
    of = dict(zip(by_vote[0]["x"], speed_ups.T, strict=True))
    print(f"a vote in round 1 or 3, by one in round 10 or 20: {interval((of[1] + of[3] - of[10] - of[20]) / 2)}")
    print(f"a vote in round 1, by one in round 3:             {interval(of[1] - of[3])}")


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of sftl-figure2, of which the summary is made anew")
    given = parser.parse_args()
    if given.runs is not None:
        SOURCES.write_text(json.dumps(measured(given.runs), indent=1) + "\n")
    tell_sources(json.loads(SOURCES.read_text()))
    tell_rounds(json.loads(ROUNDS.read_text())["curves"])


if __name__ == "__main__":
    main()
