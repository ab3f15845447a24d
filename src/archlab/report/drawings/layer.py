"""Drawing of one layer: its stages from bottom to top, and the branches of each stage side by side."""

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import accumulate
from typing import NamedTuple

from archlab.config.layers import Branch, LayerConfig
from archlab.report.drawings.inside import can_unfold, unfolded
from archlab.report.drawings.stacks import BESIDE, GAP, Boxed, Part, ReadsSource, Trunk, climb
from archlab.report.drawings.svg import Frame, Label, Plus, Shape, Wire, Words
from archlab.report.drawings.words import component_words, norm_words, role_of


class Column(NamedTuple):
    """Column of the diagram, which holds the n-th branch of every stage."""

    middle: float
    width: float

    @property
    def right(self) -> float:
        return self.middle + self.width / 2


class _BranchBoxes(NamedTuple):
    """Boxes of one branch, from its input to the point at which its output is added."""

    branch: Branch
    before: Boxed | None
    rest: tuple[Part, ...]

    @property
    def width(self) -> float:
        return max(box.width for box in (*self.rest, *([self.before] if self.before else [])))

    @property
    def outline(self) -> tuple[object, ...]:
        parts = (*([self.before] if self.before else []), *self.rest)
        return tuple(
            (type(part), part.part, part.words.title)
            if isinstance(part, Boxed)
            else (type(part), part.box.part, part.box.words.title)
            if isinstance(part, ReadsSource)
            else part
            for part in parts
        )


class LayerBoxes:
    """Boxes of one layer, grouped by stage. The branches of a stage run in parallel."""

    def __init__(self, layer: LayerConfig, unfold: Sequence[str]) -> None:
        self.layer, self.unfold = layer, unfold
        self.is_carried = layer.norm.is_carried
        self.stages = [[self._boxes(branch) for branch in stage] for stage in layer.stages]
        self.stream_scale = [Boxed("stream scale", "io", Words("× stored number"))] if layer.block.stream_scale else []

    def _boxes(self, branch: Branch) -> _BranchBoxes:
        layer, name = self.layer, branch.name
        before = self._norm(branch, "before") if "before" in branch.norms else None
        is_unfolded = name in self.unfold and can_unfold(branch.component)
        component = Boxed(name, role_of(branch), component_words(branch))
        folded = ReadsSource(component) if branch.site.reads_source else component
        rest: list[Part] = [unfolded(layer, branch) if is_unfolded else folded]
        # Norms in all other slots are after the component, except the one on the stream.
        rest += [self._norm(branch, slot) for slot in branch.norms if slot not in ("before", "stream")]
        if branch.multiplier != 1:
            rest.append(Boxed(f"{name} multiplier", "io", Words(f"× {branch.multiplier:.4g}")))
        if layer.dropout.branch:
            rest.append(Boxed(f"{name} dropout", "io", Words(f"dropout {layer.dropout.branch:g}")))
        return _BranchBoxes(branch, before, tuple(rest))

    @property
    def outline(self) -> tuple[object, ...]:
        """Wiring of the layer, and the parts and titles of its boxes. An unfolded component is a part with its own
        outline, so that it equals no other."""
        return (
            self.is_carried,
            bool(self.stream_scale),
            *(
                (box and box.words, tuple((boxes.branch.shares_input, *boxes.outline) for boxes in stage))
                for stage in self.stages
                for box in [self.stream_norm(stage)]
            ),
        )

    def _norm(self, branch: Branch, slot: str) -> Boxed:
        return Boxed(f"{branch.name} norm {slot}", "norm", norm_words(self.layer.norm))

    def stream_norm(self, stage: Sequence[_BranchBoxes]) -> Boxed | None:
        """Return the norm that follows the residual addition of this stage, or None if the layer has no such norm."""
        first = stage[0].branch
        return self._norm(first, "stream") if "stream" in first.norms else None

    @property
    def on_stream(self) -> list[Boxed]:
        """Boxes that are drawn on the residual stream rather than in a branch."""
        boxes = [self.stream_norm(stage) for stage in self.stages]
        boxes += [stage[0].before for stage in self.stages if self.is_carried]
        return [*self.stream_scale, *(box for box in boxes if box)]


def same_boxes(layers: Sequence[LayerBoxes]) -> list[list[LayerBoxes]]:
    """Return the layers in groups. Layers of a group have the same wiring, and boxes with the same titles."""
    groups: dict[tuple[object, ...], list[LayerBoxes]] = {}
    for boxes in layers:
        groups.setdefault(boxes.outline, []).append(boxes)
    return [*groups.values()]


def merged(group: Sequence[LayerBoxes]) -> LayerBoxes:
    """Return the boxes of layers with the same outline as those of one layer. If the lines of a box differ, they begin
    with the name of the layer's kind."""
    first = group[0]
    if len(group) == 1:
        return first
    both = copy(first)
    both.stages = [
        [_merged([boxes.stages[i][k] for boxes in group], [boxes.layer.kind for boxes in group]) for k in range(len(s))]
        for i, s in enumerate(first.stages)
    ]
    return both


def _merged(branches: Sequence[_BranchBoxes], kinds: Sequence[str]) -> _BranchBoxes:
    first = branches[0]
    before = first.before and _merged_box([branch.before for branch in branches if branch.before], kinds)
    rest = tuple(_merged_part([branch.rest[i] for branch in branches], kinds) for i in range(len(first.rest)))
    return _BranchBoxes(first.branch, before, rest)


def _merged_part(parts: Sequence[Part], kinds: Sequence[str]) -> Part:
    boxes = [part.box if isinstance(part, ReadsSource) else part for part in parts]
    box = _merged_box([box for box in boxes if isinstance(box, Boxed)], kinds)
    return ReadsSource(box) if isinstance(parts[0], ReadsSource) else box


def _merged_box(boxes: Sequence[Boxed], kinds: Sequence[str]) -> Boxed:
    lines = [box.words.lines for box in boxes]
    common = [line for line in lines[0] if all(line in others for others in lines)]
    own = [
        f"{kind}: {line}"
        for kind, lines_of_kind in zip(kinds, lines, strict=True)
        for line in lines_of_kind
        if line not in common
    ]
    return boxes[0]._replace(words=boxes[0].words._replace(lines=(*common, *own)))


def columns_of(layers: Sequence[LayerBoxes], left: float) -> list[Column]:
    """Return one column for each branch of the stage with the most branches. The first column begins at `left`."""
    rows = [stage for boxes in layers for stage in boxes.stages]
    deepest = max((len(stage) for stage in rows), default=1)
    widths = [max((stage[i].width for stage in rows if len(stage) > i), default=0) for i in range(deepest)]
    lefts = accumulate((width + BESIDE for width in widths[:-1]), initial=left)
    return [Column(x + width / 2, width) for x, width in zip(lefts, widths, strict=True)]


def draw_layer(
    layer_boxes: LayerBoxes,
    name: str,
    color: int | None,
    trunk: Trunk,
    stream: float,
    columns: Sequence[Column],
    sides: tuple[float, float],
) -> Trunk:
    """Return the trunk with a layer in its frame. `color` is the number of the frame's color, or None for a gray
    frame, and `sides` are its left and right edges."""
    inside = led_up(trunk, stream)
    bottom = inside.up
    for stage in layer_boxes.stages:
        inside = _stage(layer_boxes, stage, inside, stream, columns)
    inside = climb(inside, layer_boxes.stream_scale, stream)
    top = inside.up + 30
    left, right = sides
    label = Label(name, right - 10, top - 19, 13, bold=True, anchor="end", part="layers")
    frame = Frame(f"layer {layer_boxes.layer.kind}", left, bottom, right - left, top - bottom, color)
    through = Wire([(stream, inside.up), (stream, top)], is_stream=True)
    return Trunk((*inside.shapes, frame, label, through), top)


def led_up(trunk: Trunk, stream: float) -> Trunk:
    """Return the trunk with a longer wire."""
    up = trunk.up + GAP
    return Trunk((*trunk.shapes, Wire([(stream, trunk.up), (stream, up)], is_stream=True)), up)


def _stage(
    layer_boxes: LayerBoxes, stage: Sequence[_BranchBoxes], trunk: Trunk, stream: float, columns: Sequence[Column]
) -> Trunk:
    entry = trunk.up + GAP
    inside = Trunk((*trunk.shapes, Wire([(stream, trunk.up), (stream, entry)], is_stream=True)), entry)
    if layer_boxes.is_carried and (carried := stage[0].before):
        inside = climb(inside, [carried], stream)
        normed = inside.up + GAP
        inside = Trunk((*inside.shapes, Wire([(stream, inside.up), (stream, normed)], is_stream=True)), normed)
    shapes, risen = list(inside.shapes), list[float]()
    for at, boxes, column in zip(_starts(layer_boxes, stage, inside.up), stage, columns, strict=False):
        x = column.middle
        from_x = columns[0].middle if at.is_shared else stream
        shapes.append(Wire([(from_x, at.up), (x, at.up)]))
        climbed = climb(Trunk((), at.up), at.norms, x, is_stream=False)
        shapes += [*climbed.shapes, Wire([(x, climbed.up), (x, at.base)])]
        climbed = climb(Trunk((), at.base), boxes.rest, x, is_stream=False)
        shapes += climbed.shapes
        risen.append(climbed.up)
    join = max(risen) + GAP + Plus.radius
    shapes += _added(risen, join, stream, [column.middle for column in columns])
    shapes.append(Wire([(stream, inside.up), (stream, join - Plus.radius)], arrow=True, is_stream=True))
    after = layer_boxes.stream_norm(stage)
    return climb(Trunk(tuple(shapes), join + Plus.radius), [after] if after else [], stream)


class _Start(NamedTuple):
    """Beginning of a branch: its wires and norms up to its component."""

    up: float
    """Height at which the wire of the branch begins."""
    is_shared: bool
    """Whether the branch shares the input of the first branch, so that its wire begins after that branch's norm.
    Otherwise, the wire begins at the residual stream."""
    norms: tuple[Boxed, ...]
    """Norms before the component that are drawn in the branch's own column."""
    base: float
    """Height from which the wire leads to the component. It is the same for all branches of a stage."""


def _starts(layer_boxes: LayerBoxes, stage: Sequence[_BranchBoxes], fork: float) -> Iterator[_Start]:
    """Yield the beginning of every branch. `fork` is the height at which branches leave the residual stream. A carried
    norm is drawn on the stream, below this height."""
    own = [() if boxes.before is None or layer_boxes.is_carried else (boxes.before,) for boxes in stage]
    shared = fork + max((GAP + norm.words.height for norms in own for norm in norms), default=0) + GAP / 2
    for boxes, norms in zip(stage, own, strict=True):
        is_shared = boxes.branch.shares_input
        yield _Start(shared if is_shared else fork, is_shared, norms, shared + 4)


def _added(risen: Sequence[float], join: float, stream: float, middles: Sequence[float]) -> Iterator[Shape]:
    """Yield the wires that add the outputs of branches, from the last column to the residual stream."""
    pluses = [stream, *middles]
    for place, up in enumerate(risen):
        x, is_last = middles[place], place == len(risen) - 1
        yield Wire([(x, up), (x, join if is_last else join - Plus.radius)], arrow=not is_last)
        yield Wire([(x if is_last else x - Plus.radius, join), (pluses[place] + Plus.radius, join)], arrow=True)
        yield Plus(pluses[place], join)
