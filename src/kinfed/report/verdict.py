"""The conclusion of a comparison in a few sentences: the best method, compared with training alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kinfed.report.differences import compared
from kinfed.report.folders import Run
from kinfed.report.measures import WORDS
from kinfed.report.rows import ceilings, in_rows, is_supervised, learns_alone
from kinfed.report.statistics import (
    FEW_CLIENTS,
    MOST_SEEDS,
    Measured,
    PairedDifference,
    alike,
    client_differences,
    client_means,
    compare,
    seeds_needed,
)

__all__ = ["against_alone", "limits", "listed", "verdict"]

NO_GAIN = "Training alone is among them: these results do not show that federation helps."
ONE_SEED = "One seed says nothing about other seeds."
FEW = "So few clients say nothing about other clients."


def verdict(runs: Sequence[Run]) -> str:
    """Return sentences that name the method with the best mean accuracy on the clients' own test sets.

    A method is named the best one if every other one can be told from it; otherwise those that cannot are a tie. The
    best federated method is compared with training alone. Methods with pooled data are never the best, only a ceiling.
    If any method learns without labels, all are compared by linear probe (see `compared`). Instead of the accuracy, it
    may be another measure (`Run.measure`).

    Args:
        runs: Runs of the comparison.

    Returns:
        The text; empty if fewer than two methods that are no ceilings have this accuracy.
    """
    told = compared(runs)
    ranked = {row: measured for row, measured in told.items() if row not in ceilings(runs)}
    if len(ranked) < 2:
        return ""
    labelled = all(map(is_supervised, runs))
    order = sorted(ranked, key=lambda row: (-ranked[row].mean, row))
    first = alike(ranked)
    said = [
        _tie(ranked, first, labelled, runs[0].measure)
        if len(first) > 1
        else _best(ranked, order, labelled, runs[0].measure)
    ]
    if len(first) > 1 and any(map(learns_alone, first)):
        said.append(NO_GAIN)
    alone = next(filter(learns_alone, order), None)
    federated = next((row for row in order if not learns_alone(row)), None)
    if alone and federated:
        said += against_alone(runs, ranked, federated, alone)
    said += [f"With {words}, {row} has {told[row].mean:.3f}." for row, words in ceilings(runs).items() if row in told]
    return " ".join([*said, *limits([compare(ranked[first[0]], ranked[row]) for row in order if row != first[0]])])


def _best(ranked: Mapping[str, Measured], order: Sequence[str], labelled: bool, measure: str) -> str:
    """Return the sentence that names the best row."""
    best, on = order[0], _on(labelled, measure)
    federated = [row for row in order if not learns_alone(row)]
    what = "serves these clients best" if labelled else "has the best representations"
    if federated and learns_alone(best):
        return (
            f"Training alone {what} ({ranked[best].mean:.3f} {on}); "
            f"the best federated method is {federated[0]} ({ranked[federated[0]].mean:.3f})."
        )
    return f"{best} {what}: {ranked[best].mean:.3f} {on}."


def _tie(ranked: Mapping[str, Measured], first: Sequence[str], labelled: bool, measure: str) -> str:
    """Return the sentence that some rows have equal accuracies, or accuracies that cannot be told apart."""
    best = ranked[first[0]]
    if len({f"{ranked[row].mean:.3f}" for row in first}) == 1:
        return f"{listed(first)} are a tie: {best.mean:.3f} {_on(labelled, measure)}."
    rows = listed([f"{row} ({ranked[row].mean:.3f})" for row in first])
    others = [compare(best, ranked[row]) for row in first[1:]]
    told = [of for of in others if of is not None]
    if len(told) < len(others):
        return f"{rows} cannot be told apart: they do not share a seed."
    by = "" if measure == "accuracy" else f" in {WORDS[measure]}"
    apart = f"{rows} cannot be told apart{by}{'' if labelled else ' with a linear probe'}"
    seeds, samples = min(of.seeds for of in told), min(of.samples for of in told)
    if seeds == 1:
        clients = min(of.clients for of in told)
        by = f"{clients} clients and {samples:,} test samples" if clients > 1 else f"{samples:,} test samples"
        return f"{apart} by {by} of one seed."
    needed = [seeds_needed(of) for of in told]
    more = f"even {MOST_SEEDS} seeds would not" if None in needed else f"about {max(filter(None, needed))} seeds would"
    return f"{apart} by {seeds} seeds and {samples:,} test samples ({more})."


def against_alone(runs: Sequence[Run], ranked: Mapping[str, Measured], federated: str, alone: str) -> list[str]:
    """Return sentences on what the best federated row gains on training alone: on the whole, and by client."""
    told = compare(ranked[federated], ranked[alone])
    if told is None:
        return []
    said = [
        f"Against training alone ({ranked[alone].mean:.3f}), {federated} is at {told.difference:+.3f} "
        f"(95 % interval {told.low:+.3f} to {told.high:+.3f})."
    ]
    group = in_rows(runs)[federated]
    by_client = _by_client(group, client_differences(ranked[federated], ranked[alone]))
    if told.clients < 2 or not by_client:
        return said
    losses = {client: of for client, of in by_client.items() if of < 0}
    gains = sum(of > 0 for of in by_client.values())
    counted = f"Of {len(by_client)} clients, {_number(gains, 'gain')} and {_number(len(losses), 'lose')}"
    if not losses:
        return [*said, f"{counted}."]
    worst = min(losses, key=lambda client: losses[client])
    return [*said, f"{counted}; the worst loss is {-losses[worst]:.3f} ({worst})."]


def _by_client(group: Sequence[Run], differences: Mapping[int, NDArray[np.float64]]) -> dict[str, float]:
    """Return the difference at each client: the mean over the seeds, or each seed's if the seeds have other clients."""
    of_seed = {run.summary["seed"]: run for run in group}
    runs = [of_seed[seed] for seed in differences]
    if not runs:
        return {}
    parts = [[run.federation.get(name) for name in ("names", "train", "test", "groups")] for run in runs]
    if all(part == parts[0] for part in parts):
        found = {f"client {runs[0].client_name(id)}": of for id, of in enumerate(client_means(differences))}
    else:
        found = {
            f"client {of_seed[seed].client_name(id)} of seed {seed}": of
            for seed, own in differences.items()
            for id, of in enumerate(own)
        }
    return {client: float(of) for client, of in found.items() if not math.isnan(of)}


def limits(told: Sequence[PairedDifference | None]) -> list[str]:
    """Return sentences on what the comparisons do not allow to say."""
    known = [of for of in told if of is not None]
    said = [ONE_SEED] if any(of.seeds == 1 for of in known) else []
    return [*said, FEW] if any(1 < of.clients < FEW_CLIENTS for of in known) else said


def _number(clients: int, does: str) -> str:
    return f"{clients or 'none'} {does}{'' if clients > 1 else 's'}"


def _on(labelled: bool, measure: str) -> str:
    """Say by which measure the methods are compared, and on what."""
    what = "" if measure == "accuracy" else f"{WORDS[measure]} "
    return f"{what}on their own test samples" if labelled else f"{what}with a linear probe"


def listed(names: Sequence[str]) -> str:
    """Return names with commas, and "and" before the last one.

    >>> listed(["fedavg", "fedper", "local"])
    'fedavg, fedper and local'
    """
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
