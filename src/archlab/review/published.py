"""Comparison of a value with the values of published models.

An encoder is compared only with encoders, a decoder only with decoders, and an encoder-decoder only with
encoder-decoders. They have different tasks and ages: an encoder needs no KV cache, and most published encoders and
encoder-decoders are from before 2021. Together, they would give decoders of the size of BERT a range that no decoder
has.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import median, quantiles

from archlab.atlas.models import PublishedModel, entries
from archlab.config.core.base import Base
from archlab.pricing.units import count
from archlab.review.shape_rule import Between, Case, Measure, Reading, ShapeRule, Usual, shown


class Distribution(Base):
    """Distribution of a value over the published models that have it."""

    n: int
    """Number of models in the distribution."""
    kind: str
    """Plural noun for the models, for example `models with latent attention` or `encoders`."""
    median: float
    low: float
    """10th percentile of the value."""
    high: float
    """90th percentile of the value."""

    def __str__(self) -> str:
        return f"{self.n} {self.kind}, median {shown(self.median)}, 10-90% {shown(self.low)} to {shown(self.high)}"


@cache
def published() -> tuple[tuple[PublishedModel, Case], ...]:
    return tuple((entry, Case(entry.config)) for entry in entries())


NEAR = 2
"""Models are of about the same size if their numbers of active parameters differ by at most this factor."""
_FEWEST = 5
"""Minimum number of published models for a usual range."""


def comparable(case: Case) -> list[tuple[PublishedModel, Case]]:
    """Return the published models of the same kind as the case: encoders, decoders or encoder-decoders."""
    return [pair for pair in published() if pair[1].stacks == case.stacks]


@lru_cache(maxsize=64)
def near(case: Case) -> tuple[tuple[PublishedModel, Case], ...]:
    """Return comparable published models of about the same size that archlab can build.

    Models that archlab cannot build are left out, because the atlas contains only some of their settings.
    """
    size = case.counted.active
    buildable = ((entry, other) for entry, other in comparable(case) if entry.about.buildable)
    return tuple(pair for pair in buildable if size / NEAR <= pair[1].counted.active <= size * NEAR)


def near_in_words(case: Case) -> str:
    """Return the size range as text, for example `from 500M to 2B parameters`."""
    low, high = (count(size) for size in (case.counted.active / NEAR, case.counted.active * NEAR))
    return f"from {low} to {high} active parameters" if case.counted.idle else f"from {low} to {high} parameters"


@dataclass(frozen=True)
class RangeNear:
    """Usual range of a quantity, which is its range among published models of about the same size."""

    measure: Measure
    from_zero: bool = False
    """Whether the range begins at 0 instead of the smallest value."""

    def __call__(self, case: Case) -> Between | None:
        """Return the range for this case, or None if there are too few models of about the same size."""
        models = [values for _, other in near(case) if (values := [reading.value for reading in self.measure(other)])]
        if len(models) < _FEWEST:
            return None
        return Between(None if self.from_zero else min(map(min, models)), max(map(max, models)))


class Published:
    """Published models that are comparable with the model under review, except this model itself."""

    def __init__(self, judged: Case) -> None:
        self._judged = judged

    def _models(self, rule: ShapeRule) -> list[tuple[PublishedModel, Case]]:
        models = near(self._judged) if isinstance(rule.usual, RangeNear) else comparable(self._judged)
        return [(entry, case) for entry, case in models if entry.config.model != self._judged.config.model]

    def distribution(self, rule: ShapeRule, reading: Reading) -> Distribution | None:
        """Return the distribution of the value over models of the same kind, or None if fewer than two have the
        value."""
        values = [*self.values(rule, reading).values()]
        if len(values) < 2:
            return None
        tenths = quantiles(values, n=10, method="inclusive")
        kind = reading.kind if self._judged.stacks == "decoder" else _of(f"{self._judged.stacks}s", reading.kind)
        if isinstance(rule.usual, RangeNear):
            kind = f"{kind} {near_in_words(self._judged)}"
        return Distribution(n=len(values), kind=kind, median=median(values), low=tenths[0], high=tenths[-1])

    def values(self, rule: ShapeRule, reading: Reading) -> dict[str, float]:
        """Return the value of each model of the same kind that has it, by the published name of the model."""
        per_model = {
            entry.about.name: next((r.value for r in readings if _alike(r, reading)), None)
            for entry, readings in self._readings(rule)
        }
        return {name: value for name, value in per_model.items() if value is not None}

    def others(self, rule: ShapeRule, reading: Reading, usual: Usual) -> list[str]:
        """Return models whose values also break the rule and are also too small, or also too large.

        Each model is listed with its value, the most extreme first.
        """
        side = usual.side(reading.value)
        names: list[tuple[float, str]] = []
        for entry, readings in self._readings(rule):
            same = [r.value for r in readings if r.field == reading.field and usual.side(r.value) == side]
            if same:
                farthest = max(same, key=lambda value: value * side)
                names.append((farthest * side, f"{entry.about.name} ({shown(farthest)})"))
        return [text for _, text in sorted(names, key=lambda pair: pair[0], reverse=True)]

    def _readings(self, rule: ShapeRule) -> list[tuple[PublishedModel, list[Reading]]]:
        measured = (
            (entry, rule.published(entry) if rule.published else list(rule.measure(case)))
            for entry, case in self._models(rule)
        )
        return [(entry, values) for entry, values in measured if values]


def _of(stacks: str, kind: str) -> str:
    """Return a plural noun for models other than decoders: `encoders with latent attention`, or `gated MLPs of
    encoders`."""
    return kind.replace("models", stacks) if "models" in kind else f"{kind} of {stacks}"


def _alike(first: Reading, second: Reading) -> bool:
    return (first.field, first.kind) == (second.field, second.kind)
