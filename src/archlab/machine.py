"""Processors and memory of the machine that this process runs on."""

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of two mallopt parameters, as defined in glibc's malloc.h."""

LARGEST_KEPT = 2**25
"""Maximum size of freed blocks that the process keeps, in bytes. glibc allows no larger value."""


def cores() -> int:
    """Return the number of processors that this process may use.

    If that is unknown, return the number of all processors.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def keep_freed_memory() -> None:
    """Let this process keep freed memory from now on, except that of very large tensors.

    Otherwise glibc returns the memory of every large tensor to the operating system and requests it again page by page.
    That costs a tenth of the time of a training run on a CPU. The memory of very large tensors is not kept, because
    glibc seldom reuses an aligned block for a new block of the same size. If such blocks were kept, the logits of a
    large vocabulary would take up to four times their size. The function does nothing if the C library has no
    `mallopt`.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
