"""What probes and the coordinate check found, as one HTML file each that opens offline: pictures and tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import altair as alt

from archlab.files import write_page
from archlab.infer.coordinates import Coordinates
from archlab.infer.probe import Start
from archlab.pricing.units import count
from archlab.report.charts.axes import logarithmic
from archlab.report.charts.marks import chart_of, layered, tooltip
from archlab.report.html import render_page
from archlab.report.probe.charts import over_depth, over_steps, rope_products
from archlab.report.probe.tables import shown
from archlab.report.text_table import Table
from archlab.training.measures import ProbeValues, measured


def write_probes(
    starts: Mapping[str, Start], trained: Mapping[str, Sequence[ProbeValues]], tables: Sequence[Table], path: Path
) -> Path:
    """Write the page, and the folders above it; its path. `trained`: the probes of runs, by name."""
    return write_page(path, render_probes(starts, trained, tables))


def render_probes(
    starts: Mapping[str, Start], trained: Mapping[str, Sequence[ProbeValues]], tables: Sequence[Table]
) -> str:
    """Return the page as text."""
    rows = {name: start.probed.as_json() for name, start in starts.items()}
    turned = {name: [(rope.distances, rope.products) for rope in start.ropes] for name, start in starts.items()}
    measures = measured(rows.values())
    charts = {name: over_depth(rows, name, measure) for name, measure in measures.items()}
    if any(turned.values()):
        charts["rope"] = rope_products(turned)
    runs = [(name, f"run-{i}-", measured(of_run)) for i, (name, of_run) in enumerate(trained.items())]
    for name, prefix, of_run in runs:
        charts |= {f"{prefix}{key}": over_steps(trained[name], key, measure) for key, measure in of_run.items()}
    return render_page(
        "probe",
        charts,
        names=list(starts),
        sizes=[count(start.parameters) for start in starts.values()],
        first=next(iter(starts.values())),
        measures=measures,
        runs=runs,
        tables=tables,
    )


_HEIGHT = 260


def write_coordinates(found: Mapping[str, Coordinates], tables: Sequence[Table], path: Path) -> Path:
    """Write the page, and the folders above it; its path."""
    return write_page(path, render_coordinates(found, tables))


def render_coordinates(found: Mapping[str, Coordinates], tables: Sequence[Table]) -> str:
    """Return the page as text."""
    changes = [x for one in found.values() for place in one.places for x in place.change if x > 0]
    ends = (min(changes, default=0.1) / 1.3, max(changes, default=1.0) * 1.3)
    charts = {f"config-{i}": _over_widths(one, ends) for i, one in enumerate(found.values())}
    return render_page(
        "coordinates",
        charts,
        names=list(found),
        first=next(iter(found.values())),
        tables=tables,
    )


def _over_widths(found: Coordinates, ends: tuple[float, float]) -> alt.LayerChart:
    """A line per place that the table has, from the embedding to the logits: how far the updates moved it.

    Both axes are logarithmic; `ends` are those of the vertical one, which pictures share."""
    drawn = shown(found.places)
    places = [place.name for place in drawn]
    points = [
        {"place": place.name, "x": width, "y": y, "text": f"{place.name}, width {width:,}: {y:.3g}"}
        for place in drawn
        for width, y in zip(found.widths, place.change, strict=True)
        if y > 0
    ]
    x = alt.X("x:Q", scale=alt.Scale(type="log", nice=False, padding=12))
    x = x.axis(title="width (d_model)", values=list(found.widths), format=",d", grid=False)
    y = alt.Y("y:Q", scale=alt.Scale(type="log", domain=list(ends), nice=False))
    y = y.axis(title=None, values=logarithmic(*ends), format="~g")
    legend = alt.Legend(title=None, orient="bottom", columns=4, symbolType="stroke")
    colour = alt.Color("place:N", scale=alt.Scale(domain=places, range="ramp"), sort=None, legend=legend)
    base = chart_of(points).encode(x=x, y=y, color=colour)
    dots = base.mark_point(filled=True, size=26).encode(tooltip=tooltip("text"))
    description = "Change of activations by a few updates over the width of the model, a line per layer"
    return layered([base.mark_line(strokeWidth=1.8), dots], description, _HEIGHT)
