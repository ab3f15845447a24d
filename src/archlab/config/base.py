"""What every config model shares: strictness, and the few value types of our own."""

from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_MULTIPLES = {"K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}


class Base(BaseModel):
    """A frozen config section: unknown keys are errors, a string is never taken for a number."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        validate_default=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )


def _number(value: Any) -> Any:
    """`4M` -> 4e6; what is no such text passes through for pydantic to judge."""
    if isinstance(value, str) and value[-1:].upper() in _MULTIPLES:
        try:
            return float(Decimal(value[:-1]) * _MULTIPLES[value[-1].upper()])
        except ArithmeticError:
            return value
    return value


def _count(value: Any) -> Any:
    value = _number(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _share(value: Any) -> Any:
    """`1%` -> 0.01."""
    if isinstance(value, str) and value.endswith("%"):
        try:
            return float(value[:-1]) / 100
        except ValueError:
            return value
    return value


Probability = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Index = Annotated[int, Field(ge=0, le=10**9)]
"""A place in a sequence, or a number of them."""
Width = Annotated[int, Field(ge=1, le=10**9)]
"""Of a tensor's axis."""

_Many = Annotated[int, Field(ge=1, le=10**18)]
Count = Annotated[_Many, BeforeValidator(_count, json_schema_input_type=_Many | str)]
"""A whole number of things; `4M`, `16K` and `4e6` are understood."""

Flops = Annotated[Positive, BeforeValidator(_number, json_schema_input_type=Positive | str)]
"""A number of floating-point operations; `2P` is 2e15."""

Share = Annotated[Probability, BeforeValidator(_share, json_schema_input_type=Probability | str)]
"""A part of a whole, 0.01 or `1%`."""

Overrides = dict[str, Any]
"""Dotted field -> value: what a layer kind or a study's arm changes."""
