"""When does mixing by similarity help? FedSHIBU in several forms and what it must beat (docs/results/fedshibu.md).

``python benchmarks/kinship.py DATA SHARDS SEED [--only NAME...] [--rounds T]`` appends one line a method to
``runs/kinship.jsonl``.

20 clients share 6,000 images of MNIST or 10,000 of CIFAR-10 (4,000 test images) in shards of one class; 128 more images
are the server's. The model is FedBABU's four-conv CNN with 24 instead of 64 channels, so that a run takes less than a
minute. Everybody takes part in 24 or 20 rounds of one epoch, batch 50, lr 0.1, a tenth of it in the last quarter.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from kinfed.data import Dataset, Shards, load, make_federation
from kinfed.engine import ClientRuntime, NoCallback, RoundSettings, RunFolder, SerialExecutor, TaskRunner, run_rounds
from kinfed.engine.malloc import keep_freed_memory
from kinfed.learning import LocalTraining, Phase
from kinfed.methods import METHODS, Method
from kinfed.methods.aggregation import mix
from kinfed.methods.fedshibu import FedSHIBU
from kinfed.models import Model, Tensors
from kinfed.settings import own_settings
from kinfed.streams import numpy_stream, seeded_globals, torch_stream

SIZES = {"mnist": (6128, 24), "cifar10": (10128, 20)}  # training images with the server's, rounds


@dataclass(frozen=True, kw_only=True)
class Depth(FedSHIBU):
    """No similarity at all: the first stages are averaged, the others stay with their client."""

    shared_stages: int = 2

    def mixed(self, sent: Sequence[Tensors], weights: Tensor) -> Tensors:
        """Equal weights for the first stages, one's own for the rest."""
        stages = list(dict.fromkeys(name.split(".")[1] for name in sent[0]))
        first = tuple(f"body.{stage}." for stage in stages[: self.shared_stages])
        equal, alone = torch.full_like(weights, 1 / len(weights)), torch.eye(len(weights), dtype=weights.dtype)
        means, own = mix(sent, equal), mix(sent, alone)
        return {name: means[name] if name.startswith(first) else own[name] for name in own}


VARIANTS: dict[str, Method] = {
    "fedavg": METHODS["fedavg"](),
    "fedper": METHODS["fedper"](),
    "fedbabu": METHODS["fedbabu"](),
    "local": METHODS["local"](),
    "paper (sum)": FedSHIBU(layers="last", norm="sum"),
    "min-max": FedSHIBU(layers="last", norm="minmax"),
    "mean prediction": FedSHIBU(layers="last", compared="mean_prediction", norm="power", gamma=4.0),
    "each layer": FedSHIBU(layers="each", norm="distance", reach=0.2),
    "each layer, reach 0.1": FedSHIBU(layers="each", norm="distance", reach=0.1),
    "each layer, power": FedSHIBU(layers="each", norm="power", gamma=16.0),
    "first 2 shared": Depth(layers="last", norm="sum", shared_stages=2),
    "first 3 shared": Depth(layers="last", norm="sum", shared_stages=3),
    "class means (labels)": FedSHIBU(rep_source="local_class_mean", layers="last", norm="sum"),
}


def slim(dataset: Dataset, seed: int) -> Model:
    """Four times conv3×3(24)-BatchNorm-pool-ReLU, and the head."""
    (channels, side, _), classes = dataset.shape, len(dataset.classes)
    stages: dict[str, nn.Module] = {}
    with seeded_globals(torch_stream(seed, "model")):
        for i in range(4):
            convolution = nn.Conv2d(24 if i else channels, 24, 3, padding=1)
            stages[f"conv{i + 1}"] = nn.Sequential(convolution, nn.BatchNorm2d(24), nn.MaxPool2d(2), nn.ReLU())
        stages["flatten"] = nn.Flatten()
        return Model(stages, nn.Linear(24 * (side // 16) ** 2, classes), [f"conv{i + 1}" for i in range(4)])


def some_of(name: str) -> Dataset:
    """The same images for every seed."""
    whole, stream = load(name), numpy_stream(0, "kinship", name)
    train = stream.permutation(len(whole.train))[: SIZES[name][0]]
    test = stream.permutation(len(whole.test))[:4000]
    return Dataset(name, whole.train.take(train), whole.test.take(test), whole.classes)


def measured(name: str, dataset: Dataset, s: int, seed: int, rounds: int) -> dict[str, float | None]:
    """What the last round's line says."""
    federation = make_federation(dataset, Shards(per_client=s), clients=20, public=128, seed=seed)
    training = LocalTraining(lr=0.1, batch_size=50)
    settings = RoundSettings(
        rounds=rounds, training=training, lr_schedule="step:0.75", participation=1.0, seed=seed,
        checkpoint_every=rounds, evaluate_every=4, fine_tuning=Phase(epochs=5, lr=1e-3),
    )  # fmt: skip
    runtime = ClientRuntime(VARIANTS[name], federation, (slim(dataset, seed),), settings)
    with tempfile.TemporaryDirectory() as path, own_settings():
        folder = RunFolder(Path(path))
        executor = SerialExecutor()
        executor.start(lambda: runtime, TaskRunner(runtime, folder.client_states))
        run_rounds(runtime, executor, folder, NoCallback())
        line = folder.lines("metrics.jsonl")[-1]
    return {key: line.get(key) for key in ("personal_acc_mean", "fine_tuned_acc_mean", "crsm_overlap_correlation")}


def main() -> None:
    """Run the methods one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=[*SIZES])
    parser.add_argument("shards", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--only", nargs="*", default=[*VARIANTS])
    parser.add_argument("--rounds", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    dataset, rounds = some_of(arguments.data), arguments.rounds or SIZES[arguments.data][1]
    Path("runs").mkdir(exist_ok=True)
    for name in arguments.only:
        began = time.process_time()
        line = {
            "data": arguments.data, "shards": arguments.shards, "seed": arguments.seed, "rounds": rounds,
            "method": name,
            **measured(name, dataset, arguments.shards, arguments.seed, rounds),
            "cpu_seconds": round(time.process_time() - began, 1),
        }  # fmt: skip
        print(json.dumps(line), flush=True)
        with Path("runs/kinship.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
