"""Block diagram of a config, wired like the model, from the tokens at the bottom to the logits at the top."""

from collections.abc import Sequence
from typing import NamedTuple

from archlab.config.layers import distinct_layers, encoder_of
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.pricing.params import parameters
from archlab.pricing.units import count
from archlab.report.drawings.around import around_encoder, around_layers
from archlab.report.drawings.one_stack import MARGIN, Stack, draw_stack
from archlab.report.drawings.stacks import GAP
from archlab.report.drawings.svg import Box, Cell, Frame, Inside, Label, Shape, Svg, Wire, mirrored, to_svg

_HEADING = 17
_BETWEEN = 44
"""Gap in pixels between encoder and decoder. The wire from one to the other rises in its middle."""
_SMALLEST = 0.8
"""Fraction of its width to which a page may shrink a diagram of two stacks."""


class Diagram(NamedTuple):
    """Block diagram as shapes that have not been converted to SVG yet."""

    shapes: tuple[Shape, ...]
    width: float
    height: float
    title: str
    least_width: float
    """Width to which a page may shrink the diagram, so that its text stays legible; 0 without a limit."""

    def svg(self, marked: frozenset[tuple[str, str]] = frozenset()) -> Svg:
        """Return the diagram as an SVG, in which the texts in `marked` are highlighted."""
        return to_svg(self.shapes, self.width, self.height, self.title, marked, self.least_width)

    @property
    def texts(self) -> frozenset[tuple[str, str]]:
        """All texts of the parts of the model, as pairs (part, text)."""
        boxes = [shape for shape in self.shapes if isinstance(shape, Box)]
        labels = [shape for shape in self.shapes if isinstance(shape, Label) and shape.part]
        in_boxes = [(box.part, text) for box in boxes for text in (box.words.title, *box.words.lines)]
        return frozenset([*in_boxes, *((label.part, label.text) for label in labels)])


def block_diagram(config: Config, name: str, unfold: Sequence[str] = (), remark: str = "") -> Svg:
    """Return the block diagram of a config.

    `unfold` lists the branches (`attention`, `mlp`) whose components are drawn in detail, if this is possible. `remark`
    is a line below the name.
    """
    return draw(config, name, unfold, remark).svg()


def side_by_side(configs: Sequence[tuple[str, Config]]) -> list[Svg]:
    """Return the diagrams of several configs, each given with its name. Text that not all diagrams have is highlighted.
    Kinds of layers with the same boxes share a frame."""
    diagrams = [draw(config, name, merge=True) for name, config in configs]
    shared = frozenset.intersection(*(diagram.texts for diagram in diagrams))
    return [diagram.svg(diagram.texts - shared) for diagram in diagrams]


def draw(config: Config, name: str, unfold: Sequence[str] = (), remark: str = "", *, merge: bool = False) -> Diagram:
    """Return the shapes of a config's diagram. The arguments are those of `block_diagram`, and `merge` is that of
    `draw_stack`."""
    model = config.model
    encoder = encoder_of(model)
    if encoder is None:
        stack = draw_stack(model, around_layers(model), "", unfold, merge=merge)
    else:
        stack = _two_stacks(model, encoder, unfold, merge=merge)
    lines = [f"{_sizes(model)} · context {model.max_seq_len:,}", *([remark] if remark else [])]
    heading = _heading(name, lines, stack.up + 32)
    width = max(stack.right, *(MARGIN + label.width for label in heading)) + MARGIN
    title = f"Block diagram of {name}{f': {remark}' if remark else ''}"
    height = heading[0].up + _HEADING + MARGIN / 2
    return Diagram((*stack.shapes, *heading), width, height, title, 0 if encoder is None else _SMALLEST * width)


def _two_stacks(model: ModelConfig, encoder: ModelConfig, unfold: Sequence[str], *, merge: bool) -> Stack:
    """Return the drawing of a model with an encoder: the encoder on the left, and the decoder on the right.

    The decoder is mirrored, so that its branches are on the side of the encoder, and a wire from the encoder to
    cross-attention does not cross the decoder's stream.
    """
    left = draw_stack(encoder, around_encoder(model, encoder), "encoder", unfold, merge=merge)
    right = draw_stack(model, around_layers(model), "decoder", unfold, merge=merge)
    end = left.right + _BETWEEN + right.right
    high, between = left.up + GAP, left.right + _BETWEEN / 2
    joined = list[Shape]()
    for shape in (mirrored(shape, end) for shape in right.shapes):
        if isinstance(shape, Wire) and shape.is_source:
            from_encoder = [(left.stream, left.up), (left.stream, high), (between, high), (between, shape.points[0][1])]
            joined.append(shape._replace(points=[*from_encoder, *shape.points]))
        else:
            joined.append(shape)
    n_kinds = len(distinct_layers(model))
    shapes = (*(_in_encoder(shape, n_kinds) for shape in left.shapes), *joined)
    return Stack(shapes, end - right.stream, max(high, right.up), end - MARGIN)


def _in_encoder(shape: Shape, n_kinds: int) -> Shape:
    """Return a shape of the encoder with `encoder` before the name of its part. Its color is not one of the `n_kinds`
    colors of the decoder's layers."""
    match shape:
        case Box() | Inside():
            return shape._replace(part=f"encoder {shape.part}")
        case Frame():
            color = None if shape.color is None else shape.color + n_kinds
            return shape._replace(part=f"encoder {shape.part}", color=color)
        case Cell():
            color = None if shape.color is None else shape.color + n_kinds
            return shape._replace(part=f"encoder {shape.part}", color=color, title=f"encoder {shape.title}")
        case _:
            return shape


def _heading(name: str, lines: Sequence[str], up: float) -> list[Label]:
    n = len(lines)
    faint = [Label(line, MARGIN, up + 16 * (n - 1 - i), 12, faint=True) for i, line in enumerate(lines)]
    return [Label(name, MARGIN, up + 16 * (n - 1) + 20, _HEADING, bold=True), *faint]


def _sizes(model: ModelConfig) -> str:
    """Return a summary line such as `671B parameters, 37.5B active · 61 layers · width 7,168`."""
    n = parameters(model)
    active = f", {count(n.active)} active" if n.active != n.total else ""
    layers = f"{model.n_layers} layers"
    if model.encoder is not None:
        layers = f"{model.encoder.n_layers} encoder and {model.n_layers} decoder layers"
    return f"{count(n.total)} parameters{active} · {layers} · width {model.d_model:,}"
