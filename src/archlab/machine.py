"""Processors and memory of the machine that this process runs on."""

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of mallopt parameters, from malloc.h of glibc."""

LARGEST_KEPT = 2**25
"""Size in bytes up to which freed memory is kept. glibc allows no larger value."""


def cores() -> int:
    """Return the number of processors that this process may use, or of all processors if that is unknown."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def keep_freed_memory() -> None:
    """Keep freed memory in this process from here on, except for very large tensors.

    Otherwise glibc returns every large tensor to the system and requests the next one page by page. That takes a tenth
    of the time of a training on a CPU. Very large tensors are not kept, because that would need more memory: glibc
    seldom reuses the space of an aligned block for a new one of the same size. The logits of a large vocabulary then
    took up to four times their size. Nothing happens if the C library has no `mallopt`.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
