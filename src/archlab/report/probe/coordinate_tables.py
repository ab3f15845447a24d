"""The coordinate check as tables for the terminal: a row per layer, a column per width, in 80 columns."""

from collections.abc import Iterator, Sequence

from archlab.infer.coordinates import Coordinates, Place
from archlab.report.cost.tables import Table

MOST_ROWS = 12
"""Layers of a deeper model are left out evenly."""


def over_widths(name: str, found: Coordinates) -> Iterator[Table]:
    """How far the updates moved what stands at each place, with the slope over the width; and how large it is then."""
    columns = [f"{width:,}" for width in found.widths]
    places = shown(found.places)
    title = f"{name}: change by {found.steps} updates"
    yield Table((title, *columns, "slope"), [(p.name, *map(_number, p.change), _slope(p.slope)) for p in places])
    yield Table((f"{name}: RMS after them", *columns), [(p.name, *map(_number, p.size)) for p in places])


def shown(places: Sequence[Place]) -> Sequence[Place]:
    """All, or as many as a table has room for; the first and the last among them."""
    n = min(len(places), MOST_ROWS)
    return [places[round(i * (len(places) - 1) / max(1, n - 1))] for i in range(n)]


def _number(value: float) -> str:
    return f"{value:.3g}"


def _slope(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"
