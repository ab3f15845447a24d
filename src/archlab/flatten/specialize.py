"""Evaluation of calls in archlab.model for one kind of layer.

A call of a short function is replaced by the statements of the function. A longer function becomes a function in the
flattened file. A module that contains tensors becomes a class.
"""

import ast
from collections.abc import Callable

from archlab.flatten.operations import NotWritableError, is_instance, lift, names_in, plain
from archlab.flatten.statements import Body, Frame, Statements, is_simple
from archlab.flatten.steps import Step, assign, read_in, remove_unused, source_name
from archlab.flatten.values import Class, Code, Function, Known, Record, Sequence, Value, codes, module, named

KEPT = {"shape", "heads"}
"""Parameters of `__init__` that stay parameters in the flattened file. Other parameters are replaced by their values.

Modules that differ only in these parameters share a class.
"""

SHORT = 2
"""A function with fewer statements, not counting the return statement, is inlined into its caller."""


class Specializer(Statements):
    """Evaluator that also evaluates calls."""

    def replaced(self, function: Function | Class, arguments: list[Value], keywords: dict[str, Value]) -> Value | None:
        """Return the value that replaces a call. None means that the code of the function is evaluated."""
        raise NotImplementedError

    def define_function(
        self, function: Function, parameters: list[str], body: list[Step], leaves: list[ast.expr]
    ) -> str:
        raise NotImplementedError

    def run_module(self, record: Record, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        raise NotImplementedError

    def call(self, function: Value, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        match function:
            case Function() | Class() if replacement := self.replaced(function, arguments, keywords):
                return replacement
            case Function():
                bound = self.bind(function, arguments, keywords)
                return self._as_function(function, bound) or self._inlined(function, bound)
            case Class():
                return self.make(function, arguments, keywords)
            case Record(made_by="nn.Identity"):
                return arguments[0]
            case Record(holds_tensors=True):
                return self.run_module(function, arguments, keywords)
            case Record(is_module=is_module):
                method = self.attribute(function, "forward" if is_module else "__call__")
                return self.call(method, arguments, keywords)
            case _:
                raise NotWritableError(f"a call of a {type(function).__name__}")

    def instance(self, name: str, home: str, *arguments: Value) -> Record:
        made_by = self.top(name, module(home))
        assert isinstance(made_by, Class)
        return self.make(made_by, list(arguments), {})

    def make(self, made_by: Class, arguments: list[Value], keywords: dict[str, Value]) -> Record:
        """Return a new instance of a class. Its attributes are those that `__init__` sets, or the fields of a
        dataclass."""
        record = Record(made_by, path=named("self") if made_by.is_module else None)
        init = made_by.method("__init__")
        if init is None:
            fields = {name: node.value for name, node in made_by.fields.items()}
            values = {**dict(zip(fields, arguments, strict=False)), **keywords}
            defaults = {
                name: self.evaluate(value, {}, made_by.home)
                for name, value in fields.items()
                if name not in values and value
            }
            record.attributes = {name: {**defaults, **values}[name] for name in fields}
            return record
        function = Function(init, made_by.home, owner=record)
        bound = self.bind(function, arguments, keywords)
        for name in KEPT & set(bound):
            if isinstance(value := plain(bound[name]), int | tuple):
                record.arguments[name], bound[name] = lift(bound[name]), Known(value, named(name))
        self.run_unwritten(function, bound)
        return record

    def run_unwritten(self, function: Function, bound: dict[str, Value]) -> Value:
        """Run a function that is not written to the file: an `__init__`, or a property of a config.

        Its variables would be undefined there, so its result contains their values. `bound` maps parameters to values.
        """
        outer, self.body = self.body, Body(writes_variables=False)
        try:
            return self.run_function(function, bound)
        finally:
            self.body = outer

    def bind(self, function: Function, arguments: list[Value], keywords: dict[str, Value]) -> dict[str, Value]:
        signature = function.node.args
        parameters = [p.arg for p in (*signature.posonlyargs, *signature.args)][function.owner is not None :]
        values = {**dict(zip(parameters, arguments, strict=False)), **keywords}
        if signature.vararg:
            values[signature.vararg.arg] = Sequence(tuple(arguments[len(parameters) :]))
        defaults = dict(zip(parameters[::-1], signature.defaults[::-1], strict=False))
        defaults |= {
            p.arg: d for p, d in zip(signature.kwonlyargs, signature.kw_defaults, strict=True) if d is not None
        }
        return {**{n: self.evaluate(d, {}, function.home) for n, d in defaults.items() if n not in values}, **values}

    def run_function(self, function: Function, bound: dict[str, Value]) -> Value:
        """Run a function: write its statements to the current body, and return its result.

        `bound` maps parameters to values.
        """
        names = {**function.names, **bound, **({"self": function.owner} if function.owner else {})}
        if isinstance(function.node, ast.Lambda):
            return self.evaluate(function.node.body, names, function.home)
        self.body.frames.append(Frame(function.home, names))
        try:
            return self.run(function.node.body) or Known(None)
        finally:
            self.body.frames.pop()

    def _inlined(self, function: Function, bound: dict[str, Value]) -> Value:
        """Inline a call into its caller. An argument that is a longer expression becomes a variable."""
        for name, value in bound.items():
            if isinstance(value, Code) and not is_simple(value.expr) and self.body.writes_variables:
                variable = self.variable(name)
                self.body.steps.append(assign([variable], value.expr, is_argument=True))
                bound = {**bound, name: Code(named(variable))}
        return self.run_function(function, bound)

    def _as_function(self, function: Function, bound: dict[str, Value]) -> Value | None:
        """Write a function to the flattened file and return a call of it.

        Return None if the function is too short for that or cannot be in the file.
        """
        owner = function.owner
        if (
            not self.body.writes_variables
            or function.names
            or any(map(has_module, (*bound.values(), *([owner] if owner else []))))
        ):
            return None
        leaves: dict[str, ast.expr] = {}
        inner = {name: opened(name, value, leaves) for name, value in bound.items()}
        if owner is not None:
            inner["self"] = opened("self", owner, leaves)
        outer, self.body = self.body, Body()
        try:
            returned = self.run_function(Function(function.node, function.home), inner)
            end = Step(ast.Expr(ast.Tuple(codes(returned), ast.Load())))
            *body, end = remove_unused([*self.body.steps, end])
        finally:
            self.body = outer
        returns_argument = any(isinstance(expr, ast.Name) and expr.id in leaves for expr in codes(returned))
        if sum(1 + len(step.body) for step in body) < SHORT or returns_argument or not codes(returned):
            return None
        read = read_in([*body, end])
        used = [name for name in leaves if name in read]
        name = self.define_function(function, used, body, end.node.value.elts)  # pyright: ignore[reportAttributeAccessIssue]
        return self.unpacked(Code(ast.Call(named(name), [leaves[leaf] for leaf in used], [])), returned)

    def unpacked(self, call: Code, returned: Value, complete: Callable[[list[int]], None] | None = None) -> Value:
        """Return the result of a call that is written to the flattened file.

        If the call returns several values, it is assigned to as many variables.
        """
        if isinstance(returned, Code):
            return call
        variables: list[str] = []

        def variable(name: str, value: Value) -> Value:
            if not isinstance(value, Code):
                return value
            name = (
                self.wanted.get(value.expr.id, source_name(value.expr.id)) if isinstance(value.expr, ast.Name) else name
            )
            variables.append(self.variable(name))
            return Code(named(variables[-1]))

        match returned:
            case Sequence(items=items):
                result: Value = Sequence(tuple(variable(f"part_{i}", item) for i, item in enumerate(items)))
            case Record(made_by=made_by, attributes=attributes):
                result = Record(made_by, {name: variable(name, item) for name, item in attributes.items()})
            case _:
                raise NotWritableError(f"a {type(returned).__name__} as the result of a function")
        self.body.steps.append(assign(variables, call.expr, complete=complete))
        return result


def has_module(value: Value) -> bool:
    """Return whether a value contains a module, function or class.

    Such a value cannot be an argument of a function in the flattened file.
    """
    match value:
        case Record(is_module=True) | Function() | Class():
            return True
        case Record(attributes=attributes):
            return any(map(has_module, attributes.values()))
        case Sequence(items=items):
            return any(map(has_module, items))
        case _:
            return False


def opened(name: str, value: Value, leaves: dict[str, ast.expr], prefix: str = "") -> Value:
    """Return a value for use inside a function of the flattened file. Code inside the value becomes a parameter of the
    function and is added to `leaves` as its argument.

    If a record contains another one of its class, both have parts of the same names. `prefix` then distinguishes the
    parts of the inner record. A variable that is passed on keeps its name.
    """
    match value:
        case Code(expr=expr):
            keeps_name = isinstance(expr, ast.Name) and source_name(expr.id) == name
            leaf = name if keeps_name else prefix + name
            leaves[leaf] = expr
            return Code(named(leaf))
        case Record(made_by=Class() as made_by, attributes=attributes, is_module=False):
            parts: dict[str, Value] = {}
            for inner, item in attributes.items():
                is_alike = isinstance(item, Record) and is_instance(item, made_by)
                parts[inner] = opened(inner, item, leaves, f"{inner}_" if is_alike else prefix)
            return Record(made_by, parts)
        case Sequence(items=items):
            return Sequence(tuple(opened(f"{name}_{i}", item, leaves, prefix) for i, item in enumerate(items)))
        case Known(value=known, code=ast.expr() as expr) if any(not hasattr(n, "constant") for n in names_in(expr)):
            return Known(known) if isinstance(known, int | float) else value
        case _:
            return value
