"""Device of a run: processor, dtype, speed and software versions."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from archlab.code import commit
from archlab.config.schema import TrainConfig
from archlab.data.file_cache import cached
from archlab.errors import UserError
from archlab.machine import total_memory
from archlab.pricing.memory import Format
from archlab.pricing.units import binary
from archlab.training.code_digest import code_digest
from archlab.training.processor_speed import product_flops
from archlab.version import __version__

WORTHWHILE = 1.2
"""Smallest speedup of bfloat16 matrix products over float32 ones at which `auto` chooses bfloat16.

A smaller speedup would not make up for the conversions of autocast.
"""


@dataclass(frozen=True)
class Device:
    """Device and dtype of a run's computations."""

    type: str
    """Device type: cpu or cuda."""
    dtype: torch.dtype
    """Dtype of matrix products under autocast. Weights and sums stay in float32."""

    @property
    def name(self) -> str:
        if self.type == "cuda":
            return torch.cuda.get_device_name()
        return str(torch.cpu.get_capabilities().get("cpu_name") or platform.machine())

    @property
    def format(self) -> Format:
        """Name of `dtype`, such as `bfloat16`."""
        return "bfloat16" if self.dtype is torch.bfloat16 else "float32"

    def autocast(self, *, keeps_weights: bool = False) -> torch.autocast:
        """Return a context manager in which matrix products use `dtype`.

        By default, each product converts its weights itself. With `keeps_weights`, torch keeps the converted weights
        until the outermost autocast block ends. For layers, it would keep those of all layers, even of recomputed ones.
        """
        is_rounded = self.dtype is torch.bfloat16
        return torch.autocast(self.type, torch.bfloat16, enabled=is_rounded, cache_enabled=keeps_weights)

    def peak_flops(self, seconds: float = 0) -> float:
        """Measure the FLOPs per second of a large matrix product in `dtype`, with the current number of threads.

        Return the best of several measurements, which take at least `seconds` in total.
        """
        return product_flops(self.type, self.dtype, 8192 if self.type == "cuda" else 1024, seconds)

    @property
    def memory(self) -> int:
        if self.type == "cuda":
            return torch.cuda.get_device_properties(0).total_memory
        return total_memory()

    def check_memory(self, needed: int, what: str = "to train (float32 weights, gradients, optimizer state)") -> None:
        """Raise UserError if the device has less than `needed` bytes of memory. Activations need additional memory."""
        if needed > self.memory:
            raise UserError(
                f"the model needs {binary(needed)} {what}, "
                f"but {self.name} has {binary(self.memory)}; `archlab cost` shows what uses the memory"
            )


def choose_device(train: TrainConfig, recorded: str | None = None) -> Device:
    """Resolve `train.device` and `train.dtype` on this machine. Raise UserError if the device is not available.

    If the run has already started, `recorded` is its dtype, which is then used for `auto`.
    """
    device_type = resolve_device_type(train.device, "train.device")
    dtype = (recorded or "auto") if train.dtype == "auto" else train.dtype
    if dtype != "auto":
        return Device(device_type, getattr(torch, dtype))
    on_gpu = device_type == "cuda"
    gains = torch.cuda.is_bf16_supported(including_emulation=False) if on_gpu else _cpu_gains_by_bfloat16()
    return Device(device_type, torch.bfloat16 if gains else torch.float32)


def planned_device(train: TrainConfig) -> Device:
    """Return the device of a run that may train on another machine.

    Explicit settings of the config are not checked. `auto` is resolved on this machine. Raise UserError if it cannot be
    resolved here.
    """
    if train.dtype == "auto" and train.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "train.dtype: auto, but this machine has no GPU to test; "
            "to train on the GPUs of other machines, set bfloat16 or float32"
        )
    if train.dtype == "auto" or train.device == "auto":
        return choose_device(train)
    return Device(train.device, getattr(torch, train.dtype))


def resolve_device_type(name: str, field: str) -> str:
    """Return cpu or cuda; `auto` means cuda if available. Raise a UserError with `field` if cuda is not available."""
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise UserError(f"{field}: cuda, but torch finds no CUDA device here; allowed: auto, cpu")
    return name if name != "auto" else "cuda" if has_cuda else "cpu"


def torch_device(device: torch.device | str) -> torch.device:
    """Return the torch device with this name. Raise UserError if the name is invalid or the device is not available."""
    try:
        resolved = torch.device(device)
    except RuntimeError:
        resolved = None
    if resolved is None or resolved.type not in ("cpu", "cuda"):
        raise UserError(f"device: {str(device)!r}; allowed: cpu, cuda, cuda:0, cuda:1, …")
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device: {device}, but torch finds no CUDA device here; allowed: cpu")
    return resolved


@cache
def _cpu_gains_by_bfloat16() -> bool:
    """Return whether matrix products are sufficiently faster in bfloat16 than in float32 on this CPU.

    The CPU needs the instructions avx512_bf16 or amx_bf16 on x86, or bf16 on Arm. The speed is also measured, once per
    machine. With avx512_bf16, bfloat16 has half the speed of float32 on Intel's server processors without AMX, but
    twice the speed of float32 on AMD's.
    """
    capabilities = dict(torch.cpu.get_capabilities())
    if not any(has and name.endswith("bf16") for name, has in capabilities.items()):
        return False

    def gains() -> bool:
        own, wide = (product_flops("cpu", dtype, side=512) for dtype in (torch.bfloat16, torch.float32))
        return own / wide > WORTHWHILE

    return cached(["bfloat16 gains", capabilities, torch.__version__], [], gains)


@contextmanager
def deterministic_algorithms(train: TrainConfig) -> Iterator[None]:
    """Let torch use only deterministic algorithms in the block if `train.deterministic` is set.

    cuBLAS reads its environment variable when its first handle is created. It must be set before the first product on a
    GPU.
    """
    if not train.deterministic or torch.are_deterministic_algorithms_enabled():
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)  # loads torch's compiler, which takes a second
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def environment(device: Device) -> dict[str, Any]:
    """Return the versions, the device and the settings of this machine that can affect a run's numbers."""
    return {
        "archlab": __version__,
        "code": code_digest(),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": device.name,
        "device": device.type,
        "dtype": device.format,
        # On a GPU, the backward pass of attention adds in an order that differs from run to run by default.
        "deterministic": device.type == "cpu" or torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
    }
