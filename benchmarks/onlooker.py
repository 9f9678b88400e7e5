"""What an onlooker learns: who was trained on, from saved models; shares of classes, from what clients send.

``python benchmarks/onlooker.py [--only STUDY]... [--method METHOD]... [--data DIR] [--seeds S]``

* **Membership.** The onlooker has the model that a client uses after the last round, and samples of which half were
  trained on. It takes those with a loss below a threshold for members; the threshold is chosen on one half of them, and
  the advantage is measured on the other: right minus wrong answers, 0 by guessing and 1 with certainty.
* **Shares of classes.** The onlooker sees what each client sends in the first and the last round, and knows the shares
  of half of the clients. It learns to infer them (ridge regression on random projections), and infers those of the
  others. The advantage is the part of the error that this removes: 1 − error / error of guessing the mean shares, in
  total variation. Where a bias or counts are sent, it also reads these directly, without knowing any client.

The numbers are means over the clients, with the standard deviation over the seeds.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from kinfed.engine import ClientRuntime
from kinfed.experiment.assemble import runtime_of
from kinfed.experiment.configure import configure
from kinfed.methods import ClientState, Message
from kinfed.models import Tensors
from kinfed.settings import own_settings
from kinfed.streams import numpy_stream

METHODS = [
    "fedavg", "fedper", "fedproto", "hetero_ssfl", "fedshibu", "dp+fedavg:epsilon=8,clip=0.3",
    "dp+fedavg:epsilon=100,clip=0.3", "local",
]  # fmt: skip
COMMON: dict[str, Any] = {
    "clients": 40, "rounds": 20, "local_epochs": 2, "batch_size": 10, "public": 64, "partition": "dirichlet",
    "alpha": 0.5, "linear_probe": False, "knn_every": 0,
}  # fmt: skip
STUDIES: dict[str, dict[str, Any]] = {
    "digits": {**COMMON, "data": "digits", "model": "tiny_cnn"},
    "CIFAR-10": {**COMMON, "data": "cifar10", "model": "small_cnn", "train_images": 2000, "rounds": 10},
}
PROJECTED = 64  # values of a client's message
RIDGE = 10.0

Array = NDArray[np.float64]


def trained(runtime: ClientRuntime) -> tuple[list[Array], dict[int, Tensors], Array]:
    """Run all rounds; return what each client sent, the model that it uses, and what its messages tell directly.

    The first are vectors, the last shares of classes, clients × K; NaN where neither a bias nor counts are sent.
    """
    method, clients = runtime.method, range(len(runtime.federation))
    classes = len(runtime.federation.classes)
    state, kept = method.init(runtime.server(0)), dict.fromkeys(clients, ClientState())
    sent: list[list[Array]] = [[] for _ in clients]
    direct = np.full((len(clients), classes), np.nan)
    for round in range(1, runtime.settings.rounds + 1):
        downs = {id: method.download(state, id) for id in clients}
        uploads: dict[int, Message] = {}
        for id in clients:
            uploads[id], kept[id] = runtime.update(id, round, downs[id], kept[id])
            if round in (1, runtime.settings.rounds):
                change = {n: t.double() - downs[id].tensors.get(n, torch.zeros(1)).double()
                          if downs[id].tensors.get(n, t).shape == t.shape else t.double()
                          for n, t in uploads[id].tensors.items()}  # fmt: skip
                sent[id].append(projected(change))
            if round == 1:
                direct[id] = read_directly(downs[id].tensors, uploads[id].tensors, classes)
        state = method.aggregate(runtime.server(round), state, uploads)
    models = {}
    for id in clients:
        own = method.evaluated(
            runtime.client(id, runtime.settings.rounds, final=True), method.download(state, id), kept[id]
        )
        used = own.get(method.primary) or method.global_model(runtime.server(runtime.settings.rounds), state)
        if used is not None:
            models[id] = {name: tensor.clone() for name, tensor in used.items()}
    return [np.concatenate(parts) if parts else np.zeros(0) for parts in sent], models, direct


def projected(tensors: Tensors) -> Array:
    """Project a message to a few values by random directions, which are the same for all clients."""
    if not tensors:
        return np.zeros(0)
    vector = torch.cat([tensors[name].flatten() for name in sorted(tensors)]).nan_to_num().numpy()
    directions = numpy_stream(0, "projection", len(vector)).standard_normal((PROJECTED, len(vector)))
    found: Array = directions @ vector / np.sqrt(len(vector))
    return found


def read_directly(down: Tensors, up: Tensors, classes: int) -> Array:
    """Return shares of classes as counts or the change of the head's bias tell them; NaN if there is neither."""
    if "counts" in up:
        counts = up["counts"].double().numpy()
        return np.asarray(counts / counts.sum())
    if "head.bias" in up and "head.bias" in down:
        # A bias moves by the learning rate times the class's share less the share that the model gave it.
        change = (up["head.bias"] - down["head.bias"]).double().numpy()
        shares = np.clip(change / max(np.abs(change).max(), 1e-12) / 2 + 1 / classes, 0, None)
        return np.asarray(shares / shares.sum())
    return np.full(classes, np.nan)


def membership(runtime: ClientRuntime, models: dict[int, Tensors]) -> float:
    """Return the mean advantage over the clients with enough samples."""
    found = []
    for id, tensors in models.items():
        train, test = runtime.federation.train(id), runtime.federation.test(id)
        count = min(len(train), len(test))
        if count < 4:
            continue
        model = runtime.fresh_model(id)
        model.load(tensors)
        model.eval()
        stream = numpy_stream(0, "members", id)
        losses = []
        with torch.no_grad():
            for samples in (train, test):
                rows = torch.from_numpy(stream.permutation(len(samples))[:count])
                batch = samples.take(rows.numpy())
                assert batch.labels is not None
                inputs = batch.normalise(batch.inputs)
                losses.append(functional.cross_entropy(model(inputs), batch.labels, reduction="none").double().numpy())
        half = count // 2
        thresholds = np.unique(np.concatenate([of[:half] for of in losses]))
        best = max(thresholds, key=lambda t: (losses[0][:half] <= t).mean() - (losses[1][:half] <= t).mean())
        found.append((losses[0][half:] <= best).mean() - (losses[1][half:] <= best).mean())
    return float(np.mean(found)) if found else float("nan")


def shares_inferred(sent: Sequence[Array], shares: Array) -> float:
    """Return the advantage of an onlooker who knows the shares of one half of the clients, for the other half."""
    if not len(sent[0]):
        return 0.0
    features = np.stack(sent)
    known, asked = slice(0, len(sent) // 2), slice(len(sent) // 2, None)
    mean, scale = features[known].mean(0), features[known].std(0) + 1e-12
    x = (features - mean) / scale
    centre = shares[known].mean(0)
    weights = np.linalg.solve(x[known].T @ x[known] + RIDGE * np.eye(x.shape[1]), x[known].T @ (shares[known] - centre))
    return advantage(np.clip(x[asked] @ weights + centre, 0, None), shares[asked], centre)


def advantage(inferred: Array, shares: Array, guess: Array) -> float:
    """Return the part of the error in total variation that is removed, compared with one guess for all clients."""
    inferred = inferred / np.maximum(inferred.sum(1, keepdims=True), 1e-12)
    return float(1 - np.abs(inferred - shares).sum() / np.abs(guess - shares).sum())


def measured(method: str, fields: dict[str, Any], seeds: int) -> Iterator[tuple[float, float, float]]:
    """Yield for each seed the advantages: of membership, of shares inferred with known clients, and read directly."""
    for seed in range(seeds):
        runtime = runtime_of(configure({**fields, "methods": (method,), "seed": seed}))
        sent, models, direct = trained(runtime)
        counts = runtime.class_counts.astype(np.float64)
        shares = counts / counts.sum(1, keepdims=True)
        read = advantage(direct, shares, shares.mean(0)) if not np.isnan(direct).any() else float("nan")
        member = membership(runtime, models) if runtime.method.supervised else float("nan")
        yield member, shares_inferred(sent, shares), read


def cell(values: Sequence[float]) -> str:
    """Return mean and standard deviation; a dash if there is no value."""
    known = [value for value in values if not np.isnan(value)]
    return f"{statistics.mean(known):.2f} ± {statistics.pstdev(known):.2f}" if known else "–"


def main() -> None:
    """Print a table for each study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*STUDIES], action="append", help="study; repeatable [all]")
    parser.add_argument("--method", action="append", help="method; repeatable [those of the table]")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with cifar10")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    os.environ.setdefault("KINFED_DATA", str(asked.data))
    for study in asked.only or [*STUDIES]:
        print(
            f"\n| {study} | membership | shares, half of the clients known | shares, read directly |\n|---|---|---|---|"
        )
        for method in asked.method or METHODS:
            with own_settings():
                found = [*measured(method, STUDIES[study], asked.seeds)]
            print(f"| `{method}` | {' | '.join(cell([one[i] for one in found]) for i in range(3))} |", flush=True)


if __name__ == "__main__":
    main()
