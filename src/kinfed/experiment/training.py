"""The settings for the training of source models, checked before anything is loaded.

Like the config, this module imports no torch, so that the command line can show its options at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from kinfed.errors import InputError, check_choice
from kinfed.experiment.device import available
from kinfed.fields import listed, one_line, plain_value

__all__ = ["Training"]


class Training(BaseModel):
    """The data sets and settings for the training of source models, one on each data set."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    data: tuple[str, ...] = Field(
        description="names of the data sets (see: kinfed datasets), hub:OWNER/NAME, or their paths"
    )
    like: str | None = Field(
        None,
        description="data set whose channels, image size and normalisation all images get; by default their own",
    )
    channels: int | None = Field(None, description="number of channels of the images, 1 or 3; overrules --like")
    image_size: int | None = Field(
        None, ge=1, description="side in pixels to which images are resized; overrules --like"
    )
    train_images: int | None = Field(
        None, ge=1, description="largest number of training samples per data set, with balanced classes; by default all"
    )
    classes: tuple[str, ...] | None = Field(
        None,
        description="classes to train on, as in 0,1; the model still has an output for every class; by default all",
    )
    model: str = Field("mcmahan_cnn", description="architecture; see: kinfed models")
    epochs: int = Field(5, ge=1, description="number of passes over the training samples")
    lr: float = Field(0.05, gt=0, description="learning rate")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    batch_size: int = Field(50, ge=1, description="number of samples in a training step")
    seed: int = Field(
        0, ge=0, description="seed of the training; start weights depend on the seed and the name of the data set"
    )
    device: str = Field("cpu", description="cpu, cuda, cuda:N or mps")

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any, info: ValidationInfo) -> Any:
        return plain_value(cls, value, info)

    @field_validator("data", mode="before")
    @classmethod
    def _one_or_several(cls, data: Any) -> Any:
        """Turn a name or a path, or a list of them, into a tuple of texts."""
        named = [data] if isinstance(data, str | Path) else data
        return tuple(str(n) if isinstance(n, Path) else n for n in named) if isinstance(named, list | tuple) else data

    @field_validator("data")
    @classmethod
    def _there_are_data(cls, data: tuple[str, ...]) -> tuple[str, ...]:
        from kinfed.data.loading import find

        if not data:
            raise InputError("data: none is named; name one data set or more")
        for name in data:
            if data.count(name) > 1:
                raise InputError(f"data: {name!r} is named twice")
            find(name)
        return data

    @field_validator("like")
    @classmethod
    def _there_is_data(cls, like: str | None) -> str | None:
        from kinfed.data.loading import find

        if like is not None:
            try:
                find(like)
            except InputError as error:
                raise InputError(f"like: {str(error).removeprefix('data: ')}") from error
        return like

    @field_validator("channels")
    @classmethod
    def _grey_or_colour(cls, channels: int | None) -> int | None:
        from kinfed.data.images import Decoding

        return Decoding(channels).channels

    @field_validator("classes", mode="before")
    @classmethod
    def _listed(cls, classes: Any) -> Any:
        return listed(classes)

    @field_validator("model")
    @classmethod
    def _known_model(cls, model: str) -> str:
        from kinfed.models import ARCHITECTURES

        check_choice("model", model, [*ARCHITECTURES])  # a user's own architecture could not be read from a pool
        return model

    @field_validator("device")
    @classmethod
    def _available(cls, device: str) -> str:
        return available(device)

    @classmethod
    def checked(cls, fields: Mapping[str, Any]) -> Self:
        """Make a Training of fields.

        Args:
            fields: Given fields by name; the others get their defaults.

        Raises:
            InputError: If a field is wrong. The message is one line that names the field, the value and what is
                allowed.
        """
        for name in fields:
            check_choice("field", name, [*cls.model_fields])
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise InputError(one_line(error)) from error

    def sources(self) -> dict[str, str]:
        """Return the data set of each source, by name of the source.

        The name is that of the data set, or the last part of a path; then come the classes, if they are selected, and a
        number if two sources would have the same name.
        """
        named: dict[str, str] = {}
        for data in self.data:
            stem = _name(data) + "".join(f"-{name}" for name in self.classes or ()).replace("/", "-")
            number = 1
            while (name := stem if number == 1 else f"{stem}-{number}") in named:
                number += 1
            named[name] = data
        return named

    def of(self, data: str) -> dict[str, Any]:
        """Return the settings that determine the source of one data set, as JSON values: all except the device."""
        return {"data": data} | self.model_dump(mode="json", exclude={"data", "device"})


def _name(data: str) -> str:
    if data.startswith("hub:"):
        return "-".join(data.split("/")[1:])
    path = Path(data).absolute()
    return path.stem if path.is_file() else path.name
