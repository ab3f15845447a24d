"""How fast a config trains and decodes on this machine, measured with random text and initial values."""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from archlab.allocator import keep_freed_memory
from archlab.config.base import Base
from archlab.config.schema import Config
from archlab.config.training import check_next_token, resolve_train
from archlab.cost.flops import training_flops
from archlab.cost.memory import Format, training_memory
from archlab.cost.params import parameters
from archlab.cost.summary import cost
from archlab.errors import UserError
from archlab.infer.generate import Session
from archlab.model.decoder import Decoder
from archlab.model.kernels import prefer_products
from archlab.train.attention_kernels import products_up_to
from archlab.train.compiling import compile_layers, is_compiled
from archlab.train.device import Device, choose_device
from archlab.train.operations import time_by_kind
from archlab.train.optim import make_optimizer
from archlab.train.rates import copy_bandwidth
from archlab.train.step import update

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
    keep_freed_memory()
    check_next_token(config.model)
    train, device = resolve_train(config), choose_device(config.train)
    device.check_memory(training_memory(parameters(config.model).total).total)
    model = Decoder(config.model).to(device.type).train()
    prefer_products(model, products_up_to(device))
    optimizer = make_optimizer(model, train)
    windows = np.random.default_rng(0).integers(0, config.model.vocab_size, (train.rows, train.seq_len + 1))
    if compiled := is_compiled(config, train, device):
        compile_layers(model)
    separator = 0 if train.document_mask else None

    def step() -> None:
        update(model, optimizer, windows, train, 0, device, separator)

    speed = train.batch_tokens / _median_seconds(step, steps)
    limit = device.peak_flops()
    used = speed * training_flops(config.model, train.seq_len) / limit
    return _speed(speed, used, limit, step, device, compiled)


def decoding_speed(config: Config, batch: int, context: int, steps: int, dtype: Format, *, compiled: bool) -> Speed:
    """Of greedy steps after `context` tokens."""
    keep_freed_memory()
    alone, together = (cost(config, n, context, dtype) for n in (1, batch))
    if alone.read_bytes_per_decoded_token is None:
        raise UserError("model.attention.visibility: two_sided; such a model decodes nothing")
    device = Device(choose_device(config.train).type, getattr(torch, dtype))
    model = Decoder(config.model).to(device.type, device.dtype).eval()
    prompt = torch.zeros(batch, context, dtype=torch.int64)
    session = Session(model, prompt, context + steps + WARM_UP + 2, compile=compiled)
    tokens = session.write(steps + WARM_UP + 1)

    def step() -> None:
        next(tokens)
        if device.type == "cuda":
            torch.cuda.synchronize()

    speed = batch / _median_seconds(step, steps)
    limit = copy_bandwidth(device.type)
    of_others = together.kv_cache_bytes + together.recurrent_bytes - alone.kv_cache_bytes - alone.recurrent_bytes
    read = alone.read_bytes_per_decoded_token + of_others  # weights are read once for all texts
    return _speed(speed, speed / batch * read / limit, limit, step, device, compiled)


def _speed(speed: float, used: float, limit: float, step: Callable[[], None], device: Device, compiled: bool) -> Speed:
    return Speed(
        tokens_per_second=speed,
        used=used,
        limit=limit,
        time_by_kind=time_by_kind(step, device.type),
        compiled=compiled,
        device=device.name,
        dtype=str(device.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
    )


def _median_seconds(step: Callable[[], None], steps: int) -> float:
    seconds = list[float]()
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM_UP:])
