"""Early stopping: the end of a run that no longer improves on validation samples, or is as good as was asked."""

from __future__ import annotations

from collections.abc import Sequence

from kinfed.engine.lines import Line

__all__ = ["VALIDATION", "ends_early", "has_arrived", "out_of_patience", "validation_score"]

VALIDATION = "validation_"  # prefix of the names of accuracies on validation samples


def validation_score(line: Line, measure: str = "accuracy") -> float | None:
    """Return the measure on which choices rest, of a line of ``metrics.jsonl``; None if it was not measured.

    It is the mean over the clients of that of their primary models on their validation samples, weighted by their
    number. Methods that read no labels have it only after the last round; theirs is the accuracy of nearest neighbours
    in all rounds.

    >>> validation_score({"round": 3, "validation_personal_acc_weighted": 0.5})
    0.5

    Args:
        line: The line.
        measure: Name of the measure, such as ``macro_f1``.
    """
    names = [f"{VALIDATION}personal_{measure}_weighted"]
    if measure == "accuracy":
        names = [f"{VALIDATION}{name}_acc_weighted" for name in ("knn", "personal")]
    return next((line[name] for name in names if line.get(name) is not None), None)


def out_of_patience(lines: Sequence[Line], patience: int | None) -> bool:
    """Return True if a run ends early: its best validation accuracy is ``patience`` or more rounds old.

    >>> lines = [{"round": r, "validation_personal_acc_weighted": v} for r, v in ((1, 0.4), (2, 0.6), (3, 0.6))]
    >>> out_of_patience(lines, patience=2), out_of_patience(lines, patience=1)
    (False, True)

    Args:
        lines: Lines of ``metrics.jsonl`` up to the present round.
        patience: Number of rounds without a better accuracy after which a run ends; None for no early end.
    """
    scores: dict[int, float] = {line["round"]: score for line in lines if (score := validation_score(line)) is not None}
    if patience is None or not scores:
        return False
    present: int = lines[-1]["round"]
    return present - max(scores, key=lambda round: scores[round]) >= patience


def has_arrived(lines: Sequence[Line], stop_acc: float | None) -> bool:
    """Return True if a run ends early: its global model has an accuracy of ``stop_acc`` on the pooled test set.

    >>> has_arrived([{"round": 1, "global_acc": None}, {"round": 2, "global_acc": 0.9}], stop_acc=0.9)
    True

    Args:
        lines: Lines of ``metrics.jsonl`` up to the present round.
        stop_acc: Accuracy, in (0, 1]; None for no early end.
    """
    return stop_acc is not None and any((line["global_acc"] or 0) >= stop_acc for line in lines)


def ends_early(lines: Sequence[Line], patience: int | None, stop_acc: float | None) -> bool:
    """Return True if a run ends before its planned rounds; see `out_of_patience` and `has_arrived`."""
    return out_of_patience(lines, patience) or has_arrived(lines, stop_acc)
