"""Merging and removal of raw config values, that is, of values before validation. Merging depends on the kinds of
sections, such as `norm.kind`, because each kind has its own fields."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from archlab.config.core.base import Derived, Settings
from archlab.config.core.old_form import from_old_form, lays_options_over
from archlab.config.core.registry import Registered, cache_of_kinds, is_open, is_users, kinds
from archlab.errors import UserError

Raw = dict[str, Any]


MOST_DEPTH = 100
"""Largest allowed nesting depth of raw values. A typical config has a depth of 6."""


def expand(flat: Raw, room: int = MOST_DEPTH) -> Raw:
    """Return the nested form of dotted keys: `{"a": {"b": 1}}` for `{"a.b": 1}`, at every depth. Raise UserError if
    both forms set the same key."""
    nested: Raw = {}
    for key, value in flat.items():
        parts = str(key).split(".")
        if len(parts) > room:
            raise UserError(f"{key[:40]}...: sections are nested more than {MOST_DEPTH} deep")
        value = expand(value, room - len(parts)) if isinstance(value, dict) else value
        for part in reversed(parts):
            value = {part: value}
        _unite(nested, value, at="")
    return nested


def _unite(a: Raw, b: Raw, at: str) -> None:
    for key, value in b.items():
        if key not in a:
            a[key] = value
        elif isinstance(a[key], dict) and isinstance(value, dict):
            _unite(a[key], value, f"{at}{key}.")
        else:
            raise UserError(f"{at}{key} is given twice")


def merge(base: Raw, over: Raw, schema: type[BaseModel], at: str = "") -> Raw:
    """Return `base` updated with the values of `over`, section by section.

    If `over` changes the kind of a section (`norm.kind`), keys that only the old kind has are dropped. If `over`
    switches something off (`norm.weight`), keys that describe only this are dropped. If neither `base` nor `over` names
    a kind, the default kind of the field is used. In place of a section, a string is read as
    its kind, such as `position: alibi`, and a number as a short form of the fields, such as `dropout: 0.1`.
    """
    out, fields = dict(base), schema.model_fields
    for key, value in over.items():
        field = fields.get(key)
        below = _as_section(out.get(key), field)
        value = _as_section(value, field, below)
        if not isinstance(value, dict):
            out[key] = value
            continue
        below = _written_out(below, field)
        if below is not None and not isinstance(below, dict):
            raise UserError(f"{at}{key} is a single value ({below!r}) without fields; write {at}{key}=VALUE")
        below = below or {}
        section = section_schema(field, {**below, **value}) if field else None
        if field is None:  # a layer kind
            out[key] = merge_overrides(expand(below), expand(value))
            continue
        if section is None:
            out[key] = {**below, **value}
            continue
        old = section_schema(field, below)
        dropped_names = (_dropped_fields(old, section) if old else set()) | _switched_off(section, value)
        below = {k: v for k, v in below.items() if k not in dropped_names}
        kind = {"kind": section.model_fields["kind"].default} if _tagged(field) else {}
        out[key] = kind | merge(below, value, section, f"{at}{key}.")
    return out


def merge_overrides(below: Raw, over: Raw, schema: type[BaseModel] | None = None, at: str = "") -> Raw:
    """Return the nested overrides `below` updated with `over`. Neither needs to be a complete config.

    If `over` changes the kind of a section, fields of `below` that the new kind lacks are dropped. Without a schema,
    all fields of that section in `below` are dropped. Raise UserError if `over` sets a field inside a value that is not
    a section. `at` is the path of the section, for messages.
    """
    out = dict(below)
    for key, value in over.items():
        field = schema.model_fields.get(key) if schema else None
        old_value = out.get(key)
        if not (isinstance(value, dict) and isinstance(old_value, dict) and lays_options_over(old_value, value)):
            old_value = _as_section(old_value, field)
            value = _as_section(value, field, old_value)
            old_value = _written_out(old_value, field) if isinstance(value, dict) else old_value
        if isinstance(value, dict) and isinstance(old_value, dict):
            section = section_schema(field, {**old_value, **value}) if field else None
            if value.get("kind") not in (None, old_value.get("kind")):
                old_value = _fields_of_kind(old_value, field, section)
            value = merge_overrides(old_value, value, section, f"{at}{key}.")
        # Without a schema, a word may be a kind, which a section replaces. A number is never one.
        elif isinstance(value, dict) and ((field and old_value is not None) or isinstance(old_value, int | float)):
            raise UserError(f"{at}{key} is a single value ({old_value!r}) without fields; write {at}{key}=VALUE")
        out[key] = value
    return out


def _as_section(value: Any, field: FieldInfo | None, below: Any = None) -> Any:
    if not _tagged(field):
        return value
    if isinstance(value, str):
        return {"kind": value}
    root = _root(field) if field else None
    kind = below.get("kind") if isinstance(below, dict) else None
    return from_old_form(value, root, kind) if isinstance(value, dict) and root else value


def _written_out(value: Any, field: FieldInfo | None) -> Any:
    """Return the fields for which a short form stands, such as a single dropout probability for all places."""
    if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
        return value
    short_forms = [made for made in field.metadata if isinstance(made, BeforeValidator)]
    return short_forms[0].func(value) if short_forms else value  # pyright: ignore[reportCallIssue]


def _dropped_fields(old: type[BaseModel], new: type[BaseModel]) -> set[str]:
    """Return the names of the old kind's fields whose values are dropped when the kind changes.

    If both kinds are archlab's own, fields that both kinds have keep their values. If one of the kinds is user-defined,
    only fields from a common base class keep their values.
    """
    if old is new:
        return set()
    if not any(issubclass(kind, Registered) and is_users(kind) for kind in (old, new)):
        return set(old.model_fields) - set(new.model_fields)
    common = [base for base in old.__mro__ if base in new.__mro__ and issubclass(base, BaseModel)]
    return set(old.model_fields) - {"kind"} - {name for base in common for name in base.model_fields}


def _switched_off(section: type[BaseModel], over: Raw) -> set[str]:
    """Return the names of the fields that mean nothing after `over` has set the field that they need to false."""
    needing = section.needing if issubclass(section, Settings) else {}
    return {name for field, names in needing.items() if over.get(field) is False for name in names}


def _fields_of_kind(raw: Raw, field: FieldInfo | None, variant: type[BaseModel] | None) -> Raw:
    if field is None or variant is None:
        return {}
    others = {name for section in section_classes(field) for name in section.model_fields} - set(variant.model_fields)
    old = section_schema(field, raw)
    dropped_names = others | (_dropped_fields(old, variant) if old else set())
    return {key: value for key, value in raw.items() if key not in dropped_names}


def without(raw: Raw, paths: Sequence[str]) -> Raw:
    """Return a copy of `raw` without the values at the dotted `paths`. If a path points into a list, the whole list is
    removed."""
    out = copy.deepcopy(raw)
    for path in paths:
        _drop(out, path.split("."))
    return out


def _drop(section: Raw, path: Sequence[str]) -> None:
    for n in range(len(path), 0, -1):
        key = ".".join(path[:n])
        if key in section:
            if n < len(path) and isinstance(section[key], dict):
                _drop(section[key], path[n:])
            else:
                del section[key]
            return


def section_schema(field: FieldInfo, raw: Raw) -> type[BaseModel] | None:
    """Return the config class of a field's value.

    If a section has several kinds, return the class of the kind that `raw` names. If `raw` names no kind, use the
    default kind, or the first kind if there is no default.
    """
    variants = _variants(field)
    if not variants:
        return next(iter(section_classes(field)), None)
    root = _root(field)
    default = (root and root.default_kind) or next(iter(variants))
    kind = raw["kind"] if "kind" in raw else getattr(field.default, "kind", default)
    return variants.get(kind) if isinstance(kind, str) else None


def section_at(schema: type[BaseModel], path: Sequence[str], raw: Raw) -> type[BaseModel] | None:
    """Return the config class of the section at a path of keys in `raw`, or None if no section has that path."""
    section: type[BaseModel] | None = schema
    named: FieldInfo | None = None
    for key in path:
        field = named or (section.model_fields.get(key) if section else None)
        raw = value if isinstance(value := raw.get(key), dict) else {}
        named = None if named or field is None else value_of_mapping(field)
        section = section_schema(field, raw) if field and not named else None
    return section


@cache
def value_of_mapping(field: FieldInfo) -> FieldInfo | None:
    """Return the type of a field's values if the field maps names to sections. Return None for any other field."""
    if get_origin(field.annotation) is not dict:
        return None
    value = FieldInfo.from_annotation(get_args(field.annotation)[1])
    return value if section_classes(value) else None


class FieldPlace(NamedTuple):
    """Field of a config class, with the dotted path from the outermost section to the field."""

    path: str
    owner: type[BaseModel]
    name: str


def fields_below(
    schema: type[BaseModel], at: str = "", within: tuple[type[BaseModel], ...] = ()
) -> Iterator[FieldPlace]:
    """Yield every field that a section can have, including the fields of all its kinds.

    Paths start with `at`. If a field maps names to sections, the fields of these sections are yielded twice: with
    `NAME` in their paths, and without it. `within` lists the classes of the enclosing sections. If a section contains
    sections of its own class, such as an MLP made of MLPs, these inner sections are skipped to prevent endless
    recursion.
    """
    for name, field in schema.model_fields.items():
        yield FieldPlace(at + name, schema, name)
        mapping = value_of_mapping(field)
        inside = [(f"{at}{name}.", section) for section in section_classes(field)]
        inside += [(f"{at}{name}.NAME.", section) for section in (section_classes(mapping) if mapping else ())]
        for below, section in inside:
            if section is not schema and section not in within:
                yield from fields_below(section, below, (*within, schema))


def kind_names(field: FieldInfo | None) -> list[str]:
    """Return the kind names of a section with several kinds, or an empty list for any other field."""
    return list(_variants(field)) if field else []


@cache_of_kinds
def section_classes(field: FieldInfo) -> tuple[type[BaseModel], ...]:
    """Return the config classes that a field's value may have: one class for each kind of a section, or no class for a
    plain value."""
    if root := _root(field):
        return tuple(kinds(root).values())
    parts = (field.annotation, *get_args(field.annotation))
    return tuple(c for c in parts if isinstance(c, type) and issubclass(c, BaseModel))


def _root(field: FieldInfo) -> type[Registered] | None:
    cls = field.annotation
    return cls if isinstance(cls, type) and issubclass(cls, Registered) and is_open(cls) else None


@cache_of_kinds
def derived_fields(section: type[BaseModel]) -> tuple[str, ...]:
    """Return the names of a section's fields that are `Derived`, or that contain a section with a `Derived` field."""
    places = (place for place in fields_below(section) if Derived in place.owner.model_fields[place.name].metadata)
    return tuple(dict.fromkeys(place.path.partition(".")[0] for place in places))


@cache_of_kinds
def _variants(field: FieldInfo) -> Mapping[str, type[BaseModel]]:
    classes = section_classes(field)
    return {c.model_fields["kind"].default: c for c in classes} if len(classes) > 1 else {}


def _tagged(field: FieldInfo | None) -> bool:
    return field is not None and bool(_variants(field))
