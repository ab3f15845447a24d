"""What a flattened file cannot have: refused by name, and never left out in silence.

Components, norms, positions and all their fields are written from the model's own source. Only what the skeleton tells
in its own words is in the table: a new field there is refused until the skeleton has it.
"""

import json
from collections.abc import Iterator
from typing import Any

from archlab.config.components.visibility import Visibility
from archlab.config.core.base import Base
from archlab.config.layers import LayerConfig, layer_configs, resolve
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import Problem, raise_problems
from archlab.config.sources import refuse_plug_ins
from archlab.errors import UserError

KNOWN: dict[type[Base], str] = {
    ModelConfig: "vocab_size d_model n_layers max_seq_len embedding block attention mixer position mlp norm dropout "
    "head init layers",
    Visibility: "visibility window stride global_tokens blocks",
}
"""Section -> its fields that the skeleton of a file has, or that are of training."""


def refuse_unknown(model: ModelConfig) -> None:
    """ConfigError that names every choice of the model that no flattened file has."""
    refuse_plug_ins(model, "a flattened file")
    found = list(_unknown(resolve(model), ModelConfig, "model"))
    for layer in dict.fromkeys(layer_configs(model)):
        if isinstance(layer.attention, Visibility):
            found += _unknown(layer.attention, Visibility, "model.attention")
            if layer.attention.visibility == "prefix":  # its length would be an argument of the pass
                found.append(
                    Problem("model.attention.visibility", "prefix; allowed in a flattened file: causal, two_sided")
                )
    raise_problems(list(dict.fromkeys(found)), "the config to flatten")


def cannot_be_written(layer: LayerConfig, name: str, why: str) -> UserError:
    """To raise where the source of a component does something that a file cannot have."""
    kind = getattr(getattr(layer, name), "kind", name)
    return UserError(f"model.{name}.kind  {kind} cannot be in a flattened file: its source has `{why}`")


def _unknown(section: Base, schema: type[Base], path: str) -> Iterator[Problem]:
    for name, field in schema.model_fields.items():
        value, default = getattr(section, name), field.get_default(call_default_factory=True)
        if name not in KNOWN[schema].split() and value != default and name != "kind":
            yield Problem(f"{path}.{name}", f"{_text(value)}; allowed in a flattened file: {_text(default)}")


def _text(value: Any) -> str:
    """As one writes it in a config."""
    return json.dumps(value.model_dump() if isinstance(value, Base) else value).replace('"', "")
