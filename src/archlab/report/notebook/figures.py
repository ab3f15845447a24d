"""Charts of pages as values of Python: Altair charts that a person can restyle, and files for papers."""

from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import altair as alt
import vl_convert

from archlab.config.problems import choose
from archlab.displayed import FigureFormat
from archlab.errors import UserError
from archlab.report.charts.files import svg_file
from archlab.report.charts.palette import MODES, Mode, colors, still_theme
from archlab.report.charts.still import at_width, without_pointers
from archlab.report.run import page as run_page
from archlab.report.run.watched import Watched, load_run
from archlab.report.study import page as study_page
from archlab.report.study.arms import arm_colors, differences
from archlab.study.record import StudySummary
from archlab.training.summary import RunSummary

_WIDTH = 520
"""Width of a chart in pixels, with its labels. A column of a paper is about as wide in points."""

_COLUMNS = 3
"""Maximum number of entries in a line of a legend. More would not fit."""


class Charts(NamedTuple):
    """Charts of a value by name, and the colors of their lines. A notebook shows the first chart."""

    by_name: Mapping[str, alt.LayerChart]
    colors: Mapping[Mode, Sequence[str]]


@singledispatch
def charts_of(value: object) -> Charts:
    """Return the charts of a value. Each class of values has its own function."""
    raise TypeError(f"no charts of {type(value).__name__}")


@charts_of.register
def _(value: StudySummary) -> Charts:
    forest = forest_of(value, legend=True)
    others = {**study_page.charts_of(value), **forest.by_name}
    return Charts({**forest.by_name, **_existing(others)}, forest.colors)


def forest_of(study: StudySummary, *, legend: bool = False) -> Charts:
    """Return the forest plot of a study. There is none if nothing was compared."""
    charts = _existing({"differences": differences(study, legend=legend)})
    return Charts(charts, {mode: arm_colors(study, mode) for mode in MODES})


@charts_of.register
def _(value: Watched) -> Charts:
    charts, _ = run_page.charts_of([value])
    return Charts(_existing(charts), {mode: colors(1, mode) for mode in MODES})


@charts_of.register
def _(value: RunSummary) -> Charts:
    if value.folder is None:
        raise UserError("the summary does not come from a run folder, so there are no curves; use archlab.load_run")
    return charts_of(load_run(value.folder))


def _existing(charts: Mapping[str, alt.LayerChart | None]) -> dict[str, alt.LayerChart]:
    return {name: chart for name, chart in charts.items() if chart is not None}


def chart_of(value: object, name: str | None) -> alt.LayerChart:
    """Return the chart of this name, or the first one, at a fixed width and with the colors of light mode."""
    return alt.LayerChart.from_dict(_spec(value, name), validate=False)


def figure_of(value: object, format: FigureFormat, name: str | None) -> bytes:
    """Return the chart of this name, or the first one, as the content of a file."""
    return svg_file(vl_convert.vegalite_to_svg(without_pointers(_spec(value, name))), format)


def _spec(value: object, name: str | None) -> dict[str, Any]:
    charts = charts_of(value)
    if not charts.by_name:
        raise UserError("there is nothing to draw yet: no evaluation and no comparison")
    name = next(iter(charts.by_name)) if name is None else name
    if name not in charts.by_name:
        raise UserError(f"name: {name!r}{choose(str(name), [*charts.by_name])}")
    theme = still_theme(charts.colors["light"])
    theme["legend"] = {**theme["legend"], "columns": _COLUMNS}
    return at_width(charts.by_name[name], _WIDTH) | {"config": theme}
