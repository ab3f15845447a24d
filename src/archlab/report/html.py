"""Rendering of all pages. A template, its values and its charts become one HTML file that loads no other files."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup, escape

from archlab.config.core.text import command_line, visible
from archlab.data.file_cache import cached
from archlab.report.charts.palette import MODES, PALETTES, Mode, vega_theme
from archlab.report.formulas import typeset

if TYPE_CHECKING:
    import altair as alt
    from markdown_it import MarkdownIt


def render_page(
    template: str,
    charts: "Mapping[str, alt.TopLevelMixin | None] | None" = None,
    colors: Mapping[Mode, Sequence[str]] | None = None,
    **values: Any,
) -> str:
    """Return the page of this template as HTML, with styles, charts and Vega inlined.

    `charts` maps the name of each place on the page to its chart, or to None if there is nothing to draw. Only pages
    with charts contain Vega. `colors` lists the colors of categories in each mode; by default, these are the palette's
    distinct colors. `values` are the template's variables. Everything that the template prints is escaped, and a
    missing variable is an error.
    """
    colors = colors or _DISTINCT
    return (
        _environment()
        .get_template(f"{template}.html.jinja")
        .render(
            specs={name: _full_width(chart) for name, chart in (charts or {}).items() if chart is not None},
            themes={mode: vega_theme(mode, colors[mode]) for mode in MODES},
            colors=_in_pairs(colors),
            **values,
        )
    )


_DISTINCT: Mapping[Mode, Sequence[str]] = {mode: PALETTES[mode].distinct for mode in MODES}


def _in_pairs(colors: Mapping[Mode, Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the colors of each category, one for each mode."""
    return list(zip(*(colors[mode] for mode in MODES), strict=True))


def sentence(title: str) -> str:
    """Return the title with its first letter capitalized and the rest unchanged."""
    return title[:1].upper() + title[1:]


def with_code(text: str) -> Markup:
    """Return a paragraph as HTML. Text between backticks becomes code, and all other characters stay as they are."""
    return Markup(unbroken(_markdown().renderInline(visible(text))))


@cache
def _markdown() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    return MarkdownIt("zero").enable("backticks")


def in_terminal(*commands: str) -> Markup:
    """Return commands as a block with one per line, in which no line breaks inside an option."""
    lines = (_OPTION.sub(r'<span class="flag">\g<0></span>', str(escape(visible(command)))) for command in commands)
    return Markup('<pre class="commands">' + "\n".join(lines) + "</pre>")


def unbroken(html: str) -> str:
    """Return HTML in which no line breaks inside an option such as `--measure` in code."""
    return re.sub(
        r"<code>[^<]*--[^<]*</code>", lambda code: _OPTION.sub(r'<span class="flag">\g<0></span>', code[0]), html
    )


_OPTION = re.compile(r"(?<![\w-])--[\w-]+")


def render_part(packages: tuple[str, ...], template: str, **values: Any) -> Markup:
    """Return a template of one of these packages as HTML, without the styles and scripts of a page.

    If several packages have the template, the first one's is used. A missing variable is an error.
    """
    return Markup(_environment(packages).get_template(f"{template}.html.jinja").render(values))


@cache
def _environment(packages: tuple[str, ...] = ("archlab.report",)) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package) for package in packages]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printed,
    )
    environment.globals |= {
        "colors": _in_pairs(_DISTINCT),
        "command": command_line,
        "in_terminal": in_terminal,
        "inline": inlined,
        "sentence": sentence,
        "typeset": typeset,
        "vega": _vega,
        "with_code": with_code,
    }
    return environment


def _printed(value: object) -> object:
    """Return the value in the form in which a template prints it. Markup stays as it is. Everything else is converted
    to text without hidden characters, by `visible`."""
    return value if hasattr(value, "__html__") else visible(str(value))


def _full_width(chart: "alt.TopLevelMixin") -> dict[str, Any]:
    return {**chart.to_dict(validate=False), "autosize": {"type": "fit-x", "contains": "padding"}}


@cache
def _vega() -> Markup:
    """Return Vega, Vega-Lite and vega-embed as one script from the vl-convert wheel. Bundling takes about a second."""
    import vl_convert

    snippet = "window.vegaEmbed = vegaEmbed;"
    key = ["vega", version("vl-convert-python"), snippet]
    return _safe_inline(cached(key, [], lambda: vl_convert.javascript_bundle(snippet)))


def inlined(name: str) -> Markup:
    """Return a style sheet or a script of the folder `templates` as markup."""
    return _safe_inline((resources.files("archlab.report") / "templates" / name).read_text(encoding="utf-8"))


def _safe_inline(code: str) -> Markup:
    """Return the code unchanged as markup. Raise ValueError if the code would end the `<script>` or `<style>` element
    around it."""
    if "</script" in code or "</style" in code or "<!--" in code:
        raise ValueError("the code to inline would close its element early")
    return Markup(code)
