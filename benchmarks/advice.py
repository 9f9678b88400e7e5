"""How often the advice is right: ``kinfed advise`` against a comparison of all methods, on planted federations.

``python benchmarks/advice.py [--federations N] [--seed S] [--budget SECONDS] [--seeds R] [--work DIR] [--out DIR]``

The federations are of several kinds, in turns, each drawn with a seed of its own. For each one:

1. ``kinfed advise`` says which method to use, within the budget.
2. All methods that can run are tuned without a budget with another seed, and compared on R fresh seeds.
3. The advised method, with the advised settings, runs on these seeds.

The advice is right if it is the best row, or if the 95 % interval of its difference to the best row has zero in it.
Rows with pooled data are left out. A JSON file for each federation goes to the folder of ``--out``; finished ones are
not repeated, and a stopped one continues. The last lines are the table.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import kinfed
from kinfed.advice import able
from kinfed.advice.conclusion import within_chance
from kinfed.files import write_whole
from kinfed.report.differences import compared
from kinfed.report.folders import read_runs
from kinfed.report.rows import ceilings, learns_alone
from kinfed.report.statistics import compare

APART = 500  # between the seeds of the advice and those of the comparison of all methods

COMMON: dict[str, Any] = {
    "data": "digits", "model": "mlp", "rounds": 12, "evaluate_every": 4, "validation": 0.2, "ft_epochs": 0,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "rotated": {"partition": "iid", "clients": 12, "shift": "rotate:4"},
    "labels permuted": {"partition": "iid", "clients": 12, "shift": "permute_labels:4"},
    "tinted": {"partition": "iid", "clients": 12, "shift": "colour:4", "channels": 3, "train_images": 900},
    "alike": {"partition": "iid", "clients": 10},
    "two classes": {"partition": "shards", "clients": 10, "shards": 2},
    "scarce": {"partition": "iid", "clients": 10, "train_images": 400},
    "unlabelled": {
        "partition": "shards", "clients": 8, "shards": 5, "train_images": 500, "model": "tiny_cnn", "rounds": 6,
        "knn_every": 3, "linear_probe_images": 300,
    },
}  # fmt: skip


def fields_of(kind: str, seed: int, rounds: int | None) -> dict[str, Any]:
    """Return the fields of the experiment of one federation."""
    fields = {**COMMON, **KINDS[kind], "seed": seed}
    if kind == "unlabelled":
        del fields["evaluate_every"]  # knn_every is that of methods without labels
    return fields if rounds is None else {**fields, "rounds": rounds}


def measured(kind: str, seed: int, work: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Advise on one federation, compare all methods, and return the result as JSON values."""
    began, labelled = time.perf_counter(), kind != "unlabelled"
    fields, seeds = fields_of(kind, seed, asked.rounds), {"seeds": asked.seeds, "quiet": True}
    advice = kinfed.advise(unlabelled=not labelled, budget=asked.budget, out=work / "advice", **seeds, **fields)
    advised = time.perf_counter() - began
    other = {**fields, "seed": seed + APART}
    methods = able(other, labelled=labelled)
    kinfed.tune(methods, out=work / "all", budget=asked.full_budget, **seeds, **other)
    again(advice.use, work / "advised", {**other, "seed": seed + APART + 1}, asked.seeds)
    return {
        "kind": kind,
        "seed": seed,
        "use": advice.use,
        **judged(work),
        "raced": [of.label for of in advice.candidates if of.raced],
        "paragraph": advice.paragraph,
        "seconds": {"advice": round(advised, 1), "all": round(time.perf_counter() - began - advised, 1)},
    }


def again(use: str, out: Path, fields: dict[str, Any], seeds: int) -> None:
    """Run a method on the seeds of the comparison of all methods, or go on with it."""
    if (out / "comparison.toml").is_file():
        kinfed.resume(out, quiet=True)
    else:
        kinfed.compare([use], out=out, seeds=seeds, quiet=True, **fields)


def judged(work: Path) -> dict[str, Any]:
    """Compare the advised method with the best of all methods."""
    runs = read_runs([work / "all"])
    of_all = {row: of for row, of in compared(runs).items() if row not in ceilings(runs)}
    advised = compared(read_runs([work / "advised"]))
    (row,) = [row for row in advised if not learns_alone(row)] or [*advised]
    best = max(of_all, key=lambda of: of_all[of].mean)
    told = compare(advised[row], of_all[best])
    assert told is not None
    return {
        "accuracy": round(advised[row].mean, 4),
        "best": best,
        "best_accuracy": round(of_all[best].mean, 4),
        "difference": round(told.difference, 4),
        "interval": [round(told.low, 4), round(told.high, 4)],
        "right": told.high >= 0,
        "as_good": within_chance(of_all),
        "all": {of: round(measured.mean, 4) for of, measured in of_all.items()},
    }


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table, and the number of right advices.

    The column "as good" counts the rows that would have been right.
    """
    of_all = ("best of all", "accuracy", "difference (95 % interval)", "right", "as good", "s")
    heads = ("federation", "seed", "advice", "accuracy", *of_all)
    rows = []
    for of in results:
        low, high = of["interval"]
        rows.append(
            (
                of["kind"],
                of["seed"],
                f"`{of['use']}`",
                f"{of['accuracy']:.3f}",
                f"`{of['best']}`",
                f"{of['best_accuracy']:.3f}",
                f"{of['difference']:+.3f} ({low:+.3f} to {high:+.3f})",
                "yes" if of["right"] else "no",
                f"{len(of['as_good'])} of {len(of['all'])}" if "as_good" in of else "–",
                f"{of['seconds']['advice']:.0f}",
            )
        )
    lines = [f"| {' | '.join(map(str, row))} |" for row in (heads, ["---"] * len(heads), *rows)]
    right = sum(of["right"] for of in results)
    return "\n".join([*lines, "", f"{right} of {len(results)} are right."])


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1000, help="of the first federation")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds of an advice")
    parser.add_argument("--full-budget", type=float, help="seconds of the comparison of all methods [no limit]")
    parser.add_argument("--seeds", type=int, default=5, help="fresh seeds of a comparison")
    parser.add_argument("--rounds", type=int, help="rounds of a run [by the kind]")
    parser.add_argument("--kind", choices=[*KINDS], action="append", help="kind of federation; repeatable [all]")
    parser.add_argument("--work", type=Path, default=Path("runs/advice"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("docs/results/data"), help="folder of the summaries")
    asked = parser.parse_args()
    kinds, results = asked.kind or [*KINDS], []
    asked.out.mkdir(parents=True, exist_ok=True)
    for number in range(asked.federations):
        kind, seed = kinds[number % len(kinds)], asked.seed + number
        name = f"advice-{kind.replace(' ', '-')}-{seed}"
        file, work = asked.out / f"{name}.json", asked.work / name
        if not file.is_file():
            try:
                result = measured(kind, seed, work, asked)
            except kinfed.RunFailed as error:
                print(f"{name}: {error}", flush=True)
                continue
            write_whole(file, json.dumps(result, indent=1) + "\n")
            shutil.rmtree(work)
        results.append(json.loads(file.read_text()))
        last = results[-1]
        print(f"{name}: {last['use']}, best {last['best']}, {'right' if last['right'] else 'wrong'}", flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
