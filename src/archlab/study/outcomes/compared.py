"""An outcome's values as they stand in a study's summary."""

import statistics
from collections.abc import Collection, Mapping

from archlab.study.outcome_schema import Outcome
from archlab.study.record import Comparison, Heading, Measured
from archlab.study.stats import Contrast, Folds, Values, compare, exactly, independent, weighted


def heading(name: str, outcome: Outcome) -> Heading:
    """What it is."""
    return Heading(name=name, title=outcome.title, unit=outcome.unit, better=outcome.better, source=outcome.source)


def measured(
    outcome: Outcome | Heading,
    values: Mapping[str, Values],
    references: Mapping[str, str],
    margin: float | None = None,
    first: Collection[int] | None = None,
    contrasts: Mapping[str, Contrast] | None = None,
    folds: Folds = None,
) -> dict[str, Measured]:
    """Arm -> its values, compared with those of its reference; and contrast -> its values, compared with zero."""
    if outcome.source == "config":
        comparisons = exactly(values, references, outcome.better, contrasts)
    else:
        comparisons = compare(values, references, outcome.better, margin, first, contrasts, folds)
    every = {**values, **{name: weighted(values, contrast.weights) for name, contrast in (contrasts or {}).items()}}
    return {name: _measured(found, comparisons.get(name), folds) for name, found in every.items()}


def _measured(values: Values, comparison: Comparison | None, folds: Folds) -> Measured:
    known = independent(values, folds)
    return Measured(
        values=dict(values),
        mean=statistics.fmean(known) if known else None,
        deviation=statistics.stdev(known) if len(known) > 1 else None,
        comparison=comparison,
    )
