"""Memory in bytes: of caches and recurrent states, and of a training step on one device."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal, NamedTuple

from pydantic import computed_field

from archlab.config.components.component import StateTensor
from archlab.config.components.work import FLOAT32_BYTES, Pass
from archlab.config.core.base import Base
from archlab.config.layers import LayerConfig, distinct_layers, final_norm, sees_as
from archlab.config.lora import Lora
from archlab.config.model_schema import ModelConfig
from archlab.config.optimizer import AdamW, Muon, Optimizer
from archlab.config.pieces import rows_at_once
from archlab.config.schema import Config
from archlab.pricing.lora import added_parameters, added_work
from archlab.pricing.params import Parameters, parameters
from archlab.pricing.source import source_tokens, stack_passes
from archlab.pricing.work import around_layers

Format = Literal["bfloat16", "float32"]
BYTES: dict[Format, int] = {"bfloat16": 2, "float32": FLOAT32_BYTES}
"""Bytes per number in each format."""


class TrainingMemory(Base):
    """Training memory that does not depend on the batch: bytes of weights, gradients and optimizer state, all in
    float32.

    Activations are not included, because they depend on the batch.
    """

    weights: int
    gradients: int
    optimizer: int
    """Bytes of the running means that the optimizer keeps: of the gradient and, for AdamW, of its square.

    Muon keeps no mean of the square for matrices that it updates.
    """

    @computed_field
    @property
    def total(self) -> int:
        return sum(dict(self).values())


def kv_bytes_per_token(model: ModelConfig, bytes_each: int = BYTES["bfloat16"]) -> int:
    """Return the bytes that each further token of a sequence adds to the caches of all layers. A sliding window that is
    full adds nothing, but is counted here."""
    return sum(n * tensor.n_bytes(bytes_each) for tensor, n in _state(model, 1) if tensor.per_token)


def kv_cache_bytes(
    model: ModelConfig,
    context: int,
    batch: int = 1,
    bytes_each: int = BYTES["bfloat16"],
    source: int | None = None,
) -> int:
    """Return the size of the cache in bytes (keys and values, or latents) for `batch` sequences of `context` tokens. It
    includes the keys and values of their source texts.

    A layer with a sliding window caches only the tokens in the window. `source` is the number of source tokens (see
    `source_tokens`).
    """
    own = sum(n * tensor.n_bytes(bytes_each) for tensor, n in _state(model, context) if tensor.per_token)
    return batch * own + source_kv_bytes(model, source_tokens(model, context, source), batch, bytes_each)


def source_kv_bytes(model: ModelConfig, source: int, batch: int = 1, bytes_each: int = BYTES["bfloat16"]) -> int:
    """Return the bytes of the keys and values of `batch` source texts of `source` tokens, which cross-attention caches.
    They do not grow while the sequence does."""
    return batch * sum(n * tensor.n_bytes(bytes_each) for tensor, n in _state(model, source, of_source=True))


def recurrent_bytes(model: ModelConfig, batch: int = 1, bytes_each: int = BYTES["bfloat16"]) -> int:
    """Return the bytes of the recurrent states of `batch` sequences. They do not depend on the sequence length."""
    return batch * sum(n * tensor.n_bytes(bytes_each) for tensor, n in _state(model, 1) if not tensor.per_token)


def state_bytes(model: ModelConfig, context: int, batch: int = 1, bytes_each: int = BYTES["bfloat16"]) -> int:
    """Return the bytes that decoding `batch` sequences keeps: caches of `context` tokens and recurrent states."""
    return kv_cache_bytes(model, context, batch, bytes_each) + recurrent_bytes(model, batch, bytes_each)


def _state(model: ModelConfig, length: int, *, of_source: bool = False) -> Iterator[tuple[StateTensor, int]]:
    """Yield each tensor that a layer keeps for one sequence during decoding, with the number of layers that keep such a
    tensor. The tensors are those of cross-attention over `length` source tokens, or those of all other components over
    `length` tokens."""
    if sees_as(model, "two_sided"):
        return  # a model whose layers see both sides cannot have a cache
    for layer, n in distinct_layers(model).items():
        for branch in layer.branches:
            if branch.site.reads_source == of_source:
                yield from ((tensor, n) for tensor in branch.component.state(branch.site, length))


def training_memory(counts: Parameters, optimizer: Optimizer, n_added: int = 0) -> TrainingMemory:
    """Return the training memory: 16 bytes per parameter, or 12 for a parameter that Muon updates.

    An optimizer from a plug-in is counted like AdamW. `n_added` is the number of parameters that LoRA adds. If it is
    above 0, all other parameters are frozen and take 4 bytes.
    """
    trained, matrices = (n_added, n_added) if n_added else (counts.total, counts.matrices)
    gradients = trained * BYTES["float32"]
    averages = 2 * gradients - matrices * bytes_saved_by_optimizer(optimizer)
    return TrainingMemory(weights=(counts.total + n_added) * BYTES["float32"], gradients=gradients, optimizer=averages)


def training_memory_of(config: Config) -> TrainingMemory:
    model, train = config.model, config.train
    return training_memory(parameters(model), train.optimizer, added_parameters(model, train.lora))


def bytes_saved_by_optimizer(optimizer: Optimizer) -> int:
    """Return the bytes that an optimizer saves compared with AdamW, per parameter in a weight matrix of a layer."""
    return BYTES["float32"] if isinstance(optimizer, Muon) else 0


# --- a training step --------------------------------------------------------------------------------------

LOGITS_HELD = 4
"""Number of float32 values in memory per logit: the logit, its log-softmax, and the gradients of both."""


class StepMemory(Base):
    """Memory of a training step in bytes. The step processes one micro-batch at a time."""

    activations: int
    """Bytes of activations that layers keep for the backward pass, and of the last hidden states and their gradient."""
    recomputed_activations: int
    """Like `activations`, but with recomputation: each layer keeps only its input and computes its other activations
    again in the backward pass."""
    logits: int
    """Bytes of the logits that the loss processes at a time.

    If the loss processes the logits in several chunks, the gradient of the head's matrix is included.
    """
    peak: int
    """Peak memory in bytes, with weights, gradients and optimizer state, but without Python and torch themselves."""
    recomputed_peak: int
    """Like `peak`, but with recomputation of layers."""

    def peak_of(self, *, recompute: bool) -> int:
        """Return the peak memory in bytes, with or without recomputation (`train.recompute`)."""
        return self.recomputed_peak if recompute else self.peak


def step_memory(
    model: ModelConfig,
    model_pass: Pass,
    device_type: str = "cpu",
    *,
    micro_batches: int = 1,
    optimizer: Optimizer | None = None,
    lora: Lora | None = None,
) -> StepMemory:
    """Return the memory of a training step of `micro_batches` micro-batches. `model_pass` is the pass over one
    micro-batch.

    If `optimizer` is None, it is AdamW. With `lora`, the activations are an upper bound, because inputs of frozen
    matrices count even if LoRA does not change these.

    Memory is largest at one of two moments.

    - In the loss of the last micro-batch, all its activations are in memory. There are also gradients: of all
      parameters if there are several micro-batches, otherwise only of the head.
    - In the update, the gradients of all parameters are in memory, but no activations.

    In between, memory does not grow: in the backward pass, each layer frees at least as many bytes of activations as
    its gradients add. With recomputation, memory can also be largest in the backward pass of the last or of the first
    layer. All activations of that layer are then in memory, but no logits.
    """
    layers = layer_passes(model, model_pass)
    fixed = training_memory(parameters(model), optimizer or AdamW(), added_parameters(model, lora))
    head = 0 if lora else head_bytes(model)
    logits = logits_bytes(model, model_pass, device_type, head)
    outer = bytes_before(model, model_pass) + bytes_after(model, model_pass)
    kept = round(saved_bytes(layers, recompute=False, lora=lora).waiting + outer)
    inputs, rest = (round(n_bytes) for n_bytes in saved_bytes(layers, recompute=True, lora=lora))
    outer = round(outer)
    gradients = head if micro_batches == 1 else fixed.gradients
    # Matrix products in 16 bits keep a converted copy of their weights until their backward pass.
    per_weight = model_pass.bytes_each if model_pass.bytes_each < FLOAT32_BYTES else 0
    largest = per_weight * max(layer.parameters_per_device(1) for layer, _, _ in layers)
    of_head, converted = per_weight * head_bytes(model) // FLOAT32_BYTES, per_weight * parameters(model).total
    in_loss = max(logits, bytes_of_head_gradient(model, model_pass, device_type) - head) if per_weight else logits
    always_allocated = fixed.weights + fixed.optimizer
    # Cross-attention of all layers adds to the gradient of the encoder's output.
    of_source = model_pass.of_source.rows * model.d_model * FLOAT32_BYTES
    last_layer = gradients + inputs + rest + outer + of_source + largest
    first_layer = fixed.gradients + rest + outer + of_source + largest
    recomputed_peak = max(gradients + in_loss + inputs + outer + of_head, last_layer, first_layer)
    return StepMemory(
        activations=kept,
        recomputed_activations=inputs + rest + outer,
        logits=logits,
        peak=max(always_allocated + converted + gradients + in_loss + kept, fixed.total),
        recomputed_peak=max(always_allocated + recomputed_peak, fixed.total),
    )


def logits_bytes(model: ModelConfig, model_pass: Pass, device_type: str, head: int | None = None) -> int:
    """Return the bytes of the logits that the loss processes at a time.

    If the loss processes the logits in several chunks, the accumulated gradient of the head's matrix is included.
    `head` is the number of its bytes: 0 if the head is frozen, and None if it is trained.
    """
    head = head_bytes(model) if head is None else head
    rows = min(model_pass.rows, rows_at_once(model.vocab_size, device_type))
    kept = LOGITS_HELD + bool(model.head.softcap)  # tanh keeps its output for its gradient
    return kept * rows * model.vocab_size * FLOAT32_BYTES + (head if rows < model_pass.rows else 0)


def bytes_of_head_gradient(model: ModelConfig, model_pass: Pass, device_type: str) -> int:
    """Return the bytes in memory while the gradient of the head's matrix is converted from 16 bits to float32.

    These are the logits of the chunk, the gradient in both formats and, if there are several chunks, the accumulated
    gradient.
    """
    head, rows = head_bytes(model), min(model_pass.rows, rows_at_once(model.vocab_size, device_type))
    converted = (head // FLOAT32_BYTES + rows * model.vocab_size) * model_pass.bytes_each + head
    return converted + (head if rows < model_pass.rows else 0)


def head_bytes(model: ModelConfig) -> int:
    """Return the bytes of the head's output matrix in float32, which are also those of its gradient."""
    return model.vocab_size * (model.embedding.width or model.d_model) * FLOAT32_BYTES


class SavedBytes(NamedTuple):
    """Bytes of activations that modules keep for the backward pass. The modules are not compiled."""

    waiting: float
    """Bytes for each micro-batch whose backward pass has not started."""
    in_use: float
    """Additional bytes for the micro-batch whose backward pass is running: the recomputed activations of one layer."""


def layer_bytes(layer: LayerConfig, model_pass: Pass, lora: Lora | None = None) -> float:
    added = added_work(layer, model_pass, lora) if lora else ()
    return sum(operation.saved for operation in chain(layer.work(model_pass), added))


def bytes_before(model: ModelConfig, model_pass: Pass) -> float:
    """Return the bytes that modules before the layers keep for the backward pass: the embedding, and positions that all
    layers share. Those around the layers of an encoder are included."""
    return sum(operation.saved for operation in around_layers(model, model_pass))


def bytes_after(model: ModelConfig, model_pass: Pass) -> float:
    """Return the bytes that are kept after the layers for the backward pass: by the final norm, and for the last hidden
    states and their gradient."""
    norm = sum(operation.saved for operation in model_pass.norm(final_norm(model), model.d_model))
    return norm + 2 * model_pass.rows * model.d_model * FLOAT32_BYTES


class LayerPass(NamedTuple):
    """Layers with the same config, and the pass that they make."""

    layer: LayerConfig
    n: int
    """Number of layers."""
    own_pass: Pass
    """Pass over the source texts for a layer of the encoder, and over the sequences for other layers."""


def layer_passes(model: ModelConfig, model_pass: Pass) -> list[LayerPass]:
    """Return the distinct layers of the encoder, if there is one, and of the decoder."""
    return [
        LayerPass(layer, n, own_pass)
        for stack, own_pass in stack_passes(model, model_pass)
        for layer, n in distinct_layers(stack).items()
    ]


def saved_bytes(layers: Iterable[LayerPass], *, recompute: bool, lora: Lora | None = None) -> SavedBytes:
    """Return the bytes that layers keep for the backward pass.

    With `recompute`, each layer keeps only its input. Its other activations are in memory only during its own backward
    pass.
    """
    layers = list(layers)
    bytes_of_layer = [layer_bytes(layer, own_pass, lora) for layer, _, own_pass in layers]
    if not recompute:
        return SavedBytes(sum(n * kept for (_, n, _), kept in zip(layers, bytes_of_layer, strict=True)), 0.0)
    inputs = sum(n * own_pass.rows * layer.d_model * FLOAT32_BYTES for layer, n, own_pass in layers)
    return SavedBytes(inputs, max(bytes_of_layer))
