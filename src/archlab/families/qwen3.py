"""Configs and weights of the dense Qwen 3 models (Qwen3ForCausalLM in transformers)."""

from archlab.families.llama import GATED, RMS_NORM, SIZES, WEIGHTS, attention_biases, kv_heads
from archlab.families.qwen2 import Windows, upper_layers
from archlab.hf.family import Family
from archlab.hf.fields import Always, Field, Key
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import linear


def qk_rms_norm(eps: float) -> tuple[Field, ...]:
    """Return the fields of an RMSNorm on each head's queries and keys. It has the same epsilon as the block's norms."""
    return (
        Always("attention.qk_norm.kind", "rmsnorm"),
        Always("attention.qk_norm.cast", "before_weight"),
        Key("rms_norm_eps", "attention.qk_norm.eps", eps),
    )


QK_NORMS = [
    *linear("model.layers.{i}.self_attn.q_norm", "layers.{i}.attention.q_norm.norm"),
    *linear("model.layers.{i}.self_attn.k_norm", "layers.{i}.attention.k_norm.norm"),
]

FAMILY = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    default_max_seq_len=32768,
    fields=[
        *SIZES,
        kv_heads(32),
        Key("head_dim", "attention.head_dim", 128),
        *RMS_NORM,
        *qk_rms_norm(1e-6),
        *GATED,
        RopeKeys(),
        Windows(upper_layers),
        *attention_biases(),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[*WEIGHTS, *QK_NORMS],
    prefix="model.",
)
