"""The tuning grid as the rows that the charts draw, one field at a time."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import altair as alt

from archlab.config.core.yaml_text import to_yaml_line
from archlab.report.charts.axes import padded, without_outliers
from archlab.report.charts.lines import YAxis, single_out
from archlab.report.charts.marks import Row
from archlab.report.study.arms import labels
from archlab.report.study.grids import over_values
from archlab.study.formatting import amount, plural
from archlab.study.record import StudySummary, TuningPoint


def tuned_fields(summary: StudySummary) -> list[str]:
    """The fields of the grid."""
    return list(summary.tuning[0].values) if summary.tuning else []


def grid_values(summary: StudySummary, field: str) -> list[Any]:
    """What was tried for it, numbers in order."""
    values = list({to_yaml_line(point.values[field]): point.values[field] for point in summary.tuning}.values())
    return sorted(values) if _are_numbers(values) else values


def tuning_rows(summary: StudySummary, field: str) -> list[Row]:
    """Per arm and value of the field: the best that a point of the grid with that value reaches.

    `mean` is over the tuning seeds, and null where a run of every such point diverged. `mark` is `optimum` for the
    value that the arm is compared with, or `edge` where it is the smallest or the largest of several numbers.
    """
    named, values = labels(summary), grid_values(summary, field)
    edges = {to_yaml_line(values[end]) for end in (0, -1)} if _are_numbers(values) and len(values) > 1 else set[str]()
    found: dict[tuple[str, str], list[TuningPoint]] = {}
    for point in summary.tuning:
        found.setdefault((point.arm, to_yaml_line(point.values[field])), []).append(point)
    return [
        _row(summary, named[arm], value, found[arm, value], value in edges)
        for arm in dict.fromkeys(point.arm for point in summary.tuning)
        for value in map(to_yaml_line, values)
    ]


def _row(summary: StudySummary, label: str, value: str, points: Sequence[TuningPoint], at_edge: bool) -> Row:
    finished = [fmean(point.results) for point in points if None not in point.results]  # pyright: ignore[reportArgumentType]
    best = min if summary.evaluated == "bits per byte" else max
    mean = best(finished) if finished else None
    is_chosen = any(point.chosen for point in points)
    lost = sum(None in point.results for point in points)
    said = [
        f"{value}: " + ("diverged" if mean is None else f"{amount(mean, summary.evaluated)} {summary.evaluated}"),
        f"{plural(lost, 'point')} of {len(points)} diverged" if lost and mean is not None else "",
        "compared with this" if is_chosen else "",
        "at the edge of the grid" if is_chosen and at_edge else "",
    ]
    return {
        "arm": label,
        "value": value,
        "mean": mean,
        "mark": ("edge" if at_edge else "optimum") if is_chosen else None,
        "text": ", ".join(filter(None, said)),
    }


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def tuning(summary: StudySummary, field: str) -> alt.LayerChart:
    """A line per arm over the values of the grid, evenly spaced. A ring is the value that the arm is compared with, a
    square one where it lies at the edge; a cross at the edge of the picture is a point whose runs diverged."""
    rows, named = tuning_rows(summary, field), list(labels(summary).values())
    means = without_outliers([row["mean"] for row in rows if row["mean"] is not None]) or [0.0]
    y = YAxis(summary.evaluated, summary.evaluated, *padded(means[0], means[-1]))
    worst = y.high if summary.evaluated == "bits per byte" else y.low
    values = [to_yaml_line(value) for value in grid_values(summary, field)]
    scale = alt.Scale(domain=values, padding=0.15)
    x = alt.X("value:O", scale=scale, axis=alt.Axis(title=f"{field}, values of the grid", labelAngle=0, grid=False))
    description = f"{summary.evaluated} of every arm over the values of {field} that were tried"
    return over_values(rows, x, y, worst, named, description).add_params(single_out())
