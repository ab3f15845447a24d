"""Functions and classes of the flattened file. They are the functions and classes of archlab.model, specialized for one
config."""

import ast
import re
import textwrap
from typing import Any

from archlab.config.components.kernel_choice import MaskKind
from archlab.config.core.base import Base
from archlab.config.layers import COMPONENTS, Branch, LayerConfig
from archlab.flatten.assumed import Assumed, parsed
from archlab.flatten.operations import NotWritableError, cannot_be_written, lift, plain
from archlab.flatten.specialize import opened
from archlab.flatten.statements import Body
from archlab.flatten.steps import Step, drop_unread, merge_into_next, name_variables, read_in, remove_unused, substitute
from archlab.flatten.text import COMMENTS, CROSS, WIDTH, Page, constant, constant_name, fitted, lines, root, written
from archlab.flatten.values import Class, Code, Function, Known, Record, Value, codes, loads, named


class Writer(Assumed):
    """Evaluator that adds constants, functions and classes to a Page. Each kind of layer has its own Writer."""

    def __init__(self, page: Page, kind: str, layer: LayerConfig, mask_kind: MaskKind = "causal") -> None:
        super().__init__()
        self.page, self.kind, self.layer, self.mask_kind = page, kind, layer, mask_kind
        self._widths: dict[int, tuple[Base, str]] = {}

    # --- constants ----------------------------------------------------------------------------------------------------

    def attribute(self, value: Value, name: str) -> Value:
        """Return the attribute `name` of `value`. Widths of experts and multipliers of branches get constants with
        special names."""
        result = super().attribute(value, name)
        if isinstance(value, Known) and isinstance(value.value, Branch) and name == "multiplier":
            factor = value.value.multiplier
            return Known(factor, constant(f"{value.value.name.upper()}_MULTIPLIER", factor))
        if isinstance(result, Known) and name in ("shared_mlp", "expert_mlp") and isinstance(result.value, Base):
            self._widths[id(result.value)] = result.value, {"shared_mlp": "D_SHARED", "expert_mlp": "D_EXPERT"}[name]
        return result

    def constant(self, owner: Base, name: str, value: Any) -> ast.expr | None:
        constant_in_file = constant_name(owner, name)
        if constant_in_file == "D_FF" and id(owner) in self._widths:
            constant_in_file = self._widths[id(owner)][1]
        if constant_in_file == "NORM_EPS" and value != getattr(self.layer.norm, "eps", value):
            prefix = type(owner).__name__.removesuffix("LayerNorm").removesuffix("RMSNorm") or "other"
            constant_in_file = f"{prefix}_NORM_EPS".upper()
        if name == "scale" and (root_of_width := self._root(owner, value)):
            return root_of_width
        return constant(constant_in_file, value)

    def _root(self, owner: Base, value: float) -> ast.expr | None:
        """Return the code of sqrt(width) or 1 / sqrt(width) if `value` equals one of them, otherwise None."""
        section, field = (owner, "query_width") if hasattr(owner, "query_width") else (self.layer, "d_model")
        width = self.attribute(Known(section), field)
        text = root(value, plain(width))
        return substitute("width", lift(width), parsed(text)) if text else None

    def folded(self, name: str, value: float) -> ast.expr:
        return constant(FOLDED.get(name, name.upper()), value)

    def name(self, node: ast.Name) -> str:
        if not hasattr(node, "constant"):
            return node.id
        value: Any = node.constant  # pyright: ignore[reportAttributeAccessIssue]
        text = numbers(value) if isinstance(value, tuple) else value
        return self.page.constant(self.kind, node.id, text, COMMENTS.get(node.id, ""))

    # --- functions ----------------------------------------------------------------------------------------------------

    def define_function(
        self, function: Function, parameters: list[str], body: list[Step], leaves: list[ast.expr]
    ) -> str:
        node = function.node
        assert isinstance(node, ast.FunctionDef)
        types = self._annotations(function)
        typed = [f"{name}: {types.get(name, 'Tensor')}" for name in parameters]
        finished = list(written(self.finished(body, leaves), self.name, "    "))

        def text(name: str) -> str:
            return lines(signature("", name, typed, result_type(len(leaves))), documentation(node, "    "), finished)

        return self.page.define(self.kind, FUNCTIONS.get(node.name, node.name.strip("_")), text)

    def _annotations(self, function: Function) -> dict[str, str]:
        """Return the types of a function's parameters. If a parameter is a dataclass of archlab.model, its fields are
        parameters in the flattened file."""
        assert isinstance(function.node, ast.FunctionDef)
        arguments = function.node.args
        types = {argument.arg: argument.annotation for argument in (*arguments.args, *arguments.kwonlyargs)}
        classes = [node.id for node in types.values() if isinstance(node, ast.Name)]
        for name in classes:
            if name in function.home.names and isinstance(record := self.top(name, function.home), Class):
                types |= {field: node.annotation for field, node in record.fields.items()}
        return {name: annotation(node) for name, node in types.items()}

    def finished(self, body: list[Step], leaves: list[ast.expr]) -> list[Step]:
        """Return the final body of a function that returns `leaves`.

        Unused statements are removed, and variables get their final names.
        """
        end = Step(ast.Return(leaves[0] if len(leaves) == 1 else ast.Tuple(leaves, ast.Load())))
        steps = merge_into_next(remove_unused([*body, end]))
        for step in steps:
            if step.complete:
                step.complete(drop_unread(step, steps))
        return name_variables(steps, self.wanted)

    def lines(self, body: list[Step], returned: Value, indent: str) -> list[str]:
        return list(written(self.finished(body, codes(returned)), self.name, indent))

    # --- classes ------------------------------------------------------------------------------------------------------

    def run_module(self, record: Record, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        assert record.path is not None
        if isinstance(record.made_by, str):
            return Code(ast.Call(record.path, [lift(argument) for argument in arguments], []))
        method = record.made_by.method("forward")
        if method is None:
            raise NotWritableError(f"{record.made_by.node.name} without forward")
        path, function = record.path, Function(method, record.made_by.home, owner=record)
        bound, leaves = self.bind(function, arguments, keywords), dict[str, ast.expr]()
        inner = {name: opened(name, value, leaves) for name, value in bound.items()}
        outer, self.body = self.body, Body()
        record.path = named("self")
        kind, layer = self.kind, self.layer
        if record.name == CROSS:
            self.kind, self.layer = CROSS, layer.model_copy(update={"attention": layer.cross})
        try:
            returned = self.run_function(function, inner)
            read = read_in(remove_unused([*self.body.steps, Step(ast.Expr(ast.Tuple(codes(returned), ast.Load())))]))
            record.parameters = tuple(name for name in leaves if name in read)
            body, several = self.body.steps, not isinstance(returned, Code)
            if not several:
                self._define_class(record, method, body, codes(returned))
        except NotWritableError as error:
            if record.name in COMPONENTS:
                raise cannot_be_written(self.layer, record.name, str(error)) from error
            raise
        finally:
            self.body, record.path = outer, path
            self.kind, self.layer = kind, layer
        call = Code(ast.Call(path, [leaves[name] for name in record.parameters], []))

        def complete(wanted: list[int]) -> None:
            record.path = named("self")
            self._define_class(record, method, body, [codes(returned)[i] for i in wanted])
            record.path = path

        return self.unpacked(call, returned, complete if several else None)

    def _define_class(
        self, record: Record, method: ast.FunctionDef | None, body: list[Step], leaves: list[ast.expr]
    ) -> None:
        made_by = record.made_by
        assert isinstance(made_by, Class)
        forward: list[str] = []
        if method is not None:
            steps = self.finished(body, leaves)
            if torch_module := torch_equivalent(record, steps):
                record.creation = torch_module
                return
            types = self._annotations(Function(method, made_by.home))
            parameters = ["self", *(f"{name}: {types.get(name, 'Tensor')}" for name in record.parameters)]
            forward = [
                "", *signature("    ", "forward", parameters, result_type(len(leaves))),
                *documentation(method, "        "), *written(steps, self.name, "        "),
            ]  # fmt: skip
        init, kept = self._init(record)
        head = ", ".join(["self", *("*shape: int" if name == "shape" else f"{name}: int" for name in kept)])
        text = [
            *documentation(made_by.node, "    "),
            "",
            f"    def __init__({head}) -> None:",
            "        super().__init__()",
            *init,
            *forward,
            *self._apply_lines(record),
        ]
        own_name = OWN_NAME.get(record.name, made_by.node.name)
        class_name = self.page.define(self.kind, own_name, lambda name: lines(f"class {name}(nn.Module):", text))
        arguments = [record.arguments[name] for name in kept]
        spread = [e for a in arguments for e in (a.elts if isinstance(a, ast.Tuple) else [a])]
        record.creation = ast.Call(named(class_name), spread, [])

    def _apply_lines(self, record: Record) -> list[str]:
        """Return the lines of the method `_apply`, copied from archlab.model. Return no lines if the module has no such
        method or no buffers.

        With `_apply`, buffers keep their dtype when the dtype of the module changes.
        """
        assert isinstance(record.made_by, Class)
        node = record.made_by.method("_apply")
        if node is None or not any(isinstance(v, Code) and not is_parameter(v) for v in record.attributes.values()):
            return []
        bare = [ast.arg(argument.arg) for argument in node.args.args]
        arguments = ast.arguments([], bare, None, [], [], None, node.args.defaults)
        body = ast.unparse(ast.fix_missing_locations(ast.Module(node.body[1:], [])))
        return [
            "",
            f"    def {node.name}({ast.unparse(arguments)}):",
            *documentation(node, " " * 8),
            *textwrap.indent(body, " " * 8).splitlines(),
        ]

    def _init(self, record: Record) -> tuple[list[str], list[str]]:
        out: list[tuple[str, ast.expr]] = []
        for name, value in record.attributes.items():
            if isinstance(value, Code):
                out.append((name, parameter_creation(value.expr, record.initial.get(name))))
            elif isinstance(value, Record) and value.holds_tensors:
                out.append((name, self._made(name, value)))
        kept = [name for name in record.arguments if any(name in set(loads(expr)) for _, expr in out)]
        made: list[str] = []
        for name, expr in out:
            value = record.attributes[name]
            is_buffer = isinstance(value, Code) and not is_parameter(value)
            start, end = (f'self.register_buffer("{name}", ', ")") if is_buffer else (f"self.{name} = ", "")
            made += fitted(f"        {start}", expr, end, self.name)
        return made, kept

    def init_lines(self, record: Record) -> list[str]:
        return self._init(record)[0]

    def _made(self, name: str, record: Record) -> ast.expr:
        if record.creation is None:  # this module is never called; it only contains other modules
            record.name = name
            self._define_class(record, None, [], [])
        assert record.creation is not None
        return record.creation


def is_parameter(value: Code) -> bool:
    return isinstance(value.expr, ast.Call) and ast.unparse(value.expr.func) == "nn.Parameter"


FOLDED = {"rotating": "ROTARY_DIM"}
"""Mapping from variables in archlab.model that are numbers to the constants that replace them in the flattened file.

Contains only names that differ.
"""

OWN_NAME = {"shared": "SharedExpert", "cross": "CrossAttention"}
"""Mapping from the name of the attribute that contains a module to the name of its class in the flattened file.

Contains only class names that differ from those in archlab.model.
"""

FUNCTIONS = {"rotation": "rope", "reference": "attend"}
"""Mapping from function names in archlab.model to function names in the flattened file. Contains only names that
differ."""


def result_type(several: int) -> str:
    return "Tensor" if several == 1 else f"tuple[{', '.join(['Tensor'] * several)}]"


def annotation(node: ast.expr | None) -> str:
    """Return the type annotation of a parameter: that of archlab.model if it is a number or a dtype, otherwise
    Tensor."""
    text = "" if node is None else ast.unparse(node)
    return text if text in ("int", "float", "torch.dtype") else "Tensor"


def signature(indent: str, name: str, parameters: list[str], result: str) -> list[str]:
    whole = f"{indent}def {name}({', '.join(parameters)}) -> {result}:"
    if len(whole) <= WIDTH:
        return [whole]
    return [
        f"{indent}def {name}(",
        *(f"{indent}    {parameter}," for parameter in parameters),
        f"{indent}) -> {result}:",
    ]


def documentation(node: ast.FunctionDef | ast.ClassDef, indent: str) -> list[str]:
    """Return the lines of a docstring. Its text is the first sentence of the docstring in archlab.model.

    In archlab.model, this sentence must therefore be true for every config.
    """
    text = re.split(r"(?<=[.])\s+(?=[A-Z`])|\n\n", ast.get_docstring(node) or "")[0].replace("\n", " ")
    if len(indent) + len(text) + 6 <= WIDTH:
        return [f'{indent}"""{text}"""'] if text else []
    wrapped = textwrap.wrap(f'"""{text}', WIDTH - 12, initial_indent=indent, subsequent_indent=indent)
    return [*wrapped, f'{indent}"""']


def torch_equivalent(record: Record, steps: list[Step]) -> ast.expr | None:
    """Return the call that creates nn.Linear or nn.Embedding, if the module computes the same as one of them. Otherwise
    return None."""
    tensors = {name: value.expr for name, value in record.attributes.items() if isinstance(value, Code)}
    if len(steps) > 1:
        return None
    code = ast.unparse(ast.fix_missing_locations(steps[0].node))
    x = record.parameters[0] if record.parameters else ""
    match sorted(tensors), tensors.get("weight"):
        case ["weight"] | ["bias", "weight"], ast.Call(args=[ast.Call(args=[ast.Tuple(elts=[a, b])] | [a, b])]):
            bias = [] if "bias" in tensors else [ast.keyword("bias", ast.Constant(False))]
            if code == f"return F.embedding({x}, self.weight)":
                return ast.Call(parsed("nn.Embedding"), [a, b], [])
            if code == f"return F.linear({x}, self.weight{', self.bias' if 'bias' in tensors else ''})":
                return ast.Call(parsed("nn.Linear"), [b, a], bias)
        case _:
            pass
    return None


def parameter_creation(expr: ast.expr, initial: Value | None) -> ast.expr:
    """Return the expression that creates a parameter.

    If archlab.model initializes the parameter to a constant, the expression does so, too.
    """
    match expr, initial:
        case ast.Call(func=func, args=[ast.Call(args=shape)]), Known(value=value) if (
            ast.unparse(func) == "nn.Parameter"
        ):
            assert initial is not None
            name = {0: "torch.zeros", 1: "torch.ones"}.get(value, "torch.full")
            arguments = [ast.Tuple(shape, ast.Load()), lift(initial)] if name == "torch.full" else list(shape)
            return ast.Call(func, [ast.Call(parsed(name), arguments, [])], [])
        case _:
            return expr


def numbers(values: tuple[float, ...]) -> str:
    rows, row = list[str](), ""
    for value in values:
        text = f"{value!r}, "
        if len(row) + len(text) > 80:
            rows, row = [*rows, f"    {row.rstrip()}"], ""
        row += text
    return lines("(", [*rows, f"    {row.rstrip()}"], ")  # fmt: skip")
