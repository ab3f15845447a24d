"""What is said of differences over sizes."""

from collections.abc import Sequence

from archlab.pricing.units import count
from archlab.study.formatting import difference, interval, margin_of, p_equals, paired, with_unit
from archlab.study.record import Heading, SizeTrend


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
