"""Charts of probes.

Charts over depth, and charts over training tokens, have one line per config, each in its own color. Charts over the
steps of one training run have one line per layer; the line's color shows its depth.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import altair as alt

from archlab.measuring.probe import RopeProducts
from archlab.pricing.units import count
from archlab.report.charts.axes import LARGE, LENGTH, logarithmic
from archlab.report.charts.lines import opacity, single_out
from archlab.report.charts.marks import chart_of, color, crosshair, dashes, layered, tooltip
from archlab.training.measures import LOG_Z, OF_LAYERS, Measure, ProbeValues, Range, measured

_HEIGHT = 200
_Points = Sequence[Mapping[str, Any]]
Line = tuple[Sequence[int], Sequence[float | None]]
"""Numbers of training tokens, and the value of a measure at each of them."""


class ProbePicture(NamedTuple):
    """Chart of one probe measure."""

    name: str
    """Name of the element on the page that holds the chart."""
    title: str
    says: str
    chart: alt.LayerChart


def depth_pictures(probes: Mapping[str, ProbeValues]) -> list[ProbePicture]:
    """Return one chart per measure. The layers are on the horizontal axis, and each config has one line. `probes` maps
    the name of a config to its probe."""
    return [
        ProbePicture(f"depth-{name}", measure.title, measure.caption, over_depth(probes, name, measure))
        for name, measure in measured(probes.values()).items()
    ]


OVER_TRAINING = {**OF_LAYERS, "log_z": LOG_Z}
"""Measures that are drawn over the course of training. If a measure has a value per layer, the values are combined into
one."""


def training_pictures(lines: Mapping[str, Mapping[str, Line]]) -> list[ProbePicture]:
    """Return one chart per measure, over the course of training. `lines` maps the name of a config to its line of each
    measure."""
    return [
        ProbePicture(
            f"time-{name}",
            measure.title,
            f"{measure.caption}{_over_layers_in_words(name, measure)}",
            over_training({config: of_config.get(name, ((), ())) for config, of_config in lines.items()}, measure),
        )
        for name, measure in (measured(lines.values()) | {"log_z": LOG_Z}).items()
        if any(name in of_config for of_config in lines.values())
    ]


def _over_layers_in_words(name: str, measure: Measure) -> str:
    if name not in OF_LAYERS:
        return ""
    return (
        " The chart shows the largest value of all layers."
        if measure.takes_largest
        else " The chart shows the mean over the layers."
    )


def over_depth(probes: Mapping[str, ProbeValues], name: str, measure: Measure) -> alt.LayerChart:
    """Return a chart of one measure from the first layer to the last, with one line per config.

    `probes` maps the name of a config to its probe.
    """
    points = [
        {"config": label, "x": i, "y": y, "text": f"{measure.layer} {i}: {measure.text(y)}"}
        for label, row in probes.items()
        for i, y in enumerate(row.get(name, ()), 1)
        if _is_drawn(y, measure)
    ]
    deepest = max((point["x"] for point in points), default=1)
    x = alt.X("x:Q", scale=alt.Scale(domain=[1, max(deepest, 2)], nice=False))
    x = x.axis(title=measure.layer, values=_whole_ticks(deepest), format="d", grid=False)
    shown = ["config", "text"]
    return _lines(
        points,
        x,
        _y(points, measure),
        color([*probes], "config"),
        shown,
        f"{measure.title} over depth",
        names=[*probes],
        healthy=_healthy(measure, points, len(probes)),
    )


def over_steps(rows: Sequence[ProbeValues], name: str, measure: Measure) -> alt.LayerChart:
    """Return a chart of one measure over the steps of a training run, with one line per layer.

    `rows` holds all probes of the run. Each contains its step.
    """
    points = [
        {"layer": i, "x": row["step"], "y": y, "text": f"{measure.layer} {i}, step {row['step']:,}: {measure.text(y)}"}
        for row in rows
        for i, y in enumerate(row.get(name, ()), 1)
        if _is_drawn(y, measure)
    ]
    deepest = max((point["layer"] for point in points), default=1)
    x = alt.X("x:Q", scale=alt.Scale(nice=False)).axis(title="step", tickCount=5, labelExpr=LARGE, grid=False)
    scale = alt.Scale(domain=[1, max(deepest, 2)], range="ramp")
    legend = alt.Legend(
        title=measure.layer, orient="bottom", values=sorted({1, (deepest + 1) // 2, deepest}), format="d"
    )
    color = alt.Color("layer:Q", scale=scale).legend(legend)
    return _lines(
        points,
        x,
        _y(points, measure),
        color,
        ["text"],
        f"{measure.title} over the steps",
        name="layer",
        healthy=measure.healthy,
    )


def over_training(lines: Mapping[str, Line], measure: Measure) -> alt.LayerChart:
    """Return a chart of one measure over training tokens, with one line per config."""
    points = [
        {"config": label, "x": x, "y": y, "text": f"{count(x)} tokens: {measure.text(y)}"}
        for label, (tokens, values) in lines.items()
        for x, y in zip(tokens, values, strict=True)
        if _is_drawn(y, measure)
    ]
    x = alt.X("x:Q", scale=alt.Scale(nice=False, zero=True))
    x = x.axis(title="training tokens", tickCount=4, labelExpr=LARGE, grid=False)
    return _lines(
        points,
        x,
        _y(points, measure),
        color([*lines], "config"),
        ["config", "text"],
        f"{measure.title} over the training",
        names=[*lines],
        healthy=measure.healthy,
    )


def rope_products(products_by_config: Mapping[str, Sequence[RopeProducts]]) -> alt.LayerChart:
    """Return a chart of the dot products under RoPE over distance. Each config has one line per kind of layer that uses
    RoPE."""
    points = [
        {"config": label, "kind": rope.kind, "x": x, "y": y,
         "text": f"{f'{rope.kind} layers, ' if len(kinds) > 1 else ''}distance {x:,}: {y:.3g}"}
        for label, kinds in products_by_config.items()
        for rope in kinds
        for x, y in zip(rope.distances, rope.products, strict=True)
        if x
    ]  # fmt: skip
    farthest = max((point["x"] for point in points), default=1)
    shown = [4**n for n in range(20) if 4**n <= farthest]
    x = alt.X("x:Q", scale=alt.Scale(type="log", nice=False))
    x = x.axis(title="distance in tokens", values=shown, labelExpr=LENGTH, grid=False)
    y = alt.Y("y:Q", scale=alt.Scale(nice=True)).axis(title=None, tickCount=5, format="~g")
    return _lines(
        points,
        x,
        y,
        color([*products_by_config], "config"),
        ["config", "text"],
        "RoPE over the distance",
        name="kind",
        names=[*products_by_config],
    )


def _lines(
    points: _Points,
    x: alt.X,
    y: alt.Y,
    color: alt.Color,
    shown: Sequence[str],
    description: str,
    *,
    name: str = "config",
    names: Sequence[str] = (),
    healthy: Range | None = None,
) -> alt.LayerChart:
    """Return a chart with one line per config and value of the field `name`. The range `healthy` is shaded."""
    base = chart_of(points).encode(x=x, y=y, color=color, detail=f"{name}:N", opacity=opacity(1, 0.12, "config"))
    line = base.mark_line(strokeWidth=1.8)
    layers = [
        *([_band(healthy, y)] if healthy else []),
        line.encode(strokeDash=dashes(names, "config")) if names else line,
        base.mark_point(filled=True, size=22),
        *crosshair(base.encode(tooltip=tooltip(*shown)), "x", y, name),
    ]
    return layered(layers, description, _HEIGHT).add_params(single_out())


def _band(healthy: Range, y: alt.Y) -> alt.Chart:
    """Return the shaded range. It reaches to the edge of the chart on a side without a limit."""
    low, high = healthy
    encoding = cast(dict[str, Any], y.to_dict())
    axis = {key: encoding[key] for key in ("scale", "axis")}
    band = chart_of([{"low": low, "high": high}]).mark_rect(clip=True, style="healthy")
    if low is None:
        return band.encode(y=alt.Y("high:Q", **axis), y2=alt.value("height"))
    return band.encode(y=alt.Y("low:Q", **axis), y2=alt.value(0) if high is None else alt.Y2("high:Q"))


def _healthy(measure: Measure, points: _Points, n_configs: int) -> Range | None:
    """Return the range in which all layers are healthy. If it is relative, it is around the middle of the values, and
    there is none for several configs."""
    if measure.spread is None or n_configs > 1 or not points:
        return measure.healthy
    values = [point["y"] for point in points]
    middle = (min(values) * max(values)) ** 0.5
    return middle / measure.spread**0.5, middle * measure.spread**0.5


def _y(points: _Points, measure: Measure) -> alt.Y:
    values = [point["y"] for point in points] or [1.0]
    if measure.is_logarithmic:
        low, high = min(values), max(values)
        middle = (low * high) ** 0.5
        domain = [min(low, middle / 2), max(high, middle * 2)]
        scale = alt.Scale(type="log", domain=domain, nice=False)
        return alt.Y("y:Q", scale=scale).axis(title=None, values=logarithmic(*domain), format="~g")
    is_share = measure.unit == "share"
    top = max(*values, 0.01 if is_share else 1.0)
    scale = alt.Scale(domain=[min(0.0, *values), top], nice=True)
    return alt.Y("y:Q", scale=scale).axis(title=None, tickCount=5, format="~%" if is_share else "~g")


def _is_drawn(value: float | None, measure: Measure) -> bool:
    return value is not None and (value > 0 or not measure.is_logarithmic)


def _whole_ticks(n: int) -> list[int]:
    step = max(1, round(n / 6))
    return [1, *(tick for tick in range(step, n + 1, step) if tick > 1 and tick - 1 >= 0.7 * step)]
