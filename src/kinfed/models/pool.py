"""Pools of source models: folders of safetensors files, each with a JSON file that describes it.

A source model is a model that was trained before, on other data; FedVote can transfer its body to the clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kinfed.errors import InputError
from kinfed.models.card import Card
from kinfed.models.catalogue import ARCHITECTURES
from kinfed.models.model import Model
from kinfed.models.saved import refuse_pickle, restored, saved_about
from kinfed.models.shards import is_saved, saved_models

__all__ = ["Source", "open_pool"]


@dataclass(frozen=True)
class Source:
    """Source model of a pool: a trained model with its name and description.

    Attributes:
        name: Name of its files, without their suffixes.
        model: Frozen model, on the CPU and in evaluation mode.
        card: Card of the model: architecture, shape, classes, normalisation, and training data and accuracy if known.
    """

    name: str
    model: Model
    card: Card


def open_pool(folder: Path) -> tuple[Source, ...]:
    """Open all source models in a folder, in the order of their names: ``NAME.safetensors`` with ``NAME.json``.

    The folder ``RUN/models`` of a run is a pool. Architectures, shapes and classes of the sources may differ.

    Raises:
        InputError: If the folder is missing or has no source. Or if a source has no JSON file or contradicts it, is
            damaged, is a pickle, is of an unknown architecture, or has a number that is not finite.
    """
    if not folder.is_dir():
        raise InputError(f"sources: {str(folder)!r} is not a folder")
    for path in sorted(folder.iterdir()):
        refuse_pickle(path)
    paths = [folder / f"{name}.safetensors" for name in saved_models(folder)]
    if not paths:
        raise InputError(
            f"sources: {str(folder)!r} has no source; a pool must have NAME.safetensors and NAME.json; kinfed sources "
            "train creates one"
        )
    return tuple(_open(path) for path in paths)


def _open(path: Path) -> Source:
    beside = path.with_suffix(".json")
    if not is_saved(beside):
        raise InputError(f"sources: {path} must have its description {beside.name} beside it")
    card = Card.read(beside)
    if not ARCHITECTURES.installed(card.architecture):
        imports = ", and a file may not import code" if ":" in card.architecture else ""
        known = ", ".join(ARCHITECTURES)
        raise InputError(f"{beside}: architecture: {card.architecture!r} is not known{imports}; allowed: {known}")
    about = saved_about(path)
    if about is not None:
        card.check(about, path)
    return Source(path.stem, restored(card, path).requires_grad_(False), card)
