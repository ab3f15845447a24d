"""Where a run computes: the processor, its number format and its speed, and the versions of the software."""

import os
import platform
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from archlab.code import commit
from archlab.config.schema import TrainConfig
from archlab.data.file_cache import cached
from archlab.errors import UserError
from archlab.pricing.memory import Format
from archlab.pricing.units import binary
from archlab.training.code_digest import code_digest
from archlab.training.rates import product_flops
from archlab.version import __version__

WORTHWHILE = 1.2
"""Speed of bfloat16's products over float32's from which they are used: autocast also converts."""


@dataclass(frozen=True)
class Device:
    """Where a run computes, and in which number format."""

    type: str
    """cpu or cuda."""
    dtype: torch.dtype
    """Of matrix products (autocast); weights and sums stay float32."""

    @property
    def name(self) -> str:
        """What the processor is called."""
        if self.type == "cuda":
            return torch.cuda.get_device_name()
        return str(torch.cpu.get_capabilities().get("cpu_name") or platform.machine())

    @property
    def format(self) -> Format:
        """The name of `dtype`."""
        return "bfloat16" if self.dtype is torch.bfloat16 else "float32"

    def autocast(self) -> torch.autocast:
        """Within it, matrix products are in `dtype`."""
        return torch.autocast(self.type, torch.bfloat16, enabled=self.dtype is torch.bfloat16)

    def peak_flops(self, seconds: float = 0) -> float:
        """FLOPs per second of one large matrix product in `dtype`, measured here with the threads in use; the best of
        a few, or of as many as `seconds` have room for."""
        return product_flops(self.type, self.dtype, 8192 if self.type == "cuda" else 1024, seconds)

    @property
    def memory(self) -> int:
        """Bytes."""
        if self.type == "cuda":
            return torch.cuda.get_device_properties(0).total_memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def check_memory(self, needed: int, what: str = "to train (float32 weights, gradients, averages)") -> None:
        """UserError when this machine cannot hold so many bytes; activations need more on top."""
        if needed > self.memory:
            raise UserError(
                f"the model needs {binary(needed)} {what}, "
                f"and {self.name} has {binary(self.memory)}; `archlab cost` counts it"
            )


def choose_device(train: TrainConfig, recorded: str | None = None) -> Device:
    """What `train.device` and `train.dtype` mean on this machine; UserError where it cannot do it.

    `recorded` is the dtype with which the run was begun, if it was: it decides what `auto` means.
    """
    device_type = resolve_device_type(train.device, "train.device")
    dtype = (recorded or "auto") if train.dtype == "auto" else train.dtype
    if dtype != "auto":
        return Device(device_type, getattr(torch, dtype))
    on_gpu = device_type == "cuda"
    gains = torch.cuda.is_bf16_supported(including_emulation=False) if on_gpu else _cpu_gains_by_bfloat16()
    return Device(device_type, torch.bfloat16 if gains else torch.float32)


def planned_device(train: TrainConfig) -> Device:
    """Where a run is trained, which may be on another machine: what the config says of device and number format is
    believed, and what it leaves to `auto` is decided by this machine; UserError where it cannot be.
    """
    if train.dtype == "auto" and train.device == "cuda" and not torch.cuda.is_available():
        found = "auto, and this machine has no GPU that would tell"
        raise UserError(f"train.dtype: {found}; to train on other machines' GPUs, say bfloat16 or float32")
    if train.dtype == "auto" or train.device == "auto":
        return choose_device(train)
    return Device(train.device, getattr(torch, train.dtype))


def resolve_device_type(name: str, field: str) -> str:
    """cpu or cuda; `auto` is cuda where there is one. UserError that names the field where it is not there."""
    is_there = torch.cuda.is_available()
    if name == "cuda" and not is_there:
        raise UserError(f"{field}: cuda, but torch finds no CUDA device here; allowed: auto, cpu")
    return name if name != "auto" else "cuda" if is_there else "cpu"


def torch_device(device: torch.device | str) -> torch.device:
    """The torch device of this name; UserError where there is no such device, or none here."""
    try:
        found = torch.device(device)
    except RuntimeError:
        raise UserError(f"device: {device!r}; allowed: cpu, cuda, cuda:0, cuda:1, …") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device: {device}, but torch finds no CUDA device here; allowed: cpu")
    return found


@cache
def _cpu_gains_by_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 (avx512_bf16 or amx_bf16 on x86, bf16 on Arm), and faster than float32.

    Measured once per machine: server processors of Intel without AMX have the instruction at half of float32's speed,
    AMD's of the same name at twice.
    """
    found = dict(torch.cpu.get_capabilities())
    if not any(has and name.endswith("bf16") for name, has in found.items()):
        return False

    def gains() -> bool:
        own, wide = (product_flops("cpu", dtype, side=512) for dtype in (torch.bfloat16, torch.float32))
        return own / wide > WORTHWHILE

    return cached(["bfloat16 gains", found, torch.__version__], [], gains)


def environment(device: Device) -> dict[str, Any]:
    """What besides the config and the text decides a run's numbers."""
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
        "threads": torch.get_num_threads(),
    }
