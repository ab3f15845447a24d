"""Configs and weights of the language model of Cohere Compass (CohereCompassForCausalLM in transformers): Cohere 2 with
RoPE of its own, or no position encoding, in each layer type.
"""

from collections.abc import Mapping

from archlab.config.components.position import Rope
from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.families.cohere import FIELDS, WEIGHTS
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes
from archlab.hf.rope import rope_parameters
from archlab.hf.rope_per_type import RopePerType

FOR_PICTURES = ("mrope_section", "mrope_interleaved")
"""RoPE parameters that change only the positions of pictures."""


class RopeOrNone(RopePerType):
    """RoPE of each layer type inside `rope_parameters`, which the published code requires. null means that the layers
    have no position encoding."""

    def of_type(self, hf: ConfigReader, nested: Mapping[str, Raw], kind: str) -> Raw:
        """Return the position encoding of a layer type. Raise UserError if `nested` has no entry for it."""
        if kind not in nested:
            raise hf.refuse("rope_parameters", nested, f"RoPE parameters or null for {kind}")
        if nested[kind] is None:
            return {"kind": "none"}
        own = {key: value for key, value in nested[kind].items() if key not in FOR_PICTURES}
        return super().of_type(hf, {kind: own}, kind)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write a RoPE or null for each layer type of the model."""
        hf["rope_parameters"] = {
            FULL if layer.multi_head.window is None else SLIDING: rope_parameters(layer.position, model.max_seq_len)
            if isinstance(layer.position, Rope)
            else None
            for layer in layer_configs(model)
        }


FAMILY = Family(
    model_type="cohere_compass_text",
    architecture="CohereCompassForCausalLM",
    default_max_seq_len=8192,
    fields=[
        *FIELDS,
        Key("logit_scale", "head.scale", 1.0),
        LayerTypes(unused=4096),
        RopeOrNone(),
    ],
    weights=WEIGHTS,
    prefix="model.",
    no_effect=frozenset({"pooling"}),
)
