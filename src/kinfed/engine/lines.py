"""Keys of a round's line in ``metrics.jsonl``: kinfed's own, and those that a method's notes may have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kinfed.errors import RunFailed
from kinfed.learning import MEASURES

__all__ = ["AGREEMENT", "Line", "checked_notes", "is_note", "is_of_evaluation"]

Line = dict[str, Any]

OF_TRAINING = {
    "round", "lr", "clients", "refused", "refused_names", "train_loss", "train_cross_entropy", "train_term",
    "skipped_samples", "zero_step_clients", "down_bytes", "up_bytes",
}  # fmt: skip
AGREEMENT = {"adjusted_rand_index", "pair_auc"}  # of groups or similarities with planted groups
OF_GROUPS = {"groups", "new_groups", *AGREEMENT}
OF_EVALUATION = {"untested", "client_acc", "client_measures", *(f"global_{measure}" for measure in ("acc", *MEASURES))}
OF_CLIENTS = re.compile(rf"_(acc|{'|'.join(MEASURES)})_(weighted|mean|std|worst_tenth)$")


def is_of_evaluation(key: str) -> bool:
    """Return True if a key is written by the evaluation after a round.

    >>> is_of_evaluation("personal_acc_mean"), is_of_evaluation("global_auroc"), is_of_evaluation("train_loss")
    (True, True, False)
    """
    return key in OF_EVALUATION or OF_CLIENTS.search(key) is not None


def is_note(key: str) -> bool:
    """Return True if a method's notes may use a key."""
    return key not in OF_TRAINING | OF_GROUPS and not is_of_evaluation(key)


def checked_notes(notes: Mapping[str, Any]) -> Line:
    """Check the notes of a method on a round, and return a copy of them.

    Raises:
        RunFailed: If kinfed writes a key itself, or a value cannot be written as JSON.
    """
    for key, value in notes.items():
        if not is_note(key):
            raise RunFailed(f"the method's notes: {key!r} is a key of kinfed itself; choose another name")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise RunFailed(f"the method's notes: {key!r} cannot be written as JSON: {error}") from error
    return dict(notes)
