"""Translation of the RoPE keys of families in which each layer type has a RoPE of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from archlab.config.components.position import Rope
from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.hf.fields import ConfigReader
from archlab.hf.layer_types import FULL, SLIDING
from archlab.hf.rope import rope_fields, rope_parameters, scaling_kind


@dataclass(frozen=True)
class RopePerType:
    """One RoPE for sliding-window layers and one for full-attention layers. Both are objects inside `rope_parameters`.

    `layer_types` must already have been read.
    """

    defaults: Mapping[str, Raw] = field(default_factory=dict)
    """RoPE parameters by layer type of a file without `rope_parameters`."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set one RoPE for the whole model, or one for each layer kind."""
        nested = self.nested(hf)
        if layers := ours.get("layers"):
            # The model's own position is a plain RoPE, because a layer kind inherits all fields that it does not set.
            ours["position"] = {"kind": "rope"}
            layers["sliding"]["position"] = self.of_type(hf, nested, SLIDING)
            layers["full"]["position"] = self.of_type(hf, nested, FULL)
        else:
            ours["position"] = self.of_type(hf, nested, FULL if ours.get("attention.window") is None else SLIDING)

    def nested(self, hf: ConfigReader) -> Mapping[str, Raw]:
        """Return the RoPE parameters by layer type. Raise UserError for the keys of older files, which the published
        code ignores."""
        for key in ("rope_theta", "rope_scaling", "rope_local_base_freq"):
            if (value := hf.get(key)) is not None:
                raise hf.refuse(key, value, "no value, because the published code reads rope_parameters only")
        return hf.get("rope_parameters", self.defaults)

    def of_type(self, hf: ConfigReader, nested: Mapping[str, Raw], kind: str) -> Raw:
        """Return the position encoding of a layer type. Raise UserError if `nested` has no theta for it."""
        own = nested.get(kind)
        if not isinstance(own, dict) or not own.get("rope_theta"):
            raise hf.refuse("rope_parameters", nested, f"an object with rope_theta for {kind}")
        return self._position(hf, own)

    def fraction(self, hf: ConfigReader, parameters: Raw) -> float:
        """Return the fraction of the dimensions that RoPE rotates. Raise UserError if it is not 1, because the
        published code ignores the key."""
        fraction = parameters.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1.0))
        if fraction != 1.0:
            raise hf.refuse("partial_rotary_factor", fraction, "1.0, because the published code ignores the key")
        return fraction

    def _position(self, hf: ConfigReader, parameters: Raw) -> Raw:
        fraction = self.fraction(hf, parameters)
        if not parameters.get("truncate", True):
            raise hf.refuse("rope_parameters.truncate", False, "true, because the published code ignores this key")
        outside, inside = (values.get("original_max_position_embeddings") for values in (hf, parameters))
        if outside and not inside and parameters.get("rope_type", "default") not in ("default", "linear", "dynamic"):
            raise hf.refuse("original_max_position_embeddings", outside, "this key only inside the RoPE scaling")
        only_inside = ConfigReader({}, hf.where)  # keys outside the scaling are not read
        longest = hf.get("max_position_embeddings")
        return rope_fields(only_inside, parameters["rope_theta"], fraction, "half", parameters, longest)

    def values(self, rope: Rope, longest: int) -> Raw:
        """Return the config.json values of a RoPE. `longest` is the maximum sequence length."""
        return rope_parameters(rope, longest)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write one RoPE for each layer type of the model into `rope_parameters`."""
        layers = {
            FULL if layer.multi_head.window is None else SLIDING: layer.position for layer in layer_configs(model)
        }
        hf["rope_parameters"] = {
            kind: self.values(rope, model.max_seq_len) for kind, rope in layers.items() if isinstance(rope, Rope)
        }


class PartialRopePerType(RopePerType):
    """One RoPE for each layer type, which may rotate only some dimensions of each head."""

    def fraction(self, hf: ConfigReader, parameters: Raw) -> float:
        """Return the fraction of the dimensions that RoPE rotates."""
        return parameters.get("partial_rotary_factor", 1.0)

    def values(self, rope: Rope, longest: int) -> Raw:
        return {**super().values(rope, longest), "partial_rotary_factor": rope.fraction}


class ProportionalRopePerType(RopePerType):
    """One RoPE for each layer type, which may be p-RoPE."""

    def of_type(self, hf: ConfigReader, nested: Mapping[str, Raw], kind: str) -> Raw:
        own = nested.get(kind)
        if not isinstance(own, dict) or scaling_kind(own) != "proportional":
            return super().of_type(hf, nested, kind)
        plain = {key: value for key, value in own.items() if key not in ("rope_type", "partial_rotary_factor")}
        scaling = {"kind": "proportional", "turning": own.get("partial_rotary_factor", 1.0)}
        return {**super().of_type(hf, {kind: plain}, kind), "scaling": scaling}


class RopePerTypeOrOlderKeys(RopePerType):
    """One RoPE for each layer type, in the keys of new or of older files. `defaults` must have a theta for each type.

    Older files have `rope_local_base_freq` for sliding-window layers, and `rope_theta` and `rope_scaling` for
    full-attention layers.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        for kind in (FULL, SLIDING):  # both are checked, because the published code computes both in any model
            self.of_type(hf, self.nested(hf), kind)
        super().read(hf, ours)

    def nested(self, hf: ConfigReader) -> Mapping[str, Raw]:
        """Return the RoPE parameters by layer type. Raise UserError for keys that transformers 4 and 5 interpret
        differently."""
        nested = hf.get("rope_parameters", {})
        if flat := set(nested) - {SLIDING, FULL}:
            raise hf.refuse(
                "rope_parameters", sorted(flat), f"one set of RoPE parameters for {SLIDING} and one for {FULL}"
            )
        older = hf.get("rope_scaling", {})
        if "type" in older and "rope_type" not in older and older["type"] != "default":
            raise hf.refuse("rope_scaling.type", older["type"], "the key rope_type; transformers 5 ignores type here")
        theta = {kind: parameters["rope_theta"] for kind, parameters in self.defaults.items()}
        return {
            FULL: {"rope_theta": hf.get("rope_theta", theta[FULL])} | (nested.get(FULL) or {}) | older,
            SLIDING: {"rope_theta": hf.get("rope_local_base_freq", theta[SLIDING])} | (nested.get(SLIDING) or {}),
        }
