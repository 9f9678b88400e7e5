"""Tuning: settings of each method race on validation samples, and the best ones are compared on fresh seeds."""

from kinfed.tuning.space import Over, Space, parse_over, spaces_of
from kinfed.tuning.tune import Finalists, Plan, Spectator, Unseen, check_tunable, go_on_tuning, is_tuning, tune

__all__ = [
    "Finalists",
    "Over",
    "Plan",
    "Space",
    "Spectator",
    "Unseen",
    "check_tunable",
    "go_on_tuning",
    "is_tuning",
    "parse_over",
    "spaces_of",
    "tune",
]
