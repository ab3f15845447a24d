"""A chart as an SVG without scripts, for pages that redraw it on the server."""

import json
import re
from typing import Any
from xml.sax.saxutils import quoteattr

import altair as alt
import vl_convert

from archlab.report.charts.palette import PALETTES, Palette, vega_theme

_WIDTH = 440
"""Width of the chart in pixels. A page scales it: text stays legible on a phone, and is not too large on a desktop."""


def still(chart: alt.LayerChart, name: str) -> str:
    """Return the chart as an `<svg>` element with the colors of both light and dark mode.

    Layers that need a pointer are left out. `name` distinguishes the parts of several charts of a page.
    """
    spec: dict[str, Any] = chart.to_dict(validate=False)
    pointers = {view for param in spec.pop("params", ()) for view in param.get("views", ())}
    spec["layer"] = [layer for layer in spec["layer"] if layer.get("name") not in pointers and not _is_filtered(layer)]
    spec["width"], spec["autosize"] = _WIDTH, {"type": "fit-x", "contains": "padding"}
    spec["config"] = vega_theme("light", PALETTES["light"].distinct)
    svg = vl_convert.vegalite_to_svg(json.dumps(spec).replace("containerSize()[0]", str(_WIDTH)))
    return _own(svg, name, spec["description"])


def _is_filtered(layer: dict[str, Any]) -> bool:
    """Return whether a layer shows only what the pointer is at."""
    return any(
        isinstance(step.get("filter"), dict) and "param" in step["filter"] for step in layer.get("transform", ())
    )


def _own(svg: str, name: str, description: str) -> str:
    """Return the SVG with one description, own identifiers, and rules for dark mode."""
    head, _, body = svg.partition(">")
    body = re.sub(r' (?:role|aria-[a-z]+)="[^"]*"', "", body)
    body = re.sub(r'(id="|url\(#)(?=clip|gradient)', rf"\1{name}-", body)
    (view_box,) = re.findall(r'viewBox="[^"]*"', head)
    start = f'<svg xmlns="http://www.w3.org/2000/svg" class="archlab-chart" role="img" {view_box}'
    return f"{start} aria-label={quoteattr(description)}><style>{_dark_rules()}</style>{body}"


def _dark_rules() -> str:
    """Return CSS that replaces each color of light mode by that of dark mode."""
    light, dark = (PALETTES[mode] for mode in ("light", "dark"))
    pairs = dict(zip(_colors(light), _colors(dark), strict=True))
    rules = " ".join(
        f'.archlab-chart [{attribute}="{color}"] {{ {attribute}: {other} }}'
        for color, other in pairs.items()
        for attribute in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme: dark) {{ {rules} }}"


def _colors(palette: Palette) -> list[str]:
    single = (palette.paper, palette.text, palette.faint, palette.line)
    return [*palette.verdicts, *palette.ramp, *palette.distinct, *single]
