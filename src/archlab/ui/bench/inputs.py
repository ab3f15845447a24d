"""Inputs of the workbench for fields of the config: the main choices in groups, and all others."""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from archlab.evidence.field_help import FieldHelp, field_help
from archlab.evidence.look_up import topic_of
from archlab.ui.values import typed

MAIN: Mapping[str, Mapping[str, str]] = {
    "Size": {
        "model.d_model": "Width (d_model)",
        "model.n_layers": "Layers",
        "model.vocab_size": "Vocabulary",
        "model.max_seq_len": "Context",
    },
    "Attention": {
        "model.attention.kind": "Kind",
        "model.attention.n_heads": "Heads",
        "model.attention.n_kv_heads": "KV heads",
        "model.attention.head_dim": "Head dimension",
        "model.attention.window": "Window",
        "model.attention.softcap": "Cap of scores",
    },
    "Position": {
        "model.position.kind": "Kind",
        "model.position.theta": "Theta",
        "model.position.scaling.kind": "Scaling",
    },
    "MLP": {
        "model.mlp.kind": "Kind",
        "model.mlp.activation": "Activation",
        "model.mlp.d_ff": "Hidden width (d_ff)",
        "model.mlp.experts": "Experts",
        "model.mlp.active": "Active experts",
    },
    "Norm and block": {
        "model.norm.kind": "Norm",
        "model.norm.placement": "Placement",
        "model.block.parallel": "Parallel block",
        "model.mixer.kind": "Mixer",
        "model.head.tied": "Tied head",
    },
}
"""Label of each main choice by the path of its field, in groups."""


class FieldInput(NamedTuple):
    """Input of the workbench for one field."""

    path: str
    label: str
    value: str
    options: tuple[str, ...]
    """Allowed words. Empty for a number, which is typed. The word `null` is shown as `none`."""
    is_number: bool
    topic: str
    """Topic of `archlab explain`, or the path if no topic contains the field."""
    is_changed: bool


def main_choices(values: Mapping[str, Any], changed: Mapping[str, str]) -> dict[str, list[FieldInput]]:
    """Return the inputs for the main choices that a config has, by group. `values` maps each field of the
    resolved config to its value, and `changed` contains the fields that the URL sets."""
    groups = {
        group: [
            _input(path, label, typed(values[path]), path in changed, topic_of(path, values))
            for path, label in fields.items()
            if path in values
        ]
        for group, fields in MAIN.items()
    }
    return {group: choices for group, choices in groups.items() if choices}


def other_choices(values: Mapping[str, Any], changed: Mapping[str, str]) -> list[FieldInput]:
    """Return the inputs for the fields that the URL sets and that are not main choices."""
    main = {path for fields in MAIN.values() for path in fields}
    return [
        _input(
            path, path.removeprefix("model."), typed(values[path]) if path in values else text, True,
            topic_of(path, values),
        )
        for path, text in changed.items()
        if path not in main
    ]  # fmt: skip


@cache
def all_fields() -> dict[str, str]:
    """Return the description of each field that a link can set, by its path."""
    return {
        path: help_.readings[0].text
        for path, help_ in field_help().items()
        if path.startswith("model.") and not help_.is_section
    }


def _input(path: str, label: str, value: str, is_changed: bool, topic: str) -> FieldInput:
    help_ = field_help().get(path)
    words = _words(help_)
    options = words if value in words else (*words, value) if words else ()
    is_number = not options and bool(help_) and any("number" in reading.allowed for reading in help_.readings)
    return FieldInput(path, label, value, options, is_number, topic, is_changed)


def _words(help_: FieldHelp | None) -> tuple[str, ...]:
    if help_ is None:
        return ()
    if help_.values:
        return tuple(help_.values)
    return ("true", "false") if any(reading.allowed == "true or false" for reading in help_.readings) else ()
