"""Rendering of screens: a template of this folder, inside the frame that all screens share."""

from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup
from starlette.responses import HTMLResponse

from archlab.report.html import environment


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a screen. `values` are the template's variables. Everything that the template prints is escaped."""
    return HTMLResponse(rendered(template, **values), status)


def rendered(template: str, **values: Any) -> Markup:
    """Return a part of a screen as HTML."""
    return Markup(_templates().get_template(f"{template}.html.jinja").render(values))


@cache
def _templates() -> jinja2.Environment:
    return environment("archlab.ui", "archlab.report")
