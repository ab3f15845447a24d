"""Outcomes that a study can measure, and by which its arms are compared."""

from collections.abc import Callable
from string import Formatter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from archlab.config.core.base import Count, Fraction, Kinded, Positive, Share
from archlab.config.core.old_form import to_old_form
from archlab.config.core.registry import Registered, Section, implements, is_users, kind_of, source_digest
from archlab.config.register import Options, as_kind
from archlab.config.sources import sources_inside
from archlab.config.tasks import Task
from archlab.errors import UserError
from archlab.training.measures import CROSS, ENCODER, OF_LAYERS

Better = Literal["lower", "higher", "neither"]
"""Direction in which an outcome improves. `neither`: a difference is neither good nor bad."""

Unit = Literal["bits per byte", "nats per token", "share", "tokens", "tokens/s", "bytes", "count", "norm", "rate"]
"""Unit of an outcome's values. The unit also decides how values are formatted."""

Source = Literal["log", "weights", "timing", "config", "sweep"]
"""Source of an outcome's values.

`log`: the training log of a run; one value per seed. `weights`: the final weights of a run; one value per seed.
`timing`: timing of all arms in turn, with nothing else running; one value per round. `config`: computed from the config
without a run; one value per arm. `sweep`: the runs of a seed at all values of the swept field; one value per seed.
"""

BY_SEED: tuple[Source, ...] = ("log", "weights", "sweep")
"""Sources with one value per seed. `timing` has one value per round instead, and `config` one per arm."""


class Outcome(Kinded, Registered):
    """Base class of all outcomes. An outcome is a number by which arms are compared."""

    section: ClassVar[Section] = "outcome"

    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit]
    better: ClassVar[Better] = "lower"
    any_objective: ClassVar[bool] = False
    """Whether the outcome means the same for models that were trained with different objectives. Outcomes that are
    timed or computed from the config always do (`is_shared`)."""
    heading: ClassVar[str] = ""
    """Title of the outcome. Names of fields in braces are replaced by their values. Required unless `title` is
    overridden."""

    @classmethod
    def check_class(cls) -> None:
        """Raise UserError if the class has an unknown source, unit or direction, or no heading."""
        for attribute, allowed in (("source", Source), ("unit", Unit), ("better", Better)):
            if (value := getattr(cls, attribute)) not in get_args(allowed):
                values = ", ".join(get_args(allowed))
                raise UserError(f"outcome {kind_of(cls)}: {attribute} is {value!r}; allowed: {values}")
        if not cls.heading and cls.title is Outcome.title:
            raise UserError(f"outcome {kind_of(cls)}: {cls.__name__} has no heading; define it in the class")
        names = {name.partition("[")[0] for _, name, _, _ in Formatter().parse(cls.heading) if name}
        if unknown := sorted(names - cls.model_fields.keys()):
            raise UserError(f"outcome {kind_of(cls)}: its heading has {unknown[0]} in braces; allowed: its fields")

    @property
    def is_shared(self) -> bool:
        """Whether arms with different objectives can be compared by this outcome."""
        return self.any_objective or self.source in ("timing", "config")

    @property
    def title(self) -> str:
        """Short description of the outcome, without its unit."""
        return self.heading.format(**self.model_dump())

    @property
    def meaning(self) -> dict[str, Any]:
        """Everything that determines the outcome's value for a given run: its fields, and digests of users' code."""
        plain = self.model_dump()
        if is_users(type(self)):
            plain = {**to_old_form(plain), "source": source_digest(type(self))}
        inside = sources_inside(self)
        return {**plain, "plugins": inside} if inside else plain


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


def register_outcome(
    name: str, options: type[Options], function: Callable[..., Any], *, title: str, unit: Unit, better: Better
) -> None:
    """Register an outcome in the older form, which uses a function instead of a class.

    `function(run, options)` returns a finite number, or None for a run without a value.
    """
    outcome = as_kind(name, options, Outcome, Options, heading=title, unit=unit, better=better)
    implements(outcome)(lambda config, run: function(run, config))
