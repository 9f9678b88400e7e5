"""A picture with a few training images of each client and class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.data import Federation, Samples
from kinfed.data.samples import labels_of
from kinfed.errors import plain
from kinfed.report.names import labels
from kinfed.report.picture import picture

__all__ = ["has_images", "save_samples"]

CLIENTS, CLASSES = 12, 12  # largest numbers of clients and classes in the picture
EACH = 3  # largest number of images of a client and class, unless there are few classes
ROW = 12  # number of images of a client that there is room for in any case
SIDE, GAP = 32, 4  # side of an image and width of the space between cells, in pixels
BLANK = 235  # grey of a place without an image

Pixels = NDArray[np.uint8]


def has_images(samples: Samples) -> bool:
    """Return True if samples are images: n×c×h×w with 1 or 3 channels, uint8 or between 0 and 1."""
    inputs = samples.inputs
    if inputs.dim() != 4 or inputs.shape[1] not in (1, 3):
        return False
    return inputs.dtype == torch.uint8 or bool(inputs.min() >= 0 and inputs.max() <= 1)


def save_samples(federation: Federation, names: Sequence[str], about: str, path: Path) -> None:
    """Draw a few training images of each client (rows) and class (columns) to a PNG.

    These are the first 12 clients, and the 12 classes of which they have most samples, with 3 images of each class, or
    more if there are fewer than 4 classes. Images without labels are drawn as if they were of one class.

    Args:
        federation: Clients and their data, which are images.
        names: Names of the clients, new ones last.
        about: Caption: data set, partition and seed, in words.
        path: Path of the PNG.
    """
    held = [federation.train(client) for client in range(min(CLIENTS, len(names)))]
    names_of_classes = federation.dataset.classes or ("no labels",)
    of_class = np.bincount(np.concatenate([_classes(samples) for samples in held]), minlength=len(names_of_classes))
    shown = np.sort(np.argsort(-of_class, kind="stable")[:CLASSES])
    each = max(EACH, ROW // len(shown))
    canvas = np.vstack([_row(samples, shown, each) for samples in held])
    few = f"; {len(held)} of {len(names):,} clients" if len(held) < len(names) else ""
    few += f"; {len(shown)} of {len(of_class):,} classes" if len(shown) < len(of_class) else ""
    height, width = canvas.shape[0] / 100, canvas.shape[1] / 100
    with picture(path, width + 1.6, height + 1.2) as figure:
        axes = figure.subplots()
        axes.imshow(canvas, interpolation="nearest")
        columns, rows = (
            (np.arange(count) + 0.5) * (size + GAP) for count, size in ((len(shown), each * SIDE), (len(held), SIDE))
        )
        classes = labels(names_of_classes[k] for k in shown)
        axes.set_xticks(columns, classes, fontsize=8, rotation=0 if max(map(len, classes)) <= 10 else 30)
        axes.set_yticks(rows, labels(names[: len(held)]), fontsize=8)
        axes.set(xlabel="class", ylabel="client")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(f"{plain(about)}{few}", fontsize=9)


def _classes(samples: Samples) -> NDArray[np.int64]:
    """Return the class of each sample; all 0 without labels."""
    return np.zeros(len(samples), dtype=np.int64) if samples.labels is None else labels_of(samples)


def _row(samples: Samples, classes: NDArray[np.int64], each: int) -> Pixels:
    """Return the images of a client, side by side, with a cell for each class."""
    row = np.full((SIDE + GAP, len(classes) * (each * SIDE + GAP), 3), 255, dtype=np.uint8)
    for cell, k in enumerate(classes):
        left = cell * (each * SIDE + GAP) + GAP // 2
        row[GAP // 2 : GAP // 2 + SIDE, left : left + each * SIDE] = BLANK
        for place, i in enumerate(np.flatnonzero(_classes(samples) == k)[:each]):
            at = left + place * SIDE
            row[GAP // 2 : GAP // 2 + SIDE, at : at + SIDE] = _tile(samples.inputs[i])
    return row


def _tile(image: Tensor) -> Pixels:
    """Return an image c×h×w as SIDE×SIDE pixels in colour; its aspect is kept."""
    from PIL import Image, ImageOps

    values = image if image.dtype == torch.uint8 else (image * 255).round().to(torch.uint8)
    pixels = values.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
    enlarged = max(pixels.shape) < SIDE
    how = Image.Resampling.NEAREST if enlarged else Image.Resampling.BILINEAR
    return np.asarray(ImageOps.pad(Image.fromarray(pixels), (SIDE, SIDE), how, color=(BLANK,) * 3))
