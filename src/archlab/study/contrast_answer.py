"""What is said of crossed factors, and of differences over sizes."""

from collections.abc import Sequence
from typing import NamedTuple

from archlab.pricing.units import count
from archlab.study.arm import said, short_names
from archlab.study.formatting import difference, interval, margin_of, p_equals, paired, plural, span, with_unit
from archlab.study.record import Comparison, FactorContrast, Heading, SizeTrend, Verdict

_NAMED = 3
"""How many interactions are told one by one, the largest first; the report's table has the others."""


class _Interaction(NamedTuple):
    """Of `changed`, between `here` and `there`."""

    changed: str
    """`warmup=0.1`"""
    here: str
    """`norm.placement=post`"""
    there: str
    """`norm.placement=pre`, the first level."""
    effects: tuple[float, float]
    """Of `changed`, there and here."""
    found: Comparison
    outcome: Heading

    @property
    def size(self) -> float:
        return abs(self.found.difference or 0)

    def amount(self, value: float) -> str:
        return with_unit(difference(value, self.outcome.unit), self.outcome.unit)

    def interval(self) -> str:
        """Of the size."""
        sign = -1 if (self.found.difference or 0) < 0 else 1
        if self.found.low is None or self.found.high is None:
            return "(no scatter)"
        low, high = sorted((sign * self.found.low, sign * self.found.high))
        return interval(low, high, self.outcome.unit)


def contrast_answer(contrasts: Sequence[FactorContrast], outcome: Heading) -> list[str]:
    """Sentences of the interactions; none where no factors were crossed."""
    every = [_interaction(contrast, outcome) for contrast in contrasts if len(contrast.factors) > 1]
    real = sorted(_with(every, "better", "worse", "differs"), key=lambda one: -one.size)
    same, unclear = _with(every, "equivalent"), _with(every, "not distinguishable")
    unknown = _with(every, "diverged", "too few runs")
    told = [_real(one) for one in real[:_NAMED]]
    if further := len(real[_NAMED:]):
        told.append(f"{plural(further, 'smaller interaction')} {'was' if further == 1 else 'were'} found too.")
    if same:
        margin = margin_of(same[0].found.margin or 0.0, outcome.unit)
        told.append(_several(same, "equivalent to", "equivalent to none", f"within {margin}"))
    if unclear:
        told.append(
            _several(unclear, "not distinguishable from", "not distinguishable from none", _detectable(unclear))
        )
    if unknown:
        told.append(_several(unknown, "not to be compared with", "unknown", "runs diverged or are missing"))
    return told


def _with(every: Sequence[_Interaction], *verdicts: Verdict) -> list[_Interaction]:
    return [one for one in every if one.found.verdict in verdicts]


def _interaction(contrast: FactorContrast, outcome: Heading) -> _Interaction:
    names = short_names(contrast.factors)
    (given, (first, other)), (factor, (_, level)) = contrast.factors.items()
    here, there = said(names[given], other), said(names[given], first)
    assert contrast.comparison
    return _Interaction(
        said(names[factor], level), here, there, contrast.effects or (0.0, 0.0), contrast.comparison, outcome
    )


def _real(one: _Interaction) -> str:
    """`warmup=0.1 helps by 0.120 bits per byte more where norm.placement=post than where norm.placement=pre [...]`."""
    before, after = one.effects
    proof = f"{one.interval()} ({paired([one.found], one.outcome.source)}, Holm {p_equals(one.found.p_holm or 0)})"
    if before * after < 0:
        here = f"{_does(after, one.found)} by {one.amount(abs(after))} where {one.here}"
        there = f"{_does(before, one.found)} by {one.amount(abs(before))} where {one.there}"
        return f"{one.changed} {here} and {there}, a difference of {one.amount(one.size)} {proof}."
    more = "more" if abs(after) > abs(before) else "less"
    does = _does(before + after, one.found)
    return f"{one.changed} {does} by {one.amount(one.size)} {more} where {one.here} than where {one.there} {proof}."


def _does(effect: float, found: Comparison) -> str:
    """What an effect is, by whether a difference of this sign was called better."""
    if found.verdict == "differs":
        return "lowers the outcome" if effect < 0 else "raises the outcome"
    as_found = (effect < 0) == ((found.difference or 0) < 0)
    return "helps" if as_found == (found.verdict == "better") else "hurts"


def _several(alike: Sequence[_Interaction], one_is: str, all_are: str, proof: str) -> str:
    if len(alike) == 1:
        one = alike[0]
        return f"The effect of {one.changed} where {one.here} is {one_is} that where {one.there} ({proof})."
    return f"{plural(len(alike), 'interaction')} are {all_are} ({proof})."


def _detectable(unclear: Sequence[_Interaction]) -> str:
    effects = [effect for one in unclear if (effect := one.found.smallest_effect) is not None]
    if not effects:
        return "no scatter to test by"
    unit = unclear[0].outcome.unit
    ends = span(*(difference(end(effects), unit) for end in (min, max)))
    return f"smallest detectable difference {with_unit(ends, unit)}"


def trend_answer(trends: Sequence[SizeTrend], outcome: Heading) -> list[str]:
    """A sentence for each arm; none where a study has one size."""
    return [_told(trend, outcome) for trend in trends]


def _told(trend: SizeTrend, outcome: Heading) -> str:
    """`The difference of layer to rms grows by 0.050 bits per byte from 1M to 10M parameters [0.02, 0.08] (...).`"""
    unit = outcome.unit
    what = f"{trend.label} and {trend.reference}"
    over = f"from {count(trend.sizes[0])} to {count(trend.sizes[-1])} parameters"
    change = trend.comparison
    if change is None or change.difference is None:
        return (
            f"Whether the difference between {what} carries over {over} cannot be told: runs diverged or are missing."
        )
    pairs = paired([change], outcome.source)
    size = f"{with_unit(difference(change.difference, unit), unit)} {interval(change.low, change.high, unit)}".strip()
    if change.verdict == "equivalent":
        margin = margin_of(change.margin or 0.0, unit)
        return (
            f"The difference between {what} carries over {over} within {margin} "
            f"(change {size} over {pairs}, Holm {p_equals(change.p_equivalent or 0)})."
        )
    if trend.trend == "cannot be told":
        effect = change.smallest_effect
        least = "" if effect is None else f"; smallest detectable change {with_unit(difference(effect, unit), unit)}"
        return (
            f"Whether the difference between {what} grows or shrinks {over} cannot be told "
            f"(change {size} over {pairs}{least})."
        )
    proof = f"(change {size} over {pairs}, Holm {p_equals(change.p_holm or 0)})"
    return f"The difference between {what} {trend.trend} {over} {proof}."
