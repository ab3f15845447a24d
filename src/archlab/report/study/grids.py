"""A picture of what several lines reach at each of a few values: a grid that was tuned or swept, levels of a factor."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import altair as alt

from archlab.report.charts.lines import YAxis, colour, names, opacity, tall_enough
from archlab.report.charts.marks import Row, dashes, data, layered, tooltip

_HEIGHT = 220


def over_values(
    rows: Sequence[Row],
    x: alt.X,
    y: YAxis,
    lost_at: float,
    named: Sequence[str],
    description: str,
    seeds: Sequence[Row] = (),
) -> alt.LayerChart:
    """A line per arm. `rows` have its `mean` at each `value`, null where a run diverged: there, a cross stands at
    `lost_at`. `mark`: `optimum` is a ring, `edge` a square. `seeds`: thin lines, each seed's `loss`.
    """
    held = [{**row, "line": None if row["mean"] is None else y.held(row["mean"])} for row in rows]
    height = tall_enough(_HEIGHT, len(named))
    base = alt.Chart(data(held)).encode(x=x, color=colour(named), tooltip=tooltip("arm", "text"))
    found, lost = base.transform_filter("datum.line !== null"), base.transform_filter("datum.line === null")
    layers = [
        *_seeds(seeds, x, y, named),
        base.mark_line(strokeWidth=2).encode(y=y("line"), strokeDash=dashes(named), opacity=opacity(1, 0.12)),
        found.mark_point(filled=True, size=40).encode(y=y("line"), opacity=opacity(1, 0.12)),
        *(
            found.transform_filter(f"datum.mark === '{mark}'")
            .mark_point(shape=shape, size=260, strokeWidth=2, filled=False)
            .encode(y=y("line"), opacity=opacity(1, 0.12))
            for mark, shape in (("optimum", "circle"), ("edge", "square"))
        ),
        lost.mark_point(shape="cross", angle=45, size=110, filled=True).encode(
            y=alt.datum(lost_at), opacity=opacity(1, 0.12)
        ),
        names(_ends(held, lost_at), y, "container", height, named),
    ]
    return layered(layers, "container", height, description)


def _seeds(seeds: Sequence[Row], x: alt.X, y: YAxis, named: Sequence[str]) -> list[alt.Chart]:
    if not seeds:
        return []
    held = [{**row, "line": None if row["loss"] is None else y.held(row["loss"])} for row in seeds]
    base = alt.Chart(data(held)).encode(x=x, color=colour(named), detail="seed:N", opacity=opacity(0.35, 0.06))
    return [base.mark_line(strokeWidth=1).encode(y=y("line"))]


def _ends(rows: Sequence[Row], lost_at: float) -> list[Row]:
    """Where each line ends; that of an arm which diverged last, at its cross."""
    return [{**row, "mean": lost_at if row["line"] is None else row["line"]} for row in rows]


def aligned(seeds: Sequence[Row]) -> list[Row]:
    """The same rows of seeds, each `loss` without what its seed does to all points alike: how far the seed is from the
    mean of a point, on average over the points (an `arm` and a `value`) that all seeds have."""
    points: dict[tuple[Any, Any], dict[int, float]] = {}
    for row in seeds:
        if row["loss"] is not None:
            points.setdefault((row["arm"], row["value"]), {})[row["seed"]] = row["loss"]
    whole = [point for point in points.values() if len(point) == len({row["seed"] for row in seeds})]
    away = {row["seed"]: fmean(point[row["seed"]] - fmean(point.values()) for point in whole) for row in seeds if whole}
    return [row if row["loss"] is None else {**row, "loss": row["loss"] - away.get(row["seed"], 0.0)} for row in seeds]
