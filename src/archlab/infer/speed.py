"""How fast a config trains and decodes on this machine, measured with random text and initial values."""

import statistics
import time
from collections.abc import Callable

import torch

from archlab.allocator import keep_freed_memory
from archlab.config.components.work import FLOAT32_BYTES
from archlab.config.core.base import Base
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.infer.generate import Session
from archlab.model.decoder import Decoder
from archlab.pricing.memory import Format
from archlab.pricing.params import parameters
from archlab.pricing.summary import cost
from archlab.pricing.work import training_flops
from archlab.training.device import Device, choose_device
from archlab.training.operations import time_by_kind
from archlab.training.rates import copy_bandwidth
from archlab.training.rehearsal import rehearse

WARM_UP = 2
"""Steps that do not count: memory is taken, and layers are compiled."""


class Speed(Base):
    """What was measured; a second is one of this machine."""

    tokens_per_second: float
    """Median over the steps."""
    used: float
    """Of the limit: FLOPs of the largest matrix product's per second (training), or bytes per second of those that a
    large copy reads and writes (decoding)."""
    limit: float
    """That limit, measured here."""
    time_by_kind: dict[str, float]
    """Share of a step's time by kind of operation."""
    compiled: bool
    device: str
    dtype: str
    threads: int


def training_speed(config: Config, steps: int) -> Speed:
    """Of whole updates: forward, backward, clipping, optimiser."""
    run = rehearse(config)
    speed = run.train.batch_tokens / statistics.median(seconds_of(run.step, steps))
    limit = run.device.peak_flops(seconds=0.3)
    used = speed * training_flops(config.model, run.train.seq_len) / limit
    return _speed(speed, used, limit, run.step, run.device, run.compiled)


def decoding_speed(config: Config, batch: int, context: int, steps: int, dtype: Format, *, compiled: bool) -> Speed:
    """Of greedy steps after `context` tokens."""
    counted = cost(config, batch, context, dtype)
    if "decoding" not in counted.computed_work:
        raise UserError("model.attention.visibility: two_sided; such a model decodes nothing")
    device = Device(choose_device(config.train).type, getattr(torch, dtype))
    _, step = rehearse_decoding(config, device, batch, context, steps, compiled=compiled)
    speed = batch / statistics.median(seconds_of(step, steps))
    limit = copy_bandwidth(device.type)
    read = sum(work.weight_bytes + work.kept_bytes for work in counted.computed_work["decoding"])
    return _speed(speed, speed / batch * read / limit, limit, step, device, compiled)


def rehearse_decoding(
    config: Config, device: Device, batch: int, context: int, steps: int, *, compiled: bool = False
) -> tuple[Decoder, Callable[[], None]]:
    """A model with initial values, and greedy steps after `context` tokens: `steps` of them with those that do not
    count, and one more."""
    keep_freed_memory()
    device.check_memory(parameters(config.model).total * FLOAT32_BYTES, "to begin with (float32 weights)")
    model = Decoder(config.model).to(device.type, device.dtype).eval()
    prompt = torch.zeros(batch, context, dtype=torch.int64)
    session = Session(model, prompt, context + steps + WARM_UP + 2, compile=compiled)
    tokens = session.write(steps + WARM_UP + 1)

    def step() -> None:
        next(tokens)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return model, step


def _speed(speed: float, used: float, limit: float, step: Callable[[], None], device: Device, compiled: bool) -> Speed:
    return Speed(
        tokens_per_second=speed,
        used=used,
        limit=limit,
        time_by_kind=time_by_kind(step, device.type),
        compiled=compiled,
        device=device.name,
        dtype=device.format,
        threads=torch.get_num_threads(),
    )


def seconds_of(step: Callable[[], object], steps: int) -> list[float]:
    """Of a call, after those that do not count."""
    seconds = list[float]()
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return seconds[WARM_UP:]
