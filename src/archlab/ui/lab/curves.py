"""Learning curves as a small SVG that a page can replace every second."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from archlab.pricing.units import count
from archlab.report.charts.axes import plain
from archlab.report.charts.palette import MODES, colors
from archlab.report.run.watched import Watched
from archlab.training.run_files import parts

TRAINING_LOSS = "Training loss in nats per token"
"""Title of a chart of training losses."""

_MARGIN = 34
"""Space around the axes, in pixels."""

_LEFT = 64
"""Space for the numbers beside the vertical axis, in pixels."""


class Curve(NamedTuple):
    """Values over training tokens."""

    label: str
    color: int
    """Place in the list of colors. Curves of one arm share a color."""
    points: Sequence[tuple[float, float]]
    """(tokens, value), in the order of the tokens."""


class Line(NamedTuple):
    """Curve as points of the SVG."""

    label: str
    points: str
    color: int


class Chart(NamedTuple):
    """Lines and the numbers at the ends of their axes."""

    title: str
    lines: list[Line]
    across: list[tuple[float, str]]
    """Place and label of each tick of the horizontal axis, which shows training tokens."""
    up: list[tuple[float, str]]
    """Place and label of each tick of the vertical axis."""
    range: str
    """Smallest and largest value in words."""
    width: int = 640
    height: int = 260
    left: int = _LEFT
    margin: int = _MARGIN


def chart(title: str, curves: Sequence[Curve]) -> Chart | None:
    """Return the chart of the curves that have two points or more. Return None if there are none."""
    curves = [curve for curve in curves if len(curve.points) > 1]
    if not curves:
        return None
    values = [value for curve in curves for _, value in curve.points]
    low, high, last = min(values), max(values), max(curve.points[-1][0] for curve in curves)
    empty = Chart(title, [], [], [], f"from {low:.3f} to {high:.3f}")

    def x(tokens: float) -> float:
        return round(empty.left + tokens * (empty.width - empty.left - empty.margin) / last, 1)

    def y(value: float) -> float:
        return round(
            empty.height - empty.margin - (value - low) * (empty.height - 2 * empty.margin) / (high - low or 1), 1
        )

    return empty._replace(
        lines=[Line(curve.label, " ".join(f"{x(t)},{y(v)}" for t, v in curve.points), curve.color) for curve in curves],
        across=[(x(tick), count(tick)) for tick in plain(0, last)],
        up=[(y(tick), f"{tick:g}") for tick in plain(low, high)],
    )


def training_loss(run: Watched, label: str, color: int, most: int) -> Curve:
    """Return the training loss of a run, averaged over parts of its updates, with at most `most` points."""
    points = [(part[-1]["tokens"], fmean(line["loss"] for line in part)) for part in parts(run.updates, most)]
    return Curve(label, color, points)


def held_out(run: Watched, label: str, color: int) -> Curve:
    """Return the evaluations of a run. Those before any training are left out, because they would flatten the curve."""
    return Curve(label, color, [(line["tokens"], line[run.measure]) for line in run.evaluations if line["tokens"]])


def line_colors(n: int) -> list[tuple[str, str]]:
    """Return the colors of `n` curves, in light and dark mode."""
    light, dark = (colors(n, mode) for mode in MODES)
    return list(zip(light, dark, strict=True))
