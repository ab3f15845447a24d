"""Values of the config's own fields, such as `model.attention.n_kv_heads`, of a published model."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.identity import flatten
from archlab.config.layers import LayerConfig, distinct_layers, resolve
from archlab.config.model_schema import ModelConfig

Value = str | float | None


def config_fields(model: ModelConfig) -> Mapping[str, Value]:
    """Return the value of each field of the model by its dotted name. A field of layers has the value of most layers
    that have the field. Lists and empty sections become text."""
    of_layers: dict[str, Counter[Value]] = {}
    for layer, n in distinct_layers(model).items():
        for path, value in flatten(layer.model_dump(mode="json"), "model.").items():
            of_layers.setdefault(path, Counter())[_plain(value)] += n
    in_layers = {path: counter.most_common(1)[0][0] for path, counter in of_layers.items()}
    parts = {name for name in ModelConfig.model_fields if name not in LayerConfig.model_fields}
    whole = flatten(resolve(model).model_dump(mode="json", include=parts - {"layers", "encoder"}), "model.")
    common = {path: value for path, value in in_layers.items() if path.split(".")[1] in ModelConfig.model_fields}
    return {**{path: _plain(value) for path, value in whole.items()}, **common}


def _plain(value: Any) -> Value:
    return value if value is None or isinstance(value, str | int | float) else to_yaml_line(value)
