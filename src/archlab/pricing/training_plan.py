"""Plan for training on several devices: memory of a device, bytes that it sends, and time of a step.

Training uses mixed precision: float32 weights, and matrix products in bfloat16. A plan reports the memory of the
pipeline stage that needs the most.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import computed_field

from archlab.config.components.component import weights_in
from archlab.config.components.work import FLOAT32_BYTES, Pass
from archlab.config.core.base import Base
from archlab.config.layers import distinct_layers
from archlab.config.optimizer import Muon
from archlab.config.schema import Config
from archlab.config.training import resolve_train, tokens_predicted, tokens_read
from archlab.errors import UserError
from archlab.pricing.hardware import Hardware
from archlab.pricing.memory import (
    bytes_after,
    bytes_before,
    bytes_of_head_gradient,
    bytes_saved_by_optimizer,
    head_bytes,
    logits_bytes,
    saved_bytes,
)
from archlab.pricing.partition import Parallel, PipelineStages, pipeline_stages
from archlab.pricing.pass_time import ideal
from archlab.pricing.sending import bandwidth, bytes_sent
from archlab.pricing.stage import BYTES_PER_WEIGHT, PLAN_FORMAT, Batch, Stage, stages_of
from archlab.pricing.work import by_kind

BYTES_PER_PARAMETER = 4 * FLOAT32_BYTES
"""Bytes that a device stores for each of its parameters: weight, gradient and AdamW's two running means, in float32."""
TOKENS_OF_A_STEP = 2**20
"""Tokens per step if the config does not set the batch size."""


class TrainingPlan(Base):
    """Plan for training one config on several identical devices."""

    batch_tokens: int
    """Tokens per step, over all devices."""
    recomputes: bool
    """Whether layers are recomputed: each keeps only its input, and computes its other activations again in the
    backward pass."""
    micro_batch: int
    """Number of sequences that a replica of the model processes at a time."""
    memory: dict[str, int]
    """Bytes by purpose (such as `activations`), on the device that needs the most memory."""
    fits: bool
    largest_micro_batch: int
    """Largest `micro_batch` that fits into memory, among the divisors of a replica's number of sequences per step.

    0 means that not even one sequence fits.
    """
    sent: dict[str, int]
    """Bytes that a device sends in one step, by dimension of parallelism (such as `shard`)."""
    stages: list[int]
    """Number of layers in each pipeline stage, including those of an encoder. The division minimizes the work of the
    slowest stage."""
    bubble: float
    """Pipeline bubble: fraction of the time in which a pipeline stage waits for other stages."""
    computing: float
    """Best-case computation time of a step in seconds, including the pipeline bubble."""
    sending: float
    """Communication time of a step in seconds: all bytes in `sent` at full link speed. It may overlap with
    computation."""

    @computed_field
    @property
    def total_memory(self) -> int:
        """Total bytes on the device that needs the most memory."""
        return sum(self.memory.values())

    @property
    def step(self) -> float:
        """Best-case time of a step in seconds. In the best case, computation and communication overlap completely."""
        return max(self.computing, self.sending)


def plan_training(config: Config, parallel: Parallel, device: Hardware, *, recompute: bool = False) -> TrainingPlan:
    """Return the plan for training steps of `train.batch_tokens` tokens (default: 2^20).

    Each replica processes `train.micro_batch_tokens` tokens at a time (default: one sequence). Raise UserError if
    the batch or a layer cannot be divided evenly, or if a model with an encoder has tensor or pipeline parallelism.
    """
    model = config.model
    if config.train.lora:
        raise UserError("train.lora: training with LoRA is not planned for several devices; allowed in a plan: null")
    _check(config, parallel)
    batch, p = _batch(config, parallel), parallel.pipeline
    whole = PipelineStages((range(model.n_layers),), (1.0,))
    pipeline = pipeline_stages(model, batch.tokens, p) if model.encoder is None else whole
    stages = stages_of(model, pipeline, config.train.optimizer)
    memory = max((_memory(stage, parallel, batch, recompute) for stage in stages), key=lambda m: sum(m.values()))
    slots = batch.n_micro_batches + p - 1
    seconds = [_seconds(stage, parallel, device, batch, recompute) for stage in stages]
    sent = bytes_sent(stages, parallel, batch, recompute)
    return TrainingPlan(
        recomputes=recompute,
        batch_tokens=batch.texts * resolve_train(config).seq_len * parallel.replicas,
        micro_batch=batch.micro,
        memory=memory,
        fits=sum(memory.values()) <= device.memory,
        largest_micro_batch=_largest(stages, parallel, batch, device, recompute),
        sent=sent,
        stages=[len(layers) + (model.encoder.n_layers if model.encoder else 0) for layers in pipeline.layers],
        bubble=(p - 1) / slots,
        computing=max(micro_batch * slots + updating for micro_batch, updating in seconds),
        sending=sum(n / bandwidth(device, parallel, way) for way, n in sent.items() if n),
    )


def _batch(config: Config, parallel: Parallel) -> Batch:
    written, train = config.train, resolve_train(config)
    texts = train.rows if written.batch_tokens else TOKENS_OF_A_STEP // train.seq_len
    if not written.batch_tokens:
        texts = max(1, texts // parallel.replicas) * parallel.replicas
    if texts % parallel.replicas:
        raise UserError(
            f"train.batch_tokens is {texts} sequences of {train.seq_len:,} tokens; "
            f"allowed: a multiple of replicate * shard = {parallel.replicas} sequences"
        )
    own = texts // parallel.replicas
    micro = math.gcd(own, train.micro_batch_tokens // train.seq_len) if written.micro_batch_tokens else 1
    return Batch(own, *tokens_read(config), tokens_predicted(config), micro)


def _micro_batch(batch: Batch) -> Pass:
    return Pass(
        batch.micro,
        batch.tokens,
        bytes_each=BYTES_PER_WEIGHT,
        is_training=True,
        source=batch.source,
        predicted=batch.predicted,
    )


def _check(config: Config, parallel: Parallel) -> None:
    model, optimizer = config.model, config.train.optimizer
    if isinstance(optimizer, Muon) and parallel.tensor > 1:
        raise UserError("Muon is planned only without tensor parallelism; allowed: tensor=1")
    if isinstance(optimizer, Muon) and optimizer.dtype == "float32":
        raise UserError(
            "train.optimizer.dtype is float32, but plans are for products in bfloat16; allowed: auto, bfloat16"
        )
    if model.encoder and parallel.tensor * parallel.pipeline > 1:
        raise UserError(
            "a model with an encoder is planned only with replicate and shard; allowed: tensor=1, pipeline=1"
        )
    for layer in distinct_layers(model):
        for branch in layer.branches:
            branch.component.share(parallel.tensor)


def _memory(stage: Stage, parallel: Parallel, batch: Batch, recompute: bool) -> dict[str, int]:
    """Return the bytes that one device of a stage needs, by purpose, at the moment when it needs the most."""
    return max(_moments(stage, parallel, batch, recompute), key=lambda memory: sum(memory.values()))


def _moments(stage: Stage, parallel: Parallel, batch: Batch, recompute: bool) -> Iterator[dict[str, int]]:
    """Yield the bytes by purpose at four moments of a micro-batch.

    The first moment is in the loss, and the second in the backward pass of a layer. The third is at the end of the
    backward pass of the layer before it, and the last at the end of the whole backward pass. Both layers are as large
    as the largest layer.

    Early stages store the activations of more micro-batches than late stages: they start new micro-batches before the
    backward passes of previous ones return to them.

    Matrix products keep a bfloat16 copy of their weights until their backward pass, or in a recomputed layer only
    during its backward pass. The bytes of gathered layers are those of complete weights and gradients in float32, as
    opposed to shards. The weights are those of the current layer, of the next layer, and of everything outside the
    layers. The gradient of a layer is still being reduced while that of the layer before it is computed. The gradient
    outside the layers waits until the end. The gradient of a tied head is then added to that of the embedding.
    """
    t, outside = parallel.tensor, stage.outside_layers / parallel.tensor
    own = stage.parameters_per_device(t)
    in_matrices = weights_in(stage.matrix_shapes)
    largest = max(layer.parameters_per_device(t) for layer in stage.layers)
    head = head_bytes(stage.model) / t if stage.is_last else 0
    model_pass = _micro_batch(batch)
    begun = min(parallel.pipeline - stage.index, batch.n_micro_batches)
    waiting, in_use = saved_bytes(stage.layer_passes(model_pass), recompute=recompute)
    before = bytes_before(stage.model, model_pass) if stage.is_first else 0
    after = bytes_after(stage.model, model_pass) if stage.is_last else 0
    kept = (waiting + before) * begun + after

    def moment(
        copied: float, weights: float, gradient_bytes: float, activations: float, logits: float = 0
    ) -> dict[str, int]:
        return {
            "weights, gradients, averages": math.ceil(
                (BYTES_PER_PARAMETER * own - bytes_saved_by_optimizer(stage.optimizer) * in_matrices / t)
                / parallel.shard
            ),
            "bfloat16 weights": math.ceil(BYTES_PER_WEIGHT * copied),
            "gathered layers": math.ceil(FLOAT32_BYTES * weights + gradient_bytes) if parallel.replicas > 1 else 0,
            "activations": math.ceil(activations / t),
            "logits": math.ceil(logits / t),
        }

    in_layers = 0 if recompute else own - outside
    in_loss = (logits_bytes, bytes_of_head_gradient)
    logits = max(f(stage.model, model_pass, "cuda") for f in in_loss) if stage.is_last else 0
    yield moment(in_layers + head / FLOAT32_BYTES, outside, 0, kept, logits)
    n_layers, layer_bytes = stage.layers.total(), FLOAT32_BYTES * largest
    gathered = outside + min(2, n_layers) * largest
    yield moment(max(in_layers, largest), gathered, layer_bytes + head, kept + in_use)
    if n_layers > 1:
        left = kept + in_use - waiting / n_layers
        yield moment(max(in_layers - 2 * largest, 0), gathered, 2 * layer_bytes + head, left)
    added = head if stage.is_first and stage.model.head.tied else 0
    yield moment(0, outside, FLOAT32_BYTES * outside + added, (waiting + before) * (begun - 1) + before)


def _largest(stages: Sequence[Stage], parallel: Parallel, batch: Batch, device: Hardware, recompute: bool) -> int:
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


def _seconds(stage: Stage, parallel: Parallel, device: Hardware, batch: Batch, recompute: bool) -> tuple[float, float]:
    """Return the time in seconds of one micro-batch, and that of the update."""
    t, model_pass = parallel.tensor, _micro_batch(batch)
    micro_batch = ideal(
        by_kind(stage.operations(model_pass, recompute=recompute)), device, PLAN_FORMAT, model_pass.rows
    )
    updated = ideal(by_kind(stage.update(parallel)), device, PLAN_FORMAT, model_pass.rows)
    return micro_batch.seconds / t, updated.seconds
