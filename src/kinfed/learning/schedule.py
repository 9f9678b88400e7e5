"""Learning rate as a function of the round (specification 0.3)."""

from __future__ import annotations

import math

__all__ = ["lr_factor", "parse_schedule"]


def parse_schedule(schedule: str) -> tuple[tuple[float, float], ...] | None:
    """Parse a schedule: (fraction, divisor) pairs for ``step:…``, () for ``constant``, None for ``cosine``.

    Raises:
        ValueError: If the schedule is none of these.

    >>> parse_schedule("step:0.5:5,0.75")
    ((0.5, 5.0), (0.75, 10.0))
    """
    if schedule in ("constant", "cosine"):
        return () if schedule == "constant" else None
    kind, _, listed = schedule.partition(":")
    parts = [part.partition(":") for part in listed.split(",")]
    try:
        steps = tuple((float(fraction), float(divisor) if colon else 10.0) for fraction, colon, divisor in parts)
    except ValueError:
        steps = ()
    fractions = [fraction for fraction, _ in steps]
    valid = all(0 < fraction < 1 and 1 < divisor < math.inf for fraction, divisor in steps)
    if kind != "step" or not steps or not valid or fractions != sorted(fractions):
        raise ValueError(
            "must be 'constant', 'cosine' or 'step:' with ascending fractions of the rounds, such as step:0.5,0.75; "
            "a fraction can have a divisor above 1 instead of 10, as in step:0.5:5,0.75"
        )
    return steps


def lr_factor(schedule: str, round: int, rounds: int) -> float:
    """Return the factor of the learning rate in one round.

    ``constant``: 1. ``step:0.5,0.75``: divided by 10 after each of these fractions of the rounds, rounded down;
    ``step:0.5:5,0.75``: divided by 5 after the first. ``cosine``: ½(1 + cos(π (round − 1) / rounds)).

    Args:
        schedule: Schedule in one of these forms.
        round: Number of the round, 1 to ``rounds``.
        rounds: Number of rounds of the run.

    >>> [lr_factor("step:0.5", round, rounds=4) for round in (1, 2, 3, 4)]
    [1.0, 1.0, 0.1, 0.1]
    """
    steps = parse_schedule(schedule)
    if steps is None:
        return 0.5 * (1 + math.cos(math.pi * (round - 1) / rounds))
    return 1.0 / math.prod(divisor for fraction, divisor in steps if round > math.floor(fraction * rounds + 1e-9))
