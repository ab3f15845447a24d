"""What a training step takes besides weights, gradients and the optimiser's state, where nothing is divided."""

from archlab.config.components.work import FLOAT32_BYTES, Pass
from archlab.config.core.base import Base
from archlab.config.layers import distinct_layers
from archlab.config.model_schema import ModelConfig
from archlab.config.optimizer import AdamW, Optimizer
from archlab.config.pieces import rows_at_once
from archlab.pricing.memory import training_memory
from archlab.pricing.params import parameters
from archlab.pricing.saved import outer_bytes, saved

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
    outer = outer_bytes(model, this)
    kept = round(saved(layers, this, recompute=False).waiting + outer)
    inputs, again = (round(n_bytes) for n_bytes in saved(layers, this, recompute=True))
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
