"""Two random views of every image of a batch, for self-supervised learning (specification D.0).

Each image has its own draws; the whole batch is computed at once on the device. The pixels are those of torchvision's
``RandomResizedCrop``, ``RandomHorizontalFlip``, ``ColorJitter`` and ``RandomGrayscale`` with the same draws.
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

__all__ = ["Draw", "check_viewable", "draw", "one_view", "two_views", "unnormalised", "view"]

AREA = (0.08, 1.0)  # area of a crop, as a fraction of the image's
RATIO = (3 / 4, 4 / 3)  # width of a crop over its height
TRIES = 10  # draws of a crop that fits; after these it is the largest one in the middle
FLIPPED, JITTERED, GREYED = 0.5, 0.8, 0.2  # probability of each change
STRENGTH = 0.8  # brightness, contrast and saturation are multiplied by up to 1 ± this
TURN = 0.2  # largest change of the hue, in turns

CHUNK = 1024  # images of a set that are changed at a time, to bound the memory
WEIGHTS = (0.2989, 0.587, 0.114)  # weights of red, green and blue in grey


@dataclass(frozen=True)
class Draw:
    """Random changes of b images for one view.

    Attributes:
        top: First row of the crop, b, int64.
        left: First column of the crop, b, int64.
        height: Number of rows of the crop, b, int64.
        width: Number of columns of the crop, b, int64.
        flipped: True for images to mirror, b, bool.
        jittered: True for images whose colours change, b, bool.
        order: Order of the colour changes, b×4: 0 is brightness, 1 contrast, 2 saturation, 3 hue.
        factors: Sizes of these changes, b×4: three factors, and the change of the hue in turns.
        grey: True for images that become grey after all other changes, b, bool.
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
    """Draw the changes of ``count`` images of one size, on the CPU, so that they are the same for every device."""
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
    """Draw top, left, height and width of random crops: the first of several tries that fits into the image."""
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
    """Make two random views of every image.

    Args:
        images: Images, b×c×h×w, with 1 or 3 channels: uint8, or floats in [0, 1].
        stream: Random stream on the CPU.

    Returns:
        Two tensors b×c×h×w, float32 in [0, 1], not normalised.

    Raises:
        InputError: If the inputs are not images with 1 or 3 channels.

    >>> first, second = two_views(torch.zeros(5, 3, 8, 8), torch.Generator().manual_seed(0))
    >>> first.shape
    torch.Size([5, 3, 8, 8])
    """
    check_viewable(tuple(images.shape[1:]))
    count, _, height, width = images.shape
    unit = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    first, second = (view(unit, draw(count, height, width, stream)) for _ in range(2))
    return first, second


def one_view(samples: Samples, stream: torch.Generator) -> Samples:
    """Make one random view of every image of a set, to be used as often as needed.

    Args:
        samples: n images, n×c×h×w, with 1 or 3 channels.
        stream: Random stream on the CPU.

    Returns:
        n views without labels, float32 in [0, 1], on the device of the images.

    >>> images = Samples(torch.zeros(5, 3, 8, 8), None, Normalisation((0.0,) * 3, (1.0,) * 3))
    >>> one_view(images, torch.Generator().manual_seed(0)).inputs.shape
    torch.Size([5, 3, 8, 8])
    """
    unit = unnormalised(samples)
    height, width = samples.inputs.shape[2:]
    parts = [unit.batch(slice(start, start + CHUNK)) for start in range(0, len(samples), CHUNK)]
    views = torch.cat([view(part, draw(len(part), height, width, stream)) for part in parts])
    return unnormalised(Samples(views, None, samples.normalise))


def check_viewable(shape: tuple[int, ...]) -> None:
    """Refuse a shape of inputs that views cannot be made from.

    Args:
        shape: Shape of one input.

    Raises:
        InputError: If it is not the shape of an image c×h×w with 1 or 3 channels.

    >>> check_viewable((3, 32, 32))
    """
    if len(shape) != 3 or shape[0] not in (1, 3):
        told = "×".join(map(str, shape))
        raise InputError(f"data: two views need greyscale or RGB images, but the inputs have the shape {told}")


def view(images: Tensor, drawn: Draw) -> Tensor:
    """Make one view of b images, b×c×h×w in [0, 1], with 1 or 3 channels; colour changes do not affect grey images."""
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
    """Crop b images, mirror some of them, and scale the crops back to the size of the images by bilinear interpolation.

    Outside of the crop its border pixels are repeated.

    Args:
        images: Images, b×c×h×w, in [0, 1].
        drawn: Crops and flips of the b images.

    Returns:
        Images of the same shape.
    """
    height, width = images.shape[2:]
    rows = _positions(drawn.top, drawn.height, height)
    columns = _positions(drawn.left, drawn.width, width)
    columns = torch.where(drawn.flipped[:, None], columns.flip(1), columns)
    y, x = (2 * at / max(size - 1, 1) - 1 for at, size in ((rows, height), (columns, width)))
    grid = torch.stack([x[:, None].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)], dim=3)
    return functional.grid_sample(images, grid.float().to(images.device), padding_mode="border", align_corners=True)


def _positions(start: Tensor, extent: Tensor, size: int) -> Tensor:
    """Compute the positions in the image at which the ``size`` pixels of a scaled crop are read, along one axis.

    Args:
        start: First row or column of each crop, b.
        extent: Number of rows or columns of each crop, b.
        size: Height or width of the images.

    Returns:
        Positions in pixels, b×size, not beyond the centres of the crop's border pixels.
    """
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
    """Turn the hue, and keep brightness and saturation, that is the largest channel value and the chroma.

    A channel is the largest value minus the chroma times the distance of the hue from the channel, in sixths of a turn.
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
        at -= (at / 6).floor_().mul_(6)  # equals torch.remainder, which is ten times slower
        away = torch.minimum(at, 4 - at).clamp_(0, 1)
        torch.addcmul(largest, chroma, away, value=-1, out=made[:, channel])
    return made


def _grey(images: Tensor) -> Tensor:
    """Luma of colour images, b×1×h×w."""
    red, green, blue = images.split(1, dim=1)
    luma: Tensor = WEIGHTS[0] * red
    return luma.add_(green, alpha=WEIGHTS[1]).add_(blue, alpha=WEIGHTS[2])


CHANGES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (_brightness, _contrast, _saturation, _hue)


def unnormalised(samples: Samples) -> Samples:
    """Replace the normalisation of samples by a scaling to [0, 1], as for an encoder that was trained on views."""
    channels = samples.inputs.shape[1]
    scale = 255.0 if samples.inputs.dtype == torch.uint8 else 1.0
    return replace(samples, normalise=Normalisation((0.0,) * channels, (scale,) * channels))
