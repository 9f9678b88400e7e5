"""The table of a comparison: a row a method, the best of each column marked, and all that cannot be told from it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table as RichTable
from rich.text import Text

from kinfed.errors import plain
from kinfed.experiment.targets import Reach, SpeedUp, as_text, mean_text, reach, reference, speed_up, targets
from kinfed.report.folders import Run
from kinfed.report.style import REFERENCES
from kinfed.report.ties import ERRORS, Measured, alike

__all__ = ["NEW_CLIENTS", "Cell", "Table", "notes", "setting", "table", "target_table", "verdict"]

Summary = dict[str, Any]

# What has no bearing on the numbers of a row.
NO_BEARING = (
    "seed", "workers", "client_timeout", "device", "checkpoint_every", "evaluate_every", "knn_every", "save_local",
    "log", "target_acc",
)  # fmt: skip
SHARED = ("data", "rounds", "model")  # what runs must agree in to be compared
ALONE = ("local", "local_ssl")
DIVERGED = 2  # times the cross-entropy of guessing
SIZES = ("train", "test")  # of the data
NARROW = {"refreshed": "re-\nfreshed", "fine-tuned": "fine-\ntuned"}  # headings in a terminal


@dataclass(frozen=True)
class Column:
    """One quantity.

    Attributes:
        heading: Its own.
        meaning: What it is.
        read: How it is read from a summary.
        digits: With how many decimals it is shown.
        accuracy: Whether it is one.
        share: Of how much of the test samples, if it is.
    """

    heading: str
    meaning: str
    read: Callable[[Summary], float | None]
    digits: int = 3
    accuracy: bool = True
    share: Callable[[Summary], float] = lambda s: 1.0

    def of(self, group: Sequence[Run]) -> Measured | None:
        """What a row has, if all its runs have it."""
        told = {run.summary["seed"]: self.read(run.summary) for run in group}
        first = group[0].summary
        known = {seed: value for seed, value in told.items() if value is not None}
        return (
            Measured(known, self.share(first) * first["data"]["test"], self.digits) if len(known) == len(told) else None
        )


COLUMNS = (
    Column("linear probe", "accuracy on the whole test set of a linear classifier on a frozen representation, fitted "
           "to all training samples; mean over what serves the clients",
           lambda s: s["metrics"].get("linear_global_acc_mean")),
    Column("local probe", "the same, fitted to and tested on samples of the client's own classes alone",
           lambda s: s["metrics"].get("linear_local_acc_mean")),
    Column("own test", "accuracy on the clients' own test samples, weighted by their number, before any fine-tuning",
           lambda s: s["metrics"]["personal_acc_weighted"]),
    Column("mean over clients", "the same, plain mean over clients", lambda s: s["metrics"]["personal_acc_mean"]),
    Column("sd over clients", "its spread over clients (population standard deviation)",
           lambda s: s["metrics"]["personal_acc_std"], accuracy=False),
    Column("worst tenth", "mean accuracy of the tenth of the clients served worst",
           lambda s: s["metrics"]["personal_acc_worst_tenth"], share=lambda s: 0.1),
    Column("refreshed", "own test accuracy after each client has fitted its head to the latest body once more",
           lambda s: s["metrics"].get("refreshed_acc_weighted")),
    Column("fine-tuned", "own test accuracy after each client has fine-tuned a copy of the model tested",
           lambda s: s["metrics"].get("fine_tuned_acc_weighted")),
    Column("pooled test", "accuracy of the one global model on the pooled test set",
           lambda s: s["metrics"]["global_acc"]),
    Column("MB", "megabytes (10⁶) sent in both directions, all rounds",
           lambda s: (s["communication"]["down_bytes"] + s["communication"]["up_bytes"]) / 1e6, 1, accuracy=False),
    Column("s", "seconds of the whole run", lambda s: s["seconds"]["total"], 1, accuracy=False),
)  # fmt: skip


def _of_new(s: Summary) -> float:
    """New clients for one that trains, and so about as many test samples."""
    return float(s["data"].get("new_clients", 0) / s["data"]["clients"])


NEW_COLUMNS = (
    Column("as it is", "accuracy of the model that it is given, weighted by the new clients' test samples",
           lambda s: s["metrics"].get("new_global_acc_weighted"), share=_of_new),
    Column("own head", "after each has fitted a head to its own training samples, on the body of that model, frozen",
           lambda s: s["metrics"].get("new_head_acc_weighted"), share=_of_new),
    Column("fine-tuned", "after each has fine-tuned that model on its own training samples",
           lambda s: s["metrics"].get("new_fine_tuned_acc_weighted"), share=_of_new),
)  # fmt: skip

SECOND = (
    ("model tested", "which model a client's accuracy is measured with"),
    ("model given", "the method's global model, or the mean of what serves its clients"),
)

LEFT_OUT = {  # by whether labels are read
    True: "alone in a batch where BatchNorm needs two",
    False: "in the last batch of an epoch, where that was not whole",
}

NO_GAIN = " Training alone is among them: nothing here says that federation helps."

NEW_CLIENTS = (
    "Clients that took no part in training, on their own test samples: with the global model as it is, with a head of "
    "their own on its body, and with that model fine-tuned. Where a method has no global model, they are given the "
    "mean of what serves its clients: the shared body under the mean of the heads, where only heads differ."
)


@dataclass(frozen=True)
class Cell:
    """A number as it is shown, its spread over the seeds if there are several, and whether none is better for sure."""

    text: str
    spread: str = ""
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Headings with their meanings, and rows of cells; the first two columns are the method and the model tested."""

    headings: tuple[str, ...]
    meanings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def rich(self) -> RichTable:
        """For a terminal of 80 columns; the best values are bold and starred, so that they show without colours too.

        Where room is short, only the words of the second column go one below the other.
        """
        shown = RichTable(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for i, heading in enumerate(self.headings):
            lines = NARROW.get(heading, heading.replace(" ", "\n"))
            shown.add_column(lines, justify="left" if i < 2 else "right", overflow="fold", no_wrap=i != 1)
        starred = [any(cell.best for cell in column) for column in zip(*self.rows, strict=True)]
        for row in self.rows:
            shown.add_row(*(_shown(cell, " " if star else "") for cell, star in zip(row, starred, strict=True)))
        return shown


def _shown(cell: Cell, room: str) -> Text:
    """A cell in a terminal; ``room`` is where others of its column have a star."""
    text = plain(cell.text)
    shown = Text(f"{text}*", "bold green") if cell.best else Text(f"{text}{room}")
    if not cell.spread:
        return shown
    return Text.assemble(shown, "\n", (cell.spread.replace("±0.", "±."), "dim"), room)


def table(runs: Sequence[Run], *, new_clients: bool = False) -> Table:
    """One row a method; over several seeds mean ± sample standard deviation. Columns that nobody fills are left out.

    Rows over different seeds say over how many.

    Args:
        runs: Finished ones.
        new_clients: Of the clients that took no part, instead of those that did; without rows if there are none.
    """
    grouped = in_rows(runs)
    second = _given if new_clients else lambda run: run.summary["tested"]
    cells: dict[str, list[Cell]] = {row: [Cell(row), Cell(second(group[0]))] for row, group in grouped.items()}
    headings, meanings = ["method", SECOND[new_clients][0]], ["", SECOND[new_clients][1]]
    if len({*_seeds(grouped).values()}) > 1:
        headings, meanings = [*headings, "seeds"], [*meanings, "over how many the row is"]
        for row, seeds in _seeds(grouped).items():
            cells[row].append(Cell(f"{len(seeds)}"))
    shown = False
    for column in NEW_COLUMNS if new_clients else COLUMNS:
        found = {row: column.of(group) for row, group in grouped.items()}
        told = {row: measured for row, measured in found.items() if measured is not None}
        if not told:
            continue
        shown = True
        headings.append(column.heading)
        meanings.append(column.meaning)
        best = alike(told) if column.accuracy else []
        for row, measured in found.items():
            cells[row].append(Cell("–") if measured is None else _number(measured, column, row in best))
    return Table(tuple(headings), tuple(meanings), tuple(tuple(row) for row in cells.values()) if shown else ())


def _number(measured: Measured, column: Column, best: bool) -> Cell:
    """A mean with its spread."""
    values = [*measured.by_seed.values()]
    spread = f"±{statistics.stdev(values):.{column.digits}f}" if column.accuracy and len(values) > 1 else ""
    return Cell(f"{measured.mean:.{column.digits}f}", spread, best)


def _seeds(grouped: Mapping[str, Sequence[Run]]) -> dict[str, tuple[int, ...]]:
    """Of each row, in order."""
    return {row: tuple(sorted(run.summary["seed"] for run in group)) for row, group in grouped.items()}


def target_table(runs: Sequence[Run], target: float) -> Table:
    """How soon each method reached a target, and what a transfer saved, a row a method; the fewest rounds are marked.

    Args:
        runs: Finished ones; rows that were not asked for this target are left out.
        target: One of `targets`.
    """
    reaches = _reaches(runs, target)
    ups = _speed_ups(runs, reaches)
    told = [reach for reach in reaches.values() if reach is not None and reach.by_all]
    fewest = min((reach.mean for reach in told), default=None)
    transfers = {row: _after_transfer(group) for row, group in in_rows(runs).items() if row in reaches}
    columns = [
        ("method", "", {row: Cell(row) for row in reaches}),
        ("reached", "whether a round of the run did", {row: Cell(_by_whom(of)) for row, of in reaches.items()}),
        (
            f"rounds to {as_text(target)}",
            "the first round after which the one global model had this accuracy on the pooled test set, counted from "
            "the very first one; mean over the seeds, of which those that did not reach it count as all their rounds "
            "and more",
            {row: _rounds(of, of is not None and of.by_all and of.mean == fewest) for row, of in reaches.items()},
        ),
    ]
    if any(transfers.values()):
        meaning = "those of them that came after the vote and the transfer; mean over the seeds"
        columns.append(("after transfer", meaning, {row: cell or Cell("–") for row, cell in transfers.items()}))
    if ups:
        columns.append(
            (
                "speed-up",
                "rounds of the same method without the transfer (fedavg of fedvote, NAME of fedvote+NAME) divided by "
                "these, means over the seeds; < and > where one of them did not reach it. Less than 1 is negative "
                "transfer",
                {row: _times(ups[row][1]) if row in ups else Cell("–") for row in reaches},
            )
        )
    headings, meanings, cells = zip(*columns, strict=True)
    return Table(headings, meanings, tuple(tuple(column[row] for column in cells) for row in reaches))


def _reaches(runs: Sequence[Run], target: float) -> dict[str, Reach | None]:
    """Of the rows that were asked for a target."""
    summaries = {row: [run.summary for run in group] for row, group in in_rows(runs).items()}
    return {row: reach(of_row) for row, of_row in summaries.items() if all(targets([s]) == [target] for s in of_row)}


def _speed_ups(runs: Sequence[Run], reaches: Mapping[str, Reach | None]) -> dict[str, tuple[str, SpeedUp | None]]:
    """Of each row with a transfer: the row without it, and the speed-up; of others, and where that is missing, none."""
    found = {}
    for row, own in reaches.items():
        without = _without_transfer(in_rows(runs), row)
        other = reaches.get(without) if without else None
        if without and own is not None and other is not None:
            found[row] = without, speed_up(own, other)
    return found


def _without_transfer(grouped: Mapping[str, Sequence[Run]], row: str) -> str | None:
    """The row of the same method without a transfer; of several that with the same settings, the methods' own aside."""
    run = grouped[row][0]
    rows = [other for other, group in grouped.items() if group[0].method == reference(run.method)]
    if len(rows) > 1:
        rows = [other for other in rows if _of_all(grouped[other][0]) == _of_all(run)]
    return rows[0] if len(rows) == 1 else None


def _of_all(run: Run) -> dict[str, Any]:
    """What of a run's config bears on its numbers and is no matter of its method or seed."""
    return {name: v for name, v in run.config.items() if name not in {*NO_BEARING, "methods", run.method}}


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
    """Rounds from the transfer to the target; None where a seed has had no transfer or did not reach it."""
    votes = [(run.summary.get("vote") or {}).get("round") for run in group]
    reached = [run.summary["rounds_to_target"]["round"] for run in group]
    if None in votes or None in reached:
        return None
    after = statistics.fmean(round - vote for round, vote in zip(reached, votes, strict=True))
    at = "/".join(str(vote) for vote in dict.fromkeys(votes))
    if after < 0:
        return Cell("–", f"before round {at}")
    return Cell(mean_text(after), f"after round {at}")


def _given(run: Run) -> str:
    """What a new client is given."""
    return "mean" if run.summary["metrics"]["global_acc"] is None else "global"


def in_rows(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each row, in the order in which they first appear: a method's seeds together.

    Runs of one method that differ in more than the seed are rows of their own, called by what they differ in; a run
    that is there twice counts once.
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
    """The method, and those of its fields, as far as they are set, in which its variant differs from another one."""
    own = _but_seed(run)
    differ = {name for other in variants for name in own.keys() | other.keys() if own.get(name) != other.get(name)}
    return " ".join([run.method, *(f"{name}={own[name]}" for name in sorted(differ) if own.get(name) is not None)])


def _but_seed(run: Run) -> dict[str, Any]:
    """What of a run's config bears on its numbers, the seed aside; a method's own fields beside the others."""
    own = run.config.get(run.method, {})
    return {name: value for name, value in (run.config | own).items() if name not in {*NO_BEARING, run.method}}


def setting(runs: Sequence[Run]) -> str:
    """What every number stands for: data, clients, partition, rounds, seeds and model."""
    first = runs[0].summary
    data = first["data"]
    how = {
        "iid": "IID",
        "shards": f"{data.get('shards')} shards a client",
        "dirichlet": f"Dirichlet α={data.get('alpha')}",
    }
    seeds = sorted({run.summary["seed"] for run in runs})
    spread = "; ± is the sample standard deviation over the seeds" if len(seeds) > 1 else ""
    several = len(in_rows(runs)) > 1
    marked = " Marked are the best of each column and all that cannot be told from it." if several else ""
    new = f"{data['new_clients']} new clients held back, " if data.get("new_clients") else ""
    return (
        f"{data['name']}: {data['train']:,} training and {data['test']:,} test samples over {data['clients']} clients "
        f"({how.get(data['partition'], data['partition'])}), {new}{data['probe']} withheld as the server's probe set; "
        f"{first['model']}, {first['rounds']} rounds, seed{'s' if len(seeds) > 1 else ''} "
        f"{', '.join(map(str, seeds))}. Accuracies are fractions of 1 after the last round{spread}.{marked}"
    )


def verdict(runs: Sequence[Run]) -> str:
    """Which method serves these clients best by own test accuracy, and how that compares with training alone.

    Where one reads no labels, it is the linear probe that counts, of all methods that have one: their accuracies on the
    clients' own test samples owe to labels that no client has.
    """
    labelled = all(_supervised(run) for run in runs)
    (column,) = (column for column in COLUMNS if column.heading == ("own test" if labelled else "linear probe"))
    found = {row: column.of(group) for row, group in in_rows(runs).items()}
    told = {row: measured for row, measured in found.items() if measured is not None}
    if len(told) < 2:
        return ""
    means = {row: measured.mean for row, measured in told.items()}
    measured = "on their own test samples" if labelled else "under a linear probe"
    first = alike(told)
    alone = max((row for row in ALONE if row in means), key=lambda row: means[row], default=None)
    against = f", against {means[alone]:.3f} when each trains alone" if alone and alone not in first else ""
    if len(first) > 1:
        return f"{_tie(told, first, measured)}{against}.{NO_GAIN if alone in first else ''}"
    order = sorted(means, key=lambda method: -means[method])
    federated = [row for row in order if row.split()[0] not in REFERENCES]
    best = order[0]
    if best.split()[0] not in ALONE or not federated:
        what = "serves these clients best" if labelled else "has the best representations"
        return f"{best} {what}: {means[best]:.3f} {measured}{against}."
    what = "These clients are served best" if labelled else "Representations are best"
    return (
        f"{what} by training alone ({means[best]:.3f} {measured}); "
        f"the best federated method is {federated[0]} ({means[federated[0]]:.3f})."
    )


def _tie(told: Mapping[str, Measured], rows: Sequence[str], measured: str) -> str:
    """That some rows are equal, or cannot be told apart."""
    best = told[rows[0]]
    *others, last = rows
    if all(told[row].mean == best.mean for row in rows):
        return f"{', '.join(others)} and {last} are a tie: {best.mean:.3f} {measured}"
    *others, last = (f"{row} ({told[row].mean:.3f})" for row in rows)
    several = min(len(told[row].by_seed) for row in rows) > 1
    by = "these seeds" if several else f"one seed and {best.samples:,.0f} test samples"
    return f"{', '.join(others)} and {last} cannot be told apart by {by} ({measured}, within two standard errors)"


def _supervised(run: Run) -> bool:
    return bool(run.summary.get("supervised", True))


def notes(runs: Sequence[Run]) -> list[str]:
    """What a reader of the numbers must know: what was refused or left out, and training that went nowhere."""
    said = [
        f"These runs differ in more than the method, in {what}: their numbers are no comparison."
        for what in SHARED
        if any(_unlike(run.summary, runs[0].summary, what) for run in runs)
    ]
    if len({*(seeds := _seeds(in_rows(runs))).values()}) > 1:
        over = "; ".join(f"{row}: {', '.join(map(str, own))}" for row, own in seeds.items())
        said.append(f"The rows are over different seeds ({over}): only the same seeds can be compared.")
    said += _of_classes(runs[0])
    if len({_supervised(run) for run in runs}) > 1:
        said.append(
            "The own test accuracy of methods that read no labels is that of a classifier on their representations, "
            "fitted to the labels of all clients at one place. Compare it with no other method's: --linear-probe true "
            "tests all methods that way."
        )
    for target in targets([run.summary for run in runs]):
        reaches = _reaches(runs, target)
        said += [
            f"{row}: negative transfer, {reaches[row]} rounds to {as_text(target)}, against {reaches[without]} of "
            f"{without} ({up})."
            for row, (without, up) in _speed_ups(runs, reaches).items()
            if up is not None and up.negative
        ]
    for run in runs:
        s, name = run.summary, f"{run.method}, seed {run.summary['seed']}"
        if planned := s.get("planned"):
            said.append(f"{name}: is not finished; these are {s['rounds']} of its {planned} rounds.")
        for count, what in (
            (s["refused"], f"uploads were refused; {_reasons(s.get('refusals', ()))}"),
            (s.get("untested", 0), f"tests of a model failed; {_reasons(s.get('untested_reasons', ()))}"),
            (s["skipped_samples"], f"times a sample was left out, {LEFT_OUT[_supervised(run)]}"),
            (s["zero_step_clients"], "times a client made no training step"),
        ):
            if count:
                said.append(f"{name}: {count} {what}.")
        tested = ~np.isnan(run.client_accuracies())
        if not tested.all():
            said.append(f"{name}: {tested.sum()} of {len(tested)} clients were tested; the means are over these.")
        if skipped := run.federation.get("skipped", 0):
            first = ", ".join(run.federation["skipped_names"])
            said.append(f"{name}: {skipped} images could not be decoded and were left out; the first: {first}.")
        if left := run.federation.get("left_out"):
            first = ", ".join(run.federation["left_out_names"])
            said.append(f"{name}: {left} files or folders beside the images were left out; the first: {first}.")
        if s.get("collapsed"):
            said.append(
                f"{name}: the networks of {_clients(run, s['collapsed'])} collapsed: they say nearly the same of every "
                "image. A smaller --lr, more samples a client or larger batches may help."
            )
        said += [f"{name}: {note}" for note in _of_vote(run)]
        said += [f"{name}: {note}" for note in (_of_participation(run), _of_loss(run)) if note]
    return said


def _of_classes(run: Run) -> list[str]:
    """Where to know a client is to know the answer."""
    held = [sum(count > 0 for count in of_client) for of_client in run.federation.get("train", ())]
    if len(run.federation["classes"]) == 1:
        return ["The data have one class: every answer is right, and accuracies say nothing."]
    if held and max(held) == 1:
        return ["Every client has samples of one class: a model of its own that always names it is always right."]
    return []


def _of_participation(run: Run) -> str:
    """How many clients no round reached, and the accuracy without them."""
    s, never = run.summary, run.summary.get("never_trained", 0)
    if not never:
        return ""
    metrics, told = s["metrics"], f"{never} of {s['data']['clients']} clients took part in no round"
    if metrics["personal_acc_weighted"] is None or metrics.get("personal_acc_weighted_of_trained") is None:
        return f"{told}."
    return (
        f"{told}: own test accuracy is {metrics['personal_acc_weighted']:.3f} with them and "
        f"{metrics['personal_acc_weighted_of_trained']:.3f} without them; mean over clients "
        f"{metrics['personal_acc_mean']:.3f} and {metrics['personal_acc_mean_of_trained']:.3f}."
    )


def _of_loss(run: Run) -> str:
    """Whether the training went nowhere: by the cross-entropy alone, and only if no accuracy says otherwise."""
    loss, classes = run.summary.get("train_cross_entropy"), len(run.federation["classes"])
    if not _supervised(run) or loss is None or classes < 2 or _above_chance(run):
        return ""
    guessing = math.log(classes)
    told = f"the cross-entropy of the last round's training, {loss:.2f}, is {{}} of guessing ({guessing:.2f}): it {{}}"
    if not loss <= DIVERGED * guessing:
        return f"{told.format('far above that', 'diverged')}. A smaller --lr may help."
    if loss > 0.95 * guessing:
        where = "that" if loss < 1.05 * guessing else "above that"
        return f"{told.format(where, 'did not learn')}. More rounds or a smaller --lr may help."
    return ""


def _above_chance(run: Run) -> bool:
    """Whether an accuracy is more than that of naming the commonest class, by more than two standard errors."""
    metrics, tested = run.summary["metrics"], run.summary["data"]["test"]
    of_classes = np.array(run.federation.get("train", np.ones((1, len(run.federation["classes"]))))).sum(axis=0)
    chance = float(of_classes.max() / of_classes.sum())
    told = [metrics[name] for name in ("personal_acc_weighted", "global_acc") if metrics[name] is not None]
    return max(told, default=0.0) > chance + ERRORS * math.sqrt(chance * (1 - chance) / max(tested, 1))


def _of_vote(run: Run) -> list[str]:
    """Whether a part of the source stayed behind, who found nothing to vote for, and what its measure may mistake."""
    if (vote := run.summary.get("vote")) is None:
        return []
    copied, layers = vote["layers"]
    line, said = run.vote_line, []
    if copied < layers:
        said.append(
            f"{copied} of the {layers} layers of {vote['transferred']} were transferred; the others do not fit the "
            "model, whose own stayed."
        )
    silent = [id for id in line["clients"] if str(id) not in line["ballots"] | line["refused"]]
    if silent and vote["voted"]:
        said.append(
            f"{_clients(run, silent)} cast no ballot in round {vote['round']}: no source could be compared with what "
            "they had trained."
        )
    return [*said, vote["bias"]] if "bias" in vote else said


def _clients(run: Run, ids: Sequence[int]) -> str:
    """Clients by name, where the data know their names."""
    return f"client{'s' if len(ids) > 1 else ''} {', '.join(map(run.client_name, ids))}"


def _unlike(one: Summary, other: Summary, what: str) -> bool:
    """Whether two runs differ in something; with another seed, other clients are held back, of other sizes."""
    same_clients = what != "data" or one["seed"] == other["seed"]
    kept = [
        run[what] if same_clients else {n: v for n, v in run[what].items() if n not in SIZES} for run in (one, other)
    ]
    return bool(kept[0] != kept[1])


def _reasons(told: Sequence[Mapping[str, Any]]) -> str:
    """The reasons that were met most often, and where first; metrics.jsonl has them all."""
    often = sorted(told, key=lambda one: -one["times"])[:3]
    said = [
        f"{one['times']}× {one['reason']} (first: round {one['first']['round']}, client {one['first']['client']})"
        for one in often
    ]
    more = [f"and {len(told) - 3} other reasons, in metrics.jsonl"] if len(told) > 3 else []
    return "; ".join(said + more)
