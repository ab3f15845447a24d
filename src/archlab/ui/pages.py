"""Rendering of screens: a template of this folder, inside the frame that all screens share."""

import re
from functools import partial
from importlib import resources
from typing import Any

from markupsafe import Markup
from starlette.responses import HTMLResponse

from archlab.report.html import render_part

rendered = partial(render_part, ("archlab.ui", "archlab.report"))
"""Return a part of a screen as HTML. Everything that the template prints is escaped."""


_LINK = re.compile(r'<a\b[^>]*\bhref="/[^"]*"[^>]*>(.*?)</a>', re.DOTALL)
"""Link to another screen, with its text."""


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a screen. `values` are the template's variables."""
    return HTMLResponse(rendered(template, own_style=None, **values), status)


def as_file(template: str, **values: Any) -> str:
    """Return a screen as one HTML file that needs no server: without controls, and without links to other screens."""
    static = resources.files("archlab.ui") / "static"
    own_style = "".join((static / name).read_text(encoding="utf-8") for name in ("ui.css", "models.css"))
    return _LINK.sub(r"\1", rendered(template, own_style=Markup(own_style), **values))
