"""Hetero-SSFL beside local SSL: what the CKA term on the common images costs, and what it gains or loses.

``python benchmarks/hetero_ssfl.py seconds [--repeats R] [--images N] [--probe L] [--hidden H] [--out D]``

CPU seconds of a local round, by each method in turn, so that whatever else the machine does falls on all alike. One of
5 clients trains an epoch in batches of 200, images of 32×32. What is sent at the end of a round, the network's view of
all L images, is a part of the time; a round has E epochs, so one with E = 1 is the dearest. The images are noise, which
takes as long as any. The last column is the server's time for a round, with the notes in the metrics.

``python benchmarks/hetero_ssfl.py accuracy [--only TERM]... [--seed S] [--seeds R] [--rounds T] [--out FILE]``

Linear probes of the small federation of the paper's Table 4 (``kinfed reproduce hetero-ssfl-table4``) without the term,
with it, and with each remedy: views, a late start, a ramp, each way to clean the mean Gram. The results go to a JSON
file; what is in it is not measured again, and a run that was stopped continues. The last lines are the table. CIFAR-10
is read from the folder of ``--data``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kinfed
from kinfed.data import Normalisation, Samples
from kinfed.engine.malloc import keep_freed_memory
from kinfed.experiment.papers.hetero_ssfl import TABLE4
from kinfed.files import write_whole
from kinfed.learning import LocalTraining
from kinfed.methods import Client, ClientState, Method, Server
from kinfed.methods.hetero_ssfl import HeteroSSFL
from kinfed.methods.local_ssl import LocalSSL
from kinfed.models import build
from kinfed.report.folders import read_runs

BATCH, SIDE = 200, 32
LOCAL = "local_ssl"
ARCHITECTURES = ("cnn4_half", "cnn4")
NOTES = {"mean_gram_participation_ratio": "participation ratio", "mean_gram_cka_with_colour": "CKA with colour"}


# -- seconds ----------------------------------------------------------------------------------------------------------


def noise(count: int, seed: int) -> Samples:
    """Images that take as long as any."""
    stream = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 3, SIDE, SIDE), dtype=torch.uint8, generator=stream)
    return Samples(pixels, None, Normalisation.of(pixels))


def seconds(arguments: argparse.Namespace) -> None:
    """Print the table of CPU seconds."""
    torch.set_num_threads(1)
    keep_freed_memory()
    model = build(arguments.model, (3, SIDE, SIDE), 10, 0)
    model.prefer_channels_last()
    initial = model.tensors()
    sizes = {"hidden": arguments.hidden, "out": arguments.out}
    methods: dict[str, Method] = {
        "local_ssl": LocalSSL(**sizes),
        "hetero_ssfl, RAD batch of 100": HeteroSSFL(rad_batch=BATCH // 2, **sizes),
        "hetero_ssfl, RAD batch of 200": HeteroSSFL(rad_batch=BATCH, **sizes),
        "hetero_ssfl, mu=0": HeteroSSFL(mu=0.0, **sizes),
        "hetero_ssfl, views, 100": HeteroSSFL(rad_batch=BATCH // 2, views=True, **sizes),
        **{
            f"hetero_ssfl, {how}, 100": HeteroSSFL(rad_batch=BATCH // 2, clean=how, **sizes)
            for how in ("colour", "whitened", "neighbours")
        },
    }
    images, training = (
        noise(arguments.probe, 1),
        LocalTraining(lr=0.032, batch_size=BATCH, epochs=arguments.epochs, weight_decay=5e-4),
    )
    server = Server(model=model, seed=0, round=0, rounds=10, clients=5, cohort=5, public_images=images)
    client = Client(
        model=model,
        seed=0,
        round=1,
        rounds=10,
        id=0,
        train=noise(arguments.images, 0),
        training=training,
        public_images=images,
    )
    taken: dict[str, list[float]] = {name: [] for name in methods}
    at_server: dict[str, list[float]] = {name: [] for name in methods}
    states, received = {}, {}
    for name, method in methods.items():
        model.load(initial)
        states[name] = method.init(server)
        received[name] = method.download(states[name], 0)
    for repeat in range(arguments.repeats + 1):
        for name, method in methods.items():
            model.load(initial)
            began = time.process_time()
            upload, _ = method.update(client, received[name], ClientState())
            sent = time.process_time()
            uploads = dict.fromkeys(range(server.clients), upload)
            method.notes(server, method.aggregate(server, states[name], uploads), uploads, np.zeros((0, 0), np.int64))
            if repeat:  # the first warms up
                taken[name].append(sent - began)
                at_server[name].append(time.process_time() - sent)
    print(
        f"torch {torch.__version__}, {arguments.model}, {arguments.images} images, {arguments.epochs} epochs, "
        f"RAD of {arguments.probe}, {arguments.repeats} repeats, one thread"
    )
    print(f"  {'':32}{'CPU seconds':>12}{'ratio':>8}{'range':>14}{'down':>12}{'server':>9}")
    for name, own in taken.items():
        ratios = sorted(a / b for a, b in zip(own, taken["local_ssl"], strict=True))
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        down = f"{received[name].nbytes / 2**20:.1f} MiB"
        medians = f"{statistics.median(own):12.2f}{statistics.median(ratios):8.2f}"
        print(f"  {name:32}{medians}{spread:>14}{down:>12}{statistics.median(at_server[name]):9.2f}")


# -- accuracy ---------------------------------------------------------------------------------------------------------


def terms(rounds: int) -> dict[str, Method]:
    """Return the methods that are compared, by name: without the term, as it is, and with each remedy."""
    own = TABLE4.scales["small"].fields["settings"]["hetero_ssfl"]
    sizes = {name: own[name] for name in ("hidden", "out")}
    fields: dict[str, dict[str, Any]] = {
        "hetero_ssfl": {},
        "views": {"views": True},
        "start after half of the rounds": {"start": rounds // 2 + 1},
        "ramp over half of the rounds": {"ramp": rounds // 2},
        **{f"clean={how}": {"clean": how} for how in ("colour", "whitened", "neighbours")},
    }
    return {LOCAL: LocalSSL(**sizes), **{name: HeteroSSFL(**own, **of) for name, of in fields.items()}}


def measured(method: Method, fields: Mapping[str, Any], out: Path) -> dict[str, float]:
    """Run a method, or continue its run, and return the accuracies and the last round's notes."""
    if (out / "config.toml").is_file():
        kinfed.resume(out, quiet=True)
    else:
        kinfed.run(method, out=out, quiet=True, **fields)
    (run,) = read_runs([out])
    found = {name: run.summary["metrics"][f"linear_global_acc_mean_of_{name}"] for name in ARCHITECTURES}
    return found | {name: run.lines[-1][name] for name in NOTES if name in run.lines[-1]}


def accuracy(arguments: argparse.Namespace) -> None:
    """Measure what is missing, and print the table."""
    small = TABLE4.scales["small"].fields
    fields = {name: of for layer in (TABLE4.fields, small) for name, of in layer.items() if name != "settings"}
    fields |= {"rounds": arguments.rounds, "data": str(arguments.data / "cifar10")}
    if arguments.images is not None:
        fields["train_images"] = arguments.images
    fields = {name: of for name, of in fields.items() if name not in ("model", "seeds")}
    setting = {"rounds": fields["rounds"], "train_images": fields["train_images"]}
    results = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {**setting, "terms": {}}
    if any(results[name] != of for name, of in setting.items()):
        raise SystemExit(f"{arguments.out} has results of another setting; choose another --out and --work")
    methods = terms(arguments.rounds)
    for name in arguments.only or methods:
        told = results["terms"].setdefault(name, {})
        for seed in range(arguments.seed, arguments.seed + arguments.seeds):
            if str(seed) not in told:
                out = arguments.work / f"{[*methods].index(name)}-{seed}"
                told[str(seed)] = measured(methods[name], {**fields, "seed": seed}, out)
                write_whole(arguments.out, json.dumps(results, indent=1) + "\n")
                print(f"{name}, seed {seed}: measured", flush=True)
    print(table({name: results["terms"][name] for name in methods if name in results["terms"]}))


def table(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return the results as a Markdown table: percent, ± over seeds, and the mean difference to no term at all."""
    lines = [
        f"| term | {' | '.join(ARCHITECTURES)} | difference to local_ssl, same seeds | {' | '.join(NOTES.values())} |",
        "| --- " * (len(ARCHITECTURES) + len(NOTES) + 2) + "|",
    ]
    means = {
        name: {seed: statistics.mean(of[a] for a in ARCHITECTURES) for seed, of in told.items()}
        for name, told in results.items()
    }
    for name, told in results.items():
        accuracies = [spread([100 * of[a] for of in told.values()]) for a in ARCHITECTURES]
        both = means[name].keys() & means.get(LOCAL, {}).keys() if name != LOCAL else set()
        gained = spread([100 * (means[name][seed] - means[LOCAL][seed]) for seed in sorted(both)], "+")
        notes = [spread([of[note] for of in told.values() if note in of]) for note in NOTES]
        lines.append(f"| {' | '.join([name, *accuracies, gained, *notes])} |")
    return "\n".join(lines)


def spread(values: list[float], sign: str = "") -> str:
    """Return mean ± sample deviation."""
    if not values:
        return "–"
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.2f}{deviation}"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    timed = commands.add_parser("seconds")
    timed.set_defaults(work_of=seconds)
    timed.add_argument("--repeats", type=int, default=7)
    timed.add_argument("--images", type=int, default=2000, help="of the client")
    timed.add_argument("--probe", type=int, default=500, help="images of the RAD")
    timed.add_argument("--epochs", type=int, default=1)
    timed.add_argument("--model", default="cnn4")
    timed.add_argument("--hidden", type=int, default=512, help="width of projector and predictor")
    timed.add_argument("--out", type=int, default=128, help="their outputs")
    tested = commands.add_parser("accuracy")
    tested.set_defaults(work_of=accuracy)
    tested.add_argument("--only", action="append", help="term, as in the table; repeatable [all]")
    tested.add_argument("--seed", type=int, default=0, help="first seed")
    tested.add_argument("--seeds", type=int, default=2, help="number of seeds")
    tested.add_argument("--rounds", type=int, default=TABLE4.scales["small"].fields["rounds"])
    tested.add_argument("--images", type=int, help="training images, the public ones among them [Table 4's]")
    tested.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with cifar10")
    tested.add_argument("--work", type=Path, default=Path("runs/hetero-ssfl"), help="folder of the runs")
    tested.add_argument("--out", type=Path, default=Path("docs/results/data/hetero-ssfl-terms.json"))
    arguments = parser.parse_args()
    arguments.work_of(arguments)


if __name__ == "__main__":
    main()
