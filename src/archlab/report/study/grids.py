"""Pictures of what lines reach at each of a few values: of a sweep, of a grid that was tuned, of a factor's levels."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import altair as alt

from archlab.config.core.yaml_text import to_yaml_line
from archlab.report.charts.axes import padded, without_outliers
from archlab.report.charts.lines import YAxis, names, opacity, single_out, tall_enough
from archlab.report.charts.marks import ChartRow, chart_of, color, dashes, layered, tooltip
from archlab.report.study.arms import labels
from archlab.study.formatting import amount, plural, span
from archlab.study.record import StudySummary, SweepPoint, TuningPoint

_HEIGHT = 220


def over_values(
    rows: Sequence[ChartRow],
    x: alt.X,
    y: YAxis,
    lost_at: float,
    named: Sequence[str],
    description: str,
    seeds: Sequence[ChartRow] = (),
) -> alt.LayerChart:
    """A line per arm. `rows` have its `mean` at each `value`, null where a run diverged: there, a cross stands at
    `lost_at`. `mark`: `optimum` is a ring, `edge` a square. `seeds`: thin lines, each seed's `loss`.
    """
    held = [{**row, "line": None if row["mean"] is None else y.held(row["mean"])} for row in rows]
    height = tall_enough(_HEIGHT, len(named))
    base = chart_of(held).encode(x=x, color=color(named), tooltip=tooltip("arm", "text"))
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
    return layered(layers, description, height)


def _seeds(seeds: Sequence[ChartRow], x: alt.X, y: YAxis, named: Sequence[str]) -> list[alt.Chart]:
    if not seeds:
        return []
    held = [{**row, "line": None if row["loss"] is None else y.held(row["loss"])} for row in seeds]
    base = chart_of(held).encode(x=x, color=color(named), detail="seed:N", opacity=opacity(0.35, 0.06))
    return [base.mark_line(strokeWidth=1).encode(y=y("line"))]


def _ends(rows: Sequence[ChartRow], lost_at: float) -> list[ChartRow]:
    """Where each line ends; that of an arm which diverged last, at its cross."""
    return [{**row, "mean": lost_at if row["line"] is None else row["line"]} for row in rows]


def aligned(seeds: Sequence[ChartRow]) -> list[ChartRow]:
    """The same rows of seeds, each `loss` without what its seed does to all points alike: how far the seed is from the
    mean of a point, on average over the points (an `arm` and a `value`) that all seeds have."""
    points: dict[tuple[Any, Any], dict[int, float]] = {}
    for row in seeds:
        if row["loss"] is not None:
            points.setdefault((row["arm"], row["value"]), {})[row["seed"]] = row["loss"]
    whole = [point for point in points.values() if len(point) == len({row["seed"] for row in seeds})]
    away = {row["seed"]: fmean(point[row["seed"]] - fmean(point.values()) for point in whole) for row in seeds if whole}
    return [row if row["loss"] is None else {**row, "loss": row["loss"] - away.get(row["seed"], 0.0)} for row in seeds]


def sweep(summary: StudySummary) -> alt.LayerChart | None:
    """A thick line per arm, the mean over its seeds, and a thin one per seed, aligned; None where nothing was swept.

    A ring is the best value, a square one at the edge of the grid; a cross is a value at which a run diverged. The
    picture reaches no higher than the loss of an untrained model, beyond which no outcome counts what a run loses."""
    if not summary.sweep:
        return None
    rows, seeds, named = sweep_rows(summary), aligned(sweep_seed_rows(summary)), list(labels(summary).values())
    losses = [row["loss"] for row in seeds if row["loss"] is not None] or [0.0]
    highest = max(min(max(losses), _untrained(summary)), min(losses))
    y = YAxis("bits per byte", "bits per byte", *padded(min(losses), highest))
    description = f"Loss of every arm over the values of {summary.sweep[0].field} that were swept"
    return over_values(rows, _sweep_axis(summary), y, y.high, named, description, seeds).add_params(single_out())


def _untrained(summary: StudySummary) -> float:
    starts = [curve.values[0] for arm in summary.arms for curve in arm.curves if curve.tokens[:1] == [0]]
    return max(starts, default=float("inf"))


def _sweep_axis(summary: StudySummary) -> alt.X:
    field, values = summary.sweep[0].field, sorted({point.value for point in summary.sweep})
    is_logarithmic = values[0] > 0
    scale = alt.Scale(
        type="log" if is_logarithmic else "linear", domain=[values[0], values[-1]], nice=False, padding=20
    )
    title = f"{field}, logarithmic axis" if is_logarithmic else field
    axis = alt.Axis(title=title, values=values, format="~g", labelOverlap="greedy", grid=False)
    return alt.X("value:Q", scale=scale, axis=axis)


def sweep_rows(summary: StudySummary) -> list[ChartRow]:
    """Per arm and value: the mean over the seeds, null where a run diverged. `mark` is at the value with the lowest
    mean: `optimum`, or `edge` where it is the smallest or the largest that was tried."""
    named = labels(summary)
    by_arm: dict[str, list[SweepPoint]] = {}
    for point in summary.sweep:
        by_arm.setdefault(point.arm, []).append(point)
    return [row for arm, points in by_arm.items() for row in _sweep_rows_of(named[arm], points)]


def _sweep_rows_of(label: str, points: Sequence[SweepPoint]) -> list[ChartRow]:
    means = {point.value: fmean(losses) for point in points if len(losses := _finished(point)) == len(point.losses)}
    best = min(means, key=lambda value: means[value], default=None)
    edges = (points[0].value, points[-1].value)
    return [
        {
            "arm": label,
            "value": point.value,
            "mean": means.get(point.value),
            "diverged": f"{len(point.losses) - len(_finished(point))} of {len(point.losses)} diverged",
            "mark": None if point.value != best else "edge" if best in edges else "optimum",
            "text": _sweep_text(point, means.get(point.value), point.value == best, best in edges),
        }
        for point in points
    ]


def _sweep_text(point: SweepPoint, mean: float | None, is_best: bool, at_edge: bool) -> str:
    losses = _finished(point)
    ends = span(*(amount(end(losses), "bits per byte") for end in (min, max))) if losses else ""
    said = [
        f"{point.value:g}: " + (f"{len(point.losses) - len(losses)} of {plural(len(point.losses), 'seed')} diverged"
        if mean is None else f"{amount(mean, 'bits per byte')} bits per byte"),
        f"seeds {ends}" if losses else "",
        "the best" if is_best else "",
        "at the edge of the grid" if is_best and at_edge else "",
    ]  # fmt: skip
    return ", ".join(filter(None, said))


def _finished(point: SweepPoint) -> list[float]:
    return [loss for loss in point.losses.values() if loss is not None]


def sweep_seed_rows(summary: StudySummary) -> list[ChartRow]:
    """Per arm, value and seed: the loss, null where the run diverged."""
    named = labels(summary)
    return [
        {"arm": named[point.arm], "value": point.value, "seed": seed, "loss": loss}
        for point in summary.sweep
        for seed, loss in point.losses.items()
    ]


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


def tuned_fields(summary: StudySummary) -> list[str]:
    """The fields of the grid."""
    return list(summary.tuning[0].values) if summary.tuning else []


def grid_values(summary: StudySummary, field: str) -> list[Any]:
    """What was tried for it, numbers in order."""
    values = list({to_yaml_line(point.values[field]): point.values[field] for point in summary.tuning}.values())
    return sorted(values) if _are_numbers(values) else values


def tuning_rows(summary: StudySummary, field: str) -> list[ChartRow]:
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
        _tuning_row(summary, named[arm], value, found[arm, value], value in edges)
        for arm in dict.fromkeys(point.arm for point in summary.tuning)
        for value in map(to_yaml_line, values)
    ]


def _tuning_row(
    summary: StudySummary, label: str, value: str, points: Sequence[TuningPoint], at_edge: bool
) -> ChartRow:
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
