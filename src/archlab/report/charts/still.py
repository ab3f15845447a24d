"""A chart as an SVG without scripts, for pages that redraw it on the server."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import quoteattr

import altair as alt
import vl_convert

from archlab.report.charts.palette import MODES, PALETTES, Mode, Palette, vega_theme

_WIDTH = 440
"""Width of the chart in pixels. A page scales it: text stays legible on a phone, and is not too large on a desktop."""

_BETWEEN_COLUMNS = 40
"""Space between the columns of a legend in pixels. Fonts of a browser can be wider than those that measure labels."""


def still(chart: alt.LayerChart, name: str, colors: Mapping[Mode, Sequence[str]] | None = None) -> str:
    """Return the chart as an `<svg>` element with the colors of both light and dark mode.

    Layers that need a pointer are left out. `name` distinguishes the parts of several charts of a page. `colors` lists
    the colors of categories in each mode; by default, these are the palette's distinct colors.
    """
    spec = without_pointers(at_width(chart, _WIDTH))
    spec["config"] = vega_theme("light", PALETTES["light"].distinct if colors is None else colors["light"])
    spec["config"]["legend"]["columnPadding"] = _BETWEEN_COLUMNS
    svg = vl_convert.vegalite_to_svg(spec)
    return _own(svg, name, spec["description"], _dark_rules(colors))


def at_width(chart: alt.LayerChart, width: int) -> dict[str, Any]:
    """Return the spec of a chart of a page at a fixed width, in pixels. The width includes labels and legends."""
    spec: dict[str, Any] = chart.to_dict(validate=False)
    spec["width"], spec["autosize"] = width, {"type": "fit-x", "contains": "padding"}
    return json.loads(json.dumps(spec).replace("containerSize()[0]", str(width)))


def without_pointers(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec without the layers that need a pointer."""
    pointers = {view for param in spec.get("params", ()) for view in param.get("views", ())}
    layers = [layer for layer in spec["layer"] if layer.get("name") not in pointers and not _is_filtered(layer)]
    params = [param for param in spec.get("params", ()) if not param.get("views")]
    return {**spec, "layer": layers} | ({"params": params} if "params" in spec else {})


def _is_filtered(layer: dict[str, Any]) -> bool:
    """Return whether a layer shows only what the pointer is at."""
    return any(
        isinstance(step.get("filter"), dict) and "param" in step["filter"] for step in layer.get("transform", ())
    )


def _own(svg: str, name: str, description: str, dark_rules: str) -> str:
    """Return the SVG with one description, own identifiers, and rules for dark mode."""
    head, _, body = svg.partition(">")
    body = re.sub(r' (?:role|aria-[a-z]+)="[^"]*"', "", body)
    body = re.sub(r'(id="|url\(#)(?=clip|gradient)', rf"\1{name}-", body)
    (view_box,) = re.findall(r'viewBox="[^"]*"', head)
    start = f'<svg xmlns="http://www.w3.org/2000/svg" class="archlab-chart" role="img" {view_box}'
    return f"{start} aria-label={quoteattr(description)}><style>{dark_rules}</style>{body}"


def _dark_rules(colors: Mapping[Mode, Sequence[str]] | None) -> str:
    """Return CSS that replaces each color of light mode by that of dark mode."""
    light, dark = ([*_colors(PALETTES[mode]), *(colors[mode] if colors else ())] for mode in MODES)
    pairs = dict(zip(light, dark, strict=True))
    rules = " ".join(
        f'.archlab-chart [{attribute}="{color}"] {{ {attribute}: {other} }}'
        for color, other in pairs.items()
        for attribute in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme: dark) {{ {rules} }}"


def _colors(palette: Palette) -> list[str]:
    single = (palette.paper, palette.text, palette.faint, palette.line)
    return [*palette.verdicts, *palette.ramp, *palette.distinct, *single]
