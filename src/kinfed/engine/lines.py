"""Keys of a round's line in ``metrics.jsonl``: kinfed's own, and those that a method's notes may have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kinfed.errors import RunFailed

__all__ = ["Line", "checked_notes", "is_note", "is_of_evaluation"]

Line = dict[str, Any]

OF_TRAINING = {
    "round", "lr", "clients", "refused", "train_loss", "train_cross_entropy", "train_term", "skipped_samples",
    "zero_step_clients", "down_bytes", "up_bytes",
}  # fmt: skip
OF_EVALUATION = {"global_acc", "untested", "client_acc"}
ACCURACY = re.compile(r"_acc_(weighted|mean|std|worst_tenth)$")


def is_of_evaluation(key: str) -> bool:
    """Tell whether a key is one that the evaluation after a round writes."""
    return key in OF_EVALUATION or ACCURACY.search(key) is not None


def is_note(key: str) -> bool:
    """Tell whether a key is free for a method's notes."""
    return key not in OF_TRAINING and not is_of_evaluation(key)


def checked_notes(notes: Mapping[str, Any]) -> Line:
    """The notes of a method on a round.

    Raises:
        RunFailed: If a key is one of kinfed's own, or a value cannot be written as JSON.
    """
    for key, value in notes.items():
        if not is_note(key):
            raise RunFailed(f"the method's notes: {key!r} is a key that kinfed writes itself; give it another name")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise RunFailed(f"the method's notes: {key!r} cannot be written as JSON: {error}") from error
    return dict(notes)
