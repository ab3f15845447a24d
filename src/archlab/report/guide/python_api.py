"""What `import archlab` offers, as Markdown: each name's signature and docstring, read from its source."""

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import repeat
from textwrap import dedent, indent
from types import ModuleType
from typing import Any

_INTRO = """# From Python

`import archlab` is quick: each name is loaded when it is first used.
"""

_WIDTH = 88
"""Columns of a signature in one line."""

Defined = ast.FunctionDef | ast.ClassDef


def python_api(archlab: ModuleType) -> str:
    """A heading per name of the package's `__all__`."""
    named = ((name, getattr(archlab, name)) for name in archlab.__all__ if not name.startswith("__"))
    return "\n".join([_INTRO, *(described(f"archlab.{name}", value) for name, value in named)])


def described(name: str, value: Any) -> str:
    """A function, or a class with what it offers, under a heading."""
    (node,) = ast.parse(dedent(inspect.getsource(inspect.unwrap(value)))).body
    assert isinstance(node, Defined)
    members = [f"* {member}" for member in _members(node)] if isinstance(node, ast.ClassDef) else []
    return "\n".join([f"## {name}\n", _fence(_called(name, node)), _docstring(node), "", *members, ""])


def _called(name: str, node: Defined) -> str:
    """As it is called: `name(argument: type = default) -> type`."""
    if isinstance(node, ast.ClassDef):
        made = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
        return _called(f"class {name}", made) if made else f"class {name}"
    arguments = [one for one in _arguments(node.args) if one not in ("self", "cls")]
    returned = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    in_a_line = f"{name}({', '.join(arguments)}){returned}"
    if len(in_a_line) <= _WIDTH:
        return in_a_line
    return "\n".join([f"{name}(", *(f"    {one}," for one in arguments), f"){returned}"])


def _arguments(given: ast.arguments) -> Iterator[str]:
    """`name: type = default` each."""
    plain = [*given.posonlyargs, *given.args]
    defaults = [*repeat(None, len(plain) - len(given.defaults)), *given.defaults]
    for argument, default in zip(plain, defaults, strict=True):
        yield _argument(argument, default)
        if argument in given.posonlyargs[-1:]:
            yield "/"
    if given.vararg:
        yield f"*{ast.unparse(given.vararg)}"
    elif given.kwonlyargs:
        yield "*"
    yield from map(_argument, given.kwonlyargs, given.kw_defaults)
    if given.kwarg:
        yield f"**{ast.unparse(given.kwarg)}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f" = {ast.unparse(default)}" if default else "")


def _members(node: ast.ClassDef) -> Iterator[str]:
    """Its public fields, properties and methods, with what they say of themselves."""
    for part, after in zip(node.body, [*node.body[1:], None], strict=True):
        match part:
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                yield f"`{ast.unparse(part)}`{_said(_text(after))}"
            case ast.FunctionDef(name=name) if not name.startswith("_"):
                is_property = any(ast.unparse(one).endswith("property") for one in part.decorator_list)
                returned = f": {ast.unparse(part.returns)}" if part.returns else ""
                called = f"{name}{returned}" if is_property else _called(name, part)
                yield f"`{called}`{_said(_docstring(part))}"
            case _:
                pass


def _said(text: str) -> str:
    return f"\\\n{indent(text, '  ').rstrip()}" if text else ""


def _text(statement: ast.stmt | None) -> str:
    """Of a field's docstring, which stands after it."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return inspect.cleandoc(text)
        case _:
            return ""


def _docstring(node: Defined) -> str:
    """As Markdown: what stands after >>> is code."""
    return re.sub(r"(?m)(^>>> .*\n?)+", lambda lines: _fence(lines[0].rstrip()), ast.get_docstring(node) or "")


def _fence(code: str) -> str:
    return f"```python\n{code}\n```\n"
