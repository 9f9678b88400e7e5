"""Settings of the C library's memory allocator."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

# from glibc's malloc.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Let this process keep up to 512 MiB of freed memory, if its C library is glibc; otherwise do nothing.

    By default glibc returns large freed blocks to the system, unless larger ones were freed before. A worker process
    that only trains would then spend a quarter of its time on page faults for the same activations.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the largest allowed value; larger blocks are still returned
        mallopt(M_TRIM_THRESHOLD, 512 << 20)
