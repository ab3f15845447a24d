"""Outcomes that a study can measure, and by which its arms are compared.

`log.py`, `final_weights.py`, `timing.py` and `gather.py` compute their values.
"""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from archlab.config.core.base import Count, Fraction, Positive, Share
from archlab.config.tasks import Task
from archlab.study.outcomes.schema import Better, Outcome, Source, Unit
from archlab.training.measures import CROSS, ENCODER, OF_LAYERS

# --- from the training log --------------------------------------------------------------------------------------------


class BitsPerByte(Outcome):
    """Loss on the held-out text after training, in bits per byte."""

    kind: Literal["bits_per_byte"] = "bits_per_byte"
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "bits per byte"
    heading: ClassVar[str] = "loss on held-out text"


class Accuracy(Outcome):
    """Fraction of a task's answers for which the trained model's most likely token is correct."""

    kind: Literal["accuracy"] = "accuracy"
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "share"
    better: ClassVar[Better] = "higher"
    heading: ClassVar[str] = "right answers"


class DenoisingLoss(Outcome):
    """Loss of the hidden tokens of held-out text after training, in nats per hidden token. It needs an objective that
    hides tokens."""

    kind: Literal["denoising_loss"] = "denoising_loss"
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "nats per token"
    heading: ClassVar[str] = "loss on hidden tokens"


class DenoisingAccuracy(Outcome):
    """Fraction of the hidden tokens of held-out text that the trained model predicts as most likely. It needs an
    objective that hides tokens."""

    kind: Literal["denoising_accuracy"] = "denoising_accuracy"
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "share"
    better: ClassVar[Better] = "higher"
    heading: ClassVar[str] = "hidden tokens predicted"


class Gap(Outcome):
    """Held-out loss minus the training loss over the last tenth of the steps. The gap is positive if the model
    overfits. Only the training loss includes the tokens at document ends, so a corpus of short documents has a gap even
    without overfitting."""

    kind: Literal["gap"] = "gap"
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "nats per token"
    heading: ClassVar[str] = "loss held out minus loss in training"


class TokensTo(Outcome):
    """Number of training tokens until the held-out loss reaches a given value, interpolated between evaluations. If a
    run never reaches the loss, the outcome has no value for it."""

    kind: Literal["tokens_to"] = "tokens_to"
    bits_per_byte: Positive
    """Held-out loss to reach, in bits per byte."""
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "tokens"
    heading: ClassVar[str] = "training tokens until {bits_per_byte:g} bits per byte"


class OnTheWay(Outcome):
    """Held-out loss at an earlier point of training, for example before the learning rate decays."""

    kind: Literal["on_the_way"] = "on_the_way"
    share: Annotated[Share, Field(gt=0)]
    """Fraction of the training tokens. The outcome is the loss at the last evaluation up to this point."""
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "bits per byte"

    @property
    def title(self) -> str:
        """Title of the outcome, with the fraction as a percentage that is not rounded."""
        return f"loss after {100 * self.share:g}% of the training"


class LargestGradient(Outcome):
    """Largest norm of the whole gradient, before clipping. The first tenth of the updates is not counted."""

    kind: Literal["largest_gradient"] = "largest_gradient"
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "norm"
    heading: ClassVar[str] = "largest gradient"


class Spikes(Outcome):
    """Number of spikes, as defined by `train.spikes`: steps whose loss or gradient is far above those of the steps
    before. The first `train.spikes.window` steps never count as spikes."""

    kind: Literal["spikes"] = "spikes"
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "count"
    heading: ClassVar[str] = "spikes of loss or gradient"


OF_THE_MODEL = ("log_z", "log_z_rms", "embedding_rms", f"{ENCODER}embedding_rms")
"""Probe measures with one value for the whole model instead of one value per layer."""

OF_EVERY_LAYER = tuple(name for name, measure in OF_LAYERS.items() if measure.in_every_layer)
"""Probe measures that have a value in every layer."""

if TYPE_CHECKING:
    ProbeName = str
else:
    ProbeName = Literal[*OF_LAYERS, *OF_THE_MODEL]
"""Name of a probe measure (docs/probes.md)."""


class Probe(Outcome):
    """Value of a probe measure, which is computed inside the model during training. Requires `train.probe_every`."""

    kind: Literal["probe"] = "probe"
    of: ProbeName
    """Name of the probe measure (docs/probes.md). In a model with an encoder, names that do not begin with `encoder.`
    are about the layers of the decoder."""
    layers: Literal["mean", "largest", "smallest", "last_over_first"] = "mean"
    """Way to reduce the values of all layers to one. `last_over_first` divides the last layer's value by the first
    layer's."""
    at: Literal["start", "end"] = "end"
    """Probe whose value is used. `start`: the first probe, before any update. `end`: the last probe."""
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "rate"
    better: ClassVar[Better] = "neither"

    @property
    def needs_encoder(self) -> bool:
        """Whether only models with an encoder have the measure."""
        return self.of.startswith((ENCODER, CROSS))

    @property
    def title(self) -> str:
        part, _, measure = self.of.rpartition(".")
        suffixes = {"last_over_first": "of the last layer over that of the first", "mean": "(mean of the layers)"}
        if measure.startswith(self.layers):
            suffixes[self.layers] = "in any layer"
        suffix = "" if self.of in OF_THE_MODEL else suffixes.get(self.layers, f"({self.layers} of all layers)")
        at = "at the start of training" if self.at == "start" else ""
        name = {"first_token": "attention on the first token"}.get(measure, measure.replace("_", " "))
        of_part = f"{part.replace('_', '-')}:" if part else ""
        return " ".join(filter(None, (of_part, name, suffix, at)))


# --- from the final weights -------------------------------------------------------------------------------------------


class WindowPart(Outcome):
    """Bits per byte of the held-out tokens in one part of each window. Later tokens have more context."""

    kind: Literal["window_part"] = "window_part"
    first: Share = 0.75
    """Start of the part, as a fraction of the window."""
    last: Fraction = 1.0
    """End of the part, as a fraction of the window."""

    @model_validator(mode="after")
    def _is_not_empty(self) -> "WindowPart":
        if self.first >= self.last:
            raise ValueError(f"first is {self.first}; it must be below last, which is {self.last}")
        return self

    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit] = "bits per byte"
    heading: ClassVar[str] = "loss from {first:.0%} to {last:.0%} of the window"


class Beyond(Outcome):
    """Bits per byte of held-out tokens beyond the training length (Press 2022). Each window is `times` as long as the
    training length, or as `train.eval_seq_len` if that is set."""

    kind: Literal["beyond"] = "beyond"
    times: Annotated[int, Field(ge=2, le=64)] = 2
    """Length of the windows, in multiples of the training length. Only tokens beyond the training length are scored."""
    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit] = "bits per byte"
    heading: ClassVar[str] = "loss beyond the training length in texts {times} times as long"


class Repetition(Outcome):
    """Fraction of 4-token sequences in generated text that occurred earlier in the same text (Welleck 2020). The text
    is generated by greedy decoding from held-out prompts."""

    kind: Literal["repetition"] = "repetition"
    tokens: Count = 128
    """Number of tokens generated after each prompt."""
    prompts: Count = 32
    """Number of prompts. Each prompt is half a window long."""
    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit] = "share"
    heading: ClassVar[str] = "repeated runs of four in {tokens} greedy tokens"


class TokensPerByte(Outcome):
    """Number of tokens per byte of the held-out text."""

    kind: Literal["tokens_per_byte"] = "tokens_per_byte"
    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit] = "rate"
    better: ClassVar[Better] = "neither"
    heading: ClassVar[str] = "tokens per byte of text"


class AnyAnswers(Outcome):
    """Base class of the outcomes of a task. It may differ from the training task, for example in its distance or in the
    length of its sources. The model is trained and evaluated with the same objective. The number of windows is
    `train.eval_tokens`, divided by the tokens of a window."""

    task: Task
    """Task on which the trained model is evaluated."""
    seq_len: Count | None = None
    """Number of tokens per window. null: the smallest window in which the task fits."""
    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit] = "share"
    better: ClassVar[Better] = "higher"


class Answers(AnyAnswers):
    """Fraction of correct answers on a task. It may differ from the training task, for example in its distance or in
    the length of its sources."""

    kind: Literal["answers"] = "answers"
    heading: ClassVar[str] = "right answers of another task"


class WholeAnswers(AnyAnswers):
    """Fraction of windows whose answers are all correct, on a task that may differ from the training task. For tasks of
    pairs, this is the fraction of exact targets. Greedy decoding gives the same fraction, although the model here reads
    the correct answers before each answer."""

    kind: Literal["whole_answers"] = "whole_answers"
    heading: ClassVar[str] = "windows with right answers only"


class Continuation(Outcome):
    """Bits per byte of the end of each held-out window, given its beginning. The same tokens count for every objective.
    A model that was trained with `span_corruption` restores the end of the window as one hidden span."""

    kind: Literal["continuation"] = "continuation"
    given: Annotated[Share, Field(gt=0)] = 0.5
    """Fraction of the window that the model reads before it predicts the other tokens."""
    any_objective: ClassVar[bool] = True
    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit] = "bits per byte"
    heading: ClassVar[str] = "loss of the text after the first {given:.0%} of each window"


class LinearProbe(Outcome):
    """Fraction of correct answers of a linear classifier (multinomial logistic regression) that reads a task's last
    answer from the model's hidden states before the head. A causal model has read the tokens before the answer. A model
    trained with `masked` reads the whole window with a mask token as the answer."""

    kind: Literal["linear_probe"] = "linear_probe"
    windows: Annotated[Count, Field(ge=2)] = 4096
    """Number of held-out windows. The classifier is fitted on the first half of them and scored on the other half."""
    any_objective: ClassVar[bool] = True
    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit] = "share"
    better: ClassVar[Better] = "higher"
    heading: ClassVar[str] = "answers that a linear probe reads"


# --- from all runs of a swept field -----------------------------------------------------------------------------------


class Sensitivity(Outcome):
    """Learning-rate sensitivity (Wortsman 2023): the mean over all swept rates of (final loss - lowest final loss). The
    loss of a run is capped at the loss of the untrained model."""

    kind: Literal["sensitivity"] = "sensitivity"
    source: ClassVar[Source] = "sweep"
    unit: ClassVar[Unit] = "bits per byte"
    heading: ClassVar[str] = "learning-rate sensitivity"


class BestLoss(Outcome):
    """Lowest final loss over all swept rates."""

    kind: Literal["best_loss"] = "best_loss"
    source: ClassVar[Source] = "sweep"
    unit: ClassVar[Unit] = "bits per byte"
    heading: ClassVar[str] = "loss at the best rate"


class BestRate(Outcome):
    """Swept learning rate with the lowest final loss."""

    kind: Literal["best_rate"] = "best_rate"
    source: ClassVar[Source] = "sweep"
    unit: ClassVar[Unit] = "rate"
    better: ClassVar[Better] = "neither"
    heading: ClassVar[str] = "best rate"


# --- timed ------------------------------------------------------------------------------------------------------------


class TrainingSpeed(Outcome):
    """Speed of complete training updates on this machine, with nothing else running."""

    kind: Literal["training_speed"] = "training_speed"
    source: ClassVar[Source] = "timing"
    unit: ClassVar[Unit] = "tokens/s"
    better: ClassVar[Better] = "higher"
    heading: ClassVar[str] = "training speed"


class DecodingSpeed(Outcome):
    """Speed of greedy decoding steps on this machine, with nothing else running."""

    kind: Literal["decoding_speed"] = "decoding_speed"
    context: Count = 128
    """Number of context tokens before the first decoding step."""
    batch: Count = 1
    """Number of sequences that are decoded together."""
    source: ClassVar[Source] = "timing"
    unit: ClassVar[Unit] = "tokens/s"
    better: ClassVar[Better] = "higher"
    heading: ClassVar[str] = "decoding speed after {context:,} tokens, batch {batch}"


class NormShare(Outcome):
    """Fraction of the time of an uncompiled training step that is spent in normalization layers, with nothing else
    running."""

    kind: Literal["norm_share"] = "norm_share"
    source: ClassVar[Source] = "timing"
    unit: ClassVar[Unit] = "share"
    heading: ClassVar[str] = "share of the time in norms"


class PeakMemory(Outcome):
    """Peak memory of a training step on this machine: GPU memory if the step runs on a GPU, otherwise memory of the
    process."""

    kind: Literal["peak_memory"] = "peak_memory"
    source: ClassVar[Source] = "timing"
    unit: ClassVar[Unit] = "bytes"
    heading: ClassVar[str] = "peak memory of training"


# --- computed from the config -----------------------------------------------------------------------------------------


class StateBytes(Outcome):
    """Bytes of the KV cache and the recurrent state of one sequence in bfloat16, computed from the config."""

    kind: Literal["state_bytes"] = "state_bytes"
    context: Count | None = None
    """Number of tokens in the sequence. null: the smallest max_seq_len of the arms."""
    source: ClassVar[Source] = "config"
    unit: ClassVar[Unit] = "bytes"
    heading: ClassVar[str] = "KV cache and state of a text of {context} tokens"


class Intensity(Outcome):
    """FLOPs of matrix products in a decoding step, per byte that the step reads and writes in bfloat16. The value is
    computed from the config. Memory bandwidth limits decoding if the value is below the device's FLOPs per second
    divided by its bytes per second (Williams 2009; `archlab hardware`)."""

    kind: Literal["intensity"] = "intensity"
    context: Count = 128
    """Number of context tokens before the decoding step."""
    batch: Count = 1
    """Number of sequences that are decoded together."""
    source: ClassVar[Source] = "config"
    unit: ClassVar[Unit] = "rate"
    better: ClassVar[Better] = "neither"
    heading: ClassVar[str] = "FLOPs per byte of a decoding step after {context:,} tokens, batch {batch}"
