"""Everything that can be counted about a config without building it, and whether a device can serve it."""

from collections.abc import Iterator
from dataclasses import replace

from archlab.config.components.position import Learned
from archlab.config.components.work import Counting, Operation, Pass
from archlab.config.core.base import Base
from archlab.config.layers import sees_as
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.pricing.hardware import Hardware
from archlab.pricing.memory import (
    BYTES,
    Format,
    StepMemory,
    TrainingMemory,
    kv_bytes_per_token,
    kv_cache_bytes,
    recurrent_bytes,
    step_memory,
    training_memory,
)
from archlab.pricing.params import Parameters, parameters
from archlab.pricing.work import (
    FlopsPerToken,
    PassName,
    Work,
    by_kind,
    computed_training_flops,
    forward,
    forward_flops,
    products_by_part,
    training_flops,
    training_step,
)


class Cost(Base):
    """Parameters, FLOPs and bytes of one config: of serving at one context and batch, and of its training."""

    context: int
    """Tokens per served sequence, for the forward pass and for the cache."""
    max_seq_len: int
    """Tokens that the model is built for (`model.max_seq_len`); a longer `context` is counted all the same."""
    batch: int
    """Sequences whose cache is held."""
    dtype: Format
    """Of the cache and of the weights as served, and of training's products; its stream and its weights are float32."""
    parameters: Parameters
    forward_flops: FlopsPerToken
    """Per token of a pass over `context` tokens, by part, over visible pairs."""
    training_window: int
    """Tokens per training sequence (`train.seq_len`), whatever the context served."""
    training_flops_per_token: float
    """Forward and backward, in a training window, over visible pairs."""
    computed_training_flops_per_token: float
    """As `training_flops_per_token`, with the pairs that the kernel multiplies though they are hidden."""
    training_tokens: int | None
    """Whole batches in `train.tokens`; null where the config does not say how long it is trained."""
    training_flops: float | None
    """Of all training tokens, over visible pairs; null where `training_tokens` is."""
    kv_bytes_per_token: int
    """All layers, before a window bounds it."""
    kv_cache_bytes: int
    """For the whole batch at that context, bounded by windows."""
    recurrent_bytes: int
    """For the whole batch, what recurrent mixers keep, whatever the context."""
    weight_bytes: int
    """As served."""
    read_bytes_per_decoded_token: int | None
    """By one decoding step of one sequence at that context: the active weights, the cache and the recurrent states;
    null where a layer sees to both sides, so that nothing is decoded from a cache."""
    training_memory: TrainingMemory
    """Without activations and logits, which come on top."""
    step_memory: StepMemory
    """What a training step takes beside it."""
    work: dict[PassName, list[Work]]
    """By kind of operation, over visible pairs. training: a step of `train.batch_tokens`, forward, backward and update.
    prefill: the whole batch read at once, logits of each last token. decoding: one more token of each text at that
    context; left out where nothing is decoded."""
    products: dict[PassName, dict[str, Work]]
    """Of `work`, the products with weights by the part that they belong to."""
    computed_work: dict[PassName, list[Work]]
    """As `work`, with the hidden pairs that a CPU's kernels compute."""
    tokens: dict[PassName, int]
    """New tokens of each of these passes."""


def cost(config: Config, batch: int = 1, context: int | None = None, dtype: Format = "bfloat16") -> Cost:
    """Counted from resolved layers; without `context`, as long as the training window (`train.seq_len`)."""
    model, train = config.model, resolve_train(config)
    context = context or train.seq_len
    if isinstance(model.position, Learned) and context > model.max_seq_len:
        raise UserError(f"context {context} is beyond max_seq_len = {model.max_seq_len}, where learned positions end")
    counts = parameters(model)
    per_token = training_flops(model, train.seq_len)
    passes = _passes(config, batch, context, dtype)
    visible: dict[PassName, list[Operation]] = {
        name: list(_operations(model, name, replace(this, counting="visible"))) for name, this in passes.items()
    }
    tokens = train.trained if config.train.tokens else None
    return Cost(
        context=context,
        max_seq_len=model.max_seq_len,
        batch=batch,
        dtype=dtype,
        parameters=counts,
        forward_flops=forward_flops(model, context),
        training_window=train.seq_len,
        training_flops_per_token=per_token,
        computed_training_flops_per_token=computed_training_flops(config),
        training_tokens=tokens,
        training_flops=None if tokens is None else per_token * tokens,
        kv_bytes_per_token=kv_bytes_per_token(model, BYTES[dtype]),
        kv_cache_bytes=kv_cache_bytes(model, context, batch, BYTES[dtype]),
        recurrent_bytes=recurrent_bytes(model, batch, BYTES[dtype]),
        weight_bytes=counts.total * BYTES[dtype],
        read_bytes_per_decoded_token=None if sees_as(model, "two_sided") else _read(model, context, dtype),
        training_memory=training_memory(counts, config.train.optimizer),
        step_memory=step_memory_of(config, dtype),
        work={name: by_kind(operations) for name, operations in visible.items()},
        products={name: products_by_part(operations) for name, operations in visible.items()},
        computed_work={name: by_kind(_operations(model, name, this)) for name, this in passes.items()},
        tokens={name: this.rows for name, this in passes.items()},
    )


def training_pass(config: Config, dtype: Format) -> Pass:
    """A step of `train.batch_tokens`, as its kernels compute it."""
    train = resolve_train(config)
    counting: Counting = "packed" if train.document_mask else "computed"
    return Pass(train.rows, train.seq_len, counting=counting, bytes_each=BYTES[dtype], is_training=True)


def step_memory_of(config: Config, dtype: Format, device_type: str = "cpu") -> StepMemory:
    """Of a training step, by the micro-batches of the config."""
    train = resolve_train(config)
    micro_batch = replace(training_pass(config, dtype), texts=train.micro_batch_tokens // train.seq_len)
    turns = train.batch_tokens // train.micro_batch_tokens
    return step_memory(config.model, micro_batch, device_type, micro_batches=turns, optimizer=train.optimizer)


def _passes(config: Config, batch: int, context: int, dtype: Format) -> dict[PassName, Pass]:
    is_cached = not sees_as(config.model, "two_sided")
    found: dict[PassName, Pass] = {
        "training": training_pass(config, dtype),
        "prefill": Pass(batch, context, counting="computed", is_cached=is_cached, bytes_each=BYTES[dtype]),
    }
    if is_cached:
        found["decoding"] = Pass(batch, 1, context - 1, is_cached=True, counting="computed", bytes_each=BYTES[dtype])
    return found


def _operations(model: ModelConfig, name: PassName, this: Pass) -> Iterator[Operation]:
    match name:
        case "training":
            return training_step(model, this)
        case "prefill":
            return forward(model, this, logits="last")
        case "decoding":
            return forward(model, this)


def _read(model: ModelConfig, context: int, dtype: Format) -> int:
    """Weights and what is kept; activations are few."""
    step = Pass(1, 1, held=context - 1, is_cached=True, bytes_each=BYTES[dtype])
    return round(sum(operation.weights + operation.kept for operation in forward(model, step)))


class Room(Base):
    """Bytes, and how many texts they are for."""

    needed: int
    """Weights, cache and recurrent states."""
    memory: int
    """Of the device."""
    fits: bool
    texts: int | None
    """Of that context, as many as would fit; null: any number, for nothing is kept of them."""


def room(found: Cost, device: Hardware) -> Room:
    """Of one device, as its driver prints its memory."""
    kept = found.kv_cache_bytes + found.recurrent_bytes
    left, needed = device.memory - found.weight_bytes, found.weight_bytes + kept
    texts = max(0, left * found.batch // kept) if kept else None if left >= 0 else 0
    return Room(needed=needed, memory=device.memory, fits=needed <= device.memory, texts=texts)
