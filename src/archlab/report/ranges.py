"""What an axis shows: one arm that is far from the others must not squash them."""

from collections.abc import Sequence

from archlab.study.record import StudySummary

_FAR = 3.0
"""A gap this many times the range of all other values sets apart what lies beyond it."""

_PART = 4
"""At most one in this many arms is set apart: a majority is never the exception."""


def without_outliers(values: Sequence[float]) -> list[float]:
    """The values, sorted, without the few at the upper or the lower end that are far from all others."""
    kept, most = sorted(values), len(values) // _PART
    return _cut(_cut(kept, most, upper=True), most, upper=False)


def _cut(values: list[float], most: int, upper: bool) -> list[float]:
    ordered = values if upper else [-value for value in reversed(values)]
    for keep in range(len(ordered) - most, len(ordered)):
        if keep >= 2 and ordered[keep] - ordered[keep - 1] > _FAR * (ordered[keep - 1] - ordered[0]) > 0:
            return values[:keep] if upper else values[-keep:]
    return values


def padded(low: float, high: float) -> tuple[float, float]:
    """A little room on both sides, also where all values are one."""
    room = 0.04 * (high - low) or max(0.01, 0.01 * abs(high))
    return low - room, high + room


def curve_range(summary: StudySummary) -> tuple[float, float] | None:
    """Losses from the best end to where most arms are after a tenth of the run, all of a task's; None without curves.

    The very start of training, and an arm that is far off, leave the picture at the top.
    """
    ends, early = [], []
    for arm in summary.arms:
        for curve in arm.curves:
            if not curve.values or curve.seed in arm.diverged:
                continue
            ends.append(curve.values[-1])
            early += [b for t, b in zip(curve.tokens, curve.values, strict=True) if t >= arm.tokens / 10][:1]
    every = [value for arm in summary.arms for curve in arm.curves for value in curve.values]
    if not every:
        return None
    if not ends or summary.evaluated == "share":
        return padded(min(every), max(every))
    low, near = min(ends), without_outliers(ends)
    high = max([near[-1] + 0.5 * (near[-1] - low), *without_outliers(early)])
    return padded(low, min(high, max(every)))
