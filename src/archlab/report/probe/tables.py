"""Results of probes and of the coordinate check, as tables for a terminal with 80 columns."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from archlab.measuring.coordinates import Coordinates, Place
from archlab.measuring.probe import ModelProbe, Probes, RopeProducts
from archlab.report.text_table import FIXED, Table, print_columns
from archlab.spacing import evenly_spaced
from archlab.training.measures import OF_MODEL, Measure, ProbeValues, measured

_SPARKLINES = "over depth"
COLUMNS = "▁▂▃▄▅▆▇█"
MISSING = "·"
WIDEST = 24
"""Maximum number of layers in a sparkline. If a model has more layers, some are left out at even intervals."""
_LEAST_FACTOR = 2.0
"""Minimum ratio of the values that a logarithmic sparkline draws as its highest and its lowest column. It prevents
noise from looking like a steep trend."""


def print_probes(out: Console, probes: Probes) -> None:
    print_tables(out, probe_tables(dict(zip(probes.names, probes, strict=True)), {}))


def print_coordinates(out: Console, check: Coordinates) -> None:
    print_tables(out, over_widths("the config", check))


def print_tables(out: Console, tables: Iterable[Table]) -> None:
    for table in tables:
        print_columns(out, table.columns, table.rows, right=[name for name in table.columns[1:] if name != _SPARKLINES])


def probe_tables(probes: Mapping[str, ModelProbe], trained: Mapping[str, Sequence[dict[str, Any]]]) -> list[Table]:
    """Return the tables of probed configs by name. `trained` holds the probes of each run during its training."""
    rows = {name: probe.as_json() for name, probe in probes.items()}
    rows |= {f"{name}, step {of_run[-1]['step']:,}": of_run[-1] for name, of_run in trained.items()}
    return [over_depth(rows), of_models(rows), *ropes({name: probe.ropes for name, probe in probes.items()})]


def over_depth(probes: Mapping[str, ProbeValues]) -> Table:
    """Return a table with one row per measure: its value at the first layer, a sparkline over depth, and its value at
    the last layer. If there are several configs, each has its own row.

    For each measure, the sparklines of all configs share one scale.
    """
    rows = list[tuple[str, ...]]()
    for name, measure in measured(probes.values()).items():
        values = {label: [*row[name]] for label, row in probes.items() if name in row}
        span = _span(measure, [x for layers in values.values() for x in layers if x is not None])
        several = len(probes) > 1
        if several:
            rows.append((measure.title.replace(" ", FIXED), "", "", ""))
        for label, layers in values.items():
            title = f"{FIXED}{FIXED}{label}" if several else measure.title
            ends = [x for x in layers if x is not None][:: max(1, sum(x is not None for x in layers) - 1)]
            first, last = (ends[0], ends[-1]) if ends else (None, None)
            rows.append((title, measure.text(first), spark(layers, measure, span), measure.text(last)))
    return Table(("by layer", "first", _SPARKLINES, "last"), rows)


def of_models(probes: Mapping[str, ProbeValues]) -> Table:
    """Return a table of the measures that describe a model as a whole, with one column per config."""
    names = [name for name in OF_MODEL if any(name in row for row in probes.values())]
    cells = [(OF_MODEL[name], *(_number(row.get(name)) for row in probes.values())) for name in names]
    return Table(("whole model", *probes), cells)


def ropes(products_by_config: Mapping[str, Sequence[RopeProducts]]) -> Iterator[Table]:
    """Yield a table of query-key dot products under RoPE, by distance. Yield nothing if no config uses RoPE.

    `products_by_config` maps the name of each config to its products, one for each kind of layer that uses RoPE.
    """
    columns = {
        name if len(kinds) == 1 else f"{name}, {rope.kind}": dict(zip(rope.distances, rope.products, strict=True))
        for name, kinds in products_by_config.items()
        for rope in kinds
    }
    distances = sorted({d for column in columns.values() for d in column if d == 4 ** round(math.log(max(d, 1), 4))})
    if columns:
        rows = [(f"distance {d:,}", *(_number(column.get(d)) for column in columns.values())) for d in distances]
        yield Table(("RoPE, equal vectors", *columns), rows)


def spark(values: Sequence[float | None], measure: Measure, span: tuple[float, float]) -> str:
    """Return a sparkline with one column per layer. `span` holds the two values that are drawn as the lowest and the
    highest column."""
    return "".join(
        MISSING if x is None else COLUMNS[_height(_place(measure, x), span)] for x in evenly_spaced(values, WIDEST)
    )


def _span(measure: Measure, values: Sequence[float]) -> tuple[float, float]:
    """Return the two values that are drawn as the lowest and the highest column of a sparkline. On a linear scale, the
    range includes 0."""
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
"""Maximum number of rows in a table with one row per place in the model. If a model has more places, some are left out
at even intervals."""


def over_widths(name: str, check: Coordinates) -> Iterator[Table]:
    """Yield two tables with one row per place in the model and one column per width. The first shows how much the
    updates change the activations, and how this change grows with the width. The second shows the size of the
    activations after the updates."""
    columns = [f"{width:,}" for width in check.widths]
    places = places_shown(check.places)
    title = f"{name}: change by {check.steps} updates"
    yield Table((title, *columns, "slope"), [(p.name, *map(_three_digits, p.change), _slope(p.slope)) for p in places])
    yield Table((f"{name}: RMS afterwards", *columns), [(p.name, *map(_three_digits, p.size)) for p in places])


def places_shown(places: Sequence[Place]) -> Sequence[Place]:
    """Return all places, or as many as fit into a table. The first and the last are always included."""
    return evenly_spaced(places, MOST_ROWS)


def _three_digits(value: float) -> str:
    return f"{value:.3g}"


def _slope(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"
