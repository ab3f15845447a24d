"""Base classes of all config sections, and the types of their numeric fields."""

import re
import struct
from collections.abc import Mapping
from decimal import Decimal
from math import isinf
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

_MULTIPLES = {
    "K": 10**3,
    "M": 10**6,
    "B": 10**9,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
"""Multiplier of each suffix that a number may have: `8K` is 8,000 and `8Ki` is 8,192."""

_WITH_SUFFIX = re.compile(f"(.*?)({'|'.join(_MULTIPLES)})", re.IGNORECASE)
_IN_BYTES = re.compile(f"([0-9.]+) *({'|'.join(_MULTIPLES.keys() - {'B'})})B")


class Base(BaseModel):
    """Frozen pydantic model that refuses unknown keys and never reads a string as a number."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        validate_default=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )


class Settings(Base):
    """Section of a config. The numbers in a section must fit into float32, because most of them end up in float32
    tensors."""

    needing: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Fields that mean something only while another field is true, by the name of that field. If an override sets it to
    false, their earlier values are dropped."""

    @field_validator("*")
    @classmethod
    def _fits_into_float32(cls, value: Any) -> Any:
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, float) and number and (isinf(as_float32 := _in_float32(number)) or not as_float32):
                raise ValueError(
                    f"{number!r} does not fit into float32; allowed: 0, or absolute values from 1.4e-45 to 3.4e38"
                )
        return value


def _in_float32(number: float) -> float:
    try:
        return struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return float("inf")


if TYPE_CHECKING:
    _T = TypeVar("_T")
    Derived = Annotated[_T, "null: derived"]
    """Type of a field that may be null. If it is null, its value is derived from other fields.

    `resolve` fills in the derived value. The value may be None only in a config as its author wrote it. Code that
    builds, counts or shows a model reads resolved configs, in which the value is never None.
    """
else:

    class Derived:  # noqa: D101 - described above
        def __class_getitem__(cls, value: Any) -> Any:
            return Annotated[value | None, cls]


DERIVED: Any = None
"""Default of a `Derived` field: null, until the config is resolved."""


class Kinded(Base):
    """Section that can have one of several kinds. Its `kind` is always written, even if defaults are left out. Without
    `kind`, a reader of the file could not know the class of the section."""

    @model_serializer(mode="wrap")
    def _with_kind(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": getattr(self, "kind", None), **plain(self)}


def kind_of(config: type[Base]) -> str:
    """Return the fixed kind of a config class, or an empty string if the class has none."""
    field = config.model_fields.get("kind")
    return field.default if field and isinstance(field.default, str) else ""


def _number(value: Any) -> Any:
    match = _WITH_SUFFIX.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    number, suffix = match.groups()
    try:
        return float(Decimal(number) * _MULTIPLES[suffix.capitalize()])
    except ArithmeticError:
        return value


def whole_number(value: Any) -> Any:
    """Convert a value such as `16K` (16000), `16Ki` (16384) or 4e6 (4000000) to an int. Return any other value
    unchanged."""
    number = _number(value)
    return int(number) if isinstance(number, float) and number.is_integer() else value


def memory_size(value: Any) -> Any:
    """Convert a text such as `80GiB` or `85.9 GB` to a number of bytes. A value without a unit is already a number of
    bytes."""
    match = _IN_BYTES.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return whole_number(value)
    number, suffix = match.groups()
    try:
        return int(Decimal(number) * _MULTIPLES[suffix])
    except ArithmeticError:
        return value


def _share(value: Any) -> Any:
    if isinstance(value, str) and value.endswith("%"):
        try:
            return float(value[:-1]) / 100
        except ValueError:
            return value
    return value


_WithSuffix = Annotated[str, Field(examples=["8Ki", "1M"])]
_WithByteUnit = Annotated[str, Field(examples=["80GiB"])]
_Percentage = Annotated[str, Field(examples=["1%"])]
Probability = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Natural = Annotated[int, Field(ge=0)]
# Upper limits. Each is far above the values of any published model. Each is also so low that archlab counts and shows
# any allowed config within seconds. If the machine is too small for a config, archlab refuses it within seconds.

MOST_LAYERS = 10_000
"""Largest allowed number of layers. The deepest published model has 126 layers. The limit saves memory, because each
layer is an object."""
MOST_KINDS = 100
"""Largest allowed number of layer kinds. The limit saves time, because each kind is validated like a separate model.
Published models have up to 4 layer kinds."""
MOST_HEADS = 10_000
"""Largest allowed number of heads. Published models have up to 128."""
WIDEST = 10**7
"""Largest allowed size of a tensor axis. The largest published vocabulary has 262,144 rows. If two axes of a matrix
have the allowed size, torch can still count its elements."""
LONGEST = 10**9
"""Largest allowed number of tokens in a sequence or a batch. The longest published context has 10^7 tokens, and the
largest batch 10^8."""
MOST_TOKENS = 10**15
"""Largest allowed number of tokens of a run. The longest published runs use 4 * 10^13 tokens."""
LARGEST_SEED = 2**63 - 1
"""Largest number that torch accepts as a seed."""

_Index = Annotated[int, Field(ge=0, le=LONGEST)]
Index = Annotated[_Index, BeforeValidator(whole_number, json_schema_input_type=_Index | _WithSuffix)]
"""Position in a sequence, or a number of positions. Suffixes are allowed as in `Count`."""
_Length = Annotated[int, Field(ge=1, le=LONGEST)]
Length = Annotated[_Length, BeforeValidator(whole_number, json_schema_input_type=_Length | _WithSuffix)]
"""Number of tokens in a sequence, in part of a sequence, or in a batch. Suffixes are allowed as in `Count`."""
_Width = Annotated[int, Field(ge=1, le=WIDEST)]
Width = Annotated[_Width, BeforeValidator(whole_number, json_schema_input_type=_Width | _WithSuffix)]
"""Size of a tensor axis. Suffixes are allowed as in `Count`."""
Depth = Annotated[int, Field(ge=1, le=MOST_LAYERS)]
"""Number of layers."""
Heads = Annotated[int, Field(ge=1, le=MOST_HEADS)]
"""Number of heads."""
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
"""Seed of a random number generator."""

_Many = Annotated[int, Field(ge=1, le=10**18)]
_OfText = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Count = Annotated[_Many, BeforeValidator(whole_number, json_schema_input_type=_Many | _WithSuffix)]
"""Positive whole number. It may be written as `4M`, `16K`, `16Ki` (16,384) or `4e6`."""
MemorySize = Annotated[_Many, BeforeValidator(memory_size, json_schema_input_type=_Many | _WithByteUnit)]
"""Memory size in bytes. It may be written as `80GiB` (2^30 bytes each), `80GB` (10^9 bytes each) or a plain number."""
Tokens = Annotated[_OfText, BeforeValidator(whole_number, json_schema_input_type=_OfText | _WithSuffix)]
"""Number of tokens of training or held-out text. Suffixes are allowed as in `Count`."""

Flops = Annotated[Positive, BeforeValidator(_number, json_schema_input_type=Positive | _WithSuffix)]
"""Number of floating-point operations. It may be written with a suffix: `2P` is 2e15."""

Fraction = Annotated[float, Field(gt=0, le=1), BeforeValidator(_share, json_schema_input_type=float | _Percentage)]
"""Fraction above 0 and up to 1. It may be written as 0.25 or `25%`."""

Share = Annotated[Probability, BeforeValidator(_share, json_schema_input_type=Probability | _Percentage)]
"""Fraction from 0 to below 1. It may be written as 0.01 or `1%`."""

Overrides = dict[str, Any]
"""Changes to a config, in a layer kind or in an arm of a study. They map dotted field names, such as `norm.eps`, to
values."""
