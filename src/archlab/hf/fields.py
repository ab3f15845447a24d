"""Translation between the keys of a Hugging Face config.json and archlab's dotted config fields.

A family's translation is a list of fields that work in both directions: each reads a config.json and writes one.
archlab reads the written keys back to find out what a family cannot express (see family.py).
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
    """Values of a config.json, with a record of the keys that were read."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values, self.where = values, where
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None, kind: type | None = None) -> Any:
        """Return the value of a key, or the default if the key is absent or null. Record that the key was read.

        `kind` is the expected type; None means the type of the default. Raise UserError if the value has another type.
        """
        value = self.or_null(key, default, kind)
        return default if value is None else value

    def or_null(self, key: str, default: Any = None, kind: type | None = None) -> Any:
        """Return the value of a key, or the default if the key is absent.

        Unlike `get`, return None if the value is null.
        """
        self.read.add(key)
        value = self._values.get(key, default)
        kind = kind or type(default)
        if value is not None and kind in _TYPES and not _is_a(kind, value):
            raise self.refuse(key, value, _TYPES[kind])
        return value

    def need(self, key: str) -> Any:
        """Return the value of a required key. Raise UserError if it is absent or null."""
        value = self.get(key)
        if value is None:
            raise UserError(f"{self.where}: {key} is missing")
        return value

    def refuse(self, key: str, value: Any, allowed: str) -> UserError:
        """Return, but do not raise, a UserError about a value that this family cannot express."""
        return UserError(f"{self.where}: {key} is {value!r}, which archlab cannot build; allowed: {allowed}")

    def unread(self) -> dict[str, Any]:
        return {key: value for key, value in self._values.items() if key not in self.read}


_TYPES: Mapping[type, str] = {
    bool: "true or false", int: "a whole number", float: "a finite number", str: "a name", list: "a list",
    dict: "keys and values",
}  # fmt: skip


def _is_a(kind: type, value: Any) -> bool:
    """Return whether a JSON value has this type. true is not a number; 2.0 counts as an integer."""
    if kind in (int, float):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and (kind is float or value == int(value))
    return isinstance(value, kind)


class Field(Protocol):
    """One step of the translation.

    The steps run in order, so a step may use the values that earlier steps set in `ours`.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None: ...

    def write(self, model: ModelConfig, hf: Raw) -> None: ...


@runtime_checkable
class HasHfKeys(Protocol):
    """Field that reports which config.json key sets which archlab field, so that validation errors can name the key."""

    @property
    def hf_keys(self) -> Mapping[str, str]:
        """config.json keys to name in error messages, by archlab field."""
        ...


def all_hf_keys(parts: Iterable[Field]) -> dict[str, str]:
    return {field: key for part in parts if isinstance(part, HasHfKeys) for field, key in part.hf_keys.items()}


REQUIRED = object()
"""Marker for a key without a default, which the file must contain."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Key:
    """Translation between one config.json key and one dotted field, with a conversion function for each direction."""

    hf_key: str
    field: str
    default: Any = REQUIRED
    from_hf: Callable[[Any], Any] = _same
    """Function that converts the key's value to the field's value."""
    to_hf: Callable[[Any], Any] = _same
    """Function that converts the field's value to the key's value."""
    nullable: bool = False
    """Whether null in the file means "none" (for example, no soft cap) instead of the default."""

    @property
    def hf_keys(self) -> Mapping[str, str]:
        return {self.field: self.hf_key}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        get = hf.or_null if self.nullable else hf.get
        kind = object if self.from_hf is _same else None  # the schema checks a value that is not converted
        value = hf.need(self.hf_key) if self.default is REQUIRED else get(self.hf_key, self.default, kind)
        ours[self.field] = None if value is None else self.from_hf(value)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the field's value. Leave the key out if the model's component has no such field."""
        value = lookup(model, self.field)
        if value is not ABSENT:
            hf[self.hf_key] = None if value is None else self.to_hf(value)


@dataclass(frozen=True)
class Flag(Key):
    """Boolean key. null means false, because the published code tests the value with `if`."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        value = hf.or_null(self.hf_key, self.default)
        ours[self.field] = False if value is None else value


@dataclass(frozen=True)
class Always:
    """Field whose value is fixed in this family and has no key."""

    field: str
    value: Any

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        ours[self.field] = self.value

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key. Reading the written config back shows whether the model has this value."""


@dataclass(frozen=True)
class Only:
    """Key for which archlab supports a single value."""

    hf_key: str
    value: Any
    allowed: str = ""
    written: bool = True
    """Whether to write the key.

    False for keys that the published code does not know and that only some files contain.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if the key has any other value."""
        found = hf.get(self.hf_key, self.value)
        if found != self.value:
            raise hf.refuse(self.hf_key, found, self.allowed or repr(self.value))

    def write(self, model: ModelConfig, hf: Raw) -> None:
        if self.written:
            hf[self.hf_key] = self.value


@dataclass(frozen=True)
class Switch:
    """Boolean key that turns a component on or off: true sets the field to `on`, false to "none".

    The fields in `more` are read only if the key is true.
    """

    hf_key: str
    field: str
    default: bool
    on: str
    more: Sequence[Field] = ()

    @property
    def hf_keys(self) -> Mapping[str, str]:
        return all_hf_keys(self.more)

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        is_on = hf.get(self.hf_key, self.default)
        ours[self.field] = self.on if is_on else "none"
        for part in self.more if is_on else ():
            part.read(hf, ours)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf[self.hf_key] = lookup(model, self.field) == self.on
        for part in self.more if hf[self.hf_key] else ():
            part.write(model, hf)


ABSENT = object()


def lookup(model: Base, field: str) -> Any:
    """Return the value of a dotted field, or ABSENT if the model's component has no such field."""
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
    """Key with the name of the activation function."""

    hf_key: str
    default: str
    meaning: Mapping[str, str] | None = None
    """archlab's names of activations by published name, for names with a special meaning in this family."""
    names: Mapping[str, str] = field(default_factory=lambda: _ACTIVATIONS)
    """archlab's names of activations by published name, for all activations of this family's published code."""

    field: str = "mlp.activation"
    """Archlab field that the key sets."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        name = hf.get(self.hf_key, self.default)
        known = {**self.names, **(self.meaning or {})}
        if name not in known:
            raise hf.refuse(self.hf_key, name, ", ".join(known))
        ours[self.field] = known[name]

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the first published name of the activation, preferring the family's default."""
        known = {self.default: self.names.get(self.default), **self.names, **(self.meaning or {})}
        hf[self.hf_key] = next((name for name, ours in known.items() if ours == lookup(model, self.field)), None)
