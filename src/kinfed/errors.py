"""Errors that end a command with one line instead of a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["InputError", "RunFailed", "WorkersFailed", "check_choice", "nearest", "plain"]

LONGEST = 600  # characters of a message; a longer one loses its middle


def plain(text: object) -> str:
    r"""Make one printable line of a text: line breaks become spaces; control characters and surrogates are escaped.

    For all names from files, folders or users that are shown.

    >>> plain("a\nb\x1b[2J")
    'a b\\x1b[2J'
    """
    line = " ".join(str(text).split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


class _OneLine(Exception):
    """Error whose text is one printable line of limited length."""

    def __init__(self, text: object) -> None:
        line = plain(text)
        super().__init__(line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}")


class InputError(_OneLine, ValueError):
    """Wrong configuration, file or data set, with a message of one line: the field, its value and what is allowed.

    The command line prints it without a traceback and ends with exit code 2.
    """


class RunFailed(_OneLine, RuntimeError):
    """Run that cannot continue, with the reason in one line; its saved files stay."""


class WorkersFailed(RuntimeError):
    """Error of the worker processes that is no client's fault: they cannot be started or set up."""


def check_choice(what: str, name: str, allowed: Sequence[str] | Mapping[str, Any]) -> None:
    """Refuse a name that is not among the allowed ones, and suggest the nearest of these.

    >>> check_choice("method", "fedavgg", ["fedavg", "fedprox"])
    Traceback (most recent call last):
    kinfed.errors.InputError: method: 'fedavgg' is not known; allowed: fedavg, fedprox; did you mean fedavg?
    """
    if name not in allowed:
        listed = ", ".join(allowed) or "nothing"
        raise InputError(f"{what}: {name!r} is not known; allowed: {listed}{nearest(name, allowed)}")


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return the end of a message that suggests the nearest of the allowed names; empty if none is near.

    >>> nearest("fedavgg", ["fedavg", "fedprox"])
    '; did you mean fedavg?'
    """
    near = difflib.get_close_matches(name, [*allowed], 1)
    return f"; did you mean {near[0]}?" if near else ""
