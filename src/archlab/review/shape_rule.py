"""A rule of shape: data, with its reason, its source and a change that breaks it; and the config that it judges."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

from archlab.atlas.models import PublishedModel
from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.pricing.params import Parameters, parameters
from archlab.pricing.partition import Cut, cut


@dataclass(frozen=True)
class Reading:
    """One number of a config."""

    field: str
    """What it is a number of: a field, or a ratio of fields."""
    value: float
    kind: str = "models"
    """Of what, in the plural: numbers of the same field and kind can be compared."""
    layers: tuple[int, ...] = ()
    """Where; empty where all layers that have such a number have the same."""


@dataclass(frozen=True)
class Case:
    """A config to be judged."""

    config: Config
    tensor: int | None = None
    """Devices that each matrix is to be cut over. None: not said."""
    languages: int | None = None
    """How many the text is in. None: not said."""
    pipeline: int | None = None
    """Stages that the layers are to be cut into. None: not said."""

    @cached_property
    def layers(self) -> dict[str, tuple[LayerConfig, tuple[int, ...]]]:
        """Layer kind -> the layer, and where it stands."""
        found: dict[str, tuple[LayerConfig, list[int]]] = {}
        for index, layer in enumerate(layer_configs(self.config.model)):
            found.setdefault(layer.kind, (layer, []))[1].append(index)
        return {kind: (layer, tuple(places)) for kind, (layer, places) in found.items()}

    @cached_property
    def counted(self) -> Parameters:
        """Parameters of the whole model."""
        return parameters(self.config.model)

    @cached_property
    def cut(self) -> Cut | None:
        """The layers of each stage; None without a pipeline. Raise UserError if there are fewer layers than stages."""
        tokens = resolve_train(self.config).seq_len
        return cut(self.config.model, tokens, self.pipeline) if self.pipeline else None


Measure = Callable[[Case], Iterable[Reading]]


def of_layers(read: Callable[[LayerConfig], Iterable[Reading]]) -> Measure:
    """What is measured of each layer; it says where only if layers differ in it."""

    def measure(case: Case) -> Iterator[Reading]:
        places: dict[Reading, list[int]] = {}
        for layer, where in case.layers.values():
            for reading in read(layer):
                places.setdefault(reading, []).extend(where)
        fields = [reading.field for reading in places]
        for found, where in places.items():
            differ = fields.count(found.field) > 1
            yield Reading(found.field, found.value, found.kind, tuple(sorted(where)) if differ else ())

    return measure


Level = Literal["warning", "note"]
"""warning: works badly on hardware. note: outside what is usually published, which may well be right."""


class Usual(Protocol):
    """Which values a rule lets pass."""

    def side(self, value: float) -> int:
        """0: it passes; -1: it is too small; 1: it is too large, or wrong in another way."""
        ...

    def __str__(self) -> str:
        """In words, behind a value that does not pass."""
        ...


@dataclass(frozen=True)
class Between:
    """Values from `low` to `high`, both included; None: without end on that side."""

    low: float | None
    high: float | None

    def side(self, value: float) -> int:
        """As `Usual`."""
        if self.low is not None and value < self.low:
            return -1
        return int(self.high is not None and value > self.high)

    def __str__(self) -> str:
        ends = [shown(end) for end in dict.fromkeys((self.low, self.high)) if end is not None]
        word = "from " if self.high is None else "up to " if self.low is None else ""
        return f"(usual: {word}{' to '.join(ends)})"


@dataclass(frozen=True)
class MoreThanZero:
    """Values above 0."""

    def side(self, value: float) -> int:
        """As `Usual`."""
        return 0 if value > 0 else -1

    def __str__(self) -> str:
        return "(usual: more than 0)"


@dataclass(frozen=True)
class MultipleOf:
    """Multiples of a number."""

    number: int

    def side(self, value: float) -> int:
        """As `Usual`."""
        return int(value % self.number != 0)

    def __str__(self) -> str:
        return f"is no multiple of {self.number}"


@dataclass(frozen=True)
class Shares:
    """What can be cut into so many equal parts, or copied as often as makes so many."""

    number: int

    def side(self, value: float) -> int:
        """As `Usual`."""
        return int(value % self.number != 0 and self.number % value != 0)

    def __str__(self) -> str:
        return f"is neither a multiple nor a divisor of {self.number}"


@dataclass(frozen=True)
class PublishedResult:
    """What someone found at one value of what the rule measures."""

    at: float
    found: str
    source: str
    """Its key in evidence/sources.yaml."""
    where: str = ""
    """In the source, and of which models."""


@dataclass(frozen=True)
class ShapeRule:
    """One rule; `usual` is None for a case that it does not concern."""

    name: str
    level: Level
    measure: Measure
    usual: Callable[[Case], Usual | None]
    why: str
    sources: tuple[str, ...]
    """Keys in evidence/sources.yaml; none where it rests on what the atlas has alone."""
    broken_by: tuple[str, ...]
    """Overrides that make llama-3-8b break it."""
    kept_by: tuple[str, ...]
    """Overrides that bring llama-3-8b near to that."""
    measured: tuple[PublishedResult, ...] = ()
    """What it costs, where someone has measured it."""
    claims: tuple[int, ...] = ()
    """Numbers of the ledger's claims that are about it."""
    published: Callable[[PublishedModel], list[Reading]] | None = None
    """What to compare with in the atlas. None: what `measure` finds there."""

    def broken(self, case: Case) -> list[tuple[Reading, Usual]]:
        """Every reading that is not usual."""
        usual = self.usual(case)
        return [] if usual is None else [(found, usual) for found in self.measure(case) if usual.side(found.value)]

    def nearest_measured(self, value: float, usual: Usual) -> PublishedResult | None:
        """What was measured nearest to that value, but not at one that breaks the rule in the other direction."""
        points = [point for point in self.measured if usual.side(point.at) in (0, usual.side(value))]
        return min(points, key=lambda point: abs(point.at - value) / (max(point.at, value) or 1), default=None)


def always(usual: Usual) -> Callable[[Case], Usual]:
    """For every case."""
    return lambda case: usual


LARGE = 512
"""Width of the stream from which on multiples, and vocabularies of published sizes, matter. A smaller model is an
experiment: its products are too small to fill a GPU in any shape, and a large vocabulary would be most of it."""


def is_large(case: Case) -> bool:
    """Whether the model is more than an experiment."""
    return case.config.model.d_model >= LARGE


def of_large(usual: Usual) -> Callable[[Case], Usual | None]:
    """For models that are more than experiments."""
    return lambda case: usual if is_large(case) else None


def shown(value: float) -> str:
    """A whole number in full, another with three digits."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"
