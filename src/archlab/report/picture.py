"""The report's charts as one PNG, drawn without a browser."""

import textwrap

import altair as alt
import vl_convert

from archlab.errors import UserError
from archlab.report import charts, palette
from archlab.study.record import StudySummary

_PANEL = 460
"""Pixels of each of the two upper panels, before scaling."""

_SCALE = 2
_FONT = "Liberation Sans"
"""vl-convert carries it, so the picture looks the same on every machine."""


def picture(summary: StudySummary) -> bytes:
    """Levels beside differences, the learning curves below, under the study's question; light, as a PNG.

    UserError where it cannot be drawn.
    """
    upper = [charts.levels(summary, _PANEL)]
    if differences := charts.differences(summary, _PANEL, legend=True):
        upper.append(differences)
    parts: list[alt.HConcatChart | alt.LayerChart] = [
        alt.hconcat(*upper, spacing=48).resolve_scale(color="independent", shape="independent")
    ]
    if curves := charts.curves(summary, 2 * _PANEL - 110, legend=True):
        parts.append(curves)
    question = textwrap.wrap(summary.question, 110)
    title = alt.TitleParams(question, subtitle=textwrap.wrap(summary.answer, 150), fontSize=18, offset=18)
    whole = alt.vconcat(*parts, spacing=36, padding=24, title=title).resolve_scale(color="independent")
    config = palette.study_theme(summary, "light") | {
        "background": palette.PALETTES["light"].paper,
        "font": _FONT,
    }
    try:
        return vl_convert.vegalite_to_png(whole.to_dict(), config=config, scale=_SCALE)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # its panics are no Exception
        raise UserError(f"the picture cannot be drawn: {error}") from error
