"""Jinja as transformers uses it for chat templates: a sandbox, its helpers, and tags that mark responses."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class GenerationTags(Extension):
    """Tags `{% generation %}` and `{% endgeneration %}`, which record where the text between them is."""

    tags = {"generation"}  # noqa: RUF012

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._blocks: list[str] = []
        self._places: list[tuple[int, int]] = []

    @contextmanager
    def recorded(self) -> Iterator[tuple[list[str], list[tuple[int, int]]]]:
        """Yield the lists of rendered blocks, which the caller fills, and of the places between tags."""
        self._blocks, self._places = [], []
        yield self._blocks, self._places

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_between_tags"), [], [], body).set_lineno(line)

    @pass_eval_context
    def _between_tags(self, context: nodes.EvalContext, caller: Any) -> str:
        text = caller()
        begin = sum(map(len, self._blocks))
        self._places.append((begin, begin + len(text)))
        return text


class _TemplateNamespace(Namespace):
    """Namespace of a template without attributes that reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_attribute(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the attribute {name!r}")


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(8)
def compiled(source: str) -> Template:
    """Return a template, compiled in the sandbox. Raise jinja2.TemplateError if it is not valid Jinja."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTags, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now, "namespace": _TemplateNamespace}
    environment.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
    return environment.from_string(source)
