"""Kinds of argument that several verbs take."""

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from archlab.config.base import whole_number
from archlab.config.yaml_text import parse_yaml

Flag = Annotated[bool, Parameter(show_default=False)]
"""Off unless given."""

AsItIs = Parameter(allow_leading_hyphen=True)
"""For text, which may begin like an option."""


def _whole(_kind: Any, tokens: Sequence[Token]) -> int:
    """ValueError, which cyclopts reports, for what is none."""
    text = tokens[0].value
    number = whole_number(parse_yaml(text, "a number"))
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError(f"{text!r}; allowed: a whole number, as in 8192, 32K or 4e6")
    return number


AtLeastOne = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1))]
"""A whole number from 1, written as config fields take it: 32768, 32K or 4e6."""
