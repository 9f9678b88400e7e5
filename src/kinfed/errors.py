"""The one error that is the user's to mend."""

from __future__ import annotations

__all__ = ["InputError"]


class InputError(ValueError):
    """A wrong configuration, file or data set: one line that names the field, the value and what is allowed.

    The command line prints it without a traceback and ends with exit code 2.
    """
