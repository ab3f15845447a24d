"""Lines on two axes, as most of our pictures are."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import altair as alt

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
    """A line per `line` of the points, in the order in which they come; beyond the axes nothing is drawn."""
    names = list(dict.fromkeys(point["line"] for point in points))
    scale = alt.Scale(domain=names, range="category")
    colour = alt.Color("line:N", scale=scale, sort=None).legend(title=legend, orient="bottom", columns=4)
    chart = alt.Chart(alt.InlineData(values=list(points)), width="container", height=_HEIGHT, description=description)
    line = chart.mark_line(strokeWidth=2, clip=True, interpolate=interpolate)
    return line.encode(x=x, y=y, color=colour, tooltip=["line:N", "x:Q", "y:Q"])
