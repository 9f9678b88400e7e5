"""Planted shifts: groups of clients whose data differ by a known transformation.

Methods that find related clients can be tested against these groups, which no method ever sees.

Letters: ``G`` groups, numbered 0..G-1; ``N`` clients; ``K`` classes.
"""

from __future__ import annotations

import colorsys
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from kinfed.data.federation import Federation
from kinfed.data.partitions.partition import NOBODY, Indices, rows_by
from kinfed.data.samples import Dataset, Samples
from kinfed.errors import InputError, check_choice
from kinfed.fields import short
from kinfed.streams import numpy_stream

__all__ = ["SHIFTS", "Shift", "parse_shift", "with_shift"]

Change = Callable[[Samples, int], Samples]  # samples and their group -> the shifted samples

FORM = re.compile(r"[a-z_]+:([0-9]{1,9})(?::([0-9]{1,9}(?:,[0-9]{1,9})*))?")
TURNS = 4  # quarter turns after which an image is as it was
SATURATION = 0.75  # of the tints: a channel keeps a quarter of its values or more


@dataclass(frozen=True)
class Shift:
    """A shift by name, with its groups of clients.

    Attributes:
        name: Name in `SHIFTS`.
        groups: Number G of groups, 2 or more.
        weights: Relative numbers of clients of the groups, G; empty for groups of equal sizes.

    >>> parse_shift("rotate:4").fewest, parse_shift("rotate:4:1,2,3,4").fewest
    (4, 10)
    """

    name: str
    groups: int
    weights: tuple[int, ...] = ()

    def __str__(self) -> str:
        sizes = f":{','.join(map(str, self.weights))}" if self.weights else ""
        return f"{self.name}:{self.groups}{sizes}"

    @property
    def fewest(self) -> int:
        """The smallest number of clients of which every group gets one."""
        return -(-sum(self.weights) // min(self.weights)) if self.weights else self.groups

    def check(self, clients: int) -> None:
        """Refuse a number of clients that leaves a group without a client.

        Args:
            clients: Number of clients that train.
        """
        if clients < self.fewest:
            raise InputError(
                f"shift: {str(self)!r} is not allowed; its groups need {self.fewest} clients that train, or more, and "
                f"there {'is' if clients == 1 else 'are'} {clients}"
            )

    def draw(self, count: int, stream: np.random.Generator) -> tuple[int, ...]:
        """Draw the groups of some clients. The size of each group is its exact share, rounded up or down.

        Args:
            count: Number of clients.
            stream: Random stream; it also decides which shares are rounded up.
        """
        return tuple(_drawn(self.weights or (1,) * self.groups, count, stream).tolist())


def parse_shift(text: str) -> Shift:
    """Parse ``NAME:GROUPS`` or ``NAME:GROUPS:SIZES``.

    Raises:
        InputError: If the text has another form, the shift is unknown, or a number is not allowed.

    >>> parse_shift("invert:3:1,1,2")
    Shift(name='invert', groups=3, weights=(1, 1, 2))
    """
    name, said = text.partition(":")[0], f"shift: {short(text)} is not allowed; must have"
    check_choice("shift", name, SHIFTS)
    if (form := FORM.fullmatch(text)) is None:
        raise InputError(f"{said} the form NAME:GROUPS or NAME:GROUPS:SIZES, as in rotate:4 or rotate:4:1,2,3,4")
    groups, weights = int(form[1]), tuple(map(int, form[2].split(","))) if form[2] else ()
    if groups < 2 or (name == "rotate" and groups > TURNS):
        raise InputError(f"{said} {f'2 to {TURNS} groups' if name == 'rotate' else '2 groups or more'}")
    if weights and (len(weights) != groups or not min(weights)):
        raise InputError(f"{said} {groups} sizes of 1 or more, one for each group")
    return Shift(name, groups, weights)


def with_shift(federation: Federation, shift: str | None, seed: int) -> Federation:
    """Plant a shift: draw the group of each client, and transform the samples of each group.

    Training, validation and test samples of a client are shifted alike, those of new clients as well. The server's
    public images are drawn from all groups in equal parts, whatever the groups' sizes. Samples that nobody holds stay
    as they are, and so does the normalisation. The given federation is not changed.

    Args:
        federation: Federation without a shift.
        shift: Name and groups, such as ``"rotate:4"`` or ``"rotate:4:1,2,3,4"`` (relative sizes of the groups); None
            returns the federation unchanged.
        seed: Seed of the run.

    Returns:
        The federation with `Federation.groups`, the group of each client.

    Raises:
        InputError: If there is no such shift, it does not suit the data or the number of clients, or the federation
            has one already.

    >>> from kinfed.data import load, make_federation
    >>> plain = make_federation(load("digits"), "iid", clients=6, seed=0)
    >>> shifted = with_shift(plain, "rotate:2", seed=0)
    >>> sorted(shifted.groups), len(shifted.train(0)) == len(plain.train(0))
    ([0, 0, 0, 1, 1, 1], True)
    """
    if shift is None:
        return federation
    if federation.groups:
        raise InputError(f"shift: {short(shift)} is not allowed; the federation already has a shift")
    made, dataset = parse_shift(shift), federation.dataset
    made.check(len(federation))
    change = SHIFTS[made.name](made, dataset, numpy_stream(seed, "shift", "transformation"))
    groups = made.draw(len(federation), numpy_stream(seed, "shift", "clients"))
    groups += made.draw(len(federation.new_clients), numpy_stream(seed, "shift", "new clients"))
    public = _drawn((1,) * made.groups, len(federation.public_rows), numpy_stream(seed, "shift", "public"))
    of_train, of_test = _groups_of_samples(federation, groups, public)
    train, test = _changed(dataset.train, of_train, change), _changed(dataset.test, of_test, change)
    return replace(federation, dataset=replace(dataset, train=train, test=test), groups=groups)


def _drawn(weights: Sequence[int], count: int, stream: np.random.Generator) -> Indices:
    """Draw the groups of a number of clients or images, in proportion to the weights of the groups.

    Each group gets its exact share, rounded up or down, and has it in the mean over the draws (systematic sampling).
    """
    ends = np.cumsum([0, *weights])
    sizes = np.diff((count * ends + stream.integers(ends[-1])) // ends[-1])
    return stream.permutation(np.repeat(np.arange(len(weights)), sizes))


def _groups_of_samples(federation: Federation, groups: Sequence[int], public: Indices) -> tuple[Indices, Indices]:
    """Return the group of each training and of each test sample; that of a sample without a holder is `NOBODY`."""
    partition, new, size = federation.partition, federation.new_clients, len(federation.dataset.train)
    of = np.full(size + len(federation.dataset.test), NOBODY)
    tests = [rows + (0 if partition.pooled else size) for rows in (*partition.test, *new.test)]
    for cut in ([*partition.train, *new.train], federation.validation, tests):
        for group, rows in zip(groups, cut, strict=False):  # new clients have no validation samples
            of[rows] = group
    of[federation.public_rows] = public
    return of[:size], of[size:]


def _changed(samples: Samples, of: Indices, change: Change) -> Samples:
    """Return a copy of samples in which those of each group are shifted."""
    inputs, labels = samples.inputs.clone(), None if samples.labels is None else samples.labels.clone()
    for group, rows in enumerate(rows_by(of, int(of.max(initial=NOBODY)) + 1)):
        shifted = change(samples.take(rows), group)
        inputs[rows] = shifted.inputs
        if labels is not None and shifted.labels is not None:
            labels[rows] = shifted.labels
    return replace(samples, inputs=inputs, labels=labels)


def _rotate(shift: Shift, dataset: Dataset, stream: np.random.Generator) -> Change:
    """Turn the images of group g counter-clockwise by g quarter turns."""
    del stream
    if len(dataset.shape) != 3 or dataset.shape[1] != dataset.shape[2]:
        raise _unsuitable(shift, dataset, "square images")

    def change(samples: Samples, group: int) -> Samples:
        return replace(samples, inputs=samples.inputs.rot90(group, (2, 3)))

    return change


def _permute_labels(shift: Shift, dataset: Dataset, stream: np.random.Generator) -> Change:
    """Rename the classes in each group by a permutation of its own; group 0 keeps the labels."""
    if not dataset.labelled:
        raise InputError(f"shift: {str(shift)!r} is not allowed; it needs labels, and {dataset.name} has none")
    classes = len(dataset.classes)
    if shift.groups > math.factorial(min(classes, 12)):  # nobody has 12! clients
        raise InputError(
            f"shift: {str(shift)!r} is not allowed; {classes} classes have {math.factorial(classes)} permutations"
        )
    drawn = {tuple(range(classes)): None}
    while len(drawn) < shift.groups:
        drawn[tuple(stream.permutation(classes).tolist())] = None
    permutations = torch.tensor([*drawn])

    def change(samples: Samples, group: int) -> Samples:
        assert samples.labels is not None
        return replace(samples, labels=permutations[group][samples.labels])

    return change


def _invert(shift: Shift, dataset: Dataset, stream: np.random.Generator) -> Change:
    """Invert one of G-1 vertical strips of equal width in each group, from left to right; group 0 stays as it is.

    The pixels are mirrored between 0 and 255, or between the lowest and the highest value of float training images.
    """
    del stream
    if len(dataset.shape) != 3 or dataset.shape[2] < shift.groups - 1:
        raise _unsuitable(shift, dataset, f"images of {shift.groups - 1} columns or more")
    width, inputs = dataset.shape[2], dataset.train.inputs
    ends = [0, *np.linspace(0, width, shift.groups).astype(int).tolist()]
    both = (inputs.min() + inputs.max()).item() if inputs.is_floating_point() else 255

    def change(samples: Samples, group: int) -> Samples:
        column = torch.arange(width)
        inside = (ends[group] <= column) & (column < ends[group + 1])
        return replace(samples, inputs=(both - samples.inputs).where(inside, samples.inputs))

    return change


def _colour(shift: Shift, dataset: Dataset, stream: np.random.Generator) -> Change:
    """Tint the images of group g: multiply the channels by the colour with the hue g/G; group 0 is red."""
    del stream
    if len(dataset.shape) != 3 or dataset.shape[0] != 3:
        raise _unsuitable(shift, dataset, "images of 3 channels (channels=3 makes them of grey ones)")
    tints = torch.tensor([colorsys.hsv_to_rgb(group / shift.groups, SATURATION, 1) for group in range(shift.groups)])

    def change(samples: Samples, group: int) -> Samples:
        tinted, kind = samples.inputs * tints[group].view(3, 1, 1), samples.inputs.dtype
        return replace(samples, inputs=tinted if kind.is_floating_point else tinted.round().to(kind))

    return change


def _unsuitable(shift: Shift, dataset: Dataset, needed: str) -> InputError:
    shape = "×".join(map(str, dataset.shape))
    return InputError(f"shift: {str(shift)!r} is not allowed; it needs {needed}, but the inputs have the shape {shape}")


SHIFTS: dict[str, Callable[[Shift, Dataset, np.random.Generator], Change]] = {
    "rotate": _rotate,
    "permute_labels": _permute_labels,
    "invert": _invert,
    "colour": _colour,
}
