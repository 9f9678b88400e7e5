"""Two views of every image of a batch: what self-supervised learning compares (METHODS.md D.0).

Drawn for each image on its own, computed for the whole batch at once, on the device; nothing per image runs in Python.
The pixels are those of torchvision's ``RandomResizedCrop``, ``RandomHorizontalFlip``, ``ColorJitter`` and
``RandomGrayscale`` with the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from kinfed.data.samples import Normalisation, Samples
from kinfed.errors import InputError

__all__ = ["Draw", "check_viewable", "draw", "two_views", "unnormalised", "view"]

AREA = (0.08, 1.0)  # of a crop, as a fraction of the image's
RATIO = (3 / 4, 4 / 3)  # of its width to its height
TRIES = 10  # to draw a crop that fits; then it is the largest in the middle
FLIPPED, JITTERED, GREYED = 0.5, 0.8, 0.2  # how many of the images, on average
STRENGTH = 0.8  # brightness, contrast and saturation times 1 ± this
TURN = 0.2  # hue plus or minus this, in turns

WEIGHTS = (0.2989, 0.587, 0.114)  # of red, green and blue in grey


@dataclass(frozen=True)
class Draw:
    """What is done to each of b images.

    Attributes:
        top: First row of the crop, b, int64.
        left: Its first column.
        height: Its rows.
        width: Its columns.
        flipped: Whether it is mirrored, b, bool.
        jittered: Whether its colours are changed.
        order: In which order, b×4: 0 is brightness, 1 contrast, 2 saturation, 3 hue.
        factors: By how much, b×4: three factors, and a part of a turn.
        grey: Whether it loses its colours in the end, b, bool.
    """

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    flipped: Tensor
    jittered: Tensor
    order: Tensor
    factors: Tensor
    grey: Tensor


def draw(count: int, height: int, width: int, stream: torch.Generator) -> Draw:
    """What is to be done to ``count`` images of a size; drawn and left on the CPU, so every device sees the same."""
    top, left, rows, columns = _crops(count, height, width, stream)
    chances = torch.rand(count, 3, generator=stream)
    spread = torch.tensor([STRENGTH, STRENGTH, STRENGTH, TURN])
    centre = torch.tensor([1.0, 1.0, 1.0, 0.0])
    return Draw(
        top=top,
        left=left,
        height=rows,
        width=columns,
        flipped=chances[:, 0] < FLIPPED,
        jittered=chances[:, 1] < JITTERED,
        order=torch.rand(count, 4, generator=stream).argsort(dim=1),
        factors=centre + spread * (2 * torch.rand(count, 4, generator=stream) - 1),
        grey=chances[:, 2] < GREYED,
    )


def _crops(count: int, height: int, width: int, stream: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height and width of random crops: the first of several tries that fits into the image."""
    drawn = torch.rand(2, count, TRIES, generator=stream, dtype=torch.float64)
    area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * drawn[0])
    ratio = torch.exp(math.log(RATIO[0]) + (math.log(RATIO[1]) - math.log(RATIO[0])) * drawn[1])
    rows, columns = (area / ratio).sqrt().round().long(), (area * ratio).sqrt().round().long()
    fits = (rows > 0) & (rows <= height) & (columns > 0) & (columns <= width)
    first = fits.int().argmax(dim=1, keepdim=True)
    rows, columns = (torch.gather(tries, 1, first).squeeze(1) for tries in (rows, columns))
    place = torch.rand(2, count, generator=stream, dtype=torch.float64)
    top = (place[0] * (height - rows + 1)).long()
    left = (place[1] * (width - columns + 1)).long()

    most_rows = min(height, round(width / RATIO[0]))
    most_columns = min(width, round(height * RATIO[1]))
    middle = ((height - most_rows) // 2, (width - most_columns) // 2, most_rows, most_columns)
    fitting = fits.any(dim=1)
    top, left, rows, columns = (
        torch.where(fitting, drawn, fallback)
        for drawn, fallback in zip((top, left, rows, columns), middle, strict=True)
    )
    return top, left, rows, columns


def two_views(images: Tensor, stream: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two random views of every image.

    Args:
        images: b×c×h×w with 1 or 3 channels: uint8, or floats in [0, 1].
        stream: On the CPU.

    Returns:
        Twice b×c×h×w, float32 in [0, 1], not normalised any further.

    Raises:
        InputError: If these are no such images.
    """
    check_viewable(tuple(images.shape[1:]))
    count, _, height, width = images.shape
    unit = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    first, second = (view(unit, draw(count, height, width, stream)) for _ in range(2))
    return first, second


def check_viewable(shape: tuple[int, ...]) -> None:
    """Refuse inputs of a shape that views are not made of.

    Raises:
        InputError: If they are no images c×h×w with 1 or 3 channels.
    """
    if len(shape) != 3 or shape[0] not in (1, 3):
        told = "×".join(map(str, shape))
        raise InputError(f"data: two views are made of grey or colour images, and the inputs are {told}")


def view(images: Tensor, drawn: Draw) -> Tensor:
    """One view of b images, b×c×h×w in [0, 1], c 1 or 3. What concerns colours leaves grey images alone."""
    seen = _cropped(images, drawn)
    colour = images.shape[1] == 3
    for place in range(4):
        for which, change in enumerate(CHANGES if colour else CHANGES[:2]):
            rows = (drawn.jittered & (drawn.order[:, place] == which)).nonzero().squeeze(1).to(seen.device)
            amount = drawn.factors[:, which].to(seen.device)[rows].view(-1, 1, 1, 1)
            seen.index_copy_(0, rows, change(seen.index_select(0, rows), amount))
    if colour:
        rows = drawn.grey.nonzero().squeeze(1).to(seen.device)
        seen.index_copy_(0, rows, _grey(seen.index_select(0, rows)).expand(-1, 3, -1, -1))
    return seen


def _cropped(images: Tensor, drawn: Draw) -> Tensor:
    """The crops, mirrored or not, at the size of the images: bilinear, a crop's edge repeated beyond it."""
    height, width = images.shape[2:]
    rows = _positions(drawn.top, drawn.height, height)
    columns = _positions(drawn.left, drawn.width, width)
    columns = torch.where(drawn.flipped[:, None], columns.flip(1), columns)
    y, x = (2 * at / max(size - 1, 1) - 1 for at, size in ((rows, height), (columns, width)))
    grid = torch.stack([x[:, None].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)], dim=3)
    return functional.grid_sample(images, grid.float().to(images.device), padding_mode="border", align_corners=True)


def _positions(start: Tensor, extent: Tensor, size: int) -> Tensor:
    """Where each of ``size`` pixels of a crop lies in the image, b×size, between the centres of its border pixels."""
    within = (torch.arange(size, dtype=torch.float64) + 0.5) * extent[:, None] / size - 0.5
    return start[:, None] + torch.minimum(within.clamp(min=0), extent[:, None] - 1.0)


def _brightness(images: Tensor, factor: Tensor) -> Tensor:
    return (images * factor).clamp_(0, 1)


def _contrast(images: Tensor, factor: Tensor) -> Tensor:
    mean = (_grey(images) if images.shape[1] == 3 else images).mean(dim=(1, 2, 3), keepdim=True)
    return torch.lerp(mean, images, factor).clamp_(0, 1)


def _saturation(images: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(_grey(images), images, factor).clamp_(0, 1)


def _hue(images: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue; brightness and saturation, the largest value and the chroma, stay.

    A channel is the largest value minus the chroma times how far, in sixths of a turn, the hue is from it.
    """
    red, green, blue = images.unbind(dim=1)
    largest = images.amax(dim=1)
    chroma = largest - images.amin(dim=1)
    per = 1 / torch.where(chroma == 0, 1, chroma)
    hue = torch.where(
        largest == red, green - blue, torch.where(largest == green, blue - red + 2 * chroma, red - green + 4 * chroma)
    )
    hue = hue * per + 6 * turn.view(-1, 1, 1)  # in sixths of a turn
    made = torch.empty_like(images)
    for channel, offset in enumerate((5, 3, 1)):
        at = hue + offset
        at -= (at / 6).floor_().mul_(6)  # as torch.remainder, which is ten times as slow
        away = torch.minimum(at, 4 - at).clamp_(0, 1)
        torch.addcmul(largest, chroma, away, value=-1, out=made[:, channel])
    return made


def _grey(images: Tensor) -> Tensor:
    """The luma of colour images, b×1×h×w."""
    red, green, blue = images.split(1, dim=1)
    luma: Tensor = WEIGHTS[0] * red
    return luma.add_(green, alpha=WEIGHTS[1]).add_(blue, alpha=WEIGHTS[2])


CHANGES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (_brightness, _contrast, _saturation, _hue)


def unnormalised(samples: Samples) -> Samples:
    """The same samples, read as an encoder that was trained on views knows them: in [0, 1], else untouched."""
    channels = samples.inputs.shape[1]
    scale = 255.0 if samples.inputs.dtype == torch.uint8 else 1.0
    return replace(samples, normalise=Normalisation((0.0,) * channels, (scale,) * channels))
