"""Decoding of images to uint8 arrays with the configured channels and size.

The steps are, in this order:

1. The image is rotated as its EXIF data say.
2. 16-bit grey becomes 8-bit grey (divided by 257 and rounded).
3. Grey images stay grey; all others (palette, CMYK, RGBA, …) become RGB. Alpha is dropped, not blended.
4. The image gets the configured channels. Grey to RGB repeats the value; RGB to grey is the luma of ITU-R 601.
5. The image is resized to the configured size (bilinear, with antialiasing). The aspect ratio may change.
"""

from __future__ import annotations

import functools
import io
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Decoded", "Decoding", "Encoded", "OnError", "adapt", "decode", "fit", "read_image", "repeat_grey"]

OnError = Literal["stop", "skip"]
Pixels = NDArray[np.uint8]

CHUNK = 256  # images that a thread decodes at a time
FORMATS = (  # image formats that PIL may read; some others start programs (PostScript)
    "AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TGA", "TIFF", "WEBP",
)  # fmt: skip
GREY = ("1", "L", "LA")  # PIL modes of 8-bit grey images
WIDE = ("I", "I;16", "I;16L", "I;16B", "I;16N")  # PIL modes of 16-bit grey images; PIL reads some of them as 32-bit


@dataclass(frozen=True)
class Decoding:
    """Options of the decoding of images.

    Attributes:
        channels: Number of channels, 1 or 3; None for 1 if every image is grey, else 3.
        image_size: Height and width in pixels; None keeps the sizes, which must then be equal.
        on_error: Reaction to an image that cannot be decoded: ``stop`` raises an error, ``skip`` leaves it out and
            counts it.
    """

    channels: int | None = None
    image_size: int | None = None
    on_error: OnError = "stop"

    def __post_init__(self) -> None:
        if self.channels not in (None, 1, 3):
            raise InputError(
                f"channels: {self.channels!r} is not allowed; must be 1, 3, or none to use those of the images"
            )
        if self.image_size is not None and self.image_size < 1:
            raise InputError(f"image_size: {self.image_size!r} is not allowed; must be 1 or more pixels")
        if self.on_error not in ("stop", "skip"):
            raise InputError(f"on_error: {self.on_error!r} is not allowed; must be stop or skip")


@dataclass(frozen=True)
class Encoded:
    """Encoded images: the name of each one in messages, and its bytes or its path; None for an empty image.

    >>> len(Encoded(["first.png", "second.png"], [Path("first.png"), Path("second.png")]))
    2
    """

    names: Sequence[str]
    files: Sequence[bytes | Path | None]

    def __len__(self) -> int:
        return len(self.files)


@dataclass(frozen=True)
class Decoded:
    """Decoded images: pixels (uint8, n×c×h×w), their rows among the encoded images, and names of the skipped ones."""

    pixels: Pixels
    rows: NDArray[np.int64]
    skipped: tuple[str, ...]


def decode(encoded: Encoded, decoding: Decoding) -> Decoded:
    """Decode all images.

    Raises:
        InputError: If an image cannot be decoded and ``on_error`` is ``stop``, or sizes differ and no size is
            configured.
    """
    from PIL.Image import DecompressionBombWarning

    pixels: Pixels | None = None
    first = ""  # an image of the common size, for a message
    rows: list[int] = []
    skipped: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", DecompressionBombWarning)
        for row, image in enumerate(_decoded(encoded, decoding)):
            if isinstance(image, str):
                skipped.append(encoded.names[row])
                continue
            if pixels is None:
                first, pixels = encoded.names[row], np.empty((len(encoded), *image.shape), dtype=np.uint8)
            if image.shape[1:] != pixels.shape[2:]:
                raise InputError(
                    f"data: {encoded.names[row]} and {first} are images of different sizes, {_size(image)} and "
                    f"{_size(pixels)} (h×w); set image_size to resize all"
                )
            if len(image) > pixels.shape[1]:  # the first image with colour
                pixels = repeat_grey(pixels)
            pixels[len(rows)] = image  # a grey image fills all channels
            rows.append(row)
    if pixels is None:
        pixels = np.empty((0, 1, 1, 1), dtype=np.uint8)
    return Decoded(pixels[: len(rows)], np.array(rows, dtype=np.int64), tuple(skipped))


def _decoded(encoded: Encoded, decoding: Decoding) -> Iterator[Pixels | str]:
    """Yield the pixels of every image, c×h×w; for a skipped image, the reason as text."""

    def chunk(start: int) -> list[Pixels | str]:
        part = slice(start, start + CHUNK)
        images: list[Pixels | str] = []
        sizes = set()
        for image in zip(encoded.names[part], encoded.files[part], strict=True):
            images.append(decoded := _one(*image, decoding))
            if not isinstance(decoded, str):
                sizes.add(decoded.shape[1:])
            if len(sizes) > 1:
                break  # `decode` raises an error; the others need not be decoded
        return images

    # PIL releases the interpreter's lock while it decodes, so that threads help.
    threads = ThreadPoolExecutor(os.cpu_count())
    try:
        for images in threads.map(chunk, range(0, len(encoded), CHUNK)):
            yield from images
    finally:
        threads.shutdown(cancel_futures=True)  # after an error, the others need not be decoded


@functools.cache
def _formats() -> list[str]:
    from PIL import Image

    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _one(name: str, file: bytes | Path | None, decoding: Decoding) -> Pixels | str:
    try:
        return read_image(file, decoding)
    except ValueError as error:
        if decoding.on_error == "skip":
            return str(error)
        raise InputError(
            f"data: {name}: the image cannot be decoded: {error}; set on_error=skip to leave such images out"
        ) from error


def read_image(file: bytes | Path | None, decoding: Decoding) -> Pixels:
    """Decode an image file to uint8 pixels c×h×w, by the steps above.

    Args:
        file: Content or path of the file; None for an empty image.
        decoding: Channels and size of the result.

    Raises:
        ValueError: If the image cannot be decoded; the message is the reason.
    """
    from PIL import Image, UnidentifiedImageError

    if file is None:
        raise ValueError("it is empty")
    if isinstance(file, Path) and not file.is_file():
        raise ValueError("there is no such file")
    try:
        with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=_formats()) as image:
            return fit(image, decoding)
    except UnidentifiedImageError as error:
        raise ValueError("its format is not known to PIL") from error
    except Exception as error:  # PIL raises exceptions of many types for broken files
        raise ValueError(str(error)) from error


def fit(image: Image, decoding: Decoding) -> Pixels:
    """Convert a PIL image to uint8 pixels c×h×w, by the steps above.

    Raises:
        ValueError: If the image has no pixels, or its values have no defined range (floats, more than 16 bits).
    """
    from PIL import Image, ImageOps

    if image.width * image.height == 0:
        raise ValueError("it has no pixels")
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode in WIDE:
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError(f"mode {image.mode} with values from {values.min()} to {values.max()}, not 0 to 65535")
        image = Image.fromarray(np.round(values / 257).astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("mode F: floating-point values have no defined range")
    grey = image.mode in GREY if decoding.channels is None else decoding.channels == 1
    image = image.convert("L" if grey else "RGB")  # both drop alpha
    if decoding.image_size is not None:
        image = image.resize((decoding.image_size, decoding.image_size), Image.Resampling.BILINEAR)
    array = np.asarray(image)
    return array[None] if grey else array.transpose(2, 0, 1)


def adapt(pixels: Pixels, decoding: Decoding) -> Pixels:
    """Convert images in memory, n×c×h×w with 1 or 3 channels, to the configured channels and size."""
    from PIL import Image

    size = decoding.image_size
    if decoding.channels in (None, pixels.shape[1]) and (size is None or pixels.shape[2:] == (size, size)):
        return pixels
    images = (Image.fromarray(p[0] if len(p) == 1 else np.ascontiguousarray(p.transpose(1, 2, 0))) for p in pixels)
    return np.stack([fit(image, decoding) for image in images])


def repeat_grey(pixels: Pixels) -> Pixels:
    """Convert grey images n×1×h×w to n×3×h×w with three equal channels; return others as they are."""
    return np.repeat(pixels, 3, axis=1) if pixels.shape[1] == 1 else pixels


def _size(image: Pixels) -> str:
    return "×".join(map(str, image.shape[-2:]))
