"""Kinds of argument that several verbs take."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from archlab.config.core.base import LONGEST, memory_size, whole_number
from archlab.config.core.yaml_text import parse_yaml
from archlab.errors import UserError
from archlab.pricing.partition import MOST_DEVICES

Flag = Annotated[bool, Parameter(show_default=False)]
"""Off unless given."""

MayBeginWithDash = Parameter(allow_leading_hyphen=True)
"""For free text, which may begin like an option."""


def _number(read: Callable[[Any], Any]) -> Callable[[Any, Sequence[Token]], int]:
    """As `read` understands it in a config; cyclopts would turn 1.5 into 2. ValueError for what is no whole number."""

    def convert(_kind: Any, tokens: Sequence[Token]) -> int:
        try:
            number = read(parse_yaml(tokens[0].value, "a number"))
        except UserError as error:
            raise ValueError(str(error)) from None
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(tokens[0].value)
        return number

    return convert


_whole = _number(whole_number)

WholeNumber = Annotated[int, Parameter(converter=_whole)]
"""A whole number, written as config fields take it: 32768, 32Ki (32,768), 32K (32,000) or 4e6."""

Many = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1, lte=10**28))]
"""Parameters or FLOPs, written as config fields take them."""

Bytes = Annotated[int, Parameter(converter=_number(memory_size), validator=Number(gte=1, lte=10**16))]
"""Of memory: a number, or with a unit as in 16GiB (2^30) or 80GB (10^9)."""

Devices = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1, lte=MOST_DEVICES))]
"""How many."""

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


def check_one_answer(json: bool, html: Path | None) -> None:
    """UserError where an answer is asked for as JSON and as a page."""
    if json and html is not None:
        raise UserError("--json and --html: allowed: one of them")
