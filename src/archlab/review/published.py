"""Where a value stands among those of the published models."""

from functools import cached_property
from statistics import median, quantiles

from archlab.atlas.entries import Entry, entries
from archlab.config.base import Base
from archlab.review.case import Case, Reading
from archlab.review.rule import ShapeRule, Usual, shown


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


class Published:
    """The atlas as cases, but for the model that is judged."""

    def __init__(self, judged: Case) -> None:
        self._judged = judged

    @cached_property
    def _models(self) -> list[tuple[Entry, Case]]:
        model = self._judged.config.model
        return [(entry, Case(entry.config)) for entry in entries() if entry.config.model != model]

    def distribution(self, rule: ShapeRule, reading: Reading) -> Distribution | None:
        """Of what the rule measures, over models of the same kind; None where fewer than two are known."""
        of_models = ([found.value for found in values if _alike(found, reading)] for _, values in self._readings(rule))
        values = [values[0] for values in of_models if values]
        if len(values) < 2:
            return None
        tenths = quantiles(values, n=10, method="inclusive")
        return Distribution(n=len(values), kind=reading.kind, median=median(values), low=tenths[0], high=tenths[-1])

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

    def _readings(self, rule: ShapeRule) -> list[tuple[Entry, list[Reading]]]:
        measured = (
            (entry, rule.published(entry) if rule.published else list(rule.measure(case)))
            for entry, case in self._models
        )
        return [(entry, values) for entry, values in measured if values]


def _alike(one: Reading, other: Reading) -> bool:
    return (one.field, one.kind) == (other.field, other.kind)
