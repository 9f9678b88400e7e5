"""Clients that never trained in a run, and the run's mean accuracies without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kinfed.learning import over_clients

__all__ = ["never_trained", "of_trained"]


def never_trained(lines: Sequence[Mapping[str, Any]], clients: int) -> list[int]:
    """Return the clients that contributed to no round: never sampled, or refused each time.

    Args:
        lines: Lines of ``metrics.jsonl``, one per round.
        clients: Number of clients, N.

    Returns:
        Their numbers, from 0 to N - 1.

    >>> never_trained([{"clients": [0, 2], "refused": {"2": "not finite"}}], 3)
    [1, 2]
    """
    reached = {id for line in lines for id in line["clients"] if str(id) not in line["refused"]}
    return [id for id in range(clients) if id not in reached]


def of_trained(
    accuracies: Sequence[float | None], sizes: Sequence[int], never: Sequence[int]
) -> dict[str, float | None]:
    """Compute the mean own-test accuracies over the clients that trained, for the metrics of a summary.

    Args:
        accuracies: Accuracy of each client in the last round, in [0, 1]; None if it was not tested.
        sizes: Number of test samples of each client.
        never: Numbers of the clients that never trained.

    Returns:
        The weighted and the plain mean by name; empty if all clients trained or there are no accuracies.
    """
    if not never or not accuracies:
        return {}
    told = over_clients([None if id in {*never} else a for id, a in enumerate(accuracies)], sizes)
    return {f"personal_{name}_of_trained": told[name] for name in ("acc_weighted", "acc_mean")}
