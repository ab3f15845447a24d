"""Kinds of argument that several verbs take."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter, Token
from cyclopts.validators import Number
from pydantic import TypeAdapter

from archlab.config.base import Count

Flag = Annotated[bool, Parameter(show_default=False)]
"""Off unless given."""

AsItIs = Parameter(allow_leading_hyphen=True)
"""For text, which may begin like an option."""


def _whole(_hint: type, tokens: Sequence[Token]) -> int:
    """4096, or 4K as in a config; cyclopts by itself would take 1.5 for 2."""
    try:
        return int(tokens[0].value)
    except ValueError:
        return TypeAdapter(Count).validate_python(tokens[0].value)


Whole = Annotated[int, Parameter(converter=_whole)]
"""A whole number."""

AtLeastOne = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1))]
"""A whole number from 1."""
