"""What to use, in one paragraph, from the comparison of the tuned methods on fresh seeds."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from kinfed.errors import InputError
from kinfed.experiment.config import OF_TRAINING, Config
from kinfed.experiment.uses import OF_CLIENTS, OF_METHODS
from kinfed.labels import label
from kinfed.report.differences import compared
from kinfed.report.folders import Run
from kinfed.report.measures import WORDS
from kinfed.report.rows import ceilings, in_rows, is_supervised, learns_alone
from kinfed.report.statistics import Measured, client_differences, compare
from kinfed.report.verdict import against_alone, limits, listed

__all__ = ["best_first", "command", "conclusion", "with_settings", "within_chance"]

# Fields that are not those of the one run that the command does: the choice is made, and validation has served.
OF_CHOICE = {"methods", "settings", "validation", "seed", "seeds", "parallel"}


def within_chance(ranked: Mapping[str, Measured]) -> list[str]:
    """Return the best row, and those whose difference to it may be chance: its 95 % interval has zero in it.

    The intervals have no correction for the number of rows. That is for the claim to have found the best row; here, to
    keep a row that is worse is an error too, and a costly one.

    >>> rows = {"a": {0: 0.70, 1: 0.71}, "b": {0: 0.50, 1: 0.51}, "c": {0: 0.72, 1: 0.70}}
    >>> within_chance({row: Measured.whole(seeds, samples=10_000) for row, seeds in rows.items()})
    ['c', 'a']
    """
    best, *others = sorted(ranked, key=lambda row: (-ranked[row].mean, row))
    told = {row: compare(ranked[best], ranked[row]) for row in others}
    return [best, *(row for row, of in told.items() if of is None or of.low <= 0)]


def best_first(runs: Sequence[Run]) -> list[str]:
    """Return the rows that may be the best one (`within_chance`), the one with the best mean first: it is to be used.

    Ceilings are left out.

    Args:
        runs: Runs of the comparison.

    Raises:
        InputError: If no method that is no ceiling has an accuracy.
    """
    ranked = {row: measured for row, measured in compared(runs).items() if row not in ceilings(runs)}
    if not ranked:
        raise InputError("advise: no method has an accuracy on test samples, so that there is nothing to compare")
    return within_chance(ranked)


def conclusion(runs: Sequence[Run], named: Mapping[str, str]) -> str:
    """Return one paragraph: what to use, what it gains on training alone, for whom, what it costs, how sure that is.

    Args:
        runs: Runs of the comparison of the tuned methods.
        named: Each method with its settings, in words, by its name.
    """
    told, grouped = compared(runs), in_rows(runs)
    first = best_first(runs)
    ranked = {row: measured for row, measured in told.items() if row not in ceilings(runs)}
    use, labelled = first[0], all(map(is_supervised, runs))
    order = sorted(ranked, key=lambda row: (-ranked[row].mean, row))
    what = "" if runs[0].measure == "accuracy" else f"{WORDS[runs[0].measure]} "
    on = f"{what}on the clients' own test samples" if labelled else f"{what}with a linear probe"
    said = [f"Use {named.get(use, use)}: {ranked[use].mean:.3f} {on}."]
    said += _certainty(ranked, first, grouped)
    alone = next(filter(learns_alone, order), None)
    other = use if not learns_alone(use) else next((row for row in order if not learns_alone(row)), None)
    if alone is not None and other is not None:
        said += against_alone(runs, ranked, other, alone)
        said += _by_size(grouped[other], ranked[other], ranked[alone])
    said += _cost(grouped, use, alone)
    said += [f"With {words}, {row} has {told[row].mean:.3f}." for row, words in ceilings(runs).items() if row in told]
    known = [of for row in ranked if row != use and (of := compare(ranked[use], ranked[row])) is not None]
    if known:
        seeds, samples = min(of.seeds for of in known), min(of.samples for of in known)
        fresh = f"{seeds} fresh seed{'s' if seeds > 1 else ''}"
        said.append(f"All of this is measured with {fresh} that chose no setting, on {samples:,} test samples in each.")
    return " ".join([*said, *limits(known)])


def _certainty(ranked: Mapping[str, Measured], first: Sequence[str], grouped: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return sentences on which methods may be as good as the one to use, and which of them costs the least."""
    if len(ranked) == 1:
        return []
    if len(first) == 1:
        return ["Each of the others that were compared is worse, with a 95 % interval that leaves out zero."]
    rows = listed([f"{row} ({ranked[row].mean:.3f})" for row in first])
    cheapest = min(first, key=lambda row: (_bytes(grouped[row]), _seconds(grouped[row])))
    cost = "sends nothing" if learns_alone(cheapest) else "costs the least"
    told = "" if cheapest == first[0] else f" Of these, {cheapest} {cost}."
    return [f"{rows} cannot be told apart: the 95 % interval of each difference to the best has zero in it.{told}"]


def _by_size(group: Sequence[Run], one: Measured, alone: Measured) -> list[str]:
    """Return a sentence on what clients with few and with many samples gain; none if no client has twice as many."""
    of_seed = {run.summary["seed"]: run.federation["train"] for run in group}
    pairs = [
        (float(np.sum(of_seed[seed][client])), float(gain))
        for seed, gains in client_differences(one, alone).items()
        for client, gain in enumerate(gains)
        if len(of_seed[seed]) == len(gains) and not np.isnan(gain)
    ]
    sizes = [size for size, _ in pairs]
    if not sizes or max(sizes) < 2 * min(sizes):
        return []
    middle = (min(sizes) + max(sizes)) / 2 if statistics.median(sizes) == max(sizes) else statistics.median(sizes)
    few, many = [g for size, g in pairs if size <= middle], [g for size, g in pairs if size > middle]
    return [
        f"Clients with up to {middle:,.0f} training samples are at {statistics.fmean(few):+.3f}, the others at "
        f"{statistics.fmean(many):+.3f}."
    ]


def _cost(grouped: Mapping[str, Sequence[Run]], use: str, alone: str | None) -> list[str]:
    """Return a sentence on the bytes and the seconds of a run, beside those of training alone."""
    beside = f"; training alone takes {_seconds(grouped[alone]):.1f} s" if alone is not None and alone != use else ""
    sent = _bytes(grouped[use])
    sends = f"sends {_size(sent)} over all rounds and clients" if sent else "sends nothing"
    return [f"A run {sends} and takes {_seconds(grouped[use]):.1f} s{beside}."]


def _bytes(group: Sequence[Run]) -> float:
    """Return the bytes of a run in both directions, the mean over the seeds."""
    return statistics.fmean(sum(run.summary["communication"].values()) for run in group)


def _seconds(group: Sequence[Run]) -> float:
    return statistics.fmean(run.summary["seconds"]["total"] for run in group)


def _size(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def with_settings(config: Config, name: str) -> str:
    """Return the label of a method with those of its settings that are not defaults, such as ``fedprox:lr=0.03,mu=1``.

    >>> with_settings(Config.checked({"methods": "fedprox", "settings": {"fedprox": {"lr": 0.03}}}), "fedprox")
    'fedprox:lr=0.03'
    """
    usual = Config.checked({"methods": name}, config.objects).settings[name]
    own = {field: value for field, value in config.settings[name].items() if value != usual.get(field)}
    return label(name, {field: value for field, value in own.items() if value is not None})


def command(config: Config, name: str) -> str | None:
    """Return the command that runs a method with its settings on all training samples, those of validation included.

    Args:
        config: Config of the comparison.
        name: Name of the method.

    Returns:
        The command; None if the config has Python objects, which no command can name.

    >>> fields = {"methods": ("fedprox", "local"), "clients": 8, "settings": {"fedprox": {"lr": 0.03}}}
    >>> command(Config.checked({**fields, "validation": 0.2, "knn_every": 5}), "fedprox")
    'kinfed run fedprox:lr=0.03 --clients 8'
    """
    if config.objects:
        return None
    parts = ["kinfed", "run", with_settings(config, name)]
    own, method = config.of(name, config.seed), config.method(name)
    uses = {**OF_CLIENTS, **OF_METHODS}
    kept = OF_CHOICE - ({"validation"} if config.patience is not None else set())
    of_data = {"methods": "local", "data": own.data, "client": own.client}
    usual = Config.checked({**of_data, "partition": own.partition}).model_dump()
    usual |= {"data": Config.model_fields["data"].default, "client": None}
    usual["partition"] = Config.checked(of_data).partition
    for field, value in own.model_dump(exclude=kept).items():
        if value == usual[field]:
            continue
        idle = field in uses and value != uses[field].off and not uses[field].reads(own, method)
        if value is not None and not idle and not (field in OF_TRAINING and field in own.own_training(name)):
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            parts += [f"--{field.replace('_', '-')}", text.lower() if isinstance(value, bool) else text]
    return shlex.join(parts)
