"""The learning rate as a function of the round (METHODS.md 0.3)."""

from __future__ import annotations

import math

__all__ = ["lr_factor", "parse_schedule"]


def parse_schedule(schedule: str) -> tuple[float, ...] | None:
    """The fractions of a ``step:`` schedule in ascending order, () for ``constant``, None for ``cosine``.

    Raises:
        ValueError: If it is none of these.
    """
    if schedule in ("constant", "cosine"):
        return () if schedule == "constant" else None
    kind, _, listed = schedule.partition(":")
    try:
        fractions = tuple(float(part) for part in listed.split(","))
    except ValueError:
        fractions = ()
    if kind != "step" or not fractions or not all(0 < f < 1 for f in fractions) or list(fractions) != sorted(fractions):
        raise ValueError(
            "must be 'constant', 'cosine' or 'step:' and ascending fractions of the rounds, as in step:0.5,0.75"
        )
    return fractions


def lr_factor(schedule: str, round: int, rounds: int) -> float:
    """What the learning rate is multiplied by in one round.

    ``constant``: 1. ``step:0.5,0.75``: a tenth after each of these fractions of the rounds, rounded down.
    ``cosine``: ½(1 + cos(π (round − 1) / rounds)).

    Args:
        schedule: One of the three.
        round: 1 to ``rounds``.
        rounds: T.
    """
    fractions = parse_schedule(schedule)
    if fractions is None:
        return 0.5 * (1 + math.cos(math.pi * (round - 1) / rounds))
    return float(10.0 ** -sum(round > math.floor(f * rounds + 1e-9) for f in fractions))
