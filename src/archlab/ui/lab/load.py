"""Load of the machine, for pages about what it trains."""

import os
from pathlib import Path

from archlab.machine import cores
from archlab.pricing.units import binary, plural


def machine_load() -> str:
    """Return the load of this machine and its free memory in words."""
    busy = os.getloadavg()[0]
    text = f"load {busy:.1f} on {plural(cores(), 'core')}"
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        text += f", {binary(1024 * int(fields['MemAvailable'].split()[0]))} of memory free"
    except (OSError, KeyError, ValueError):
        pass  # not Linux
    return text
