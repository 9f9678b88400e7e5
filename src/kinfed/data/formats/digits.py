"""The digits data set of scikit-learn: 8×8 grey images of ten classes."""

from __future__ import annotations

import numpy as np
import torch

from kinfed.data.images import Decoding, adapt
from kinfed.data.names import EMBEDDED
from kinfed.data.samples import Dataset, Normalisation, Samples

__all__ = ["read_digits"]

TRAIN = 1400  # training images, out of 1797; the others are the test set


def read_digits(decoding: Decoding) -> Dataset:
    """Read the digits: 1,400 training and 397 test images, scaled to [0, 1]."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = adapt(np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None], decoding)
    # The file is ordered by writer; a fixed shuffle puts all writers in both sets.
    order = np.random.default_rng(0).permutation(len(images))
    channels = images.shape[1]
    scaled = Normalisation((0.0,) * channels, (255.0,) * channels)  # digits are usually scaled to [0, 1]
    train, test = (
        Samples(torch.from_numpy(images[rows]), torch.from_numpy(bunch.target[rows].astype(np.int64)), scaled)
        for rows in (order[:TRAIN], order[TRAIN:])
    )
    return Dataset(EMBEDDED, train, test, tuple(str(c) for c in bunch.target_names))
