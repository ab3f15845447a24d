"""What fits on several devices: memory of each, bytes sent, time and money, by how training is divided among them.

data: replicas that average gradients. shard: the replicas share weights, gradients and AdamW's averages, and gather a
layer's weights when they need them (ZeRO 3, Rajbhandari 2020; FSDP). tensor: matrices are cut, so that the devices work
on one layer together, with the stream between branches cut along the text (Shoeybi 2019, Korthikanti 2022). pipeline:
each device has some of the layers (Huang 2019), one micro-batch after the other (Narayanan 2021).
"""

import math
from dataclasses import dataclass

from archlab.config.base import Base
from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import nearest
from archlab.config.work import FLOAT32_BYTES, Pass
from archlab.cost.hardware import Hardware, Link, NumberFormat
from archlab.cost.params import parameters
from archlab.cost.roofline import ideal
from archlab.cost.saved import layer_bytes, outer_bytes
from archlab.cost.work import by_kind, training_step
from archlab.errors import UserError

OWNED = 16
"""Bytes per parameter: float32 weight, gradient and AdamW's two averages."""
SENT_WEIGHT = 2
"""Bytes of a weight that is gathered, in bfloat16."""
SENT_GRADIENT = 4
"""Bytes of a gradient that is summed, in float32."""


MOST_DEVICES = 1_000_000

WAYS = ("data", "shard", "tensor", "pipeline")


@dataclass(frozen=True)
class Parallel:
    """How many devices divide the work in each way; their product is the number of devices."""

    data: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1

    @classmethod
    def parse(cls, text: str) -> "Parallel":
        """From `shard=8,tensor=2`; UserError where it says something else."""
        found = dict[str, int]()
        for part in text.split(","):
            way, _, size = part.partition("=")
            if way not in WAYS or way in found or not size.isdecimal() or not 1 <= int(size) <= MOST_DEVICES:
                hint = nearest(way, WAYS) if way not in WAYS else ";"
                raise UserError(
                    f"parallel: {part!r}{hint} allowed: {', '.join(WAYS)}, each once, as in shard=8,tensor=2"
                )
            found[way] = int(size)
        return cls(**found)

    def __str__(self) -> str:
        sizes = {way: getattr(self, way) for way in WAYS}
        return ", ".join(f"{way}={n}" for way, n in sizes.items() if n > 1) or "one device"

    @property
    def devices(self) -> int:
        """All of them."""
        return self.data * self.shard * self.tensor * self.pipeline

    @property
    def replicas(self) -> int:
        """Parts that the batch is cut into."""
        return self.data * self.shard


class Plan(Base):
    """Training of one config divided among devices of one kind."""

    memory: dict[str, int]
    """Bytes of one device, that with most of them, by what they are for."""
    fits: bool
    largest_micro_batch: int
    """Texts that a replica can hold at once; 0: not one."""
    sent: dict[str, int]
    """Bytes that a device sends in one step, by way of dividing."""
    bubble: float
    """Share of the time in which a device of the pipeline waits for the others."""
    computing: float
    """Seconds of a step at best, the bubble included."""
    sending: float
    """Seconds to send all of `sent` at the links' speed; how much of it computing hides depends on the program."""

    @property
    def total_memory(self) -> int:
        """Bytes of one device."""
        return sum(self.memory.values())


def plan(
    model: ModelConfig,
    parallel: Parallel,
    device: Hardware,
    *,
    batch: int,
    tokens: int,
    micro_batch: int = 1,
    recompute: bool = False,
    number_format: NumberFormat = "bfloat16",
) -> Plan:
    """Of steps of `batch` texts of `tokens` tokens, each replica working through `micro_batch` texts at a time.

    UserError where something cannot be divided.
    """
    _check(model, parallel, batch, micro_batch)
    t, p = parallel.tensor, parallel.pipeline
    layers = layer_configs(model)
    stage = max(_stages(layers, p), key=lambda part: sum(layer.parameters().total() for layer in part))
    own = sum(layer.parameters().total() for layer in stage) + _ends(model, p)
    texts = batch // parallel.replicas
    n_micro = texts // micro_batch
    in_flight = min(p, n_micro)
    memory = {
        "weights, gradients, AdamW": math.ceil(OWNED * own / t / parallel.shard),
        "gathered layers": 0,
        "activations": 0,
    }
    if parallel.shard > 1:  # the one in use and the next
        largest = max(layer.parameters().total() for layer in layers)
        memory["gathered layers"] = 2 * SENT_WEIGHT * largest // t
    of_one = _activations(model, stage, Pass(1, tokens), recompute=recompute) // t
    memory["activations"] = of_one * micro_batch * in_flight
    room = device.memory - sum(memory.values()) + memory["activations"]
    bubble = (p - 1) / (n_micro + p - 1)
    step = Pass(texts, tokens, counting="computed")
    best = ideal(by_kind(training_step(model, step)), device, number_format, step.rows)
    sent = _sent(model, parallel, own, step)
    return Plan(
        memory=memory,
        fits=sum(memory.values()) <= device.memory,
        largest_micro_batch=max(0, min(room // (of_one * in_flight), texts)),
        sent=sent,
        bubble=bubble,
        computing=best.seconds / (t * p) / (1 - bubble),
        sending=sum(n / _link(device, parallel, way).bandwidth for way, n in sent.items() if n),
    )


def _check(model: ModelConfig, parallel: Parallel, batch: int, micro_batch: int) -> None:
    if parallel.pipeline > model.n_layers:
        raise UserError(f"pipeline={parallel.pipeline}: more than the {model.n_layers} layers")
    if batch % parallel.replicas:
        raise UserError(f"data * shard = {parallel.replicas}: does not divide the batch of {batch} texts")
    if (batch // parallel.replicas) % micro_batch:
        raise UserError(
            f"micro batch {micro_batch}: does not divide the {batch // parallel.replicas} texts of a replica"
        )
    for layer in layer_configs(model):
        heads = max(component.score_heads for component in layer.components)
        if heads % parallel.tensor:
            raise UserError(f"tensor={parallel.tensor}: does not divide the {heads} query heads")


def _stages(layers: tuple[LayerConfig, ...], n: int) -> list[tuple[LayerConfig, ...]]:
    size = math.ceil(len(layers) / n)
    return [layers[at : at + size] for at in range(0, len(layers), size)]


def _ends(model: ModelConfig, pipeline: int) -> int:
    """Parameters before the first and after the last layer, of which a pipeline's fullest device has one half."""
    counts = parameters(model)
    before, after = counts.embedding + counts.positions, counts.embedding if model.head.tied else counts.head
    in_layers = sum(layer.parameters().total() for layer in layer_configs(model))
    return counts.total - in_layers if pipeline == 1 else max(before, after)


def _activations(model: ModelConfig, stage: tuple[LayerConfig, ...], this: Pass, *, recompute: bool) -> int:
    """Of one text in these layers."""
    each = [layer_bytes(layer, this) for layer in stage]
    inputs = len(stage) * this.rows * model.d_model * FLOAT32_BYTES
    return math.ceil((inputs + max(each) if recompute else sum(each)) + outer_bytes(model, this))


def _sent(model: ModelConfig, parallel: Parallel, own: int, step: Pass) -> dict[str, int]:
    d, s, t, p = parallel.data, parallel.shard, parallel.tensor, parallel.pipeline
    stream = step.rows * model.d_model * step.bytes_each
    branches = sum(len(layer.stages) for layer in layer_configs(model)) // p
    return {
        "data": round(2 * (d - 1) / d * SENT_GRADIENT * own / t / s),
        "shard": round((s - 1) / s * (2 * SENT_WEIGHT + SENT_GRADIENT) * own / t),
        # Gathered before and scattered after each stage of a layer, forward and backward.
        "tensor": round((t - 1) / t * 4 * branches * stream),
        "pipeline": 2 * stream // t if p > 1 else 0,
    }


def _link(device: Hardware, parallel: Parallel, way: str) -> Link:
    """Tensor groups stand closest together, then shards, replicas, and the stages of a pipeline."""
    span = {"tensor": parallel.tensor, "shard": parallel.tensor * parallel.shard}
    reach = span.get(way, parallel.devices)
    link = device.link if reach <= device.devices_per_server else device.network
    if link is None:
        raise UserError(f"{device.name}: no link is known between {reach} devices, so `{way}` has no speed")
    return link
