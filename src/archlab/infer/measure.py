"""This machine as a device that costs are computed for."""

from datetime import date

import torch

from archlab.infer.calibrate import calibrate
from archlab.pricing.hardware import Hardware, Measurements, NumberFormat
from archlab.pricing.memory import Format
from archlab.training import rates
from archlab.training.device import Device, resolve_device_type

_FORMATS: tuple[Format, ...] = ("float32", "bfloat16")
_SIDES = {"cpu": (256, 512, 1024, 2048), "cuda": (1024, 2048, 4096, 8192)}
_SECONDS = 0.5
"""For each figure."""
_LONGEST = 2.0
"""Seconds that the products of one side may take; where more are to be expected, larger sides are left out."""


def measure() -> Hardware:
    """Its speeds, of the GPU where there is one, in about four minutes; with the threads in use."""
    device = Device(resolve_device_type("auto", "device"), torch.float32)
    products: dict[NumberFormat, dict[str, float]] = {
        name: _products(device.type, getattr(torch, name)) for name in _FORMATS
    }
    copied = rates.copy_bandwidth(device.type, _SECONDS)
    read, cached = (
        rates.read_bandwidth(device.type, size, _SECONDS) for size in (rates.LARGE, rates.SMALL[device.type])
    )
    today = date.today()
    return Hardware(
        name=device.name,
        maker="this machine",
        year=today.year,
        peak={name: max(found.values()) for name, found in products.items()},
        memory=device.memory,
        bandwidth=max(copied, read),
        measured=Measurements(
            products=products,
            copy_bandwidth=copied,
            read_bandwidth=read,
            cached_read_bandwidth=cached,
            dispatch=rates.dispatch(device.type, _SECONDS),
            threads=torch.get_num_threads(),
            passes={
                name: {number_format: calibrate(name, number_format, device.type) for number_format in _FORMATS}
                for name in ("training", "decoding")
            },
        ),
        source=(f"measured on {today} with torch {torch.__version__}",),
        certainty="verified",
    )


def _products(device_type: str, dtype: torch.dtype) -> dict[str, float]:
    """FLOPs per second by side, from small to large."""
    found = dict[str, float]()
    for side in _SIDES[device_type]:
        if found and rates.REPEATS * 2 * side**3 / found[str(side // 2)] > _LONGEST:
            break
        found[str(side)] = rates.product_flops(device_type, dtype, side, _SECONDS)
    return found
