"""How every page is made: a template, what it shows and its charts become one HTML file that loads nothing."""

from collections.abc import Mapping, Sequence
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
from archlab.report.charts.palette import MODES, PALETTES, Mode, vega_theme


def render_page(
    template: str,
    charts: Mapping[str, alt.TopLevelMixin | None] | None = None,
    colours: Mapping[Mode, Sequence[str]] | None = None,
    **shown: Any,
) -> str:
    """Return the page of that template as text: styles, charts and Vega itself are inlined.

    `charts`: by the name of their place on the page; None if there is nothing to draw. Vega is on pages with charts
    only. `colours`: of what is told apart by color; by default the palette's distinct ones. `shown`: the template's
    values. What it prints is escaped, what it lacks is an error.
    """
    colours = colours or {mode: PALETTES[mode].distinct for mode in MODES}
    return (
        _environment()
        .get_template(f"{template}.html.jinja")
        .render(
            specs={name: _full_width(chart) for name, chart in (charts or {}).items() if chart is not None},
            themes={mode: vega_theme(mode, colours[mode]) for mode in MODES},
            colours=list(zip(*(colours[mode] for mode in MODES), strict=True)),
            **shown,
        )
    )


def sentence(title: str) -> str:
    """Return the title with a capital first letter, and the others as they are."""
    return title[:1].upper() + title[1:]


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("archlab.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
    )
    environment.globals |= {"inline": _inline, "sentence": sentence, "vega": _vega}
    return environment


def _shown(value: object) -> object:
    """Return the value as a template prints it: text as `visible` shows it, and our own markup as it is."""
    return value if hasattr(value, "__html__") else visible(str(value))


def _full_width(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Vega-Lite that is as wide as its place on the page. That it is valid is what tests ask."""
    return {**chart.to_dict(validate=False), "autosize": {"type": "fit-x", "contains": "padding"}}


@cache
def _vega() -> Markup:
    """Vega, Vega-Lite and vega-embed as one script, from the wheel of vl-convert, which takes a second to bundle it."""
    snippet = "window.vegaEmbed = vegaEmbed;"
    key = ["vega", version("vl-convert-python"), snippet]
    return _safe_inline(cached(key, [], lambda: vl_convert.javascript_bundle(snippet)))


def _inline(name: str) -> Markup:
    """A style or a script of ours, from the templates."""
    return _safe_inline((resources.files("archlab.report") / "templates" / name).read_text(encoding="utf-8"))


def _safe_inline(code: str) -> Markup:
    """Our own or Vega's code as it is, after making sure that it does not close the element it stands in."""
    if "</script" in code or "</style" in code or "<!--" in code:
        raise ValueError("code to inline would end its element early")
    return Markup(code)
