"""Selection and sorting of models in the atlas: conditions such as `family=llama`, `year>=2024`, `d_ff_over_d>4`."""

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from archlab.atlas.models import AtlasRow
from archlab.config.core.base import whole_number
from archlab.config.core.yaml_text import parse_yaml
from archlab.config.io import begins
from archlab.config.problems import choose
from archlab.errors import UserError

Value = str | float | None

_ABOUT = ("name", "year", "certainty", "dropout", "weight_decay", "languages")
FIELDS = (
    *_ABOUT,
    *(name for name in (*AtlasRow.model_fields, *AtlasRow.model_computed_fields) if name not in ("about", "tricks")),
)
"""Fields for conditions and sorting. Their values are numbers, words or Booleans."""

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Comparison function for each operator in a condition."""

_CONDITION = re.compile(r"\s*([\w.]+)\s*(!=|<=|>=|=|<|>)\s*(.+?)\s*")


class Filter(NamedTuple):
    """Condition that a model must meet."""

    field: str
    sign: str
    value: Value

    def holds(self, row: AtlasRow) -> bool:
        """Return whether a model meets the condition.

        An unknown value meets only the condition `=null`. A text meets `=` if it begins with the word in the condition:
        `=llama` matches llama-3.
        """
        value = value_of(row, self.field)
        if self.value is None:
            return (value is None) == (self.sign == "=")
        if value is None:
            return False
        if isinstance(value, str):
            return begins(value, str(self.value)) == (self.sign == "=")
        return COMPARE[self.sign](value, self.value)


def value_of(row: AtlasRow, field: str) -> Value:
    """Return the value of one of FIELDS, or None if the value is unknown or the model has no such component."""
    return getattr(row.about if field in _ABOUT else row, field)


def select(rows: Sequence[AtlasRow], conditions: Sequence[str], sort: str | None) -> list[AtlasRow]:
    """Return the models that meet all conditions, sorted by a field (`-size`: the largest first).

    Models with an unknown value come last. Raise UserError if a condition cannot be parsed, a field does not exist, or
    no model meets the conditions.
    """
    filters = [_condition(text, rows) for text in conditions]
    chosen = [row for row in rows if all(condition.holds(row) for condition in filters)]
    if not chosen:
        raise UserError(f"--filter: no model meets {' '.join(conditions)}; unknown values do not match")
    if sort is None:
        return chosen
    field = _field(sort.removeprefix("-"), "--sort")
    known = [row for row in chosen if value_of(row, field) is not None]
    known.sort(key=lambda row: _order(value_of(row, field)), reverse=sort.startswith("-"))
    return [*known, *(row for row in chosen if value_of(row, field) is None)]


def _order(value: Value) -> tuple[float, str]:
    return (0, value.lower()) if isinstance(value, str) else (value or 0, "")


def fields_of(conditions: Sequence[str], sort: str | None) -> list[str]:
    """Return the fields used in the conditions and for sorting, without duplicates."""
    fields = [sort.removeprefix("-")] if sort else []
    return list(dict.fromkeys(fields + [match[1] for text in conditions if (match := _CONDITION.fullmatch(text))]))


def _condition(text: str, rows: Sequence[AtlasRow]) -> Filter:
    parts = _CONDITION.fullmatch(text)
    if not parts or parts[3][:1] in ("=", "<", ">"):
        form = f"a field, one of {' '.join(COMPARE)}, and a value, as in 'year>=2024'"
        raise UserError(f"--filter: cannot read {text!r}; allowed: {form}")
    field, sign, written = _field(parts[1], "--filter"), parts[2], parts[3]
    value = whole_number(parse_yaml(written, f"--filter {text!r}"))
    is_word = any(isinstance(value_of(row, field), str) for row in rows)
    if value is None or is_word:
        if sign not in ("=", "!="):
            operand = "null" if value is None else f"{field}, whose values are words"
            raise UserError(f"--filter: {text!r}: {sign} does not work with {operand}; allowed: = and !=")
        return Filter(field, sign, None if value is None else written)
    if not isinstance(value, int | float):
        raise UserError(f"--filter: {text!r}: {field} must be a number, true or false; found {written!r}")
    return Filter(field, sign, value)


def _field(name: str, option: str) -> str:
    if name not in FIELDS:
        raise UserError(f"{option}: unknown field {name!r}{choose(name, FIELDS)}")
    return name
