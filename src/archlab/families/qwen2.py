"""Configs and weights of Qwen 2 and 2.5 (Qwen2ForCausalLM in transformers)."""

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import GATED, RMS_NORM, SIZES, WEIGHTS, kv_heads
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes
from archlab.hf.rope import RopeKeys


def upper_layers(hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the layer types.

    If `use_sliding_window` is true, the layers from index `max_window_layers` on have sliding windows. All other layers
    have full attention.
    """
    window, first = hf.or_null("sliding_window", 4096), hf.get("max_window_layers", 28)
    slides = hf.get("use_sliding_window", False) and window is not None
    return [SLIDING if slides and i >= first else FULL for i in range(n_layers)]


class Windows(LayerTypes):
    """Layer types, and the key `use_sliding_window`. If it is false, no layer has a window."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the layer types. Raise UserError if `layer_types` contains a sliding window although `use_sliding_window`
        is false."""
        if not hf.get("use_sliding_window", False) and SLIDING in hf.get("layer_types", []):
            raise hf.refuse("use_sliding_window", False, f"true, because layer_types has {SLIDING}")
        super().read(hf, ours)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        super().write(model, hf)
        hf["use_sliding_window"] = SLIDING in hf["layer_types"]


FAMILY = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    default_max_seq_len=32768,
    fields=[
        *SIZES,
        kv_heads(32),
        *RMS_NORM,
        *GATED,
        RopeKeys(),
        Windows(upper_layers),
        Always("attention.qkv_bias", True),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=WEIGHTS,
    prefix="model.",
    no_effect=frozenset({"use_mrope"}),
)
