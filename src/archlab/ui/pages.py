"""Rendering of screens: a template of this folder, inside the frame that all screens share."""

from functools import partial
from typing import Any

from starlette.responses import HTMLResponse

from archlab.report.html import render_part

rendered = partial(render_part, ("archlab.ui", "archlab.report"))
"""Return a part of a screen as HTML. Everything that the template prints is escaped."""


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a screen. `values` are the template's variables."""
    return HTMLResponse(rendered(template, **values), status)
