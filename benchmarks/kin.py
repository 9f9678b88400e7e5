"""Where kin matter: fedkin beside its baselines, its ceiling and the controls of the similarity methods.

``python benchmarks/kin.py [--only FEDERATION]... [--part PART]... [--controls] [--seed S] [--seeds R] [--out DIR]``

In each federation, all methods are tuned alike on validation samples, and compared on R fresh seeds, each of which
draws the clients anew (`kinfed.tune`). The controls run with the settings of the method that they belong to:

* **erased**: FedSHIBU's own weights are kept, and the rest of a row is spread equally over the other clients.
* **permuted**: the others' weights in a row, or the clients of the groups that fedkin finds, change places by chance.

The methods are tuned in parts, so that fedkin can be measured again without the others: if their runs are gone, they
are run again on the same seeds with the settings that the JSON file tells. The results of all parts that are there go
to a JSON file for each federation in the folder of ``--out``. What is finished is not repeated, and what was stopped
continues. The last lines are the tables. MNIST and CIFAR-10 are read from the folder of ``--data``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kinfed
from kinfed.files import write_whole
from kinfed.methods import ClientId, Message, Method, Server, ServerState
from kinfed.methods.fedkin import FedKin
from kinfed.methods.fedshibu import FedSHIBU
from kinfed.methods.grouped import GROUP
from kinfed.report.differences import compared
from kinfed.report.folders import Run, read_runs
from kinfed.report.rows import in_rows
from kinfed.report.statistics import compare
from kinfed.streams import torch_stream

CEILING, HEAD_CEILING = "oracle_groups", "oracle_groups+fedper"
SOFTMAX = "fedshibu:layers=last,norm=softmax"
PARTS = {
    "others": ["local", "fedavg", "fedper", "cfl:after=5", CEILING],
    "more": ["fedshibu", "ifca", HEAD_CEILING],
    "fedkin": ["fedkin", "fedkin+fedper"],
    "softmax": [SOFTMAX],
}

COMMON: dict[str, Any] = {
    "clients": 20, "partition": "iid", "rounds": 25, "local_epochs": 2, "batch_size": 20, "lr_schedule": "cosine",
    "public": 64, "validation": 0.2, "ft_epochs": 0, "evaluate_every": 25,
}  # fmt: skip
MNIST: dict[str, Any] = {"data": "mnist", "image_size": 14, "model": "tiny_cnn", "train_images": 20 * 50 + 64}
CIFAR: dict[str, Any] = {
    "data": "cifar10",
    "image_size": 16,
    "model": "tiny_cnn",
    "train_images": 20 * 250 + 64,
    "local_epochs": 1,
}
DIGITS = {"data": "digits", "model": "tiny_cnn"}
FEDERATIONS: dict[str, dict[str, Any]] = {
    **{f"mnist {name}": {**MNIST, "shift": f"{name}:4"} for name in ("rotate", "permute_labels", "invert")},
    "mnist alike": MNIST,
    **{f"cifar10 {name}": {**CIFAR, "shift": f"{name}:4"} for name in ("rotate", "permute_labels", "colour")},
    "cifar10 alike": CIFAR,
    **{
        f"{name} {shards} shards": {**data, "partition": "shards", "shards": shards}
        for name, data in (("digits", DIGITS), ("mnist", MNIST), ("cifar10", CIFAR))
        for shards in (2, 5)
    },
}


@dataclass(frozen=True, kw_only=True)
class PermutedKin(FedKin):
    """FedKin that puts other clients into the groups that it finds: their number and sizes are right, and no more."""

    def regrouped(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> Tensor:
        """Let the clients change places when they are divided."""
        groups = super().regrouped(server, state, uploads)
        if torch.equal(groups, state.tensors[GROUP]):
            return groups
        return groups[torch.randperm(len(groups), generator=torch_stream(server.seed, "permuted control"))]


OF_SIMILARITY: dict[str, Callable[[dict[str, Any]], Method]] = {
    "erased": lambda fields: FedSHIBU(**fields | {"control": "erased"}),
    "permuted": lambda fields: FedSHIBU(**fields | {"control": "permuted"}),
}
CONTROLS: dict[str, dict[str, Callable[[dict[str, Any]], Method]]] = {
    "fedshibu": OF_SIMILARITY,
    SOFTMAX: OF_SIMILARITY,
    "fedkin": {"permuted": lambda fields: PermutedKin(**fields)},
}


def measured(name: str, work: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Tune and compare the methods of a federation, run the controls, and return all that is there as JSON values."""
    fields = {**COMMON, **FEDERATIONS[name], "seed": asked.seed}
    if fields["data"] != "digits":
        fields["data"] = str(asked.data / fields["data"])
    parts = asked.part or [*PARTS]
    earlier = asked.out / f"{work.name}.json"
    if "others" not in parts and earlier.is_file():
        run_again(json.loads(earlier.read_text())["rows"], work / "others", asked.seeds, fields)
    for part in parts:
        methods = [of for of in PARTS[part] if "shift" in fields or of not in (CEILING, HEAD_CEILING)]
        if part != "others":  # training alone is there, and need not be tuned again
            (alone, *_) = in_rows(read_runs([work / "others"]))["local"]
            methods = [*methods, f"local:lr={settings_of(alone)['lr']}"]
        kinfed.tune(methods, out=work / part, seeds=asked.seeds, quiet=True, **fields)
    runs = read_runs([work / part for part in PARTS if (work / part).is_dir()])
    rows = {row: of for row, of in in_rows(runs).items() if not row.startswith("local:")}
    told = {row: of for row, of in compared(runs).items() if row in rows}
    for base, controls in CONTROLS.items() if asked.controls else ():
        if base not in rows:
            continue
        own = settings_of(rows[base][0])
        later = {**fields, "lr": own.pop("lr"), "seed": rows[base][0].summary["seed"]}
        for control, made in controls.items():
            out = work / f"{base}-{control}"
            if (out / "comparison.toml").is_file():
                kinfed.resume(out, methods=[made(own)], quiet=True)
            else:
                kinfed.compare([made(own)], out=out, seeds=asked.seeds, quiet=True, **later)
            (row,) = [row for row in compared(read_runs([out])) if row != "local"]
            told[f"{base}, {control}"] = compared(read_runs([out]))[row]
            rows[f"{base}, {control}"] = in_rows(read_runs([out]))[row]
    against = [row for row in (CEILING, HEAD_CEILING, "fedavg", "fedper", "local") if row in told]
    return {
        "federation": name,
        "seeds": [*told["local"].seeds],
        "rows": {
            row: {
                "accuracy": round(of.mean, 4),
                "by_seed": {str(seed): round(value, 4) for seed, value in of.by_seed.items()},
                "settings": settings_of(rows[row][0]),
                "against": {other: difference_of(of, told[other]) for other in against if other != row},
                **agreement(rows[row]),
            }
            for row, of in told.items()
        },
    }


def run_again(told: dict[str, Any], out: Path, seeds: int, fields: dict[str, Any]) -> None:
    """Compare the other methods with the settings that a summary tells, on the seeds that follow that of the tuning."""
    if (out / "comparison.toml").is_file():
        kinfed.resume(out, quiet=True)
        return
    methods = [method for method in PARTS["others"] if method in told]
    lines = [f"methods = {json.dumps(methods)}"]
    for method in methods:
        settings = {name: json.dumps(value) for name, value in told[method]["settings"].items()}
        lines += [f'["{method}"]', *(f"{name} = {value}" for name, value in settings.items())]
    file = out.with_name("settings.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, "\n".join(lines) + "\n")
    kinfed.compare(config=file, out=out, seeds=seeds, quiet=True, **{**fields, "seed": fields["seed"] + 1})


def settings_of(run: Run) -> dict[str, Any]:
    """Return the learning rate of a run, and the fields of its method."""
    return {"lr": run.config["lr"], **run.config.get(run.method, {})}


def difference_of(one: Any, other: Any) -> list[float] | None:
    """Return the difference of two rows with its 95 % interval; None without a common seed."""
    found = compare(one, other)
    return None if found is None else [round(found.difference, 4), round(found.low, 4), round(found.high, 4)]


def own_weight(run: Run) -> float:
    """Return the mean weight of the clients' own bodies in their mixtures in the last round."""
    return float(run.pictures["weights"].matrix.diagonal().nanmean())


def agreement(group: list[Run]) -> dict[str, Any]:
    """Return the numbers of groups of the seeds, their agreement with the planted ones, and FedSHIBU's own weights."""
    last = [run.lines[-1] for run in group]
    told = {
        "groups": [len({*line["groups"]}) for line in last if "groups" in line],
        "adjusted_rand_index": [line["adjusted_rand_index"] for line in last if "adjusted_rand_index" in line],
        "pair_auc": [line["pair_auc"] for line in last if line.get("pair_auc") is not None],
        "own_weight": [own_weight(run) for run in group if "weights" in run.pictures],
    }
    return {name: [round(value, 3) for value in values] for name, values in told.items() if values}


def table(results: list[dict[str, Any]]) -> str:
    """Return the accuracies as a Markdown table, one row for each federation."""
    rows = [*dict.fromkeys(row for result in results for row in result["rows"])]
    lines = [f"| federation | {' | '.join(rows)} |", f"|{' --- |' * (len(rows) + 1)}"]
    for result in results:
        cells = [f"{result['rows'][row]['accuracy']:.3f}" if row in result["rows"] else "–" for row in rows]
        lines.append(f"| {result['federation']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(results: list[dict[str, Any]]) -> str:
    """Return the differences of fedkin to its ceiling, FedAvg and FedPer, with 95 % intervals, as a Markdown table."""
    told = [("fedkin", CEILING), ("fedkin", "fedavg"), ("fedkin+fedper", "fedper")]
    heads = [f"{row} less {other}" for row, other in told]
    lines = [f"| federation | {' | '.join(heads)} | groups found; adjusted Rand index |", "| --- " * 5 + "|"]
    for result in results:
        rows, cells = result["rows"], []
        for row, other in told:
            found = rows.get(row, {}).get("against", {}).get(other)
            cells.append("–" if found is None else "{:+.3f} ({:+.3f} to {:+.3f})".format(*found))
        groups = ", ".join(map(str, rows.get("fedkin", {}).get("groups", [])))
        index = ", ".join(f"{value:.2f}" for value in rows.get("fedkin", {}).get("adjusted_rand_index", []))
        lines.append(f"| {result['federation']} | {' | '.join(cells)} | {groups}{'; ' if index else ''}{index} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*FEDERATIONS], action="append", help="federation; repeatable [all]")
    parser.add_argument("--part", choices=[*PARTS], action="append", help="methods to tune; repeatable [all]")
    parser.add_argument("--controls", action="store_true", help="run the controls of what is measured as well")
    parser.add_argument("--seed", type=int, default=100, help="seed of the tuning; the fresh seeds follow it")
    parser.add_argument("--seeds", type=int, default=3, help="fresh seeds of a comparison")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with mnist and cifar10")
    parser.add_argument("--work", type=Path, default=Path("runs/kin"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("docs/results/data"), help="folder of the summaries")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    results = []
    for name in asked.only or FEDERATIONS:
        called = f"kin-{name.replace(' ', '-')}-{asked.seed}"
        results.append(measured(name, asked.work / called, asked))
        write_whole(asked.out / f"{called}.json", json.dumps(results[-1], indent=1) + "\n")
        print(f"{name}: measured", flush=True)
    print(f"{table(results)}\n\n{differences(results)}")


if __name__ == "__main__":
    main()
