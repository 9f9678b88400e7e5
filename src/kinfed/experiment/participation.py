"""Clients that a run never reached, and its accuracies without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kinfed.learning import over_clients

__all__ = ["never_trained", "of_trained"]


def never_trained(lines: Sequence[Mapping[str, Any]], clients: int) -> list[int]:
    """Which of N clients took part in no round: they were not drawn, or their work was refused each time.

    Args:
        lines: Of ``metrics.jsonl``.
        clients: N.
    """
    reached = {id for line in lines for id in line["clients"] if str(id) not in line["refused"]}
    return [id for id in range(clients) if id not in reached]


def of_trained(
    accuracies: Sequence[float | None], sizes: Sequence[int], never: Sequence[int]
) -> dict[str, float | None]:
    """Means of the own test accuracy over the others, for the metrics of a summary; none if all took part.

    Args:
        accuracies: Of each client at the last round, or None.
        sizes: Test samples of each.
        never: Who took no part.
    """
    if not never or not accuracies:
        return {}
    told = over_clients([None if id in {*never} else a for id, a in enumerate(accuracies)], sizes)
    return {f"personal_{name}_of_trained": told[name] for name in ("acc_weighted", "acc_mean")}
