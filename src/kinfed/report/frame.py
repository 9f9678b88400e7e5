"""Accuracies of runs as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from kinfed.learning import MEASURES
from kinfed.report.folders import Run

__all__ = ["frame"]

FIRST = ("method", "seed", "round", "client", "name", "train", "test", "accuracy")
OF_GLOBAL = tuple(f"global_{measure}" for measure in MEASURES)
RENAMED = {"personal": "accuracy"}


def frame(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the accuracies and the other measures of every client in every evaluated round.

    Args:
        runs: Runs of one or more methods and seeds.

    Returns:
        One row for each method, seed, round and client. Accuracies are fractions of 1, and NaN where there is none. New
        clients, which never train, are numbered after the others.
    """
    rows = [row for run in runs for line in run.lines for row in _rows(run, line)]
    columns = dict.fromkeys([*FIRST, *(name for row in rows for name in row)])
    return pd.DataFrame(rows, columns=[*columns])


def _rows(run: Run, line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one round; none if it was not evaluated."""
    told: dict[str, list[float | None]] = line["client_acc"]
    if not told:
        return
    counts = run.samples
    told = told | {name.removeprefix("personal_"): of for name, of in line.get("client_measures", {}).items()}
    old = {RENAMED.get(name, name): values for name, values in told.items() if not name.startswith("new_")}
    new = {name: values for name, values in told.items() if name.startswith("new_")}
    groups, new_groups = line.get("groups"), line.get("new_groups")
    about = {"method": run.method, "seed": run.summary["seed"], "round": line["round"]}
    for id in range(len(counts)):
        yield {
            **about,
            "client": id,
            "name": _name(run, id),
            "train": counts[id],
            "test": run.federation["test"][id],
            **{name: values[id] for name, values in old.items()},
            "global_acc": line["global_acc"],
            **{name: line[name] for name in OF_GLOBAL if name in line},
            **({"group": groups[id]} if groups else {}),
        }
    for i in range(len(next(iter(new.values()), ()))):
        id = len(counts) + i
        yield {
            **about,
            "client": id,
            "name": _name(run, id),
            **{name: values[i] for name, values in new.items()},
            **({"group": new_groups[i]} if new_groups else {}),
        }


def _name(run: Run, id: int) -> str:
    """Return the name of a client, with escapes for characters that are no text, such as half of a pair in UTF-16."""
    return run.client_name(id).encode("utf-8", "backslashreplace").decode()
