"""Outcomes that mean the same for every objective, so they compare models that were trained with different ones."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archlab.config.core.base import Count, Share
from archlab.study.outcome_schema import Better, Outcome, Source, Unit


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
