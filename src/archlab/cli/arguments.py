"""Kinds of argument that several verbs take."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

Flag = Annotated[bool, Parameter(show_default=False)]
"""Off unless given."""

AsItIs = Parameter(allow_leading_hyphen=True)
"""For text, which may begin like an option."""

AtLeastOne = Annotated[int, Parameter(validator=Number(gte=1))]
"""A whole number from 1."""
