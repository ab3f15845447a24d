"""Statements of the file while it is written, and what makes them fewer.

While it is written, every variable is set once: `x@7` is the seventh, and `x` in the source. So an expression means the
same wherever it goes. Only what a loop carries on is set again. Variables get their names last.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from archlab.flatten.values import loads, stores

SHORT_LINE = 62
"""Characters of a statement that may hold what could stand before it under a name."""


@dataclass(eq=False)
class Step:
    """A statement of the file, and the comments around it."""

    node: ast.stmt
    above: list[str] = field(default_factory=list)
    behind: str = ""
    body: list["Step"] = field(default_factory=list)
    """Of a loop."""
    is_argument: bool = False
    """Whether it only keeps what a call was given, which is best seen where it is read."""
    complete: Callable[[list[int]], None] | None = None
    """Of a call that gives several things: to be told which of them are read."""

    @property
    def target(self) -> ast.expr | None:
        """What it sets, if that is all it does."""
        return self.node.targets[0] if isinstance(self.node, ast.Assign) else None


def assign(names: list[str], value: ast.expr, **more: Any) -> Step:
    """A step that sets variables."""
    targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
    return Step(ast.Assign([targets[0] if len(targets) == 1 else ast.Tuple(targets, ast.Store())], value), **more)


def every(steps: list[Step]) -> Iterator[Step]:
    """Steps, and those of loops."""
    for step in steps:
        yield step
        yield from every(step.body)


def read_in(steps: list[Step]) -> Counter[str]:
    """How often each name is read."""
    return Counter(name for step in every(steps) for name in loads(step.node))


class Put(ast.NodeTransformer):
    """Puts an expression in the place of a name that is read."""

    def __init__(self, name: str, expr: ast.expr) -> None:
        self.name, self.expr = name, expr

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Of ast."""
        return self.expr if node.id == self.name and isinstance(node.ctx, ast.Load) else node


class Renamed(ast.NodeTransformer):
    """Gives variables other names."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Of ast."""
        return ast.Name(self.names[node.id], node.ctx) if node.id in self.names else node

    def steps(self, steps: list[Step]) -> None:
        """In all of them; their syntax is made anew, for others may share it."""
        for step in every(steps):
            step.node = self.visit(copied(step.node))


def copied(node: Any) -> Any:
    """The same syntax anew."""
    if isinstance(node, list):
        return [copied(item) for item in node]
    if not isinstance(node, ast.AST):
        return node
    new = type(node)(**{name: copied(value) for name, value in ast.iter_fields(node)})
    if hasattr(node, "constant"):
        new.constant = node.constant  # pyright: ignore[reportAttributeAccessIssue]
    return new


def needed(steps: list[Step]) -> list[Step]:
    """Without what nothing reads, and with arguments where they are read, if that is in one place."""
    before = -1
    while len(steps) != before:
        before, read = len(steps), read_in(steps)
        steps = [step for step in steps if step.target is None or any(name in read for name in stores(step.target))]
    is_movable = _movable(steps)
    for step in [step for step in steps if step.is_argument and is_movable(step)]:
        steps.remove(step)
        _put(step, steps)
    return steps


def _movable(steps: list[Step]) -> Callable[[Step], bool]:
    """Whether what a step sets may stand where it is read: in one place, outside loops, and reading nothing that is set
    again. To move one changes nothing for the others."""
    read, outside = read_in(steps), Counter(name for step in steps for name in loads(step.node))
    counts = Counter(name for step in every(steps) for name in stores(step.node))
    again = {name for name, count in counts.items() if count > 1}

    def is_movable(step: Step) -> bool:
        (name,) = stores(step.node)
        return read[name] == outside[name] == 1 and name not in again and not again & set(loads(step.node))

    return is_movable


def _put(step: Step, steps: list[Step]) -> None:
    (name,) = stores(step.node)
    assert isinstance(step.node, ast.Assign)
    for other in steps:
        if name in set(loads(other.node)):
            other.node = Put(name, step.node.value).visit(copied(other.node))


def joined(steps: list[Step]) -> list[Step]:
    """With what is read once, and right behind, written where it is read, while that is short."""
    is_movable = _movable(steps)
    for i in reversed(range(len(steps) - 1)):
        step, following = steps[i], steps[i + 1]
        if step.target is None or step.above or step.complete or following.body:
            continue
        assert isinstance(step.node, ast.Assign)
        returned = following.node.value if isinstance(following.node, ast.Return) else None
        if returned is not None and ast.unparse(step.target) == ast.unparse(returned):
            following.node, following.behind = ast.Return(step.node.value), step.behind
        elif isinstance(step.target, ast.Name) and not step.behind and is_movable(step):
            name, value = step.target.id, step.node.value
            length = len(text_of(following.node)) + len(text_of(value)) - len(name)
            if name not in set(loads(following.node)) or length > SHORT_LINE:
                continue
            _put(step, [following])
        else:
            continue
        steps = [*steps[:i], *steps[i + 1 :]]
    return steps


def text_of(node: ast.AST) -> str:
    """As text, about as long as in the file."""
    return ast.unparse(ast.fix_missing_locations(Renamed(_Bare()).visit(copied(node))))


class _Bare(dict[str, str]):
    """x@7 -> x."""

    def __contains__(self, name: object) -> bool:
        return "@" in str(name)

    def __missing__(self, name: str) -> str:
        return bare(name)


def bare(name: str) -> str:
    """x@7 -> x."""
    return name.split("@")[0]


def only_read(step: Step, steps: list[Step]) -> list[int]:
    """Leaves in an assignment to several names those that are read; their places."""
    read, names = read_in(steps), list(stores(step.node))
    kept = [i for i, name in enumerate(names) if name in read]
    assert isinstance(step.node, ast.Assign)
    step.node = assign([names[i] for i in kept], step.node.value).node
    return kept


def name_variables(steps: list[Step], wanted: dict[str, str]) -> list[Step]:
    """Each by the name that is wanted for it, or else its source's, unless another one that is still read has that."""
    names: dict[str, str] = {}
    read = read_in(steps)
    called = {
        n.func.id
        for s in every(steps)
        for n in ast.walk(s.node)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }

    def choose(steps: list[Step], later: set[str]) -> None:
        for i, step in enumerate(steps):
            after = later | set(read_in(steps[i + 1 :]))
            several = len(list(stores(step.node))) > 1
            for name in stores(step.node):
                if "@" in name and name not in names:
                    in_use = called | {names.get(other, other) for other in after - {name}}
                    first = "_" if several and name not in read else wanted.get(name, bare(name))
                    tried = (first, *(f"{first}_{n}" for n in range(2, 99)))
                    names[name] = next(one for one in tried if one == "_" or one not in in_use)
            choose(step.body, after | set(read_in(step.body)) | set(loads(step.node)))

    choose(steps, set())
    Renamed(names).steps(steps)
    return [step for step in steps if step.target is None or not _is_copy(step)]


def _is_copy(step: Step) -> bool:
    assert isinstance(step.node, ast.Assign)
    return ast.unparse(step.node.targets[0]) == ast.unparse(step.node.value)
