"""The federation as the server knows it: names, sizes and classes of the sites, but none of their samples."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from kinfed.data import Dataset, Federation, Normalisation, Partition, Samples
from kinfed.data.samples import ChannelSums
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.provenance import provenance
from kinfed.fields import one_line
from kinfed.flower.site import processor
from kinfed.methods import Method

__all__ = ["Introduction", "SitesFederation", "agreed", "impossible", "refuse_impossible"]


class Introduction(BaseModel):
    """What a site tells before anything trains: its name, its versions, and sums over its samples."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    kinfed: str
    torch: str
    processor: str
    shape: tuple[int, ...]
    type: str
    classes: tuple[str, ...]
    train: int
    test: int
    counts: tuple[tuple[int, ...], tuple[int, ...]] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sums: dict[str, Any] | None
    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Introduction:
        """Read an introduction.

        Raises:
            ValueError: If it is none, or its counts contradict its sizes.
        """
        try:
            told = cls.model_validate(about)
        except ValidationError as error:
            raise ValueError(f"its introduction cannot be read: {one_line(error)}") from error
        sizes = [(told.train, told.classes), (told.test, told.classes)]
        for counts, (size, classes) in zip(told.counts or (), sizes, strict=False):
            if len(counts) != len(classes) or sum(counts) != size or min(counts, default=0) < 0:
                raise ValueError("its introduction cannot be read: the counts of its classes contradict its sizes")
        return told


@dataclass(frozen=True)
class SitesFederation(Federation):
    """Federation whose samples are at the sites: inputs and labels here only have their numbers and shapes.

    Attributes:
        images: Public images of the server; None for none.
    """

    images: Samples | None = None

    @cached_property
    def public_images(self) -> Samples | None:
        """The public images that the server holds, without labels; None if it holds none."""
        return self.images


def refuse_impossible(config: Config) -> None:
    """Refuse what cannot be done without the samples of all clients at one place.

    Raises:
        InputError: If the config asks for it; one line names the field or the method.
    """
    pooled = ["new_clients", "hold_out", "shift", "validation", "patience", "classes", "train_images"]
    for field in (*pooled, *(["linear_probe"] if config.labelled is None else [])):
        if getattr(config, field):
            raise InputError(f"{field}: needs samples of all clients at one place, which there is not at sites")
    if config.weights_by_client is not None:
        raise InputError("weights: a folder with a file for each client is not possible at sites; give one file")
    for label in config.methods:
        method = config.method(label)
        if why := impossible(method):
            raise InputError(f"methods: {label} {why}, which there is not at sites")
        probes = config.linear_probe is not False or config.knn_every
        if not method.supervised and probes and (config.labelled is None or method.primary != "global"):
            raise InputError(
                f"methods: {label} reads no labels, and its accuracy needs those of all clients; give "
                "linear_probe=false and knn_every=0"
            )


def impossible(method: Method) -> str | None:
    """Return in words what a method has that there is not at sites; None if sites can do it."""
    if method.trains == "pooled":
        return "trains on all samples at one place"
    return "is told true groups" if method.requires.true_groups else None


def agreed(told: Sequence[Introduction], *, images: Samples | None = None, name: str = "sites") -> SitesFederation:
    """Make the federation on which the sites agree: common classes, and one normalisation.

    Args:
        told: Introductions of the N sites, in the order of the clients' numbers.
        images: Public images of the server; None for none.
        name: Name of the data.

    Raises:
        InputError: If the sites do not fit together; one line names the site and what does not fit.
    """
    _refuse_misfits(told)
    first = told[0]
    classes = _common_classes(told)
    normalise = _normalisation(told)
    counts, test_counts = (_counts(told, classes, which) for which in range(2))
    public = 0 if images is None else len(images)
    remarks = [f"{site.name} does not tell its class counts; here they are spread evenly" for site in told
               if site.counts is None and classes]  # fmt: skip

    def nothing(sizes: Sequence[int], of_classes: NDArray[np.int64], more: int = 0) -> Samples:
        inputs = torch.zeros(1, dtype=getattr(torch, first.type)).expand(sum(sizes) + more, *first.shape)
        labels = [np.repeat(np.arange(len(classes)), row) for row in of_classes]
        every = np.concatenate([*labels, np.zeros(more, dtype=np.int64)])
        return Samples(inputs, torch.from_numpy(every) if classes else None, normalise)

    sizes, test_sizes = [site.train for site in told], [site.test for site in told]
    train, test = nothing(sizes, counts, public), nothing(test_sizes, test_counts)
    cut, test_cut = (np.split(np.arange(sum(of)), np.cumsum(of)[:-1]) for of in (sizes, test_sizes))
    dataset = Dataset(name, train, test, classes, remarks=tuple(remarks))
    partition = Partition(cut, test_cut, names=tuple(site.name for site in told))
    rows = np.arange(sum(sizes), sum(sizes) + public)
    if images is not None:
        images = Samples(images.inputs, None, normalise)
    return SitesFederation(dataset, partition, rows, images=images)


def _refuse_misfits(told: Sequence[Introduction]) -> None:
    first, ours = told[0], provenance("cpu").get("kinfed", "")
    for name, count in Counter(site.name for site in told).items():
        if count > 1:
            raise InputError(f"sites: {count} nodes have the name {name!r}; each must have its own")
    for site in told:
        for what in ("shape", "type"):
            if getattr(site, what) != getattr(first, what):
                one, other = ("×".join(map(str, of)) if what == "shape" else of for of in
                              (getattr(site, what), getattr(first, what)))  # fmt: skip
                raise InputError(
                    f"sites: {site.name} has inputs of {what} {one}, but {first.name} has {other}; choose options of "
                    "the reading that make them alike"
                )
        if bool(site.classes) != bool(first.classes):
            raise InputError(f"sites: one of {site.name} and {first.name} has labels, and the other has none")
        if site.kinfed != ours:
            raise InputError(f"sites: {site.name} has kinfed {site.kinfed}, but the server {ours}")
        if not site.train:
            raise InputError(f"sites: {site.name} has no training samples")
    for what, here in (("torch", torch.__version__), ("processor", processor())):
        others = [f"{site.name} ({getattr(site, what)})" for site in told if getattr(site, what) != here]
        if others:
            warnings.warn(
                f"last bits may differ from a run on one machine: {what} of the server is {here}, not that of "
                f"{', '.join(others)}",
                stacklevel=4,
            )


def _common_classes(told: Sequence[Introduction]) -> tuple[str, ...]:
    """Return the classes of all sites together, in their order: numbers by value, and text alphabetically."""
    names = {name for site in told for name in site.classes}
    try:
        return tuple(sorted(names, key=int))
    except ValueError:
        return tuple(sorted(names))


def _normalisation(told: Sequence[Introduction]) -> Normalisation:
    """Return the normalisation of all sites: that which they have in common, or else that of their sums.

    Raises:
        InputError: If there are no sums, since the inputs are no pixels.
    """
    first = told[0]
    if all((site.mean, site.std) == (first.mean, first.std) for site in told):
        return Normalisation(first.mean, first.std)
    if any(site.sums is None for site in told):
        raise InputError(
            "sites: their features are standardised differently; standardise them alike beforehand, and give "
            "standardise=false"
        )
    try:
        sums = [
            ChannelSums(int(of["count"]), tuple(map(float, of["total"])), tuple(map(float, of["squares"])))
            for of in (site.sums or {} for site in told)
        ]
        total = sums[0]
        for other in sums[1:]:
            total += other
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"sites: the sums over their inputs cannot be added: {type(error).__name__}") from error
    return total.normalisation()


def _counts(told: Sequence[Introduction], classes: tuple[str, ...], which: int) -> NDArray[np.int64]:
    """Return the samples of each site and class, N×K, spread evenly where a site does not tell.

    Args:
        told: Introductions of the N sites.
        classes: The K classes.
        which: 0 for training samples, 1 for test samples.
    """
    counts = np.zeros((len(told), len(classes)), dtype=np.int64)
    for at, site in enumerate(told):
        size = (site.train, site.test)[which]
        if site.counts is not None:
            counts[at, [classes.index(name) for name in site.classes]] = site.counts[which]
        elif classes:
            counts[at] = [size // len(classes) + (place < size % len(classes)) for place in range(len(classes))]
    return counts
