"""SFTL's Table 1: how often a measure identifies the source model trained on a client's classes (specification E.4).

A source model is one that was trained before, here on two of the ten classes. A client scores each source by the
similarity of its activations to those of the client's own model, and names the one with the highest score.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.data import Dataset, Federation, Partition, SortedShards, load, save_rows, select_classes
from kinfed.data.partitions.partition import Indices
from kinfed.data.samples import labels_of
from kinfed.errors import InputError, plain
from kinfed.experiment.config import Config
from kinfed.experiment.papers.table import Fields, IdentificationTable
from kinfed.experiment.run import MakeCallback, go_on, nobody
from kinfed.experiment.sources import is_there, save_source, train_source
from kinfed.experiment.uses import NO_SETTING, overruled
from kinfed.experiment.vote import VOTE, Electorate, hold
from kinfed.files import write_whole
from kinfed.learning import LocalTraining
from kinfed.methods.fedvote import Vote
from kinfed.methods.voting import ballot
from kinfed.settings import own_settings
from kinfed.streams import numpy_stream

__all__ = ["PAPER", "another_setting", "identify", "paired", "right"]

PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
MEASURED = ("cca", "svcca", "pwcca", "emd", "sketched_cka", "cka", "debiased_cka")
PARTITIONS = {"paired": ("paired",), "random": ("any of two", "unambiguous")}  # partition → its columns in the table

PAPER = ("paper", "paper, another setting")  # heading of the paper's numbers: for the same setting, and for another one

Found = dict[str, dict[str, list[float]]]  # column → measure → accuracy of each repeat, in [0, 1]


@dataclass(frozen=True)
class _Repeat:
    """One repeat of the experiment.

    Attributes:
        config: Config of the runs.
        dataset: Whole data set, which sources and clients share.
        seed: Seed of the repeat.
        folder: Folder for the sources and runs of the repeat.
        make_callback: Observer of each training.
    """

    config: Config
    dataset: Dataset
    seed: int
    folder: Path
    make_callback: MakeCallback

    def halves(self) -> tuple[Indices, Indices]:
        """Split the training rows at random into halves for the sources and for the clients, stratified by class."""
        labels, stream = labels_of(self.dataset.train), numpy_stream(self.seed, "halves")
        of_classes = [stream.permutation(np.flatnonzero(labels == k)) for k in range(len(self.dataset.classes))]
        first = np.concatenate([rows[: len(rows) // 2] for rows in of_classes])
        second = np.concatenate([rows[len(rows) // 2 :] for rows in of_classes])
        return np.sort(first), np.sort(second)

    def train_sources(self, rows: Indices) -> Path:
        """Train a source model on each pair of classes, unless it is there already.

        Args:
            rows: Training rows for the sources.

        Returns:
            Folder of the sources.
        """
        config, pool, model_name = self.config, self.folder / "sources", self.config.model
        assert model_name is not None  # the table names one
        training = LocalTraining(
            lr=config.lr, epochs=config.local_epochs, batch_size=config.batch_size, momentum=config.momentum
        )
        for pair in PAIRS:
            name = f"{pair[0]} and {pair[1]}"
            path = pool / f"{name}.safetensors"
            how = {"pair": list(pair), "data": config.data, "seed": self.seed, "model": model_name} | asdict(training)
            if not is_there(path, how):
                pool.mkdir(parents=True, exist_ok=True)
                half = replace(self.dataset, train=self.dataset.train.take(rows), columns={})
                data = select_classes(half, [self.dataset.classes[k] for k in pair])
                callback = self.make_callback(f"source {name}", self.seed, training.epochs)
                model, accuracy = train_source(
                    data, model_name, training, seed=self.seed, purpose=("source", name), callback=callback
                )
                save_source(path, model, data, accuracy, {"data": config.data, "training": how})
        return pool

    def train_clients(self, partition: str, rows: Indices) -> Path:
        """Run FedAvg with the clients of a partition, or continue the run.

        Args:
            partition: ``paired`` or ``random``.
            rows: Training rows that the clients share.

        Returns:
            Folder of the run.

        Raises:
            InputError: If the run was begun with another config.
        """
        file = self.folder / f"{partition}.json"
        if not file.is_file():
            assert self.config.clients is not None  # `identify` checks it
            train, test = labels_of(self.dataset.train), labels_of(self.dataset.test)
            stream = numpy_stream(self.seed, partition)
            share_out = paired if partition == "paired" else SortedShards()
            cut = share_out(train[rows], test, self.config.clients, stream)
            cut = replace(cut, train=[rows[mine] for mine in cut.train])
            self.folder.mkdir(parents=True, exist_ok=True)
            save_rows(Federation(self.dataset, cut, np.arange(0)), file)
        fields = self.config.model_dump() | {"seed": self.seed, "partition": f"file:{file}", "save_local": True}
        go_on(Config.checked(fields), self.folder / partition, self.make_callback)
        return self.folder / partition / f"fedavg-seed{self.seed}"


@own_settings()
def identify(
    table: IdentificationTable, scale: str, out: Path, given: Fields, make_callback: MakeCallback = nobody
) -> Path:
    """Reproduce SFTL's Table 1: run its missing repeats, and write ``table.json``, ``table.md`` and ``vote.json``.

    The ten classes form five pairs. A repeat trains one source model on each pair, then FedAvg with clients of the
    partition ``paired`` and with clients of ``random``, and lets the clients name a source by each measure.
    ``vote.json`` is the vote of the first repeat's clients of ``paired``.

    Args:
        table: Table to reproduce.
        scale: Name of one of its scales.
        out: Folder for the results, with a subfolder for each repeat.
        given: Fields of the config that overrule the table's; ``seeds`` is the number of repeats.
        make_callback: Observer of each training.

    Returns:
        Path of ``table.md``.

    Raises:
        InputError: If a field is wrong, the data do not have ten classes, or the clients are no multiple of five.
    """
    own = {**table.fields, **table.scales[scale], "methods": ("fedavg",)}
    config = Config.checked({**own, **given})
    other = overruled({name: v for name, v in given.items() if name not in NO_SETTING}, [config], [Config.checked(own)])
    dataset = load(config.data, **config.reading)
    if len(dataset.classes) != 2 * len(PAIRS) or config.clients is None or config.clients % len(PAIRS):
        raise InputError(
            f"data, clients: {config.data} with {len(dataset.classes)} classes and {config.clients} clients is not "
            f"allowed; must be {2 * len(PAIRS)} classes and a multiple of {len(PAIRS)} clients"
        )
    found: Found = {told: {measure: [] for measure in MEASURED} for names in PARTITIONS.values() for told in names}
    each = config.model_copy(update={"seeds": 1})
    for seed in range(config.seed, config.seed + config.seeds):
        repeat = _Repeat(each, dataset, seed, out / f"repeat {seed}", make_callback)
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
    """Partition the data so that each client gets one shard of each class of one pair.

    Every pair has the same number of clients, and clients are in the order of the pairs.

    Args:
        train: Label of each training sample, n integers 0..9.
        test: Label of each test sample, integers 0..9.
        clients: Number of clients, a multiple of the number of pairs.
        rng: Random generator that shuffles the samples of each class.
    """
    each = clients // len(PAIRS)

    def cut(labels: NDArray[Any]) -> list[Indices]:
        own: list[Indices] = []
        for pair in PAIRS:
            of_classes = [np.array_split(rng.permutation(np.flatnonzero(labels == k)), each) for k in pair]
            own += [np.sort(np.concatenate(parts)) for parts in zip(*of_classes, strict=True)]
        return own

    return Partition(cut(np.asarray(train)), cut(np.asarray(test)))


def right(partition: str, ballots: Sequence[Sequence[int]], counts: NDArray[np.int64]) -> dict[str, float]:
    """Compute the fractions of clients that named a right source, by column of the table.

    With the partition ``random``, the two shards of a client may belong to the classes of two sources. ``any of two``
    counts a source that was trained on any class of the client. ``unambiguous`` is the fraction among the clients whose
    classes all belong to one source; it is left out if there are none.

    Args:
        partition: ``paired`` or ``random``.
        ballots: Index of the source that each client names; empty if the client has no score.
        counts: Training samples of each client and class, N×K.

    >>> right("random", [[0], [1], []], np.array([[5, 5, 0, 0], [0, 5, 5, 0], [5, 0, 0, 0]]))
    {'any of two': 0.6666666666666666, 'unambiguous': 0.5}
    """
    pairs = [{k // 2 for k in np.flatnonzero(of_client)} for of_client in counts]
    hits = [any(source in own for source in cast) for cast, own in zip(ballots, pairs, strict=True)]
    clear = [hit for hit, own in zip(hits, pairs, strict=True) if len(own) == 1]
    if partition == "paired":
        return {"paired": statistics.fmean(hits)}
    return {"any of two": statistics.fmean(hits)} | ({"unambiguous": statistics.fmean(clear)} if clear else {})


def another_setting(other: Mapping[str, Any]) -> list[str]:
    """Return Markdown lines that name the fields that differ from a table's; none if no field differs."""
    fields = ", ".join(f"{name}={plain(value)}" for name, value in other.items())
    return (
        [f"The setting differs from this table's: {fields}. The paper's numbers are of the table's setting.", ""]
        if other
        else []
    )


def markdown(table: IdentificationTable, config: Config, found: Found, other: Mapping[str, Any]) -> str:
    """Return the table and its setting as Markdown.

    Args:
        table: Table that was reproduced.
        config: Config of its runs.
        found: Accuracies by column and measure.
        other: Fields that differ from the table's, with their values.
    """
    seeds = f"{config.seeds} repeats" if config.seeds > 1 else "one repeat"
    spread = "; ± is the sample standard deviation over the repeats" if config.seeds > 1 else ""
    lines = [
        f"# {table.title}",
        "",
        f"{config.data}, {config.clients} clients, model {config.model}, {config.rounds} rounds of "
        f"{config.local_epochs} local epochs, batch {config.batch_size}, lr {config.lr}, {seeds}{spread}. Percentage "
        "of the clients that give the right source the highest score.",
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
