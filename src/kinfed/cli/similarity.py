"""``kinfed similarity A B``: which layers of two models, or of two files of activations, are alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kinfed.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from kinfed.data import Samples
    from kinfed.similarity import Kernel, LayerSimilarity

__all__ = ["compare_files"]


def compare_files(
    a: Path,
    b: Path,
    *,
    data: str | None,
    samples: int,
    layers: list[str] | None,
    kernel: Kernel,
    bandwidth: float,
) -> LayerSimilarity:
    """Layers × layers CKA of two files.

    Args:
        a: Activations (.npy, .npz, .safetensors: a layer each array), or a model that a run has saved.
        b: Likewise.
        data: Data set whose test images the models see; needed for models.
        samples: How many of them, drawn once with a fixed seed.
        layers: The layers wanted; all if not given.
        kernel: As in `kinfed.similarity.cka`.
        bandwidth: As in `kinfed.similarity.cka`.

    Raises:
        InputError: If a file is neither, or the two cannot be compared.
    """
    from kinfed.similarity import compare_layers

    images = None if data is None else _test_images(data, samples)
    try:
        sides = [_activations(path, images, layers) for path in (a, b)]
        return compare_layers(*sides, kernel=kernel, bandwidth=bandwidth)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error


def _test_images(data: str, samples: int) -> Samples:
    from kinfed.data import load
    from kinfed.streams import numpy_stream

    test = load(data).test
    if not 4 <= samples <= len(test):
        raise InputError(f"samples: {samples} is not allowed; {data} has {len(test)} test images, and 4 are needed")
    return test.take(numpy_stream(0, "similarity").choice(len(test), samples, replace=False))


def _activations(path: Path, images: Samples | None, layers: list[str] | None) -> dict[str, Tensor]:
    from kinfed.learning import features
    from kinfed.models import open_saved, saved_about
    from kinfed.similarity import load_activations

    is_model = path.is_file() and path.suffix == ".safetensors" and saved_about(path) is not None
    if not is_model:
        return load_activations(path, layers)
    if images is None:
        raise InputError(f"{path}: a model needs images to look at; name a data set with --data")
    model, shape, _ = open_saved(path)
    if shape != tuple(images.inputs.shape[1:]):
        sizes = ("×".join(map(str, size)) for size in (shape, images.inputs.shape[1:]))
        raise InputError("{}: the model takes inputs of {}, the data set has {}".format(path, *sizes))
    return {tap: features(model, images, tap) for tap in layers or model.layers}
