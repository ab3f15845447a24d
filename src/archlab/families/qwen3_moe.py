"""Configs and weights of the Qwen 3 mixture-of-experts models (Qwen3MoeForCausalLM in transformers)."""

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import RMS_NORM, SIZES, attention_biases, kv_heads
from archlab.families.mixtral import FUSED_EXPERTS, TRAINING_ONLY
from archlab.families.qwen2 import Windows
from archlab.families.qwen2_moe import SOME_DENSE, WEIGHTS, experts
from archlab.families.qwen3 import QK_NORMS, qk_rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key
from archlab.hf.layer_types import FULL, SLIDING
from archlab.hf.rope import RopeKeys


def all_or_none(hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the layer types: sliding windows in all layers if `use_sliding_window` is true, otherwise full attention.

    The key `max_window_layers` is not read.
    """
    slides = hf.get("use_sliding_window", False) and hf.or_null("sliding_window", 4096) is not None
    return [SLIDING if slides else FULL] * n_layers


class OneWindow(Windows):
    """One window for all layers, or none. The published code does not read a list of layer types."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the window of all layers. Raise UserError if `layer_types` is present and contains different types."""
        implied = self.implied(hf, ours["n_layers"])
        if (listed := hf.get("layer_types", implied)) != implied:
            raise hf.refuse(
                "layer_types", listed, f"{implied[0]} for all layers, because the published code does not read the list"
            )
        super().read(hf, ours)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write one window. `Family.hf_config` reads it back and refuses a model whose layers have different
        windows."""
        super().write(model, hf)
        del hf["layer_types"]


FAMILY = Family(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    default_max_seq_len=32768,
    fields=[
        *SIZES,
        kv_heads(4),
        *RMS_NORM,
        *qk_rms_norm(1e-6),
        *experts(128, 8, 768),
        RopeKeys(),
        OneWindow(all_or_none),
        *attention_biases(),
        Key("tie_word_embeddings", "head.tied", False),
        SOME_DENSE,
    ],
    weights=[*WEIGHTS, *QK_NORMS],
    alternatives=FUSED_EXPERTS,
    prefix="model.",
    no_effect=TRAINING_ONLY | {"max_window_layers"},
    aliases={"num_local_experts": "num_experts"},
)
