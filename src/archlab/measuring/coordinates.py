"""The coordinate check: how much a few updates change activations at different widths (Yang 2022, appendix D)."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from statistics import linear_regression
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from archlab.config.components.work import FLOAT32_BYTES, Pass
from archlab.config.schema import Config
from archlab.config.training import check_objective, resolve_train, without_teacher
from archlab.data.objectives import random_batch
from archlab.data.training_data import Windows
from archlab.displayed import Printed
from archlab.errors import UserError, at, check_at_least
from archlab.exchange.configs import ConfigSource, config_of
from archlab.measuring.probe import shared_context
from archlab.model.decoder import Decoder
from archlab.pricing.memory import step_memory
from archlab.sizing.resize import at_width
from archlab.training.device import Device, resolve_device_type
from archlab.training.optim import make_optimizer
from archlab.training.probes import PROBED_TOKENS, rms
from archlab.training.step import update

STEPS = 5
"""Default number of updates."""

SEEDS = 3
"""Number of seeds. The first is `train.seed`, the second `train.seed` + 1, and so on.

A seed determines weights and tokens. Results are means over the seeds.
"""

LOGITS = "logits"

Sizes = dict[str, tuple[float, float]]
"""For each place in the model: RMS of the activations after the updates, and size of their change."""


@dataclass(frozen=True)
class Place:
    """A place in the model: the output of the embedding or of a layer, or the logits."""

    name: str
    size: Sequence[float]
    """RMS of the activations after the updates, one value per width."""
    change: Sequence[float]
    """RMS of the difference between the activations before and after the updates, one value per width.

    The activations are those of the same tokens. For logits, the value is instead the mean change of (logit of the next
    token - mean logit). Random changes largely cancel in this mean, so it shows the systematic effect of the updates.
    """
    slope: float | None
    """Exponent p of the fit `change ~ width^p`. None if a change is not positive or not finite."""


@dataclass(frozen=True, repr=False)
class Coordinates(Printed):
    """Result of the coordinate check for a config."""

    printed_by: ClassVar = "probe.tables.print_coordinates"

    widths: Sequence[int]
    steps: int
    context: int
    """Number of tokens per window."""
    seeds: Sequence[int]
    places: Sequence[Place]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def coordinate_check(
    config: ConfigSource,
    widths: Sequence[int],
    *,
    steps: int = STEPS,
    context: int | None = None,
    name: str = "the config",
) -> Coordinates:
    """Measure how much a few updates change activations at different widths. With muP (`model.mup`), the change does
    not depend on the width (Yang 2022, appendix D).

    All updates use the same batch of 512 random tokens, in float32 and without dropout. All widths are checked before
    the first model is built.

    - `widths`: two or more values of `model.d_model`. The number of heads and the widths of MLPs grow in proportion.
    - `steps`: number of updates at each width, with the learning rate `train.lr`.
    - `context`: number of tokens per sequence. None means `train.seq_len`, at most 256.
    - `name`: name of the config, with which messages begin.

    Raise UserError if the config does not allow a width, or if a model does not fit into memory.

    >>> checked = archlab.coordinate_check(archlab.load_config("mine.yaml", "train.lr=3e-3"), [32, 64], steps=2)
    >>> {place.name: len(place.change) for place in checked.places}
    {'embedding': 2, 'layer 1': 2, 'layer 2': 2, 'logits': 2}
    """
    config = config_of(config)
    check_at_least(1, steps=steps, context=context, widths=min(widths, default=None))
    context = context or shared_context([config])
    if len(set(widths)) < 2:
        raise UserError(
            f"widths: {', '.join(map(str, widths))}; allowed: two or more different widths, such as 64,128,256"
        )
    config = without_teacher(config, "changes of activations")
    windows = Pass(max(1, PROBED_TOKENS // context), context, bytes_each=FLOAT32_BYTES, is_training=True)
    widths = sorted(set(widths))
    configs = [_without_dropout(at_width(config, name, width)) for width in widths]
    names = [f"{name} at width {width:,}" for width in widths]
    devices = [_device_for(resized, label, windows) for resized, label in zip(configs, names, strict=True)]
    seeds = [config.train.seed + i for i in range(SEEDS)]
    by_width = [
        _mean([_sizes(resized, device, windows, steps, seed) for seed in seeds])
        for resized, device in zip(configs, devices, strict=True)
    ]
    places = list[Place]()
    for place in by_width[0]:
        sizes, changes = ([at_places[place][i] for at_places in by_width] for i in (0, 1))
        places.append(Place(place, sizes, changes, _slope(widths, changes)))
    return Coordinates(widths, steps, context, seeds, places)


def _without_dropout(config: Config) -> Config:
    off = config.model.dropout.model_copy(update=dict.fromkeys(type(config.model.dropout).model_fields, 0.0))
    return config.model_copy(update={"model": config.model.model_copy(update={"dropout": off})})


def _device_for(config: Config, name: str, windows: Pass) -> Device:
    with at(name):
        check_objective(config.model, config.train.objective)
        if config.train.lora:
            raise UserError("train.lora: a coordinate check trains all parameters; allowed: null")
        device = Device(resolve_device_type(config.train.device, "train.device"), torch.float32)
        needed = step_memory(config.model, windows, device.type, optimizer=config.train.optimizer)
        device.check_memory(needed.peak, "for a step")
    return device


def _sizes(config: Config, device: Device, windows: Pass, steps: int, seed: int) -> Sizes:
    rows, context = windows.texts, windows.tokens
    batch = rows * context
    settings = {"schedule": "constant", "warmup": 0, "seed": seed, "seq_len": context, "document_mask": False}
    train = resolve_train(config).model_copy(
        update={**settings, "tokens": batch * steps, "batch_tokens": batch, "micro_batch_tokens": batch}
    )
    tokens = np.random.default_rng(seed).integers(0, config.model.vocab_size, (rows, context + 1))
    model = Decoder(config.model, seed=seed).to(device.type).train()
    optimizer = make_optimizer(model, train)
    batch = random_batch(config, Windows(tokens))
    read, next_BT = (torch.from_numpy(x).to(device.type) for x in (batch.tokens, batch.targets))
    before = _activations(model, read)
    for step in range(steps):
        update(model, optimizer, batch, train, step, device)
    after = _activations(model, read)
    sizes = {name: (rms(after[name]).item(), rms(after[name] - before[name]).item()) for name in after}
    change_BTV = after[LOGITS] - before[LOGITS]
    next_change_BT = change_BTV.gather(-1, next_BT[..., None])[..., 0] - change_BTV.mean(-1)
    return {**sizes, LOGITS: (sizes[LOGITS][0], next_change_BT.mean().item())}


@torch.no_grad()
def _activations(model: Decoder, tokens_BT: Tensor) -> dict[str, Tensor]:
    outputs = dict[str, Tensor]()
    modules: dict[str, nn.Module] = {"embedding": model.embedding}
    modules |= {f"layer {i}": layer for i, layer in enumerate(model.layers, 1)}

    def note(name: str, _module: nn.Module, _inputs: object, x: Tensor) -> None:
        outputs[name] = x

    with ExitStack() as stack:
        for name, module in modules.items():
            stack.callback(module.register_forward_hook(partial(note, name)).remove)
        outputs[LOGITS] = model(tokens_BT)
    return {name: outputs[name] for name in (*modules, LOGITS)}


def _mean(by_seed: Sequence[Sizes]) -> Sizes:
    n = len(by_seed)
    return {
        name: (sum(sizes[name][0] for sizes in by_seed) / n, sum(sizes[name][1] for sizes in by_seed) / n)
        for name in by_seed[0]
    }


def _slope(widths: Sequence[int], values: Sequence[float]) -> float | None:
    if not all(math.isfinite(x) and x > 0 for x in values):
        return None
    return linear_regression([math.log(w) for w in widths], [math.log(x) for x in values]).slope
