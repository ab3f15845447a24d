"""Translation of pydantic's errors and broken rules into one message for users."""

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
from archlab.config.core.text import exact
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
"""Map from other common names of values to archlab's names, for hints only."""

MOST_LISTED = 100
"""Largest number of problems that a message lists. If there are more, typing errors are not the cause."""

_LONGEST_NAME = 200
"""Largest number of characters of a word that are compared with known names, because comparing long words takes time
and memory."""

SECTION = "keys and values"
MISSING = "missing; it has no default"

_ALLOWED = {
    "bool_type": "true or false",
    "dict_type": SECTION,
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "model_attributes_type": SECTION,
    "model_type": SECTION,
    "none_required": "null",
    "string_type": "text",
    "too_long": "at most {max_length} items",
    "too_short": "{min_length} or more items",
    "string_too_short": "text that is not empty",
    "string_unicode": "valid Unicode text",
    "tuple_type": "a list",
}
"""Descriptions of allowed values, by type of pydantic's error. `{...}` is filled in from the context of the error."""

_IN_YAML = {"": "", "None": "null", "True": "true", "False": "false"}

_PLAIN = ("int_type", "list_type")


@dataclass(frozen=True)
class Problem:
    """Mistake in a config: the path of the field, and a message."""

    path: str
    """Dotted path of the key that the user has to change in the file."""
    message: str


class ConfigError(UserError):
    """Error that lists all problems of a file at once."""

    def __init__(self, problems: Sequence[Problem], source: str) -> None:
        width = min(max(len(p.path) for p in problems), 36)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"  {p.path:<{width}}  {p.message}" for p in problems[:MOST_LISTED]]
        lines += ["  ..."] if len(problems) > MOST_LISTED else []
        super().__init__("\n".join([f"{count} in {source}", *lines]))
        self.problems = tuple(problems)


def raise_problems(problems: Sequence[Problem], source: str) -> None:
    if problems:
        raise ConfigError(problems, source)


def override_advice(*values: object) -> str:
    """Return advice if one of the values looks like an override, such as `model.n_layers=3`; otherwise ""."""
    pattern = r"(model|train|data|parallel)\.\S+="
    has_override = any(isinstance(value, str) and re.match(pattern, value) for value in values)
    return "; archlab.load_config takes overrides" if has_override else ""


def nearest(text: str, allowed: Iterable[str], closeness: float = 0.6) -> str:
    """Return `; did you mean X?` with the nearest allowed name, or an empty string if no name is near enough.

    `closeness` is the required similarity of the names, from 0 to 1.
    """
    names = list(allowed)
    known = {name.lower(): name for name in names}
    known |= {alias: f"{name} ({alias})" for alias, name in ALIASES.items() if name in names}
    close = difflib.get_close_matches(text[:_LONGEST_NAME].lower(), list(known), n=1, cutoff=closeness)
    return f"; did you mean {known[close[0]]}?" if close else ""


def choose(text: str, allowed: Sequence[str]) -> str:
    """Return `; did you mean X? allowed: X, Y`, without the question if no name is near enough."""
    return f"{nearest(text, allowed) or ';'} allowed: {', '.join(allowed)}"


def is_under(paths: Iterable[str], roots: Sequence[str]) -> bool:
    """Return whether any of the dotted paths equals a root, lies below a root, or contains a root."""
    return any(f"{p}.".startswith(f"{r}.") or f"{r}.".startswith(f"{p}.") for p in paths for r in roots)


def explain(error: ValidationError, schema: type[BaseModel], raw: Raw) -> list[Problem]:
    """Return a problem for each path at which pydantic found errors. Pydantic may report several errors for one value,
    such as one per kind of a union."""
    by_path: dict[str, list[ErrorDetails]] = {}
    # Twice as many as are listed are enough to know that there are more.
    for detail in error.errors(include_url=False)[: 2 * MOST_LISTED]:
        by_path.setdefault(_path(detail, raw), []).append(detail)
    for path in [path for path in by_path if any(other.startswith(f"{path}.") for other in by_path)]:
        # Pydantic counts only the valid items, so it also reports a list with a wrong item as too short. It also
        # reports that a section with a wrong value is not one of the plain values allowed in the same place.
        by_path[path] = [
            detail
            for detail in by_path[path]
            if detail["type"] != "too_short" and not (isinstance(detail["input"], dict) and detail["type"] in _PLAIN)
        ]
    by_path = {path: details for path, details in by_path.items() if details}
    return [Problem(path, _message(path, details, schema, raw)) for path, details in by_path.items()]


def _path(detail: ErrorDetails, raw: Raw) -> str:
    """Return the path in the file: pydantic's location without the names of union variants.

    If a default is wrong, the path includes its field, although the file does not set the field.
    """
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
        return MISSING
    if first["type"] == "value_error":
        return first["msg"].removeprefix("Value error, ")
    *above, key = path.split(".")
    if first["type"] == "extra_forbidden":
        if path == "extends" and schema is Config:
            return "only studies have `extends`; write `base: NAME` to build on a preset or another config file"
        if ":" in key:  # YAML reads `{kind:reverse}` as a name without a value
            return f"unknown; write a space after the colon, as in `{key.partition(':')[0]}: VALUE`"
        section = section_at(schema, above, raw)
        names = sorted(section.model_fields, key=lambda name: name != "kind") if section else []
        hint = _hint_for_unknown_key(key, above, first["input"], schema)
        return f"unknown; {hint or choose(key, names).removeprefix('; ')}"
    value = _kind(first["input"]) if first["type"] == "union_tag_invalid" else first["input"]
    names = [name for detail in details for name in _names(detail)]
    others = [_in_words(detail) for detail in details if not _names(detail)]
    others = [
        words + _example_of(path, section_at(schema, [*above, key], raw)) if words == SECTION else words
        for words in others
    ]
    allowed = " or ".join(filter(None, [*dict.fromkeys(others), ", ".join(names)]))
    field = re.sub(r"^(model\.)layers\.\w+\.", r"\1", path if schema is Config else f"model.{path}")
    synonym, near = meant(key if value is True else str(value)), nearest(str(value), names)
    synonym = synonym if _concerns(synonym, field, is_choice=bool(names)) else ""
    hint = near if near and field not in synonym else _hint(synonym)  # prefer names of this field to other fields
    return f"{_short(value)}{hint or ';'} allowed: {allowed}"


def _concerns(hint: str, field: str, *, is_choice: bool) -> bool:
    """Return whether the meaning of a term has to do with the field that has it as its value.

    Most terms mean values of several sections: `full` may be an attention without a window, or all of something else.
    A kind may be meant to be that of another section of the model, but any other value belongs to its own section. A
    hint without a field says what archlab lacks, which concerns only fields with named values.
    """
    top, section = field.partition(".")[0], field.rpartition(".")[0]
    if not (named := re.findall(r"\b(?:model|train|data|parallel)\.[\w.]*\w", hint)):
        return is_choice
    if field.endswith(".kind"):
        return any(name.startswith(f"{top}.") for name in named)
    return any(name.startswith(f"{field}.") or name.rpartition(".")[0] == section for name in named)


def _example_of(path: str, section: type[BaseModel] | None) -> str:
    if section is None:
        return ""
    needed = [f"{name}: ..." for name, field in section.model_fields.items() if name == "kind" or field.is_required()]
    if needed:
        return f", as in '{path}={{{', '.join(needed)}}}'"
    plain = (f"{name}: {_bare(field.default)}" for name, field in section.model_fields.items() if _bare(field.default))
    return f", as in '{path}={{{next(plain, '')}}}'; {{}} for the defaults"


def _bare(default: object) -> str:
    return json.dumps(default).strip('"') if isinstance(default, bool | int | float | str) else ""


def _hint_for_unknown_key(key: str, above: Sequence[str], value: Any, schema: type[BaseModel]) -> str:
    if schema not in (Config, ModelConfig):
        return ""
    words = [word for word in (_kind(value), value, key) if isinstance(word, str)]
    section = ".".join(above if schema is Config else ("model", *above))
    instead = next(filter(None, map(meant, words)), "") or elsewhere(key, section)
    if above and re.search(rf"\b{re.escape(f'{section}.{key}')}\b", instead):  # it exists, but for another kind
        return "not a field of this kind"
    if value is False:  # the user wants the opposite of what the hint says
        return re.sub(r"=(\w+)", lambda written: "=false" if written[1] == "true" else "", instead)
    return instead


def _hint(text: str) -> str:
    return f"; {text};" if text else ""


def _names(detail: ErrorDetails) -> list[str]:
    context = detail.get("ctx", {})
    expected = {"literal_error": "expected", "union_tag_invalid": "expected_tags"}.get(detail["type"], "")
    words = re.findall(r"'([^']*)'|\b(None|True|False)\b", str(context.get(expected, "")))
    return [text or _IN_YAML[word] for text, word in words]


def _kind(value: Any) -> Any:
    return value.get("kind") if isinstance(value, dict) else value


def _in_words(detail: ErrorDetails) -> str:
    if isinstance(detail["input"], float) and not isfinite(detail["input"]):
        return _ALLOWED["finite_number"]
    words = _ALLOWED.get(detail["type"])
    limits = {name: exact(x) if isinstance(x, int | float) else x for name, x in detail.get("ctx", {}).items()}
    return words.format(**limits) if words else detail["msg"].removeprefix("Input should be ")


def _short(value: Any) -> str:
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
