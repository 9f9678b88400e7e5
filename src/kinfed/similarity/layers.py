"""Activations of two models: reading them from files, and comparing them layer by layer."""

from __future__ import annotations

import contextlib
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
from numpy.typing import NDArray
from torch import Tensor

from kinfed.errors import InputError
from kinfed.similarity.cka import biased_and_debiased
from kinfed.similarity.gram import Kernel, median_square_distance
from kinfed.similarity.inputs import Array, flatten, same_rows, tensor, warn_undefined
from kinfed.similarity.matrix import similarity_matrix
from kinfed.similarity.measures import Measure, as_measure
from kinfed.similarity.options import Positive, checked

__all__ = ["Ids", "LayerSimilarity", "compare_layers", "load_activations", "load_ids"]

CENTRING = "column means of the features; debiased: U-centred Gram"
IDS = "ids"  # name of the array in a file that holds the ids of the examples
BROKEN = (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, safetensors.SafetensorError)
Ids = Sequence[int] | Sequence[str] | Array


@dataclass(frozen=True, kw_only=True)
class LayerSimilarity:
    """Similarity of every layer of model ``a`` with every layer of model ``b``, and the settings that it depends on.

    Attributes:
        values: Similarity by the measure, layers of a × layers of b.
        biased: Biased CKA, layers of a × layers of b, in [0, 1]; None for other measures.
        debiased: Debiased CKA, layers of a × layers of b, in (-1, 1]; None for other measures.
        n: Number of examples.
        features_a: Number of features of each layer of a after flattening, by name, in the order of the rows.
        features_b: Number of features of each layer of b, in the order of the columns.
        kernel: Kernel of the Grams, ``linear`` or ``rbf``; None for other measures than CKA.
        bandwidth: Bandwidth of the RBF kernel, as a fraction of the median distance; None without an RBF kernel.
        sigma_a: Width σ of the kernel ``exp(-d² / (2 σ²))`` for each layer of a; empty without an RBF kernel.
        sigma_b: Width σ for each layer of b.
        order: ``ids`` if the examples of b were matched with those of a by their ids; ``trusted`` without ids, if row
            r of both was assumed to be the same example.
        centring: Centring of the Grams, in words; None for other measures than CKA.
        flattening: Shape that convolutional maps were flattened to.
        measure: Name of the measure.
    """

    values: NDArray[np.float64]
    biased: NDArray[np.float64] | None
    debiased: NDArray[np.float64] | None
    n: int
    features_a: dict[str, int]
    features_b: dict[str, int]
    kernel: Kernel | None
    bandwidth: float | None
    sigma_a: dict[str, float]
    sigma_b: dict[str, float]
    order: Literal["ids", "trusted"]
    centring: str | None = CENTRING
    flattening: str = "n×(c·h·w)"
    measure: str = "cka"

    @property
    def matrices(self) -> dict[str, NDArray[np.float64]]:
        """Matrices to show, by heading: biased and debiased CKA, or the one of another measure."""
        both = {"biased CKA": self.biased, "debiased CKA": self.debiased}
        told = {heading: matrix for heading, matrix in both.items() if matrix is not None}
        return told or {self.measure: self.values}

    def to_dict(self) -> dict[str, Any]:
        """Convert all attributes to JSON types; undefined values become None."""
        matrices = {
            name: [[None if np.isnan(value) else float(value) for value in row] for row in matrix]
            for name, matrix in vars(self).items()
            if isinstance(matrix, np.ndarray)
        }
        return {**vars(self), **matrices}


@checked
def compare_layers(
    a: Mapping[str, Array],
    b: Mapping[str, Array],
    *,
    measure: str | Measure | Callable[..., Any] = "cka",
    ids: tuple[Ids, Ids] | None = None,
    kernel: Kernel = "linear",
    bandwidth: Positive = 0.5,
) -> LayerSimilarity:
    """Compute the similarity of every pair of layers of two models, for CKA both biased and debiased.

    Args:
        a: Activations of each layer of the first model, by name, n×p or n×c×h×w, n ≥ 4.
        b: Activations of each layer of the second model, for the same n examples; in the same order, unless there are
            ids.
        measure: Name of one of `MEASURES` that needs no labels, a `Measure`, or a function of two representations.
        ids: Ids of the examples of a and of b, one for each row; unique integers or strings.
        kernel: Kernel of CKA, ``linear`` or ``rbf``.
        bandwidth: Bandwidth of the RBF kernel, as a fraction of the median distance.

    Raises:
        InputError: If the numbers of examples differ or are below 4, a model has no layer, the two do not have the same
            ids, or the measure refuses a pair.

    >>> x = np.random.default_rng(0).normal(size=(50, 2, 4))
    >>> compare_layers({"conv": x[:, 0]}, {"conv": 2 * x[:, 0], "fc": x[:, 1]}).values.round(2)
    array([[1.  , 0.09]])
    """
    by = _without_labels(measure)
    if kernel != "linear" and not by.of_grams:
        raise InputError(f"kernel: {kernel!r} would do nothing; it is an option of CKA, and the measure is {by.name}")
    kernel = by.options.get("kernel", kernel)
    layers = {"a": _layers("a", a), "b": _layers("b", b)}
    if ids is not None:
        order = _matched({side: _checked_ids(f"ids of {side}", of) for side, of in zip("ab", ids, strict=True)}, layers)
        layers["b"] = {name: x[order] for name, x in layers["b"].items()}
    named = {f"layer {name!r} of {side}": x for side, of in layers.items() for name, x in of.items()}
    sides = [*named.values()]
    n = same_rows("compare_layers", sides)
    biased = debiased = None
    if by.of_grams:
        xs, ys = sides[: len(a)], sides[len(a) :]
        biased, debiased = (matrix.cpu().numpy() for matrix in biased_and_debiased(xs, ys, kernel, bandwidth))
        blank = np.isnan(debiased)  # one of the two layers has no similarity, not even with itself
        suspects = [*blank.all(axis=1), *blank.all(axis=0)]
        if undefined := {
            name: x
            for (name, x), suspect in zip(named.items(), suspects, strict=True)
            if suspect and biased_and_debiased([x], [x], kernel, bandwidth)[1].isnan().all()
        }:
            warn_undefined("CKA", undefined)
        values = debiased if by.debiased else biased
    else:
        values = similarity_matrix(sides[: len(a)], by, against=sides[len(a) :]).cpu().numpy()
    features = [x.shape[1] for x in sides]
    sigmas = [bandwidth * median_square_distance(x) ** 0.5 for x in sides] if by.of_grams and kernel == "rbf" else []
    return LayerSimilarity(
        values=values,
        biased=biased,
        debiased=debiased,
        n=n,
        features_a=dict(zip(a, features, strict=False)),
        features_b=dict(zip(b, features[len(a) :], strict=True)),
        kernel=kernel if by.of_grams else None,
        bandwidth=bandwidth if by.of_grams and kernel == "rbf" else None,
        sigma_a=dict(zip(a, sigmas, strict=False)),
        sigma_b=dict(zip(b, sigmas[len(a) :], strict=False)),
        order="trusted" if ids is None else "ids",
        centring=CENTRING if by.of_grams else None,
        measure=by.name,
    )


def _without_labels(measure: str | Measure | Callable[..., Any]) -> Measure:
    """Return a measure by its name or function; refuse one that needs labels."""
    by = as_measure(measure)
    if by.needs_labels:
        raise InputError(f"measure: {by.name!r} is not allowed; it needs labels, which activations do not have")
    return by


def _layers(side: str, given: Mapping[str, Array]) -> dict[str, Tensor]:
    """Convert the layers of a model to matrices."""
    if not isinstance(given, Mapping) or not given:
        raise InputError(f"compare_layers: {side} needs at least one layer, by name; got {type(given).__name__}")
    return {name: flatten(tensor(f"compare_layers: layer {name!r} of {side}", x).detach()) for name, x in given.items()}


def _checked_ids(what: str, given: Ids) -> list[Any]:
    """Return the ids as a list; refuse all but unique integers or strings, one for each example."""
    array = np.asarray(given.cpu() if isinstance(given, Tensor) else given)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise InputError(
            f"{what}: must be one whole number or text per example; got {array.dtype} of shape {array.shape}"
        )
    names, counts = np.unique(array, return_counts=True)
    if (counts > 1).any():
        raise InputError(f"{what}: {names[counts > 1][0].item()!r} occurs twice; each example must have its own id")
    listed: list[Any] = array.tolist()
    return listed


def _matched(ids: Mapping[str, list[Any]], layers: Mapping[str, Mapping[str, Tensor]]) -> list[int]:
    """Rows of b in the order of the examples of a."""
    for side, of in layers.items():
        for name, x in of.items():
            if len(x) != len(ids[side]):
                raise InputError(f"ids of {side}: there are {len(ids[side])}, but layer {name!r} has {len(x)} rows")
    rows = {id: row for row, id in enumerate(ids["b"])}
    lacking = {"b": [id for id in ids["a"] if id not in rows], "a": [id for id in ids["b"] if id not in {*ids["a"]}]}
    told = [f"{len(of)} are not in {side}, the first is {of[0]!r}" for side, of in lacking.items() if of]
    if told:
        raise InputError(f"ids: a and b must have the same examples: {'; '.join(told)}")
    return [rows[id] for id in ids["a"]]


def load_activations(path: str | Path, layers: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Read activations by layer name from a ``.npy``, ``.npz`` or ``.safetensors`` file; no code in it is executed.

    In ``.npz`` and ``.safetensors`` files, an array named ``ids`` is not a layer; `load_ids` reads it.

    Args:
        path: File to read. The array of a ``.npy`` file gets the file's name without suffix.
        layers: Names of the layers to read, in this order; None for all. Other layers are not read.

    Raises:
        InputError: If the file is missing, empty or not of the format that its suffix names, lacks a layer (the message
            lists its layers), or has a layer that is not an array of numbers with an axis of examples.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/model.npz", conv1=np.zeros((5, 3)))
    ...     load_activations(f"{folder}/model.npz")["conv1"].shape
    torch.Size([5, 3])
    """
    path = Path(path)
    with _opened(path) as (names, read):
        there = [name for name in names if name != IDS or path.suffix == ".npy"]
        if not there:
            raise InputError(f"{path}: has no layers")
        for layer in layers or ():
            if layer not in there:
                raise InputError(f"{path}: has no layer {layer!r}; it has {', '.join(there)}")
        return {layer: _checked(path, layer, read(layer)) for layer in (there if layers is None else layers)}


def load_ids(path: str | Path) -> list[Any] | None:
    """Read the ids of the examples, the array ``ids`` of a ``.npz`` or ``.safetensors`` file; None without one.

    Raises:
        InputError: If the file is missing or not of the format that its suffix names, or the ids are not unique
            integers or strings.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/model.npz", conv1=np.zeros((2, 3)), ids=["cat.png", "dog.png"])
    ...     load_ids(f"{folder}/model.npz")
    ['cat.png', 'dog.png']
    """
    path = Path(path)
    with _opened(path) as (names, read):
        return _checked_ids(f"{path}: ids", read(IDS)) if IDS in names and path.suffix != ".npy" else None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Sequence[str], Callable[[str], Array]]]:
    """Open a file and give the names of its arrays and a function that reads one; any failure is an InputError."""
    if path.suffix not in {".npy", ".npz", ".safetensors"}:
        raise InputError(f"{path}: must be a .npy, .npz or .safetensors file of activations")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        if path.suffix == ".npy":
            yield [path.stem], lambda _: np.load(path, allow_pickle=False)
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                yield file.files, file.__getitem__
        else:
            with safetensors.safe_open(path, framework="pt") as file:
                yield file.keys(), file.get_tensor
    except InputError:
        raise
    # RuntimeError: an encrypted archive or an unknown compression. MemoryError: a header that claims too much. Of a
    # header that is no Python literal, NumPy raises what its parsers raise.
    except (*BROKEN, RuntimeError, MemoryError, SyntaxError, tokenize.TokenError) as error:
        raise InputError(f"{path}: is not a {path.suffix} file of plain arrays ({error})") from error


def _checked(path: Path, layer: str, data: Array) -> Tensor:
    if isinstance(data, np.ndarray) and data.dtype.kind not in "fiub":
        raise InputError(f"{path}: layer {layer!r} has {data.dtype}, not numbers")
    if not data.shape or 0 in data.shape:
        raise InputError(f"{path}: layer {layer!r} has shape {tuple(data.shape)}, expected n×p or n×c×h×w")
    return tensor(f"{path}: layer {layer!r}", data)
