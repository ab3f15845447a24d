"""Cost of a config: parameters, FLOPs and bytes. They are computed from the config; no model is built."""

from collections.abc import Iterator
from dataclasses import replace

from archlab.config.components.position import Learned
from archlab.config.components.work import Counting, Operation, Pass
from archlab.config.core.base import Base
from archlab.config.layers import sees_as, stacks
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.config.training import resolve_train, tokens_predicted, tokens_read
from archlab.displayed import Displayed
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
    source_kv_bytes,
    step_memory,
    training_memory_of,
)
from archlab.pricing.params import Parameters, parameters
from archlab.pricing.source import source_tokens
from archlab.pricing.work import (
    FlopsPerToken,
    PassName,
    Work,
    by_kind,
    computed_training_flops,
    forward,
    forward_flops,
    products_by_part,
    training_step,
    visible_training_flops,
)


class Cost(Displayed, Base):
    """Parameters, FLOPs and bytes of one config: for its training, and for serving `batch` sequences of `context`
    tokens.

    A query-key pair is "visible" if the attention mask allows it. Otherwise it is "hidden".
    """

    context: int
    """Number of tokens in each served sequence."""
    max_seq_len: int
    """Maximum sequence length of the model (`model.max_seq_len`).

    `context` may be longer; FLOPs and bytes are computed nevertheless.
    """
    source: int
    """Number of tokens in the source text of each served sequence, which the encoder reads. 0 without an encoder."""
    batch: int
    """Number of sequences that are served in parallel."""
    dtype: Format
    """Dtype of the cache and of the weights in serving, and dtype of matrix products in training.

    In training, the residual stream and the weights are float32.
    """
    parameters: Parameters
    forward_flops: FlopsPerToken
    """FLOPs per token of a forward pass over `context` tokens, by part of the model. Hidden pairs do not count.

    With an encoder, the FLOPs of the source text are included, and divided by the number of target tokens.
    """
    training_window: int
    """Number of tokens in each training sequence (`train.seq_len`). It does not depend on `context`."""
    training_source: int
    """Number of source tokens that the encoder reads for each training sequence, which the objective decides; 0 without
    an encoder. It does not depend on `source`."""
    training_target: int
    """Number of tokens that the decoder, or the only stack, reads for each training sequence."""
    training_flops_per_token: float
    """FLOPs per token of the forward and the backward pass over a training sequence. Hidden pairs do not count."""
    computed_training_flops_per_token: float
    """Like `training_flops_per_token`, plus the FLOPs of hidden pairs that the attention kernel computes
    nevertheless."""
    training_tokens: int | None
    """Number of training tokens: `train.tokens`, rounded down to whole batches. null if `train.tokens` is not set."""
    training_flops: float | None
    """FLOPs of the whole training run. Hidden pairs do not count. null if `training_tokens` is null."""
    kv_bytes_per_token: int
    """Bytes that each further token of a sequence adds to the caches of all layers, until the sliding windows are
    full."""
    kv_cache_bytes: int
    """Bytes of the caches for all `batch` sequences of `context` tokens. A layer with a sliding window caches only the
    tokens in the window. `source_kv_bytes` is included."""
    source_kv_bytes: int
    """Bytes of the keys and values of all `batch` source texts, which cross-attention caches. They do not depend on
    `context`. 0 without an encoder."""
    recurrent_bytes: int
    """Bytes of the recurrent states for all `batch` sequences. They do not depend on `context`."""
    weight_bytes: int
    """Bytes of all weights in serving."""
    read_bytes_per_decoded_token: int | None
    """Bytes read by one decoding step of one sequence: active weights, cache and recurrent states.

    null if a layer attends to later tokens, too, because such a model cannot decode from a cache.
    """
    training_memory: TrainingMemory
    """Memory of weights, gradients and optimizer state in training."""
    step_memory: StepMemory
    """Memory of a training step: activations, logits, and the peak of the step."""
    work: dict[PassName, list[Work]]
    """Work of each pass, by kind of operation. Hidden pairs do not count.

    - training: Forward pass, backward pass and update for `train.batch_tokens` tokens.
    - prefill: Forward pass over all tokens of `batch` sequences, with their source texts. Only the last token of each
      sequence gets logits. In a model that cannot decode from a cache, such as BERT, all tokens get logits.
    - decoding: Forward pass over the last token of each sequence; the `context` - 1 tokens before it are in the cache.
      This pass is missing if the model cannot decode from a cache.
    """
    products: dict[PassName, dict[str, Work]]
    """Work of the matrix products with weights in each pass, by part of the model."""
    computed_work: dict[PassName, list[Work]]
    """Like `work`, plus the hidden pairs that CPU kernels compute nevertheless."""
    tokens: dict[PassName, int]
    """Number of tokens that each pass processes. Cached tokens do not count."""

    @property
    def state_bytes(self) -> int:
        """Bytes that decoding keeps for all `batch` sequences: caches and recurrent states."""
        return self.kv_cache_bytes + self.recurrent_bytes

    @property
    def decodes(self) -> bool:
        """Whether the model can decode from a cache. An encoder cannot."""
        return "decoding" in self.work


def n_learned_positions(model: ModelConfig) -> int | None:
    """Return the number of tokens at which learned positions end, in the shorter of two stacks. Return None if
    positions are not learned."""
    return min((stack.max_seq_len for stack in stacks(model) if isinstance(stack.position, Learned)), default=None)


def cost(
    config: Config,
    batch: int = 1,
    context: int | None = None,
    dtype: Format = "bfloat16",
    source: int | None = None,
) -> Cost:
    """Compute parameters, FLOPs and bytes of a config from its resolved layers. The passes and weights of a teacher
    (`train.teacher`) are not counted.

    `context` defaults to the training sequence length (`train.seq_len`). `source` is the number of source tokens that
    an encoder reads, and defaults to `context`. Raise UserError if the model has learned positions and one of these
    numbers exceeds their table, or if `source` is given for a model without an encoder.
    """
    model, train = config.model, resolve_train(config)
    context = context or train.seq_len
    source = source_tokens(model, context, source)
    for stack, name, length in zip(reversed(stacks(model)), ("context", "source"), (context, source), strict=False):
        if isinstance(stack.position, Learned) and length > stack.max_seq_len:
            raise UserError(f"{name} is {length}, but learned positions end at max_seq_len = {stack.max_seq_len}")
    counts = parameters(model)
    per_token = visible_training_flops(config)
    passes = _passes(config, batch, context, source, dtype)
    visible: dict[PassName, list[Operation]] = {
        name: list(_operations(config, name, replace(model_pass, counting="visible")))
        for name, model_pass in passes.items()
    }
    tokens = train.trained if config.train.tokens else None
    return Cost(
        context=context,
        source=source,
        max_seq_len=model.max_seq_len,
        batch=batch,
        dtype=dtype,
        parameters=counts,
        forward_flops=forward_flops(model, context, source=source),
        training_window=train.seq_len,
        training_source=passes["training"].source,
        training_target=passes["training"].tokens,
        training_flops_per_token=per_token,
        computed_training_flops_per_token=computed_training_flops(config),
        training_tokens=tokens,
        training_flops=None if tokens is None else per_token * tokens,
        kv_bytes_per_token=kv_bytes_per_token(model, BYTES[dtype]),
        kv_cache_bytes=kv_cache_bytes(model, context, batch, BYTES[dtype], source),
        source_kv_bytes=source_kv_bytes(model, source, batch, BYTES[dtype]),
        recurrent_bytes=recurrent_bytes(model, batch, BYTES[dtype]),
        weight_bytes=counts.total * BYTES[dtype],
        read_bytes_per_decoded_token=None if sees_as(model, "two_sided") else _read(model, context, source, dtype),
        training_memory=training_memory_of(config),
        step_memory=step_memory_of(config, dtype),
        work={name: by_kind(operations) for name, operations in visible.items()},
        products={name: products_by_part(operations) for name, operations in visible.items()},
        computed_work={name: by_kind(_operations(config, name, model_pass)) for name, model_pass in passes.items()},
        tokens={name: model_pass.rows for name, model_pass in passes.items()},
    )


def training_pass(config: Config, dtype: Format) -> Pass:
    """Return the pass of a training step, over `train.batch_tokens` tokens. It also counts hidden pairs that kernels
    compute."""
    train = resolve_train(config)
    counting: Counting = "packed" if train.document_mask else "computed"
    stack, source = tokens_read(config)
    return Pass(
        train.rows,
        stack,
        counting=counting,
        bytes_each=BYTES[dtype],
        is_training=True,
        source=source,
        predicted=tokens_predicted(config),
    )


def step_memory_of(config: Config, dtype: Format, device_type: str = "cpu") -> StepMemory:
    train = resolve_train(config)
    micro_batch = replace(training_pass(config, dtype), texts=train.micro_batch_tokens // train.seq_len)
    n_micro_batches = train.batch_tokens // train.micro_batch_tokens
    return step_memory(
        config.model,
        micro_batch,
        device_type,
        micro_batches=n_micro_batches,
        optimizer=train.optimizer,
        lora=train.lora,
    )


def _passes(config: Config, batch: int, context: int, source: int, dtype: Format) -> dict[PassName, Pass]:
    is_cached = not sees_as(config.model, "two_sided")
    prefill = Pass(batch, context, counting="computed", is_cached=is_cached, bytes_each=BYTES[dtype], source=source)
    passes: dict[PassName, Pass] = {"training": training_pass(config, dtype), "prefill": prefill}
    if is_cached:
        passes["decoding"] = replace(prefill, tokens=1, n_cached=context - 1)
    return passes


def _operations(config: Config, name: PassName, model_pass: Pass) -> Iterator[Operation]:
    match name:
        case "training":
            return training_step(config.model, model_pass, config.train.lora, config.train.optimizer)
        case "prefill":
            return forward(config.model, model_pass, logits="last" if model_pass.is_cached else "all")
        case "decoding":
            return forward(config.model, model_pass)


def _read(model: ModelConfig, context: int, source: int, dtype: Format) -> int:
    """Return the bytes of weights, cache and recurrent states that a decoding step reads. Activations are small and not
    counted."""
    step = Pass(1, 1, n_cached=context - 1, is_cached=True, bytes_each=BYTES[dtype], source=source)
    return round(sum(operation.weights + operation.kept for operation in forward(model, step)))


class Room(Base):
    """Memory needed for serving, and the number of sequences that fit into the memory of a device."""

    needed: int
    """Bytes needed for weights, cache and recurrent states."""
    memory: int
    """Memory of the device in bytes."""
    fits: bool
    texts: int | None
    """Maximum number of sequences of `context` tokens that fit. null if any number fits, because the model caches
    nothing."""


def room(costs: Cost, device: Hardware) -> Room:
    """Compare the memory needed for serving with the memory of one device."""
    kept = costs.state_bytes
    left, needed = device.memory - costs.weight_bytes, costs.weight_bytes + kept
    texts = max(0, left * costs.batch // kept) if kept else None if left >= 0 else 0
    return Room(needed=needed, memory=device.memory, fits=needed <= device.memory, texts=texts)
