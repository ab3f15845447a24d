"""Drawing of one stack of layers, from its tokens to its output."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from archlab.config.layers import LayerConfig, distinct_layers, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.report.drawings.around import Around
from archlab.report.drawings.layer import Column, LayerBoxes, columns_of, draw_layer, led_up, merged, same_boxes
from archlab.report.drawings.stacks import BESIDE, GAP, Boxed, Trunk, climb
from archlab.report.drawings.svg import SMALL, Cell, Frame, Label, Plus, Shape, Wire
from archlab.report.drawings.turns import Cycle, cycle, take_turns

MARGIN = 18
"""Margin of a picture in pixels."""
_STRIP, _STRIP_GAP = 14, 26


class Stack(NamedTuple):
    """Drawing of one stack, with its stream and its layer strip on the left. Its left margin begins at 0."""

    shapes: tuple[Shape, ...]
    stream: float
    """Horizontal position of the residual stream."""
    up: float
    """Height that the stream reaches."""
    right: float


def draw_stack(
    model: ModelConfig, around: Around, name: str, unfold: Sequence[str] = (), *, merge: bool = False
) -> Stack:
    """Return the drawing of a stack, whose layers are those of `model` without its encoder.

    `name` is `encoder` or `decoder`, or empty in a model with one stack. `unfold` lists the branches whose components
    are drawn in detail, if this is possible. With `merge`, kinds of layers with the same boxes share a frame, in which
    lines that differ begin with the name of their kind.
    """
    kinds = distinct_layers(model)
    groups = [[LayerBoxes(layer, unfold)] for layer in kinds]
    if merge:
        groups = same_boxes([boxes for (boxes,) in groups])
    layers = [merged(group) for group in groups]
    names = {layer.kind: n for layer, n in kinds.items()}
    left = MARGIN + _STRIP + _STRIP_GAP
    outside = max(box.width for box in (*around.below, *around.summed, *around.above)) / 2
    inside = max((box.width for boxes in layers for box in boxes.on_stream), default=0) / 2
    stream = max(MARGIN + outside, left + GAP + inside)
    columns = columns_of(layers, stream + max(inside, 2 * Plus.radius) + BESIDE)
    start = Trunk((Label(around.tokens, stream, MARGIN - 6, anchor="middle", faint=True),), MARGIN + 6)
    trunk = climb(start, around.below, stream)
    for boxed in around.added:
        trunk = _add(boxed, trunk, stream, columns)
    trunk = climb(trunk, around.summed, stream)
    bottom = trunk.up + GAP
    right = max(columns[-1].right + GAP, stream + outside)
    in_order = [layer.kind for layer in layer_configs(model)]
    taking_turns = take_turns(in_order)
    turns = cycle(in_order) if taking_turns else None
    if turns and len(groups) > 1:
        trunk = led_up(trunk, stream)
    begin = trunk.up
    colors = [layer.kind for layer in kinds]
    for group, boxes in zip(groups, layers, strict=True):
        labels = list[str]()
        for kind in (member.layer.kind for member in group):
            label = kind if len(kinds) > 1 else f"{name} layer".strip()
            if not turns:
                label += f": {names[kind]} of {model.n_layers}" if taking_turns else f" × {names[kind]}"
            labels.append(label)
        if turns and len(groups) == 1:
            labels = [turns.label]
        color = colors.index(boxes.layer.kind) if len(group) == 1 else None
        trunk = draw_layer(boxes, ", ".join(labels), color, trunk, stream, columns, (left, right))
    if turns and len(groups) > 1:
        trunk = _framed(turns, begin, trunk, stream, (left - GAP / 2, right + GAP / 2))
        right += GAP / 2
    strip = _strip(model, list(kinds), bottom, trunk.up)
    trunk = climb(trunk, around.above, stream)
    top = trunk.up if around.output is None else trunk.up + 14
    output = () if around.output is None else (
        Wire([(stream, trunk.up), (stream, top)], arrow=True, is_stream=True),
        Label(around.output, stream, top + 5, anchor="middle", faint=True),
    )  # fmt: skip
    return Stack((*trunk.shapes, *output, *strip), stream, top, right)


def _add(boxed: Boxed, trunk: Trunk, stream: float, columns: Sequence[Column]) -> Trunk:
    """Return the trunk with a vector that is added to the stream."""
    up = trunk.up + GAP + boxed.words.height / 2
    box = boxed.at(max(columns[0].middle, stream + 2 * BESIDE + boxed.width / 2), up - boxed.words.height / 2)
    shapes = (
        Wire([(stream, trunk.up), (stream, up - Plus.radius)], is_stream=True),
        Wire([(box.x, up), (stream + Plus.radius, up)], arrow=True),
        Plus(stream, up),
        box,
    )
    beside = Wire([(stream, up + Plus.radius), (stream, box.top)], is_stream=True)
    return Trunk((*trunk.shapes, *shapes, beside), box.top)


def _framed(turns: Cycle, bottom: float, trunk: Trunk, stream: float, sides: tuple[float, float]) -> Trunk:
    left, right = sides
    top = trunk.up + 30
    label = Label(turns.label, right - 10, top - 19, 13, bold=True, anchor="end", part="layers")
    if label.width > right - stream - BESIDE:
        label = label._replace(text=turns.short)
    frame = Frame("cycle", left, bottom, right - left, top - bottom, None)
    return Trunk((*trunk.shapes, frame, label, Wire([(stream, trunk.up), (stream, top)], is_stream=True)), top)


def _strip(model: ModelConfig, kinds: Sequence[LayerConfig], bottom: float, top: float) -> Iterator[Shape]:
    layers = layer_configs(model)
    each = min((top - bottom - 24) / len(layers), 40)
    gap = 1 if each >= 3 else 0
    middle = MARGIN + _STRIP / 2
    yield Label("1", middle, bottom, anchor="middle", faint=True, size=SMALL)
    for i, layer in enumerate(layers):
        up = bottom + 14 + i * each
        yield Cell(f"layer {i}", MARGIN, up, _STRIP, each - gap, kinds.index(layer), f"layer {i + 1}: {layer.kind}")
    if len(layers) > 1:
        yield Label(f"{len(layers)}", middle, bottom + 19 + len(layers) * each, anchor="middle", faint=True, size=SMALL)
