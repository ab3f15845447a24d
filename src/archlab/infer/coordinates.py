"""The coordinate check: how far a few updates move activations, over the width of the model (Yang 2022, appendix D)."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from statistics import linear_regression
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from archlab.config.components.work import FLOAT32_BYTES, Pass
from archlab.config.schema import Config
from archlab.config.training import check_next_token, resolve_train
from archlab.data.training_data import Windows
from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.pricing.memory import step_memory
from archlab.sizing.resize import at_width
from archlab.training.device import Device, resolve_device_type
from archlab.training.optim import make_optimizer
from archlab.training.probes import PROBED_TOKENS, rms
from archlab.training.step import update

SEEDS = 3
"""Of weights and text, from train.seed on; sizes are means over them."""

LOGITS = "logits"

Sizes = dict[str, tuple[float, float]]
"""By place: the RMS after the updates, and of the difference to what was there before them."""


@dataclass(frozen=True)
class Place:
    """Somewhere in the model: what the embedding or a layer gives, or the logits."""

    name: str
    size: Sequence[float]
    """RMS after the updates, a number per width."""
    change: Sequence[float]
    """RMS of the difference to what stood there before them, of the same text; of the logits, by how much that of the
    next token rose above the mean of all on average, which is what updates do together and not by chance."""
    slope: float | None
    """Power of the width with which the change grows; None: it is nowhere, or not finite."""


@dataclass(frozen=True)
class Coordinates:
    """Of one config."""

    widths: Sequence[int]
    steps: int
    context: int
    """Tokens of each window."""
    seeds: Sequence[int]
    places: Sequence[Place]

    def as_json(self) -> dict[str, Any]:
        """All of it in one object."""
        return asdict(self)


def coordinates(config: Config, name: str, widths: Sequence[int], steps: int, context: int) -> Coordinates:
    """After so many updates at the peak rate, all by one batch of 512 random tokens, in float32 and without dropout.

    UserError, which begins with the config's name, for a width that it cannot have or that this machine cannot hold;
    nothing is built before all are checked.
    """
    if len(set(widths)) < 2:
        raise UserError(f"--widths: {', '.join(map(str, widths))}; allowed: two or more, as in 64,128,256")
    windows = Pass(max(1, PROBED_TOKENS // context), context, bytes_each=FLOAT32_BYTES, is_training=True)
    widths = sorted(set(widths))
    configs = [_without_dropout(at_width(config, name, width)) for width in widths]
    names = [f"{name} at width {width:,}" for width in widths]
    devices = [_device_for(one, called, windows) for one, called in zip(configs, names, strict=True)]
    seeds = [config.train.seed + i for i in range(SEEDS)]
    found = [
        _mean([_moved(one, device, windows, steps, seed) for seed in seeds])
        for one, device in zip(configs, devices, strict=True)
    ]
    places = list[Place]()
    for place in found[0]:
        sizes, changes = ([one[place][i] for one in found] for i in (0, 1))
        places.append(Place(place, sizes, changes, _slope(widths, changes)))
    return Coordinates(widths, steps, context, seeds, places)


def _without_dropout(config: Config) -> Config:
    off = config.model.dropout.model_copy(update=dict.fromkeys(type(config.model.dropout).model_fields, 0.0))
    return config.model_copy(update={"model": config.model.model_copy(update={"dropout": off})})


def _device_for(config: Config, name: str, windows: Pass) -> Device:
    try:
        check_next_token(config.model)
        device = Device(resolve_device_type(config.train.device, "train.device"), torch.float32)
        needed = step_memory(config.model, windows, device.type, optimizer=config.train.optimizer)
        device.check_memory(needed.peak, "for a step")
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    return device


def _moved(config: Config, device: Device, windows: Pass, steps: int, seed: int) -> Sizes:
    rows, context = windows.texts, windows.tokens
    batch = rows * context
    same = {"schedule": "constant", "warmup": 0, "seed": seed, "seq_len": context, "document_mask": False}
    train = resolve_train(config).model_copy(
        update={**same, "tokens": batch * steps, "batch_tokens": batch, "micro_batch_tokens": batch}
    )
    tokens = np.random.default_rng(seed).integers(0, config.model.vocab_size, (rows, context + 1))
    model = Decoder(config.model, seed=seed).to(device.type).train()
    optimizer = make_optimizer(model, train)
    read, next_BT = (torch.from_numpy(x).to(device.type) for x in (tokens[:, :-1], tokens[:, 1:]))
    before = _activations(model, read)
    for step in range(steps):
        update(model, optimizer, Windows(tokens), train, step, device)
    after = _activations(model, read)
    found = {name: (rms(after[name]).item(), rms(after[name] - before[name]).item()) for name in after}
    gained_BTV = after[LOGITS] - before[LOGITS]
    of_next_BT = gained_BTV.gather(-1, next_BT[..., None])[..., 0] - gained_BTV.mean(-1)
    return {**found, LOGITS: (found[LOGITS][0], of_next_BT.mean().item())}


@torch.no_grad()
def _activations(model: Decoder, tokens_BT: Tensor) -> dict[str, Tensor]:
    """What the embedding gives, every layer, and the head."""
    found = dict[str, Tensor]()
    modules: dict[str, nn.Module] = {"embedding": model.embedding}
    modules |= {f"layer {i}": layer for i, layer in enumerate(model.layers, 1)}

    def note(name: str, _module: nn.Module, _given: object, x: Tensor) -> None:
        found[name] = x

    with ExitStack() as stack:
        for name, module in modules.items():
            stack.callback(module.register_forward_hook(partial(note, name)).remove)
        found[LOGITS] = model(tokens_BT)
    return {name: found[name] for name in (*modules, LOGITS)}


def _mean(found: Sequence[Sizes]) -> Sizes:
    """Over the seeds."""
    return {
        name: (sum(one[name][0] for one in found) / len(found), sum(one[name][1] for one in found) / len(found))
        for name in found[0]
    }


def _slope(widths: Sequence[int], values: Sequence[float]) -> float | None:
    """Of the line through the logarithms, by least squares."""
    if not all(math.isfinite(x) and x > 0 for x in values):
        return None
    return linear_regression([math.log(w) for w in widths], [math.log(x) for x in values]).slope
