"""Trained models of a run, ready for use. Nothing in their files is ever executed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kinfed.data import Normalisation
from kinfed.data.tables import Encoding, Table
from kinfed.errors import InputError, check_choice
from kinfed.experiment.folders import FEDERATION
from kinfed.fields import short
from kinfed.files import read_json_object
from kinfed.learning.frozen import CHUNK
from kinfed.models import (
    ARCHITECTURES,
    HEAD,
    Card,
    Model,
    factory,
    from_module,
    restored,
    saved_about,
    select,
    set_batchnorm,
    weights_for,
)
from kinfed.settings import own_settings

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Predictor", "load"]


class Predictor(nn.Module):
    """A trained model with its normalisation and class names, in evaluation mode.

    Args:
        model: Trained model, on the CPU; ``to`` moves it with the predictor.
        card: Description of the model: classes, input shape, normalisation.

    Attributes:
        model: The trained model itself.
        classes: Names of the classes, in the order of the logits; empty if the model was trained without labels, so
            that it has only representations.
        shape: Shape of one input, such as (3, 32, 32).
    """

    def __init__(self, model: Model, card: Card) -> None:
        super().__init__()
        self.model, self.classes, self.shape = model, card.classes, card.shape
        self._normalise = Normalisation(card.normalisation.mean, card.normalisation.std)
        self._encoding = None if card.encoding is None else Encoding(**card.encoding.model_dump())
        self.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the logits, n×K for K classes.

        Args:
            inputs: uint8 images n×c×h×w, which are normalised as in training; or floats of the same shape, which are
                used as they are. Features n×p are floats, which are standardised as in training.

        Raises:
            InputError: If the inputs have another shape or another type, or the model has no classes.
        """
        if not self.classes:
            raise InputError("load: the model was trained without labels and has no classes; use represent")
        logits: Tensor = self.model(self._read(inputs))
        return logits

    def _read(self, inputs: Tensor) -> Tensor:
        """Return inputs as the model takes them, after a check."""
        if not isinstance(inputs, Tensor):
            raise InputError(f"inputs: {short(inputs)} is not allowed; must be a tensor; predict also takes arrays")
        if inputs.dtype != torch.uint8 and not inputs.is_floating_point():
            raise InputError(f"inputs: {inputs.dtype} is not allowed; must be uint8 images or floats")
        if tuple(inputs.shape[1:]) != self.shape:
            sizes = ["×".join(map(str, ("n", *shape))) for shape in (self.shape, inputs.shape[1:])]
            raise InputError(f"inputs: must have the shape {sizes[0]}, not {sizes[1]}")
        raw = inputs.dtype == torch.uint8 or len(self.shape) == 1
        return self._normalise(inputs) if raw else inputs.float()

    @own_settings(threads=None)
    @torch.no_grad()
    def predict(self, inputs: Tensor | NDArray[Any] | pd.DataFrame) -> list[str]:
        """Return the name of the predicted class of each input.

        The inputs are processed in chunks of the same size as in the tests of a run.

        Args:
            inputs: Inputs as in `forward`, as a tensor or an array; for a model of a table, a pandas DataFrame with the
                columns of the features, in any order and beside others.

        Raises:
            InputError: If the inputs are no numbers, or have another shape or type than `forward` takes; if a DataFrame
                lacks a column; or if the model has no classes.
        """
        self.eval()
        return [self.classes[k] for part in self._parts(inputs) for k in self(part).argmax(dim=1).tolist()]

    @own_settings(threads=None)
    @torch.no_grad()
    def represent(self, inputs: Tensor | NDArray[Any] | pd.DataFrame) -> Tensor:
        """Return the representation of each input, n×d: the outputs of the body, on which the head is put.

        Args:
            inputs: Inputs as in `predict`.

        Raises:
            InputError: If the inputs are no numbers, or have another shape or type than `forward` takes; or a DataFrame
                lacks a column.
        """
        self.eval()
        return torch.cat([self.model.body(self._read(part)) for part in self._parts(inputs)])

    def _parts(self, inputs: Tensor | NDArray[Any] | pd.DataFrame) -> Sequence[Tensor]:
        """Return the inputs as tensors of some rows each."""
        if self._encoding is not None and hasattr(inputs, "columns"):
            inputs = self._encoding(Table.of(inputs, "the DataFrame"))
        try:
            whole = torch.as_tensor(inputs if isinstance(inputs, Tensor) else np.ascontiguousarray(inputs))
            return [*whole.split(CHUNK)]
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"inputs: {short(inputs)} is not allowed; must be an array or a tensor: {error}"
            ) from error


@own_settings(threads=None)
def load(
    path: Path, client: int | str | None = None, module: nn.Module | None = None, *, allow_code: bool = False
) -> Predictor:
    """Load a model that a run has saved.

    Args:
        path: A safetensors file with its JSON beside it; or a run folder, for its global model.
        client: Number (int) or name (text) of the client whose personal model is loaded from a run folder instead.
        module: A module of the model's architecture, if that is the user's own; it is copied, not changed.
        allow_code: Import the architecture that the file names, if ``module`` is not given.

    Raises:
        InputError: If there is no such model, a file is damaged, or the module does not fit.
    """
    whole = isinstance(client, int | np.integer) and not isinstance(client, bool)
    if not (client is None or isinstance(client, str) or (whole and client >= 0)):
        raise InputError(f"client: {short(client)} is not allowed; must be a client's number, 0 or more, or its name")
    if module is not None and not isinstance(module, nn.Module):
        raise InputError(f"module: {short(module)} is not allowed; must be an instance of torch.nn.Module, not a class")
    path = _file(path, client)
    card = Card.read(path.with_suffix(".json"))
    about = saved_about(path)
    if about is not None:
        card.check(about, path)
    if module is None and ":" in card.architecture and not ARCHITECTURES.installed(card.architecture):
        if not allow_code:
            raise InputError(
                f"{path}: importing its architecture {card.architecture!r} would run code; allow that with "
                "allow_code=True, or give the module itself: kinfed.load(…, module=…)"
            )
        module = factory(card.architecture)(card.shape, len(card.classes))
    model = _built(path, card, module)
    model.prefer_channels_last()
    return Predictor(model, card)


def _file(path: Path, client: int | str | None) -> Path:
    """Return the safetensors file of a path and a client."""
    if not path.is_dir():
        if client is not None:
            raise InputError(
                f"client: {short(client)} is not allowed; it needs a run folder, and {str(path)!r} is not one"
            )
        if path.suffix != ".safetensors" or not path.is_file():
            raise InputError(f"load: {str(path)!r} is neither a run folder nor an existing safetensors file")
        return path
    number = _number_of(path, client) if isinstance(client, str) else client
    name = "global" if number is None else f"client-{number:05d}-personal"
    file = path / "models" / f"{name}.safetensors"
    if not file.is_file():
        there = sorted(other.stem for other in file.parent.glob("*.safetensors"))
        has = ", ".join(there[:3]) + (", …" if len(there) > 3 else "") or "none, since a run saves models when it ends"
        raise InputError(f"load: {str(path)!r} has no model {name}; it has {has}")
    return file


def _number_of(path: Path, client: str) -> int:
    """Return the number of the client of a run that has this name."""
    names = read_json_object(path / FEDERATION).get("names")
    if names is None:
        raise InputError(
            f"client: {short(client)} is not allowed; the clients of {str(path)!r} have numbers, not names"
        )
    check_choice("client", client, names)
    return int(names.index(client))


def _built(path: Path, card: Card, module: nn.Module | None) -> Model:
    """Build the model of a file, with its weights."""
    if module is None:
        if ARCHITECTURES.installed(card.architecture):
            return restored(card, path)
        raise InputError(
            f"{path}: its architecture {card.architecture!r} is not known; give the module: kinfed.load(…, module=…)"
        )
    own = copy.deepcopy(module)
    model = own if isinstance(own, Model) else from_module(own, card.head)
    set_batchnorm(model, card.bn)
    tensors = weights_for(model, path)
    if not select(tensors, HEAD) and card.classes:
        raise InputError(
            f"{path}: is a body without a head, not a complete model; it can serve as initial weights: --weights"
        )
    model.load(tensors)
    return model
