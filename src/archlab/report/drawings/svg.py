"""Shapes of a picture, and their conversion to SVG.

The SVG is legible in light and dark mode, and loads no other files.
"""

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, NewType, cast
from xml.sax.saxutils import escape, quoteattr
from zlib import crc32

from archlab.config.core.text import visible
from archlab.displayed import FigureFormat
from archlab.files import make_folder, write_atomic
from archlab.report.charts.palette import MODES, PALETTES, Mode, between

Svg = NewType("Svg", str)
"""Complete `<svg>` element as text."""

TITLE, SMALL = 13, 11.5
"""Font sizes in pixels: for the title of a box, and for the lines under the title."""

_PAD_X, _PAD_Y, _LEADING = 10, 6, 15
_FOLD = 240

ROLES = {"io": 0, "mixer": 1, "mlp": 2, "norm": 3, "position": 4, "attention": 6}
"""Map the role of a box to an index into the palette's distinct colors. Roles that are not listed have the first
color."""


class Words(NamedTuple):
    """Text of a box: a title, and small lines under the title."""

    title: str
    lines: tuple[str, ...] = ()

    def fitted(self) -> "Words":
        """Return a copy of the text in which long lines are wrapped."""
        return Words(self.title, tuple(part for line in self.lines for part in folded(line, SMALL, _FOLD)))

    @property
    def width(self) -> float:
        lines = [text_width(line, SMALL) for line in self.lines]
        return 2 * _PAD_X + max(text_width(self.title, TITLE, bold=True), *lines, 0)

    @property
    def height(self) -> float:
        return 2 * _PAD_Y + _LEADING * (1 + len(self.lines))


class Box(NamedTuple):
    """Rectangle with text. `up` is the height of the lower edge above the bottom of the picture."""

    part: str
    """Part of the model that the box shows, for example `attention` or `attention norm before`."""
    role: str
    x: float
    up: float
    width: float
    height: float
    words: Words

    @property
    def top(self) -> float:
        """Height of the upper edge above the bottom of the picture."""
        return self.up + self.height


class Wire(NamedTuple):
    """Line through `points`, each of which is (x, up)."""

    points: Sequence[tuple[float, float]]
    arrow: bool = False
    is_stream: bool = False
    is_source: bool = False
    """Whether the wire carries the encoder's output. A component draws only the last part of such a wire."""


class Plus(NamedTuple):
    """Circle at the point where two wires are added."""

    x: float
    up: float

    radius = 8


class Times(NamedTuple):
    """Circle at the point where two wires are multiplied element by element."""

    x: float
    up: float

    radius = 8


class Label(NamedTuple):
    """Line of text without a box. `up` is the height of the baseline. A text that belongs to a part of the model can
    be highlighted, like those in boxes."""

    text: str
    x: float
    up: float
    size: float = SMALL
    bold: bool = False
    anchor: str = "start"
    faint: bool = False
    part: str = ""

    @property
    def width(self) -> float:
        return text_width(self.text, self.size, bold=self.bold)


class Frame(NamedTuple):
    """Rounded rectangle around related parts, in one of the palette's colors. If `color` is None, the frame is
    faint."""

    part: str
    x: float
    up: float
    width: float
    height: float
    color: int | None


class Inside(NamedTuple):
    """Dashed rectangle around the parts of one component."""

    part: str
    role: str
    x: float
    up: float
    width: float
    height: float


class Cell(NamedTuple):
    """Filled rectangle in one of the palette's colors. If `color` is None, the rectangle has the palette's color for
    lines."""

    part: str
    x: float
    up: float
    width: float
    height: float
    color: int | None = 0
    title: str = ""


_ARROW = "archlab-arrow"

Shape = Box | Wire | Plus | Times | Label | Frame | Inside | Cell


_OPPOSITE = {"start": "end", "middle": "middle", "end": "start"}


def mirrored(shape: Shape, width: float) -> Shape:
    """Return the shape at its mirrored position in a picture of this width. Text stays readable."""
    match shape:
        case Box() | Frame() | Inside() | Cell():
            return shape._replace(x=width - shape.x - shape.width)
        case Wire():
            return shape._replace(points=[(width - x, up) for x, up in shape.points])
        case Plus() | Times():
            return shape._replace(x=width - shape.x)
        case Label():
            return shape._replace(x=width - shape.x, anchor=_OPPOSITE[shape.anchor])


def to_svg(
    shapes: Iterable[Shape],
    width: float,
    height: float,
    title: str,
    marked: frozenset[tuple[str, str]] = frozenset(),
    least_width: float = 0,
) -> Svg:
    """Return the shapes as an SVG of this width and height.

    `title` is for readers who cannot see the picture. `marked` holds pairs (part, text); these texts and their boxes
    are highlighted. A page may shrink the picture to `least_width`; a narrower page must let readers scroll.
    """
    least = f' style="min-width: {least_width:.0f}px"' if least_width else ""
    body = "\n".join(_element(shape, height, marked) for shape in shapes)
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="archlab-drawing" role="img" aria-label={quoteattr(title)} '
        f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"{least}>\n'
        f"<title>{escape(title)}</title>\n<style>{_style()}</style>\n"
        f'<defs><marker id="{_ARROW}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
        'markerUnits="userSpaceOnUse" orient="auto"><path class="tip" d="M0,1 L8,4 L0,7 Z"/></marker></defs>\n'
        f'<rect class="paper" width="{width:.0f}" height="{height:.0f}" rx="6"/>\n{body}\n</svg>\n'
    )
    # Each SVG on a page needs its own arrow tip, because the tip of a hidden SVG would be hidden.
    text = visible(text)
    return Svg(text.replace(_ARROW, f"{_ARROW}-{crc32(text.encode()):08x}"))


def _element(shape: Shape, height: float, marked: frozenset[tuple[str, str]]) -> str:
    match shape:
        case Box():
            return _box(shape, height, marked)
        case Wire(points, arrow, is_stream, _):
            path = " L".join(f"{x:.1f},{height - up:.1f}" for x, up in points)
            end = f' marker-end="url(#{_ARROW})"' if arrow else ""
            return f'<path class="wire{" stream" if is_stream else ""}" d="M{path}"{end}/>'
        case Plus(x, up) | Times(x, up):
            y, arm, kind = height - up, shape.radius - 3, type(shape).__name__.lower()
            cross = f"M{x - arm:.1f},{y:.1f} h{2 * arm} M{x:.1f},{y - arm:.1f} v{2 * arm}"
            turned = "" if kind == "plus" else f' transform="rotate(45 {x:.1f} {y:.1f})"'
            circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{shape.radius}"/>'
            return f'<g class="{kind}">{circle}<path d="{cross}"{turned}/></g>'
        case Label():
            kinds = {"bold": shape.bold, "faint": shape.faint, "differs": (shape.part, shape.text) in marked}
            kind = " ".join(["label", *(name for name, has_it in kinds.items() if has_it)])
            place = f'x="{shape.x:.1f}" y="{height - shape.up:.1f}" font-size="{shape.size}"'
            return f'<text class="{kind}" {place} text-anchor="{shape.anchor}">{escape(shape.text)}</text>'
        case Frame():
            kind = "cycle" if shape.color is None else f"frame kind-{shape.color % KINDS}"
            part = quoteattr(shape.part)
            return f'<rect class="{kind}" data-part={part} {_place(shape, height)} rx="10"/>'
        case Inside():
            part = f"data-part={quoteattr(shape.part)}"
            return f'<g class="inside {shape.role}"><rect {part} {_place(shape, height)} rx="8"/></g>'
        case Cell():
            kind = "blank" if shape.color is None else f"kind-{shape.color % KINDS}"
            cell_title = f"<title>{escape(shape.title)}</title>" if shape.title else ""
            part = f"data-part={quoteattr(shape.part)}"
            return f'<rect class="cell {kind}" {part} {_place(shape, height)}>{cell_title}</rect>'


def _place(shape: Box | Frame | Inside | Cell, height: float) -> str:
    y = height - shape.up - shape.height
    return f'x="{shape.x:.2f}" y="{y:.2f}" width="{shape.width:.2f}" height="{shape.height:.2f}"'


def _box(box: Box, height: float, marked: frozenset[tuple[str, str]]) -> str:
    middle = f'x="{box.x + box.width / 2:.1f}"'
    first = height - box.top + (box.height - _LEADING * (1 + len(box.words.lines))) / 2 + 12
    texts = [(box.words.title, "bold", TITLE), *((line, "", SMALL) for line in box.words.lines)]
    is_marked = [(box.part, text) in marked for text, _, _ in texts]
    lines = [
        f'<text class="{" ".join(filter(None, (kind, "differs" if differs else "")))}" {middle} '
        f'y="{first + i * _LEADING:.1f}" font-size="{size}" text-anchor="middle">{escape(text)}</text>'
        for i, ((text, kind, size), differs) in enumerate(zip(texts, is_marked, strict=True))
    ]
    kind = f"box {box.role}{' differs' if any(is_marked) else ''}"
    return f'<g class="{kind}" data-part={quoteattr(box.part)}><rect {_place(box, height)} rx="6"/>{"".join(lines)}</g>'


KINDS = 7
"""Number of different colors for kinds of layers and for cells. If there are more kinds, colors repeat."""
_KIND_COLORS = (3, 5, 1, 7, 2, 6, 4)
"""Indices into the palette's ramp, ordered so that the first colors differ strongly from each other."""


def _style() -> str:
    dark = "".join(f"{selector} {{ {rule} }}\n" for selector, rule in _rules("dark"))
    light = "".join(f"{selector} {{ {rule} }}\n" for selector, rule in _rules("light"))
    assert MODES == ("light", "dark")
    return f"\n{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"


def _rules(mode: Mode) -> Iterable[tuple[str, str]]:
    """Yield CSS rules as (selector, rule). They use no CSS variables, because some SVG converters do not support
    them."""
    palette, own = PALETTES[mode], ".archlab-drawing"
    yield f"{own} text", f"font-family: {FAMILY}; fill: {palette.text}; stroke: none"
    yield f"{own} .bold", "font-weight: bold"
    yield f"{own} .faint", f"fill: {palette.faint}"
    yield f"{own} .paper", f"fill: {palette.paper}"
    yield f"{own} .wire", f"fill: none; stroke: {palette.faint}; stroke-width: 1.5"
    yield f"{own} .stream", f"stroke: {palette.text}; stroke-width: 2.5"
    yield f"{own} .tip", f"fill: {palette.text}"
    for circle in ("plus", "times"):
        yield f"{own} .{circle} circle", f"fill: {palette.paper}; stroke: {palette.text}; stroke-width: 1.5"
        yield f"{own} .{circle} path", f"stroke: {palette.text}; stroke-width: 1.5; fill: none"
    for role, place in ROLES.items():
        color = palette.distinct[place]
        yield (
            f"{own} .{role} rect",
            f"fill: {between((palette.paper, color), 0.15)}; stroke: {color}; stroke-width: 1.5",
        )
    yield f"{own} .inside rect", "fill: none; stroke-dasharray: 5 4"
    for kind, place in enumerate(_KIND_COLORS):
        yield f"{own} .cell.kind-{kind}", f"fill: {palette.ramp[place]}"
        yield f"{own} .frame.kind-{kind}", f"fill: none; stroke: {palette.ramp[place]}; stroke-width: 1.5"
    yield f"{own} .cycle", f"fill: none; stroke: {palette.faint}; stroke-width: 1.5"
    yield f"{own} .blank", f"fill: {palette.line}"
    yield f"{own} .differs rect", f"stroke: {palette.verdicts[2]}; stroke-width: 3"
    yield f"{own} text.differs", f"fill: {palette.verdicts[2]}"


_EM = {
    "'": 0.19,
    "ijl": 0.222,
    "|": 0.26,
    " !,./:;It[\\]fI·": 0.278,
    "()-r`": 0.333,
    '"': 0.355,
    "*^": 0.47,
    "Jckvxyzs": 0.5,
    "+<=>~×±−": 0.584,
    "FTZ": 0.611,
    "&ABEKPSVXY": 0.667,
    "CDHNRUw": 0.722,
    "GOQ": 0.778,
    "mM": 0.833,
    "%": 0.889,
    "W": 0.944,
    "…→": 1.0,
    "@": 1.015,
}
_WIDTHS = {letter: width for letters, width in _EM.items() for letter in letters}
_OTHERS = 0.556
"""Width of digits and most lowercase letters, as a fraction of the font size."""
_BOLD, _SPARE = 1.09, 1.17
"""Bold text is wider by the factor `_BOLD`. Without the fonts in FAMILY, machines may use DejaVu Sans, which is wider
by the factor `_SPARE`."""

FAMILY = "Arial, 'Liberation Sans', Helvetica, sans-serif"


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the approximate width of a line of text, in the same unit as `size`."""
    em = sum(_WIDTHS.get(letter, _OTHERS if letter.isascii() else 1.0) for letter in text)
    return em * size * _SPARE * (_BOLD if bold else 1)


def folded(text: str, size: float, width: float) -> list[str]:
    """Split the text into lines that are at most about `width` wide. Lines are broken after commas if possible. A word
    that is too long is cut."""
    lines = [""]
    for part in text.split(", "):
        joined = f"{lines[-1]}, {part}" if lines[-1] else part
        if text_width(joined, size) <= width:
            lines[-1] = joined
        else:
            letters = max(8, int(width / (_OTHERS * _SPARE * size)))
            lines += textwrap.wrap(part, letters)
    return [line for line in lines if line]


def write_picture(svg: Svg, path: Path) -> Path:
    """Write the picture in the format of the file's name (.svg, .pdf or .png), creating missing parent folders, and
    return its path. A `.png` or `.pdf` file has the colors of light mode."""
    from archlab.report.charts.files import svg_file  # loads vl-convert

    content = svg_file(svg, cast(FigureFormat, path.suffix.lower().removeprefix(".")))
    make_folder(path.parent)
    write_atomic(path, content)
    return path
