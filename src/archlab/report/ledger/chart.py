"""A picture of one outcome: every prediction about it beside zero and its margin.

Studies differ in how large their effects are, by a factor of a hundred and more. So the axis is linear about as far as
an interval reaches, and logarithmic beyond, on both sides of zero.
"""

from math import copysign, expm1, log1p
from statistics import median

import altair as alt

from archlab.report.charts.axes import axis, axis_title, both_sides, padded
from archlab.report.charts.comparisons import (
    MARK_DOWN,
    ROW,
    by_row,
    caps,
    dots,
    ground,
    higher_where_narrow,
    intervals,
    place_on_axis,
    texts,
)
from archlab.report.charts.marks import Width, layered, tooltip
from archlab.report.charts.palette import SHAPES
from archlab.report.ledger.rows import Panel, ends

FINDINGS = ("as claimed", "undecided", "the opposite")
"""In the order of the first colours and shapes of verdicts: better, not distinguishable, worse."""


def predictions(panel: Panel, width: Width = "container") -> alt.LayerChart:
    """A row per prediction: the effect with its interval, coloured by what it says of the claim."""
    x = _Axis(panel)
    place_on_axis(panel.rows, x.low, x.high)
    colour = alt.Color("found:N", scale=alt.Scale(domain=list(FINDINGS), range="ordinal"), legend=None)
    shape = alt.Shape("found:N", scale=alt.Scale(domain=list(FINDINGS), range=list(SHAPES[:3])), legend=None)
    base = by_row(panel.rows).encode(color=colour, tooltip=tooltip("arm", "against", "found", "text"))
    margins = by_row(panel.rows).transform_filter("datum.above !== null")
    layers = [
        *ground(panel.rows, 0.0, x),
        margins.mark_rule(style="notch", strokeWidth=14, opacity=0.25, yOffset=MARK_DOWN).encode(
            x=x("below"), x2="above:Q"
        ),
        *intervals(base, x),
        *caps(base, x),
        dots(base, x).encode(shape=shape),
        *texts(panel.rows, width),
    ]
    description = (
        f"What claims predict of {panel.outcome.title}, and the differences that were found, with their intervals"
    )
    return higher_where_narrow(layered(layers, width, ROW * len(panel.rows), description), panel.rows)


class _Axis:
    """Linear near zero, logarithmic on both sides."""

    def __init__(self, panel: Panel) -> None:
        every = list(ends(panel.rows))
        reach = [(row["high"] - row["low"]) / 2 for row in panel.rows if row["low"] is not None]
        near = (median(reach) if reach else 0) or max(map(abs, every)) or 1.0
        places = [copysign(log1p(abs(end) / near), end) for end in every]
        self.low, self.high = (copysign(near * expm1(abs(place)), place) for place in padded(min(places), max(places)))
        self._scale = alt.Scale(type="symlog", constant=near, domain=[self.low, self.high], nice=False)
        title = axis_title(panel.outcome, "difference, % of the reference" if panel.is_relative else "difference")
        at = both_sides(self.low, self.high, near)
        unit, absolute = panel.outcome.unit, not panel.is_relative
        self._axis = axis(title, unit, self.low, self.high, grid=False, at=at, of_differences=absolute)

    def __call__(self, field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=self._scale, axis=self._axis)
