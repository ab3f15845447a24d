"""Lines on two axes, as most of our pictures are."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import altair as alt

from archlab.report.charts.marks import dash_turns

_HEIGHT = 240
Points = Sequence[Mapping[str, Any]]


def lines(
    points: Points,
    x: alt.X,
    y: alt.Y,
    description: str,
    *,
    legend: str | None = None,
    interpolate: Literal["linear", "step-after"] = "linear",
) -> alt.Chart:
    """Return a chart with a line per `line` of the points, in the order in which they come, each with its own color and
    dashes. Nothing is drawn beyond the axes."""
    names = list(dict.fromkeys(point["line"] for point in points))
    turns = dash_turns(len(names))
    key = alt.Legend(title=legend, orient="bottom", columns=4, symbolType="stroke", symbolSize=500)
    colour = alt.Color("line:N", scale=alt.Scale(domain=names, range="category"), sort=None, legend=key)
    dashed = alt.StrokeDash("line:N", scale=alt.Scale(domain=names, range=turns), sort=None, legend=key)
    chart = alt.Chart(alt.InlineData(values=list(points)), width="container", height=_HEIGHT, description=description)
    line = chart.mark_line(strokeWidth=2, clip=True, interpolate=interpolate)
    return line.encode(x=x, y=y, color=colour, strokeDash=dashed, tooltip=["line:N", "x:Q", "y:Q"])
