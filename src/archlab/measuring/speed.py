"""Measurement of how fast a config trains and decodes on this machine, with random text and random weights."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
import torch

from archlab.config.components.work import FLOAT32_BYTES, KINDS, OperationKind
from archlab.config.core.base import Base
from archlab.config.schema import Config, TrainConfig
from archlab.config.tasks import Task
from archlab.config.training import check_objective, resolve_train, without_teacher
from archlab.data.objectives import random_batch
from archlab.data.tasks.task_data import TaskData
from archlab.data.training_data import Windows
from archlab.displayed import Printed
from archlab.errors import UserError, check_at_least
from archlab.exchange.configs import ConfigSource, config_of
from archlab.infer.session import Session, checked_every
from archlab.machine import keep_freed_memory
from archlab.measuring.clock import Part, clocked, time_by_kind
from archlab.model.decoder import Decoder
from archlab.model.kernels import prefer_products
from archlab.pricing.memory import Format, training_memory_of
from archlab.pricing.params import parameters
from archlab.pricing.summary import cost, training_pass
from archlab.pricing.work import by_kind, training_step, visible_training_flops
from archlab.training.attention_kernels import products_up_to
from archlab.training.compiling import compile_layers, is_compiled
from archlab.training.device import Device, choose_device
from archlab.training.optim import make_optimizer
from archlab.training.processor_speed import copy_bandwidth
from archlab.training.shard import sharded
from archlab.training.step import update
from archlab.training.utilization import Utilization
from archlab.training.world import ALONE

WARM_UP = 2
"""Number of initial steps that are not timed. They also allocate memory and compile layers."""


class Speed(Printed, Base):
    """Measured speed on this machine."""

    printed_by: ClassVar = "measured.print_speed"
    limit_is: ClassVar = "peak speed of matrix products"
    limit_unit: ClassVar = "FLOP/s"

    tokens_per_second: float
    """Tokens per second in a step of median duration."""
    used: float | None
    """Fraction of `limit` that the steps reach. null if training was faster than every measurement of the limit. Other
    work on the machine has then slowed down the measurements."""
    limit: float
    """Maximum speed, measured on this machine.

    For training: FLOPs per second of a large matrix product. For decoding: bytes per second of a large copy.
    """
    time_by_kind: dict[str, float]
    """Fraction of a step's time by kind of operation. Empty if torch's profiler records no operations."""
    compiled: bool
    device: str
    dtype: str
    threads: int


class DecodingSpeed(Speed):
    """Measured speed of decoding on this machine."""

    limit_is: ClassVar = "speed of a copy, weights and cache read"
    limit_unit: ClassVar = "bytes/s"


_SpeedKind = TypeVar("_SpeedKind", bound=Speed)


def training_speed(config: ConfigSource, steps: int = 10) -> Speed:
    """Measure the speed of whole training steps on this machine: forward and backward pass, clipping and optimizer
    update. Weights and tokens are random.

    `steps` is the number of measured steps, after two warm-up steps. Raise UserError if the model does not fit into
    memory.

    >>> speed = archlab.training_speed(archlab.load_config("mine.yaml"), steps=2)
    >>> speed.tokens_per_second > 0
    True
    """
    config = config_of(config)
    check_at_least(1, steps=steps)
    run = rehearse(config)
    utilization = Utilization(visible_training_flops(config), run.device)
    speed = run.train.batch_tokens / statistics.median(seconds_of(run.step, steps))
    utilization.measure(seconds=0.3)
    used = utilization.at(speed)
    return _speed(Speed, speed, used, utilization.peak, run.step, run.device, run.compiled)


def decoding_speed(
    config: ConfigSource,
    batch: int = 1,
    context: int = 16,
    steps: int = 64,
    dtype: Format = "bfloat16",
    *,
    compiled: bool = False,
) -> DecodingSpeed:
    """Measure the speed of greedy decoding on this machine. Weights and tokens are random.

    - `batch`: number of sequences that are decoded in parallel.
    - `context`: number of tokens in each sequence before the first generated token.
    - `steps`: number of measured steps. Two warm-up steps come before them.
    - `dtype`: dtype of the weights and the cache.
    - `compiled`: whether to compile a decoding step into one graph. Compiling takes up to a minute.

    Raise UserError if the model cannot decode, or if it does not fit into memory.

    >>> speed = archlab.decoding_speed(archlab.load_config("mine.yaml"), context=4, steps=2, dtype="float32")
    >>> speed.tokens_per_second > 0
    True
    """
    config = config_of(config)
    check_at_least(1, batch=batch, context=context, steps=steps)
    counted = cost(config, batch, context, dtype)
    if "decoding" not in counted.computed_work:
        raise UserError("model.attention.visibility is two_sided, so the model cannot decode; allowed: causal, prefix")
    device = Device(choose_device(config.train).type, getattr(torch, dtype))
    _, step = rehearse_decoding(config, device, batch, context, steps, compiled=compiled)
    speed = batch / statistics.median(seconds_of(step, steps))
    limit = copy_bandwidth(device.type)
    read = sum(work.weight_bytes + work.kept_bytes for work in counted.computed_work["decoding"])
    return _speed(DecodingSpeed, speed, speed / batch * read / limit, limit, step, device, compiled)


def _speed(
    kind: type[_SpeedKind],
    speed: float,
    used: float | None,
    limit: float,
    step: Callable[[], None],
    device: Device,
    compiled: bool,
) -> _SpeedKind:
    return kind(
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
    """Return the duration of each call in seconds. The first WARM_UP calls are not timed."""
    seconds = list[float]()
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return seconds[WARM_UP:]


@dataclass(frozen=True)
class Rehearsal:
    """A training step that can be repeated: forward and backward pass, clipping and optimizer update."""

    model: Decoder
    train: TrainConfig
    device: Device
    compiled: bool
    step: Callable[[], None]
    """Function that makes one update and waits until the device has finished it."""


def rehearse(config: Config, windows: np.ndarray | None = None) -> Rehearsal:
    """Prepare a training step that can be repeated. It is compiled if a run would compile it.

    By default, the tokens are random or those of the config's task. `windows`, [rows, seq_len + 1], replaces them. With
    `train.document_mask`, token 0 begins a document. Raise UserError if the model does not fit into memory.
    """
    keep_freed_memory()
    config = without_teacher(config, "speed and memory")
    check_objective(config.model, config.train.objective)
    train, device = resolve_train(config), choose_device(config.train)
    device.check_memory(training_memory_of(config).total)
    model = sharded(config.model, train, device.type, ALONE)
    prefer_products(model, products_up_to(device))
    optimizer = make_optimizer(model, train)
    tokens = _random(config, train) if windows is None else Windows(windows)
    batch = random_batch(config, tokens, 0 if train.document_mask else None)
    if compiled := is_compiled(config, train, device):
        compile_layers(model)

    def step() -> None:
        update(model, optimizer, batch, train, 0, device, compiled=compiled)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return Rehearsal(model, train, device, compiled, step)


def _random(config: Config, train: TrainConfig) -> Windows:
    task, vocab_size = config.data.task, config.model.vocab_size
    if isinstance(task, Task):
        data = TaskData(task, vocab_size, config.data.fold, config.data.reserve)
        return data.windows(train.seed, 0, train.rows, train.seq_len)
    return Windows(np.random.default_rng(0).integers(0, vocab_size, (train.rows, train.seq_len + 1)))


def uncompiled(config: Config) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update={"compile": False})})


def rehearse_decoding(
    config: Config, device: Device, batch: int, context: int, steps: int, *, compiled: bool = False
) -> tuple[Decoder, Callable[[], None]]:
    """Return a model with random weights, and a function that makes a greedy decoding step after `context` tokens.

    The function can be called `steps` + WARM_UP + 1 times, which is enough for `seconds_of` and one more call.
    """
    keep_freed_memory()
    device.check_memory(parameters(config.model).total * FLOAT32_BYTES, "for the float32 weights at the start")
    model = Decoder(config.model).to(device.type, device.dtype).eval()
    prompt = torch.zeros(batch, context, dtype=torch.int64)
    source = prompt if model.encoder is not None else None
    session = Session(model, prompt, context + steps + WARM_UP + 2, source=source, compile=compiled)
    tokens = session.write(steps + WARM_UP + 1, checked_every=checked_every(device.type))

    def step() -> None:
        next(tokens)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return model, step


class Share(Base):
    """Share of one kind of operation in the FLOPs, bytes and time of a training step."""

    kind: OperationKind
    flops: float
    """Computed fraction of the step's FLOPs."""
    n_bytes: float
    """Computed fraction of the bytes that the step reads and writes."""
    time: float
    """Measured fraction of the step's time. A softmax in a fused attention kernel counts as attention."""


class Profile(Printed, Base):
    """Profile of an uncompiled training step on this machine."""

    printed_by: ClassVar = "measured.print_profile"

    seconds: float
    """Total time of all operations, without the time that Python spends between them."""
    whole_seconds: float
    """Time of a whole step, measured without the clock."""
    shares: list[Share]
    parts: dict[Part, float]
    """Measured fraction of the time of each part of a model with an encoder. Empty for other models."""
    device: str
    dtype: str
    threads: int


def profile(config: ConfigSource, steps: int = 5) -> Profile:
    """Measure the time of each kind of operation in a training step on this machine, beside its FLOPs and bytes.

    Every operation is timed separately, in the forward and in the backward pass. The model is not compiled. `steps` is
    the number of steps, of which the fastest counts, after two warm-up steps. Raise UserError if the model does not fit
    into memory.

    >>> step = archlab.profile(archlab.load_config("mine.yaml"), steps=1)
    >>> round(sum(share.time for share in step.shares), 6)
    1.0
    """
    config = config_of(config)
    check_at_least(1, steps=steps)
    run = rehearse(uncompiled(config))
    whole_seconds = min(seconds_of(run.step, steps))
    times = clocked(run.model, run.step, steps, run.device.type)
    seconds = {kind: of_kind.seconds for kind, of_kind in times.by_kind.items()}
    counted = training_pass(config, run.device.format)
    work = {work.kind: work for work in by_kind(training_step(config.model, counted, run.train.lora))}
    flops, n_bytes = (sum(getattr(w, name) for w in work.values()) for name in ("flops", "n_bytes"))
    total = sum(seconds.values())
    shown: list[OperationKind] = [kind for kind in KINDS if kind in work or kind in seconds]
    shares = [
        Share(
            kind=kind,
            flops=work[kind].flops / flops if kind in work else 0.0,
            n_bytes=work[kind].n_bytes / n_bytes if kind in work else 0.0,
            time=seconds.get(kind, 0.0) / total,
        )
        for kind in sorted(shown, key=lambda kind: -seconds.get(kind, 0.0))
    ]
    return Profile(
        seconds=total,
        whole_seconds=whole_seconds,
        shares=shares,
        parts={part: n / total for part, n in sorted(times.seconds_by_part.items(), key=lambda item: -item[1])},
        device=run.device.name,
        dtype=run.device.format,
        threads=torch.get_num_threads(),
    )
