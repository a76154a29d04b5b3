"""Telling the C library to keep freed memory."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h
LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc refuses more


def keep_freed_memory() -> bool:
    """Reuse the memory of large tensors from one training step to the next; returns whether that is on.

    By default glibc gives every block of some megabytes back to the kernel when it is freed and gets fresh,
    zeroed pages for the next one, and threads other than the first cannot keep large blocks at all. A
    training step of a convolutional network allocates the same large tensors each time; on CPU the page
    faults take 10-30% of it. Call it before any thread is started. See mallopt(3).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    settings = (
        (M_ARENA_MAX, 1),
        (M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD),
        (M_TRIM_THRESHOLD, 2**31 - 1),
    )
    return all(mallopt(name, value) == 1 for name, value in settings)
