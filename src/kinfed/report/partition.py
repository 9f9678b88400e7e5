"""The samples of every client before anything is trained: tables for the terminal, a PNG, JSON, and warnings.

Letters: ``N`` clients, the new ones last; ``K`` classes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kinfed.data import Dataset, Federation, save_rows
from kinfed.data.heterogeneity import effective_classes, total_variation
from kinfed.data.samples import CLIENT, GROUP
from kinfed.errors import plain
from kinfed.files import write_whole
from kinfed.report.names import labels
from kinfed.report.picture import picture
from kinfed.report.samples import has_images, save_samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Holdings", "client_table", "save_holdings", "summary_table"]

SHOWN_CLIENTS = 40  # largest number of clients in the terminal's table
SHOWN_CELLS = 34  # characters for the classes in the terminal's table; neighbouring classes are merged to fit
NAMED = 8  # largest number of names in a warning
SHADES, PLAIN = "·░▒▓█", ".-+*#"


@dataclass(frozen=True)
class Holdings:
    """Numbers of samples of each client and class in a federation, of training clients and new clients.

    Attributes:
        about: Caption: data set, partition and seed, in words.
        classes: Names of the K classes; empty for data without labels.
        names: Names of the N clients: those that the data give, or else their numbers; new clients are marked.
        samples: Training samples of each client, N.
        counts: Training samples of each client and class, N×K.
        tests: Test samples of each client and class, N×K.
        new: Number of new clients, which never train; they are the last ones.
        public: Number of public samples, which the server holds.
        unused: Number of samples that nobody holds.
        left_out: Names of files beside the data that were not read.
        groups: Group of each client under a planted shift, N; empty without one.
        found: Contents of the data set in words: rows, features, classes, groups of samples.
        remarks: Remarks on how a table was read, such as missing values that were filled in.
    """

    about: str
    classes: tuple[str, ...]
    names: tuple[str, ...]
    samples: NDArray[np.int64]
    counts: NDArray[np.int64]
    tests: NDArray[np.int64]
    new: int
    public: int
    unused: int
    left_out: tuple[str, ...]
    groups: tuple[int, ...] = ()
    found: str = ""
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(cls, federation: Federation, about: str) -> Holdings:
        """Count the samples of each client and class; the new clients, which never train, follow the others.

        Args:
            federation: Clients and their data.
            about: Caption of the tables and pictures: data set, partition and seed, in words.
        """
        both = (federation.partition, federation.new_clients)
        return cls(
            plain(about),
            tuple(map(plain, federation.dataset.classes)),
            tuple(
                ("new " if p is federation.new_clients else "") + plain(p.name(i)) for p in both for i in range(len(p))
            ),
            np.array([len(rows) for p in both for rows in p.train]),
            np.concatenate([federation.class_counts(), federation.new_class_counts()]),
            np.concatenate([federation.test_class_counts(), federation.new_test_class_counts()]),
            len(federation.new_clients),
            len(federation.public_rows),
            federation.unused,
            tuple(map(plain, federation.dataset.left_out)),
            federation.groups,
            _found(federation.dataset),
            tuple(map(plain, federation.dataset.remarks)),
        )

    def measures(self) -> dict[str, NDArray[Any]]:
        """Compute the measures of every client by name; each is an array (N). Without labels, it is only the size.

        The total variation is the distance from the class shares of all clients that train, pooled.
        """
        if not self.classes:
            return {"training samples": self.samples}
        pooled = self.counts[: len(self.counts) - self.new].sum(axis=0)
        return {
            "training samples": self.samples,
            "test samples": self.tests.sum(axis=1),
            "classes": (self.counts > 0).sum(axis=1),
            "effective classes": effective_classes(self.counts),
            "total variation": total_variation(self.counts, pooled),
        }

    def untrained(self) -> NDArray[np.int64]:
        """Count the test samples of each client that are of classes it has no training samples of (N)."""
        samples: NDArray[np.int64] = np.where(self.counts == 0, self.tests, 0).sum(axis=1)
        return samples

    def warnings(self, batch_size: int) -> list[str]:
        """List the weaknesses of the partition, one line each, such as clients without test samples."""
        sizes, tests, untrained = self.samples, self.tests.sum(), self.untrained()
        faults = (
            ((self.tests.sum(axis=1) == 0) & bool(self.classes), "without test samples; their accuracy is n/a"),
            ((self.counts > 0).sum(axis=1) == 1, "with samples of one class only; they learn nothing about the others"),
            (
                sizes < batch_size,
                f"with fewer training samples than the batch size {batch_size}; they train on smaller batches",
            ),
            (
                untrained > 0,
                f"with test samples of classes they never train on ({untrained.sum():,} of {tests:,} test samples)",
            ),
        )
        said = [*self.remarks]
        said += [f"clients {what}: {self._who(mask)}" for mask, what in faults if mask.any()]
        if self.unused:
            said.append(f"samples that no client gets: {self.unused:,}")
        if self.left_out:
            more = ", …" if len(self.left_out) > NAMED else ""
            said.append(
                f"files left out of the data: {len(self.left_out):,} ({', '.join(self.left_out[:NAMED])}{more})"
            )
        return said

    def _who(self, mask: NDArray[np.bool_]) -> str:
        ids = np.flatnonzero(mask)
        if len(ids) == len(mask):
            return f"all {len(mask):,}"
        listed = ", ".join(self.names[i] for i in ids[:NAMED]) + (", …" if len(ids) > NAMED else "")
        return f"{len(ids):,} of {len(mask):,} ({listed})"

    def json(self, batch_size: int) -> dict[str, Any]:
        """Return the contents of ``partition.json``: all counts, measures and warnings."""
        measures = {name.replace(" ", "_"): values for name, values in self.measures().items()}
        untrained = self.untrained()
        return {
            "about": self.about,
            "found": self.found,
            "classes": list(self.classes),
            "new_clients": self.new,
            "probe": self.public,
            "unused": self.unused,
            "spread": {
                name: {"min": float(values.min()), "median": float(np.median(values)), "max": float(values.max())}
                for name, values in measures.items()
            },
            "warnings": self.warnings(batch_size),
            "clients": [
                {
                    "name": name,
                    "new": i >= len(self.names) - self.new,
                    **({"group": self.groups[i]} if self.groups else {}),
                    **{measure: values[i].item() for measure, values in measures.items()},
                    "untrained_test_samples": untrained[i].item(),
                    "counts": self.counts[i].tolist(),
                }
                for i, name in enumerate(self.names)
            ],
        }


def _found(dataset: Dataset) -> str:
    """Say what is in a data set: samples, inputs, classes, its own clients, groups of samples, and broken images."""
    samples = f"{len(dataset.train) + len(dataset.test):,} samples"
    of = dataset.features
    inputs = f"inputs of shape {'×'.join(map(str, dataset.shape))}"
    if of:
        one_hot = (
            f" and {of['one_hot']:,} one-hot features of {of['categories']:,} columns" if of.get("one_hot") else ""
        )
        inputs = f"{sum(dataset.shape):,} features ({of['numbers']:,} numbers{one_hot})"
    classes = f"{len(dataset.classes):,} classes" if dataset.labelled else "no labels"
    roles = {CLIENT: "clients", GROUP: "groups"}
    told = [
        f"{len(np.unique(np.concatenate(dataset.columns[column]))):,} {what}"
        for column, what in roles.items()
        if column in dataset.columns
    ]
    if dataset.skipped:
        told.append(
            f"{dataset.skipped:,} images that cannot be decoded ({', '.join(map(plain, dataset.skipped_names))})"
        )
    return ", ".join([samples, inputs, classes, *told])


def summary_table(holdings: Holdings) -> Table:
    """Make the table of the smallest, the median and the largest value of every measure over the clients."""
    table = Table(box=None, pad_edge=False)
    table.add_column(f"{len(holdings.names):,} clients", no_wrap=True)
    for heading in ("min", "median", "max"):
        table.add_column(heading, justify="right")
    table.add_column("")
    said = {
        "effective classes": "number of equally frequent classes with the same entropy",
        "total variation": "distance from the pooled class shares, 0 to 1",
    }
    for name, values in holdings.measures().items():
        style = "{:.2f}" if values.dtype.kind == "f" else "{:,.0f}"
        numbers = (style.format(value) for value in (values.min(), np.median(values), values.max()))
        table.add_row(name, *numbers, Text(said.get(name, ""), style="dim"))
    return table


def client_table(holdings: Holdings, *, terminal: bool) -> Group:
    """Make a table with one row per client, which pictures the client's classes; for 40 clients at most.

    Args:
        holdings: Samples of the clients.
        terminal: True to use shades and colour, False to use plain ASCII characters.
    """
    if not holdings.classes:
        return Group(_size_table(holdings))
    cells = _cells(holdings.counts)
    wide = 2 if cells.shape[1] * 2 <= SHOWN_CELLS else 1
    marks = SHADES if terminal else PLAIN
    names = f"{holdings.classes[0]} … {holdings.classes[-1]}" if len(holdings.classes) > 1 else holdings.classes[0]
    table = Table(box=None, pad_edge=False)
    table.add_column("client", no_wrap=True, max_width=16, overflow="ellipsis")
    for heading in (*(("group",) if holdings.groups else ()), "train", "test", "classes", "TV"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(Text(plain(f"classes {names}")), no_wrap=True, max_width=SHOWN_CELLS, overflow="ellipsis")
    measures = holdings.measures()
    top = cells.max()
    for i, name in enumerate(holdings.names):
        # Rounded up, so that every class with samples is visible.
        levels = np.ceil(cells[i] / max(top, 1e-12) * (len(marks) - 1)).astype(int)
        table.add_row(
            Text(plain(name)),
            *((f"{holdings.groups[i]}",) if holdings.groups else ()),
            f"{measures['training samples'][i]:,}",
            f"{measures['test samples'][i]:,}",
            f"{measures['classes'][i]:,}",
            f"{measures['total variation'][i]:.2f}",
            Text("".join(marks[level] * wide for level in levels), style="bright_blue" if terminal else ""),
        )
    legend = (
        f"{marks[0]} none; {' '.join(marks[1:])} up to ¼, ½, ¾ and all of {top:.2f}, a class's largest share of "
        "a client's samples"
    )
    return Group(table, Text(legend, style="dim"))


def _size_table(holdings: Holdings) -> Table:
    """Make a table with the number of images of each client, for data without labels."""
    table = Table(box=None, pad_edge=False)
    table.add_column("client", no_wrap=True, max_width=40, overflow="ellipsis")
    for heading in (*(("group",) if holdings.groups else ()), "images"):
        table.add_column(heading, justify="right", no_wrap=True)
    for i, name in enumerate(holdings.names):
        groups = (f"{holdings.groups[i]}",) if holdings.groups else ()
        table.add_row(Text(plain(name)), *groups, f"{holdings.samples[i]:,}")
    return table


def _cells(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the share of each client's samples by class, or by groups of neighbouring classes if there are many."""
    classes = counts.shape[1]
    width = -(-classes // SHOWN_CELLS)
    binned = np.add.reduceat(counts, np.arange(0, classes, width), axis=1)
    shares: NDArray[np.float64] = binned / counts.sum(axis=1, keepdims=True).clip(min=1)
    return shares


def save_holdings(holdings: Holdings, federation: Federation, folder: Path, batch_size: int) -> Iterator[Path]:
    """Write ``partition.json``, ``partition.png`` and ``rows.json`` into a folder, and yield their paths.

    ``samples.png`` shows some images, if the data are images. ``rows.json`` lists the samples of every client;
    ``--partition file:PATH`` reads it.

    Raises:
        NotSaved: If a file cannot be written.
    """
    write_whole(folder / "partition.json", json.dumps(holdings.json(batch_size)) + "\n", durable=False)
    yield folder / "partition.json"
    _save_partition_picture(holdings, folder / "partition.png")
    yield folder / "partition.png"
    if has_images(federation.dataset.train):
        save_samples(federation, holdings.names, holdings.about, folder / "samples.png")
        yield folder / "samples.png"
    save_rows(federation, folder / "rows.json")
    yield folder / "rows.json"


def _save_partition_picture(holdings: Holdings, path: Path) -> None:
    with picture(path, 10, min(9, 3.2 + 0.16 * len(holdings.names))) as figure:
        _draw(holdings, figure)


def _draw(holdings: Holdings, figure: Figure) -> None:
    from matplotlib.ticker import MaxNLocator

    clients, classes = holdings.counts.shape
    few = clients <= SHOWN_CLIENTS
    widths = [*([3] if classes else []), *([0.12] if holdings.groups else []), 1 if classes else 4]
    every = np.atleast_1d(figure.subplots(1, len(widths), sharey=True, width_ratios=widths))
    left, right = every[0], every[-1]
    if holdings.groups:
        _draw_groups(holdings.groups, every[-2], numbers=few)
    if classes:
        _draw_counts(holdings, figure, left)
    left.set(ylabel="client")
    if few:
        left.set_yticks(range(clients), labels(holdings.names), fontsize=8)
    else:
        left.yaxis.set_major_locator(MaxNLocator(integer=True))
    edges = np.arange(clients + 1) - 0.5
    sizes = holdings.samples
    for values, base, colour, label in (
        (sizes, np.zeros(clients), "#0072B2", "training"),
        (sizes + holdings.tests.sum(axis=1), sizes, "#E69F00", "test"),
    ):
        right.stairs(values, edges, baseline=base, orientation="horizontal", fill=True, color=colour, label=label)
    right.set(xlabel="samples", xlim=(0, None))
    right.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    if holdings.new:
        for axis in every:
            axis.axhline(clients - holdings.new - 0.5, color="#D55E00", linewidth=1.5)
        left.set_title("below the line: new clients, which do not train", fontsize=9)
    figure.suptitle(plain(holdings.about), fontsize=10)


def _draw_counts(holdings: Holdings, figure: Figure, axes: Axes) -> None:
    """Draw the training samples of each client and class."""
    from matplotlib.ticker import MaxNLocator

    image = axes.imshow(holdings.counts, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
    figure.colorbar(image, ax=axes, location="left", shrink=0.8, label="training samples")
    axes.set(xlabel="class")
    classes = len(holdings.classes)
    if classes <= 30:
        upright = max(map(len, holdings.classes)) <= 2
        axes.set_xticks(range(classes), labels(holdings.classes), rotation=0 if upright else 90)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_groups(groups: Sequence[int], axes: Axes, *, numbers: bool) -> None:
    """Draw a column with a colour for the group of each client; ten colours, which repeat."""
    axes.imshow(np.array(groups)[:, None] % 10, aspect="auto", cmap="tab10", interpolation="nearest", vmin=0, vmax=9)
    axes.set(xticks=[])
    axes.set_title("group", fontsize=8)
    for client, group in enumerate(groups if numbers else ()):
        axes.text(0, client, f"{group}", ha="center", va="center", fontsize=8, color="white", weight="bold")
