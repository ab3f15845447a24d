"""Pages of probes and of the coordinate check: charts and tables, each page in one HTML file that opens offline."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import altair as alt

from archlab.files import write_page
from archlab.measuring.coordinates import Coordinates
from archlab.measuring.probe import ModelProbe
from archlab.pricing.units import count
from archlab.report.charts.axes import logarithmic
from archlab.report.charts.marks import chart_of, layered, tooltip
from archlab.report.html import render_page
from archlab.report.probe.charts import over_depth, over_steps, rope_products
from archlab.report.probe.tables import places_shown
from archlab.report.text_table import Table
from archlab.training.measures import ProbeValues, measured


def write_probes(
    probes: Mapping[str, ModelProbe], trained: Mapping[str, Sequence[ProbeValues]], tables: Sequence[Table], path: Path
) -> Path:
    """Write the page, creating missing parent folders, and return its path. `trained` maps the name of a run to its
    probes."""
    return write_page(path, render_probes(probes, trained, tables))


def render_probes(
    probes: Mapping[str, ModelProbe], trained: Mapping[str, Sequence[ProbeValues]], tables: Sequence[Table]
) -> str:
    rows = {name: probe.probed.as_json() for name, probe in probes.items()}
    rope_curves = {name: probe.ropes for name, probe in probes.items()}
    measures = measured(rows.values())
    charts = {name: over_depth(rows, name, measure) for name, measure in measures.items()}
    if any(rope_curves.values()):
        charts["rope"] = rope_products(rope_curves)
    runs = [(name, f"run-{i}-", measured(run_measures)) for i, (name, run_measures) in enumerate(trained.items())]
    for name, prefix, run_measures in runs:
        charts |= {f"{prefix}{key}": over_steps(trained[name], key, measure) for key, measure in run_measures.items()}
    return render_page(
        "probe",
        charts,
        names=list(probes),
        sizes=[count(probe.parameters) for probe in probes.values()],
        first=next(iter(probes.values())),
        measures=measures,
        runs=runs,
        tables=tables,
    )


_HEIGHT = 260


def write_coordinates(checks: Mapping[str, Coordinates], tables: Sequence[Table], path: Path) -> Path:
    """Write the page, creating missing parent folders, and return its path."""
    return write_page(path, render_coordinates(checks, tables))


def render_coordinates(checks: Mapping[str, Coordinates], tables: Sequence[Table]) -> str:
    changes = [x for check in checks.values() for place in check.places for x in place.change if x > 0]
    ends = (min(changes, default=0.1) / 1.3, max(changes, default=1.0) * 1.3)
    charts = {f"config-{i}": _over_widths(check, ends) for i, check in enumerate(checks.values())}
    return render_page(
        "coordinates",
        charts,
        names=list(checks),
        first=next(iter(checks.values())),
        tables=tables,
    )


def _over_widths(check: Coordinates, ends: tuple[float, float]) -> alt.LayerChart:
    drawn = places_shown(check.places)
    places = [place.name for place in drawn]
    points = [
        {"place": place.name, "x": width, "y": y, "text": f"{place.name}, width {width:,}: {y:.3g}"}
        for place in drawn
        for width, y in zip(check.widths, place.change, strict=True)
        if y > 0
    ]
    x = alt.X("x:Q", scale=alt.Scale(type="log", nice=False, padding=12))
    x = x.axis(title="width (d_model)", values=list(check.widths), format=",d", grid=False)
    y = alt.Y("y:Q", scale=alt.Scale(type="log", domain=list(ends), nice=False))
    y = y.axis(title=None, values=logarithmic(*ends), format="~g")
    legend = alt.Legend(title=None, orient="bottom", columns=4, symbolType="stroke")
    color = alt.Color("place:N", scale=alt.Scale(domain=places, range="ramp"), sort=None, legend=legend)
    base = chart_of(points).encode(x=x, y=y, color=color)
    dots = base.mark_point(filled=True, size=26).encode(tooltip=tooltip("text"))
    description = "Change of activations by a few updates over the width of the model, with a line per layer"
    return layered([base.mark_line(strokeWidth=1.8), dots], description, _HEIGHT)
