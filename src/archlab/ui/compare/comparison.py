"""Comparison of two or three configs: the choices that differ, what each costs, who makes it, and what is known about
it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from archlab.config.core.text import command_line
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.identity import differences, flatten, resolved
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.evidence.look_up import topic_of
from archlab.evidence.topics import Topic, topics
from archlab.evidence.usage import users
from archlab.pricing.price import Price, price
from archlab.pricing.units import binary, count, plural, si
from archlab.report.drawings.block import side_by_side
from archlab.report.ledger.forest import Forest
from archlab.report.ledger.words import numbered
from archlab.ui.bench.workbench import View
from archlab.ui.choice.explained import evidence
from archlab.ui.configs import ComparedConfigs, Variant, load
from archlab.ui.values import shown_fields

_LONGEST = 8192
"""Maximum number of tokens of the sequence for which costs are compared."""


_LAYERS = "model.layers"
"""Section that is priced as a whole, because its parts refer to each other."""


class Row(NamedTuple):
    """A field in which the configs differ."""

    field: str
    values: list[str]
    users: list[list[str]]
    """Published models with each value."""
    effects: list[tuple[str, str]]
    """Titles of the configs that have another value than the first one, and the effect on the cost of the first config
    if only this field takes that value."""
    topics: list[str]
    """Topic that explains the field's value in each config that changes it, or the field."""


class Known(NamedTuple):
    """Topic that explains a difference, with the claims about it."""

    name: str
    topic: Topic
    claims: list[tuple[int, str, str]]
    """Number, name and verdict, with its caveat, of each claim about the topic."""
    forests: list[Forest]
    """Plots of the results about the topic: those of archlab and those of publications."""


@dataclass(frozen=True)
class Comparison:
    """Everything that the screen shows."""

    compared: ComparedConfigs
    titles: list[str]
    diagrams: list[Markup]
    numbers: list[tuple[str, list[str]]]
    """Rows of the table of costs: name, and the value of each config."""
    groups: Mapping[str, list[Row]]
    """Differing fields, by section of the config."""
    known: list[Known]
    commands: list[str]

    @property
    def workbenches(self) -> list[str]:
        """Address of the workbench of each config."""
        return [View.of_variant(variant).address() for variant in self.compared.variants]


def compare(compared: ComparedConfigs, root: Path) -> Comparison:
    """Return the comparison of two or three configs. Each is compared with the first.

    Raise UserError if a config is not valid or named twice, or if there is only one.
    """
    variants = compared.variants
    if len(variants) < 2:
        named = plural(len(variants), "config")
        raise UserError(f"{named}; add another name after a slash, as in /vs/gpt-2/llama-3-8b")
    if repeated := next((variant for i, variant in enumerate(variants) if variant in variants[:i]), None):
        raise UserError(f"{repeated.title} is named twice; allowed: configs that differ in a name or a changed field")
    configs = [load(variant, root).config for variant in variants]
    first, *others = configs
    flat = [flatten(resolved(config)) for config in configs]
    to_read = [shown_fields(config) for config in configs]
    differing = dict.fromkeys(path for other in others for path in differences(first, other, model_only=True))
    fields = {path: None for path in differing if any(path in values for values in to_read)}
    context = compared_context(configs)
    costs = [price(config, context) for config in configs]
    groups: dict[str, list[Row]] = {}
    for path in fields:
        section = path.split(".")[1] if path.count(".") > 1 else "size"
        groups.setdefault(section, []).append(_row(path, flat, to_read, compared, costs[0], context, root))
    return Comparison(
        compared,
        compared.titles,
        _diagrams(compared.titles, configs),
        _numbers(costs, context),
        groups,
        _known([row for rows in groups.values() for row in rows]),
        _commands(variants, context),
    )


def _row(
    path: str,
    flat: Sequence[Mapping[str, Any]],
    to_read: Sequence[Mapping[str, str]],
    compared: ComparedConfigs,
    before: Price,
    context: int,
    root: Path,
) -> Row:
    written = [to_yaml_line(config[path]) if config.get(path) is not None else "" for config in flat]
    absent = object()  # a field vanishes with its kind, but layers of several kinds become equal
    changed = [
        i
        for i, config in enumerate(flat)
        if config.get(path, absent) != flat[0].get(path, absent) and (path in config or _is_of_layers(path))
    ]
    titles: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for i in changed:
        titles.setdefault(_choice(path, flat[i]), []).append(compared.titles[i])
    effects = {choice: _effect(compared.variants[0], dict(choice), before, context, root) for choice in titles}
    impossible = "only together with other choices" if path in flat[0] else ""  # a new field comes with its kind
    explained = _of_model(path)
    of_values = ({**flat[i], explained: flat[i].get(path)} for i in changed or [0])
    return Row(
        field=path,
        values=[values.get(path, "-") for values in to_read],
        users=[users(path, value) for value in written],
        effects=[
            (" and ".join(titles[choice]), text)
            for choice, effect in effects.items()
            if (text := impossible if effect is None else effect)
        ],
        topics=list(dict.fromkeys(topic_of(explained, values) for values in of_values)),
    )


def _is_of_layers(path: str) -> bool:
    return path.startswith(f"{_LAYERS}.")


def _of_model(path: str) -> str:
    """Return the field of the model that a field of one kind of layers replaces."""
    layers, dot, field = path.partition(f"{_LAYERS}.")
    return f"model.{field.partition('.')[2]}" if dot and not layers and "." in field else path


def _choice(path: str, config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the fields, with their values, that make the choice `path` of a config. A kind comes with all fields of
    its section, because their defaults may be far from the sizes of the config. Layers of all kinds come together."""
    section, dot, name = path.rpartition(".")
    if _is_of_layers(path):
        fields = [field for field in config if _is_of_layers(field)]
        if not fields:
            return ((_LAYERS, "null"),)
    else:
        fields = [field for field in config if field.startswith(section + dot)] if name == "kind" else [path]
    return tuple((field, to_yaml_line(config[field])) for field in fields)


def _effect(variant: Variant, choice: Mapping[str, str], before: Price, context: int, root: Path) -> str | None:
    """Return the change of parameters, cache and FLOPs in words. It is empty if nothing changes. Return None if the
    config cannot make the choice alone."""
    try:
        overrides = {**variant.overrides, **choice}
        after = price(load(variant._replace(overrides=overrides), root).config, context)
    except UserError:
        return None
    numbers = {"parameters": "parameters", "cache": "state_bytes", "FLOPs": "flops"}
    ratios = {
        label: getattr(after, name) / old - 1 for label, name in numbers.items() if (old := getattr(before, name))
    }
    changed = ", ".join(f"{label} {ratio:+.1%}" for label, ratio in ratios.items() if abs(ratio) >= 0.0005)
    field = next(iter(choice))
    section = "layers" if _is_of_layers(field) else field.split(".")[-2]
    return f"with all of {section}: {changed}" if changed and len(choice) > 1 else changed


def compared_context(configs: Sequence[Config]) -> int:
    """Return the tokens of the sequence for which costs are compared. All of the configs can read it."""
    return min(_LONGEST, *(config.model.max_seq_len for config in configs))


def _known(rows: Sequence[Row]) -> list[Known]:
    """Return the topics of the rows."""
    by_name = dict(topics())
    names = dict.fromkeys(name for row in rows for name in row.topics if name in by_name)
    found = {name: evidence(name) for name in names}
    return [Known(name, by_name[name], numbered(known.claims), known.forests) for name, known in found.items()]


def _numbers(costs: Sequence[Price], context: int) -> list[tuple[str, list[str]]]:
    return [
        ("Parameters", [count(cost.parameters) for cost in costs]),
        ("Active parameters", [count(cost.active) for cost in costs]),
        (f"KV cache and states at {context:,} tokens", [binary(cost.state_bytes) for cost in costs]),
        ("Forward FLOPs per token", [si(cost.flops) for cost in costs]),
    ]


def _diagrams(titles: Sequence[str], configs: Sequence[Config]) -> list[Markup]:
    return [Markup(svg) for svg in side_by_side([*zip(titles, configs, strict=True)])]


def _commands(variants: Sequence[Variant], context: int) -> list[str]:
    """Return the commands that print the differences from the first config, and the costs."""
    first, *others = variants
    diffs = [
        command_line(
            "diff", first.name, other.name, options=[*_changes("a", first), *_changes("b", other), "--model-only"]
        )
        for other in others
    ]
    options = ["--context", str(context)]
    if any(variant.overrides for variant in variants):  # `archlab cost` would change the fields of all configs
        return diffs + [variant.command("cost", *options) for variant in variants]
    return [*diffs, command_line("cost", *(variant.name for variant in variants), options=options)]


def _changes(side: str, variant: Variant) -> list[str]:
    return [f"{side}.{setting}" for setting in variant.settings]
