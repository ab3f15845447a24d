"""Boxes stacked along one vertical wire, and wires that split and join again.

`up` is the height above the bottom of the picture.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from archlab.report.drawings.svg import SMALL, TITLE, Box, Inside, Label, Shape, Times, Wire, Words

GAP = 14
"""Gap in pixels between parts on one wire."""
BESIDE = 26
"""Gap in pixels between columns."""
_HEADING = 22
"""Height in pixels of the title of an unfolded component."""


class Part(Protocol):
    """Part of a diagram. A wire enters it in the middle of its lower edge and leaves it in the middle of its upper
    edge."""

    @property
    def width(self) -> float: ...

    @property
    def height(self) -> float: ...

    def shapes(self, middle: float, up: float) -> Iterator[Shape]:
        """Yield the shapes of the part. `middle` is its horizontal center, and `up` is the height of its lower edge."""
        ...


class Trunk(NamedTuple):
    """Shapes drawn so far. `up` is the height that their vertical wire has reached."""

    shapes: tuple[Shape, ...]
    up: float


class Boxed(NamedTuple):
    """Box that does not have a position yet."""

    part: str
    role: str
    words: Words

    @property
    def width(self) -> float:
        return self.words.width

    @property
    def height(self) -> float:
        return self.words.height

    def at(self, middle: float, up: float, width: float = 0) -> Box:
        """Return the box at a position: `middle` is its horizontal center, and `up` is the height of its lower edge.
        Its width is at least `width`."""
        wide = max(self.width, width)
        return Box(self.part, self.role, middle - wide / 2, up, wide, self.height, self.words)

    def shapes(self, middle: float, up: float) -> Iterator[Shape]:
        yield self.at(middle, up)


class ReadsSource(NamedTuple):
    """Box that reads the encoder's output through its right side."""

    box: Boxed

    @property
    def width(self) -> float:
        return self.box.width

    @property
    def height(self) -> float:
        return self.box.height

    def shapes(self, middle: float, up: float) -> Iterator[Shape]:
        yield from self.box.shapes(middle, up)
        yield Wire([(middle + self.width / 2, up + self.height / 2)], arrow=True, is_source=True)


class Joined(NamedTuple):
    """A wire that splits into one wire per stack of parts, and then joins again.

    All stacks lead into `box`. If `box` is None, there are two stacks, and their outputs are multiplied. The last
    `n_of_source` stacks read the encoder's output instead of the wire.
    """

    stacks: Sequence[Sequence[Part]]
    box: Boxed | None = None
    n_of_source: int = 0

    @property
    def width(self) -> float:
        beside = sum(_width(stack) for stack in self.stacks) + BESIDE * (len(self.stacks) - 1)
        return max(beside, self.box.width if self.box else 0)

    @property
    def height(self) -> float:
        return self._join + (self.box.height if self.box else Times.radius)

    @property
    def _join(self) -> float:
        highest = max(sum(GAP + part.height for part in stack) for stack in self.stacks)
        return self._of_source + highest + GAP + (0 if self.box else Times.radius)

    @property
    def _of_source(self) -> float:
        """Height at which the encoder's output comes in, above the height at which the wire splits."""
        return GAP if self.n_of_source else 0

    def shapes(self, middle: float, up: float) -> Iterator[Shape]:
        """Yield the shapes of the stacks, the wires into and out of them, and the join."""
        join = up + self._join
        n_of_wire, entry = len(self.stacks) - self.n_of_source, up + self._of_source
        for i, (stack, x) in enumerate(zip(self.stacks, self._middles(middle), strict=True)):
            base = entry + GAP
            if i < n_of_wire:
                yield Wire([(middle, up), (x, up), (x, base)], arrow=True)
            else:
                yield Wire([(x, entry), (x, base)], arrow=True, is_source=True)
            top = base
            for place, part in enumerate(stack):
                if place:
                    yield Wire([(x, top), (x, top + GAP)], arrow=True)
                    top += GAP
                yield from part.shapes(x, top)
                top += part.height
            side = Times.radius if x > middle else -Times.radius
            end = [(x, join)] if self.box else [(x, join), (middle + side, join)]
            yield Wire([(x, top), *end], arrow=True)
        yield self.box.at(middle, join, self.width) if self.box else Times(middle, join)

    def _middles(self, middle: float) -> list[float]:
        widths = [_width(stack) for stack in self.stacks]
        whole = sum(widths) + BESIDE * (len(widths) - 1)
        lefts = accumulate((width + BESIDE for width in widths[:-1]), initial=middle - whole / 2)
        return [left + width / 2 for left, width in zip(lefts, widths, strict=True)]


class Unfolded(NamedTuple):
    """Inside of a component, drawn in a dashed frame with the component's name."""

    part: str
    role: str
    title: str
    stack: Sequence[Part]

    @property
    def width(self) -> float:
        left_of_the_wire = Label(self.title, 0, 0, TITLE, bold=True).width + GAP
        return max(_width(self.stack) + 2 * GAP, 2 * left_of_the_wire)

    @property
    def height(self) -> float:
        return sum(GAP + part.height for part in self.stack) + GAP + _HEADING

    def shapes(self, middle: float, up: float) -> Iterator[Shape]:
        left = middle - self.width / 2
        yield Inside(self.part, self.role, left, up, self.width, self.height)
        inside = climb(Trunk((), up), self.stack, middle, is_stream=False)
        yield from inside.shapes
        top = up + self.height
        yield Wire([(middle, inside.up), (middle, top)])
        yield Label(self.title, left + GAP / 2, top - SMALL - 5, TITLE, bold=True)


def climb(trunk: Trunk, parts: Sequence[Part], x: float, *, is_stream: bool = True) -> Trunk:
    """Draw the parts above the trunk, connected by its wire, and return the longer trunk."""
    shapes, up = list(trunk.shapes), trunk.up
    for part in parts:
        bottom = up + GAP
        shapes += [Wire([(x, up), (x, bottom)], arrow=True, is_stream=is_stream), *part.shapes(x, bottom)]
        up = bottom + part.height
    return Trunk(tuple(shapes), up)


def _width(stack: Sequence[Part]) -> float:
    return max(part.width for part in stack)
