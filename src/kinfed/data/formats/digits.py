"""The digits data set of scikit-learn: 8×8 grey images of ten classes."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kinfed.data.images import Decoding, adapt
from kinfed.data.names import EMBEDDED
from kinfed.data.samples import Dataset, Normalisation, Samples

__all__ = ["read_digits"]

TRAIN = 1400  # training images, out of 1797; the others are the test set


def read_digits(decoding: Decoding) -> Dataset:
    """Read the digits: 1,400 training and 397 test images, scaled to [0, 1]."""
    pixels, labels = _table()
    images = adapt(np.round(pixels * (255 / 16)).astype(np.uint8)[:, None], decoding)
    # The file is ordered by writer; a fixed shuffle puts all writers in both sets.
    order = np.random.default_rng(0).permutation(len(images))
    channels = images.shape[1]
    scaled = Normalisation((0.0,) * channels, (255.0,) * channels)  # digits are usually scaled to [0, 1]
    train, test = (
        Samples(torch.from_numpy(images[rows]), torch.from_numpy(labels[rows]), scaled)
        for rows in (order[:TRAIN], order[TRAIN:])
    )
    return Dataset(EMBEDDED, train, test, tuple(map(str, range(10))))


@functools.cache
def _table() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the images, 1797×8×8 from 0 to 16, and their digits, as scikit-learn does.

    Its import would take a second of every process, and only its file is needed.
    """
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    file = Path(str(spec.origin)).with_name("datasets") / "data" / "digits.csv.gz"
    if not file.is_file():  # another version may have it elsewhere
        from sklearn.datasets import load_digits

        bunch = load_digits()
        return bunch.images, bunch.target.astype(np.int64)
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
