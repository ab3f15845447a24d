"""Translation between the keys of a Hugging Face config.json and archlab's dotted config fields.

The translation for a family is a list of steps of the type `Field`. Each step works in both directions: it reads keys
of a config.json, and it writes them. On export, archlab reads the written keys back to find out what the family cannot
express (see `Family.hf_config`).
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from archlab.config.core.base import Base
from archlab.config.core.merge import Raw
from archlab.config.layers import PER_LAYER, encoder_of, resolve
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError


class ConfigReader:
    """Values of a config.json, with a record of the keys that were read."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values, self.where = values, where
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None, kind: type | None = None) -> Any:
        """Return the value of a key, or the default if the key is absent or null. Record that the key was read.

        `kind` is the expected type (None: the type of the default). Raise UserError if the value has a different type.
        """
        value = self.or_null(key, default, kind)
        return default if value is None else value

    def or_null(self, key: str, default: Any = None, kind: type | None = None) -> Any:
        """Return the value of a key, or the default if the key is absent. Record that the key was read.

        If the value is null, return None and not the default, unlike `get`.
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
        """Return a UserError about a value that archlab cannot build. The caller must raise it."""
        return UserError(f"{self.where}: {key} is {value!r}, which archlab cannot build; allowed: {allowed}")

    def unread(self) -> dict[str, Any]:
        return {key: value for key, value in self._values.items() if key not in self.read}


_TYPES: Mapping[type, str] = {
    bool: "true or false", int: "a whole number", float: "a finite number", str: "a name", list: "a list",
    dict: "a JSON object",
}  # fmt: skip


def _is_a(kind: type, value: Any) -> bool:
    """Return whether a JSON value has the type `kind`. true and false do not count as numbers; 2.0 counts as an
    integer."""
    if kind in (int, float):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and (kind is float or value == int(value))
    return isinstance(value, kind)


class Field(Protocol):
    """One step of the translation between config.json (`hf`) and archlab's config fields (`ours`).

    The steps run in the order of the list, so a step may use the values that earlier steps have set in `ours`.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None: ...

    def write(self, model: ModelConfig, hf: Raw) -> None: ...


@runtime_checkable
class HasHfKeys(Protocol):
    """Step of the translation that knows which config.json key sets which archlab field. Error messages can then name
    the key."""

    @property
    def hf_keys(self) -> Mapping[str, str]:
        """Mapping from the archlab fields that this step sets to their config.json keys."""
        ...


def all_hf_keys(parts: Iterable[Field]) -> dict[str, str]:
    return {field: key for part in parts if isinstance(part, HasHfKeys) for field, key in part.hf_keys.items()}


@runtime_checkable
class HasLimits(Protocol):
    """Step of the translation with keys of which archlab supports some values only. docs/families.md shows them."""

    @property
    def limits(self) -> Mapping[str, str]:
        """Mapping from these keys to the values that archlab supports."""
        ...


def all_limits(parts: Iterable[Field]) -> dict[str, str]:
    return {key: values for part in parts if isinstance(part, HasLimits) for key, values in part.limits.items()}


REQUIRED = object()
"""Value of `Key.default` for a key that the file must contain."""


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
    """Whether null in the file means "none" (for example, no soft cap). Otherwise null means the default."""

    @property
    def hf_keys(self) -> Mapping[str, str]:
        return {self.field: self.hf_key}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        get = hf.or_null if self.nullable else hf.get
        kind = object if self.from_hf is _same else None  # the schema checks a value that is not converted
        value = hf.need(self.hf_key) if self.default is REQUIRED else get(self.hf_key, self.default, kind)
        try:
            ours[self.field] = None if value is None else self.from_hf(value)
        except (ZeroDivisionError, ValueError):  # the conversion divides by the value or takes its root
            raise hf.refuse(self.hf_key, value, "a number above 0") from None

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the value of the field. If the model's component does not have the field, do not write the key."""
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
    """archlab field that has a fixed value in this family. config.json has no key for it."""

    field: str
    value: Any

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        ours[self.field] = self.value

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key. `Family.hf_config` reads the written config back and refuses a model with a different value."""


@dataclass(frozen=True)
class Only:
    """Key for which archlab supports only one value."""

    hf_key: str
    value: Any
    allowed: str = ""
    written: bool = True
    """Whether to write the key.

    It is False for a key that only some files contain and that the published code does not read.
    """

    @property
    def limits(self) -> Mapping[str, str]:
        return {self.hf_key: json.dumps(self.value).strip('"')} if self.written else {}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if the key has a different value."""
        found = hf.get(self.hf_key, self.value)
        if found != self.value:
            raise hf.refuse(self.hf_key, found, self.allowed or repr(self.value))

    def write(self, model: ModelConfig, hf: Raw) -> None:
        if self.written:
            hf[self.hf_key] = self.value


NEVER_TIED = Only(
    "tie_word_embeddings", False, "false, because the published class never ties the head to the embedding"
)
NO_CROSS_ATTENTION = Only(
    "add_cross_attention", False, "false, because archlab has cross-attention only in models with an encoder"
)


def silu_of_mixer(hf_key: str) -> Only:
    return Only(hf_key, "silu", "silu, because the mixer of archlab has this activation only")


def unread(hf_key: str, value: Any) -> Only:
    """Return the step for a key of published files that the published code does not read, because it always builds what
    this value means. Another value is an error."""
    return Only(hf_key, value, f"{json.dumps(value)}, because the published code always builds this", written=False)


@dataclass(frozen=True)
class Switch:
    """Boolean key that turns a component on or off: true sets the archlab field to `on`, and false sets it to "none".

    The steps in `more` translate the settings of the component. They run only if the key is true.
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
    """Return the value of a dotted field, or ABSENT if the model's component has no such field.

    `encoder.mlp.d_ff` and the like are fields of the encoder's layers, even if the encoder does not override them.
    """
    value: Any = model
    stack, _, own = field.partition(".")
    if stack == "encoder" and own.partition(".")[0] in PER_LAYER and isinstance(model, ModelConfig):
        encoder = encoder_of(model)
        value, field = encoder and resolve(encoder), own
    for part in field.split("."):
        value = getattr(value, part, ABSENT)
    return value


ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "silu": "silu", "swish": "silu", "quick_gelu": "quick_gelu", "relu2": "relu_squared", "xielu": "xielu",
    "sigmoid": "sigmoid", "linear": "identity", "gelu_python": "gelu",
}  # fmt: skip


@dataclass(frozen=True)
class ActivationKey:
    """Key with the name of the activation function."""

    hf_key: str
    default: str
    meaning: Mapping[str, str] | None = None
    """Mapping from published names of activations to archlab's names. Contains only names that have a special meaning
    in this family."""
    names: Mapping[str, str] = field(default_factory=lambda: ACTIVATIONS)
    """Mapping from published names of activations to archlab's names. Contains all names that the published code of
    this family knows."""

    field: str = "mlp.activation"
    """Archlab field that the key sets."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        name = hf.get(self.hf_key, self.default)
        known = {**self.names, **(self.meaning or {})}
        if name not in known:
            raise hf.refuse(self.hf_key, name, ", ".join(known))
        ours[self.field] = known[name]

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the published name of the activation. If it has several names, prefer the family's default, otherwise
        take the first."""
        known = {self.default: self.names.get(self.default), **self.names, **(self.meaning or {})}
        hf[self.hf_key] = next((name for name, ours in known.items() if ours == lookup(model, self.field)), None)
