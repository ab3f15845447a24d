"""Where a value stands among those of the published models."""

from dataclasses import dataclass
from functools import cache
from statistics import median, quantiles

from archlab.atlas.models import PublishedModel, entries
from archlab.config.core.base import Base
from archlab.pricing.units import count
from archlab.review.shape_rule import Between, Case, Measure, Reading, ShapeRule, Usual, shown


class Distribution(Base):
    """Of one number over the published models that have it."""

    n: int
    """How many they are."""
    kind: str
    """Of what, in the plural."""
    median: float
    low: float
    """A tenth of them are below it."""
    high: float
    """A tenth of them are above it."""

    def __str__(self) -> str:
        return f"{self.n} {self.kind}, median {shown(self.median)}, 10-90% {shown(self.low)} to {shown(self.high)}"


@cache
def published() -> tuple[tuple[PublishedModel, Case], ...]:
    """Every model of the atlas."""
    return tuple((entry, Case(entry.config)) for entry in entries())


NEAR = 2
"""Models of about the same size have from half to twice as many active parameters."""
_FEWEST = 5
"""Fewer models do not say what is usual."""


def near(case: Case) -> list[tuple[PublishedModel, Case]]:
    """Published models of about the same size that archlab can build; the atlas has only a part of the others."""
    size = case.counted.active
    buildable = ((entry, other) for entry, other in published() if entry.about.buildable)
    return [pair for pair in buildable if size / NEAR <= pair[1].counted.active <= size * NEAR]


def near_in_words(case: Case) -> str:
    """`from 500M to 2B parameters`."""
    low, high = (count(size) for size in (case.counted.active / NEAR, case.counted.active * NEAR))
    return f"from {low} to {high} active parameters" if case.counted.idle else f"from {low} to {high} parameters"


@dataclass(frozen=True)
class RangeNear:
    """The usual range of a measure: that of published models of about the same size."""

    measure: Measure
    from_zero: bool = False
    """Whether the range begins at 0, not at the smallest value."""

    def __call__(self, case: Case) -> Between | None:
        """Return the range for this case; None if there are too few models of its size."""
        models = [values for _, other in near(case) if (values := [reading.value for reading in self.measure(other)])]
        if len(models) < _FEWEST:
            return None
        return Between(None if self.from_zero else min(map(min, models)), max(map(max, models)))


class Published:
    """The atlas as cases, but for the model that is judged."""

    def __init__(self, judged: Case) -> None:
        self._judged = judged

    def _models(self, rule: ShapeRule) -> list[tuple[PublishedModel, Case]]:
        models = near(self._judged) if isinstance(rule.usual, RangeNear) else published()
        return [(entry, case) for entry, case in models if entry.config.model != self._judged.config.model]

    def distribution(self, rule: ShapeRule, reading: Reading) -> Distribution | None:
        """Of what the rule measures, over models of the same kind; None where fewer than two are known."""
        of_models = ([found.value for found in values if _alike(found, reading)] for _, values in self._readings(rule))
        values = [values[0] for values in of_models if values]
        if len(values) < 2:
            return None
        tenths = quantiles(values, n=10, method="inclusive")
        kind = f"{reading.kind} {near_in_words(self._judged)}" if isinstance(rule.usual, RangeNear) else reading.kind
        return Distribution(n=len(values), kind=kind, median=median(values), low=tenths[0], high=tenths[-1])

    def others(self, rule: ShapeRule, reading: Reading, usual: Usual) -> list[str]:
        """Models that break the rule in the same direction, the farthest first, each with its value."""
        side = usual.side(reading.value)
        found: list[tuple[float, str]] = []
        for entry, values in self._readings(rule):
            same = [one.value for one in values if one.field == reading.field and usual.side(one.value) == side]
            if same:
                farthest = max(same, key=lambda value: value * side)
                found.append((farthest * side, f"{entry.about.name} ({shown(farthest)})"))
        return [text for _, text in sorted(found, key=lambda pair: pair[0], reverse=True)]

    def _readings(self, rule: ShapeRule) -> list[tuple[PublishedModel, list[Reading]]]:
        measured = (
            (entry, rule.published(entry) if rule.published else list(rule.measure(case)))
            for entry, case in self._models(rule)
        )
        return [(entry, values) for entry, values in measured if values]


def _alike(one: Reading, other: Reading) -> bool:
    return (one.field, one.kind) == (other.field, other.kind)
