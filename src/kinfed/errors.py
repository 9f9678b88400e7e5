"""The errors that end a command with one line instead of a traceback."""

from __future__ import annotations

__all__ = ["InputError", "RunFailed"]


class InputError(ValueError):
    """A wrong configuration, file or data set: one line that names the field, the value and what is allowed.

    The command line prints it without a traceback and ends with exit code 2.
    """


class RunFailed(RuntimeError):
    """A run that cannot go on, with the reason in one line; what it has saved stays."""
