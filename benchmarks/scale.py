"""What many clients cost: memory, time and files with clients that keep a head each, and FedSHIBU's mixing.

``python benchmarks/scale.py`` runs all and prints tables; ``--quick`` takes a tenth of the clients and bodies.

Federations: FedPer, the same 20,000 images dealt to 100 and to 10,000 clients, so that each federation holds the same
data; 1 % of the clients a round (1 and 100 of them), evaluation after the last round only. Each runs in a process of
its own, whose peak memory is told.

The last evaluation: 2,000 clients of an MLP with 28×28 random images, 30 each, by its parts in CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

MIB = 2**20
IMAGES, TESTED = 20_000, 2_000


def peak() -> float:
    """Of this process's resident memory so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident() -> float:
    """Present resident memory, MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / MIB


def federation(clients: int, rounds: int) -> dict[str, Any]:
    """Run one federation in this process, and tell what it took."""
    from kinfed.data import Dataset, Federation, Normalisation, Partition, Samples
    from kinfed.engine import (
        ClientRuntime,
        NoCallback,
        RoundSettings,
        RunFolder,
        SerialExecutor,
        TaskRunner,
        run_rounds,
    )
    from kinfed.learning import LocalTraining
    from kinfed.methods import METHODS
    from kinfed.models import build
    from kinfed.settings import own_settings

    rng = np.random.default_rng(0)

    def samples(count: int) -> Samples:
        images = torch.from_numpy(rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8))
        return Samples(images, torch.arange(count) % 10, Normalisation((127.5,) * 3, (74.0,) * 3))

    data = Dataset("random", samples(IMAGES), samples(TESTED), tuple("0123456789"))
    cut = Partition(np.array_split(np.arange(IMAGES), clients), np.array_split(np.arange(TESTED), clients))
    shop = ClientRuntime(
        METHODS["fedper"](),
        Federation(data, cut, np.arange(0)),
        (build("small_cnn", (3, 32, 32), 10, 0),),
        RoundSettings(
            rounds=rounds, training=LocalTraining(lr=0.01, batch_size=16), lr_schedule="constant", participation=0.01,
            seed=0,
            checkpoint_every=5, evaluate_every=rounds + 1,
        ),
    )  # fmt: skip
    last = {"now": time.perf_counter()}
    seconds: list[float] = []

    class Timed(NoCallback):
        def round(self, line: dict[str, Any]) -> None:
            now = time.perf_counter()
            seconds.append((now - last["now"]) / len(line["clients"]))
            last["now"] = now

    with tempfile.TemporaryDirectory() as path, own_settings():
        folder = RunFolder(Path(path))
        before = resident()
        executor = SerialExecutor()
        executor.start(lambda: shop, TaskRunner(shop, folder.client_states))
        run_rounds(shop, executor, folder, Timed())
        files = [p.stat().st_size for p in (folder.path / "memories").rglob("*.safetensors")]
    trained = {"peak": peak(), "before": before, "client seconds": statistics.median(seconds[:-1])}
    return {"clients": clients, **trained, "client states": len(files), "memory bytes": sum(files)}


def last_evaluation(method: str, clients: int, side: int, further: int | None) -> dict[str, Any]:
    """Run two rounds with 1 % of the clients; tell the CPU seconds of the last evaluation by its parts, and files."""
    import kinfed
    from kinfed.engine import evaluator, folder
    from kinfed.engine.evaluation import Evaluation

    parts: dict[str, float] = {}

    def timed(kind: type, name: str, called: str) -> None:
        inner = getattr(kind, name)

        def outer(*given: Any, **options: Any) -> Any:
            began = time.process_time()
            result = inner(*given, **options)
            parts[called] = parts.get(called, 0.0) + time.process_time() - began
            return result

        setattr(kind, name, outer)

    torch.set_num_threads(1)
    for kind, name, called in (
        (Evaluation, "line", "in all"), (evaluator.Evaluator, "evaluate", "own models"),
        (evaluator.Evaluator, "test_own_classes", "own classes"), (evaluator.Evaluator, "refit", "re-fitted heads"),
        (evaluator.Evaluator, "fine_tune", "fine-tuning"), (folder.RunFolder, "save_models", "saving models"),
    ):  # fmt: skip
        timed(kind, name, called)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (36 * clients, side, side), dtype=np.uint8), np.arange(36 * clients) % 10
    with tempfile.TemporaryDirectory() as out:
        fields: dict[str, Any] = {"clients": clients, "participation": 0.01, "rounds": 2, "model": "mlp", "quiet": True}
        fields["further_clients"] = further
        kinfed.run(method, data=(x, y), partition="iid", evaluate_every=3, out=Path(out, "run"), **fields)
        files = [path.stat().st_size for path in Path(out).rglob("*") if path.is_file()]
    return {"method": method, "parts": parts, "files": len(files), "bytes": sum(files)}


def mixing(bodies: int) -> dict[str, Any]:
    """FedSHIBU's mixing of ResNet-18 bodies against one bare product of as many numbers, in this process."""
    from kinfed.methods.aggregation import mix
    from kinfed.models import BODY, build

    torch.set_num_threads(1)
    weights = torch.rand(bodies, bodies, dtype=torch.float64)
    weights /= weights.sum(dim=1, keepdim=True)
    body = build("resnet18", (3, 32, 32), 10, 0).tensors(BODY)
    clients = [{name: tensor.clone() for name, tensor in body.items()} for _ in range(bodies)]
    numbers = sum(tensor.numel() for tensor in body.values())
    before = resident()
    took: dict[str, list[float]] = {"mix": [], "float32": [], "float64": []}
    columns = min(numbers, 1 << 21)  # of the bare product, whose time is scaled to all of them
    mix(clients, weights)
    top = peak()
    for _ in range(3):
        began = time.process_time()
        mix(clients, weights)
        took["mix"].append(time.process_time() - began)
        for kind in (torch.float32, torch.float64):
            given, w = torch.rand(bodies, columns, dtype=kind), weights.to(kind)
            began = time.process_time()
            w @ given
            took[str(kind).removeprefix("torch.")].append((time.process_time() - began) * numbers / columns)
    seconds = {name: statistics.median(values) for name, values in took.items()}
    return {"bodies": bodies, "GiB": bodies * numbers * 4 / 2**30, "more GiB": (top - before) / 1024, **seconds}


def alone(*arguments: str) -> dict[str, Any]:
    """The same script in a new process."""
    told = subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Print the two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--federation", type=int, help="one federation of so many clients, as JSON")
    parser.add_argument("--last", help="the last evaluation of METHOD:CLIENTS, as JSON")
    parser.add_argument("--side", type=int, default=28, help="of the images of --last, in pixels")
    parser.add_argument("--mixing", type=int, help="the mixing of so many bodies, as JSON")
    parser.add_argument(
        "--further", type=int, help="clients of --last with all tests; by default as many as kinfed tests"
    )
    given = parser.parse_args()
    if given.federation:
        print(json.dumps(federation(given.federation, rounds=21)))
        return
    if given.last:
        method, clients = given.last.split(":")
        print(json.dumps(last_evaluation(method, int(clients), given.side, given.further)))
        return
    if given.mixing:
        print(json.dumps(mixing(given.mixing)))
        return
    few, many, bodies = (100, 1_000, 10) if given.quick else (100, 10_000, 100)
    print(f"{'clients':>8}{'before, MiB':>13}{'peak, MiB':>12}{'ms a client':>13}{'states':>10}{'on disk, MiB':>14}")
    runs = [alone("--federation", str(clients)) for clients in (few, many)]
    for run in runs:
        print(
            f"{run['clients']:>8}{run['before']:>13.0f}{run['peak']:>12.0f}{1000 * run['client seconds']:>13.1f}"
            f"{run['client states']:>10}{run['memory bytes'] / MIB:>14.1f}"
        )
    print(f"peak memory of {many} clients: {runs[1]['peak'] / runs[0]['peak']:.3f} times that of {few}\n")
    tested = 200 if given.quick else 2_000
    print(f"the last evaluation of {tested} clients, CPU seconds")
    for method in ("fedavg", "fedper", "local"):
        last = alone("--last", f"{method}:{tested}")
        told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in last["parts"].items())
        print(f"  {method}: {told}; {last['files']} files, {last['bytes'] / MIB:.0f} MiB")
    m = alone("--mixing", str(bodies))
    print(f"mixing {m['bodies']} ResNet-18 bodies ({m['GiB']:.2f} GiB): {m['mix']:.2f} s")
    for kind in ("float32", "float64"):
        print(f"bare product in {kind}: {m[kind]:.2f} s, so that mixing takes {m['mix'] / m[kind]:.2f} times as long")
    print(f"{m['more GiB']:.2f} GiB more at the peak, of which the mixtures are {m['GiB']:.2f}")


if __name__ == "__main__":
    main()
