"""From pydantic's errors and our rules to the one message a person reads."""

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from archlab.config.core.merge import Raw, section_at
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.config.vocabulary import elsewhere, meant
from archlab.errors import UserError

ALIASES = {
    "swish": "silu",
    "gelu_new": "gelu_tanh",
    "linear": "identity",
    "relu2": "relu_squared",
    "ln": "layernorm",
    "rms": "rmsnorm",
}
"""Other names in use for our values, for the hint only."""

MOST_LISTED = 100
"""Problems in one message; a file with more is not one with a few mistakes in it."""

_LONGEST_NAME = 200
"""Characters that are compared with names. Comparing takes time and memory for each."""

SECTION = "keys and values"

_ALLOWED = {
    "bool_type": "true or false",
    "dict_type": SECTION,
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "list_type": "a list",
    "model_attributes_type": SECTION,
    "model_type": SECTION,
    "none_required": "null",
    "string_type": "text",
    "too_long": "at most {max_length} items",
    "too_short": "at least {min_length} items",
    "string_too_short": "some text",
    "string_unicode": "text without half a surrogate pair",
    "tuple_type": "a list",
}
"""Pydantic's error type -> what would have been right, in our words; {…} from the error's context."""

_IN_YAML = {"": "", "None": "null", "True": "true", "False": "false"}
"""Values as Python writes them -> as YAML does."""

_PLAIN = ("int_type", "list_type")
"""Errors that say that a section should be something else."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, and what to read."""

    path: str
    """Dotted; the key that would have to change in the file."""
    message: str


class ConfigError(UserError):
    """Every problem of a file at once."""

    def __init__(self, problems: Sequence[Problem], source: str) -> None:
        width = min(max(len(p.path) for p in problems), 36)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"  {p.path:<{width}}  {p.message}" for p in problems[:MOST_LISTED]]
        lines += ["  ..."] if len(problems) > MOST_LISTED else []
        super().__init__("\n".join([f"{count} in {source}", *lines]))
        self.problems = tuple(problems)


def raise_problems(problems: Sequence[Problem], source: str) -> None:
    """Raise one ConfigError that lists all of them; do nothing when there are none."""
    if problems:
        raise ConfigError(problems, source)


def nearest(found: str, allowed: Iterable[str], closeness: float = 0.6) -> str:
    """`; did you mean X?`, or nothing when no allowed name is near: alike in that share of its letters."""
    names = list(allowed)
    known = {name.lower(): name for name in names}
    known |= {alias: f"{name} ({alias})" for alias, name in ALIASES.items() if name in names}
    close = difflib.get_close_matches(found[:_LONGEST_NAME].lower(), list(known), n=1, cutoff=closeness)
    return f"; did you mean {known[close[0]]}?" if close else ""


def choose(found: str, allowed: Sequence[str]) -> str:
    """`; did you mean X? allowed: X, Y`, the hint only where a name is near."""
    return f"{nearest(found, allowed) or ';'} allowed: {', '.join(allowed)}"


def is_under(paths: Iterable[str], roots: Sequence[str]) -> bool:
    """Whether one of the dotted paths is one of `roots`, below one, or above one."""
    return any(f"{p}.".startswith(f"{r}.") or f"{r}.".startswith(f"{p}.") for p in paths for r in roots)


def explain(error: ValidationError, schema: type[BaseModel], raw: Raw) -> list[Problem]:
    """Pydantic's errors in our words, one per place; a union's errors are several of one value."""
    found: dict[str, list[ErrorDetails]] = {}
    # One more than are listed is enough to know that there are more.
    for detail in error.errors(include_url=False)[: 2 * MOST_LISTED]:
        found.setdefault(_path(detail, raw), []).append(detail)
    for path in [path for path in found if any(other.startswith(f"{path}.") for other in found)]:
        # Of a list with a wrong item pydantic also says that it is too short, for it counts the right ones; and of a
        # section with a wrong value that it is none of the plain values that might stand there.
        found[path] = [
            detail
            for detail in found[path]
            if detail["type"] != "too_short" and not (isinstance(detail["input"], dict) and detail["type"] in _PLAIN)
        ]
    found = {path: details for path, details in found.items() if details}
    return [Problem(path, _message(path, details, schema, raw)) for path, details in found.items()]


def _path(detail: ErrorDetails, raw: Raw) -> str:
    """Pydantic's location without the names of union variants, which are not keys of the file. A field that the file
    leaves out is named too, where its default is wrong."""
    keys: list[str] = []
    value: Any = raw
    for part in detail["loc"]:
        inside: dict[Any, Any] = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(inside, dict) and part in inside:
            value = inside[part]
            keys.append(str(part))
    if detail["type"] == "missing" or (detail["loc"] and not keys):
        keys.append(str(detail["loc"][-1]))
    if detail["type"] == "union_tag_invalid":
        keys.append("kind")
    return ".".join(keys)


def _message(path: str, details: list[ErrorDetails], schema: type[BaseModel], raw: Raw) -> str:
    first = next((detail for detail in details if detail["type"] == "value_error"), details[0])
    if first["type"] == "missing":
        return "missing; it has no default"
    if first["type"] == "value_error":
        return first["msg"].removeprefix("Value error, ")
    *above, key = path.split(".")
    if first["type"] == "extra_forbidden":
        section = section_at(schema, above, raw)
        names = sorted(section.model_fields, key=lambda name: name != "kind") if section else []
        return f"unknown; {_known(key, above, first['input'], schema) or choose(key, names).removeprefix('; ')}"
    value = _kind(first["input"]) if first["type"] == "union_tag_invalid" else first["input"]
    names = [name for detail in details for name in _names(detail)]
    others = [_in_words(detail) for detail in details if not _names(detail)]
    others = [
        words + _as_in(key, section_at(schema, [*above, key], raw)) if words == SECTION else words for words in others
    ]
    allowed = " or ".join(filter(None, [*dict.fromkeys(others), ", ".join(names)]))
    synonym, near = meant(key if value is True else str(value)), nearest(str(value), names)
    field = re.sub(r"^(model\.)layers\.\w+\.", r"\1", path)
    hint = near if near and field not in synonym else _hint(synonym)  # a name of this field goes before another field's
    return f"{_short(value)}{hint or ';'} allowed: {allowed}"


def _as_in(key: str, section: type[BaseModel] | None) -> str:
    """What may stand for a section, by example: what it needs, or else a default of it."""
    if section is None:
        return ""
    needed = [f"{name}: ..." for name, field in section.model_fields.items() if name == "kind" or field.is_required()]
    if needed:
        return f", as in {key}={{{', '.join(needed)}}}"
    plain = (f"{name}: {_bare(field.default)}" for name, field in section.model_fields.items() if _bare(field.default))
    return f", as in {key}={{{next(plain, '')}}}; {{}} for the defaults"


def _bare(default: object) -> str:
    """A default as YAML has it; nothing for one that is no single value."""
    return json.dumps(default).strip('"') if isinstance(default, bool | int | float | str) else ""


def _known(key: str, above: Sequence[str], value: Any, schema: type[BaseModel]) -> str:
    """What to write in place of a field that a config does not have there; nothing if that is not known."""
    if schema not in (Config, ModelConfig):
        return ""
    words = [word for word in (_kind(value), value, key) if isinstance(word, str)]
    section = ".".join(above if schema is Config else ("model", *above))
    instead = next(filter(None, map(meant, words)), "") or elsewhere(key, section)
    if above and re.search(rf"\b{re.escape(f'{section}.{key}')}\b", instead):  # it is there, but for another kind
        return "not a field of this kind"
    if value is False:  # then what is meant is not to be written, but its opposite
        return re.sub(r"=(\w+)", lambda written: "=false" if written[1] == "true" else "", instead)
    return instead


def _hint(text: str) -> str:
    return f"; {text};" if text else ""


def _names(detail: ErrorDetails) -> list[str]:
    """The names to choose from, where the error is about such a choice."""
    context = detail.get("ctx", {})
    expected = {"literal_error": "expected", "union_tag_invalid": "expected_tags"}.get(detail["type"], "")
    found = re.findall(r"'([^']*)'|\b(None|True|False)\b", str(context.get(expected, "")))
    return [text or _IN_YAML[word] for text, word in found]


def _kind(value: Any) -> Any:
    return value.get("kind") if isinstance(value, dict) else value


def _in_words(detail: ErrorDetails) -> str:
    if isinstance(detail["input"], float) and not isfinite(detail["input"]):
        return _ALLOWED["finite_number"]
    words = _ALLOWED.get(detail["type"])
    return words.format(**detail.get("ctx", {})) if words else detail["msg"].removeprefix("Input should be ")


def _short(value: Any) -> str:
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
