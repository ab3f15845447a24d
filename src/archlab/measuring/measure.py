"""Measurement of this machine's speed, as a hardware file for cost estimates."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import scipy  # loads its parts on first use
import torch

from archlab.config.components.work import KINDS, OperationKind
from archlab.exchange.configs import load_config
from archlab.measuring.clock import Clocked, clocked
from archlab.measuring.speed import WARM_UP, rehearse, rehearse_decoding, seconds_of
from archlab.model.decoder import Decoder
from archlab.pricing.hardware import Hardware, Measurements, NumberFormat, Rate, Rates, keep_measured
from archlab.pricing.memory import Format
from archlab.pricing.pass_time import features
from archlab.pricing.summary import cost
from archlab.pricing.work import PassName, Work
from archlab.training import processor_speed
from archlab.training.device import Device, resolve_device_type

_FORMATS: tuple[Format, ...] = ("float32", "bfloat16")
_SIDES = {"cpu": (256, 512, 1024, 2048), "cuda": (1024, 2048, 4096, 8192)}
_SECONDS = 0.5

_LONGEST = 2.0

ROUNDS = 3
"""Number of rounds. Each round times every model; a model's fastest round counts.

If other work slows the machine down for a while, each model still has another round.
"""

STEPS = {"training": 2, "decoding": 10}
"""Number of steps per round without the clock, and then again with it. The fastest step counts."""

TRAINED: tuple[tuple[str, ...], ...] = (
    ("model.d_model=64", "model.n_layers=2", "train.seq_len=64", "train.batch_tokens=256"),
    ("model.d_model=64", "model.n_layers=12", "train.seq_len=128", "train.batch_tokens=1024"),
    ("model.d_model=128", "model.n_layers=4", "train.seq_len=128", "train.batch_tokens=1024"),
    ("model.d_model=128", "model.n_layers=2", "model.vocab_size=32768", "train.seq_len=128", "train.batch_tokens=1024"),
    ("model.d_model=256", "model.n_layers=4", "train.seq_len=256", "train.batch_tokens=2048"),
    ("model.d_model=256", "model.n_layers=2", "train.seq_len=2048", "train.batch_tokens=4096"),
    ("model.d_model=256", "model.n_layers=2", "model.attention.window=256", "train.seq_len=2048",
     "train.batch_tokens=4096"),
    ("model.d_model=512", "model.n_layers=4", "model.vocab_size=8192", "train.seq_len=512", "train.batch_tokens=2048"),
    ("model.d_model=192", "model.n_layers=4", "model.norm.kind=layernorm", "model.mlp.kind=plain",
     "model.mlp.activation=gelu", "model.mlp.bias=true", "model.attention.qkv_bias=true", "train.seq_len=256",
     "train.batch_tokens=2048"),
    ("model.d_model=128", "model.n_layers=4", "model.mlp={kind: moe, experts: 8, active: 2, d_ff: 256}",
     "train.seq_len=256", "train.batch_tokens=2048"),
    ("model.d_model=128", "model.n_layers=2", "model.attention={n_heads: 4, softcap: 30}", "train.seq_len=256",
     "train.batch_tokens=2048"),
    ("model.d_model=256", "model.n_layers=2", "model.mlp.d_ff=2048", "model.vocab_size=65536",
     "model.attention={n_heads: 8, softcap: 30}", "model.head.softcap=30", "train.seq_len=1024",
     "train.batch_tokens=1024"),
)  # fmt: skip
"""Training configs to time, as changes to tiny-llama.

The models are narrow or wide, shallow or deep, and dense or with a mixture of experts. The windows are short or long.
"""

DECODED: tuple[tuple[tuple[str, ...], int, int], ...] = (
    (("model.d_model=64", "model.n_layers=2"), 1, 128),
    (("model.d_model=128", "model.n_layers=12"), 1, 256),
    (("model.d_model=256", "model.n_layers=4", "model.vocab_size=32768"), 1, 256),
    (("model.d_model=512", "model.n_layers=8"), 1, 128),
    (("model.d_model=512", "model.n_layers=8"), 16, 128),
    (("model.d_model=1024", "model.n_layers=8", "model.attention={n_heads: 16, n_kv_heads: 4}"), 1, 256),
    (("model.d_model=256", "model.n_layers=4", "model.attention={n_heads: 8, n_kv_heads: 8}"), 1, 8192),
    (("model.d_model=256", "model.n_layers=4", "model.attention={n_heads: 8, n_kv_heads: 2}"), 8, 2048),
    (("model.d_model=256", "model.n_layers=4", "model.norm.kind=layernorm", "model.mlp.kind=plain"), 4, 512),
    (("model.d_model=256", "model.n_layers=4", "model.mlp={kind: moe, experts: 8, active: 2, d_ff: 512}"), 1, 128),
    (("model.d_model=128", "model.n_layers=4", "model.attention={n_heads: 4, softcap: 30}"), 1, 256),
)
"""Decoding configs to time: (changes to tiny-llama, batch size, context length in tokens)."""


@dataclass(frozen=True)
class Timed:
    """Measured times of a training or decoding step, and the work that the step does."""

    work: Mapping[OperationKind, Work]
    clocked: Mapping[OperationKind, Clocked]
    seconds: float
    """Duration of the whole step without the clock."""


@dataclass(frozen=True)
class _Run:
    work: Sequence[Work]
    model: Decoder
    step: Callable[[], None]


def measure_hardware() -> Hardware:
    """Measure the speed of this machine's GPU. Without a GPU, measure the CPU with the current number of threads.

    The measurement takes about four minutes. Run nothing else during that time. The result is saved. From then on,
    `archlab.load_hardware("this")` returns it, and estimates of training time are based on it.
    """
    measured = _measured()
    keep_measured(measured)
    return measured


def _measured() -> Hardware:
    device = Device(resolve_device_type("auto", "device"), torch.float32)
    products: dict[NumberFormat, dict[str, float]] = {
        name: _products(device.type, getattr(torch, name)) for name in _FORMATS
    }
    copied = processor_speed.copy_bandwidth(device.type, _SECONDS)
    read, cached = (
        processor_speed.read_bandwidth(device.type, size, _SECONDS)
        for size in (processor_speed.LARGE, processor_speed.SMALL[device.type])
    )
    today = date.today()
    return Hardware(
        name=device.name,
        maker="this machine",
        year=today.year,
        peak={name: max(by_side.values()) for name, by_side in products.items()},
        memory=device.memory,
        bandwidth=max(copied, read),
        measured=Measurements(
            products=products,
            copy_bandwidth=copied,
            read_bandwidth=read,
            cached_read_bandwidth=cached,
            dispatch=processor_speed.dispatch(device.type, _SECONDS),
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
    flops = dict[str, float]()
    for side in _SIDES[device_type]:
        if flops and processor_speed.REPEATS * 2 * side**3 / flops[str(side // 2)] > _LONGEST:
            break
        flops[str(side)] = processor_speed.product_flops(device_type, dtype, side, _SECONDS)
    return flops


def calibrate(name: PassName, number_format: Format, device_type: str) -> Rates:
    """Measure how fast this machine runs uncompiled training or decoding steps.

    Return its rates for each kind of operation.
    """
    device = Device(device_type, getattr(torch, number_format))
    with torch.random.fork_rng(devices=[]):  # because steps set the global seed
        runs = list(_training(device) if name == "training" else _decoding(device))
        rounds = [[_timed(run, STEPS[name], device_type) for run in runs] for _ in range(ROUNDS)]
    return fit([min(timings, key=lambda timed: timed.seconds) for timings in zip(*rounds, strict=True)])


def _training(device: Device) -> Iterator[_Run]:
    for changes in TRAINED:
        settings = (f"train.dtype={device.format}", f"train.device={device.type}", "train.compile=false")
        config = load_config("tiny-llama", *changes, *settings)
        run = rehearse(config)
        yield _Run(cost(config, dtype=device.format).computed_work["training"], run.model, run.step)


def _decoding(device: Device) -> Iterator[_Run]:
    steps = ROUNDS * (2 * STEPS["decoding"] + WARM_UP)
    for changes, batch, context in DECODED:
        config = load_config("tiny-llama", *changes, f"model.max_seq_len={2 * context}")
        model, step = rehearse_decoding(config, device, batch, context, steps)
        yield _Run(cost(config, batch, context, device.format).computed_work["decoding"], model, step)


def _timed(run: _Run, steps: int, device_type: str) -> Timed:
    seconds = min(seconds_of(run.step, steps))
    by_kind = clocked(run.model, run.step, steps, device_type).by_kind
    return Timed({work.kind: work for work in run.work}, by_kind, seconds)


def fit(steps: Sequence[Timed]) -> Rates:
    """Return the rates that best predict the time of each kind of operation.

    Rates are non-negative. They minimize the squared error of the predicted time of a kind, as a fraction of the whole
    step's time.
    """
    per_call = _clock_overhead(steps)
    by_kind: dict[OperationKind, Rate] = {}
    kinds: list[OperationKind] = [kind for kind in KINDS if any(kind in step.work for step in steps)]
    for kind in kinds:
        amounts = np.array([features(step.work.get(kind) or Work.none(kind)) for step in steps])
        seconds = np.array([_net(step.clocked.get(kind), per_call) for step in steps])
        by_kind[kind] = Rate(**dict(zip(Rate.model_fields, _prices(amounts, seconds, steps), strict=True)))
    return Rates(by_kind=by_kind)


def _clock_overhead(steps: Sequence[Timed]) -> float:
    """Return the difference between a step's time with and without the clock, in seconds per operation.

    This is the time that the clock adds to an operation, minus Python's time between two operations, which the clock
    does not count.
    """
    calls = np.array([sum(kind.calls for kind in step.clocked.values()) / step.seconds for step in steps])
    excess = np.array([sum(kind.seconds for kind in step.clocked.values()) / step.seconds - 1 for step in steps])
    return float(calls @ excess / (calls @ calls))


def _net(kind: Clocked | None, per_call: float) -> float:
    return kind.seconds - kind.calls * per_call if kind else 0.0


def _prices(amounts: Any, seconds: Any, steps: Sequence[Timed]) -> Any:
    totals = np.array([step.seconds for step in steps])
    rows = amounts / totals[:, None]
    unit = rows.max(0)
    unit[unit == 0] = 1
    prices, _ = scipy.optimize.nnls(rows / unit, seconds / totals)
    return prices / unit
