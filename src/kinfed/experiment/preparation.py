"""Preparation of what a trained model is given: image files, pictures, arrays and tables become its inputs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.data.images import Decoding, adapt, fit, read_image
from kinfed.data.tables import Encoding, Table
from kinfed.errors import InputError
from kinfed.fields import short
from kinfed.learning.frozen import CHUNK

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

    One: TypeAlias = str | os.PathLike[str] | Image | NDArray[Any] | Tensor
    Inputs: TypeAlias = One | pd.DataFrame | Sequence[One]

__all__ = ["Preparation"]

CHANNELS = (1, 3)  # numbers of channels of images


@dataclass(frozen=True)
class Preparation:
    """Function that makes the inputs of a trained model, not normalised, from files, pictures, arrays or tables.

    Image files and pictures of PIL get the channels and the size that the model takes, as the training images did
    (see `kinfed.data.images`), and so do uint8 arrays of images. The columns of a table become features.

    Attributes:
        shape: Shape of one input, such as (3, 32, 32).
        encoding: Features of the columns of a table; None for other data.

    >>> prepared = Preparation((1, 2, 2))(np.zeros((5, 4, 4, 3), dtype=np.uint8))
    >>> [tuple(part.shape) for part in prepared]
    [(5, 1, 2, 2)]
    """

    shape: tuple[int, ...]
    encoding: Encoding | None = None

    def __call__(self, inputs: Inputs) -> Iterator[Tensor]:
        """Yield the inputs of the model in parts of up to 128 rows: uint8 images n×c×h×w, or floats n×….

        Args:
            inputs: The path of an image file, a picture of PIL, or a list of these or of arrays of one image each; an
                array or tensor of n inputs; or a DataFrame, of whose columns those of the training are used.

        Raises:
            InputError: If they are none of these, an image cannot be decoded, or a column is missing.
        """
        if _is_image(inputs):
            inputs = [inputs]
        if isinstance(inputs, Sequence) and any(
            _is_image(one) or isinstance(one, np.ndarray | Tensor) for one in inputs
        ):
            for start in range(0, len(inputs), CHUNK):
                yield self._stacked(inputs[start : start + CHUNK])
            return
        yield from self._array(inputs).split(CHUNK)

    @property
    def _decoding(self) -> Decoding | None:
        """Channels and size of the images that the model takes; None if it takes no images."""
        if len(self.shape) != 3 or self.shape[0] not in CHANNELS:
            return None
        channels, height, width = self.shape
        return Decoding(channels, height if height == width else None)

    def _stacked(self, items: Sequence[One]) -> Tensor:
        """Return a few inputs that are given one by one; PIL decodes their files in threads."""
        from PIL.Image import DecompressionBombWarning

        with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as threads:
            warnings.simplefilter("error", DecompressionBombWarning)
            made = [*threads.map(self._one, items)]
        if odd := next((one for one in made if one.shape != made[0].shape), None):
            sizes = ("×".join(map(str, one.shape)) for one in (made[0], odd))
            raise InputError("inputs: are images of different sizes, {} and {}".format(*sizes))
        return torch.stack(made)

    def _one(self, item: One) -> Tensor:
        """Return one input that is given by itself."""
        from PIL import Image

        if isinstance(item, np.ndarray | Tensor):
            return self._array(item[None])[0]
        if isinstance(item, Image.Image):
            told, read = "a picture", partial(fit, item.copy())  # the picture of the user stays as it is
        elif isinstance(item, str | os.PathLike):
            told, read = repr(os.fspath(item)), partial(read_image, Path(item))
        else:
            raise InputError(f"inputs: {short(item)} is not allowed in a list of images and arrays")
        if self._decoding is None:
            size = "×".join(map(str, self.shape))
            raise InputError(f"inputs: {told} is not allowed; the model takes inputs of shape {size}, not images")
        try:
            return torch.from_numpy(np.require(read(self._decoding), requirements=["C", "W"]))
        except Exception as error:  # PIL raises exceptions of many types for broken files
            raise InputError(f"inputs: {told}: the image cannot be decoded: {error}") from error

    def _array(self, inputs: Any) -> Tensor:
        """Return n inputs that are given as one array, tensor or table."""
        if self.encoding is not None and hasattr(inputs, "columns"):
            inputs = self.encoding(Table.of(inputs, "the DataFrame"))
        try:
            array = inputs if isinstance(inputs, Tensor) else np.require(inputs, requirements=["C", "W"])
            tensor: Tensor = torch.atleast_1d(torch.as_tensor(array))
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"inputs: {short(inputs)} is not allowed; must be an array, a tensor, an image, or a list of these: "
                f"{error}"
            ) from error
        if tensor.dtype == torch.uint8:
            return self._images(tensor)
        return tensor.float() if len(self.shape) == 1 and not tensor.is_complex() else tensor

    def _images(self, pixels: Tensor) -> Tensor:
        """Return uint8 images n×c×h×w, n×h×w×c or n×h×w as the model takes them; others as they are."""
        size = tuple(pixels.shape)
        if size[1:] == self.shape or self._decoding is None:
            return pixels
        if (1, *size[1:]) == self.shape:  # else one image in colour could be taken for three grey ones
            return pixels[:, None]
        if len(size) != 4 or not {size[1], size[3]} & {*CHANNELS}:
            return pixels
        channels_first = pixels if size[1] in CHANNELS else pixels.permute(0, 3, 1, 2)
        return torch.from_numpy(adapt(channels_first.numpy(force=True), self._decoding)).to(pixels.device)


def _is_image(thing: object) -> bool:
    """Return True for the path of an image file and for a picture of PIL."""
    from PIL import Image

    return isinstance(thing, str | os.PathLike | Image.Image)
