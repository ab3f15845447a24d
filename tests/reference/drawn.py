"""Read an SVG of archlab from its text alone: boxes, wires, and the values that flow along them."""

import re
from collections.abc import Callable, Mapping
from functools import reduce
from itertools import pairwise
from operator import add, mul
from typing import NamedTuple
from xml.etree import ElementTree

from torch import Tensor

SVG = "{http://www.w3.org/2000/svg}"
NEAR = 0.25
"""Tolerance in pixels, because coordinates are written with one digit."""

Point = tuple[float, float]


class Rect(NamedTuple):
    """A rectangle and the texts inside it; y counts down."""

    part: str
    x: float
    y: float
    width: float
    height: float
    texts: tuple[tuple[str, float, bool], ...] = ()
    """(text, size, whether it is bold)."""

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height

    def overlaps(self, other: "Rect") -> bool:
        beside = self.x + self.width <= other.x or other.x + other.width <= self.x
        return not (beside or self.bottom <= other.y or other.bottom <= self.y)

    def holds(self, other: "Rect") -> bool:
        across = self.x <= other.x and other.x + other.width <= self.x + self.width
        return across and self.y <= other.y and other.bottom <= self.bottom


class Picture:
    """A parsed diagram."""

    def __init__(self, svg: str) -> None:
        root = ElementTree.fromstring(svg)
        self.width, self.height = float(root.attrib["width"]), float(root.attrib["height"])
        groups = [g for g in root.iter(f"{SVG}g") if g.attrib["class"].startswith("box")]
        self.boxes = sorted((_rect(g[0], g.attrib["data-part"], g) for g in groups), key=lambda box: -box.y)
        insides = [g for g in root.iter(f"{SVG}g") if g.attrib["class"].startswith("inside")]
        self.insides = [_rect(g[0], g[0].attrib["data-part"]) for g in insides]
        rects = [(r, r.attrib.get("class", "")) for r in root.iter(f"{SVG}rect")]
        self.frames = sorted((_rect(r, r.attrib["data-part"]) for r, c in rects if "frame" in c), key=lambda f: -f.y)
        self.cells = [(_rect(r, r.attrib["data-part"]), c.split()[-1]) for r, c in rects if c.startswith("cell")]
        self.wires = [_points(p.attrib["d"]) for p in root.iter(f"{SVG}path") if "wire" in p.attrib.get("class", "")]
        circles = [(g.attrib["class"], g[0].attrib) for g in root.iter(f"{SVG}g") if g[0].tag == f"{SVG}circle"]
        centers = [(kind, (float(c["cx"]), float(c["cy"]))) for kind, c in circles]
        self.pluses = [center for kind, center in centers if kind == "plus"]
        self.products = [center for kind, center in centers if kind == "times"]
        self.radius = float(circles[0][1]["r"]) if circles else 0
        labels = [t for t in root.iter(f"{SVG}text") if t.attrib["class"].startswith("label")]
        self.labels = [label.text or "" for label in labels]
        self.label_points = [
            (label.text or "", (float(label.attrib["x"]), float(label.attrib["y"]))) for label in labels
        ]
        paths = [p for p in root.iter(f"{SVG}path") if "marker-end" in p.attrib]
        self.tips = [_points(path.attrib["d"])[-1] for path in paths]

    def frame_of(self, box: Rect) -> int | None:
        return next((i for i, frame in enumerate(self.frames) if frame.holds(box)), None)

    def computed(self, tokens: Mapping[str, Tensor], apply: Callable[..., Tensor]) -> Tensor:
        """Return the output at the top of the diagram.

        Each box is applied to the values on the wires into it, from left to right. Circles add or multiply. `tokens` maps
        the label below each stack to the tokens that enter there.
        """
        known = dict[Point, Tensor]()

        def at(point: Point) -> Tensor:
            """Return the value that leaves this point."""
            if point not in known:
                known[point] = find(point)
            return known[point]

        def find(point: Point) -> Tensor:
            for center in (*self.pluses, *self.products):
                if _distance(point, center) < self.radius + NEAR:
                    ends = [w for w in self.wires if _distance(w[-1], center) < self.radius + NEAR]
                    assert len(ends) > 1
                    return reduce(mul if center in self.products else add, (at(wire[0]) for wire in ends))
            for box in self.boxes:
                on_side = is_on_side(point, box)
                if on_side or (abs(point[1] - box.y) < NEAR and abs(point[0] - box.middle) < NEAR):
                    into = sorted((w for w in self.wires if _leads_into(w, box)), key=lambda w: w[-1][0])
                    assert bool(into) != on_side, box.part
                    return apply(box, *(at(wire[0]) for wire in into))
            sources = {w[0] for w in self.wires if w[0] != point and _is_on(point, w)}
            if not sources:
                return tokens[min(self.label_points, key=lambda label: _distance(label[1], point))[0]]
            found = [at(source) for source in sources]
            assert all(other is found[0] for other in found), "two wires meet and are not added"
            return found[0]

        top = min(self.wires, key=lambda wire: wire[-1][1])
        return at(top[0])


def _rect(rect: ElementTree.Element, part: str, group: ElementTree.Element | None = None) -> Rect:
    texts = () if group is None else tuple(
        (t.text or "", float(t.attrib["font-size"]), "bold" in t.attrib["class"]) for t in group.iter(f"{SVG}text")
    )  # fmt: skip
    return Rect(part, *(float(rect.attrib[name]) for name in ("x", "y", "width", "height")), texts)


def _leads_into(wire: list[Point], box: Rect) -> bool:
    x, y = wire[-1]
    from_below = abs(y - box.bottom) < 2 * NEAR and box.x < x < box.x + box.width
    return from_below or is_on_side((x, y), box)


def is_on_side(point: Point, box: Rect) -> bool:
    return min(abs(point[0] - box.x), abs(point[0] - box.x - box.width)) < NEAR and box.y < point[1] < box.bottom


def _points(path: str) -> list[Point]:
    numbers = [float(n) for n in re.findall(r"-?[\d.]+", path)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _distance(a: Point, b: Point) -> float:
    return ((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2) ** 0.5


def _is_on(point: Point, wire: list[Point]) -> bool:
    """Return whether the point is on the wire, but not at its start."""
    if _distance(point, wire[0]) < NEAR:
        return False
    return any(
        min(a[0], b[0]) - NEAR < point[0] < max(a[0], b[0]) + NEAR
        and min(a[1], b[1]) - NEAR < point[1] < max(a[1], b[1]) + NEAR
        for a, b in pairwise(wire)
    )
