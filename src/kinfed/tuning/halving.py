"""Successive halving: all settings run for a few rounds, and a part of them goes on to the next rung.

Jamieson and Talwalkar 2016, Non-stochastic Best Arm Identification and Hyperparameter Optimization;
https://arxiv.org/abs/1502.07943
"""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["KEEP", "planned_rounds", "promoted", "rungs"]

KEEP = 3  # one of so many settings goes on


def rungs(settings: int, rounds: int, every: int = 1) -> tuple[int, ...]:
    """Return the rounds after which a part of the settings goes on; the last one is that of the whole run.

    There are so many rungs that about one setting runs to the end, but no more. Each one is a round with an evaluation.

    >>> rungs(settings=20, rounds=30), rungs(settings=4, rounds=30), rungs(settings=1, rounds=30)
    ((4, 10, 30), (10, 30), (30,))

    Args:
        settings: Number of settings at the start.
        rounds: Number T of rounds of a whole run.
        every: Rounds between two evaluations.
    """
    levels = 0
    while KEEP ** (levels + 1) <= settings:
        levels += 1
    divided = [rounds / KEEP**level for level in range(levels, -1, -1)]
    return tuple(dict.fromkeys(min(math.ceil(math.ceil(r) / every) * every, rounds) for r in divided))


def promoted(scores: Mapping[int, float]) -> list[int]:
    """Return the settings that go on from a rung: a third of them, rounded up, the best first; ties by number.

    >>> promoted({0: 0.3, 1: 0.5, 2: 0.5, 3: 0.1})
    [1, 2]

    Args:
        scores: Validation accuracies by number of the setting; those that failed are missing.
    """
    order = sorted(scores, key=lambda number: (-scores[number], number))
    return order[: math.ceil(len(order) / KEEP)]


def planned_rounds(settings: int, rungs: tuple[int, ...]) -> int:
    """Return the number of rounds that a race of so many settings takes.

    >>> planned_rounds(4, (10, 30))
    80
    """
    total, before = 0, 0
    for rung in rungs:
        total += settings * (rung - before)
        settings, before = math.ceil(settings / KEEP), rung
    return total
