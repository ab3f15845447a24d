"""Probes of a config's model before training, with random tokens."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from archlab.config.components.position import Rope
from archlab.config.components.work import FLOAT32_BYTES, Pass
from archlab.config.layers import distinct_layers, stacks
from archlab.config.schema import Config
from archlab.config.training import check_objective, resolve_train
from archlab.data.objectives import random_batch
from archlab.data.training_data import Windows
from archlab.displayed import Printed
from archlab.errors import UserError, at, check_at_least
from archlab.exchange.configs import ConfigSource, named_configs
from archlab.model.decoder import Decoder
from archlab.model.rotary import rotation
from archlab.pricing.memory import step_memory
from archlab.pricing.params import parameters
from archlab.pricing.units import binary, count
from archlab.training.device import Device, resolve_device_type
from archlab.training.probes import PROBED_TOKENS, Probed
from archlab.training.probes import probe as probe_model

LONGEST_WINDOW = 256
"""Default number of tokens per window."""

VECTORS = 256
PER_OCTAVE = 4
"""Number of distances to probe between any distance and its double."""


class RopeProducts(NamedTuple):
    """Mean products of a query and a key that are identical before RoPE, for one kind of layer."""

    kind: str
    """Name of the layer kind. If several layer kinds have the same rotation, the first of them, beginning with the
    decoder's."""
    distances: list[int]
    """Distances in tokens, starting at 0."""
    products: list[float]
    """Mean product at each distance, divided by the product without rotation.

    This is the mean cosine of the rotation angles. Dimensions that do not rotate count as 1.
    """


@dataclass(frozen=True)
class ModelProbe:
    """Results of probing a model with random weights."""

    parameters: int
    vocab_size: int
    windows: int
    context: int
    """Number of tokens per window."""
    seed: int
    """Seed of the weights and of the tokens."""
    probed: Probed
    ropes: Sequence[RopeProducts]

    def as_json(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("parameters", "vocab_size", "windows", "context", "seed")}
        own["uniform_loss"] = math.log(self.vocab_size)
        return {**own, **self.probed.as_json(), "rope": [rope._asdict() for rope in self.ropes]}


class Probes(Printed, list[ModelProbe]):
    """Results of probing several models, and the names of their configs."""

    printed_by: ClassVar = "probe.tables.print_probes"
    names: Sequence[str] = ()


def shared_context(configs: Iterable[Config]) -> int:
    """Return the number of tokens per window for a comparison of configs.

    This is the smallest `train.seq_len` of the configs, but at most 256.
    """
    return min(LONGEST_WINDOW, *(resolve_train(config).seq_len for config in configs))


def probe(
    config: ConfigSource, /, *more: ConfigSource, context: int | None = None, names: Sequence[str] = ()
) -> Probes:
    """Measure gradients, activations and attention of every layer before training, for one or more configs.

    The measurement is one forward and backward pass over 512 random tokens in float32. `train.seed` determines the
    weights and the tokens. docs/probes.md explains each number.

    - `context`: number of tokens per sequence. None means the smallest `train.seq_len` of the configs, at most 256.
    - `names`: names of the configs, with which messages begin. By default, they are `config 1`, `config 2` and so on.

    Raise UserError if the tokens of a model attend to later tokens, if a device does not exist, or if a model does not
    fit into memory. All configs are checked before the first model is built.

    >>> config = archlab.load_config("mine.yaml")
    >>> pre, post = archlab.probe(config, archlab.load_config("mine.yaml", "model.norm.placement=post"))
    >>> len(pre.probed.layer_values["gradient"]) == len(post.probed.layer_values["gradient"]) == config.model.n_layers
    True
    """
    configs = named_configs((config, *more), names)
    check_at_least(1, context=context)
    context = context or shared_context(configs.values())
    rows = max(1, PROBED_TOKENS // context)
    devices = list[Device]()
    for name, each in configs.items():
        with at(name):
            devices.append(_device_for(each, rows, context))
    pairs = zip(configs.values(), devices, strict=True)
    probes = Probes(_probed(each, device, rows, context) for each, device in pairs)
    probes.names = [*configs]
    return probes


def _probed(config: Config, device: Device, rows: int, context: int) -> ModelProbe:
    model_config, seed = config.model, config.train.seed
    model = Decoder(model_config, seed=seed).to(device.type)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, model_config.vocab_size, (rows, context + 1), generator=generator, device="cpu")
    windows = Windows(tokens.numpy())
    return ModelProbe(
        parameters=parameters(model_config).total,
        vocab_size=model_config.vocab_size,
        windows=rows,
        context=context,
        seed=seed,
        probed=probe_model(model, random_batch(config, windows), device),
        ropes=_ropes(config, seed),
    )


def _ropes(config: Config, seed: int) -> list[RopeProducts]:
    kinds: dict[tuple[Rope, int], str] = {}
    for stack in reversed(stacks(config.model)):
        of_stack = "" if stack is config.model else "encoder "
        for layer in distinct_layers(stack):
            if isinstance(layer.position, Rope) and (width := getattr(layer.attention, "rotary_width", 0)):
                kinds.setdefault((layer.position, width), f"{of_stack}{layer.kind}")
    length = config.model.max_seq_len
    return [rope_products(kind, position, width, length, seed) for (position, width), kind in kinds.items()]


def _device_for(config: Config, rows: int, context: int) -> Device:
    check_objective(config.model, config.train.objective)
    device = Device(resolve_device_type(config.train.device, "train.device"), torch.float32)
    n_parameters = parameters(config.model).total
    tokens, source = config.train.objective.tokens_read(context, has_encoder=config.model.encoder is not None)
    windows = Pass(rows, tokens, counting="computed", bytes_each=FLOAT32_BYTES, is_training=True, source=source)
    memory = step_memory(config.model, windows, device.type)
    needed = 2 * FLOAT32_BYTES * n_parameters + memory.activations + memory.logits
    if needed > device.memory:
        layers = max(1, math.floor(config.model.n_layers * device.memory / needed / 2))
        what = "float32 weights, gradients and activations"
        raise UserError(
            f"with {count(n_parameters)} parameters, a probe needs {binary(needed)} for {what}, "
            f"but {device.name} has {binary(device.memory)}; "
            f"probe fewer layers, such as model.n_layers={layers}, or a smaller model.d_model"
        )
    return device


def rope_products(kind: str, position: Rope, width: int, length: int, seed: int) -> RopeProducts:
    """Rotate two copies of random vectors by RoPE. Return their mean product at each distance.

    `width` is the number of dimensions, and `length` the number of tokens in the sequence. Random vectors do not favor
    any dimension. If query and key were independent vectors, the mean would be 0 at every distance (Barbero 2024).
    """
    octaves = (length - 1).bit_length() if length > 1 else 0
    steps = {round(2 ** (i / PER_OCTAVE)) for i in range(octaves * PER_OCTAVE + 1)}
    distances = [0, *sorted(step for step in steps if step < length)]
    x_1NTC = torch.randn(1, VECTORS, 1, width, generator=torch.Generator().manual_seed(seed), device="cpu")
    positions_1T, lengths_11 = (torch.tensor(x, device="cpu")[None] for x in (distances, [length]))
    rotated_1NTC = rotation(position, width, positions_1T, lengths_11, torch.float32).rotate(
        x_1NTC.expand(-1, -1, len(distances), -1)
    )
    products_T = (rotated_1NTC * rotated_1NTC[:, :, :1]).sum((0, 1, 3)) / x_1NTC.square().sum()
    return RopeProducts(kind, distances, [float(f"{product:.6g}") for product in products_T.tolist()])
