"""The class `Decoder` of a flattened file: it contains the embedding, the layers and the head."""

import ast
import re
import sys
from dataclasses import dataclass
from itertools import groupby, pairwise

from archlab.config.components.kernel_choice import MaskKind
from archlab.config.components.visibility import Visibility, hidden_keys
from archlab.config.layers import LayerConfig, encoder_of, layer_configs, sees_as
from archlab.config.model_schema import ModelConfig
from archlab.flatten.assumed import SKELETON, parsed
from archlab.flatten.classes import Writer
from archlab.flatten.operations import lift
from archlab.flatten.statements import Body, Frame
from archlab.flatten.steps import Step, assign, name_variables, remove_unused, rename
from archlab.flatten.text import WIDTH, Page, fitted, lines, written
from archlab.flatten.values import Code, Known, Record, Value, module, named, stores


@dataclass(frozen=True)
class LayerKind:
    """Kind of layer. Layers of one kind have the same config."""

    name: str
    layer: LayerConfig


def kinds_of(model: ModelConfig) -> tuple[list[LayerKind], list[str]]:
    """Return the kinds of layers in order of appearance, and a list with the name of the kind of each layer."""
    layers = [layer.model_copy(update={"kind": ""}) for layer in layer_configs(model)]
    config_names = dict(zip(layers, (layer.kind for layer in layer_configs(model)), strict=True))
    names = {layer: re.sub(r"\W+", "_", name).strip("_").lower() for layer, name in config_names.items()}
    are_usable = all(name.isidentifier() and len(name) <= 12 for name in names.values())
    if not are_usable or len(set(names.values())) < len(names):
        names = {layer: f"kind_{i}" for i, layer in enumerate(names, 1)}
    in_order = list(dict.fromkeys(layers))
    return [LayerKind(names[layer], layer) for layer in in_order], [names[layer] for layer in layers]


def decoder(page: Page, model: ModelConfig) -> None:
    """Add the class `Decoder` and all that it needs to the page."""
    source = None if (encoder := encoder_of(model)) is None else _encoder(page, encoder)
    kinds, order = kinds_of(model)
    if source is not None and len(kinds) == 1:
        kinds, order = [LayerKind("decoder", kinds[0].layer)], ["decoder"]
    page.constant("", "N_LAYERS", model.n_layers)
    stack = _Stack(page, "outer" if source is None else "decoder", model, kinds[0].layer)
    ends = stack.writer.instance("Vocabulary", SKELETON, Known(model))
    stack.names["vocabulary"] = ends
    before_layers = stack.written("x_BTD = stack.entered(vocabulary.embedded(tokens_BT), positions_BT)")
    stack.add_layers(kinds, Known(None), source or Known(None))
    after_layers = stack.written("x_BTD = stack.norm(x_BTD)\nreturn vocabulary.logits(x_BTD)")
    body = [*before_layers, *stack.through_layers(), *after_layers]
    if any("positions_BT" in line for line in body):
        body = ["        positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]", *body]
    creation = stack.made_layers("N_LAYERS")
    if any("in LAYERS" in line or "(LAYERS" in line for line in (*creation, *body)):
        _pattern(page, order)
    embedding, head = stack.made(ends, last="head")
    before, norm = stack.made(stack.root, last="norm")
    predicted = "logits" if sees_as(model, "two_sided") else "logits of the next token"
    page.define(
        "outer",
        "Decoder",
        lambda name: lines(
            f"class {name}(nn.Module):",
            f'    """Language model: token ids to {predicted}, at every position."""',
            "",
            "    def __init__(self) -> None:",
            "        super().__init__()",
            [*embedding, *before],
            None if source is None else "        self.encoder = Encoder()",
            creation,
            [*norm, *head],
            "",
            FORWARD if source is None else FORWARD_WITH_SOURCE,
            body,
        ),
    )


FORWARD = (
    "    def forward(self, tokens_BT: Tensor) -> Tensor:",
    '        """[B, T] -> [B, T, V]."""',
)

FORWARD_WITH_SOURCE = (
    "    def forward(",
    "        self,",
    "        tokens_BT: Tensor,",
    "        source: Tensor,",
    "        source_lengths: Tensor | None = None,",
    "    ) -> Tensor:",
    '        """[B, T] and source [B, S] -> [B, T, V].',
    "",
    "        `source_lengths`, [B], is the number of tokens in each row of the source. The",
    "        rest of the row is padding. By default there is no padding.",
    '        """',
    "        if source_lengths is None:",
    "            source_lengths = source.new_full(source.shape[:1], source.shape[1])",
    "        index_11S = torch.arange(source.shape[1], device=source.device)[None, None]",
    "        is_real_B1S = index_11S < source_lengths[:, None, None]",
    "        source_BSD = self.encoder(self.embedding(source), source_lengths)",
)


def _encoder(page: Page, model: ModelConfig) -> Record:
    """Add the class `Encoder` to the page. Return the Source that cross-attention reads."""
    kind = LayerKind("encoder", layer_configs(model)[0])
    page.constant("", "N_ENCODER_LAYERS", model.n_layers)
    stack = _Stack(page, "encoder", model, kind.layer)
    before_layers = stack.written("x_BTD = stack.entered(x_BTD, positions_BT)")
    stack.add_layers([kind], Code(named("lengths_B")), Known(None))
    after_layers = stack.written("return stack.norm(x_BTD)")
    before, norm = stack.made(stack.root, last="norm")
    page.define(
        "encoder",
        "Encoder",
        lambda name: lines(
            f"class {name}(nn.Module):",
            '    """Encoder: embedded tokens of the source to what cross-attention reads."""',
            "",
            "    def __init__(self) -> None:",
            "        super().__init__()",
            before,
            stack.made_layers("N_ENCODER_LAYERS"),
            norm,
            "",
            "    def forward(self, x_BTD: Tensor, lengths_B: Tensor) -> Tensor:",
            '        """[B, T, D] -> [B, T, D]. A row has `lengths_B` tokens, then padding."""',
            "        index_1T = torch.arange(x_BTD.shape[1], device=x_BTD.device)[None]",
            "        positions_BT = torch.where(index_1T < lengths_B[:, None], index_1T, -1)",
            before_layers,
            stack.through_layers(),
            after_layers,
        ),
    )
    return stack.writer.instance(
        "Source", "archlab.model.state", Code(named("is_real_B1S")), Known(True), Code(named("source_BSD"))
    )


def mask_kind_of_all(kinds: list[LayerKind]) -> MaskKind:
    """Return which keys the attention of all layers hides, in sequences of any length and without padding."""
    rules = [kind.layer.attention for kind in kinds if isinstance(kind.layer.attention, Visibility)]
    mask_kinds: set[MaskKind] = {hidden_keys(rule, sys.maxsize) for rule in rules}
    if not mask_kinds:
        return "causal"
    return mask_kinds.pop() if len(mask_kinds) == 1 else "other"


class _Stack:
    """Code of a decoder or an encoder: the lines of its `__init__` and its `forward`."""

    def __init__(self, page: Page, name: str, model: ModelConfig, layer: LayerConfig) -> None:
        self.page, self.writer = page, Writer(page, name, layer)
        self.root = self.writer.instance("Stack", SKELETON, Known(model))
        self.names: dict[str, Value] = {"stack": self.root}
        self.layers = list[_Layer]()

    def written(self, text: str) -> list[str]:
        """Return the lines of a forward pass for the statements in `text`."""
        names = {name: Code(named(name)) for name in ("tokens_BT", "positions_BT", "x_BTD")}
        frame = Frame(module(SKELETON), {**names, **self.names})
        self.writer.body = Body(frames=[frame])
        returned = self.writer.run(ast.parse(text).body)
        if returned is not None:
            return self.writer.lines(self.writer.body.steps, returned, "        ")
        *steps, last = self.writer.finished(self.writer.body.steps, [lift(frame.names["x_BTD"])])
        assert isinstance(last.node, ast.Return)
        assert last.node.value is not None
        if ast.unparse(last.node.value) != "x_BTD":
            steps.append(Step(ast.Assign([ast.Name("x_BTD", ast.Store())], last.node.value)))
        return list(written(steps, self.writer.name, "        "))

    def made(self, record: Record, last: str) -> tuple[list[str], list[str]]:
        """Return the lines that create the modules of a record. The lines for the module `last` come separately."""
        all_lines = self.writer.init_lines(record)
        is_last = [line.startswith(f"        self.{last} =") for line in all_lines]
        first = is_last.index(True) if any(is_last) else len(all_lines)
        return all_lines[:first], all_lines[first:]

    def add_layers(self, kinds: list[LayerKind], lengths_B: Value, source: Value) -> None:
        """Write the classes of the layers. `lengths_B` and `source` are arguments of `Stack.context`."""
        # With biases, attention needs masks as tensors anyway. The decoder can then use the encoder's attention.
        is_biased = any(kind.layer.position.acts_on == "scores" for kind in kinds)
        is_masked = isinstance(lengths_B, Code) or (isinstance(source, Record) and is_biased)
        mask_kind = "other" if is_masked else mask_kind_of_all(kinds)
        names: dict[str, Value] = {"stack": self.root, "lengths_B": lengths_B, "source": source}
        self.layers = [_Layer(self.page, kind, names, mask_kind) for kind in kinds]

    def through_layers(self) -> list[str]:
        """Return the lines of a forward pass through all layers."""
        return _through(self.layers, by_kind=len({tuple(layer.lines()) for layer in self.layers}) > 1)

    def made_layers(self, n_layers: str) -> list[str]:
        """Return the lines that create the layers. `n_layers` is the name of a constant."""
        return _make_layers(self.layers, n_layers)


class _Layer:
    """Code for one kind of layer: the name of its class, and the statements that compute the arguments of its
    `forward`."""

    def __init__(self, page: Page, kind: LayerKind, names: dict[str, Value], mask_kind: MaskKind) -> None:
        self.kind, self.writer = kind, Writer(page, kind.name, kind.layer, mask_kind)
        names = {**names, "positions_BT": Code(named("positions_BT")), "layer": Known(kind.layer)}
        frame = Frame(module(SKELETON), names)
        self.writer.body = Body(frames=[frame])
        context = self.writer.evaluate(
            parsed("stack.context(layer, positions_BT, lengths_B, source)"), names, frame.home
        )
        record = self.writer.instance("Layer", "archlab.model.layer", Known(kind.layer), Known("auto"))
        record.path = named("layer")
        call = self.writer.call(record, [Code(named("x_BTD")), context, Known({})], {})
        assert isinstance(call, Code)
        assert isinstance(call.expr, ast.Call)
        assert isinstance(record.creation, ast.Call)
        self.name = ast.unparse(record.creation.func)
        arguments = dict(zip(record.parameters, call.expr.args, strict=True))
        arguments.pop("x_BTD")
        steps, end = list[Step](), list[ast.expr]()
        for name, value in arguments.items():
            if not isinstance(value, ast.Name):
                variable = self.writer.variable(name)
                steps.append(assign([variable], value))
                value = named(variable)
            self.writer.wanted[value.id] = name
            end.append(value)
        last = Step(ast.Expr(ast.Tuple(end, ast.Load())))
        self.steps = name_variables(remove_unused([*self.writer.body.steps, *steps, last]), self.writer.wanted)

    def lines(self, prefix: str = "") -> list[str]:
        """Return the lines that compute the arguments of the layer's `forward`. The last line is a list of these
        arguments.

        `prefix` is prepended to the names of variables.
        """
        if prefix:
            own = {name for step in self.steps for name in stores(step.node)}
            rename(self.steps, {name: f"{prefix}_{name}" for name in own})
        *steps, end = self.steps
        return [*written(steps, self.writer.name, "        "), written_tuple(end)]


def written_tuple(end: Step) -> str:
    assert isinstance(end.node, ast.Expr)
    assert isinstance(end.node.value, ast.Tuple)
    return ", ".join(ast.unparse(name) for name in end.node.value.elts)


def _through(layers: list[_Layer], by_kind: bool) -> list[str]:
    if not by_kind:
        *steps, arguments = layers[0].lines()
        call = parsed(f"layer(x_BTD, {arguments})")
        run = fitted("            x_BTD = ", call, "", layers[0].writer.name)
        return [*steps, "        for layer in self.layers:", *run]
    steps, table = list[str](), list[str]()
    for layer in layers:
        *before, arguments = layer.lines(layer.kind.name)
        steps += before
        row = parsed(f"({arguments},)" if arguments else "()")
        table += fitted(f'            "{layer.kind.name}": ', row, ",", layer.writer.name)
    return [
        *steps,
        "        context = {",
        *table,
        "        }",
        "        for kind, layer in zip(LAYERS, self.layers, strict=True):",
        "            x_BTD = layer(x_BTD, *context[kind])",
    ]


def _pattern(page: Page, order: list[str]) -> None:
    cycle = _period(order)
    pattern = _runs(cycle)
    if len(f"PATTERN = {pattern}") > WIDTH:
        rows, row = list[str](), ""
        for name in cycle:
            if len(row) + len(name) > 76:
                rows, row = [*rows, f"    {row.rstrip()}"], ""
            row += f'"{name}", '
        pattern = lines("(", [*rows, f"    {row.rstrip()}"], ")  # fmt: skip")
    page.constant("", "PATTERN", pattern)
    page.constant("", "LAYERS", "[PATTERN[i % len(PATTERN)] for i in range(N_LAYERS)]")


def _period(names: list[str]) -> list[str]:
    """Return the shortest list that, repeated and cut to the length of `names`, equals `names`."""
    for length in range(1, len(names) + 1):
        if all(name == names[i % length] for i, name in enumerate(names)):
            return names[:length]
    return names


def _runs(names: list[str]) -> str:
    """Return the code of a tuple of names. Repeated names are counted: ["a", "a", "b", "b"] gives `("a",) * 2 + ("b",)
    * 2`."""
    repeats = any(a == b for a, b in pairwise(names))
    if len(names) > 1 and (len(names) <= 3 or not repeats):
        return "(" + ", ".join(f'"{name}"' for name in names) + ")"
    counted = [(name, len(list(run))) for name, run in groupby(names)]
    return " + ".join(f'("{name}",)' + (f" * {n}" if n > 1 else "") for name, n in counted)


def _make_layers(layers: list[_Layer], n_layers: str) -> list[str]:
    classes = {layer.kind.name: layer.name for layer in layers}
    if len(set(classes.values())) == 1:
        return [f"        self.layers = nn.ModuleList({layers[0].name}() for _ in range({n_layers}))"]
    items = [f'"{kind}": {name}' for kind, name in classes.items()]
    table = [f"        layer = {{{', '.join(items)}}}"]
    if len(table[0]) > WIDTH:
        table = ["        layer = {", *(f"            {item}," for item in items), "        }"]
    return [*table, "        self.layers = nn.ModuleList(layer[kind]() for kind in LAYERS)"]
