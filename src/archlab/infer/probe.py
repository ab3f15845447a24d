"""A config's model before any training, probed with random tokens."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from archlab.config.components.position import Rope
from archlab.config.components.work import FLOAT32_BYTES, Pass
from archlab.config.layers import distinct_layers
from archlab.config.schema import Config
from archlab.config.training import check_next_token, resolve_train
from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.model.rotary import rotation
from archlab.pricing.memory import step_memory
from archlab.pricing.params import parameters
from archlab.pricing.units import binary, count
from archlab.training.device import Device, resolve_device_type
from archlab.training.probes import PROBED_TOKENS, Probed, probe

LONGEST_WINDOW = 256
"""Tokens of a window where nobody says how many."""

VECTORS = 256
PER_OCTAVE = 4
"""Distances from one to twice as far."""


class RopeProducts(NamedTuple):
    """Of one kind of layer."""

    kind: str
    """The first layer kind that rotates so."""
    distances: list[int]
    """In tokens, from 0."""
    products: list[float]
    """At each distance, the mean product of a query with a key that equals it, as a share of their product without a
    rotation: the mean cosine of the angles, dimensions that do not rotate counting 1."""


@dataclass(frozen=True)
class Start:
    """What a model of random weights shows."""

    parameters: int
    vocab_size: int
    windows: int
    context: int
    """Tokens of each window."""
    seed: int
    """Of the weights and of the tokens."""
    probed: Probed
    ropes: Sequence[RopeProducts]

    def as_json(self) -> dict[str, Any]:
        """All of it in one object."""
        own = {name: getattr(self, name) for name in ("parameters", "vocab_size", "windows", "context", "seed")}
        own["uniform_loss"] = math.log(self.vocab_size)
        return {**own, **self.probed.as_json(), "rope": [rope._asdict() for rope in self.ropes]}


def shared_context(configs: Mapping[str, Config]) -> int:
    """Tokens of a window in which several configs can be compared: what the shortest is trained with, up to 256."""
    return min(LONGEST_WINDOW, *(resolve_train(config).seq_len for config in configs.values()))


def probe_starts(configs: Mapping[str, Config], context: int) -> dict[str, Start]:
    """Of each, in float32, with windows of `context` random tokens, 512 tokens in all; weights and tokens are drawn by
    `train.seed`.

    UserError that names the config, before anything is built, for what cannot be probed: tokens that see what comes
    after them, a device that is not there, a model that this machine's memory cannot hold.
    """
    rows = max(1, PROBED_TOKENS // context)
    devices = dict[str, Device]()
    for name, config in configs.items():
        try:
            devices[name] = _device_for(config, rows, context)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
    return {name: _start(config, devices[name], rows, context) for name, config in configs.items()}


def _start(config: Config, device: Device, rows: int, context: int) -> Start:
    model_config, seed = config.model, config.train.seed
    model = Decoder(model_config, seed=seed).to(device.type)
    generator = torch.Generator().manual_seed(seed)
    windows_BT = torch.randint(0, model_config.vocab_size, (rows, context + 1), generator=generator)
    return Start(
        parameters=parameters(model_config).total,
        vocab_size=model_config.vocab_size,
        windows=rows,
        context=context,
        seed=seed,
        probed=probe(model, windows_BT.to(device.type), device),
        ropes=_ropes(config, seed),
    )


def _ropes(config: Config, seed: int) -> list[RopeProducts]:
    """Of every layer kind that rotates in another way than those before it."""
    found: dict[tuple[Rope, int], str] = {}
    for layer in distinct_layers(config.model):
        if isinstance(layer.position, Rope) and (width := getattr(layer.attention, "rotary_width", 0)):
            found.setdefault((layer.position, width), layer.kind)
    length = config.model.max_seq_len
    return [rope_products(kind, position, width, length, seed) for (position, width), kind in found.items()]


def _device_for(config: Config, rows: int, context: int) -> Device:
    """Where it is probed; UserError where it cannot be."""
    check_next_token(config.model)
    device = Device(resolve_device_type(config.train.device, "train.device"), torch.float32)
    n_parameters = parameters(config.model).total
    this = Pass(rows, context, counting="computed", bytes_each=FLOAT32_BYTES, is_training=True)
    of_pass = step_memory(config.model, this, device.type)
    needed = 2 * FLOAT32_BYTES * n_parameters + of_pass.activations + of_pass.logits
    if needed > device.memory:
        layers = max(1, math.floor(config.model.n_layers * device.memory / needed / 2))
        what = "float32 weights, gradients and activations"
        raise UserError(
            f"{count(n_parameters)} parameters, for which a probe needs {binary(needed)} of {what}, "
            f"and {device.name} has {binary(device.memory)}; "
            f"probe fewer layers, as with model.n_layers={layers}, or a smaller model.d_model"
        )
    return device


def rope_products(kind: str, position: Rope, width: int, length: int, seed: int) -> RopeProducts:
    """Of random vectors of `width` numbers in a text of `length` tokens. Random, so that no dimension is preferred: for
    independent queries and keys the mean is 0 at every distance (Barbero 2024)."""
    octaves = (length - 1).bit_length() if length > 1 else 0
    steps = {round(2 ** (i / PER_OCTAVE)) for i in range(octaves * PER_OCTAVE + 1)}
    distances = [0, *sorted(step for step in steps if step < length)]
    x_1NTC = torch.randn(1, VECTORS, 1, width, generator=torch.Generator().manual_seed(seed))
    positions_1T, lengths_11 = torch.tensor(distances)[None], torch.tensor([[length]])
    turned_1NTC = rotation(position, width, positions_1T, lengths_11, torch.float32).rotate(
        x_1NTC.expand(-1, -1, len(distances), -1)
    )
    products_T = (turned_1NTC * turned_1NTC[:, :, :1]).sum((0, 1, 3)) / x_1NTC.square().sum()
    return RopeProducts(kind, distances, [float(f"{product:.6g}") for product in products_T.tolist()])
