"""Samples and data sets in memory. Inputs are stored as decoded, and normalised batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.data.tables import Encoding

__all__ = [
    "AS_THEY_ARE", "CLIENT", "GROUP", "ChannelSums", "Dataset", "Normalisation", "Samples", "joined", "labels_of",
    "strata",
]  # fmt: skip

GROUP = "group"  # column with the group of each sample, such as its patient; groups are not divided
CLIENT = "client"  # column with the client of each sample, in data with one folder per client


@dataclass(frozen=True)
class Normalisation:
    """Per-channel mean and standard deviation of the training inputs, on the scale of the stored values.

    ``AS_THEY_ARE``, with empty tuples, leaves inputs unchanged.

    >>> Normalisation.of(torch.tensor([[1.0], [3.0]]))
    Normalisation(mean=(2.0,), std=(1.0,))
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, inputs: Tensor, chunk: int = 4096) -> Normalisation:
        """Compute the statistics over samples and positions.

        Args:
            inputs: Inputs n×c×h×w or n×c.
            chunk: Number of samples that are processed at a time.

        Returns:
            Mean and standard deviation of each channel; a constant channel gets the standard deviation 1.
        """
        return ChannelSums.of(inputs, chunk).normalisation()

    @classmethod
    def of_features(cls, inputs: Tensor, chunk: int = 4096) -> Normalisation:
        """Compute the statistics of each feature of the training rows.

        Args:
            inputs: Features n×p.
            chunk: Number of rows that are processed at a time.

        Returns:
            Mean and standard deviation of each feature; a constant feature gets the standard deviation 1.

        >>> Normalisation.of_features(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        Normalisation(mean=(2.0, 5.0), std=(1.0, 1.0))
        """
        from sklearn.preprocessing import StandardScaler

        scaler = StandardScaler()
        for part in inputs.split(chunk):
            scaler.partial_fit(part.double().numpy())
        # Values that differ less than float32 can divide by are constant.
        std = np.where(scaler.scale_ < np.finfo(np.float32).tiny, 1.0, scaler.scale_)
        return cls(tuple(scaler.mean_.tolist()), tuple(std.tolist()))

    def __call__(self, inputs: Tensor) -> Tensor:
        """Convert stored values to float32, subtract the mean and divide by the standard deviation of each channel."""
        if not self.mean:
            return inputs.float()
        shape = (1, -1) + (1,) * (inputs.dim() - 2)
        mean = torch.tensor(self.mean, dtype=torch.float32, device=inputs.device).view(shape)
        scale = torch.tensor(self.std, dtype=torch.float32, device=inputs.device).reciprocal().view(shape)
        return (inputs.float() - mean) * scale


AS_THEY_ARE = Normalisation((), ())


@dataclass(frozen=True)
class ChannelSums:
    """Sums over the training inputs of each of c channels, from which their normalisation follows.

    Those of integers, such as pixels, are exact; so sites that add theirs get the bits of all inputs at one place.

    >>> parts = [ChannelSums.of(torch.tensor([[value]], dtype=torch.uint8)) for value in (1, 3)]
    >>> (parts[0] + parts[1]).normalisation()
    Normalisation(mean=(2.0,), std=(1.0,))

    Attributes:
        count: Number of values in each channel.
        total: Sum of the values of each channel, c.
        squares: Sum of their squares, c.
    """

    count: int
    total: tuple[float, ...]
    squares: tuple[float, ...]

    @classmethod
    def of(cls, inputs: Tensor, chunk: int = 4096) -> ChannelSums:
        """Sum over samples and positions of inputs n×c×h×w or n×c, ``chunk`` samples at a time."""
        count, total, squares = 0, torch.zeros(inputs.shape[1]).double(), torch.zeros(inputs.shape[1]).double()
        for part in inputs.split(chunk):
            flat = part.double().flatten(2) if part.dim() > 2 else part.double()[:, :, None]
            count += flat.shape[0] * flat.shape[2]
            total = total + flat.sum(dim=(0, 2))
            squares = squares + flat.square().sum(dim=(0, 2))
        return cls(count, tuple(total.tolist()), tuple(squares.tolist()))

    def __add__(self, other: ChannelSums) -> ChannelSums:
        both = ((self.total, other.total), (self.squares, other.squares))
        total, squares = (tuple(a + b for a, b in zip(*pair, strict=True)) for pair in both)
        return ChannelSums(self.count + other.count, total, squares)

    def normalisation(self) -> Normalisation:
        """Return the mean and standard deviation of each channel; a constant channel gets the deviation 1."""
        mean = torch.tensor(self.total, dtype=torch.float64) / self.count
        squares = torch.tensor(self.squares, dtype=torch.float64)
        std = (squares / self.count - mean.square()).clamp(min=0).sqrt()
        std[std < 1e-12] = 1.0
        return Normalisation(tuple(mean.tolist()), tuple(std.tolist()))


@dataclass(frozen=True)
class Samples:
    """Inputs and labels of n samples.

    Attributes:
        inputs: uint8 images n×c×h×w or float features, possibly memory-mapped.
        labels: int64 labels, n; None for unlabelled samples.
        normalise: Normalisation that `batch` applies.

    >>> samples = Samples(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1]), Normalisation((2.0,), (1.0,)))
    >>> samples.batch(slice(0, 2)).tolist()
    [[-1.0], [1.0]]
    """

    inputs: Tensor
    labels: Tensor | None
    normalise: Normalisation

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows: np.ndarray | Sequence[int]) -> Samples:
        """Return a copy of some rows, in the order given."""
        index = torch.as_tensor(np.asarray(rows, dtype=np.int64), device=self.inputs.device)
        labels = None if self.labels is None else self.labels[index]
        return replace(self, inputs=self.inputs.index_select(0, index), labels=labels)

    def without_labels(self) -> Samples:
        """Return the samples without their labels."""
        return replace(self, labels=None)

    def to(self, device: torch.device) -> Samples:
        """Return the samples on another device."""
        return replace(
            self, inputs=self.inputs.to(device), labels=None if self.labels is None else self.labels.to(device)
        )

    def batch(self, rows: Tensor | slice) -> Tensor:
        """Return some rows as input of a model: float32, normalised."""
        # index_select copies whole images, which is faster than indexing.
        return self.normalise(self.inputs[rows] if isinstance(rows, slice) else self.inputs.index_select(0, rows))


@dataclass(frozen=True)
class Dataset:
    """A training set and a test set with the same classes; or training samples without labels, and no test samples.

    Attributes:
        name: Name or path that the user gave.
        train: Training samples, with labels 0..K-1 or without labels.
        test: Test samples of the same classes; none without labels.
        classes: Names of the K classes, in the order of their labels; empty without labels.
        columns: Other values of each sample by name, such as ``writer_id``: values of the training samples and of the
            test samples. A partition can assign samples by them.
        skipped: Number of images that could not be decoded and were left out.
        skipped_names: Names of the first of these images.
        left_out: Names of files and folders among the image files that are not part of the data set: other files,
            links that are not followed, classes without images.
        encoding: Features of the columns of a table; None for other data.
        remarks: Remarks on how a table was read, such as the number of missing values that were filled in.

    >>> from kinfed.data import from_arrays
    >>> dataset = from_arrays([[0.1], [0.2]], ["cat", "dog"], [[0.3]], ["dog"])
    >>> dataset.classes, dataset.shape, dataset.test.labels.tolist()
    (('cat', 'dog'), (1,), [1])
    """

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]
    columns: Mapping[str, tuple[NDArray[Any], NDArray[Any]]] = field(default_factory=dict)
    skipped: int = 0
    skipped_names: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    encoding: Encoding | None = None
    remarks: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input, (c, h, w) for images."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def labelled(self) -> bool:
        """True if the samples have labels."""
        return self.train.labels is not None

    @property
    def features(self) -> dict[str, int]:
        """Numbers of the features of a table, or of an array n×p that is standardised; empty for other data.

        They are ``numbers``, and of a table ``categories``, its columns of categories, and ``one_hot``, their features.
        """
        if self.encoding is not None:
            columns = self.encoding.categories
            return {"numbers": len(self.encoding.numbers), "categories": len(columns), "one_hot": self.encoding.one_hot}
        normalise = self.train.normalise
        standardised = any(normalise.mean) or any(std != 1 for std in normalise.std)
        return {"numbers": self.shape[0]} if len(self.shape) == 1 and standardised else {}


def joined(first: Samples, second: Samples) -> Samples:
    """Return the samples of two labelled sets, one after the other, with the normalisation of the first."""
    labels = torch.from_numpy(np.concatenate([labels_of(first), labels_of(second)]))
    return replace(first, inputs=torch.cat([first.inputs, second.inputs]), labels=labels)


def strata(samples: Samples) -> NDArray[np.int64]:
    """Return the classes over which a draw is balanced: the labels of samples; all 0 without labels."""
    return np.zeros(len(samples), dtype=np.int64) if samples.labels is None else labels_of(samples)


def labels_of(samples: Samples) -> NDArray[np.int64]:
    """Return the labels of labelled samples as an array, n."""
    assert samples.labels is not None
    labels: NDArray[np.int64] = samples.labels.numpy(force=True)
    return labels
