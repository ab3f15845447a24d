"""Cost of a choice in the model that is open in the workbench, for other screens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.identity import flatten, resolved
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.evidence.prices import configured
from archlab.evidence.topics import Topic
from archlab.evidence.usage import makes_choice
from archlab.pricing.price import price, price_rows
from archlab.pricing.units import length
from archlab.ui.bench.workbench import View
from archlab.ui.compare.small import SIZES
from archlab.ui.configs import Variant, load, overrides_in

_COUNTS = ("n_kv_heads", "window", "experts", "active")
"""Sizes that have the same meaning in a small and in a large model."""


@dataclass(frozen=True)
class OpenModel:
    """A config with the changes that the workbench shows."""

    view: View
    config: Config

    @classmethod
    def of(cls, query: list[tuple[str, str]], root: Path) -> "OpenModel | None":
        """Return the model that a query names as `in`, or None if it names none. Raise UserError if it is not valid."""
        if not (name := dict(query).get("in")):
            if changed := overrides_in(query):
                raise UserError(f"{next(iter(changed))} is set, but no model; add one, such as in=llama-3-8b")
            return None
        kept = [(field, value) for field, value in query if "." in field or field == "context"]
        view = View.of(name, kept)
        return cls(view, load(view.variant, root).config)

    @property
    def query(self) -> dict[str, str]:
        """Part of a query that names the model."""
        return self.view.as_opened

    @property
    def values(self) -> dict[str, Any]:
        """Value of each field."""
        return flatten(resolved(self.config))

    @property
    def context(self) -> int:
        return self.view.context or self.config.model.max_seq_len


@dataclass(frozen=True)
class ChoiceCost:
    """Cost of a choice in the open model."""

    name: str
    is_made: bool
    """Whether the model makes the choice."""
    context: str
    headings: list[str]
    rows: list[tuple[str, ...]]
    """Rows of a table, one column per heading after the first. Empty if nothing changes."""
    settings: Sequence[str] = ()
    """Settings of the model with which it is compared."""
    problem: str = ""
    """Reason why there are no numbers. Empty if there are."""
    command: str = ""


def choice_cost(topic: Topic, opened: OpenModel, root: Path) -> ChoiceCost | None:
    """Return what a topic's choice costs in the opened model, or None if the topic is not a choice about the model.

    If the model makes the choice, it is compared with the same model without it, and otherwise with the same model
    with it.
    """
    conditions = topic.conditions
    if not conditions or any(not text.startswith("model.") for text in (*topic.fields, *conditions)):
        return None
    is_made = makes_choice(conditions, opened.config)
    changes = _unchosen(topic) if is_made else topic.fields
    name, context = opened.view.variant.typed, length(opened.context)
    settings = [f"{path}={to_yaml_line(value)}" for path, value in changes.items()]
    headings = ["with it, as it is" if is_made else "as it is", "without it" if is_made else "with it"]
    without_numbers = partial(ChoiceCost, name, is_made, context, [], [])
    if path := _size_in(changes):
        field = path.rpartition(".")[2]
        return without_numbers(problem=f"It needs a size for {field}, which differs from model to model.")
    try:
        overrides = {**opened.view.overrides, **dict(setting.split("=", 1) for setting in settings)}
        changed = load(Variant(opened.view.name, overrides), root).config
    except UserError as error:
        reason = str(error).splitlines()[-1].strip()
        return without_numbers(problem=f"Together with its other choices, it is not possible: {reason}.")
    if makes_choice(conditions, changed) == is_made:
        return without_numbers(problem="It is set for each kind of layer, so one change cannot show it.")
    costs = dict(zip(headings, (price(config, opened.context) for config in (opened.config, changed)), strict=True))
    command = Variant(opened.view.name, overrides).command("cost", "--context", str(opened.context))
    return ChoiceCost(name, is_made, context, headings, price_rows(costs), settings, command=command)


def _unchosen(topic: Topic) -> dict[str, Any]:
    """Return the values of the topic's fields without its choice."""
    small = configured(topic.against)
    values = flatten(resolved(small))
    return {path: _as_default(topic, path, values.get(path)) for path in topic.fields}


def _as_default(topic: Topic, path: str, value: Any) -> Any:
    """Return null if the small model has a size by default, because then a larger model has a default of its own."""
    if path.rpartition(".")[2] not in SIZES or not isinstance(value, int | float):
        return value
    try:
        default = flatten(resolved(configured({**topic.against, path: None}))).get(path)
    except UserError:  # the field has no default that depends on the model
        return value
    return None if default == value else value


def _size_in(changes: Mapping[str, Any]) -> str:
    """Return a field that has a size of the small model, or "" if there is none."""
    sizes = SIZES - {*_COUNTS}
    return next((path for path, value in changes.items() if value is not None and path.rpartition(".")[2] in sizes), "")
