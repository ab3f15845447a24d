"""Freed memory that stays with the process."""

import os
import subprocess
import sys

import pytest

from archlab.machine import keep_freed_memory

FREED = """
import re, torch
from pathlib import Path
from archlab.machine import keep_freed_memory

def resident():
    return int(re.findall(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[0]) / 1024

def left(mib):
    before = resident()
    tensors = [torch.ones(mib * 2**18) for _ in range(4)]
    allocated = resident() - before
    del tensors
    return (resident() - before) / allocated

keep_freed_memory()
print(left(64), left(16))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_what_was_freed_stays_but_for_very_large_tensors():
    run = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    very_large, large = map(float, run.stdout.split())
    assert very_large < 0.1
    assert large > 0.9


@pytest.mark.skipif(sys.platform != "linux", reason="torch enlarges blocks only on Linux")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}),
    ],
)
def test_blocks_of_a_gpu_can_grow_unless_the_user_decides(given, expected, monkeypatch):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(name, "")  # so that the test's end restores it
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    keep_freed_memory.__wrapped__()
    assert {name: value for name, value in os.environ.items() if name.endswith("_ALLOC_CONF")} == expected
