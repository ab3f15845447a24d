"""Configs and weights of the first GPT (OpenAIGPTLMHeadModel in transformers)."""

from archlab.families.gpt2 import ALIASES, ALWAYS_BIASED, BRANCHES, IGNORED, LAYER, LAYER_NORM, SIZES, PlainMLP
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, Key
from archlab.hf.weight_map import Row, linear

FAMILY = Family(
    model_type="openai-gpt",
    architecture="OpenAIGPTLMHeadModel",
    default_max_seq_len=512,
    fields=[
        *SIZES,
        PlainMLP(),
        # "gelu" is the tanh form in this family. The published code does not know other names.
        ActivationKey("afn", "gelu", names={"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}),
        *LAYER_NORM,
        Always("norm.placement", "post"),
        Always("position.kind", "learned"),
        *ALWAYS_BIASED,
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=[
        Row("transformer.tokens_embed.weight", "embedding.weight"),
        Row("transformer.positions_embed.weight", "positions.weight"),
        *BRANCHES,
        *linear(f"{LAYER}.ln_1", "layers.{i}.attention_norms.stream"),
        *linear(f"{LAYER}.ln_2", "layers.{i}.mlp_norms.stream"),
        Row("lm_head.weight", "head.weight"),
    ],
    ignored=(*IGNORED, "position_ids"),
    prefix="transformer.",
    no_effect=frozenset({"n_ctx", "n_special", "predict_special_tokens"}),
    aliases=ALIASES,
)
