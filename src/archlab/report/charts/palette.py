"""Colors for light and dark mode, based on Okabe & Ito (2008) and viridis (2015).

Every color of a line or a label has a contrast ratio of at least 4.5 with the background (WCAG AA). The colors of one
picture can also be distinguished with protanopia, deuteranopia or tritanopia (color blindness). The test
tests/unit/test_palette.py measures how well.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from archlab.study.record import Verdict

Mode = Literal["light", "dark"]
MODES: tuple[Mode, ...] = ("light", "dark")

VERDICTS: tuple[Verdict, ...] = (
    "better",
    "not distinguishable",
    "worse",
    "diverged",
    "reference diverged",
    "too few runs",
    "differs",
    "equivalent",
    "equal",
)
"""Verdicts, in the order of `Palette.verdicts` and `SHAPES`."""

_BARS = "M-.8,-.8H.8V-.4H-.8ZM-.8,.4H.8V.8H-.8Z"
"""SVG path of two horizontal bars. With the line of the interval between them, they look like the symbol ≡."""

SHAPES = ("circle", "square", "diamond", "cross", "square", "square", "triangle-up", _BARS, _BARS)
"""Vega-Lite shapes of the marks, one for each of `VERDICTS`."""

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"

_MOST_DISTINCT = 8


class Palette(NamedTuple):
    """Colors of one mode, light or dark."""

    paper: str
    text: str
    faint: str
    line: str
    verdicts: tuple[str, ...]
    distinct: tuple[str, ...]
    """Colors for up to 8 arms that have no order, after Okabe & Ito. They differ from the blue and orange of
    verdicts."""
    ramp: tuple[str, ...]
    """Colors for a ladder study, or for more than 8 arms: gray for the first arm, then steadily lighter colors."""


PALETTES: dict[Mode, Palette] = {
    "light": Palette(
        paper="#ffffff",
        text="#23272e",
        faint="#626976",
        line="#dfe2e7",
        verdicts=("#0b6fa8", "#626976", "#b34d13", "#a3195b", "#626976", "#626976", "#5a4fb5", "#4b525d", "#4b525d"),
        distinct=("#5b626d", "#1f8555", "#ad559a", "#a66700", "#423092", "#7a4a12", "#3c76c2", "#084a71"),
        ramp=("#2b2e34", "#471998", "#3d3f9c", "#265386", "#316a71", "#4b713e", "#6f722f", "#90710b"),
    ),
    "dark": Palette(
        paper="#191c21",
        text="#e4e7eb",
        faint="#9aa2ae",
        line="#343942",
        verdicts=("#5db8ee", "#98a1ae", "#f0935a", "#f073ae", "#98a1ae", "#98a1ae", "#a79bf5", "#bcc3cd", "#bcc3cd"),
        distinct=("#aab1bc", "#3bc89a", "#cf8ccc", "#edb22c", "#9899f6", "#c28d56", "#93d3fa", "#c3d35a"),
        ramp=("#dde1e7", "#ae7395", "#7f8cdf", "#53abdc", "#34c0b7", "#5cda90", "#a7dc52", "#f1dc3c"),
    ),
}


def colors(n: int, mode: Mode, *, is_ladder: bool = False) -> list[str]:
    palette = PALETTES[mode]
    if is_ladder or n > _MOST_DISTINCT:
        gray, *others = palette.ramp
        return [gray, *(between(others, i / max(1, n - 2)) for i in range(n - 1))]
    return list(palette.distinct[:n])


FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
"""Fonts of pictures that are files. vl-convert contains the first one. Letters of the first three have the same
widths, so an SVG looks alike on every machine."""


def still_theme(category: Sequence[str]) -> dict[str, Any]:
    """Return the Vega-Lite config of pictures that are files. They have the colors of light mode on their own
    paper."""
    return vega_theme("light", category) | {"background": PALETTES["light"].paper, "font": FONT}


def vega_theme(mode: Mode, category: Sequence[str]) -> dict[str, Any]:
    """Return the Vega-Lite config of light or dark mode. `category` lists the colors of categories."""
    palette = PALETTES[mode]
    words = {"labelColor": palette.faint, "titleColor": palette.faint, "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": "transparent",
        "font": SANS,
        "view": {"stroke": None},
        "range": {
            "category": list(category),
            "ordinal": list(palette.verdicts),
            "ramp": list(palette.ramp[1:]),  # without the gray of a ladder's first arm
        },
        "axis": {
            **words,
            "gridColor": palette.line,
            "domain": False,
            "ticks": False,
            "titleFontWeight": "normal",
            "labelPadding": 6,
        },
        "legend": {**words, "labelColor": palette.text, "symbolStrokeWidth": 3, "symbolBaseFillColor": palette.faint},
        "title": {
            "color": palette.text,
            "subtitleColor": palette.faint,
            "anchor": "start",
            "fontSize": 14,
            "subtitleFontSize": 12,
        },
        "text": {"color": palette.text},
        "style": {
            "ground": {"color": palette.line},
            "notch": {"color": palette.faint},
            "dots": {"color": palette.distinct[1]},
            "healthy": {"color": palette.distinct[1], "opacity": 0.12},
            "median": {"color": palette.text},
        },
    }


def between(ramp: Sequence[str], share: float) -> str:
    """Return the color at this share of the way from the first color to the last one."""
    position = share * (len(ramp) - 1)
    left = min(int(position), len(ramp) - 2)
    ends = [[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in ramp[left : left + 2]]
    mixed = [round(a + (b - a) * (position - left)) for a, b in zip(*ends, strict=True)]
    return "#" + "".join(f"{value:02x}" for value in mixed)
