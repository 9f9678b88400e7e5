"""The JSON beside a saved model: what it takes to build the model again and to use it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kinfed.errors import InputError
from kinfed.models.batchnorm import BatchNorm

__all__ = ["LONGEST", "Card", "Recipe"]

LARGEST = 2**40  # values in an input; more would only overflow somewhere
LONGEST = 2**24  # bytes of a description; one of a million classes is shorter


class _Normalisation(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    mean: tuple[float, ...]
    std: tuple[Annotated[float, Gt(0)], ...]


class Recipe(BaseModel):
    """What it takes to build a model again, as files say it.

    Attributes:
        architecture: One of `kinfed.models.ARCHITECTURES`, or of a user's own, which no file may import: its import
            path, or ``<name>`` where it has none.
        bn: What its BatchNorm layers are or became.
        head: Name of the last linear layer in a module of the user's own.
        shape: Of one input, (c, h, w) for images.
        classes: Names of the classes, in the order of the logits.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    architecture: str
    bn: BatchNorm
    head: str | None = None
    shape: tuple[Annotated[int, Ge(1)], ...] = Field(min_length=1)
    classes: tuple[str, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _sizes_can_be(self) -> Self:
        if math.prod(self.shape) > LARGEST:
            raise ValueError(f"shape is of more than {LARGEST:,} values")
        return self

    @classmethod
    def checked(cls, about: Mapping[str, Any], path: Path) -> Self:
        """What a file says, validated.

        Raises:
            InputError: If it is no recipe; the line names the file.
        """
        try:
            return cls.model_validate(about)
        except ValidationError as error:
            raise _no_description(error, path) from error


class Card(Recipe):
    """What is needed of the JSON beside a model; the rest of it is for people.

    Attributes:
        version: Of the file's form.
        normalisation: Mean and standard deviation of the inputs, one a channel, on the scale of uint8.
        data: What it was trained on, if that is told.
        accuracy: Of its test, a fraction of 1, if it had one.
    """

    version: Literal[1]
    normalisation: _Normalisation
    data: str | None = None
    accuracy: float | None = None

    @model_validator(mode="after")
    def _channels_agree(self) -> Self:
        told = self.normalisation
        if not len(told.mean) == len(told.std) == self.shape[0]:
            raise ValueError(f"normalisation is not of {self.shape[0]} channels")
        return self

    @classmethod
    def read(cls, path: Path) -> Self:
        """The card in a file.

        Raises:
            InputError: If it is missing, damaged, or of another version.
        """
        try:
            with path.open("rb") as file:
                text = file.read(LONGEST + 1)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        if len(text) > LONGEST:
            raise InputError(f"{path}: is no description of a model: it has more than {LONGEST:,} bytes")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise _no_description(error, path) from error

    def check(self, about: Mapping[str, Any], path: Path) -> None:
        """Refuse what a model's file says of itself if this card says something else.

        Raises:
            InputError: If they differ in what it takes to build the model.
        """
        told = self.model_dump(mode="json")
        for name in ("architecture", "bn", "shape", "classes"):
            if told[name] != about.get(name):
                raise InputError(
                    f"{path.with_suffix('.json')}: does not belong to {path.name}, which has another {name}"
                )


def _no_description(error: ValidationError, path: Path) -> InputError:
    """The first of pydantic's errors in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return InputError(f"{path}: is no description of a model: {where and f'{where}: '}{first['msg']}")
