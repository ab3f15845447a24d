"""Pictures of a training, a line per arm: evaluations from the first step to the last, the training loss, gradients."""

import math
from collections import Counter
from collections.abc import Sequence

import altair as alt

from archlab.report.charts.axes import LARGE, logarithmic, padded, plain, spaced
from archlab.report.charts.lines import YAxis, colour, names, of_ends, of_lines, opacity, single_out, tall_enough
from archlab.report.charts.marks import ON_A_PHONE, Row, Width, dashes, data, layered, tooltip
from archlab.report.study.arms import labels
from archlab.report.study.curve_rows import Axis, Quantity, diverged_rows, mean_rows
from archlab.study.record import StudySummary

LOSS = Quantity(Axis("nats per token", "nats per token"), lambda curve: (curve.trained, curve.losses))
GRADIENT = Quantity(Axis("norm", "norm", is_logarithmic=True), lambda curve: (curve.trained, curve.gradients))

LINES_SHOW = (
    "A line is the mean over the seeds, in a band from the lowest seed to the highest, without what a seed and the "
    "text that it is judged on do to all arms alike."
)
"""Caption of pictures with a line per arm."""
THIN_LINES_SHOW = "A thin line is a run that diverged, up to the cross."
"""Added to it if runs diverged."""

_GAP, _GAP_ON_A_PHONE = 0.08, 0.26
"""Between the labels of training tokens, as a share of the axis."""

_LABEL = 46
"""Pixels from one label of tokens to the next, so that both can be read."""


def evaluations(summary: StudySummary, width: Width = "container") -> alt.LayerChart | None:
    """From the one before the first update to the end; None where there are none."""
    return _curves(summary, _evaluated(summary), width, from_zero=True)


def last_half(summary: StudySummary, width: Width = "container") -> alt.LayerChart | None:
    """The evaluations of the second half of the training, where arms are close."""
    return _curves(summary, _evaluated(summary), width, second_half=True)


def updates(summary: StudySummary, drawn: Quantity) -> alt.LayerChart | None:
    """The loss or the gradients of the updates; None where no run has them."""
    return _curves(summary, drawn, "container", height=260)


def _evaluated(summary: StudySummary) -> Quantity:
    title = {"bits per byte": "bits per byte on held-out text", "share": "share of right answers"}[summary.evaluated]
    return Quantity(Axis(title, summary.evaluated), lambda curve: (curve.tokens, curve.values))


def _curves(
    summary: StudySummary,
    drawn: Quantity,
    width: Width,
    *,
    from_zero: bool = False,
    second_half: bool = False,
    height: int = 340,
) -> alt.LayerChart | None:
    means, gone = mean_rows(summary, drawn), diverged_rows(summary, drawn)
    named = list(labels(summary).values())
    return curves(
        named, means, gone, drawn.axis, width=width, from_zero=from_zero, second_half=second_half, height=height
    )


def curves(
    named: Sequence[str],
    means: Sequence[Row],
    gone: Sequence[Row],
    drawn: Axis,
    *,
    marks: Sequence[Row] = (),
    width: Width = "container",
    from_zero: bool = False,
    second_half: bool = False,
    named_beside: bool = True,
    height: int = 260,
) -> alt.LayerChart | None:
    """A line through the means of each name, in a band from the lowest to the highest; a single mean is a point.

    None if no name has two means, and none diverged. What diverged (`gone`) is a thin line that ends in a cross, held
    at the edge where the line leaves the picture. `marks` are triangles, held there too. `named_beside`: names stand
    where the lines end.
    """
    last = max((row["tokens"] for row in means or gone), default=0)
    begin = last // 2 if second_half else 0
    means, gone = ([row for row in rows if row["tokens"] >= begin] for rows in (means, gone))
    if drawn.is_logarithmic:  # which has no place for 0
        means = [row for row in means if row["low"] > 0]
    lines = means or [row for row in gone if row["low"] > 0 or not drawn.is_logarithmic]
    per_name = Counter(row["arm"] for row in means)
    if not lines or (not gone and max(per_name.values()) < 2):
        return None
    alone = [row for row in means if per_name[row["arm"]] == 1]
    low, high = of_ends(lines) if second_half else of_lines(lines)
    y = YAxis(drawn.title, drawn.unit, *padded(low, high, drawn.is_logarithmic), drawn.is_logarithmic)
    x = _x(lines, begin, last, from_zero, width)
    base = alt.Chart(data(means)).encode(x=x, color=colour(named), tooltip=tooltip("arm", "text"))
    height = tall_enough(height, len(named)) if named_beside else height
    layers = [
        base.mark_area(clip=True).encode(y=y("low"), y2="high:Q", opacity=opacity(0.16, 0.03)),
        base.mark_line(clip=True, strokeWidth=2).encode(
            y=y("mean"), strokeDash=dashes(named), opacity=opacity(1, 0.12)
        ),
        base.mark_point(clip=True, size=90, opacity=0, filled=True).encode(y=y("mean")),
        *([_points(alone, x, y, named)] if alone else []),
        *_diverged(gone, x, y, named),
        *_marked([row for row in marks if row["tokens"] >= begin], x, y, named),
        *([names([*gone, *means], y, width, height, named)] if named_beside else []),
    ]
    description = f"{drawn.title} over training tokens, a line for each, with a band from the lowest to the highest"
    return layered(layers, width, height, description).add_params(single_out())


def _x(lines: Sequence[Row], begin: int, last: int, from_zero: bool, width: Width) -> alt.X:
    """Training tokens. Where the early ones matter as much as the late ones, the axis is logarithmic, and linear only
    before the first evaluation after an update. The end of the training always has its label."""
    first = min((row["tokens"] for row in lines if row["tokens"]), default=0)
    is_logarithmic = from_zero and 0 < 4 * first <= last
    if is_logarithmic:
        scale = alt.Scale(type="symlog", constant=first, domain=[0, last], nice=False)
        title, ticks = "training tokens, logarithmic axis", [0, *logarithmic(first, last), last]
    else:
        scale = alt.Scale(domain=[begin, last], nice=False)
        title, ticks = "training tokens", [*plain(begin, last), last]

    def place(tokens: float) -> float:
        if is_logarithmic:
            return math.log1p(tokens / first) / math.log1p(last / first)
        return (tokens - begin) / (last - begin or 1)

    ticks = spaced(ticks, place, _GAP if width == "container" else max(_GAP, _LABEL / width))
    on_phone = spaced(ticks, place, _GAP_ON_A_PHONE)
    label = LARGE
    if width == "container":
        label = f"{ON_A_PHONE} && indexof({on_phone}, datum.value) < 0 ? '' : {LARGE}"
    axis = alt.Axis(title=title, values=ticks, labelExpr=label, labelOverlap=False, grid=False)
    return alt.X("tokens:Q", scale=scale, axis=axis)


def _points(rows: Sequence[Row], x: alt.X, y: YAxis, named: Sequence[str]) -> alt.Chart:
    base = alt.Chart(data(rows)).encode(x=x, y=y("mean"), color=colour(named), opacity=opacity(1, 0.12))
    return base.mark_point(clip=True, size=50, filled=True)


def _diverged(gone: Sequence[Row], x: alt.X, y: YAxis, named: Sequence[str]) -> list[alt.Chart]:
    if not gone:
        return []
    rows = [{**row, "held": y.held(row["mean"]), "mean": y.in_reach(row["mean"])} for row in gone]
    base = alt.Chart(data(rows))
    base = base.encode(x=x, color=colour(named), detail="seed:N", tooltip=tooltip("arm", "text"))
    base = base.encode(opacity=opacity(0.9, 0.12))
    end = base.transform_filter("datum.last").mark_point(shape="cross", angle=45, size=110, filled=True)
    return [base.mark_line(clip=True, strokeWidth=1).encode(y=y("mean")), end.encode(y=y("held"))]


def _marked(marks: Sequence[Row], x: alt.X, y: YAxis, named: Sequence[str]) -> list[alt.Chart]:
    if not marks:
        return []
    base = alt.Chart(data([{**row, "held": y.held(row["mean"])} for row in marks]))
    base = base.encode(x=x, y=y("held"), color=colour(named), tooltip=tooltip("arm", "text"), opacity=opacity(1, 0.12))
    return [base.mark_point(shape="triangle-down", size=70, filled=True, yOffset=-8)]
