"""What an axis shows: one arm that is far from the others must not squash them."""

from collections.abc import Sequence

from archlab.report.study.rows import Row

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


def padded(low: float, high: float, is_logarithmic: bool = False) -> tuple[float, float]:
    """A little room on both sides, also where all values are one."""
    if is_logarithmic:
        room = (high / low) ** 0.04 if high > low else 1.1
        return low / room, high * room
    room = 0.04 * (high - low) or max(0.01, 0.01 * abs(high))
    return low - room, high + room


def of_lines(rows: Sequence[Row]) -> tuple[float, float]:
    """All of the lines and their bands."""
    return min(row["low"] for row in rows), max(row["high"] for row in rows)


def of_ends(rows: Sequence[Row]) -> tuple[float, float]:
    """The lines and their bands, without the few that end far from all others."""
    last = {row["arm"]: row["mean"] for row in rows}
    near = without_outliers([*last.values()])
    return of_lines([row for row in rows if last[row["arm"]] in near])
