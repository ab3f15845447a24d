"""Configs and weights of InternLM 3 (LlamaForCausalLM in transformers, with a config class of its own)."""

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import GATED, SIZES, WEIGHTS, attention_biases, kv_heads, rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key
from archlab.hf.rope import RopeKeys


class SameBiases:
    """The keys `attention_bias` and `mlp_bias`, which must be equal."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if the keys differ, because the published class refuses such a config."""
        attention, mlp = hf.get("attention_bias", False), hf.get("mlp_bias", False)
        if attention != mlp:
            raise hf.refuse("mlp_bias", mlp, f"{attention}, the value of attention_bias")

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key. `Family.hf_config` reads the keys back and refuses a model with different biases."""


FAMILY = Family(
    model_type="internlm3",
    architecture="InternLM3ForCausalLM",
    default_max_seq_len=32768,
    fields=[
        *SIZES,
        kv_heads(2),
        Key("head_dim", "attention.head_dim", 128, nullable=True),
        *rms_norm(1e-5),
        *GATED,
        RopeKeys(),
        *attention_biases(),
        Key("mlp_bias", "mlp.bias", False),
        SameBiases(),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=WEIGHTS,
    other_architectures=("LlamaForCausalLM",),
    prefix="model.",
    aliases={"qkv_bias": "attention_bias", "bias": "mlp_bias"},
)
