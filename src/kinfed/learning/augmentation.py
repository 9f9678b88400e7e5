"""Augmentation of whole batches, drawn per sample, on the device; nothing per sample runs in Python."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Augmentation", "crop_and_flip"]

Augmentation = Literal["none", "crop_flip"]

MARGIN = 4


def crop_and_flip(images: Tensor, stream: torch.Generator) -> Tensor:
    """Pad by 4 black pixels, crop at random to the size before, and mirror half of the images (METHODS.md C).

    Args:
        images: b×c×h×w, as stored.
        stream: On the CPU; the offsets and the choice of whom to mirror are drawn for each image on its own.
    """
    count, _, height, width = images.shape
    drawn = torch.randint(0, 2 * MARGIN + 1, (2, count, 1), generator=stream)
    mirrored = torch.randint(0, 2, (count, 1), generator=stream).bool()
    rows, columns = drawn[0] + torch.arange(height), drawn[1] + torch.arange(width)
    columns = torch.where(mirrored, columns.flip(1), columns)
    padded = functional.pad(images, (MARGIN,) * 4)
    image, row, column = (
        index.to(images.device) for index in (torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None])
    )
    return padded[image, :, row, column].movedim(3, 1)  # the channels, sliced between indices, come last
