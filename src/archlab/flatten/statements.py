"""Evaluation of statements in archlab.model.

A statement is executed if all values in it are known. Otherwise it is written to the flattened file.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from archlab.flatten.evaluate import Evaluator
from archlab.flatten.operations import NotWritableError, bound, is_true, lift, plain, unrolled
from archlab.flatten.steps import Step, assign
from archlab.flatten.values import Code, Function, Known, Module, Record, Sequence, Value, named, stores


@dataclass(eq=False)
class Frame:
    """Function call that is being evaluated."""

    home: Module
    names: dict[str, Value]
    carried: dict[str, str] = field(default_factory=dict)
    """Mapping from variable names in archlab.model to variables in the flattened file. Contains only variables that
    keep their value from one iteration of the surrounding loop to the next."""


@dataclass(eq=False)
class Body:
    """Body of a function in the flattened file, while it is being written."""

    steps: list[Step] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    """Calls that are being inlined into this function, from the outermost to the innermost."""
    writes_variables: bool = True
    """Whether an assignment to a variable is written to the file. If not, its uses contain the assigned value, as in an
    `__init__` or in a property of a config."""


class Statements(Evaluator):
    """Evaluator that also executes statements, and writes those that it cannot execute."""

    def __init__(self) -> None:
        self.body = Body()
        self.wanted: dict[str, str] = {}
        """Mapping from variables to preferred names. If a value has different names in a function and in its caller,
        the caller's name is preferred."""
        self._counter = count()

    def folded(self, name: str, value: float) -> ast.expr:
        raise NotImplementedError

    def variable(self, name: str) -> str:
        return f"{name}@{next(self._counter)}"

    def run(self, nodes: list[ast.stmt]) -> Value | None:
        """Run statements in order until a return statement. Return its value, or None if there is no return
        statement."""
        for node in nodes:
            returned = self._statement(node)
            if returned is not None:
                return returned
        return None

    def _statement(self, node: ast.stmt) -> Value | None:
        frame = self.body.frames[-1]

        def evaluate(expr: ast.expr) -> Value:
            return self.evaluate(expr, frame.names, frame.home)

        match node:
            case ast.Return(value=value):
                return Known(None) if value is None else evaluate(value)
            case (
                ast.Assign(targets=[ast.Attribute(attr="constants" | "roles" as name)], value=value)
                | ast.AnnAssign(target=ast.Attribute(attr="constants" | "roles" as name), value=value)
            ):
                self._initial(name, value)
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                start = next(self._counter)
                self._assign(node, target, evaluate(value), start)
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                self._assign(node, target, evaluate(ast.BinOp(named(name), op, value)), next(self._counter))
            case ast.AnnAssign() | ast.Assert() | ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case ast.If(test=test, body=body, orelse=orelse) if (truth := is_true(evaluate(test))) is not None:
                return self.run(body if truth else orelse)
            case ast.Match(subject=subject, cases=cases):
                value = evaluate(subject)
                for case in cases:
                    captured = self._matched(case.pattern, value)
                    if captured is not None:
                        frame.names |= captured
                        return self.run(case.body)
            case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Name(id="without_autocast")))], body=body):
                return self.run(body)
            case ast.For(target=target, iter=iterable, body=body) if isinstance(items := evaluate(iterable), Code):
                loops = {name: self.variable(name) for name in stores(target)}
                frame.names |= {name: Code(named(variable)) for name, variable in loops.items()}
                header = assign(list(loops.values()), items.expr).target
                assert header is not None
                self._loop(lambda: ast.For(header, items.expr, [], []), body)
            case ast.For(target=target, iter=iterable, body=body):
                for item in unrolled(evaluate(iterable)):
                    frame.names |= bound(target, item)
                    if (returned := self.run(body)) is not None:
                        return returned
            case ast.While(test=test, body=body):
                self._loop(lambda: ast.While(lift(evaluate(test)), [], []), body)
            case ast.FunctionDef(name=name):
                frame.names[name] = Function(node, frame.home, frame.names)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super"))), args=[])):
                pass  # super().__init__()
            case ast.Expr(value=value):
                result = evaluate(value)
                if isinstance(result, Code):
                    self._write(node, Step(ast.Expr(result.expr)))
            case _:
                raise NotWritableError(ast.unparse(node).splitlines()[0])
        return None

    def _write(self, source: ast.stmt, step: Step) -> None:
        home = self.body.frames[-1].home
        step.above, step.behind = home.above(source), home.behind(source)
        self.body.steps.append(step)

    def _initial(self, name: str, value: ast.expr | None) -> None:
        """Read the attribute `constants` of a module, and record which parameters it initializes to a constant.

        The flattened file contains no other initial values.
        """
        frame = self.body.frames[-1]
        owner = frame.names["self"]
        if name == "constants" and isinstance(value, ast.Dict) and isinstance(owner, Record):
            pairs = [
                (key.value, v) for key, v in zip(value.keys, value.values, strict=True) if isinstance(key, ast.Constant)
            ]
            owner.initial = {str(key): self.evaluate(v, frame.names, frame.home) for key, v in pairs}

    # --- variables ----------------------------------------------------------------------------------------------------

    def _assign(self, node: ast.stmt, target: ast.expr, value: Value, start: int) -> None:
        frame = self.body.frames[-1]
        match target, value:
            case ast.Tuple(elts=elts), Code(expr=expr):
                variables = [self.variable(name) for name in stores(target)]
                assert len(variables) == len(elts)
                self._write(node, assign(variables, expr))
                frame.names |= {name: Code(named(v)) for name, v in zip(stores(target), variables, strict=True)}
            case ast.Tuple(elts=elts), _:
                for element, item in zip(elts, unrolled(value), strict=True):
                    self._assign(node, element, item, start)
            case ast.Name(id=name), _:
                frame.names[name] = self._kept(node, name, value, start)
            case ast.Attribute(value=ast.Name(id="self"), attr=attr), _ if isinstance(
                owner := frame.names["self"], Record
            ):
                owner.attributes[attr] = value
            case _:
                raise NotWritableError(ast.unparse(node))

    def _kept(self, node: ast.stmt, name: str, value: Value, start: int) -> Value:
        """Return the value that an assignment gives to the variable `name`.

        If it is code, or a number that is computed from several constants, write the assignment to the flattened file.
        """
        if not self.body.writes_variables:
            return value
        carried = self.body.frames[-1].carried.get(name)
        match value:
            case _ if carried is not None:
                self._write(node, assign([carried], lift(value)))
                return Code(named(carried))
            case Known(value=int() | float() as number, code=None) if not isinstance(number, bool):
                return Known(number, self.folded(name, number))
            case Known(value=int() | float() as number, code=ast.expr() as expr) if not is_simple(expr):
                variable = self.variable(name)
                self._write(node, assign([variable], expr))
                return Known(number, named(variable))
            case Sequence(items=()):  # a list that grows
                expr = ast.List([], ast.Load())
            case Code(expr=ast.Name(id=variable)) if "@" in variable and int(variable.split("@")[1]) > start:
                self.wanted[variable] = name  # the variable belongs to the call that was just inlined
                return value
            case Code(expr=expr) if not is_simple(expr):
                pass
            case _:
                return value
        variable = self.variable(name)
        self._write(node, assign([variable], expr))
        return Code(named(variable))

    def _loop(self, header: Callable[[], ast.stmt], body: list[ast.stmt]) -> None:
        """Write a loop whose number of iterations is not known.

        A name that exists before the loop and is assigned in the loop becomes one variable, which is assigned at both
        places.
        """
        frame = self.body.frames[-1]
        names = sorted({name for statement in body for name in stores(statement)} & set(frame.names))
        carried = {name: self.variable(name) for name in names}
        self.body.steps += [assign([carried[name]], lift(frame.names[name]), is_argument=False) for name in names]
        frame.names |= {name: Code(named(variable)) for name, variable in carried.items()}
        step = Step(ast.Pass())
        outer, self.body.steps, frame.carried = self.body.steps, step.body, carried
        self.run(body)
        self.body.steps, frame.carried = outer, {}
        step.node = header()
        self.body.steps.append(step)

    # --- match --------------------------------------------------------------------------------------------------------

    def _matched(self, pattern: ast.pattern, value: Value) -> dict[str, Value] | None:
        frame = self.body.frames[-1]
        inner: list[tuple[ast.pattern, Value]] = []
        captured: dict[str, Value] = {}
        match pattern:
            case ast.MatchAs(pattern=part, name=name):
                captured = {name: value} if name else {}
                inner = [(part, value)] if part else []
            case ast.MatchClass(cls=cls, kwd_attrs=names, kwd_patterns=patterns):
                classes = plain(self.evaluate(cls, frame.names, frame.home))
                if not (isinstance(value, Known) and isinstance(value.value, classes)):
                    return None
                inner = [(part, self.attribute(value, name)) for name, part in zip(names, patterns, strict=True)]
            case ast.MatchSequence(patterns=patterns):
                inner = list(zip(patterns, unrolled(value), strict=True))
            case ast.MatchValue(value=expr):
                return captured if plain(value) == plain(self.evaluate(expr, frame.names, frame.home)) else None
            case ast.MatchSingleton(value=single):
                return captured if plain(value) is single else None
            case _:
                raise NotWritableError(f"case {ast.unparse(pattern)}")
        for part, item in inner:
            more = self._matched(part, item)
            if more is None:
                return None
            captured |= more
        return captured


def is_simple(expr: ast.expr) -> bool:
    """Return whether an expression is so simple that repeating it costs nothing.

    Such an expression is a name, a number or an attribute of a name.
    """
    match expr:
        case ast.Name() | ast.Constant() | ast.UnaryOp(operand=ast.Constant()):
            return True
        case ast.Attribute(value=inner):
            return is_simple(inner)
        case _:
            return False
