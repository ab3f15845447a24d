"""Bytes: the weights, what layers keep between passes, and what a training step takes where nothing is divided."""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from pydantic import computed_field

from archlab.config.components.component import StateTensor
from archlab.config.components.work import FLOAT32_BYTES, Pass
from archlab.config.core.base import Base
from archlab.config.layers import LayerConfig, distinct_layers, final_norm, sees_as
from archlab.config.model_schema import ModelConfig
from archlab.config.optimizer import AdamW, Muon, Optimizer
from archlab.config.pieces import rows_at_once
from archlab.pricing.params import Parameters, parameters
from archlab.pricing.work import before_layers

Format = Literal["bfloat16", "float32"]
BYTES: dict[Format, int] = {"bfloat16": 2, "float32": FLOAT32_BYTES}
"""Per number."""


class TrainingMemory(Base):
    """Bytes that training holds whatever the batch: float32 weights, gradients and the optimiser's averages.

    Activations are not in it: they depend on the kernels, on recomputation and on the batch.
    """

    weights: int
    gradients: int
    optimizer: int
    """Running means of the gradient and, but for matrices that Muon updates, of its square."""

    @computed_field
    @property
    def total(self) -> int:
        """All of them."""
        return sum(dict(self).values())


def kv_bytes_per_token(model: ModelConfig, bytes_each: int = BYTES["bfloat16"]) -> int:
    """Cache bytes that one more token costs in all layers, before a window bounds it."""
    return kv_cache_bytes(model, context=1, bytes_each=bytes_each)


def kv_cache_bytes(model: ModelConfig, context: int, batch: int = 1, bytes_each: int = BYTES["bfloat16"]) -> int:
    """Bytes that layers keep per token (keys and values, or latents) of `batch` sequences of `context` tokens; a layer
    keeps no more than its window."""
    return batch * sum(n * tensor.n_bytes(bytes_each) for tensor, n in _state(model, context) if tensor.per_token)


def recurrent_bytes(model: ModelConfig, batch: int = 1, bytes_each: int = BYTES["bfloat16"]) -> int:
    """Bytes that layers keep of `batch` sequences whatever their length: the states of recurrent mixers."""
    return batch * sum(n * tensor.n_bytes(bytes_each) for tensor, n in _state(model, 1) if not tensor.per_token)


def _state(model: ModelConfig, context: int) -> Iterator[tuple[StateTensor, int]]:
    """What layers keep of one sequence, and how many of them keep the same."""
    if sees_as(model, "two_sided"):
        return  # a cache is refused
    for layer, n in distinct_layers(model).items():
        for branch in layer.branches:
            yield from ((tensor, n) for tensor in branch.component.state(layer.site, context))


def training_memory(counts: Parameters, optimizer: Optimizer) -> TrainingMemory:
    """16 bytes per parameter; 12 of one that is in a matrix where Muon updates it. Of a plug-in AdamW's are counted."""
    one = counts.total * BYTES["float32"]
    return TrainingMemory(weights=one, gradients=one, optimizer=2 * one - counts.matrices * spared(optimizer))


def spared(optimizer: Optimizer) -> int:
    """Bytes per number of a matrix that it keeps less than AdamW."""
    return BYTES["float32"] if isinstance(optimizer, Muon) else 0


# --- a training step --------------------------------------------------------------------------------------

LOGITS_HELD = 4
"""Numbers per logit of a piece, in float32: itself, its log-softmax, and the gradients of both."""


class StepMemory(Base):
    """Bytes, of a micro-batch."""

    activations: int
    """What layers keep for the backward pass, and the hidden states with their gradient."""
    recomputed_activations: int
    """The same where layers keep their input alone, and compute the rest again one after the other."""
    logits: int
    """Of as many tokens as the loss works on at once, and what its pieces add to the head's gradient."""
    peak: int
    """The most at once, weights and optimiser included; beside what Python and torch take without a model."""
    recomputed_peak: int
    """The same where layers keep their input alone."""

    def peak_of(self, *, recompute: bool) -> int:
        """The one of the two that train.recompute means."""
        return self.recomputed_peak if recompute else self.peak


def step_memory(
    model: ModelConfig,
    this: Pass,
    device_type: str = "cpu",
    *,
    micro_batches: int = 1,
    optimizer: Optimizer | None = None,
) -> StepMemory:
    """Of steps with so many times `this`; without an optimiser, of AdamW.

    Two moments compete for the peak: the loss, when all activations are there and of the gradients that of the head,
    or all of them from the second micro-batch on; and the update, when all gradients are there and no activations.
    Between them layers give up what their gradients take. Where layers are computed again, the backward pass of the
    last and of the first one compete too: of one layer all activations are there then, and no logits.
    """
    layers = distinct_layers(model)
    held = training_memory(parameters(model), optimizer or AdamW())
    head = _head_bytes(model)
    logits = logits_bytes(model, this, device_type)
    outer = bytes_before(model, this) + bytes_after(model, this)
    kept = round(saved_bytes(layers, this, recompute=False).waiting + outer)
    inputs, again = (round(n_bytes) for n_bytes in saved_bytes(layers, this, recompute=True))
    outer = round(outer)
    gradients = head if micro_batches == 1 else held.gradients
    # Products keep the weights that they have converted, where they are in 16 bits.
    converted = this.bytes_each * parameters(model).total if this.bytes_each < FLOAT32_BYTES else 0
    beside = held.weights + held.optimizer + converted
    last_layer = gradients + inputs + again + outer
    first_layer = held.gradients + again + outer
    recomputed_peak = max(gradients + logits + inputs + outer, last_layer, first_layer)
    return StepMemory(
        activations=kept,
        recomputed_activations=inputs + again + outer,
        logits=logits,
        peak=max(beside + gradients + logits + kept, held.total),
        recomputed_peak=max(beside + recomputed_peak, held.total),
    )


def logits_bytes(model: ModelConfig, this: Pass, device_type: str) -> int:
    """Of as many tokens as the loss works on at once; several pieces add up the gradient of the head's matrix."""
    rows = min(this.rows, rows_at_once(model.vocab_size, device_type))
    held = LOGITS_HELD + bool(model.head.softcap)  # what tanh gives is kept for its gradient
    return held * rows * model.vocab_size * FLOAT32_BYTES + (_head_bytes(model) if rows < this.rows else 0)


def _head_bytes(model: ModelConfig) -> int:
    return model.vocab_size * (model.embedding.width or model.d_model) * FLOAT32_BYTES


class SavedBytes(NamedTuple):
    """Activations that training keeps for the backward pass, counted as the modules keep them without a compiler."""

    waiting: float
    """Of every micro-batch whose backward pass has not begun."""
    in_use: float
    """Beside it, of the one whose backward pass runs."""


def layer_bytes(layer: LayerConfig, this: Pass) -> float:
    """Of one layer."""
    return sum(operation.saved for operation in layer.work(this))


def bytes_before(model: ModelConfig, this: Pass) -> float:
    """Before the layers: what the embedding keeps, and the positions that all layers share."""
    return sum(operation.saved for operation in before_layers(model, this))


def bytes_after(model: ModelConfig, this: Pass) -> float:
    """After the layers: what the final norm keeps, and hidden states with their gradient."""
    norm = sum(operation.saved for operation in this.norm(final_norm(model), model.d_model))
    return norm + 2 * this.rows * model.d_model * FLOAT32_BYTES


def saved_bytes(layers: Mapping[LayerConfig, int], this: Pass, *, recompute: bool) -> SavedBytes:
    """Of layers, each with how many there are; with `recompute` a layer keeps its input alone, and one layer at a time
    the rest."""
    each = {layer: layer_bytes(layer, this) for layer in layers}
    if not recompute:
        return SavedBytes(sum(n * each[layer] for layer, n in layers.items()), 0.0)
    inputs = sum(n * this.rows * layer.d_model * FLOAT32_BYTES for layer, n in layers.items())
    return SavedBytes(inputs, max(each.values()))
