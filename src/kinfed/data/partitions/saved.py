"""Partitions in JSON files (``--partition file:PATH``), which other programs can read and write."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kinfed.data.federation import Federation
from kinfed.data.partitions.partition import Indices, Partition
from kinfed.data.samples import Dataset, labels_of
from kinfed.errors import InputError
from kinfed.fields import check_fields
from kinfed.files import write_whole

__all__ = ["Saved", "open_rows", "save_rows"]

FIELDS = ("train_samples", "test_samples", "clients")


@dataclass(frozen=True)
class Saved:
    """A partition in a file, with the server's public images and the new clients.

    Attributes:
        path: File that `save_rows` or another program wrote.

    >>> Saved("clients.json")  # doctest: +SKIP
    """

    options: ClassVar[Mapping[str, str]] = {}

    path: Path

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.path.is_file():
            raise InputError(f"partition: {str(self.path)!r} is no file; kinfed partition writes one")

    def federation(self, dataset: Dataset, *, clients: int | None, public: int | None, new_clients: int) -> Federation:
        """Read the federation and check its numbers.

        Args:
            dataset: Data set that the rows belong to.
            clients: Number of clients that the file must have, including new ones; any number if None.
            public: Number of public images that the server must hold; any number if None.
            new_clients: Number of new clients that the file must have.

        Raises:
            InputError: If the file has other numbers, or `open_rows` refuses it.
        """
        federation = open_rows(dataset, self.path)
        new, held = len(federation.new_clients), len(federation.public_rows)
        for name, asked, has in (
            ("clients", clients, len(federation) + new),
            ("new_clients", new_clients, new),
            ("public", public, held),
        ):
            if asked not in (has, None):
                raise InputError(f"{name}: {asked} is not allowed; {str(self.path)!r} has {has}")
        return federation


def save_rows(federation: Federation, path: Path) -> None:
    """Write the rows of each client to a JSON file.

    The fields are: ``train_samples`` and ``test_samples``, the sizes of the data set; ``labels``, a CRC-32 of its
    labels, since the same rows of a test set that is drawn differently are other samples; ``pooled``, see `Partition`;
    ``clients`` and ``new_clients``, lists of ``{"name": text or null, "train": rows, "test": rows}``; ``probe``, the
    rows of the server's public images. Rows count from 0.

    Raises:
        InputError: If there are no clients, or a client has no training sample.
        NotSaved: If the file cannot be written.

    >>> save_rows(federation, Path("clients.json"))  # doctest: +SKIP
    """
    _refuse_idle(path, federation.partition, federation.new_clients)
    rows = {
        **_sizes(federation.dataset),
        "labels": _crc_of_labels(federation.dataset),
        "pooled": federation.partition.pooled,
        "clients": _listed(federation.partition),
        "new_clients": _listed(federation.new_clients),
        "probe": federation.public_rows.tolist(),
    }
    write_whole(path, json.dumps(rows) + "\n", durable=False)


def open_rows(dataset: Dataset, path: Path) -> Federation:
    """Read a federation from a JSON file that `save_rows` or another program wrote.

    The file may lack ``labels``, ``pooled``, ``new_clients``, ``probe`` and the clients' names.

    Args:
        dataset: Data set that the rows belong to.
        path: The file.

    Raises:
        InputError: If the file cannot be read, belongs to another data set, or has a client without training samples.

    >>> open_rows(dataset, Path("clients.json"))  # doctest: +SKIP
    """
    told = _read(path)
    try:
        if not isinstance(pooled := told.get("pooled", False), bool):
            raise ValueError("pooled is neither true nor false")
        clients, new = (_partition(told.get(name, []), pooled) for name in ("clients", "new_clients"))
        public = _rows(told.get("probe", []))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"partition: {str(path)!r} must list clients as {{'train': rows, 'test': rows}}, rows being integers: "
            f"{error}"
        ) from error
    sizes = _sizes(dataset)
    if any(told[name] != size for name, size in sizes.items()):
        belongs = " and ".join(str(told[name]) for name in sizes)
        raise InputError(
            f"partition: {str(path)!r} belongs to {belongs} training and test samples; {dataset.name} has "
            f"{' and '.join(map(str, sizes.values()))}"
        )
    if told.get("labels", (own := _crc_of_labels(dataset))) != own:
        raise InputError(
            f"partition: {str(path)!r} belongs to samples with other labels than {dataset.name}; give the data set and "
            "its options, such as client, group and test_fraction, as they were when the file was written"
        )
    _refuse_idle(path, clients, new)
    try:
        return Federation(dataset, clients, public, new)
    except ValueError as error:
        raise InputError(f"partition: {str(path)!r}: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"partition: {str(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"partition: {str(path)!r} is no JSON: {error}") from error
    missing = [name for name in FIELDS if not isinstance(told, dict) or name not in told]
    if missing:
        raise InputError(f"partition: {str(path)!r} lacks {', '.join(missing)}; kinfed partition writes such a file")
    return dict(told)


def _refuse_idle(path: Path, clients: Partition, new: Partition) -> None:
    if not len(clients):
        raise InputError(f"partition: {str(path)!r} has no clients")
    for which, held in (("client", clients), ("new client", new)):
        idle = next((i for i, rows in enumerate(held.train) if not len(rows)), None)
        if idle is not None:
            name = f" ({held.names[idle]})" if held.names else ""
            raise InputError(f"partition: {str(path)!r} has one without training samples: {which} {idle}{name}")


def _sizes(dataset: Dataset) -> dict[str, int]:
    return {"train_samples": len(dataset.train), "test_samples": len(dataset.test)}


def _crc_of_labels(dataset: Dataset) -> int:
    """Return the CRC-32 of the labels of all samples, as little-endian integers of 64 bits; 0 for no labels."""
    splits = (dataset.train, dataset.test) if dataset.labelled else ()
    return zlib.crc32(b"".join(labels_of(split).astype("<i8").tobytes() for split in splits))


def _listed(partition: Partition) -> list[dict[str, Any]]:
    names = partition.names or (None,) * len(partition)
    return [
        {"name": name, "train": train.tolist(), "test": test.tolist()}
        for name, train, test in zip(names, partition.train, partition.test, strict=True)
    ]


def _partition(listed: Sequence[Mapping[str, Any]], pooled: bool) -> Partition:
    train, test = ([_rows(client[split]) for client in listed] for split in ("train", "test"))
    names = [client.get("name") for client in listed]
    return Partition(train, test, pooled, () if None in names else tuple(map(str, names)))


def _rows(listed: Sequence[int]) -> Indices:
    rows = np.asarray(listed)
    if len(rows) and (rows.ndim != 1 or rows.dtype.kind != "i"):
        raise ValueError("rows are no integers")
    return np.sort(rows.astype(np.int64))
