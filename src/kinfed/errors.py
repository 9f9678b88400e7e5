"""The errors that end a command with one line instead of a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["InputError", "RunFailed", "among", "plain"]

LONGEST = 600  # characters of a message: a value that is longer is cut, its beginning and its end stay


def plain(text: object) -> str:
    r"""A text as one printable line: line breaks become spaces, control characters and lone surrogates are spelt out.

    For names that come from files, folders or users, wherever they are shown.

    >>> plain("a\nb\x1b[2J")
    'a b\\x1b[2J'
    """
    line = " ".join(str(text).split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


class _OneLine(Exception):
    """An error whose text is one printable line of bounded length, whatever it was made of."""

    def __init__(self, text: object) -> None:
        line = plain(text)
        super().__init__(line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}")


class InputError(_OneLine, ValueError):
    """A wrong configuration, file or data set: one line that names the field, the value and what is allowed.

    The command line prints it without a traceback and ends with exit code 2.
    """


class RunFailed(_OneLine, RuntimeError):
    """A run that cannot go on, with the reason in one line; what it has saved stays."""


def among(what: str, name: str, allowed: Sequence[str] | Mapping[str, Any]) -> None:
    """Refuse a name that is not among those allowed, with the nearest one."""
    if name not in allowed:
        near = difflib.get_close_matches(name, allowed, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        listed = ", ".join(allowed) or "nothing"
        raise InputError(f"{what}: {name!r} is not known; allowed: {listed}{hint}")
