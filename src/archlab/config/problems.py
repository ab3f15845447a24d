"""From pydantic's errors and our rules to the one message a person reads."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from archlab.config.merge import Raw, section_schema
from archlab.errors import UserError

ALIASES = {"swish": "silu", "gelu_new": "gelu_tanh", "linear": "identity", "relu2": "relu_squared", "ln": "layernorm", "rms": "rmsnorm"}
"""Other names in use for our values, for the hint only."""

Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, and what to read."""

    path: str
    message: str


def raise_problems(problems: Sequence[Problem], source: str) -> None:
    """Raise one UserError that lists all of them; do nothing when there are none."""
    if not problems:
        return
    width = min(max(len(p.path) for p in problems), 36)
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = [f"  {p.path:<{width}}  {p.message}" for p in problems]
    raise UserError("\n".join([f"{count} in {source}", *lines]))


def nearest(found: str, allowed: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing when no allowed name is near."""
    names = list(allowed)
    known = {name.lower(): name for name in names} | {a: f"{to} ({a})" for a, to in ALIASES.items() if to in names}
    close = difflib.get_close_matches(found.lower(), list(known), n=1, cutoff=0.6)
    return f"; did you mean {known[close[0]]}?" if close else ""


def explain(error: ValidationError, schema: type[BaseModel], raw: Raw) -> list[tuple[Loc, Problem]]:
    """Each pydantic error with its location in `raw` and our words for it; one entry per location."""
    found: dict[Loc, list[Problem]] = {}
    for detail in error.errors(include_url=False):
        loc = _location_in(raw, detail["loc"], schema)
        found.setdefault(loc, []).append(Problem(".".join(map(str, loc)), _message(detail, loc, schema, raw)))
    return [(loc, _joined(problems)) for loc, problems in found.items()]


def _joined(problems: list[Problem]) -> Problem:
    """Errors of one value against several types: the first says what was found, the others what else is allowed."""
    first, *others = problems
    rest = [p.message.split("; ", 1)[-1].removeprefix("allowed: ") for p in others]
    return Problem(first.path, " or ".join(dict.fromkeys([first.message, *rest])))


def _location_in(raw: Raw, loc: Loc, schema: type[BaseModel]) -> Loc:
    """Pydantic's location without the names of union variants, which are not keys of the file."""
    out: list[str | int] = []
    value: Any = raw
    cls: type[BaseModel] | None = schema
    for part in loc:
        is_key = isinstance(value, dict) and (part in value or (cls is not None and part in cls.model_fields))
        is_index = isinstance(value, (list, tuple)) and isinstance(part, int) and part < len(value)
        if is_key:
            cls = section_schema(cls.model_fields[str(part)], value.get(part) or {}) if cls and part in cls.model_fields and isinstance(value.get(part), (dict, type(None))) else None
            value = value.get(part)
            out.append(part)
        elif is_index:
            value = value[part]  # pyright: ignore[reportArgumentType]
            cls = None
            out.append(part)
    return tuple(out)


def _message(detail: ErrorDetails, loc: Loc, schema: type[BaseModel], raw: Raw) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "missing":
        return "missing; it has no default"
    if kind == "extra_forbidden":
        allowed = _keys_beside(loc, schema, raw)
        return f"unknown{nearest(str(loc[-1]), allowed)}{'' if nearest(str(loc[-1]), allowed) else ';'} allowed: {', '.join(allowed)}"
    if kind in ("literal_error", "union_tag_invalid", "enum"):
        if kind == "union_tag_invalid":
            value = context["tag"]
        allowed = [a.strip("' ") for a in str(context.get("expected", context.get("expected_tags", ""))).replace(" or ", ", ").split(",")]
        hint = nearest(str(value), allowed)
        return f"{value!r}{hint}{' ' if hint else '; '}allowed: {', '.join(allowed)}"
    if kind == "union_tag_not_found":
        return "has no kind; it decides which keys are allowed"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"{_short(value)}; allowed: keys and values"
    if kind == "value_error":
        return f"{detail['msg'].removeprefix('Value error, ')}"
    what = detail["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return f"{_short(value)}; allowed: {what}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _keys_beside(loc: Loc, schema: type[BaseModel], raw: Raw) -> list[str]:
    cls: type[BaseModel] | None = schema
    value: Any = raw
    for part in loc[:-1]:
        value = value.get(part) if isinstance(value, dict) else None
        field = cls.model_fields.get(str(part)) if cls else None
        cls = section_schema(field, value or {}) if field and isinstance(value, dict) else None
    return list(cls.model_fields) if cls else []


def is_under(path: str, roots: Iterable[str]) -> bool:
    """Whether a dotted path is one of `roots`, below one, or above one."""
    return any(path == r or path.startswith(r + ".") or r.startswith(path + ".") for r in roots)
