"""The report's charts as one PNG, drawn without a browser."""

import textwrap

import altair as alt
import vl_convert

from archlab.errors import UserError
from archlab.report import curve_charts, palette, row_charts
from archlab.study.record import StudySummary

_PANEL = 460
"""Pixels of each of the two upper panels, before scaling."""

_SCALE = 2
_FONT = "Liberation Sans"
"""vl-convert carries it, so the picture looks the same on every machine."""


_HALF = 330
"""Of the curves: the arms' names stand to the right of them."""


def picture(summary: StudySummary) -> bytes:
    """Levels beside differences, the learning curves below, under the study's question; light, as a PNG.

    UserError where it cannot be drawn.
    """
    rows = [_rows(summary, whole=False)]
    if row_charts.levels_are_cut(summary) or row_charts.differences_are_cut(summary):
        rows.append(_rows(summary, whole=True))
    lines = [curve_charts.evaluations(summary, _HALF), curve_charts.last_half(summary, _HALF)]
    parts = [*rows, _beside([chart for chart in lines if chart])] if any(lines) else rows
    question = textwrap.wrap(summary.question, 110)
    title = alt.TitleParams(question, subtitle=textwrap.wrap(summary.answer, 150), fontSize=18, offset=18)
    whole = alt.vconcat(*parts, spacing=36, padding=24, title=title).resolve_scale(color="independent")
    config = palette.study_theme(summary, "light") | {
        "background": palette.PALETTES["light"].paper,
        "font": _FONT,
    }
    try:
        return vl_convert.vegalite_to_png(whole.to_dict(validate=False), config=config, scale=_SCALE)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # its panics are no Exception
        raise UserError(f"the picture cannot be drawn: {error}") from error


def _rows(summary: StudySummary, *, whole: bool) -> alt.HConcatChart:
    """Where each arm stands, and how far from its reference."""
    charts = [row_charts.levels(summary, _PANEL, whole=whole)]
    if differences := row_charts.differences(summary, _PANEL, legend=True, whole=whole):
        charts.append(differences)
    return _beside(charts)


def _beside(charts: list[alt.LayerChart]) -> alt.HConcatChart:
    return alt.hconcat(*charts, spacing=48).resolve_scale(color="independent", shape="independent")
