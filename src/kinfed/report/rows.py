"""Rows of a comparison: the runs of one method with different seeds, and a description of the experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kinfed.experiment.config import Config
from kinfed.experiment.config_file import ADDED
from kinfed.labels import parse_label
from kinfed.report.folders import Run
from kinfed.report.measures import WORDS

__all__ = [
    "ceilings",
    "config_of_all",
    "in_rows",
    "is_supervised",
    "learns_alone",
    "planned_rounds",
    "seeds_of",
    "setting",
]

ALONE = ("local", "local_ssl")
POOLED = ("central", "central_byol")  # in runs whose summary does not say it

JUDGED = (
    "no accuracy is known; the models are judged by their own loss, the spread of their outputs and views of images"
)

# Fields of the config that do not define a row: the seed, and those that do not influence the results.
NO_BEARING = (
    "seed", "workers", "client_timeout", "cpus_per_client", "gpus_per_client", "parallel", "device", "checkpoint_every",
    "evaluate_every", "knn_every", "save_local", "save_models", "log", "target_acc", "measure",
)  # fmt: skip
UNCHANGED = {name: Config.model_fields[name].default for name in ADDED}  # what a run without these fields did


def in_rows(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs into rows, one per method, in the order of first appearance.

    Runs of one method that differ in more than the seed form different rows, which are named after the fields in which
    they differ. A run that is given twice counts once.

    Returns:
        Runs of each row, one per seed, by name of the row.
    """
    variants: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        known = variants.setdefault(run.method, [])
        if _but_seed(run) not in known:
            known.append(_but_seed(run))
    rows: dict[str, list[Run]] = {}
    for run in runs:
        row = rows.setdefault(_called(run, variants[run.method]), [])
        if all(run.summary["seed"] != other.summary["seed"] for other in row):
            row.append(run)
    return rows


def _called(run: Run, variants: Sequence[dict[str, Any]]) -> str:
    """Name the row of a run: the method, and the fields in which its variants differ, unless they are None."""
    own = _but_seed(run)
    differ = {name for other in variants for name in own.keys() | other.keys() if own.get(name) != other.get(name)}
    return " ".join([run.method, *(f"{name}={own[name]}" for name in sorted(differ) if own.get(name) is not None)])


def _but_seed(run: Run) -> dict[str, Any]:
    """Return the fields of a run that influence its results, without the seed; the method's own fields included."""
    fields: dict[str, Any] = _fields(run) | run.config.get(run.method, {})
    fields.pop(run.method, None)
    return fields


def config_of_all(run: Run) -> dict[str, Any]:
    """Return the fields of a run that influence its results, without the seed, the method and the method's fields."""
    return {name: value for name, value in _fields(run).items() if name not in ("methods", run.method)}


def _fields(run: Run) -> dict[str, Any]:
    """Return the fields of a config that influence the results; those that older runs do not have, if they do."""
    return {
        name: value
        for name, value in run.config.items()
        if name not in NO_BEARING and not (name in UNCHANGED and value == UNCHANGED[name])
    }


def seeds_of(grouped: Mapping[str, Sequence[Run]]) -> dict[str, tuple[int, ...]]:
    """Return the seeds of each row, in ascending order."""
    return {row: tuple(sorted(run.summary["seed"] for run in group)) for row, group in grouped.items()}


def is_supervised(run: Run) -> bool:
    """Return True if the method learns from labels."""
    return bool(run.summary.get("supervised", True))


def learns_alone(row: str) -> bool:
    """Return True if a row is of a method whose clients train alone."""
    return parse_label(row.split(maxsplit=1)[0])[0] in ALONE


def ceilings(runs: Sequence[Run]) -> dict[str, str]:
    """Return the rows of methods that serve nobody, with what they have that no federation has, in words."""
    told = {row: _ceiling(run) for row, (run, *_) in in_rows(runs).items()}
    return {row: words for row, words in told.items() if words}


def _ceiling(run: Run) -> str:
    """Return what a method has that no federation has; empty if it has nothing of the kind."""
    if "ceiling" in run.summary:
        return str(run.summary["ceiling"])
    pooled = run.summary.get("pooled", parse_label(run.method)[0] in POOLED)  # a run before there were other ceilings
    return "all data at one place" if pooled else ""


def planned_rounds(run: Run) -> int:
    """Return the number of rounds of a run; of one that ended early, that of the planned ones."""
    early = any(run.config.get(name) is not None for name in ("patience", "stop_acc"))
    return int(run.config["rounds"] if early and run.summary.get("planned") is None else run.summary["rounds"])


def setting(runs: Sequence[Run]) -> str:
    """Describe the experiment in words: data, clients, partition, rounds, seeds and model."""
    first = runs[0].summary
    data = first["data"]
    how = {
        "iid": "IID",
        "shards": f"{data.get('shards')} shards per client",
        "dirichlet": f"Dirichlet α={data.get('alpha')}",
    }
    seeds = sorted({run.summary["seed"] for run in runs})
    spread = "; ± is the sample standard deviation over the seeds" if len(seeds) > 1 else ""
    several = len(in_rows(runs)) > 1
    apart = ", ceilings apart" if ceilings(runs) else ""
    best = "The best value of each column is marked, and all that do not differ from it significantly"
    marked = f" {best}{apart}." if several else ""
    shift = f", shift {data['shift']}" if data.get("shift") else ""
    early = {"patience": "patience {}", "stop_acc": "ended at an accuracy of {} on the pooled test set"}
    ended = [how.format(value) for name, how in early.items() if (value := runs[0].config.get(name))]
    ends = f" (at most; {', '.join(ended)})" if ended else ""
    samples = f"{data['train']:,} training and {data['test']:,} test samples"
    by = runs[0].measure
    what = (
        "Accuracies are fractions of 1" if by == "accuracy" else f"Methods are compared by {WORDS[by]}, fractions of 1"
    )
    told = f"{what} after the last round{spread}."
    if runs[0].unlabelled:
        samples, labelled = f"{data['train']:,} images without labels", runs[0].federation["labelled"]
        told = f"No labels: {JUDGED} after the last round{spread}."
        if labelled is not None:
            told = (
                f"{what} after the last round{spread}, of classifiers fitted to the "
                f"{labelled['train']:,} training samples of {labelled['name']} and tested on its {labelled['test']:,} "
                "test samples."
            )
    in_half = " in bfloat16" if runs[0].config.get("precision") == "bfloat16" else ""
    new = f"{data['new_clients']} new clients held out, " if data.get("new_clients") else ""
    return (
        f"{data['name']}: {samples} over {data['clients']} clients "
        f"({how.get(data['partition'], data['partition'])}{shift}), {new}{data['probe']} set aside as public images; "
        f"{first['model']}{in_half}, {planned_rounds(runs[0])} rounds{ends}, seed{'s' if len(seeds) > 1 else ''} "
        f"{', '.join(map(str, seeds))}. {told}{'' if runs[0].untested else marked}"
    )
