"""Kinds of argument that several verbs take."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from archlab.config.base import LONGEST, whole_number
from archlab.config.yaml_text import parse_yaml
from archlab.errors import UserError

Flag = Annotated[bool, Parameter(show_default=False)]
"""Off unless given."""

MayBeginWithDash = Parameter(allow_leading_hyphen=True)
"""For free text, which may begin like an option."""


def _whole(_kind: Any, tokens: Sequence[Token]) -> int:
    """As a config field reads it; cyclopts would turn 1.5 into 2. ValueError for what is no whole number."""
    try:
        number = whole_number(parse_yaml(tokens[0].value, "a number"))
    except UserError as error:
        raise ValueError(str(error)) from None
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError(tokens[0].value)
    return number


WholeNumber = Annotated[int, Parameter(converter=_whole)]
"""A whole number, written as config fields take it: 32768, 32K or 4e6."""

Many = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1, lte=10**28))]
"""Parameters or FLOPs, written as config fields take them."""


def _bytes(_kind: Any, tokens: Sequence[Token]) -> int:
    """`16GiB`, `80 GB`, `1e9`; ValueError for what is none."""
    found = re.fullmatch(r"([0-9.eE+]+?) *(?:([KMGT])(i?)B)?", tokens[0].value.strip())
    if found is None:
        raise ValueError(tokens[0].value)
    number, prefix, binary = found.groups()
    power = "KMGT".index(prefix) + 1 if prefix else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


Bytes = Annotated[int, Parameter(converter=_bytes, validator=Number(gte=1, lte=10**16))]
"""Of memory: a number, with a decimal or a binary unit."""

Price = Annotated[float, Parameter(validator=Number(gt=0, lte=1e9))]
"""In any currency."""

AtLeastOne = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1, lte=LONGEST))]
"""A whole number from 1, as large as a sequence may be."""


def _several(kind: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    """Numbers between commas."""
    return tuple(_whole(kind, [tokens[0].evolve(value=part)]) for part in tokens[0].value.split(","))


SeveralAtLeastOne = Annotated[
    tuple[int, ...],
    Parameter(
        converter=_several, validator=Number(gte=1, lte=LONGEST), n_tokens=1, show_default=False, allow_repeating=False
    ),
]
"""One `AtLeastOne`, or several between commas."""
