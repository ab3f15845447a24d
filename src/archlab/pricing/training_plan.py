"""Training divided among several devices: memory of each device, bytes sent and time.

Computing is in bfloat16 with float32 weights, as mixed precision is. For a pipeline every stage is
counted, and the stage with the most memory is shown.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pydantic import computed_field

from archlab.config.components.work import FLOAT32_BYTES, Operation, Pass
from archlab.config.core.base import Base
from archlab.config.layers import LayerConfig, distinct_layers, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.pricing.hardware import Hardware
from archlab.pricing.memory import BYTES, Format, bytes_after, bytes_before, logits_bytes, saved_bytes, spared
from archlab.pricing.params import outer_norms, parameters, shared_positions
from archlab.pricing.partition import Cut, Parallel, cut
from archlab.pricing.pass_time import ideal
from archlab.pricing.work import BACKWARD, after_layers, before_layers, by_kind, loss, update

OWNED = 4 * FLOAT32_BYTES
"""Bytes per parameter: weight, gradient and AdamW's two averages."""
PLAN_FORMAT: Format = "bfloat16"
"""What products are in."""
SHORT = BYTES[PLAN_FORMAT]
"""Bytes of a weight that products read, and of a number of the stream that is sent."""

TOKENS_OF_A_STEP = 2**20
"""Where the config does not say how large a batch is."""


class TrainingPlan(Base):
    """Training of one config divided among devices of one kind."""

    batch_tokens: int
    """Of a step, over all devices."""
    recomputes: bool
    """Whether layers keep their input alone, and are computed again in the backward pass."""
    micro_batch: int
    """Texts that a replica works on at a time."""
    memory: dict[str, int]
    """Bytes of one device, that with most of them, by what they are for."""
    fits: bool
    largest_micro_batch: int
    """Texts that a replica can work on at a time, a divisor of those of a step; 0: not one."""
    sent: dict[str, int]
    """Bytes that a device sends in one step, by way of dividing."""
    stages: list[int]
    """Layers of each stage of the pipeline, cut so that the slowest stage has the least work."""
    bubble: float
    """Share of the time in which a device of the pipeline waits for the others."""
    computing: float
    """Seconds of a step at best, the bubble included."""
    sending: float
    """Seconds to send all of `sent` at the links' speed; how much of it computing hides depends on the program."""

    @computed_field
    @property
    def total_memory(self) -> int:
        """Bytes of one device."""
        return sum(self.memory.values())

    @property
    def step(self) -> float:
        """Seconds of a step at best: computing hides sending, or the other way around."""
        return max(self.computing, self.sending)


@dataclass(frozen=True)
class _Batch:
    """Of one replica."""

    texts: int
    tokens: int
    """Of each text."""
    micro: int
    """Texts at a time."""

    @property
    def turns(self) -> int:
        """Micro-batches of a step."""
        return self.texts // self.micro


@dataclass(frozen=True)
class _Stage:
    """The layers of one device of the pipeline, or of the tensor group that stands for it."""

    model: ModelConfig
    layers: Counter[LayerConfig]
    """Each with how many there are."""
    index: int
    of: int
    spared: int
    """Bytes per number of a matrix that the optimiser keeps less than AdamW."""

    @property
    def is_first(self) -> bool:
        """It has the embedding."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """It has the head and the loss."""
        return self.index == self.of - 1

    @cached_property
    def around(self) -> int:
        """Parameters before or after the layers; of a tied matrix both ends have a copy."""
        counts, tied = parameters(self.model), self.model.head.tied
        before = counts.embedding + shared_positions(self.model)
        after = counts.head + outer_norms(self.model)
        if self.is_first and self.is_last:
            return before + after
        after += counts.embedding if tied else 0
        return before * self.is_first + after * self.is_last

    def held(self, tensor: int) -> float:
        """Learned numbers of one device of a tensor group."""
        return sum(n * layer.held_by_one(tensor) for layer, n in self.layers.items()) + self.around / tensor

    def in_matrices(self, tensor: int) -> float:
        """Those of them that are in matrices of layers, each cut evenly."""
        return sum(n * layer.in_matrices() for layer, n in self.layers.items()) / tensor

    def operations(self, this: Pass, *, recompute: bool) -> Iterator[Operation]:
        """Of a micro-batch, without the update."""
        passes = 1 + BACKWARD
        for layer, n in self.layers.items():
            yield from (operation.repeated(n * (passes + recompute)) for operation in layer.work(this))
        if self.is_first:
            yield from (operation.repeated(passes) for operation in before_layers(self.model, this))
        if self.is_last:
            yield from (operation.repeated(passes) for operation in after_layers(self.model, this, this.rows))
            yield loss(self.model, this)


def plan_training(config: Config, parallel: Parallel, device: Hardware, *, recompute: bool = False) -> TrainingPlan:
    """Of steps of `train.batch_tokens` (of a million where that is not said), each replica working through
    `train.micro_batch_tokens` at a time (one text where that is not said).

    UserError where something cannot be divided.
    """
    model = config.model
    _check(model, parallel)
    batch, p = _batch(config, parallel), parallel.pipeline
    pipeline = cut(model, batch.tokens, p)
    stages = _stages(model, pipeline, spared(config.train.optimizer))
    memory = max((_memory(stage, parallel, batch, recompute) for stage in stages), key=lambda m: sum(m.values()))
    slots = batch.turns + p - 1
    seconds = [_seconds(stage, parallel, device, batch, recompute) for stage in stages]
    sent = _sent(stages, parallel, batch, recompute)
    return TrainingPlan(
        recomputes=recompute,
        batch_tokens=batch.texts * batch.tokens * parallel.replicas,
        micro_batch=batch.micro,
        memory=memory,
        fits=sum(memory.values()) <= device.memory,
        largest_micro_batch=_largest(stages, parallel, batch, device, recompute),
        sent=sent,
        stages=[len(of_stage) for of_stage in pipeline.layers],
        bubble=(p - 1) / slots,
        computing=max(turn * slots + updating for turn, updating in seconds),
        sending=sum(n / _bandwidth(device, parallel, way) for way, n in sent.items() if n),
    )


def _batch(config: Config, parallel: Parallel) -> _Batch:
    said, train = config.train, resolve_train(config)
    texts = train.rows if said.batch_tokens else TOKENS_OF_A_STEP // train.seq_len
    if not said.batch_tokens:
        texts = max(1, texts // parallel.replicas) * parallel.replicas
    if texts % parallel.replicas:
        raise UserError(
            f"train.batch_tokens: {texts} texts of {train.seq_len:,} tokens; "
            f"allowed: a multiple of replicate * shard = {parallel.replicas} texts"
        )
    own = texts // parallel.replicas
    micro = math.gcd(own, train.micro_batch_tokens // train.seq_len) if said.micro_batch_tokens else 1
    return _Batch(own, train.seq_len, micro)


def _micro_batch(batch: _Batch) -> Pass:
    return Pass(batch.micro, batch.tokens, bytes_each=SHORT, is_training=True)


def _check(model: ModelConfig, parallel: Parallel) -> None:
    for layer in distinct_layers(model):
        for branch in layer.branches:
            branch.component.share(parallel.tensor)


def _stages(model: ModelConfig, pipeline: Cut, spared: int) -> list[_Stage]:
    """Return the stages. Of those that are alike, only the first is kept: it begins most micro-batches."""
    layers = layer_configs(model)
    found: dict[object, _Stage] = {}
    for i, of_stage in enumerate(pipeline.layers):
        own = Counter(layers[of_stage.start : of_stage.stop])
        stage = _Stage(model, own, i, len(pipeline.layers), spared)
        found.setdefault((frozenset(stage.layers.items()), stage.is_first, stage.is_last), stage)
    return list(found.values())


def _memory(stage: _Stage, parallel: Parallel, batch: _Batch, recompute: bool) -> dict[str, int]:
    """Of one device of that stage. The first stages begin micro-batches while the last are still at earlier ones."""
    t, own = parallel.tensor, stage.held(parallel.tensor)
    this = _micro_batch(batch)
    begun = min(parallel.pipeline - stage.index, batch.turns)
    waiting, in_use = saved_bytes(stage.layers, this, recompute=recompute)
    before = bytes_before(stage.model, this) * begun if stage.is_first else 0
    after = bytes_after(stage.model, this) if stage.is_last else 0
    return {
        "weights, gradients, averages": math.ceil((OWNED * own - stage.spared * stage.in_matrices(t)) / parallel.shard),
        "bfloat16 weights": math.ceil(SHORT * own) if parallel.shard == 1 else 0,
        "gathered layers": _gathered(stage, t) if parallel.shard > 1 else 0,
        "activations": math.ceil((waiting * begun + in_use + before + after) / t),
        "logits": math.ceil(logits_bytes(stage.model, this, "cuda") / t) if stage.is_last else 0,
    }


def _gathered(stage: _Stage, tensor: int) -> int:
    """The layer in use with its gradient and the next one, and what stands around the layers, which stays gathered."""
    largest = max(layer.held_by_one(tensor) for layer in stage.layers)
    around = stage.around / tensor
    return math.ceil(SHORT * (2 * largest + around) + FLOAT32_BYTES * max(largest, around))


def _largest(stages: Sequence[_Stage], parallel: Parallel, batch: _Batch, device: Hardware, recompute: bool) -> int:
    fitting = (
        micro
        for micro in range(batch.texts, 0, -1)
        if batch.texts % micro == 0
        and all(
            sum(_memory(stage, parallel, replace(batch, micro=micro), recompute).values()) <= device.memory
            for stage in stages
        )
    )
    return next(fitting, 0)


def _seconds(
    stage: _Stage, parallel: Parallel, device: Hardware, batch: _Batch, recompute: bool
) -> tuple[float, float]:
    """(of one of its turns, of the update, which a shard does of what it owns)."""
    t, this = parallel.tensor, _micro_batch(batch)
    turn = ideal(by_kind(stage.operations(this, recompute=recompute)), device, PLAN_FORMAT, this.rows)
    updated = ideal(by_kind([update(stage.held(t) / parallel.shard)]), device, PLAN_FORMAT, this.rows)
    return turn.seconds / t, updated.seconds


def _sent(stages: Sequence[_Stage], parallel: Parallel, batch: _Batch, recompute: bool) -> dict[str, int]:
    """By the device that sends most. A shard gives a layer's weights up after each use, keeps what stands around the
    layers until its backward pass, and adds its gradients up after each micro-batch; replicas average once in a step.
    What is computed again is sent again within a tensor group; a shard has a layer's weights then, for its backward
    pass follows. The first stage sends the stream on, the last one its gradient back, those between both."""
    d, s, t, p = parallel.replicate, parallel.shard, parallel.tensor, parallel.pipeline
    own = max(stage.held(t) for stage in stages)
    gathered = max(
        (2 * SHORT + FLOAT32_BYTES) * stage.held(t) - SHORT * stage.around / t for stage in stages
    )  # fmt: skip
    stream = batch.texts * batch.tokens * stages[0].model.d_model * SHORT
    groups = max(sum(n * len(layer.stages) for layer, n in stage.layers.items()) for stage in stages)
    return {
        "replicate": round(2 * (d - 1) / d * FLOAT32_BYTES * own / s),
        "shard": round((s - 1) / s * gathered * batch.turns),
        # Gathered before and scattered after each group of branches, forward and backward.
        "tensor": round((t - 1) / t * (4 + 2 * recompute) * groups * stream),
        "pipeline": min(p - 1, 2) * stream // t,
    }


def _bandwidth(device: Hardware, parallel: Parallel, way: str) -> float:
    """Bytes per second of one device. Those of a group that stand in one server go out through all their adapters: a
    ring leaves the server once for each, so that a device sends as fast as all of them, or as its own link."""
    reach = parallel.reach(way)
    if reach <= device.linked and device.link:
        return device.link.bandwidth
    if device.network is None:
        raise UserError(f"{device.name}: no link is known between {reach} devices")
    if way == "pipeline":
        return device.network.bandwidth
    together = max(1, device.devices_per_server // parallel.within(way))
    out = together * device.network.bandwidth
    return min(out, device.link.bandwidth) if device.link and together > 1 else out
