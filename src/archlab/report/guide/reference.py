"""The reference: every field of the files that users write, and the Python API.

The fields of a config have a page per section such as `model.attention`, because the page of the whole model would be
40,000 pixels long.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import metadata
from itertools import groupby, repeat
from textwrap import dedent, indent
from types import ModuleType
from typing import Any, NamedTuple

from archlab.evidence.field_help import FieldHelp, field_help
from archlab.study.authoring import SCHEMAS
from archlab.version import __version__


class Group(NamedTuple):
    """All fields of one section."""

    path: str
    """Dotted path of the section. Empty for the top level of the file."""
    section: FieldHelp | None
    """Help for the section. None for the top level of the file, and for sections that users name themselves."""
    fields: list[FieldHelp]
    """Fields that hold a value rather than other fields. `kind` comes first."""
    sections: list[FieldHelp]
    """Fields that hold other fields. Each has a group of its own."""


class ReferencePage(NamedTuple):
    """Page about one part of a file."""

    address: str
    title: str
    about: str
    groups: list[Group]

    @property
    def places(self) -> list[tuple[str, str]]:
        """Anchor and name of each section."""
        return [(group.path, group.path) for group in self.groups if group.path]


class Reference(NamedTuple):
    """The pages about the fields of each kind of file."""

    config: list[ReferencePage]
    study: list[ReferencePage]


_ABOUT = {
    "config": "A config is a file from which archlab builds, trains, prices or draws a model.",
    "study": "A study is a file that `archlab study run` runs.",
}


@cache
def reference_pages() -> Reference:
    """Return the pages of the reference. A page is about the top-level fields of a file or about one section.

    The first call decides which kinds they have. Call it before studies are read, because studies may bring plug-ins.
    """
    return Reference(*(list(_pages_of(kind, list(groups(field_help(SCHEMAS[kind]))))) for kind in ("config", "study")))


def _pages_of(kind: str, all_groups: Sequence[Group]) -> Iterator[ReferencePage]:
    top, *others = all_groups
    yield ReferencePage(f"reference-{kind}.html", kind.capitalize(), _ABOUT[kind], [top])
    prefix = "reference" if kind == "config" else f"reference-{kind}"
    for section, members in groupby(others, key=lambda group: ".".join(group.path.split(".")[:_DEPTH])):
        path = section.removesuffix(".NAME")
        yield ReferencePage(f"{prefix}-{path.replace('.', '-')}.html", path, "", list(members))


_DEPTH = 2
"""Number of parts in the dotted path of a section that has its own page, such as `model.attention`."""


def groups(fields: dict[str, FieldHelp]) -> Iterator[Group]:
    """Yield the groups in the order of the schema. The top level of the file comes first, and a section precedes the
    sections inside it."""
    inside: dict[str, list[FieldHelp]] = {}
    for path, field in fields.items():
        section, _, name = path.rpartition(".")
        if f"{section}.NAME.{name}" not in fields:
            inside.setdefault(section, []).append(field)
    for path, members in inside.items():
        plain = [field for field in members if field.path not in inside]
        plain.sort(key=lambda field: not field.path.endswith(".kind"))
        yield Group(path, fields.get(path), plain, [field for field in members if field.path in inside])


def addresses(pages: Sequence[ReferencePage]) -> dict[str, str]:
    """Map each dotted field to the address of its explanation."""
    return {
        path: f"{page.address}#{path}"
        for page in pages
        for group in page.groups
        for path in (group.path, *(field.path for field in group.fields))
        if path
    }


@cache
def config_addresses() -> dict[str, str]:
    """Map each field of a config to the address of its explanation."""
    return addresses(reference_pages().config)


def address_of_code(code: str) -> str | None:
    """Return the address that explains a config field or a setting such as `model.norm.eps=1e-6`.

    Return None for other text.
    """
    path = code.partition("=")[0]
    return config_addresses().get(path) if "." in path else None


_INTRO = """# From Python

`import archlab` is fast, because each name is loaded when it is first used. The examples begin with
`import archlab`, and those with tensors also with `import torch`. `runs/a` is a folder of `archlab train`.
"""

_WIDTH = 88
"""Maximum width of a signature on one line, in columns."""

Defined = ast.FunctionDef | ast.ClassDef


def python_api(archlab: ModuleType) -> str:
    """Return the Python API as Markdown, with one heading per name in the package's `__all__`."""
    members = ((name, getattr(archlab, name)) for name in archlab.__all__ if not name.startswith("__"))
    return "\n".join([_INTRO, *(described(f"archlab.{name}", value) for name, value in members)])


def described(name: str, value: Any) -> str:
    """Return a function, or a class with its members, as Markdown under a heading."""
    source = inspect.unwrap(value)
    (node,) = ast.parse(dedent(inspect.getsource(source))).body
    assert isinstance(node, Defined)
    members = [f"* {member}" for member in _members(node)] if isinstance(node, ast.ClassDef) else []
    return "\n".join(
        [f"## {name}\n", _fence(_called(name, node)), _docstring(node), "", *members, "", _source_link(source), ""]
    )


def _source_link(source: Any) -> str:
    """Return a link to the lines of the source in the repository. Empty for code that is not archlab's."""
    module = source.__module__
    if not module.startswith("archlab."):
        return ""
    lines, first = inspect.getsourcelines(source)
    urls = dict(text.split(", ", 1) for text in metadata("archlab").get_all("Project-URL", ()))
    file = f"src/{module.replace('.', '/')}.py"
    return f"[Source: {file}]({urls['Source']}/blob/v{__version__}/{file}#L{first}-L{first + len(lines) - 1})"


def _called(name: str, node: Defined) -> str:
    """Return a signature such as `name(argument: type = default) -> type`."""
    if isinstance(node, ast.ClassDef):
        init = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
        return _called(f"class {name}", init) if init else f"class {name}"
    arguments = [argument for argument in _arguments(node.args) if argument not in ("self", "cls")]
    returned = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    in_a_line = f"{name}({', '.join(arguments)}){returned}"
    if len(in_a_line) <= _WIDTH:
        return in_a_line
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){returned}"])


def _arguments(signature: ast.arguments) -> Iterator[str]:
    plain = [*signature.posonlyargs, *signature.args]
    defaults = [*repeat(None, len(plain) - len(signature.defaults)), *signature.defaults]
    for argument, default in zip(plain, defaults, strict=True):
        yield _argument(argument, default)
        if argument in signature.posonlyargs[-1:]:
            yield "/"
    if signature.vararg:
        yield f"*{ast.unparse(signature.vararg)}"
    elif signature.kwonlyargs:
        yield "*"
    yield from map(_argument, signature.kwonlyargs, signature.kw_defaults)
    if signature.kwarg:
        yield f"**{ast.unparse(signature.kwarg)}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f" = {ast.unparse(default)}" if default else "")


def _members(node: ast.ClassDef) -> Iterator[str]:
    for part, after in zip(node.body, [*node.body[1:], None], strict=True):
        match part:
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                yield f"`{ast.unparse(part)}`{_below_signature(_text(after))}"
            case ast.FunctionDef(name=name) if not name.startswith("_"):
                is_property = any(ast.unparse(decorator).endswith("property") for decorator in part.decorator_list)
                returned = f": {ast.unparse(part.returns)}" if part.returns else ""
                called = f"{name}{returned}" if is_property else _called(name, part)
                yield f"`{called}`{_below_signature(_docstring(part))}"
            case _:
                pass


def _below_signature(text: str) -> str:
    return f"\\\n{indent(text, '  ').rstrip()}" if text else ""


def _text(statement: ast.stmt | None) -> str:
    """Return the docstring of a field. `statement` is the statement that follows the field."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return inspect.cleandoc(text)
        case _:
            return ""


def _docstring(node: Defined) -> str:
    """Return the docstring as Markdown. Examples, which begin with >>>, become code."""
    return re.sub(r"(?m)^>>> (?:.+\n?)+", lambda lines: _fence(lines[0].rstrip()), ast.get_docstring(node) or "")


def _fence(code: str) -> str:
    return f"```python\n{code}\n```\n"
