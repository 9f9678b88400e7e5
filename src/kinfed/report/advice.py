"""The advice in the folder of a comparison: what to use, and the command that runs it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from kinfed.errors import InputError
from kinfed.experiment.folders import ADVICE
from kinfed.fields import one_line
from kinfed.files import read_json

__all__ = ["Advised", "read_advice"]


class Advised(BaseModel):
    """What a report shows of an advice.

    Attributes:
        paragraph: What to use and why.
        command: Command that runs it; None if it needs Python objects.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    paragraph: str
    command: str | None


def read_advice(path: Path) -> Advised | None:
    """Read the advice in a folder; None if it has none.

    Raises:
        InputError: If its file is damaged.
    """
    file = path / ADVICE
    if not file.is_file():
        return None
    try:
        return Advised.model_validate(read_json(file))
    except ValidationError as error:
        raise InputError(f"{file}: {one_line(error)}") from error
