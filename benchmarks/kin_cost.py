"""What a round of fedkin costs above one of FedAvg, with 1,000 clients and ResNet-18, and the error of its sketches.

``python benchmarks/kin_cost.py [--clients N] [--sampled M] [--distinct D] [--model NAME]``

M of N clients send an update in a round; the weights are random, D different ones in turn, so that they fit into the
memory. FedAvg's and fedkin's work at the server are timed side by side; what a client does when it is asked is told in
passes over its samples. The error of a sketch is that of the cosines of the D updates.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Mapping

import torch

from kinfed.methods import Message, Server, ServerState
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedkin import ASKING, PHASE, FedKin
from kinfed.methods.grouped import of_group
from kinfed.models import build


def uploads_of(start: Mapping[str, torch.Tensor], ids: list[int], distinct: int) -> dict[int, Message]:
    """Return an upload of each client: one of some random updates, in four groups that share a part of theirs."""
    stream = torch.Generator().manual_seed(0)
    floats = {name: tensor for name, tensor in start.items() if tensor.is_floating_point()}
    shared = [{name: torch.randn(t.shape, generator=stream) for name, t in floats.items()} for _ in range(4)]
    updates = []
    for i in range(distinct):
        own = {n: t + 0.01 * (torch.randn(t.shape, generator=stream) + shared[i % 4][n]) for n, t in floats.items()}
        updates.append({**start, **own})
    return {id: Message(updates[id % distinct], {"samples": 50, "steps": 1}) for id in ids}


def megabytes(tensors: Mapping[str, torch.Tensor]) -> float:
    """Return the size of tensors in MB."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000, help="number N of clients")
    parser.add_argument("--sampled", type=int, default=100, help="number M of clients in a round")
    parser.add_argument("--distinct", type=int, default=16, help="number D of different updates in the memory")
    parser.add_argument("--model", default="resnet18", help="name of the model")
    asked = parser.parse_args()
    model = build(asked.model, (3, 32, 32), 10, 0)
    base, method = FedAvg(), FedKin(first=1)

    def server(round: int) -> Server:
        return Server(
            model=model,
            seed=0,
            round=round,
            rounds=100,
            clients=asked.clients,
            cohort=asked.clients,
            public_images=None,
        )

    start, state = base.init(server(0)), method.init(server(0))
    ids = [*range(0, asked.clients, asked.clients // asked.sampled)][: asked.sampled]
    uploads = uploads_of(start.tensors, ids, asked.distinct)
    print(f"{asked.model}: {megabytes(start.tensors):.0f} MB; {asked.sampled} of {asked.clients} clients in a round")
    quiet = ServerState(state.tensors, {**state.numbers, "kin.phase": 0.0})
    times: dict[str, list[float]] = {"FedAvg": [], "fedkin, adding up": [], "fedkin, with a tree": []}
    runs: dict[str, Callable[[], ServerState]] = {
        "FedAvg": lambda: base.aggregate(server(1), start, uploads),
        "fedkin, adding up": lambda: method.aggregate(server(1), quiet, uploads),
        "fedkin, with a tree": lambda: method.aggregate(server(99), state, uploads),
    }
    for _ in range(3):
        for name, run in runs.items():
            begin = time.perf_counter()
            after = run()
            times[name].append(time.perf_counter() - begin)
    for name, seconds in times.items():
        median = sorted(seconds)[1]
        print(f"{name}: {median:.1f} s at the server, {median / sorted(times['FedAvg'])[1]:.2f} of FedAvg's")
    assert after.numbers[PHASE] == ASKING
    own = {name: of for name, of in after.tensors.items() if name.startswith("kin.")}
    sums = {name: of for name, of in own.items() if not name.startswith(("kin.leaf", "kin.start"))}
    print(
        f"state above FedAvg's: {megabytes(sums):.0f} MB of sums, {megabytes(own) - megabytes(sums):.0f} MB of models"
    )
    begin = time.perf_counter()
    messages = [method.download(after, id) for id in ids[:10]]
    each = (time.perf_counter() - begin) / len(messages)
    models = max(sum(name.startswith("kin.share.") for name in message.numbers) for message in messages)
    size = sum(megabytes(message.tensors) for message in messages) / len(messages)
    print(f"a question: {each:.2f} s at the server and {size:.0f} MB for each client, with {models} models or fewer")
    group = of_group(state, 0)
    units = [method._units(server(1), group, uploads[id]) for id in ids[: asked.distinct]]
    ones = torch.ones(len(units[0]), dtype=torch.float64)
    exact = torch.stack([torch.cat([*unit.values()]) for unit in units]) / len(units[0]) ** 0.5
    hashed = torch.stack([method._hashed(server(1), unit, ones) for unit in units]) / len(units[0]) ** 0.5
    error = (hashed @ hashed.T - exact @ exact.T)[~torch.eye(len(units), dtype=torch.bool)]
    print(f"cosines of updates, sketch of {method.sketch}: error {error.std():.4f}, at most {error.abs().max():.4f}")
    print(f"memory at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB")


if __name__ == "__main__":
    main()
