"""This machine as a device that costs are computed for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import scipy  # loads its parts on first use
import torch

from archlab.config.components.work import KINDS, OperationKind
from archlab.exchange.configs import load_config
from archlab.infer.clock import Clocked, clocked
from archlab.infer.speed import WARM_UP, rehearse, rehearse_decoding, seconds_of
from archlab.model.decoder import Decoder
from archlab.pricing.hardware import Hardware, Measurements, NumberFormat, Rate, Rates
from archlab.pricing.memory import Format
from archlab.pricing.pass_time import features
from archlab.pricing.summary import cost
from archlab.pricing.work import PassName, Work
from archlab.training import rates
from archlab.training.device import Device, resolve_device_type

_FORMATS: tuple[Format, ...] = ("float32", "bfloat16")
_SIDES = {"cpu": (256, 512, 1024, 2048), "cuda": (1024, 2048, 4096, 8192)}
_SECONDS = 0.5
"""For each figure."""

_LONGEST = 2.0
"""Seconds that the products of one side may take; where more are to be expected, larger sides are left out."""

ROUNDS = 3
"""All models take turns, so that other work on the machine does not slow one of them throughout."""

STEPS = {"training": 2, "decoding": 10}
"""Of a turn, with the clock and without it. The fastest of all turns is taken."""

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
"""Changes to tiny-llama: narrow and wide, deep and shallow, short and long, plain and mixed."""

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
"""Changes to tiny-llama, texts side by side, tokens of context."""


@dataclass(frozen=True)
class Timed:
    """A pass that ran."""

    work: Mapping[OperationKind, Work]
    clocked: Mapping[OperationKind, Clocked]
    whole: float
    """Seconds without the clock."""


@dataclass(frozen=True)
class _Run:
    """A pass that can be repeated."""

    work: Sequence[Work]
    model: Decoder
    step: Callable[[], None]


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


def calibrate(name: PassName, number_format: Format, device_type: str) -> Rates:
    """For training steps or decoding steps, uncompiled."""
    device = Device(device_type, getattr(torch, number_format))
    with torch.random.fork_rng(devices=[]):  # steps seed it
        runs = list(_training(device) if name == "training" else _decoding(device))
        rounds = [[_timed(run, STEPS[name], device_type) for run in runs] for _ in range(ROUNDS)]
    return fit([min(several, key=lambda one: one.whole) for several in zip(*rounds, strict=True)])


def _training(device: Device) -> Iterator[_Run]:
    for changes in TRAINED:
        where = (f"train.dtype={device.format}", f"train.device={device.type}", "train.compile=false")
        config = load_config("tiny-llama", *changes, *where)
        run = rehearse(config)
        yield _Run(cost(config, dtype=device.format).computed_work["training"], run.model, run.step)


def _decoding(device: Device) -> Iterator[_Run]:
    steps = ROUNDS * (2 * STEPS["decoding"] + WARM_UP)
    for changes, batch, context in DECODED:
        config = load_config("tiny-llama", *changes, f"model.max_seq_len={2 * context}")
        model, step = rehearse_decoding(config, device, batch, context, steps)
        yield _Run(cost(config, batch, context, device.format).computed_work["decoding"], model, step)


def _timed(run: _Run, steps: int, device_type: str) -> Timed:
    whole = min(seconds_of(run.step, steps))
    by_kind = clocked(run.model, run.step, steps, device_type)
    return Timed({one.kind: one for one in run.work}, by_kind, whole)


def fit(timed: Sequence[Timed]) -> Rates:
    """Prices, none below 0, whose sums miss the measured seconds by the smallest squared share of a whole pass."""
    at_a_call = _of_the_clock(timed)
    by_kind: dict[OperationKind, Rate] = {}
    kinds: list[OperationKind] = [kind for kind in KINDS if any(kind in one.work for one in timed)]
    for kind in kinds:
        amounts = np.array([features(one.work.get(kind) or Work.none(kind)) for one in timed])
        seconds = np.array([_net(one.clocked.get(kind), at_a_call) for one in timed])
        by_kind[kind] = Rate(**dict(zip(Rate.model_fields, _prices(amounts, seconds, timed), strict=True)))
    return Rates(by_kind=by_kind)


def _of_the_clock(timed: Sequence[Timed]) -> float:
    """Seconds that the clock takes at every call, less those that Python takes between two: what passes without it
    are faster by."""
    calls = np.array([sum(found.calls for found in one.clocked.values()) / one.whole for one in timed])
    more = np.array([sum(found.seconds for found in one.clocked.values()) / one.whole - 1 for one in timed])
    return float(calls @ more / (calls @ calls))


def _net(found: Clocked | None, at_a_call: float) -> float:
    return found.seconds - found.calls * at_a_call if found else 0.0


def _prices(amounts: Any, seconds: Any, timed: Sequence[Timed]) -> Any:
    """By non-negative least squares (Lawson and Hanson 1974), in units in which all columns are of one size."""
    wholes = np.array([one.whole for one in timed])
    rows = amounts / wholes[:, None]
    unit = rows.max(0)
    unit[unit == 0] = 1
    prices, _ = scipy.optimize.nnls(rows / unit, seconds / wholes)
    return prices / unit
