"""Model cards: JSON files beside saved models, with everything needed to build and use the model again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kinfed.errors import InputError
from kinfed.models.batchnorm import BatchNorm
from kinfed.models.shards import card_of

__all__ = ["LONGEST", "Card", "Recipe"]

LARGEST = 2**40  # values in an input; a larger number would overflow later
LONGEST = 2**24  # bytes of a card; a card with a million classes is shorter


class _Normalisation(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    mean: tuple[float, ...]
    std: tuple[Annotated[float, Gt(0)], ...]


class _Encoding(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    numbers: dict[str, float]
    categories: dict[str, tuple[str, ...]]
    usual: dict[str, str]

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        if self.categories.keys() != self.usual.keys() or not all(self.categories.values()):
            raise ValueError("each column of categories must have some, and a most frequent one")
        return self


class Recipe(BaseModel):
    """Description from which a saved model can be built again.

    Attributes:
        architecture: Name of one of `kinfed.models.ARCHITECTURES`. For a user's own architecture, which a file may not
            import, its import path, or ``<name>`` if it has none.
        bn: Treatment of the BatchNorm layers; see `set_batchnorm`.
        head: Name of the last linear layer of a user's own module; None for kinfed's architectures.
        shape: Shape of one input, (c, h, w) for images.
        classes: Names of the classes, in the order of the logits; empty for a body that was trained without labels.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    architecture: str
    bn: BatchNorm
    head: str | None = None
    shape: tuple[Annotated[int, Ge(1)], ...] = Field(min_length=1)
    classes: tuple[str, ...]

    @model_validator(mode="after")
    def _sizes_can_be(self) -> Self:
        if math.prod(self.shape) > LARGEST:
            raise ValueError(f"shape has more than {LARGEST:,} values")
        return self

    @classmethod
    def checked(cls, about: Mapping[str, Any], path: Path) -> Self:
        """Validate the description in a file.

        Raises:
            InputError: If it is not a valid recipe; the message names the file.
        """
        try:
            return cls.model_validate(about)
        except ValidationError as error:
            raise _no_description(error, path) from error


class Card(Recipe):
    """Card of a saved model: its recipe, and the other fields of its JSON file that kinfed reads.

    Attributes:
        version: Version of the file format.
        normalisation: Mean and standard deviation of the inputs for each channel, on the scale of uint8, or for each
            feature.
        encoding: Features of the columns of a table (see `kinfed.data.tables.Encoding`); None for other data.
        data: Name of the training data; None if not known.
        accuracy: Test accuracy in [0, 1]; None without a test.

    >>> fields = {"version": 1, "architecture": "mlp", "bn": "track", "shape": [1, 8, 8], "classes": ["cat", "dog"]}
    >>> Card(**fields, normalisation={"mean": [127.5], "std": [64.0]}).classes
    ('cat', 'dog')
    """

    version: Literal[1]
    normalisation: _Normalisation
    encoding: _Encoding | None = None
    data: str | None = None
    accuracy: float | None = None

    @model_validator(mode="after")
    def _channels_agree(self) -> Self:
        told = self.normalisation
        if not len(told.mean) == len(told.std) == self.shape[0]:
            raise ValueError(f"normalisation must have {self.shape[0]} channels")
        if self.encoding is not None:
            features = len(self.encoding.numbers) + sum(map(len, self.encoding.categories.values()))
            if self.shape != (features,):
                raise ValueError(f"encoding must have {self.shape[0]} features, not {features}")
        return self

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a card from a file, or from the cards of a shard (see `kinfed.models.shards`).

        Raises:
            InputError: If the file is missing, damaged, or of another version.
        """
        text = card_of(path)
        if text is None:
            try:
                with path.open("rb") as file:
                    text = file.read(LONGEST + 1)
            except OSError as error:
                raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        if len(text) > LONGEST:
            raise InputError(f"{path}: is not a description of a model: it has more than {LONGEST:,} bytes")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise _no_description(error, path) from error

    def check(self, about: Mapping[str, Any], path: Path) -> None:
        """Refuse a model file whose own metadata contradict this card.

        Raises:
            InputError: If architecture, BatchNorm treatment, shape or classes differ.
        """
        told = self.model_dump(mode="json")
        for name in ("architecture", "bn", "shape", "classes"):
            if told[name] != about.get(name):
                raise InputError(
                    f"{path.with_suffix('.json')}: does not belong to {path.name}, since its {name} differs"
                )


def _no_description(error: ValidationError, path: Path) -> InputError:
    """Turn the first of pydantic's errors into an InputError of one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return InputError(f"{path}: is not a description of a model: {where and f'{where}: '}{first['msg']}")
