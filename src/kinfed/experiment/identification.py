"""SFTL's Table 1: does a measure find the source model that learned a client's classes? METHODS.md E.4."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.data import Dataset, Federation, Partition, load, save_rows, select_classes, sorted_shards
from kinfed.data.partitions.partition import Indices
from kinfed.data.samples import labels_of
from kinfed.errors import InputError, plain
from kinfed.experiment.config import Config
from kinfed.experiment.run import Watcher, go_on, nobody
from kinfed.experiment.sources import is_there, save_source, train_source
from kinfed.experiment.tables import Fields, IdentificationTable
from kinfed.experiment.uses import NO_SETTING, overruled
from kinfed.experiment.vote import VOTE, Electorate, hold
from kinfed.files import write_whole
from kinfed.learning import SGD
from kinfed.methods.fedvote import Vote
from kinfed.methods.voting import ballot
from kinfed.settings import own_settings
from kinfed.streams import numpy_stream

__all__ = ["PAPER", "another_setting", "identify", "paired", "right"]

PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
MEASURED = ("cca", "svcca", "pwcca", "emd", "sketched_cka", "cka", "debiased_cka")
PARTITIONS = {"paired": ("paired",), "random": ("any of two", "unambiguous")}  # and what is told of each

PAPER = ("paper", "paper, another setting")  # the heading of its numbers, by whether the setting is another one

Found = dict[str, dict[str, list[float]]]  # what is told → measure → one a repeat


@dataclass(frozen=True)
class _Repeat:
    """One repeat: its data, and where its sources and runs are.

    Attributes:
        config: Of the runs.
        dataset: All of it.
        seed: Of the repeat.
        folder: Its own.
        watcher: Looks at what is trained.
    """

    config: Config
    dataset: Dataset
    seed: int
    folder: Path
    watcher: Watcher

    def halves(self) -> tuple[Indices, Indices]:
        """Training rows for the sources and for the clients, each class cut in two at random."""
        labels, stream = labels_of(self.dataset.train), numpy_stream(self.seed, "halves")
        of_classes = [stream.permutation(np.flatnonzero(labels == k)) for k in range(len(self.dataset.classes))]
        first = np.concatenate([rows[: len(rows) // 2] for rows in of_classes])
        second = np.concatenate([rows[len(rows) // 2 :] for rows in of_classes])
        return np.sort(first), np.sort(second)

    def train_sources(self, rows: Indices) -> Path:
        """A source a pair of classes; where they are."""
        config, pool, model_name = self.config, self.folder / "sources", self.config.model
        assert model_name is not None  # the table names one
        sgd = SGD(lr=config.lr, epochs=config.local_epochs, batch_size=config.batch_size, momentum=config.momentum)
        for pair in PAIRS:
            name = f"{pair[0]} and {pair[1]}"
            path = pool / f"{name}.safetensors"
            how = {"pair": list(pair), "data": config.data, "seed": self.seed, "model": model_name} | asdict(sgd)
            if not is_there(path, how):
                pool.mkdir(parents=True, exist_ok=True)
                half = replace(self.dataset, train=self.dataset.train.take(rows), columns={})
                data = select_classes(half, [self.dataset.classes[k] for k in pair])
                watch = self.watcher(f"source {name}", self.seed, sgd.epochs)
                model, accuracy = train_source(
                    data, model_name, sgd, seed=self.seed, purpose=("source", name), watch=watch
                )
                save_source(path, model, data, accuracy, {"data": config.data, "training": how})
        return pool

    def train_clients(self, partition: str, rows: Indices) -> Path:
        """A run of FedAvg among clients that share some of the training rows; its folder.

        Raises:
            InputError: If it was begun with another config.
        """
        file = self.folder / f"{partition}.json"
        if not file.is_file():
            train, test = labels_of(self.dataset.train), labels_of(self.dataset.test)
            stream = numpy_stream(self.seed, partition)
            share_out = paired if partition == "paired" else sorted_shards
            cut = share_out(train[rows], test, self.config.clients, stream)
            cut = replace(cut, train=[rows[mine] for mine in cut.train])
            self.folder.mkdir(parents=True, exist_ok=True)
            save_rows(Federation(self.dataset, cut, np.arange(0)), file)
        fields = self.config.model_dump() | {"seed": self.seed, "partition": f"file:{file}", "save_local": True}
        go_on(Config.checked(fields), self.folder / partition, self.watcher)
        return self.folder / partition / f"fedavg-seed{self.seed}"


@own_settings()
def identify(table: IdentificationTable, scale: str, out: Path, given: Fields, watcher: Watcher = nobody) -> Path:
    """Run what is still to do, and write ``table.json``, ``table.md`` and, of the first repeat, ``vote.json``.

    Args:
        table: Which.
        scale: One of its scales.
        out: Folder; gets one a repeat, with its sources and a run a partition.
        given: Fields of the config that overrule the table's; ``seeds`` is the number of repeats.
        watcher: Looks at what is trained.

    Returns:
        ``table.md``.

    Raises:
        InputError: If a field is wrong, or the data do not have ten classes.
    """
    own = {**table.fields, **table.scales[scale], "methods": ("fedavg",)}
    config = Config.checked({**own, **given})
    other = overruled({name: v for name, v in given.items() if name not in NO_SETTING}, [config], [Config.checked(own)])
    dataset = load(config.data, channels=config.channels, image_size=config.image_size)
    if len(dataset.classes) != 2 * len(PAIRS) or config.clients % len(PAIRS):
        raise InputError(
            f"data, clients: {config.data} has {len(dataset.classes)} classes and there are {config.clients} clients; "
            f"this experiment is on {2 * len(PAIRS)} classes, and the clients must be a multiple of {len(PAIRS)}"
        )
    found: Found = {told: {measure: [] for measure in MEASURED} for names in PARTITIONS.values() for told in names}
    each = config.model_copy(update={"seeds": 1})
    for seed in range(config.seed, config.seed + config.seeds):
        repeat = _Repeat(each, dataset, seed, out / f"repeat {seed}", watcher)
        for_sources, for_clients = repeat.halves()
        pool = repeat.train_sources(for_sources)
        for partition in PARTITIONS:
            voters, rule = Electorate.of(repeat.train_clients(partition, for_clients), pool), Vote(ballot=1)
            scores = voters.scores(rule, MEASURED)
            counts = voters.runtime.federation.class_counts()
            for measure, rows in scores.items():
                for told, accuracy in right(partition, [ballot(row, 1) for row in rows], counts).items():
                    found[told][measure].append(accuracy)
            if (partition, seed) == ("paired", config.seed):
                held = hold(voters, rule, scores)
                write_whole(out / VOTE, json.dumps(asdict(held), indent=1) + "\n")
    record = {"scale": scale, "other_setting": other, "cells": found}
    write_whole(out / "table.json", json.dumps(record, indent=1) + "\n")
    write_whole(out / "table.md", markdown(table, config, found, other))
    return out / "table.md"


def paired(train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
    """Every client gets a shard of each class of one pair; as many clients a pair, in the order of the pairs."""
    each = clients // len(PAIRS)

    def cut(labels: NDArray[Any]) -> list[Indices]:
        own: list[Indices] = []
        for pair in PAIRS:
            of_classes = [np.array_split(rng.permutation(np.flatnonzero(labels == k)), each) for k in pair]
            own += [np.sort(np.concatenate(parts)) for parts in zip(*of_classes, strict=True)]
        return own

    return Partition(cut(np.asarray(train)), cut(np.asarray(test)))


def right(partition: str, ballots: Sequence[Sequence[int]], counts: NDArray[np.int64]) -> dict[str, float]:
    """Fractions of the clients whose source is the right one.

    Where a client's two shards are random, its classes may be of two sources, or of one: told are the clients whose
    source has any class of theirs, and, of those whose classes are all of one source, the ones that found it.

    Args:
        partition: ``paired`` or ``random``.
        ballots: The source that each client names; empty where it has no score.
        counts: Training samples of each client and class.
    """
    pairs = [{k // 2 for k in np.flatnonzero(of_client)} for of_client in counts]
    hits = [any(source in own for source in cast) for cast, own in zip(ballots, pairs, strict=True)]
    clear = [hit for hit, own in zip(hits, pairs, strict=True) if len(own) == 1]
    if partition == "paired":
        return {"paired": statistics.fmean(hits)}
    return {"any of two": statistics.fmean(hits)} | ({"unambiguous": statistics.fmean(clear)} if clear else {})


def another_setting(other: Mapping[str, Any]) -> list[str]:
    """Lines that tell which fields are not as a table has them."""
    fields = ", ".join(f"{name}={plain(value)}" for name, value in other.items())
    return [f"Another setting than this table's: {fields}. The paper's numbers are not of it.", ""] if other else []


def markdown(table: IdentificationTable, config: Config, found: Found, other: Mapping[str, Any]) -> str:
    """The table, and what was run; ``other`` are the fields that are not as the table has them."""
    seeds = f"{config.seeds} repeats" if config.seeds > 1 else "one repeat"
    spread = "; ± is the sample standard deviation over them" if config.seeds > 1 else ""
    lines = [
        f"# {table.title}",
        "",
        f"{config.data}, {config.clients} clients, model {config.model}, {config.rounds} rounds of "
        f"{config.local_epochs} local epochs, batch {config.batch_size}, lr {config.lr}, {seeds}{spread}. Percent of "
        "the clients whose highest score is that of the right source.",
        "",
        table.note,
        "",
        *another_setting(other),
        f"| | {' | '.join(found)} | {PAPER[bool(other)]} |",
        f"|---|{'---|' * (len(found) + 1)}",
    ]
    for measure in MEASURED:
        cells = [_cell(of[measure]) for of in found.values()]
        lines.append(f"| {measure} | {' | '.join(cells)} | {table.printed.get(measure, '–')} |")
    return "\n".join(lines) + "\n"


def _cell(accuracies: Sequence[float]) -> str:
    percent = [100 * accuracy for accuracy in accuracies]
    if not percent:
        return "–"
    return f"{statistics.fmean(percent):.1f}" + (f" ± {statistics.stdev(percent):.1f}" if len(percent) > 1 else "")
