"""The kinds of layers that a model really has, and the order in which they come."""

import re
from dataclasses import dataclass
from itertools import groupby

from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.model_schema import ModelConfig


@dataclass(frozen=True)
class Kind:
    """Layers that are alike in everything but where they stand."""

    name: str
    layer: LayerConfig


def kinds_of(model: ModelConfig) -> tuple[list[Kind], list[str]]:
    """The kinds, in order of appearance, and each layer's."""
    layers = [layer.model_copy(update={"kind": ""}) for layer in layer_configs(model)]
    given = dict(zip(layers, (layer.kind for layer in layer_configs(model)), strict=True))
    names = {layer: re.sub(r"\W+", "_", name).strip("_").lower() for layer, name in given.items()}
    good = all(name.isidentifier() and len(name) <= 12 for name in names.values())
    if not good or len(set(names.values())) < len(names):
        names = {layer: f"kind_{i}" for i, layer in enumerate(names, 1)}
    in_order = list(dict.fromkeys(layers))
    return [Kind(names[layer], layer) for layer in in_order], [names[layer] for layer in layers]


def period(names: list[str]) -> list[str]:
    """The shortest cycle that, repeated and cut off, gives the names."""
    for length in range(1, len(names) + 1):
        if all(name == names[i % length] for i, name in enumerate(names)):
            return names[:length]
    return names


def runs(names: list[str]) -> str:
    """["a", "a", "b"] -> ("a",) * 2 + ("b",)."""
    if 1 < len(names) <= 3:
        return "(" + ", ".join(f'"{name}"' for name in names) + ")"
    counted = [(name, len(list(run))) for name, run in groupby(names)]
    return " + ".join(f'("{name}",)' + (f" * {n}" if n > 1 else "") for name, n in counted)
