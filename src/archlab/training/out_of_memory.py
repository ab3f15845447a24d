"""Advice on out-of-memory errors in training: settings that fit according to the estimate of `archlab cost`."""

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
"""Fraction of the free memory that suggested settings may fill, according to the estimate.

Fragmentation and evaluation need the rest.
"""


@contextmanager
def out_of_memory_explained(config: Config, device: Device, teacher: int = 0) -> Iterator[None]:
    """Turn an out-of-memory error inside the block into a UserError that suggests settings that fit.

    `teacher` is the number of bytes of a teacher's weights. The failed run's memory is released before the free memory
    is measured.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _release(error)
        why = what_would_fit(config, device, _free(device), teacher)
    else:
        return
    raise UserError(why)


def what_would_fit(config: Config, device: Device, free: int, teacher: int = 0) -> str:
    """Return a message with the estimated memory of a training step and settings that fit into `free` bytes, besides
    the `teacher` bytes of a teacher's weights.

    The estimate counts only tensors. If it says that the failed step fits, other processes may have used memory. In
    that case, the suggested settings need less memory than the failed step.
    """
    train, free = resolve_train(config), max(free - teacher, 0)
    needed = _peak(config, device, train.micro_batch_tokens, recompute=train.recompute)
    fitting = list(_fitting(config, device, round(_SAFE * min(free, needed))))
    message = (
        f"out of memory on {device.name}: a training step takes about {binary(needed)}, and {binary(free)} are free"
    )
    if teacher:
        message += f" besides the teacher's weights ({binary(teacher)}); its activations are not estimated"
    cause = " now; other processes may have used memory: in a study try fewer --workers" if needed <= free else ""
    if not fitting:
        return f"{message}{cause}; even one window of {train.seq_len:,} tokens does not fit"
    return f"{message}{cause}; settings that would fit (in a study, for all arms): {' or '.join(fitting)}"


def _fitting(config: Config, device: Device, room: int) -> Iterator[str]:
    """Yield settings that need at most `room` bytes. Recomputation comes first, because it does not change results."""
    train = resolve_train(config)
    smaller = [n * train.seq_len for n in range(train.rows, 0, -1) if train.rows % n == 0]
    smaller = [tokens for tokens in smaller if tokens < train.micro_batch_tokens]

    def largest(recompute: bool) -> str | None:
        sizes = ((tokens, _peak(config, device, tokens, recompute=recompute)) for tokens in smaller)
        return next((_as_text("micro_batch_tokens", tokens, peak) for tokens, peak in sizes if peak <= room), None)

    with_recompute = _peak(config, device, train.micro_batch_tokens, recompute=True)
    if not train.recompute and with_recompute <= room:
        yield f"{_as_text('recompute', 'true', with_recompute)}, which does not change results,"
    if text := largest(train.recompute):
        yield text
    elif not train.recompute and with_recompute > room and (text := largest(recompute=True)):
        yield f"train.recompute=true with {text}"


def _as_text(field: str, value: object, peak: int) -> str:
    return f"train.{field}={value} ({binary(peak)})"


def _peak(config: Config, device: Device, micro_batch_tokens: int, *, recompute: bool) -> int:
    train = config.train.model_copy(update={"micro_batch_tokens": micro_batch_tokens})
    memory = step_memory_of(config.model_copy(update={"train": train}), device.format, device.type)
    return memory.peak_of(recompute=recompute)


def _release(error: BaseException) -> None:
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__context__
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _free(device: Device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0]
    file = Path("/proc/meminfo")
    match = re.search(r"MemAvailable:\s+(\d+) kB", file.read_text()) if file.is_file() else None
    return 1024 * int(match[1]) if match else device.memory
