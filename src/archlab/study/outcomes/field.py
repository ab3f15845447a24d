"""Outcomes in a study file: a list of kinds, or a mapping from names to settings."""

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

import archlab.study.outcomes.kinds  # noqa: F401 - registers its kinds
from archlab.config.core.old_form import from_old_form
from archlab.config.core.registry import KindName
from archlab.config.core.text import Line
from archlab.study.outcomes.schema import Outcome


def outcomes_with_kinds(value: Any) -> Any:
    """Return the outcomes as a mapping from names to settings, in which each outcome has a `kind`.

    A list of kinds becomes a mapping. For an outcome without a kind, its name is the kind.
    """
    if isinstance(value, list) and all(isinstance(kind, str) for kind in value):
        value = dict.fromkeys(value)
    if not isinstance(value, dict):
        return value
    return {
        name: from_old_form({"kind": name, **(fields or {})}, Outcome) if isinstance(fields, dict | None) else fields
        for name, fields in value.items()
    }


_SettingsWithoutKind = Annotated[
    dict[str, Any] | None,
    WithJsonSchema({"anyOf": [{"type": "null"}, {"type": "object", "not": {"required": ["kind"]}}]}),
]
"""Settings of an outcome without a kind: its name is the kind."""

_AsKinds = list[Annotated[str, KindName(Outcome)]]
Outcomes = Annotated[
    dict[Line, Outcome],
    BeforeValidator(outcomes_with_kinds, json_schema_input_type=_AsKinds | dict[Line, Outcome | _SettingsWithoutKind]),
]
"""Outcomes by name. For an outcome without a kind, its name is the kind."""
