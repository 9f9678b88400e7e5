"""Where fedkin breaks: many, unequal and overlapping groups, few clients a round, other models, clients that lie.

``python benchmarks/kin_limits.py [--only CASE]... [--seed S] [--seeds R] [--out FILE]``

Every case changes one thing of a federation of 20 clients in four groups (MNIST at 14×14, 40 images a client, labels
permuted or images rotated), and compares fedkin with FedAvg, with training alone, and with its ceiling, FedAvg within
the true groups. Nothing is tuned. The results go to a JSON file; what is in it is not measured again. The last lines
are the table.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import kinfed
from kin import COMMON, MNIST, agreement
from kinfed.data import Dataset, from_arrays, load
from kinfed.files import write_whole
from kinfed.methods import Client, ClientState, Message, Method
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedkin import FedKin
from kinfed.methods.oracle_groups import OracleGroups
from kinfed.report.differences import compared
from kinfed.report.folders import read_runs
from kinfed.report.rows import in_rows

FIELDS: dict[str, Any] = {**COMMON, **MNIST, "train_images": 20 * 40 + 64, "lr": 0.1}
del FIELDS["validation"]
CIFAR: dict[str, Any] = {
    "data": "cifar10",
    "image_size": 16,
    "train_images": 20 * 200 + 64,
    "local_epochs": 1,
    "lr": 0.05,
}
LABELS, ROTATE = {"shift": "permute_labels:4"}, {"shift": "rotate:4"}
CASES: dict[str, dict[str, Any]] = {
    "four groups, labels": LABELS,
    "two groups, labels": {"shift": "permute_labels:2"},
    "two groups, rotated": {"shift": "rotate:2"},
    "8 groups, 40 clients": {"shift": "permute_labels:8", "clients": 40, "train_images": 40 * 40 + 64},
    "16 groups, 64 clients": {"shift": "permute_labels:16", "clients": 64, "train_images": 64 * 40 + 64},
    "groups of 2, 4, 6, 8": {"shift": "permute_labels:4:1,2,3,4"},
    "one stranger": {"shift": "permute_labels:2:19,1"},
    "three strangers": {"shift": "permute_labels:4:17,1,1,1"},
    "groups that overlap": {"overlap": True},
    "half of the clients a round": {**LABELS, "participation": 0.5, "rounds": 50},
    "100 clients, a tenth a round": {
        **LABELS, "clients": 100, "train_images": 100 * 40 + 64, "participation": 0.1, "rounds": 100,
        "evaluate_every": 100,
    },
    "15 images a client": {**LABELS, "train_images": 20 * 15 + 64, "batch_size": 5},
    "200 images a client": {**ROTATE, "train_images": 20 * 200 + 64},
    "100 rounds": {**ROTATE, "rounds": 100, "evaluate_every": 100},
    "100 rounds, nothing differs": {"rounds": 100, "evaluate_every": 100},
    "Dirichlet 0.5": {"partition": "dirichlet", "alpha": 0.5},
    "Dirichlet 0.5, rotated": {**ROTATE, "partition": "dirichlet", "alpha": 0.5},
    "two shards": {"partition": "shards", "shards": 2},
    "five shards": {"partition": "shards", "shards": 5},
    "five shards, labels": {**LABELS, "partition": "shards", "shards": 5},
    "CIFAR-10, cnn4 (BatchNorm)": {**CIFAR, **ROTATE, "model": "cnn4"},
    "CIFAR-10, ResNet-18": {**CIFAR, **LABELS, "model": "resnet18", "train_images": 20 * 100 + 64, "rounds": 12},
    "a client copies another": {**LABELS, "lie": "copied"},
    "a client sends ten times its update": {**LABELS, "lie": "scaled"},
    "a client sends its update reversed": {**LABELS, "lie": "reversed"},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Liars(FedAvg):
    """FedAvg whose client 0 does not send what it has learned.

    Attributes:
        lie: It sends the received weights, as a client does that only copies; ten times its update; or the reverse.
    """

    lie: Literal["copied", "scaled", "reversed"] = "copied"

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train like all; client 0 then sends something else."""
        upload, state = super().update(client, message, state)
        if client.id != 0:
            return upload, state
        factor = {"copied": 0.0, "scaled": 10.0, "reversed": -1.0}[self.lie]
        sent = {
            name: message.tensors[name] + factor * (of - message.tensors[name]) for name, of in upload.tensors.items()
        }
        return replace(upload, tensors=sent), state


def overlapping(data: Path, seed: int, images: int = 40, tests: int = 200) -> Dataset:
    """Return MNIST of 20 clients: 8 with upright images, 8 with images turned by 90°, 4 with half of each."""
    whole, stream = load(str(data / "mnist"), image_size=14), np.random.default_rng(seed)
    split: list[Any] = []
    for samples, each in ((whole.train, images), (whole.test, tests)):
        assert samples.labels is not None
        rows = stream.permutation(len(samples))[: 20 * each]
        owners = np.repeat(np.arange(20), each)
        turned = np.where(owners < 16, owners % 2, np.arange(len(rows)) % 2).astype(bool)
        inputs = samples.inputs[rows].clone()
        inputs[turned] = torch.rot90(inputs[turned], dims=(2, 3))
        split.append((inputs[:, 0].numpy(), samples.labels[rows].numpy(), owners))
    (x, y, owners), (x_test, y_test, owners_of_test) = split
    return from_arrays(x, y, x_test, y_test, columns={"owner": (owners, owners_of_test)})


def measured(case: str, asked: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Compare the methods in one case, and return their accuracies and the groups found as JSON values."""
    fields = {**FIELDS, **CASES[case], "seed": asked.seed}
    lie, overlap = fields.pop("lie", None), fields.pop("overlap", False)
    base = Liars(lie=lie) if lie else FedAvg()
    methods: list[Method] = [base, FedKin(base), *([OracleGroups(base)] if "shift" in fields else [])]
    if overlap:
        fields = {
            name: of for name, of in fields.items() if name not in ("train_images", "image_size", "clients", "public")
        }
        fields |= {"data": overlapping(asked.data, asked.seed), "partition": "by:owner"}
    else:
        fields["data"] = str(asked.data / fields["data"])
    kinfed.compare(methods, out=out, seeds=asked.seeds, quiet=True, **fields)
    runs = read_runs([out])
    rows = in_rows(runs)
    return {
        row.replace("+<Liars>", "").replace("<Liars>", "fedavg"): {
            "accuracy": round(of.mean, 4),
            "by_seed": {str(seed): round(value, 4) for seed, value in of.by_seed.items()},
            **agreement(rows[row]),
        }
        for row, of in compared(runs).items()
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the accuracies as a Markdown table, one row for each case."""
    columns = ["local", "fedavg", "fedkin", "oracle_groups"]
    lines = ["| case | local | FedAvg | fedkin | ceiling | groups found; adjusted Rand index; AUC of pairs |"]
    lines.append("| --- " * 6 + "|")
    for case, rows in results.items():
        cells = [f"{rows[row]['accuracy']:.3f}" if row in rows else "–" for row in columns]
        found = rows["fedkin"]
        told = [", ".join(map(str, found["groups"]))]
        told += [", ".join(f"{value:.2f}" for value in found[name])
                 for name in ("adjusted_rand_index", "pair_auc") if name in found]  # fmt: skip
        lines.append(f"| {case} | {' | '.join(cells)} | {'; '.join(told)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*CASES], action="append", help="case; repeatable [all]")
    parser.add_argument("--seed", type=int, default=200, help="first seed")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with mnist and cifar10")
    parser.add_argument("--work", type=Path, default=Path("runs/kin-limits"), help="folder of the runs")
    parser.add_argument(
        "--out", type=Path, default=Path("docs/results/data/kin-limits.json"), help="file of the results"
    )
    asked = parser.parse_args()
    results = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
    for case in asked.only or CASES:
        if case not in results:
            results[case] = measured(case, asked, asked.work / f"{[*CASES].index(case):02d}")
            write_whole(asked.out, json.dumps(results, indent=1) + "\n")
            print(f"{case}: measured", flush=True)
    print(table({case: results[case] for case in CASES if case in results}))


if __name__ == "__main__":
    main()
