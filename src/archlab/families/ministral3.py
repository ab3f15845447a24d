"""Configs and weights of Ministral 3 (Ministral3ForCausalLM in transformers): Mistral with YaRN, and queries that grow
with their position.
"""

from collections.abc import Mapping
from typing import Any

from archlab.config.components.multi_head import MultiHead
from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import GATED, SIZES, WEIGHTS, kv_heads, rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key
from archlab.hf.rope import RopeKeys, refuse_flags, rope_fields

BETA, LENGTH = "llama_4_scaling_beta", "original_max_position_embeddings"
YARN: Mapping[str, Any] = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, LENGTH: 16384, "beta_fast": 32.0, "beta_slow": 1.0,
    "mscale_all_dim": 1.0, "mscale": 1.0, BETA: 0.1,
}  # fmt: skip
"""Default of `rope_parameters`."""


class GrowingRope(RopeKeys):
    """RoPE, and the growth of queries with their position. Both are in `rope_parameters`."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set RoPE and the growth. Raise UserError if a file with RoPE parameters lacks those of the growth, because
        the published code needs them."""
        given = hf.get("rope_scaling", {}) or hf.get("rope_parameters", {})
        scaling, default = (given, self.theta) if given else (YARN, YARN["rope_theta"])
        if (theta := hf.get(self.theta_key, default)) != default and not given:
            raise hf.refuse(self.theta_key, theta, f"{default}, or another value together with rope_parameters")
        refuse_flags(hf, scaling)
        beta, length = scaling.get(BETA), scaling.get(LENGTH)
        if beta is None or length is None or hf.get(LENGTH, length) != length:
            raise hf.refuse("rope_parameters", scaling, f"numbers for {BETA} and {LENGTH}")
        if (fraction := scaling.get(self.fraction_key, hf.get(self.fraction_key, 1.0))) != 1.0:
            raise hf.refuse(self.fraction_key, fraction, "1.0, because the published code ignores the key")
        rest = {key: value for key, value in scaling.items() if key not in (BETA, "max_position_embeddings")}
        longest = hf.get("max_position_embeddings")
        ours["position"] = rope_fields(hf, scaling.get("rope_theta", theta), 1.0, self.pairing, rest, longest)
        ours["attention.temperature"] = None if beta == 0 else {"beta": beta, "length": length}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        super().write(model, hf)
        if "rope_parameters" in hf and isinstance(model.attention, MultiHead):
            growth = model.attention.temperature
            hf["rope_parameters"] |= {BETA: growth.beta if growth else 0.0}
            hf["rope_parameters"].setdefault(LENGTH, growth.length if growth else model.max_seq_len)


FAMILY = Family(
    model_type="ministral3",
    architecture="Ministral3ForCausalLM",
    default_max_seq_len=262144,
    fields=[
        *SIZES,
        kv_heads(8),
        Key("head_dim", "attention.head_dim", 128),
        *rms_norm(1e-5),
        *GATED,
        GrowingRope(),
        Key("sliding_window", "attention.window", None),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=WEIGHTS,
    prefix="model.",
)
