"""Shape rules as data (reason, sources and a change that breaks the rule), and the config under review."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

from archlab.atlas.models import PublishedModel
from archlab.config.components.component import NoMixer, NoMLP
from archlab.config.layers import LayerConfig, distinct_layers, encoder_of, layer_configs, sees_as
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.pricing.params import Parameters, parameters
from archlab.pricing.partition import PipelineStages, pipeline_stages


@dataclass(frozen=True)
class Reading:
    """Measured value of a config."""

    field: str
    """Name of the field, or of a ratio of fields."""
    value: float
    kind: str = "models"
    """Plural noun for the models, for example `models with latent attention`. Values of the same field and kind are
    comparable."""
    layers: tuple[int, ...] = ()
    """Indices of the layers with this value. Empty if all layers that have the field have the same value."""
    place: str = ""
    """Part of the model with this value if it is not the decoder: `encoder` or `cross-attention`."""


@dataclass(frozen=True, eq=False)
class Case:
    """Config under review. Two cases are equal only if they are the same object."""

    config: Config
    tensor: int | None = None
    """Number of devices that share each matrix. None if unknown."""
    languages: int | None = None
    """Number of languages in the text. None if unknown."""
    pipeline: int | None = None
    """Number of pipeline stages. None if unknown."""

    @cached_property
    def layers(self) -> dict[str, tuple[LayerConfig, tuple[int, ...]]]:
        """Layer config, and indices of the layers, by layer kind."""
        layers: dict[str, tuple[LayerConfig, list[int]]] = {}
        for index, layer in enumerate(layer_configs(self.config.model)):
            layers.setdefault(layer.kind, (layer, []))[1].append(index)
        return {kind: (layer, tuple(indices)) for kind, (layer, indices) in layers.items()}

    @cached_property
    def elsewhere(self) -> dict[str, list[LayerConfig]]:
        """Layers of the encoder, and the cross-attention of each kind of layer as a layer with only this attention.
        Empty without an encoder."""
        encoder = encoder_of(self.config.model)
        if encoder is None:
            return {}
        only = {"mixer": NoMixer(), "mlp": NoMLP()}
        crosses = [layer.model_copy(update={"attention": layer.cross, **only}) for layer, _ in self.layers.values()]
        return {ENCODER: [*distinct_layers(encoder)], CROSS: crosses}

    @cached_property
    def counted(self) -> Parameters:
        return parameters(self.config.model)

    @cached_property
    def stacks(self) -> Literal["decoder", "encoder", "encoder-decoder"]:
        """Kind of the model. In an encoder, some layer sees later tokens, so that it cannot write a text token by
        token."""
        if self.config.model.encoder:
            return "encoder-decoder"
        return "encoder" if sees_as(self.config.model, "two_sided") else "decoder"

    @cached_property
    def pipeline_stages(self) -> PipelineStages | None:
        """Layers of each pipeline stage, or None without a pipeline.

        Raise UserError if there are fewer layers than stages, or if the model has an encoder.
        """
        tokens = resolve_train(self.config).seq_len
        return pipeline_stages(self.config.model, tokens, self.pipeline) if self.pipeline else None


Measure = Callable[[Case], Iterable[Reading]]

ENCODER, CROSS = "encoder", "cross-attention"
"""Places of readings that do not come from layers of the decoder."""


def in_each_layer(
    read: Callable[[LayerConfig], Iterable[Reading]], places: Sequence[str] = (ENCODER, CROSS)
) -> Measure:
    """Turn a measure of one layer into a measure of all layers.

    A reading has layer indices only if other layers have a different value. Values in other `places` than the decoder
    have readings of their own, unless the decoder has the same value.
    """

    def measure(case: Case) -> Iterator[Reading]:
        indices_of: dict[Reading, list[int]] = {}
        for layer, indices in case.layers.values():
            for reading in read(layer):
                indices_of.setdefault(reading, []).extend(indices)
        fields = [reading.field for reading in indices_of]
        for reading, indices in indices_of.items():
            differ = fields.count(reading.field) > 1
            yield Reading(reading.field, reading.value, reading.kind, tuple(sorted(indices)) if differ else ())
        known = set(indices_of)
        for place in places:
            readings = {reading: None for layer in case.elsewhere.get(place, ()) for reading in read(layer)}
            yield from (replace(reading, place=place) for reading in readings if reading not in known)
            known.update(readings)

    return measure


Level = Literal["warning", "note"]
"""Level of a rule.

warning: the shape runs badly on hardware. note: the value is outside the range of published models, but may be right.
"""


class Usual(Protocol):
    """Values that a rule accepts."""

    def side(self, value: float) -> int:
        """Return 0 if the value is accepted, -1 if it is too small, and 1 if it is too large or wrong in another
        way."""
        ...

    @property
    def accepted(self) -> str:
        """Accepted values in words, for example `2 to 6` or `a multiple of 64`."""
        ...

    def __str__(self) -> str:
        """Return the words that follow a rejected value in a message."""
        ...


@dataclass(frozen=True)
class Between:
    """Values from `low` to `high`, inclusive. None means no limit on that side."""

    low: float | None
    high: float | None

    def side(self, value: float) -> int:
        if self.low is not None and value < self.low:
            return -1
        return int(self.high is not None and value > self.high)

    @property
    def accepted(self) -> str:
        ends = [shown(end) for end in dict.fromkeys((self.low, self.high)) if end is not None]
        word = "from " if self.high is None else "up to " if self.low is None else ""
        return f"{word}{' to '.join(ends)}"

    def __str__(self) -> str:
        return f"(usual: {self.accepted})"


@dataclass(frozen=True)
class MoreThanZero:
    """Values above 0."""

    def side(self, value: float) -> int:
        return 0 if value > 0 else -1

    @property
    def accepted(self) -> str:
        return "more than 0"

    def __str__(self) -> str:
        return f"(usual: {self.accepted})"


@dataclass(frozen=True)
class MultipleOf:
    """Multiples of a number."""

    number: int

    def side(self, value: float) -> int:
        return int(value % self.number != 0)

    @property
    def accepted(self) -> str:
        return f"a multiple of {self.number}"

    def __str__(self) -> str:
        return f"is not {self.accepted}"


@dataclass(frozen=True)
class Shares:
    """Multiples and divisors of a number. They can be divided or copied evenly among `number` devices."""

    number: int

    def side(self, value: float) -> int:
        return int(value % self.number != 0 and self.number % value != 0)

    @property
    def accepted(self) -> str:
        return f"a multiple or a divisor of {self.number}"

    def __str__(self) -> str:
        return f"is neither a multiple nor a divisor of {self.number}"


@dataclass(frozen=True)
class PublishedResult:
    """Published result at one value of the quantity that a rule checks."""

    at: float
    found: str
    source: str
    """Key of the source in evidence/sources.yaml."""
    where: str = ""
    """Place in the source, and the models that were measured."""


@dataclass(frozen=True)
class ShapeRule:
    """Shape rule. `usual` returns None if the rule does not apply to the case."""

    name: str
    level: Level
    measure: Measure
    usual: Callable[[Case], Usual | None]
    why: str
    sources: tuple[str, ...]
    """Keys of sources in evidence/sources.yaml. Empty if the rule is based only on the models of the atlas."""
    broken_by: tuple[str, ...]
    """Overrides that make llama-3-8b break the rule."""
    kept_by: tuple[str, ...]
    """Overrides with which llama-3-8b just meets the rule."""
    measured: tuple[PublishedResult, ...] = ()
    """Published measurements of the cost of breaking the rule."""
    claims: tuple[int, ...] = ()
    """Numbers of the claims in the ledger that concern the rule."""
    published: Callable[[PublishedModel], list[Reading]] | None = None
    """Function that reads the values of a published model. None means `measure`."""

    def broken(self, case: Case) -> list[tuple[Reading, Usual]]:
        """Return each reading that the rule rejects, together with the accepted values."""
        usual = self.usual(case)
        return (
            [] if usual is None else [(reading, usual) for reading in self.measure(case) if usual.side(reading.value)]
        )

    def nearest_measured(self, value: float, usual: Usual) -> PublishedResult | None:
        """Return the published measurement closest to a value.

        If the value is too large, measurements at values that are too small do not count, and vice versa.
        """
        points = [point for point in self.measured if usual.side(point.at) in (0, usual.side(value))]
        return min(points, key=lambda point: abs(point.at - value) / (max(point.at, value) or 1), default=None)


def always(usual: Usual) -> Callable[[Case], Usual]:
    return lambda case: usual


LARGE = 512
"""Minimum width of the residual stream for rules about multiples and vocabulary sizes.

A narrower model counts as an experiment. Its matrix products are too small to fill a GPU in any shape, and a large
vocabulary would be most of the model.
"""


def is_large(case: Case) -> bool:
    """Return whether the model is at least LARGE wide. Narrower models count as experiments."""
    return case.config.model.d_model >= LARGE


def for_large_models(usual: Usual) -> Callable[[Case], Usual | None]:
    """Return a function that returns `usual` for large models and None for smaller ones."""
    return lambda case: usual if is_large(case) else None


def shown(value: float) -> str:
    """Format an integer in full, and any other number with three significant digits."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"
