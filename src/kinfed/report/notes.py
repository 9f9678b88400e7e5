"""Notes under a table: warnings about runs and their comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kinfed.engine.stopping import has_arrived
from kinfed.experiment.config import MANY
from kinfed.experiment.targets import as_text, targets
from kinfed.report.folders import Run
from kinfed.report.measures import WORDS
from kinfed.report.names import labels
from kinfed.report.reached import reaches_of, speed_ups
from kinfed.report.rows import in_rows, is_supervised, planned_rounds, seeds_of

__all__ = ["notes"]

SHARED = ("data", "rounds", "model")  # keys of the summary that must be equal in runs that are compared
DIVERGED = 2  # training has diverged if its cross-entropy exceeds that of guessing by this factor
ERRORS = 2  # standard errors above chance that an accuracy has to be
SIZES = ("train", "test", "validation")  # keys of the summary's ``data`` with the numbers of samples

LEFT_OUT = {  # reason for left-out samples, of methods with labels and without
    True: "since it was alone in a batch and BatchNorm needs two",
    False: "since the last batch of an epoch was incomplete",
}


def notes(runs: Sequence[Run]) -> list[str]:
    """Return the warnings about runs: limits of the comparison, refused uploads, left-out data, failed training."""
    of_runs = [f"{run.method}, seed {run.summary['seed']}: {note}" for run in runs for note in _of_run(run)]
    return [*_of_comparison(runs), *of_runs]


def _of_comparison(runs: Sequence[Run]) -> Iterator[str]:
    """Yield notes on all runs together: differences that prevent a comparison, and negative transfer."""
    for what in SHARED:
        of_runs = [run.summary | {"rounds": planned_rounds(run)} for run in runs]
        if any(_unlike(of_run, of_runs[0], what) for of_run in of_runs):
            yield f"These runs differ not only in the method but also in {what}: their numbers cannot be compared."
    if len({*(seeds := seeds_of(in_rows(runs))).values()}) > 1:
        over = "; ".join(f"{row}: {', '.join(map(str, own))}" for row, own in seeds.items())
        yield f"The rows have different seeds ({over}): compare rows with the same seeds only."
    yield from _of_classes(runs[0])
    if runs[0].untested:
        yield (
            "No labels: none of these numbers says what a model is good for. A low loss or a large spread makes no "
            "good representation; test it with labelled data of the same kind: --labelled PATH."
        )
    yield from _of_measure(runs)
    yield from _of_further_tests(runs[0])
    if len({is_supervised(run) for run in runs}) > 1:
        yield (
            "The own test accuracy of methods without labels is that of a classifier on their representations, "
            "fitted to the pooled labels of all clients. It cannot be compared with that of other methods; "
            "--linear-probe tests all methods this way."
        )
    for target in targets([run.summary for run in runs]):
        reaches = reaches_of(runs, target)
        for row, (without, up) in speed_ups(runs, reaches).items():
            if up is not None and up.negative:
                yield (
                    f"{row}: negative transfer: it needs {reaches[row]} rounds to reach {as_text(target)}, {without} "
                    f"needs {reaches[without]} ({up})."
                )


def _of_run(run: Run) -> Iterator[str]:
    """Yield notes on one run."""
    s = run.summary
    if planned := s.get("planned"):
        yield f"the run is not finished; these are {s['rounds']} of its {planned} rounds."
    elif s["rounds"] < planned_rounds(run):
        if has_arrived(run.lines, run.config.get("stop_acc")):
            why = f"the global model had reached {run.config['stop_acc']} on the pooled test set"
        else:
            why = f"validation had not improved for {run.config['patience']} rounds"
        yield f"ended after round {s['rounds']}, since {why}."
    for count, what in (
        (s["refused"], f"uploads were refused; {_reasons(run, s.get('refusals', ()))}"),
        (s.get("untested", 0), f"tests of a model failed; {_reasons(run, s.get('untested_reasons', ()))}"),
        (s["skipped_samples"], f"times a sample was left out, {LEFT_OUT[is_supervised(run)]}"),
        (s["zero_step_clients"], "times a client made no training step"),
    ):
        if count:
            yield f"{count} {what}."
    tested = ~np.isnan(run.client_accuracies())
    if not tested.all() and not run.unlabelled:
        yield f"{tested.sum()} of {len(tested)} clients were tested; the means are over these."
    if skipped := run.federation.get("skipped", 0):
        first = ", ".join(run.federation["skipped_names"])
        yield f"{skipped} images could not be decoded and were left out; the first: {first}."
    for remark in run.federation.get("remarks", ()):
        yield f"{remark}."
    if left := run.federation.get("left_out"):
        first = ", ".join(run.federation["left_out_names"])
        yield f"{left} files or folders beside the images were left out; the first: {first}."
    if s.get("collapsed"):
        yield (
            f"the networks of {_clients(run, s['collapsed'])} collapsed: their outputs are nearly the same for all "
            "images. A smaller --lr, more samples per client or larger batches may help."
        )
    yield from s.get("start", ())
    yield from _of_vote(run)
    yield from filter(None, (_of_participation(run), _of_loss(run)))


def _of_further_tests(run: Run) -> Iterator[str]:
    """Yield a note if only a sample of the clients was tested in further ways after the last round."""
    known = [of for name, of in run.lines[-1]["client_acc"].items() if name in ("own_classes", "refit", "fine_tuned")]
    tested = max((sum(accuracy is not None for accuracy in of) for of in known), default=0)
    clients = max(map(len, known), default=0)
    heads = "re-fitted and refreshed" if None in run.lines[-1]["client_acc"].get("refreshed", ()) else "re-fitted"
    if 0 < tested < clients and (run.config.get("further_clients") or clients > MANY):
        yield (
            f"Own classes, {heads} heads and fine-tuned models were tested at {tested} of {clients} clients, drawn at "
            "random (--further-clients)."
        )


def _of_measure(runs: Sequence[Run]) -> Iterator[str]:
    """Yield notes on runs without the measure by which methods are compared, and on clients without it."""
    by = runs[0].measure
    if by == "accuracy":
        return
    lacking = [row for row, group in in_rows(runs).items() if any(_lacks(run, by) for run in group)]
    if lacking:
        of = ", ".join(lacking)
        yield f"{WORDS[by]} was not measured in the runs of {of}: an older version of kinfed made them."
    tested = [run.client_values()[~np.isnan(run.client_accuracies())] for run in runs if len(run.client_values())]
    values = np.concatenate(tested) if tested else np.empty(0)
    if missing := int(np.isnan(values).sum()):
        yield (
            f"{WORDS[by]} is not defined where the test samples are of one class, for {missing} of {len(values)} "
            "clients of all runs; the means are over the others."
        )


def _lacks(run: Run, measure: str) -> bool:
    """Return True if the clients' models have an accuracy, but the run knows no such measure."""
    metrics = run.summary["metrics"]
    return metrics.get("personal_acc_weighted") is not None and f"personal_{measure}_weighted" not in metrics


def _of_classes(run: Run) -> list[str]:
    """Return a note if the data, or every client, have only one class, so that accuracies are trivial."""
    held = [sum(count > 0 for count in of_client) for of_client in run.federation.get("train", ())]
    if len(run.federation["classes"]) == 1:
        return ["The data have only one class: every prediction is right, and accuracies mean nothing."]
    if held and max(held) == 1:
        return [
            "Every client has samples of one class only: a personal model that always predicts this class is "
            "always right."
        ]
    return []


def _of_participation(run: Run) -> str:
    """Return a note on clients that took part in no round, with the accuracy without them; empty if there are none."""
    s, never = run.summary, run.summary.get("never_trained", 0)
    if not never:
        return ""
    metrics, told = s["metrics"], f"{never} of {s['data']['clients']} clients never took part in a round"
    if metrics["personal_acc_weighted"] is None or metrics.get("personal_acc_weighted_of_trained") is None:
        return f"{told}."
    return (
        f"{told}: own test accuracy is {metrics['personal_acc_weighted']:.3f} with them and "
        f"{metrics['personal_acc_weighted_of_trained']:.3f} without them; mean over clients "
        f"{metrics['personal_acc_mean']:.3f} and {metrics['personal_acc_mean_of_trained']:.3f}."
    )


def _of_loss(run: Run) -> str:
    """Return a note if training failed, by its cross-entropy; empty if it did not, or an accuracy is above chance."""
    loss, classes = run.summary.get("train_cross_entropy"), len(run.federation["classes"])
    if not is_supervised(run) or loss is None or classes < 2 or _above_chance(run):
        return ""
    guessing = math.log(classes)
    told = (
        f"the cross-entropy of the last round's training, {loss:.2f}, is {{}} of guessing ({guessing:.2f}): "
        "training {}"
    )
    if not loss <= DIVERGED * guessing:
        return f"{told.format('far above that', 'diverged')}. A smaller --lr may help."
    if loss > 0.95 * guessing:
        where = "that" if loss < 1.05 * guessing else "above that"
        return f"{told.format(where, 'made no progress')}. More rounds or a smaller --lr may help."
    return ""


def _above_chance(run: Run) -> bool:
    """Return True if an accuracy exceeds the share of the most frequent class by more than two standard errors."""
    metrics, tested = run.summary["metrics"], run.summary["data"]["test"]
    of_classes = np.array(run.federation.get("train", np.ones((1, len(run.federation["classes"]))))).sum(axis=0)
    chance = float(of_classes.max() / of_classes.sum())
    told = [metrics[name] for name in ("personal_acc_weighted", "global_acc") if metrics[name] is not None]
    return max(told, default=0.0) > chance + ERRORS * math.sqrt(chance * (1 - chance) / max(tested, 1))


def _of_vote(run: Run) -> list[str]:
    """Return notes on a vote: layers not transferred, clients without a ballot, limits of the similarity measure."""
    if (vote := run.summary.get("vote")) is None:
        return []
    copied, layers = vote["layers"]
    line, said = run.vote_line, []
    if copied < layers:
        said.append(
            f"{copied} of the {layers} layers of {vote['transferred']} were transferred; the others do not fit the "
            "model, which kept its own."
        )
    silent = [id for id in line["clients"] if str(id) not in line["ballots"] | line["refused"]]
    if silent and vote["voted"]:
        said.append(
            f"{_clients(run, silent)} cast no ballot in round {vote['round']}: no source could be compared with their "
            "models."
        )
    return [*said, vote["bias"]] if "bias" in vote else said


def _whose(run: Run, told: str) -> str:
    """Name the client of an entry such as ``3`` or ``3, fine_tuned``; other entries, such as ``global``, stay."""
    number, comma, which = told.partition(",")
    return f"{_clients(run, [int(number)])}{comma}{which}" if number.isdigit() else f"client {told}"


def _clients(run: Run, ids: Sequence[int]) -> str:
    """List clients by name, or by number if the data have no names."""
    return f"client{'s' if len(ids) > 1 else ''} {', '.join(labels(map(run.client_name, ids)))}"


def _unlike(one: dict[str, Any], other: dict[str, Any], what: str) -> bool:
    """Return True if the summaries of two runs differ in a key.

    With different seeds, other clients are held back, so that the numbers of samples may differ.
    """
    same_clients = what != "data" or one["seed"] == other["seed"]
    kept = [
        run[what] if same_clients else {n: v for n, v in run[what].items() if n not in SIZES} for run in (one, other)
    ]
    return bool(kept[0] != kept[1])


def _reasons(run: Run, told: Sequence[Mapping[str, Any]]) -> str:
    """List the three most frequent reasons, each with its first occurrence; metrics.jsonl has all of them."""
    often = sorted(told, key=lambda one: -one["times"])[:3]
    said = [
        f"{one['times']}× {one['reason']} (first: round {one['first']['round']}, {_whose(run, one['first']['client'])})"
        for one in often
    ]
    more = [f"and {len(told) - 3} other reasons, see metrics.jsonl"] if len(told) > 3 else []
    return "; ".join(said + more)
