"""Configs and weights of the decoders of ModernBERT, such as Ettin (ModernBertDecoderForCausalLM in transformers)."""

from dataclasses import replace

from archlab.config.core.merge import Raw
from archlab.families.modernbert import FAMILY as MODERNBERT
from archlab.families.modernbert import FIELDS, LAYER, ROWS, Layers
from archlab.hf.fields import ConfigReader
from archlab.hf.weight_map import linear


class CausalLayers(Layers):
    """Layer types with their windows and RoPEs. A window is half as wide as that of the encoder."""

    def window(self, hf: ConfigReader) -> int:
        """Return the window. A token sees itself and the tokens before it, `local_attention` / 2 in total. The key
        `sliding_window`, which transformers also writes, has priority."""
        return hf.get("sliding_window", (hf.or_null("local_attention", 128) or 0) // 2)

    def write_window(self, window: int, hf: Raw) -> None:
        hf["local_attention"], hf["sliding_window"] = 2 * window, window


FAMILY = replace(
    MODERNBERT,
    model_type="modernbert-decoder",
    architecture="ModernBertDecoderForCausalLM",
    fields=[*FIELDS, CausalLayers()],
    weights=[
        *ROWS,
        *linear(f"{LAYER}.attn.q_proj", "layers.{i}.attention.q"),
        *linear(f"{LAYER}.attn.k_proj", "layers.{i}.attention.k"),
        *linear(f"{LAYER}.attn.v_proj", "layers.{i}.attention.v"),
        *linear("lm_head.dense", "head.transform.dense"),
        *linear("lm_head.norm", "head.transform.norm"),
    ],
)
