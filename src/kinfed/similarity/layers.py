"""Two files of activations, layer by layer: what is read, and which layers are alike."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.errors import InputError
from kinfed.similarity.cka import alignment_matrix
from kinfed.similarity.gram import Kernel, median_square_distance
from kinfed.similarity.inputs import Array, flatten, same_rows, tensor, warn_undefined

__all__ = ["LayerSimilarity", "compare_layers", "load_activations"]


@dataclass(frozen=True, kw_only=True)
class LayerSimilarity:
    """CKA of every layer of ``a`` with every layer of ``b``, and all that the numbers depend on.

    Attributes:
        biased: CKA, layers of a × layers of b, in [0, 1].
        debiased: Debiased CKA, likewise; in (-1, 1].
        n: Number of examples.
        features_a: Features of each layer of a after flattening, by name, in the order of the rows.
        features_b: Those of b, in the order of the columns.
        kernel: ``linear`` or ``rbf``.
        bandwidth: Of the RBF kernel, as a fraction of the median distance; None if linear.
        sigma_a: Resulting width σ of ``exp(-d² / (2 σ²))`` for each layer of a; empty if linear.
        sigma_b: Those of b.
        centring: How the Grams were centred.
        flattening: What became of convolutional maps.
    """

    biased: NDArray[np.float64]
    debiased: NDArray[np.float64]
    n: int
    features_a: dict[str, int]
    features_b: dict[str, int]
    kernel: Kernel
    bandwidth: float | None
    sigma_a: dict[str, float]
    sigma_b: dict[str, float]
    centring: str = "column means of the features; debiased: U-centred Gram"
    flattening: str = "n×(c·h·w)"

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON has it; what is not defined is None."""
        matrices = {
            name: [[None if np.isnan(value) else float(value) for value in row] for row in getattr(self, name)]
            for name in ("biased", "debiased")
        }
        return {**vars(self), **matrices}


def compare_layers(
    a: Mapping[str, Array], b: Mapping[str, Array], *, kernel: Kernel = "linear", bandwidth: float = 0.5
) -> LayerSimilarity:
    """CKA, biased and debiased, of every pair of layers of two models.

    Args:
        a: Activations of each layer by name, n×p or n×c×h×w, n ≥ 4.
        b: Those of the other model, for the same n examples in the same order.
        kernel: As in `cka`.
        bandwidth: As in `cka`.

    Raises:
        ValueError: If the numbers of examples differ or are less than 4, or a side has no layer.
    """
    if not a or not b:
        raise ValueError("compare_layers needs at least one layer on each side")
    sides = [flatten(tensor(x).detach()) for x in (*a.values(), *b.values())]
    n = same_rows("compare_layers", sides)
    biased, debiased = (
        alignment_matrix(sides, kernel=kernel, bandwidth=bandwidth, debiased=option).cpu().numpy()
        for option in (False, True)
    )
    names = [f"layer {name!r} of {side}" for side, layers in (("a", a), ("b", b)) for name in layers]
    undefined = np.flatnonzero(np.isnan(debiased.diagonal()))
    if len(undefined):
        warn_undefined("CKA", {names[i]: sides[i] for i in undefined})
    features = [x.shape[1] for x in sides]
    sigmas = [bandwidth * median_square_distance(x) ** 0.5 for x in sides] if kernel == "rbf" else []
    return LayerSimilarity(
        biased=biased[: len(a), len(a) :],
        debiased=debiased[: len(a), len(a) :],
        n=n,
        features_a=dict(zip(a, features, strict=False)),
        features_b=dict(zip(b, features[len(a) :], strict=True)),
        kernel=kernel,
        bandwidth=bandwidth if kernel == "rbf" else None,
        sigma_a=dict(zip(a, sigmas, strict=False)),
        sigma_b=dict(zip(b, sigmas[len(a) :], strict=False)),
    )


def load_activations(path: str | Path, layers: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Activations by layer name from a ``.npy``, ``.npz`` or ``.safetensors`` file. Nothing in it is ever executed.

    Args:
        path: The file; the one array of a ``.npy`` is called by the file's name without suffix.
        layers: The layers wanted, in that order; all if not given. No other layer's data are read.

    Raises:
        InputError: In one line, if the file is missing, not what its suffix says, empty, has not the layer asked for
            (the line lists those that it has), or has a layer that is not an array of numbers with an axis of examples.
    """
    path = Path(path)
    if path.suffix not in _READERS:
        raise InputError(f"{path}: activations are .npy, .npz or .safetensors files")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        return _READERS[path.suffix](path, layers)
    except InputError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: not a {path.suffix} file of plain arrays ({error})") from error


def _wanted(path: Path, names: Sequence[str], layers: Sequence[str] | None) -> Sequence[str]:
    if not names:
        raise InputError(f"{path}: no layers")
    for layer in layers or ():
        if layer not in names:
            raise InputError(f"{path}: no layer {layer!r}; it has {', '.join(names)}")
    return names if layers is None else layers


def _checked(path: Path, layer: str, data: Array) -> Tensor:
    if isinstance(data, np.ndarray):
        if data.dtype.kind not in "fiub":
            raise InputError(f"{path}: layer {layer!r} has {data.dtype}, not numbers")
        data = torch.from_numpy(data.astype(data.dtype.newbyteorder("="), copy=False))
    if data.ndim < 1 or data.numel() == 0:
        raise InputError(f"{path}: layer {layer!r} has shape {tuple(data.shape)}, expected n×p or n×c×h×w")
    return data


def _read_npy(path: Path, layers: Sequence[str] | None) -> dict[str, Tensor]:
    _wanted(path, [path.stem], layers)
    return {path.stem: _checked(path, path.stem, np.load(path, allow_pickle=False))}


def _read_npz(path: Path, layers: Sequence[str] | None) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as file:
        return {layer: _checked(path, layer, file[layer]) for layer in _wanted(path, file.files, layers)}


def _read_safetensors(path: Path, layers: Sequence[str] | None) -> dict[str, Tensor]:
    with safetensors.safe_open(path, framework="pt") as file:
        return {layer: _checked(path, layer, file.get_tensor(layer)) for layer in _wanted(path, file.keys(), layers)}


_READERS: dict[str, Callable[[Path, Sequence[str] | None], dict[str, Tensor]]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
}
