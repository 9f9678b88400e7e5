"""The errors that end a command with one line instead of a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["InputError", "RunFailed", "among"]


class InputError(ValueError):
    """A wrong configuration, file or data set: one line that names the field, the value and what is allowed.

    The command line prints it without a traceback and ends with exit code 2.
    """


class RunFailed(RuntimeError):
    """A run that cannot go on, with the reason in one line; what it has saved stays."""


def among(what: str, name: str, allowed: Sequence[str] | Mapping[str, Any]) -> None:
    """Refuse a name that is not among those allowed, with the nearest one."""
    if name not in allowed:
        near = difflib.get_close_matches(name, allowed, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        listed = ", ".join(allowed) or "nothing"
        raise InputError(f"{what}: {name!r} is not known; allowed: {listed}{hint}")
