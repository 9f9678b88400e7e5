"""The command ``kinfed similarity A B``: compare the layers of two models or of two files of activations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
    measure: str = "cka",
    allow_code: bool = False,
) -> LayerSimilarity:
    """Compare every layer of one file with every layer of another.

    Args:
        a: A file of activations (.npy, .npz or .safetensors: one array per layer, and optionally ``ids`` of the
            examples), or a model that a run has saved.
        b: The other file, of the same kinds.
        data: Name of the data set whose test images the models see; needed if a file is a model.
        samples: Number of test images, drawn at random with a fixed seed.
        layers: Names of the layers to compare; all if not given.
        kernel: Kernel of the CKA, ``linear`` or ``rbf``.
        bandwidth: Bandwidth of the RBF kernel, as a multiple of the median distance.
        measure: Similarity measure: one of `kinfed.similarity.MEASURES`, or ``package.module:function``.
        allow_code: Import the user's own architectures that the files of models name.

    Returns:
        The similarity of every pair of layers.

    Raises:
        InputError: If a file is neither activations nor a model, the two cannot be compared, or a data set is given and
            both files are activations.
    """
    from kinfed.similarity import compare_layers

    if data is not None and not any(_is_model(path) for path in (a, b)):
        raise InputError(f"data: {data!r} would do nothing; {a} and {b} are files of activations")
    seen = None if data is None else _test_images(data, samples)
    one, other = (_model(path, seen, layers, allow_code) if _is_model(path) else _file(path, layers) for path in (a, b))
    ids = None if one.ids is None or other.ids is None else (one.ids, other.ids)
    if ids is None and any(side.ids is not None and side.of_file for side in (one, other)):
        raise InputError(f"ids: must be in both {a} and {b} or in neither")
    return compare_layers(one.layers, other.layers, measure=measure, ids=ids, kernel=kernel, bandwidth=bandwidth)


class _Side(NamedTuple):
    """One side of the comparison.

    Attributes:
        layers: Activations by layer, n×….
        ids: Ids of the n examples, or None if there are none.
        of_file: True if the activations were read from a file, False if a model computed them.
    """

    layers: dict[str, Tensor]
    ids: list[Any] | None
    of_file: bool


def _test_images(data: str, samples: int) -> tuple[list[int], Samples]:
    """Return the numbers of the test images that models see, and the images."""
    from kinfed.data import load
    from kinfed.streams import numpy_stream

    test = load(data).test
    if not 4 <= samples <= len(test):
        raise InputError(f"samples: {samples} is not allowed; must be from 4 to {len(test)}, the test images of {data}")
    rows = numpy_stream(0, "similarity").choice(len(test), samples, replace=False)
    return rows.tolist(), test.take(rows)


def _is_model(path: Path) -> bool:
    from kinfed.models import is_saved, saved_about

    return is_saved(path) and path.suffix == ".safetensors" and saved_about(path) is not None


def _file(path: Path, layers: list[str] | None) -> _Side:
    from kinfed.similarity import load_activations, load_ids

    return _Side(load_activations(path, layers), load_ids(path), of_file=True)


def _model(path: Path, seen: tuple[list[int], Samples] | None, layers: list[str] | None, allow_code: bool) -> _Side:
    """Return the activations of a saved model; the ids of the examples are their numbers in the test set."""
    from kinfed.learning import features
    from kinfed.models import open_saved

    if seen is None:
        raise InputError(f"{path}: a model needs images; give a data set with --data")
    model, shape, _ = open_saved(path, allow_code=allow_code)
    rows, images = seen
    if shape != tuple(images.inputs.shape[1:]):
        sizes = ("×".join(map(str, size)) for size in (shape, images.inputs.shape[1:]))
        raise InputError("{}: the model takes inputs of shape {}, but the data set has {}".format(path, *sizes))
    return _Side({tap: features(model, images, tap) for tap in layers or model.layers}, rows, of_file=False)
