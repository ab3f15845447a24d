"""Selection and sorting of models in the atlas: conditions such as `family=llama`, `year>=2024`, `d_ff_over_d>4`."""

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from archlab.atlas.config_fields import Value
from archlab.atlas.models import AtlasRow
from archlab.config.core.base import whole_number
from archlab.config.core.yaml_text import parse_yaml, to_yaml_line
from archlab.config.io import begins
from archlab.config.problems import nearest
from archlab.errors import UserError

ABOUT = ("name", "year", "certainty", "dropout", "weight_decay", "languages")
"""Fields that are published facts, and do not follow from the config."""
FIELDS = (
    *ABOUT,
    *(
        name
        for name in (*AtlasRow.model_fields, *AtlasRow.model_computed_fields)
        if name not in ("about", "tricks", "config")
    ),
)
"""Fields for conditions and sorting, besides those of the config. Their values are numbers, words or Booleans."""

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Comparison function for each operator in a condition."""

SIGNS = (*COMPARE, "==")
"""Operators in a condition. `==` compares the whole text, and `=` its beginning."""

_CONDITION = re.compile(r"\s*([\w.]+)\s*(!=|<=|>=|==|=|<|>)\s*(.+?)\s*")


class Filter(NamedTuple):
    """Condition that a model must meet."""

    field: str
    sign: str
    values: tuple[Value, ...]
    """Alternatives for `=`, `==` and `!=`, otherwise one number."""

    def holds(self, row: AtlasRow) -> bool:
        """Return whether a model meets the condition.

        An unknown value meets only the condition `=null`. A text meets `=` if it begins with the word in the condition:
        `=llama` matches llama-3.
        """
        value = value_of(row, self.field)
        if value is None and None not in self.values:
            return False
        if self.sign in ("=", "==", "!="):
            return any(self._matches(value, wanted) for wanted in self.values) == (self.sign != "!=")
        return COMPARE[self.sign](value, self.values[0])

    def _matches(self, value: Value, wanted: Value) -> bool:
        if isinstance(value, str) and wanted is not None:
            return value.lower() == str(wanted).lower() if self.sign == "==" else begins(value, str(wanted))
        return value == wanted


def value_of(row: AtlasRow, field: str) -> Value:
    """Return the value of one of FIELDS or of a field of the config, such as `model.norm.eps`. Return None if the value
    is unknown or the model has no such component."""
    if "." in field:
        return row.config_fields.get(field)
    return getattr(row.about if field in ABOUT else row, field)


def select(rows: Sequence[AtlasRow], conditions: Sequence[str], sort: str | None) -> list[AtlasRow]:
    """Return the models that meet all conditions, sorted by a field (`-size`: the largest first).

    Models with an unknown value come last. Raise UserError if a condition cannot be parsed, a field does not exist, or
    no model meets the conditions.
    """
    filters = [_condition(text, rows) for text in conditions]
    chosen = [row for row in rows if all(condition.holds(row) for condition in filters)]
    if not chosen:
        raise UserError(f"no model meets {' '.join(conditions)}; unknown values do not match")
    if sort is None:
        return chosen
    field = _field(sort.removeprefix("-"), f"sort by {sort!r}", rows)
    known = [row for row in chosen if value_of(row, field) is not None]
    known.sort(key=lambda row: _order(value_of(row, field)), reverse=sort.startswith("-"))
    return [*known, *(row for row in chosen if value_of(row, field) is None)]


def _order(value: Value) -> tuple[float, str]:
    return (0, value.lower()) if isinstance(value, str) else (value or 0, "")


def fields_of(conditions: Sequence[str], sort: str | None) -> list[str]:
    """Return the fields used in the conditions and for sorting, without duplicates."""
    fields = [sort.removeprefix("-")] if sort else []
    return list(dict.fromkeys(fields + [match[1] for text in conditions if (match := _CONDITION.fullmatch(text))]))


def condition(field: str, values: Sequence[Value], rows: Sequence[AtlasRow]) -> str:
    """Return the condition that only models with one of these values meet."""
    written = [value if isinstance(value, str) else to_yaml_line(value) for value in values]
    begins_with = _condition(f"{field}={'|'.join(written)}", rows)
    begun = {value_of(row, field) for row in rows if begins_with.holds(row)}
    return f"{field}{'=' if begun <= {*values} else '=='}{'|'.join(written)}"


def _condition(text: str, rows: Sequence[AtlasRow]) -> Filter:
    parts = _CONDITION.fullmatch(text)
    if not parts or parts[3][:1] in ("=", "<", ">"):
        form = f"a field, one of {' '.join(SIGNS)}, and a value, as in 'year>=2024'"
        raise UserError(f"cannot read the condition {text!r}; allowed: {form}")
    field, sign, written = _field(parts[1], f"condition {text!r}", rows), parts[2], parts[3].split("|")
    values = [whole_number(parse_yaml(one.strip(), f"condition {text!r}")) for one in written]
    is_word = any(isinstance(value_of(row, field), str) for row in rows)
    is_order = sign not in ("=", "==", "!=")
    if is_order and (is_word or None in values or len(values) > 1):
        operand = f"{field}, whose values are words" if is_word else "null" if None in values else "alternatives"
        raise UserError(f"condition {text!r}: {sign} does not work with {operand}; allowed: = and !=")
    if not is_word and (wrong := [one for one, value in zip(written, values, strict=True) if not _is_number(value)]):
        raise UserError(f"condition {text!r}: {field} must be a number, true or false; found {wrong[0]!r}")
    if is_word:
        values = [None if value is None else one.strip() for one, value in zip(written, values, strict=True)]
    return Filter(field, sign, tuple(values))


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, int | float)


def all_fields(rows: Sequence[AtlasRow]) -> list[str]:
    """Return FIELDS and the fields of the config that one of the models has."""
    return [*FIELDS, *dict.fromkeys(field for row in rows for field in row.config_fields)]


def _field(name: str, where: str, rows: Sequence[AtlasRow]) -> str:
    if name in FIELDS or any(name in row.config_fields for row in rows):
        return name
    near = nearest(name, all_fields(rows)) or ";"
    allowed = f"{', '.join(FIELDS)}, or a field of the config such as model.norm.eps"
    raise UserError(f"{where}: unknown field {name!r}{near} allowed: {allowed}")
