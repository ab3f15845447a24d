"""Configs and weights of OLMo 2 (Olmo2ForCausalLM in transformers)."""

from archlab.families.llama import AROUND, ATTENTION, GATED, MLP, SIZES, attention_biases
from archlab.families.qwen3 import QK_NORMS
from archlab.hf.family import Family
from archlab.hf.fields import Always, Key
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import linear

OUTPUT_NORMS = [
    *linear("model.layers.{i}.post_attention_layernorm", "layers.{i}.attention_norms.after"),
    *linear("model.layers.{i}.post_feedforward_layernorm", "layers.{i}.mlp_norms.after"),
]

NORMS = (
    Always("norm.kind", "rmsnorm"),
    Always("norm.cast", "after_weight"),
    Always("norm.placement", "output"),
    Key("rms_norm_eps", "norm.eps", 1e-5),
    Always("attention.qk_norm.kind", "rmsnorm"),
    Always("attention.qk_norm.cast", "after_weight"),
    Always("attention.qk_norm.scope", "width"),
    Key("rms_norm_eps", "attention.qk_norm.eps", 1e-5),
)

WEIGHTS = [*ATTENTION, *QK_NORMS, *MLP, *OUTPUT_NORMS, *AROUND]

FAMILY = Family(
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *SIZES,
        *NORMS,
        *GATED,
        RopeKeys(),
        *attention_biases(),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=WEIGHTS,
    prefix="model.",
)
