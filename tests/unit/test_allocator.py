"""What stays with the process of the memory that it has freed."""

import subprocess
import sys

import pytest

FREED = """
import re, torch
from pathlib import Path
from archlab.allocator import keep_freed_memory

def resident():
    return int(re.findall(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[0]) / 1024

keep_freed_memory()
before = resident()
tensors = [torch.ones({mib} * 2**18) for _ in range(4)]
held = resident() - before
del tensors
print((resident() - before) / held)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
@pytest.mark.parametrize(("mib", "stays"), [(16, True), (64, False)])
def test_what_was_freed_stays_but_for_very_large_tensors(mib, stays):
    run = subprocess.run([sys.executable, "-c", FREED.replace("{mib}", str(mib))], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) > 0.9 if stays else float(run.stdout) < 0.1
