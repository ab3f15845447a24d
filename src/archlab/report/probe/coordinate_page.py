"""The coordinate check as one HTML file that opens offline: a picture per config, and the tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import altair as alt

from archlab.files import write_page
from archlab.infer.coordinates import Coordinates
from archlab.report import html
from archlab.report.charts.axes import logarithmic
from archlab.report.charts.palette import MODES, dots_theme
from archlab.report.cost.tables import Table
from archlab.report.probe.coordinate_tables import shown

_HEIGHT = 260


def write_coordinates(found: Mapping[str, Coordinates], tables: Sequence[Table], path: Path) -> Path:
    """Write the page, and the folders above it; its path."""
    return write_page(path, render(found, tables))


def render(found: Mapping[str, Coordinates], tables: Sequence[Table]) -> str:
    """The page as text: styles, charts and Vega itself inlined, nothing loaded from anywhere."""
    changes = [x for one in found.values() for place in one.places for x in place.change if x > 0]
    ends = (min(changes, default=0.1) / 1.3, max(changes, default=1.0) * 1.3)
    charts = {f"config-{i}": over_widths(one, ends) for i, one in enumerate(found.values())}
    return html.template("coordinates.html.jinja").render(
        names=list(found),
        first=next(iter(found.values())),
        tables=tables,
        colours=[],
        specs={name: html.full_width(chart) for name, chart in charts.items()},
        themes={mode: dots_theme(mode) for mode in MODES},
    )


def over_widths(found: Coordinates, ends: tuple[float, float]) -> alt.LayerChart:
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
    base = alt.Chart(alt.InlineData(values=points)).encode(x=x, y=y, color=colour)
    dots = base.mark_point(filled=True, size=26).encode(tooltip=["text:N"])
    description = "Change of activations by a few updates over the width of the model, a line per layer"
    return alt.LayerChart(
        layer=[base.mark_line(strokeWidth=1.8), dots], width="container", height=_HEIGHT, description=description
    )
