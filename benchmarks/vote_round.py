"""When to vote: the speed-ups of SFTL's Figure 4 by the round of the vote, in pairs of classes and seeds.

``python benchmarks/vote_round.py [FIGURE]`` reads ``figure.json`` of ``kinfed reproduce sftl-figure4``, by default that
of docs/results/data, and prints ratios of speed-ups with 95 % intervals.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

KEPT = Path(__file__).parent.parent / "docs" / "results" / "data" / "sftl-figure4.json"


def ratio(one: NDArray[np.float64], other: NDArray[np.float64]) -> str:
    """Describe the geometric mean of the ratio of paired speed-ups, with its interval (t distribution of the logs)."""
    logs = np.log(one / other)
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    mean, low, high = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
    return f"{mean:.2f} ({low:.2f} to {high:.2f}), {len(logs)} pairs"


def main() -> None:
    """Print the ratios."""
    curves = json.loads(Path(sys.argv[1] if len(sys.argv) > 1 else KEPT).read_text())["curves"]
    by_vote = [panel["by vote"] for panel in curves.values()]
    rounds = by_vote[0]["x"]
    # One row for each pair of classes and seed, one column for each round of the vote.
    speed_ups = np.concatenate([np.transpose(curve["values"]) for curve in by_vote])
    of = dict(zip(rounds, speed_ups.T, strict=True))
    early, late = np.sqrt(of[1] * of[3]), np.sqrt(of[10] * of[20])
    print(f"a vote in round 1 or 3, by one in round 10 or 20: {ratio(early, late)}")
    print(f"a vote in round 1, by one in round 3:             {ratio(of[1], of[3])}")


if __name__ == "__main__":
    main()
