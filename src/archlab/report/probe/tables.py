"""What probes and the coordinate check found, as tables for the terminal, in 80 columns."""

import math
from collections.abc import Iterator, Mapping, Sequence

from archlab.infer.coordinates import Coordinates, Place
from archlab.report.text_table import FIXED, Table
from archlab.training.measures import OF_MODEL, Measure, ProbeValues, measured

COLUMNS = "▁▂▃▄▅▆▇█"
MISSING = "·"
WIDEST = 24
"""Layers of a deeper model are left out evenly."""
_LEAST_FACTOR = 2.0
"""Between the lowest and the highest column where factors matter, so that no noise looks like a slope."""


def over_depth(found: Mapping[str, ProbeValues]) -> Table:
    """Every measure of every probe: at the first layer, over depth, at the last. One measure has one scale."""
    rows = list[tuple[str, ...]]()
    for name, measure in measured(found.values()).items():
        values = {label: [*row[name]] for label, row in found.items() if name in row}
        span = _span(measure, [x for layers in values.values() for x in layers if x is not None])
        several = len(found) > 1
        if several:
            rows.append((measure.title.replace(" ", FIXED), "", "", ""))
        for label, layers in values.items():
            title = f"{FIXED}{FIXED}{label}" if several else measure.title
            ends = [x for x in layers if x is not None][:: max(1, sum(x is not None for x in layers) - 1)]
            first, last = (ends[0], ends[-1]) if ends else (None, None)
            rows.append((title, measure.text(first), spark(layers, measure, span), measure.text(last)))
    return Table(("by layer", "first", "over depth", "last"), rows)


def of_models(found: Mapping[str, ProbeValues]) -> Table:
    """What is measured of a whole model, a column each."""
    names = [name for name in OF_MODEL if any(name in row for row in found.values())]
    cells = [(OF_MODEL[name], *(_number(row.get(name)) for row in found.values())) for name in names]
    return Table(("of the model", *found), cells)


def ropes(found: Mapping[str, Sequence[tuple[Sequence[int], Sequence[float]]]]) -> Iterator[Table]:
    """RoPE's products by distance, a column per config; of none, none. `found`: (distances, products) by name."""
    columns = {
        name if len(of_kinds) == 1 else f"{name}, {i + 1}.": dict(zip(*one, strict=True))
        for name, of_kinds in found.items()
        for i, one in enumerate(of_kinds)
    }
    distances = sorted({d for column in columns.values() for d in column if d == 4 ** round(math.log(max(d, 1), 4))})
    if columns:
        rows = [(f"distance {d:,}", *(_number(column.get(d)) for column in columns.values())) for d in distances]
        yield Table(("RoPE, equal vectors", *columns), rows)


def spark(values: Sequence[float | None], measure: Measure, span: tuple[float, float]) -> str:
    """A column per layer between the ends of the span."""
    n = min(len(values), WIDEST)
    chosen = [values[round(i * (len(values) - 1) / max(1, n - 1))] for i in range(n)]
    return "".join(MISSING if x is None else COLUMNS[_height(_place(measure, x), span)] for x in chosen)


def _span(measure: Measure, values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest place; of shares and the like from 0 on."""
    if not measure.is_logarithmic:
        return min(0.0, *values, 0.0), max(0.0, *values, 0.0)
    places = [_place(measure, x) for x in values] or [0.0]
    middle, half = (min(places) + max(places)) / 2, max(max(places) - min(places), math.log(_LEAST_FACTOR)) / 2
    return middle - half, middle + half


def _place(measure: Measure, value: float) -> float:
    return math.log(max(value, 1e-30)) if measure.is_logarithmic else value


def _height(place: float, span: tuple[float, float]) -> int:
    low, high = span
    return 0 if high == low else min(len(COLUMNS) - 1, int((place - low) / (high - low) * len(COLUMNS)))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


MOST_ROWS = 12
"""Layers of a deeper model are left out evenly."""


def over_widths(name: str, found: Coordinates) -> Iterator[Table]:
    """How far the updates moved what stands at each place, with the slope over the width; and how large it is then."""
    columns = [f"{width:,}" for width in found.widths]
    places = shown(found.places)
    title = f"{name}: change by {found.steps} updates"
    yield Table((title, *columns, "slope"), [(p.name, *map(_three_digits, p.change), _slope(p.slope)) for p in places])
    yield Table((f"{name}: RMS after them", *columns), [(p.name, *map(_three_digits, p.size)) for p in places])


def shown(places: Sequence[Place]) -> Sequence[Place]:
    """All, or as many as a table has room for; the first and the last among them."""
    n = min(len(places), MOST_ROWS)
    return [places[round(i * (len(places) - 1) / max(1, n - 1))] for i in range(n)]


def _three_digits(value: float) -> str:
    return f"{value:.3g}"


def _slope(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"
