"""The class `Decoder` of a flattened file: it contains the embedding, the layers and the head."""

import ast
import re
import sys
from dataclasses import dataclass
from itertools import groupby, pairwise

from archlab.config.components.visibility import Visibility, is_plain_causal
from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.flatten.assumed import parsed
from archlab.flatten.classes import Writer
from archlab.flatten.operations import lift
from archlab.flatten.statements import Body, Frame
from archlab.flatten.steps import Step, assign, name_variables, remove_unused, rename
from archlab.flatten.text import WIDTH, Page, lines, written
from archlab.flatten.values import Code, Known, Record, module, named, stores

SKELETON = "archlab.flatten.skeleton"


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
    kinds, order = kinds_of(model)
    page.constant("", "N_LAYERS", model.n_layers)
    writer = Writer(page, "outer", kinds[0].layer)
    root = writer.instance("Decoder", SKELETON, Known(model))
    before_layers = _written(writer, root, "x_BTD = self.embedded(tokens_BT, positions_BT)")
    rules = [kind.layer.attention for kind in kinds if isinstance(kind.layer.attention, Visibility)]
    masked = not all(is_plain_causal(rule, sys.maxsize) for rule in rules)  # for sequences of any length
    layers = [_Layer(page, kind, root, masked) for kind in kinds]
    creation = _make_layers(layers)
    after_layers = _written(writer, root, "return self.logits(x_BTD)")
    by_kind = len({tuple(layer.lines()) for layer in layers}) > 1
    body = [*before_layers, *_through(layers, by_kind), *after_layers]
    if any("positions_BT" in line for line in body):
        body = ["        positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]", *body]
    made = writer.init_lines(root)
    last = [line for line in made if line.strip().startswith(("self.norm ", "self.head "))]
    if any("in LAYERS" in line or "(LAYERS" in line for line in (*creation, *body)):
        _pattern(page, order)
    page.define(
        "outer",
        "Decoder",
        lines(
            "class <name>(nn.Module):",
            '    """Language model: token ids to logits of the next token, at every position."""',
            "",
            "    def __init__(self) -> None:",
            "        super().__init__()",
            [line for line in made if line not in last],
            creation,
            last,
            "",
            "    def forward(self, tokens_BT: Tensor) -> Tensor:",
            '        """[B, T] -> [B, T, V]."""',
            body,
        ),
    )


def _written(writer: Writer, root: Record, text: str) -> list[str]:
    names = {name: Code(named(name)) for name in ("tokens_BT", "positions_BT", "x_BTD")}
    frame = Frame(module(SKELETON), {**names, "self": root})
    writer.body = Body(frames=[frame])
    returned = writer.run(ast.parse(text).body)
    if returned is not None:
        return writer.lines(writer.body.steps, returned, "        ")
    *steps, last = writer.finished(writer.body.steps, [lift(frame.names["x_BTD"])])
    assert isinstance(last.node, ast.Return)
    assert last.node.value is not None
    if ast.unparse(last.node.value) != "x_BTD":
        steps.append(Step(ast.Assign([ast.Name("x_BTD", ast.Store())], last.node.value)))
    return list(written(steps, writer.name, "        "))


class _Layer:
    """Code for one kind of layer: the name of its class, and the statements that compute the arguments of its
    `forward`."""

    def __init__(self, page: Page, kind: LayerKind, root: Record, masked: bool) -> None:
        self.kind, self.writer = kind, Writer(page, kind.name, kind.layer, masked)
        names = {"positions_BT": Code(named("positions_BT")), "self": root, "layer": Known(kind.layer)}
        frame = Frame(module(SKELETON), names)
        self.writer.body = Body(frames=[frame])
        context = self.writer.evaluate(parsed("self.context(layer, positions_BT)"), names, frame.home)
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
        all_arguments = f"x_BTD, {arguments}" if arguments else "x_BTD"
        return [*steps, "        for layer in self.layers:", f"            x_BTD = layer({all_arguments})"]
    steps, table = list[str](), list[str]()
    for layer in layers:
        *before, arguments = layer.lines(layer.kind.name)
        steps += before
        table.append(
            f'            "{layer.kind.name}": ({arguments}{"" if ", " in arguments or not arguments else ","}),'
        )
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


def _make_layers(layers: list[_Layer]) -> list[str]:
    classes = {layer.kind.name: layer.name for layer in layers}
    if len(set(classes.values())) == 1:
        return [f"        self.layers = nn.ModuleList({layers[0].name}() for _ in range(N_LAYERS))"]
    items = [f'"{kind}": {name}' for kind, name in classes.items()]
    table = [f"        layer = {{{', '.join(items)}}}"]
    if len(table[0]) > WIDTH:
        table = ["        layer = {", *(f"            {item}," for item in items), "        }"]
    return [*table, "        self.layers = nn.ModuleList(layer[kind]() for kind in LAYERS)"]
