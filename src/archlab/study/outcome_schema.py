"""What a study can measure: the outcomes by which its arms are compared. Each gives one number per run, per round of
timing, or per arm."""

from collections.abc import Callable
from string import Formatter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from archlab.config.core.base import Count, Fraction, Kinded, Positive, Share
from archlab.config.core.old_form import from_old_form, to_old_form
from archlab.config.core.registry import (
    KindName,
    Registered,
    Section,
    implements,
    is_users,
    kind_of,
    source_digest,
)
from archlab.config.core.text import Line
from archlab.config.register import Options, as_kind
from archlab.config.sources import sources_inside
from archlab.config.tasks import Task
from archlab.errors import UserError
from archlab.training.measures import OF_LAYERS

Better = Literal["lower", "higher", "neither"]
"""Which values of an outcome are good; neither: a difference is only a difference."""

Unit = Literal["bits per byte", "nats per token", "share", "tokens", "tokens/s", "bytes", "count", "norm", "rate"]
"""Of an outcome's values, and how they are written."""

Source = Literal["log", "weights", "timing", "config", "sweep"]
"""Where an outcome's values come from. log: what a run wrote while it trained, one value per seed. weights: what its
last weights do, per seed. timing: all arms in turn, nothing else running, per round. config: no run at all, one exact
value per arm. sweep: the runs of a seed at all swept rates, per seed."""

BY_SEED: tuple[Source, ...] = ("log", "weights", "sweep")
"""Sources whose values are of runs; those of timing are of rounds, those of a config of arms."""


class Outcome(Kinded, Registered):
    """A number by which arms are compared."""

    section: ClassVar[Section] = "outcome"

    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit]
    better: ClassVar[Better] = "lower"
    heading: ClassVar[str] = ""
    """What is measured, with fields in braces. Needed unless `title` is overridden."""

    @classmethod
    def check_class(cls) -> None:
        """Refuse a kind with an unknown source, unit or direction, or without a heading."""
        for what, allowed in (("source", Source), ("unit", Unit), ("better", Better)):
            if (found := getattr(cls, what)) not in get_args(allowed):
                raise UserError(f"outcome {kind_of(cls)}: {what} {found!r}; allowed: {', '.join(get_args(allowed))}")
        if not cls.heading and cls.title is Outcome.title:
            raise UserError(f"outcome {kind_of(cls)}: {cls.__name__} has no heading; define it in the class")
        named = {name.partition("[")[0] for _, name, _, _ in Formatter().parse(cls.heading) if name}
        if unknown := sorted(named - cls.model_fields.keys()):
            raise UserError(f"outcome {kind_of(cls)}: its heading names {unknown[0]}, which is not one of its fields")

    @property
    def title(self) -> str:
        """What is measured; the unit is named beside it."""
        return self.heading.format(**self.model_dump())

    @property
    def meaning(self) -> dict[str, Any]:
        """All that decides its value for one run, as plain values, with digests of a user's code that takes part."""
        plain = self.model_dump()
        if is_users(type(self)):
            plain = {**to_old_form(plain), "source": source_digest(type(self))}
        inside = sources_inside(self)
        return {**plain, "plugins": inside} if inside else plain


class BitsPerByte(Outcome):
    """Of the held-out text after training."""

    kind: Literal["bits_per_byte"] = "bits_per_byte"
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "bits per byte"
    heading: ClassVar[str] = "loss on held-out text"


class Accuracy(Outcome):
    """Of a task's answers after training: those that are the likeliest token."""

    kind: Literal["accuracy"] = "accuracy"
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "share"
    better: ClassVar[Better] = "higher"
    heading: ClassVar[str] = "right answers"


class Gap(Outcome):
    """Loss on held-out text minus loss in training over the last tenth of the steps: overfitting is positive. Only in
    training the ends of documents are predicted, too, so that text of short documents has a gap of its own."""

    kind: Literal["gap"] = "gap"
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "nats per token"
    heading: ClassVar[str] = "loss held out minus loss in training"


class TokensTo(Outcome):
    """Training tokens until the held-out text has a given loss, read off a line between evaluations. A run that never
    has it has no value."""

    kind: Literal["tokens_to"] = "tokens_to"
    bits_per_byte: Positive
    """The loss that is waited for."""
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "tokens"
    heading: ClassVar[str] = "training tokens until {bits_per_byte:g} bits per byte"


class OnTheWay(Outcome):
    """Of the held-out text at the last evaluation within a share of the training: before the rate falls, say."""

    kind: Literal["on_the_way"] = "on_the_way"
    share: Annotated[Share, Field(gt=0)]
    """Of the training tokens."""
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "bits per byte"

    @property
    def title(self) -> str:
        """With as many digits as the share has."""
        return f"loss after {100 * self.share:g}% of the training"


class LargestGradient(Outcome):
    """The largest norm of the whole gradient, before clipping, after the first tenth of the updates."""

    kind: Literal["largest_gradient"] = "largest_gradient"
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "norm"
    heading: ClassVar[str] = "largest gradient"


class Spikes(Outcome):
    """Steps that `train.spikes` finds: loss or gradient far above those of the window before. A run that has no more
    steps than that window has none."""

    kind: Literal["spikes"] = "spikes"
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "count"
    heading: ClassVar[str] = "spikes of loss or gradient"


OF_THE_MODEL = ("log_z", "log_z_rms", "embedding_rms")
"""Measures of a probe that no layer has by itself."""

OF_EVERY_LAYER = tuple(name for name, measure in OF_LAYERS.items() if measure.in_every_layer)
"""Those that every layer has."""

if TYPE_CHECKING:
    ProbeName = str
else:
    ProbeName = Literal[*OF_LAYERS, *OF_THE_MODEL]
"""What a probe measures, of every layer or of the model (docs/probes.md)."""


class Probe(Outcome):
    """What a probe found inside the model; needs train.probe_every."""

    kind: Literal["probe"] = "probe"
    of: ProbeName
    """The number, by its name in docs/probes.md."""
    layers: Literal["mean", "largest", "smallest", "last_over_first"] = "mean"
    """What becomes of the numbers of all layers; last_over_first: that of the last one over that of the first."""
    at: Literal["start", "end"] = "end"
    """The first probe, before any update, or the last."""
    source: ClassVar[Source] = "log"
    unit: ClassVar[Unit] = "rate"
    better: ClassVar[Better] = "neither"

    @property
    def title(self) -> str:
        """In words."""
        how = {"last_over_first": ", of the last layer over that of the first", "mean": ", mean of the layers"}
        said = "" if self.of in OF_THE_MODEL else how.get(self.layers, f", {self.layers} of all layers")
        return f"{self.of.replace('_', ' ')}{said}, at the {self.at} of training"


class WindowPart(Outcome):
    """Bits per byte of the held-out tokens in one part of their window: late ones have more before them to use."""

    kind: Literal["window_part"] = "window_part"
    first: Share = 0.75
    """Where the part begins, as a share of the window."""
    last: Fraction = 1.0
    """Where it ends."""

    @model_validator(mode="after")
    def _is_not_empty(self) -> "WindowPart":
        if self.first >= self.last:
            raise ValueError(f"first {self.first}; allowed: below last, {self.last}")
        return self

    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit] = "bits per byte"
    heading: ClassVar[str] = "loss from {first:.0%} to {last:.0%} of the window"


class Beyond(Outcome):
    """Bits per byte of held-out tokens beyond the training length (train.eval_seq_len where that is given), in windows
    of `times` that length (Press 2022)."""

    kind: Literal["beyond"] = "beyond"
    times: Annotated[int, Field(ge=2, le=64)] = 2
    """Length of the windows, in training lengths; only what is beyond the first counts."""
    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit] = "bits per byte"
    heading: ClassVar[str] = "loss beyond the training length, up to {times} times"


class Repetition(Outcome):
    """Share of the runs of four tokens that have occurred before, in what greedy decoding writes after held-out
    prompts (Welleck 2020)."""

    kind: Literal["repetition"] = "repetition"
    tokens: Count = 128
    """Written after each prompt."""
    prompts: Count = 32
    """As long as half a window."""
    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit] = "share"
    heading: ClassVar[str] = "repeated runs of four in {tokens} greedy tokens"


class TokensPerByte(Outcome):
    """How finely the tokenizer cuts the held-out text."""

    kind: Literal["tokens_per_byte"] = "tokens_per_byte"
    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit] = "rate"
    better: ClassVar[Better] = "neither"
    heading: ClassVar[str] = "tokens per byte of text"


class Answers(Outcome):
    """Share of a task's answers that are right, of another task than the trained one: at a larger distance, say."""

    kind: Literal["answers"] = "answers"
    task: Task
    """What is asked."""
    seq_len: Count | None = None
    """Tokens per window. null: the smallest into which the task fits."""
    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit] = "share"
    better: ClassVar[Better] = "higher"
    heading: ClassVar[str] = "right answers of another task"


class TrainingSpeed(Outcome):
    """Of whole updates on this machine, with nothing else running."""

    kind: Literal["training_speed"] = "training_speed"
    source: ClassVar[Source] = "timing"
    unit: ClassVar[Unit] = "tokens/s"
    better: ClassVar[Better] = "higher"
    heading: ClassVar[str] = "training speed"


class DecodingSpeed(Outcome):
    """Of greedy steps on this machine, with nothing else running."""

    kind: Literal["decoding_speed"] = "decoding_speed"
    context: Count = 128
    """Tokens before the first step."""
    batch: Count = 1
    """Texts side by side."""
    source: ClassVar[Source] = "timing"
    unit: ClassVar[Unit] = "tokens/s"
    better: ClassVar[Better] = "higher"
    heading: ClassVar[str] = "decoding speed after {context:,} tokens, batch {batch}"


class NormShare(Outcome):
    """Share of the time of a training step, not compiled, that norms take, with nothing else running."""

    kind: Literal["norm_share"] = "norm_share"
    source: ClassVar[Source] = "timing"
    unit: ClassVar[Unit] = "share"
    heading: ClassVar[str] = "share of the time in norms"


class PeakMemory(Outcome):
    """The most that a training step takes on this machine: of the process, or of the GPU."""

    kind: Literal["peak_memory"] = "peak_memory"
    source: ClassVar[Source] = "timing"
    unit: ClassVar[Unit] = "bytes"
    heading: ClassVar[str] = "peak memory of training"


class StateBytes(Outcome):
    """KV cache and recurrent state of one text, at bfloat16: counted, not measured."""

    kind: Literal["state_bytes"] = "state_bytes"
    context: Count | None = None
    """Tokens of the text. null: the shortest max_seq_len of the arms."""
    source: ClassVar[Source] = "config"
    unit: ClassVar[Unit] = "bytes"
    heading: ClassVar[str] = "KV cache and state of a text of {context} tokens"


class Intensity(Outcome):
    """FLOPs of matrix products per byte that a decoding step reads and writes, at bfloat16: counted, not measured.
    Below what a device computes while it reads a byte (`archlab hardware`), memory is its limit (Williams 2009)."""

    kind: Literal["intensity"] = "intensity"
    context: Count = 128
    """Tokens before the step."""
    batch: Count = 1
    """Texts side by side."""
    source: ClassVar[Source] = "config"
    unit: ClassVar[Unit] = "rate"
    better: ClassVar[Better] = "neither"
    heading: ClassVar[str] = "FLOPs per byte of a decoding step after {context:,} tokens, batch {batch}"


class Sensitivity(Outcome):
    """Mean excess of the final loss over that of the best rate, over all rates that are swept; no run counts as worse
    than an untrained model (learning-rate sensitivity, Wortsman 2023)."""

    kind: Literal["sensitivity"] = "sensitivity"
    source: ClassVar[Source] = "sweep"
    unit: ClassVar[Unit] = "bits per byte"
    heading: ClassVar[str] = "learning-rate sensitivity"


class BestLoss(Outcome):
    """The lowest final loss over all rates that are swept."""

    kind: Literal["best_loss"] = "best_loss"
    source: ClassVar[Source] = "sweep"
    unit: ClassVar[Unit] = "bits per byte"
    heading: ClassVar[str] = "loss at the best rate"


class BestRate(Outcome):
    """The rate, of those that are swept, with the lowest final loss."""

    kind: Literal["best_rate"] = "best_rate"
    source: ClassVar[Source] = "sweep"
    unit: ClassVar[Unit] = "rate"
    better: ClassVar[Better] = "neither"
    heading: ClassVar[str] = "best rate"


def register_outcome(
    name: str, options: type[Options], function: Callable[..., Any], *, title: str, unit: Unit, better: Better
) -> None:
    """Register an outcome, for files that were written before classes registered themselves.

    `function(run, options)` gives a finite number, or None for a run that cannot have one.
    """
    outcome = as_kind(name, options, Outcome, Options, heading=title, unit=unit, better=better)
    implements(outcome)(lambda config, run: function(run, config))


def named(value: Any) -> Any:
    """A list of kinds is a mapping whose names are the kinds, and so is an outcome without a kind."""
    if isinstance(value, list) and all(isinstance(kind, str) for kind in value):
        value = dict.fromkeys(value)
    if not isinstance(value, dict):
        return value
    return {
        name: from_old_form({"kind": name, **(fields or {})}, Outcome) if isinstance(fields, dict | None) else fields
        for name, fields in value.items()
    }


_OfItsName = Annotated[
    dict[str, Any] | None,
    WithJsonSchema({"anyOf": [{"type": "null"}, {"type": "object", "not": {"required": ["kind"]}}]}),
]
"""Settings of the outcome whose kind is the name."""

_AsKinds = list[Annotated[str, KindName(Outcome)]]
Outcomes = Annotated[
    dict[Line, Outcome],
    BeforeValidator(named, json_schema_input_type=_AsKinds | dict[Line, Outcome | _OfItsName]),
]
"""Name -> outcome. The name is its kind where none is given."""
