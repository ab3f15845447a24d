"""The report's charts as one PNG, drawn without a browser."""

import textwrap
from typing import Any

import altair as alt
import vl_convert

from archlab.errors import UserError
from archlab.report.charts import palette
from archlab.report.study import arms as row_charts
from archlab.report.study import curves as curve_charts
from archlab.study.record import StudySummary

_PANEL = 460
"""Width in pixels of each of the two upper panels, before scaling."""

_SCALE = 2
_FONT = "Liberation Sans"
"""vl-convert carries it, so the picture looks the same on every machine."""


_HALF = 330
"""Width of a panel of curves; the arms' names stand to the right of it."""

_LINE = 80
"""Letters in a line of a panel's caption."""


def picture(summary: StudySummary) -> bytes:
    """Return a PNG in light colors: levels beside differences, and the learning curves below, under the study's
    question. Raise UserError if it cannot be drawn."""
    whole, config = drawn(summary)
    try:
        return vl_convert.vegalite_to_png(whole, config=config, scale=_SCALE)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # its panics are no Exception
        raise UserError(f"the picture cannot be drawn: {error}") from error


def drawn(summary: StudySummary) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the picture before it is a PNG: its Vega-Lite spec and its Vega-Lite config."""
    rows = [_rows(summary, whole=False)]
    if row_charts.levels_are_cut(summary) or row_charts.differences_are_cut(summary):
        rows.append(_rows(summary, whole=True))
    parts = [*rows, *_curves(summary)]
    question = textwrap.wrap(summary.question, 110)
    title = alt.TitleParams(question, subtitle=textwrap.wrap(summary.answer, 150), fontSize=18, offset=18)
    whole = alt.vconcat(*parts, spacing=36, padding=24, title=title).resolve_scale(color="independent")
    config = palette.study_theme(summary, "light") | {
        "background": palette.PALETTES["light"].paper,
        "font": _FONT,
    }
    return whole.to_dict(validate=False), config


def _rows(summary: StudySummary, *, whole: bool) -> alt.HConcatChart:
    """Charts of the level of each arm and of its difference from its reference."""
    title, beyond = summary.outcome.title, ", the whole range" if whole else ""
    levels = row_charts.levels(summary, _PANEL, whole=whole)
    charts = [_titled(levels, f"{title[:1].upper()}{title[1:]}{beyond}", row_charts.levels_show(summary))]
    if differences := row_charts.differences(summary, _PANEL, legend=True, whole=whole):
        title = "Step by step" if summary.against == "previous" else f"Against {row_charts.reference_of(summary)}"
        charts.append(_titled(differences, f"{title}{beyond}", row_charts.DIFFERENCES_SHOW))
    return _beside(charts)


def _curves(summary: StudySummary) -> list[alt.HConcatChart]:
    """The learning curves, and their second half; none if there are no evaluations."""
    said = curve_charts.LINES_SHOW
    if any(arm.diverged for arm in summary.arms):
        said = f"{said} {curve_charts.THIN_LINES_SHOW}"
    titles = {"From the first step on": said, "The second half": "The same evaluations, on axes of their own."}
    found = (curve_charts.evaluations(summary, _HALF), curve_charts.last_half(summary, _HALF))
    charts = [_titled(chart, *title) for chart, title in zip(found, titles.items(), strict=True) if chart]
    return [_beside(charts)] if charts else []


def _titled(chart: alt.LayerChart, title: str, caption: str) -> alt.LayerChart:
    return chart.properties(title=alt.TitleParams(title, subtitle=textwrap.wrap(caption, _LINE), offset=14))


def _beside(charts: list[alt.LayerChart]) -> alt.HConcatChart:
    return alt.hconcat(*charts, spacing=48).resolve_scale(color="independent", shape="independent")
