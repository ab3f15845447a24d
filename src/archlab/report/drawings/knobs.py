"""Parameters of pictures: their ranges, and how they are read from text."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from archlab.config.problems import choose
from archlab.errors import UserError


class Number(NamedTuple):
    """Number that a slider sets."""

    name: str
    """Name of the parameter in the function that draws, and in a link."""
    label: str
    default: float
    low: float
    high: float
    step: float = 1
    """Step of the slider. If it is at least 1, every allowed value is a multiple of it. If it is 0, the slider is
    logarithmic. Otherwise, every number in the range is allowed."""
    field: str = ""
    """Field of a config that has this meaning. Empty if there is none."""
    needs: Mapping[str, Sequence[str | float]] = MappingProxyType({})
    """Values of other knobs with which this one has an effect. Empty if it always has one."""
    if_larger: float | None = None
    """Value in place of one of a config that is too large for the picture. None: the default."""

    def read(self, text: str) -> float:
        """Return the number. Raise UserError if it is not allowed."""
        try:
            value = float(text.replace(",", ""))
        except ValueError:
            value = math.nan
        if not self.allows(value):
            kind = (
                "a number"
                if not self._is_whole
                else "a whole number"
                if self.step == 1
                else f"a multiple of {self.step:g}"
            )
            raise UserError(f"{self.name} is {text!r}; allowed: {kind} from {_text(self.low)} to {_text(self.high)}")
        return int(value) if self._is_whole else value

    def can_show(self, value: Any) -> bool:
        """Return whether the picture can show a config with this value, if need be with a smaller one."""
        return value is None or self.allows(value) or self._is_larger(value)

    def start(self, value: Any) -> float:
        """Return the value with which the picture of a config starts."""
        if self.allows(value):
            return value
        return self.if_larger if self.if_larger is not None and self._is_larger(value) else self.default

    def _is_larger(self, value: Any) -> bool:
        return self.if_larger is not None and isinstance(value, int | float) and value > self.high

    def allows(self, value: Any) -> bool:
        """Return whether the picture can be drawn with this value."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and (not self._is_whole or value % self.step == 0)

    @property
    def _is_whole(self) -> bool:
        return self.step >= 1


def _text(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


class Word(NamedTuple):
    """Word that is chosen from a list."""

    name: str
    label: str
    default: str
    options: Sequence[str]
    field: str = ""
    needs: Mapping[str, Sequence[str | float]] = MappingProxyType({})

    def read(self, text: str) -> str:
        """Return the word. Raise UserError if it is not in the list."""
        if text not in self.options:
            raise UserError(f"{self.name} is {text!r}{choose(text, self.options)}")
        return text

    def can_show(self, value: Any) -> bool:
        return value is None or self.allows(value)

    def start(self, value: Any) -> str:
        return value if self.allows(value) else self.default

    def allows(self, value: Any) -> bool:
        return value in self.options


Knob = Number | Word


def starting_at(knobs: Sequence[Knob], values: Mapping[str, Any]) -> list[Knob]:
    """Return the knobs with the values of a config as defaults. If such a knob needs another one, that one starts with
    a value with which the first has an effect.

    `values` maps the fields of the config to their values.
    """
    started = {
        knob.name: knob._replace(default=knob.start(values[knob.field])) if knob.field in values else knob
        for knob in knobs
    }
    for knob in [knob for knob in started.values() if knob.field in values]:
        for name, allowed in knob.needs.items():
            if started[name].field not in values:
                started[name] = started[name]._replace(default=allowed[0])
    return [*started.values()]


def read(knobs: Sequence[Knob], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the value of each knob. A knob without a text has its default, and so has a knob without an effect. Raise
    UserError if a value is not allowed."""
    values = {knob.name: knob.read(texts[knob.name]) if texts.get(knob.name) else knob.default for knob in knobs}
    return {knob.name: values[knob.name] if has_effect(knob, values) else knob.default for knob in knobs}


def has_effect(knob: Knob, values: Mapping[str, Any]) -> bool:
    """Return whether the knob changes a picture in which the other knobs have these values."""
    return all(values.get(name) in allowed for name, allowed in knob.needs.items())
