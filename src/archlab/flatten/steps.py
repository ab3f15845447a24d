"""Statements of the flattened file before they become text, and their simplification.

At first, every variable is assigned only once: `x@7` is variable number 7, which is called `x` in archlab.model.
Therefore an expression has the same value wherever it is moved. The only exceptions are variables that are assigned
before a loop and again in it. At the end, variables get their final names.
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
"""Maximum length, in characters, of a statement into which the expression of a variable is moved."""


@dataclass(eq=False)
class Step:
    """Statement of the flattened file, with its comments."""

    node: ast.stmt
    above: list[str] = field(default_factory=list)
    """Comments on the lines above the statement."""
    behind: str = ""
    """Comment at the end of the statement's line."""
    body: list["Step"] = field(default_factory=list)
    """Body of the loop, if this statement is a loop."""
    is_argument: bool = False
    """Whether the statement assigns an argument of a call.

    If possible, its expression is moved to the place where the variable is read.
    """
    complete: Callable[[list[int]], None] | None = None
    """Function to call at the end, if this statement assigns several results of a call. Its argument is the list of
    indices of the results that are read; the called `forward` then returns only these."""

    @property
    def target(self) -> ast.expr | None:
        return self.node.targets[0] if isinstance(self.node, ast.Assign) else None


def assign(names: list[str], value: ast.expr, **more: Any) -> Step:
    targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
    return Step(ast.Assign([targets[0] if len(targets) == 1 else ast.Tuple(targets, ast.Store())], value), **more)


def all_steps(steps: list[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        yield from all_steps(step.body)


def read_in(steps: list[Step]) -> Counter[str]:
    return Counter(name for step in all_steps(steps) for name in loads(step.node))


def rewritten(node: Any, name: Callable[[ast.Name], ast.expr]) -> Any:
    """Return a syntax tree in which each name is replaced by what the function `name` returns for it.

    The input is not modified, because several trees may share parts. Parts in which nothing changes are reused.
    """
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


def substitute(variable: str, expr: ast.expr, node: Any) -> Any:
    return rewritten(node, lambda n: expr if n.id == variable and isinstance(n.ctx, ast.Load) else n)


def rename(steps: list[Step], names: dict[str, str]) -> None:
    for step in all_steps(steps):
        step.node = rewritten(step.node, lambda n: ast.Name(names[n.id], n.ctx) if n.id in names else n)


def remove_unused(steps: list[Step]) -> list[Step]:
    """Remove assignments to variables that are never read. If the argument of a call is read only once, move its
    expression there."""
    before = -1
    while len(steps) != before:
        before, read = len(steps), read_in(steps)
        steps = [step for step in steps if step.target is None or any(name in read for name in stores(step.target))]
    is_movable = _movable(steps)
    for step in [step for step in steps if step.is_argument and is_movable(step)]:
        steps.remove(step)
        _move_to_use(step, steps)
    return steps


def _movable(steps: list[Step]) -> Callable[[Step], bool]:
    """Return a function that returns whether the expression of a step may be moved to the place where its variable is
    read.

    The variable must be read once, outside of loops, and the expression must not read a variable that is assigned
    twice. Moving one step does not change the result of the test for other steps.
    """
    read, outside = read_in(steps), Counter(name for step in steps for name in loads(step.node))
    counts = Counter(name for step in all_steps(steps) for name in stores(step.node))
    set_twice = {name for name, count in counts.items() if count > 1}

    def is_movable(step: Step) -> bool:
        (name,) = stores(step.node)
        return read[name] == outside[name] == 1 and name not in set_twice and not set_twice & set(loads(step.node))

    return is_movable


def _move_to_use(step: Step, steps: list[Step]) -> None:
    (name,) = stores(step.node)
    assert isinstance(step.node, ast.Assign)
    for other in steps:
        if name in set(loads(other.node)):
            other.node = substitute(name, step.node.value, other.node)


def merge_into_next(steps: list[Step]) -> list[Step]:
    """Move the expression of a variable into the next statement, if the variable is read only there and only once.

    The expression is not moved if that statement would become too long.
    """
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
            _move_to_use(step, [following])
        else:
            continue
        steps = [*steps[:i], *steps[i + 1 :]]
    return steps


def text_of(node: ast.AST) -> str:
    """Return the text of a statement, without the numbers of variables."""
    return re.sub(r"(?<=\w)@\d+", "", ast.unparse(ast.fix_missing_locations(node)))


def source_name(name: str) -> str:
    """Return the name that a variable has in archlab.model: `x` for `x@7`."""
    return name.split("@")[0]


def drop_unread(step: Step, steps: list[Step]) -> list[int]:
    """In an assignment to several names, remove the names that are never read.

    Return the indices of the remaining names.
    """
    read, names = read_in(steps), list(stores(step.node))
    kept = [i for i, name in enumerate(names) if name in read]
    assert isinstance(step.node, ast.Assign)
    step.node = assign([names[i] for i in kept], step.node.value).node
    return kept


def name_variables(steps: list[Step], wanted: dict[str, str]) -> list[Step]:
    """Give variables their final names, and remove assignments of a variable to itself.

    A variable gets its preferred name. If it has none, it gets its name in archlab.model. If another variable with this
    name is read later, a number is appended.
    """
    names: dict[str, str] = {}
    read = read_in(steps)
    functions = {
        n.func.id
        for s in all_steps(steps)
        for n in ast.walk(s.node)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }

    def choose(steps: list[Step], later: set[str]) -> None:
        behind = accumulate((set(read_in([step])) for step in steps[:0:-1]), set[str].union, initial=later)
        for step, after in zip(steps, reversed(list(behind)), strict=False):  # `behind` is longer if there are no steps
            several = len(stores(step.node)) > 1
            for name in stores(step.node):
                if "@" in name and name not in names:
                    in_use = functions | {names.get(other, other) for other in after - {name}}
                    preferred = "_" if several and name not in read else wanted.get(name, source_name(name))
                    candidates = (preferred, *(f"{preferred}_{n}" for n in range(2, 99)))
                    names[name] = next(c for c in candidates if c == "_" or c not in in_use)
            choose(step.body, after | set(read_in([step])))

    choose(steps, set())
    rename(steps, names)
    return [step for step in steps if step.target is None or not _is_copy(step)]


def _is_copy(step: Step) -> bool:
    assert isinstance(step.node, ast.Assign)
    return _is_named(step.node.value, step.node.targets[0])


def _is_named(value: ast.expr, target: ast.expr) -> bool:
    return isinstance(value, ast.Name | ast.Tuple) and ast.unparse(value) == ast.unparse(target)
