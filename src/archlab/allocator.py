"""Memory that was freed stays with the process.

Otherwise glibc gives every large tensor back to the system and takes the next one anew, page by page, which costs a
training on a CPU a tenth of its time."""

import ctypes
import sys
from contextlib import suppress
from functools import cache

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""mallopt's numbers, from glibc's malloc.h."""


@cache
def keep_freed_memory() -> None:
    """From here on, in this process. Nothing happens where the C library has no `mallopt`."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
