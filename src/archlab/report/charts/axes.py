"""Axes with ticks at round numbers. There are few enough ticks that every tick has a label."""

import math
from collections.abc import Callable, Sequence

import altair as alt

from archlab.study.formatting import with_unit
from archlab.study.outcomes.schema import Unit
from archlab.study.record import Heading

LARGE = "replace(replace(format(datum.value, '.3~s'), 'k', 'K'), 'G', 'B')"
"""Vega expression that formats numbers like archlab's tables: `12.5K` instead of d3's `12.5k`."""

LENGTH = (
    "datum.value % 1000 == 0 ? format(datum.value, ',') : datum.value % 1048576 == 0 ? datum.value / 1048576 + 'Mi' : "
    "datum.value % 1024 == 0 ? datum.value / 1024 + 'Ki' : format(datum.value, ',')"
)
"""Vega expression that formats token counts as the function `pricing.units.length` does."""

_KIB = 1024

_FEWEST_TICKS = 2


def plain(low: float, high: float, most: int = 5) -> list[float]:
    """Return at most `most` evenly spaced round ticks from `low` to `high`. Their spacing is 1, 2 or 5 times a power of
    ten."""
    span = high - low
    if span <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(m * power for m in (1, 2, 5, 10, 20) if _n_multiples(low, high, m * power) <= most)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{(first + i) * step:.12g}") for i in range(_n_multiples(low, high, step))]


def logarithmic(low: float, high: float, most: int = 7) -> list[float]:
    """Return round multiples of powers of ten between the two ends. If there would be too many ticks, some powers are
    left out. If the ends are too close for two such ticks, return those of a linear axis."""
    powers = powers_of_ten(low, high)
    for multiples in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1,)):
        ticks = [float(f"{m * power:.3g}") for power in powers for m in multiples if low <= m * power <= high]
        if len(ticks) < _FEWEST_TICKS:
            return plain(low, high)
        if len(ticks) <= most:
            return ticks
    return powers[:: math.ceil(len(powers) / most)]


def powers_of_ten(low: float, high: float) -> list[float]:
    """Return the powers of ten from the last one up to `low` to the first one from `high` on."""
    return [10.0**n for n in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def covering(values: Sequence[float]) -> list[float]:
    """Return the ticks of a logarithmic axis that covers the values and little else. Values that differ by less than
    a factor of 2 have evenly spaced ticks. Up to two decades have ticks at 1, 2 and 5 times a power of ten. Longer axes
    have ticks at powers of ten and at both ends."""
    low, high = min(values), max(values)
    if high < 2 * low:
        return _evenly_covering(low, high)
    powers = powers_of_ten(low, high)
    ticks = [n * power for power in powers for n in (1, 2, 5)]
    first = max(tick for tick in ticks if tick <= low)
    last = min(tick for tick in ticks if tick >= high and tick > first)
    inner = ticks if last <= 100 * first else powers
    return [first, *(tick for tick in inner if first < tick < last), last]


def spaced(ticks: Sequence[float], place: Callable[[float], float], gap: float) -> list[float]:
    """Return the first tick, the last tick, and ticks between them such that neighbors are at least `gap` apart.

    `place` maps a tick to its position. Positions and `gap` are fractions of the axis.
    """
    first, *inner, last = ticks
    kept = [last]
    for tick in reversed(inner):
        if place(kept[-1]) - place(tick) >= gap and place(tick) - place(first) >= gap:
            kept.append(tick)
    return [first, *reversed(kept)]


def both_sides(low: float, high: float, near: float) -> list[float]:
    """Return zero and a few ticks on either side of it. They are for an axis that is linear from about `-near` to
    `near`, and logarithmic outside this range."""

    def side(end: float) -> list[float]:
        if end < 2 * near:
            return [tick for tick in plain(0, end, 2) if 2 * tick > near]
        powers = powers_of_ten(near, end)
        fine, coarse = (
            [tick for power in powers for m in multiples if near <= (tick := float(f"{m * power:.3g}")) <= end]
            for multiples in ((1, 2, 5), (1,))
        )
        return fine if len(fine) <= 4 else coarse

    return [*(-tick for tick in reversed(side(-low))), 0.0, *side(high)]


def axis(
    title: str,
    unit: Unit,
    low: float,
    high: float,
    *,
    most: int = 5,
    grid: bool = True,
    at: Sequence[float] | None = None,
    of_differences: bool = False,
) -> alt.Axis:
    """Return an axis from `low` to `high` whose labels are formatted like archlab's tables.

    `at` sets the ticks; by default, they are round numbers. It is ignored if the unit is bytes. If `of_differences` is
    True, differences between fractions are shown in percentage points.
    """
    if unit == "bytes":
        size, name = _byte_unit(max(abs(low), abs(high)))
        ticks = [size * tick for tick in plain(low / size, high / size, most)]
        label = f"format(datum.value / {size}, '~g') + ' {name}'"
    else:
        ticks, label = at or plain(low, high, most), "format(datum.value, '~g')"
        if unit == "share":
            label = "format(100 * datum.value, '~g') + ' pp'" if of_differences else "format(datum.value, '~%')"
        elif unit in ("tokens", "tokens/s", "count") and max(abs(low), abs(high)) >= 1000:
            label = LARGE
    return alt.Axis(title=title, values=ticks, labelExpr=label, grid=grid)


def _evenly_covering(low: float, high: float) -> list[float]:
    """Return up to seven ticks around the values. Their distance is 1, 2 or 5 times a power of ten."""
    span = max(high - low, 0.1 * high)
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= span / 5)
    return [step * n for n in range(math.floor(low / step), math.ceil((low + span) / step) + 1)]


def _n_multiples(low: float, high: float, step: float) -> int:
    return math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9) + 1


def _byte_unit(largest: float) -> tuple[int, str]:
    names = ("B", "KiB", "MiB", "GiB", "TiB")
    step = min(len(names) - 1, int(math.log(max(largest, 1), _KIB)))
    return _KIB**step, names[step]


_SIDE = {"lower": " (left is better)", "higher": " (right is better)", "neither": ""}


def axis_title(outcome: Heading, quantity: str = "") -> str:
    """Return the title of an axis, such as `difference in bits per byte (left is better)`."""
    unit = outcome.unit if with_unit("", outcome.unit) else ""
    shown = f"{quantity} in {unit}" if quantity and unit else quantity or ", ".join(filter(None, [outcome.title, unit]))
    return shown + _SIDE[outcome.better]


_FAR = 3.0
"""Values are outliers if a gap separates them from all other values, and the gap is more than this many times as large
as the range of those values."""

_PART = 4
"""At either end, at most one in this many values can be an outlier."""


def without_outliers(values: Sequence[float]) -> list[float]:
    """Return the values in ascending order, without the outliers at either end. `_FAR` defines outliers."""
    kept, most = sorted(values), len(values) // _PART
    return _cut(_cut(kept, most, upper=True), most, upper=False)


def _cut(values: list[float], most: int, upper: bool) -> list[float]:
    ordered = values if upper else [-value for value in reversed(values)]
    for keep in range(len(ordered) - most, len(ordered)):
        if keep >= 2 and ordered[keep] - ordered[keep - 1] > _FAR * (ordered[keep - 1] - ordered[0]) > 0:
            return values[:keep] if upper else values[-keep:]
    return values


def padded(low: float, high: float, is_logarithmic: bool = False) -> tuple[float, float]:
    """Return the ends of an axis from `low` to `high` with a small margin on both sides. `low` and `high` may be the
    same."""
    if is_logarithmic:
        room = (high / low) ** 0.04 if high > low else 1.1
        return low / room, high * room
    room = 0.04 * (high - low) or max(0.01, 0.01 * abs(high))
    return low - room, high + room
