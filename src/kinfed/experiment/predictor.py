"""Trained models of a run, ready for use. Nothing in their files is ever executed."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kinfed.data import Normalisation
from kinfed.data.tables import Encoding
from kinfed.errors import InputError, check_choice
from kinfed.experiment.folders import COMPARISON, CONFIG, FEDERATION
from kinfed.experiment.preparation import Preparation
from kinfed.fields import short
from kinfed.files import read_json_object
from kinfed.models import (
    ARCHITECTURES,
    HEAD,
    Card,
    Model,
    factory,
    from_module,
    is_saved,
    restored,
    saved_about,
    saved_models,
    select,
    set_batchnorm,
    weights_for,
)
from kinfed.settings import own_settings

if TYPE_CHECKING:
    from kinfed.experiment.preparation import Inputs

__all__ = ["Predictor", "client_number", "load", "model_file", "saved_clients"]

SHOWN = 20  # clients that a message names


class Predictor(nn.Module):
    """A trained model with its preparation of inputs and its class names, in evaluation mode.

    Args:
        model: Trained model, on the CPU; ``to`` moves it with the predictor.
        card: Description of the model: classes, input shape, normalisation.

    Attributes:
        model: The trained model itself.
        card: Description of the model.
        classes: Names of the classes, in the order of the logits; empty if the model was trained without labels, so
            that it has only representations.
        shape: Shape of one input, such as (3, 32, 32).
        normalise: Normalisation of uint8 images, or of the features of a table.
        encoding: Features of the columns of a table; None for other data.
    """

    def __init__(self, model: Model, card: Card) -> None:
        super().__init__()
        self.model, self.card, self.classes, self.shape = model, card, card.classes, card.shape
        self.normalise = Normalisation(card.normalisation.mean, card.normalisation.std)
        self.encoding = None if card.encoding is None else Encoding(**card.encoding.model_dump())
        self.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the logits, n×K for K classes.

        Args:
            inputs: uint8 images n×c×h×w, which are normalised as in training; or floats of the same shape, which are
                used as they are. Features n×p are floats, which are standardised as in training.

        Raises:
            InputError: If the inputs have another shape or another type, or the model has no classes.
        """
        self._refuse_without_classes()
        logits: Tensor = self.model(self._read(inputs))
        return logits

    def _refuse_without_classes(self) -> None:
        if not self.classes:
            raise InputError("load: the model was trained without labels and has no classes; use represent")

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
        return self.normalise(inputs) if raw else inputs.float()

    @own_settings(threads=None)
    @torch.no_grad()
    def predict(self, inputs: Inputs) -> list[str]:
        """Return the name of the predicted class of each input.

        The inputs are processed in chunks of the same size as in the tests of a run.

        Args:
            inputs: An image file by its path, a picture of PIL, or a list of these or of arrays of one image each,
                which get the channels and the size of the training images; an array or tensor of n inputs, as in
                `forward`, where uint8 images may also be n×h×w×c or of another size; or, for a model of a table, a
                pandas DataFrame with the columns of the features, in any order and beside others.

        Raises:
            InputError: If the inputs are none of these, have a shape or type that the model does not take, or an image
                cannot be decoded; if a DataFrame lacks a column; or if the model has no classes.

        >>> kinfed.load("runs/mine").predict(["cat.jpg", "dog.jpg"])  # doctest: +SKIP
        ['cat', 'dog']
        """
        return [self.classes[k] for k in self.logits(inputs).argmax(dim=1).tolist()]

    @own_settings(threads=None)
    @torch.no_grad()
    def predict_proba(self, inputs: Inputs) -> NDArray[np.float32]:
        """Return the probability of each class for each input, n×K, in the order of ``classes``; rows sum to 1.

        Args:
            inputs: Inputs as in `predict`.

        Raises:
            InputError: As in `predict`.

        >>> kinfed.load("runs/mine").predict_proba("cat.jpg").round(2)  # doctest: +SKIP
        array([[0.97, 0.03]], dtype=float32)
        """
        probabilities: NDArray[np.float32] = self.logits(inputs).softmax(dim=1).numpy(force=True)
        return probabilities

    @own_settings(threads=None)
    @torch.no_grad()
    def logits(self, inputs: Inputs) -> Tensor:
        """Return the logits of each input, n×K, whose largest is the predicted class.

        Args:
            inputs: Inputs as in `predict`.

        Raises:
            InputError: As in `predict`.
        """
        self._refuse_without_classes()
        self.eval()
        return torch.cat([self(part) for part in self._parts(inputs)])

    @own_settings(threads=None)
    @torch.no_grad()
    def represent(self, inputs: Inputs) -> Tensor:
        """Return the representation of each input, n×d: the outputs of the body, on which the head is put.

        Args:
            inputs: Inputs as in `predict`.

        Raises:
            InputError: As in `predict`, except that the model needs no classes.
        """
        self.eval()
        return torch.cat([self.model.body(self._read(part)) for part in self._parts(inputs)])

    def _parts(self, inputs: Inputs) -> Iterator[Tensor]:
        """Yield the inputs as tensors of some rows each, on the device of the model."""
        device = self.model.head.weight.device
        for part in Preparation(self.shape, self.encoding)(inputs):
            yield part.to(device)


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
    path = model_file(path, client)
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
        module = factory(card.architecture)(card.shape, max(len(card.classes), 1))
    model = _built(path, card, module)
    model.prefer_channels_last()
    return Predictor(model, card)


def model_file(path: Path, client: int | str | None) -> Path:
    """Return the safetensors file of a model.

    Args:
        path: The file itself, or a run folder.
        client: Number (int) or name (text) of a client in a run folder; None for the global model.

    Raises:
        InputError: If there is no such model.
    """
    if not path.is_dir():
        if client is not None:
            raise InputError(
                f"client: {short(client)} is not allowed; it needs a run folder, and {str(path)!r} is not one"
            )
        if path.suffix != ".safetensors" or not is_saved(path):
            raise InputError(f"load: {str(path)!r} is neither a run folder nor an existing safetensors file")
        return path
    _refuse_comparison(path)
    number = _number_of(path, client) if isinstance(client, str) else client
    name = "global" if number is None else f"client-{number:05d}-personal"
    file = path / "models" / f"{name}.safetensors"
    if not is_saved(file):
        if number is None and (clients := saved_clients(path)):
            raise InputError(
                f"client: must be given, since {str(path)!r} has no global model; the clients with a model of their "
                f"own are {_few([*clients])}"
            )
        there = saved_models(file.parent)
        has = (
            ", ".join(there[:3]) + (", …" if len(there) > 3 else "")
            or "none, since a run saves models when it ends, unless save_models says otherwise"
        )
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


def saved_clients(path: Path) -> dict[str, int]:
    """Return the numbers of the clients that have a personal model in a run folder, by their names.

    A client of data without names is called by its number.

    Raises:
        InputError: If the folder is a comparison, or ``federation.json`` is damaged.
    """
    _refuse_comparison(path)
    models = saved_models(path / "models")
    numbers = sorted(int(told[1]) for name in models if (told := re.fullmatch(r"client-(\d+)-personal", name)))
    names = (read_json_object(path / FEDERATION).get("names") if numbers else None) or []
    return {names[number] if number < len(names) else str(number): number for number in numbers}


def client_number(path: Path, client: str | None) -> int | None:
    """Return the number of the client that a command line names, by name or number; None if it names none.

    Args:
        path: Run folder.
        client: Name of the client, or its number where the clients have no names.

    Raises:
        InputError: If the run has no model of such a client.
    """
    if client is None:
        return None
    clients = saved_clients(path)
    if not clients:
        raise InputError(f"client: {short(client)} is not allowed; {str(path)!r} has no models of single clients")
    check_choice("client", client, clients)
    return clients[client]


def _refuse_comparison(path: Path) -> None:
    """Refuse the folder of a comparison, which has runs and no models of its own."""
    if not (path / CONFIG).is_file() and (path / COMPARISON).is_file():
        runs = sorted(config.parent.name for config in path.glob(f"*/{CONFIG}"))
        raise InputError(f"load: {str(path)!r} is a comparison; give one of its runs: {_few(runs)}")


def _few(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


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
