"""What a server must hold, send and compute with very many clients: sums, and one point of them with the real engine.

``python benchmarks/server_sums.py`` prints the sums for ResNet-18 on 32×32 images, 1 % of the clients a round, as
Markdown. Sizes are those of kinfed's messages and states; a machine has MEMORY, NETWORK and PRODUCTS.

``--check 100000`` does rounds of FedAvg with so many clients that only send what they got, and prints the memory after
each round beside the sum; ``--cohort`` sets the clients of a round.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from executors import Sending
from kinfed.data import Dataset, Federation, Normalisation, Partition, Samples
from kinfed.engine import ClientRuntime, NoCallback, RoundSettings, RunFolder, SerialExecutor, TaskRunner, run_rounds
from kinfed.learning import LocalTraining
from kinfed.models import build
from kinfed.settings import own_settings

IMAGES = 256  # public images L
SHARE = 0.01  # of the clients, in a round
MEMORY, NETWORK, PRODUCTS = 256e9, 10e9 / 8, 1e12  # bytes, bytes a second, operations a second of one machine
FLOAT64 = 8
ROUNDS = 5


def sums(clients: int, size: int, parameters: int, forward: float, width: int) -> dict[str, tuple[float, float, float]]:
    """Return bytes held, bytes sent and received in a round, and operations of a round, by kind of method.

    Args:
        clients: Number N of clients.
        size: Bytes of a message with the whole model.
        parameters: Numbers in it.
        forward: Operations of a forward pass of one image.
        width: Features of the representation.
    """
    m = round(SHARE * clients)  # clients of a round
    uploads, both_ways = m * size, 2 * m * size
    gram = IMAGES**2 * FLOAT64
    similarities = m * IMAGES * (forward + 2 * IMAGES * width) + m**2 * IMAGES**2
    matrices = 4 * clients**2 * FLOAT64  # similarities and weights, before and after a round
    return {
        "a mean (`fedavg`)": (2 * size + uploads, both_ways, 2.0 * m * parameters),
        "N×N similarities": (matrices + uploads, both_ways, similarities),
        "N mixtures (`fedshibu`)": (
            (clients + m) * size + matrices + uploads,
            both_ways,
            similarities + 2.0 * m**2 * parameters,
        ),
        "Grams alone": ((m + 2) * gram, 2 * m * gram, 2.0 * m * IMAGES**2),
    }


def seconds(number: float) -> str:
    """Return seconds in words."""
    return "<0.01" if number < 0.01 else f"{number:.2g}" if number < 10 else f"{number:,.0f}"


def table() -> None:
    """Print the sums as Markdown."""
    model = build("resnet18", (3, 32, 32), 10, 0)
    size = sum(tensor.nbytes for tensor in model.tensors().values())
    parameters = sum(tensor.numel() for tensor in model.tensors().values())
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model.eval()(torch.zeros(1, 3, 32, 32))
    forward = counted.get_total_flops()
    width = model.head.in_features
    gram = IMAGES**2 * FLOAT64 / 1e6
    print(f"A message: {size / 1e6:.1f} MB; a forward pass: {forward / 1e9:.2f} GFLOP; a Gram: {gram:.2f} MB\n")
    heads = ["", "clients", "held, GB", "machines for it", "sent, GB", "s on 1, 10, 100", "TFLOP", "s on 1, 10, 100"]
    print(f"| {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|---|---|")
    for clients in (10_000, 1_000_000):
        for kind, (held, sent, work) in sums(clients, size, parameters, forward, width).items():
            network, compute = (
                ", ".join(seconds(total / rate / machines) for machines in (1, 10, 100))
                for total, rate in ((sent, NETWORK), (work, PRODUCTS))
            )
            told = [kind, f"{clients:,}", f"{held / 1e9:,.1f}", f"{-int(-held // MEMORY):,}", f"{sent / 1e9:,.1f}"]
            print(f"| {' | '.join([*told, network, f'{work / 1e12:,.2f}', compute])} |")


def check(clients: int, cohort: int) -> dict[str, Any]:
    """Do rounds with clients that only send, in this process, and tell the resident memory after each, in MiB."""
    images = torch.zeros(clients, 1, 8, 8, dtype=torch.uint8)
    one = Normalisation((0.0,), (1.0,))
    data = Dataset(
        "blank",
        Samples(images, torch.arange(clients) % 10, one),
        Samples(images[:10], torch.arange(10), one),
        tuple("0123456789"),
    )
    none = [np.arange(0)] * clients
    cut = Partition([np.array([at]) for at in range(clients)], none)
    settings = RoundSettings(
        rounds=10 * ROUNDS, training=LocalTraining(lr=0.01, batch_size=1), lr_schedule="constant",
        participation=cohort / clients, seed=0, checkpoint_every=ROUNDS, evaluate_every=10 * ROUNDS,
    )  # fmt: skip
    here = ClientRuntime(Sending(), Federation(data, cut, np.arange(0)), (build("mlp", (1, 8, 8), 10, 0),), settings)
    size = sum(tensor.nbytes for tensor in here.initial[0].values())
    after: list[float] = []

    class Measured(NoCallback):
        def round(self, line: dict[str, Any]) -> None:
            after.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20)

    with tempfile.TemporaryDirectory() as path, own_settings():
        folder, executor = RunFolder(Path(path)), SerialExecutor()
        executor.start(lambda: here, TaskRunner(here, folder.client_states))
        before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
        run_rounds(here, executor, folder, Measured(), until=ROUNDS)  # without the tests at all clients after the last
        train = sorted(line["train"] for line in folder.lines("seconds.jsonl"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told = {"clients": clients, "cohort": cohort, "before": before, "peak": peak, "sum": (cohort + 2) * size / 2**20}
    return told | {"after": [round(mib) for mib in after], "seconds": train[len(train) // 2]}


def main() -> None:
    """Print the sums, or check one point of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", type=int, metavar="CLIENTS", help="do rounds with so many clients")
    parser.add_argument("--cohort", type=int, default=1000, help="clients of a round")
    parser.add_argument("--alone", action="store_true", help="check in this process, and print JSON")
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(check(given.check, given.cohort)))
    elif given.check:
        for clients in (given.check // 100, given.check // 10, given.check):
            command = [sys.executable, __file__, "--alone", "--check", str(clients), "--cohort", str(given.cohort)]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            print(told, flush=True)
    else:
        table()


if __name__ == "__main__":
    main()
