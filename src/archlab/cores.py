"""How many processors there are for this process."""

import os


def cores() -> int:
    """Those it may run on, where the system says so."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
