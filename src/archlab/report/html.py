"""What our pages are made of: templates, styles and Vega."""

from functools import cache
from importlib import resources
from importlib.metadata import version
from typing import Any

import altair as alt
import jinja2
import vl_convert
from markupsafe import Markup

from archlab.config.core.text import visible
from archlab.data.file_cache import cached


def template(name: str) -> jinja2.Template:
    """One of our templates; what it prints is escaped, what it lacks an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("archlab.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
    )
    environment.globals |= {"inline": inline, "vega": vega}
    return environment.get_template(name)


def _shown(value: object) -> object:
    """Return the value as a template prints it: text as `visible` shows it, and our own markup as it is."""
    return value if hasattr(value, "__html__") else visible(str(value))


def full_width(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Vega-Lite that is as wide as its place on the page. That it is valid is what tests ask."""
    return {**chart.to_dict(validate=False), "autosize": {"type": "fit-x", "contains": "padding"}}


@cache
def vega() -> Markup:
    """Vega, Vega-Lite and vega-embed as one script, from the wheel of vl-convert, which takes a second to bundle it."""
    snippet = "window.vegaEmbed = vegaEmbed;"
    key = ["vega", version("vl-convert-python"), snippet]
    return _safe_inline(cached(key, [], lambda: vl_convert.javascript_bundle(snippet)))


def inline(name: str) -> Markup:
    """A style or a script of ours, from the templates."""
    return _safe_inline((resources.files("archlab.report") / "templates" / name).read_text(encoding="utf-8"))


def _safe_inline(code: str) -> Markup:
    """Our own or Vega's code as it is, after making sure that it does not close the element it stands in."""
    if "</script" in code or "</style" in code or "<!--" in code:
        raise ValueError("code to inline would end its element early")
    return Markup(code)
