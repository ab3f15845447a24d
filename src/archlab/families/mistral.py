"""Configs and weights of Mistral (MistralForCausalLM in transformers)."""

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import GATED, RMS_NORM, SIZES, WEIGHTS, kv_heads
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key, Only
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes
from archlab.hf.rope import RopeKeys


def all_sliding(hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the layer types: sliding windows in all layers, or full attention if the window is null."""
    return [SLIDING if hf.or_null("sliding_window", 4096) else FULL] * n_layers


class Windows(LayerTypes):
    """One window for all layers. A Mistral config.json with `layer_types` is read as the family Ministral instead, as
    in transformers."""

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write one window. `Family.hf_config` reads it back and refuses a model whose layers have different
        windows."""
        super().write(model, hf)
        del hf["layer_types"]


FAMILY = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *SIZES,
        kv_heads(8),
        *RMS_NORM,
        *GATED,
        RopeKeys(),
        Windows(all_sliding),
        Only("attention_bias", False, written=False),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=WEIGHTS,
    prefix="model.",
)
