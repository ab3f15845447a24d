"""Kinds of argument that several verbs take."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

Flag = Annotated[bool, Parameter(show_default=False)]
"""Off unless given."""

AtLeastOne = Annotated[int, Parameter(validator=Number(gte=1))]
"""A whole number from 1."""
