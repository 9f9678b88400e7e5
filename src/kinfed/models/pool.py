"""A pool of source models: a folder of safetensors files, each with a JSON beside it that says what it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kinfed.errors import InputError
from kinfed.models.card import Card
from kinfed.models.catalogue import ARCHITECTURES
from kinfed.models.model import Model
from kinfed.models.saved import refuse_pickle, restored, saved_about

__all__ = ["Source", "open_pool"]


@dataclass(frozen=True)
class Source:
    """One trained model.

    Attributes:
        name: Of its files, without their endings.
        model: On the CPU, in evaluation mode, no parameter of it trainable.
        card: What is known of it: architecture, shape, classes, normalisation, and what else was told.
    """

    name: str
    model: Model
    card: Card


def open_pool(folder: Path) -> tuple[Source, ...]:
    """The sources in a folder, by name: each ``NAME.safetensors`` with its ``NAME.json``.

    ``RUN/models`` of a run is such a folder. Architectures, shapes and classes may differ from one to the next.

    Raises:
        InputError: If there is no such folder or no source in it, or one of them has no JSON, is damaged or a pickle,
            is of an architecture that kinfed does not know, has a number that is not finite, or does not fit what its
            JSON says.
    """
    if not folder.is_dir():
        raise InputError(f"sources: {str(folder)!r} is no folder")
    for path in sorted(folder.iterdir()):
        refuse_pickle(path)
    paths = sorted(folder.glob("*.safetensors"), key=lambda path: path.stem)
    if not paths:
        raise InputError(
            f"sources: {str(folder)!r} holds no source; a pool has NAME.safetensors and NAME.json, and kinfed sources "
            f"train makes one"
        )
    return tuple(_open(path) for path in paths)


def _open(path: Path) -> Source:
    beside = path.with_suffix(".json")
    if not beside.is_file():
        raise InputError(f"sources: {path} has no {beside.name} beside it that says what it is")
    card = Card.read(beside)
    if not ARCHITECTURES.installed(card.architecture):
        imports = ", which a file may not import" if ":" in card.architecture else ""
        known = ", ".join(ARCHITECTURES)
        raise InputError(f"{beside}: architecture: {card.architecture!r} is not known{imports}; allowed: {known}")
    about = saved_about(path)
    if about is not None:
        card.check(about, path)
    return Source(path.stem, restored(card, path).requires_grad_(False), card)
