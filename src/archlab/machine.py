"""Processors, memory and software versions of the machine that this process runs on."""

import ctypes
import os
import platform
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from archlab.version import __version__

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Constants M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h, which name parameters of mallopt."""

LARGEST_KEPT = 2**25
"""Maximum size, in bytes, of a freed memory block that the process keeps. glibc allows no larger value."""


def cores() -> int:
    """Return the number of processors that this process may use.

    If that is unknown, return the number of all processors.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def total_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@cache
def keep_freed_memory() -> None:
    """Let this process keep freed memory from now on instead of returning it to the operating system.

    On a GPU, torch always keeps it. There, this function lets torch enlarge a kept block instead of requesting another,
    unless the user's environment configures torch's allocator. It has an effect only before the GPU is first used.

    By default, glibc returns the memory of each large tensor when it is freed, and requests memory page by page for the
    next one. That costs a tenth of the time of a training run on a CPU.

    Memory of tensors above LARGEST_KEPT bytes is still returned, because glibc seldom reuses an aligned block for
    another of the same size. If it were kept, the logits of a large vocabulary would take up to four times their size.
    The function does nothing if the C library has no `mallopt`.
    """
    if sys.platform != "linux":
        return
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def versions() -> dict[str, str]:
    """Return what a bug report needs: the versions of archlab, torch and Python, and the machine. torch is not
    imported."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "not installed"
    return {
        "archlab": __version__,
        "torch": torch,
        "Python": f"{platform.python_version()} ({sys.executable})",
        "machine": f"{platform.platform()}, {cores()} cores, {total_memory() / 2**30:.0f} GiB",
    }
