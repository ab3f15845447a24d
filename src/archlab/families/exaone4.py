"""Configs and weights of EXAONE 4 (Exaone4ForCausalLM in transformers)."""

from archlab.config.components.position import Rope
from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import GATED, SIZES, kv_heads, rms_norm
from archlab.families.olmo2 import WEIGHTS
from archlab.families.qwen3 import qk_rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes
from archlab.hf.rope import RopeKeys


def by_pattern(hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the layer types: full attention in every n-th layer, sliding windows in the others.

    n is the key `sliding_window_pattern`. If the key `sliding_window` is null, all layers have full attention.
    """
    pattern = hf.get("sliding_window_pattern", 4, kind=object)
    if hf.or_null("sliding_window", 4096) is None or hf.get("layer_types"):
        return [FULL] * n_layers
    if not isinstance(pattern, int):
        raise hf.refuse("sliding_window_pattern", pattern, "a number, or another value together with layer_types")
    return [SLIDING if (i + 1) % pattern else FULL for i in range(n_layers)]


class Layers(LayerTypes):
    """Layer types of EXAONE 4. If `sliding_window` is null, all layers have RoPE. Otherwise, only sliding-window layers
    do."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        hybrid = hf.or_null("sliding_window", self.window) is not None
        full = {"position": {"kind": "none"}} if hybrid else {}
        LayerTypes(self.implied, self.window, full=full).read(hf, ours)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the layer types. If the model has neither windows nor RoPE, write a value for `sliding_window`
        nevertheless.

        The published code omits RoPE in full-attention layers only if `sliding_window` is not null.
        """
        super().write(model, hf)
        has_rope = any(isinstance(layer.position, Rope) for layer in layer_configs(model))
        if hf["sliding_window"] is None and not has_rope:
            hf["sliding_window"] = self.window


FAMILY = Family(
    model_type="exaone4",
    architecture="Exaone4ForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *SIZES,
        kv_heads(32),
        *rms_norm(1e-5),
        Always("norm.placement", "output"),
        *qk_rms_norm(1e-5),
        *GATED,
        RopeKeys(),
        Layers(by_pattern),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=WEIGHTS,
    prefix="model.",
)
