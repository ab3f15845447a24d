"""Block diagram of a config, wired like the model, from the tokens at the bottom to the logits at the top."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

from archlab.config.components.activation import name_of_mlp
from archlab.config.components.norm import NoNorm
from archlab.config.layers import Branch, LayerConfig, distinct_layers, final_norm, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.pricing.params import parameters
from archlab.pricing.units import count
from archlab.report.drawings.inside import can_unfold, unfolded
from archlab.report.drawings.stacks import BESIDE, GAP, Boxed, Part, Trunk, climb
from archlab.report.drawings.svg import SMALL, Box, Cell, Frame, Label, Plus, Shape, Svg, Wire, Words, to_svg
from archlab.report.drawings.words import component_words, norm_words

_MARGIN = 18
_STRIP, _STRIP_GAP = 14, 26
_HEADING = 17


class Drawing(NamedTuple):
    """Block diagram as shapes that have not been converted to SVG yet."""

    shapes: tuple[Shape, ...]
    width: float
    height: float
    title: str

    @property
    def texts(self) -> frozenset[tuple[str, str]]:
        """All texts in the boxes of the diagram, as pairs (part of the model, text)."""
        boxes = [shape for shape in self.shapes if isinstance(shape, Box)]
        return frozenset((box.part, text) for box in boxes for text in (box.words.title, *box.words.lines))


class Cycle(NamedTuple):
    """A sequence of different kinds of layers that a model repeats."""

    label: str
    """Label of the cycle, such as `(local, full) × 21`."""
    short: str
    """Shorter label, such as `cycle of 2 layers × 21`, used if the full label does not fit."""


def block_diagram(config: Config, name: str, unfold: Sequence[str] = (), remark: str = "") -> Svg:
    """Return the block diagram of a config.

    `unfold` lists the branches (`attention`, `mlp`) whose components are drawn in detail, if this is possible. `remark`
    is a line below the name.
    """
    drawing = draw(config, name, unfold, remark)
    return to_svg(drawing.shapes, drawing.width, drawing.height, drawing.title)


def side_by_side(a: Config, a_name: str, b: Config, b_name: str) -> tuple[Svg, Svg]:
    """Return the diagrams of two configs. Text that appears in only one of the two diagrams is highlighted."""
    pair = draw(a, a_name), draw(b, b_name)
    first, second = (
        to_svg(drawing.shapes, drawing.width, drawing.height, drawing.title, drawing.texts - other.texts)
        for drawing, other in (pair, pair[::-1])
    )
    return first, second


def draw(config: Config, name: str, unfold: Sequence[str] = (), remark: str = "") -> Drawing:
    """Return the shapes of a config's diagram. The arguments are those of `block_diagram`."""
    model = config.model
    kinds = distinct_layers(model)
    stages = [_Stages(layer, unfold) for layer in kinds]
    below, summed, above = _below(model), _summed(model), _above(model)
    left = _MARGIN + _STRIP + _STRIP_GAP
    outside = max(box.width for box in (*below, *summed, *above)) / 2
    inside = max((box.width for layer_stages in stages for box in layer_stages.on_stream), default=0) / 2
    stream = max(_MARGIN + outside, left + GAP + inside)
    columns = _columns(stages, stream + max(inside, 2 * Plus.radius) + BESIDE)
    trunk = climb(
        Trunk((Label("tokens", stream, _MARGIN - 6, anchor="middle", faint=True),), _MARGIN + 6), below, stream
    )
    for boxed in _added_vectors(model):
        trunk = _add(boxed, trunk, stream, columns)
    trunk = climb(trunk, summed, stream)
    bottom = trunk.up + GAP
    right = max(columns[-1].right + GAP, stream + outside)
    in_order = [layer.kind for layer in layer_configs(model)]
    taking_turns = take_turns(in_order)
    turns = cycle(in_order) if taking_turns else None
    if turns:
        trunk = _led_up(trunk, stream)
    begin = trunk.up
    for index, (stages_of_kind, n_layers) in enumerate(zip(stages, kinds.values(), strict=True)):
        label = stages_of_kind.layer.kind if len(kinds) > 1 else "layer"
        if not turns:
            label = f"{label}: {n_layers} of {model.n_layers}" if taking_turns else f"{label} × {n_layers}"
        trunk = _layer(stages_of_kind, label, index, trunk, stream, columns, (left, right))
    if turns:
        trunk = _framed(turns, begin, trunk, stream, (left - GAP / 2, right + GAP / 2))
        right += GAP / 2
    strip = _strip(model, list(kinds), bottom, trunk.up)
    trunk = climb(trunk, above, stream)
    lines = [f"{_sizes(model)} · context {model.max_seq_len:,}", *([remark] if remark else [])]
    top = trunk.up + 14
    heading = _heading(name, lines, top + 32)
    shapes = (
        *trunk.shapes,
        Wire([(stream, trunk.up), (stream, top)], arrow=True, is_stream=True),
        Label("logits", stream, top + 5, anchor="middle", faint=True),
        *strip,
        *heading,
    )
    width = max(right, *(_MARGIN + label.width for label in heading)) + _MARGIN
    title = f"Block diagram of {name}{f': {remark}' if remark else ''}"
    return Drawing(shapes, width, heading[0].up + _HEADING + _MARGIN / 2, title)


def _heading(name: str, lines: Sequence[str], up: float) -> list[Label]:
    n = len(lines)
    faint = [Label(line, _MARGIN, up + 16 * (n - 1 - i), 12, faint=True) for i, line in enumerate(lines)]
    return [Label(name, _MARGIN, up + 16 * (n - 1) + 20, _HEADING, bold=True), *faint]


def _sizes(model: ModelConfig) -> str:
    """Return a summary line such as `671B parameters, 37.5B active · 61 layers · width 7,168`."""
    n = parameters(model)
    active = f", {count(n.active)} active" if n.active != n.total else ""
    return f"{count(n.total)} parameters{active} · {model.n_layers} layers · width {model.d_model:,}"


class _Column(NamedTuple):
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


class _Stages:
    """Boxes of one layer, grouped by stage. The branches of a stage run in parallel."""

    def __init__(self, layer: LayerConfig, unfold: Sequence[str]) -> None:
        self.layer, self.unfold = layer, unfold
        self.is_carried = layer.norm.is_carried
        self.stages = [[self._boxes(branch) for branch in stage] for stage in layer.stages]

    def _boxes(self, branch: Branch) -> _BranchBoxes:
        layer, name = self.layer, branch.name
        before = self._norm(branch, "before") if "before" in branch.norms else None
        is_unfolded = name in self.unfold and can_unfold(branch.component)
        component = Boxed(name, name, component_words(layer, branch))
        rest: list[Part] = [unfolded(layer, branch) if is_unfolded else component]
        # Norms in all other slots are after the component, except the one on the stream.
        rest += [self._norm(branch, slot) for slot in branch.norms if slot not in ("before", "stream")]
        if branch.multiplier != 1:
            rest.append(Boxed(f"{name} multiplier", "io", Words(f"× {branch.multiplier:.4g}")))
        if layer.dropout.branch:
            rest.append(Boxed(f"{name} dropout", "io", Words(f"dropout {layer.dropout.branch:g}")))
        return _BranchBoxes(branch, before, tuple(rest))

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
        return [box for box in boxes if box]


def _below(model: ModelConfig) -> list[Boxed]:
    embedding = model.embedding.resolve(model.base_width)
    width = embedding.width or model.d_model
    boxes = [Boxed("embedding", "io", Words("Token embedding", (f"{model.vocab_size:,} × {width:,}",)))]
    if embedding.scale != 1:
        boxes.append(Boxed("embedding scale", "io", Words(f"× {embedding.scale:.4g}")))
    if embedding.width and embedding.widened == "tokens":
        boxes.append(Boxed("embedding widening", "io", Words(f"{width:,} → {model.d_model:,}")))
    if embedding.norm is True:
        boxes.append(Boxed("embedding norm", "norm", norm_words(model.norm)))
    return boxes


def _added_vectors(model: ModelConfig) -> Iterator[Boxed]:
    width, position = model.added_width, model.position
    if n := model.embedding.segments:
        yield Boxed("segments", "position", Words("Segments", (f"{n:,} × {width:,}",)))
    if position.acts_on == "embedding":
        line = f"{model.max_seq_len:,} × {width:,}" if position.kind == "learned" else f"theta {position.theta:,g}"  # pyright: ignore[reportAttributeAccessIssue]
        yield Boxed("positions", "position", Words(f"{position.kind.capitalize()} positions", (line,)))


def _summed(model: ModelConfig) -> list[Boxed]:
    """Return the boxes between the last sum with the embedding and the layers."""
    embedding = model.embedding
    boxes = [Boxed("embedding norm", "norm", norm_words(model.norm))] if embedding.norm == "sum" else []
    if model.dropout.embedding:
        boxes.append(Boxed("embedding dropout", "io", Words(f"dropout {model.dropout.embedding:g}")))
    if embedding.width and embedding.widened == "sum":
        boxes.append(Boxed("embedding widening", "io", Words(f"{embedding.width:,} → {model.d_model:,}")))
    return boxes


def _above(model: ModelConfig) -> list[Boxed]:
    norm, head = final_norm(model), model.readout
    width = model.embedding.width or model.d_model
    boxes = [] if isinstance(norm, NoNorm) else [Boxed("final norm", "norm", norm_words(norm))]
    if transform := head.transform:
        words = Words(
            "Dense layer", (f"{model.d_model:,} → {width:,}", name_of_mlp(transform.activation, is_gated=False))
        )
        boxes.append(Boxed("head transform", "mlp", words))
        boxes += [Boxed("head norm", "norm", norm_words(model.norm))] if transform.norm else []
    elif model.embedding.width:
        boxes.append(Boxed("head narrowing", "io", Words(f"{model.d_model:,} → {width:,}")))
    lines = ["embedding matrix (tied)" if head.tied else f"{width:,} × {model.vocab_size:,}"]
    boxes.append(Boxed("head", "io", Words("Head", (*lines, *(["bias"] if head.bias else [])))))
    if head.scale != 1:
        boxes.append(Boxed("head scale", "io", Words(f"× {head.scale:.4g}")))
    if head.softcap:
        boxes.append(Boxed("head cap", "io", Words(f"capped at {head.softcap:g}")))
    return boxes


def _columns(stages: Sequence[_Stages], left: float) -> list[_Column]:
    rows = [stage for layer_stages in stages for stage in layer_stages.stages]
    deepest = max((len(stage) for stage in rows), default=1)
    widths = [max((stage[i].width for stage in rows if len(stage) > i), default=0) for i in range(deepest)]
    lefts = accumulate((width + BESIDE for width in widths[:-1]), initial=left)
    return [_Column(x + width / 2, width) for x, width in zip(lefts, widths, strict=True)]


def _add(boxed: Boxed, trunk: Trunk, stream: float, columns: Sequence[_Column]) -> Trunk:
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


def _layer(
    layer_boxes: _Stages,
    name: str,
    index: int,
    trunk: Trunk,
    stream: float,
    columns: Sequence[_Column],
    sides: tuple[float, float],
) -> Trunk:
    inside = _led_up(trunk, stream)
    bottom = inside.up
    for stage in layer_boxes.stages:
        inside = _stage(layer_boxes, stage, inside, stream, columns)
    top = inside.up + 30
    left, right = sides
    label = Label(name, right - 10, top - 19, 13, bold=True, anchor="end")
    frame = Frame(f"layer {layer_boxes.layer.kind}", left, bottom, right - left, top - bottom, index)
    through = Wire([(stream, inside.up), (stream, top)], is_stream=True)
    return Trunk((*inside.shapes, frame, label, through), top)


def _led_up(trunk: Trunk, stream: float) -> Trunk:
    up = trunk.up + GAP
    return Trunk((*trunk.shapes, Wire([(stream, trunk.up), (stream, up)], is_stream=True)), up)


def _framed(turns: Cycle, bottom: float, trunk: Trunk, stream: float, sides: tuple[float, float]) -> Trunk:
    left, right = sides
    top = trunk.up + 30
    label = Label(turns.label, right - 10, top - 19, 13, bold=True, anchor="end")
    if label.width > right - stream - BESIDE:
        label = label._replace(text=turns.short)
    frame = Frame("cycle", left, bottom, right - left, top - bottom, None)
    return Trunk((*trunk.shapes, frame, label, Wire([(stream, trunk.up), (stream, top)], is_stream=True)), top)


def _stage(
    layer_boxes: _Stages, stage: Sequence[_BranchBoxes], trunk: Trunk, stream: float, columns: Sequence[_Column]
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


def _starts(layer_boxes: _Stages, stage: Sequence[_BranchBoxes], fork: float) -> Iterator[_Start]:
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


def _strip(model: ModelConfig, kinds: Sequence[LayerConfig], bottom: float, top: float) -> Iterator[Shape]:
    layers = layer_configs(model)
    each = min((top - bottom - 24) / len(layers), 40)
    gap = 1 if each >= 3 else 0
    middle = _MARGIN + _STRIP / 2
    yield Label("1", middle, bottom, anchor="middle", faint=True, size=SMALL)
    for i, layer in enumerate(layers):
        up = bottom + 14 + i * each
        yield Cell(f"layer {i}", _MARGIN, up, _STRIP, each - gap, kinds.index(layer), f"layer {i + 1}: {layer.kind}")
    if len(layers) > 1:
        yield Label(f"{len(layers)}", middle, bottom + 19 + len(layers) * each, anchor="middle", faint=True, size=SMALL)


def take_turns(kinds: Sequence[str]) -> bool:
    """Return whether a kind of layer occurs again after a different kind. `kinds` has one kind per layer."""
    return len(_runs(kinds)) > len(set(kinds))


def cycle(kinds: Sequence[str]) -> Cycle | None:
    """Return the shortest cycle of layer kinds that occurs at least twice, or None if there is none. The last
    repetition may be incomplete."""
    n = len(kinds)
    length = next((p for p in range(1, n // 2 + 1) if all(kinds[i] == kinds[i - p] for i in range(p, n))), None)
    if length is None:
        return None
    turns, left = divmod(n, length)
    rest = f", then {_in_words(kinds[n - left :])}" if left else ""
    label = f"({_in_words(kinds[:length])}) × {turns}{rest}"
    return Cycle(label, f"cycle of {length} layers × {turns}{f', then {left} more' if left else ''}")


def _runs(kinds: Sequence[str]) -> list[tuple[str, int]]:
    return [(kind, len(list(run))) for kind, run in groupby(kinds)]


def _in_words(kinds: Sequence[str]) -> str:
    return ", ".join(kind if n == 1 else f"{kind} × {n}" for kind, n in _runs(kinds))
