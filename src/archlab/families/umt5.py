"""Configs and weights of umT5 (UMT5ForConditionalGeneration in transformers)."""

from dataclasses import dataclass, replace

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.t5 import BIAS, WEIGHTS, fields
from archlab.families.t5 import FAMILY as T5
from archlab.hf.fields import Always, ConfigReader
from archlab.hf.weight_map import Row


@dataclass(frozen=True)
class AlwaysScaledLogits:
    """Factor d_model^-0.5 on the logits. umT5 has it even if the head is not tied."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        ours["head.scale"] = ours["d_model"] ** -0.5

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key. `Family.hf_config` reads the written config back and refuses a model with another factor."""


FAMILY = replace(
    T5,
    model_type="umt5",
    architecture="UMT5ForConditionalGeneration",
    fields=[
        *fields(d_ff=1024, n_layers=8, n_heads=6, feed_forward="gated-gelu"),
        Always("position.shared", False),
        AlwaysScaledLogits(),
    ],
    weights=[
        *WEIGHTS,
        Row(f"decoder.block.{{i}}.{BIAS}", "layers.{i}.attention.position_bias.weight"),
        Row(f"encoder.block.{{i}}.{BIAS}", "encoder.layers.{i}.attention.position_bias.weight"),
    ],
    no_effect=T5.no_effect | {"scalable_attention"},
)
