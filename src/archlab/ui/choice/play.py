"""Pictures that readers can play with: a form whose values are in the link, and the pictures for these values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlencode

from altair.utils.schemapi import debug_mode
from markupsafe import Markup

from archlab.config.problems import nearest
from archlab.errors import UserError
from archlab.evidence.topics import Topic
from archlab.report.charts.still import still
from archlab.report.drawings.knobs import Knob, Number, Word, has_effect, read, starting_at
from archlab.report.drawings.pictures import Drawing, pictures, pictures_of

_MOST_KEPT = 64
"""Number of pictures that are kept for the next request."""


class Input(NamedTuple):
    """Input of the form for one parameter."""

    name: str
    label: str
    value: str
    options: Sequence[str]
    """Allowed words. Empty for a number."""
    low: str = ""
    high: str = ""
    step: str = ""
    slider: Mapping[str, str] = {}
    """Attributes of the slider beside a number."""


class Picture(NamedTuple):
    """A picture with its caption, which is empty if the picture explains itself."""

    svg: Markup
    caption: str


@dataclass(frozen=True)
class Play:
    """Pictures of a topic, and the form that changes them."""

    pictures: list[Picture]
    inputs: list[Input]
    query: dict[str, str]
    """Parameters that differ from the values with which the pictures start."""

    def address(self, path: str, opened: Mapping[str, str]) -> str:
        """Return the link to the pictures as they are. `opened` is the part of a query that names a model."""
        query = {**opened, **self.query}
        return f"{path}?{urlencode(query)}" if query else path


def play(topic: Topic, texts: Mapping[str, str], values: Mapping[str, Any]) -> Play:
    """Return a topic's pictures for the parameters in a query.

    `values` maps the fields of a config to their values. The pictures start with these, as far as they can show them.
    Raise UserError if the query contains an unknown parameter, or a value that is not allowed.
    """
    drawings = {name: drawing for name, drawing in pictures_of(topic).items() if not drawing.is_static}
    unique = {knob.name: knob for drawing in drawings.values() for knob in drawing.knobs}
    for name in texts:
        if name not in unique:
            allowed = ", ".join(unique) or "none, because no picture of this choice has any"
            raise UserError(f"unknown parameter {name!r}{nearest(name, unique)}; allowed: {allowed}")
    knobs = starting_at([*unique.values()], values)
    try:
        _draw_all(drawings, read(knobs, {}))
    except UserError:  # the picture leaves out a value, without which the others are not possible
        knobs = starting_at([*unique.values()], topic.fields)
    chosen = read(knobs, texts)
    drawn = _draw_all(drawings, chosen)
    changed = {knob.name: _text(chosen[knob.name]) for knob in knobs if chosen[knob.name] != knob.default}
    return Play(drawn, [_input(knob, chosen[knob.name]) for knob in knobs if has_effect(knob, chosen)], changed)


def _draw_all(drawings: Mapping[str, Drawing], values: Mapping[str, Any]) -> list[Picture]:
    return [
        _draw(name, tuple((knob.name, values[knob.name]) for knob in drawing.knobs))
        for name, drawing in drawings.items()
    ]


@lru_cache(_MOST_KEPT)
def _draw(name: str, values: tuple[tuple[str, Any], ...]) -> Picture:
    with debug_mode(False):  # Altair's checks of all points take longer than the drawing
        picture = pictures()[name](**dict(values))
    if isinstance(picture, str):
        return Picture(Markup(picture), "")
    return Picture(Markup(still(picture, name)), picture.to_dict(validate=False)["description"])


def _input(knob: Knob, value: Any) -> Input:
    if isinstance(knob, Word):
        return Input(knob.name, knob.label, value, knob.options)
    low, high, step = (_text(number) for number in (knob.low, knob.high, knob.step))
    return Input(knob.name, knob.label, _text(value), (), low, high, step if knob.step else "any", _slider(knob, value))


def _slider(knob: Number, value: float) -> dict[str, str]:
    """Return the attributes of a slider. That of a logarithmic one is the power of ten."""
    scale = (lambda number: round(math.log10(number), 3)) if not knob.step else (lambda number: number)
    ends = {name: _text(scale(number)) for name, number in (("min", knob.low), ("max", knob.high), ("value", value))}
    return {**ends, "step": _text(knob.step or 0.01)}


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
