"""Statements of the file while it is written, and what makes them fewer.

While it is written, every variable is set once: `x@7` is the seventh, and `x` in the source. So an expression means the
same wherever it goes. Only what a loop carries on is set again. Variables get their names last.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
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


def rewritten(node: Any, name: Callable[[ast.Name], ast.expr]) -> Any:
    """The syntax with something else in the place of its names. It is the same syntax where nothing changes, and never
    changed itself: others may share it."""
    if isinstance(node, ast.Name):
        return name(node)
    if isinstance(node, list):
        items = [rewritten(item, name) for item in node]
        return items if any(a is not b for a, b in zip(items, node, strict=True)) else node
    if not isinstance(node, ast.AST) or not node._fields:
        return node
    parts = [getattr(node, field, None) for field in node._fields]
    new = [rewritten(part, name) for part in parts]
    return type(node)(*new) if any(a is not b for a, b in zip(new, parts, strict=True)) else node


def put(variable: str, expr: ast.expr, node: Any) -> Any:
    """The syntax with an expression in the place of a name that is read."""
    return rewritten(node, lambda n: expr if n.id == variable and isinstance(n.ctx, ast.Load) else n)


def rename(steps: list[Step], names: dict[str, str]) -> None:
    """Give variables other names, in loops too."""
    for step in every(steps):
        step.node = rewritten(step.node, lambda n: ast.Name(names[n.id], n.ctx) if n.id in names else n)


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
            other.node = put(name, step.node.value, other.node)


def joined(steps: list[Step]) -> list[Step]:
    """With what is read once, and right behind, written where it is read, while that is short."""
    is_movable = _movable(steps)
    for i in reversed(range(len(steps) - 1)):
        step, following = steps[i], steps[i + 1]
        if step.target is None or step.above or step.complete or following.body:
            continue
        assert isinstance(step.node, ast.Assign)
        returned = following.node.value if isinstance(following.node, ast.Return) else None
        if returned is not None and _is_named(returned, step.target):
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
    return re.sub(r"(?<=\w)@\d+", "", ast.unparse(ast.fix_missing_locations(node)))


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
        behind = accumulate((set(read_in([step])) for step in steps[:0:-1]), set[str].union, initial=later)
        for step, after in zip(steps, reversed(list(behind)), strict=False):  # without steps, none is behind
            several = len(stores(step.node)) > 1
            for name in stores(step.node):
                if "@" in name and name not in names:
                    in_use = called | {names.get(other, other) for other in after - {name}}
                    first = "_" if several and name not in read else wanted.get(name, bare(name))
                    tried = (first, *(f"{first}_{n}" for n in range(2, 99)))
                    names[name] = next(one for one in tried if one == "_" or one not in in_use)
            choose(step.body, after | set(read_in([step])))

    choose(steps, set())
    rename(steps, names)
    return [step for step in steps if step.target is None or not _is_copy(step)]


def _is_copy(step: Step) -> bool:
    assert isinstance(step.node, ast.Assign)
    return _is_named(step.node.value, step.node.targets[0])


def _is_named(value: ast.expr, target: ast.expr) -> bool:
    """Whether a value is only what the target sets, one name or several."""
    return isinstance(value, ast.Name | ast.Tuple) and ast.unparse(value) == ast.unparse(target)
