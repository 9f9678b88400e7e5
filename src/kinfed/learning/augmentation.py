"""Augmentation of whole batches on the device, with independent draws for each sample."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Augmentation", "crop_and_flip"]

Augmentation = Literal["none", "crop_flip"]

MARGIN = 4


def crop_and_flip(images: Tensor, stream: torch.Generator) -> Tensor:
    """Pad images by 4 black pixels, crop them at random to their size, and mirror half of them (specification C).

    Args:
        images: Images as stored, not normalised, b×c×h×w.
        stream: Random stream on the CPU; each image has its own offsets and its own choice of mirroring.
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
    return padded[image, :, row, column].movedim(3, 1)  # indexing put the channels last
