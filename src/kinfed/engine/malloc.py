"""How this process gets its memory."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

# glibc's malloc.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Let this process keep up to half a GiB that it has freed, where its C library is glibc; nothing elsewhere.

    By default large blocks are given back to the system when they are freed, unless larger ones have been freed before:
    a worker process that only trains would spend a quarter of its time on page faults for the same activations again.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the largest it takes; larger blocks are still given back
        mallopt(M_TRIM_THRESHOLD, 512 << 20)
