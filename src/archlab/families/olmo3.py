"""Configs and weights of OLMo 3 (Olmo3ForCausalLM in transformers)."""

from collections.abc import Mapping

from archlab.config.core.merge import Raw
from archlab.families.llama import GATED, SIZES, attention_biases
from archlab.families.olmo2 import NORMS, WEIGHTS
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes, full_every
from archlab.hf.rope_per_type import RopePerTypeOrOlderKeys

THETA = 5e5


class Rope(RopePerTypeOrOlderKeys):
    """One RoPE for sliding-window layers and one for full-attention layers, as in Gemma 3.

    If `rope_parameters` is absent, transformers 4 uses `rope_theta` for all layers, but transformers 5 uses it for
    full-attention layers only.
    """

    def nested(self, hf: ConfigReader) -> Mapping[str, Raw]:
        theta = hf.get("rope_theta", THETA)
        if theta != THETA and not (hf.get("rope_parameters", {}).get(SLIDING) or {}).get("rope_theta"):
            raise hf.refuse("rope_theta", theta, f"{THETA}, or a rope_theta for each layer type in rope_parameters")
        return super().nested(hf)


FAMILY = Family(
    model_type="olmo3",
    architecture="Olmo3ForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *SIZES,
        *NORMS,
        *GATED,
        LayerTypes(full_every(4), unused=4096),
        Rope({FULL: {"rope_theta": THETA}, SLIDING: {"rope_theta": THETA}}),
        *attention_biases(),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=WEIGHTS,
    prefix="model.",
)
