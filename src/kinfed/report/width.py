"""Widths of printed text, in characters, where the output is no terminal."""

from __future__ import annotations

__all__ = ["NOTEBOOK_WIDTH", "PLAIN_WIDTH"]

PLAIN_WIDTH = 120
NOTEBOOK_WIDTH = 100  # notebooks do not wrap
