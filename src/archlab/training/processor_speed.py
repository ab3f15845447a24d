"""Measured speed of a processor: matrix products, memory bandwidth and small operations.

Each result is the best of several measurements, because other work on the machine can only slow a measurement
down. The measurements of one result take at least `seconds` in total.
"""

import time
from collections.abc import Callable

import torch

REPEATS = 6

LARGE = 2**28
"""Size in bytes of an array that fits into no cache."""
SMALL = {"cpu": 2**20, "cuda": 2**25}
"""Size in bytes of an array that fits into the cache of a CPU core or of a GPU, by device type."""

_WIDTH = 512
_CALLS = 2000
"""Number of small operations per measurement. The time to read the clock and synchronize the GPU is then negligible."""


def product_flops(device_type: str, dtype: torch.dtype, side: int, seconds: float = 0) -> float:
    """Return the FLOPs per second of the product of two square matrices, with the current number of threads.

    The matrices are random, because a product of constant matrices draws less power: a GPU may then clock higher than
    in training.
    """
    a = _random((side, side), device_type, dtype)
    return 2 * side**3 / _shortest(lambda: a @ a, seconds)


def copy_bandwidth(device_type: str, seconds: float = 0) -> float:
    """Return the memory bandwidth of copying a large array, in bytes per second. Reads and writes both count."""
    source = torch.ones(LARGE, dtype=torch.uint8, device=device_type)
    target = torch.empty_like(source)
    return 2 * LARGE / _shortest(lambda: target.copy_(source), seconds)


def read_bandwidth(device_type: str, n_bytes: int, seconds: float) -> float:
    """Return the bandwidth, in bytes per second, of multiplying a matrix of `n_bytes` by a vector, as in decoding."""
    matrix = _random((n_bytes // 4 // _WIDTH, _WIDTH), device_type)
    vector, result = _random((_WIDTH,), device_type), torch.empty(len(matrix), device=device_type)
    calls = min(LARGE // n_bytes, 8)

    def read() -> torch.Tensor:
        for _ in range(calls):
            torch.mv(matrix, vector, out=result)
        return result

    return calls * n_bytes / _shortest(read, seconds)


def dispatch(device_type: str, seconds: float) -> float:
    """Return the time between the starts of two consecutive small operations, in seconds."""
    numbers = torch.zeros(64, device=device_type)

    def add() -> torch.Tensor:
        for _ in range(_CALLS):
            numbers.add_(numbers)
        return numbers

    return _shortest(add, seconds) / _CALLS


def _random(shape: tuple[int, ...], device_type: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    own = torch.Generator(device_type).manual_seed(0)
    return torch.randn(shape, generator=own, dtype=dtype, device=device_type)


def _shortest(compute: Callable[[], torch.Tensor], at_least: float) -> float:
    seconds = list[float]()
    while len(seconds) < REPEATS or sum(seconds) < at_least:
        start = time.perf_counter()
        compute().view(-1)[-1].item()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
