"""The machine that this process runs on: its processors, and its memory."""

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""mallopt's numbers, from glibc's malloc.h."""

LARGEST_KEPT = 2**25
"""Bytes; the largest that glibc allows."""


def cores() -> int:
    """Number of processors that this process may run on, if the system tells; otherwise of all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def keep_freed_memory() -> None:
    """Keep freed memory in this process from here on, except for very large tensors.

    Otherwise glibc gives every large tensor back to the system and takes the next one page by page, which costs a
    training on a CPU a tenth of its time. Keeping tensors of any size would cost memory instead. glibc seldom fits an
    aligned block into the hole that one of its size has left, so the logits of a large vocabulary took up to four times
    what they need. Nothing happens if the C library has no `mallopt`.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
