"""Memory that was freed stays with the process, but for very large tensors.

Otherwise glibc gives every large tensor back to the system and takes the next one anew, page by page, which costs a
training on a CPU a tenth of its time. Kept tensors of any size would cost memory instead: glibc seldom fits an aligned
block into the hole that one of its size has left, so that those of a large vocabulary's logits took up to four times
what they need."""

import ctypes
import sys
from contextlib import suppress
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""mallopt's numbers, from glibc's malloc.h."""

LARGEST_KEPT = 2**25
"""Bytes; the largest that glibc allows."""


@cache
def keep_freed_memory() -> None:
    """From here on, in this process. Nothing happens where the C library has no `mallopt`."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
