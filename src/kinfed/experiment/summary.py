"""The summary of a run: accuracies after the last round, costs, and counts of refused uploads and skipped samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kinfed.data import Federation
from kinfed.engine import ClientRuntime
from kinfed.engine.lines import is_of_evaluation
from kinfed.engine.stopping import VALIDATION
from kinfed.experiment.config import Config
from kinfed.experiment.participation import never_trained, of_trained
from kinfed.experiment.provenance import provenance
from kinfed.experiment.so_far import Lines
from kinfed.experiment.targets import rounds_to
from kinfed.models import default_architecture

__all__ = ["chosen", "summarise", "target_reached"]

SUMMARY_VERSION = 1
SPREAD = ("acc_weighted", "acc_mean", "acc_std", "acc_worst_tenth")


def summarise(config: Config, runtime: ClientRuntime, lines: Lines, seconds: Lines) -> dict[str, Any]:
    """Return the contents of ``summary.json``, version 1: the accuracies after the last round, and costs.

    The best test accuracy over all rounds is a separate entry, since to select a round by it would use test labels.

    Args:
        config: Config of the run.
        runtime: Runtime of the run.
        lines: Lines of ``metrics.jsonl``, one per round.
        seconds: Lines of ``seconds.jsonl``, one per round.
    """
    (method,) = config.methods
    federation = runtime.federation
    labelled = federation.labelled is not None  # no test sample belongs to a client
    never = [] if runtime.method.trains == "pooled" else never_trained(lines, len(federation))
    return {
        "version": SUMMARY_VERSION,
        "method": method,
        "seed": config.seed,
        "rounds": len(lines),
        "supervised": runtime.method.supervised,
        "pooled": runtime.method.trains == "pooled",
        "ceiling": runtime.method.ceiling,
        "tested": runtime.method.primary_label.removeprefix("" if federation.classes else "linear probe, "),
        "model": config.models or config.model or default_architecture(federation.dataset.shape),
        "data": {
            "name": config.data,
            "clients": len(federation),
            "new_clients": len(federation.new_clients),
            "partition": config.partition,
            **{option: getattr(config, option) for option in config.partition_options},
            **({"shift": config.shift} if config.shift is not None else {}),
            "train": sum(len(rows) for rows in federation.partition.train),
            "test": federation.tested.size if labelled else sum(len(rows) for rows in federation.partition.test),
            "probe": len(federation.public_rows),
            **({"validation": held} if (held := _validation_samples(federation)) else {}),
            **({} if federation.dataset.labelled else {"labelled": config.labelled}),
        },
        "metrics": _metrics(runtime, lines, never),
        "chosen": chosen(lines),
        "rounds_to_target": target_reached(config, lines),
        "vote": None,  # of every run; a method's outcome may be one
        "train_loss": lines[-1]["train_loss"],
        "train_cross_entropy": lines[-1].get("train_cross_entropy"),
        "train_term": lines[-1].get("train_term"),
        "communication": {way: sum(line[way] for line in lines) for way in ("down_bytes", "up_bytes")},
        "seconds": {
            "total": round(sum(sum(v for k, v in line.items() if k != "round") for line in seconds), 3),
            **{
                part: round(sum(line.get(part, 0.0) for line in seconds), 3)
                for part in ("train", "aggregate", "evaluate", "save")
            },
            # A part of "evaluate"; a run that was killed may lack the line of its last round.
            "last_evaluation": round(sum(s["evaluate"] for s in seconds if s["round"] == lines[-1]["round"]), 3),
        },
        "refused": sum(len(line["refused"]) for line in lines),
        "refusals": _told(lines, "refused"),
        "untested": sum(len(line["untested"]) for line in lines),
        "untested_reasons": _told(lines, "untested"),
        "skipped_samples": sum(line["skipped_samples"] for line in lines),
        "never_trained": len(never),
        "zero_step_clients": sum(line["zero_step_clients"] for line in lines),
        "collapsed": [],
        "made": provenance(config.device),
        **({"start": start} if (start := [said for model in runtime.models for said in model.start]) else {}),
        **runtime.method.outcome(runtime.server(len(lines)), lines, runtime.class_counts),
    }


def _validation_samples(federation: Federation) -> int:
    """Count the validation samples of the clients, or of the labelled data beside clients without labels."""
    return sum(map(len, federation.validation)) + len(federation.labelled_validation)


def _metrics(runtime: ClientRuntime, lines: Lines, never: Sequence[int]) -> dict[str, float | None]:
    """Return the accuracies of a summary by name; ``never`` are the numbers of the clients that never trained."""
    always = [f"{name}_{quantity}" for name in ("personal", "fine_tuned") for quantity in SPREAD]
    spreads = {
        name: value
        for name, value in lines[-1].items()
        if is_of_evaluation(name) and (value is None or isinstance(value, float))
    }
    metrics: dict[str, float | None] = dict.fromkeys(always) | spreads
    metrics["global_acc"] = lines[-1]["global_acc"]
    sizes = [len(rows) for rows in runtime.federation.partition.test]
    metrics |= of_trained(lines[-1]["client_acc"].get("personal", ()), sizes, never)
    metrics |= _by_architecture(runtime, lines[-1]["client_acc"])
    for name in ("personal_acc_weighted", "global_acc"):
        series = [line[name] for line in lines if line.get(name) is not None]
        metrics[f"{name}_mean_of_last_10_rounds"] = math.fsum(series[-10:]) / len(series[-10:]) if series else None
        metrics[f"{name}_best_on_test"] = max(series, default=None)
    return metrics


def chosen(lines: Lines) -> dict[str, Any] | None:
    """Return the first round with the best accuracy on validation samples, and its accuracies; None without validation.

    >>> lines = [{"round": r, "validation_personal_acc_weighted": v, "personal_acc_weighted": 0.5, "global_acc": None}
    ...          for r, v in ((1, 0.4), (2, 0.6), (3, 0.6))]
    >>> chosen(lines)["round"]
    2
    """
    measured = [line for line in lines if line.get(f"{VALIDATION}personal_acc_weighted") is not None]
    if not measured:
        return None
    best = max(measured, key=lambda line: line[f"{VALIDATION}personal_acc_weighted"])
    accuracies = (f"{VALIDATION}personal_acc_weighted", "personal_acc_weighted", "personal_acc_mean", "global_acc")
    return {"round": best["round"], **{name: best.get(name) for name in accuracies}}


def target_reached(config: Config, lines: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the first round in which the global model reached the target accuracy, and the target.

    None if the config has no target; the round is None if it was not reached.
    """
    if config.target_acc is None:
        return None
    return {
        "target": config.target_acc,
        "round": rounds_to([line["global_acc"] for line in lines], config.target_acc),
    }


def _by_architecture(
    runtime: ClientRuntime, accuracies: Mapping[str, Sequence[float | None]]
) -> dict[str, float | None]:
    """Compute mean accuracies over the clients of each architecture, such as ``linear_global_acc_mean_of_cnn4``."""
    if len(runtime.models) < 2:
        return {}
    of_clients = [runtime.architecture(id) for id in range(len(runtime.federation))]
    means: dict[str, float | None] = {}
    for name, told in accuracies.items():
        if name.startswith("new_"):
            continue
        for architecture in dict.fromkeys(of_clients):
            theirs = [a for a, of in zip(told, of_clients, strict=True) if of == architecture and a is not None]
            means[f"{name}_acc_mean_of_{architecture}"] = math.fsum(theirs) / len(theirs) if theirs else None
    return means


def _told(lines: Sequence[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    """Count each reason in an entry of the metrics.

    Args:
        lines: Lines of ``metrics.jsonl``.
        what: Name of the entry, which has reasons by client: ``refused`` or ``untested``.

    Returns:
        Each reason with the number of its occurrences, and the round and client of the first one.
    """
    told: dict[str, dict[str, Any]] = {}
    for line in lines:
        for client, reason in line[what].items():
            first = {"reason": reason, "times": 0, "first": {"round": line["round"], "client": client}}
            told.setdefault(reason, first)["times"] += 1
    return list(told.values())
