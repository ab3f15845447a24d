"""Names of fields in the config, for messages about one layer."""

from archlab.config.core.merge import expand
from archlab.transplant.weights import DECODER, Architecture


def field_of(target: Architecture, layer: str, place: str, field: str) -> str:
    """Return the name of the field that sets a value of a layer, as in `model.layers.local.attention.window`.

    `layer` is a name as in `layers.3`, and `place` is a component or another section of the layer.
    """
    stack, _, index = layer.rpartition(".")
    encoder, layers = target.model.encoder, target.model.layers
    above, overrides = "model", {}
    if place == "cross" and encoder is not None:
        above, overrides = "model.encoder", {"cross": expand(encoder.cross)}
    elif stack != DECODER and encoder is not None:
        above, overrides = "model.encoder", expand(encoder.overrides)
    elif layers is not None:
        kind = target.stacks[stack][int(index)].kind
        above, overrides = f"model.layers.{kind}", expand(layers.kinds[kind])
    if field in overrides.get(place, {}):
        return f"{above}.{place}.{field}"
    return f"model.{'attention' if place == 'cross' else place}.{field}"
