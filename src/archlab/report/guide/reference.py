"""The reference: every field of the files that a person writes, and what `import archlab` offers."""

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from itertools import repeat
from textwrap import dedent, indent
from types import ModuleType
from typing import Any, NamedTuple

from archlab.config.core.registry import cache_of_kinds
from archlab.evidence.field_help import FieldHelp, field_help
from archlab.study.authoring import SCHEMAS


class Group(NamedTuple):
    """The fields of one section."""

    path: str
    """Dotted; empty: what stands at the top of the file."""
    section: FieldHelp | None
    """null: at the top of the file, and where the section has a name that its writer gives it."""
    fields: list[FieldHelp]
    """Those that hold values; kind first."""
    sections: list[FieldHelp]
    """Those that hold fields, which are a group of their own."""


class ReferencePage(NamedTuple):
    """A part of a file."""

    address: str
    title: str
    about: str
    groups: list[Group]

    @property
    def places(self) -> list[tuple[str, str]]:
        """Anchor and name of each section."""
        return [(group.path, group.path) for group in self.groups if group.path]


@cache_of_kinds
def reference_pages() -> list[ReferencePage]:
    """A config's own fields, each of its sections, and a study."""
    config, study = (list(groups(field_help(SCHEMAS[kind]))) for kind in ("config", "study"))
    return [
        ReferencePage("reference-config.html", "Config", "A file that archlab trains, costs or draws.", config[:1]),
        *(_of_section(section, config) for section in config[0].sections),
        ReferencePage("reference-study.html", "Study", "A file that `archlab study run` takes.", study),
    ]


def _of_section(section: FieldHelp, config: Sequence[Group]) -> ReferencePage:
    inside = [group for group in config if group.path.split(".")[0] == section.path]
    return ReferencePage(f"reference-{section.path}.html", f"Config: {section.path}", section.readings[0].text, inside)


def groups(fields: dict[str, FieldHelp]) -> Iterator[Group]:
    """In the order of the schema, a section before those inside it; first what stands at the top."""
    inside: dict[str, list[FieldHelp]] = {}
    for path, field in fields.items():
        inside.setdefault(path.rpartition(".")[0], []).append(field)
    for path, found in inside.items():
        plain = [field for field in found if field.path not in inside]
        plain.sort(key=lambda field: not field.path.endswith(".kind"))
        yield Group(path, fields.get(path), plain, [field for field in found if field.path in inside])


def addresses(pages: Sequence[ReferencePage]) -> dict[str, str]:
    """Dotted field -> where it is explained."""
    return {
        path: f"{page.address}#{path}"
        for page in pages
        for group in page.groups
        for path in (group.path, *(field.path for field in group.fields))
        if path
    }


@cache_of_kinds
def config_addresses() -> dict[str, str]:
    """Of the fields of a config."""
    return addresses(reference_pages()[:-1])


def address_of_code(code: str) -> str | None:
    """Of a field of a config, or of one that is set, as in `model.norm.eps=1e-6`; None for other words."""
    path = code.partition("=")[0]
    return config_addresses().get(path) if "." in path else None


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
