"""Is it the similarity? FedSHIBU's forms beside their controls, and the curve of the client's own weight without any.

``python benchmarks/fedshibu_weights.py [--only STUDY]... [--seed S] [--seeds R] [--out DIR]``

A mixture of bodies gives each client some weight to its own body, whatever the similarity. The curve shows what that
alone is worth: the client has the weight a, and the rest is spread equally over the others (``norm=own``). A form of
FedSHIBU whose accuracy lies above this curve at its own weight gains by similarity. Each form is also run with its
*erased* control (its own weights, which change by client and round, and the rest spread equally) and its *permuted*
one (the others' weights change places).

All forms and baselines are tuned over the learning rate on validation samples, and compared on R fresh seeds; controls
run with the settings of their form. "Overlap" is the rank correlation of the similarity with the clients' common
classes after the last round. The results of a study go to a JSON file in the folder of ``--out``. What is
finished is not repeated, and what was stopped continues. The last lines are the tables.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import kinfed
from kin import CIFAR, MNIST, difference_of, own_weight, settings_of
from kinfed.files import write_whole
from kinfed.report.differences import compared
from kinfed.report.folders import Run, read_runs
from kinfed.report.rows import in_rows

OWN_WEIGHTS = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
FORMS = {
    "printed": "fedshibu:rep_source=local_random,layers=last,norm=sum",
    "printed, RBF": "fedshibu:rep_source=local_random,layers=last,norm=sum,kernel=rbf",
    "public images, sum": "fedshibu:layers=last,norm=sum",
    "public images, min-max": "fedshibu:layers=last,norm=minmax",
    "mean prediction, power": "fedshibu:layers=last,compared=mean_prediction,norm=power",
    "each stage, distance": "fedshibu:layers=each,norm=distance",
    "change, softmax": "fedshibu:layers=last,compared=change,debiased=true,norm=softmax",
    "FedAvg + CRSM, printed": "fedavg_crsm:rep_source=local_random,layers=last,norm=sum",
    "FedAvg + CRSM, each stage": "fedavg_crsm:layers=each,norm=distance",
}
SOFTMAX = {"public images, softmax": "fedshibu:layers=last,norm=softmax"}
CONTROLS = ("erased", "permuted")
BASELINES = ["local", "fedavg", "fedbabu", "fedper"]
CURVE = {f"own weight {a:g}": f"fedshibu:layers=last,norm=own,own={a}" for a in OWN_WEIGHTS}
# Rows that are tuned together, and those of them that have controls; a later part leaves the runs of the others alone.
PARTS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "forms": (CURVE | FORMS | {name: name for name in BASELINES}, FORMS),
    "softmax": (SOFTMAX, SOFTMAX),
}

COMMON: dict[str, Any] = {
    "clients": 20, "rounds": 30, "lr_schedule": "cosine", "validation": 0.2, "ft_epochs": 0, "evaluate_every": 30,
    "checkpoint_every": 10, "public": 64,
}  # fmt: skip
DIGITS: dict[str, Any] = {"data": "digits", "model": "tiny_cnn", "local_epochs": 2, "batch_size": 20}
PARTITIONS: dict[str, dict[str, Any]] = {
    "2 shards": {"partition": "shards", "shards": 2},
    "5 shards": {"partition": "shards", "shards": 5},
    "iid": {"partition": "iid"},
}
STUDIES: dict[str, dict[str, Any]] = {
    f"{called} {name}": {**COMMON, **data, **partition}
    for called, data in (("digits", DIGITS), ("cifar10", CIFAR))
    for name, partition in PARTITIONS.items()
}
# Clients and samples for the printed form: how much weight is its own, and what does it bring?
SIZES = [(20, 100), (50, 100), (100, 100), (20, 25), (20, 50), (20, 200)]


def of_similarity(group: list[Run]) -> dict[str, Any]:
    """Return the own weights after the last round, and what the similarity knows of common classes, by seed.

    The latter is the rank correlation of similarity and class overlap over the pairs of clients, after the first and
    the last round; it is not known of forms without similarity.
    """
    known = [run.series("crsm_overlap_correlation")[1] for run in group]
    told: dict[str, Any] = {"own_weight": [round(own_weight(run), 4) for run in group]}
    if all(known):
        told["overlap_correlation"] = [[round(of[0], 3), round(of[-1], 3)] for of in known]
    return told


def measured(study: str, work: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Tune and compare the rows of a study, run their controls, and return the results as JSON values."""
    fields = {**STUDIES[study], "seed": asked.seed}
    if fields["data"] != "digits":
        fields["data"] = str(asked.data / fields["data"])
    of: dict[str, tuple[Any, list[Run]]] = {}

    def read(folder: Path, names: dict[str, str]) -> None:
        runs = read_runs([folder])
        found, rows = compared(runs), in_rows(runs)
        of.update({name: (found[row], rows[row]) for name, row in names.items()})

    for part, (names, forms) in PARTS.items():
        kinfed.tune(
            [*names.values()], over=["lr=0.03,0.1,0.3"], out=work / part, seeds=asked.seeds, quiet=True, **fields
        )
        read(work / part, names)
        controls = {
            f"{form}, {control}": f"{own},control={control},lr={settings_of(of[form][1][0])['lr']}"
            for form, own in forms.items()
            for control in CONTROLS
        }
        out = work / f"{part}-controls"
        if (out / "comparison.toml").is_file():
            kinfed.resume(out, quiet=True)
        else:
            later = {**fields, "seed": of["local"][1][0].summary["seed"]}
            kinfed.compare([*controls.values()], out=out, seeds=asked.seeds, quiet=True, **later)
        read(out, controls)
    return {
        "study": study,
        "seeds": [*of["local"][0].seeds],
        "rows": {
            name: {
                "accuracy": round(row.mean, 4),
                "by_seed": {str(seed): round(value, 4) for seed, value in row.by_seed.items()},
                "lr": settings_of(group[0])["lr"],
                **(of_similarity(group) if "weights" in group[0].pictures else {}),
                "less": {
                    other: difference_of(row, of[other][0])
                    for other in (f"{name}, erased", f"{name}, permuted", *BASELINES)
                    if other in of and other != name
                },
            }
            for name, (row, group) in of.items()
        },
    }


def sizes(work: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Compare the printed form with its erased control by the numbers of clients and of samples."""
    told = {}
    for clients, samples in SIZES:
        form = f"{FORMS['printed']},samples={samples}"
        fields = {
            **COMMON, **MNIST, "data": str(asked.data / "mnist"), "clients": clients, "local_epochs": 2,
            "batch_size": 20, "partition": "shards", "shards": 2, "train_images": 50 * clients + 64, "lr": 0.1,
            "seed": asked.seed + 1,
        }  # fmt: skip
        del fields["validation"]
        out = work / f"{clients} clients, {samples} samples"
        if (out / "comparison.toml").is_file():
            kinfed.resume(out, quiet=True)
        else:
            kinfed.compare([form, f"{form},control=erased"], out=out, seeds=asked.seeds, quiet=True, **fields)
        runs = read_runs([out])
        found, rows = compared(runs), in_rows(runs)
        printed, erased = (
            next(row for row in found if ("erased" in row) == gone and row != "local") for gone in (0, 1)
        )
        told[f"{clients} clients, {samples} samples"] = {
            "printed": round(found[printed].mean, 4),
            "erased": round(found[erased].mean, 4),
            "local": round(found["local"].mean, 4),
            "less": difference_of(found[printed], found[erased]),
            "own_weight": [round(own_weight(run), 4) for run in rows[printed]],
        }
    return {"study": "sizes", "rows": told}


def table(result: dict[str, Any]) -> str:
    """Return a study as a Markdown table: every form beside its controls."""
    lines = [f"**{result['study']}**, seeds {', '.join(map(str, result['seeds']))}", ""]
    lines += [
        "| form | own weight | accuracy | erased | permuted | less erased (95 % interval) | overlap |",
        "| --- " * 7 + "|",
    ]
    rows = result["rows"]
    for name, row in rows.items():
        if name.endswith(CONTROLS):
            continue
        own = row.get("own_weight")
        controls = [rows.get(f"{name}, {control}") for control in CONTROLS]
        cells = ["–" if of is None else f"{of['accuracy']:.3f}" for of in controls]
        less = row["less"].get(f"{name}, erased")
        told = "–" if less is None else "{:+.3f} ({:+.3f} to {:+.3f})".format(*less)
        weight = "–" if own is None else f"{sum(own) / len(own):.2f}"
        overlap = [of[-1] for of in row.get("overlap_correlation", [])]
        known = f"{sum(overlap) / len(overlap):.2f}" if overlap else "–"
        lines.append(f"| {name} | {weight} | {row['accuracy']:.3f} | {' | '.join(cells)} | {told} | {known} |")
    return "\n".join(lines)


def table_of_sizes(result: dict[str, Any]) -> str:
    """Return the study of clients and samples as a Markdown table."""
    lines = ["| | own weight | printed | erased | local | less erased |", "| --- " * 6 + "|"]
    for name, row in result["rows"].items():
        own = sum(row["own_weight"]) / len(row["own_weight"])
        less = "{:+.3f} ({:+.3f} to {:+.3f})".format(*row["less"])
        lines.append(
            f"| {name} | {own:.2f} | {row['printed']:.3f} | {row['erased']:.3f} | {row['local']:.3f} | {less} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*STUDIES, "sizes"], action="append", help="study; repeatable [all]")
    parser.add_argument("--seed", type=int, default=300, help="seed of the tuning; the fresh seeds follow it")
    parser.add_argument("--seeds", type=int, default=3, help="fresh seeds of a comparison")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with mnist and cifar10")
    parser.add_argument("--work", type=Path, default=Path("runs/fedshibu-weights"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("docs/results/data"), help="folder of the summaries")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for study in asked.only or [*STUDIES, "sizes"]:
        called = f"fedshibu-weights-{study.replace(' ', '-')}"
        work = asked.work / called
        result = sizes(work, asked) if study == "sizes" else measured(study, work, asked)
        write_whole(asked.out / f"{called}.json", json.dumps(result, indent=1) + "\n")
        print(table_of_sizes(result) if study == "sizes" else table(result), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
