"""Samples in memory: inputs as they were decoded, labels, and how a batch is normalised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["AS_THEY_ARE", "CLIENT", "Dataset", "Normalisation", "Samples", "labels_of"]

CLIENT = "client"  # the column that names the client of a sample, where the data lie in a folder a client


@dataclass(frozen=True)
class Normalisation:
    """Per-channel mean and standard deviation of the training inputs, on the scale of the stored values.

    None at all, ``AS_THEY_ARE``, leaves inputs as they are.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, inputs: Tensor, chunk: int = 4096) -> Normalisation:
        """Statistics over samples and positions, n×c×h×w or n×c; a constant channel gets the deviation 1."""
        count, total, squares = 0, 0.0, 0.0
        for part in inputs.split(chunk):
            flat = part.double().flatten(2) if part.dim() > 2 else part.double()[:, :, None]
            count += flat.shape[0] * flat.shape[2]
            total = total + flat.sum(dim=(0, 2))
            squares = squares + flat.square().sum(dim=(0, 2))
        mean = torch.as_tensor(total) / count
        std = (torch.as_tensor(squares) / count - mean.square()).clamp(min=0).sqrt()
        std[std < 1e-12] = 1.0
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def __call__(self, inputs: Tensor) -> Tensor:
        """Stored values to float32 with mean 0 and deviation 1 per channel."""
        if not self.mean:
            return inputs.float()
        shape = (1, -1) + (1,) * (inputs.dim() - 2)
        mean = torch.tensor(self.mean, dtype=torch.float32, device=inputs.device).view(shape)
        scale = torch.tensor(self.std, dtype=torch.float32, device=inputs.device).reciprocal().view(shape)
        return (inputs.float() - mean) * scale


AS_THEY_ARE = Normalisation((), ())


@dataclass(frozen=True)
class Samples:
    """``n`` inputs, uint8 images n×c×h×w or float features, and their labels (int64, n), or none.

    The inputs stay as they were stored (possibly memory-mapped) and are normalised when a batch is read.
    """

    inputs: Tensor
    labels: Tensor | None
    normalise: Normalisation

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows: np.ndarray | Sequence[int]) -> Samples:
        """A copy of some rows, in the order given."""
        index = torch.as_tensor(np.asarray(rows, dtype=np.int64))
        labels = None if self.labels is None else self.labels[index]
        return replace(self, inputs=self.inputs.index_select(0, index), labels=labels)

    def without_labels(self) -> Samples:
        """The same inputs, unlabelled."""
        return replace(self, labels=None)

    def to(self, device: torch.device) -> Samples:
        """The same samples on another device."""
        return replace(
            self, inputs=self.inputs.to(device), labels=None if self.labels is None else self.labels.to(device)
        )

    def batch(self, rows: Tensor | slice) -> Tensor:
        """Some rows as the model sees them: float32, normalised."""
        # index_select copies an image at a time, indexing a byte at a time.
        return self.normalise(self.inputs[rows] if isinstance(rows, slice) else self.inputs.index_select(0, rows))


@dataclass(frozen=True)
class Dataset:
    """A training set and a test set with the same classes.

    Attributes:
        name: As the user typed it.
        train: Labelled samples, labels 0..C-1.
        test: Labelled samples of the same classes.
        classes: The C class names, in the order of their labels.
        columns: Whatever else is known of each sample, by name: values of the training and of the test samples
            (``writer_id``, say), by which a federation can be cut.
        skipped: How many images could not be decoded and were left out, as was asked for.
        skipped_names: What the first few of them are.
        left_out: Names of what lies among its image files and is no part of it: other files, links that are not
            followed, classes without images.
    """

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]
    columns: Mapping[str, tuple[NDArray[Any], NDArray[Any]]] = field(default_factory=dict)
    skipped: int = 0
    skipped_names: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, (c, h, w) for images."""
        return tuple(self.train.inputs.shape[1:])


def labels_of(samples: Samples) -> NDArray[np.int64]:
    """The labels of labelled samples as an array."""
    assert samples.labels is not None
    labels: NDArray[np.int64] = samples.labels.numpy(force=True)
    return labels
