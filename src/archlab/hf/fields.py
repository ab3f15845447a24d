"""How one key of a Hugging Face config.json and one field of ours translate into each other.

A family's translation is a list of these, read in both directions: a value that is read can be written again, and what
cannot be written is found by reading it back (see family.py).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from archlab.config.core.base import Base
from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError


class ConfigReader:
    """A config.json while it is read: remembers which keys were understood."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values, self.where = values, where
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None, kind: type | None = None) -> Any:
        """Return the value of a key that this family understands; absent and null are the default.

        Raise UserError for a value whose type is neither `kind` nor, without `kind`, that of the default.
        """
        value = self.or_null(key, default, kind)
        return default if value is None else value

    def or_null(self, key: str, default: Any = None, kind: type | None = None) -> Any:
        """As `get`, for a key whose null says something: absent is the default, null is None."""
        self.read.add(key)
        value = self._values.get(key, default)
        kind = kind or type(default)
        if value is not None and kind in _TYPES and not _is_a(kind, value):
            raise self.refuse(key, value, _TYPES[kind])
        return value

    def need(self, key: str) -> Any:
        """The value of a key that must be there."""
        value = self.get(key)
        if value is None:
            raise UserError(f"{self.where}: {key} is missing")
        return value

    def refuse(self, key: str, found: Any, allowed: str) -> UserError:
        """The error for a value that this family cannot express."""
        return UserError(f"{self.where}: {key} is {found!r}, which archlab cannot build; allowed: {allowed}")

    def unread(self) -> dict[str, Any]:
        """Keys that nothing has understood, with their values."""
        return {key: value for key, value in self._values.items() if key not in self.read}


_TYPES: Mapping[type, str] = {
    bool: "true or false", int: "a whole number", float: "a finite number", str: "a name", list: "a list",
    dict: "keys and values",
}  # fmt: skip


def _is_a(kind: type, value: Any) -> bool:
    """Whether a value of JSON is of that kind: true is not a number, and 2.0 is a whole one."""
    if kind in (int, float):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and (kind is float or value == int(value))
    return isinstance(value, kind)


class Field(Protocol):
    """One part of a translation."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set dotted fields of `ours` from keys of the config.json."""

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Set keys of the config.json from a resolved model config."""


@runtime_checkable
class Spelled(Protocol):
    """A part that gives fields which the schema may find fault with."""

    @property
    def spelled(self) -> Mapping[str, str]:
        """Our field -> the key of theirs to name in a message."""
        ...


def spelled(parts: Iterable[Field]) -> dict[str, str]:
    """Of all those parts."""
    return {field: key for part in parts if isinstance(part, Spelled) for field, key in part.spelled.items()}


REQUIRED = object()
"""As a default: the key must be there."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Key:
    """`hf_key` <-> dotted `field`, through a pair of functions."""

    hf_key: str
    field: str
    default: Any = REQUIRED
    there: Callable[[Any], Any] = _same
    """config.json -> ours."""
    back: Callable[[Any], Any] = _same
    """ours -> config.json."""
    nullable: bool = False
    """null in the file is not the default, but "none" (a soft cap, say)."""

    @property
    def spelled(self) -> Mapping[str, str]:
        """Field and key."""
        return {self.field: self.hf_key}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """The key's value, or its default in the published code."""
        get = hf.or_null if self.nullable else hf.get
        kind = object if self.there is _same else None  # the schema judges a value that stays as it is
        value = hf.need(self.hf_key) if self.default is REQUIRED else get(self.hf_key, self.default, kind)
        ours[self.field] = None if value is None else self.there(value)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """The field's value; a field that this variant does not have leaves the key out."""
        value = lookup(model, self.field)
        if value is not ABSENT:
            hf[self.hf_key] = None if value is None else self.back(value)


@dataclass(frozen=True)
class Flag(Key):
    """A key that is true or false, and whose null is false, as the published code's `if` has it."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """As it is, or its default."""
        value = hf.or_null(self.hf_key, self.default)
        ours[self.field] = False if value is None else value


@dataclass(frozen=True)
class Always:
    """A field that this family fixes; there is no key for it."""

    field: str
    value: Any

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set it."""
        ours[self.field] = self.value

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Nothing to write; reading back shows whether the model has this value."""


@dataclass(frozen=True)
class Only:
    """A key of which archlab can build one value."""

    hf_key: str
    value: Any
    allowed: str = ""
    written: bool = True
    """Whether the published code knows the key; some only stand in files."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """UserError that names the key when it holds another value."""
        found = hf.get(self.hf_key, self.value)
        if found != self.value:
            raise hf.refuse(self.hf_key, found, self.allowed or repr(self.value))

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """The one value."""
        if self.written:
            hf[self.hf_key] = self.value


@dataclass(frozen=True)
class Switch:
    """A key that is true or false <-> a field that is `on` or "none"; `more` counts only where it is on."""

    hf_key: str
    field: str
    default: bool
    on: str
    more: Sequence[Field] = ()

    @property
    def spelled(self) -> Mapping[str, str]:
        """What comes with it."""
        return spelled(self.more)

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """The field, and what comes with it."""
        given = hf.get(self.hf_key, self.default)
        ours[self.field] = self.on if given else "none"
        for part in self.more if given else ():
            part.read(hf, ours)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Whether it is on, and what comes with it."""
        hf[self.hf_key] = lookup(model, self.field) == self.on
        for part in self.more if hf[self.hf_key] else ():
            part.write(model, hf)


ABSENT = object()


def lookup(model: Base, field: str) -> Any:
    """The value of a dotted field, or ABSENT where the variant in use has no such field."""
    value: Any = model
    for part in field.split("."):
        value = getattr(value, part, ABSENT)
    return value


_ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "silu": "silu", "swish": "silu", "quick_gelu": "quick_gelu", "relu2": "relu_squared", "xielu": "xielu",
    "sigmoid": "sigmoid", "linear": "identity",
}  # fmt: skip


@dataclass(frozen=True)
class ActivationKey:
    """The activation's name; `meaning` overrides the usual reading of a name in this family."""

    hf_key: str
    default: str
    meaning: Mapping[str, str] | None = None
    names: Mapping[str, str] = field(default_factory=lambda: _ACTIVATIONS)
    """All that this family's code knows."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Ours for theirs."""
        name = hf.get(self.hf_key, self.default)
        known = {**self.names, **(self.meaning or {})}
        if name not in known:
            raise hf.refuse(self.hf_key, name, ", ".join(known))
        ours["mlp.activation"] = known[name]

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """The first of their names that means ours, the family's default before others."""
        known = {self.default: self.names.get(self.default), **self.names, **(self.meaning or {})}
        hf[self.hf_key] = next((name for name, ours in known.items() if ours == lookup(model, "mlp.activation")), None)
