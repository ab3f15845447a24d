"""Which models of the atlas, and in which order: `family=llama`, `year>=2024`, `d_ff_over_d>4`; sorted by any field."""

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
"""By which models are chosen and sorted: numbers, words, true and false."""

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Sign of a condition -> what it asks of two values."""

_CONDITION = re.compile(r"\s*(\w+)\s*(!=|<=|>=|=|<|>)\s*(.+?)\s*")


class Filter(NamedTuple):
    """What a model must be to be chosen."""

    field: str
    sign: str
    value: Value

    def holds(self, row: AtlasRow) -> bool:
        """Of a field that is not known only `=null` does. Words are compared by their beginning: llama-3 is llama."""
        found = value_of(row, self.field)
        if self.value is None:
            return (found is None) == (self.sign == "=")
        if found is None:
            return False
        if isinstance(found, str):
            return begins(found, str(self.value)) == (self.sign == "=")
        return COMPARE[self.sign](found, self.value)


def value_of(row: AtlasRow, field: str) -> Value:
    """Of one of FIELDS; None where it is not known, or the model has no such part."""
    return getattr(row.about if field in _ABOUT else row, field)


def select(rows: Sequence[AtlasRow], conditions: Sequence[str], sort: str | None) -> list[AtlasRow]:
    """Those that meet all of the conditions, sorted by a field (`-size`: the largest first), unknown ones last.

    UserError for a condition that cannot be read, a field that there is not, and where no model is left.
    """
    wanted = [_condition(text, rows) for text in conditions]
    chosen = [row for row in rows if all(condition.holds(row) for condition in wanted)]
    if not chosen:
        raise UserError(f"--filter: no model has all of {' '.join(conditions)}; one whose field is unknown has not")
    if sort is None:
        return chosen
    field = _field(sort.removeprefix("-"), "--sort")
    known = [row for row in chosen if value_of(row, field) is not None]
    known.sort(key=lambda row: _order(value_of(row, field)), reverse=sort.startswith("-"))
    return [*known, *(row for row in chosen if value_of(row, field) is None)]


def _order(value: Value) -> tuple[float, str]:
    """Of a field's values, which are all numbers or all words."""
    return (0, value.lower()) if isinstance(value, str) else (value or 0, "")


def fields_of(conditions: Sequence[str], sort: str | None) -> list[str]:
    """The fields that were asked for, each once."""
    asked = [sort.removeprefix("-")] if sort else []
    return list(dict.fromkeys(asked + [found[1] for text in conditions if (found := _CONDITION.fullmatch(text))]))


def _condition(text: str, rows: Sequence[AtlasRow]) -> Filter:
    parts = _CONDITION.fullmatch(text)
    if not parts or parts[3][:1] in ("=", "<", ">"):
        raise UserError(f"--filter: {text!r}; allowed: a field, {' '.join(COMPARE)}, and a value, as in 'year>=2024'")
    field, sign, written = _field(parts[1], "--filter"), parts[2], parts[3]
    value = whole_number(parse_yaml(written, f"--filter {text!r}"))
    is_word = any(isinstance(value_of(row, field), str) for row in rows)
    if value is None or is_word:
        if sign not in ("=", "!="):
            what = "null" if value is None else f"the words of {field}"
            raise UserError(f"--filter: {text!r}: {sign} is not for {what}; allowed: = and !=")
        return Filter(field, sign, None if value is None else written)
    if not isinstance(value, int | float):
        raise UserError(f"--filter: {text!r}: {field} is a number, or true or false; found {written!r}")
    return Filter(field, sign, value)


def _field(name: str, option: str) -> str:
    if name not in FIELDS:
        raise UserError(f"{option}: {name!r} is no field of the atlas{choose(name, FIELDS)}")
    return name
