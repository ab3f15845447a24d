"""When a training step does not fit into memory: what would, by what `archlab cost` counts."""

import gc
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.errors import UserError, is_out_of_memory
from archlab.pricing.summary import step_memory_of
from archlab.pricing.units import binary
from archlab.training.device import Device

_SAFE = 0.9
"""Share of the free memory that an estimate may fill: memory lies in pieces, and an evaluation comes on top."""


@contextmanager
def out_of_memory_explained(config: Config, device: Device) -> Iterator[None]:
    """Within it, torch's error is a UserError that names what would fit; all that the training held is given back."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _release(error)
        why = what_would_fit(config, device, _free(device))
    else:
        return
    raise UserError(why)


def what_would_fit(config: Config, device: Device, free: int) -> str:
    """A sentence: what a step of this run takes, and with which settings it would fit into so many free bytes.

    Where the count says that it fits, as it stands, less is taken to fit: it counts tensors alone, and other processes
    may have had the rest.
    """
    train = resolve_train(config)
    needed = _peak(config, device, train.micro_batch_tokens, recompute=train.recompute)
    found = list(_fitting(config, device, round(_SAFE * min(free, needed))))
    begun = f"out of memory on {device.name}: a training step takes about {binary(needed)}, and {binary(free)} are free"
    others = " now; other processes may have had them: in a study try fewer --workers" if needed <= free else ""
    if not found:
        return f"{begun}{others}; not even one window of {train.seq_len:,} tokens at a time takes less than that"
    return f"{begun}{others}; what would fit, in a study for all arms: {' or '.join(found)}"


def _fitting(config: Config, device: Device, room: int) -> Iterator[str]:
    """Settings that would; first the one that changes no result."""
    train = resolve_train(config)
    smaller = [n * train.seq_len for n in range(train.rows, 0, -1) if train.rows % n == 0]
    smaller = [tokens for tokens in smaller if tokens < train.micro_batch_tokens]

    def largest(recompute: bool) -> str | None:
        sizes = ((tokens, _peak(config, device, tokens, recompute=recompute)) for tokens in smaller)
        return next((_said("micro_batch_tokens", tokens, peak) for tokens, peak in sizes if peak <= room), None)

    again = _peak(config, device, train.micro_batch_tokens, recompute=True)
    if not train.recompute and again <= room:
        yield f"{_said('recompute', 'true', again)}, which changes no result,"
    if text := largest(train.recompute):
        yield text
    elif not train.recompute and again > room and (text := largest(recompute=True)):
        yield f"train.recompute=true with {text}"


def _said(field: str, value: object, peak: int) -> str:
    return f"train.{field}={value} ({binary(peak)})"


def _peak(config: Config, device: Device, micro_batch_tokens: int, *, recompute: bool) -> int:
    train = config.train.model_copy(update={"micro_batch_tokens": micro_batch_tokens})
    found = step_memory_of(config.model_copy(update={"train": train}), device.format, device.type)
    return found.peak_of(recompute=recompute)


def _release(error: BaseException) -> None:
    """The tensors that the error's frames hold, and what torch keeps for later."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__context__
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _free(device: Device) -> int:
    """Bytes that a training could take; other processes have the rest."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0]
    told = Path("/proc/meminfo")
    found = re.search(r"MemAvailable:\s+(\d+) kB", told.read_text()) if told.is_file() else None
    return 1024 * int(found[1]) if found else device.memory
