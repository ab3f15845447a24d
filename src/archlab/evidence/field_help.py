"""Help for every field of a schema, keyed by dotted path: the field's docstring, allowed values and default."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from archlab.config.core.base import Base, kind_of
from archlab.config.core.merge import fields_below, kind_names, section_classes
from archlab.config.core.registry import KindName, Registered, Section, cache_of_kinds, kinds
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.schema import Config

_SECTION = "a section"


class FieldVariant(Base):
    """One definition of a field. Kinds of a section, such as the kinds of `norm`, share a definition if they define the
    field in the same way."""

    kinds: list[str]
    """Kinds of the section that define the field in this way. Empty if all kinds do, or if the section has no kinds."""
    text: str
    allowed: str
    default: str | None
    """Default value in YAML. null if the field is required."""


class FieldHelp(Base):
    """Help for one field, identified by its dotted path."""

    path: str
    readings: list[FieldVariant]
    """Definitions of the field. There are several only if kinds of the section define the field differently."""
    values: dict[str, str]
    """Map each allowed word to its docstring in the schema, or to an empty string if it has none."""

    @property
    def is_section(self) -> bool:
        """Whether the field is a section, which contains other fields instead of a value."""
        return any(reading.allowed.startswith(_SECTION) for reading in self.readings)


@cache_of_kinds
def field_help(schema: type[BaseModel] = Config) -> dict[str, FieldHelp]:
    """Return the help for all fields, keyed by dotted path, in the order of the schema."""
    found: dict[str, FieldHelp] = {}
    for path, owner, name in fields_below(schema):
        field, kind = owner.model_fields[name], _kind(owner)
        new = _variant(owner, name, kind)
        help_ = found.setdefault(path, FieldHelp(path=path, readings=[], values={}))
        same = [r for r in help_.readings if (r.text, r.allowed, r.default) == (new.text, new.allowed, new.default)]
        if same:
            same[0].kinds.extend(k for k in new.kinds if k not in same[0].kinds)
        else:
            help_.readings.append(new)
        help_.values.update(_values(owner, field, name))
    for help_ in found.values():
        if help_.path.endswith(".kind"):
            help_.readings[:] = [_of_kinds(help_)]
            section = help_.path.removesuffix("kind")
            for inside in (field for path, field in found.items() if path.rpartition(".")[0] == section[:-1]):
                if [{*reading.kinds} for reading in inside.readings] == [{*help_.values}]:
                    inside.readings[0].kinds.clear()
    return found


_PLACES: dict[Section, str] = {
    "optimizer": "train.optimizer", "schedule": "train.schedule", "objective": "train.objective",
    "task": "data.task", "outcome": "measure.NAME", "activation": "model.mlp.activation",
}  # fmt: skip
"""Map a section to its path in a config or study file. A section that is not listed belongs to `model`."""


def place_of(kind: type[Registered]) -> str:
    """Return the path of the field that selects this kind in a config or study file, such as `model.norm.kind`."""
    place = _PLACES.get(kind.section, f"model.{kind.section}")
    return place if kind.section in ("activation", "schedule") else f"{place}.kind"


def fields_of(kind: type[Registered]) -> list[FieldHelp]:
    """Return the help for each field of a kind, except the field `kind` itself."""
    place = place_of(kind).removesuffix(".kind")
    return [
        FieldHelp(path=f"{place}.{name}", readings=[_variant(kind, name, kind_of(kind))], values={})
        for name in kind.model_fields
        if name != "kind"
    ]


def _kind(owner: type[BaseModel]) -> str | None:
    return owner.model_fields["kind"].default if "kind" in owner.model_fields else None


def _variant(owner: type[BaseModel], name: str, kind: str | None) -> FieldVariant:
    field = owner.model_fields[name]
    default = None if field.is_required() else _default(field)
    return FieldVariant(
        kinds=[kind] if kind else [], text=one_line(field.description), allowed=allowed(owner, name), default=default
    )


def _of_kinds(help_: FieldHelp) -> FieldVariant:
    """Return the help for the `kind` field of a section. It shows no default, because the help for the section already
    does."""
    return FieldVariant(kinds=[], text="Name of the kind.", allowed=", ".join(help_.values), default=None)


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        kind = getattr(value, "kind", None)
        return f"kind: {kind}" if kind else "its fields' defaults"
    return to_yaml_line(list(value) if isinstance(value, tuple) else value)


def _values(owner: type[BaseModel], field: FieldInfo, name: str) -> dict[str, str]:
    if name == "kind":
        return {str(field.default): one_line(owner.__doc__)}
    marks = [mark for mark in field.metadata if isinstance(mark, KindName)]
    return {kind: one_line(found.__doc__) for mark in marks for kind, found in kinds(mark.root).items()} or (
        dict.fromkeys(_words(field.annotation), "")
    )


def _words(annotation: Any) -> Iterator[str]:
    for part in get_args(annotation):
        if isinstance(part, str):
            yield part
        else:
            yield from _words(part)


_PLAIN = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}
_MORE = {"null": "null", "array": "a list", "object": "a mapping"}


def allowed(owner: type[BaseModel], name: str) -> str:
    section = _section(owner.model_fields[name])
    parts = list(dict.fromkeys(_in_words(_property(owner, name), section)))
    return (", or " if any("," in part for part in parts) else " or ").join(parts)


def _section(field: FieldInfo) -> str:
    """Return a phrase that describes a section by its kinds or fields. Return "" if the field is not a section."""
    if names := kind_names(field):
        return f"{_SECTION} of kind {', '.join(names)}"
    return "".join(f"{_SECTION} of {', '.join(found.model_fields)}" for found in section_classes(field))


@cache_of_kinds
def _properties(owner: type[BaseModel]) -> dict[str, Any]:
    found = owner.model_json_schema()
    if "$ref" in found:  # a class inside itself
        found = found["$defs"][found["$ref"].rpartition("/")[2]]
    return found["properties"]


def _property(owner: type[BaseModel], name: str) -> dict[str, Any]:
    return _properties(owner)[name]


def _in_words(schema: dict[str, Any], section: str) -> Iterator[str]:
    if "anyOf" in schema:
        for part in schema["anyOf"]:
            yield from _in_words(part, section)
    elif "$ref" in schema or "oneOf" in schema:
        yield section
    elif "enum" in schema or "const" in schema:
        yield ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    else:
        kind = schema.get("type", "object")
        bounds = [f"{words} {_number(schema[key])}" for key, words in _BOUNDS.items() if key in schema]
        examples = f"such as {' or '.join(schema['examples'])}" if "examples" in schema else ""
        yield " ".join(
            [f"{'a ' if examples else ''}{_PLAIN.get(kind) or _MORE[kind]}", examples or ", ".join(bounds)]
        ).strip()


def _number(value: float) -> str:
    """Return a number with separators, but without one in four digits, which may be a year."""
    return f"{value:,}" if abs(value) >= 10_000 else f"{value}"


def one_line(text: str | None) -> str:
    """Return a docstring without its line breaks."""
    return " ".join((text or "").split())
