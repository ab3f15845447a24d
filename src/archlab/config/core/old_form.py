"""Older form of a user-defined kind in a config: `{kind: plugin, name: mine, options: {rate: 2}}`.

The files of older runs and studies contain this form, and the names of runs are still computed from it.
"""

from typing import Any

from archlab.config.core.base import kind_of
from archlab.config.core.registry import Registered, Section, kinds, users_kinds

_SECTIONS: tuple[Section, ...] = ("mlp", "mixer", "optimizer")
"""Sections of a config in which the older form may occur. It may also occur in the outcomes of a study."""


def from_old_form(value: dict[str, Any], root: type[Registered], kind_below: Any = None) -> dict[str, Any]:
    """Convert a value from the older form to the current form: `{kind: plugin, name: mine, options: {rate: 2}}` becomes
    `{kind: mine, rate: 2}`.

    A part of a section, such as `{options: {rate: 2}}`, is also converted. If the value names no kind, `kind_below` is
    its kind.
    """
    options = value.get("options")
    is_old = value.get("kind") == "plugin" and isinstance(value.get("name"), str)
    named = kinds(root).get(str(value.get("kind", kind_below)))
    has_options = "options" in value and not (named and "options" in named.model_fields)
    if not is_old and not (has_options and isinstance(options, dict)):
        return value
    kind = {"kind": value["name"]} if is_old else {}
    rest = {key: item for key, item in value.items() if key not in ("options", *(("kind", "name") if is_old else ()))}
    return {**rest, **kind, **(options or {})}


def lays_options_over(below: dict[str, Any], over: dict[str, Any]) -> bool:
    """Return whether both values have the older form and the same kind.

    Such values are merged without conversion to the current form, because the digests of existing studies were computed
    that way.
    """
    same = {"kind": below.get("kind"), "name": below.get("name")} | over
    return "options" in over and same["kind"] == below.get("kind") == "plugin" and same["name"] == below.get("name")


def from_old_path(path: str) -> str:
    return path.replace(".options.", ".")


def to_old_form(value: dict[str, Any]) -> dict[str, Any]:
    """Convert a value from the current form to the older form: `{kind: mine, rate: 2}` becomes `{kind: plugin, name:
    mine, options: {rate: 2}}`."""
    options = {key: item for key, item in value.items() if key != "kind"}
    return {"kind": "plugin", "name": value["kind"], "options": options}


def in_old_form(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a config. User-defined MLPs, mixers and optimizers are in the older form."""
    users = {(kind.section, kind_of(kind)) for kind in users_kinds() if kind.section in _SECTIONS}

    def changed(value: Any, section: str) -> Any:
        if not isinstance(value, dict):
            return value
        inner = {name: changed(part, name) for name, part in value.items()}
        return to_old_form(inner) if (section, inner.get("kind")) in users else inner

    return changed(plain, "")
