"""Comparisons at several model sizes, beside published comparisons of larger models. They do not affect a verdict."""

from collections.abc import Iterator

from archlab.config.core.base import Base
from archlab.evidence.claims import OverSizes, claims, sources
from archlab.evidence.results import Results
from archlab.study.record import Comparison, Heading, Trend


class SizedGain(Base):
    """Gain from a choice at one model size, as a share of the value without the choice. A positive gain is better."""

    source: str
    """Name of the study, or short citation of the publication with the name of the quantity."""
    parameters: int
    gain: float | None = None
    """null if the runs do not give a difference."""
    low: float | None = None
    """Lower end of the confidence interval. null for a published number, which comes from one run."""
    high: float | None = None
    confidence: float | None = None
    """Confidence level of the interval. null if there is none."""
    seeds: int | None = None
    """Number of seeds with a value for both models. null for a published number, and if there are too few runs."""
    result: str
    """Verdict of the comparison in words, seen from the choice. Empty for a published number."""


class SizedResult(Base):
    """Gains from a choice over model sizes."""

    expected: OverSizes
    text: str
    """Name of the text on which the models were trained, such as `python-stdlib 3.11.7`."""
    measured: list[SizedGain]
    published: list[SizedGain]
    trend: Trend
    outcome: Heading
    """Outcome of which the gains are shares."""
    change: Comparison | None
    """Change of the arm's difference from its reference, from the smallest size to the largest. It has the sign of the
    outcome, not that of the gain."""


def sized_result(expected: OverSizes, results: Results) -> SizedResult:
    """Return the gains that a study measured, and those of published pairs about the same topic."""
    trend = next(trend for trend in results.trends() if trend.arms[0].startswith(f"{expected.arm} at "))
    return SizedResult(
        expected=expected,
        text=results.about.text,
        measured=list(_measured(expected, results, dict(zip(trend.arms, trend.sizes, strict=True)))),
        published=sorted(_published(expected.topic), key=lambda gain: gain.parameters),
        trend=trend.trend,
        outcome=results.heading(None),
        change=trend.comparison,
    )


def _measured(expected: OverSizes, results: Results, sizes: dict[str, int]) -> Iterator[SizedGain]:
    statistics = results.compared()
    is_lower_better = results.heading(None).better == "lower"
    for arm, parameters in sizes.items():
        comparison, mean = statistics[arm].comparison, statistics[arm].mean
        if comparison is None or comparison.difference is None or mean is None:
            yield SizedGain(source=results.about.study, parameters=parameters, result="too few runs")
            continue
        # The share refers to the model without the choice: the arm itself, or its reference.
        base = mean if expected.leaves_out else mean - comparison.difference
        per = (1 if expected.leaves_out == is_lower_better else -1) / base
        low, high = comparison.low, comparison.high
        ends = (None, None) if low is None or high is None else sorted((per * low, per * high))
        yield SizedGain(
            source=results.about.study,
            parameters=parameters,
            gain=per * comparison.difference,
            low=ends[0],
            high=ends[1],
            confidence=comparison.confidence,
            seeds=comparison.pairs,
            result=_seen_from_choice(comparison, expected.leaves_out),
        )


def _seen_from_choice(comparison: Comparison, leaves_out: bool) -> str:
    turned = {"better": "worse", "worse": "better"}
    return turned.get(comparison.verdict, comparison.verdict) if leaves_out else comparison.verdict


def _published(topic: str) -> Iterator[SizedGain]:
    """Yield the gains of all claims' published pairs about the topic whose number of parameters is known."""
    for effect in (effect for claim in claims().values() for effect in claim.published):
        for pair in effect.pairs:
            if topic in pair.topics and pair.parameters:
                gain = (pair.value - pair.reference) / pair.reference * (-1 if pair.better == "lower" else 1)
                yield SizedGain(
                    source=f"{sources()[effect.source].cited}, {pair.what}",
                    parameters=pair.parameters,
                    gain=gain,
                    result="",
                )
