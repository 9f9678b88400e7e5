"""The JSON beside a saved model: what it takes to build the model again and to use it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kinfed.errors import InputError
from kinfed.files import read_json
from kinfed.models.batchnorm import BatchNorm

__all__ = ["Card"]

LARGEST = 2**40  # values in an input; more would only overflow somewhere


class _Normalisation(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    mean: tuple[float, ...]
    std: tuple[Annotated[float, Gt(0)], ...]


class Card(BaseModel):
    """What is needed of the JSON beside a model; the rest of it is for people.

    Attributes:
        version: Of the file's form.
        architecture: One of `kinfed.models.ARCHITECTURES`, or of a user's own, which no file may import.
        bn: What its BatchNorm layers are or became.
        head: Name of the last linear layer in a module of the user's own.
        shape: Of one input, (c, h, w) for images.
        classes: Names of the classes, in the order of the logits.
        normalisation: Mean and standard deviation of the inputs, one a channel, on the scale of uint8.
        data: What it was trained on, if that is told.
        accuracy: Of its test, a fraction of 1, if it had one.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    version: Literal[1]
    architecture: str
    bn: BatchNorm
    head: str | None = None
    shape: tuple[Annotated[int, Ge(1)], ...] = Field(min_length=1)
    classes: tuple[str, ...] = Field(min_length=1)
    normalisation: _Normalisation
    data: str | None = None
    accuracy: float | None = None

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        if math.prod(self.shape) > LARGEST:
            raise ValueError(f"shape is of more than {LARGEST:,} values")
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
        told = read_json(path)
        try:
            return cls.model_validate(told)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InputError(f"{path}: is no description of a model: {where and f'{where}: '}{first['msg']}") from error

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
