"""Policies: what a site is willing to do and to tell, in a TOML file at the site."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kinfed.errors import InputError
from kinfed.fields import one_line
from kinfed.files import write_whole
from kinfed.labels import parse_label
from kinfed.methods import METHODS
from kinfed.models import ARCHITECTURES

__all__ = ["Policy"]

HOUR = 3600.0  # seconds


class Policy(BaseModel):
    """What a site is willing to do and to tell; the default is all methods of kinfed, and nobody else's code.

    >>> Policy(methods=("fedavg",)).refusal(["fedper"], samples=100)
    'method fedper is not allowed here; allowed: fedavg'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    methods: tuple[str, ...] | None = Field(None, description="names of the allowed methods; by default all of kinfed")
    code: tuple[str, ...] = Field((), description="names of methods and models of others that may run here")
    class_counts: bool = Field(True, description="true if the number of samples of each class may be told")
    least_samples: int = Field(1, ge=1, description="number of training samples below which the site takes no part")
    most_per_hour: int | None = Field(None, ge=1, description="largest number of messages that it answers in an hour")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a policy.

        Raises:
            InputError: If the file cannot be read, or a field is unknown or has a value that is not allowed.
        """
        try:
            return cls.model_validate(tomllib.loads(path.read_bytes().decode()))
        except OSError as error:
            raise InputError(f"policy: {str(path)!r} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            raise InputError(f"{path}: {one_line(error)}") from error
        except ValueError as error:
            raise InputError(f"policy: {str(path)!r} is not valid TOML: {error}") from error

    def refusal(self, labels: Sequence[str], samples: int, models: Sequence[str] = ()) -> str | None:
        """Return the reason why the site takes no part in a run; None if it does.

        Args:
            labels: Labels of the methods.
            samples: Number of training samples of the site.
            models: Names of the architectures.
        """
        names = [name for label in labels for name in parse_label(label)[0].split("+")]
        for name in names if self.methods is not None else ():
            if name not in (self.methods or ()):
                return f"method {name} is not allowed here; allowed: {', '.join(self.methods or ())}"
        others = [name for name in names if METHODS.origin(name) != "kinfed"]
        others += [name for name in models if not ARCHITECTURES.installed(name)]
        for name in others:
            if name not in self.code:
                return f"{name} is code of others, which is not allowed here"
        for name in names if not self.class_counts else ():
            if METHODS.find(name).tells_class_counts:
                return f"method {name} sends class counts, which may not be told here"
        if samples < self.least_samples:
            return f"there are fewer than {self.least_samples} training samples here"
        return None

    def asked_too_often(self, record: Path) -> str | None:
        """Note in a file that the site is asked now; return the reason if it was asked too often, else None.

        Args:
            record: File with the times of the last hour, seconds since 1970.
        """
        if self.most_per_hour is None:
            return None
        now = time.time()
        try:
            times = [at for at in json.loads(record.read_text()) if now - HOUR < at <= now]
        except (OSError, ValueError, TypeError):
            times = []
        if len(times) >= self.most_per_hour:
            return f"it answers at most {self.most_per_hour} messages in an hour"
        write_whole(record, json.dumps([*times, now]))
        return None
