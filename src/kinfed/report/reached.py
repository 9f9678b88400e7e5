"""The table of a target accuracy: the rounds until each method reached it, and the speed-up by a transfer.

A transfer is FedVote's: the body of a pre-trained source model replaces that of the server's model.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from kinfed.experiment.targets import Reach, SpeedUp, as_text, mean_text, reach, reference, speed_up, targets
from kinfed.report.folders import Run
from kinfed.report.rows import config_of_all, in_rows
from kinfed.report.table import Cell, Table

__all__ = ["reaches_of", "speed_ups", "target_table"]


def target_table(runs: Sequence[Run], target: float) -> Table:
    """Make the table of a target accuracy, one row per method, with the smallest number of rounds marked.

    Args:
        runs: Runs of the comparison; rows with another target, or without one, are left out.
        target: Target accuracy in (0, 1], one of `targets`.
    """
    reaches = reaches_of(runs, target)
    ups = speed_ups(runs, reaches)
    told = [reach for reach in reaches.values() if reach is not None and reach.by_all]
    fewest = min((reach.mean for reach in told), default=None)
    transfers = {row: _after_transfer(group) for row, group in in_rows(runs).items() if row in reaches}
    columns = [
        ("method", "", {row: Cell(row) for row in reaches}),
        (
            "reached",
            "whether the target was reached in the run",
            {row: Cell(_by_whom(of)) for row, of in reaches.items()},
        ),
        (
            f"rounds to {as_text(target)}",
            "number of rounds, counted from the first one, until the global model had this accuracy on the pooled "
            "test set; mean over the seeds; with '>', a seed did not reach it and counts with all its rounds",
            {row: _rounds(of, of is not None and of.by_all and of.mean == fewest) for row, of in reaches.items()},
        ),
    ]
    if any(transfers.values()):
        meaning = "rounds from the transfer to the target; mean over the seeds"
        columns.append(("after transfer", meaning, {row: cell or Cell("–") for row, cell in transfers.items()}))
    if ups:
        columns.append(
            (
                "speed-up",
                "mean number of rounds of the same method without the transfer (fedavg for fedvote, NAME for "
                "fedvote+NAME) divided by this mean; < or > if one of them did not reach the target. Less than 1 is "
                "negative transfer",
                {row: _times(ups[row][1]) if row in ups else Cell("–") for row in reaches},
            )
        )
    headings, meanings, cells = zip(*columns, strict=True)
    return Table(headings, meanings, tuple(tuple(column[row] for column in cells) for row in reaches))


def reaches_of(runs: Sequence[Run], target: float) -> dict[str, Reach | None]:
    """Return the rounds in which each row with this target reached it; None for methods without a global model."""
    summaries = {row: [run.summary for run in group] for row, group in in_rows(runs).items()}
    return {row: reach(of_row) for row, of_row in summaries.items() if all(targets([s]) == [target] for s in of_row)}


def speed_ups(runs: Sequence[Run], reaches: Mapping[str, Reach | None]) -> dict[str, tuple[str, SpeedUp | None]]:
    """Compute the speed-up of each row with a transfer.

    Args:
        runs: Runs of the comparison.
        reaches: Rounds in which each row reached the target, as `reaches_of` returns them.

    Returns:
        By name of the row: the row of the same method without the transfer, and the speed-up. Rows without a transfer,
        or without such a counterpart, are left out.
    """
    found = {}
    for row, own in reaches.items():
        without = _without_transfer(in_rows(runs), row)
        other = reaches.get(without) if without else None
        if without and own is not None and other is not None:
            found[row] = without, speed_up(own, other)
    return found


def _without_transfer(grouped: Mapping[str, Sequence[Run]], row: str) -> str | None:
    """Return the row of the same method without a transfer; None if there is none.

    If there are several, it is the one with the same settings apart from the methods' own fields.
    """
    run = grouped[row][0]
    rows = [other for other, group in grouped.items() if group[0].method == reference(run.method)]
    if len(rows) > 1:
        rows = [other for other in rows if config_of_all(grouped[other][0]) == config_of_all(run)]
    return rows[0] if len(rows) == 1 else None


def _by_whom(reach: Reach | None) -> str:
    if reach is None:
        return "no global model"
    seeds, did = len(reach.rounds), sum(round is not None for round in reach.rounds)
    return f"{did} of {seeds} seeds" if seeds > 1 else "yes" if did else "no"


def _rounds(reach: Reach | None, best: bool) -> Cell:
    if reach is None:
        return Cell("–")
    rounds = [round for round in reach.rounds if round is not None]
    several = reach.by_all and len(rounds) > 1
    return Cell(str(reach), f"±{statistics.stdev(rounds):.1f}" if several else "", best)


def _times(up: SpeedUp | None) -> Cell:
    return Cell("–") if up is None else Cell(str(up), "negative transfer" if up.negative else "")


def _after_transfer(group: Sequence[Run]) -> Cell | None:
    """Return the cell of the rounds from the transfer to the target; None if a seed had no transfer or missed it."""
    votes = [(run.summary.get("vote") or {}).get("round") for run in group]
    reached = [run.summary["rounds_to_target"]["round"] for run in group]
    if None in votes or None in reached:
        return None
    after = statistics.fmean(round - vote for round, vote in zip(reached, votes, strict=True))
    at = "/".join(str(vote) for vote in dict.fromkeys(votes))
    if after < 0:
        return Cell("–", f"before round {at}")
    return Cell(mean_text(after), f"after round {at}")
